// SPDX-License-Identifier: Apache-2.0

package journal_test

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/rialto-bridge/rialto/internal/journal"
)

// deliveryID names a delivery.
type deliveryID struct {
	seq          uint64
	rule, target string
}

// ends is how deliveries stand, as a full scan of JOURNEY tells it: what the views must say too.
type ends map[deliveryID]journal.State

// read takes in a message.
func (w ends) read(message []byte) error {
	return journal.Decode(message, journal.Visitor{
		Routed: func(r journal.Routed) error {
			for _, rt := range r.Routes {
				w[deliveryID{r.Seq, rt.Rule, rt.Target}] = journal.Live
			}
			return nil
		},
		Pending: func(p journal.Pending) error {
			w[deliveryID{p.Seq, p.Route.Rule, p.Route.Target}] = p.State
			return nil
		},
		Outcome: func(o journal.Outcome) error {
			if id := (deliveryID{o.Seq, o.Route.Rule, o.Route.Target}); !w[id].Terminal() {
				w[id] = o.State
			}
			return nil
		},
		Redrive: func(r journal.Redrive) error {
			id := deliveryID{r.Seq, r.Route.Rule, r.Route.Target}
			if state, owed := w[id]; owed && !state.Terminal() {
				return nil
			}
			w[id] = journal.Parked
			if r.From != "" && r.Dead != 0 {
				w[deliveryID{r.Seq, r.Route.Rule, r.From}] = journal.Discarded
			}
			return nil
		},
		Discard: func(d journal.Discard) error {
			w[deliveryID{d.Seq, d.Route.Rule, d.Route.Target}] = journal.Discarded
			return nil
		},
	})
}

// with returns the positions that stand in a state at a target, newest first; 0 = in any that is looked for.
func (w ends) with(target string, state journal.State) []uint64 {
	seqs := make(map[uint64]bool)
	for id, s := range w {
		if id.target == target && (s == state || state == 0 && s != journal.Live) {
			seqs[id.seq] = true
		}
	}
	list := slices.Sorted(maps.Keys(seqs))
	slices.Reverse(list)
	return list
}

var (
	historyTargets = []string{"ops", "op", "archive", "spare"}
	historyStates  = []journal.State{0, journal.Parked, journal.Delivered, journal.Dead, journal.Cancelled, journal.Expired, journal.Discarded}
)

// history makes messages as a bridge would, with everything that can happen to a delivery.
type history struct {
	rnd  *rand.Rand
	gaps bool // damage has taken events
	seq  uint64
	dead uint64
	open []deliveryID // pending
	over []ended
}

type ended struct {
	deliveryID
	state journal.State
	dead  uint64
}

func newHistory(seed uint64) *history { return &history{rnd: rand.New(rand.NewPCG(seed, 1))} }

func (id deliveryID) route() journal.Route {
	return journal.Route{Rule: id.rule, Revision: 1, Target: id.target}
}

func (h *history) message(e *journal.Encoder) []byte {
	for range 1 + h.rnd.IntN(60) {
		switch n := h.rnd.IntN(100); {
		case n < 40:
			h.route(e)
		case n < 90 && len(h.open) > 0:
			h.outcome(e)
		case n < 97 && len(h.over) > 0:
			h.redrive(e)
		case len(h.over) > 0:
			h.discard(e)
		}
	}
	e.Floor(h.seq)
	return e.Take()
}

func (h *history) route(e *journal.Encoder) {
	h.seq++
	if h.gaps && h.rnd.IntN(500) == 0 {
		to := h.seq + uint64(h.rnd.IntN(3_000_000))
		e.Skipped(h.seq, to)
		h.seq = to + 1
	}
	r := journal.Routed{Seq: h.seq, Check: journal.Check(h.seq), Hour: hour()}
	for range h.rnd.IntN(4) {
		id := deliveryID{h.seq, fmt.Sprint("rule-", h.rnd.IntN(3)), historyTargets[h.rnd.IntN(3)]}
		if slices.Contains(r.Routes, id.route()) {
			continue
		}
		r.Routes = append(r.Routes, id.route())
		h.open = append(h.open, id)
	}
	e.Routed(r)
}

