// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"time"
)

// outage is when the maintenance endpoint answers 503.
type outage struct {
	after, length time.Duration // the first one
	every         time.Duration // from the end of one to the next
}

const (
	parkedPoll = 150 * time.Millisecond
	drainTime  = 10 * time.Second // longest that a drain is watched
)

// outageFor fits the first outage into a run of this length; 0 is a run without end.
func outageFor(length time.Duration) outage {
	o := outage{after: 4 * time.Second, length: 4 * time.Second, every: 40 * time.Second}
	if length > 0 {
		o.after = min(o.after, length/4)
		o.length = min(o.length, length*3/10)
	}
	return o
}

// outages takes the maintenance endpoint down and up again until ctx is done. At the end it is up, and what was parked
// has drained in sight.
func (d *coldChain) outages(ctx context.Context, o outage) {
	for pause := o.after; wait(ctx, pause); pause = o.every {
		d.receiver.fail(maintenance)
		d.whileDown(ctx, o.length)
		d.receiver.mend()
		d.drain(context.WithoutCancel(ctx))
	}
}

// whileDown tells how many deliveries are parked meanwhile.
func (d *coldChain) whileDown(ctx context.Context, length time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, length)
	defer cancel()
	for before := 0; wait(ctx, parkedPoll); {
		n, err := d.books.parked(ctx, maintenance)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			d.story.trouble("ledger", err)
		case n != before:
			d.story.say("outage", outagePace, fmt.Sprintf("%s answers %s: %s parked", maintenance, d.story.paint.bad("503"), plural(n, "delivery", "deliveries")))
			before = n
		}
	}
}

// drain tells how the parked deliveries become fewer, until there are none.
func (d *coldChain) drain(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, drainTime)
	defer cancel()
	began, before, lead := time.Now(), -1, maintenance+" is back: "
	for {
		n, err := d.books.parked(ctx, maintenance)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			d.story.trouble("ledger", err)
		case n == 0:
			d.story.say("drain", 0, lead+fmt.Sprintf("0 parked, drained in %.1f s", time.Since(began).Seconds()))
			return
		case n != before:
			d.story.say("drain", 0, lead+fmt.Sprintf("%d parked", n))
			before = n
		}
		if !wait(ctx, 2*parkedPoll) {
			return
		}
	}
}
