// SPDX-License-Identifier: Apache-2.0

// Package bridge is the event path: it takes events in, stores them, routes them by the rules in force, delivers them,
// and writes down what happened to each one. DESIGN.md beside this file has the data flow and the failure cases.
//
// A Bridge has one path per bus. On a path an event is at each moment in exactly one of these places:
//
//   - in the bus's log, not routed yet (router);
//   - owed to targets, each delivery live in a lane: queued, or under way (lane);
//   - owed to targets, each delivery parked in JOURNEY until it is due (lane);
//   - settled: ended in some way, or matched by no rule; who redrives a delivery that has ended parks it again.
//
// The tracker knows which; the recorder writes every change to JOURNEY before the floor may pass it. Whatever a crash
// leaves, the next start continues from the floor: it repeats what was under way and loses nothing.
//
// Every exported method may be called from any goroutine. Callbacks of Publish come in the order of the log, from one
// goroutine per bus, and must not block.
package bridge
