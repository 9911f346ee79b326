// SPDX-License-Identifier: Apache-2.0

package region

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
)

const (
	saveEvery = 500 * time.Millisecond // how old what is written down may be while it moves
	lookEvery = time.Second            // how often lag and alarms are looked at
	// behindAt and behindOff are the shares of what retention keeps at which TypeBehind is raised, and taken back.
	behindAt, behindOff = 0.8, 0.6
	// holdTime is how long nothing is begun that retention wants, once it was denied it twice.
	holdTime = time.Minute
	// unsaidRetry is how soon TypeBehind is tried again when no bus takes it.
	unsaidRetry = 30 * time.Second
)

// owner is the state of a link in the hands of the goroutine that has the lease.
type owner struct {
	l        *link
	def      *Link
	bus      *eventlog.Bus
	st       *state
	revision uint64
	matcher  *matcher
	session  *session // nil = there is no connection

	newest *event.Record // at st.Last.Seq, if that is newer than its key
	dirty  bool
	saved  time.Time // when it was tried to write st down last
	failed bool      // that was told not to work
	needed uint64    // of what is written down
	looked time.Time
	denied int       // how often retention was, one time after the other
	floor  uint64    // nothing below is begun
	until  time.Time // floor ends

	hush            time.Time // TypeBehind could not be stored: it is not tried again before
	dropped, before uint64    // how many retention has taken that nobody was told of, and what they all were below
}

// open reads the state of a link and writes it again: whoever ran the link before can write no more.
func (l *link) open(ctx context.Context) (*owner, error) {
	bus, err := l.ls.o.Log.Bus(l.def.Bus)
	if err != nil {
		return nil, err
	}
	o := &owner{l: l, def: l.def, bus: bus}
	if o.st, o.revision, err = l.ls.o.States.get(ctx, l.def.Name); err != nil {
		return nil, err
	}
	if err := o.begin(ctx); err != nil {
		return nil, err
	}
	o.st.prune()
	from := o.st.Start
	if len(o.st.Segments) > 0 {
		from = max(from, bus.Committed()+1) // no lane has come to there
	}
	if !o.st.adopt(l.def.Urgent, from) {
		l.ls.log.Warn("the urgent pattern is in force when both lanes have come by the earlier ones", "link", l.def.Name)
	}
	if o.matcher, err = newMatcher(l.def, o.st.Segments, l.ls.o.View, l.ls.o.Functions); err != nil {
		return nil, err
	}
	if err := o.save(ctx, o.st); err != nil {
		return nil, err
	}
	o.publish()
	return o, nil
}

// begin decides where the link goes on.
func (o *owner) begin(ctx context.Context) error {
	st, def := o.st, o.def
	start := st.Begin
	switch {
	case st.Start == 0:
	case st.Bus != def.Bus:
		*st, start = state{}, ""
	default:
		if err := o.recognise(ctx); err != nil {
			return err
		}
		if st.Region == def.Region && st.To == def.To {
			return nil
		}
		// Elsewhere nothing is known of what was done: what was not forwarded goes there.
		at := st.first(Main)
		if _, oldest := st.waiting(o.bus); oldest > 0 {
			at = min(at, oldest)
		}
		*st = state{Start: at, Last: st.Last}
	}
	if st.Epoch == "" {
		st.Epoch = newEpoch()
	}
	st.Bus, st.Region, st.To, st.Begin = def.Bus, def.Region, def.To, ""
	if st.Start > 0 {
		return nil
	}
	begin, _ := ParseStart(cmp.Or(start, def.Start)) // both were read before
	var err error
	if st.Start, err = o.find(ctx, begin); err != nil {
		return err
	}
	o.newest, st.Last = nil, last{}
	if before, err := o.bus.Get(ctx, st.Start-1); err == nil { // else there is nothing to recognise the log by yet
		o.newest, st.Last.Seq = before.Record, before.Seq
	}
	return nil
}

