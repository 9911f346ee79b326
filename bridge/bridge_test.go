// SPDX-License-Identifier: Apache-2.0

package bridge_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/bridge"
	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/journal"
	"github.com/rialto-bridge/rialto/rules"
	"github.com/rialto-bridge/rialto/targets"
)

// fixture is a bridge over a real log and real views in a folder of its own. stop and start make a restart.
type fixture struct {
	t   testing.TB
	dir string

	log     *eventlog.Log
	journal *journal.Journal
	*bridge.Bridge

	logOpts eventlog.Options // Durability and Sync, if not OS
	opts    bridge.Options
	busDoc  string              // the document of bus default, if not the usual one
	held    *targets.Definition // of a target that cannot be used
	targets map[string]*recipient
	rules   []*rules.Rule
	rev     uint64
}

func newFixture(t testing.TB) *fixture {
	f := &fixture{t: t, dir: t.TempDir(), targets: map[string]*recipient{}}
	return f
}

func (f *fixture) start() *fixture {
	f.t.Helper()
	ctx := context.Background()
	logger := slog.New(slog.DiscardHandler)
	if os.Getenv("RIALTO_TEST_LOG") != "" {
		logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	var err error
	lo := f.logOpts
	lo.Dir, lo.Logger = f.dir, logger
	if lo.ClockTrust == 0 {
		lo.ClockTrust = -1
	}
	if lo.Durability == "" {
		lo.Durability = eventlog.OS
	}
	if f.log, err = eventlog.Open(ctx, lo); err != nil {
		f.t.Fatal(err)
	}
	if f.journal, err = journal.Open(journal.Options{Dir: f.views(), Logger: logger}); err != nil {
		f.t.Fatal(err)
	}
	o := f.opts
	o.Log, o.Journal, o.Logger = f.log, f.journal, logger
	if f.Bridge, err = bridge.New(ctx, o); err != nil {
		f.t.Fatal(err)
	}
	for _, r := range f.targets {
		f.must(f.SetTarget(r.def, r))
	}
	if f.held != nil {
		f.must(f.HoldTarget(f.held))
	}
	doc, err := bridge.ParseBus([]byte(cmp.Or(f.busDoc, `{"kind":"Bus","name":"default"}`)))
	f.must(err)
	f.must(f.SetBus(ctx, doc))
	f.must(f.SetRules("default", f.rev, f.rules))
	return f
}

func (f *fixture) views() string { return filepath.Join(f.dir, "views") }

// stop stops the bridge; attempts under way get d to finish.
func (f *fixture) stop(d time.Duration) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	f.must(f.Close(ctx))
	f.must(f.journal.Close())
	f.must(f.log.Close(context.Background()))
}

func (f *fixture) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

// target adds a target whose answers the test decides.
func (f *fixture) target(name, delivery string, answer func(targets.Delivery) error) *recipient {
	f.t.Helper()
	kind := targets.Kind{Name: "test", ConfigSchema: []byte(`{}`)}
	def, err := targets.ParseDefinition(fmt.Appendf(nil, `{"kind":"Target","name":%q,"type":"test","delivery":%s}`, name, delivery), targets.NewCatalog(kind))
	f.must(err)
	f.rev++
	def.Revision = f.rev
	r := &recipient{def: def, answer: answer, changed: make(chan struct{})}
	f.targets[name] = r
	if f.Bridge != nil {
		f.must(f.SetTarget(def, r))
	}
	return r
}

// pause writes the definition of a target again: paused or not, and at a new revision.
func (f *fixture) pause(name string, paused bool) {
	f.t.Helper()
	r := f.targets[name]
	f.rev++
	def := *r.def
	def.Paused, def.Revision = paused, f.rev
	r.def = &def
	if f.Bridge != nil {
		f.must(f.SetTarget(r.def, r))
	}
}

// status waits until a target stands somewhere.
func (f *fixture) status(name, state string) bridge.TargetStatus {
	f.t.Helper()
	var s bridge.TargetStatus
	f.eventually(func() (string, bool) {
		var err error
		s, err = f.TargetStatus(name, false)
		f.must(err)
		return fmt.Sprintf("target %s: %+v, want %s", name, s, state), s.State == state
	})
	return s
}

