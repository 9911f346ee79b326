// SPDX-License-Identifier: Apache-2.0

package eventlog_test

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
)

func TestDuplicates(t *testing.T) {
	dir := t.TempDir()
	var now atomic.Int64
	clock := func() time.Time { return base.Add(time.Duration(now.Load())) }
	o := eventlog.Options{Dir: dir, Now: clock}
	l := open(t, o)
	b := openBus(t, l, "default")
	a, other := record(1), record(1)
	other.Event.Source = "/elsewhere"
	minted := record(2)
	minted.Minted = true
	got := appendAll(t, b, a, a, other, minted, minted, a)
	for i, want := range []eventlog.Receipt{
		{Pos: pos(1)}, {Pos: pos(1), Duplicate: true}, {Pos: pos(2)}, {Pos: pos(3)}, {Pos: pos(4)}, {Pos: pos(1), Duplicate: true},
	} {
		if got[i] != want {
			t.Errorf("receipt %d = %+v, want %+v", i, got[i], want)
		}
	}
	now.Add(int64(time.Minute))
	closeLog(t, l)
	l = open(t, o)
	b = openBus(t, l, "default")
	if r := appendAll(t, b, a)[0]; r.Pos != pos(1) || !r.Duplicate {
		t.Errorf("duplicate after a restart = %+v", r)
	}
	now.Add(int64(time.Minute + time.Second))
	if r := appendAll(t, b, a)[0]; r.Pos != pos(5) || r.Duplicate {
		t.Errorf("after the window = %+v, want a new event at 5", r)
	}
	b.SetDedupWindow(-1)
	if r := appendAll(t, b, a)[0]; r.Pos != pos(6) || r.Duplicate {
		t.Errorf("without a window = %+v, want a new event at 6", r)
	}
}

// An event of another bridge is known by where that accepted it: whatever way it comes, and whoever chose its id.
func TestDedupOfForwarded(t *testing.T) {
	hop := func(seq uint64) event.Hop {
		return event.Hop{Instance: "a", Position: event.Position{Stream: "EV_x", Seq: seq}}
	}
	direct, around, again, minted, own := record(1), record(1), record(1), record(2), record(1)
	for _, r := range []*event.Record{direct, around, again, minted, own} {
		r.Received = time.Now()
	}
	direct.Hops = []event.Hop{hop(7)}
	around.Hops = []event.Hop{hop(7), {Instance: "b", Position: event.Position{Stream: "EV_y", Seq: 1}}}
	again.Hops = []event.Hop{hop(8)} // the producer has used its id twice, far apart
	minted.Minted, minted.Hops = true, []event.Hop{hop(9)}
	want := []eventlog.Receipt{{Pos: pos(1)}, {Pos: pos(1), Duplicate: true}, {Pos: pos(2)}, {Pos: pos(3)}, {Pos: pos(3), Duplicate: true}, {Pos: pos(4)}}
	dir := t.TempDir()
	l := open(t, eventlog.Options{Dir: dir})
	got := appendAll(t, openBus(t, l, "default"), direct, around, again, minted, minted, own)
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("receipt %d = %+v, want %+v", i, got[i], want[i])
		}
	}
	closeLog(t, l)
	b := openBus(t, open(t, eventlog.Options{Dir: dir}), "default")
	for i, r := range appendAll(t, b, around, again, minted, own) {
		if !r.Duplicate || r.Pos != pos(uint64(i+1)) {
			t.Errorf("after a restart, receipt %d = %+v, want a duplicate", i, r)
		}
	}
}

func pos(seq uint64) event.Position { return event.Position{Stream: "EV_default", Seq: seq} }

