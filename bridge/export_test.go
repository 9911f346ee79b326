// SPDX-License-Identifier: Apache-2.0

package bridge

import "context"

// Trim applies the retention of a bus now.
func (b *Bridge) Trim(ctx context.Context, bus string) error {
	p, err := b.path(bus)
	if err != nil {
		return err
	}
	return p.trim(ctx)
}

// Streams returns the positions of a bus's log and of its JOURNEY.
func (b *Bridge) Streams(bus string) (first, last, journeyFirst, journeyLast uint64, err error) {
	p, err := b.path(bus)
	if err != nil {
		return 0, 0, 0, 0, err
	}
	return p.log.First(), p.log.Committed(), p.journey.First(), p.journey.Committed(), nil
}

// WakeLanes has every lane look at the clock, which a test has moved.
func (b *Bridge) WakeLanes() {
	for _, l := range b.allLanes() {
		l.wake()
	}
}
