// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
)

// RetainedOptions say where retained messages are kept.
type RetainedOptions struct {
	Dir    string
	FS     vfs.FS       // nil = the disk
	Logger *slog.Logger // nil = slog.Default
}

// Retained is the last retained message of each topic, whole, with its position in the bus. The tail writes it in the
// order of the log, with the position up to which the bus is in it; so after a crash the tail knows where to go on, and
// writes what is there already again to the same effect. It is data, not a cache: the bus forgets what is kept here.
//
// One goroutine may write and one may call sync; everything else is safe for concurrent use.
type Retained struct {
	db       *pebble.DB
	position atomic.Uint64 // up to which the bus is in it
	count    atomic.Int64
	synced   uint64 // position that is durable; sync's own
}

var (
	keyPosition = []byte("p") // position and count
	topicPrefix = []byte("t") // topic -> sequence, header, data
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
	cache := pebble.NewCache(4 << 20)
	defer cache.Unref()
	db, err := pebble.Open(o.Dir, &pebble.Options{Cache: cache, FS: o.FS, FormatMajorVersion: pebble.FormatNewest,
		Logger: pebbleLog{o.Logger.With("component", "mqtt")}, MaxOpenFiles: 200, MemTableSize: 1 << 20, MemTableStopWritesThreshold: 4})
	if err != nil {
		return nil, fmt.Errorf("open retained messages: %w", err)
	}
	r := &Retained{db: db}
	b, closer, err := db.Get(keyPosition)
	switch {
	case errors.Is(err, pebble.ErrNotFound):
		return r, nil
	case err == nil && len(b) == 16:
		r.position.Store(binary.BigEndian.Uint64(b))
		r.count.Store(int64(binary.BigEndian.Uint64(b[8:]))) //nolint:gosec // was an int64
	case err == nil:
		err = errRetained
	}
	if closer != nil {
		err = errors.Join(err, closer.Close())
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open retained messages: %w", err), db.Close())
	}
	r.synced = r.position.Load()
	return r, nil
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

// apply takes the retained messages among entries in, and the position next-1.
func (r *Retained) apply(entries []eventlog.Entry, next uint64) (err error) {
	var batch *pebble.Batch
	count := r.count.Load()
	done := r.position.Load()
	for _, e := range entries {
		o := e.Record.MQTT
		if o == nil || !o.Retain || len(o.Topic) == 0 || e.Seq <= done {
			continue
		}
		if batch == nil {
			batch = r.db.NewIndexedBatch()
			defer func() { err = errors.Join(err, batch.Close()) }()
		}
		key := topicKey(o.Topic)
		known := false
		switch _, closer, err := batch.Get(key); {
		case err == nil:
			known = true
			if err := closer.Close(); err != nil {
				return err
			}
		case !errors.Is(err, pebble.ErrNotFound):
			return fmt.Errorf("read retained message: %w", err)
		}
		if emptied(e.Record) {
			if known {
				count--
				err = batch.Delete(key, nil)
			}
		} else {
			if !known {
				count++
			}
			err = batch.Set(key, appendRetained(nil, e), nil)
		}
		if err != nil {
			return fmt.Errorf("write retained message: %w", err)
		}
	}
	if batch != nil {
		if err := batch.Set(keyPosition, positionValue(next-1, count), nil); err != nil {
			return fmt.Errorf("write retained message: %w", err)
		}
		// Not synced: what a crash takes from here is in the bus, which is read again from the position that is left.
		if err := batch.Commit(pebble.NoSync); err != nil {
			return fmt.Errorf("write retained messages: %w", err)
		}
		r.count.Store(count)
		r.position.Store(next - 1)
	}
	return nil
}

func positionValue(position uint64, count int64) []byte {
	b := binary.BigEndian.AppendUint64(nil, position)
	return binary.BigEndian.AppendUint64(b, uint64(count)) //nolint:gosec // not negative
}

// advance says that nothing up to a position is retained that is not here.
func (r *Retained) advance(position uint64) error {
	if position <= r.position.Load() {
		return nil
	}
	if err := r.db.Set(keyPosition, positionValue(position, r.count.Load()), pebble.NoSync); err != nil {
		return fmt.Errorf("write position of retained messages: %w", err)
	}
	r.position.Store(position)
	return nil
}

// emptied reports whether a retained message takes away the one that there is.
func emptied(rec *event.Record) bool { return rec.Minted && len(rec.Event.Data) == 0 }

// sync makes durable what was taken in.
func (r *Retained) sync() error {
	at := r.position.Load()
	if at == r.synced {
		return nil
	}
	if err := r.db.LogData(nil, pebble.Sync); err != nil {
		return fmt.Errorf("sync retained messages: %w", err)
	}
	r.synced = at
	return nil
}

func appendRetained(dst []byte, e eventlog.Entry) []byte {
	header := event.AppendNATS(nil, e.Record)
	dst = binary.AppendUvarint(binary.AppendUvarint(dst, e.Seq), uint64(len(header)))
	return append(append(dst, header...), e.Record.Event.Data...)
}

// decodeRetained reads what appendRetained wrote; nothing of b is kept.
func decodeRetained(b []byte) (eventlog.Entry, error) {
	c := recordCursor{b: b}
	seq := c.number(maxCheckpoint)
	header := c.bytes()
	if c.bad || seq == 0 {
		return eventlog.Entry{}, errRetained
	}
	rec, err := event.FromNATS(header, c.b)
	if err != nil {
		return eventlog.Entry{}, fmt.Errorf("%w: %w", errRetained, err)
	}
	return eventlog.Entry{Seq: seq, Record: rec}, nil
}

// get returns the retained message of a topic.
func (r *Retained) get(topic string) (e eventlog.Entry, ok bool, err error) {
	b, closer, err := r.db.Get(topicKey(topic))
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
func (r *Retained) match(filter, after string, most int, dst []eventlog.Entry) (_ []eventlog.Entry, next string, done bool, err error) {
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
type pebbleLog struct{ *slog.Logger }

// Infof implements pebble.Logger.
func (l pebbleLog) Infof(format string, args ...any) {
	l.Debug("retained messages", "detail", fmt.Sprintf(format, args...))
}

// Errorf implements pebble.Logger.
func (l pebbleLog) Errorf(format string, args ...any) {
	l.Error("retained messages", "detail", fmt.Sprintf(format, args...))
}

// Fatalf implements pebble.Logger.
func (l pebbleLog) Fatalf(format string, args ...any) {
	l.Error("retained messages", "detail", fmt.Sprintf(format, args...))
	panic(fmt.Sprintf("pebble: "+format, args...))
}
