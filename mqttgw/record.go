// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"encoding/binary"
	"errors"
	"maps"
	"math"
	"slices"
	"time"
)

// A message of SESSIONS is a format byte, the checkpoint (a position in each feed), and records: a kind, the length of what
// follows (uvarint), and that. DESIGN.md says when which is written.
const recordFormat = 2

type recordKind byte

const (
	recordSession  recordKind = 'S' // a session, whole
	recordProgress recordKind = 'P' // what changes while it is used
	recordReceived recordKind = 'R' // a QoS 2 message of the client is stored
	recordReleased recordKind = 'r' // its id is free
	recordFlight   recordKind = 'F' // a QoS 2 message is on its way to the client, or was released to it
	recordEnd      recordKind = 'E' // the session is no more
	recordGroup    recordKind = 'G' // a shared group, whole
	recordGroupEnd recordKind = 'g'
	recordCut      recordKind = 'M' // a change of topic mappings
)

// record is one record, decoded. Which fields are set depends on the kind.
type record struct {
	kind         recordKind
	epoch, fence uint64 // of the session

	state  sessionState // recordSession; recordProgress: the embedded progress only
	flight flightState  // recordFlight
	id     uint16       // recordReceived, recordReleased
	uses   uint64       // recordReceived
	group  groupState   // recordGroup; recordGroupEnd: the filter only
	cut    cutState     // recordCut
}

// sessionState is a session as it is written down.
type sessionState struct {
	key      sessionKey
	version  byte
	expiry   uint32
	uses     uint64
	open     []uint64 // uses up to there that were not stored yet, or not written down
	subs     []subState
	received []receivedState
	will     *incoming
	delay    uint32 // of the will, seconds
	progress
}

// progress is the part of a session that changes while it is used.
type progress struct {
	online   bool
	doubtful bool      // it was connected when a process was killed, and has not caught up since
	armed    bool      // the will is still to be published
	deadline time.Time // zero = none
	due      time.Time // of the will; zero = with the connection
	streams  []streamState
	flying   []flightState
	scans    []scanState
}

// streamState is a position in a feed.
type streamState struct {
	feed  string
	lags  bool
	from  uint64
	exact uint64
	ahead []span
}

// momentState is a place in each feed.
type momentState []markState

type markState struct {
	feed string
	seq  uint64
}

type cutState struct {
	moment momentState
	made   uint64
}

// at returns the place in a feed.
func (m momentState) at(feed string) (seq uint64, ok bool) {
	for i := range m {
		if m[i].feed == feed {
			return m[i].seq, true
		}
	}
	return 0, false
}

type subState struct {
	filter string
	opts   byte
	id     uint32
	since  momentState
}

type receivedState struct {
	id  uint16
	use uint64
}

type flightState struct {
	feed    string // "" = of a retained message, from a bus that is not served any more
	seq     uint64
	id      uint16
	stage   stage
	topic   string // of a retained message
	group   string // filter of a shared subscription
	command bool   // to one device
}

// flightCommand is set beside the stage of a flight that is a command.
const flightCommand = 0x80

type scanState struct {
	filter, after string
	upTo          momentState
}

type groupState struct {
	filter string
	shares []shareState
}

// shareState is where a group is in a feed.
type shareState struct {
	streamState
	returned []uint64
}

// maxCheckpoint keeps positions within what the log counts to.
const maxCheckpoint = math.MaxInt64

// beginRecords begins a message.
func beginRecords(dst []byte, checkpoint momentState) []byte {
	return checkpoint.append(append(dst, recordFormat))
}

func (m momentState) append(b []byte) []byte {
	b = binary.AppendUvarint(b, uint64(len(m)))
	for _, k := range m {
		b = binary.AppendUvarint(appendString(b, k.feed), k.seq)
	}
	return b
}

// appendAgain appends a moment, or that it is the one before.
func (m momentState) appendAgain(b []byte, before *momentState) []byte {
	same := slices.Equal(m, *before)
	if b = appendBool(b, same); !same {
		b, *before = m.append(b), m
	}
	return b
}

// appendRecord appends a record with what body appends.
func appendRecord(dst []byte, kind recordKind, body func([]byte) []byte) []byte {
	dst = append(dst, byte(kind))
	const room = binary.MaxVarintLen32
	start := len(dst)
	dst = body(append(dst, make([]byte, room)...))
	n := len(dst) - start - room
	head := binary.AppendUvarint(dst[:start], uint64(n))
	copy(dst[len(head):], dst[start+room:])
	return dst[:len(head)+n]
}

