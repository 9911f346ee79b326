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

// An event about a target is tried again while bus default is not there, but not for ever; a stop ends that at once, and then
// nothing is written down either, so that it is told after the start.
func TestAnAnnouncementIsTriedAgain(t *testing.T) {
	var log bytes.Buffer
	b := &Bridge{log: slog.New(slog.NewTextHandler(&log, nil)), paths: map[string]*path{}, announceEvery: time.Millisecond}
	var stop context.CancelFunc
	b.ctx, stop = context.WithCancel(t.Context())
	b.hard = b.ctx
	n := targetNews{standingMessage: standingMessage{Target: "ops"}}
	began := time.Now()
	if !b.announce(targetDisabled, n) {
		t.Error("it says that the bridge is stopping")
	}
	if took := time.Since(began); took < announceTries*time.Millisecond || bytes.Count(log.Bytes(), []byte("was not published")) != 1 {
		t.Errorf("given up after %v:\n%s", took, &log)
	}
	b.announceEvery = time.Hour
	l := &lane{b: b, name: "ops"}
	told := make(chan error)
	go func() { told <- l.standingChanged(targetDisabled, n) }()
	stop()
	if err := <-told; err != errStopping {
		t.Errorf("standingChanged = %v", err)
	}
}
