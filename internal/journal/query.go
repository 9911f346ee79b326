// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/rialto-bridge/rialto/internal/eventlog"
)

// scan calls fn for every key with the prefix, from start on, until fn returns false. Key and value are valid during
// the call.
func (s view) scan(prefix, start []byte, fn func(k, v []byte) (bool, error)) error {
	if start == nil {
		start = prefix
	}
	it, err := s.r.NewIter(&pebble.IterOptions{LowerBound: start, UpperBound: after(prefix)})
	if err != nil {
		return fmt.Errorf("read views: %w", err)
	}
	defer it.Close()
	for ok := it.First(); ok; ok = it.Next() {
		more, err := fn(it.Key(), it.Value())
		if err != nil || !more {
			return err
		}
	}
	return it.Error()
}

// Routing says which JOURNEY message routed an event.
type Routing struct{ First, Last, Record uint64 }

// RoutingOf returns the message that routed the event at seq; ok is false if it was not routed, as far as the views
// know.
func (j *Journal) RoutingOf(bus string, seq uint64) (r Routing, ok bool, err error) {
	prefix := key('r', bus)
	err = j.scan(prefix, u64(bytes.Clone(prefix), seq), func(k, v []byte) (bool, error) {
		r, err = readRouting(k[len(prefix):], v)
		ok = err == nil && r.First <= seq
		return false, err
	})
	return r, ok, err
}

func readRouting(k, v []byte) (Routing, error) {
	if len(k) < 8 || len(v) < 16 {
		return Routing{}, fmt.Errorf("%w: routing", ErrFormat)
	}
	return Routing{binary.BigEndian.Uint64(v), binary.BigEndian.Uint64(k), binary.BigEndian.Uint64(v[8:])}, nil
}

// Journey is what JOURNEY says about one event.
type Journey struct {
	Routed   bool
	RoutedAt time.Time // when the record was stored
	Check    Check
	Routes   []Route
	Outcomes []Step // in the order in which they were recorded; what was ranged begins with being so (ReasonRange)
	Untold   int    // messages that speak of the event and were not read, because there are so many: the oldest of them
	Next     uint64 // the part before this message tells of them; 0 = there are none

	before uint64 // the first message that is not told; 0 = none
}

// MaxJourneyRecords bounds what is read of one journey: an event with more messages has been retried, or sent to targets,
// that often.
const MaxJourneyRecords = 1000

// Journey reads the journey of the event at seq from the stream JOURNEY_<bus>. Of a very long one it tells the newest
// part.
func (j *Journal) Journey(ctx context.Context, bus string, stream *eventlog.Stream, seq uint64) (Journey, error) {
	return j.JourneyPart(ctx, bus, stream, seq, 0, MaxJourneyRecords)
}

// JourneyPart reads what the newest messages before one tell of the event at seq, and most of them; before is the Next of the part
// that follows, and 0 for the newest. The routes of the event are a part of each.
func (j *Journal) JourneyPart(ctx context.Context, bus string, stream *eventlog.Stream, seq, before uint64, most int) (Journey, error) {
	out, err := j.journeys(ctx, bus, stream, []uint64{seq}, before, most)
	if err != nil {
		return Journey{}, err
	}
	return *out[seq], nil
}

// Journeys is Journey for several events, which often share messages: each of those is read once.
func (j *Journal) Journeys(ctx context.Context, bus string, stream *eventlog.Stream, seqs []uint64) (map[uint64]*Journey, error) {
	return j.journeys(ctx, bus, stream, seqs, 0, MaxJourneyRecords)
}

