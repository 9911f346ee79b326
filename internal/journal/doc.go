// SPDX-License-Identifier: Apache-2.0

// Package journal holds what happened to events: the format of the JOURNEY streams, and local views over them and over
// the event streams, kept in Pebble.
//
// # The records
//
// Everything the bridge decides about an event becomes a record in JOURNEY_<bus>: that it was routed and to which
// (rule, target) pairs, every attempt with its result, what is parked until when, which rules were in force from which
// position, and the floor below which everything is settled. Records are packed, many to a message, and a message can
// be read without any other. An Encoder builds a message, Decode reads it.
//
// # The views
//
// A Journal answers: where is the event with this id or subject, where are those whose deliveries to a target stand in
// some way, what is an event's journey, which deliveries are pending and which are due, what does the ledger of an hour
// say, which rules were in force at a position. It is fed in the order of the streams: Apply with JOURNEY messages, Index
// with events. Each write carries the position it was made from in the same batch, and Pebble keeps no log of its own, so
// after a crash the views are those of some earlier position, and the caller feeds again from there (Applied, Indexed).
// The views can be deleted and are then rebuilt.
//
// Apply and Index may be called concurrently with each other and with every query, but each by one goroutine per bus.
// Nothing here starts a goroutine besides Pebble's own, which Close ends. A failed write to Pebble is returned and
// leaves the views as they were: the caller stops feeding.
package journal
