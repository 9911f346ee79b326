// SPDX-License-Identifier: Apache-2.0

package eventlog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// StreamConfig names a stream.
type StreamConfig struct {
	Name     string   // letters, digits, _ and -
	Subjects []string // what may be appended; no other stream may have them

	// Urgent has the writer go on while a sync is under way, so that Message.Stored is called without waiting for one. Batches are
	// smaller then: it is for streams of which little is expected and soon.
	Urgent bool
}

var streamName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,128}$`)

// Message is one message to append. Header is empty or a whole header block ("NATS/1.0\r\n...\r\n\r\n"); a block without
// a line is stored as none.
type Message struct {
	Subject      string
	Header, Data []byte

	// Stored, if it is not nil, is called by the stream's writer, in the order of the sequences and before done, when the
	// message has its sequence and is about to be made durable: the end of the process does not take it away any more, a
	// loss of power may. It must not block and must not append. It is not called for a message that is refused.
	Stored func(seq uint64)
}

// Result is how an append ended. Err is nil once the message is committed at Seq.
type Result struct {
	Seq uint64
	Err error
}

// StreamInfo is a summary of a stream. First is above Last when it is empty.
type StreamInfo struct {
	First, Last uint64
	Bytes       int64
	Msgs        uint64 // sequences between First and Last
}

// Range is a run of sequences, both ends included.
type Range struct{ From, To uint64 }

// Stream is one append-only stream of the event plane. All methods may be called concurrently.
type Stream struct {
	log    *Log
	name   string
	dir    string
	gap    string // subject of gap records
	logger *slog.Logger
	blocks *blocks
	syncer *syncer
	mark   *mark
	lost   []Range

	producer bool               // appends of producers: refused at the disk reserve
	dedup    *dedup             // nil: none
	commits  func(items []item) // told about committed items before anybody can see them; nil: nobody

	committed atomic.Uint64
	firstSeq  atomic.Uint64
	bytes     atomic.Int64

	mu      sync.Mutex // guards the queue and the fields below
	queue   []item
	queued  int                 // bytes in queue
	closing bool                // no more appends
	space   chan struct{}       // closed when the queue has room again; nil when nobody waits
	waiters chan struct{}       // closed when committed moves or the stream ends; nil when nobody waits
	damages map[checkpoint]bool // block and offset of damage that was logged

	work     chan struct{} // 1: the queue has something, or closing was set
	verified chan *batch   // acknowledged by the server, to be synced
	unsynced atomic.Int64  // bytes of verified batches that are not committed
	synced   chan struct{} // 1: unsynced has become less
	free     chan *batch   // to be used again
	wire     *wire         // of the publisher goroutine
	last     uint64        // last sequence in the server, of the publisher goroutine
	wireNo   int
	stopped  chan struct{} // closed when both goroutines have ended
	trimming sync.Mutex    // one trim at a time
}

const damagesLogged = 1000

// Stream opens a stream, or creates it. It blocks until the stream's metadata is on disk and, after damage, until the
// lost sequences are filled. There is one *Stream for each name. It fails when the stream's data is there but the
// server could not recover it: an empty stream is never put in the place of data.
func (l *Log) Stream(ctx context.Context, c StreamConfig) (*Stream, error) {
	return l.stream(ctx, c, false, nil, nil)
}

func (l *Log) stream(ctx context.Context, c StreamConfig, producer bool, d *dedup, prepare func(*Stream) error) (*Stream, error) {
	if !streamName.MatchString(c.Name) || len(c.Subjects) == 0 {
		return nil, fmt.Errorf("stream %q: bad name or no subjects", c.Name)
	}
	l.opening.Lock()
	defer l.opening.Unlock()
	l.mu.Lock()
	s, closed := l.streams[c.Name], l.closed
	l.mu.Unlock()
	if closed {
		return nil, ErrClosed
	}
	if s != nil {
		return s, nil
	}
	s, err := l.openStream(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("stream %s: %w", c.Name, err)
	}
	s.producer, s.dedup = producer, d
	if prepare != nil {
		if err := prepare(s); err != nil {
			return nil, errors.Join(fmt.Errorf("stream %s: %w", c.Name, err), s.closeFiles())
		}
	}
	s.start()
	if err := s.restoreLost(ctx); err != nil {
		s.beginClose()
		return nil, errors.Join(fmt.Errorf("stream %s: %w", c.Name, err), s.endClose(context.WithoutCancel(ctx)))
	}
	l.mu.Lock()
	l.streams[c.Name] = s
	l.mu.Unlock()
	return s, nil
}

// openStream makes the stream known to the server and opens its files.
func (l *Log) openStream(ctx context.Context, c StreamConfig) (*Stream, error) {
	s := &Stream{log: l, name: c.Name, gap: "gap." + c.Name, logger: l.logger.With("stream", c.Name),
		dir:  filepath.Join(l.opts.Dir, "events", "jetstream", "$G", "streams", c.Name),
		work: make(chan struct{}, 1), verified: make(chan *batch), synced: make(chan struct{}, 1), free: make(chan *batch, 2), damages: map[checkpoint]bool{}, stopped: make(chan struct{})}
	if c.Urgent {
		s.verified = make(chan *batch, maxAhead)
	}
	info, err := s.ensure(ctx, slices.Concat(c.Subjects, []string{s.gap}))
	if err != nil {
		return nil, err
	}
	s.last = info.State.LastSeq
	s.blocks = &blocks{dir: filepath.Join(s.dir, "msgs"), name: c.Name, damage: s.damaged}
	syncFile := l.opts.Sync
	if l.opts.Durability == OS {
		syncFile = nil
	}
	if s.syncer, err = newSyncer(s.blocks, syncFile); err != nil {
		return nil, err
	}
	if err := s.blocks.refresh(); err != nil {
		return nil, errors.Join(err, s.closeFiles())
	}
	if s.mark, err = openMark(filepath.Join(l.markDir(), c.Name)); err != nil {
		return nil, errors.Join(err, s.closeFiles())
	}
	size, err := s.blocks.bytes()
	if err != nil {
		return nil, errors.Join(err, s.closeFiles())
	}
	s.bytes.Store(size)
	if err := s.findLost(info.State.Deleted); err != nil {
		return nil, errors.Join(err, s.closeFiles())
	}
	s.committed.Store(s.last)
	if first := s.blocks.first(); first > 0 {
		s.firstSeq.Store(first)
	} else {
		s.firstSeq.Store(s.last + 1)
	}
	if err := s.dial(); err != nil {
		return nil, errors.Join(err, s.closeFiles())
	}
	return s, nil
}

// ensure returns the stream's state in the server, and creates the stream when nothing of it exists.
func (s *Stream) ensure(ctx context.Context, subjects []string) (*jetstream.StreamInfo, error) {
	js := s.log.js
	conf := jetstream.StreamConfig{
		Name: s.name, Subjects: subjects, Storage: jetstream.FileStorage, Retention: jetstream.LimitsPolicy,
		Discard: jetstream.DiscardNew, MaxBytes: -1, MaxMsgs: -1, MaxMsgsPerSubject: -1, MaxMsgSize: -1, MaxConsumers: -1,
		Replicas: 1, AllowDirect: true, DenyDelete: true,
		Duplicates: 100 * time.Millisecond, // ours is in dedup.go; a start would read the window of every stream
	}
	st, err := js.Stream(ctx, s.name)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		if err := s.refuseExisting(); err != nil {
			return nil, err
		}
		// What a crash has left of a stream that was just being made: the server would keep a damaged meta.inf.
		if err := os.RemoveAll(s.dir); err != nil {
			return nil, err
		}
		created, err := js.CreateStream(ctx, conf)
		if err != nil {
			return nil, fmt.Errorf("create: %w", err)
		}
		return created.CachedInfo(), s.syncMeta()
	case err != nil:
		return nil, err
	}
	info, err := st.Info(ctx, jetstream.WithDeletedDetails(true))
	if err != nil {
		return nil, err
	}
	if !slices.Equal(info.Config.Subjects, subjects) {
		if st, err = js.UpdateStream(ctx, conf); err != nil {
			return nil, fmt.Errorf("change subjects: %w", err)
		}
		if err := s.syncMeta(); err != nil {
			return nil, err
		}
		return st.Info(ctx, jetstream.WithDeletedDetails(true))
	}
	return info, nil
}

func (s *Stream) syncMeta() error {
	if s.log.opts.Durability == OS {
		return nil
	}
	return syncTree(s.dir, s.log.opts.Dir)
}

// refuseExisting fails when the disk knows the stream that the server does not.
func (s *Stream) refuseExisting() error {
	size, err := (&blocks{dir: filepath.Join(s.dir, "msgs")}).bytes()
	if err != nil {
		return err
	}
	if size > 0 {
		return fmt.Errorf("%s holds %d bytes of data, but the server could not recover the stream: its meta.inf or meta.sum is damaged; "+
			"restore these two files from a backup, or move the directory away to start empty", s.dir, size)
	}
	m, err := readMark(filepath.Join(s.log.markDir(), s.name))
	if err != nil {
		return err
	}
	if m.seq > 0 {
		return fmt.Errorf("the stream is gone, but %d messages were committed to it: restore %s from a backup, or remove %s to start empty",
			m.seq, s.dir, filepath.Join(s.log.markDir(), s.name))
	}
	return nil
}

// damaged is told about what cannot be read in a block. Each place is logged once.
func (s *Stream) damaged(index uint32, offset int64, err error) {
	s.log.metrics.damaged.Inc()
	place := checkpoint{uint64(index), offset}
	s.mu.Lock()
	known := s.damages[place]
	if !known && len(s.damages) < damagesLogged {
		s.damages[place] = true
	}
	s.mu.Unlock()
	if known {
		return
	}
	s.logger.Error("block cannot be read", "block", index, "offset", offset, "err", err)
}

func (s *Stream) dial() error {
	s.wireNo++
	w, err := dialWire(s.log.events.srv, fmt.Sprintf("_INBOX.log.%s.%d", s.name, s.wireNo))
	if err != nil {
		return err
	}
	s.wire = w
	return nil
}

// start runs the publisher and the committer. They end after beginClose.
func (s *Stream) start() {
	s.log.metrics.stream(s)
	var wg sync.WaitGroup
	wg.Add(2)
	go func() {
		defer wg.Done()
		s.publish()
	}()
	go func() {
		defer wg.Done()
		s.commit()
	}()
	go func() {
		wg.Wait()
		close(s.stopped)
	}()
}

// beginClose refuses new appends.
func (s *Stream) beginClose() {
	s.mu.Lock()
	s.closing = true
	s.wakeSpace()
	s.mu.Unlock()
	s.wake()
}

// endClose waits for what was taken, then closes the files.
func (s *Stream) endClose(ctx context.Context) error {
	select {
	case <-s.stopped:
	case <-ctx.Done():
		// Only a sync that does not return, or a server that does not answer, can take this long.
		return fmt.Errorf("stream %s: not drained: %w", s.name, context.Cause(ctx))
	}
	s.mu.Lock()
	s.wakeWaiters()
	s.mu.Unlock()
	return s.closeFiles()
}

func (s *Stream) closeFiles() error {
	var errs []error
	if s.wire != nil {
		errs = append(errs, s.wire.close())
	}
	if s.mark != nil {
		errs = append(errs, s.mark.close(s.log.opts.Durability == Fsync))
	}
	if s.syncer != nil {
		errs = append(errs, s.syncer.close())
	}
	return errors.Join(errs...)
}

// eachSubject calls fn with every subject below a filter that the server holds, and how many messages have it.
func (s *Stream) eachSubject(ctx context.Context, filter string, fn func(subject string, messages uint64)) error {
	st, err := s.log.js.Stream(ctx, s.name)
	if err != nil {
		return err
	}
	if st.CachedInfo().State.NumSubjects == 0 {
		return nil
	}
	info, err := st.Info(ctx, jetstream.WithSubjectFilter(filter))
	if err != nil {
		return err
	}
	for subject, n := range info.State.Subjects {
		fn(subject, n)
	}
	return nil
}

// Err is Log.Err: why a producer's append is not taken now. A stream that is no bus takes appends for longer, and its owner
// asks for what comes from outside.
func (s *Stream) Err() error { return s.log.Err() }

// Name returns the stream's name.
func (s *Stream) Name() string { return s.name }

// Committed returns the highest sequence that is durable and may be read.
func (s *Stream) Committed() uint64 { return s.committed.Load() }

// First returns the lowest sequence that is still there; Committed()+1 or more when there is none.
func (s *Stream) First() uint64 { return s.firstSeq.Load() }

// Info returns a summary.
func (s *Stream) Info() StreamInfo {
	i := StreamInfo{First: s.First(), Last: s.Committed(), Bytes: s.bytes.Load()}
	if i.Last >= i.First {
		i.Msgs = i.Last - i.First + 1
	}
	return i
}

// Lost returns the committed sequences that damage had taken away when the log was opened, as far as the committed
// mark knows them.
func (s *Stream) Lost() []Range { return slices.Clone(s.lost) }

// Wait blocks until Committed is above after. It returns ErrClosed when the stream has ended, or the cause of ctx.
func (s *Stream) Wait(ctx context.Context, after uint64) error {
	for {
		if s.committed.Load() > after {
			return nil
		}
		s.mu.Lock()
		if s.waiters == nil {
			s.waiters = make(chan struct{})
		}
		ch := s.waiters
		s.mu.Unlock()
		if s.committed.Load() > after { // may have moved before ch was there
			return nil
		}
		select {
		case <-s.stopped:
			if s.committed.Load() > after {
				return nil
			}
			return ErrClosed
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-ch:
		}
	}
}

// wakeWaiters lets Wait look again. mu is held.
func (s *Stream) wakeWaiters() {
	if s.waiters != nil {
		close(s.waiters)
		s.waiters = nil
	}
}

// wakeSpace lets blocked appends look again. mu is held.
func (s *Stream) wakeSpace() {
	if s.space != nil {
		close(s.space)
		s.space = nil
	}
}

// wake lets the publisher look at the queue.
func (s *Stream) wake() {
	select {
	case s.work <- struct{}{}:
	default:
	}
}

// SkipTo appends gap records until Committed is at least seq, so that the sequences of a lost tail are never given to
// other messages. It blocks until they are committed.
func (s *Stream) SkipTo(ctx context.Context, seq uint64) error {
	for s.Committed() < seq {
		n := min(seq-s.Committed(), queueItems/2)
		end := make(chan Result, 1)
		for i := range n {
			done := func(Result) {}
			if i == n-1 {
				done = func(r Result) { end <- r }
			}
			if err := s.enqueue(ctx, item{subject: s.gap, done: done}); err != nil {
				return err
			}
		}
		select {
		case r := <-end:
			if r.Err != nil {
				return r.Err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}
