// SPDX-License-Identifier: Apache-2.0

package region

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/internal/fault"
)

// inletState is what is stored of an inlet.
type inletState struct {
	Stream string    `json:"stream"`
	By     string    `json:"by,omitempty"`
	Seq    uint64    `json:"seq"`
	Epochs epochs    `json:"epochs"`
	At     time.Time `json:"at"`
}

const (
	flushEvery = 500 * time.Millisecond
	// idleBehind is how far the log may go on before the state of an inlet that takes nothing in says so, since a start reads
	// from there.
	idleBehind = 50_000
)

// load reads the states.
func (x *Inlets) load(ctx context.Context) error {
	js, err := jetstream.New(x.o.Conn)
	if err != nil {
		return fmt.Errorf("bucket %s: %w", x.o.Bucket, err)
	}
	x.kv, err = js.CreateOrUpdateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: x.o.Bucket, Description: "What links of other regions have brought",
		History: 1, Storage: jetstream.FileStorage})
	if err != nil {
		return fmt.Errorf("bucket %s: %w", x.o.Bucket, err)
	}
	keys, err := x.kv.ListKeys(ctx)
	if err != nil {
		return fmt.Errorf("bucket %s: %w", x.o.Bucket, err)
	}
	for key := range keys.Keys() {
		e, err := x.kv.Get(ctx, key)
		var s inletState
		if err == nil {
			err = json.Unmarshal(e.Value(), &s)
		}
		parts := strings.Split(key, ".")
		switch {
		case err != nil && e == nil:
			return fmt.Errorf("bucket %s: %w", x.o.Bucket, err)
		case err != nil || len(parts) != 3:
			// The link is as one that was never here: its events are recognised within the window of the bus.
			x.log.Error("what a link has brought cannot be read", "link", key, "err", err)
			continue
		}
		in := x.newInlet(origin{instance: parts[0], link: parts[1], stream: s.Stream, bus: parts[2]})
		in.seq, in.epochs, in.lastAt, in.by, in.stored = s.Seq, s.Epochs, s.At, s.By, true
		x.known[key] = in
	}
	return nil
}

// keep writes states down until Close, and reads at the start what the log has behind them.
func (x *Inlets) keep() {
	tick := time.NewTicker(flushEvery)
	defer tick.Stop()
	for {
		select {
		case <-x.ctx.Done():
			return
		case <-tick.C:
		}
		for bus := range x.unscanned() {
			if err := x.scan(x.ctx, bus); err != nil && fault.KindOf(err) != fault.NotFound && x.ctx.Err() == nil {
				x.log.Warn("the log cannot be read for links", "bus", bus, "err", err)
			}
		}
		for _, in := range x.all() {
			in.advance()
		}
		if err := x.flush(x.ctx); err != nil && x.ctx.Err() == nil {
			x.log.Warn("what links have brought is not written down", "err", err)
		}
	}
}

func (x *Inlets) all() []*inlet {
	x.mu.Lock()
	defer x.mu.Unlock()
	out := make([]*inlet, 0, len(x.known))
	for _, in := range x.known {
		out = append(out, in)
	}
	return out
}

// flush writes the states that have changed.
func (x *Inlets) flush(ctx context.Context) error {
	var errs []error
	for _, in := range x.all() {
		errs = append(errs, in.save(ctx))
	}
	return errors.Join(errs...)
}

// prepare makes the inlet ready for a connection that forwards what is in a stream. It blocks while the log is read, and until a
// state is stored that a start begins from.
func (in *inlet) prepare(ctx context.Context, stream, by string) error {
	log, err := in.x.o.Log.Bus(in.bus)
	if err != nil {
		return err
	}
	if err := in.x.scan(ctx, in.bus); err != nil {
		return err
	}
	if !in.x.keeps(in) {
		return errReplaced
	}
	in.mu.Lock()
	if in.stream != stream { // the link reads another bus now: positions in the old one mean nothing
		in.stream, in.epochs, in.stored = stream, nil, false
	}
	if in.by != by {
		in.by, in.stored = by, false
	}
	if !in.stored {
		in.seq, in.dirty = log.Committed(), true
	}
	stored := in.stored
	in.mu.Unlock()
	if stored {
		return nil
	}
	return in.save(ctx)
}

