// SPDX-License-Identifier: Apache-2.0

package app

import "testing"

func TestRestIsReachedOnceAfterABurst(t *testing.T) {
	var r rest
	for i, look := range []struct {
		allocated uint64
		want      bool
	}{
		{8 << 20, false}, // the start is busy
		{8<<20 + 4096, false},
		{48 << 20, false}, // a burst
		{90 << 20, false},
		{90<<20 + 300<<10, true},
		{90<<20 + 600<<10, false}, // not again
		{91 << 20, false},
		{105 << 20, false}, // too little
		{105<<20 + 1, false},
		{107 << 20, false},
		{107<<20 + 1, true},
	} {
		if got := r.reached(look.allocated); got != look.want {
			t.Errorf("look %d at %d bytes: %v, want %v", i, look.allocated, got, look.want)
		}
	}
}
