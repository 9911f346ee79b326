// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"
)

// Visitor is what Decode calls, in the order of the records. Nil functions are left out. Slices are valid during the
// call only.
type Visitor struct {
	Routed  func(Routed) error
	Skipped func(from, to uint64) error
	Outcome func(Outcome) error
	Pending func(Pending) error
	Mark    func(Mark) error
	RuleDoc func(RuleDoc) error
	Floor   func(seq uint64) error
	Redrive func(Redrive) error
	Discard func(Discard) error
	Taking  func(Taking) error
	Drop    func(Drop) error
	Buried  func(Buried) error
}

// ErrFormat is returned for bytes that are no JOURNEY message.
var ErrFormat = errors.New("not a journey message")

// Decode reads a message and calls v for each record. The error is ErrFormat, wrapped, or what v returned; a message
// is read to the first fault, so v may have been called before.
func Decode(b []byte, v Visitor) error {
	if len(b) == 0 || b[0] != formatVersion {
		return fmt.Errorf("%w: version", ErrFormat)
	}
	d := decoder{b: b[1:]}
	for len(d.b) > 0 && d.err == nil {
		if err := d.record(v); err != nil {
			return err
		}
	}
	return d.err
}

type decoder struct {
	b       []byte
	routes  []Route
	texts   []string
	scratch []Route
	taken   []Taken
	rules   []RuleRef
	seq     uint64
	hour    int64
	at      int64
	err     error
}

func (d *decoder) fail(what string) {
	if d.err == nil {
		d.err = fmt.Errorf("%w: %s", ErrFormat, what)
	}
	d.b = nil
}

func (d *decoder) byte() byte {
	if len(d.b) == 0 {
		d.fail("short")
		return 0
	}
	c := d.b[0]
	d.b = d.b[1:]
	return c
}

func (d *decoder) uint() uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 {
		d.fail("number")
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) int() int64 {
	v, n := binary.Varint(d.b)
	if n <= 0 {
		d.fail("number")
		return 0
	}
	d.b = d.b[n:]
	return v
}

func (d *decoder) check() Check {
	if len(d.b) < 4 {
		d.fail("short")
		return 0
	}
	c := Check(binary.BigEndian.Uint32(d.b))
	d.b = d.b[4:]
	return c
}

func (d *decoder) key() uint64 {
	if len(d.b) < 8 {
		d.fail("short")
		return 0
	}
	k := binary.BigEndian.Uint64(d.b)
	d.b = d.b[8:]
	return k
}

func (d *decoder) bytes() []byte {
	n := d.uint()
	if n > uint64(len(d.b)) {
		d.fail("length")
		return nil
	}
	s := d.b[:n]
	d.b = d.b[n:]
	return s
}

func (d *decoder) str() string { return string(d.bytes()) }

func (d *decoder) sequence() uint64 {
	d.seq += uint64(d.int())
	return d.seq
}

func (d *decoder) route() Route {
	i := d.uint()
	if i >= uint64(len(d.routes)) {
		d.fail("route")
		return Route{}
	}
	return d.routes[i]
}

// routeList adds a list of routes to scratch and returns how many they are.
func (d *decoder) routeList() int {
	n := d.uint()
	if n > uint64(len(d.b)) {
		d.fail("routes")
		return 0
	}
	for range n {
		d.scratch = append(d.scratch, d.route())
	}
	return int(n)
}

func (d *decoder) text() string {
	i := d.uint()
	if i == 0 {
		return ""
	}
	if i > uint64(len(d.texts)) {
		d.fail("text")
		return ""
	}
	return d.texts[i-1]
}

func (d *decoder) micros() time.Duration {
	us := d.uint()
	if us > uint64(math.MaxInt64/time.Microsecond) {
		d.fail("duration")
		return 0
	}
	return time.Duration(us) * time.Microsecond
}

func (d *decoder) exchange() (x Exchange) {
	has := d.byte()
	if has >= hasFirstByte<<1 {
		d.fail("exchange")
	}
	x.Reused = has&isReused != 0
	if has&hasRemote != 0 {
		x.Remote = d.text()
	}
	if has&hasConnection != 0 {
		x.DNS, x.Connect, x.TLS = d.micros(), d.micros(), d.micros()
	}
	if has&hasFirstByte != 0 {
		x.FirstByte = d.micros()
	}
	return x
}

