// SPDX-License-Identifier: Apache-2.0

package eventlog

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
)

// Bounds of the queue and of a batch. A batch grows by itself while the one before it is written and synced.
const (
	queueItems = 16 << 10
	queueBytes = 32 << 20
	batchItems = 4096
	batchBytes = 4 << 20
	itemCost   = 160 // of one item beside its bytes

	recordFrame       = 30
	recordHeaderFrame = 4
)

// errNoAnswer is a server that does not acknowledge: its write failed, which it repeats until a restart, or its disk hangs.
var errNoAnswer = errors.New("no acknowledgement from the server")

// item is one append on its way through the queue.
type item struct {
	subject      string // "" for a duplicate, which only waits for its turn
	header, data []byte
	size         int

	rec     *event.Record // of a bus
	pooled  *[]byte       // header's buffer, given back after the commit
	key     event.Key
	flight  *flight // the event under key in the dedup index; nil for a minted id
	done    func(Result)
	stored  func(seq uint64)
	receipt func(Receipt)

	seq     uint64
	err     error
	expects int // bytes of the header line with the expected sequence; 0: it has none
}

// recordSize is what an item takes in its block, where the server writes length, sequence, time, the lengths of the texts and a
// checksum beside them.
func (it *item) recordSize() int64 {
	n, header := recordFrame+len(it.subject)+len(it.data), len(it.header)
	if it.expects > 0 {
		header = max(header, len(headerLine)+2) + it.expects
	}
	if header > 0 {
		n += recordHeaderFrame + header
	}
	return int64(n)
}

// batch is a run of items that is written, synced and completed together.
type batch struct {
	items []item
	buf   []byte // frames
	sent  int    // messages among items that were stored
	bytes int64  // of these
	going int64  // bytes that the disk was told of
}

// Append hands a message to the writer. It blocks while the queue is full, until ctx is done. When it returns nil,
// done is called exactly once, from the stream's committer, in the order of the sequences; done must not block and
// must not append. Header and Data must not be changed before that.
func (s *Stream) Append(ctx context.Context, m Message, done func(Result)) error {
	if err := checkFrame(m); err != nil {
		return err
	}
	if err := s.checkSize(m.Header, m.Data); err != nil {
		return err
	}
	if len(m.Header) == len(headerLine)+2 { // an empty block cannot be told from none
		m.Header = nil
	}
	return s.enqueue(ctx, item{subject: m.Subject, header: m.Header, data: m.Data,
		size: len(m.Subject) + len(m.Header) + len(m.Data), stored: m.Stored, done: done})
}

// checkFrame refuses what would break the protocol or could not be read back.
func checkFrame(m Message) error {
	if m.Subject == "" || len(m.Subject) > maxControlLine/2 || strings.ContainsFunc(m.Subject, func(r rune) bool { return r <= ' ' || r == '*' || r == '>' || r == 0x7f }) {
		return fmt.Errorf("append: subject of %d bytes is empty, too long or has a character that is not allowed", len(m.Subject))
	}
	if len(m.Header) > 0 && (!bytes.HasPrefix(m.Header, []byte(headerLine)) || bytes.Index(m.Header, headerEnd) != len(m.Header)-len(headerEnd)) {
		return errors.New("append: header is no header block")
	}
	return nil
}

func (s *Stream) checkSize(header, data []byte) error {
	if len(header) > maxHeader {
		return fault.New(fault.TooLarge, "attributes take %d bytes, at most %d are allowed", len(header), maxHeader)
	}
	limit := s.log.opts.MaxData
	if !s.producer {
		limit = s.log.opts.maxRecord() // our own records do not shrink with what producers may send
	}
	if len(data) > limit {
		return fault.New(fault.TooLarge, "data is %d bytes, at most %d are allowed", len(data), limit)
	}
	return nil
}