// rule adds a rule that sends a type to targets.
func (f *fixture) rule(name, typ string, to ...string) {
	f.t.Helper()
	list := ""
	for i, n := range to {
		if i > 0 {
			list += ","
		}
		list += fmt.Sprintf(`{"target":%q}`, n)
	}
	r, err := rules.ParseRule(fmt.Appendf(nil, `{"kind":"Rule","name":%q,"bus":"default","pattern":{"type":[%q]},"targets":[%s]}`, name, typ, list))
	f.must(err)
	f.rev++
	r.Revision = f.rev
	f.setRules(append(f.rules, r))
}

func (f *fixture) setRules(rs []*rules.Rule) {
	f.rules = rs
	if f.Bridge != nil {
		f.must(f.SetRules("default", f.rev, rs))
	}
}

func (f *fixture) send(typ string, ids ...string) []bridge.Receipt {
	f.t.Helper()
	recs := make([]*event.Record, len(ids))
	for i, id := range ids {
		recs[i] = &event.Record{Event: event.Event{ID: id, Source: "/test", Type: typ, DataContentType: "application/json", Data: []byte(`{"n":1}`)}}
	}
	got, err := f.Ingest(context.Background(), "default", recs)
	f.must(err)
	return got
}

// journey waits until the event is in a state.
func (f *fixture) journey(id, state string) *bridge.Found {
	f.t.Helper()
	var found *bridge.Found
	f.eventually(func() (string, bool) {
		var err error
		found, err = f.Event(context.Background(), "default", id, "")
		f.must(err)
		return fmt.Sprintf("event %s is %s, want %s: %+v", id, found.State, state, found.Journey), found.State == state
	})
	return found
}

// balanced waits until nothing is pending and returns the account, which must add up at every look.
func (f *fixture) balanced() bridge.Ledger {
	f.t.Helper()
	return f.balancedWithin(20 * time.Second)
}

func (f *fixture) balancedWithin(d time.Duration) bridge.Ledger {
	f.t.Helper()
	var l bridge.Ledger
	f.within(d, func() (string, bool) {
		var err error
		l, err = f.Ledger(context.Background(), bridge.LedgerQuery{Bus: "default"})
		f.must(err)
		if !l.Balanced {
			f.t.Fatalf("the account differs by %d: %+v", l.Difference, l)
		}
		pending := l.Events.NotYetRouted
		for _, d := range l.Deliveries {
			pending += d.Pending
		}
		routed, err := f.journal.RoutedTo("default")
		f.must(err)
		indexed, err := f.journal.Indexed("default")
		f.must(err)
		return fmt.Sprintf("%d pending, %d of %d indexed: %+v", pending, indexed, routed, l.Events), pending == 0 && indexed >= routed
	})
	return l
}

// eventually looks again and again until ok, for at most 20 s.
func (f *fixture) eventually(look func() (string, bool)) {
	f.t.Helper()
	f.within(20*time.Second, look)
}

func (f *fixture) within(d time.Duration, look func() (string, bool)) {
	f.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(d)
	for {
		what, ok := look()
		if ok {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			f.t.Fatal(what)
		}
	}
}

// recipient is a target that remembers what it was given.
type recipient struct {
	def     *targets.Definition
	answer  func(targets.Delivery) error
	forgets func(targets.Delivery) error // answers instead, and nothing is remembered
	result  *targets.Result              // of what is refused; nil = its status

	mu      sync.Mutex // guards all below
	got     []targets.Delivery
	changed chan struct{}
}

func (r *recipient) Deliver(ctx context.Context, d targets.Delivery) (targets.Result, error) {
	if r.forgets != nil {
		return targets.Result{Status: 200}, r.forgets(d)
	}
	r.mu.Lock()
	r.got = append(r.got, d)
	close(r.changed)
	r.changed = make(chan struct{})
	r.mu.Unlock()
	if r.answer == nil {
		return targets.Result{Status: 204}, nil
	}
	if err := r.answer(d); err != nil {
		if errors.Is(err, errHang) {
			<-ctx.Done()
			return targets.Result{}, ctx.Err()
		}
		var te *targets.Error
		if r.result != nil {
			return *r.result, err
		}
		if errors.As(err, &te) {
			return targets.Result{Status: te.Status}, err
		}
		return targets.Result{}, err
	}
	return targets.Result{Status: 200}, nil
}

