// SPDX-License-Identifier: Apache-2.0

package eventlog

import (
	"bytes"
	"context"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
)

// BusConfig names a bus.
type BusConfig struct {
	Name        string
	DedupWindow time.Duration // 0 is two minutes; negative: no deduplication
	DedupLimit  int           // ids known at once, of about 64 bytes each; 0 is 1048576. Above, the window gets shorter.
}

var busName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// Receipt is how the append of an event ended.
type Receipt struct {
	Pos       event.Position // where the event is; for a duplicate, where the first one is
	Duplicate bool           // source and id were known within the dedup window: nothing was stored
	Err       error          // a *fault.Error, or ErrClosed
}

// Entry is a committed event. It is shared by all readers and must not be changed.
type Entry struct {
	Seq    uint64
	Record *event.Record
}

// Bus is the log of one bus: a stream of events with the latest of them in memory. All methods may be called
// concurrently.
type Bus struct {
	log      *Log
	name     string
	stream   *Stream
	subjects *subjects
	dedup    *dedup
	ring     ring
}

// headerBuffers keeps the header blocks of events on their way.
var headerBuffers = sync.Pool{New: func() any { b := make([]byte, 0, 512); return &b }}

// Bus opens a bus, or creates it. It blocks as Stream does, and reads the events of the dedup window (about 1 us for each).
// There is one *Bus for each name.
func (l *Log) Bus(ctx context.Context, c BusConfig) (*Bus, error) {
	if !busName.MatchString(c.Name) {
		return nil, fmt.Errorf("bus %q: not a name", c.Name)
	}
	l.naming.Lock()
	defer l.naming.Unlock()
	l.mu.Lock()
	b := l.buses[c.Name]
	l.mu.Unlock()
	if b != nil {
		b.SetDedupWindow(c.DedupWindow)
		return b, nil
	}
	b = &Bus{log: l, name: c.Name, subjects: newSubjects(c.Name), dedup: newDedup(c.DedupWindow, c.DedupLimit)}
	s, err := l.stream(ctx, StreamConfig{Name: "EV_" + c.Name, Subjects: []string{"ev." + c.Name + ".>"}}, true, b.dedup, func(s *Stream) error {
		b.stream = s
		s.commits = b.committed
		if err := b.loadSubjects(ctx); err != nil {
			return err
		}
		return b.loadDedup(ctx)
	})
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if b.stream != s {
		return nil, fmt.Errorf("bus %s: stream %s was opened as a plain stream", c.Name, s.name)
	}
	l.buses[c.Name] = b
	l.rings.join(&b.ring)
	return b, nil
}

// committed is called by the stream before a batch becomes visible.
func (b *Bus) committed(items []item) {
	b.log.rings.grew(b.ring.push(items))
	dups := 0
	for i := range items {
		if items[i].subject == "" {
			dups++
		}
	}
	if dups > 0 {
		b.log.metrics.dups.WithLabelValues(b.stream.name).Add(float64(dups))
	}
}

// loadSubjects counts the subjects that the server already holds.
func (b *Bus) loadSubjects(ctx context.Context) error {
	return b.stream.eachSubject(ctx, "ev."+b.name+".>", func(subject string, _ uint64) { b.subjects.admit([]byte(subject)) })
}

// Types counts the events that are stored, by type. Those whose subject does not say theirs, since there are too many
// subjects, are counted under "". It asks the server about every subject: call it seldom.
func (b *Bus) Types(ctx context.Context) (map[string]uint64, error) {
	prefix, out := "ev."+b.name+".", map[string]uint64{}
	err := b.stream.eachSubject(ctx, prefix+">", func(subject string, n uint64) {
		token, _, _ := strings.Cut(strings.TrimPrefix(subject, prefix), ".")
		if eventType, ok := parseToken(token); ok {
			out[eventType] += n
		}
	})
	return out, err
}

// mintedLine is in the header of events whose id a bridge chose (event.AppendNATS): they need not be decoded to be
// passed over, unless they came from another bridge, as hopsLine says.
var (
	mintedLine = []byte("\r\nRialto-Minted: 1\r\n")
	hopsLine   = []byte("\r\nRialto-Hops: ")
)

