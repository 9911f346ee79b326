// SPDX-License-Identifier: Apache-2.0

package sources

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/internal/fault"
)

// RefusedType is the type of the events that stand for those which cannot be stored.
const RefusedType = "io.rialto.source.refused"

// emit is the Emit of a source.
func (in *instance) emit(ctx context.Context, evs ...event.Event) error {
	now := in.s.o.Now()
	pending := make([]*event.Record, len(evs))
	refusals := map[*event.Record]bool{} // those that stand for an event
	for i := range evs {
		var refused bool
		if pending[i], refused = in.record(&evs[i], now); refused {
			refusals[pending[i]] = true
		}
	}
	for len(pending) > 0 {
		receipts, err := in.ingest(ctx, pending)
		if err != nil {
			return err
		}
		var next []*event.Record
		for i, r := range receipts {
			switch rec := pending[i]; {
			case r.Err == nil && r.Duplicate:
				in.tally.duplicate(1)
			case r.Err == nil:
				in.tally.add(now)
			case forEver(r.Err) && refusals[rec]: // a bus may take no such events
				in.s.log.Error("what stands for a refused event is refused, too", "source", in.def.Name, "bus", in.def.Bus, "err", r.Err)
			case forEver(r.Err):
				refusal := in.refusal(&rec.Event, r.Err, now)
				refusals[refusal] = true
				next = append(next, refusal)
			default:
				return r.Err
			}
		}
		pending = next
	}
	return nil
}

// ingest hands events over. Under an error that the receipts do not explain, it returns none: nothing may be acknowledged then. Where
// none of several is stored because some do not fit their schemas, those that do are stored.
func (in *instance) ingest(ctx context.Context, recs []*event.Record) ([]eventlog.Receipt, error) {
	receipts, err := in.s.o.Ingester.Ingest(ctx, in.def.Bus, recs)
	failed := func(r eventlog.Receipt) bool { return r.Err != nil }
	switch {
	case err == nil || len(receipts) == len(recs) && slices.ContainsFunc(receipts, failed):
		return receipts, nil
	case len(recs) == 1 || fault.KindOf(err) != fault.Unfit:
		return nil, err
	}
	half := len(recs) / 2
	first, err := in.ingest(ctx, recs[:half])
	if err != nil {
		return nil, err
	}
	second, err := in.ingest(ctx, recs[half:])
	return append(first, second...), err
}

// forEver reports whether an event is refused for what it is, and not for what the bridge is at the moment.
func forEver(err error) bool {
	var e *event.Error
	k := fault.KindOf(err)
	return errors.As(err, &e) || k == fault.Invalid || k == fault.TooLarge || k == fault.Unfit
}

// record makes the record of an event, or of what stands for it when it is not valid.
func (in *instance) record(ev *event.Event, now time.Time) (rec *event.Record, refused bool) {
	e := *ev
	if _, has := e.Extension(recordedTime); !has {
		e.Extensions = withExtension(e.Extensions, recordedTime, now.UTC().Format(time.RFC3339Nano))
	}
	if err := e.Validate(in.s.o.Limits); err != nil {
		return in.refusal(ev, err, now), true
	}
	return &event.Record{Event: e}, false
}

// recordedTime is the CloudEvents extension for when an adapter made the event.
const recordedTime = "recordedtime"

// withExtension returns a copy of x with one more.
func withExtension(x []event.Attribute, name string, value any) []event.Attribute {
	i, _ := slices.BinarySearchFunc(x, name, func(a event.Attribute, name string) int { return strings.Compare(a.Name, name) })
	return slices.Insert(slices.Clone(x), i, event.Attribute{Name: name, Value: value})
}

// refusedData is the data of a RefusedType event. It repeats nothing of the event.
type refusedData struct {
	Source string `json:"source"` // the name of the source
	Reason string `json:"reason"`
	Bytes  int64  `json:"bytes"` // of the data; of what was not read, of the body
	// SHA256 is of the data; "" if it was not read.
	SHA256 string `json:"sha256,omitempty"`
}

// refusal makes what is stored in the place of an event that cannot be. Its id follows from the event, so that a repeat is a
// duplicate.
func (in *instance) refusal(ev *event.Event, why error, now time.Time) *event.Record {
	if in.tally.refuse(now) {
		in.s.log.Warn("event refused", "source", in.def.Name, "refused", in.tally.refused.Load(), "bytes", len(ev.Data), "err", why)
	}
	source, id, sum := in.refusalKey(ev)
	return in.refusedRecord(source, id, now, refusedData{in.def.Name, why.Error(), int64(len(ev.Data)), sum})
}

func (in *instance) refusedRecord(source, id string, now time.Time, d refusedData) *event.Record {
	data, err := json.Marshal(d)
	if err != nil {
		data = []byte("{}") // strings and numbers always marshal
	}
	return &event.Record{Event: event.Event{ID: id, Source: source, Type: RefusedType,
		Subject: in.def.Name, Time: now, DataContentType: "application/json", Data: data}}
}

// unreadWithin bounds the commit of what stands for something that was not read: the answer waits for it.
const unreadWithin = 2 * time.Second

// unread stores what stands for something that was not read. Nothing is known of it but its size, from which the id follows: who tries
// the same again and again makes one event while the bus remembers.
func (in *instance) unread(ctx context.Context, u *Unread) {
	ctx, cancel := context.WithTimeoutCause(ctx, unreadWithin, errors.New("the log does not answer in time"))
	defer cancel()
	source, id, _ := in.refusalKey(&event.Event{Source: "/hooks/" + in.def.Name, ID: fmt.Sprintf("unread, %d bytes", u.Bytes)})
	rec := in.refusedRecord(source, id, in.s.o.Now(), refusedData{Source: in.def.Name, Reason: u.Error(), Bytes: u.Bytes})
	receipts, err := in.ingest(ctx, []*event.Record{rec})
	if err == nil {
		err = receipts[0].Err
	}
	if err != nil {
		in.s.log.Error("what stands for a request that was not read is not stored", "source", in.def.Name, "bus", in.def.Bus, "err", err)
	}
}

// refusalKey is the source and the id of what stands for an event, and the hash of its data.
func (in *instance) refusalKey(ev *event.Event) (source, id, data string) {
	sum := sha256.Sum256(ev.Data)
	data = hex.EncodeToString(sum[:])
	key := sha256.Sum256([]byte(ev.Source + "\x00" + ev.ID + "\x00" + data))
	return "/sources/" + in.def.Name, hex.EncodeToString(key[:16]), data
}

// stored is Env.Stored of a source.
func (in *instance) stored(ctx context.Context, ev *event.Event) (bool, error) {
	there, err := in.s.o.Ingester.Stored(ctx, in.def.Bus, ev.Source, ev.ID)
	if err != nil || there {
		return there, err
	}
	source, id, _ := in.refusalKey(ev)
	return in.s.o.Ingester.Stored(ctx, in.def.Bus, source, id)
}
