// SPDX-License-Identifier: Apache-2.0

package eventlog_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/internal/fault"
)

// gate is a sync that can be held and made to fail.
type gate struct {
	mu    sync.Mutex
	held  chan struct{} // non-nil: syncs wait until it is closed
	err   error
	calls atomic.Int64
	enter chan string // names of files whose sync began while held
}

func newGate() *gate { return &gate{enter: make(chan string, 100)} }

func (g *gate) sync(f *os.File) error {
	g.calls.Add(1)
	g.mu.Lock()
	held, err := g.held, g.err
	g.mu.Unlock()
	if held != nil {
		g.enter <- filepath.Base(f.Name())
		<-held
	}
	if err != nil {
		return err
	}
	return f.Sync()
}

func (g *gate) hold() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.held = make(chan struct{})
}

func (g *gate) release() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.held != nil {
		close(g.held)
		g.held = nil
	}
}

func (g *gate) fail(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.err = err
}

func TestNoAcknowledgementBeforeTheSync(t *testing.T) {
	g := newGate()
	l := open(t, eventlog.Options{Dir: t.TempDir(), Sync: g.sync})
	b := openBus(t, l, "default")
	defer g.release()
	appendAll(t, b, record(0))
	before := b.Committed()
	g.hold()
	var acked atomic.Int64
	done := make(chan struct{}, 100)
	for n := range 50 {
		if err := b.Append(t.Context(), record(n+1), func(r eventlog.Receipt) {
			if r.Err != nil {
				t.Error(r.Err)
			}
			acked.Add(1)
			done <- struct{}{}
		}); err != nil {
			t.Fatal(err)
		}
	}
	if file := <-g.enter; file != "1.blk" {
		t.Errorf("synced %s, want 1.blk", file)
	}
	if n := acked.Load(); n != 0 || b.Committed() != before {
		t.Fatalf("%d acknowledgements and committed %d while the sync is held, want 0 and %d", n, b.Committed(), before)
	}
	// The first batch is on disk, but not synced: no reader may see it.
	if _, err := b.Get(t.Context(), before+1); !errors.Is(err, eventlog.ErrNotFound) {
		t.Errorf("Get before the sync = %v, want ErrNotFound", err)
	}
	if got, next, err := b.Read(t.Context(), before+1, 10, nil); len(got) != 0 || next != before+1 || err != nil {
		t.Errorf("Read before the sync = %d events, next %d, %v", len(got), next, err)
	}
	g.release()
	for range 50 {
		<-done
	}
	if b.Committed() != before+50 {
		t.Errorf("Committed() = %d, want %d", b.Committed(), before+50)
	}
}

// Who asks is told when a message is stored, which is before it is durable; not of a message that is refused.
func TestStoredBeforeTheSync(t *testing.T) {
	g := newGate()
	l := open(t, eventlog.Options{Dir: t.TempDir(), Sync: g.sync})
	s := openStream(t, l, "DEAD")
	defer g.release()
	g.hold()
	stored, done := make(chan uint64, 1), make(chan eventlog.Result, 1)
	m := eventlog.Message{Subject: "t.DEAD.x", Data: []byte("x"), Stored: func(seq uint64) { stored <- seq }}
	must(t, s.Append(t.Context(), m, func(r eventlog.Result) { done <- r }))
	<-g.enter
	if seq := <-stored; seq != 1 || len(done) > 0 || s.Committed() != 0 {
		t.Errorf("stored at %d, committed %d, want 1 and 0", seq, s.Committed())
	}
	g.release()
	if r := <-done; r.Seq != 1 || r.Err != nil {
		t.Errorf("%+v, want 1", r)
	}
	g.fail(errors.New("input/output error"))
	must(t, s.Append(t.Context(), m, func(r eventlog.Result) { done <- r }))
	if r := <-done; r.Err == nil || <-stored != 2 {
		t.Errorf("%+v, want an error after it was stored", r)
	}
	if err := s.Append(t.Context(), m, func(eventlog.Result) {}); err == nil || len(stored) > 0 {
		t.Errorf("%v and %d stored, want an error and none", err, len(stored))
	}
}

