// SPDX-License-Identifier: Apache-2.0

package bridge_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/bridge"
	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/journal"
	"github.com/rialto-bridge/rialto/targets"
)

// ordered sends count events of keys subjects, one after the other, and returns when they are stored. Ids are subject/number.
func (f *fixture) ordered(from, count, keys int) {
	f.t.Helper()
	var stored sync.WaitGroup
	stored.Add(count)
	for i := from; i < from+count; i++ {
		subject := fmt.Sprint("k", i%keys)
		rec := &event.Record{Event: event.Event{ID: fmt.Sprintf("%s/%d", subject, i), Source: "/test", Subject: subject, Type: "reading", Data: []byte("{}")}}
		f.must(f.Publish(context.Background(), "default", rec, func(r bridge.Receipt) {
			if r.Err != nil {
				f.t.Error(r.Err)
			}
			stored.Done()
		}))
	}
	stored.Wait()
}

// sequence checks that what a target accepts comes in order, key by key, and one attempt at a time.
type sequence struct {
	t testing.TB

	mu       sync.Mutex // guards all below
	last     map[string]uint64
	underWay map[string]bool
	count    int
	repeats  int
}

func newSequence(t testing.TB) *sequence {
	return &sequence{t: t, last: map[string]uint64{}, underWay: map[string]bool{}}
}

// attempt notes an attempt, and its success if accept says so.
func (s *sequence) attempt(d targets.Delivery, accept func() error) error {
	key := d.Event.Subject
	s.mu.Lock()
	if s.underWay[key] {
		s.t.Errorf("two attempts of %s at the same time", key)
	}
	s.underWay[key] = true
	s.mu.Unlock()
	err := accept()
	s.mu.Lock()
	s.underWay[key] = false
	if last := s.last[key]; d.Position.Seq < last {
		s.t.Errorf("%s: %d is tried after %d", key, d.Position.Seq, last)
	}
	s.mu.Unlock()
	if err == nil {
		s.accepted(key, d.Position.Seq)
	}
	return err
}

// accepted notes a success.
func (s *sequence) accepted(key string, at uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch last := s.last[key]; {
	case at < last:
		s.t.Errorf("%s: %d after %d", key, at, last)
	case at == last:
		s.repeats++
	default:
		s.count++
	}
	s.last[key] = at
}

const orderedPolicy = `{"ordering":"key","concurrency":4,"timeout":"1s","breaker":{"enabled":false},"retry":{"schedule":["5ms"],"maxAttempts":1000}}`

// What comes while a target that keeps order cannot be used is in order when it can be.
func TestAHeldTargetKeepsOrder(t *testing.T) {
	f := newFixture(t)
	f.opts.Unsettled = 50 * time.Millisecond
	seq := newSequence(t)
	ops := f.target("ops", orderedPolicy, func(d targets.Delivery) error {
		return seq.attempt(d, func() error {
			if d.Position.Seq%7 == 0 && d.Attempt == 1 {
				return targets.StatusError(503, 0)
			}
			return nil
		})
	})
	delete(f.targets, "ops")
	f.held = ops.def
	f.rule("all", "reading", "ops")
	f.start()
	defer func() { f.stop(time.Second) }()
	const count, keys = 60, 3
	f.ordered(0, count, keys)
	f.parked("ops", count)
	f.must(f.SetTarget(ops.def, ops))
	f.ordered(count, count, keys)
	if l := f.balanced(); l.Deliveries[0].Delivered != 2*count || seq.count != 2*count {
		t.Errorf("account %+v, %d delivered", l.Deliveries, seq.count)
	}
}

// A head that fails holds up its own key and no other; what follows it comes in order when it succeeds.
func TestAFailingHeadBlocksOnlyItsKey(t *testing.T) {
	f := newFixture(t)
	f.opts.Unsettled = 50 * time.Millisecond
	var up atomic.Bool
	seq := newSequence(t)
	f.target("ops", orderedPolicy, func(d targets.Delivery) error {
		return seq.attempt(d, func() error {
			if d.Event.Subject == "k0" && !up.Load() {
				return targets.StatusError(503, 0)
			}
			return nil
		})
	})
	f.rule("all", "reading", "ops")
	f.start()
	defer func() { f.stop(time.Second) }()
	const count, keys = 400, 10
	f.ordered(0, count, keys)
	s := f.parked("ops", count/keys)
	f.eventually(func() (string, bool) {
		s, _ = f.TargetStatus("ops", false)
		return fmt.Sprintf("%+v", s), s.BlockedKeys == 1
	})
	d := f.journey("k0/10", bridge.StatePending).Journey.Deliveries[0]
	if d.State != journal.Parked || d.Reason != "order" && d.Reason != "slow" || len(d.Attempts) != 0 { // slow: on a busy machine it had waited before
		t.Errorf("delivery %+v", d)
	}
	first := f.journey("k0/0", bridge.StatePending)
	if d.Behind == nil || d.Behind.Position != first.Position.String() || d.Behind.Rule != "all" || d.Behind.Attempts == 0 {
		t.Errorf("it waits behind %+v, want %s", d.Behind, first.Position)
	}
	if b := first.Journey.Deliveries[0].Behind; b != nil {
		t.Errorf("the first waits behind %+v", b)
	}
	f.rebuild()
	f.parked("ops", count/keys)
	up.Store(true)
	if l := f.balanced(); l.Deliveries[0].Delivered != count || seq.count != count {
		t.Errorf("account %+v, %d delivered", l.Deliveries, seq.count)
	}
	if s, _ := f.TargetStatus("ops", false); s.BlockedKeys != 0 {
		t.Errorf("status %+v", s)
	}
}