// loadDedup reads the ids of the window from the tail of the log.
func (b *Bus) loadDedup(ctx context.Context) error {
	s := b.stream
	if b.dedup.window < 0 || s.Committed() < s.First() {
		return nil
	}
	now := b.log.opts.Now()
	since := now.Add(-b.dedup.window)
	from := max(s.First(), s.blocks.at(since.Add(-timeSlack)))
	looked := 0
	_, err := s.blocks.scan(from, s.Committed(), func(r *record) bool {
		if looked++; looked%ctxEvery == 0 && ctx.Err() != nil {
			return false
		}
		if time.Unix(0, r.time).Before(since.Add(-timeSlack)) || bytes.Contains(r.header, mintedLine) && !bytes.Contains(r.header, hopsLine) {
			return true
		}
		if rec := b.decode(r); rec != nil && rec.DedupKey() != (event.Key{}) && rec.Received.After(since) {
			b.dedup.load(rec.DedupKey(), r.seq, agesFrom(rec.Received, now))
		}
		return true
	})
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// decode returns the event of a record; nil for one that is none.
func (b *Bus) decode(r *record) *event.Record {
	if string(r.subject) == b.stream.gap {
		return nil
	}
	rec, err := event.FromNATS(r.header, r.data)
	if err != nil {
		b.log.metrics.damaged.Inc()
		b.stream.logger.Error("message is no event", "seq", r.seq, "err", err)
		return nil
	}
	return rec
}

// Append hands an event to the writer. It blocks while the queue is full, until ctx is done. When it returns nil, done
// is called exactly once, from the bus's committer, in the order in which Append was called; it must not block and must not append.
// A duplicate is completed after the event it duplicates, with that event's position. rec must not be changed any more.
//
// Errors are *fault.Error (Full at the disk reserve, TooLarge, Unavailable after a failure), ErrClosed, or the cause of
// ctx.
func (b *Bus) Append(ctx context.Context, rec *event.Record, done func(Receipt)) error {
	if err := b.log.disk.refuse(true, 0); err != nil {
		return err
	}
	buf := headerBuffers.Get().(*[]byte)
	it := item{rec: rec, pooled: buf, receipt: done, subject: b.subjects.of(rec), header: event.AppendNATS((*buf)[:0], rec), data: rec.Event.Data}
	it.size = len(it.subject) + len(it.header) + len(it.data)
	err := b.stream.checkSize(it.header, it.data)
	if err == nil {
		it.key = rec.DedupKey()
		err = b.stream.enqueue(ctx, it)
	}
	if err != nil {
		*buf = it.header[:0]
		headerBuffers.Put(buf)
	}
	return err
}

// SetDedupWindow changes the dedup window, as in BusConfig.
func (b *Bus) SetDedupWindow(w time.Duration) { b.dedup.setWindow(w) }

// Err is Log.Err: why no event is taken now.
func (b *Bus) Err() error { return b.stream.Err() }

// Name returns the bus's name.
func (b *Bus) Name() string { return b.name }

// StreamName returns the name that positions of the bus have.
func (b *Bus) StreamName() string { return b.stream.name }

// Committed returns the highest sequence that is durable and may be read.
func (b *Bus) Committed() uint64 { return b.stream.Committed() }

// First returns the lowest sequence that is still there; above Committed when there is none.
func (b *Bus) First() uint64 { return b.stream.First() }

// Hot returns the lowest sequence that is read from memory; above Committed when none is.
func (b *Bus) Hot() uint64 {
	if first := b.ring.start(); first > 0 {
		return first
	}
	return b.stream.Committed() + 1
}

// Info returns a summary.
func (b *Bus) Info() StreamInfo { return b.stream.Info() }

// Wait blocks until Committed is above after, as Stream.Wait.
func (b *Bus) Wait(ctx context.Context, after uint64) error { return b.stream.Wait(ctx, after) }

// SkipTo is Stream.SkipTo.
func (b *Bus) SkipTo(ctx context.Context, seq uint64) error { return b.stream.SkipTo(ctx, seq) }

// Trim is Stream.Trim.
func (b *Bus) Trim(ctx context.Context, p TrimPolicy) (Trimmed, error) { return b.stream.Trim(ctx, p) }

// Lost is Stream.Lost.
func (b *Bus) Lost() []Range { return b.stream.Lost() }

// Get returns the event at seq: ErrGone below First, ErrNotFound above Committed, ErrGap where an event was lost.
func (b *Bus) Get(ctx context.Context, seq uint64) (Entry, error) {
	s := b.stream
	if err := s.inRange(ctx, seq); err != nil {
		return Entry{}, err
	}
	rec, ok := b.ring.get(seq)
	if !ok {
		found, err := s.blocks.get(seq, func(r *record) { rec = b.decode(r) })
		if err := s.missing(seq, found, err); err != nil {
			return Entry{}, err
		}
	}
	if rec == nil {
		return Entry{}, ErrGap
	}
	return Entry{seq, rec}, nil
}

// Read appends up to limit committed events from the sequence from on to dst, without leaving one out, and returns the
// sequence to go on from. It starts at First when from is below. It may return fewer than there are, and none when
// from is above Committed, or only gaps stand there.
func (b *Bus) Read(ctx context.Context, from uint64, limit int, dst []Entry) (_ []Entry, next uint64, err error) {
	dst, next, _, err = b.Scan(ctx, ScanOptions{From: from, Max: limit}, dst)
	return dst, next, err
}

// ScanOptions says what Scan reads.
type ScanOptions struct {
	From uint64 // lowest sequence; below First it means First
	To   uint64 // highest sequence; 0: Committed
	Max  int    // events

	// Topics are MQTT filters. Events that were not published to a topic of one of them are left out, where their subject
	// tells and they are not in memory; that costs less than half of reading them. nil: all events.
	Topics []string
}

// Scan is Read for whoever wants few of the events. It also ends when it has looked at 4 MiB, and says how many bytes it
// has looked at on disk: 0 when it has read from memory.
func (b *Bus) Scan(ctx context.Context, o ScanOptions, dst []Entry) (_ []Entry, next uint64, looked int, err error) {
	s := b.stream
	if ctx.Err() != nil {
		return dst, o.From, 0, context.Cause(ctx)
	}
	from, to := max(o.From, s.First(), 1), s.Committed()
	if o.To > 0 {
		to = min(to, o.To)
	}
	if from > to || o.Max <= 0 {
		return dst, from, 0, nil
	}
	if dst, next, ok := b.ring.read(from, to, o.Max, dst); ok {
		return dst, next, 0, nil
	}
	wanted := b.subjects.topics(o.Topics)
	next, err = s.blocks.scan(from, to, func(r *record) bool {
		looked += len(r.subject) + len(r.header) + len(r.data)
		if wanted == nil || wanted(r.subject) {
			if rec := b.decode(r); rec != nil {
				dst = append(dst, Entry{r.seq, rec})
				o.Max--
			}
		}
		return o.Max > 0 && looked < readMaxBytes
	})
	return dst, next, looked, err
}
