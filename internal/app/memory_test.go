// SPDX-License-Identifier: Apache-2.0

package app

import (
	"testing"
	"time"
)

func TestRestIsReachedOnceAfterABurst(t *testing.T) {
	r := rest{looks: 2, worth: worthBytes}
	for i, look := range []struct {
		allocated uint64
		want      bool
	}{
		{8 << 20, false}, // the start is busy
		{8<<20 + 4096, false},
		{48 << 20, false}, // a burst
		{90 << 20, false},
		{90<<20 + 300<<10, false}, // a pause
		{92 << 20, false},
		{92<<20 + 300<<10, false},
		{92<<20 + 600<<10, true},
		{92<<20 + 900<<10, false}, // not again
		{93 << 20, false},
		{107 << 20, false}, // too little
		{107<<20 + 1, false},
		{107<<20 + 2, false},
		{109 << 20, false},
		{109<<20 + 1, false},
		{109<<20 + 2, true},
	} {
		if got := r.reached(look.allocated); got != look.want {
			t.Errorf("look %d at %d bytes: %v, want %v", i, look.allocated, got, look.want)
		}
	}
}

// Pages of the program are released after a start, and again when as many have come back that it is worth it.
func TestPagesAreReleasedWhenTheyAreWorthIt(t *testing.T) {
	var resident int64
	p := programPages{resident: func() int64 { return resident }}
	now := time.Date(2027, 3, 1, 12, 0, 0, 0, time.UTC)
	for i, look := range []struct {
		resident int64
		want     bool
	}{
		{45 << 20, true},
		{9 << 20, false}, // what is needed at rest
		{16 << 20, false},
		{25 << 20, true},
		{25 << 20, false}, // soon after the last
		{10 << 20, false},
		{0, false}, // unknown
	} {
		resident = look.resident
		got := p.due(now)
		if got != look.want {
			t.Errorf("look %d at %d bytes: %v, want %v", i, look.resident, got, look.want)
		}
		now = now.Add(3 * time.Second)
	}
}
