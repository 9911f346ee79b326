// SPDX-License-Identifier: Apache-2.0

package journal_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/internal/journal"
)

// mintedAt is an id of a time in milliseconds.
func mintedAt(ms, n uint64) string {
	return fmt.Sprintf("%08x-%04x-7%03x-8000-%012x", ms>>16, ms&0xffff, n&0xfff, n)
}

// Ids and subjects are found as in a plain list, whatever the batches, the order of the ids and the wall clock, and after
// a restart and a trim.
func TestTexts(t *testing.T) {
	for seed := range uint64(20) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		dir := t.TempDir()
		j := open(t, dir)
		var all []eventlog.Entry
		ms := uint64(1_760_000_000_000)
		for len(all) < 3000 {
			var batch []eventlog.Entry
			for range 1 + rnd.IntN(700) {
				switch rnd.IntN(200) {
				case 0: // the wall clock is set
					ms += uint64(rnd.Int64N(10_000)) - 3000
				case 1: // nothing happens for a while
					ms += uint64(rnd.Int64N(60_000))
				default:
					ms += uint64(rnd.IntN(3))
				}
				seq := uint64(len(all) + 1)
				e := entry(seq, mintedAt(ms-uint64(rnd.IntN(1500)), seq), fmt.Sprint("subject-", rnd.IntN(40)))
				e.Record.Minted = true
				if rnd.IntN(4) == 0 {
					e.Record.Event.ID, e.Record.Minted = fmt.Sprint("own-", rnd.IntN(50)), false
				}
				batch, all = append(batch, e), append(all, e)
			}
			if err := j.Index("devices", batch, nil, uint64(len(all)+1)); err != nil {
				t.Fatal(err)
			}
			if rnd.IntN(3) == 0 {
				if err := j.Close(); err != nil {
					t.Fatal(err)
				}
				j = open(t, dir)
			}
		}
		checkTexts(t, j, rnd, all, 1)
		first := uint64(1 + rnd.IntN(len(all)))
		if err := j.Trim("devices", first, 1); err != nil {
			t.Fatal(err)
		}
		checkTexts(t, j, rnd, all, first)
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func checkTexts(t *testing.T, j *journal.Journal, rnd *rand.Rand, all []eventlog.Entry, first uint64) {
	t.Helper()
	for range 300 {
		e := all[rnd.IntN(len(all))]
		before, limit := uint64(rnd.IntN(len(all)+2)), 1+rnd.IntN(100)
		if before <= 1 || rnd.IntN(4) == 0 {
			before = 0
		}
		of := func(same func(eventlog.Entry) bool) (want []uint64) {
			for _, x := range slices.Backward(all) {
				if same(x) && (before == 0 || x.Seq < before) && len(want) < limit {
					want = append(want, x.Seq)
				}
			}
			return want
		}
		want := of(func(x eventlog.Entry) bool { return x.Record.Event.Subject == e.Record.Event.Subject })
		if got, err := j.BySubject("devices", e.Record.Event.Subject, before, limit); err != nil || gocmp.Diff(want, got) != "" {
			t.Fatalf("BySubject(%q, %d, %d), %v:\n%s", e.Record.Event.Subject, before, limit, err, gocmp.Diff(want, got))
		}
		id := e.Record.Event.ID
		if !e.Record.Minted {
			want := of(func(x eventlog.Entry) bool { return x.Record.Event.ID == id })
			if got, err := j.ByID("devices", id, before, limit); err != nil || gocmp.Diff(want, got) != "" {
				t.Fatalf("ByID(%q, %d, %d), %v:\n%s", id, before, limit, err, gocmp.Diff(want, got))
			}
			continue
		}
		if e.Seq < first {
			continue
		}
		keys, err := j.ByID("devices", id, 0, 10)
		if err != nil {
			t.Fatal(err)
		}
		spans, err := j.Minted("devices", id)
		if err != nil {
			t.Fatal(err)
		}
		if n := slices.IndexFunc(spans, func(s journal.MintedSpan) bool { return s.From <= e.Seq && e.Seq <= s.To }); n >= 0 == slices.Contains(keys, e.Seq) {
			t.Fatalf("id %s of %d has the key %v and is in %v", id, e.Seq, keys, spans)
		}
		for _, s := range spans {
			if s.To-s.From >= 256 {
				t.Fatalf("span %v", s)
			}
		}
	}
}