var errHang = errors.New("hang")

// attempts waits for at least n attempts and returns all.
func (r *recipient) attempts(t testing.TB, n int) []targets.Delivery {
	t.Helper()
	timeout := time.After(20 * time.Second)
	for {
		r.mu.Lock()
		got, changed := r.got[:len(r.got):len(r.got)], r.changed
		r.mu.Unlock()
		if len(got) >= n {
			return got
		}
		select {
		case <-changed:
		case <-timeout:
			t.Fatalf("%d attempts at %s, want %d", len(got), r.def.Name, n)
		}
	}
}

const quick = `{"retry":{"schedule":["10ms"],"maxAttempts":50}}`

func TestAnEventIsDeliveredAndAccountedFor(t *testing.T) {
	f := newFixture(t).start()
	defer f.stop(time.Second)
	ops := f.target("ops", quick, nil)
	f.rule("too-warm", "reading", "ops")
	f.rule("doors", "door", "ops")
	if r := f.send("reading", "a"); r[0].Pos.String() != "EV_default:1" {
		t.Errorf("position %v, want EV_default:1", r[0].Pos)
	}
	f.send("other", "b")

	found := f.journey("a", bridge.StateDelivered)
	if len(found.Journey.Deliveries) != 1 || len(found.Journey.Rules) != 2 {
		t.Fatalf("journey %+v", found.Journey)
	}
	d := found.Journey.Deliveries[0]
	if d.Rule != "too-warm" || d.Target != "ops" || len(d.Attempts) != 1 || !d.Attempts[0].OK || d.Attempts[0].Status != 204 {
		t.Errorf("delivery %+v", d)
	}
	if v := found.Journey.Rules; v[0].Rule != "too-warm" || !v[0].Matched || v[1].Rule != "doors" || v[1].Matched {
		t.Errorf("verdicts %+v", v)
	}
	f.journey("b", bridge.StateUnmatched)

	got := ops.attempts(t, 1)[0]
	if got.Event.ID != "a" || got.Attempt != 1 || got.Position.Seq != 1 || len(got.ID) != 36 {
		t.Errorf("delivery %+v", got)
	}
	l := f.balanced()
	if l.Events.Accepted != 2 || l.Events.Matched != 1 || l.Events.Unmatched != 1 || l.Deliveries[0].Delivered != 1 {
		t.Errorf("account %+v", l)
	}
}

// An id that the bridge has chosen is found in the tail and in the views, and with it a later event whose producer has
// given it the same.
func TestIDsOfTheBridge(t *testing.T) {
	f := newFixture(t).start()
	defer f.stop(time.Second)
	chosen := map[string]uint64{}
	for range 600 {
		rec := &event.Record{Event: event.Event{Source: "/test", Type: "reading"}}
		got, err := f.Ingest(t.Context(), "default", []*event.Record{rec})
		f.must(err)
		chosen[rec.Event.ID] = got[0].Pos.Seq
	}
	find := func(id string, others int) uint64 {
		t.Helper()
		found, err := f.Event(t.Context(), "default", id, "")
		f.must(err)
		if found.Event.ID != id || len(found.Others) != others {
			t.Fatalf("%s with %v, want %s with %d others", found.Event.ID, found.Others, id, others)
		}
		return found.Position.Seq
	}
	for range 2 {
		for id, seq := range chosen {
			if got := find(id, 0); got != seq {
				t.Fatalf("event %s is at %d, want %d", id, got, seq)
			}
		}
		f.balanced() // all are in the views
	}
	for id := range chosen {
		f.send("reading", id)
		f.balanced()
		if got := find(id, 1); got != 601 {
			t.Errorf("the newest event %s is at %d, want 601", id, got)
		}
		break
	}
	if _, err := f.Event(t.Context(), "default", event.NewID(), ""); fault.KindOf(err) != fault.NotFound {
		t.Errorf("an id that was never stored: %v", err)
	}
}