// recognise says whether the log is the one that was read.
func (o *owner) recognise(ctx context.Context) error {
	if o.st.Foreign != "" {
		return &foreignError{o.st.Foreign}
	}
	was := o.st.Last
	if was.Seq == 0 || was.Seq < o.bus.First() {
		return nil
	}
	if was.Seq > o.bus.Committed() {
		return foreign("it ends at %d, the link has read up to %d", o.bus.Committed(), was.Seq)
	}
	return sameEvent(ctx, o.bus, was.Seq, was.Key)
}

// confirm says whether what the other side has came from this log. A directory that was restored as a whole has a position that
// agrees with its log; only the other side knows what else has stood at sequences that are used again, and what stands there
// now it would take for known. Once it was seen it is written down: the log grows over what it was seen by.
func (o *owner) confirm(ctx context.Context, w *Welcome) error {
	err := checkWelcome(ctx, o.bus, w)
	var f *foreignError
	if !errors.As(err, &f) {
		return err
	}
	next := o.st.clone()
	next.Foreign = f.why
	if serr := o.save(ctx, next); serr != nil { // the next connection says it again
		o.l.ls.log.Warn("the position of the link cannot be written", "link", o.l.def.Name, "err", serr)
	}
	return err
}

func checkWelcome(ctx context.Context, bus *eventlog.Bus, w *Welcome) error {
	for l, seen := range []*Seen{w.Last.Main, w.Last.Urgent} {
		var highest uint64
		if done := *w.Done.Of(Lane(l)); len(done) > 0 { //nolint:gosec // 0 or 1
			highest = done[len(done)-1].To
		}
		if seen != nil {
			highest = max(highest, seen.Seq)
		}
		if end := bus.Committed(); highest > end {
			return foreign("it ends at %d, the other region knows what stood at %d", end, highest)
		}
		if seen != nil {
			if err := sameEvent(ctx, bus, seen.Seq, seen.Key); err != nil {
				return err
			}
		}
	}
	return nil
}

// sameEvent says whether an event still stands at a sequence, as far as that can be read.
func sameEvent(ctx context.Context, bus *eventlog.Bus, seq uint64, key []byte) error {
	e, err := bus.Get(ctx, seq)
	switch {
	case errors.Is(err, eventlog.ErrGap), errors.Is(err, eventlog.ErrGone):
		return nil
	case err != nil:
		return err
	}
	if is := e.Record.Event.Key(); !bytes.Equal(is[:], key) {
		return foreign("another event stands at %d", seq)
	}
	return nil
}

// find returns the first sequence of a start.
func (o *owner) find(ctx context.Context, s Start) (uint64, error) {
	lo, hi := max(o.bus.First(), 1), o.bus.Committed()+1
	switch {
	case s.Earliest:
		return min(lo, hi), nil
	case s.Time.IsZero():
		return hi, nil
	}
	for lo < hi { // the first that was accepted at or after the time, as far as times rise
		mid := lo + (hi-lo)/2
		entries, _, err := o.bus.Read(ctx, mid, 1, nil)
		switch {
		case err != nil:
			return 0, err
		case len(entries) == 0:
			hi = mid // only gaps stand there
		case entries[0].Record.Received.Before(s.Time):
			lo = entries[0].Seq + 1
		default:
			hi = mid
		}
	}
	return lo, nil
}

// save writes a state down and has it be the one of the link.
func (o *owner) save(ctx context.Context, st *state) error {
	o.saved = time.Now()
	if o.newest != nil {
		key := o.newest.Event.Key()
		st.Last.Key = key[:]
	}
	revision, err := o.l.ls.o.States.put(ctx, o.l.def.Name, st, o.revision)
	if err != nil {
		return err
	}
	o.st, o.revision, o.dirty, o.newest = st, revision, false, nil
	_, o.needed = st.waiting(o.bus)
	if o.needed == 0 {
		o.needed = max(o.bus.Committed()+1, st.first(Main))
	}
	if o.failed {
		o.failed = false
		o.l.ls.log.Info("the position of the link is written again", "link", o.l.def.Name)
	}
	return nil
}

