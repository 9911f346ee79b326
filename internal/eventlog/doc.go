// SPDX-License-Identifier: Apache-2.0

// Package eventlog is the log of the bridge: the only place where an event becomes durable.
//
// Open starts two embedded NATS servers in this process and takes the data directory for itself. The event plane holds
// append-only streams (EV_<bus>, JOURNEY_<bus>, DEAD, ...), the state plane key-value buckets (definitions, leases),
// reached through Connect.
//
// # Promises
//
// An append is complete when its done function is called without an error: the message is in the log, synced to disk
// (Durability Fsync) or written to the operating system (OS), and readable. Completions of one stream come in the
// order of its sequences, which is the order in which Append was called. What was not completed may still be in the
// log, and then counts like any other message.
//
// No reader sees a message above the committed position. Sequences grow by one and are never given to another message:
// when damage has taken away acknowledged messages, their sequences are filled with gap records at the next start, and
// Lost says which they were.
//
// An error of a sync closes the log until a restart (Err); it is never retried, because the kernel may have dropped
// the pages. A disk with less free space than the reserve refuses producers at once (fault.Full) and heals by itself;
// other streams go on until a quarter of the reserve is left.
//
// Nothing is deleted except by Trim, which removes whole old blocks. A stream with many messages in the dedup window
// costs about 64 bytes of memory for each id, 64 MB at most for a bus (see BusConfig).
//
// # What it leaves to others
//
// What a message means, except for events on a Bus; who may append; what may be trimmed (TrimPolicy.Protect). How the
// commit works, and what each crash leaves, is in DESIGN.md beside this file.
package eventlog
