// SPDX-License-Identifier: Apache-2.0

package region

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// Process-wide clocks and collectors of nats-server and client libraries, without an end.
		goleak.IgnoreAnyFunction("github.com/nats-io/nats-server/v2/server/ats.init.0.func1"),
		goleak.IgnoreAnyFunction("github.com/nats-io/nats-server/v2/server/pse.periodic"),
		goleak.IgnoreAnyFunction("github.com/nats-io/nats-server/v2/server.(*fileStore).cleanupOldMeta"))
}

// memory is a bucket that can forget the last write, as a crash before a sync does, and refuse to write.
type memory struct {
	jetstream.KeyValue // what is not used
	mu                 sync.Mutex
	values             map[string]value
	before             map[string]value // the last write
	revision           uint64
	broken             error
	writes             int
}

type value struct {
	jetstream.KeyValueEntry // what is not used
	text                    []byte
	revision                uint64
}

func (v value) Value() []byte    { return v.text }
func (v value) Revision() uint64 { return v.revision }

func newMemory() *memory { return &memory{values: map[string]value{}, before: map[string]value{}} }

func (m *memory) Get(_ context.Context, key string) (jetstream.KeyValueEntry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if v, ok := m.values[key]; ok {
		return v, nil
	}
	return nil, jetstream.ErrKeyNotFound
}

func (m *memory) write(key string, text []byte, over int64) (uint64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	was, ok := m.values[key]
	switch {
	case m.broken != nil:
		return 0, m.broken
	case over == 0 && ok, over > 0 && was.revision != uint64(over):
		return 0, jetstream.ErrKeyExists
	}
	m.revision++
	m.writes++
	m.before[key] = was
	m.values[key] = value{text: text, revision: m.revision}
	return m.revision, nil
}

func (m *memory) Create(_ context.Context, key string, text []byte, _ ...jetstream.KVCreateOpt) (uint64, error) {
	return m.write(key, text, 0)
}

func (m *memory) Update(_ context.Context, key string, text []byte, over uint64) (uint64, error) {
	return m.write(key, text, int64(over))
}

func (m *memory) Put(_ context.Context, key string, text []byte) (uint64, error) {
	return m.write(key, text, -1)
}

func (m *memory) Purge(_ context.Context, key string, _ ...jetstream.KVDeleteOpt) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.values, key)
	delete(m.before, key)
	return nil
}

// names is a jetstream.KeyLister.
type names chan string

func (n names) Keys() <-chan string { return n }
func (n names) Stop() error         { return nil }

func (m *memory) ListKeys(context.Context, ...jetstream.WatchOpt) (jetstream.KeyLister, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.broken != nil {
		return nil, m.broken
	}
	all := make(names, len(m.values))
	for key := range m.values {
		all <- key
	}
	close(all)
	return all, nil
}

// text is what is kept of a link.
func (m *memory) text(link string) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return string(m.values[link].text)
}

// crash has nothing be written any more.
func (m *memory) crash() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.broken = errors.New("crashed")
}

// keep says that all that was written has come to the disk.
func (m *memory) keep() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.before = map[string]value{}
}

// recover is the start after a crash; lose says that the last write had not come to the disk, if it was no more than how far
// the link is: what decides on which lane an event goes is acted upon when it is written.
func (m *memory) recover(lose bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.broken = nil
	for key, v := range m.before {
		if lose && v.text != nil && slices.Equal(segmentsOf(v.text), segmentsOf(m.values[key].text)) {
			m.revision++
			m.values[key] = value{text: v.text, revision: m.revision}
		}
	}
	m.before = map[string]value{}
}

func segmentsOf(text []byte) []segment {
	var st state
	if err := json.Unmarshal(text, &st); err != nil {
		panic(err)
	}
	return st.Segments
}

