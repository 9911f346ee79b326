// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math/bits"
	"slices"

	"github.com/cockroachdb/pebble/v2"
)

// The view of outcomes says which events have a delivery to a target that stands as parked, or has ended in some way: a
// set of positions for each target, state and rule, in blocks of 8192. A message of JOURNEY adds what it has changed in a
// set as one operand, however many events that are, and Pebble merges the operands when it rewrites its files anyway. So
// an event costs next to nothing where a target has many, and a full block is a bitmap of 1 KiB.
const (
	blockBits = 13
	blockSize = 1 << blockBits
	words     = blockSize / 64
)

// bitmap is a set of positions of a block.
type bitmap [words]uint64

func (b *bitmap) count() (n int) {
	for _, w := range b {
		n += bits.OnesCount64(w)
	}
	return n
}

// change is what happened to the set of a block: some have come, others have gone. As a whole set it is one without any
// that have gone.
type change struct{ come, gone bitmap }

// The forms of a change.
const (
	formList = iota // positions of two bytes, those that have gone with the highest bit
	formCome        // one bitmap
	formBoth        // two bitmaps
	listGone = 1 << 15
)

// appendChange writes a list. A position is in it once.
func appendChange(dst []byte, list []uint16) []byte {
	dst = append(dst, formList)
	for _, x := range list {
		dst = binary.BigEndian.AppendUint16(dst, x)
	}
	return dst
}

func (c *change) encode() []byte {
	come, gone := c.come.count(), c.gone.count()
	if 2*(come+gone) < blockSize/8 {
		out := append(make([]byte, 0, 1+2*(come+gone)), formList)
		for w := range uint16(words) {
			for x := c.come[w] | c.gone[w]; x != 0; x &= x - 1 {
				bit := uint16(bits.TrailingZeros64(x))
				i := w*64 + bit
				if c.gone[w]&(1<<bit) != 0 {
					i |= listGone
				}
				out = binary.BigEndian.AppendUint16(out, i)
			}
		}
		return out
	}
	out := append(make([]byte, 0, 1+2*blockSize/8), formCome)
	for _, w := range c.come {
		out = binary.BigEndian.AppendUint64(out, w)
	}
	if gone > 0 {
		out[0] = formBoth
		for _, w := range c.gone {
			out = binary.BigEndian.AppendUint64(out, w)
		}
	}
	return out
}

// read brings in a change that encode or appendChange wrote: a newer one takes the place of what is known of a position, an
// older one fills in what is not.
func (c *change) read(b []byte, older bool) error {
	if len(b) == 0 {
		return fmt.Errorf("%w: outcomes", ErrFormat)
	}
	form, b := b[0], b[1:]
	switch {
	case form == formList && len(b)%2 == 0:
		for ; len(b) > 0; b = b[2:] {
			x := binary.BigEndian.Uint16(b)
			w, bit := x&(blockSize-1)/64, uint64(1)<<(x%64)
			switch {
			case older && (c.come[w]|c.gone[w])&bit != 0:
			case x&listGone != 0:
				c.come[w], c.gone[w] = c.come[w]&^bit, c.gone[w]|bit
			default:
				c.come[w], c.gone[w] = c.come[w]|bit, c.gone[w]&^bit
			}
		}
	case form == formCome && len(b) == blockSize/8, form == formBoth && len(b) == 2*blockSize/8:
		for i := range c.come {
			come, gone := binary.BigEndian.Uint64(b[8*i:]), uint64(0)
			if form == formBoth {
				gone = binary.BigEndian.Uint64(b[blockSize/8+8*i:]) &^ come
			}
			if older {
				known := c.come[i] | c.gone[i]
				come, gone = come&^known, gone&^known
			}
			c.come[i], c.gone[i] = c.come[i]&^gone|come, c.gone[i]&^come|gone
		}
	default:
		return fmt.Errorf("%w: outcomes", ErrFormat)
	}
	return nil
}

// merger merges changes.
var merger = &pebble.Merger{Name: "rialto.outcomes", Merge: func(_, value []byte) (pebble.ValueMerger, error) {
	m := new(merging)
	return m, m.read(value, false)
}}

// merging implements pebble.ValueMerger. A set that has become empty stays as such: pebble.DeletableValueMerger, which
// could take it out, panics in compactions of Pebble 2.1.7.
type merging struct{ change }

func (m *merging) MergeNewer(value []byte) error { return m.read(value, false) }
func (m *merging) MergeOlder(value []byte) error { return m.read(value, true) }

func (m *merging) Finish(whole bool) ([]byte, io.Closer, error) {
	if whole { // nothing is left from which something could have gone
		m.gone = bitmap{}
	}
	return m.encode(), nil, nil
}

// searchable are the states in which deliveries can be searched for. Those that are live are not among them: they are in
// none of these for the moment.
var searchable = []State{Parked, Delivered, Dead, Cancelled, Expired, Discarded}

// outcomeSet names a set.
type outcomeSet struct {
	state        State
	target, rule string
	block        uint64 // number of it
}

func outcomePrefix(dst []byte, bus string, bucket uint32, s State, target string) []byte {
	dst = append(append(append(dst, 'z'), bus...), 0)
	dst = append(u32(dst, bucket), byte(s))
	return append(append(dst, target...), 0)
}