func TestAnAcceptedEventCanBeReadAtOnce(t *testing.T) {
	f := newFixture(t).start()
	defer f.stop(time.Second)
	for i := range 50 {
		id := fmt.Sprintf("e %d/?#%%", i)
		f.send("reading", id)
		if _, err := f.Event(context.Background(), "default", id, "/test"); err != nil {
			t.Fatalf("right after it was accepted: %v", err)
		}
	}
	if _, err := f.Event(context.Background(), "default", "no", ""); fault.KindOf(err) != fault.NotFound {
		t.Errorf("unknown id: %v", err)
	}
	if _, err := f.Event(context.Background(), "no", "no", ""); fault.KindOf(err) != fault.NotFound {
		t.Errorf("unknown bus: %v", err)
	}
}

func TestRetriesUntilItSucceeds(t *testing.T) {
	f := newFixture(t).start()
	defer f.stop(time.Second)
	ops := f.target("ops", quick, func(d targets.Delivery) error {
		if d.Attempt < 4 {
			return targets.StatusError(503, 0)
		}
		return nil
	})
	f.rule("all", "reading", "ops")
	f.send("reading", "a")
	found := f.journey("a", bridge.StateDelivered)
	at := found.Journey.Deliveries[0].Attempts
	if len(at) != 4 || at[0].Status != 503 || at[0].OK || at[0].Reason != "status" || !at[3].OK {
		t.Errorf("attempts %+v", at)
	}
	ids := map[string]bool{}
	for _, d := range ops.attempts(t, 4) {
		ids[d.ID] = true
	}
	if len(ids) != 1 {
		t.Errorf("delivery ids %v differ between attempts", ids)
	}
	f.balanced()
}

func TestWhatCannotSucceedBecomesADeadLetter(t *testing.T) {
	f := newFixture(t).start()
	defer f.stop(time.Second)
	f.target("strict", quick, func(targets.Delivery) error { return targets.StatusError(400, 0) })
	f.target("broken", `{"retry":{"maxAttempts":3,"schedule":["1ms"]}}`, func(targets.Delivery) error { return targets.StatusError(500, 0) })
	f.target("none", `{"retry":{"schedule":[]}}`, func(targets.Delivery) error { panic("no such thing") })
	f.rule("all", "reading", "strict", "broken", "none")
	f.send("reading", "a")
	found := f.journey("a", bridge.StateDead)
	want := map[string]struct {
		attempts int
		end      string
	}{"strict": {1, "permanent"}, "broken": {3, "attempts"}, "none": {1, "attempts"}}
	for _, d := range found.Journey.Deliveries {
		if len(d.Attempts) != want[d.Target].attempts || d.DeadLetter == "" {
			t.Errorf("%s: %+v", d.Target, d)
		}
	}
	page, err := f.DeadLetters(context.Background(), bridge.DeadQuery{Limit: 2})
	f.must(err)
	if len(page.Items) != 2 || page.NextCursor == "" {
		t.Fatalf("first page %+v", page)
	}
	rest, err := f.DeadLetters(context.Background(), bridge.DeadQuery{Limit: 2, Cursor: page.NextCursor})
	f.must(err)
	if len(rest.Items) != 1 || rest.NextCursor != "" {
		t.Fatalf("second page %+v", rest)
	}
	for _, dl := range append(page.Items, rest.Items...) {
		if w := want[dl.Target]; dl.EventID != "a" || dl.Attempts != w.attempts || dl.End != w.end || dl.Event == nil || string(dl.Event.Data) != `{"n":1}` {
			t.Errorf("dead letter %+v", dl)
		}
	}
	only, err := f.DeadLetters(context.Background(), bridge.DeadQuery{DeadFilter: bridge.DeadFilter{Target: "strict", Reason: "status"}})
	f.must(err)
	if len(only.Items) != 1 || only.Items[0].Status != 400 {
		t.Errorf("filtered %+v", only)
	}
	if l := f.balanced(); l.Deliveries[0].Dead+l.Deliveries[1].Dead+l.Deliveries[2].Dead != 3 {
		t.Errorf("account %+v", l)
	}
}

