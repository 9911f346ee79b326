// SPDX-License-Identifier: Apache-2.0

package region

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
)

// All goes over, as it was, and in order.
func TestLinkForwards(t *testing.T) {
	n, f := newNear(t), newFar(t).start()
	n.region(f.srv.URL, "")
	n.link(everything + `,"ordering":"log"`)
	n.append(300)
	n.start()
	n.append(300)
	st := n.settle()
	if a := st.Account; a.Main.Forwarded != 600 || a.Difference != 0 || a.Main.Covered != 600 || st.Instance != "far" {
		t.Errorf("account %+v of %+v", a, st)
	}
	bus := n.bus("default")
	for i, r := range f.records() {
		e, err := bus.Get(t.Context(), uint64(i+1))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(e.Record, r.rec); diff != "" || r.hop.Position.Seq != e.Seq {
			t.Fatalf("event %d differs (-near +far):\n%s", i+1, diff)
		}
	}
	if len(f.records()) != 600 {
		t.Errorf("%d events arrived", len(f.records()))
	}
}

// What the pattern takes is transformed; where that fails, and what the far side refuses, is counted and told.
func TestLinkShapesAndCounts(t *testing.T) {
	n, f := newNear(t), newFar(t).start()
	f.refuse = func(r *event.Record) bool { return strings.Contains(string(r.Event.Data), `25`) }
	n.region(f.srv.URL, "")
	n.link(`"pattern":{"source":["/box"]},"when":"data.n > 10","transform":{"path":"$.data.n"},"start":"earliest"`)
	n.appendThose(30, func(i int) *event.Record {
		r := record(i)
		switch i {
		case 12:
			r.Event.Data = []byte(`{"n":50}`)
		case 13:
			r.Hops = []event.Hop{{Instance: "far", Position: event.Position{Stream: "EV_a", Seq: 9}}}
		case 14:
			r.Event.Source, r.Event.Data = "/box", []byte(`{"n":25}`)
		case 16:
			r.MQTT = &event.Origin{Topic: "a/b", Client: "c", Version: 5, Properties: []byte{1, 1}}
		}
		return r
	})
	n.link(`"pattern":{"source":["/box"]},"when":"data.n > 10","transform":{"path":"$.data.n"},"start":"earliest"`)
	n.start()
	st := n.settle()
	var got []string
	for _, r := range f.records() {
		got = append(got, string(r.rec.Event.Data))
		if r.hop.Position.Seq == 16 && (r.rec.MQTT == nil || r.rec.MQTT.Topic != "a/b" || r.rec.MQTT.Properties != nil) {
			t.Errorf("published %+v", r.rec.MQTT)
		}
	}
	if s := strings.Join(got, " "); s != "11 50 16 17 18 19 21 22 23 24 26 27 28 29" {
		t.Errorf("%s arrived", s)
	}
	a := st.Account.Main
	if a.Forwarded != 14 || a.Refused != 1 || a.Looped != 1 || a.Filtered != 14 || st.Account.Difference != 0 {
		t.Errorf("account %+v", a)
	}
	until(t, "it is told", func() bool { return n.raised(TypeRefused) == 1 })
	n.link(`"pattern":{"source":["/box"]},"transform":{"path":"$.data.missing"}`)
	n.append(10)
	if a := n.settle().Account; a.Main.Failed != 8 || a.Difference != 0 || len(f.records()) != 14 {
		t.Errorf("account %+v", a)
	}
	if n.raised(TypeRefused) > 2 {
		t.Errorf("told %d times", n.raised(TypeRefused))
	}
}

