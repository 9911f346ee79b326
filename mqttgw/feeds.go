// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rialto-bridge/rialto/internal/fault"
)

// feeds are the streams that subscriptions are served from: DOWN, the gateway's own bus, and every bus that a topic mapping
// names.
// A bus that no mapping names any more is served until nobody has anything left in it.
type feeds struct {
	g    *Gateway
	list atomic.Pointer[[]*feed] // those first that are served first; replaced, never changed
	wake chan struct{}           // a feed may have become superfluous

	mu      sync.Mutex      // one change at a time; above all locks of sessions and records
	wanted  map[string]bool // guarded by mu; the buses that mappings name
	working context.Context // guarded by mu; of the feeds' goroutines; nil = not yet
	noted   bool            // guarded by mu; it is written down where every feed began
	own     sync.WaitGroup
}

func newFeeds(g *Gateway) *feeds {
	fs := &feeds{g: g, wake: make(chan struct{}, 1), wanted: map[string]bool{}}
	own := newFeed(g, g.opts.Bus, g.opts.Tail)
	if g.opts.Down == nil {
		fs.set([]*feed{own})
		return fs
	}
	down := newFeed(g, DownlinkStream, g.opts.Down)
	down.lane, own.rank = laneDown, 1
	fs.set([]*feed{down, own})
	return fs
}

func (fs *feeds) set(list []*feed) {
	fs.list.Store(&list)
	fs.g.metrics.feeds.Set(float64(len(list)))
}

// all returns the feeds, those first that are served first. The slice is not to be changed.
func (fs *feeds) all() []*feed { return *fs.list.Load() }

// named returns the feed with a name; nil when there is none.
func (fs *feeds) named(name string) *feed {
	for _, f := range fs.all() {
		if f.name == name {
			return f
		}
	}
	return nil
}

// down returns the feed of DOWN; nil when there is none.
func (fs *feeds) down() *feed {
	if first := fs.all()[0]; first.lane == laneDown {
		return first
	}
	return nil
}

// begin makes the feeds of a start: those that mappings name, and those in which sessions were when the process ended.
// What is found in SESSIONS says where each goes on; one that is not there begins at its end.
func (fs *feeds) begin(kept momentState) error {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	for _, bus := range fs.g.opts.Mappings.buses() {
		fs.wanted[fs.g.busNamed(bus)] = true
	}
	names := slices.Sorted(maps.Keys(fs.wanted))
	for _, k := range kept {
		names = append(names, k.feed)
	}
	for _, name := range names {
		f, err := fs.find(name)
		if err != nil {
			return err
		}
		fs.add(f)
	}
	for _, f := range fs.all() {
		end := f.tail.Committed()
		if v := fs.g.opts.Retained; v != nil && v.positionOf(f.name) > end { // of a bus that was there before this one
			if err := v.begin(f.name, end); err != nil {
				return err
			}
		}
		at, known := kept.at(f.name)
		if known {
			f.begin(min(at, end), end)
			continue
		}
		if err := fs.fresh(f, end); err != nil {
			return err
		}
	}
	return nil
}

// fresh begins a feed that was not served before at its end. The gateway's own bus may have retained messages from before
// there were sessions. mu is held.
func (fs *feeds) fresh(f *feed, end uint64) error {
	if v := fs.g.opts.Retained; v != nil && f.name != fs.g.opts.Bus && fs.g.recorder != nil {
		if err := v.begin(f.name, end); err != nil {
			return err
		}
	}
	f.begin(end, end)
	fs.noted = false
	return nil
}

// find makes the feed of a bus, unless it is there or its bus is not; nil then. mu is held.
func (fs *feeds) find(name string) (*feed, error) {
	if fs.named(name) != nil {
		return nil, nil
	}
	if fs.g.opts.Tails == nil {
		return nil, nil
	}
	tail, err := fs.g.opts.Tails(name)
	if fault.KindOf(err) == fault.NotFound {
		fs.g.log.Warn("no MQTT subscriber is served from a bus that is not there", "bus", name)
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("serve subscribers from bus %s: %w", name, err)
	}
	return newFeed(fs.g, name, tail), nil
}

// add serves subscribers from a feed, unless it is nil. From here on others read where it is: it has begun, or nobody is there yet.
// mu is held.
func (fs *feeds) add(f *feed) {
	if f == nil {
		return
	}
	f.rank = fs.all()[len(fs.all())-1].rank + 1
	fs.set(append(slices.Clone(fs.all()), f))
}