func (d *decoder) state() State {
	s := State(d.byte())
	if stateNames[s] == "" {
		d.fail("state")
	}
	return s
}

// record reads one record and calls v. It returns v's error only; the decoder's own is in d.err.
func (d *decoder) record(v Visitor) error {
	switch kind := d.byte(); kind {
	case kindRoute:
		r := Route{Rule: d.str(), Revision: d.uint(), Target: d.str()}
		d.routes = append(d.routes, r)
	case kindText:
		if s := d.str(); s == "" {
			d.fail("text")
		} else {
			d.texts = append(d.texts, s)
		}
	case kindRouted, kindRanged:
		r := Routed{Seq: d.sequence(), Check: d.check()}
		d.hour += d.int()
		r.Hour = uint32(d.hour)
		d.scratch = d.scratch[:0]
		n := d.routeList()
		if kind == kindRanged {
			d.routeList()
			r.Ranged = d.scratch[n:]
		}
		r.Routes = d.scratch[:n:n]
		return call(d, v.Routed, r)
	case kindSkipped:
		from := d.sequence()
		to := from + d.uint()
		if d.err == nil && v.Skipped != nil {
			return v.Skipped(from, to)
		}
	case kindOutcome:
		return call(d, v.Outcome, d.outcome())
	case kindKeyed:
		key := d.key()
		o := d.outcome()
		if o.State != Parked || key == 0 {
			d.fail("key")
		}
		o.Key = key
		return call(d, v.Outcome, o)
	case kindPending:
		p := Pending{Seq: d.sequence(), Route: d.route(), Check: d.check(), Hour: uint32(d.uint()), State: d.state(),
			Attempts: int(d.uint()), Due: fromMillis(d.int()), First: fromMillis(d.int())}
		return call(d, v.Pending, p)
	case kindMark:
		m := Mark{First: d.uint(), Ruleset: d.uint(), Part: int(d.uint())}
		n := d.uint()
		if n > uint64(len(d.b)) {
			d.fail("rules")
			return nil
		}
		d.rules = d.rules[:0]
		for range n {
			d.rules = append(d.rules, RuleRef{Name: d.str(), Revision: d.uint()})
		}
		m.Rules = d.rules
		return call(d, v.Mark, m)
	case kindRuleDoc:
		return call(d, v.RuleDoc, RuleDoc{Name: d.str(), Revision: d.uint(), Raw: d.bytes()})
	case kindBuried:
		return call(d, v.Buried, Buried{Seq: d.uint(), Listed: d.bytes()})
	case kindFloor:
		return call(d, v.Floor, d.uint())
	case kindRedrive:
		return call(d, v.Redrive, d.redrive())
	case kindDiscard:
		return call(d, v.Discard, d.discard())
	case kindTake, kindLine:
		return call(d, v.Taking, d.taking(kind == kindLine))
	case kindDrop:
		return call(d, v.Drop, Drop{Rule: d.str(), Target: d.str()})
	default:
		if d.err == nil {
			d.fail(fmt.Sprintf("record kind %q", kind))
		}
	}
	return nil
}

func (d *decoder) outcome() Outcome {
	o := Outcome{Seq: d.sequence(), Route: d.route(), State: d.state(), Attempt: int(d.uint())}
	d.at += d.int()
	o.At = fromMillis(d.at)
	o.Duration = d.micros()
	o.Status = int(d.uint())
	o.Exchange = d.exchange()
	switch o.State {
	case Delivered:
		return o
	case Parked:
		o.Due = fromMillis(d.at + d.int())
	case Dead:
		o.DeadSeq = d.uint()
	}
	o.Reason, o.Detail, o.Exchange.Head = d.str(), d.str(), d.text()
	return o
}

func call[T any](d *decoder, fn func(T) error, v T) error {
	if d.err != nil || fn == nil {
		return nil
	}
	return fn(v)
}