// A duplicate of an event that is on its way is completed after that event, and fails with it.
func TestDuplicateOfAFlight(t *testing.T) {
	g := newGate()
	l := open(t, eventlog.Options{Dir: t.TempDir(), Sync: g.sync})
	b := openBus(t, l, "default")
	appendAll(t, b, record(0))
	g.hold()
	var order []string
	done := make(chan struct{}, 2)
	for _, name := range []string{"first", "duplicate"} {
		must(t, b.Append(t.Context(), record(1), func(r eventlog.Receipt) {
			order = append(order, fmt.Sprintf("%s %d %v", name, r.Pos.Seq, r.Duplicate))
			done <- struct{}{}
		}))
	}
	<-g.enter
	select {
	case <-done:
		t.Error("completed before the sync")
	default:
	}
	g.release()
	<-done
	<-done
	if fmt.Sprint(order) != "[first 2 false duplicate 2 true]" {
		t.Errorf("completions: %q", order)
	}
	g.fail(errors.New("broken"))
	failed := make(chan eventlog.Receipt, 2)
	for range 2 {
		if err := b.Append(t.Context(), record(2), func(r eventlog.Receipt) { failed <- r }); err != nil {
			failed <- eventlog.Receipt{Err: err} // the first has failed already
		}
	}
	for i := range 2 {
		if r := <-failed; r.Err == nil || r.Duplicate {
			t.Errorf("receipt %d of a failed append = %+v", i, r)
		}
	}
}

func TestDedupIndex(t *testing.T) {
	key := func(n int) event.Key { return record(n).Event.Key() }
	now := base
	d := eventlog.NewDedup(time.Minute, 1000)
	for n := range 100 {
		now = base.Add(time.Duration(n) * time.Second)
		if d.Store(key(n), uint64(n), now) {
			t.Fatalf("id %d is known", n)
		}
	}
	for n := range 100 { // now is 99 s
		if dup, want := d.Store(key(n), 0, now), n > 39; dup != want {
			t.Errorf("id of second %d at second 99 with a window of 60 s: duplicate %v, want %v", n, dup, want)
		}
	}
	for n := range 100_000 {
		d.Store(key(1000+n), uint64(n), now)
	}
	if n := d.Len(); n > 1000 || n < 500 {
		t.Errorf("%d ids with a limit of 1000", n)
	}
	if !d.Store(key(1000+99_999), 0, now) {
		t.Error("the newest id is not known at the limit")
	}
}

func BenchmarkDedup(b *testing.B) {
	d := eventlog.NewDedup(time.Hour, math.MaxInt)
	keys := make([]event.Key, b.N)
	for i := range keys {
		keys[i] = record(i).Event.Key()
	}
	b.ReportAllocs()
	before := heap()
	b.ResetTimer()
	for i, k := range keys {
		d.Store(k, uint64(i), base)
	}
	b.StopTimer()
	b.ReportMetric(float64(heap()-before)/float64(b.N), "B/id")
	if d.Len() != b.N {
		b.Fatal(d.Len())
	}
}

// What is in memory and what is on disk read the same, whatever the ring holds.
func TestRingAndStream(t *testing.T) {
	l := open(t, eventlog.Options{Dir: t.TempDir(), RingBytes: 100_000, Durability: eventlog.OS})
	a, b := openBus(t, l, "a"), openBus(t, l, "b")
	appendAll(t, a, records(1, 500)...)
	appendAll(t, b, records(1, 500)...)
	must(t, a.SkipTo(t.Context(), 510))
	appendAll(t, a, records(511, 600)...)
	for _, from := range []uint64{0, 1, 100, 400, 499, 505, 511, 599, 600, 601} {
		got, next, err := a.Read(t.Context(), from, 10_000, nil)
		for err == nil && next <= 600 {
			got, next, err = a.Read(t.Context(), next, 10_000, got)
		}
		want := 0
		for seq := max(from, 1); seq <= 600; seq++ {
			if seq <= 500 || seq > 510 {
				want++
			}
		}
		if err != nil || len(got) != want || next != 601 {
			t.Errorf("Read from %d = %d events, next %d, %v, want %d", from, len(got), next, err, want)
		}
		for _, e := range got {
			if e.Record.Event.ID != fmt.Sprintf("id-%d", e.Seq) {
				t.Fatalf("at %d: %s", e.Seq, e.Record.Event.ID)
			}
		}
	}
	for _, seq := range []uint64{501, 505, 510} {
		if _, err := a.Get(t.Context(), seq); !errors.Is(err, eventlog.ErrGap) {
			t.Errorf("Get(%d) = %v, want ErrGap", seq, err)
		}
	}
	for seq := uint64(1); seq <= 500; seq += 33 {
		if e, err := b.Get(t.Context(), seq); err != nil || e.Record.Event.ID != fmt.Sprintf("id-%d", seq) {
			t.Errorf("Get(%d) = %v", seq, err)
		}
	}
}

