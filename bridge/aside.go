// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"cmp"
	"container/heap"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash/maphash"
	"net/http"
	"strings"
	"sync"
	"time"
	"unique"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/internal/fault"
)

// Extension attributes of stored events that were kept aside first; both are times (RFC 3339).
const (
	ScheduledAttribute = "rialtoscheduled" // when it was to be delivered
	PreparedAttribute  = "rialtoprepared"  // when it was prepared
)

// AsideOptions bound what is kept aside. Zero fields have defaults.
type AsideOptions struct {
	MaxEvents int           // kept at a time, of all buses; 0 = 1 000 000. Each costs about 200 bytes of memory (BenchmarkAside).
	MaxBytes  int64         // of their messages; 0 = 1 GiB
	MaxAge    time.Duration // how long a prepared event waits for a decision; 0 = 24 h

	HTTP     *http.Client           // asks producers, through the egress guard; nil = nobody is asked
	CheckURL func(url string) error // says why a URL cannot be asked; nil = all can
}

func (o AsideOptions) withDefaults() AsideOptions {
	o.MaxEvents = cmp.Or(o.MaxEvents, 1_000_000)
	o.MaxBytes = cmp.Or(o.MaxBytes, 1<<30)
	o.MaxAge = cmp.Or(o.MaxAge, 24*time.Hour)
	if o.CheckURL == nil {
		o.CheckURL = func(string) error { return nil }
	}
	return o
}

// AsideRequest says why an event is kept aside: until a time, or until its producer decides.
type AsideRequest struct {
	At time.Time // when it is stored; not with Prepare. A time that has passed means at once.

	Prepare    bool
	CheckBack  string        // URL that is asked when no decision comes; "" = nobody is
	CheckAfter time.Duration // how long a decision may take before the first question; 0 = 60 s
}

// defaultCheckAfter is AsideRequest.CheckAfter where it says nothing.
const defaultCheckAfter = time.Minute

// keptKey is the identity of what is kept: kind, bus, source and id of the event.
type keptKey [16]byte

func keyOf(prepared bool, bus, source, id string) keptKey {
	var buf [256]byte
	b := append(buf[:0], bus...)
	for _, s := range [...]string{source, id} {
		b = append(append(b, 0), s...)
	}
	if prepared {
		b = append(b, 0, 'p')
	}
	sum := sha256.Sum256(b)
	return keptKey(sum[:16])
}

// kept is an event that is kept aside, as memory knows it; the rest stands in ASIDE. seq, next,
// place and busy are guarded by aside.mu.
type kept struct {
	key      keptKey
	bus      unique.Handle[string] // that it was sent to
	id       uint64                // hash of the event's id
	size     int64                 // of its message
	seq      uint64                // of its message; 0 = it is not committed yet
	next     int64                 // when something is to be done, unix nanoseconds
	place    int                   // in the heap; -1 = not there
	prepared bool
	busy     bool // somebody decides about it, or moves it

	// These two are of whoever has made it busy.
	tries int  // that came to nothing
	doubt bool // it may be stored already: by an earlier life, or by an attempt whose outcome is unknown
}

// aside keeps events until a time or a decision. They stand in the stream ASIDE, which holds messages of two kinds: an event
// is kept, some events have ended. The order when one ends is: store the event, then write the end. A crash in between leaves
// doubt, and who is in doubt looks for the event in the bus's log before it stores it.
type aside struct {
	b       *Bridge
	o       AsideOptions
	stream  *eventlog.Stream
	seed    maphash.Seed
	wake    chan struct{} // 1: the heap has another first
	asking  chan struct{} // a place for each question under way
	slack   int64         // asideSlack
	metrics *asideMetrics

	mu      sync.Mutex // guards all below
	all     map[keptKey]*kept
	order   keptHeap // those that wait, the next one first
	bytes   int64
	counts  [2]int        // scheduled, prepared
	changed chan struct{} // closed and replaced when something is not busy any more
}

