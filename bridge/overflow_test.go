// SPDX-License-Identifier: Apache-2.0

package bridge_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/bridge"
	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/targets"
)

// followers is a link that has read a bus up to somewhere.
type followers struct {
	needed atomic.Uint64

	mu    sync.Mutex // guards all below
	keep  error      // what Trimming answers
	asked []uint64   // what it was told
}

func (f *followers) Needed(string) uint64 { return f.needed.Load() }

func (f *followers) Trimming(_ context.Context, _ string, first uint64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = append(f.asked, first)
	return f.keep
}

func (f *followers) told() []uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.asked)
}

// megabyte publishes an event of about a MiB.
func (f *fixture) megabyte(typ string) error {
	f.t.Helper()
	_, err := f.Ingest(context.Background(), "default", []*event.Record{{Event: event.Event{Source: "/test", Type: typ, Data: make([]byte, 1<<20-512)}}})
	return err
}

// fill publishes events of a MiB until one is refused, and returns how many were taken and the refusal.
func (f *fixture) fill(typ string) (n int, err error) {
	f.t.Helper()
	for ; n < 200; n++ {
		if err := f.megabyte(typ); err != nil {
			return n, err
		}
	}
	f.t.Fatalf("%d events were taken and none was refused", n)
	return n, nil
}

func (f *fixture) busStatus() bridge.BusStatus {
	f.t.Helper()
	s, err := f.BusStatus(context.Background(), "default", false)
	f.must(err)
	return s
}

// roomAgain waits until the bus takes everything again, without anything being published.
func (f *fixture) roomAgain() {
	f.t.Helper()
	f.within(30*time.Second, func() (string, bool) { // a trim may take no more than a tenth of the time
		s := f.busStatus()
		return fmt.Sprintf("bus %+v", s), s.State == bridge.BusRoom && s.Bytes <= 25<<20
	})
}

const newest = `{"kind":"Bus","name":"default","retention":{"maxAge":"1m","maxBytes":"32MiB","overflow":"newest"}}`

// A bus that keeps what it has refuses when it is full of what a link has not read, and takes events again by itself when the
// link has come on; what the link has still to read is there, however old it is.
func TestAFullBusKeepsWhatAFollowerNeeds(t *testing.T) {
	f := newFixture(t)
	f.busDoc = newest
	clock := f.useClock()
	link := &followers{}
	link.needed.Store(1)
	f.start()
	f.SetFollowers(link)
	n, err := f.fill("reading")
	if fault.KindOf(err) != fault.Full || !strings.Contains(err.Error(), `bus "default"`) || !strings.Contains(err.Error(), "32MiB") || !strings.Contains(err.Error(), "newest") {
		t.Errorf("refused with %v", err)
	}
	if n < 30 || n > 32 {
		t.Errorf("%d events of a MiB were taken", n)
	}
	clock.pass(time.Hour)
	f.must(f.Trim(context.Background(), "default"))
	s := f.busStatus()
	if s.State != bridge.BusFull || s.Events != uint64(n) || s.Refused["overflow"] != 1 || s.First.Position != "EV_default:1" ||
		s.Last.Position != fmt.Sprint("EV_default:", n) || s.First.Time.IsZero() || s.MaxBytes != 32<<20 || len(link.told()) > 0 {
		t.Errorf("status %+v, follower was told %v", s, link.told())
	}
	f.stop(time.Second)
	f.opts.HoldRetention = true
	f.start()
	if err := f.megabyte("reading"); fault.KindOf(err) != fault.Full {
		t.Errorf("after a restart: %v", err)
	}
	f.must(f.Trim(context.Background(), "default")) // nobody has said yet who needs what
	if s := f.busStatus(); s.Events != uint64(n) {
		t.Errorf("status %+v", s)
	}
	f.SetFollowers(link)
	f.StartRetention()
	f.must(f.Trim(context.Background(), "default"))
	if first, _, _, _, err := f.Streams("default"); err != nil || first != 1 {
		t.Errorf("the log begins at %d after a restart, %v", first, err)
	}
	link.needed.Store(uint64(n))
	f.roomAgain()
	f.must(f.megabyte("reading"))
	if first, _, _, _, err := f.Streams("default"); err != nil || first == 1 || first > uint64(n) {
		t.Errorf("the log begins at %d, the link needs %d, %v", first, n, err)
	}
	if _, maxBytes, err := f.Retention("default"); err != nil || maxBytes != 32<<20 {
		t.Errorf("retention of %d bytes, %v", maxBytes, err)
	}
	link.needed.Store(0)
	for range 20 { // nobody needs anything: nobody is refused
		f.must(f.megabyte("reading"))
		f.balanced()
	}
	f.stop(time.Second)
}

// A bus that does not refuse is brought back to its limit soon after it has grown above it, not when retention comes by anyway.
func TestABusOfLimitedSizeIsTrimmedAsItGrows(t *testing.T) {
	f := newFixture(t)
	f.busDoc = `{"kind":"Bus","name":"default","retention":{"maxBytes":"64MiB"}}`
	f.start()
	for range 90 {
		f.must(f.megabyte("reading"))
	}
	f.within(5*time.Second, func() (string, bool) {
		s := f.busStatus()
		return fmt.Sprintf("bus %+v", s), s.Bytes <= 72<<20
	})
	f.balanced()
	f.stop(time.Second)
}