// append appends the record.
func (r *record) append(dst []byte) []byte {
	return appendRecord(dst, r.kind, func(b []byte) []byte {
		switch r.kind {
		case recordGroup:
			return r.group.append(b)
		case recordGroupEnd:
			return appendString(b, r.group.filter)
		case recordCut:
			return binary.AppendUvarint(r.cut.moment.append(b), r.cut.made)
		}
		b = binary.BigEndian.AppendUint64(b, r.epoch)
		b = binary.AppendUvarint(b, r.fence)
		switch r.kind {
		case recordSession:
			b = r.state.append(b)
		case recordProgress:
			b = r.state.progress.append(b)
		case recordReceived:
			b = binary.AppendUvarint(binary.AppendUvarint(b, uint64(r.id)), r.uses)
		case recordReleased:
			b = binary.AppendUvarint(b, uint64(r.id))
		case recordFlight:
			b = r.flight.append(b, new(string))
		}
		return b
	})
}

func appendString[T string | []byte](b []byte, s T) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func appendBool(b []byte, v bool) []byte {
	if v {
		return append(b, 1)
	}
	return append(b, 0)
}

// appendTime appends milliseconds since 1970; 0 is the zero time.
func appendTime(b []byte, t time.Time) []byte {
	if t.IsZero() {
		return append(b, 0)
	}
	return binary.AppendUvarint(b, uint64(max(t.UnixMilli(), 1))) //nolint:gosec // positive
}

func (s *sessionState) append(b []byte) []byte {
	b = appendString(appendString(b, s.key.principal), s.key.clientID)
	b = append(b, s.version)
	b = binary.AppendUvarint(b, uint64(s.expiry))
	b = binary.AppendUvarint(b, s.uses)
	b = binary.AppendUvarint(b, uint64(len(s.open)))
	for _, use := range s.open {
		b = binary.AppendUvarint(b, use)
	}
	b = binary.AppendUvarint(b, uint64(len(s.subs)))
	var since momentState
	for _, sub := range s.subs {
		b = append(appendString(b, sub.filter), sub.opts)
		b = sub.since.appendAgain(binary.AppendUvarint(b, uint64(sub.id)), &since)
	}
	b = binary.AppendUvarint(b, uint64(len(s.received)))
	for _, r := range s.received {
		b = binary.AppendUvarint(binary.AppendUvarint(b, uint64(r.id)), r.use)
	}
	switch w := s.will; {
	case w == nil:
		b = append(b, withoutWill)
	case w.by == nil:
		b = s.appendWill(append(b, withWill))
	default:
		b = w.by.append(s.appendWill(append(b, withWillBy)))
	}
	return s.progress.append(b)
}

// What a session says of its will.
const (
	withoutWill = iota
	withWill
	withWillBy // and of the identity of its client
)

func (s *sessionState) appendWill(b []byte) []byte {
	w := s.will
	b = appendString(appendString(b, w.topic), w.payload)
	b = appendBool(append(b, w.qos), w.retain)
	return binary.AppendUvarint(appendString(b, []byte(w.props)), uint64(s.delay))
}

// append appends what rights depend on, but for the principal, which is in the session's key.
func (id *identity) append(b []byte) []byte {
	b = appendString(appendString(appendString(b, string(id.via)), id.device), id.policy)
	b = binary.AppendUvarint(b, uint64(len(id.attributes)))
	for _, name := range slices.Sorted(maps.Keys(id.attributes)) {
		b = appendString(appendString(b, name), id.attributes[name])
	}
	return b
}

// What a session says of its client.
const (
	sessionAway = iota
	sessionOnline
	sessionDoubtful
)

func (p *progress) append(b []byte) []byte {
	switch {
	case p.online:
		b = append(b, sessionOnline)
	case p.doubtful:
		b = append(b, sessionDoubtful)
	default:
		b = append(b, sessionAway)
	}
	b = appendBool(b, p.armed)
	b = appendTime(appendTime(b, p.deadline), p.due)
	b = binary.AppendUvarint(b, uint64(len(p.streams)))
	for i := range p.streams {
		b = p.streams[i].append(b)
	}
	b = binary.AppendUvarint(b, uint64(len(p.flying)))
	var feed string
	for i := range p.flying {
		b = p.flying[i].append(b, &feed)
	}
	b = binary.AppendUvarint(b, uint64(len(p.scans)))
	var upTo momentState
	for _, s := range p.scans {
		b = s.upTo.appendAgain(appendString(appendString(b, s.filter), s.after), &upTo)
	}
	return b
}

