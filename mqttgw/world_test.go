// SPDX-License-Identifier: Apache-2.0

package mqttgw_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/mqttgw"
)

// memoryLog is a SessionLog in memory. Its messages are committed at once, unless hold is set.
type memoryLog struct {
	mu      sync.Mutex
	msgs    []eventlog.Raw
	held    []func()
	hold    bool
	fail    error
	bytes   int64 // that Info says
	trimmed uint64
	commits func() bool // asked before a commit, under mu; false holds it for ever
}

func (l *memoryLog) Append(_ context.Context, m eventlog.Message, done func(eventlog.Result)) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fail != nil {
		return l.fail
	}
	seq := uint64(len(l.msgs)+len(l.held)) + l.trimmed + 1
	if m.Stored != nil {
		m.Stored(seq)
	}
	commit := func() {
		l.msgs = append(l.msgs, eventlog.Raw{Seq: seq, Subject: m.Subject, Header: slices.Clone(m.Header), Data: slices.Clone(m.Data)})
		done(eventlog.Result{Seq: seq})
	}
	if l.hold || l.commits != nil && !l.commits() {
		l.held = append(l.held, commit)
		return nil
	}
	commit()
	return nil
}

func (l *memoryLog) Read(_ context.Context, o eventlog.ReadOptions, dst []eventlog.Raw) ([]eventlog.Raw, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, m := range l.msgs {
		if m.Seq >= o.From && (o.Max == 0 || len(dst) < o.Max) {
			dst = append(dst, m)
		}
	}
	return dst, nil
}

// As a DownlinkLog.

func (l *memoryLog) Committed() uint64 { return l.Info().Last }

func (l *memoryLog) Info() eventlog.StreamInfo {
	l.mu.Lock()
	defer l.mu.Unlock()
	return eventlog.StreamInfo{First: l.trimmed + 1, Last: l.trimmed + uint64(len(l.msgs)), Bytes: l.bytes}
}

func (l *memoryLog) SkipTo(_ context.Context, seq uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for next := l.trimmed + uint64(len(l.msgs)) + 1; next <= seq; next++ {
		l.msgs = append(l.msgs, eventlog.Raw{Seq: next, Subject: "gap.DOWN"})
	}
	return nil
}

func (l *memoryLog) Err() error { return nil }

func (l *memoryLog) Trim(_ context.Context, p eventlog.TrimPolicy) (eventlog.Trimmed, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.msgs) > 0 && l.msgs[0].Seq < p.Protect {
		l.msgs = l.msgs[1:]
		l.trimmed++
	}
	return eventlog.Trimmed{}, nil
}

// release commits what is held, and what is to come.
func (l *memoryLog) release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hold = false
	for _, commit := range l.held {
		commit()
	}
	l.held = nil
}

func (l *memoryLog) set(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
}

// clone is what a process that starts now would find.
func (l *memoryLog) clone() *memoryLog {
	l.mu.Lock()
	defer l.mu.Unlock()
	return &memoryLog{msgs: slices.Clone(l.msgs), trimmed: l.trimmed}
}

func (b *memoryBus) clone() *memoryBus {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := newMemoryBus()
	n.entries, n.trimmed, n.cold, n.fail = slices.Clone(b.entries), b.trimmed, b.cold, b.fail
	return n
}

// memoryOwners are claims in memory.
type memoryOwners struct {
	mu       sync.Mutex
	revision uint64
	claims   map[string]uint64
	fail     error
}

func (o *memoryOwners) Claim(_ context.Context, principal, clientID string) (uint64, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.fail != nil {
		return 0, o.fail
	}
	o.revision++
	o.claims[principal+"\x00"+clientID] = o.revision
	return o.revision, nil
}

func (o *memoryOwners) Release(_ context.Context, principal, clientID string, revision uint64) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.claims[principal+"\x00"+clientID] == revision {
		delete(o.claims, principal+"\x00"+clientID)
	}
	return nil
}