func (h *history) outcome(e *journal.Encoder) {
	i := h.rnd.IntN(len(h.open))
	id := h.open[i]
	o := journal.Outcome{Seq: id.seq, Route: id.route(), Attempt: 1, At: base, Reason: "status",
		Exchange: journal.Exchange{Remote: "192.0.2.7:443", Reused: true, FirstByte: time.Millisecond, Head: "HTTP/1.1 503\n\n"}}
	switch n := h.rnd.IntN(10); {
	case n < 4:
		o.State, o.Due = journal.Parked, base.Add(time.Duration(h.rnd.IntN(1000))*time.Second)
	case n < 7:
		o.State = journal.Delivered
	case n < 8:
		h.dead++
		o.State, o.DeadSeq = journal.Dead, h.dead
	default:
		o.State = []journal.State{journal.Cancelled, journal.Expired}[n-8]
	}
	e.Outcome(o)
	if !o.State.Terminal() {
		return
	}
	h.open[i] = h.open[len(h.open)-1]
	h.open = h.open[:len(h.open)-1]
	h.over = append(h.over, ended{id, o.State, o.DeadSeq})
	if h.rnd.IntN(20) == 0 { // a crash has repeated the attempt
		o.State, o.DeadSeq = journal.Delivered, 0
		e.Outcome(o)
	}
}

func (h *history) take() ended {
	i := h.rnd.IntN(len(h.over))
	x := h.over[i]
	h.over[i] = h.over[len(h.over)-1]
	h.over = h.over[:len(h.over)-1]
	return x
}

func (h *history) redrive(e *journal.Encoder) {
	x := h.take()
	r := journal.Redrive{Seq: x.seq, Route: x.route(), Check: journal.Check(x.seq), Hour: hour(), Was: x.state, Dead: x.dead, At: base, Due: base}
	if x.target != "spare" && h.rnd.IntN(2) == 0 && !slices.Contains(h.open, deliveryID{x.seq, x.rule, "spare"}) {
		r.Route.Target, r.From = "spare", x.target
		if r.Dead == 0 {
			h.over = append(h.over, x)
		} else {
			h.over = append(h.over, ended{x.deliveryID, journal.Discarded, 0})
		}
		h.over = slices.DeleteFunc(h.over, func(y ended) bool { return y.seq == x.seq && y.rule == x.rule && y.target == "spare" })
	}
	e.Redrive(r)
	h.open = append(h.open, deliveryID{x.seq, x.rule, r.Route.Target})
}

func (h *history) discard(e *journal.Encoder) {
	x := h.take()
	if x.state == journal.Dead {
		e.Discard(journal.Discard{Seq: x.seq, Route: x.route(), Hour: hour(), Dead: x.dead, At: base})
		x.state, x.dead = journal.Discarded, 0
	}
	h.over = append(h.over, x)
}

// agree compares what the views say of outcomes with what a full scan of JOURNEY says.
func agree(t *testing.T, j *journal.Journal, want ends) {
	t.Helper()
	at := make(map[string]ends)
	for id, s := range want {
		if at[id.target] == nil {
			at[id.target] = ends{}
		}
		at[id.target][id] = s
	}
	for _, target := range append(historyTargets, "nobody") {
		want := at[target]
		for _, state := range historyStates {
			got, err := j.ByOutcome("devices", target, state, 0, 0, 1<<30)
			if err != nil {
				t.Fatal(err)
			}
			if want := want.with(target, state); !slices.Equal(got, want) {
				t.Fatalf("%q at %s: %d positions, want %d\n%s", state, target, len(got), len(want), gocmp.Diff(want, got))
			}
		}
	}
}

