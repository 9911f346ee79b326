// SPDX-License-Identifier: Apache-2.0

package region

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/coder/websocket"
)

// Limits of what is under way, and of a batch.
const (
	maxFlights  = 64
	maxFlying   = 8 << 20  // bytes, uncompressed
	firstFlying = 64 << 10 // of a new line, until its acks show what it takes
	leastFlying = 16 << 10 // of a slow one
	quickAck    = time.Second
	batchBytes  = 256 << 10 // uncompressed
	leastBatch  = 1 << 10
	batchTime   = 4 // a batch has the bandwidth of one in so many of a second
	readAhead   = 512
	lookAtOnce  = 4096                   // sequences between two looks at what else there is to do
	urgentAhead = 4                      // times as many on the urgent lane, on which few are taken
	fillTime    = 100 * time.Millisecond // the same, where functions take their time
)

// session is an owner at work on a line.
type session struct {
	o       *owner
	line    *line
	pace    *pace
	links   int // that share the bandwidth
	tracks  [lanes]track
	flights []flight  // in the order in which they were sent
	flying  int       // bytes of them
	window  int       // how many there may be: what a slow line has taken delays what is urgent
	acked   time.Time // when the last ack came
	shrunk  time.Time // when window became smaller
	events  int       // of them
	waived  int       // bytes that main has a right to before urgent goes on, times gapShare-1
}

// flight is a batch under way.
type flight struct {
	lane     Lane
	from, to uint64
	count    int   // events
	bytes    int   // uncompressed
	passed   tally // of the others
	again    bool  // counted before
	sent     time.Time
}

// serve works on a line until it ends.
func (o *owner) serve(ctx context.Context, ln *line, d *destination) error {
	if err := o.confirm(ctx, &ln.welcome); err != nil {
		ln.ws.CloseNow() //nolint:errcheck // nothing was said
		return err
	}
	_, links := o.l.ls.region(o.def.Region)
	s := &session{o: o, line: ln, pace: d.pace, links: max(1, links), window: firstFlying}
	far := &ln.welcome.Done
	for l := range lanes {
		t := &s.tracks[l]
		t.id = l
		if from := o.st.start(l); from > 0 {
			done := *o.st.Done.Of(l)
			t.gaps, t.tail = runs(from, done, *o.st.Acked.Of(l), done.Both(*far.Of(l)))
		}
	}
	if t := &s.tracks[Main]; o.def.Ordering != OrderLog {
		t.freshen(ctx, o.bus, o.l.ls.o.Now())
	}
	if o.st.Instance != ln.welcome.Instance {
		o.st.Instance, o.dirty = ln.welcome.Instance, true
	}
	o.session = s
	o.l.enter(Running, nil)
	o.publish()
	ln.start(ctx)
	watching, stop := context.WithCancel(ln.ctx)
	grown, watched := s.watch(watching)
	err := s.work(ctx, grown)
	stop()
	<-watched
	ln.end()
	o.session = nil
	return errors.Join(err, s.last())
}

// watch tells when the log has grown, until ctx is done.
func (s *session) watch(ctx context.Context) (grown chan struct{}, done chan struct{}) {
	grown, done = make(chan struct{}, 1), make(chan struct{})
	go func() {
		defer close(done)
		for s.o.bus.Wait(ctx, s.o.bus.Committed()) == nil {
			select {
			case grown <- struct{}{}:
			default:
			}
		}
	}()
	return grown, done
}

// work sends what there is, and takes in acks.
func (s *session) work(ctx context.Context, grown <-chan struct{}) error {
	timer := time.NewTimer(lookEvery)
	defer timer.Stop()
	for {
		now := time.Now()
		moved, wait, err := s.step(now)
		if err == nil {
			err = s.o.tick(ctx, now)
		}
		if err != nil {
			return err
		}
		if moved {
			wait = 0
		}
		timer.Reset(min(wait, s.due(now)))
		select {
		case a := <-s.line.acks:
			err = s.ack(a)
		case q := <-s.o.l.asks:
			q.reply <- s.o.trim(q.ctx, q.first)
		case <-s.o.l.again:
			err = errRestart
		case <-s.line.ctx.Done():
			err = context.Cause(s.line.ctx)
		case <-ctx.Done():
			err = context.Cause(ctx)
		case <-grown:
		case <-timer.C:
		}
		if err != nil {
			return err
		}
	}
}

// last takes in the acks that came before the line ended.
func (s *session) last() error {
	for {
		select {
		case a := <-s.line.acks:
			if err := s.ack(a); err != nil {
				return nil //nolint:nilerr // the line has ended for another reason
			}
		default:
			return nil
		}
	}
}