// publish shows the state to others.
func (o *owner) publish() {
	s := &snapshot{st: *o.st, bus: o.bus, needed: o.needed}
	s.st.Done = o.st.Done.clone()
	s.st.Segments = slices.Clone(o.st.Segments)
	if o.session != nil {
		s.inFlight, s.gaps = o.session.events, len(o.session.tracks[Main].gaps)
	}
	o.l.snap.Store(s)
}

func (p Progress) clone() Progress {
	return Progress{Main: slices.Clone(p.Main), Urgent: slices.Clone(p.Urgent)}
}

func (s *state) clone() *state {
	c := *s
	c.Done, c.Acked, c.Segments = s.Done.clone(), s.Acked.clone(), slices.Clone(s.Segments)
	return &c
}

// close writes down where the link is.
func (o *owner) close(ctx context.Context) {
	ctx = context.WithoutCancel(ctx) // put has its own bound
	if o.dirty {
		if err := o.save(ctx, o.st); err != nil && !errors.Is(err, errMoved) {
			o.l.ls.log.Warn("the position of the link is not written, some is sent again", "link", o.l.def.Name, "err", err)
		}
	}
	o.tellDropped()
	o.publish()
	o.l.metrics.lagEvents.Set(0) // whoever has the link now knows it
	o.l.metrics.lagSeconds.Set(0)
}

// run connects, and connects again, until ctx is done or something else than a line does not work.
func (o *owner) run(ctx context.Context) error {
	backoff := o.l.ls.retry
	for {
		began := time.Now()
		err := o.once(ctx)
		var t *trouble
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case !errors.As(err, &t):
			return err
		}
		if t.err != nil {
			o.l.enter(t.state, t.err)
		} else {
			o.l.enter(t.state, nil)
		}
		o.publish()
		wait := t.retry
		if wait == 0 {
			if time.Since(began) > lastRetry {
				backoff = o.l.ls.retry
			}
			wait = backoff
			backoff = min(2*backoff, lastRetry)
		}
		if err := o.idle(ctx, jitter(o.l.ls.atMost(wait))); err != nil {
			return err
		}
	}
}

// once makes one connection and works on it until it ends. Its error is a *trouble if it should be tried again.
func (o *owner) once(ctx context.Context) error {
	d, _ := o.l.ls.region(o.def.Region)
	switch {
	case o.def.Paused || d != nil && d.def.Paused:
		return &trouble{Paused, nil, time.Hour}
	case d == nil:
		return &trouble{Failing, fmt.Errorf("there is no region %q", o.def.Region), refusedRetry}
	}
	o.l.mu.Lock()
	first := o.l.last == nil || o.l.state == Standby || o.l.state == Paused
	o.l.mu.Unlock()
	if first {
		o.l.enter(Connecting, nil)
	}
	t := target{region: d.def, instance: o.l.ls.o.Instance, link: o.def.Name, epoch: o.st.Epoch, bus: o.def.To, stream: o.bus.StreamName(),
		dial: o.l.ls.o.Dial, secrets: o.l.ls.o.Secrets, now: o.l.ls.o.Now, count: o.count}
	type dialed struct {
		line *line
		err  error
	}
	dialing, cancel := context.WithCancel(ctx)
	defer cancel()
	result := make(chan dialed, 1)
	go func() {
		line, err := connect(dialing, t)
		result <- dialed{line, err}
	}()
	got, err := await(ctx, o, result)
	if err != nil {
		cancel()
		if got := <-result; got.line != nil {
			got.line.ws.CloseNow() //nolint:errcheck // nothing was said
		}
		return err
	}
	if got.err != nil {
		return got.err
	}
	return o.serve(ctx, got.line, d)
}

// count notes bytes on the wire.
func (o *owner) count(n int) {
	if n > 0 {
		o.l.metrics.bytes.Add(float64(n))
		o.l.bytes.add(o.l.ls.o.Now(), uint64(n)) //nolint:gosec // positive
	}
}

// idle waits d and does what is asked meanwhile.
func (o *owner) idle(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	_, err := await(ctx, o, timer.C)
	return err
}

