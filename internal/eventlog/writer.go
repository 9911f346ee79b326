// SPDX-License-Identifier: Apache-2.0

package eventlog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
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
	if len(m.Header) > 0 && (!bytes.HasPrefix(m.Header, []byte(headerLine)) || emptyLine(m.Header) != len(m.Header)-len(headerEnd)) {
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
