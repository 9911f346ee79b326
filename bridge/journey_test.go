// SPDX-License-Identifier: Apache-2.0

package bridge_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/rialto-bridge/rialto/bridge"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/journal"
	"github.com/rialto-bridge/rialto/targets"
)

// wired is a target that says how an attempt went.
type wired func(targets.Delivery) (targets.Result, error)

func (w wired) Deliver(_ context.Context, d targets.Delivery) (targets.Result, error) { return w(d) }

func TestAJourneyTellsHowEachAttemptWent(t *testing.T) {
	f := newFixture(t).start()
	defer f.stop(time.Second)
	page := "HTTP/1.1 503 Service Unavailable\nSet-Cookie: [redacted]\n\n<b>\"down\"</b> " + strings.Repeat("x", 15<<10)
	made := targets.Exchange{Remote: "192.0.2.7:443", DNS: time.Millisecond, Connect: 2500 * time.Microsecond, TLS: 3 * time.Millisecond,
		FirstByte: 20 * time.Millisecond, Head: page}
	ops := f.target("ops", `{"retry":{"schedule":["10ms"],"maxAttempts":2}}`, nil)
	f.must(f.SetTarget(ops.def, wired(func(d targets.Delivery) (targets.Result, error) {
		switch {
		case d.Event.ID == "inner": // a kind that says more than it may
			return targets.Result{Status: 500, Exchange: made}, &targets.Error{Reason: targets.ReasonBlockedAddress, Permanent: true, Err: errors.New("10.0.0.7 is not allowed")}
		case d.Attempt == 1 || d.Event.ID == "never":
			return targets.Result{Status: 503, Exchange: made}, targets.StatusError(503, 0)
		}
		return targets.Result{Status: 200, Exchange: targets.Exchange{Remote: made.Remote, Reused: true, FirstByte: time.Millisecond}}, nil
	})))
	f.rule("all", "reading", "ops")
	f.send("reading", "second", "never", "inner")

	attempts := f.journey("second", bridge.StateDelivered).Journey.Deliveries[0].Attempts
	if len(attempts) != 2 {
		t.Fatalf("%d attempts", len(attempts))
	}
	failed, accepted := attempts[0], attempts[1]
	if failed.Next == nil || failed.Next.Before(failed.At) || failed.Next.After(accepted.At) || failed.Detail != "status 503" {
		t.Errorf("first attempt at %v, next %v, second at %v, %q", failed.At, failed.Next, accepted.At, failed.Detail)
	}
	ignore := func(a bridge.Attempt) bridge.Attempt {
		a.At, a.Next, a.DurationMS, a.Detail = time.Time{}, nil, 0, ""
		return a
	}
	want := bridge.Attempt{N: 1, Status: 503, Reason: "status", Remote: "192.0.2.7:443", Response: page,
		Timings: &bridge.Timings{DNS: 1, Connect: 2.5, TLS: 3, FirstByte: 20}}
	if d := gocmp.Diff(want, ignore(failed)); d != "" {
		t.Errorf("failed attempt (-want +got):\n%s", d)
	}
	want = bridge.Attempt{N: 2, OK: true, Status: 200, Remote: "192.0.2.7:443", Reused: true, Timings: &bridge.Timings{FirstByte: 1}}
	if d := gocmp.Diff(want, ignore(accepted)); d != "" {
		t.Errorf("accepted attempt (-want +got):\n%s", d)
	}

	never := f.journey("never", bridge.StateDead).Journey.Deliveries[0]
	dead, err := f.DeadLetter(context.Background(), "default", never.DeadLetter)
	f.must(err)
	if dead.Response != page || dead.Remote != "192.0.2.7:443" || dead.Status != 503 || never.Attempts[1].Next != nil {
		t.Errorf("dead letter: status %d from %q with a response of %d bytes", dead.Status, dead.Remote, len(dead.Response))
	}
	for _, dl := range f.deadLetters(bridge.DeadFilter{}) {
		if len(dl.Response) > 1024 {
			t.Errorf("a list tells %d bytes of a response", len(dl.Response))
		}
	}
	// Nobody learns what answers at an address that is not allowed.
	inner := f.journey("inner", bridge.StateDead).Journey.Deliveries[0]
	dead, err = f.DeadLetter(context.Background(), "default", inner.DeadLetter)
	f.must(err)
	if a := inner.Attempts[0]; a.Status != 0 || a.Remote != "" || a.Response != "" || a.Reason != "blocked_address" || !strings.Contains(a.Detail, "not allowed") ||
		dead.Status != 0 || dead.Remote != "" || dead.Response != "" {
		t.Errorf("blocked: %+v, dead letter %+v", a, dead)
	}
}

