// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
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

// roundTrip is a transport.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// What the target has accepted is delivered, also if the time is up before it has answered for the rest of the batch.
func TestBatchAcceptedInPart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for range 30 { // of outcomes that are ready at the same time any may be taken
			var requests int
			answer := func(r *http.Request) (*http.Response, error) {
				switch requests++; requests {
				case 1: // both events
					return &http.Response{StatusCode: 400, Body: http.NoBody}, nil
				case 2:
					return &http.Response{StatusCode: 204, Body: http.NoBody}, nil
				}
				<-r.Context().Done()
				return nil, r.Context().Err()
			}
			made, err := newTarget([]byte(`{"url": "https://ops.example.com/", "mode": "batch", "batch": {"maxEvents": 2}}`),
				targets.Env{HTTP: &http.Client{Transport: roundTrip(answer)}, Now: time.Now, Logger: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			deliver := func(id string) error {
				ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
				defer cancel()
				_, err := made.Deliver(ctx, targets.Delivery{ID: "dlv_" + id, Event: &event.Event{ID: id, Source: "/s", Type: "t"}})
				return err
			}
			leader := make(chan error)
			go func() { leader <- deliver("1") }()
			synctest.Wait()
			follower := deliver("2")
			if err := <-leader; err != nil || requests != 3 {
				t.Fatalf("the event that was accepted fails after %d requests: %v", requests, err)
			}
			if te := new(targets.Error); !errors.As(follower, &te) || te.Reason != targets.ReasonTimeout {
				t.Fatalf("the other ends with %v", follower)
			}
		}
	})
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
