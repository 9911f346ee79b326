// SPDX-License-Identifier: Apache-2.0

package eventlog

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"

	"github.com/minio/highwayhash"
)

// The layout of a JetStream message block (nats-server 2.15, filestore.go): records one after the other, each
//
//	length u32 | sequence u64 | time u64 | subject length u16 | subject | [header length u32 | header] | data | sum u64
//
// little-endian, with the highest bit of the length saying that there is a header. Two high bits of the sequence mark
// records that are no messages. TestBlockLayout holds this against the server that is linked in.
const (
	recordPrefix = 22
	recordSum    = 8
	recordMax    = 32 << 20
	headerBit    = 1 << 31
	erasedBit    = 1 << 63
	tombstoneBit = 1 << 62
	sequenceMask = tombstoneBit - 1

	checkpointEvery = 64 << 10
	scanBuffer      = 256 << 10
	getBuffer       = 64 << 10 // one message is on average half a checkpoint away
)

// record is one message in a block. Its slices point into a buffer that is used again.
type record struct {
	seq     uint64
	time    int64
	subject []byte
	header  []byte
	data    []byte
}

// blocks is the directory of one stream's message blocks, read beside the server that writes them.
//
// A block is append-only: what an acknowledged batch has written stays where it is until the whole block is trimmed
// away, so a reader that never passes the committed sequence needs no lock of the server, and holds up no writer (a
// direct get takes the stream's lock and queues before the acknowledgements of the writer). All methods may be called
// concurrently.
type blocks struct {
	dir    string // .../streams/<name>/msgs
	name   string
	damage func(block uint32, offset int64, err error) // told about what cannot be read

	mu   sync.RWMutex // guards list and the checkpoints in it
	list []*block     // ascending
}

// block is one file. The last message of a block is the one before the first of the next.
type block struct {
	index uint32
	first uint64 // first sequence
	time  int64  // when it was stored
	marks []checkpoint
}

// checkpoint is where a record starts.
type checkpoint struct {
	seq    uint64
	offset int64
}

// headerEnd is the empty line that ends a header block, and stands nowhere else in it.
const headerEnd = "\r\n\r\n"

// emptyLine returns the index of the first headerEnd, -1 when there is none. bytes.Index is slow for it: each line begins to match.
func emptyLine(header []byte) int {
	for i := 0; ; {
		n := bytes.IndexByte(header[i:], '\n')
		if n < 0 {
			return -1
		}
		i += n + 1
		if i >= 2 && i+1 < len(header) && header[i] == '\r' && header[i+1] == '\n' && header[i-2] == '\r' {
			return i - 2
		}
	}
}

// errDamaged is wrapped by errors about blocks that cannot be read.
var errDamaged = errors.New("block is damaged")

var scanBuffers = sync.Pool{New: func() any { b := make([]byte, scanBuffer); return &b }}

func (b *blocks) path(index uint32) string {
	return filepath.Join(b.dir, strconv.FormatUint(uint64(index), 10)+".blk")
}

// blockFiles lists the block files of a directory, ascending.
func blockFiles(dir string) ([]uint32, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var out []uint32
	for _, e := range entries {
		name, ok := strings.CutSuffix(e.Name(), ".blk")
		if !ok {
			continue
		}
		if n, err := strconv.ParseUint(name, 10, 32); err == nil {
			out = append(out, uint32(n))
		}
	}
	slices.Sort(out)
	return out, nil
}

