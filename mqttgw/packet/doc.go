// SPDX-License-Identifier: Apache-2.0

// Package packet is the MQTT codec: every control packet of MQTT 3.1.1 and MQTT 5.0, decoded and encoded.
//
// A Reader takes packets off a connection. It refuses a packet by its announced size before it makes room for it, and
// makes room only for bytes that have arrived. Decode turns one packet into its struct; Publish.Decode does so for the
// hot packet without allocating. What is variable in size and seldom looked at (topic, payload, properties) is a view
// into the given buffer: whoever keeps it copies it. Properties stay raw bytes, validated once, so that they can be
// passed on in their order and with their repeats.
//
// Decoding is strict: reserved bits, UTF-8 (no U+0000, no surrogates), minimal lengths, properties by packet type, their
// repeats and their ranges, reason codes, packet id 0, trailing bytes. A refusal is an *Error with the reason code that
// an MQTT 5 peer is told. What depends on the state of a connection (aliases, quotas, rights) is the gateway's.
//
// Encoding appends to the caller's buffer and cannot fail; a text of more than 65,535 bytes is a programming error and
// panics. Nothing here blocks except Reader.Next, nothing starts a goroutine, and values are not safe for concurrent use.
package packet
