// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
)

// Line is what is parked for a target with one key: deliveries in order of position and rule, of which the first is made
// before the next.
type Line struct {
	Key  uint64
	Bus  string
	Head Pending // the first
}

// LineOf returns the line of a key on a bus from a position on; ok is false if nothing is parked there. Whoever knows that
// nothing stands before a position says so: what was deleted there costs the reading.
func (j *Journal) LineOf(bus, target string, key, from uint64) (l Line, ok bool, err error) {
	prefix := append(append(lineKey(target, key), bus...), 0)
	err = j.scan(prefix, u64(bytes.Clone(prefix), from), func(k, _ []byte) (bool, error) {
		l, err = j.readLine(target, k)
		ok = err == nil
		return false, err
	})
	return l, ok, err
}

// EachLine calls fn for the lines of a target, until it returns false. It costs a look-up for each, however long it is.
func (j *Journal) EachLine(target string, fn func(Line) (bool, error)) error {
	prefix := key('k', target)
	it, err := j.db.NewIter(&pebble.IterOptions{LowerBound: prefix, UpperBound: after(prefix)})
	if err != nil {
		return fmt.Errorf("read views: %w", err)
	}
	defer it.Close()
	for ok := it.First(); ok; {
		l, err := j.readLine(target, it.Key())
		if err != nil {
			return err
		}
		if more, err := fn(l); err != nil || !more {
			return err
		}
		ok = it.SeekGE(after(lineKey(target, l.Key)))
	}
	return it.Error()
}

// CountLine counts what is parked with a key, up to most.
func (j *Journal) CountLine(target string, key uint64, most int) (n int, err error) {
	return n, j.scan(lineKey(target, key), nil, func(_, _ []byte) (bool, error) {
		n++
		return n < most, nil
	})
}

// readLine reads the delivery at a key of the views.
func (j *Journal) readLine(target string, k []byte) (Line, error) {
	k = k[len(key('k', target)):]
	i := bytes.IndexByte(k[min(8, len(k)):], 0)
	if i < 0 || len(k) < 8+i+9 {
		return Line{}, fmt.Errorf("line key of %d bytes", len(k))
	}
	l := Line{Key: binary.BigEndian.Uint64(k), Bus: string(k[8 : 8+i])}
	seq, rule := binary.BigEndian.Uint64(k[8+i+1:]), string(k[8+i+9:])
	p, ok, err := j.FindPending(l.Bus, seq, rule, target)
	if !ok { // it ended since this reading began; who asked finds out when it looks again
		p = Pending{Seq: seq, Route: Route{Rule: rule, Target: target}}
	}
	l.Head = p
	return l, err
}
