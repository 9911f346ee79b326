// SPDX-License-Identifier: Apache-2.0

package region

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
)

// After a cut with a lot waiting, what is fresh is there within a second, what is urgent of the backlog goes before the rest, and the
// rest drains behind.
func TestGateLinkFresh(t *testing.T) {
	const waiting = 100_000
	n, f := newNear(t), newFar(t).start()
	n.region(f.srv.URL, `,"bandwidth":"1MiB"`)
	n.link(everything + `,"urgent":{"type":["alarm"],"source":["/box"]}`)
	n.append(10)
	n.start()
	n.settle()
	f.set(func(f *far) { f.status, f.body = http.StatusServiceUnavailable, "{}" })
	f.cut()
	n.append(waiting)
	var alarms int
	for i := 11; i <= waiting+10; i++ {
		if r := record(i); r.Event.Type == "alarm" && r.Event.Source == "/box" {
			alarms++
		}
	}
	f.set(func(f *far) { f.status = 0 })
	since := len(f.records())
	count := f.count
	until(t, "the line is back", func() bool { f.mu.Lock(); defer f.mu.Unlock(); return f.count > count })
	back := time.Now()
	n.appendThose(3, func(i int) *event.Record {
		r := record(i)
		r.Event.Type = "fresh"
		return r
	})
	fresh := func() (at time.Time) {
		for _, r := range f.records()[since:] {
			if r.rec.Event.Type == "fresh" {
				return r.at
			}
		}
		return at
	}
	until(t, "a fresh event arrives", func() bool { return !fresh().IsZero() })
	took := fresh().Sub(back)
	t.Logf("a fresh event took %v, %d of %d were there", took, len(f.records())-since, waiting)
	if took > time.Second {
		t.Errorf("a fresh event took %v", took)
	}
	if got := len(f.records()) - since; got > waiting/2 {
		t.Errorf("%d of %d are there already: the test says nothing", got, waiting)
	}
	urgent := func() (n int) {
		for _, r := range f.records()[since:] {
			if r.lane == Urgent {
				n++
			}
		}
		return n
	}
	until(t, "all that is urgent arrives", func() bool { return urgent() == alarms })
	rest := len(f.records()) - since - alarms
	t.Logf("%d were urgent, %d others came before the last of them, after %v", alarms, rest, time.Since(back))
	if rest > waiting/20 {
		t.Errorf("%d others came before the last of what is urgent", rest)
	}
	n.region(f.srv.URL, "")
	if a := n.settle().Account; a.Difference != 0 || a.Main.Forwarded+a.Urgent.Forwarded+a.Main.Known+a.Urgent.Known != waiting+13 {
		t.Errorf("account %+v %+v", a, a.Urgent)
	}
}

// What is urgent passes within half a second at 64 KiB a second, whatever waits, and the cap holds.
func TestGateLinkBandwidth(t *testing.T) {
	const rate = 64 << 10
	n, f := newNear(t), newFar(t).start()
	n.region(f.srv.URL, `,"bandwidth":"64KiB"`)
	n.link(everything + `,"urgent":{"type":["now"]}`)
	noise := func(i int) *event.Record { // does not become smaller
		r := record(i)
		r.Event.DataContentType, r.Event.Data = "", make([]byte, 500)
		for j := range r.Event.Data {
			r.Event.Data[j] = byte((i*7919 + j*j*31 + i*j) >> 3)
		}
		return r
	}
	n.appendThose(3000, noise)
	var bytes int
	var from, last time.Time
	f.arrived = func(_ Batch, size int) { // the first pays for those before it
		if now := time.Now(); from.IsZero() {
			from = now
		} else {
			bytes, last = bytes+size+frameHead, now
		}
	}
	n.start()
	for i := range 5 {
		count := len(f.records())
		until(t, "some arrive", func() bool { return len(f.records()) > count })
		began := time.Now()
		n.appendThose(1, func(int) *event.Record {
			r := record(i)
			r.Event.ID, r.Event.Type = fmt.Sprint("now-", i), "now"
			return r
		})
		there := func() bool {
			for _, r := range f.records()[count:] {
				if r.rec.Event.ID == fmt.Sprint("now-", i) {
					return true
				}
			}
			return false
		}
		until(t, "what is urgent arrives", there)
		if took := time.Since(began); took > 500*time.Millisecond {
			t.Errorf("what is urgent took %v", took)
		}
	}
	until(t, "3 s have passed", func() bool { f.mu.Lock(); defer f.mu.Unlock(); return last.Sub(from) > 3*time.Second })
	f.mu.Lock()
	got := float64(bytes) / last.Sub(from).Seconds()
	f.mu.Unlock()
	t.Logf("%.0f bytes a second, the cap is %d", got, rate)
	if got < 0.9*rate || got > 1.1*rate {
		t.Errorf("%.0f bytes a second, the cap is %d", got, rate)
	}
}
