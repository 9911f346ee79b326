// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// Options say where the views live.
type Options struct {
	Dir         string // made if missing; its contents can be deleted while nothing runs
	CacheBytes  int64  // block cache; 0 = 8 MiB
	BufferBytes int64  // what gathers in memory before it is written, several times of it in a burst; 0 = 8 MiB
	Logger      *slog.Logger
}

// viewFormat changes when a view's layout does; views of another format are deleted and rebuilt.
const viewFormat = "8"

// Journal is the set of views. See the package comment for who may call what.
type Journal struct {
	view
	db     *pebble.DB
	logger *slog.Logger

	mu      sync.Mutex          // guards both
	waiting map[string]*Waiting // by target
	feeds   map[string]*feed    // by bus
}

// view reads from the database as it is now, or as it was at one moment.
type view struct{ r pebble.Reader }

// Open opens the views, or makes empty ones. Views that are damaged or of another format are deleted: they are rebuilt
// from the streams.
func Open(o Options) (*Journal, error) {
	if o.CacheBytes == 0 {
		o.CacheBytes = 8 << 20
	}
	if o.BufferBytes == 0 {
		o.BufferBytes = 8 << 20
	}
	log := o.Logger.With("component", "journal")
	format := filepath.Join(o.Dir, "FORMAT")
	if b, err := os.ReadFile(format); err != nil || string(b) != viewFormat {
		if err == nil {
			log.Info("views of another format are rebuilt")
		}
		if err := reset(o.Dir, format); err != nil {
			return nil, err
		}
	}
	db, err := openDB(o, log)
	if err != nil {
		log.Warn("views cannot be opened and are rebuilt", "err", err)
		if err := reset(o.Dir, format); err != nil {
			return nil, err
		}
		if db, err = openDB(o, log); err != nil {
			return nil, fmt.Errorf("open views: %w", err)
		}
	}
	j := &Journal{view: view{db}, db: db, logger: log, waiting: make(map[string]*Waiting), feeds: make(map[string]*feed)}
	if err := j.countWaiting(); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return j, nil
}

func reset(dir, format string) error {
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("delete views: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make views: %w", err)
	}
	return os.WriteFile(format, []byte(viewFormat), 0o600)
}

func openDB(o Options, log *slog.Logger) (*pebble.DB, error) {
	// Pebble takes what gathers in memory out of the cache: one as large as two buffers would hold no blocks under load.
	cache := pebble.NewCache(o.CacheBytes + 2*o.BufferBytes)
	defer cache.Unref()
	opts := &pebble.Options{
		Cache:              cache,
		DisableWAL:         true, // the streams are the log; see the package comment
		FormatMajorVersion: pebble.FormatNewest,
		FS:                 vfs.Default,
		Logger:             pebbleLog{log},
		Merger:             merger,
		MaxOpenFiles:       500,
		MemTableSize:       uint64(o.BufferBytes),
		// A burst waits for a flush rather than take more memory.
		MemTableStopWritesThreshold: 4,
	}
	return pebble.Open(filepath.Join(o.Dir, "db"), opts)
}

// Close writes out what is in memory, so that the next start has nothing to feed again, and closes the views. No call
// may be under way.
func (j *Journal) Close() error {
	return errors.Join(j.db.Flush(), j.db.Close())
}

// Flush makes durable what the views hold now. It blocks while it writes.
func (j *Journal) Flush() error {
	if err := j.db.Flush(); err != nil {
		return fmt.Errorf("write views: %w", err)
	}
	return nil
}

// Bytes returns the size of the views on disk.
func (j *Journal) Bytes() uint64 { return j.db.Metrics().DiskSpaceUsage() }

type pebbleLog struct{ *slog.Logger }

func (l pebbleLog) Infof(format string, args ...any) {
	l.Debug("pebble", "detail", fmt.Sprintf(format, args...))
}
func (l pebbleLog) Errorf(format string, args ...any) {
	l.Error("pebble", "detail", fmt.Sprintf(format, args...))
}
func (l pebbleLog) Fatalf(format string, args ...any) {
	l.Error("pebble", "detail", fmt.Sprintf(format, args...))
	panic(fmt.Sprintf("pebble: "+format, args...))
}

// Applied returns the last JOURNEY sequence of a bus that the views hold; feed Apply from the next.
func (j *Journal) Applied(bus string) (uint64, error) { return j.number(key('w', bus, 'J')) }

// Indexed returns the last event sequence of a bus that the views hold; feed Index from the next.
func (j *Journal) Indexed(bus string) (uint64, error) { return j.number(key('w', bus, 'E')) }

// Floor returns the sequence up to which everything is settled, as of the last applied record.
func (j *Journal) Floor(bus string) (uint64, error) { return j.number(key('f', bus)) }

// RoutedTo returns the last sequence that was routed, as of the last applied record.
func (j *Journal) RoutedTo(bus string) (uint64, error) { return j.number(key('w', bus, 'R')) }

func (s view) number(k []byte) (uint64, error) {
	b, err := s.get(k)
	if err != nil || len(b) < 8 {
		return 0, err
	}
	return binary.BigEndian.Uint64(b), nil
}

// get returns a copy of the value, nil if there is none.
func (s view) get(k []byte) ([]byte, error) {
	v, closer, err := s.r.Get(k)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read views: %w", err)
	}
	b := append([]byte(nil), v...)
	return b, closer.Close()
}

