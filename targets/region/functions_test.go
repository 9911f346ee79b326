// SPDX-License-Identifier: Apache-2.0

package region

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/targets"
)

const shaped = everything + `,"transform":{"function":"shape"}`

// A function that cannot be had now holds the link before the event, and says so; nothing is left out. One that refuses an event for
// good has it counted.
func TestFunctionFailsForNow(t *testing.T) {
	n, f := newNear(t), newFar(t).start()
	n.most = 10 * time.Millisecond
	var down atomic.Bool
	down.Store(true)
	n.functions = func(_ context.Context, _, _ string, ev *event.Event) ([]byte, string, error) {
		switch {
		case ev.ID == "id-30":
			return nil, "", &targets.Error{Reason: targets.ReasonFunction, Permanent: true, Err: errors.New("does not want it")}
		case ev.ID == "id-31":
			return nil, "", errors.New("no function has said this")
		case ev.ID >= "id-20" && down.Load():
			return nil, "", &targets.Error{Reason: targets.ReasonInternal, Err: errors.New("the store is away")}
		}
		return ev.Data, "text/plain", nil
	}
	n.region(f.srv.URL, "")
	n.link(shaped)
	n.appendThose(50, func(i int) *event.Record {
		r := record(i)
		r.Event.ID = fmt.Sprintf("id-%02d", i)
		return r
	})
	n.start()
	n.stops("event 20 cannot be transformed now: transform: internal: the store is away")
	until(t, "what stands before it is sent", func() bool { return len(f.records()) == 19 })
	until(t, "it is tried again", func() bool { f.mu.Lock(); defer f.mu.Unlock(); return f.count > 3 })
	if a := n.status().Account; a.Main.Failed != 0 || a.Difference != 0 {
		t.Errorf("account %+v", a)
	}
	down.Store(false)
	st := n.settle()
	if a := st.Account; a.Main.Failed != 2 || a.Main.Forwarded+a.Main.Known != 48 || a.Difference != 0 || len(f.records()) != 48 {
		t.Errorf("account %+v, %d events arrived", a, len(f.records()))
	}
	until(t, "an event tells of it", func() bool { return n.raised(TypeRefused) == 1 })
}

// Functions that take their time hold up neither what was asked before nor the end of the link.
func TestSlowFunctionsHoldNobodyUp(t *testing.T) {
	n, f := newNear(t), newFar(t).start()
	var calls atomic.Int32
	stuck, left := make(chan struct{}), make(chan struct{})
	n.functions = func(ctx context.Context, _, _ string, ev *event.Event) ([]byte, string, error) {
		if ev.Type == "stuck" {
			close(stuck)
			<-ctx.Done()
			close(left)
			return nil, "", &targets.Error{Reason: targets.ReasonInterrupted, Permanent: true, Err: ctx.Err()}
		}
		calls.Add(1)
		timer := time.NewTimer(fillTime / 3)
		defer timer.Stop()
		<-timer.C
		return ev.Data, "text/plain", nil
	}
	n.region(f.srv.URL, "")
	n.link(shaped)
	n.append(12)
	n.start()
	until(t, "some are sent before all are shaped", func() bool { return len(f.records()) > 0 })
	if c := calls.Load(); c > 8 {
		t.Errorf("%d functions were asked before anything was sent", c)
	}
	n.settle()
	n.appendThose(1, func(i int) *event.Record {
		r := record(i)
		r.Event.Type = "stuck"
		return r
	})
	<-stuck
	n.stop()
	<-left
	if s := n.kv.text("up"); strings.Contains(s, `"failed"`) || !strings.Contains(s, `"forwarded":12`) {
		t.Errorf("what was stopped is counted: %s", s)
	}
	if n.raised(TypeRefused) > 0 {
		t.Error("what was stopped is told of as refused")
	}
}
