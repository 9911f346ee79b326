// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
)

// emptyBus is a bus without messages that takes none.
type emptyBus struct{ Tail }

func (emptyBus) Publish(context.Context, string, *event.Record, func(error)) error { return nil }
func (emptyBus) First() uint64                                                     { return 1 }
func (emptyBus) Committed() uint64                                                 { return 0 }

// stuckLog commits nothing.
type stuckLog struct{ SessionLog }

func (stuckLog) Append(context.Context, eventlog.Message, func(eventlog.Result)) error { return nil }

// Changes of mappings wait while it is looked which buses are not served any more. When sessions cannot be written that takes a moment, and
// does not last until they can.
func TestABusIsServedWhileSessionsCannotBeWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, err := New(Options{Name: "gw", Publisher: emptyBus{}, Tail: emptyBus{}, Sessions: stuckLog{}, Anonymous: true})
		if err != nil {
			t.Fatal(err)
		}
		end := g.startRecorder(t.Context())
		g.feeds.working = t.Context()
		s := g.newSession(sessionKey{clientID: "c"})
		s.recorded = true
		s.mu.Lock()
		s.record(s.whole(), nil)
		s.mu.Unlock()
		begun := time.Now()
		if g.feeds.unneeded(newFeed(g, "other", emptyBus{})) {
			t.Error("what sessions have got is not written down, and their bus is not served any more")
		}
		if took := time.Since(begun); took > settleTime {
			t.Errorf("it took %v, want %v at most", took, settleTime)
		}
		end()
	})
}