// openAside reads what an earlier run has kept. It blocks until the whole stream is read.
func openAside(ctx context.Context, b *Bridge) (*aside, error) {
	stream, err := b.o.Log.Stream(ctx, eventlog.StreamConfig{Name: "ASIDE", Subjects: []string{"aside.>"}})
	if err != nil {
		return nil, err
	}
	s := &aside{b: b, o: b.o.Aside.withDefaults(), stream: stream, seed: maphash.MakeSeed(), wake: make(chan struct{}, 1),
		slack: asideSlack, asking: make(chan struct{}, maxAsking), all: make(map[keptKey]*kept), changed: make(chan struct{})}
	s.metrics = newAsideMetrics(b.o.Registerer, s)
	var buf []eventlog.Raw
	for from := stream.First(); from <= stream.Committed(); {
		if buf, err = stream.Read(ctx, eventlog.ReadOptions{From: from}, buf[:0]); err != nil || len(buf) == 0 {
			break
		}
		for _, raw := range buf {
			from = raw.Seq + 1
			if err := s.replay(raw); err != nil {
				return nil, fmt.Errorf("message %d of ASIDE: %w", raw.Seq, err)
			}
		}
	}
	for _, k := range s.all {
		heap.Push(&s.order, k)
	}
	return s, err
}

// replay applies a message of ASIDE. A message of a key that is kept already has moved there.
func (s *aside) replay(raw eventlog.Raw) error {
	switch raw.Subject {
	case keepSubject:
		rec, story, err := readKept(raw)
		if err != nil {
			return err
		}
		k := s.newKept(story, &rec.Event, sizeOfKept(raw.Header, raw.Data))
		if old := s.all[k.key]; old != nil {
			s.forget(old)
		}
		k.seq, k.doubt = raw.Seq, true
		if !story.Prepared { // a prepared one is looked at right away: it may be committed
			k.next = story.At.UnixNano()
		}
		s.remember(k)
	case endSubject:
		ended, err := readEnd(raw.Data)
		if err != nil {
			return err
		}
		bySeq := make(map[uint64]bool, len(ended.Seqs))
		for _, seq := range ended.Seqs {
			bySeq[seq] = true
		}
		for _, key := range ended.Keys {
			if k := s.all[keptKey(key)]; k != nil && bySeq[k.seq] {
				s.forget(k)
			}
		}
	}
	return nil
}

func (s *aside) newKept(story keptStory, ev *event.Event, size int64) *kept {
	return &kept{key: keyOf(story.Prepared, story.Bus, ev.Source, ev.ID), bus: unique.Make(story.Bus), id: maphash.String(s.seed, ev.ID),
		prepared: story.Prepared, size: size, place: -1}
}

// firstTime is when something is first to be done about a kept event.
func (s *aside) firstTime(story keptStory) time.Time {
	if !story.Prepared {
		return story.At
	}
	end := story.KeptAt.Add(s.o.MaxAge)
	if ask := story.KeptAt.Add(story.CheckAfter); story.CheckBack != "" && ask.Before(end) {
		return ask
	}
	return end
}

// remember and forget are called with mu held, or before anything runs.
func (s *aside) remember(k *kept) {
	s.all[k.key] = k
	s.bytes += k.size
	s.counts[kindIndex(k.prepared)]++
}

func (s *aside) forget(k *kept) {
	if s.all[k.key] != k {
		return
	}
	delete(s.all, k.key)
	s.bytes -= k.size
	s.counts[kindIndex(k.prepared)]--
	if k.place >= 0 {
		heap.Remove(&s.order, k.place)
	}
}

func kindIndex(prepared bool) int {
	if prepared {
		return 1
	}
	return 0
}

// Kept is an event that is kept aside.
type Kept struct {
	ID         string       `json:"id"` // of the event
	Token      string       `json:"token,omitempty"`
	Bus        string       `json:"bus"`
	Source     string       `json:"source"`
	Type       string       `json:"type"`
	Subject    string       `json:"subject,omitempty"`
	At         *time.Time   `json:"at,omitempty"` // when it is due, unless it is prepared
	KeptAt     time.Time    `json:"keptAt"`
	CheckBack  string       `json:"checkBack,omitempty"` // scheme and host
	CheckAfter string       `json:"checkAfter,omitempty"`
	Expires    *time.Time   `json:"expires,omitempty"` // when a prepared one is rolled back if nobody decides
	Duplicate  bool         `json:"duplicate,omitempty"`
	Event      *event.Event `json:"-"` // nil in a list
}

