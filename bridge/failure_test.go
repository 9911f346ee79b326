// SPDX-License-Identifier: Apache-2.0

package bridge_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/bridge"
	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/targets"
)

func (f *fixture) setBus() {
	f.t.Helper()
	doc, err := bridge.ParseBus([]byte(`{"kind":"Bus","name":"default"}`))
	f.must(err)
	f.must(f.SetBus(context.Background(), doc))
	f.must(f.SetRules("default", f.rev, f.rules))
}

// The target is deleted between an attempt's failure and the record that parks it: it is cancelled all the same.
func TestATargetIsDeletedWhileItsDeliveryIsParked(t *testing.T) {
	f := newFixture(t)
	failed, deleted := make(chan struct{}), make(chan struct{})
	f.opts.Rand = func() float64 {
		close(failed)
		<-deleted
		return 0.5
	}
	f.target("ops", `{"retry":{"schedule":["1h"]}}`, func(targets.Delivery) error { return targets.StatusError(503, 0) })
	f.rule("all", "reading", "ops")
	f.start()
	defer f.stop(time.Second)
	f.send("reading", "a")
	<-failed
	f.RemoveTarget("ops")
	delete(f.targets, "ops")
	close(deleted)
	if d := f.journey("a", bridge.StateCancelled).Journey.Deliveries[0]; d.Reason != "target_deleted" {
		t.Errorf("delivery %+v", d)
	}
	f.balanced()
}

// A target that was deleted with an attempt under way does not hold up the floor, and with it the router.
func TestADeletedTargetHoldsUpNothing(t *testing.T) {
	f := newFixture(t)
	f.opts.Window = 16
	f.target("hung", `{}`, func(targets.Delivery) error { return errHang })
	ops := f.target("ops", `{}`, nil)
	f.rule("all", "reading", "hung", "ops")
	f.start()
	defer f.stop(20 * time.Millisecond)
	f.send("reading", "e0")
	f.targets["hung"].attempts(t, 1)
	f.RemoveTarget("hung")
	delete(f.targets, "hung")
	for i := range 100 {
		f.send("reading", fmt.Sprint("more", i))
	}
	ops.attempts(t, 101)
}

// A target whose definition cannot be used for now keeps what it is owed.
func TestAHeldTargetKeepsWhatItIsOwed(t *testing.T) {
	f := newFixture(t)
	f.opts.Unsettled = 20 * time.Millisecond
	f.rule("all", "reading", "ops")
	ops := f.target("ops", quick, func(targets.Delivery) error { return targets.StatusError(503, 0) })
	f.start()
	f.send("reading", "before")
	ops.attempts(t, 1)
	f.stop(time.Second)

	delete(f.targets, "ops")
	f.held = ops.def
	f.start()
	defer f.stop(time.Second)
	f.send("reading", "during")
	f.eventually(func() (string, bool) {
		l, err := f.Ledger(context.Background(), bridge.LedgerQuery{Bus: "default"})
		f.must(err)
		return fmt.Sprintf("%+v, want 2 parked", l.Deliveries), len(l.Deliveries) == 1 && l.Deliveries[0].Parked == 2
	})
	f.target("ops", quick, nil)
	f.must(f.HoldTarget(ops.def)) // changes nothing
	f.journey("before", bridge.StateDelivered)
	f.journey("during", bridge.StateDelivered)
	f.balanced()
}

// A bus is removed with one delivery under way and two behind it, and comes back.
func TestABusIsRemovedAndComesBack(t *testing.T) {
	f := newFixture(t)
	gate := make(chan struct{})
	ops := f.target("ops", `{"concurrency":1}`, func(targets.Delivery) error { <-gate; return nil })
	f.rule("all", "reading", "ops")
	f.start()
	defer f.stop(time.Second)
	f.send("reading", "a", "b", "c")
	ops.attempts(t, 1)
	removed := make(chan error)
	go func() { removed <- f.RemoveBus("default") }()
	f.eventually(func() (string, bool) {
		_, err := f.Event(context.Background(), "default", "a", "")
		return "the bus is still there", fault.KindOf(err) == fault.NotFound
	})
	select {
	case <-removed:
		t.Error("removed with an attempt under way")
	default:
	}
	close(gate)
	f.must(<-removed)
	if n := len(ops.attempts(t, 1)); n > 2 { // one more may have begun before the bus was gone from the lane
		t.Errorf("%d attempts after the bus was removed", n)
	}
	f.setBus()
	if l := f.balanced(); l.Deliveries[0].Delivered != 3 {
		t.Errorf("account %+v", l)
	}
	if n := len(ops.attempts(t, 3)); n != 3 {
		t.Errorf("%d attempts, want 3", n)
	}
}