// near is the near side: a real log, and links over it.
type near struct {
	tb        testing.TB
	dir       string
	log       *eventlog.Log
	buses     map[string]*eventlog.Bus
	kv        *memory
	leases    *eventlog.Leases
	links     *Links
	clock     func() time.Time
	dial      func(ctx context.Context, network, address string) (net.Conn, error)
	maxAge    time.Duration
	maxBytes  int64
	retry     time.Duration // 0 = as it is
	most      time.Duration // as well
	batch     int           // as well
	changed   time.Time     // the region
	view      func(*event.Record) *event.Record
	functions CallFunction
	trim      time.Duration // as well
	grace     time.Duration // as well
	reads     string        // the bus that append writes to; "" = default
	regions   []*Region
	defs      []*Link

	mu      sync.Mutex
	emitted []event.Event
	on      []string        // the buses of emitted
	full    map[string]bool // buses that take nothing
	denied  int             // that they did not take
	n       int
}

func newNear(tb testing.TB) *near {
	n := &near{tb: tb, dir: tb.TempDir(), kv: newMemory(), clock: time.Now, dial: (&net.Dialer{}).DialContext, buses: map[string]*eventlog.Bus{}}
	n.open()
	tb.Cleanup(func() {
		n.stop()
		n.closeLog()
	})
	return n
}

func (n *near) open() {
	var err error
	if n.log, err = eventlog.Open(n.tb.Context(), eventlog.Options{Dir: n.dir, Durability: eventlog.OS, Reserve: 1 << 20}); err != nil {
		n.tb.Fatal(err)
	}
	nc, err := n.log.Connect()
	if err != nil {
		n.tb.Fatal(err)
	}
	n.tb.Cleanup(nc.Close)
	if n.leases, err = eventlog.OpenLeases(n.tb.Context(), nc, eventlog.LeaseOptions{Node: "one"}); err != nil {
		n.tb.Fatal(err)
	}
	n.bus("default")
}

func (n *near) closeLog() {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := n.log.Close(ctx); err != nil {
		n.tb.Error(err)
	}
	n.buses = map[string]*eventlog.Bus{}
}

func (n *near) bus(name string) *eventlog.Bus {
	b, err := n.Bus(name)
	if err != nil {
		n.tb.Fatal(err)
	}
	return b
}

// Bus is Log.Bus.
func (n *near) Bus(name string) (*eventlog.Bus, error) {
	return n.log.Bus(context.Background(), eventlog.BusConfig{Name: name, DedupWindow: -1})
}

// Retention is Log.Retention.
func (n *near) Retention(string) (time.Duration, int64, error) { return n.maxAge, n.maxBytes, nil }

func (n *near) emit(_ context.Context, bus string, evs ...event.Event) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.full[bus] {
		n.denied++
		return errors.New("the bus is full")
	}
	for _, ev := range evs {
		n.emitted, n.on = append(n.emitted, ev), append(n.on, bus)
	}
	return nil
}

// raised counts the events of a type that the links have raised.
func (n *near) raised(kind string) (count int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for i := range n.emitted {
		if n.emitted[i].Type == kind {
			count++
		}
	}
	return count
}

// start starts links with the definitions that there are.
func (n *near) start() *Links {
	n.tb.Helper()
	var err error
	n.links, err = NewLinks(LinksOptions{Instance: "near", Log: n, States: &States{n.kv}, Leases: n.leases, Dial: n.dial, Emit: n.emit, Now: n.clock, View: n.view, Functions: n.functions,
		Logger: slog.New(slog.NewTextHandler(testWriter{n.tb}, &slog.HandlerOptions{Level: slog.LevelError}))})
	if err != nil {
		n.tb.Fatal(err)
	}
	n.links.most = n.most
	n.links.trim, n.links.grace = cmp.Or(n.trim, trimTime), cmp.Or(n.grace, openGrace)
	n.links.retry, n.links.batch = cmp.Or(n.retry, firstRetry), cmp.Or(n.batch, batchBytes)
	for _, r := range n.regions {
		n.links.SetRegion(r)
	}
	for _, l := range n.defs {
		n.links.Set(l)
	}
	return n.links
}