func (j *Journal) journeys(ctx context.Context, bus string, stream *eventlog.Stream, seqs []uint64, before uint64, most int) (map[uint64]*Journey, error) {
	out := make(map[uint64]*Journey, len(seqs))
	for _, seq := range seqs {
		out[seq] = &Journey{before: before}
	}
	records, err := j.recordsOf(bus, out, seqs, most)
	if err != nil {
		return nil, err
	}
	// What is trimmed or damaged is passed over: what is left is told.
	if err := stream.Each(ctx, records, func(raw eventlog.Raw) error { return readJourneys(out, raw) }); err != nil {
		return nil, fmt.Errorf("read outcomes: %w", err)
	}
	for _, journey := range out {
		if journey.Untold > 0 { // such as the redrive that made a route
			for _, o := range journey.Outcomes {
				journey.owes(o.Route)
			}
		}
		if err := journey.standInRanges(j, bus); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// recordsOf returns the messages of JOURNEY that speak of events, at most so many for each and that which routed it, in order. It notes
// in out how many older ones are left out.
func (j *Journal) recordsOf(bus string, out map[uint64]*Journey, seqs []uint64, most int) ([]uint64, error) {
	mentions, routings := key('j', bus), key('r', bus)
	it, err := j.db.NewIter(&pebble.IterOptions{LowerBound: mentions, UpperBound: after(mentions)})
	if err != nil {
		return nil, fmt.Errorf("read views: %w", err)
	}
	defer it.Close()
	routing, err := j.db.NewIter(&pebble.IterOptions{LowerBound: routings, UpperBound: after(routings)})
	if err != nil {
		return nil, fmt.Errorf("read views: %w", err)
	}
	defer routing.Close()
	var records []uint64
	for _, seq := range seqs {
		var own []uint64
		prefix := u64(bytes.Clone(mentions), seq)
		for ok := it.SeekGE(prefix); ok && bytes.HasPrefix(it.Key(), prefix); ok = it.Next() {
			own = append(own, binary.BigEndian.Uint64(it.Key()[len(prefix):]))
		}
		if before := out[seq].before; before > 0 {
			i, _ := slices.BinarySearch(own, before)
			own = own[:i]
		}
		untold := max(0, len(own)-most)
		if out[seq].Untold = untold; untold > 0 {
			out[seq].Next = own[untold]
		}
		records = append(records, own[untold:]...)
		if routing.SeekGE(u64(bytes.Clone(routings), seq)) {
			if r, err := readRouting(routing.Key()[len(routings):], routing.Value()); err != nil {
				return nil, err
			} else if r.First <= seq {
				records = append(records, r.Record)
			}
		}
	}
	slices.Sort(records)
	return slices.Compact(records), errors.Join(it.Error(), routing.Error())
}

// readJourneys adds what a message says of the events in out.
func readJourneys(out map[uint64]*Journey, raw eventlog.Raw) error {
	return Decode(raw.Data, Visitor{
		Routed: func(x Routed) error {
			if j := out[x.Seq]; j != nil {
				j.Routed, j.RoutedAt, j.Check = true, raw.Stored, x.Check
				j.Routes = append(j.Routes, x.Routes...)
				j.ranged(x, raw.Stored)
			}
			return nil
		},
		Pending: func(x Pending) error {
			if j := out[x.Seq]; j != nil {
				j.owes(x.Route)
			}
			return nil
		},
		Outcome: func(x Outcome) error {
			if j := out[x.Seq]; j != nil {
				j.Outcomes = append(j.Outcomes, Step{Outcome: x, Untold: !j.tells(raw.Seq)})
			}
			return nil
		},
		Redrive: func(x Redrive) error {
			if j := out[x.Seq]; j != nil {
				j.redriven(x)
			}
			return nil
		},
		Discard: func(x Discard) error {
			if j := out[x.Seq]; j != nil {
				j.Outcomes = append(j.Outcomes, x.step())
			}
			return nil
		},
	})
}

// tells reports whether a message belongs to the part that is told. Only the message that routed the event is read and may not.
func (j *Journey) tells(record uint64) bool {
	return record >= j.Next && (j.before == 0 || record < j.before)
}

// owes notes a route of the event if it has not been one.
func (j *Journey) owes(r Route) {
	if !slices.ContainsFunc(j.Routes, func(x Route) bool { return x.Rule == r.Rule && x.Target == r.Target }) {
		j.Routes = append(j.Routes, r)
	}
}

// redriven notes a redrive, which may be to another target.
func (j *Journey) redriven(r Redrive) {
	j.owes(r.Route)
	j.Outcomes = append(j.Outcomes, r.steps()...)
}

// EachPending calls fn for every pending delivery of a bus in order of position, until it returns false.
func (j *Journal) EachPending(bus string, fn func(Pending) (bool, error)) error {
	return j.eachPending(key('p', bus), nil, bus, fn)
}

func (s view) eachPending(prefix, start []byte, bus string, fn func(Pending) (bool, error)) error {
	head := len(key('p', bus))
	return s.scan(prefix, start, func(k, v []byte) (bool, error) {
		p, err := readPending(k[head:], v)
		if err != nil {
			return false, err
		}
		return fn(p)
	})
}

// readPending reads a pending delivery from its key behind the bus, and its value.
func readPending(k, v []byte) (Pending, error) {
	i := bytes.IndexByte(k[min(8, len(k)):], 0)
	if len(k) < 8 || i < 0 {
		return Pending{}, fmt.Errorf("pending key of %d bytes", len(k))
	}
	p := Pending{Seq: binary.BigEndian.Uint64(k), Route: Route{Rule: string(k[8 : 8+i]), Target: string(k[8+i+1:])}}
	return p, p.decode(v)
}

// FindPending returns one pending delivery; ok is false if it is settled for good or unknown.
func (j *Journal) FindPending(bus string, seq uint64, rule, target string) (p Pending, ok bool, err error) {
	r := Route{Rule: rule, Target: target}
	b, err := j.get(pendingKey(bus, seq, r))
	if err != nil || b == nil {
		return p, false, err
	}
	p = Pending{Seq: seq, Route: r}
	return p, true, p.decode(b)
}

// DueKey is what the order of due times knows of a parked delivery.
type DueKey struct {
	Bus  string
	Seq  uint64
	Rule string
	Due  time.Time
}

// Verdict is what a reader of due deliveries does with one.
type Verdict int

// The verdicts.
const (
	Take Verdict = iota
	Skip
	Stop
)

// Due is a parked delivery.
type Due struct {
	Bus string
	Pending
}

// DueFor goes through the parked deliveries of a target in order of due time, those that are due at from or later; zero is all. It asks
// choose about each, and then reads those that were taken, which it has in memory until then, and calls fn for each that is still due then:
// what choose knew when it was asked is older than what fn is given.
func (j *Journal) DueFor(target string, from time.Time, choose func(DueKey) (Verdict, error), fn func(Due) error) error {
	prefix := key('d', target)
	var start []byte
	if !from.IsZero() {
		start = u64(bytes.Clone(prefix), uint64(millis(from)))
	}
	var taken []DueKey
	err := j.scan(prefix, start, func(k, _ []byte) (bool, error) {
		k = k[len(prefix):]
		i := bytes.IndexByte(k[min(8, len(k)):], 0)
		if i < 0 || len(k) < 8+i+9 {
			return false, fmt.Errorf("due key of %d bytes", len(k))
		}
		rest := k[8+i+1:]
		dk := DueKey{Bus: string(k[8 : 8+i]), Seq: binary.BigEndian.Uint64(rest), Rule: string(rest[8:]),
			Due: fromMillis(int64(binary.BigEndian.Uint64(k)))}
		switch v, err := choose(dk); {
		case err != nil || v == Stop:
			return false, err
		case v == Take:
			taken = append(taken, dk)
		}
		return true, nil
	})
	if err != nil {
		return err
	}
	look := lookup{view: j.view}
	for _, dk := range taken {
		p, ok, err := look.pending(dk.Bus, dk.Seq, Route{Rule: dk.Rule, Target: target})
		if err == nil && ok && p.State == Parked && millis(p.Due) == millis(dk.Due) { // else it ended, or is due at another time, since this reading began
			err = fn(Due{Bus: dk.Bus, Pending: p})
		}
		if err != nil {
			return errors.Join(err, look.close())
		}
	}
	return look.close()
}

// NextDue returns the earliest due time of a target; zero if nothing is parked.
func (j *Journal) NextDue(target string) (at time.Time, err error) {
	prefix := key('d', target)
	err = j.scan(prefix, nil, func(k, _ []byte) (bool, error) {
		if k = k[len(prefix):]; len(k) >= 8 {
			at = fromMillis(int64(binary.BigEndian.Uint64(k)))
		}
		return false, nil
	})
	return at, err
}

// InForce returns the rules in force at a position: those of the last mark at or below it; the zero Mark if none is
// known. The parts of a large set are put together.
func (j *Journal) InForce(bus string, seq uint64) (Mark, error) {
	prefix := key('m', bus)
	it, err := j.db.NewIter(&pebble.IterOptions{LowerBound: prefix, UpperBound: after(prefix)})
	if err != nil {
		return Mark{}, fmt.Errorf("read views: %w", err)
	}
	defer it.Close()
	if !it.SeekLT(u64(bytes.Clone(prefix), seq+1)) {
		return Mark{}, it.Error()
	}
	m := Mark{First: binary.BigEndian.Uint64(it.Key()[len(prefix):])}
	parts, err := j.marks(bus, m.First, m.First)
	for _, p := range parts {
		m.Ruleset = p.Ruleset
		m.Rules = append(m.Rules, p.Rules...)
	}
	return m, err
}

// Marks returns the marks, part by part, that events from seq on need.
func (j *Journal) Marks(bus string, seq uint64) ([]Mark, error) {
	m, err := j.InForce(bus, seq)
	if err != nil {
		return nil, err
	}
	return j.marks(bus, m.First, ^uint64(0))
}

func (j *Journal) marks(bus string, from, to uint64) ([]Mark, error) {
	var out []Mark
	prefix := key('m', bus)
	err := j.scan(prefix, u64(bytes.Clone(prefix), from), func(k, v []byte) (bool, error) {
		k = k[len(prefix):]
		m := Mark{First: binary.BigEndian.Uint64(k), Part: int(binary.BigEndian.Uint32(k[8:]))}
		if m.First > to {
			return false, nil
		}
		d := decoder{b: v}
		m.Ruleset = d.uint()
		for n := d.uint(); n > 0 && d.err == nil; n-- {
			m.Rules = append(m.Rules, RuleRef{Name: d.str(), Revision: d.uint()})
		}
		out = append(out, m)
		return true, d.err
	})
	return out, err
}

// RuleDocument returns the document of a rule at a revision; nil if the views do not have it.
func (j *Journal) RuleDocument(bus, name string, revision uint64) ([]byte, error) {
	b, err := j.get(ruleKey(bus, name, revision))
	if err != nil || len(b) < 8 {
		return nil, err
	}
	return b[8:], nil
}

// DeadRef is one dead letter as the views list it. The event and the whole story are in DEAD at Seq.
type DeadRef struct {
	Seq   uint64 // in DEAD
	Bus   string
	Check Check
	Hour  uint32
	Outcome
}

func encodeDead(bus string, p *Pending, o Outcome) []byte {
	b := binary.AppendUvarint(nil, uint64(len(bus)))
	b = append(b, bus...)
	b = u32(b, uint32(p.Check))
	b = binary.AppendUvarint(b, uint64(p.Hour))
	o.Exchange = Exchange{} // it stands in DEAD
	var e Encoder
	e.Outcome(o)
	return append(b, e.Take()...)
}

// readDead reads what encodeDead wrote.
func readDead(k, v []byte) (DeadRef, error) {
	d := decoder{b: v}
	ref := DeadRef{Seq: binary.BigEndian.Uint64(k[1:]), Bus: d.str(), Check: d.check(), Hour: uint32(d.uint())}
	if d.err != nil {
		return ref, d.err
	}
	return ref, Decode(d.b, Visitor{Outcome: func(o Outcome) error { ref.Outcome = o; return nil }})
}

// LastDead returns the highest sequence in DEAD that the views know; 0 if there is none.
func (j *Journal) LastDead() (uint64, error) { return j.highest('D') }

// DeadLetter returns one dead letter; ok is false if it is none, or none any more.
func (j *Journal) DeadLetter(seq uint64) (ref DeadRef, ok bool, err error) {
	k := u64([]byte{'x'}, seq)
	v, err := j.get(k)
	if err != nil || v == nil {
		return ref, false, err
	}
	ref, err = readDead(k, v)
	return ref, err == nil, err
}

// EachDead calls fn for the dead letters behind after and up to last, oldest first, until it returns false.
func (j *Journal) EachDead(after, last uint64, fn func(DeadRef) (bool, error)) error {
	return j.scan([]byte{'x'}, u64([]byte{'x'}, after+1), func(k, v []byte) (bool, error) {
		ref, err := readDead(k, v)
		if err != nil || ref.Seq > last {
			return false, err
		}
		return fn(ref)
	})
}

// EachBuried calls fn for the dead letters of a bus behind after, oldest first, until it returns false.
func (j *Journal) EachBuried(bus string, after uint64, fn func(Buried) (bool, error)) error {
	return j.scan([]byte{'x'}, u64([]byte{'x'}, after+1), func(k, v []byte) (bool, error) {
		ref, err := readDead(k, v)
		if err != nil || ref.Bus != bus {
			return true, err
		}
		return fn(Buried{Seq: ref.Seq, Listed: bytes.Clone(v)})
	})
}

// DeadLetters calls fn for the dead letters below before (0 = all), newest first, until it returns false.
func (j *Journal) DeadLetters(before uint64, fn func(DeadRef) (bool, error)) error {
	upper := []byte{'x' + 1}
	if before > 0 {
		upper = u64([]byte{'x'}, before)
	}
	it, err := j.db.NewIter(&pebble.IterOptions{LowerBound: []byte{'x'}, UpperBound: upper})
	if err != nil {
		return fmt.Errorf("read views: %w", err)
	}
	defer it.Close()
	for ok := it.Last(); ok; ok = it.Prev() {
		ref, err := readDead(it.Key(), it.Value())
		if err != nil {
			return err
		}
		more, err := fn(ref)
		if err != nil || !more {
			return err
		}
	}
	return it.Error()
}
