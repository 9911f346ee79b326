// SPDX-License-Identifier: Apache-2.0

package region

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
)

// large makes events of 64 KiB, so that the log has several blocks.
func large(i int) *event.Record {
	r := record(i)
	r.Event.DataContentType, r.Event.Data = "text/plain", []byte(strings.Repeat(fmt.Sprint("data ", i, " "), 64<<10/8))
	return r
}

// retain trims the log to about some bytes, as the bridge does, and returns what is left.
func (n *near) retain(bytes int64) (first uint64, err error) {
	bus := n.bus("default")
	got, err := bus.Trim(n.tb.Context(), eventlog.TrimPolicy{MaxBytes: bytes, Protect: math.MaxUint64,
		Before: func(first uint64) error { return n.links.Trimming(n.tb.Context(), "default", first) }})
	return got.First, err
}

// What retention takes of a link that is cut is counted by what would have become of it, and written down before it goes.
func TestRetentionIsCounted(t *testing.T) {
	n, f := newNear(t), newFar(t).start()
	f.status, f.body = http.StatusServiceUnavailable, ""
	n.region(f.srv.URL, "")
	n.link(`"pattern":{"source":["/box"]},"start":"earliest","urgent":{"type":["alarm"]}`)
	n.appendThose(450, large)
	n.start()
	until(t, "the link is open", func() bool { return n.status().Account != nil })
	if got := n.links.Needed("default"); got != 1 {
		t.Errorf("needed from %d", got)
	}
	first, err := n.retain(17 << 20)
	if err != nil || first < 100 {
		t.Fatalf("the log begins at %d: %v", first, err)
	}
	var want, alarms, others uint64
	for i := 1; i < int(first); i++ {
		switch r := record(i); {
		case r.Event.Source != "/box":
			others++
		case r.Event.Type == "alarm":
			alarms++
		default:
			want++
		}
	}
	check := func(what string) {
		t.Helper()
		a := n.status().Account
		if a.Main.Dropped != want || a.Urgent.Dropped != alarms || a.Main.Filtered < others || a.Main.Urgent < alarms || a.Difference != 0 {
			t.Errorf("%s: %d, %d urgent and %d others are gone; account %+v %+v", what, want, alarms, others, a, a.Urgent)
		}
		if got := n.links.Needed("default"); got < first {
			t.Errorf("%s: needed from %d", what, got)
		}
	}
	check("after the trim")
	until(t, "an event tells of it", func() bool { return n.raised(TypeDropped) == 1 })
	if err := json.Unmarshal(n.emitted[0].Data, &struct{}{}); err != nil || !strings.Contains(string(n.emitted[0].Data), fmt.Sprintf(`"events":%d`, want+alarms)) {
		t.Errorf("%s says %s", n.emitted[0].Type, n.emitted[0].Data)
	}
	n.crash(false)
	n.start()
	until(t, "the link is open", func() bool { return n.status().Account != nil })
	check("after a crash")
	f.set(func(f *far) { f.status = 0 })
	st := n.settle()
	check("in the end")
	if a := st.Account; a.Main.Forwarded+a.Urgent.Forwarded+want+alarms+a.Main.Filtered != 450 || a.Lost != 0 {
		t.Errorf("account %+v %+v", a, a.Urgent)
	}
	if got := f.records()[0].hop.Position.Seq; got < first {
		t.Errorf("event %d arrived", got)
	}
	// The far side knows what was passed over: another connection has nothing to say.
	count := f.count
	f.cut()
	until(t, "another connection", func() bool { f.mu.Lock(); defer f.mu.Unlock(); return f.count > count })
	n.settle()
	for _, st := range f.known {
		if len(st.done.Main) != 1 || st.done.Main[0].From != 1 || len(st.done.Urgent) != 1 {
			t.Errorf("the far side knows %v", st.done)
		}
	}
}

