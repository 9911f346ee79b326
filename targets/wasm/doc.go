// SPDX-License-Identifier: Apache-2.0

// Package wasm runs functions that users have uploaded as WebAssembly, in this process: a Runtime compiles them, a
// Function is one of them with its settings and a pool of instances. It knows nothing of where code is kept or of who
// calls.
//
// A function is a pure computation. It has a memory of its own, up to a limit; no network, no files, no environment and
// no arguments. What it may take for chance is not: its clock stands at the event's time and its random numbers begin
// with the delivery's id, so that the same code gives the same bytes for the same delivery, however often and on whatever
// node it runs. It is stopped at its time limit, and its instance is gone then.
//
// What one event leaves behind the next does not see. A module of the ABI "handle" is set back after each event: its
// memory and its mutable globals are written again as they were before the first (see module.go for why that is all).
// Where that cannot be done, because the module changes its tables or drops segments, and after an error or when memory
// was grown, the instance is thrown away. A module of the ABI "command" is a new instance for each event. Only a function
// that is declared stateful keeps what it has, for as long as its instance lives.
//
// # ABI "handle"
//
// The module exports its memory, as memory, and two functions:
//
//	alloc(size i32) i32          room for size bytes, which the event is written to
//	handle(ptr i32, len i32) i64 takes the event and returns where its result is: address<<32 | length
//
// Exported _initialize is called first, once for each instance. What handle gets is the event in the JSON format of
// CloudEvents; what it returns is a result (see ParseResult).
//
// # ABI "command"
//
// The module exports _start, as every program compiled for WASI (preview 1) does. The event is its standard input and its
// standard output the result; the start of its standard error goes into the error of a failed attempt.
package wasm
