// SPDX-License-Identifier: Apache-2.0

package bridge_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/bridge"
	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/rules"
	"github.com/rialto-bridge/rialto/targets"
)

// coded shows events of the types coded and order as JSON with as many bytes more as their data says.
func coded(r *event.Record) *event.Record {
	if r.Event.Type != "coded" && r.Event.Type != "order" {
		return r
	}
	out := *r
	size := 0
	if _, err := fmt.Sscan(string(r.Event.Data), &size); err != nil {
		return r
	}
	out.Event.Data, out.Event.DataContentType = fmt.Appendf(nil, `{"size":%d,"pad":%q}`, size, bytes.Repeat([]byte("x"), size)), "application/json"
	return &out
}

// onSize matches events by what only their view has.
func (f *fixture) onSize(size int, to string) {
	f.t.Helper()
	r, err := rules.ParseRule(fmt.Appendf(nil, `{"kind":"Rule","name":"sized","bus":"default","pattern":{"data":{"size":[%d]}},"targets":[{"target":%q}]}`, size, to))
	f.must(err)
	f.rev++
	r.Revision = f.rev
	f.setRules(append(f.rules, r))
}

func (f *fixture) sendCoded(id string, size int) {
	f.t.Helper()
	_, err := f.Ingest(context.Background(), "default", []*event.Record{{Event: event.Event{ID: id, Source: "/test", Type: "coded", Data: fmt.Append(nil, size)}}})
	f.must(err)
}

// Rules, targets, readers and dead letters see the view; the log has what was published.
func TestEventsAreSeenAsTheirView(t *testing.T) {
	f := newFixture(t)
	f.opts.View = coded
	ops := f.target("ops", quick, func(d targets.Delivery) error {
		return &targets.Error{Reason: targets.ReasonStatus, Status: 400, Permanent: true, Err: errors.New("no")}
	})
	f.onSize(2, "ops")
	f.start()
	defer func() { f.stop(time.Second) }()
	f.sendCoded("a", 2)
	f.sendCoded("b", 3)
	const want = `{"size":2,"pad":"xx"}`
	if got := ops.attempts(t, 1)[0].Event; string(got.Data) != want || got.DataContentType != "application/json" {
		t.Errorf("the target got %+v", got)
	}
	if got := f.journey("a", bridge.StateDead); string(got.Event.Data) != want || !got.Journey.Rules[0].Matched {
		t.Errorf("event %+v", got.Event)
	}
	f.journey("b", bridge.StateUnmatched)
	f.balanced()
	for range 2 {
		for what, look := range map[string]func() *event.Event{
			"search": func() *event.Event {
				page, err := f.Search(context.Background(), "default", bridge.SearchQuery{})
				f.must(err)
				return page.Items[1].Event
			},
			"search by target": func() *event.Event {
				page, err := f.Search(context.Background(), "default", bridge.SearchQuery{Target: "ops"})
				f.must(err)
				return page.Items[0].Event
			},
			"follow": func() (ev *event.Event) {
				stop := errors.New("enough")
				if err := f.Follow(context.Background(), bridge.FollowOptions{Bus: "default", From: 1}, func(e eventlog.Entry) error {
					ev = &e.Record.Event
					return stop
				}); !errors.Is(err, stop) {
					t.Fatal(err)
				}
				return ev
			},
			"dead letter": func() *event.Event {
				dead := f.deadLetters(bridge.DeadFilter{})[0]
				return dead.Event
			},
		} {
			if got := look(); got.ID != "a" || string(got.Data) != want {
				t.Errorf("%s: %s", what, got.Data)
			}
		}
		bus, err := f.Bus("default")
		f.must(err)
		if e, err := bus.Get(context.Background(), 1); err != nil || string(e.Record.Event.Data) != "2" {
			t.Errorf("the log has %+v, %v", e.Record, err)
		}
		f.stop(time.Second) // and the same after a restart
		f.start()
	}
}

// Events whose views are much larger than they are read in parts, and none is passed over.
func TestLargeViewsAreAllRouted(t *testing.T) {
	f := newFixture(t)
	f.opts.View = coded
	f.start()
	defer f.stop(time.Second)
	const count, size = 20, 1 << 20
	ops := f.target("ops", `{"ordering":"key"}`, nil)
	for i := range count {
		f.sendCoded(fmt.Sprint(i), size)
	}
	f.onSize(size, "ops") // whatever came before it met no rule
	f.eventually(func() (string, bool) {
		l, err := f.Ledger(t.Context(), bridge.LedgerQuery{Bus: "default"})
		f.must(err)
		if l.Events.NotYetRouted == 0 { // a slow machine has enough with one at a time
			f.sendCoded(fmt.Sprint("probe ", time.Now().UnixNano()), size)
		}
		ops.mu.Lock()
		defer ops.mu.Unlock()
		return "the rule is not in force", len(ops.got) > 0
	})
	before := len(ops.attempts(t, 1))
	for i := range count {
		f.sendCoded(fmt.Sprint("after ", i), size)
	}
	f.balanced()
	if l := f.balanced(); l.Events.Accepted != l.Events.Matched+l.Events.Unmatched || len(ops.attempts(t, before+count)) < before+count {
		t.Errorf("account %+v", l)
	}
	var seen []string
	stop := errors.New("enough")
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	err := f.Follow(ctx, bridge.FollowOptions{Bus: "default", From: 1}, func(e eventlog.Entry) error {
		if seen = append(seen, e.Record.Event.ID); len(seen) == count {
			return stop
		}
		return nil
	})
	if len(seen) != count {
		t.Fatalf("read %v, %v", seen, err)
	}
	for i, id := range seen {
		if id != fmt.Sprint(i) {
			t.Fatalf("read %v, %v", seen, err)
		}
	}
}

// The schema of an event is that of its view, which is also what schemas are discovered from.
func TestSchemasAreThoseOfTheView(t *testing.T) {
	f := newFixture(t)
	f.opts.View = coded
	f.opts.Schemas = schemas(t, `{"type":"object","properties":{"size":{"maximum":5}}}`)
	f.start()
	defer f.stop(time.Second)
	f.bus(`{"kind":"Bus","name":"default","schemaPolicy":"reject"}`)
	for data, fits := range map[string]bool{"5": true, "6": false} {
		_, err := f.Ingest(context.Background(), "default", []*event.Record{order(data, data)})
		if (err == nil) != fits || err != nil && fault.KindOf(err) != fault.Unfit {
			t.Errorf("size %s: %v", data, err)
		}
	}
}