// refresh reads the directory. Blocks that are known keep their checkpoints. A block that is added meanwhile stays.
func (b *blocks) refresh() error {
	files, err := blockFiles(b.dir)
	if err != nil {
		return err
	}
	b.mu.RLock()
	known := make(map[uint32]*block, len(b.list))
	for _, k := range b.list {
		known[k.index] = k
	}
	b.mu.RUnlock()
	list := make([]*block, 0, len(files))
	for _, index := range files {
		k := known[index]
		if k == nil {
			if k, err = b.open(index); err != nil {
				return err
			}
		}
		if k != nil {
			list = append(list, k)
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, k := range b.list {
		if len(list) == 0 || k.index > list[len(list)-1].index { // was added meanwhile
			list = append(list, k)
		}
	}
	b.list = list
	return nil
}

// add appends a block that has come to be. It reports false when the block has no record yet.
func (b *blocks) add(index uint32) (bool, error) {
	b.mu.RLock()
	known := len(b.list) > 0 && b.list[len(b.list)-1].index >= index
	b.mu.RUnlock()
	if known {
		return true, nil
	}
	k, err := b.open(index)
	if k == nil || err != nil {
		return false, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if n := len(b.list); n == 0 || b.list[n-1].index < index { // a refresh may have found it meanwhile
		b.list = append(slices.Clip(b.list), k)
	}
	return true, nil
}

// open reads the first whole record of a block; nil when it has none yet, or is no longer there.
func (b *blocks) open(index uint32) (*block, error) {
	f, err := os.Open(b.path(index))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // read only
	rd := blockReader{f: f, buf: make([]byte, 4096), chunk: 4096, hash: b.sum(index)}
	for {
		p, err := rd.peek()
		if err == nil {
			_, err = rd.record(p)
		}
		if errors.Is(err, errDamaged) { // it is reported when it is read
			if err = rd.resync(1, sequenceMask); err == nil {
				continue
			}
		}
		if errors.Is(err, io.EOF) {
			return nil, nil // empty, half written, or only marks of what was deleted
		}
		if err != nil {
			return nil, err
		}
		if p.seq&tombstoneBit == 0 {
			seq := p.seq & sequenceMask
			return &block{index: index, first: seq, time: p.time, marks: []checkpoint{{seq, rd.offset}}}, nil
		}
		rd.skip(p)
	}
}

// snapshot returns the blocks as they are now. The elements' marks must not be touched.
func (b *blocks) snapshot() []*block {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.list
}

// first is the lowest sequence there is; 0 when there is none.
func (b *blocks) first() uint64 {
	if l := b.snapshot(); len(l) > 0 {
		return l[0].first
	}
	return 0
}

// bytes is the size of all block files; 0 when the directory is not there.
func (b *blocks) bytes() (int64, error) {
	files, err := blockFiles(b.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, err
	}
	var n int64
	for _, index := range files {
		st, err := os.Stat(b.path(index))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return 0, err
		}
		if err == nil {
			n += st.Size()
		}
	}
	return n, nil
}

// find returns the position in list of the block that holds seq, or the first one when seq is below all.
func find(list []*block, seq uint64) int {
	i := sort.Search(len(list), func(i int) bool { return list[i].first > seq })
	return max(i-1, 0)
}

// start returns the nearest known place at or before seq.
func (b *blocks) start(k *block, seq uint64) checkpoint {
	b.mu.RLock()
	defer b.mu.RUnlock()
	i := sort.Search(len(k.marks), func(i int) bool { return k.marks[i].seq > seq })
	return k.marks[max(i-1, 0)]
}

// forget drops the checkpoints of a block and returns its start.
func (b *blocks) forget(k *block) checkpoint {
	b.mu.Lock()
	defer b.mu.Unlock()
	k.marks = []checkpoint{{seq: k.first}}
	return k.marks[0]
}

// note remembers a place.
func (b *blocks) note(k *block, c checkpoint) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if last := k.marks[len(k.marks)-1]; c.offset >= last.offset+checkpointEvery && c.seq > last.seq {
		k.marks = append(k.marks, c)
	}
}

// scan calls fn for the messages from..to, in order, until fn returns false. It returns the sequence to go on from:
// one more than the last that fn was given, or to+1 when there is nothing more up to to. Sequences that are not there
// are passed over; so is what cannot be read, which is reported to damage.
func (b *blocks) scan(from, to uint64, fn func(r *record) bool) (next uint64, err error) {
	list := b.snapshot()
	if len(list) == 0 || from > to {
		return max(from, to+1), nil
	}
	buf := scanBuffers.Get().(*[]byte)
	defer scanBuffers.Put(buf)
	next = from
	for i := find(list, from); i < len(list); i++ {
		k := list[i]
		if k.first > to {
			break
		}
		next = max(next, k.first)
		more, n, err := b.scanBlock(k, next, to, buf, fn)
		next = max(next, n)
		switch {
		case errors.Is(err, fs.ErrNotExist): // trimmed meanwhile
		case err != nil:
			return next, err
		case !more:
			return next, nil
		}
	}
	return max(next, to+1), nil
}

// scanBlock is scan for one block. more is false when fn ended the scan.
//
// Records that are only passed over are not checked, as long as their sequences rise by one; whatever looks different
// is checked before it is believed. After a damaged place the scan goes on at the next whole record.
func (b *blocks) scanBlock(k *block, from, to uint64, buf *[]byte, fn func(r *record) bool) (more bool, next uint64, err error) {
	f, err := os.Open(b.path(k.index))
	if err != nil {
		return true, from, err
	}
	defer f.Close() //nolint:errcheck // read only
	return b.scanFile(f, k, from, to, buf, fn)
}

// scanFile is scanBlock with the file of the block, which stays open.
func (b *blocks) scanFile(f *os.File, k *block, from, to uint64, buf *[]byte, fn func(r *record) bool) (more bool, next uint64, err error) {
	c := b.start(k, from)
	rd := blockReader{f: f, buf: *buf, chunk: len(*buf), offset: c.offset, hash: b.sum(k.index)}
	if from == to {
		rd.chunk = getBuffer
	}
	defer func() {
		if len(rd.buf) <= 1<<20 {
			*buf = rd.buf
		}
	}()
	if p, err := rd.peek(); err != nil || p.seq&sequenceMask != c.seq {
		// The server has rewritten the block, as it does with one that has holes.
		c = b.forget(k)
		rd.window, rd.offset = nil, c.offset
	}
	lastMark, expect := c.offset, c.seq
	next = from
	var r record
	for {
		p, err := rd.peek()
		wanted := err == nil && p.seq >= from && p.seq <= to
		if err == nil && (wanted || p.seq != expect) {
			r, err = rd.record(p)
		}
		if errors.Is(err, io.EOF) {
			return true, next, nil
		}
		if errors.Is(err, errDamaged) {
			b.damage(k.index, rd.offset, err)
			if err = rd.resync(expect, to); errors.Is(err, io.EOF) {
				return true, next, nil
			}
			if err == nil {
				continue
			}
		}
		if err != nil {
			return true, next, err
		}
		if p.seq&tombstoneBit != 0 { // of a message that stood before
			rd.skip(p)
			continue
		}
		seq := p.seq & sequenceMask
		if seq > to {
			return true, next, nil
		}
		if rd.offset >= lastMark+checkpointEvery {
			b.note(k, checkpoint{seq, rd.offset})
			lastMark = rd.offset
		}
		rd.skip(p)
		expect = seq + 1
		if wanted {
			next = seq + 1
			if !fn(&r) {
				return false, next, nil
			}
		}
		if seq >= to { // what comes after may be half written
			return true, next, nil
		}
	}
}

// scanBack calls fn for the messages from down to low, newest first, until fn returns false. It returns the sequence
// to go on from, 0 when there is nothing more.
func (b *blocks) scanBack(from, low uint64, skip func(*block) bool, fn func(r *record) bool) (next uint64, err error) {
	list := b.snapshot()
	buf := scanBuffers.Get().(*[]byte)
	defer scanBuffers.Put(buf)
	if len(list) == 0 {
		return 0, nil
	}
	for i := find(list, from); i >= 0; i-- {
		k := list[i]
		if k.first > from {
			continue
		}
		high := from
		if i+1 < len(list) {
			high = min(high, list[i+1].first-1)
		}
		if high < low {
			return 0, nil
		}
		if skip != nil && skip(k) {
			continue
		}
		more, n, err := b.scanBlockBack(k, high, low, buf, fn)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return n, err
		}
		if !more {
			return n, nil
		}
	}
	return 0, nil
}