// What lies outside the times of a search is passed over, as many messages at a time as others: it must not take a page each.
func TestSearchPassesOverOtherTimes(t *testing.T) {
	l := open(t, eventlog.Options{Dir: t.TempDir(), Durability: eventlog.OS})
	b := openBus(t, l, "devices")
	const n = 2000
	appendAll(t, b, records(1, n)...)
	now := time.Now()
	for _, q := range []eventlog.Query{{From: now.Add(time.Hour), Newest: true}, {To: now.Add(-time.Hour)}} {
		res, err := b.Search(t.Context(), q)
		if err != nil || len(res.Entries) != 0 || res.Next != 0 || res.Scanned > n {
			t.Errorf("newest=%v: %d events after %d messages, next %d, %v", q.Newest, len(res.Entries), res.Scanned, res.Next, err)
		}
	}
}

func TestSearch(t *testing.T) {
	l := open(t, eventlog.Options{Dir: t.TempDir(), Durability: eventlog.OS})
	b := openBus(t, l, "devices")
	const n = 3000
	recs := make([]*event.Record, n)
	now := time.Now()
	for i := range recs {
		r := record(i)
		r.Received = now.Add(time.Duration(i) * time.Millisecond)
		switch i % 3 {
		case 0:
			r.Event.Type = "com.acme/door %d.opened*"
		case 1:
			r.MQTT = &event.Origin{Topic: fmt.Sprintf("fleet/%d/box/%d/telemetry/a/b/c/d/e", i%10, i%4), Version: 4}
		}
		recs[i] = r
	}
	appendAll(t, b, recs...)
	for _, c := range []struct {
		name string
		q    eventlog.Query
		want func(i int) bool
	}{
		{"all", eventlog.Query{}, func(int) bool { return true }},
		{"type", eventlog.Query{Type: "com.acme/door %d.opened*"}, func(i int) bool { return i%3 == 0 }},
		{"source", eventlog.Query{Source: "/box/3"}, func(i int) bool { return i%7 == 3 }},
		{"subject", eventlog.Query{Subject: "box-77"}, func(i int) bool { return i == 77 }},
		{"mqtt all", eventlog.Query{MQTTFilter: "#"}, func(i int) bool { return i%3 == 1 }},
		{"mqtt +", eventlog.Query{MQTTFilter: "fleet/+/box/2/#"}, func(i int) bool { return i%3 == 1 && i%4 == 2 }},
		{"mqtt deep", eventlog.Query{MQTTFilter: "fleet/1/box/+/telemetry/a/b/c/d/e"}, func(i int) bool { return i%3 == 1 && i%10 == 1 }},
		{"mqtt too deep", eventlog.Query{MQTTFilter: "fleet/+/box/+/telemetry/a/b/c/d/e/f"}, func(int) bool { return false }},
		{"mqtt short", eventlog.Query{MQTTFilter: "fleet/+"}, func(int) bool { return false }},
		{"time", eventlog.Query{From: now.Add(500 * time.Millisecond), To: now.Add(700 * time.Millisecond)}, func(i int) bool { return i >= 500 && i < 700 }},
		{"sequences and type", eventlog.Query{FromSeq: 100, ToSeq: 200, Type: "com.acme.reading"}, func(i int) bool { return i >= 99 && i < 200 && i%3 != 0 }},
	} {
		for _, newest := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/newest=%v", c.name, newest), func(t *testing.T) {
				q := c.q
				q.Newest, q.Limit, q.Budget = newest, 70, 500
				var got []uint64
				for pages := 0; ; pages++ {
					res, err := b.Search(t.Context(), q)
					if err != nil || len(res.Entries) > 70 || res.Scanned > 500 {
						t.Fatalf("page of %d, scanned %d, %v", len(res.Entries), res.Scanned, err)
					}
					for _, e := range res.Entries {
						got = append(got, e.Seq)
					}
					if res.Next == 0 {
						break
					}
					if newest {
						q.ToSeq = res.Next
					} else {
						q.FromSeq = res.Next
					}
					if pages > 100 {
						t.Fatal("the search does not end")
					}
				}
				var want []uint64
				for i := range n {
					if c.want(i) {
						want = append(want, uint64(i+1))
					}
				}
				if newest {
					for i, j := 0, len(want)-1; i < j; i, j = i+1, j-1 {
						want[i], want[j] = want[j], want[i]
					}
				}
				if fmt.Sprint(got) != fmt.Sprint(want) {
					t.Errorf("found %d events, want %d:\n%.200v\n%.200v", len(got), len(want), got, want)
				}
			})
		}
	}
}