// due returns how long there is nothing to look at but what comes by itself.
func (s *session) due(now time.Time) time.Duration {
	d := lookEvery
	if s.o.dirty {
		d = max(0, min(d, s.o.saved.Add(saveEvery).Sub(now)))
	}
	return d
}

// step sends a batch if it can, or looks on for one. moved says that there may be more to do at once; else there is nothing to do
// for wait.
func (s *session) step(now time.Time) (moved bool, wait time.Duration, err error) {
	if len(s.flights) > 0 && now.Sub(s.flights[0].sent) > ackTime && now.Sub(s.acked) > ackTime {
		return false, 0, &trouble{Connecting, errors.New("the region does not acknowledge what was sent"), 0}
	}
	if s.o.floor > 0 && now.After(s.o.until) {
		s.o.floor = 0
	}
	committed := s.o.bus.Committed()
	limit := s.batchLimit()
	room := len(s.flights) < maxFlights && s.flying < s.window
	blocked := s.pace.wait(now)
	urgent, main := &s.tracks[Urgent], &s.tracks[Main]
	strict := s.o.def.Ordering == OrderLog

	wait = lookEvery
	if !room {
		return false, wait, nil
	}
	// The urgent lane looks on while the bandwidth is used up, so that what it finds goes next.
	if urgent.filled == nil {
		if moved, err = s.look(urgent, urgentAhead*lookAtOnce, limit, committed, true, true); err != nil {
			return false, 0, err
		}
	}
	// While what is urgent has not caught up, main does not fill its gaps: what is urgent there goes before.
	behind := urgent.filled == nil && urgent.tail != nil && (len(urgent.gaps) > 0 || urgent.tail.at+freshAfter <= committed)
	if blocked > 0 {
		return moved, blocked, nil
	}
	if urgent.filled != nil && s.waived < batchBytes*(gapShare-1) {
		r := urgent.filled
		s.waived += urgent.batchSize()
		return true, 0, s.send(urgent, r, now)
	}
	told, next, err := s.tell(urgent, now)
	if err != nil || told {
		return true, 0, err
	}
	wait = min(wait, next)
	some, err := s.look(main, lookAtOnce, limit, committed, !behind, strict)
	if err != nil {
		return false, 0, err
	}
	if main.filled != nil {
		s.waived = max(0, s.waived-main.batchSize()*(gapShare-1))
		return true, 0, s.send(main, main.filled, now)
	}
	if urgent.filled != nil { // main has nothing
		s.waived = 0
		return true, 0, nil
	}
	told, next, err = s.tell(main, now)
	return told || moved || some, min(wait, next), err
}

// batchLimit is how many bytes a batch should have: what is urgent is never to wait long behind one.
func (s *session) batchLimit() int {
	most := int64(min(s.o.l.ls.batch, s.window/batchTime))
	if rate := s.pace.limit(); rate > 0 {
		most = min(most, rate/batchTime/int64(s.links))
	}
	return int(max(leastBatch, most))
}

// look reads on in the run of a lane that goes on, and fills its batch. It is false when there is none.
func (s *session) look(t *track, most, limit int, committed uint64, gaps, strict bool) (bool, error) {
	t.drop()
	r := t.pick(committed, s.o.floor, strict, gaps)
	if r == nil {
		return false, nil
	}
	at := r.at
	if err := s.fill(t, r, most, limit, committed); err != nil {
		return false, err
	}
	if t.batch.count > 0 {
		t.filled = r
	} else if r != t.tail {
		t.sent(r, 1+int(min(r.at-at, passedSeqs)), committed) //nolint:gosec // small; it is some work, too
	}
	return r.at > at, nil
}

// batchSize is how many bytes the batch of a lane has, uncompressed.
func (t *track) batchSize() int { return len(t.batch.raw) }

// tell sends that sequences were passed over, when it is time for that. next is when it will be.
func (s *session) tell(t *track, now time.Time) (told bool, next time.Duration, err error) {
	next = lookEvery
	if t.tail == nil {
		return false, next, nil
	}
	for i := range len(t.gaps) + 1 {
		r := t.tail
		if i < len(t.gaps) {
			r = t.gaps[i]
		}
		if r.at == r.from || t.filled == r {
			continue
		}
		wait := passedTime - now.Sub(r.since)
		if wait <= 0 || r.at-r.from >= passedSeqs || r.to > 0 && r.at > r.to {
			t.batch.begin(t.id, r.from)
			return true, 0, s.send(t, r, now)
		}
		next = min(next, wait)
	}
	return false, next, nil
}