// What fails for good is a dead letter, and the next has its turn; or it is tried on, and its key waits.
func TestSkipAndBlock(t *testing.T) {
	for _, mode := range []string{"skip", "block"} {
		t.Run(mode, func(t *testing.T) {
			f := newFixture(t)
			var up atomic.Bool
			seq := newSequence(t)
			policy := fmt.Sprintf(`{"ordering":"key","orderBy":"subject","onFailure":%q,"retry":{"schedule":["1s"],"maxAttempts":2},"breaker":{"enabled":false}}`, mode)
			var tries atomic.Int64
			f.target("ops", policy, func(d targets.Delivery) error {
				return seq.attempt(d, func() error {
					if d.Event.ID == "k0/0" && !up.Load() {
						tries.Add(1)
						return targets.StatusError(400, 0)
					}
					return nil
				})
			})
			f.rule("all", "reading", "ops")
			f.start()
			defer f.stop(time.Second)
			f.ordered(0, 10, 2)
			if mode == "block" {
				f.journey("k1/9", bridge.StateDelivered)
				f.eventually(func() (string, bool) { return "it is not tried on", tries.Load() > 2 })
				if s, _ := f.TargetStatus("ops", false); s.BlockedKeys != 1 || s.Parked != 5 {
					t.Errorf("status %+v", s)
				}
				up.Store(true)
			}
			l := f.balanced().Deliveries[0]
			if want := map[string]uint64{"skip": 1, "block": 0}[mode]; l.Dead != want || l.Delivered != 10-want {
				t.Errorf("account %+v", l)
			}
		})
	}
}

// The status of a target that keeps order says when the next is tried, as that of any other.
func TestAnOrderedTargetSaysWhenTheNextIsTried(t *testing.T) {
	f := newFixture(t)
	now := f.useClock()
	f.opts.Rand = func() float64 { return 0.5 }
	ops := f.target("ops", `{"ordering":"key","orderBy":"source","retry":{"schedule":["1h"],"maxAttempts":2},"breaker":{"enabled":false}}`,
		func(targets.Delivery) error { return targets.StatusError(503, 0) })
	f.rule("all", "reading", "ops")
	f.start()
	defer f.stop(time.Second)
	f.send("reading", "a", "b")
	ops.attempts(t, 1)
	f.eventually(func() (string, bool) {
		s, err := f.TargetStatus("ops", true)
		f.must(err)
		return fmt.Sprintf("%+v, the next is due at %v", s, s.NextDue), s.Parked == 2 && s.NextDue != nil && s.NextDue.Equal(now.Now().Add(time.Hour))
	})
}

// Somebody lets a head that fails go: it is a dead letter, and what follows has its turn.
func TestABlockedHeadIsSkipped(t *testing.T) {
	f := newFixture(t)
	seq := newSequence(t)
	f.target("ops", `{"ordering":"key","onFailure":"block","retry":{"schedule":["1h"]},"breaker":{"enabled":false}}`, func(d targets.Delivery) error {
		return seq.attempt(d, func() error {
			if d.Event.ID == "k0/0" {
				return targets.StatusError(503, 0)
			}
			return nil
		})
	})
	f.rule("all", "reading", "ops")
	f.start()
	defer func() { f.stop(time.Second) }()
	f.ordered(0, 10, 2)
	f.journey("k1/9", bridge.StateDelivered)
	f.parked("ops", 5)
	s, err := f.TargetStatus("ops", false)
	f.must(err)
	if len(s.Blocked) != 1 || s.Blocked[0].EventID != "k0/0" || s.Blocked[0].Followers != 4 || s.Blocked[0].Attempts != 1 || s.Blocked[0].Rule != "all" {
		t.Errorf("status %+v", s)
	}
	ctx := context.Background()
	for id, want := range map[string]fault.Kind{"k0/2": fault.Conflict, "k1/9": fault.Conflict, "none": fault.NotFound} {
		if _, err := f.Skip(ctx, bridge.SkipRequest{Bus: "default", ID: id}); fault.KindOf(err) != want {
			t.Errorf("skip of %s: %v, want %v", id, err, want)
		}
	}
	f.rebuild()
	f.parked("ops", 5)
	var dead string
	f.eventually(func() (string, bool) { // its line is known once the bus is taken up
		dead, err = f.Skip(ctx, bridge.SkipRequest{Bus: "default", ID: "k0/0", By: "me"})
		return fmt.Sprint(err), err == nil
	})
	if l := f.balanced().Deliveries[0]; l.Dead != 1 || l.Delivered != 9 {
		t.Errorf("account %+v", l)
	}
	d := f.journey("k0/0", bridge.StateDead).Journey.Deliveries[0]
	if d.DeadLetter != dead || d.Reason != "status" || len(d.Attempts) != 1 {
		t.Errorf("delivery %+v, skipped as %s", d, dead)
	}
}

