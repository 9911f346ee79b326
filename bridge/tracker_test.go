// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"math/rand/v2"
	"testing"
)

func floorOf(t *tracker) uint64 {
	f, _ := t.state()
	return f
}

func TestTrackerMovesOverSettledEventsOnly(t *testing.T) {
	tr := newTracker(10)
	tr.add(11, 2)
	tr.add(12, 0)
	tr.add(15, 1) // 13 and 14 hold no event
	if f := floorOf(tr); f != 10 {
		t.Fatalf("floor %d before anything is settled, want 10", f)
	}
	_, open, moved := tr.wait()
	if open != 5 {
		t.Errorf("%d open, want 5", open)
	}
	tr.done(11)
	if f := floorOf(tr); f != 10 {
		t.Fatalf("floor %d with one record of 11 missing, want 10", f)
	}
	tr.done(11)
	if f := floorOf(tr); f != 14 {
		t.Fatalf("floor %d, want 14", f)
	}
	select {
	case <-moved:
	default:
		t.Error("the channel for a moved floor is open")
	}
	tr.done(15)
	tr.done(15) // too many, and below the floor: nothing
	tr.done(99)
	if f := floorOf(tr); f != 15 {
		t.Fatalf("floor %d, want 15", f)
	}
}

// The floor is always just below the first event that is not settled, whatever the order.
func TestTrackerAgainstAModel(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	tr := newTracker(0)
	missing := map[uint64]int{}
	next := uint64(1)
	for range 20_000 {
		if len(missing) == 0 || rnd.IntN(3) == 0 {
			n := rnd.IntN(4)
			tr.add(next, n)
			missing[next] = n
			next++
		} else {
			seq := next - 1 - uint64(rnd.IntN(int(min(next-1, 3000))))
			if missing[seq] > 0 {
				missing[seq]--
				tr.done(seq)
			}
		}
		want := floorOf(tr)
		for want+1 < next && missing[want+1] == 0 {
			want++
		}
		if f := floorOf(tr); f != want {
			t.Fatalf("floor %d, want %d", f, want)
		}
		for seq := want; seq > 0 && missing[seq] == 0; seq-- {
			if _, ok := missing[seq]; !ok {
				break
			}
			delete(missing, seq)
		}
	}
}