// A new link begins where its definition says, a reset one where the reset says, and one that was removed knows nothing any more.
func TestLinkBegins(t *testing.T) {
	n, f := newNear(t), newFar(t).start()
	began := time.Now().Add(-time.Hour)
	n.region(f.srv.URL, "")
	n.appendThose(1000, func(i int) *event.Record {
		r := record(i)
		r.Received = began.Add(time.Duration(i) * time.Second)
		return r
	})
	n.start()
	from := func(start string, want uint64) {
		t.Helper()
		n.link(`"pattern":{"source":["/box"]},"start":"` + start + `"`)
		if a := n.settle().Account; a.Main.From != want {
			t.Errorf("%s begins at %d, want %d", start, a.Main.From, want)
		}
		n.links.Remove("up")
		until(t, "it is forgotten", func() bool { n.kv.mu.Lock(); defer n.kv.mu.Unlock(); return len(n.kv.values) == 0 })
	}
	from("latest", 1001)
	from("earliest", 1)
	from(began.Add(500*time.Second).Format(time.RFC3339Nano), 500)
	from(began.Add(500500*time.Millisecond).Format(time.RFC3339Nano), 501)
	from("2001-01-01T00:00:00Z", 1)
	from("2101-01-01T00:00:00Z", 1001)
	n.link(`"pattern":{"source":["/box"]}`)
	first := n.settle().Epoch
	sent := len(f.records())
	for _, c := range []struct {
		start string
		from  uint64
	}{{"", 1001}, {"earliest", 1}, {began.Add(990 * time.Second).Format(time.RFC3339), 990}} {
		if err := n.links.Reset(t.Context(), "up", c.start); err != nil {
			t.Fatal(err)
		}
		until(t, "it begins anew", func() bool { return n.status().Epoch != first })
		st := n.settle()
		if st.Account.Main.From > c.from || c.from-st.Account.Main.From > 1 {
			t.Errorf("after a reset to %q it begins at %d, want %d", c.start, st.Account.Main.From, c.from)
		}
		first = st.Epoch
	}
	if len(f.records()) != sent {
		t.Errorf("%d events arrived twice", len(f.records())-sent)
	}
}

// To another bus goes what was not forwarded to the first one, and nothing twice.
func TestLinkGoesElsewhere(t *testing.T) {
	n, f := newNear(t), newFar(t).start()
	n.region(f.srv.URL, "")
	n.link(everything)
	n.append(100)
	n.start()
	epoch := n.settle().Epoch
	f.set(func(f *far) { f.status = http.StatusServiceUnavailable })
	f.cut()
	n.append(100)
	n.link(everything + `,"to":"other"`)
	f.set(func(f *far) { f.status = 0 })
	until(t, "it begins anew", func() bool { st := n.status(); return st.Account != nil && st.Epoch != epoch })
	st := n.settle()
	if a := st.Account; a.Main.From != 101 || a.Main.Forwarded != 100 || a.Difference != 0 || len(f.records()) != 200 {
		t.Errorf("account %+v, %d events", a, len(f.records()))
	}
	// Another bus here is another log: it begins as the definition says.
	n.bus("second")
	n.link(everything + `,"bus":"second"`)
	until(t, "it begins anew", func() bool { s := n.status(); return s.Account != nil && s.Epoch != st.Epoch })
	if a := n.settle().Account; a.Main.From != 1 || a.Main.Covered != 0 {
		t.Errorf("account %+v", a)
	}
}

// What the far side has lost and retention has taken here is counted as lost, once.
func TestLinkCountsWhatIsLost(t *testing.T) {
	n, f := newNear(t), newFar(t).start()
	n.region(f.srv.URL, "")
	n.link(`"pattern":{"type":["alarm"]},"start":"earliest"`) // every 7th
	n.start()
	back := f.backup()
	n.appendThose(450, large)
	n.settle()
	first, err := n.retain(17 << 20)
	if err != nil || first < 100 {
		t.Fatalf("the log begins at %d: %v", first, err)
	}
	back()
	for range 2 {
		f.cut()
		n.append(1)
		n.settle()
	}
	until(t, "all is there once more", func() bool { return len(f.records()) == 452/7-int(first-1)/7 })
	if a := n.settle().Account; a.Lost != first-1 || a.Main.Dropped != 0 || a.Main.Forwarded != 452/7 || a.Difference != 0 {
		t.Errorf("from %d: account %+v", first, a)
	}
}