// await waits for something and does what is asked meanwhile.
func await[T any](ctx context.Context, o *owner, what <-chan T) (T, error) {
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for {
		if err := o.tick(ctx, time.Now()); err != nil {
			var none T
			return none, err
		}
		select {
		case v := <-what:
			return v, nil
		case q := <-o.l.asks:
			q.reply <- o.trim(q.ctx, q.first)
		case <-look.C:
		case <-o.l.again:
			var none T
			return none, errRestart
		case <-ctx.Done():
			var none T
			return none, context.Cause(ctx)
		}
	}
}

// tick does what is due: it writes down where the link is, and looks at the lag.
func (o *owner) tick(ctx context.Context, now time.Time) error {
	if o.dirty && now.Sub(o.saved) >= saveEvery {
		switch err := o.save(ctx, o.st); {
		case errors.Is(err, errMoved):
			return err
		case err != nil && !o.failed:
			o.failed = true
			o.l.ls.log.Warn("the position of the link cannot be written", "link", o.l.def.Name, "err", err)
		}
		o.publish()
	}
	if now.Sub(o.looked) >= lookEvery {
		o.looked = now
		return o.look(ctx)
	}
	return nil
}

// look measures the lag, raises the alarm, and drops urgent patterns that are behind both lanes.
func (o *owner) look(ctx context.Context) error {
	if n := len(o.st.Segments); n > 0 {
		if o.st.prune(); len(o.st.Segments) < n {
			o.dirty = true
			if o.st.Segments[len(o.st.Segments)-1].Urgent != o.def.Urgent {
				return errRestart // there is room for the pattern that waits
			}
			if err := o.matcher.setUrgent(o.st.Segments); err != nil {
				return err
			}
		}
	}
	pending, oldest := o.st.waiting(o.bus)
	o.l.metrics.lagEvents.Set(float64(pending))
	if pending == 0 {
		o.l.metrics.lagSeconds.Set(0)
		return o.behind(ctx, 0, 0)
	}
	at, ok := received(ctx, o.bus, oldest)
	if !ok {
		return nil
	}
	age := max(0, o.l.ls.o.Now().Sub(at))
	o.l.metrics.lagSeconds.Set(age.Seconds())
	maxAge, maxBytes, err := o.l.ls.o.Log.Retention(o.def.Bus)
	if err != nil {
		return nil //nolint:nilerr // a bus without a limit, or one that is going: the next look asks again
	}
	var share float64
	if maxAge > 0 {
		share = float64(age) / float64(maxAge)
	}
	if i := o.bus.Info(); maxBytes > 0 && i.Msgs > 0 {
		share = max(share, float64(i.Bytes)/float64(maxBytes)*float64(i.Last-oldest+1)/float64(i.Msgs))
	}
	return o.behind(ctx, share, pending)
}

// behind raises TypeBehind, once until it is over.
func (o *owner) behind(ctx context.Context, share float64, pending uint64) error {
	if o.l.unsaid.Swap(false) { // nobody has heard it
		o.st.Behind, o.dirty, o.hush = false, true, time.Now().Add(o.l.ls.atMost(unsaidRetry))
	}
	switch {
	case !o.st.Behind && share >= behindAt && time.Now().After(o.hush):
		next := o.st.clone()
		next.Behind = true
		if err := o.save(ctx, next); err != nil { // else a crash would raise it again
			return ignoreBucket(err)
		}
		o.l.ls.log.Warn("link is behind: retention will take what it has not forwarded", "link", o.def.Name, "region", o.def.Region, "events", pending)
		o.l.raise(TypeBehind, map[string]any{"events": pending, "share": share}, func() { o.l.unsaid.Store(true) })
	case o.st.Behind && share <= behindOff:
		o.st.Behind, o.dirty = false, true
		o.l.ls.log.Info("link has caught up", "link", o.def.Name, "region", o.def.Region)
	}
	return nil
}

// ignoreBucket returns errors of the bucket that end the run; the others are told where the position is written.
func ignoreBucket(err error) error {
	if errors.Is(err, errMoved) {
		return err
	}
	return nil
}