func TestDuplicatesAreStoredOnce(t *testing.T) {
	f := newFixture(t).start()
	defer f.stop(time.Second)
	ops := f.target("ops", quick, nil)
	f.rule("all", "reading", "ops")
	first := f.send("reading", "a")
	again := f.send("reading", "a", "b")
	if !again[0].Duplicate || again[0].Pos != first[0].Pos || again[1].Duplicate {
		t.Errorf("receipts %+v", again)
	}
	if l := f.balanced(); l.Events.Accepted != 2 {
		t.Errorf("accepted %d, want 2", l.Events.Accepted)
	}
	if n := len(ops.attempts(t, 2)); n != 2 {
		t.Errorf("%d attempts, want 2", n)
	}
}

func TestWhatIsOwedSurvivesARestart(t *testing.T) {
	f := newFixture(t)
	var up sync.Map
	ops := f.target("ops", `{"concurrency":4,"retry":{"schedule":["20ms"],"maxAttempts":50}}`, func(d targets.Delivery) error {
		if _, ok := up.Load("up"); ok {
			return nil
		}
		if d.Event.ID[0] == 'h' {
			return errHang
		}
		return targets.StatusError(503, 0)
	})
	f.rule("all", "reading", "ops")
	f.start()
	f.send("reading", "h1", "f1", "h2", "f2", "f3")
	ops.attempts(t, 5)
	f.stop(50 * time.Millisecond) // h1 and h2 are cut off
	for _, views := range []string{"kept", "deleted"} {
		if views == "deleted" {
			f.must(os.RemoveAll(f.views()))
		}
		f.start()
		f.send("reading", "more-"+views)
		f.stop(50 * time.Millisecond)
	}
	up.Store("up", true)
	f.start()
	defer f.stop(time.Second)
	for _, id := range []string{"h1", "h2", "f1", "f2", "f3", "more-kept", "more-deleted"} {
		f.journey(id, bridge.StateDelivered)
	}
	if l := f.balanced(); l.Events.Accepted != 7 || l.Deliveries[0].Delivered != 7 {
		t.Errorf("account %+v", l)
	}
}

func TestABacklogDrainsOnce(t *testing.T) {
	f := newFixture(t)
	f.opts = bridge.Options{LiveQueue: 8, Unsettled: 100 * time.Millisecond, Window: 64}
	gate := make(chan struct{})
	slow := f.target("slow", `{"concurrency":2}`, func(targets.Delivery) error { <-gate; return nil })
	healthy := f.target("healthy", `{"concurrency":2}`, nil)
	f.rule("all", "reading", "slow", "healthy")
	f.start()
	defer f.stop(time.Second)
	const n = 500
	for i := range n {
		f.send("reading", fmt.Sprint("e", i))
	}
	healthy.attempts(t, n) // while the other one hangs
	close(gate)
	l := f.balanced()
	for _, d := range l.Deliveries {
		if d.Delivered != n {
			t.Errorf("%s: %+v", d.Target, d)
		}
	}
	seen := map[string]int{}
	for _, d := range slow.attempts(t, n) {
		if seen[d.Event.ID]++; seen[d.Event.ID] > 1 {
			t.Errorf("event %s was delivered twice", d.Event.ID)
		}
	}
}

func TestDeletedRulesAndTargetsCancelWhatIsPending(t *testing.T) {
	f := newFixture(t).start()
	defer f.stop(time.Second)
	down := func(targets.Delivery) error { return targets.StatusError(503, 0) }
	a := f.target("a", `{"retry":{"schedule":["1h"]}}`, down)
	b := f.target("b", `{"retry":{"schedule":["1h"]}}`, down)
	f.rule("one", "reading", "a")
	f.rule("two", "reading", "b")
	f.send("reading", "x")
	a.attempts(t, 1)
	b.attempts(t, 1)
	f.eventually(func() (string, bool) {
		found, err := f.Event(context.Background(), "default", "x", "")
		f.must(err)
		parked := 0
		for _, d := range found.Journey.Deliveries {
			if d.State == journal.Parked {
				parked++
			}
		}
		return fmt.Sprintf("%d parked, want 2", parked), parked == 2
	})
	f.setRules(f.rules[1:])
	delete(f.targets, "b")
	f.RemoveTarget("b")
	found := f.journey("x", bridge.StateCancelled)
	reasons := map[string]string{}
	for _, d := range found.Journey.Deliveries {
		reasons[d.Target] = d.Reason
	}
	if reasons["a"] != "rule_deleted" || reasons["b"] != "target_deleted" {
		t.Errorf("reasons %v", reasons)
	}
	// The rule "two" is still there; its target is not.
	f.send("reading", "y")
	f.journey("y", bridge.StateCancelled)
	f.balanced()
}

