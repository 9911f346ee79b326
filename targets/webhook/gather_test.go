// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/targets"
)

// Who has no time left does not wait for the request of the others, in which its event is all the same.
func TestBatchWaitsForNobody(t *testing.T) {
	w := &webhook{settings: settings{mode: modeBatch, gather: &gatherer{maxEvents: 3, maxBytes: 1 << 20, linger: time.Minute}}}
	d := targets.Delivery{ID: "dlv_1", Event: &event.Event{ID: "1", Source: "/s", Type: "t"}}
	b, _, leads := w.gather.join(d)
	if !leads {
		t.Fatal("the first does not lead")
	}
	for reason, end := range map[targets.Reason]func() (context.Context, context.CancelFunc){
		targets.ReasonTimeout: func() (context.Context, context.CancelFunc) {
			return context.WithTimeout(t.Context(), time.Millisecond)
		},
		targets.ReasonInterrupted: func() (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			return ctx, cancel
		},
	} {
		ctx, cancel := end()
		_, err := w.Deliver(ctx, d)
		cancel()
		if te := new(targets.Error); !errors.As(err, &te) || te.Reason != reason {
			t.Errorf("Deliver = %v, want %s", err, reason)
		}
	}
	w.gather.gathered(t.Context(), b) // it is full
	if len(b.items) != 3 {
		t.Errorf("%d in the batch", len(b.items))
	}
	if _, _, leads := w.gather.join(d); !leads {
		t.Error("who comes after a full batch does not lead the next")
	}
}

// A linger that is longer than an attempt may take leaves time for the request.
func TestLingerLeavesTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gatherer{maxEvents: 3, maxBytes: 1 << 20, linger: time.Minute}
		b, _, _ := g.join(targets.Delivery{ID: "dlv_1", Event: &event.Event{ID: "1", Source: "/s", Type: "t"}})
		ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
		defer cancel()
		began := time.Now()
		g.gathered(ctx, b)
		if took := time.Since(began); took != 2*time.Second {
			t.Errorf("it waits for %s of 8s", took)
		}
	})
}
