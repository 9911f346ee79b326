// SPDX-License-Identifier: Apache-2.0

// Package schedule is the source that makes an event when it is time: by a cron expression in a time zone, at a steady
// pace, or once.
//
// A tick is a point in time that follows from the definition alone, and the id of its event from the tick. One node at a
// time has a schedule, and notes how far it is after each commit; who takes over looks in the log for the ticks that may have been
// stored and not noted. So a tick is one event, whoever stops, is killed or takes over, and however long nobody is there, as
// long as the log still has the event (the retention of its bus). After a reset of the position ticks come again.
//
// Missed are the ticks that passed while no node was there. Those that passed while the schedule was paused, or that a changed
// timing would have had before the change, are nobody's: a schedule that is resumed or changed begins now. So its position is the
// last tick and a hash of the timing that this is a tick of.
package schedule
