// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/sources"
)

// request is a request of which the body is read by read.
type request struct {
	*http.Request
	body  []byte
	limit int // of the body
	now   time.Time
	stamp string // when it was signed, as the sender wrote it; "" = that is not signed
	known bool   // the head alone has proved who sends
	room  *room
	held  int64 // of the room
}

const (
	// freeBytes of every body need no room, so that ordinary requests pass whatever large ones do.
	freeBytes = 16 << 10
	// smallBytes is what a body may announce and get at once.
	smallBytes = 2 << 10
	// roomBytes is the memory that the large bodies of a source may hold at a time.
	roomBytes = 64 << 20
)

// room is memory that the large bodies of a source share until they are answered: nobody has shown who he is when it is taken.
type room struct{ left atomic.Int64 }

// take reports whether there was room for n bytes, which are then taken.
func (m *room) take(n int64) bool {
	if m.left.Add(-n) >= 0 {
		return true
	}
	m.left.Add(n)
	return false
}

// release gives back what the body held.
func (r *request) release() { r.room.left.Add(r.held) }

// accept looks at what a request says of its body. A form may be longer than what it holds.
func (h *hook) accept(r *http.Request) (*request, error) {
	limit := h.env.MaxData
	if isForm(r) {
		limit = 3*limit + 64<<10
	}
	if enc := r.Header.Get("Content-Encoding"); enc != "" && !strings.EqualFold(enc, "identity") {
		return nil, fault.New(fault.Unsupported, "the body must not be compressed")
	}
	return &request{Request: r, limit: limit, now: h.env.Now(), room: &h.room}, nil
}

// tooLarge is the answer to a body that is not read.
func (r *request) tooLarge() error {
	err := fault.New(fault.TooLarge, "the body is larger than %d bytes", r.limit)
	if !r.known {
		return err
	}
	return &sources.Unread{Err: err, Bytes: max(r.ContentLength, int64(len(r.body)))}
}

// read reads the body: memory for what has come and not for what is announced, unless that is little.
func (r *request) read() (err error) {
	if r.ContentLength > int64(r.limit) {
		return r.tooLarge()
	}
	if n := r.ContentLength; n >= 0 && n <= smallBytes {
		r.body = make([]byte, n)
		_, err = io.ReadFull(r.Body, r.body)
	} else {
		r.body, err = io.ReadAll(io.LimitReader(r.Body, freeBytes))
	}
	if err == nil && len(r.body) == freeBytes {
		err = r.readRest()
	}
	switch {
	case fault.KindOf(err) == fault.Unavailable:
		return err
	case err != nil:
		return &fault.Error{Kind: fault.Invalid, Message: "the body is not complete", Err: err}
	case len(r.body) > r.limit:
		return r.tooLarge()
	}
	return nil
}

// readRest reads what does not come free.
func (r *request) readRest() error {
	n := r.ContentLength
	if n < 0 {
		n = int64(r.limit)
	}
	if !r.room.take(n) {
		return &fault.Error{Kind: fault.Unavailable, Message: "too many large requests at a time", RetryAfter: time.Second}
	}
	r.held = n
	b := bytes.NewBuffer(r.body)
	_, err := b.ReadFrom(io.LimitReader(r.Body, int64(r.limit)+1-freeBytes))
	r.body = b.Bytes()
	return err
}

func isForm(r *http.Request) bool {
	kind, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
	return strings.EqualFold(strings.TrimSpace(kind), "application/x-www-form-urlencoded")
}

// header returns a header that the sender must have sent.
func (r *request) header(name string) (string, error) {
	v := r.Header.Get(name)
	if v == "" {
		return "", &fault.Error{Kind: fault.Forbidden, Message: "the header " + name + " is missing"}
	}
	return v, nil
}