// The server answers nobody while it removes blocks, and an append that it does not answer in time closes the log: a trim of
// many lets appends through after a few.
func TestLongTrimLetsAppendsThrough(t *testing.T) {
	dir := t.TempDir()
	var left atomic.Int64 // block files after the last sync of a trim
	var most atomic.Int64 // that went without one
	look := func(*os.File) error {
		files, err := filepath.Glob(filepath.Join(eventlog.BlockDir(dir, "t"), "*.blk"))
		n := int64(len(files))
		most.Store(max(most.Load(), left.Swap(n)-n))
		return err
	}
	s := openStream(t, open(t, eventlog.Options{Dir: dir, Sync: look}), "t")
	appendRaw(t, s, 160, 1_000_000)
	size := s.Info().Bytes
	tr, err := s.Trim(t.Context(), eventlog.TrimPolicy{MaxBytes: 1, Protect: math.MaxUint64})
	if err != nil || tr.Blocks < 16 || tr.First != s.First() || s.Info().Bytes != size-tr.Bytes {
		t.Errorf("Trim = %+v, %v; %+v is left of %d bytes", tr, err, s.Info(), size)
	}
	if n := most.Load(); n < 1 || n > 8 {
		t.Errorf("%d of %d blocks went at a time", n, tr.Blocks)
	}
}

// A trim and commits share the files of the blocks.
func TestTrimBesideAppends(t *testing.T) {
	s := openStream(t, open(t, eventlog.Options{Dir: t.TempDir(), Durability: eventlog.OS}), "t")
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		appendRaw(t, s, 160, 500_000)
	}()
	for going := true; going; {
		select {
		case <-ended:
			going = false
		default:
		}
		if _, err := s.Trim(t.Context(), eventlog.TrimPolicy{MaxBytes: 1, Protect: math.MaxUint64}); err != nil {
			t.Error(err)
		}
	}
	if in := s.Info(); in.Last != 160 || in.First == 1 {
		t.Errorf("in the end %+v", in)
	}
}

