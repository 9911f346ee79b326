// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"io"
)

const (
	smallBuffer = 512     // what an idle connection holds
	largeBuffer = 8 << 10 // what a busy one reads at a time
	quietReads  = 16      // small reads after which a large buffer is given back
	maxReads    = 100     // reads of nothing before giving up
)

// Reader takes packets off a stream. Its buffer is small while little comes, and grows beyond that only with bytes that
// have arrived, never with a length that was merely announced.
type Reader struct {
	src   io.Reader
	buf   []byte
	r, w  int // unread bytes are buf[r:w]
	quiet int // small reads in a row
	busy  bool
}

// NewReader returns a Reader of src.
func NewReader(src io.Reader) *Reader { return &Reader{src: src} }

// Ready reports whether Next would return without reading from the source.
func (r *Reader) Ready(limit int) bool {
	head, n, err := header(r.buf[r.r:r.w], limit)
	return err != nil || head > 0 && r.w-r.r >= head+n
}

// Next returns the next packet: its first byte and its body, which stays valid until the following call. limit is the
// largest packet that is taken, in bytes with its fixed header. It blocks as the source does. The error is an *Error for
// what is malformed or too large, io.EOF between packets, io.ErrUnexpectedEOF inside one, or the source's.
func (r *Reader) Next(limit int) (first byte, body []byte, err error) {
	if r.r == r.w {
		r.settle()
	}
	for {
		head, n, err := header(r.buf[r.r:r.w], limit)
		if err != nil {
			return 0, nil, err
		}
		if head > 0 && r.w-r.r >= head+n {
			first, body = r.buf[r.r], r.buf[r.r+head:r.r+head+n:r.r+head+n]
			r.r += head + n
			return first, body, nil
		}
		need := maxHeader
		if head > 0 {
			need = head + n
		}
		if err := r.fill(need); err != nil {
			if err == io.EOF && r.w > r.r {
				err = io.ErrUnexpectedEOF
			}
			return 0, nil, err
		}
	}
}

// header reads the fixed header at the front of b. head is its length, 0 while it is incomplete.
func header(b []byte, limit int) (head, n int, err error) {
	if len(b) < 2 {
		return 0, 0, nil
	}
	n, size := takeVarint(b[1:])
	switch {
	case size < 0:
		return 0, 0, malformed("remaining length")
	case size == 0:
		return 0, 0, nil
	case 1+size+n > limit:
		return 0, 0, &Error{Code: PacketTooLarge, Detail: "larger than the limit"}
	}
	return 1 + size, n, nil
}

// settle is called with nothing unread: it fits the buffer to what the connection does.
func (r *Reader) settle() {
	r.r, r.w = 0, 0
	switch {
	case r.busy && len(r.buf) < largeBuffer:
		r.buf = make([]byte, largeBuffer)
	case len(r.buf) > largeBuffer:
		r.buf = make([]byte, largeBuffer)
	case len(r.buf) > smallBuffer && r.quiet >= quietReads:
		r.buf = make([]byte, smallBuffer)
	case r.buf == nil:
		r.buf = make([]byte, smallBuffer)
	}
	r.busy = false
}

// fill reads once, after it has made room for at least one byte more and at most need in all.
func (r *Reader) fill(need int) error {
	if r.w == len(r.buf) || r.r+need > len(r.buf) {
		have := r.w - r.r
		if have == len(r.buf) {
			// Twice of what has really come, whatever was announced.
			grown := make([]byte, min(need, 2*have))
			copy(grown, r.buf)
			r.buf = grown
		} else {
			copy(r.buf, r.buf[r.r:r.w])
		}
		r.r, r.w = 0, have
	}
	for range maxReads {
		n, err := r.src.Read(r.buf[r.w:])
		r.w += n
		if n > 0 {
			if r.w == len(r.buf) {
				r.busy = true
			}
			if n < smallBuffer {
				r.quiet++
			} else {
				r.quiet = 0
			}
			return nil
		}
		if err != nil {
			return err
		}
	}
	return io.ErrNoProgress
}