// The writer of an urgent stream does not wait for a sync, but holds no more in doubt than other streams do. What it has written
// meanwhile shares the next sync.
func TestUrgentStreamIsWrittenDuringASync(t *testing.T) {
	g := newGate()
	l := open(t, eventlog.Options{Dir: t.TempDir(), Sync: g.sync})
	s, err := l.Stream(t.Context(), eventlog.StreamConfig{Name: "DOWN", Subjects: []string{"down.>"}, Urgent: true})
	must(t, err)
	defer g.release()
	g.hold()
	stored, done := make(chan uint64, 100), make(chan eventlog.Result, 100)
	put := func(size int) {
		t.Helper()
		m := eventlog.Message{Subject: "down.x", Data: make([]byte, size), Stored: func(seq uint64) { stored <- seq }}
		must(t, s.Append(t.Context(), m, func(r eventlog.Result) { done <- r }))
	}
	put(1)
	<-g.enter
	const small, large = 20, 10
	for i := 1; i <= small; i++ {
		if i > 1 {
			put(1) // alone: the one before is stored
		}
		if seq := <-stored; seq != uint64(i) || s.Committed() != 0 || len(done) > 0 {
			t.Fatalf("stored at %d, committed %d, want %d and 0", seq, s.Committed(), i)
		}
	}
	for range large {
		put(1 << 20)
	}
	for range 3 { // of 4 MiB
		<-stored
	}
	select {
	case <-stored:
		t.Error("more than 4 MiB are stored and not synced")
	case <-time.After(50 * time.Millisecond):
	}
	calls := g.calls.Load()
	g.release()
	for i := range small + large {
		if r := <-done; r.Seq != uint64(i+1) || r.Err != nil {
			t.Fatalf("%+v, want %d", r, i+1)
		}
	}
	if n := g.calls.Load() - calls; n > 10 {
		t.Errorf("%d syncs, want one for all that were stored and a few for the rest", n)
	}
}

// A sync that fails fails everything that was written meanwhile, and the log can be closed.
func TestUrgentStreamWhoseSyncFails(t *testing.T) {
	g := newGate()
	l := open(t, eventlog.Options{Dir: t.TempDir(), Sync: g.sync})
	s, err := l.Stream(t.Context(), eventlog.StreamConfig{Name: "DOWN", Subjects: []string{"down.>"}, Urgent: true})
	must(t, err)
	defer g.release()
	g.hold()
	const messages = 12
	done := make(chan eventlog.Result, messages)
	for i := range messages {
		must(t, s.Append(t.Context(), eventlog.Message{Subject: "down.x", Data: make([]byte, 1<<20)}, func(r eventlog.Result) { done <- r }))
		if i == 0 {
			<-g.enter
		}
	}
	g.fail(errors.New("input/output error"))
	g.release()
	if r := <-done; r.Seq != 1 || r.Err != nil { // the sync that was under way is good
		t.Errorf("%+v, want 1", r)
	}
	for range messages - 1 {
		if r := <-done; fault.KindOf(r.Err) != fault.Unavailable {
			t.Errorf("%+v, want unavailable", r)
		}
	}
	if s.Committed() != 1 {
		t.Errorf("committed %d, want 1", s.Committed())
	}
}

func TestGroupCommit(t *testing.T) {
	g := newGate()
	l := open(t, eventlog.Options{Dir: t.TempDir(), Sync: g.sync})
	b := openBus(t, l, "default")
	appendAll(t, b, record(0))
	calls := g.calls.Load()
	appendAll(t, b, records(1, 5000)...)
	if n := g.calls.Load() - calls; n > 500 {
		t.Errorf("%d syncs for 5000 events of one producer that does not wait", n)
	}
}

func TestSyncErrorClosesTheLog(t *testing.T) {
	g := newGate()
	dir := t.TempDir()
	l := open(t, eventlog.Options{Dir: dir, Sync: g.sync})
	b := openBus(t, l, "default")
	s := openStream(t, l, "DEAD")
	appendAll(t, b, record(0))
	g.fail(errors.New("input/output error"))
	r := appendAll(t, b, record(1))[0]
	if fault.KindOf(r.Err) != fault.Unavailable || b.Committed() != 1 {
		t.Fatalf("receipt %+v, committed %d, want unavailable and 1", r, b.Committed())
	}
	calls := g.calls.Load()
	g.fail(nil)
	if err := b.Append(t.Context(), record(2), func(eventlog.Receipt) {}); fault.KindOf(err) != fault.Unavailable {
		t.Errorf("Append after a sync error = %v, want unavailable", err)
	}
	if err := s.Append(t.Context(), eventlog.Message{Subject: "t.DEAD.x"}, func(eventlog.Result) {}); fault.KindOf(err) != fault.Unavailable {
		t.Errorf("Append to another stream after a sync error = %v, want unavailable", err)
	}
	if err := l.Err(); fault.KindOf(err) != fault.Unavailable || !strings.Contains(errors.Unwrap(err).Error(), "input/output") {
		t.Errorf("Err() = %v", err)
	}
	if g.calls.Load() != calls {
		t.Error("a failed sync was tried again")
	}
	closeLog(t, l)
	b = openBus(t, open(t, eventlog.Options{Dir: dir}), "default")
	if n := len(appendAll(t, b, record(3))); n != 1 {
		t.Error("no append after a restart")
	}
}