// SetAside keeps events until a time, or until their producer decides, and blocks until that is committed. They are checked
// as Ingest checks them; nobody sees them before. One whose kind, bus, source and id are kept already is not kept twice: the
// answer is the first one's. If the error is not nil some may be kept all the same.
//
// Errors are *fault.Error: NotFound (no such bus), Invalid (the URL), Full (the cap of events or bytes, or the disk), TooLarge,
// Unavailable, Unfit.
func (b *Bridge) SetAside(ctx context.Context, bus string, recs []*event.Record, q AsideRequest) ([]Kept, error) {
	p, err := b.path(bus)
	if err != nil {
		return nil, err
	}
	s := b.aside
	if q.CheckBack != "" {
		if err := s.o.CheckURL(q.CheckBack); err != nil {
			return nil, fault.Invalidf("/checkBack", "%s", err)
		}
	}
	paths, err := b.admitEach(p, recs)
	if err != nil {
		return nil, err
	}
	if err := b.o.Log.Err(); err != nil { // ASIDE takes more than producers may have
		return nil, unavailable(err)
	}
	q.CheckAfter = cmp.Or(q.CheckAfter, defaultCheckAfter)
	out := make([]Kept, len(recs))
	waits := make([]<-chan error, len(recs))
	var errs []error
	for i, rec := range recs {
		if waits[i], err = s.keep(ctx, p.name, paths[i].name, rec, q, &out[i]); err != nil {
			errs = append(errs, err)
			break
		}
	}
	for _, done := range waits {
		if done == nil {
			continue
		}
		select {
		case err := <-done:
			if err != nil && len(errs) == 0 {
				errs = append(errs, unavailable(err))
			}
		case <-ctx.Done():
			return nil, gaveUp(ctx)
		}
	}
	return out, errors.Join(errs...)
}

// admitEach is admitAll, or admit of one event.
func (b *Bridge) admitEach(p *path, recs []*event.Record) ([]*path, error) {
	paths := make([]*path, len(recs))
	for i := range paths {
		paths[i] = p
	}
	if len(recs) == 1 {
		var err error
		paths[0], err = b.admit(p, recs[0])
		return paths, err
	}
	if some, err := b.admitAll(p, recs); some != nil || err != nil {
		return some, err
	}
	return paths, nil
}

// keep appends an event to ASIDE. The channel has one error, or nil, when it is committed; it is nil if the event was there.
func (s *aside) keep(ctx context.Context, bus, to string, rec *event.Record, q AsideRequest, out *Kept) (<-chan error, error) {
	now := s.b.o.Now().UTC().Round(0)
	if rec.Event.ID == "" {
		rec.Event.ID = event.NewID()
	}
	story := keptStory{Bus: bus, KeptAt: now, Prepared: q.Prepare}
	if to != bus {
		story.To = to
	}
	if q.Prepare {
		story.CheckBack, story.CheckAfter = q.CheckBack, q.CheckAfter
	} else {
		story.At = q.At.UTC().Round(0)
		if story.At.Before(now) {
			story.At = now
		}
	}
	story.mark(rec)
	msg, err := story.message(rec)
	if err != nil {
		return nil, err
	}
	k := s.newKept(story, &rec.Event, sizeOfKept(msg.Header, msg.Data))
	*out = s.describe(story, rec)
	before, err := s.enter(ctx, k)
	switch {
	case err != nil:
		s.b.metrics.refused.WithLabelValues(bus, fault.KindOf(err).String()).Inc()
		return nil, err
	case before != nil:
		return nil, s.first(ctx, before, out)
	}
	done := make(chan error, 1)
	err = s.stream.Append(ctx, msg, func(r eventlog.Result) {
		s.entered(k, r, s.firstTime(story))
		done <- r.Err
	})
	if err != nil {
		s.entered(k, eventlog.Result{Err: err}, now)
		return nil, unavailable(err)
	}
	return done, nil
}