// Keys of the views. Every key is a letter, the name of the bus (names hold no zero byte), a zero, and:
//
//	w  'J' | 'E' | 'R'                             -> seq           positions the views hold
//	f                                              -> seq           floor
//	i  seq>>20 (4), hash of id (8), seq (8)        -> steps back    events by id, those of one batch together
//	s  seq>>20 (4), hash of subject (8), seq (8)   -> steps back    events by subject
//	t  highest time (8), last seq (8)              -> first, times  runs of events whose ids the bridge chose
//	r  last seq (8)                                -> first, JOURNEY seq    what one message routed
//	j  seq (8), JOURNEY seq (8)                    -> ""            messages with outcomes of an event, but for the one that routed it
//	p  seq (8), rule, 0, target                    -> pending       deliveries not settled for good
//	m  first seq (8), part (4)                     -> ruleset, rules        rules in force
//	u  rule, 0, revision (8)                       -> JOURNEY seq, document
//	a  hour (4)                                    -> count         events accepted
//	e  last seq (8)                                -> first, runs   what one call of Index counted, in order
//	b                                              -> seq           where counting begins
//	l  hour (4)                                    -> matched, unmatched, lost
//	o  hour (4), rule, 0, target                   -> counts of deliveries
//	y  rule or "", 0, target or ""                 -> seq           what was ranged for it until there is dropped
//	z  seq>>20 (4), state, target, 0, block (1), rule     -> set        positions whose deliveries stand in a state
//
// and without a bus in front:
//
//	d  target, 0, due in ms (8), bus, 0, seq (8), rule    -> ""     other parked deliveries, in order of due time
//	k  target, 0, key (8), bus, 0, seq (8), rule          -> ""     parked deliveries that have an order
//	g  target, 0, bus                                     -> parked, next, last, ranged     what waits for a target
//	x  DEAD seq (8)                                       -> bus, check, hour, outcome     dead letters
//	v  job (8), bus                                       -> counts     what became of what a job handled
//	h  bus, 0, 'D' | 'J'                                  -> seq        highest place in DEAD or JOBS that JOURNEY named
func key(letter byte, bus string, rest ...byte) []byte {
	k := make([]byte, 0, 2+len(bus)+len(rest)+40)
	k = append(k, letter)
	k = append(k, bus...)
	k = append(k, 0)
	return append(k, rest...)
}

func u64(k []byte, v uint64) []byte { return binary.BigEndian.AppendUint64(k, v) }
func u32(k []byte, v uint32) []byte { return binary.BigEndian.AppendUint32(k, v) }

func appendPendingKey(k []byte, bus string, seq uint64, rule, target string) []byte {
	k = append(append(append(k, 'p'), bus...), 0)
	return routeKey(u64(k, seq), rule, target)
}

func routeKey(k []byte, rule, target string) []byte {
	k = append(k, rule...)
	k = append(k, 0)
	return append(k, target...)
}

func pendingKey(bus string, seq uint64, r Route) []byte {
	return appendPendingKey(nil, bus, seq, r.Rule, r.Target)
}

func dueKey(bus string, p Pending) []byte {
	k := key('d', p.Route.Target)
	k = u64(k, uint64(millis(p.Due)))
	k = append(k, bus...)
	k = append(k, 0)
	k = u64(k, p.Seq)
	return append(k, p.Route.Rule...)
}

// parkedKey is the key by which a parked delivery is found.
func parkedKey(bus string, p Pending) []byte {
	if p.Key == 0 {
		return dueKey(bus, p)
	}
	k := append(lineKey(p.Route.Target, p.Key), bus...)
	k = u64(append(k, 0), p.Seq)
	return append(k, p.Route.Rule...)
}

// lineKey begins the keys of what is parked with an order.
func lineKey(target string, key64 uint64) []byte { return u64(key('k', target), key64) }

// after returns the smallest key that is larger than every key with this prefix.
func after(prefix []byte) []byte {
	k := append([]byte(nil), prefix...)
	for i := len(k) - 1; i >= 0; i-- {
		if k[i]++; k[i] != 0 {
			return k[:i+1]
		}
	}
	return nil
}

func (p *Pending) encode(dst []byte) []byte {
	dst = append(dst, byte(p.State))
	dst = u32(dst, uint32(p.Check))
	dst = binary.AppendUvarint(dst, uint64(p.Hour))
	dst = binary.AppendUvarint(dst, p.Route.Revision)
	dst = binary.AppendUvarint(dst, uint64(p.Attempts))
	dst = binary.AppendVarint(dst, millis(p.Due))
	dst = binary.AppendVarint(dst, millis(p.First))
	return p.Redrive.encode(u64(binary.AppendUvarint(dst, p.Record), p.Key))
}

// decode reads the value written by encode into p, whose Seq, Rule and Target come from the key.
func (p *Pending) decode(b []byte) error {
	d := decoder{b: b}
	p.State = d.state()
	p.Check = d.check()
	p.Hour = uint32(d.uint())
	p.Route.Revision = d.uint()
	p.Attempts = int(d.uint())
	p.Due = fromMillis(d.int())
	p.First = fromMillis(d.int())
	p.Record = d.uint()
	p.Key = d.key()
	p.Redrive = d.redriven()
	return d.err
}
