// SPDX-License-Identifier: Apache-2.0

package eventlog

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"slices"

	"github.com/minio/highwayhash"

	"github.com/rialto-bridge/rialto/internal/event"
)

// mark is the committed high-water mark of a stream: a small file beside the stream that says which message was
// committed last. It is written before each acknowledgement and not synced: it is there for damage that a restart
// would not see, not for promises about power loss (the kernel writes it back soon, and never ahead of the data of a
// synced batch).
//
// The file has two slots, used in turns, so that a torn write leaves the one before. It is used by one goroutine.
type mark struct {
	file *os.File
	at   markPoint
	slot int64
}

// markPoint is a committed message: its sequence and a hash of it.
type markPoint struct {
	seq uint64
	key event.Key
}

const (
	markMagic    = "RMK1"
	markLength   = 4 + 8 + 16 + 4 // magic, sequence, key, crc
	markSlot     = 512            // a sector
	markFileSize = markSlot + markLength
)

// markKey is the key of the hash in marks: any, but always the same.
var markKey = [32]byte([]byte("rialto committed mark, version 1."[:32]))

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// recordKey is the identity of a message for the mark.
func recordKey(subject string, header, data []byte) event.Key {
	h, err := highwayhash.New128(markKey[:])
	if err != nil {
		panic("eventlog: " + err.Error()) // only for a key of another length
	}
	for _, p := range [][]byte{[]byte(subject), {0}, header, {0}, data} {
		h.Write(p) //nolint:errcheck // never fails
	}
	return event.Key(h.Sum(nil))
}

// openMark opens the mark at path, or makes one.
func openMark(path string) (*mark, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o640)
	if err != nil {
		return nil, fmt.Errorf("committed mark: %w", err)
	}
	at, slot, err := loadMark(f)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &mark{file: f, at: at, slot: slot}, nil
}

// readMark returns the mark at path; the zero value when there is none.
func readMark(path string) (markPoint, error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return markPoint{}, nil
	}
	if err != nil {
		return markPoint{}, fmt.Errorf("committed mark: %w", err)
	}
	at, _, err := loadMark(f)
	return at, errors.Join(err, f.Close())
}

// loadMark returns the later of the two valid slots and which one to write next.
func loadMark(f *os.File) (at markPoint, next int64, err error) {
	var p [markFileSize]byte
	n, err := f.ReadAt(p[:], 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return at, 0, fmt.Errorf("committed mark: %w", err)
	}
	for slot := range int64(2) {
		if b := p[slot*markSlot:]; int(slot*markSlot)+markLength <= n {
			if m, ok := decodeMark(b[:markLength]); ok && m.seq >= at.seq {
				at, next = m, 1-slot
			}
		}
	}
	return at, next, nil
}

func decodeMark(p []byte) (markPoint, bool) {
	if string(p[:4]) != markMagic || crc32.Checksum(p[:28], castagnoli) != binary.LittleEndian.Uint32(p[28:]) {
		return markPoint{}, false
	}
	return markPoint{seq: binary.LittleEndian.Uint64(p[4:]), key: event.Key(p[12:28])}, true
}

// write moves the mark. A mark is never moved back: while lost sequences are being filled it still says how far.
func (m *mark) write(seq uint64, key event.Key) error {
	if seq < m.at.seq {
		return nil
	}
	var p [markLength]byte
	copy(p[:], markMagic)
	binary.LittleEndian.PutUint64(p[4:], seq)
	copy(p[12:], key[:])
	binary.LittleEndian.PutUint32(p[28:], crc32.Checksum(p[:28], castagnoli))
	if _, err := m.file.WriteAt(p[:], m.slot*markSlot); err != nil {
		return fmt.Errorf("committed mark: %w", err)
	}
	m.at, m.slot = markPoint{seq, key}, 1-m.slot
	return nil
}

func (m *mark) close(sync bool) error {
	if sync {
		if err := m.file.Sync(); err != nil {
			return errors.Join(fmt.Errorf("committed mark: %w", err), m.file.Close())
		}
	}
	return m.file.Close()
}

// findLost compares the mark with what is there, and notes what is lost: what the server misses among its own
// sequences (nothing is ever deleted but whole old blocks), holes in the last block, and a tail up to the mark.
func (s *Stream) findLost(deleted []uint64) error {
	for _, seq := range deleted { // rising
		if seq == 0 { // the server says so of a stream that has never had a message
			continue
		}
		if n := len(s.lost); n > 0 && s.lost[n-1].To+1 == seq {
			s.lost[n-1].To = seq
		} else {
			s.lost = append(s.lost, Range{seq, seq})
		}
	}
	list := s.blocks.snapshot()
	next, at, other := uint64(1), s.mark.at, false
	if len(list) > 0 {
		next = list[len(list)-1].first
		if _, err := s.blocks.scan(min(next, max(at.seq, 1)), sequenceMask, func(r *record) bool {
			if r.seq == at.seq {
				other = recordKey(string(r.subject), stripExpect(r.header), r.data) != at.key
			}
			if r.seq > next {
				s.lost = addRange(s.lost, Range{next, r.seq - 1})
			}
			next = max(next, r.seq+1)
			return true
		}); err != nil {
			return err
		}
	}
	if end := max(at.seq, s.last); next <= end {
		s.lost = addRange(s.lost, Range{next, end})
	}
	if other {
		s.lost = addRange(s.lost, Range{at.seq, at.seq})
		s.logger.Error("the message at the committed mark is another one: the data was changed behind the log's back", "seq", at.seq)
	}
	for _, r := range s.lost {
		s.log.metrics.lost.Add(float64(r.To - r.From + 1))
		s.logger.Error("committed messages are lost to damage", "from", r.From, "to", r.To)
	}
	return nil
}

// addRange adds r to ranges that are in order, and joins what touches.
func addRange(list []Range, r Range) []Range {
	list = append(list, r)
	slices.SortFunc(list, func(a, b Range) int { return cmp.Compare(a.From, b.From) })
	out := list[:1]
	for _, x := range list[1:] {
		if last := &out[len(out)-1]; x.From <= last.To+1 {
			last.To = max(last.To, x.To)
		} else {
			out = append(out, x)
		}
	}
	return out
}

// restoreLost fills the sequences of a lost tail.
func (s *Stream) restoreLost(ctx context.Context) error {
	if s.Committed() >= s.mark.at.seq {
		return nil
	}
	return s.SkipTo(ctx, s.mark.at.seq)
}