// buses are a Publisher and Tails of several buses.
type buses map[string]*memoryBus

func (b buses) Publish(ctx context.Context, bus string, rec *event.Record, done func(error)) error {
	if b[bus] == nil {
		return fault.New(fault.NotFound, "no bus %q", bus)
	}
	return b[bus].Publish(ctx, bus, rec, done)
}

func (b buses) tail(bus string) (mqttgw.Tail, error) {
	if b[bus] == nil {
		return nil, fault.New(fault.NotFound, "no bus %q", bus)
	}
	return b[bus], nil
}

// world is buses and a session log that several gateways live on, one after the other. A kill leaves what was committed.
type world struct {
	t    testing.TB
	bus  *memoryBus // devices
	bus2 *memoryBus // fleet
	down *memoryLog // DOWN; nil = none
	maps *mqttgw.Mappings
	log  *memoryLog
	own  *memoryOwners
	disk *vfs.MemFS // of retained messages
	kept *mqttgw.Retained
	with []setup
	now  *server

	set    []*mqttgw.TopicMapping // the mappings
	mapped uint64                 // how often they were changed

	mu     sync.Mutex
	left   int           // commits until the process is killed; < 0 = never
	killed chan struct{} // closed then
}

func newWorld(t testing.TB, with ...setup) *world { return newWorldOn(t, nil, with...) }

// newDownWorld is a world where topics below cmd/ and d/ go to DOWN.
func newDownWorld(t testing.TB, with ...setup) *world { return newWorldOn(t, &memoryLog{}, with...) }

func newWorldOn(t testing.TB, down *memoryLog, with ...setup) *world {
	w := &world{down: down, t: t, bus: newMemoryBus(), bus2: newMemoryBus(), maps: mqttgw.NewMappings(), log: &memoryLog{}, own: &memoryOwners{claims: map[string]uint64{}}, disk: vfs.NewCrashableMem(), with: with}
	w.maps = w.newMaps()
	w.arm(-1)
	w.begin()
	return w
}

// begin serves a gateway on what there is.
func (w *world) begin() {
	w.t.Helper()
	bus, bus2, log, own := w.bus, w.bus2, w.log, w.own
	log.commits, bus.commits, bus2.commits = w.step, w.step, w.step
	all := buses{"devices": bus, "fleet": bus2}
	var down *mqttgw.Downlink
	if w.down != nil {
		w.down.commits = w.step
		down = downlinkOn(w.down)
	}
	kept, err := mqttgw.OpenRetained(mqttgw.RetainedOptions{Dir: "retained", FS: w.disk, Logger: quiet()})
	if err != nil {
		w.t.Fatal(err)
	}
	w.kept = kept
	w.now = start(w.t, append([]setup{func(o *mqttgw.Options) {
		o.Publisher, o.Tail, o.Tails, o.Sessions, o.Owners, o.Retained, o.Mappings = all, bus, all.tail, log, own, kept, w.maps
		o.Down = down
		o.Limits.ProgressEvery = 20 * time.Millisecond
	}}, w.with...)...)
	w.now.bus = bus
	stop := w.now.stop
	w.now.stop = sync.OnceFunc(func() {
		stop()
		if err := kept.Close(); err != nil {
			w.t.Errorf("close retained messages: %v", err)
		}
	})
	w.t.Cleanup(w.now.stop)
}

// downMaps are the mappings that send to DOWN.
func (w *world) downMaps() (all []*mqttgw.TopicMapping) {
	if w.down == nil {
		return nil
	}
	return downMappings(w.t)
}

// downlinkOn is DOWN in memory.
func downlinkOn(log *memoryLog) *mqttgw.Downlink {
	return mqttgw.NewDownlink(mqttgw.DownlinkOptions{Log: log, Logger: quiet(), Subjects: func(device, topic string, _ int) string {
		if device == "" {
			device = "%" // see eventlog.Unnamed
		}
		return mqttgw.DownlinkPrefix + "." + device + "." + topic
	}})
}