// scanBlockBack reads a block segment by segment, from one checkpoint to the next.
func (b *blocks) scanBlockBack(k *block, high, low uint64, buf *[]byte, fn func(r *record) bool) (more bool, next uint64, err error) {
	// A pass that only hops over the records makes the checkpoints.
	if _, _, err := b.scanBlock(k, high, high, buf, func(*record) bool { return false }); err != nil {
		return true, high, err
	}
	b.mu.RLock()
	marks := slices.Clone(k.marks)
	b.mu.RUnlock()
	var seg []record
	var arena []byte
	for m := len(marks) - 1; m >= 0; m-- {
		from, to := max(marks[m].seq, low), high
		if m+1 < len(marks) {
			to = min(to, marks[m+1].seq-1)
		}
		if to < low {
			return true, 0, nil
		}
		if from > to {
			continue
		}
		seg, arena = seg[:0], arena[:0]
		_, _, err := b.scanBlock(k, from, to, buf, func(r *record) bool {
			at := len(arena)
			arena = append(append(append(arena, r.subject...), r.header...), r.data...)
			s, h := at+len(r.subject), at+len(r.subject)+len(r.header)
			seg = append(seg, record{r.seq, r.time, arena[at:s], arena[s:h], arena[h:]})
			return true
		})
		if err != nil {
			return true, to, err
		}
		for j := len(seg) - 1; j >= 0; j-- {
			if seq := seg[j].seq; !fn(&seg[j]) {
				return false, seq - 1, nil
			}
		}
	}
	return true, k.first - 1, nil
}

// get calls fn with the message seq. It returns false when there is none.
func (b *blocks) get(seq uint64, fn func(r *record)) (bool, error) {
	found := false
	_, err := b.scan(seq, seq, func(r *record) bool {
		if r.seq == seq {
			found = true
			fn(r)
		}
		return false
	})
	return found, err
}