// keeps puts an inlet back that was forgotten while a connection waited for it; false if there is another one by now.
func (x *Inlets) keeps(in *inlet) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.known[in.name()] == nil {
		x.known[in.name()] = in
	}
	return x.known[in.name()] == in
}

// save writes the state if it has changed.
func (in *inlet) save(ctx context.Context) error {
	select {
	case in.saving <- struct{}{}:
		defer func() { <-in.saving }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	in.mu.Lock()
	if !in.dirty {
		in.mu.Unlock()
		return nil
	}
	b, err := json.Marshal(inletState{in.stream, in.by, in.seq, in.epochs, in.lastAt})
	in.dirty = false
	in.mu.Unlock()
	if err == nil {
		limit, cancel := context.WithTimeoutCause(ctx, stateTime, errors.New("the bucket does not answer"))
		defer cancel()
		_, err = in.x.kv.Put(limit, in.name(), b)
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	if err == nil {
		in.stored = true
		return nil
	}
	in.dirty = true
	return fmt.Errorf("state of %s: %w", in.name(), err)
}

// unscanned returns the buses whose logs were not read yet for some link.
func (x *Inlets) unscanned() map[string]bool {
	buses := make(map[string]bool)
	for _, in := range x.all() {
		in.mu.Lock()
		if !in.scanned {
			buses[in.bus] = true
		}
		in.mu.Unlock()
	}
	return buses
}

// scan finds what the log of a bus has of links behind their states, once after a start, in one pass for all of them. It blocks
// while it reads, 2 us for each event that came to the bus after the oldest of these states was written, and while somebody else
// does. The error is NotFound while the bus is not open.
func (x *Inlets) scan(ctx context.Context, bus string) error {
	select {
	case x.scanning <- struct{}{}:
		defer func() { <-x.scanning }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	wanted := make(map[[2]string]*scanned) // by instance and link
	from := uint64(math.MaxUint64)
	for _, in := range x.all() {
		in.mu.Lock()
		if !in.scanned && in.bus == bus {
			wanted[[2]string{in.instance, in.link}] = &scanned{in: in, stream: in.stream, from: in.seq + 1, beside: make(map[string]*Progress)}
			from = min(from, in.seq+1)
		}
		in.mu.Unlock()
	}
	if len(wanted) == 0 {
		return nil
	}
	log, err := x.o.Log.Bus(bus)
	if err != nil {
		return err
	}
	end := log.Committed() // nothing of these links comes before they were scanned
	var buf []eventlog.Entry
	for from <= end {
		var next uint64
		if buf, next, err = log.Read(ctx, from, 1024, buf[:0]); err != nil {
			return err
		}
		for _, e := range buf {
			hops := e.Record.Hops
			if len(hops) == 0 {
				continue
			}
			h := hops[len(hops)-1]
			link, life, lane := parseLinkMark(e.Record.Link)
			if s := wanted[[2]string{h.Instance, link}]; s != nil && e.Seq >= s.from && h.Position.Stream == s.stream {
				if s.beside[life] == nil {
					s.beside[life] = new(Progress)
				}
				found := s.beside[life].Of(lane)
				*found = found.Add(h.Position.Seq, h.Position.Seq)
			}
		}
		if next == from {
			break // gaps only, up to the end
		}
		from = next
	}
	for _, s := range wanted {
		s.in.found(s.beside, end)
	}
	return nil
}

// scanned is what a scan has found for a link.
type scanned struct {
	in     *inlet
	stream string
	from   uint64               // in our log
	beside map[string]*Progress // sequences of the sender, by life of the link
}

// found takes in what a scan has found up to a place in our log.
func (in *inlet) found(beside map[string]*Progress, end uint64) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.scanned, in.dirty = true, true
	for life, found := range beside {
		e := in.epochs.of(life)
		e.Beside = Progress{e.Beside.Main.join(found.Main), e.Beside.Urgent.join(found.Urgent)}
		e.settle()
	}
	in.seq = max(in.seq, end)
}

// advance moves the place up to which the state speaks, for a link that is quiet while the bus is not.
func (in *inlet) advance() {
	log, err := in.x.o.Log.Bus(in.bus)
	if err != nil {
		return
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	if !in.scanned || in.inFlight > 0 {
		return
	}
	if end := log.Committed(); end > in.seq+idleBehind {
		in.seq, in.dirty = end, true
	}
}
