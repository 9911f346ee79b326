// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/internal/eventlog"
)

// LANES is written again when it has become long, and not before it has become so once more.
func TestStandingsAreWrittenAgain(t *testing.T) {
	ctx := context.Background()
	open := func(dir string) (*eventlog.Log, *standings) {
		log, err := eventlog.Open(ctx, eventlog.Options{Dir: dir, Durability: eventlog.OS, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		s, err := openStandings(ctx, log)
		if err != nil {
			t.Fatal(err)
		}
		s.slack = 20
		return log, s
	}
	dir := t.TempDir()
	log, s := open(dir)
	save := func(target string, hour int) {
		t.Helper()
		st := standing{Revision: 7, FailingSince: noon.Add(time.Duration(hour) * time.Hour)}
		if hour < 0 {
			st = standing{}
		}
		if err := s.save(ctx, target, func() standing { return st }); err != nil {
			t.Fatal(err)
		}
	}
	compact := func() (written uint64) {
		t.Helper()
		before := s.stream.Committed()
		if err := s.compact(ctx, noon); err != nil {
			t.Fatal(err)
		}
		return s.stream.Committed() - before
	}
	for i := range 5 {
		save(fmt.Sprint("t", i), i)
	}
	save("t4", -1)
	save("t3", 3) // as it is: nothing is written
	if n := s.stream.Committed(); n != 6 {
		t.Errorf("%d messages, want 6", n)
	}
	if n := compact(); n != 0 {
		t.Errorf("%d messages written again, and there are few", n)
	}
	for i := range 30 {
		save("t0", i+1)
	}
	if n := compact(); n != 4 {
		t.Errorf("%d messages written again, want one for each of 4 targets", n)
	}
	for range 3 {
		if n := compact(); n != 0 {
			t.Errorf("%d messages written again, and nothing was said since", n)
		}
	}
	for i := range 30 {
		save("t0", i+100)
	}
	if n := compact(); n != 4 {
		t.Errorf("%d messages written again, want 4", n)
	}
	want := s.all()
	if len(want) != 4 || want["t0"].FailingSince != noon.Add(129*time.Hour) {
		t.Errorf("known: %+v", want)
	}
	if err := log.Close(ctx); err != nil {
		t.Fatal(err)
	}
	log, s = open(dir)
	defer log.Close(ctx)
	got := s.all()
	for target, st := range want {
		if got[target] != st || len(got) != len(want) {
			t.Errorf("after a restart %s stands %+v, want %+v", target, got[target], st)
		}
	}
}

// Events about a target are tried until the bridge stops, however long bus default is not there. A stop ends that at once, and what was
// not written down by then is told after the start.
func TestAnAnnouncementIsTriedOn(t *testing.T) {
	var log bytes.Buffer
	looks, enough := 0, make(chan struct{})
	b := &Bridge{log: slog.New(slog.NewTextHandler(&log, nil)), paths: map[string]*path{}, announceEvery: 100 * time.Microsecond}
	b.o.Now = func() time.Time { // at each late try
		if looks++; looks == 11 {
			close(enough)
		}
		return noon.Add(time.Duration(looks) * time.Minute)
	}
	var stop context.CancelFunc
	b.ctx, stop = context.WithCancel(t.Context())
	b.hard = b.ctx
	l := &lane{b: b, name: "ops"}
	announce := func(typ string) *news {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.announce(typ, targetNews{standingMessage: standingMessage{Target: "ops"}})
	}
	first, second := announce(targetDisabled), announce(targetEnabled)
	<-enough
	stop()
	b.wg.Wait()
	for _, n := range []*news{first, second} {
		if err := l.standingChanged(n); err != errStopping {
			t.Errorf("standingChanged = %v", err)
		}
	}
	if n := bytes.Count(log.Bytes(), []byte("eventType="+targetDisabled)); n != 3 || bytes.Contains(log.Bytes(), []byte(targetEnabled)) {
		t.Errorf("it said %d times:\n%s", n, &log)
	}
}

// How a target stands is written down after its event; where that takes long, before it.
func TestAStandingDoesNotWaitForItsEventForEver(t *testing.T) {
	log, err := eventlog.Open(t.Context(), eventlog.Options{Dir: t.TempDir(), Durability: eventlog.OS, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close(context.Background())
	b := &Bridge{log: slog.New(slog.DiscardHandler), o: Options{Now: time.Now}, paths: map[string]*path{}, announceEvery: 100 * time.Microsecond}
	if b.standings, err = openStandings(t.Context(), log); err != nil {
		t.Fatal(err)
	}
	var stop context.CancelFunc
	b.ctx, stop = context.WithCancel(t.Context())
	b.hard = t.Context()
	l := &lane{b: b, name: "ops"}
	l.gate.standing = &standing{Revision: 7, DisabledAt: noon}
	l.mu.Lock()
	n := l.announce(targetDisabled, targetNews{standingMessage: standingMessage{Target: "ops"}})
	l.mu.Unlock()
	if err := l.standingChanged(n); err != nil || !b.standings.of("ops").disabled() {
		t.Errorf("standingChanged = %v, written down: %+v", err, b.standings.of("ops"))
	}
	stop()
	b.wg.Wait()
	if err := <-n.told; err != errStopping {
		t.Errorf("told %v", err)
	}
}
