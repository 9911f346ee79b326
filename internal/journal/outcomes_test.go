// SPDX-License-Identifier: Apache-2.0

package journal_test

import (
	"bytes"
	"errors"
	"maps"
	"slices"
	"testing"

	"github.com/rialto-bridge/rialto/internal/journal"
)

func TestByOutcome(t *testing.T) {
	j := open(t, t.TempDir())
	defer j.Close()
	f := &feeder{t: t, j: j}
	story(f)
	redrives(f)
	for _, c := range []struct {
		target string
		state  journal.State
		want   []uint64
	}{
		{"ops", journal.Parked, []uint64{1}}, {"ops", journal.Discarded, []uint64{3}}, {"ops", journal.Dead, nil}, {"ops", 0, []uint64{3, 1}},
		{"spare", journal.Parked, []uint64{3}}, {"archive", journal.Parked, []uint64{1}}, {"archive", journal.Discarded, []uint64{4}},
		{"archive", 0, []uint64{4, 1}}, {"op", 0, nil}, {"", 0, nil},
	} {
		got, err := j.ByOutcome("devices", c.target, c.state, 0, 0, 10)
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("ByOutcome(%q, %q) = %v, %v, want %v", c.target, c.state, got, err, c.want)
		}
	}
	if got, err := j.ByOutcome("device", "ops", 0, 0, 0, 10); err != nil || got != nil {
		t.Errorf("on another bus: %v, %v", got, err)
	}
}

// FuzzMerge merges changes of a set in every order that Pebble may choose, and compares with a plain set.
func FuzzMerge(f *testing.F) {
	f.Add([]byte{0, 1, 0x80, 1, 0, 2}, []byte{0x80, 2}, []byte{0, 1}, uint8(1))
	f.Add(bytes.Repeat([]byte{3, 7, 0x91, 5, 0x1f, 0xff}, 400), []byte{0x9f, 0xff}, []byte{}, uint8(2))
	dense := make([]byte, 0, 4096)
	for i := range 2048 {
		dense = append(dense, byte(i>>8), byte(i))
	}
	f.Add(dense, []byte{0x80, 9, 0x80, 10}, dense[:1024], uint8(0))
	f.Fuzz(func(t *testing.T, a, b, c []byte, split uint8) {
		want := make(map[uint16]bool)
		var changes [][]byte
		for _, raw := range [][]byte{a, b, c} {
			var list []uint16
			for ; len(raw) > 1; raw = raw[2:] {
				x := (uint16(raw[0])<<8 | uint16(raw[1])) & 0x9fff
				list = append(list, x)
				if i := x & 0x1fff; x&0x8000 == 0 {
					want[i] = true
				} else {
					delete(want, i)
				}
			}
			slices.Reverse(list)
			slices.SortStableFunc(list, func(x, y uint16) int { return int(x&0x1fff) - int(y&0x1fff) })
			list = slices.CompactFunc(list, func(x, y uint16) bool { return x&0x1fff == y&0x1fff }) // the last word counts
			changes = append(changes, journal.AppendChange(nil, list))
		}
		whole := journal.AppendChange(nil, slices.Sorted(maps.Keys(want)))
		canonical, err := journal.MergeChanges(true, 0, whole)
		if err != nil {
			t.Fatal(err)
		}
		for _, newer := range []bool{true, false} {
			got, err := journal.MergeChanges(newer, int(split%3), changes...)
			if err != nil || !bytes.Equal(got, canonical) {
				t.Fatalf("newer %v, a part from %d: %v\n%x\n%x", newer, split%3, err, got, canonical)
			}
		}
		// What is no change is refused.
		if _, err := journal.MergeChanges(true, 0, a); err != nil && !errors.Is(err, journal.ErrFormat) {
			t.Fatalf("error %v is not ErrFormat", err)
		}
	})
}