func TestEventsKeepTheRulesTheyMet(t *testing.T) {
	f := newFixture(t).start()
	defer f.stop(time.Second)
	var up, tried atomic.Bool
	ops := f.target("ops", quick, func(targets.Delivery) error {
		if tried.Swap(true) && up.Load() {
			return nil
		}
		return targets.StatusError(503, 0)
	})
	set := func(text string) {
		r, err := rules.ParseRule(fmt.Appendf(nil, `{"kind":"Rule","name":"all","bus":"default","pattern":{"type":["reading"]},
			"targets":[{"target":"ops","transform":{"constant":%q}}]}`, text))
		f.must(err)
		f.rev++
		r.Revision = f.rev
		f.setRules([]*rules.Rule{r})
	}
	set("first")
	f.send("reading", "old")
	ops.attempts(t, 1)
	set("second")
	f.send("reading", "new")
	up.Store(true)
	f.journey("old", bridge.StateDelivered)
	f.journey("new", bridge.StateDelivered)
	for _, d := range ops.attempts(t, 3) {
		want := map[string]string{"old": "first", "new": "second"}[d.Event.ID]
		if string(d.Event.Data) != want {
			t.Errorf("event %s was rendered as %q, want %q", d.Event.ID, d.Event.Data, want)
		}
	}
}

func TestRetryAfterRestsTheWholeTarget(t *testing.T) {
	f := newFixture(t).start()
	defer f.stop(time.Second)
	var mu sync.Mutex
	var times []time.Time
	f.target("ops", `{"concurrency":1,"retry":{"schedule":["1ms"]}}`, func(targets.Delivery) error {
		mu.Lock()
		defer mu.Unlock()
		times = append(times, time.Now())
		if len(times) == 1 {
			return targets.StatusError(429, time.Second)
		}
		return nil
	})
	f.rule("all", "reading", "ops")
	f.send("reading", "a", "b", "c")
	for _, id := range []string{"a", "b", "c"} {
		f.journey(id, bridge.StateDelivered)
	}
	mu.Lock()
	defer mu.Unlock()
	if rest := times[1].Sub(times[0]); rest < 900*time.Millisecond {
		t.Errorf("next attempt after %v, want a second's rest", rest)
	}
}

