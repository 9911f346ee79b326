// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/mqttgw/packet"
)

// RetainedOptions say where retained messages are kept.
type RetainedOptions struct {
	Dir    string
	FS     vfs.FS       // nil = the disk
	Logger *slog.Logger // nil = slog.Default
}

// Retained is the last retained message of each topic, whole, with its position in its feed. The tails write it in the
// order of the log, with the position up to which a feed is in it; so after a crash each tail knows where to go on, and
// writes what is there already again to the same effect. It is data, not a cache: the bus forgets what is kept here.
//
// One goroutine may call sync; everything else is safe for concurrent use.
type Retained struct {
	db      *pebble.DB
	count   atomic.Int64
	changes atomic.Uint64 // how often something was written
	synced  uint64        // changes that are durable; sync's own

	mu        sync.Mutex        // one writes at a time
	positions map[string]uint64 // guarded by mu; up to where a feed is in it

	sweeping sync.Mutex // one sweeps at a time
	swept    string     // guarded by sweeping; the last topic that was looked at; "" = a round begins
	rested   time.Time  // guarded by sweeping; when the next round may begin
}

var (
	keyCount    = []byte("n")
	keyPosition = []byte("p") // and a feed's name -> position
	endPosition = []byte("q") // behind all positions
	topicPrefix = []byte("t") // topic -> feed, sequence, header, data
	topicEnd    = []byte("u") // behind all topics
	errRetained = errors.New("retained message is damaged")
)

