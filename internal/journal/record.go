// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
)

// Route is a rule, at a revision, and one of its targets: one obligation an event can bring about.
type Route struct {
	Rule     string
	Revision uint64
	Target   string
}

// Check is four bytes of an event's Key, kept beside positions: a reused sequence is noticed by it.
type Check uint32

// CheckOf returns the check of a key.
func CheckOf(k event.Key) Check { return Check(binary.BigEndian.Uint32(k[:4])) }

// State is where a delivery stands.
type State byte

// The states. Live is the only one without a record of its own: it begins with Routed.
const (
	Live      State = 'l' // routed, not settled yet
	Parked    State = 'p' // waits on disk until it is due
	Delivered State = 'd'
	Dead      State = 'x' // ended without success; a copy is in DEAD
	Cancelled State = 'c' // its rule or target was deleted, or its event is gone
	Expired   State = 'e' // the event's expirytime came first
	Discarded State = 'w' // it was dead, and somebody has written it off or sent it to another target
)

var stateNames = map[State]string{Live: "live", Parked: "parked", Delivered: "delivered", Dead: "dead", Cancelled: "cancelled",
	Expired: "expired", Discarded: "discarded"}

// String returns the word users see.
func (s State) String() string { return stateNames[s] }

// MarshalText is String.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads what String wrote.
func (s *State) UnmarshalText(b []byte) error {
	for v, name := range stateNames {
		if name == string(b) {
			*s = v
			return nil
		}
	}
	return fmt.Errorf("no delivery state %q", b)
}

// Terminal reports whether nothing further happens in the state unless somebody asks for it.
func (s State) Terminal() bool { return s != Live && s != Parked }

// Routed says that an event has been matched and what it owes.
type Routed struct {
	Seq    uint64
	Check  Check
	Hour   uint32 // of the event's arrival, hours since 1970
	Routes []Route
	Ranged []Route // owed as well, and not live: see Range
}

// HourOf returns the hour of a time as used in records and the ledger.
func HourOf(t time.Time) uint32 { return uint32(t.Unix() / 3600) }

// Outcome says what became of a delivery: an attempt's result, or a change of state without an attempt.
type Outcome struct {
	Seq      uint64
	Route    Route
	State    State
	Attempt  int           // number of the attempt that led here; 0 = none was made
	At       time.Time     // when the attempt began, or when the state changed; milliseconds are kept
	Duration time.Duration // of the attempt; microseconds are kept
	Status   int           // answer of the far side; 0 = none
	Reason   string        // why it failed, a targets.Reason or a word of the bridge's; "" for Delivered
	Detail   string        // for people, at most maxDetail bytes
	Due      time.Time     // Parked: when it is tried again; milliseconds are kept
	DeadSeq  uint64        // Dead: its place in DEAD
	Key      uint64        // Parked: what it is in order with, 0 = nothing
	Exchange Exchange      // how the attempt went on the wire
}

// Exchange is how an attempt went on the wire, as far as it is known: targets.Exchange. Microseconds are kept.
type Exchange struct {
	Remote            string
	Reused            bool
	DNS, Connect, TLS time.Duration
	FirstByte         time.Duration
	Head              string // at most maxHead bytes; not kept of what was delivered
}

// Pending is a delivery that is not settled for good, as the views keep it. As a record it is one that found no place in
// its event's Routed record, which follows: an event may owe more than one message can say.
type Pending struct {
	Seq      uint64
	Route    Route
	Check    Check
	Hour     uint32
	State    State     // Live or Parked
	Attempts int       // attempts made so far
	Due      time.Time // Parked
	First    time.Time // start of the first attempt; zero if there was none
	Record   uint64    // sequence of the JOURNEY message that says so; not part of the record itself
	Redrive  *Redriven // nil unless it was redriven; not part of the record either
	Key      uint64    // Parked: as in its Outcome; not part of the record either
}

// RuleRef names a rule at a revision.
type RuleRef struct {
	Name     string
	Revision uint64
}

// Mark says which rules are in force from a position on.
type Mark struct {
	First   uint64 // first sequence routed by them
	Ruleset uint64 // revision of the set
	Part    int    // a large set is spread over several marks, numbered from 0
	Rules   []RuleRef
}

// RuleDoc is a rule's document at a revision.
type RuleDoc struct {
	Name     string
	Revision uint64
	Raw      []byte
}

