// SPDX-License-Identifier: Apache-2.0

// Package sources is the contract between the bridge and the ways in that are configured: what a source promises, the
// catalog of its kinds, and the supervisor that runs them.
//
// There are two sorts. A pulled source fetches from elsewhere (a broker, a clock): in a cluster one node at a time runs it, by
// lease, and where it is upstream is kept. A source that is a HookHandler is sent to by HTTP: every node has it.
//
// A source is at least once. It acknowledges upstream only after Emit has returned nil, which means that the events are
// committed; what was under way when it stopped comes again, with the same ids, so that the bus drops it where it still
// knows them. An event that can never be stored (too large, an attribute that is not valid, data that its bus refuses by
// schema) must not hold up those behind it: the supervisor stores an event of type io.rialto.source.refused in its place, which says what was wrong, and Emit
// succeeds.
package sources