// One node has a link; when it gives it up another goes on where it was.
func TestLinkHasOneOwner(t *testing.T) {
	n, f := newNear(t), newFar(t).start()
	n.region(f.srv.URL, "")
	n.link(everything)
	n.append(10)
	n.start()
	n.settle()
	nc, err := n.log.Connect()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	other := &near{tb: t, log: n.log, kv: n.kv, clock: n.clock, dial: n.dial, regions: n.regions, defs: n.defs}
	if other.leases, err = eventlog.OpenLeases(t.Context(), nc, eventlog.LeaseOptions{Node: "two", TTL: 200 * time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	other.start()
	t.Cleanup(other.stop)
	until(t, "it stands by", func() bool { return other.status().State == Standby })
	if err := other.links.Trimming(t.Context(), "default", 5); err != nil {
		t.Errorf("retention waits for another node: %v", err)
	}
	n.append(10)
	n.settle()
	n.stop()
	n.append(10)
	if a := other.settle().Account; a.Main.Forwarded != 30 || a.Main.Known != 0 || a.Difference != 0 {
		t.Errorf("account %+v", a)
	}
}

// A pause, of the link or of the region, ends the connection; the log keeps what waits.
func TestLinkIsPaused(t *testing.T) {
	n, f := newNear(t), newFar(t).start()
	n.region(f.srv.URL, "")
	n.link(everything)
	n.append(10)
	n.start()
	n.settle()
	for range 2 {
		n.region(f.srv.URL, `,"paused":true`)
		until(t, "it is paused", func() bool { return n.status().State == Paused })
		if st, _ := n.links.RegionStatus("far"); st.State != Paused || st.Links != 1 {
			t.Errorf("the region is %+v", st)
		}
		n.append(10)
		if st := n.status(); st.Lag.Events != 10 || n.links.Needed("default") > st.Account.Main.Covered+1 {
			t.Errorf("status %+v", st)
		}
		n.region(f.srv.URL, "")
		n.settle()
		n.link(everything + `,"paused":true`)
		until(t, "it is paused", func() bool { return n.status().State == Paused })
		n.append(10)
		n.link(everything)
		n.settle()
	}
	if a := n.links.Accounts("default"); len(a) != 1 || a[0].Link != "up" || a[0].Main.Forwarded != 50 || a[0].Difference != 0 {
		t.Errorf("accounts %+v", a)
	}
	n.links.RemoveRegion("far")
	until(t, "it has no region", func() bool { return n.status().State == Failing })
	if _, ok := n.links.RegionStatus("far"); ok {
		t.Error("the region is there")
	}
}

// What is left of links that were deleted while nobody was there is forgotten; of those that are defined, and of those that another
// node has, it is kept.
func TestLinksSettle(t *testing.T) {
	n, f := newNear(t), newFar(t).start()
	n.region(f.srv.URL, "")
	n.link(everything)
	n.append(10)
	n.start()
	n.settle()
	n.stop()
	for _, name := range []string{"broken", "elsewhere", "gone"} {
		if _, err := n.kv.Create(t.Context(), name, []byte(n.kv.text("up"))); err != nil {
			t.Fatal(err)
		}
	}
	nc, err := n.log.Connect()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	other, err := eventlog.OpenLeases(t.Context(), nc, eventlog.LeaseOptions{Node: "two"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(t.Context())
	held, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- other.Hold(ctx, "link.elsewhere", func(ctx context.Context) error {
			close(held)
			<-ctx.Done()
			return nil
		})
	}()
	<-held
	n.start()
	n.kv.crash()
	defined := func(name string) bool { return name == "broken" }
	if err := n.links.Settle(t.Context(), defined); err == nil {
		t.Error("the bucket does not answer, and all is well")
	}
	n.kv.recover(false)
	for range 2 {
		if err := n.links.Settle(t.Context(), defined); err != nil {
			t.Fatal(err)
		}
	}
	n.settle()
	for name, want := range map[string]bool{"up": true, "broken": true, "elsewhere": true, "gone": false} {
		if got := n.kv.text(name) != ""; got != want {
			t.Errorf("what is kept of %s: %v, want %v", name, got, want)
		}
	}
	end()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// The position stands in a bucket of the state plane.
func TestStates(t *testing.T) {
	n := newNear(t)
	nc, err := n.log.Connect()
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	var states *States
	for range 2 {
		if states, err = OpenStates(t.Context(), nc, "links"); err != nil {
			t.Fatal(err)
		}
	}
	st := &state{Epoch: "e", Start: 7, Done: Progress{Main: Ranges{{7, 9}}}, Main: tally{Forwarded: 3}}
	revision, err := states.put(t.Context(), "up", st, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := states.put(t.Context(), "up", st, 0); !errors.Is(err, errMoved) {
		t.Errorf("made twice: %v", err)
	}
	if _, err := states.put(t.Context(), "up", st, revision+1); !errors.Is(err, errMoved) {
		t.Errorf("written over: %v", err)
	}
	got, at, err := states.get(t.Context(), "up")
	if diff := cmp.Diff(st, got); err != nil || at != revision || diff != "" {
		t.Errorf("%v at %d: %s", err, at, diff)
	}
	if err := states.reset(t.Context(), "up", "earliest", "f"); err != nil {
		t.Fatal(err)
	}
	if got, _, err := states.get(t.Context(), "up"); err != nil || got.Start != 0 || got.Epoch != "f" || got.Begin != "earliest" {
		t.Errorf("%+v, %v", got, err)
	}
	if names, err := states.names(t.Context()); err != nil || !slices.Equal(names, []string{"up"}) {
		t.Errorf("%v, %v", names, err)
	}
	if err := states.forget(t.Context(), "up"); err != nil {
		t.Fatal(err)
	}
	if names, err := states.names(t.Context()); err != nil || len(names) > 0 {
		t.Errorf("%v, %v", names, err)
	}
	if _, at, err := states.get(t.Context(), "up"); err != nil || at != 0 {
		t.Errorf("revision %d, %v", at, err)
	}
}

// slowConn is a line of so many bytes a second behind a buffer that takes all at once, as those of systems and routers do.
type slowConn struct {
	net.Conn
	rate   int
	closed chan struct{}
	once   sync.Once
	mu     sync.Mutex // guards below
	buf    []byte
}

func newSlowConn(c net.Conn, rate int) *slowConn {
	s := &slowConn{Conn: c, rate: rate, closed: make(chan struct{})}
	go s.run()
	return s
}

func (s *slowConn) run() {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-s.closed:
			return
		}
		s.mu.Lock()
		n := min(len(s.buf), s.rate/100)
		out := bytes.Clone(s.buf[:n])
		s.buf = s.buf[n:]
		s.mu.Unlock()
		if _, err := s.Conn.Write(out); err != nil {
			return
		}
	}
}

func (s *slowConn) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.buf = append(s.buf, p...)
	return len(p), nil
}

func (s *slowConn) Close() error {
	s.once.Do(func() { close(s.closed) })
	return s.Conn.Close()
}

// Without a cap a slow line is found out: what is urgent does not wait behind megabytes that are under way, and no line is given up.
func TestSlowLine(t *testing.T) {
	t.Parallel()
	n, f := newNear(t), newFar(t).start()
	n.dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return newSlowConn(c, 100_000), nil
	}
	n.region(f.srv.URL, "")
	n.link(everything + `,"urgent":{"type":["now"]}`)
	n.appendThose(3000, func(i int) *event.Record {
		r := record(i)
		r.Event.Data = make([]byte, 1000)
		rand.Read(r.Event.Data) //nolint:errcheck // never fails
		r.Event.DataContentType = ""
		return r
	})
	n.start()
	until(t, "the line is at work", func() bool { return len(f.records()) > 150 })
	for i := range 3 {
		began := time.Now()
		n.appendThose(1, func(int) *event.Record {
			r := record(i)
			r.Event.Type = "now"
			return r
		})
		until(t, "what is urgent arrives", func() bool { return urgentOf(f) == i+1 })
		if took := time.Since(began); took > 3*time.Second {
			t.Errorf("what is urgent took %v", took)
		}
	}
	if len(f.records()) > 2500 || f.count != 1 {
		t.Errorf("%d events arrived over %d connections", len(f.records()), f.count)
	}
}

func urgentOf(f *far) (n int) {
	for _, r := range f.records() {
		if r.lane == Urgent {
			n++
		}
	}
	return n
}

// What came after the line was back, but before the link knew, is fresh.
func TestFreshBeforeTheLineIsKnown(t *testing.T) {
	n, f := newNear(t), newFar(t).start()
	n.region(f.srv.URL, `,"bandwidth":"64KiB"`)
	n.link(everything)
	n.appendThose(20_000, func(i int) *event.Record {
		r := record(i)
		r.Received = time.Now().Add(-time.Minute)
		return r
	})
	n.append(20)
	n.start()
	until(t, "some arrive", func() bool { return len(f.records()) > 20 })
	for i, r := range f.records()[:21] {
		if seq := r.hop.Position.Seq; i < 20 && seq != uint64(20_001+i) || i == 20 && seq != 1 {
			t.Errorf("event %d arrives at place %d", seq, i)
		}
	}
}

// Patterns see an event as rules do, and it is forwarded as it is stored. Functions may shape it.
func TestLinkSeesWhatRulesSee(t *testing.T) {
	n, f := newNear(t), newFar(t).start()
	n.view = func(r *event.Record) *event.Record {
		seen := *r
		seen.Event.Data = fmt.Appendf(nil, `{"seen":%s}`, r.Event.Data)
		return &seen
	}
	n.functions = func(_ context.Context, name, _ string, ev *event.Event) ([]byte, string, error) {
		return fmt.Appendf(nil, "%s of %s", name, ev.Data), "text/plain", nil
	}
	n.region(f.srv.URL, "")
	n.link(`"pattern":{"data":{"seen":{"n":[3]}}},"start":"earliest"`)
	n.append(5)
	n.start()
	n.settle()
	n.link(`"pattern":{"data":{"seen":{"n":[8]}}},"transform":{"function":"double"}`)
	n.append(5)
	n.settle()
	if r := f.records(); len(r) != 2 || string(r[0].rec.Event.Data) != `{"n":3}` || string(r[1].rec.Event.Data) != `double of {"seen":{"n":8}}` {
		t.Errorf("%d events arrived: %+v", len(r), r)
	}
}