func TestOutcomesAreThoseOfTheLog(t *testing.T) {
	for seed := range uint64(2) {
		j := open(t, t.TempDir())
		want := ends{}
		h := newHistory(seed)
		h.gaps = true
		var e journal.Encoder
		for i := range uint64(250) {
			m := h.message(&e)
			if err := want.read(m); err != nil {
				t.Fatal(err)
			}
			if err := j.Apply("devices", i+1, m); err != nil {
				t.Fatal(err)
			}
			if i%125 == 124 {
				agree(t, j, want)
				if err := j.Flush(); err != nil { // what comes is merged with what is in files
					t.Fatal(err)
				}
				agree(t, j, want)
			}
		}
		pages(t, j, want, h.rnd)
		if err := j.Trim("devices", h.seq/2, 1); err != nil {
			t.Fatal(err)
		}
		for _, seq := range want.with("ops", 0) {
			got, err := j.ByOutcome("devices", "ops", 0, seq, seq+1, 10)
			if gone := seq>>20 < h.seq/2>>20; err != nil || (len(got) == 1) == gone {
				t.Fatalf("trimmed below %d: %v at %d, %v", h.seq/2, got, seq, err)
			}
		}
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// pages reads lists in parts and between bounds.
func pages(t *testing.T, j *journal.Journal, want ends, rnd *rand.Rand) {
	t.Helper()
	for range 50 {
		target, state := historyTargets[rnd.IntN(4)], historyStates[rnd.IntN(7)]
		all := want.with(target, state)
		if len(all) == 0 {
			continue
		}
		from, to := all[rnd.IntN(len(all))], all[rnd.IntN(len(all))]
		all = slices.DeleteFunc(all, func(seq uint64) bool { return seq < from || seq >= to })
		limit := 1 + rnd.IntN(200)
		var got []uint64
		for before := to; ; {
			page, err := j.ByOutcome("devices", target, state, from, before, limit)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, page...)
			if len(page) < limit {
				break
			}
			before = page[limit-1]
		}
		if !slices.Equal(got, all) {
			t.Fatalf("%q at %s from %d below %d, %d at a time: %d positions, want %d", state, target, from, to, limit, len(got), len(all))
		}
	}
}

// Views that were deleted, and views that a crash has set back to an earlier position, are key for key what they would be
// without.
func TestRebuiltViewsAreTheSame(t *testing.T) {
	var messages [][]byte
	var e journal.Encoder
	h := newHistory(7)
	for range 150 {
		messages = append(messages, h.message(&e))
	}
	feed := func(j *journal.Journal, upTo int) {
		t.Helper()
		from, err := j.Applied("devices")
		if err != nil {
			t.Fatal(err)
		}
		for i := int(from); i < upTo; i++ {
			if err := j.Apply("devices", uint64(i+1), messages[i]); err != nil {
				t.Fatal(err)
			}
		}
		indexed, err := j.Indexed("devices")
		if err != nil {
			t.Fatal(err)
		}
		index(t, j, indexed+1, uint64(upTo*10))
	}
	one := open(t, t.TempDir())
	defer one.Close()
	feed(one, len(messages))
	want := dump(t, one)

	dir := t.TempDir()
	for upTo := 45; ; upTo += 45 { // each time what is not flushed is fed again
		j := open(t, dir)
		feed(j, min(upTo, len(messages)))
		if upTo < len(messages) {
			if err := j.Close(); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if d := gocmp.Diff(want, dump(t, j)); d != "" {
			t.Errorf("opened many times (-want +got):\n%s", d)
		}
		// A message that is fed twice changes nothing.
		if err := j.Apply("devices", 10, messages[9]); err != nil {
			t.Fatal(err)
		}
		if err := j.Forget("devices"); err != nil {
			t.Fatal(err)
		}
		feed(j, len(messages))
		if d := gocmp.Diff(want, dump(t, j)); d != "" {
			t.Errorf("forgotten and fed again (-want +got):\n%s", d)
		}
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
		break
	}
}

// dump is all that the views hold, but for the cuts between calls of Index.
func dump(t *testing.T, j *journal.Journal) map[string]string {
	t.Helper()
	out := make(map[string]string)
	if err := j.Each(func(k, v []byte) {
		switch k[0] {
		case 'e':
		case 'i', 's': // a key for each batch
			head, seq := k[:len(k)-8], binary.BigEndian.Uint64(k[len(k)-8:])
			for back, n := uint64(0), 0; ; v = v[n:] {
				seq -= back
				out[fmt.Sprintf("%q %d", head, seq)] = ""
				if back, n = binary.Uvarint(v); n <= 0 {
					break
				}
			}
		default:
			out[fmt.Sprintf("%q", k)] = fmt.Sprintf("%x", v)
		}
	}); err != nil {
		t.Fatal(err)
	}
	l, err := j.Ledger("devices", 0, ^uint32(0))
	if err != nil {
		t.Fatal(err)
	}
	out["ledger"] = fmt.Sprint(l)
	return out
}