// enter makes room for an event, or returns the one of its key that is kept already.
func (s *aside) enter(ctx context.Context, k *kept) (before *kept, err error) {
	for {
		s.mu.Lock()
		before := s.all[k.key]
		switch {
		case before != nil && before.seq == 0: // on its way: it is there, or not, in a moment
			changed := s.changed
			s.mu.Unlock()
			select {
			case <-changed:
				continue
			case <-ctx.Done():
				return nil, gaveUp(ctx)
			}
		case before != nil:
		case len(s.all) >= s.o.MaxEvents:
			err = fault.New(fault.Full, "%d events are kept for later, and no more may be (--aside-max-events)", len(s.all))
		case s.bytes+k.size > s.o.MaxBytes:
			err = fault.New(fault.Full, "events kept for later have %d bytes, and may have %d (--aside-max-bytes)", s.bytes, s.o.MaxBytes)
		default:
			k.busy = true
			s.remember(k)
		}
		s.mu.Unlock()
		return before, err
	}
}

// entered ends what enter began.
func (s *aside) entered(k *kept, r eventlog.Result, next time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Err != nil {
		s.forget(k)
		s.release(k)
		return
	}
	k.seq, k.next = r.Seq, next.UnixNano()
	s.release(k)
	s.push(k)
}

// release ends being busy. Called with mu held.
func (s *aside) release(k *kept) {
	k.busy = false
	close(s.changed)
	s.changed = make(chan struct{})
}

// push lets a kept event wait for its time, if it is still kept. Called with mu held.
func (s *aside) push(k *kept) {
	if s.all[k.key] != k || k.place >= 0 {
		return
	}
	heap.Push(&s.order, k)
	if k.place == 0 {
		select {
		case s.wake <- struct{}{}:
		default:
		}
	}
}

// first answers with the event of the same key that is kept already.
func (s *aside) first(ctx context.Context, k *kept, out *Kept) error {
	rec, story, err := s.read(ctx, k)
	if err != nil {
		return err
	}
	*out = s.describe(story, rec)
	out.Duplicate = true
	return nil
}

// take makes a kept event the caller's to decide about, and blocks while it is another's. It returns nil if it is not kept
// (any more).
func (s *aside) take(ctx context.Context, find func() *kept) (*kept, error) {
	for {
		s.mu.Lock()
		k := find()
		if k == nil || !k.busy {
			if k != nil {
				k.busy = true
				if k.place >= 0 {
					heap.Remove(&s.order, k.place)
				}
			}
			s.mu.Unlock()
			return k, nil
		}
		changed := s.changed
		s.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, gaveUp(ctx)
		}
	}
}

// later gives a kept event back; it has its turn again after a wait, or when it would have had it if that is later.
func (s *aside) later(k *kept, wait time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k.next = max(k.next, s.b.o.Now().Add(wait).UnixNano())
	s.release(k)
	s.push(k)
}

// keptHeap is container/heap by time.
type keptHeap []*kept

// Len implements heap.Interface.
func (h keptHeap) Len() int { return len(h) }

// Less implements heap.Interface.
func (h keptHeap) Less(i, j int) bool { return h[i].next < h[j].next }

// Swap implements heap.Interface.
func (h keptHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].place, h[j].place = i, j
}

// Push implements heap.Interface.
func (h *keptHeap) Push(x any) {
	k := x.(*kept)
	k.place = len(*h)
	*h = append(*h, k)
}

// Pop implements heap.Interface.
func (h *keptHeap) Pop() any {
	old := *h
	k := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	k.place = -1
	return k
}

// tokenOf names a prepared event so that it can be found in the log of its bus when it is not kept any more.
func tokenOf(bus, source, id string) string {
	return encodeToken(strings.Join([]string{bus, source, id}, "\x00"))
}
