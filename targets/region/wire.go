// SPDX-License-Identifier: Apache-2.0

package region

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"github.com/klauspost/compress/zstd"

	"github.com/rialto-bridge/rialto/internal/event"
)

// Protocol is the WebSocket subprotocol of a link. What it says and who says it stands in DESIGN.md.
const Protocol = "rialto-link.v1"

// Lane is one of the two ways on which a link forwards, each in its own order.
type Lane byte

// The lanes. An event is on the urgent lane if the link's urgent pattern takes it, and only then.
const (
	Main Lane = iota
	Urgent
	lanes
)

// The closes that a receiver says why with, beside those of RFC 6455 section 7.4.1.
const (
	CloseProtocol = 4000 // the sender broke the protocol: our fault or its
	CloseReplaced = 4001 // a newer connection of the link has taken over
	CloseFull     = 4002 // no room in the log
	CloseNoBus    = 4003 // the bus is gone
	CloseTrouble  = 4004 // the log, or what it needs, does not work at the moment
	CloseDenied   = 4005 // the key is not good any more
)

// Welcome is the first message, from the receiver, as text.
type Welcome struct {
	Instance string   `json:"instance"`       // of the receiver: events that have been there are not for it
	Done     Progress `json:"done"`           // what it knows to be done for this link in this epoch
	Last     LastSeen `json:"last,omitempty"` // by which the sender sees whether that was its log
}

// LastSeen is, by lane, the last event that the receiver has of a link in an epoch.
type LastSeen struct {
	Main   *Seen `json:"main,omitempty"`
	Urgent *Seen `json:"urgent,omitempty"`
}

// Seen is an event and where it stood in the sender's stream.
type Seen struct {
	Seq uint64 `json:"seq"`
	Key []byte `json:"key"` // event.Key
}

// Progress is what is done, by lane: forwarded and committed, or passed over by the sender.
type Progress struct {
	Main   Ranges `json:"main,omitempty"`
	Urgent Ranges `json:"urgent,omitempty"`
}

// Of returns the set of a lane, to be changed.
func (p *Progress) Of(l Lane) *Ranges {
	if l == Urgent {
		return &p.Urgent
	}
	return &p.Main
}

// Ack is the receiver's answer to a batch, as text, in the order of the batches: all of it is committed.
type Ack struct {
	Lane    Lane   `json:"lane,omitempty"`
	From    uint64 `json:"from"` // those of the batch
	To      uint64 `json:"to"`
	Stored  int    `json:"stored,omitempty"`  // new in the log
	Known   int    `json:"known,omitempty"`   // were there already
	Refused int    `json:"refused,omitempty"` // can never be stored there
	Why     string `json:"why,omitempty"`     // the first of them was refused
}

// Batch says of the sequences From..To of a stream, both included, which of them are forwarded on a lane; the others are
// passed over. It is a binary message: lane, from, to, the number of events, and, compressed with zstd, of each event the
// distance of its sequence from the one before, the lengths of its header block and its data, and both as they stand in the
// log (event.AppendNATS). Numbers are unsigned varints.
type Batch struct {
	Lane     Lane
	From, To uint64
	Events   []Forwarded
}

// Forwarded is an event of a batch.
type Forwarded struct {
	Seq    uint64 // in the sender's stream
	Record *event.Record
	Unfit  error // why it can never be stored here, as far as the receiver's limits say
}

// Limits of a batch.
const (
	maxBatchEvents = 4096
	maxBatchBytes  = 16 << 20 // uncompressed: one event of the largest size fits
	maxFrame       = maxBatchBytes + 64<<10
	maxEventHeader = 64 << 10 // JetStream has no larger ones
)

// encoder and decoder are shared: EncodeAll and DecodeAll keep nothing.
var (
	encoder = sync.OnceValue(func() *zstd.Encoder {
		e, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(256<<10),
			zstd.WithLowerEncoderMem(true))
		if err != nil {
			panic(err) // the options are constants
		}
		return e
	})
	decoder = sync.OnceValue(func() *zstd.Decoder {
		d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxBatchBytes), zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxWindow(1<<20))
		if err != nil {
			panic(err)
		}
		return d
	})
)

// batchWriter encodes batches one after the other and reuses its memory. It is for one goroutine.
type batchWriter struct {
	raw, frame []byte
	count      int
	from, last uint64
	lane       Lane
}

// begin starts a batch that says something of the sequences from from on.
func (w *batchWriter) begin(l Lane, from uint64) {
	w.raw, w.count, w.lane, w.from, w.last = w.raw[:0], 0, l, from, from
}

