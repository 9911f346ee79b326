// SPDX-License-Identifier: Apache-2.0

package region

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/internal/fault"
)

// inletState is what is stored of an inlet.
type inletState struct {
	Stream string    `json:"stream"`
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
		if err != nil || len(parts) != 3 {
			return fmt.Errorf("bucket %s: state %s cannot be read: %w", x.o.Bucket, key, err)
		}
		in := x.newInlet(origin{instance: parts[0], link: parts[1], stream: s.Stream, bus: parts[2]})
		in.seq, in.epochs, in.lastAt, in.stored = s.Seq, s.Epochs, s.At, true
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
		for _, in := range x.all() {
			if err := in.scan(x.ctx); err != nil && fault.KindOf(err) != fault.NotFound && x.ctx.Err() == nil {
				x.log.Warn("the log cannot be read for a link", "link", in.key(), "err", err)
			}
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
func (in *inlet) prepare(ctx context.Context, stream string) error {
	log, err := in.x.o.Log.Bus(in.bus)
	if err != nil {
		return err
	}
	if err := in.scan(ctx); err != nil {
		return err
	}
	in.mu.Lock()
	if in.stream != stream { // the link reads another bus now: positions in the old one mean nothing
		in.stream, in.epochs, in.recent, in.stored = stream, nil, map[uint64]struct{}{}, false
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
	b, err := json.Marshal(inletState{in.stream, in.seq, in.epochs, in.lastAt})
	in.dirty = false
	in.mu.Unlock()
	if err == nil {
		limit, cancel := context.WithTimeoutCause(ctx, stateTime, errors.New("the bucket does not answer"))
		defer cancel()
		_, err = in.x.kv.Put(limit, in.key(), b)
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	if err == nil {
		in.stored = true
		return nil
	}
	in.dirty = true
	return fmt.Errorf("state of %s: %w", in.key(), err)
}

// scan finds what the log has of the link behind its state, the first time it is called for it after a start. It blocks while it
// reads, 2 us for each event that came to the bus after the state was written. The error is NotFound while the bus is not open.
func (in *inlet) scan(ctx context.Context) error {
	in.mu.Lock()
	scanned, from := in.scanned, in.seq+1
	in.mu.Unlock()
	if scanned {
		return nil
	}
	log, err := in.x.o.Log.Bus(in.bus)
	if err != nil {
		return err
	}
	found := make(map[uint64]struct{})
	end := log.Committed() // nothing of the link comes before it was scanned
	var buf []eventlog.Entry
	for from <= end {
		var next uint64
		if buf, next, err = log.Read(ctx, from, 1024, buf[:0]); err != nil {
			return err
		}
		for _, e := range buf {
			if hops := e.Record.Hops; len(hops) > 0 {
				if h := hops[len(hops)-1]; h.Instance == in.instance && h.Position.Stream == in.stream {
					found[h.Position.Seq] = struct{}{}
				}
			}
		}
		if next == from {
			break // gaps only, up to the end
		}
		from = next
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	if !in.scanned {
		in.scanned, in.recent = true, found
	}
	return nil
}

// advance moves the place up to which the state speaks, for a link that is quiet while the bus is not.
func (in *inlet) advance() {
	log, err := in.x.o.Log.Bus(in.bus)
	if err != nil {
		return
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	if !in.scanned || in.inFlight > 0 || len(in.recent) > 0 {
		return
	}
	if end := log.Committed(); end > in.seq+idleBehind {
		in.seq, in.dirty = end, true
	}
}