type testWriter struct{ tb testing.TB }

func (w testWriter) Write(p []byte) (int, error) {
	w.tb.Log(string(p[:len(p)-1]))
	return len(p), nil
}

// stop ends the links.
func (n *near) stop() {
	if n.links == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := n.links.Close(ctx); err != nil {
		n.tb.Error(err)
	}
	n.links = nil
}

// crash ends the links as kill -9 does.
func (n *near) crash(lose bool) {
	n.kv.crash()
	n.stop()
	n.kv.recover(lose)
}

// region makes a definition of a region at a URL.
func (n *near) region(url, more string) *Region {
	n.tb.Helper()
	r, err := ParseRegion(fmt.Appendf(nil, `{"name":"far","url":%q,"key":{"value":"secret"}%s}`, url, more))
	if err != nil {
		n.tb.Fatal(err)
	}
	n.regions, n.changed = []*Region{r}, time.Now()
	if n.links != nil {
		n.links.SetRegion(r)
	}
	return r
}

const everything = `"pattern":{"source":[{"exists":true}]},"start":"earliest"`

// link makes the definition of a link.
func (n *near) link(fields string) *Link {
	n.tb.Helper()
	l, err := ParseLink([]byte(`{"name":"up","region":"far",` + fields + `}`))
	if err != nil {
		n.tb.Fatal(err)
	}
	n.defs = []*Link{l}
	if n.links != nil {
		n.links.Set(l)
	}
	return l
}

// record is event number i: every 7th is an alarm, every 5th of another source.
func record(i int) *event.Record {
	r := &event.Record{Received: time.Now(), Event: event.Event{ID: fmt.Sprint("id-", i), Source: "/box", Type: "reading", Time: time.Unix(int64(i), 0).UTC(),
		DataContentType: "application/json", Data: fmt.Appendf(nil, `{"n":%d}`, i)}}
	if i%7 == 0 {
		r.Event.Type = "alarm"
	}
	if i%5 == 0 {
		r.Event.Source = "/other"
	}
	return r
}

// append stores count more events and waits for them.
func (n *near) append(count int) {
	n.tb.Helper()
	n.appendThose(count, record)
}

func (n *near) appendThose(count int, nth func(i int) *event.Record) {
	n.tb.Helper()
	b := n.bus(cmp.Or(n.reads, "default"))
	done := make(chan error, count)
	for range count {
		n.n++
		if err := b.Append(context.Background(), nth(n.n), func(r eventlog.Receipt) { done <- r.Err }); err != nil {
			n.tb.Fatal(err)
		}
	}
	for range count {
		if err := <-done; err != nil {
			n.tb.Fatal(err)
		}
	}
}

// poll waits for a condition, at most so long.
func poll(within time.Duration, cond func() bool) bool {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(within); !cond(); <-tick.C {
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}

// patience is how long what must happen may take, on a machine that is busy.
const patience = 30 * time.Second

// until waits for a condition.
func until(tb testing.TB, what string, cond func() bool) {
	tb.Helper()
	if !poll(patience, cond) {
		tb.Fatalf("never: %s", what)
	}
}

// status returns the status of the link.
func (n *near) status() LinkStatus {
	st, ok := n.links.Status("up")
	if !ok {
		n.tb.Fatal("there is no link")
	}
	return st
}

// settle waits until all is done.
func (n *near) settle() LinkStatus {
	n.tb.Helper()
	var st LinkStatus
	if !poll(patience, func() bool {
		st = n.status()
		return st.State == Running && st.Account != nil && st.Account.Pending == 0 && st.InFlight == 0 && st.Gaps == 0
	}) {
		n.tb.Fatalf("the link does not come to an end: %+v %+v %+v", st, st.Account, st.Error)
	}
	return st
}