// add puts an event in. Sequences rise. The record is written as it is.
func (w *batchWriter) add(seq uint64, rec *event.Record) {
	w.raw = binary.AppendUvarint(w.raw, seq-w.last)
	w.last = seq
	w.count++
	// The length stands before the header block, whose length is known when it is written: three bytes hold up to 2 MiB.
	at := len(w.raw)
	w.raw = append(w.raw, 0, 0, 0)
	w.raw = binary.AppendUvarint(w.raw, uint64(len(rec.Event.Data)))
	start := len(w.raw)
	w.raw = event.AppendNATS(w.raw, rec)
	n := len(w.raw) - start
	w.raw[at], w.raw[at+1], w.raw[at+2] = byte(n)|0x80, byte(n>>7)|0x80, byte(n>>14) //nolint:gosec // a header has at most 64 KiB
	w.raw = append(w.raw, rec.Event.Data...)
}

// full reports whether the batch has as much as it should, given how many bytes that is.
func (w *batchWriter) full(bytes int) bool { return w.count >= maxBatchEvents || len(w.raw) >= bytes }

// end returns the message, which is valid until the next begin. to is at least the last sequence that was added.
func (w *batchWriter) end(to uint64) []byte {
	w.frame = append(w.frame[:0], byte(w.lane))
	w.frame = binary.AppendUvarint(w.frame, w.from)
	w.frame = binary.AppendUvarint(w.frame, to)
	w.frame = binary.AppendUvarint(w.frame, uint64(w.count)) //nolint:gosec // at most maxBatchEvents
	if w.count > 0 {
		w.frame = encoder().EncodeAll(w.raw, w.frame)
	}
	return w.frame
}

var errCut = errors.New("the batch ends too early")

// parseBatch reads a message. Events are checked against the limits of what may be stored. The error is for the sender.
func parseBatch(msg []byte, limits event.Limits) (Batch, error) {
	if len(msg) == 0 || Lane(msg[0]) >= lanes {
		return Batch{}, errors.New("no such lane")
	}
	b, rest := Batch{Lane: Lane(msg[0])}, msg[1:]
	var count uint64
	for _, to := range []*uint64{&b.From, &b.To, &count} {
		n := 0
		if *to, n = binary.Uvarint(rest); n <= 0 {
			return Batch{}, errCut
		}
		rest = rest[n:]
	}
	if b.From == 0 || b.To < b.From || count > maxBatchEvents || count > b.To-b.From+1 {
		return Batch{}, fmt.Errorf("a batch of %d events from %d to %d", count, b.From, b.To)
	}
	if count == 0 {
		if len(rest) > 0 {
			return Batch{}, errors.New("a batch of no events has content")
		}
		return b, nil
	}
	raw, err := decoder().DecodeAll(rest, nil)
	if err != nil {
		return Batch{}, fmt.Errorf("decompress: %w", err)
	}
	b.Events = make([]Forwarded, 0, count)
	seq := b.From
	for i := range count {
		f, n, err := parseForwarded(raw, limits)
		if err != nil {
			return Batch{}, fmt.Errorf("event %d of the batch: %w", i, err)
		}
		if i > 0 && f.Seq == 0 || f.Seq > b.To-seq {
			return Batch{}, fmt.Errorf("event %d of the batch: its sequence is not in order", i)
		}
		seq += f.Seq
		f.Seq = seq
		b.Events = append(b.Events, f)
		raw = raw[n:]
	}
	if len(raw) > 0 {
		return Batch{}, errors.New("the batch has content behind its events")
	}
	return b, nil
}

// parseForwarded reads an event from the start of raw, with the distance of its sequence, and returns its length.
func parseForwarded(raw []byte, limits event.Limits) (f Forwarded, size int, err error) {
	var header, data uint64
	for _, to := range []*uint64{&f.Seq, &header, &data} {
		v, n := binary.Uvarint(raw[size:])
		if n <= 0 {
			return f, 0, errCut
		}
		*to, size = v, size+n
	}
	left := uint64(len(raw) - size) //nolint:gosec // not negative
	if header > left || data > left-header {
		return f, 0, errCut
	}
	if header > maxEventHeader {
		return f, 0, fmt.Errorf("an event has a header of %d bytes", header)
	}
	at := size + int(header) //nolint:gosec // at most left
	end := at + int(data)    //nolint:gosec // as well
	if f.Record, err = event.FromNATS(raw[size:at], raw[at:end]); err != nil {
		return f, 0, err
	}
	f.Unfit = fits(f.Record, limits)
	return f, end, nil
}

// fits says why a record can never be stored here. That it could be stored where it comes from says nothing: limits differ, and
// versions.
func fits(rec *event.Record, limits event.Limits) error {
	if err := rec.Event.Validate(limits); err != nil {
		return err
	}
	if o := rec.MQTT; o != nil {
		return checkOrigin(o)
	}
	return nil
}