// Between the count and the trim there is a crash: what was counted as dropped is there, and is not sent.
func TestWhatWasCountedIsNotSent(t *testing.T) {
	for _, connected := range []bool{false, true} {
		n, f := newNear(t), newFar(t).start()
		n.retry = time.Millisecond
		if !connected {
			f.status, f.body = http.StatusServiceUnavailable, ""
		}
		n.region(f.srv.URL, `,"bandwidth":"1KiB"`)
		n.link(everything)
		n.append(2000)
		n.start()
		if connected {
			n.links.most = 0
			until(t, "it sends", func() bool { return len(f.records()) > 0 })
		} else {
			until(t, "the link is open", func() bool { return n.status().Account != nil })
		}
		const first = 1001
		var err error
		until(t, "nothing is under way", func() bool {
			err = n.links.Trimming(t.Context(), "default", first)
			return !errors.Is(err, errUnderWay)
		})
		if err != nil {
			t.Fatal(err)
		}
		sent := len(f.records()) // more than one connection's worth is below
		before := n.status().Account.Main
		if !connected {
			n.crash(false)
			f.set(func(f *far) { f.status = 0 })
			n.region(f.srv.URL, "")
			n.start()
		} else {
			n.region(f.srv.URL, "")
		}
		st := n.settle()
		if a := st.Account.Main; a.Dropped != before.Dropped || a.Dropped == 0 || a.Forwarded+a.Known+a.Dropped != 2000 || st.Account.Difference != 0 {
			t.Errorf("connected %v: account %+v, it was %+v", connected, a, before)
		}
		for _, r := range f.records()[sent:] {
			if seq := r.hop.Position.Seq; seq < first {
				t.Errorf("connected %v: event %d was sent", connected, seq)
			}
		}
		n.stop()
	}
}

// What is under way keeps what retention wants, for a round; then it is given up.
func TestRetentionWaitsForWhatIsUnderWay(t *testing.T) {
	n, f := newNear(t), newFar(t).start()
	hold := make(chan struct{})
	f.before = func(int, Batch) action {
		f.mu.Unlock()
		<-hold
		f.mu.Lock()
		return take
	}
	n.region(f.srv.URL, "")
	n.link(everything)
	n.append(100)
	n.start()
	until(t, "all is under way", func() bool { return n.status().InFlight == 100 })
	for range 2 {
		if err := n.links.Trimming(t.Context(), "default", 50); !errors.Is(err, errUnderWay) || !strings.Contains(err.Error(), "link up: ") {
			t.Errorf("%v", err)
		}
	}
	if err := n.links.Trimming(t.Context(), "other", 50); err != nil {
		t.Errorf("another bus: %v", err)
	}
	close(hold)
	n.settle()
	if err := n.links.Trimming(t.Context(), "default", 50); err != nil {
		t.Error(err)
	}
	if a := n.status().Account; a.Main.Forwarded != 100 || a.Main.Dropped != 0 {
		t.Errorf("account %+v", a)
	}
}

// A count that cannot be written keeps everything, and is not done.
func TestRetentionWaitsForTheBucket(t *testing.T) {
	n := newNear(t)
	n.link(everything)
	n.append(100)
	n.start()
	until(t, "the link is open", func() bool { return n.status().Account != nil })
	n.kv.crash()
	if err := n.links.Trimming(t.Context(), "default", 50); err == nil {
		t.Error("what cannot be written is dropped")
	}
	if a := n.status().Account; a.Main.Covered != 0 {
		t.Errorf("account %+v", a)
	}
	n.kv.recover(false)
	if err := n.links.Trimming(t.Context(), "default", 50); err != nil {
		t.Error(err)
	}
	if a := n.status().Account; a.Main.Dropped != 49 {
		t.Errorf("account %+v", a)
	}
	until(t, "an event tells of it", func() bool { return n.raised(TypeDropped) == 1 })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	n.stop()
	n.start()
	if err := n.links.Trimming(ctx, "default", 60); err == nil && n.status().Account.Main.Dropped != 59 {
		t.Error("nobody was asked")
	}
}

