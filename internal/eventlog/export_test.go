// SPDX-License-Identifier: Apache-2.0

package eventlog

import (
	"encoding/binary"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/rialto-bridge/rialto/internal/event"
)

// WithStatfs gives the options another view of the disk.
func (o Options) WithStatfs(fn func(string) (free, total int64, err error)) Options {
	o.statfs = fn
	return o
}

// WithAckTimeout gives the options another patience with the server.
func (o Options) WithAckTimeout(d time.Duration) Options {
	o.ackTimeout = d
	return o
}

// ConnectEvents returns a connection to the event plane, where nobody but the writers should publish.
func (l *Log) ConnectEvents() (*nats.Conn, error) { return l.events.connect() }

// LookAtDisk does what the watchdog does every second.
func (l *Log) LookAtDisk() { l.disk.look(0) }

// BreakWire ends the writer's connection.
func (s *Stream) BreakWire() error { return s.wire.conn.Close() }

// BlockDir returns the directory of a stream's blocks.
func BlockDir(dataDir, stream string) string {
	return filepath.Join(dataDir, "events", "jetstream", "$G", "streams", stream, "msgs")
}

// Pieces for tests of their own.
var (
	AppendPub     = appendPub
	StripExpect   = stripExpect
	AppendToken   = appendToken
	ParseToken    = parseToken
	MatchTopic    = matchTopic
	MatchSubject  = matchSubject
	EmptyLine     = emptyLine
	DefReserve    = defaultReserve
	SubjectLevels = subjectLevels
)

// SubjectOf returns the subject of an event on a bus that has room for limit subjects.
func SubjectOf(bus string, limit int, recs ...*event.Record) []string {
	s := newSubjects(bus)
	s.limit = limit
	var out []string
	for _, r := range recs {
		out = append(out, s.of(r))
	}
	return out
}

// SubjectMatches reports whether a subject passes the coarse test of a query.
func SubjectMatches(bus, subject string, q Query) bool {
	c := newSubjects(bus).query(q)
	return c.match([]byte(subject))
}

// Dedup is the dedup index.
type Dedup struct{ d *dedup }

// NewDedup returns an empty index.
func NewDedup(window time.Duration, limit int) Dedup { return Dedup{newDedup(window, limit)} }

// Store stores an id unless it is known, and reports whether it was.
func (x Dedup) Store(key event.Key, seq uint64, now time.Time) (dup bool) {
	f, dup := x.d.enter(key, now)
	if !dup {
		x.d.settle(key, f, seq, nil, now)
	}
	return dup
}

// Len returns the number of ids.
func (x Dedup) Len() int { return x.d.count }

// Dir returns the data directory.
func (l *Log) Dir() string { return l.opts.Dir }

// NewClock returns a clock for tests: look says how long it has run evenly, and whether it was set before.
func NewClock(now func() time.Time, elapsed func() time.Duration, trust time.Duration) (look func() (time.Duration, bool), trusted func() bool) {
	c := newClock(Options{Now: now, ClockTrust: trust}, slog.New(slog.DiscardHandler))
	c.elapsed = elapsed
	return c.look, c.trusted
}

// StoredBy is storedBy of blocks begun at some times, all in nanoseconds.
func StoredBy(begun []int64, now int64) int64 {
	var list []*block
	for _, t := range begun {
		list = append(list, &block{time: t})
	}
	return storedBy(list, time.Unix(0, now)).UnixNano()
}

// Blocks are the blocks of a stream named t in a directory.
type Blocks struct{ b *blocks }

// NewBlocks returns the blocks of a directory that were there at the last refresh: none.
func NewBlocks(dir string) Blocks { return Blocks{&blocks{dir: dir, name: "t"}} }

// Write makes a block of one message, whose sequence is the index, and adds it.
func (x Blocks) Write(index uint32) (bool, error) {
	b := make([]byte, recordPrefix, recordPrefix+1+recordSum)
	binary.LittleEndian.PutUint32(b, recordPrefix+1+recordSum)
	binary.LittleEndian.PutUint64(b[4:], uint64(index))
	binary.LittleEndian.PutUint16(b[20:], 1)
	b = append(b, 's')
	h := x.b.sum(index)
	h.Write(append(b[4:20:20], 's')) //nolint:errcheck // never fails
	if err := os.WriteFile(x.b.path(index), h.Sum(b), 0o600); err != nil {
		return false, err
	}
	return x.b.add(index)
}

// Refresh reads the directory.
func (x Blocks) Refresh() error { return x.b.refresh() }

// Has reports whether a message is found.
func (x Blocks) Has(seq uint64) bool {
	found, err := x.b.get(seq, func(*record) {})
	return found && err == nil
}

// Len is how many blocks are known.
func (x Blocks) Len() int { return len(x.b.snapshot()) }