func (o outcomeSet) key(dst []byte, bus string) []byte {
	dst = outcomePrefix(dst, bus, uint32(o.block>>(bucketBits-blockBits)), o.state, o.target)
	return append(append(dst, blockIn(o.block)), o.rule...)
}

// blockIn is the number of a block in its bucket.
func blockIn(block uint64) byte { return byte(block & (1<<(bucketBits-blockBits) - 1)) }

// ended stands for any state but Live and Parked.
const ended State = '?'

// moved notes that a delivery stands otherwise now.
func (a *application) moved(id pendingID, from, to State) {
	change := func(s State, mark uint16) {
		if s == 0 || s == Live {
			return
		}
		set := outcomeSet{s, id.target, id.rule, id.seq >> blockBits}
		a.sets[set] = append(a.sets[set], uint16(id.seq&(blockSize-1))|mark)
	}
	if from != ended {
		change(from, listGone)
	} else {
		for _, s := range searchable {
			if s != Parked && s != to {
				change(s, listGone)
			}
		}
	}
	change(to, 0)
}

func (a *application) finishOutcomes() error {
	for set, list := range a.sets {
		slices.SortFunc(list, func(x, y uint16) int { return int(x&^listGone) - int(y&^listGone) })
		a.key, a.value = set.key(a.key[:0], a.bus), appendChange(a.value[:0], list)
		if err := a.batch.Merge(a.key, a.value, nil); err != nil {
			return err
		}
	}
	return nil
}

// ByOutcome returns the positions from..below before (0 = all) of events with a delivery to a target that stands in a
// state, newest first, at most limit. Without a state all are returned whose deliveries are parked or have ended.
func (j *Journal) ByOutcome(bus, target string, state State, from, before uint64, limit int) ([]uint64, error) {
	states := searchable
	if state != 0 {
		states = []State{state}
	}
	last, err := j.RoutedTo(bus)
	if err != nil {
		return nil, err
	}
	if before > 0 {
		last = min(last, before-1)
	}
	if last < from || last == 0 || limit <= 0 {
		return nil, nil
	}
	s := outcomeSearch{bus: bus, target: target, from: from, last: last, limit: limit}
	bounds := &pebble.IterOptions{LowerBound: key('z', bus), UpperBound: after(key('z', bus))}
	for _, state := range states {
		it, err := j.db.NewIter(bounds)
		if err != nil {
			return nil, fmt.Errorf("read views: %w", err)
		}
		defer it.Close()
		s.sets = append(s.sets, outcomeCursor{state: state, it: it})
	}
	first := s.sets[0].it
	if !first.First() {
		return nil, first.Error()
	}
	oldest := max(binary.BigEndian.Uint32(first.Key()[len(bounds.LowerBound):]), uint32(from>>bucketBits))
	for bucket := uint32(last >> bucketBits); len(s.found) < limit; bucket-- {
		if err := s.bucket(bucket); err != nil || bucket <= oldest {
			return s.found, err
		}
	}
	return s.found, nil
}

// outcomeSearch goes through the sets of a target, newest block first.
type outcomeSearch struct {
	bus, target string
	from, last  uint64
	limit       int
	sets        []outcomeCursor // one for each state
	found       []uint64
}

// outcomeCursor stands at the newest set of its state that was not read yet.
type outcomeCursor struct {
	state  State
	it     *pebble.Iterator
	prefix []byte // of the bucket
	block  int    // of the bucket; -1 = none left
}

// settle notes where the iterator stands.
func (c *outcomeCursor) settle(valid bool) {
	c.block = -1
	if !valid {
		return
	}
	if k := c.it.Key(); len(k) > len(c.prefix) && bytes.HasPrefix(k, c.prefix) {
		c.block = int(k[len(c.prefix)])
	}
}

func (s *outcomeSearch) bucket(bucket uint32) error {
	start := byte(1 << (bucketBits - blockBits)) // behind its last block
	if uint64(bucket) == s.last>>bucketBits {
		start = blockIn(s.last>>blockBits) + 1
	}
	for i := range s.sets {
		c := &s.sets[i]
		c.prefix = outcomePrefix(c.prefix[:0], s.bus, bucket, c.state, s.target)
		c.settle(c.it.SeekLT(append(bytes.Clone(c.prefix), start)))
	}
	for len(s.found) < s.limit {
		block := -1
		for i := range s.sets {
			block = max(block, s.sets[i].block)
		}
		if block < 0 {
			break
		}
		var all change
		for i := range s.sets {
			c := &s.sets[i]
			for c.block == block {
				if err := all.read(c.it.Value(), false); err != nil {
					return err
				}
				c.settle(c.it.Prev())
			}
		}
		low := uint64(bucket)<<bucketBits + uint64(block)<<blockBits
		s.take(low, &all.come)
		if low <= s.from {
			break
		}
	}
	for i := range s.sets {
		if err := s.sets[i].it.Error(); err != nil {
			return fmt.Errorf("read views: %w", err)
		}
	}
	return nil
}

// take adds the positions of a block, newest first.
func (s *outcomeSearch) take(low uint64, set *bitmap) {
	for w := words - 1; w >= 0; w-- {
		for x := set[w]; x != 0; {
			top := 63 - bits.LeadingZeros64(x)
			x &^= 1 << top
			seq := low + uint64(w*64+top)
			if seq > s.last {
				continue
			}
			if seq < s.from || len(s.found) == s.limit {
				return
			}
			s.found = append(s.found, seq)
		}
	}
}