func TestDurabilityOSDoesNotSync(t *testing.T) {
	g := newGate()
	l := open(t, eventlog.Options{Dir: t.TempDir(), Durability: eventlog.OS, Sync: g.sync})
	appendAll(t, openBus(t, l, "default"), records(1, 10)...)
	if n := g.calls.Load(); n != 0 {
		t.Errorf("%d syncs, want none", n)
	}
}

// Every receipt comes once, in the order of the appends of each producer, and positions rise.
func TestOrderOfCompletions(t *testing.T) {
	l := open(t, eventlog.Options{Dir: t.TempDir(), Durability: eventlog.OS})
	b := openBus(t, l, "default")
	const producers, each = 8, 500
	var last atomic.Uint64
	var wg sync.WaitGroup
	for p := range producers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			var left sync.WaitGroup
			left.Add(each)
			next := 0
			for i := range each {
				err := b.Append(t.Context(), record(p*each+i), func(r eventlog.Receipt) {
					defer left.Done()
					if i != next || r.Err != nil || r.Pos.Seq <= last.Load() {
						t.Errorf("producer %d: receipt of %d when %d was due: %+v after %d", p, i, next, r, last.Load())
					}
					next++
					last.Store(r.Pos.Seq)
				})
				if err != nil {
					t.Error(err)
				}
			}
			left.Wait()
		}()
	}
	wg.Wait()
	if got := b.Committed(); got != producers*each {
		t.Errorf("Committed() = %d, want %d", got, producers*each)
	}
}

// A foreign publish makes the server's sequence another than the expected one. What was stored is found by reading
// the tail back, and each receipt names the right position.
func TestForeignWriter(t *testing.T) {
	l := open(t, eventlog.Options{Dir: t.TempDir()})
	b := openBus(t, l, "default")
	nc, err := l.ConnectEvents()
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	stored := 0
	for round := range 20 {
		if err := nc.PublishMsg(&nats.Msg{Subject: "ev.default.x.e.00", Data: []byte("foreign")}); err != nil {
			t.Fatal(err)
		}
		if err := nc.Flush(); err != nil {
			t.Fatal(err)
		}
		for i, r := range appendAll(t, b, records(round*10, round*10+9)...) {
			if r.Err != nil {
				if fault.KindOf(r.Err) != fault.Unavailable {
					t.Fatal(r.Err)
				}
				continue
			}
			stored++
			e, err := b.Get(t.Context(), r.Pos.Seq)
			if want := fmt.Sprintf("id-%d", round*10+i); err != nil || e.Record.Event.ID != want {
				t.Fatalf("%v holds %v (%v), want %s", r.Pos, e.Record, err, want)
			}
		}
	}
	if stored < 100 {
		t.Errorf("only %d of 200 events were stored", stored)
	}
	// An event that was refused was not stored and may be sent again.
	for i, r := range appendAll(t, b, records(1000, 1009)...) {
		if r.Err != nil || r.Duplicate {
			t.Errorf("append %d afterwards = %+v", i, r)
		}
	}
}

func TestBrokenConnection(t *testing.T) {
	l := open(t, eventlog.Options{Dir: t.TempDir()})
	s := openStream(t, l, "DEAD")
	appendRaw(t, s, 10, 10)
	if err := s.BreakWire(); err != nil {
		t.Fatal(err)
	}
	for _, r := range appendRaw(t, s, 10, 10) { // the one that finds out may be refused
		if r.Err != nil && fault.KindOf(r.Err) != fault.Unavailable {
			t.Error(r.Err)
		}
	}
	for i, r := range appendRaw(t, s, 10, 10) {
		if r.Err != nil {
			t.Fatalf("append %d after a new connection: %v", i, r.Err)
		}
		raw, err := s.Get(t.Context(), r.Seq)
		if err != nil || string(raw.Data[:1]) != fmt.Sprint(i) {
			t.Errorf("Get(%d) = %q, %v, want %d", r.Seq, raw.Data, err, i)
		}
	}
}