func TestABusThatCannotBeOpenedLeavesNothingBehind(t *testing.T) {
	f := newFixture(t).start()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := f.SetBus(ctx, &bridge.BusDoc{Name: "other"}); err == nil {
		t.Error("opened with a context that has ended")
	}
	var wg sync.WaitGroup // several at once open it once
	for range 4 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			if err := f.SetBus(context.Background(), &bridge.BusDoc{Name: "third"}); err != nil {
				t.Error(err)
			}
		}()
	}
	wg.Wait()
	f.stop(time.Second)
}

// A target that says it was interrupted, when nobody has interrupted it, has failed; it is not tried for ever.
func TestAnInterruptionThatIsNotOursCounts(t *testing.T) {
	f := newFixture(t).start()
	defer f.stop(time.Second)
	ops := f.target("ops", `{"retry":{"schedule":["1ms"],"maxAttempts":3}}`, func(targets.Delivery) error { return context.Canceled })
	f.rule("all", "reading", "ops")
	f.send("reading", "a")
	if d := f.journey("a", bridge.StateDead).Journey.Deliveries[0]; len(d.Attempts) != 3 || d.Reason != "internal" {
		t.Errorf("delivery %+v", d)
	}
	if n := len(ops.attempts(t, 3)); n != 3 {
		t.Errorf("%d attempts, want 3", n)
	}
}

// The attributes of an event may leave no room for a dead letter's story beside them.
func TestAnEventWithLargeAttributesCanDie(t *testing.T) {
	f := newFixture(t).start()
	defer f.stop(time.Second)
	f.target("ops", quick, func(targets.Delivery) error { return targets.StatusError(400, 0) })
	f.rule("all", "reading", "ops")
	var sent, bare int
	for size := 12_000; ; size += 20 { // until the log takes no more
		rec := &event.Record{Event: event.Event{ID: fmt.Sprint("large", size), Source: "/test", Type: "reading"}}
		for n := range 5 {
			rec.Event.Extensions = append(rec.Event.Extensions, event.Attribute{Name: fmt.Sprint("ext", n), Value: strings.Repeat("x", size)})
		}
		_, err := f.Ingest(context.Background(), "default", []*event.Record{rec})
		if fault.KindOf(err) == fault.TooLarge {
			break
		}
		f.must(err)
		sent++
		f.journey(rec.Event.ID, bridge.StateDead)
	}
	page, err := f.DeadLetters(context.Background(), bridge.DeadQuery{})
	f.must(err)
	for _, dl := range page.Items {
		if dl.Event.Extensions == nil {
			bare++
		}
		if dl.Status != 400 {
			t.Errorf("dead letter %+v", dl)
		}
	}
	if len(page.Items) != sent || bare == 0 || bare == sent {
		t.Errorf("%d sent, %d dead letters, %d of them without extensions", sent, len(page.Items), bare)
	}
}

// One event may owe more deliveries than a message of JOURNEY can name, and rules may be large.
func TestOneEventOwesThousandsOfDeliveries(t *testing.T) {
	f := newFixture(t)
	f.opts.LiveQueue = 10
	const pad = "-a-name-that-is-as-long-as-a-name-may-be-and-not-longer"
	var names []string
	for i := range 100 {
		name := fmt.Sprintf("t%05d%s", i, pad)
		names = append(names, name)
		f.target(name, `{}`, nil)
	}
	for i := range 21 {
		f.rule(fmt.Sprintf("r%05d%s", i, pad), "reading", names...)
	}
	f.start()
	f.send("reading", "a")
	check := func() {
		t.Helper()
		if n := len(f.journey("a", bridge.StateDelivered).Journey.Deliveries); n != 2100 {
			t.Errorf("%d deliveries, want 2100", n)
		}
		if l := f.balanced(); len(l.Deliveries) != 2100 || l.Events.Matched != 1 {
			t.Errorf("%d in the account, %+v", len(l.Deliveries), l.Events)
		}
	}
	check()
	f.stop(time.Second)
	f.must(os.RemoveAll(f.views()))
	f.start()
	defer f.stop(time.Second)
	check()
}

