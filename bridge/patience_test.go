// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/internal/journal"
	"github.com/rialto-bridge/rialto/targets"
)

func TestPatience(t *testing.T) {
	var p patience
	now := noon
	var waits []time.Duration
	said := 0
	for now.Sub(noon) < 12*time.Minute {
		wait, say := p.failed(now)
		waits = append(waits, wait)
		if say {
			said++
		}
		now = now.Add(wait)
	}
	if waits[0] != time.Second || waits[1] != 2*time.Second || waits[5] != 30*time.Second || waits[len(waits)-1] != 30*time.Second || said != 3 {
		t.Errorf("waits %v, said %d times", waits, said)
	}
	p.worked()
	if wait, say := p.failed(now); wait != time.Second || !say {
		t.Errorf("after a success: %v, %v", wait, say)
	}
}

// A lane whose parked deliveries cannot be read tries again, less and less often, and says so once.
func TestALaneThatCannotReadWaits(t *testing.T) {
	dir := t.TempDir()
	open := func() *journal.Journal {
		j, err := journal.Open(journal.Options{Dir: dir, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		return j
	}
	if err := open().Close(); err != nil {
		t.Fatal(err)
	}
	db, err := pebble.Open(filepath.Join(dir, "db"), &pebble.Options{Logger: quiet{}, FormatMajorVersion: pebble.FormatNewest,
		Merger: &pebble.Merger{Name: "rialto.outcomes"}}) // there is nothing to merge
	if err != nil {
		t.Fatal(err)
	}
	// No key of a parked delivery.
	if err := errors.Join(db.Set([]byte("dops\x00?"), nil, pebble.Sync), db.Flush(), db.Close()); err != nil {
		t.Fatal(err)
	}
	j := open()
	defer j.Close()
	var log bytes.Buffer
	now := noon
	b := &Bridge{log: slog.New(slog.NewTextHandler(&log, nil)), o: Options{Journal: j, Now: func() time.Time { return now }}}
	l := newLane(b, &targets.Definition{Name: "ops"}, nil)
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, want := range []time.Duration{1, 2, 4, 8, 16, 30, 30} {
		l.nextDue = now
		l.load()
		if got := l.nextDue.Sub(now); got != want*time.Second {
			t.Errorf("it waits %v, want %v", got, want*time.Second)
		}
		now = l.nextDue
	}
	if n := bytes.Count(log.Bytes(), []byte("\n")); n != 1 {
		t.Errorf("it said %d times:\n%s", n, &log)
	}
}

// What cannot be read of an event is tried again less and less often, each by itself, and spoken of once.
func TestUnread(t *testing.T) {
	var u unread
	now := noon
	said := 0
	for i, want := range []time.Duration{1, 2, 4, 8, 16, 30, 30} {
		wait, say := u.failed(1, now)
		if wait != want*time.Second {
			t.Errorf("try %d: it waits %v, want %v", i, wait, want*time.Second)
		}
		if say {
			said++
		}
		if _, say := u.failed(uint64(10+i), now); say { // another in the same block
			said++
		}
		u.worked(2)
		now = now.Add(wait)
	}
	if said != 1 {
		t.Errorf("it said so %d times", said)
	}
	u.worked(1)
	if wait, _ := u.failed(1, now); wait != time.Second {
		t.Errorf("after a success it waits %v", wait)
	}
	for seq := range uint64(2 * unreadMost) {
		u.failed(100+seq, now)
	}
	if wait, _ := u.failed(1_000_000, now); wait != mostWait || len(u.of) != unreadMost {
		t.Errorf("%d are remembered, another waits %v", len(u.of), wait)
	}
	for seq := range uint64(3 * unreadMost) {
		u.worked(seq)
	}
	if u.any.Load() {
		t.Errorf("%d are remembered", len(u.of))
	}
}

// A lane whose range cannot be read tries again, less and less often, and says so once.
func TestARangeThatCannotBeReadWaits(t *testing.T) {
	dir := t.TempDir()
	open := func() *journal.Journal {
		j, err := journal.Open(journal.Options{Dir: dir, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		return j
	}
	j := open()
	var e journal.Encoder
	e.Routed(journal.Routed{Seq: 1, Ranged: []journal.Route{{Rule: "all", Target: "ops"}}})
	if err := errors.Join(j.Apply("default", 1, e.Take()), j.Close()); err != nil {
		t.Fatal(err)
	}
	db, err := pebble.Open(filepath.Join(dir, "db"), &pebble.Options{Logger: quiet{}, FormatMajorVersion: pebble.FormatNewest,
		Merger: &pebble.Merger{Name: "rialto.outcomes"}, DisableAutomaticCompactions: true}) // so nothing is merged
	if err != nil {
		t.Fatal(err)
	}
	// Where its event was routed is no number.
	if err := errors.Join(db.Set([]byte("rdefault\x00\x00\x00\x00\x00\x00\x00\x00\x01"), nil, pebble.Sync), db.Flush(), db.Close()); err != nil {
		t.Fatal(err)
	}
	j = open()
	defer j.Close()
	var log bytes.Buffer
	now := noon
	b := &Bridge{ctx: t.Context(), log: slog.New(slog.NewTextHandler(&log, nil)), o: Options{Journal: j, RangeAfter: 10, Now: func() time.Time { return now }}}
	b.paths = map[string]*path{"default": {b: b, name: "default", ctx: t.Context(), rec: &recorder{}}}
	l := newLane(b, &targets.Definition{Name: "ops"}, nil)
	for _, want := range []time.Duration{1, 2, 4, 8, 16, 30, 30} {
		b.wg.Add(1)
		l.take()
		if got := l.takeAfter.Sub(now); got != want*time.Second {
			t.Errorf("it waits %v, want %v", got, want*time.Second)
		}
		now = l.takeAfter
	}
	if n := bytes.Count(log.Bytes(), []byte("\n")); n != 1 {
		t.Errorf("it said %d times:\n%s", n, &log)
	}
}

// A range of a lane that keeps order is not taken from while the keys cannot be read: nothing goes out of its order. It tries again,
// less and less often, and says so once. What was live when an earlier run ended waits with the routing of its bus.
func TestARangeWhoseKeysCannotBeReadWaits(t *testing.T) {
	quietly := slog.New(slog.DiscardHandler)
	open := func(dir string) *eventlog.Log {
		l, err := eventlog.Open(t.Context(), eventlog.Options{Dir: dir, Logger: quietly, Durability: eventlog.OS})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	outcomes := open(t.TempDir())
	defer outcomes.Close(context.Background()) //nolint:errcheck // nothing is lost with it
	j, err := journal.Open(journal.Options{Dir: t.TempDir(), Logger: quietly})
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	stream, err := outcomes.Stream(t.Context(), eventlog.StreamConfig{Name: "JOURNEY_default", Subjects: []string{"journey.default"}})
	if err != nil {
		t.Fatal(err)
	}
	var e journal.Encoder
	e.Routed(journal.Routed{Seq: 1, Ranged: []journal.Route{{Rule: "all", Target: "ops"}}})
	e.Routed(journal.Routed{Seq: 2, Routes: []journal.Route{{Rule: "all", Target: "ops"}}})
	msg := e.Take()
	done := make(chan eventlog.Result, 1)
	if err := stream.Append(t.Context(), eventlog.Message{Subject: "journey.default", Data: msg}, func(r eventlog.Result) { done <- r }); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join((<-done).Err, j.Apply("default", 1, msg)); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	busOf := func(l *eventlog.Log) *eventlog.Bus {
		bus, err := l.Bus(t.Context(), eventlog.BusConfig{Name: "default"})
		if err != nil {
			t.Fatal(err)
		}
		return bus
	}
	events := open(dir)
	for _, id := range []string{"a", "b"} {
		stored := make(chan eventlog.Receipt, 1)
		rec := &event.Record{Event: event.Event{ID: id, Source: "/test", Type: "reading", Subject: "k"}}
		if err := busOf(events).Append(t.Context(), rec, func(r eventlog.Receipt) { stored <- r }); err != nil {
			t.Fatal(err)
		}
		if r := <-stored; r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	if err := events.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	events = open(dir)                       // nothing of it is in memory
	defer events.Close(context.Background()) //nolint:errcheck // nothing is lost with it
	bus := busOf(events)
	blocks, err := filepath.Glob(filepath.Join(dir, "events", "jetstream", "$G", "streams", "EV_default", "msgs", "*.blk"))
	if err != nil || len(blocks) != 1 {
		t.Fatalf("blocks %v, %v", blocks, err)
	}
	if err := errors.Join(os.Rename(blocks[0], blocks[0]+".away"), os.Mkdir(blocks[0], 0o700)); err != nil {
		t.Fatal(err)
	}
	defer func() { // a close reads it
		if err := errors.Join(os.Remove(blocks[0]), os.Rename(blocks[0]+".away", blocks[0])); err != nil {
			t.Error(err)
		}
	}()
	var log bytes.Buffer
	now := noon
	b := &Bridge{ctx: t.Context(), log: slog.New(slog.NewTextHandler(&log, nil)), o: Options{Journal: j, RangeAfter: 10, Now: func() time.Time { return now }}}
	p := &path{b: b, name: "default", ctx: t.Context(), hard: t.Context(), rec: &recorder{}, journey: stream, log: busLog{Bus: bus}, track: newTracker(0)}
	b.paths = map[string]*path{"default": p}
	l := newLane(b, &targets.Definition{Name: "ops"}, nil)
	l.ordering.Store(&targets.Ordering{By: "subject"})
	b.lanes = map[string]*lane{"ops": l}
	for _, want := range []time.Duration{1, 2, 4, 8, 16, 30, 30} {
		b.wg.Add(1)
		l.take()
		if got := l.takeAfter.Sub(now); got != want*time.Second {
			t.Errorf("it waits %v, want %v", got, want*time.Second)
		}
		now = l.takeAfter
	}
	if n := bytes.Count(log.Bytes(), []byte("\n")); n != 1 || !bytes.Contains(log.Bytes(), []byte("read event 1 for its key")) {
		t.Errorf("it said %d times:\n%s", n, &log)
	}
	if _, err := p.resume(); err == nil || len(l.busy) > 0 {
		t.Errorf("what was live was offered without its key: %v", err)
	}
}

type quiet struct{}

func (quiet) Infof(string, ...any)  {}
func (quiet) Errorf(string, ...any) {}
func (quiet) Fatalf(string, ...any) {}
