// SPDX-License-Identifier: Apache-2.0

package eventlog

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"
)

// Raw is a message as it is stored. Its slices belong to the caller.
type Raw struct {
	Seq          uint64
	Stored       time.Time // by the clock of the server; not always rising
	Subject      string
	Header, Data []byte // as they were appended
}

// Gap reports whether the message stands in the place of one that was lost. It has no content and is to be passed over.
func (r Raw) Gap() bool { return len(r.Subject) > 4 && r.Subject[:4] == "gap." }

// ReadOptions says what Read returns.
type ReadOptions struct {
	From     uint64    // lowest sequence; below First it means First
	FromTime time.Time // nothing stored before; zero: no limit
	Filter   string    // subject with NATS wildcards; "" is all, gap records included
	Max      int       // messages; 0 is 500
	MaxBytes int       // stop after this many bytes; 0 is 4 MiB
}

const (
	readMax      = 500
	readMaxBytes = 4 << 20
	// timeSlack widens every search by time: stored times follow the wall clock, which may have been set.
	timeSlack = 10 * time.Minute
	// ctxEvery is how many messages a scan looks at between two looks at its context.
	ctxEvery = 1024
)

// Get returns the message seq: ErrGone below First, ErrNotFound above Committed, ErrGap when it was lost.
func (s *Stream) Get(ctx context.Context, seq uint64) (Raw, error) {
	if err := s.inRange(ctx, seq); err != nil {
		return Raw{}, err
	}
	var raw Raw
	found, err := s.blocks.get(seq, func(r *record) { raw = rawOf(r) })
	if err := s.missing(seq, found, err); err != nil {
		return Raw{}, err
	}
	if raw.Gap() {
		return Raw{}, ErrGap
	}
	return raw, nil
}

// Each calls fn with the messages at seqs, which rise, until it returns an error, and passes over those that are not there:
// trimmed, lost, or not committed yet. It is Get for many at once. The message is valid during the call.
func (s *Stream) Each(ctx context.Context, seqs []uint64, fn func(Raw) error) error {
	end, _ := slices.BinarySearch(seqs, s.Committed()+1) // what follows may be half written
	var failed error
	err := s.blocks.each(seqs[:end], func(r *record) bool {
		if failed = context.Cause(ctx); failed != nil || r.seq < s.First() {
			return failed == nil
		}
		raw := Raw{Seq: r.seq, Stored: time.Unix(0, r.time).UTC(), Subject: string(r.subject), Header: stripExpect(r.header), Data: r.data}
		if !raw.Gap() {
			failed = fn(raw)
		}
		return failed == nil
	})
	if failed != nil {
		return failed
	}
	return err
}

// each calls fn with the messages at seqs, which rise, until it returns false. A block that has several is opened once.
func (b *blocks) each(seqs []uint64, fn func(r *record) bool) error {
	list := b.snapshot()
	if len(list) == 0 {
		return nil
	}
	buf := scanBuffers.Get().(*[]byte)
	defer scanBuffers.Put(buf)
	for len(seqs) > 0 {
		i := find(list, seqs[0])
		n := len(seqs)
		if i+1 < len(list) {
			n, _ = slices.BinarySearch(seqs, list[i+1].first)
		}
		more, err := b.eachIn(list[i], seqs[:n], buf, fn)
		if err != nil && !errors.Is(err, fs.ErrNotExist) || !more {
			return err
		}
		seqs = seqs[n:]
	}
	return nil
}

// eachIn is each for one block.
func (b *blocks) eachIn(k *block, seqs []uint64, buf *[]byte, fn func(r *record) bool) (more bool, err error) {
	f, err := os.Open(b.path(k.index))
	if err != nil {
		return true, err
	}
	defer f.Close() //nolint:errcheck // read only
	for _, seq := range seqs {
		more, _, err := b.scanFile(f, k, seq, seq, buf, fn)
		if err != nil || !more {
			return more, err
		}
	}
	return true, nil
}

func (s *Stream) inRange(ctx context.Context, seq uint64) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case seq > s.Committed():
		return ErrNotFound
	case seq < s.First():
		return ErrGone
	}
	return nil
}

// missing explains why a committed sequence could not be read.
func (s *Stream) missing(seq uint64, found bool, err error) error {
	switch {
	case err != nil:
		return err
	case found:
		return nil
	case seq < s.First(): // trimmed meanwhile
		return ErrGone
	}
	return ErrGap
}

func rawOf(r *record) Raw {
	return Raw{Seq: r.seq, Stored: time.Unix(0, r.time).UTC(), Subject: string(r.subject),
		Header: bytes.Clone(stripExpect(r.header)), Data: bytes.Clone(r.data)}
}

// Read appends committed messages in the order of their sequences to dst. It may return fewer than there are; the next
// call goes on from the last Seq + 1. No message means that there is none up to Committed now. Gap records are
// returned, unless there is a filter, so that a reader comes past them.
func (s *Stream) Read(ctx context.Context, o ReadOptions, dst []Raw) ([]Raw, error) {
	if o.Max <= 0 {
		o.Max = readMax
	}
	if o.MaxBytes <= 0 {
		o.MaxBytes = readMaxBytes
	}
	from := max(o.From, s.First())
	if !o.FromTime.IsZero() {
		from = max(from, s.blocks.at(o.FromTime.Add(-timeSlack)))
	}
	n, size, looked := 0, 0, 0
	_, err := s.blocks.scan(from, s.Committed(), func(r *record) bool {
		if looked++; looked%ctxEvery == 0 && ctx.Err() != nil {
			return false
		}
		if !o.FromTime.IsZero() && time.Unix(0, r.time).Before(o.FromTime) || o.Filter != "" && !matchSubject(o.Filter, r.subject) {
			return true
		}
		dst = append(dst, rawOf(r))
		n++
		size += len(r.subject) + len(r.header) + len(r.data)
		return n < o.Max && size < o.MaxBytes
	})
	if ctx.Err() != nil {
		return dst, context.Cause(ctx)
	}
	return dst, err
}

// at returns a sequence that has everything stored at or after t behind it, as far as times rise within a block.
func (b *blocks) at(t time.Time) uint64 {
	list := b.snapshot()
	if len(list) == 0 {
		return 0
	}
	i := slices.IndexFunc(list, func(k *block) bool { return k.time >= t.UnixNano() }) // they need not rise: the clock may have been set
	if i < 0 {
		i = len(list)
	}
	return list[max(i-1, 0)].first
}

// matchSubject reports whether a subject matches a filter with the NATS wildcards * and >.
func matchSubject(filter string, subject []byte) bool {
	for {
		f, frest, fmore := strings.Cut(filter, ".")
		if f == ">" {
			return len(subject) > 0
		}
		t, trest, tmore := bytes.Cut(subject, []byte("."))
		if f != "*" && f != string(t) {
			return false
		}
		if !fmore || !tmore {
			return fmore == tmore
		}
		filter, subject = frest, trest
	}
}