func TestSearchByTargetAndOutcome(t *testing.T) {
	f := newFixture(t).start()
	defer f.stop(time.Second)
	answer := func(d targets.Delivery) error {
		switch d.Event.ID[0] {
		case 'd':
			return targets.StatusError(400, 0)
		case 'p':
			return targets.StatusError(503, 0)
		}
		return nil
	}
	f.target("ops", `{"retry":{"schedule":["1h"]}}`, answer)
	f.target("crm", `{"retry":{"schedule":["1h"]}}`, nil)
	f.rule("one", "reading", "ops", "crm")
	f.rule("two", "order", "ops")
	f.send("reading", "a1", "d1", "p1", "a2", "d2", "p2")
	middle := time.Now()
	f.send("order", "a3", "d3", "p3")
	f.send("nothing", "n1")
	f.eventually(func() (string, bool) {
		l, err := f.Ledger(context.Background(), bridge.LedgerQuery{Bus: "default"})
		f.must(err)
		ended := uint64(0)
		for _, d := range l.Deliveries {
			ended += d.Delivered + d.Dead + uint64(d.Parked)
		}
		return fmt.Sprintf("%d deliveries have ended or are parked, want 15", ended), ended == 15
	})
	ids := func(q bridge.SearchQuery) string {
		var out []string
		for {
			page, err := f.Search(context.Background(), "default", q)
			f.must(err)
			for _, it := range page.Items {
				out = append(out, it.Event.ID)
			}
			if q.Cursor = page.NextCursor; q.Cursor == "" {
				return fmt.Sprint(out)
			}
		}
	}
	check := func(want map[string]bridge.SearchQuery) {
		t.Helper()
		for want, q := range want {
			want, _, _ := strings.Cut(want, ";")
			for _, q.Limit = range []int{0, 1, 2} {
				if got := ids(q); got != want {
					t.Errorf("%+v: %s, want %s", q, got, want)
				}
			}
		}
	}
	check(map[string]bridge.SearchQuery{
		"[p3 d3 a3 p2 d2 a2 p1 d1 a1]":      {Target: "ops"},
		"[a3 a2 a1]":                        {Target: "ops", Outcome: "delivered"},
		"[d3 d2 d1]":                        {Target: "ops", Outcome: "dead"},
		"[p3 p2 p1]":                        {Target: "ops", Outcome: "parked"},
		"[];cancelled":                      {Target: "ops", Outcome: "cancelled"},
		"[p2 d2 a2 p1 d1 a1]":               {Target: "crm", Outcome: "delivered"},
		"[];nobody":                         {Target: "nobody"},
		"[d2 d1]":                           {Target: "ops", Outcome: "dead", Type: "reading"},
		"[d2 d1];status":                    {Target: "crm", Status: bridge.StateDead},
		"[p3];pending orders":               {Target: "ops", Status: bridge.StatePending, Type: "order"},
		"[];source":                         {Target: "ops", Source: "/no"},
		"[];subject":                        {Target: "ops", Subject: "none"},
		"[];before":                         {Target: "ops", To: middle.Add(-time.Hour)},
		"[];after":                          {Target: "ops", From: middle.Add(time.Hour)},
		"[d3]":                              {Target: "ops", Outcome: "dead", From: middle},
		"[d2 d1];until":                     {Target: "ops", Outcome: "dead", To: middle},
		"[p3 d3 a3 p2 d2 a2 p1 d1 a1];both": {Target: "ops", From: middle.Add(-time.Hour), To: middle.Add(time.Hour)},
	})
	// What is redriven stands otherwise.
	dead := f.journey("d2", bridge.StateDead).Journey.Deliveries[0]
	if dead.Target != "ops" {
		dead = f.journey("d2", bridge.StateDead).Journey.Deliveries[1]
	}
	f.target("ops", `{"retry":{"schedule":["1h"]}}`, nil)
	job := f.startJob(bridge.JobSpec{Kind: bridge.JobRedrive, Filter: bridge.DeadFilter{IDs: []string{dead.DeadLetter}}})
	f.job(job.ID, bridge.JobDone)
	f.journey("d2", bridge.StateDelivered)
	check(map[string]bridge.SearchQuery{
		"[a3 d2 a2 a1]": {Target: "ops", Outcome: "delivered"},
		"[d3 d1]":       {Target: "ops", Outcome: "dead"},
	})
	for _, q := range []bridge.SearchQuery{{Outcome: "dead"}, {Target: "ops", Outcome: "live"}, {Target: "ops", Outcome: "nice"}} {
		if _, err := f.Search(context.Background(), "default", q); fault.KindOf(err) != fault.Invalid {
			t.Errorf("%+v: %v, want Invalid", q, err)
		}
	}
	if len(bridge.Outcomes) != 6 || bridge.Outcomes[0] != journal.Parked.String() {
		t.Errorf("outcomes %v", bridge.Outcomes)
	}
}

