// SPDX-License-Identifier: Apache-2.0

package api

import (
	"errors"
	"io"
	"net/http"
	"os"
	"strconv"
	"sync"
	"unicode/utf8"

	"github.com/rialto-bridge/rialto/bridge"
	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
)

const (
	defaultMaxData = 1 << 20
	maxPooled      = 256 << 10 // buffers that grew beyond are not kept
)

// buffers holds bodies that are decoded by copying, and answers.
var buffers = sync.Pool{New: func() any { b := make([]byte, 0, 16<<10); return &b }}

func putBuffer(b *[]byte) {
	if cap(*b) <= maxPooled {
		*b = (*b)[:0]
		buffers.Put(b)
	}
}

// ingest takes events in: binary, structured or batch. It answers 202 once all are committed, or kept for later.
func (a *API) ingest(w *reply, r *http.Request) error {
	if r.URL.RawQuery != "" {
		var err error
		if w.aside, err = readAside(r, a.o.Now(), a.o.MaxDelay); err != nil {
			return err
		}
	}
	var contentType string
	if v := r.Header["Content-Type"]; len(v) > 0 {
		contentType = v[0]
	}
	if event.ModeOf(contentType) == event.Binary {
		return a.ingestBinary(w, r)
	}
	buf := buffers.Get().(*[]byte)
	defer putBuffer(buf)
	var err error
	*buf, err = a.readBody(r, (*buf)[:0], a.maxBody(event.ModeOf(contentType)))
	if err != nil {
		return err
	}
	_, events, err := event.FromHTTP(r.Header, *buf, a.o.Limits)
	if err != nil {
		return err
	}
	records := make([]event.Record, len(events))
	recs := make([]*event.Record, len(events))
	for i := range events {
		records[i].Event = events[i]
		recs[i] = &records[i]
	}
	return a.store(w, r, recs)
}

func (a *API) ingestBinary(w *reply, r *http.Request) error {
	limit := a.maxBody(event.Binary)
	var body []byte
	var err error
	switch n := r.ContentLength; {
	case n > int64(limit):
		return tooLarge(limit)
	case n > 0:
		body = make([]byte, n) // the event keeps it
		if _, err = io.ReadFull(r.Body, body); err != nil {
			return readFault(err)
		}
	case n < 0:
		if body, err = a.readBody(r, nil, limit); err != nil {
			return err
		}
	}
	rec := &event.Record{}
	if rec.Event, err = event.FromHTTPBinary(r.Header, body, a.o.Limits); err != nil {
		return err
	}
	one := [1]*event.Record{rec}
	return a.store(w, r, one[:])
}

// store hands the events to the bridge and answers where they are.
func (a *API) store(w *reply, r *http.Request, recs []*event.Record) error {
	if w.aside != nil {
		return a.setAside(w, r, recs)
	}
	receipts, err := a.o.Bridge.Ingest(r.Context(), w.bus, recs)
	if err != nil {
		return err
	}
	buf := buffers.Get().(*[]byte)
	defer putBuffer(buf)
	*buf = appendAccepted((*buf)[:0], recs, receipts)
	return w.send(http.StatusAccepted, contentJSON, *buf)
}

// appendAccepted writes {"accepted":[{"id","position"}]}. An event that was there already has the position it got first,
// and says so.
func appendAccepted(b []byte, recs []*event.Record, receipts []bridge.Receipt) []byte {
	b = append(b, `{"accepted":[`...)
	for i, rec := range recs {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"id":`...)
		b = appendJSONString(b, rec.Event.ID)
		b = append(b, `,"position":"`...)
		b = append(b, receipts[i].Pos.Stream...)
		b = append(b, ':')
		b = strconv.AppendUint(b, receipts[i].Pos.Seq, 10)
		b = append(b, '"')
		if receipts[i].Duplicate {
			b = append(b, `,"duplicate":true`...)
		}
		b = append(b, '}')
	}
	return append(b, `]}`...)
}

// maxBody is the most bytes of a body. What is structured may be larger than its data: base64 and escapes grow it.
func (a *API) maxBody(m event.Mode) int {
	data := a.o.Limits.MaxData
	if data == 0 {
		data = defaultMaxData
	}
	switch m {
	case event.Structured:
		return 2*data + 128<<10
	case event.Batch:
		return max(4<<20, 2*data+128<<10)
	}
	return data
}

// readBody appends a body of at most limit bytes to dst. What announces more is refused before it is read.
func (a *API) readBody(r *http.Request, dst []byte, limit int) ([]byte, error) {
	if r.ContentLength > int64(limit) {
		return dst, tooLarge(limit)
	}
	if n := int(r.ContentLength); n > cap(dst)-len(dst) {
		grown := make([]byte, len(dst), len(dst)+n+1) // one more, so that the end is seen without growing
		copy(grown, dst)
		dst = grown
	}
	for {
		if len(dst) == cap(dst) {
			dst = append(dst, 0)[:len(dst)]
		}
		n, err := r.Body.Read(dst[len(dst):min(cap(dst), limit+1)])
		dst = dst[:len(dst)+n]
		switch {
		case len(dst) > limit:
			return dst, tooLarge(limit)
		case errors.Is(err, io.EOF):
			return dst, nil
		case err != nil:
			return dst, readFault(err)
		}
	}
}

func tooLarge(limit int) error {
	return fault.New(fault.TooLarge, "the body is larger than %d bytes", limit)
}

// readFault is for a body that did not come.
func readFault(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return &httpError{kind: problemTimeout, detail: "the body did not arrive in time"}
	}
	return &fault.Error{Kind: fault.Invalid, Message: "the body is not complete", Err: err}
}

func noQuery(r *http.Request) (*query, error) {
	q, err := readQuery(r)
	if err != nil {
		return nil, err
	}
	for i := range q.faults {
		q.faults[i].Detail = "no parameters are known here"
	}
	return q, q.err()
}

const hexDigits = "0123456789abcdef"

// appendJSONString writes s, which is valid UTF-8 where it comes from an event, as a JSON string.
func appendJSONString(b []byte, s string) []byte {
	b = append(b, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			if c >= ' ' && c != '"' && c != '\\' {
				i++
				continue
			}
			b = append(b, s[start:i]...)
			switch c {
			case '"', '\\':
				b = append(b, '\\', c)
			default:
				b = append(b, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
			}
			i++
			start = i
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && size == 1 {
			b = append(b, s[start:i]...)
			b = append(b, "\ufffd"...)
			i++
			start = i
			continue
		}
		i += size
	}
	b = append(b, s[start:]...)
	return append(b, '"')
}