// send sends the batch of a lane, which is of the run.
func (s *session) send(t *track, r *run, now time.Time) error {
	w := &t.batch
	f := flight{lane: t.id, from: r.from, to: r.at - 1, count: w.count, bytes: len(w.raw), passed: r.passed, again: r.again, sent: now}
	frame := w.end(f.to)
	s.flights = append(s.flights, f)
	s.flying += f.bytes
	s.events += f.count
	t.sent(r, f.bytes, s.o.bus.Committed())
	t.filled, w.count = nil, 0
	r.from, r.passed, r.since = r.at, tally{}, time.Time{}
	t.drop()
	s.pace.spend(now, len(frame)+frameHead)

	ctx, cancel := context.WithTimeoutCause(s.line.ctx, writeTime, errors.New("the region takes nothing any more"))
	defer cancel()
	if err := s.line.ws.Write(ctx, websocket.MessageBinary, frame); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		s.line.hear() // the far side may have said why
		s.line.cancel(asTrouble(err))
		return context.Cause(s.line.ctx)
	}
	return nil
}

// frameHead is about what a frame has beside its payload.
const frameHead = 8

func asTrouble(err error) error {
	var t *trouble
	if errors.As(err, &t) {
		return err
	}
	return cut(err)
}

// ack takes in the answer to the oldest batch.
func (s *session) ack(a Ack) error {
	if len(s.flights) == 0 {
		return &trouble{Failing, errors.New("the region acknowledges more than was sent"), refusedRetry}
	}
	f := s.flights[0]
	if a.Lane != f.lane || a.From != f.from || a.To != f.to || a.Stored < 0 || a.Known < 0 || a.Refused < 0 || a.Stored+a.Known+a.Refused != f.count {
		return &trouble{Failing, fmt.Errorf("the region acknowledges %d..%d with %d stored, %d known and %d refused; what was sent is %d..%d with %d events",
			a.From, a.To, a.Stored, a.Known, a.Refused, f.from, f.to, f.count), refusedRetry}
	}
	s.flights = s.flights[1:]
	s.flying -= f.bytes
	s.adapt(&f, time.Now())
	s.events -= f.count

	o := s.o
	done, acked, from := o.st.Done.Of(f.lane), o.st.Acked.Of(f.lane), f.from
	stored, refused := uint64(a.Stored), uint64(a.Refused) //nolint:gosec // not negative
	if f.again {
		if n := f.passed.Dropped; n > 0 { // of what the far side has once had, this is not here any more
			from += n
			lost := acked.Both(Ranges{{f.from, from - 1}})
			o.st.Lost += lost.Count()
			*acked = minus(*acked, lost)
		}
	} else {
		t := o.st.of(f.lane)
		t.add(&f.passed)
		o.l.metrics.failed.Add(float64(f.passed.Failed))
		if n := f.passed.Dropped; n > 0 { // it went before the link could look at it
			o.l.metrics.retention.Add(float64(n))
			o.dropped, o.before = o.dropped+n, f.to+1
			o.tellDropped()
		}
		t.add(&tally{Forwarded: stored, Known: uint64(a.Known), Refused: refused}) //nolint:gosec // not negative
		*done = done.Add(f.from, f.to)
	}
	*acked = acked.Add(from, f.to)
	o.dirty = true
	o.l.metrics.forwarded.Add(float64(stored))
	o.l.events.add(o.l.ls.o.Now(), stored)
	if refused > 0 && !f.again {
		o.l.metrics.refused.Add(float64(refused))
		o.l.refused(refused, droppedRefused, plain(a.Why))
	}
	o.publish()
	return nil
}

// adapt has more under way while acks come at once, and less when they do not: what is under way on a slow line, where no
// cap says how slow it is, would keep back what is urgent, and the answer to a ping.
func (s *session) adapt(f *flight, now time.Time) {
	s.acked = now
	if now.Sub(f.sent) > quickAck {
		if s.shrunk.Before(f.sent) { // once for all that were under way
			s.window, s.shrunk = max(leastFlying, s.window/2), now
		}
		return
	}
	s.window = min(maxFlying, s.window+f.bytes)
}

// trimmed has the lanes pass over what retention takes, as far as it is counted.
func (s *session) trimmed(first uint64) {
	for l := range lanes {
		s.tracks[l].trimmed(min(first, s.o.st.first(l)))
	}
}