func TestSearchFiltersAndPages(t *testing.T) {
	f := newFixture(t).start()
	defer f.stop(time.Second)
	f.target("ops", quick, func(d targets.Delivery) error {
		if d.Event.ID == "r3" {
			return targets.StatusError(400, 0)
		}
		return nil
	})
	f.rule("all", "reading", "ops")
	f.send("reading", "r1", "r2", "r3", "r4", "r5")
	f.send("other", "o1", "o2")
	for i := range 6 {
		rec := &event.Record{Event: event.Event{ID: fmt.Sprint("s", i), Source: "/box", Type: "box", Subject: fmt.Sprint("box/", i%2)}}
		_, err := f.Ingest(context.Background(), "default", []*event.Record{rec})
		f.must(err)
		if page, err := f.Search(context.Background(), "default", bridge.SearchQuery{Subject: rec.Event.Subject, Limit: 1}); err != nil ||
			len(page.Items) != 1 || page.Items[0].Event.ID != rec.Event.ID {
			t.Errorf("by subject, right after it was accepted: %+v, %v", page, err)
		}
	}
	f.balanced()
	ids := func(q bridge.SearchQuery) (out []string) {
		for {
			page, err := f.Search(context.Background(), "default", q)
			f.must(err)
			for _, it := range page.Items {
				out = append(out, it.Event.ID)
			}
			if q.Cursor = page.NextCursor; q.Cursor == "" {
				return out
			}
		}
	}
	for _, c := range []struct {
		name string
		q    bridge.SearchQuery
		want string
	}{
		{"all", bridge.SearchQuery{}, "[s5 s4 s3 s2 s1 s0 o2 o1 r5 r4 r3 r2 r1]"},
		{"pages", bridge.SearchQuery{Limit: 2}, "[s5 s4 s3 s2 s1 s0 o2 o1 r5 r4 r3 r2 r1]"},
		{"subject", bridge.SearchQuery{Subject: "box/1"}, "[s5 s3 s1]"},
		{"subject, paged", bridge.SearchQuery{Subject: "box/0", Limit: 1}, "[s4 s2 s0]"},
		{"subject and type", bridge.SearchQuery{Subject: "box/0", Type: "other"}, "[]"},
		{"no subject", bridge.SearchQuery{Subject: "box/9"}, "[]"},
		{"type", bridge.SearchQuery{Type: "other"}, "[o2 o1]"},
		{"source", bridge.SearchQuery{Source: "/test", Type: "other"}, "[o2 o1]"},
		{"no source", bridge.SearchQuery{Source: "/no"}, "[]"},
		{"dead", bridge.SearchQuery{Status: bridge.StateDead}, "[r3]"},
		{"delivered, paged", bridge.SearchQuery{Status: bridge.StateDelivered, Limit: 1}, "[r5 r4 r2 r1]"},
		{"unmatched", bridge.SearchQuery{Status: bridge.StateUnmatched, Type: "other"}, "[o2 o1]"},
		{"past", bridge.SearchQuery{To: time.Now().Add(-time.Hour)}, "[]"},
		{"now", bridge.SearchQuery{From: time.Now().Add(-time.Hour), Type: "other"}, "[o2 o1]"},
	} {
		if got := fmt.Sprint(ids(c.q)); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
	for _, q := range []bridge.SearchQuery{{Limit: -1}, {Limit: 1001}, {Cursor: "x"}, {Status: "nice"}} {
		if _, err := f.Search(context.Background(), "default", q); fault.KindOf(err) != fault.Invalid {
			t.Errorf("%+v: %v, want Invalid", q, err)
		}
	}
}

func TestFollowSeesEveryEventInOrder(t *testing.T) {
	f := newFixture(t).start()
	defer f.stop(time.Second)
	f.send("reading", "1", "2")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	got := make(chan string, 10)
	var wg sync.WaitGroup
	wg.Add(1)
	go func() {
		defer wg.Done()
		err := f.Follow(ctx, bridge.FollowOptions{Bus: "default", From: 2}, func(e eventlog.Entry) error {
			got <- e.Record.Event.ID
			return nil
		})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("Follow = %v", err)
		}
	}()
	f.send("reading", "3")
	for _, want := range []string{"2", "3"} {
		if id := <-got; id != want {
			t.Errorf("followed %s, want %s", id, want)
		}
	}
	cancel()
	wg.Wait()
}

func TestManyDeliveriesAddUp(t *testing.T) {
	f := newFixture(t)
	f.opts.Unsettled = 200 * time.Millisecond
	f.target("good", `{"concurrency":16}`, nil)
	f.target("flaky", `{"concurrency":16,"retry":{"schedule":["5ms"],"maxAttempts":50}}`, func(d targets.Delivery) error {
		if (len(d.Event.ID)+d.Attempt)%3 == 0 {
			return targets.StatusError(500, 0)
		}
		return nil
	})
	f.target("bad", `{"concurrency":4,"breaker":{"enabled":false},"retry":{"schedule":["1ms"],"maxAttempts":2}}`, func(targets.Delivery) error { return targets.StatusError(500, 0) })
	f.rule("all", "reading", "good", "flaky", "bad")
	f.start()
	defer f.stop(time.Second)
	const writers, each = 8, 100
	var wg sync.WaitGroup
	for w := range writers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := range each {
				recs := []*event.Record{{Event: event.Event{ID: fmt.Sprint(w, "-", i), Source: "/w", Type: "reading"}}}
				if _, err := f.Ingest(context.Background(), "default", recs); err != nil {
					t.Error(err)
				}
			}
		}()
	}
	wg.Wait()
	l := f.balanced()
	for _, d := range l.Deliveries {
		if d.Owed != writers*each || d.Target == "bad" && d.Dead != writers*each || d.Target != "bad" && d.Delivered != writers*each {
			t.Errorf("%s: %+v", d.Target, d)
		}
	}
}