// Damage takes a stream, and the views, or JOURNEY, know what was in it.
func TestDamageIsAccountedFor(t *testing.T) {
	for _, stream := range []string{"EV_default", "JOURNEY_default", "DEAD"} {
		for _, views := range []string{"kept", "deleted"} {
			if stream == "DEAD" && views == "deleted" {
				continue // then JOURNEY alone names what was there
			}
			t.Run(stream+", views "+views, func(t *testing.T) {
				f := newFixture(t)
				f.target("ops", quick, func(d targets.Delivery) error {
					if d.Event.ID == "bad" {
						return targets.StatusError(400, 0)
					}
					return nil
				})
				f.rule("all", "reading", "ops")
				f.start()
				f.send("reading", "a", "bad", "c")
				f.send("other", "d")
				f.balanced()
				f.stop(time.Second)
				f.must(os.RemoveAll(filepath.Join(f.dir, "events", "jetstream", "$G", "streams", stream)))
				f.must(os.RemoveAll(filepath.Join(f.dir, "marks", stream)))
				if views == "deleted" {
					f.must(os.RemoveAll(f.views()))
				}
				f.start()
				got := f.send("reading", "e")
				if got[0].Pos.Seq != 5 {
					t.Errorf("the next event is at %v, want 5", got[0].Pos)
				}
				f.journey("e", bridge.StateDelivered)
				if l := f.balanced(); l.Events.Accepted != 5 {
					t.Errorf("account %+v", l)
				}
				f.send("reading", "e2")
				f.balanced()
				f.stop(time.Second)
				f.must(os.RemoveAll(f.views()))
				f.start()
				defer f.stop(time.Second)
				f.balanced()
				if page, err := f.DeadLetters(context.Background(), bridge.DeadQuery{}); err != nil {
					t.Errorf("dead letters: %+v, %v", page, err)
				}
			})
		}
	}
}

// The disk does not answer: intake, routing and delivery stand still, and a stop keeps to its time.
func TestAStopIsInTimeWhenTheDiskHangs(t *testing.T) {
	f := newFixture(t)
	var hold atomic.Pointer[chan struct{}]
	f.logOpts = eventlog.Options{Durability: eventlog.Fsync, Sync: func(file *os.File) error {
		if ch := hold.Load(); ch != nil {
			<-*ch
		}
		return file.Sync()
	}}
	attempted := make(chan struct{}, 10)
	gate := make(chan struct{})
	f.target("ops", quick, func(targets.Delivery) error { attempted <- struct{}{}; <-gate; return nil })
	f.target("hung", quick, func(targets.Delivery) error { return errHang })
	f.rule("all", "reading", "ops", "hung")
	f.start()
	f.send("reading", "a")
	<-attempted
	ch := make(chan struct{})
	hold.Store(&ch)
	close(gate)
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	began := time.Now()
	err := f.Close(ctx)
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("Close took %v", took)
	}
	if err == nil {
		t.Error("Close says that all was written")
	}
	hold.Store(nil)
	close(ch)
	f.must(f.journal.Close())
	f.must(f.log.Close(context.Background()))

	f.logOpts = eventlog.Options{}
	f.Bridge = nil
	f.target("hung", quick, nil)
	f.start()
	defer f.stop(time.Second)
	f.journey("a", bridge.StateDelivered)
	f.balanced()
}

// A failed fsync closes the log: the bridge says so, delivers nothing that it could not write down, and stops in time.
func TestALogThatHasFailed(t *testing.T) {
	f := newFixture(t)
	var broken atomic.Bool
	f.logOpts = eventlog.Options{Durability: eventlog.Fsync, Sync: func(file *os.File) error {
		if broken.Load() {
			return errors.New("input/output error")
		}
		return file.Sync()
	}}
	f.target("ops", quick, nil)
	f.rule("all", "reading", "ops")
	f.start()
	f.send("reading", "a")
	f.journey("a", bridge.StateDelivered)
	broken.Store(true)
	_, err := f.Ingest(context.Background(), "default", []*event.Record{{Event: event.Event{ID: "b", Source: "/test", Type: "reading"}}})
	if fault.KindOf(err) != fault.Unavailable {
		t.Errorf("Ingest = %v, want Unavailable", err)
	}
	if c := f.Checks()[0]; c.Name != "log" || c.OK {
		t.Errorf("check %+v", c)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if err := errors.Join(f.Close(ctx), f.Close(ctx)); err != nil && fault.KindOf(err) != fault.Unavailable {
		t.Errorf("Close = %v", err)
	}
	f.must(f.journal.Close())
	if err := f.log.Close(context.Background()); err != nil {
		t.Logf("the log says: %v", err)
	}
}

// Sources that count from 1 share their ids: each finds its own.
func TestManyEventsWithOneID(t *testing.T) {
	f := newFixture(t).start()
	defer f.stop(time.Second)
	var recs []*event.Record
	for i := range 200 {
		recs = append(recs, &event.Record{Event: event.Event{ID: "1", Source: fmt.Sprint("/device/", i), Type: "reading"}})
	}
	_, err := f.Ingest(context.Background(), "default", recs)
	f.must(err)
	f.balanced()
	for _, i := range []int{0, 100, 199} {
		found, err := f.Event(context.Background(), "default", "1", fmt.Sprint("/device/", i))
		if err != nil || found.Position.Seq != uint64(i+1) {
			t.Errorf("of device %d: %+v, %v", i, found, err)
		}
	}
	found, err := f.Event(context.Background(), "default", "1", "")
	if err != nil || found.Position.Seq != 200 || len(found.Others) == 0 || found.Others[0].Seq != 199 {
		t.Errorf("without a source: %+v, %v", found, err)
	}
}