func (s *streamState) append(b []byte) []byte {
	b = appendBool(appendString(b, s.feed), s.lags)
	b = binary.AppendUvarint(binary.AppendUvarint(b, s.from), s.exact)
	b = binary.AppendUvarint(b, uint64(len(s.ahead)))
	for _, a := range s.ahead {
		b = binary.AppendUvarint(binary.AppendUvarint(b, a.from), a.to)
	}
	return b
}

// append appends the flight. The feed is named if it is not that of the flight before.
func (f *flightState) append(b []byte, before *string) []byte {
	same := f.feed == *before
	if b = appendBool(b, same); !same {
		b, *before = appendString(b, f.feed), f.feed
	}
	b = binary.AppendUvarint(binary.AppendUvarint(b, f.seq), uint64(f.id))
	stage := byte(f.stage)
	if f.command {
		stage |= flightCommand
	}
	return appendString(appendString(append(b, stage), f.topic), f.group)
}

func (g *groupState) append(b []byte) []byte {
	b = binary.AppendUvarint(appendString(b, g.filter), uint64(len(g.shares)))
	for i := range g.shares {
		b = g.shares[i].streamState.append(b)
		b = binary.AppendUvarint(b, uint64(len(g.shares[i].returned)))
		for _, seq := range g.shares[i].returned {
			b = binary.AppendUvarint(b, seq)
		}
	}
	return b
}

var errRecord = errors.New("session record is damaged")

// decodeRecords reads a message of SESSIONS and calls yield with each record. Records of kinds that are not known are
// passed over.
func decodeRecords(msg []byte, yield func(*record)) (checkpoint momentState, err error) {
	c := recordCursor{b: msg}
	if c.byte() != recordFormat {
		return nil, errRecord
	}
	checkpoint = c.moment()
	for len(c.b) > 0 && !c.bad {
		kind := recordKind(c.byte())
		body := recordCursor{b: c.bytes()}
		r := record{kind: kind}
		if c.bad || !body.record(&r) {
			continue
		}
		if body.bad || len(body.b) > 0 {
			return nil, errRecord
		}
		yield(&r)
	}
	if c.bad {
		return nil, errRecord
	}
	return checkpoint, nil
}

// recordCursor takes values off the front. After a failure every further value is zero, and bad stays set.
type recordCursor struct {
	b   []byte
	bad bool
}

func (c *recordCursor) fail() { c.b, c.bad = nil, true }

func (c *recordCursor) byte() byte {
	if len(c.b) == 0 {
		c.fail()
		return 0
	}
	x := c.b[0]
	c.b = c.b[1:]
	return x
}

func (c *recordCursor) bool() bool {
	x := c.byte()
	if x > 1 {
		c.fail()
	}
	return x == 1
}

func (c *recordCursor) number(most uint64) uint64 {
	x, n := binary.Uvarint(c.b)
	if n <= 0 || x > most {
		c.fail()
		return 0
	}
	c.b = c.b[n:]
	return x
}

func (c *recordCursor) bytes() []byte {
	n := c.number(math.MaxInt32)
	if n > uint64(len(c.b)) {
		c.fail()
		return nil
	}
	x := c.b[:n:n]
	c.b = c.b[n:]
	return x
}

func (c *recordCursor) text() string { return string(c.bytes()) }

// count takes the length of a list whose items have at least one byte each.
func (c *recordCursor) count() int { return int(c.number(uint64(len(c.b)))) }

func (c *recordCursor) time() time.Time {
	ms := c.number(1 << 50)
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(int64(ms)).UTC()
}

func (c *recordCursor) packetID() uint16 {
	id := uint16(c.number(math.MaxUint16))
	if id == 0 {
		c.fail()
	}
	return id
}

// record takes the body of a record and reports whether its kind is known.
func (c *recordCursor) record(r *record) bool {
	switch r.kind {
	case recordGroup:
		r.group = c.group()
		return true
	case recordGroupEnd:
		r.group.filter = c.text()
		return true
	case recordCut:
		r.cut = cutState{c.moment(), c.number(math.MaxUint64)}
		return true
	case recordSession, recordProgress, recordReceived, recordReleased, recordFlight, recordEnd:
	default:
		return false
	}
	if len(c.b) < 8 {
		c.fail()
		return true
	}
	r.epoch = binary.BigEndian.Uint64(c.b)
	c.b = c.b[8:]
	r.fence = c.number(math.MaxUint64)
	switch r.kind {
	case recordSession:
		c.session(&r.state)
	case recordProgress:
		c.progress(&r.state.progress)
	case recordReceived:
		r.id, r.uses = c.packetID(), c.number(math.MaxUint64)
	case recordReleased:
		r.id = c.packetID()
	case recordFlight:
		r.flight = c.flight(new(string))
	}
	return true
}

