// SPDX-License-Identifier: Apache-2.0

package region

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
)

// A trim that has no time to count everything goes on where the one before ended.
func TestRetentionCountsInRounds(t *testing.T) {
	const events, first = 6000, 5501
	n, f := newNear(t), newFar(t).start()
	var looks int // by one goroutine at a time: nothing else looks at events while the link is paused
	var cancel context.CancelFunc
	n.trim = 1 // one read at a time
	n.view = func(r *event.Record) *event.Record {
		if looks++; looks%1200 == 0 && cancel != nil {
			cancel()
		}
		return r
	}
	n.region(f.srv.URL, `,"paused":true`)
	n.link(everything + `,"urgent":{"type":["alarm"]}`)
	n.append(events)
	n.start()
	until(t, "the link is open", func() bool { return n.status().Account != nil })
	rounds, covered := 0, uint64(0)
	for err := errCounting; err != nil; rounds++ {
		ctx, end := context.WithCancel(t.Context())
		cancel = end
		err = n.links.Trimming(ctx, "default", first)
		end()
		a := n.status().Account
		if now := a.Main.Covered + a.Urgent.Covered; now <= covered {
			t.Fatalf("round %d has counted nothing: %d, %v", rounds, now, err)
		} else {
			covered = now
		}
	}
	if a := n.status().Account; a.Difference != 0 || a.Main.Covered != first-1 || a.Urgent.Covered != first-1 || a.Main.Dropped+a.Urgent.Dropped != first-1 {
		t.Errorf("account %+v, %+v", a.Main, a.Urgent)
	}
	if rounds < 5 || looks > 2*events+rounds*readAhead {
		t.Errorf("%d events were looked at in %d rounds", looks, rounds)
	}
	until(t, "an event tells of it", func() bool { return n.raised(TypeDropped) == 1 })
	n.region(f.srv.URL, "")
	if a := n.settle().Account; a.Difference != 0 || a.Main.Forwarded+a.Urgent.Forwarded != events-first+1 || len(f.records()) != events-first+1 {
		t.Errorf("in the end %+v, %+v", a.Main, a.Urgent)
	}
}

// While a trim has not counted everything the lanes pass over no more than what it has, and begin nothing that it still has to count.
func TestRetentionCountsInFrontOfTheLanes(t *testing.T) {
	const first = 1501
	n := newNear(t)
	n.trim = 1
	n.append(2000)
	def := n.link(everything + `,"urgent":{"type":["alarm"]}`)
	n.defs = nil // nobody runs it
	l := newLink(n.start(), def, nil)
	o, err := l.open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	o.session = &session{o: o}
	for l := range lanes {
		o.session.tracks[l].id = l
		_, o.session.tracks[l].tail = runs(1, nil, nil, nil)
	}
	slices := 0
	for err = o.trim(t.Context(), first); errors.Is(err, errCounting); err = o.trim(t.Context(), first) {
		slices++
		for l := range lanes {
			tr := &o.session.tracks[l]
			if tr.tail.from != o.st.first(l) {
				t.Fatalf("lane %d goes on at %d, counted is what is below %d", l, tr.tail.from, o.st.first(l))
			}
			if r := tr.pick(2000, o.floor, false, true); r != nil && r.from < first {
				t.Fatalf("lane %d begins at %d", l, r.from)
			}
		}
	}
	if err != nil || slices < 4 || o.floor != 0 {
		t.Errorf("%v after %d slices, nothing begins below %d", err, slices, o.floor)
	}
	for l := range lanes {
		if tr := &o.session.tracks[l]; tr.tail.from != first || tr.pick(2000, o.floor, false, true) == nil {
			t.Errorf("lane %d goes on at %d", l, tr.tail.from)
		}
	}
}

// The links of a bus are asked together.
func TestRetentionAsksAllLinks(t *testing.T) {
	n := newNear(t)
	asked := make(chan struct{}, 2)
	both := make(chan struct{})
	go func() {
		<-asked
		<-asked
		close(both)
	}()
	n.view = func(r *event.Record) *event.Record {
		select {
		case asked <- struct{}{}:
		default:
		}
		<-both
		return r
	}
	n.link(everything)
	n.append(1)
	n.start()
	second, err := ParseLink([]byte(`{"name":"second","region":"far",` + everything + `}`))
	if err != nil {
		t.Fatal(err)
	}
	n.links.Set(second)
	until(t, "the links are open", func() bool { return len(n.links.Accounts("default")) == 2 })
	done := make(chan error, 1)
	go func() { done <- n.links.Trimming(t.Context(), "default", 2) }()
	select {
	case <-both:
	case <-time.After(trimWithin / 2):
		t.Error("one link is asked when the other has answered")
		asked <- struct{}{}
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A link that cannot be opened does not keep the log for ever. What goes meanwhile it counts as dropped, and tells of, when it opens.
func TestRetentionGivesUpALinkThatIsShut(t *testing.T) {
	n, f := newNear(t), newFar(t).start()
	n.region(f.srv.URL, `,"paused":true`)
	n.link(everything)
	n.start()
	until(t, "the link is open", func() bool { return n.status().Account != nil })
	n.stop()
	n.appendThose(450, large)
	n.kv.crash()
	n.region(f.srv.URL, "")
	n.start()
	if err := n.links.Trimming(t.Context(), "default", 50); !errors.Is(err, errShut) {
		t.Fatalf("%v", err)
	}
	n.links.grace = time.Nanosecond
	began := time.Now()
	first, err := n.retain(17 << 20)
	if err != nil || first < 100 {
		t.Fatalf("the log begins at %d: %v", first, err)
	}
	if took := time.Since(began); took >= openWithin {
		t.Errorf("retention has waited %v", took)
	}
	n.kv.recover(false)
	a := n.settle().Account
	if a.Main.Dropped != first-1 || a.Main.Forwarded != 450-first+1 || a.Difference != 0 {
		t.Errorf("the log begins at %d: account %+v", first, a)
	}
	until(t, "an event tells of it", func() bool { return n.raised(TypeDropped) > 0 })
	if err := n.links.Trimming(t.Context(), "default", first+1); err != nil {
		t.Errorf("it is open: %v", err)
	}
}

// A link that opens, fails before it can answer, and opens again is as one that is shut; one that lasts, or answers, is not.
func TestRetentionIsNotHeldByALinkThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &link{ls: &Links{grace: openGrace, log: slog.New(slog.DiscardHandler)}, def: &Link{}}
		fails := func(span time.Duration) (gaveUp bool) {
			for began := time.Now(); time.Since(began) < span; {
				l.setOpen(true)
				if l.givenUp(true) {
					t.Fatal("it is open")
				}
				time.Sleep(10 * time.Millisecond)
				l.setOpen(false)
				gaveUp = l.givenUp(true)
				time.Sleep(lastRetry)
			}
			return gaveUp
		}
		if fails(openGrace - time.Second) {
			t.Error("it is given up too soon")
		}
		l.answered()
		if fails(openGrace - time.Second) {
			t.Error("it has answered")
		}
		l.setOpen(true)
		time.Sleep(2 * openWithin)
		l.setOpen(false)
		if l.givenUp(false) || fails(openGrace-time.Second) {
			t.Error("it has lasted")
		}
		if !fails(2*time.Second) || !l.givenUp(false) {
			t.Error("it is never given up")
		}
	})
}
