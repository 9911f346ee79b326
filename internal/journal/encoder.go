// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"encoding/binary"
	"time"
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

func (e *Encoder) int(v int64) { e.buf = binary.AppendVarint(e.buf, v) }

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

// Buried adds b.
func (e *Encoder) Buried(b Buried) {
	e.begin(kindBuried)
	e.uint(b.Seq)
	e.uint(uint64(len(b.Listed)))
	e.buf = append(e.buf, b.Listed...)
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