// A journey of any length is told page by page: every attempt once and in order, while more are made. Each page says how the
// deliveries stand now.
func TestALongJourneyIsToldPageByPage(t *testing.T) {
	f := newFixture(t)
	f.target("ops", `{"retry":{"schedule":["10ms"],"maxAttempts":1000}}`, nil)
	f.target("well", quick, nil)
	f.rule("all", "reading", "ops", "well")
	f.pause("ops", true)
	f.start()
	defer f.stop(time.Second)
	f.send("reading", "a")
	f.parked("ops", 1)
	route, attempts := journal.Route{Rule: "all", Revision: f.rules[0].Revision, Target: "ops"}, 0
	tried := func(count int) {
		t.Helper()
		for range count {
			attempts++
			f.must(f.Tried(context.Background(), "default", journal.Outcome{Seq: 1, Route: route, State: journal.Parked, Attempt: attempts, At: time.Now(), Due: time.Now()}))
		}
	}
	tried(1150)
	query := func(limit int, cursor string) bridge.EventQuery {
		return bridge.EventQuery{Bus: "default", ID: "a", Limit: limit, Cursor: cursor}
	}
	page := func(limit int, cursor string) *bridge.Journey {
		t.Helper()
		found, err := f.EventPage(context.Background(), query(limit, cursor))
		f.must(err)
		return found.Journey
	}
	all := func(limit int, meanwhile func()) (told map[string][]int, redrives int) {
		t.Helper()
		told = map[string][]int{}
		left, cursor := -1, ""
		for left != 0 {
			j := page(limit, cursor)
			for _, d := range j.Deliveries {
				var numbers []int
				for _, a := range d.Attempts {
					numbers = append(numbers, a.N)
				}
				told[d.Target] = append(numbers, told[d.Target]...)
				redrives += len(d.Redrives)
			}
			if left > 0 && j.RecordsMore != max(0, left-cmp.Or(limit, 1000)) || (j.RecordsMore == 0) != (j.NextCursor == "") {
				t.Errorf("a page of %d leaves out %d before %q, after one that left out %d", limit, j.RecordsMore, j.NextCursor, left)
			}
			left, cursor = j.RecordsMore, j.NextCursor
			meanwhile()
		}
		for i, n := range told["ops"] {
			if n != i+1 {
				t.Fatalf("in pages of %d attempt %d comes in place %d", limit, n, i+1)
			}
		}
		return told, redrives
	}
	for _, limit := range []int{0, 100, 1000} {
		now := attempts
		if told, _ := all(limit, func() { tried(3) }); len(told["ops"]) != now || len(told["well"]) != 1 {
			t.Errorf("in pages of %d: %d attempts of %d, and %d", limit, len(told["ops"]), now, len(told["well"]))
		}
	}
	f.pause("ops", false)
	f.journey("a", bridge.StateDelivered)
	_, err := f.Redrive(context.Background(), bridge.RedriveRequest{Bus: "default", ID: "a", Target: "ops", Delivered: true})
	f.must(err)
	f.targets["ops"].attempts(t, 2)
	f.journey("a", bridge.StateDelivered)
	newest := page(2, "")
	older := page(10, page(300, "").NextCursor)
	for i, j := range []*bridge.Journey{newest, older} {
		if len(j.Deliveries) != 2 || j.Deliveries[0].State != journal.Delivered || len(j.Deliveries[0].Redrives) != 1-i {
			t.Errorf("page %+v", j)
		}
	}
	for name, q := range map[string]bridge.EventQuery{"limit": query(-1, ""), "/limit": query(1001, ""), "cursor": query(0, "x"), "/cursor": query(0, "1"),
		"/cursor:": query(0, "1-0"), "cursor: is not": query(0, "-7"), "another event": query(0, "2"+newest.NextCursor)} {
		if _, err := f.EventPage(context.Background(), q); fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), name) {
			t.Errorf("%+v: %v", q, err)
		}
	}
}