// OpenRetained opens the retained messages, or makes an empty place for them.
func OpenRetained(o RetainedOptions) (*Retained, error) {
	if o.FS == nil {
		o.FS = vfs.Default
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	const buffer = 1 << 20
	cache := pebble.NewCache(2*buffer + 2<<20) // Pebble takes its buffers out of it
	defer cache.Unref()
	db, err := pebble.Open(o.Dir, &pebble.Options{Cache: cache, FS: o.FS, FormatMajorVersion: pebble.FormatNewest,
		Logger: pebbleLog{o.Logger.With("component", "mqtt"), "retained messages"}, MaxOpenFiles: 200, MemTableSize: buffer, MemTableStopWritesThreshold: 4})
	if err != nil {
		return nil, fmt.Errorf("open retained messages: %w", err)
	}
	r := &Retained{db: db, positions: map[string]uint64{}}
	if err := r.load(); err != nil {
		return nil, errors.Join(fmt.Errorf("open retained messages: %w", err), db.Close())
	}
	return r, nil
}

// load reads how many there are, and how far the feeds are in it.
func (r *Retained) load() (err error) {
	it, err := r.db.NewIter(&pebble.IterOptions{LowerBound: keyCount, UpperBound: endPosition})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	for ok := it.First(); ok; ok = it.Next() {
		v := it.Value()
		switch {
		case len(v) != 8:
			return errRetained
		case it.Key()[0] == keyCount[0]:
			r.count.Store(int64(binary.BigEndian.Uint64(v))) //nolint:gosec // was an int64
		case it.Key()[0] == keyPosition[0]:
			r.positions[string(it.Key()[1:])] = binary.BigEndian.Uint64(v)
		}
	}
	return it.Error()
}

func positionKey(feed string) []byte { return append(keyPosition[:1:1], feed...) }

func number(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

// positionOf is up to where a feed is in it; 0 if nothing of it is.
func (r *Retained) positionOf(feed string) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.positions[feed]
}

// Close writes out what is in memory. No call may be under way.
func (r *Retained) Close() error {
	return errors.Join(r.db.LogData(nil, pebble.Sync), r.db.Close())
}

// full reports whether a topic cannot have a retained message because most have one already.
func (r *Retained) full(topic string, most int) (bool, error) {
	if r.count.Load() < int64(most) {
		return false, nil
	}
	_, ok, err := r.get(topic)
	return !ok, err
}

func topicKey(topic string) []byte {
	return append(append(make([]byte, 0, 1+len(topic)), topicPrefix...), topic...)
}

// apply takes the retained messages among entries of a feed in, and the position next-1.
func (r *Retained) apply(feed string, entries []eventlog.Entry, next uint64) error {
	retains := func(e eventlog.Entry) bool {
		o := e.Record.MQTT
		return o != nil && o.Retain && len(o.Topic) > 0
	}
	if !slices.ContainsFunc(entries, retains) {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	batch := r.db.NewIndexedBatch()
	count := r.count.Load()
	err := func() error {
		for _, e := range entries {
			if !retains(e) || e.Seq <= r.positions[feed] {
				continue
			}
			more, err := put(batch, feed, e)
			if err != nil {
				return err
			}
			count += more
		}
		return errors.Join(batch.Set(positionKey(feed), number(next-1), nil), batch.Set(keyCount, number(uint64(count)), nil)) //nolint:gosec // not negative
	}()
	if err == nil {
		// Not synced: what a crash takes from here is in the log, which is read again from the position that is left.
		err = batch.Commit(pebble.NoSync)
	}
	if err = errors.Join(err, batch.Close()); err != nil {
		return fmt.Errorf("write retained messages: %w", err)
	}
	r.count.Store(count)
	r.positions[feed] = next - 1
	r.changes.Add(1)
	return nil
}

// put takes one message in and returns by how many there are more. If a mapping has moved the topic from one feed to
// another, the message that was received last counts, whatever tail comes first.
func put(batch *pebble.Batch, feed string, e eventlog.Entry) (more int64, err error) {
	key := topicKey(e.Record.MQTT.Topic)
	b, closer, err := batch.Get(key)
	known := err == nil
	if err != nil && !errors.Is(err, pebble.ErrNotFound) {
		return 0, err
	}
	if known {
		later, err := isLater(b, feed, e)
		if err = errors.Join(err, closer.Close()); err != nil || later {
			return 0, err
		}
	}
	switch {
	case !emptied(e.Record):
		if !known {
			more = 1
		}
		return more, batch.Set(key, appendRetained(nil, retainedEntry{feed, e}), nil)
	case known:
		return -1, batch.Delete(key, nil)
	}
	return 0, nil
}

// isLater reports whether what is kept is of another feed and was received later than a message.
func isLater(kept []byte, feed string, e eventlog.Entry) (bool, error) {
	c := recordCursor{b: kept}
	if string(c.bytes()) == feed {
		return false, nil
	}
	old, err := decodeRetained(kept)
	return err == nil && old.Record.Received.After(e.Record.Received), err
}

// begin says that a feed is served from a position on: what it has retained before is here, or was given up.
func (r *Retained) begin(feed string, position uint64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.move(feed, position)
}

// advance says that nothing of a feed up to a position is retained that is not here.
func (r *Retained) advance(feed string, position uint64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if position <= r.positions[feed] {
		return nil
	}
	return r.move(feed, position)
}

// move writes down where a feed is. mu is held.
func (r *Retained) move(feed string, position uint64) error {
	if err := r.db.Set(positionKey(feed), number(position), pebble.NoSync); err != nil {
		return fmt.Errorf("write position of retained messages: %w", err)
	}
	r.positions[feed] = position
	r.changes.Add(1)
	return nil
}

// expired reports whether the time of a retained message is over.
func expired(rec *event.Record, now time.Time) bool {
	p, ok := packet.Properties(rec.MQTT.Properties).Find(packet.MessageExpiry)
	return ok && max(0, now.Sub(rec.Received)) >= time.Duration(p.Int)*time.Second
}

// remove deletes messages, but for those that others have replaced. Killed before that is durable they are there again, and
// are as expired.
func (r *Retained) remove(gone []retainedEntry) error {
	if len(gone) == 0 {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	batch := r.db.NewIndexedBatch()
	count := r.count.Load()
	err := func() error {
		for _, e := range gone {
			old, ok, err := get(batch, e.Record.MQTT.Topic)
			if err != nil {
				return err
			}
			if !ok || old.feed != e.feed || old.Seq != e.Seq {
				continue
			}
			count--
			if err := batch.Delete(topicKey(e.Record.MQTT.Topic), nil); err != nil {
				return err
			}
		}
		return batch.Set(keyCount, number(uint64(count)), nil) //nolint:gosec // not negative
	}()
	if err == nil {
		err = batch.Commit(pebble.NoSync)
	}
	if err = errors.Join(err, batch.Close()); err != nil {
		return fmt.Errorf("delete retained messages: %w", err)
	}
	r.count.Store(count)
	r.changes.Add(1)
	return nil
}

const (
	sweepTopics = 4 * retainedBudget // that one sweep looks at
	sweepPause  = time.Minute        // from the end of one round to the next
)

// sweep deletes what has expired among the next topics, round after round with a pause between them: it is for a publisher that
// finds no place, and waits for it.
func (r *Retained) sweep(now time.Time) (err error) {
	if !r.sweeping.TryLock() {
		return nil
	}
	defer r.sweeping.Unlock()
	if r.swept == "" && now.Before(r.rested) {
		return nil
	}
	it, err := r.db.NewIter(&pebble.IterOptions{LowerBound: append(topicKey(r.swept), 0), UpperBound: topicEnd})
	if err != nil {
		return fmt.Errorf("sweep retained messages: %w", err)
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	var gone []retainedEntry
	more := it.First()
	for looked := 0; more && looked < sweepTopics; looked++ {
		b, err := it.ValueAndErr()
		if err != nil {
			return fmt.Errorf("sweep retained messages: %w", err)
		}
		r.swept = string(it.Key()[len(topicPrefix):])
		if e, err := decodeRetained(b); err == nil && expired(e.Record, now) {
			e.Record.Event.Data = nil // there may be thousands
			gone = append(gone, e)
		}
		more = it.Next()
	}
	if !more {
		r.swept, r.rested = "", now.Add(sweepPause)
	}
	return errors.Join(it.Error(), r.remove(gone))
}

// emptied reports whether a retained message takes away the one that there is: its payload is empty, and no CloudEvent without data.
func emptied(rec *event.Record) bool {
	return len(rec.Event.Data) == 0 && (rec.Minted || !structured(rec.MQTT))
}

// sync makes durable what was taken in.
func (r *Retained) sync() error {
	at := r.changes.Load()
	if at == r.synced {
		return nil
	}
	if err := r.db.LogData(nil, pebble.Sync); err != nil {
		return fmt.Errorf("sync retained messages: %w", err)
	}
	r.synced = at
	return nil
}

// retainedEntry is a message and the feed that it came from.
type retainedEntry struct {
	feed string
	eventlog.Entry
}

func appendRetained(dst []byte, e retainedEntry) []byte {
	header := event.AppendNATS(nil, e.Record)
	dst = appendString(dst, e.feed)
	dst = binary.AppendUvarint(binary.AppendUvarint(dst, e.Seq), uint64(len(header)))
	return append(append(dst, header...), e.Record.Event.Data...)
}

// decodeRetained reads what appendRetained wrote; nothing of b is kept.
func decodeRetained(b []byte) (e retainedEntry, err error) {
	c := recordCursor{b: b}
	feed := c.text()
	seq := c.number(maxCheckpoint)
	header := c.bytes()
	if c.bad || seq == 0 {
		return e, errRetained
	}
	rec, err := event.FromNATS(header, c.b)
	if err != nil {
		return e, fmt.Errorf("%w: %w", errRetained, err)
	}
	return retainedEntry{feed, eventlog.Entry{Seq: seq, Record: rec}}, nil
}

// get returns the retained message of a topic.
func (r *Retained) get(topic string) (e retainedEntry, ok bool, err error) {
	return get(r.db, topic)
}

func get(db pebble.Reader, topic string) (e retainedEntry, ok bool, err error) {
	b, closer, err := db.Get(topicKey(topic))
	if errors.Is(err, pebble.ErrNotFound) {
		return e, false, nil
	}
	if err != nil {
		return e, false, fmt.Errorf("read retained message: %w", err)
	}
	e, err = decodeRetained(b)
	return e, err == nil, errors.Join(err, closer.Close())
}

// retainedBudget is how many topics a scan looks at before it lets others have a turn.
const retainedBudget = 4096

// match appends at most most retained messages whose topics are above after and match a filter, in the order of their
// topics. next is where to go on; done reports that there are no more.
func (r *Retained) match(filter, after string, most int, dst []retainedEntry) (_ []retainedEntry, next string, done bool, err error) {
	prefix, exact := literal(filter)
	if exact {
		if after >= filter && after != "" {
			return dst, after, true, nil
		}
		e, ok, err := r.get(filter)
		if ok {
			dst = append(dst, e)
		}
		return dst, filter, true, err
	}
	it, err := r.db.NewIter(&pebble.IterOptions{LowerBound: topicKey(prefix), UpperBound: topicEnd})
	if err != nil {
		return dst, after, false, fmt.Errorf("read retained messages: %w", err)
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	next = after
	from := topicKey(max(prefix, after))
	if after != "" && after >= prefix {
		from = append(from, 0)
	}
	looked := 0
	for ok := it.SeekGE(from); ok; ok = it.Next() {
		topic := string(it.Key()[len(topicPrefix):])
		if !strings.HasPrefix(topic, prefix) {
			break
		}
		if looked++; looked > retainedBudget || len(dst) >= most {
			return dst, next, false, nil
		}
		next = topic
		if !matches(filter, topic) {
			continue
		}
		b, err := it.ValueAndErr()
		if err != nil {
			return dst, next, false, fmt.Errorf("read retained messages: %w", err)
		}
		e, err := decodeRetained(b)
		if err != nil {
			return dst, next, false, fmt.Errorf("topic %q: %w", topic, err)
		}
		dst = append(dst, e)
	}
	return dst, next, true, it.Error()
}

// literal returns what every topic that matches a filter begins with; exact reports that it is the only topic.
func literal(filter string) (prefix string, exact bool) {
	i := strings.IndexAny(filter, "+#")
	if i < 0 {
		return filter, true
	}
	prefix = filter[:i]
	if filter[i] == '#' {
		prefix = strings.TrimSuffix(prefix, "/") // a/# matches a
	}
	return prefix, false
}

// pebbleLog passes on what the database says.
type pebbleLog struct {
	*slog.Logger
	what string
}

// Infof implements pebble.Logger.
func (l pebbleLog) Infof(format string, args ...any) {
	l.Debug(l.what, "detail", fmt.Sprintf(format, args...))
}

// Errorf implements pebble.Logger.
func (l pebbleLog) Errorf(format string, args ...any) {
	l.Error(l.what, "detail", fmt.Sprintf(format, args...))
}

// Fatalf implements pebble.Logger.
func (l pebbleLog) Fatalf(format string, args ...any) {
	l.Error(l.what, "detail", fmt.Sprintf(format, args...))
	panic(fmt.Sprintf("pebble: "+format, args...))
}
