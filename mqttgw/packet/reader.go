// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"io"
)

const (
	restBuffer  = 64      // what Await reads into: PINGREQ and most acknowledgements
	smallBuffer = 512     // what a connection with little traffic holds
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
	err   error // of Await, for the next reading
}

// NewReader returns a Reader of src.
func NewReader(src io.Reader) *Reader { return &Reader{src: src} }

// Ready reports whether Next would return without reading from the source.
func (r *Reader) Ready(limit int) bool {
	head, n, err := header(r.buf[r.r:r.w], limit)
	return err != nil || head > 0 && r.w-r.r >= head+n
}

// Empty reports whether nothing has been read that Next has not returned.
func (r *Reader) Empty() bool { return r.r == r.w }

// Await blocks until there is something for Next to look at, or nothing will come any more, which Next then says. It needs
// next to no stack, and no more buffer than what waits.
func (r *Reader) Await() {
	if r.r < r.w || r.err != nil {
		return
	}
	r.r, r.w, r.busy = 0, 0, false
	if len(r.buf) != restBuffer {
		r.buf = make([]byte, restBuffer)
	}
	n, err := r.src.Read(r.buf)
	r.took(n)
	r.err = err
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
	case len(r.buf) < smallBuffer:
		r.buf = make([]byte, smallBuffer)
	}
	r.busy = false
}

// fill reads once, after it has made room for at least one byte more and at most need in all.
func (r *Reader) fill(need int) error {
	if r.w == len(r.buf) || r.r+need > len(r.buf) {
		have := r.w - r.r
		if have == len(r.buf) || len(r.buf) < smallBuffer {
			// Twice of what has really come, whatever was announced.
			grown := make([]byte, max(smallBuffer, min(need, 2*have)))
			copy(grown, r.buf[r.r:r.w])
			r.buf = grown
		} else {
			copy(r.buf, r.buf[r.r:r.w])
		}
		r.r, r.w = 0, have
	}
	for range maxReads {
		if err := r.err; err != nil {
			r.err = nil
			return err
		}
		n, err := r.src.Read(r.buf[r.w:])
		r.took(n)
		if n > 0 {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return io.ErrNoProgress
}

// took counts bytes that have been read behind the others.
func (r *Reader) took(n int) {
	if n == 0 {
		return
	}
	r.w += n
	if r.w == len(r.buf) && r.w >= smallBuffer {
		r.busy = true
	}
	if n < smallBuffer {
		r.quiet++
	} else {
		r.quiet = 0
	}
}