func TestTrim(t *testing.T) {
	dir := t.TempDir()
	l := open(t, eventlog.Options{Dir: dir, RingBytes: 1 << 20})
	b := openBus(t, l, "default")
	var recs []*event.Record
	for n := range 600 { // 60 MB, 8 blocks
		r := record(n)
		r.Minted, r.Event.Data = true, make([]byte, 100_000)
		recs = append(recs, r)
	}
	appendAll(t, b, recs...)
	if tr, err := b.Trim(t.Context(), eventlog.TrimPolicy{MaxBytes: 1}); err != nil || tr.Blocks != 0 {
		t.Errorf("Trim with everything protected = %+v, %v", tr, err)
	}
	if tr, err := b.Trim(t.Context(), eventlog.TrimPolicy{MaxAge: time.Hour, Protect: math.MaxUint64, Now: time.Now()}); err != nil || tr.Blocks != 0 {
		t.Errorf("Trim of what is an hour old = %+v, %v", tr, err)
	}
	refused := errors.New("refused")
	told := uint64(0)
	before := func(first uint64) error {
		told = first
		if _, err := b.Get(t.Context(), first-1); err != nil {
			t.Errorf("Get(%d) before it is trimmed = %v", first-1, err)
		}
		return refused
	}
	if tr, err := b.Trim(t.Context(), eventlog.TrimPolicy{MaxBytes: 1, Protect: 200, Before: before}); !errors.Is(err, refused) || tr.Blocks != 0 || told == 0 {
		t.Errorf("Trim that is refused = %+v, %v, told %d", tr, err, told)
	}
	tr, err := b.Trim(t.Context(), eventlog.TrimPolicy{MaxBytes: 1, Protect: 200})
	if tr.First != told {
		t.Errorf("Trim leaves what is from %d on, and told %d", tr.First, told)
	}
	if err != nil || tr.Blocks != 2 || tr.First <= 150 || tr.First > 200 || b.First() != tr.First {
		t.Errorf("Trim below 200 = %+v, %v", tr, err)
	}
	if _, err := b.Get(t.Context(), 1); !errors.Is(err, eventlog.ErrGone) {
		t.Errorf("Get of a trimmed event = %v, want ErrGone", err)
	}
	got, next, err := b.Read(t.Context(), 1, 1, nil)
	if err != nil || len(got) != 1 || got[0].Seq != tr.First || next != tr.First+1 {
		t.Errorf("Read from 1 = %v, %d, %v, want the first that is left", got, next, err)
	}
	tr, err = b.Trim(t.Context(), eventlog.TrimPolicy{MaxAge: time.Hour, Protect: math.MaxUint64, Now: time.Now().Add(2 * time.Hour)})
	if err != nil || tr.Blocks != 4 || b.Info().Msgs > 170 {
		t.Errorf("Trim of everything old = %+v, %v, %+v: want all but two blocks gone", tr, err, b.Info())
	}
	first := b.First()
	for i, r := range appendAll(t, b, recs[:10]...) {
		if r.Err != nil || r.Pos.Seq != uint64(601+i) {
			t.Errorf("append after a trim = %+v", r)
		}
	}
	size := b.Info().Bytes
	closeLog(t, l)
	b = openBus(t, open(t, eventlog.Options{Dir: dir}), "default")
	if files := b.Info().Bytes; files != size {
		t.Errorf("the stream was said to have %d bytes, its files have %d", size, files)
	}
	if len(b.Lost()) > 0 || b.First() != first || b.Committed() != 610 {
		t.Errorf("after a restart: lost %v, first %d, committed %d, want none, %d, 610", b.Lost(), b.First(), b.Committed(), first)
	}
	for seq := first; seq <= 610; seq++ {
		if _, err := b.Get(t.Context(), seq); err != nil {
			t.Fatalf("Get(%d) = %v", seq, err)
		}
	}
}

func TestNames(t *testing.T) {
	l := open(t, eventlog.Options{Dir: t.TempDir()})
	for _, name := range []string{"", "A", "-a", "a.b", "a b", "a>"} {
		if _, err := l.Bus(t.Context(), eventlog.BusConfig{Name: name}); err == nil {
			t.Errorf("Bus(%q) = nil error", name)
		}
	}
	if a, b := openBus(t, l, "a"), openBus(t, l, "a"); a != b {
		t.Error("two values for one bus")
	}
	if _, err := l.Stream(t.Context(), eventlog.StreamConfig{Name: "a/b", Subjects: []string{"x"}}); err == nil {
		t.Error("Stream(a/b) = nil error")
	}
}

func TestStatePlane(t *testing.T) {
	dir := t.TempDir()
	for round := range 2 {
		l := open(t, eventlog.Options{Dir: dir})
		nc, err := l.Connect()
		must(t, err)
		js, err := nc.JetStream()
		must(t, err)
		if round == 0 {
			kv, err := js.CreateKeyValue(kvConfig)
			must(t, err)
			_, err = kv.Put("a", []byte("b"))
			must(t, err)
		} else {
			kv, err := js.KeyValue(kvConfig.Bucket)
			must(t, err)
			if e, err := kv.Get("a"); err != nil || string(e.Value()) != "b" {
				t.Errorf("Get = %v, %v", e, err)
			}
		}
		nc.Close()
		closeLog(t, l)
	}
}