// enqueue puts an item into the queue. For one with a key, dedup decides there and then whether it is a duplicate, so
// that the decision has the order of the stream.
func (s *Stream) enqueue(ctx context.Context, it item) error {
	if f := s.log.failure.Load(); f != nil {
		return f
	}
	it.size += itemCost
	s.mu.Lock()
	for !s.closing && (len(s.queue) >= queueItems || (s.queued+it.size > queueBytes && len(s.queue) > 0)) {
		if s.space == nil {
			s.space = make(chan struct{})
		}
		ch := s.space
		s.mu.Unlock()
		select {
		case <-ch:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		s.mu.Lock()
	}
	if s.closing {
		s.mu.Unlock()
		return ErrClosed
	}
	if it.rec != nil && it.key != (event.Key{}) {
		var dup bool
		if it.flight, dup = s.dedup.enter(it.key, s.log.opts.Now()); dup {
			*it.pooled = it.header[:0]
			it.subject, it.header, it.data = "", nil, nil
			it.size = itemCost
		}
	}
	s.queue = append(s.queue, it)
	s.queued += it.size
	first := len(s.queue) == 1
	s.mu.Unlock()
	if first {
		s.wake()
	}
	return nil
}

// take waits for work and moves it into b. It returns false when the stream is closing and the queue is empty.
func (s *Stream) take(b *batch) bool {
	for {
		s.mu.Lock()
		if n := len(s.queue); n > 0 {
			s.fill(b)
			if len(s.queue) > 0 {
				s.wake()
			}
			s.wakeSpace()
			s.mu.Unlock()
			return true
		}
		closing := s.closing
		s.mu.Unlock()
		if closing {
			return false
		}
		<-s.work
		runtime.Gosched() // those who are about to append make the batch larger; on an idle machine there are none
	}
}

// fill moves the front of the queue into b. mu is held.
func (s *Stream) fill(b *batch) {
	n, size, most := 0, 0, batchBytes
	if cap(s.verified) > 0 {
		most -= int(s.unsynced.Load()) // what is more would have to wait, see awaitRoom
	}
	for n < len(s.queue) && n < batchItems && (n == 0 || size+s.queue[n].size <= most) {
		size += s.queue[n].size
		n++
	}
	if n == len(s.queue) {
		b.items, s.queue = s.queue, b.items[:0]
	} else {
		b.items = append(b.items[:0], s.queue[:n]...)
		rest := copy(s.queue, s.queue[n:])
		clear(s.queue[rest:])
		s.queue = s.queue[:rest]
	}
	s.queued -= size
}

// publish is the stream's writer: it sends one batch at a time and proves it stored before it sends the next, so that
// there is never more than one batch whose fate is unknown. It waits for the committer to take the batch over, but
// in an urgent stream.
func (s *Stream) publish() {
	defer close(s.verified)
	for {
		var b *batch
		select {
		case b = <-s.free:
		default:
			b = &batch{}
		}
		if !s.take(b) {
			return
		}
		s.awaitRoom(b)
		s.send(b)
		b.tellStored()
		s.unsynced.Add(b.bytes)
		s.verified <- b
	}
}

// maxAhead is how many batches an urgent stream may have written that are not being synced yet.
const maxAhead = 64

// awaitRoom waits until what an urgent stream has written and not synced is no more than a batch of another stream may be, with b;
// unless that is nothing.
func (s *Stream) awaitRoom(b *batch) {
	size := int64(0)
	for i := range b.items {
		size += int64(b.items[i].size)
	}
	for cap(s.verified) > 0 {
		if n := s.unsynced.Load(); n == 0 || n+size <= batchBytes {
			return
		}
		<-s.synced
	}
}

// send stores the messages of b and gives each item its sequence or its error.
func (s *Stream) send(b *batch) {
	b.sent, b.bytes, b.going = 0, 0, 0
	last := -1
	for i := range b.items {
		if b.items[i].subject != "" {
			last = i
			b.sent++
			b.bytes += int64(b.items[i].size)
		}
	}
	if last < 0 {
		return
	}
	if err := s.admit(b.bytes); err != nil {
		s.refuse(b, err)
		return
	}
	b.going = b.bytes
	s.log.disk.begin(b.going)
	b.buf = b.buf[:0]
	n := uint64(0)
	for i := range b.items[:last+1] {
		it := &b.items[i]
		if it.subject == "" {
			continue
		}
		replyTo, expect := "", int64(-1)
		if i == last {
			replyTo, expect = s.wire.inbox+".b", int64(s.last+n) //nolint:gosec // sequences stay below 1<<62
			it.expects = expectSize(expect)
		}
		b.buf = appendPub(b.buf, it.subject, replyTo, it.header, it.data, expect)
		n++
		it.seq = s.last + n
	}
	rep, err := s.request(b.buf)
	if cap(b.buf) > 2*batchBytes {
		b.buf = nil
	}
	var ack pubAck
	if err == nil {
		ack, err = parseAck(rep)
	}
	if err == nil && ack.Error == nil && ack.Seq == s.last+n {
		s.last = ack.Seq
		return
	}
	if err == nil {
		err = ack.err()
	}
	s.resolve(b, err)
}

// tellStored calls what waits for a message to be stored.
func (b *batch) tellStored() {
	for i := range b.items {
		if it := &b.items[i]; it.stored != nil && it.err == nil {
			it.stored(it.seq)
		}
	}
}

// admit says whether the log takes a batch of n bytes now.
func (s *Stream) admit(n int64) error {
	if f := s.log.failure.Load(); f != nil {
		return f
	}
	if s.producer {
		if err := s.log.overCap(n); err != nil {
			s.log.metrics.refused.WithLabelValues("store").Inc()
			return err
		}
	}
	return s.log.disk.refuse(s.producer, n)
}

// refuse ends all messages of b with err.
func (s *Stream) refuse(b *batch, err error) {
	for i := range b.items {
		if b.items[i].subject != "" {
			b.items[i].seq, b.items[i].err = 0, err
		}
	}
	b.sent, b.bytes = 0, 0
}

// request writes frames of which the last asks for a reply, and waits for that reply.
func (s *Stream) request(frames []byte) (reply, error) {
	for len(s.wire.replies) > 0 { // a reply that came after its timeout
		<-s.wire.replies
	}
	if err := s.wire.write(frames); err != nil {
		<-s.wire.done
		return reply{}, errors.Join(err, s.wire.err)
	}
	t := time.NewTimer(s.log.opts.ackTimeout)
	defer t.Stop()
	select {
	case r := <-s.wire.replies:
		return r, nil
	case <-s.wire.done:
		select {
		case r := <-s.wire.replies: // came before the end
			return r, nil
		default:
			return reply{}, s.wire.err
		}
	case <-t.C:
		return reply{}, errNoAnswer
	}
}

// pubAck is the server's answer to the last message of a batch.
type pubAck struct {
	Stream string `json:"stream"`
	Seq    uint64 `json:"seq"`
	Error  *struct {
		ErrCode     int    `json:"err_code"`
		Description string `json:"description"`
	} `json:"error"`
}

// Codes of the JetStream API.
const (
	codeWrongLast  = 10071
	codeNoStorage1 = 10023 // insufficient resources
	codeNoStorage2 = 10047 // storage resources exceeded
)

func (a *pubAck) err() error {
	if a.Error == nil {
		return fmt.Errorf("acknowledged up to sequence %d", a.Seq)
	}
	return fmt.Errorf("server refused: %s (%d)", a.Error.Description, a.Error.ErrCode)
}

// parseAck reads {"stream":"X","seq":N}, the common form, by hand.
func parseAck(r reply) (pubAck, error) {
	if r.status != "" {
		return pubAck{}, fmt.Errorf("server answered with status %s", r.status)
	}
	if i := bytes.Index(r.data, []byte(`"seq":`)); i >= 0 && !bytes.Contains(r.data, []byte(`"error"`)) {
		num := bytes.TrimLeft(r.data[i+len(`"seq":`):], " ")
		end := 0
		for end < len(num) && num[end] >= '0' && num[end] <= '9' {
			end++
		}
		if n, err := strconv.ParseUint(string(num[:end]), 10, 64); err == nil {
			return pubAck{Seq: n}, nil
		}
	}
	var a pubAck
	if err := json.Unmarshal(r.data, &a); err != nil {
		return pubAck{}, fmt.Errorf("acknowledgement: %w", err)
	}
	return a, nil
}

// fence returns the server's last sequence after everything that was sent before has been handled: it asks for a
// store at an impossible sequence, which is refused in the order of the stream, and the refusal says the last one.
func (s *Stream) fence() (uint64, error) {
	frame := appendPub(nil, s.gap, s.wire.inbox+".f", nil, nil, math.MaxInt64)
	rep, err := s.request(frame)
	for ; err == nil; rep, err = s.nextReply() {
		ack, perr := parseAck(rep)
		switch {
		case perr != nil:
			return 0, perr
		case rep.subject != s.wire.inbox+".f":
			continue // the answer that was waited for before
		case ack.Error == nil || ack.Error.ErrCode != codeWrongLast:
			return 0, ack.err()
		}
		_, num, _ := bytes.Cut([]byte(ack.Error.Description), []byte("wrong last sequence: "))
		last, perr := strconv.ParseUint(string(num), 10, 64)
		if perr != nil {
			return 0, fmt.Errorf("last sequence: %w", perr)
		}
		return last, nil
	}
	return 0, err
}

// nextReply waits for one more reply.
func (s *Stream) nextReply() (reply, error) {
	t := time.NewTimer(s.log.opts.ackTimeout)
	defer t.Stop()
	select {
	case r := <-s.wire.replies:
		return r, nil
	case <-s.wire.done:
		return reply{}, s.wire.err
	case <-t.C:
		return reply{}, errNoAnswer
	}
}

// resolve finds out which messages of b were stored after an answer that was not the expected one, or none: it reads
// the tail back. What was stored is committed like any other; the rest ends with an error. A server that did not answer
// in time closes the log: it could not write.
func (s *Stream) resolve(b *batch, cause error) {
	s.logger.Warn("batch was not acknowledged as a whole", "messages", b.sent, "err", cause)
	last, err := s.settle()
	if err == nil && errors.Is(cause, errNoAnswer) {
		err = errNoAnswer
	}
	if err != nil {
		s.refuse(b, s.log.fail(fmt.Errorf("stream %s: %w", s.name, errors.Join(cause, err))))
		return
	}
	refusal := fault.New(fault.Unavailable, "the event was not stored, try again")
	refusal.RetryAfter, refusal.Err = time.Second, cause
	stored, err := s.match(b, last)
	if err != nil {
		s.refuse(b, s.log.fail(fmt.Errorf("stream %s: read the tail back: %w", s.name, err)))
		return
	}
	b.sent, b.bytes = 0, 0
	for i := range b.items {
		it := &b.items[i]
		if it.subject == "" {
			continue
		}
		if it.seq = stored[i]; it.seq == 0 {
			it.err = refusal
			continue
		}
		b.sent++
		b.bytes += int64(it.size)
	}
	s.last = last
}

// settle returns the server's last sequence when nothing is on its way any more.
func (s *Stream) settle() (uint64, error) {
	select {
	case <-s.wire.done:
		// What the dead connection had sent was queued before it ended; a fence on a new one comes after it.
		if err := s.dial(); err != nil {
			return 0, err
		}
	default:
	}
	return s.fence()
}

// match looks for the items of b, in their order, among the records after s.last, and returns the sequence of each.
func (s *Stream) match(b *batch, last uint64) ([]uint64, error) {
	stored := make([]uint64, len(b.items))
	if last <= s.last {
		return stored, nil
	}
	if err := s.blocks.refresh(); err != nil {
		return nil, err
	}
	i := 0
	_, err := s.blocks.scan(s.last+1, last, func(r *record) bool {
		for j := i; j < len(b.items); j++ {
			it := &b.items[j]
			if it.subject != "" && string(r.subject) == it.subject && bytes.Equal(stripExpect(r.header), it.header) && bytes.Equal(r.data, it.data) {
				stored[j] = r.seq
				i = j + 1
				break
			}
		}
		return i < len(b.items)
	})
	return stored, err
}

// commit makes verified batches durable, in order, and completes their items. Those that an urgent stream has written meanwhile
// share a sync.
func (s *Stream) commit() {
	var group []*batch
	for b := range s.verified {
		group = append(group[:0], b)
		for n := len(s.verified); n > 0; n-- {
			group = append(group, <-s.verified)
		}
		s.commitGroup(group)
		clear(group)
	}
}

func (s *Stream) commitGroup(group []*batch) {
	sent, size := 0, int64(0)
	for _, b := range group {
		sent += b.sent
		size += b.bytes
	}
	if sent > 0 {
		if err := s.persist(group, sent); err != nil {
			err = s.log.fail(fmt.Errorf("stream %s: %w", s.name, err))
			for _, b := range group {
				s.refuse(b, err)
			}
		}
	}
	s.unsynced.Add(-size)
	select {
	case s.synced <- struct{}{}:
	default: // it is told already
	}
	for _, b := range group {
		s.commitBatch(b)
		s.log.disk.end(b.going)
		clear(b.items)
		b.items = b.items[:0]
		select {
		case s.free <- b:
		default:
		}
	}
}

// commitBatch completes the items of a batch that was synced, or refused.
func (s *Stream) commitBatch(b *batch) {
	if s.dedup != nil {
		now := s.log.opts.Now()
		for i := range b.items {
			if it := &b.items[i]; it.flight != nil && it.subject != "" {
				s.dedup.settle(it.key, it.flight, it.seq, it.err, now)
			}
		}
	}
	if b.sent > 0 {
		if s.commits != nil {
			s.commits(b.items)
		}
		s.advance(b)
	}
	for i := range b.items {
		s.complete(&b.items[i])
	}
}

// persist syncs what batches wrote, which are sent messages, and moves the mark.
func (s *Stream) persist(group []*batch, sent int) error {
	if f := s.log.failure.Load(); f != nil {
		return f
	}
	start := time.Now()
	if err := s.syncer.commit(); err != nil {
		return err
	}
	m := s.log.metrics
	m.fsync.Observe(time.Since(start).Seconds())
	m.batch.Observe(float64(sent))
	if err := s.syncer.follow(); err != nil {
		return err
	}
	for _, b := range slices.Backward(group) {
		for i := len(b.items) - 1; i >= 0; i-- {
			if it := &b.items[i]; it.subject != "" && it.err == nil {
				return s.mark.write(it.seq, recordKey(it.subject, it.header, it.data))
			}
		}
	}
	return nil
}

// advance makes the items of b visible.
func (s *Stream) advance(b *batch) {
	top, size := uint64(0), int64(0)
	for i := range b.items {
		if it := &b.items[i]; it.subject != "" && it.err == nil {
			top = it.seq
			size += it.recordSize()
		}
	}
	s.bytes.Add(size)
	s.log.metrics.appended.WithLabelValues(s.name).Add(float64(b.sent))
	if first := s.blocks.first(); first > 0 && s.firstSeq.Load() > s.committed.Load() {
		s.firstSeq.Store(first)
	}
	s.committed.Store(top)
	s.mu.Lock()
	s.wakeWaiters()
	s.mu.Unlock()
}

// complete calls the item's function.
func (s *Stream) complete(it *item) {
	if it.pooled != nil {
		if it.header != nil {
			*it.pooled = it.header[:0]
		}
		headerBuffers.Put(it.pooled)
	}
	if it.receipt == nil {
		it.done(Result{Seq: it.seq, Err: it.err})
		return
	}
	r := Receipt{Err: it.err}
	seq := it.seq
	if it.subject == "" { // a duplicate, whose first is settled by now
		seq, r.Err = s.dedup.outcome(it.flight)
		r.Duplicate = r.Err == nil
	}
	if r.Err == nil {
		r.Pos = event.Position{Stream: s.name, Seq: seq}
	}
	it.receipt(r)
}