const (
	formatVersion = 2
	maxDetail     = 256
	maxHead       = 16 << 10
	// headRoom is how many bytes of heads a message holds: targets that fail in many ways at once do not fill the disk
	// with it. One that has no room any more is cut to shortHead. Equal ones are there once.
	headRoom  = 32 << 10
	shortHead = 512

	kindRoute   = 'r' // defines the next route index of this message
	kindText    = 't' // defines the next text index, from 1: an address, or a head
	kindRouted  = 'R'
	kindRanged  = 'N' // as kindRouted, with what is ranged behind
	kindSkipped = 'S' // sequences without an event
	kindOutcome = 'O'
	kindKeyed   = 'K' // an outcome with a key before
	kindPending = 'P'
	kindMark    = 'M'
	kindRuleDoc = 'D'
	kindFloor   = 'F'
)

// Encoder builds one JOURNEY message. The zero value is ready. Not for concurrent use.
type Encoder struct {
	buf     []byte
	routes  map[Route]uint64
	texts   map[string]uint64
	heads   int    // bytes of them
	seq     uint64 // of the last record that had one
	hour    uint32
	at      int64
	records int
}

// Len returns the size of the message so far; 0 when nothing was added.
func (e *Encoder) Len() int { return len(e.buf) }

// Records returns how many records were added.
func (e *Encoder) Records() int { return e.records }

// Take returns the message and makes the Encoder empty. The message belongs to the caller.
func (e *Encoder) Take() []byte {
	b := e.buf
	*e = Encoder{routes: e.routes, texts: e.texts}
	clear(e.routes)
	clear(e.texts)
	return b
}

func (e *Encoder) begin(kind byte) {
	if len(e.buf) == 0 {
		e.buf = append(make([]byte, 0, 1024), formatVersion)
	}
	e.buf = append(e.buf, kind)
	e.records++
}

func (e *Encoder) uint(v uint64) { e.buf = binary.AppendUvarint(e.buf, v) }
func (e *Encoder) int(v int64)   { e.buf = binary.AppendVarint(e.buf, v) }

func (e *Encoder) str(s string) {
	e.uint(uint64(len(s)))
	e.buf = append(e.buf, s...)
}

// sequence writes seq as the distance from the last one.
func (e *Encoder) sequence(seq uint64) {
	e.int(int64(seq - e.seq))
	e.seq = seq
}

func (e *Encoder) time(t time.Time) {
	ms := millis(t)
	e.int(ms - e.at)
	e.at = ms
}