// downMappings send topics below cmd/ and d/ to DOWN.
func downMappings(t testing.TB) (all []*mqttgw.TopicMapping) {
	t.Helper()
	for _, root := range []string{"cmd", "d"} {
		m, err := mqttgw.ParseTopicMapping(fmt.Appendf(nil, `{"name":"down-%s","filter":"%s/#","lane":"down"}`, root, root))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, m)
	}
	return all
}

// newMaps are the mappings as a new process finds them.
func (w *world) newMaps() *mqttgw.Mappings {
	maps := mqttgw.NewMappings()
	if w.set == nil {
		w.set = w.downMaps()
	}
	if err := maps.Set(context.Background(), w.mapped, w.set); err != nil {
		w.t.Fatal(err)
	}
	return maps
}

// remap puts mappings in force that send topics to the bus fleet. It fails when the process is killed meanwhile; then
// they are in force in the next one.
func (w *world) remap(filters ...string) error {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	w.mu.Lock()
	killed := w.killed
	w.mu.Unlock()
	go func() {
		select {
		case <-killed:
			cancel()
		case <-ctx.Done():
		}
	}()
	return w.remapOn(ctx, filters...)
}

func (w *world) remapOn(ctx context.Context, filters ...string) error {
	w.t.Helper()
	w.mapped++
	w.set = w.downMaps()
	for i, f := range filters {
		m, err := mqttgw.ParseTopicMapping(fmt.Appendf(nil, `{"name":"m%d","filter":%q,"bus":"fleet"}`, i, f))
		if err != nil {
			w.t.Fatal(err)
		}
		m.Revision = w.mapped
		w.set = append(w.set, m)
	}
	return w.maps.Set(ctx, w.mapped, w.set)
}

// arm has the process killed after a number of commits.
func (w *world) arm(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.left, w.killed = n, make(chan struct{})
}

// step counts a commit; false says that it does not happen any more.
func (w *world) step() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.left < 0 {
		return true
	}
	if w.left == 0 {
		select {
		case <-w.killed:
		default:
			close(w.killed)
		}
		return false
	}
	w.left--
	return true
}

// kill ends the process: what was not committed by now never will be. Then another one begins.
func (w *world) kill() {
	w.t.Helper()
	w.mu.Lock()
	w.left = 0
	w.mu.Unlock()
	old, bus, bus2, log := w.now, w.bus, w.bus2, w.log
	// The disk first: what it does not have is read from the bus again.
	w.disk = w.disk.CrashClone(vfs.CrashCloneCfg{})
	w.bus, w.bus2, w.log, w.maps = bus.clone(), bus2.clone(), log.clone(), w.newMaps()
	// What the old process does from here on happens to stores that nobody reads again.
	log.set(func() { log.commits = nil })
	bus.set(func() { bus.commits = nil })
	bus2.set(func() { bus2.commits = nil })
	if down := w.down; down != nil {
		w.down = down.clone()
		down.set(func() { down.commits = nil })
		down.release()
	}
	log.release()
	bus.release(-1)
	bus2.release(-1)
	old.cut()
	old.stop()
	w.arm(-1)
	w.begin()
}

// restart stops the gateway and begins another one.
func (w *world) restart() {
	w.t.Helper()
	w.now.cut()
	w.now.stop()
	w.bus, w.bus2, w.log, w.maps = w.bus.clone(), w.bus2.clone(), w.log.clone(), w.newMaps()
	if w.down != nil {
		w.down = w.down.clone()
	}
	w.begin()
}

// records are the messages of DOWN that are for every subscription.
func (l *memoryLog) records(t testing.TB) (all []*event.Record) {
	if l == nil {
		return nil
	}
	t.Helper()
	raws, err := l.Read(t.Context(), eventlog.ReadOptions{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, raw := range raws {
		r, err := event.FromNATS(raw.Header, raw.Data)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
	}
	return all
}