// open serves buses that mappings are about to name, from their ends on, and returns when it is written down where that
// is: what is published to them from now on reaches subscribers, also if the process is killed.
func (fs *feeds) open(ctx context.Context, buses []string) error {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	for _, bus := range buses {
		bus = fs.g.busNamed(bus)
		fs.wanted[bus] = true
		f, err := fs.find(bus)
		if err != nil {
			return err
		}
		if f == nil {
			continue
		}
		if err := fs.fresh(f, f.tail.Committed()); err != nil {
			return err
		}
		fs.add(f)
		fs.start(f)
	}
	if fs.noted || fs.g.recorder == nil {
		return nil
	}
	err := fs.g.recorder.flush(ctx)
	fs.noted = err == nil
	return err
}

// want says which buses the mappings name now.
func (fs *feeds) want(buses []string) {
	fs.mu.Lock()
	clear(fs.wanted)
	for _, bus := range buses {
		fs.wanted[fs.g.busNamed(bus)] = true
	}
	fs.mu.Unlock()
	select {
	case fs.wake <- struct{}{}:
	default:
	}
}

// serve starts the feeds and ends, until ctx is done, those that are superfluous. It waits for their goroutines.
func (fs *feeds) serve(ctx context.Context) {
	defer fs.own.Wait()
	fs.mu.Lock()
	fs.working = ctx
	for _, f := range fs.all() {
		fs.start(f)
	}
	fs.mu.Unlock()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-fs.wake:
		case <-timer.C:
		}
		if fs.sweep() {
			timer.Reset(sweepEvery * fs.g.limits.ProgressEvery)
		}
	}
}

// sweepEvery is how often it is looked whether a feed has become superfluous, if one may: every ten times that progress is
// written.
const sweepEvery = 10

// start starts a feed's goroutines. mu is held.
func (fs *feeds) start(f *feed) {
	if fs.working == nil || fs.working.Err() != nil {
		return
	}
	ctx, cancel := context.WithCancel(fs.working)
	ended := make(chan struct{})
	f.stop = func() {
		cancel()
		<-ended
	}
	fs.own.Go(func() {
		defer close(ended)
		defer cancel()
		f.run(ctx)
	})
}

// sweep ends feeds that nobody needs, and reports whether one is left that no mapping names.
func (fs *feeds) sweep() (left bool) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	for _, f := range fs.all() {
		if f.lane == laneDown || f.name == fs.g.opts.Bus || fs.wanted[f.name] {
			continue
		}
		if f.needed() {
			left = true
			continue
		}
		f.stop()
		if !fs.unneeded(f) { // something has come in between
			fs.start(f)
			left = true
			continue
		}
		fs.set(slices.DeleteFunc(slices.Clone(fs.all()), func(x *feed) bool { return x == f }))
		f.forget()
		f.end()
	}
	return left
}

// unneeded reports whether nobody needs a feed that has been stopped, and sees to it that SESSIONS says so: killed when its bus is not
// served any more, sessions that stand there as lagging in it would have lost something. If that cannot be written now it is tried at the
// next sweep: changes of mappings wait for mu. mu is held.
func (fs *feeds) unneeded(f *feed) bool {
	if r := fs.g.recorder; r != nil && !f.needed() {
		ctx, cancel := context.WithTimeout(fs.working, settleTime)
		defer cancel()
		if err := r.settle(ctx); err != nil {
			return false
		}
	}
	return !f.needed()
}

// needed reports whether there is something in the feed that a session or a group has not got yet.
func (f *feed) needed() bool {
	if f.routed.Load() < f.tail.Committed() {
		return true
	}
	for _, gr := range f.g.router.allGroups() {
		gr.mu.Lock()
		sh := gr.find(f)
		needs := sh != nil && (sh.lagging() || len(sh.out) > 0)
		gr.mu.Unlock()
		if needs {
			return true
		}
	}
	return slices.ContainsFunc(f.g.everySession(), func(s *session) bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.at.lagsIn(f) || slices.ContainsFunc(s.flying, func(fl flight) bool { return fl.feed == f && !fl.stored })
	})
}

// forget takes what positions are left in a feed that has ended.
func (f *feed) forget() {
	for _, gr := range f.g.router.allGroups() {
		gr.mu.Lock()
		gr.at = slices.DeleteFunc(gr.at, func(sh share) bool { return sh.feed == f })
		gr.mu.Unlock()
	}
	for _, s := range f.g.everySession() {
		s.mu.Lock()
		s.at = slices.DeleteFunc(s.at, func(p position) bool { return p.feed == f })
		s.mu.Unlock()
	}
}

// everySession returns all sessions, also those that end with their connection, in no order.
func (g *Gateway) everySession() []*session {
	all := g.allSessions()
	g.mu.Lock()
	open := make([]*conn, 0, len(g.open))
	for c := range g.open {
		open = append(open, c)
	}
	g.mu.Unlock()
	for _, c := range open {
		c.mu.Lock()
		s := c.held
		c.mu.Unlock()
		if s != nil {
			all = append(all, s)
		}
	}
	return all
}