// The deletion of a rule takes its deliveries out of the order: what waited behind them has its turn at once.
func TestADeletedRuleHoldsUpNothing(t *testing.T) {
	f := newFixture(t)
	f.target("ops", `{"ordering":"key","onFailure":"block","retry":{"schedule":["1h"]},"breaker":{"enabled":false}}`, func(d targets.Delivery) error {
		if d.Rule == "bad" {
			return targets.StatusError(503, 0)
		}
		return nil
	})
	f.rule("bad", "reading", "ops")
	f.rule("good", "reading", "ops")
	f.start()
	defer f.stop(time.Second)
	f.ordered(0, 3, 1)
	f.parked("ops", 6)
	f.setRules(f.rules[1:])
	for _, d := range f.balanced().Deliveries {
		if d.Rule == "bad" && d.Cancelled != 3 || d.Rule == "good" && d.Delivered != 3 {
			t.Errorf("account %+v", d)
		}
	}
}

// Whatever fails, and however often the bridge stops, with ranges and without, each key is delivered in order.
func TestOrderIsKept(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 9))
			f := newFixture(t)
			f.opts = bridge.Options{LiveQueue: 16, Unsettled: 20 * time.Millisecond, Window: 200, RangeAfter: []int{0, 10, 40, 0}[seed],
				ParkedKeys: []int{0, 0, 0, 3}[seed]}
			var calm, down atomic.Bool
			seq := newSequence(t)
			var mu sync.Mutex
			fate := rand.New(rand.NewPCG(seed, 8))
			f.target("ops", strings.Replace(orderedPolicy, `{"enabled":false}`, `{"minAttempts":5,"open":"100ms","maxOpen":"100ms"}`, 1), func(d targets.Delivery) error {
				return seq.attempt(d, func() error {
					mu.Lock()
					bad := fate.IntN(5) == 0
					mu.Unlock()
					if !calm.Load() && (bad || down.Load()) {
						return targets.StatusError(503, 0)
					}
					return nil
				})
			})
			f.rule("all", "reading", "ops")
			f.start()
			sent, ranged := 0, 0
			for range 15 {
				n := 20 + rnd.IntN(100)
				f.ordered(sent, n, 7)
				sent += n
				if s, err := f.TargetStatus("ops", true); err == nil {
					ranged = max(ranged, s.Ranged)
				}
				switch rnd.IntN(5) {
				case 0:
					f.stop(time.Duration(rnd.IntN(20)) * time.Millisecond)
					if rnd.IntN(2) == 0 {
						f.must(os.RemoveAll(f.views()))
					}
					f.start()
				case 1, 2:
					down.Store(!down.Load())
				case 3:
					f.pause("ops", rnd.IntN(2) == 0)
				case 4:
					f.must(f.RemoveBus("default"))
					f.setBus()
				}
			}
			calm.Store(true)
			f.pause("ops", false)
			l := f.balancedWithin(time.Minute)
			if d := l.Deliveries[0]; d.Delivered != uint64(sent) || seq.count != sent {
				t.Errorf("%d sent, %d delivered, account %+v", sent, seq.count, d)
			}
			t.Logf("%d sent, %d repeated, at most %d in ranges", sent, seq.repeats, ranged)
			f.stop(time.Second)
		})
	}
}

