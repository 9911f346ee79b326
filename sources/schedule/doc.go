// SPDX-License-Identifier: Apache-2.0

// Package schedule is the source that makes an event when it is time: by a cron expression in a time zone, at a steady
// pace, or once.
//
// A tick is a point in time that follows from the definition alone, and the id of its event from the tick. One node at a
// time has a schedule, and notes how far it is after each commit: so a tick is one event, whoever stops or takes over in
// between, as long as the bus still knows the ids of a repeat (its dedup window).
package schedule
