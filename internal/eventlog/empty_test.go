// SPDX-License-Identifier: Apache-2.0

package eventlog_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/rialto-bridge/rialto/internal/eventlog"
)

// A stream that has never had a message has lost nothing, however its server ended.
func TestEmptyStreamHasLostNothing(t *testing.T) {
	dir := t.TempDir()
	open := func() *eventlog.Log {
		l, err := eventlog.Open(context.Background(), eventlog.Options{Dir: dir, Durability: eventlog.OS})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	for round := range 3 {
		l := open()
		s, err := l.Stream(context.Background(), eventlog.StreamConfig{Name: "DEAD", Subjects: []string{"dead.>"}})
		if err != nil {
			t.Fatal(err)
		}
		if lost := s.Lost(); len(lost) > 0 || s.Committed() != 0 {
			t.Errorf("round %d: lost %v, committed %d", round, lost, s.Committed())
		}
		if err := l.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
		// As after a crash: the index is not there.
		index := filepath.Join(dir, "events", "jetstream", "$G", "streams", "DEAD", "msgs", "index.db")
		if err := os.Remove(index); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
	}
}

// What the bridge writes itself has room although producers may send little.
func TestOwnRecordsAreNotLimitedByMaxData(t *testing.T) {
	ctx := context.Background()
	l, err := eventlog.Open(ctx, eventlog.Options{Dir: t.TempDir(), Durability: eventlog.OS, MaxData: 64 << 10})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close(ctx)
	s, err := l.Stream(ctx, eventlog.StreamConfig{Name: "JOURNEY_x", Subjects: []string{"journey.x"}})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan eventlog.Result, 1)
	if err := s.Append(ctx, eventlog.Message{Subject: "journey.x", Data: make([]byte, 512<<10)}, func(r eventlog.Result) { done <- r }); err != nil {
		t.Fatal(err)
	}
	if r := <-done; r.Err != nil {
		t.Error(r.Err)
	}
}