// sum returns the hash of a block's records, whose key depends on the block.
func (b *blocks) sum(index uint32) hash.Hash64 {
	key := sha256.Sum256([]byte(b.name + "-" + strconv.FormatUint(uint64(index), 10)))
	h, err := highwayhash.New64(key[:])
	if err != nil {
		panic("eventlog: " + err.Error()) // only for a key of another length
	}
	return h
}

// blockReader reads records from one block through a window.
type blockReader struct {
	f       *os.File
	buf     []byte
	chunk   int    // how much of buf is filled at once
	window  []byte // what is read, from offset on
	offset  int64
	hash    hash.Hash64
	scratch [recordSum]byte
}

// prefix is the fixed part of a record.
type prefix struct {
	length  int
	headers bool
	seq     uint64 // with the bits of records that are no messages
	time    int64
	subject int
}

// need makes the window hold n bytes; io.EOF when the file ends at offset, errDamaged when it ends within.
func (rd *blockReader) need(n int) error {
	if len(rd.window) >= n {
		return nil
	}
	if n > len(rd.buf) {
		rd.buf = make([]byte, max(n, 2*len(rd.buf)))
	}
	m, err := rd.f.ReadAt(rd.buf[:max(n, rd.chunk)], rd.offset)
	rd.window = rd.buf[:m]
	if m >= n {
		return nil
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if m == 0 {
		return io.EOF
	}
	return fmt.Errorf("record ends after %d of %d bytes: %w", m, n, errDamaged)
}

func (rd *blockReader) peek() (prefix, error) {
	if err := rd.need(recordPrefix); err != nil {
		return prefix{}, err
	}
	w := rd.window
	l := binary.LittleEndian.Uint32(w)
	p := prefix{length: int(l &^ headerBit), headers: l&headerBit != 0, seq: binary.LittleEndian.Uint64(w[4:]),
		time: int64(binary.LittleEndian.Uint64(w[12:])), subject: int(binary.LittleEndian.Uint16(w[20:]))}
	least := recordPrefix + p.subject + recordSum
	if p.headers {
		least += 4
	}
	if p.length < least || p.length > recordMax {
		return prefix{}, fmt.Errorf("record length %d: %w", p.length, errDamaged)
	}
	return p, nil
}

func (rd *blockReader) skip(p prefix) {
	rd.window = rd.window[min(p.length, len(rd.window)):]
	rd.offset += int64(p.length)
}

// record returns the whole record at the window, its sum checked.
func (rd *blockReader) record(p prefix) (record, error) {
	h := rd.hash
	if err := rd.need(p.length); err != nil {
		if errors.Is(err, io.EOF) {
			err = fmt.Errorf("record is cut off: %w", errDamaged)
		}
		return record{}, err
	}
	w := rd.window[:p.length]
	body := w[recordPrefix : p.length-recordSum]
	r := record{seq: p.seq & sequenceMask, time: p.time, subject: body[:p.subject], data: body[p.subject:]}
	if p.headers {
		n := int(binary.LittleEndian.Uint32(r.data))
		if n < len(headerEnd) || n > len(r.data)-4 {
			return record{}, fmt.Errorf("header length %d: %w", n, errDamaged)
		}
		r.header, r.data = r.data[4:4+n], r.data[4+n:]
		// The sum covers header and data as one run of bytes, not the length that parts them: a header ends at its first
		// empty line, or the length is not the one that was written.
		if emptyLine(r.header) != n-len(headerEnd) {
			return record{}, fmt.Errorf("header of %d bytes does not end with its empty line: %w", n, errDamaged)
		}
	}
	h.Reset()
	for _, part := range [][]byte{w[4:20], r.subject, r.header, r.data} {
		if _, err := h.Write(part); err != nil {
			return record{}, err
		}
	}
	if string(h.Sum(rd.scratch[:0])) != string(w[p.length-recordSum:]) {
		return record{}, fmt.Errorf("checksum of sequence %d does not match: %w", r.seq, errDamaged)
	}
	return r, nil
}

// resync moves to the next whole record of a sequence from low to high after a place that cannot be read; io.EOF when
// there is none.
func (rd *blockReader) resync(low, high uint64) error {
	for {
		rd.window = rd.window[min(1, len(rd.window)):]
		rd.offset++
		if err := rd.need(recordPrefix); err != nil {
			if errors.Is(err, errDamaged) {
				return io.EOF
			}
			return err
		}
		if seq := binary.LittleEndian.Uint64(rd.window[4:]); seq < low || seq > high {
			continue
		}
		p, err := rd.peek()
		if err == nil {
			_, err = rd.record(p)
		}
		if err == nil || !errors.Is(err, errDamaged) && !errors.Is(err, io.EOF) {
			return err
		}
	}
}