func millis(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

func fromMillis(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}

// route returns the index of r in this message, defining it first if it is new.
func (e *Encoder) route(r Route) uint64 {
	if i, ok := e.routes[r]; ok {
		return i
	}
	if e.routes == nil {
		e.routes = make(map[Route]uint64)
	}
	i := uint64(len(e.routes))
	e.routes[r] = i
	e.begin(kindRoute)
	e.records--
	e.str(r.Rule)
	e.uint(r.Revision)
	e.str(r.Target)
	return i
}

// text returns the index of s in this message, defining it first if it is new; 0 stands for "".
func (e *Encoder) text(s string) uint64 {
	if s == "" {
		return 0
	}
	if i, ok := e.texts[s]; ok {
		return i
	}
	if e.texts == nil {
		e.texts = make(map[string]uint64)
	}
	i := uint64(len(e.texts)) + 1
	e.texts[s] = i
	e.begin(kindText)
	e.records--
	e.str(s)
	return i
}

// head is text for how an answer began.
func (e *Encoder) head(s string) uint64 {
	s = Cut(s, maxHead)
	if _, ok := e.texts[s]; !ok && len(s) > shortHead && e.heads+len(s) > headRoom {
		s = Cut(s, shortHead)
	}
	before := len(e.texts)
	i := e.text(s)
	if len(e.texts) > before {
		e.heads += len(s)
	}
	return i
}

// Routed adds r.
func (e *Encoder) Routed(r Routed) {
	var few [8]uint64
	idx := few[:0]
	for _, rt := range r.Routes {
		idx = append(idx, e.route(rt))
	}
	for _, rt := range r.Ranged {
		idx = append(idx, e.route(rt))
	}
	if len(r.Ranged) > 0 {
		e.begin(kindRanged)
	} else {
		e.begin(kindRouted)
	}
	e.sequence(r.Seq)
	e.buf = binary.BigEndian.AppendUint32(e.buf, uint32(r.Check))
	e.int(int64(r.Hour) - int64(e.hour))
	e.hour = r.Hour
	n := len(r.Routes)
	e.indexes(idx[:n])
	if len(r.Ranged) > 0 {
		e.indexes(idx[n:])
	}
}

func (e *Encoder) indexes(idx []uint64) {
	e.uint(uint64(len(idx)))
	for _, i := range idx {
		e.uint(i)
	}
}

// Skipped says that the sequences from..to hold no event.
func (e *Encoder) Skipped(from, to uint64) {
	e.begin(kindSkipped)
	e.sequence(from)
	e.uint(to - from)
}

// Outcome adds o. A Detail that is too long is cut.
func (e *Encoder) Outcome(o Outcome) {
	i := e.route(o.Route)
	x := &o.Exchange
	remote, head := e.text(x.Remote), uint64(0)
	if o.State != Delivered {
		head = e.head(x.Head)
	}
	if o.State == Parked && o.Key != 0 {
		e.begin(kindKeyed)
		e.buf = binary.BigEndian.AppendUint64(e.buf, o.Key)
	} else {
		e.begin(kindOutcome)
	}
	e.sequence(o.Seq)
	e.uint(i)
	e.buf = append(e.buf, byte(o.State))
	e.uint(uint64(o.Attempt))
	e.time(o.At)
	e.uint(uint64(max(o.Duration.Microseconds(), 0)))
	e.uint(uint64(max(o.Status, 0)))
	e.exchange(x, remote)
	switch o.State {
	case Delivered:
		return
	case Parked:
		e.int(millis(o.Due) - e.at)
	case Dead:
		e.uint(o.DeadSeq)
	}
	e.str(o.Reason)
	e.str(Cut(o.Detail, maxDetail))
	e.uint(head)
}

// What an exchange has, apart from its head.
const (
	hasRemote = 1 << iota
	isReused
	hasConnection // how long it took to make
	hasFirstByte
)

func (e *Encoder) exchange(x *Exchange, remote uint64) {
	micros := func(d time.Duration) uint64 { return uint64(max(d.Microseconds(), 0)) }
	dns, connect, handshake, first := micros(x.DNS), micros(x.Connect), micros(x.TLS), micros(x.FirstByte)
	var has byte
	if remote != 0 {
		has |= hasRemote
	}
	if x.Reused {
		has |= isReused
	}
	if dns|connect|handshake != 0 {
		has |= hasConnection
	}
	if first != 0 {
		has |= hasFirstByte
	}
	e.buf = append(e.buf, has)
	if has&hasRemote != 0 {
		e.uint(remote)
	}
	if has&hasConnection != 0 {
		e.uint(dns)
		e.uint(connect)
		e.uint(handshake)
	}
	if has&hasFirstByte != 0 {
		e.uint(first)
	}
}

// Pending adds p once more.
func (e *Encoder) Pending(p Pending) {
	i := e.route(p.Route)
	e.begin(kindPending)
	e.sequence(p.Seq)
	e.uint(i)
	e.buf = binary.BigEndian.AppendUint32(e.buf, uint32(p.Check))
	e.uint(uint64(p.Hour))
	e.buf = append(e.buf, byte(p.State))
	e.uint(uint64(p.Attempts))
	e.int(millis(p.Due))
	e.int(millis(p.First))
}

// Mark adds m.
func (e *Encoder) Mark(m Mark) {
	e.begin(kindMark)
	e.uint(m.First)
	e.uint(m.Ruleset)
	e.uint(uint64(m.Part))
	e.uint(uint64(len(m.Rules)))
	for _, r := range m.Rules {
		e.str(r.Name)
		e.uint(r.Revision)
	}
}

// RuleDoc adds d.
func (e *Encoder) RuleDoc(d RuleDoc) {
	e.begin(kindRuleDoc)
	e.str(d.Name)
	e.uint(d.Revision)
	e.uint(uint64(len(d.Raw)))
	e.buf = append(e.buf, d.Raw...)
}

// Floor says that everything up to and including seq is settled.
func (e *Encoder) Floor(seq uint64) {
	e.begin(kindFloor)
	e.uint(seq)
}

// Cut shortens s to at most n bytes without splitting a character.
func Cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && s[n]&0xC0 == 0x80 {
		n--
	}
	return s[:n]
}

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