// The alarm is raised once, and again after the link had caught up.
func TestBehind(t *testing.T) {
	t.Parallel()
	n, f := newNear(t), newFar(t).start()
	f.status, f.body = http.StatusServiceUnavailable, ""
	n.most = 10 * time.Millisecond
	n.maxAge = time.Hour
	old := func(i int) *event.Record {
		r := record(i)
		r.Received = time.Now().Add(-50 * time.Minute)
		return r
	}
	n.region(f.srv.URL, "")
	n.link(everything)
	n.appendThose(10, old)
	n.start()
	until(t, "the alarm", func() bool { return n.raised(TypeBehind) == 1 })
	n.crash(false)
	n.start()
	f.set(func(f *far) { f.status = 0 })
	n.settle()
	until(t, "the alarm is over", func() bool { s := n.links.lookup("up").snap.Load(); return !s.st.Behind })
	if n.raised(TypeBehind) != 1 {
		t.Errorf("raised %d times", n.raised(TypeBehind))
	}
	f.set(func(f *far) { f.status = http.StatusServiceUnavailable })
	f.cut()
	n.appendThose(10, old)
	until(t, "the alarm", func() bool { return n.raised(TypeBehind) == 2 })
}

// The alarm goes to the bus default where the link's own bus takes nothing, and is raised once more when that does not either.
func TestBehindIsHeard(t *testing.T) {
	t.Parallel()
	n := newNear(t)
	n.most, n.maxAge, n.reads = 10*time.Millisecond, time.Hour, "second"
	n.full = map[string]bool{"second": true, "default": true}
	n.link(everything + `,"bus":"second"`)
	n.appendThose(10, func(i int) *event.Record {
		r := record(i)
		r.Received = time.Now().Add(-50 * time.Minute)
		return r
	})
	n.start()
	until(t, "nobody takes it", func() bool { n.mu.Lock(); defer n.mu.Unlock(); return n.denied >= 2 })
	n.mu.Lock()
	n.full["default"] = false
	n.mu.Unlock()
	until(t, "the alarm", func() bool { return n.raised(TypeBehind) == 1 })
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.on[0] != "default" || !strings.Contains(string(n.emitted[0].Data), `"bus":"second"`) {
		t.Errorf("on bus %s stands %s", n.on[0], n.emitted[0].Data)
	}
}

// A log that was restored is not taken for the one that was read.
func TestAnotherLogIsRecognised(t *testing.T) {
	n, f := newNear(t), newFar(t).start()
	n.region(f.srv.URL, "")
	n.link(everything)
	n.append(100)
	copied := t.TempDir()
	n.closeLog()
	if err := os.CopyFS(filepath.Join(copied, "data"), os.DirFS(n.dir)); err != nil {
		t.Fatal(err)
	}
	n.open()
	n.start()
	n.append(50)
	n.settle()
	n.stop()
	n.closeLog()
	n.dir = filepath.Join(copied, "data")
	n.open()
	n.start()
	says := func(what string) {
		t.Helper()
		until(t, what, func() bool {
			st := n.status()
			return st.State == Failing && st.Error != nil && strings.Contains(st.Error.Message, what)
		})
	}
	says("it ends at 100, the link has read up to 150")
	n.n = 1000
	n.append(60)
	n.stop()
	n.start()
	says("another event stands at 150")
	if err := n.links.Trimming(t.Context(), "default", 50); err != nil {
		t.Errorf("retention waits: %v", err)
	}
	if got := n.links.Needed("default"); got != 0 {
		t.Errorf("needed from %d", got)
	}
	if len(f.records()) != 150 {
		t.Errorf("%d events arrived", len(f.records()))
	}
	if err := n.links.Reset(t.Context(), "up", "nonsense"); err == nil {
		t.Error("reset to nonsense")
	}
	if err := n.links.Reset(t.Context(), "no", ""); err == nil {
		t.Error("reset of nothing")
	}
	epoch := n.status().Epoch
	if err := n.links.Reset(t.Context(), "up", "latest"); err != nil {
		t.Fatal(err)
	}
	until(t, "it runs", func() bool { return n.status().State == Running })
	n.append(5)
	st := n.settle()
	if st.Epoch == epoch || st.Account.Main.Forwarded != 5 || st.Account.Main.From != 161 || len(f.records()) != 155 {
		t.Errorf("status %+v, account %+v, %d events", st, st.Account, len(f.records()))
	}
}