// Lines that are parked behind a range are as many as may be parked: the range is taken out all the same.
func TestARangeIsNotHeldByWhatWaitsForIt(t *testing.T) {
	f := newFixture(t)
	f.opts = bridge.Options{RangeAfter: 10, ParkedKeys: 3}
	seq := newSequence(t)
	f.target("ops", orderedPolicy, func(d targets.Delivery) error { return seq.attempt(d, func() error { return nil }) })
	f.rule("all", "reading", "ops")
	f.start()
	wait := func(parked, ranged int) {
		f.eventually(func() (string, bool) {
			s, err := f.TargetStatus("ops", true)
			f.must(err)
			return fmt.Sprintf("%+v, want %d parked, %d of them ranged", s, parked, ranged), s.Parked == parked && s.Ranged == ranged
		})
	}
	restart := func(keys int) {
		f.stop(time.Second)
		f.opts.ParkedKeys = keys
		f.start()
	}
	f.pause("ops", true)
	f.ordered(0, 3, 7)
	wait(3, 0)
	f.ordered(3, 1, 7) // there are three keys already
	wait(4, 1)
	restart(10)
	f.ordered(4, 3, 7) // behind the little that is in the range
	wait(7, 1)
	restart(1)
	f.pause("ops", false)
	if d := f.balanced().Deliveries[0]; d.Delivered != 7 || seq.count != 7 {
		t.Errorf("%d delivered, account %+v", seq.count, d)
	}
	f.stop(time.Second)
}

// A target may begin to keep order, and cease to, under load: nothing is lost or made twice, and order is kept from then on.
func TestOrderIsSwitchedOnAndOff(t *testing.T) {
	f := newFixture(t)
	f.opts = bridge.Options{LiveQueue: 16, Unsettled: 20 * time.Millisecond, RangeAfter: 20}
	var n atomic.Uint64
	var mu sync.Mutex
	delivered := map[string]int{}
	answer := func(d targets.Delivery) error {
		if n.Add(1)%4 == 0 {
			return targets.StatusError(503, 0)
		}
		mu.Lock()
		defer mu.Unlock()
		delivered[d.Event.ID]++
		return nil
	}
	none := strings.Replace(orderedPolicy, `"key"`, `"none"`, 1)
	f.target("ops", none, answer)
	f.rule("all", "reading", "ops")
	f.start()
	const each, rounds = 150, 8
	for i := range rounds {
		policy := orderedPolicy
		if i%2 == 0 {
			policy = none
		}
		f.target("ops", policy, answer)
		f.ordered(i*each, each, 5)
		f.pause("ops", i%3 == 0)
	}
	f.pause("ops", false)
	if d := f.balanced().Deliveries[0]; d.Delivered != each*rounds {
		t.Errorf("account %+v", d)
	}
	for id, n := range delivered {
		if n != 1 {
			t.Errorf("%s was delivered %d times", id, n)
		}
	}
	seq := newSequence(t)
	f.target("ops", orderedPolicy, func(d targets.Delivery) error {
		return seq.attempt(d, func() error {
			if n.Add(1)%4 == 0 {
				return targets.StatusError(503, 0)
			}
			return nil
		})
	})
	f.ordered(each*rounds, 300, 5)
	f.balanced()
	f.stop(time.Second)
}

// An outage, scaled: an ordered target is down while many events of many keys come, and then back.
func TestGateOrderedOutage(t *testing.T) {
	count := 60_000
	if s := os.Getenv("RIALTO_OUTAGE"); s != "" {
		var err error
		if count, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	f := newFixture(t)
	f.opts.Unsettled = 50 * time.Millisecond
	var up atomic.Bool
	seq := newSequence(t)
	r := f.target("ops", `{"ordering":"key","concurrency":32,"breaker":{"minAttempts":3,"open":"200ms","maxOpen":"200ms"},"retry":{"schedule":["50ms"],"maxAttempts":1000}}`, nil)
	r.forgets = func(d targets.Delivery) error {
		return seq.attempt(d, func() error {
			if !up.Load() {
				return targets.StatusError(503, 0)
			}
			return nil
		})
	}
	f.rule("all", "reading", "ops")
	f.start()
	defer func() { f.stop(time.Second) }()
	const keys = 500
	f.ordered(0, count, keys)
	s := f.parked("ops", count)
	up.Store(true)
	back := time.Now()
	f.eventually(func() (string, bool) {
		s, err := f.TargetStatus("ops", false)
		f.must(err)
		return fmt.Sprintf("%+v", s), s.State == bridge.TargetActive
	})
	f.ordered(count, 1000, keys) // more while it drains
	l := f.balancedWithin(5 * time.Minute)
	took := time.Since(back)
	t.Logf("%d waited, %d in a range; drained in %v, %.0f deliveries/s", count, s.Ranged, took.Round(time.Millisecond), float64(count)/took.Seconds())
	if d := l.Deliveries[0]; d.Delivered != uint64(count)+1000 || seq.count != count+1000 {
		t.Errorf("account %+v, %d delivered", d, seq.count)
	}
}