// What a rule owes stays as well: not one delivery is lost on a bus that was full.
func TestAFullBusKeepsWhatIsOwed(t *testing.T) {
	f := newFixture(t)
	f.busDoc = newest
	var up atomic.Bool
	ops := f.target("ops", `{"retry":{"schedule":["100ms"],"maxAttempts":1000},"breaker":{"enabled":false}}`, func(targets.Delivery) error {
		if up.Load() {
			return nil
		}
		return targets.StatusError(503, 0)
	})
	ops.forgets = func(d targets.Delivery) error { return ops.answer(d) }
	f.rule("all", "reading", "ops")
	f.start()
	n, err := f.fill("reading")
	if fault.KindOf(err) != fault.Full {
		t.Errorf("refused with %v", err)
	}
	up.Store(true)
	f.roomAgain()
	f.must(f.megabyte("reading"))
	l := f.balanced()
	if l.Events.Accepted != uint64(n)+1 || len(l.Deliveries) != 1 || l.Deliveries[0].Delivered != uint64(n)+1 {
		t.Errorf("%d events were taken: %+v, %+v", n+1, l.Events, l.Deliveries)
	}
	f.stop(time.Second)
}

// The last part of a bus is for events that match its priority.
func TestAnAlmostFullBusTakesWhatHasPriority(t *testing.T) {
	f := newFixture(t)
	f.busDoc = `{"kind":"Bus","name":"default","retention":{"maxBytes":"64MiB","overflow":"priority","priority":{"type":["alarm"],"level":[{"prefix":"high"}]},"reserve":"50%"}}`
	link := &followers{}
	link.needed.Store(1)
	f.start()
	f.SetFollowers(link)
	alarm := func(level string) error {
		_, err := f.Ingest(context.Background(), "default", []*event.Record{{Event: event.Event{Source: "/test", Type: "alarm",
			Extensions: []event.Attribute{{Name: "level", Value: level}}, Data: make([]byte, 1<<20-600)}}})
		return err
	}
	f.must(alarm("low"))
	n, err := f.fill("reading")
	if n < 29 || n > 31 || fault.KindOf(err) != fault.Full || !strings.Contains(err.Error(), "50%") {
		t.Errorf("%d readings, then %v", n, err)
	}
	if s := f.busStatus(); s.State != bridge.BusPriority || s.Refused["reserve"] != 1 {
		t.Errorf("status %+v", s)
	}
	if err := alarm("low"); fault.KindOf(err) != fault.Full {
		t.Errorf("an alarm of no importance: %v", err)
	}
	important := 0
	for ; err == nil || important == 0; important++ {
		if err = alarm("high/7"); important > 100 {
			t.Fatal("the bus is never full")
		}
	}
	if s := f.busStatus(); fault.KindOf(err) != fault.Full || important < 30 || s.State != bridge.BusFull || s.Refused["reserve"] != 2 || s.Refused["overflow"] != 1 {
		t.Errorf("%d important alarms, then %v: %+v", important, err, s)
	}
	link.needed.Store(0)
	f.roomAgain()
	f.must(f.megabyte("reading"))
	f.stop(time.Second)
}

// A bus that makes room takes the oldest events, which a link has not read, once the link has counted them.
func TestABusThatMakesRoomTellsItsFollowers(t *testing.T) {
	f := newFixture(t)
	f.busDoc = `{"kind":"Bus","name":"default","retention":{"maxBytes":"16MiB"}}`
	link := &followers{keep: errors.New("on its way")}
	link.needed.Store(1)
	f.start()
	f.SetFollowers(link)
	for range 40 {
		f.must(f.megabyte("reading"))
	}
	f.balanced()
	f.must(f.Trim(context.Background(), "default"))
	if first, _, _, _, err := f.Streams("default"); err != nil || first != 1 || len(link.told()) == 0 {
		t.Errorf("the log begins at %d, %v; the link was told of %v", first, err, link.told())
	}
	link.mu.Lock()
	link.keep = nil
	link.mu.Unlock()
	f.must(f.Trim(context.Background(), "default"))
	f.within(5*time.Second, func() (string, bool) {
		first, _, _, _, err := f.Streams("default")
		told := link.told()
		return fmt.Sprintf("the log begins at %d, %v; the link was told of %v", first, err, told), err == nil && first > 1 && told[len(told)-1] == first
	})
	if s := f.busStatus(); s.State != bridge.BusRoom || s.Bytes > 17<<20 {
		t.Errorf("status %+v", s)
	}
	f.stop(time.Second)
}

// Many producers at once do not take more than there is, nor leave anything of it behind.
func TestManyProducersShareTheRoom(t *testing.T) {
	f := newFixture(t)
	f.busDoc = newest
	link := &followers{}
	link.needed.Store(1)
	f.start()
	f.SetFollowers(link)
	var taken atomic.Uint64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 100 {
				_, err := f.Ingest(context.Background(), "default", []*event.Record{{Event: event.Event{Source: "/test", Type: "reading", Data: make([]byte, 100<<10)}}})
				switch {
				case err == nil:
					taken.Add(1)
				case fault.KindOf(err) != fault.Full:
					t.Errorf("refused with %v", err)
				}
			}
		})
	}
	wg.Wait()
	s := f.busStatus()
	if s.Events != taken.Load() || s.Refused["overflow"] != 800-taken.Load() || s.Bytes > 33<<20 || s.Bytes < 31<<20 || s.State != bridge.BusFull {
		t.Errorf("%d events were taken: %+v", taken.Load(), s)
	}
	link.needed.Store(0)
	f.roomAgain()
	if s := f.busStatus(); s.Bytes > 25<<20 {
		t.Errorf("status %+v", s)
	}
	f.stop(time.Second)
}