func TestLimits(t *testing.T) {
	l := open(t, eventlog.Options{Dir: t.TempDir(), MaxData: 100_000})
	b := openBus(t, l, "default")
	rec := record(1)
	rec.Event.Data = make([]byte, 100_001)
	if err := b.Append(t.Context(), rec, nil); fault.KindOf(err) != fault.TooLarge {
		t.Errorf("append of too much data = %v", err)
	}
	rec = record(1)
	rec.Event.Data = make([]byte, 100_000)
	rec.Event.Type = strings.Repeat("t.", 512) // a long subject and control line
	rec.Event.Source = strings.Repeat("/", 1024)
	rec.MQTT = &event.Origin{Topic: strings.Repeat("a*", 8000) + "/b", Version: 5, Properties: make([]byte, 10_000)}
	r := appendAll(t, b, rec)[0]
	if r.Err != nil {
		t.Fatal(r.Err)
	}
	if e, err := b.Get(t.Context(), r.Pos.Seq); err != nil || e.Record.Event.Type != rec.Event.Type {
		t.Errorf("Get = %v", err)
	}
	rec = record(2)
	rec.MQTT = &event.Origin{Topic: strings.Repeat("a", 65_000), Version: 5}
	if err := b.Append(t.Context(), rec, nil); fault.KindOf(err) != fault.TooLarge {
		t.Errorf("append of too long attributes = %v", err)
	}
	s := openStream(t, l, "DEAD")
	for _, m := range []eventlog.Message{
		{}, {Subject: "t.DEAD.a b"}, {Subject: "t.DEAD.a\r\n"}, {Subject: "t.DEAD.*"}, {Subject: strings.Repeat("x", 20_000)},
		{Subject: "t.DEAD.x", Header: []byte("NATS/1.0\r\n")}, {Subject: "t.DEAD.x", Header: []byte("x\r\n\r\n")},
	} {
		if err := s.Append(t.Context(), m, nil); err == nil {
			t.Errorf("Append(%.40q) = nil, want an error", m.Subject)
		}
	}
}

func TestFullQueueWaits(t *testing.T) {
	g := newGate()
	l := open(t, eventlog.Options{Dir: t.TempDir(), MaxData: 4 << 20, Sync: g.sync})
	b := openBus(t, l, "default")
	g.hold()
	ctx, cancel := context.WithTimeoutCause(t.Context(), 100*time.Millisecond, errors.New("enough"))
	defer cancel()
	n := 0
	var done sync.WaitGroup
	for {
		rec := record(n)
		rec.Event.Data = make([]byte, 4<<20)
		done.Add(1)
		if err := b.Append(ctx, rec, func(eventlog.Receipt) { done.Done() }); err != nil {
			done.Done()
			if err.Error() != "enough" {
				t.Errorf("Append to a full queue = %v", err)
			}
			break
		}
		n++
	}
	if n < 8 || n > 14 {
		t.Errorf("%d events of 4 MiB were taken without a commit, want the queue's 32 MiB and a few batches", n)
	}
	g.release()
	done.Wait()
	if b.Committed() != uint64(n) {
		t.Errorf("Committed() = %d, want %d", b.Committed(), n)
	}
}

func TestCloseDrains(t *testing.T) {
	dir := t.TempDir()
	l := open(t, eventlog.Options{Dir: dir})
	b := openBus(t, l, "default")
	var acked atomic.Int64
	for n := range 3000 {
		if err := b.Append(t.Context(), record(n), func(r eventlog.Receipt) {
			if r.Err == nil {
				acked.Add(1)
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
	closeLog(t, l)
	closeLog(t, l) // twice is safe
	if acked.Load() != 3000 {
		t.Errorf("%d of 3000 were acknowledged", acked.Load())
	}
	if err := b.Append(t.Context(), record(1), nil); !errors.Is(err, eventlog.ErrClosed) {
		t.Errorf("Append after Close = %v", err)
	}
	if err := b.Wait(t.Context(), 3000); !errors.Is(err, eventlog.ErrClosed) {
		t.Errorf("Wait after Close = %v", err)
	}
	if _, err := l.Bus(t.Context(), eventlog.BusConfig{Name: "other"}); !errors.Is(err, eventlog.ErrClosed) {
		t.Errorf("Bus after Close = %v", err)
	}
	if !errors.Is(l.Err(), eventlog.ErrClosed) {
		t.Errorf("Err after Close = %v", l.Err())
	}
}

// A sync that hangs does not hang Close for ever.
func TestCloseInTime(t *testing.T) {
	g := newGate()
	l, err := eventlog.Open(t.Context(), eventlog.Options{Dir: t.TempDir(), Sync: g.sync, Reserve: 1 << 20})
	must(t, err)
	b := openBus(t, l, "default")
	g.hold()
	got := make(chan eventlog.Receipt, 1)
	must(t, b.Append(t.Context(), record(1), func(r eventlog.Receipt) { got <- r }))
	<-g.enter
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("out of time"))
	if err := l.Close(ctx); err == nil || !strings.Contains(err.Error(), "not drained: out of time") {
		t.Errorf("Close = %v", err)
	}
	g.release()
	if r := <-got; r.Err != nil {
		t.Error(r.Err)
	}
}

func TestWait(t *testing.T) {
	l := open(t, eventlog.Options{Dir: t.TempDir()})
	b := openBus(t, l, "default")
	got := make(chan error, 1)
	go func() { got <- b.Wait(t.Context(), 2) }()
	appendAll(t, b, records(1, 3)...)
	if err := <-got; err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("gone"))
	if err := b.Wait(ctx, 3); err == nil || err.Error() != "gone" {
		t.Errorf("Wait with a cancelled context = %v", err)
	}
}
