// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
)

// The views of ids and subjects. Where an event with a text is, a key says that has a hash of it; events of one batch with
// the same text share one. An id that the bridge chose needs no key of its own: it holds a time, and is among the events of a
// run whose ids are of about that time.

// textHash is the hash of an id or a subject in the views' keys: FNV-1a with a final mix, the same after a restart, and
// good enough for keys whose events are compared when they are read.
func textHash(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := 0; i < len(s); i++ {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	h ^= h >> 32
	h *= 0x9E3779B97F4A7C15
	return h ^ h>>29
}

const bucketBits = 20 // events in one bucket of the id and subject views, so that whole buckets can be trimmed

// texts gathers what the views of ids and subjects get in one batch.
type texts struct {
	keys    []textKey
	minted  []MintedSpan
	highest uint64 // time of the latest id that is in a span, of all batches
}

type textKey struct {
	letter byte
	bucket uint32
	hash   uint64
	seq    uint64
}

func (t *texts) add(e *eventlog.Entry) {
	ev := &e.Record.Event
	if !e.Record.Minted || !t.addMinted(ev.ID, e.Seq) {
		t.addText('i', ev.ID, e.Seq)
	}
	if ev.Subject != "" {
		t.addText('s', ev.Subject, e.Seq)
	}
}

func (t *texts) addText(letter byte, text string, seq uint64) {
	t.keys = append(t.keys, textKey{letter, uint32(seq >> bucketBits), textHash(text), seq}) //nolint:gosec // sequences stay below 1<<52
}

// set writes what was gathered in order: the memory table of the database finds the place of a key faster from the one
// before.
func (t *texts) set(b *pebble.Batch, bus string) error {
	slices.SortFunc(t.keys, func(a, b textKey) int {
		return cmp.Or(cmp.Compare(a.letter, b.letter), cmp.Compare(a.bucket, b.bucket), cmp.Compare(a.hash, b.hash), cmp.Compare(a.seq, b.seq))
	})
	var k, v []byte
	for keys := t.keys; len(keys) > 0; {
		first, n := keys[0], 1
		for n < len(keys) && keys[n].letter == first.letter && keys[n].bucket == first.bucket && keys[n].hash == first.hash {
			n++
		}
		v = v[:0]
		for i := n - 1; i > 0; i-- {
			v = binary.AppendUvarint(v, keys[i].seq-keys[i-1].seq)
		}
		k = append(append(append(k[:0], first.letter), bus...), 0)
		k = u64(u64(u32(k, first.bucket), first.hash), keys[n-1].seq)
		if err := b.Set(k, v, nil); err != nil {
			return err
		}
		keys = keys[n:]
	}
	for _, s := range t.minted {
		if err := b.Set(u64(u64(key('t', bus), s.highest), s.To), u64(u64(u64(nil, s.From), s.earliest), s.latest), nil); err != nil {
			return err
		}
	}
	return nil
}

// ByID returns the positions below before (0 = all) of events that may have the id, newest first, at most limit: a hash
// was compared, so the caller reads and compares. Those whose id the bridge chose are where Minted says.
func (j *Journal) ByID(bus, id string, before uint64, limit int) ([]uint64, error) {
	return j.byText('i', bus, id, before, limit)
}

// BySubject returns the positions below before (0 = all) of events that may have the subject, newest first.
func (j *Journal) BySubject(bus, subject string, before uint64, limit int) ([]uint64, error) {
	return j.byText('s', bus, subject, before, limit)
}

func (j *Journal) byText(letter byte, bus, text string, before uint64, limit int) ([]uint64, error) {
	last, err := j.Indexed(bus)
	if err != nil {
		return nil, err
	}
	if before > 0 {
		last = min(last, before-1)
	}
	prefix := key(letter, bus)
	it, err := j.db.NewIter(&pebble.IterOptions{LowerBound: prefix, UpperBound: after(prefix)})
	if err != nil {
		return nil, fmt.Errorf("read views: %w", err)
	}
	defer it.Close()
	if !it.First() {
		return nil, it.Error()
	}
	oldest := binary.BigEndian.Uint32(it.Key()[len(prefix):])
	hash := textHash(text)
	var found []uint64
	for bucket := uint32(last >> bucketBits); len(found) < limit && last > 0; bucket-- {
		in := u64(u32(bytes.Clone(prefix), bucket), hash)
		// A key has the last position of its group: the one behind last may hold some before it.
		ok := it.SeekGE(u64(bytes.Clone(in), last)) && bytes.HasPrefix(it.Key(), in)
		if !ok {
			ok = it.SeekLT(u64(bytes.Clone(in), last))
		}
		for ; ok && bytes.HasPrefix(it.Key(), in) && len(found) < limit; ok = it.Prev() {
			seq := binary.BigEndian.Uint64(it.Key()[len(in):])
			for v := it.Value(); ; {
				if seq <= last && len(found) < limit {
					found = append(found, seq)
				}
				back, n := binary.Uvarint(v)
				if n <= 0 {
					break
				}
				seq, v = seq-back, v[n:]
			}
		}
		if bucket <= oldest {
			break
		}
	}
	return found, it.Error()
}

// mintedSlack is how many milliseconds the ids of a span may be apart, and how much older than the latest before: between
// the choice of an id and the event's place in the log is the wait for the log. spanEvents is how many events a span has at most:
// a lookup reads them.
const (
	mintedSlack = 1000
	spanEvents  = 256
)

// MintedSpan is a run of positions, both ends included, with ids that the bridge chose.
type MintedSpan struct {
	From, To         uint64
	earliest, latest uint64 // times of the ids, in milliseconds since 1970
	highest          uint64 // of this span and all before
}

// addMinted puts an event into a span. It reports whether it could: an id that is much older than those before it, because
// the wall clock was set back, cannot be found by its time.
func (t *texts) addMinted(id string, seq uint64) bool {
	ms, ok := event.IDTime(id)
	if !ok || ms+mintedSlack < t.highest {
		return false
	}
	t.highest = max(t.highest, ms)
	if n := len(t.minted); n > 0 {
		s := &t.minted[n-1]
		if earliest, latest := min(s.earliest, ms), max(s.latest, ms); latest-earliest <= mintedSlack && seq-s.From < spanEvents {
			s.To, s.earliest, s.latest, s.highest = seq, earliest, latest, t.highest
			return true
		}
	}
	t.minted = append(t.minted, MintedSpan{seq, seq, ms, ms, t.highest})
	return true
}

// highestMinted is the time of the latest id that is in a span.
func (j *Journal) highestMinted(bus string) (uint64, error) {
	prefix := key('t', bus)
	it, err := j.db.NewIter(&pebble.IterOptions{LowerBound: prefix, UpperBound: after(prefix)})
	if err != nil {
		return 0, fmt.Errorf("read views: %w", err)
	}
	defer it.Close()
	if !it.Last() {
		return 0, it.Error()
	}
	return binary.BigEndian.Uint64(it.Key()[len(prefix):]), nil
}

// Minted returns the spans, in order, of which one may hold the event with an id that the bridge has chosen: the caller
// reads and compares. There are few: as many as had ids of that millisecond on their way at once.
func (j *Journal) Minted(bus, id string) (spans []MintedSpan, err error) {
	ms, ok := event.IDTime(id)
	if !ok {
		return nil, nil
	}
	// Each id of a span is at most the slack older than the highest up to it, and not younger.
	prefix := key('t', bus)
	err = j.scan(prefix, u64(bytes.Clone(prefix), ms), func(k, v []byte) (bool, error) {
		k = k[len(prefix):]
		if len(k) != 16 || len(v) != 24 {
			return false, fmt.Errorf("%w: span of ids", ErrFormat)
		}
		s := MintedSpan{From: binary.BigEndian.Uint64(v), To: binary.BigEndian.Uint64(k[8:]), earliest: binary.BigEndian.Uint64(v[8:]),
			latest: binary.BigEndian.Uint64(v[16:]), highest: binary.BigEndian.Uint64(k)}
		if s.highest > ms+mintedSlack {
			return false, nil
		}
		if s.earliest <= ms && ms <= s.latest {
			spans = append(spans, s)
		}
		return true, nil
	})
	return spans, err
}

// trimMinted forgets the spans below seq. They are in the order of their positions.
func (j *Journal) trimMinted(b *pebble.Batch, bus string, seq uint64) error {
	prefix := key('t', bus)
	end := after(prefix)
	err := j.scan(prefix, nil, func(k, _ []byte) (bool, error) {
		if len(k) < 8 || binary.BigEndian.Uint64(k[len(k)-8:]) < seq {
			return true, nil
		}
		end = bytes.Clone(k)
		return false, nil
	})
	if err != nil {
		return err
	}
	return b.DeleteRange(prefix, end, nil)
}
