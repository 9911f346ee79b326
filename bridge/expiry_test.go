// SPDX-License-Identifier: Apache-2.0

package bridge_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/bridge"
	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/journal"
	"github.com/rialto-bridge/rialto/targets"
)

// An event is not delivered from its expirytime on: not the first time, and not when it is tried again.
func TestAnEventExpires(t *testing.T) {
	f := newFixture(t)
	now := f.useClock()
	ops := f.target("ops", `{"retry":{"schedule":["1m"]}}`, func(d targets.Delivery) error {
		if d.Event.ID == "later" {
			return targets.StatusError(503, 0)
		}
		return nil
	})
	f.rule("all", "reading", "ops")
	f.start()
	defer f.stop(time.Second)
	for id, expiry := range map[string]any{"never": "soon", "past": "2027-03-01T12:00:00Z", "later": "2027-03-01T12:00:30Z", "number": int32(1)} {
		_, err := f.Ingest(context.Background(), "default", []*event.Record{{Event: event.Event{ID: id, Source: "/test", Type: "reading",
			Extensions: []event.Attribute{{Name: "expirytime", Value: expiry}}}}})
		f.must(err)
	}
	f.journey("never", bridge.StateDelivered)
	f.journey("number", bridge.StateDelivered)
	if d := f.journey("past", bridge.StateExpired).Journey.Deliveries[0]; len(d.Attempts) != 0 || d.Reason != "expirytime" {
		t.Errorf("delivery %+v", d)
	}
	f.eventually(func() (string, bool) {
		found, err := f.Event(context.Background(), "default", "later", "")
		f.must(err)
		d := found.Journey.Deliveries
		return "the first attempt has not failed", len(d) == 1 && d[0].State == journal.Parked
	})
	now.advance(f, 2*time.Minute)
	if d := f.journey("later", bridge.StateExpired).Journey.Deliveries[0]; len(d.Attempts) != 1 {
		t.Errorf("delivery %+v", d)
	}
	if n := len(ops.attempts(t, 3)); n != 3 {
		t.Errorf("%d attempts, want 3", n)
	}
	if l := f.balanced(); l.Deliveries[0].Expired != 2 || l.Deliveries[0].Delivered != 2 {
		t.Errorf("account %+v", l.Deliveries)
	}
	page, err := f.Search(context.Background(), "default", bridge.SearchQuery{Status: bridge.StateExpired})
	if err != nil || len(page.Items) != 2 {
		t.Errorf("search finds %d, %v", len(page.Items), err)
	}
}

// The first of a key that expires while it waits for its next attempt ends then, and what follows has its turn.
func TestAnExpiredHeadHoldsUpNothing(t *testing.T) {
	for _, mode := range []string{"skip", "block"} {
		t.Run(mode, func(t *testing.T) {
			f := newFixture(t)
			now := f.useClock()
			ops := f.target("ops", fmt.Sprintf(`{"ordering":"key","orderBy":"source","onFailure":%q,"retry":{"schedule":["12h"]}}`, mode), func(d targets.Delivery) error {
				if d.Event.ID == "head" {
					return targets.StatusError(503, 0)
				}
				return nil
			})
			f.rule("all", "reading", "ops")
			f.start()
			defer f.stop(time.Second)
			expiry := now.Now().Add(30*time.Second + 200*time.Microsecond)
			_, err := f.Ingest(context.Background(), "default", []*event.Record{{Event: event.Event{ID: "head", Source: "/test", Type: "reading",
				Extensions: []event.Attribute{{Name: "expirytime", Value: expiry.Format(time.RFC3339Nano)}}}}})
			f.must(err)
			ops.attempts(t, 1)
			f.send("reading", "follower")
			f.parked("ops", 2)
			if d := f.journey("head", bridge.StatePending).Journey.Deliveries[0]; d.Due == nil || d.Due.Before(expiry) {
				t.Errorf("delivery %+v", d)
			}
			now.advance(f, 31*time.Second)
			f.journey("head", bridge.StateExpired)
			f.journey("follower", bridge.StateDelivered)
			f.balanced()
		})
	}
}
