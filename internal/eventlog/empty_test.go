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
