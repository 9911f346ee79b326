// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"reflect"
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
		if err := s.save(ctx, target, func() (standing, int) { return st, 0 }); err != nil {
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
	for _, typ := range []string{"one", "two"} { // how a target stands, and what is untold
		s.announce(typ, targetNews{Target: "t5"})
	}
	if err := s.save(ctx, "t5", func() (standing, int) { return standing{}, 2 }); err != nil {
		t.Fatal(err)
	}
	for range 30 {
		save("t0", 0)
		save("t0", 129)
	}
	compact()
	all := func(s *standings) map[string]standingMessage {
		m := make(map[string]standingMessage)
		for _, target := range s.targets() {
			m[target] = s.message(target)
		}
		return m
	}
	want := all(s)
	if len(want) != 5 || len(want["t5"].Untold) != 2 || want["t0"].FailingSince != noon.Add(129*time.Hour) {
		t.Errorf("known: %+v", want)
	}
	if err := log.Close(ctx); err != nil {
		t.Fatal(err)
	}
	log, s = open(dir)
	defer log.Close(ctx)
	if got := all(s); !reflect.DeepEqual(got, want) {
		t.Errorf("after a restart %+v, want %+v", got, want)
	}
}

// Events about a target are tried until the bridge stops, however long bus default is not there. A stop ends that at once, and they are
// told after the start.
func TestAnAnnouncementIsTriedOn(t *testing.T) {
	ctx := context.Background()
	log, err := eventlog.Open(ctx, eventlog.Options{Dir: t.TempDir(), Durability: eventlog.OS, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close(ctx)
	var said bytes.Buffer
	looks, enough := 0, make(chan struct{})
	b := &Bridge{log: slog.New(slog.NewTextHandler(&said, nil)), paths: map[string]*path{}, announceEvery: 100 * time.Microsecond}
	if b.standings, err = openStandings(ctx, log); err != nil {
		t.Fatal(err)
	}
	b.o.Now = func() time.Time { // at each late try
		if looks++; looks == 11 {
			close(enough)
		}
		return noon.Add(time.Duration(looks) * time.Minute)
	}
	var stop context.CancelFunc
	b.ctx, stop = context.WithCancel(ctx)
	b.hard = ctx
	for _, typ := range []string{targetDisabled, targetEnabled} {
		b.standings.announce(typ, targetNews{Target: "ops"})
	}
	if err := b.standings.save(ctx, "ops", func() (standing, int) { return standing{}, 2 }); err != nil {
		t.Fatal(err)
	}
	b.announce("ops")
	<-enough
	stop()
	b.wg.Wait()
	if n := bytes.Count(said.Bytes(), []byte("eventType="+targetDisabled)); n != 3 || bytes.Contains(said.Bytes(), []byte(targetEnabled)) {
		t.Errorf("it said %d times:\n%s", n, &said)
	}
	s, err := openStandings(ctx, log)
	if err != nil {
		t.Fatal(err)
	}
	want := b.standings.message("ops")
	if got := s.message("ops"); len(got.Untold) != 2 || got.Untold[0].Type != targetDisabled || !reflect.DeepEqual(got, want) {
		t.Errorf("LANES has %+v, want %+v", got, want)
	}
}

// What is to be told of a target has a bound.
func TestNotMoreIsUntoldThanAMessageHolds(t *testing.T) {
	s := &standings{known: make(map[string]*known)}
	for n := range maxUntold + 1 {
		if ok := s.announce(targetEnabled, targetNews{Target: "ops"}); ok != (n < maxUntold) {
			t.Errorf("announce %d = %v", n, ok)
		}
	}
	if n := s.untold("ops"); n != maxUntold {
		t.Errorf("%d are untold", n)
	}
}