func (c *recordCursor) session(s *sessionState) {
	s.key = sessionKey{principal: c.text(), clientID: c.text()}
	s.version = c.byte()
	s.expiry = uint32(c.number(math.MaxUint32))
	s.uses = c.number(math.MaxUint64)
	for n := c.count(); n > 0 && !c.bad; n-- {
		s.open = append(s.open, c.number(math.MaxUint64))
	}
	var since momentState
	for n := c.count(); n > 0 && !c.bad; n-- {
		s.subs = append(s.subs, subState{filter: c.text(), opts: c.byte(), id: uint32(c.number(math.MaxUint32)), since: c.again(&since)})
	}
	for n := c.count(); n > 0 && !c.bad; n-- {
		s.received = append(s.received, receivedState{id: c.packetID(), use: c.number(math.MaxUint64)})
	}
	if kind := c.byte(); kind > withWillBy {
		c.fail()
	} else if kind != withoutWill {
		w := &incoming{topic: c.text(), payload: append([]byte{}, c.bytes()...), qos: c.byte(), retain: c.bool()}
		if props := c.bytes(); len(props) > 0 {
			w.props = append(w.props, props...)
		}
		s.will, s.delay = w, uint32(c.number(math.MaxUint32))
		if w.qos > 2 {
			c.fail()
		}
		if kind == withWillBy {
			w.by = c.identity(s.key.principal)
		}
	}
	c.progress(&s.progress)
}

func (c *recordCursor) identity(principal string) *identity {
	id := &identity{via: way(c.text()), principal: principal, device: c.text(), policy: c.text()}
	for n := c.count(); n > 0 && !c.bad; n-- {
		if id.attributes == nil {
			id.attributes = map[string]string{}
		}
		name := c.text()
		id.attributes[name] = c.text()
	}
	return id
}

func (c *recordCursor) progress(p *progress) {
	switch c.byte() {
	case sessionAway:
	case sessionOnline:
		p.online = true
	case sessionDoubtful:
		p.doubtful = true
	default:
		c.fail()
	}
	p.armed = c.bool()
	p.deadline, p.due = c.time(), c.time()
	for n := c.count(); n > 0 && !c.bad; n-- {
		p.streams = append(p.streams, c.stream())
	}
	var feed string
	for n := c.count(); n > 0 && !c.bad; n-- {
		p.flying = append(p.flying, c.flight(&feed))
	}
	var upTo momentState
	for n := c.count(); n > 0 && !c.bad; n-- {
		p.scans = append(p.scans, scanState{filter: c.text(), after: c.text(), upTo: c.again(&upTo)})
	}
}

func (c *recordCursor) stream() streamState {
	s := streamState{feed: c.text(), lags: c.bool(), from: c.number(maxCheckpoint), exact: c.number(maxCheckpoint)}
	for n := c.count(); n > 0 && !c.bad; n-- {
		s.ahead = append(s.ahead, span{c.number(maxCheckpoint), c.number(maxCheckpoint)})
	}
	return s
}

func (c *recordCursor) moment() (m momentState) {
	for n := c.count(); n > 0 && !c.bad; n-- {
		m = append(m, markState{c.text(), c.number(maxCheckpoint)})
	}
	return m
}

// again takes a moment that may be the one before.
func (c *recordCursor) again(before *momentState) momentState {
	if !c.bool() {
		*before = c.moment()
	}
	return *before
}

func (c *recordCursor) flight(before *string) flightState {
	if !c.bool() {
		*before = c.text()
	}
	f := flightState{feed: *before, seq: c.number(maxCheckpoint), id: c.packetID(), stage: stage(c.byte()), topic: c.text(), group: c.text()}
	f.command = f.stage&flightCommand != 0
	if f.stage &^= flightCommand; f.stage > stageReleased {
		c.fail()
	}
	return f
}

func (c *recordCursor) group() groupState {
	g := groupState{filter: c.text()}
	for n := c.count(); n > 0 && !c.bad; n-- {
		sh := shareState{streamState: c.stream()}
		for n := c.count(); n > 0 && !c.bad; n-- {
			sh.returned = append(sh.returned, c.number(maxCheckpoint))
		}
		g.shares = append(g.shares, sh)
	}
	return g
}
