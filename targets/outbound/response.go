// SPDX-License-Identifier: Apache-2.0

package outbound

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"
)

const (
	maxHead  = 1 << 10  // of an answer, kept
	maxDrain = 64 << 10 // of an answer, read so that the connection can be used again
)

// buffers are what answers are read into.
var buffers = sync.Pool{New: func() any { return new([4 << 10]byte) }}

// readAnswer reads a bounded part of the body and closes it. A body that is longer than the bound is cut off without
// complaint (and its connection with it); one that breaks off before is an error. The head is sanitised, and empty when
// the body is encoded.
func readAnswer(resp *http.Response) (head string, err error) {
	if resp.ContentLength == 0 || resp.StatusCode < 200 {
		return "", resp.Body.Close() // after 101 the body is an open connection
	}
	buf := buffers.Get().(*[4 << 10]byte)
	defer buffers.Put(buf)
	n := 0
	for n < len(buf) && err == nil {
		var m int
		m, err = resp.Body.Read(buf[n:])
		n += m
	}
	if resp.Header.Get("Content-Encoding") == "" {
		head = Sanitise(buf[:n])
	}
	for total := n; err == nil && total < maxDrain; total += n {
		n, err = resp.Body.Read(buf[:])
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	if closeErr := resp.Body.Close(); err == nil {
		err = closeErr
	}
	return head, err
}

// Sanitise returns the start of what a stranger sent as text that can stand in a log line, a header or a terminal:
// valid UTF-8, at most 1 KiB, without control and format characters, runs of white space as one blank.
func Sanitise(b []byte) string {
	if len(b) > maxHead {
		b = b[:maxHead]
	}
	var s strings.Builder
	blank := false
	for len(b) > 0 {
		r, size := utf8.DecodeRune(b)
		if r == utf8.RuneError && size == 1 && !utf8.FullRune(b) {
			break // cut in the middle of a character
		}
		b = b[size:]
		if unicode.IsSpace(r) || !unicode.IsPrint(r) {
			blank = true
			continue
		}
		blank = blank && s.Len() > 0
		grows := utf8.RuneLen(r)
		if blank {
			grows++
		}
		if s.Len()+grows > maxHead { // an invalid byte grows to three
			break
		}
		if blank {
			s.WriteByte(' ')
			blank = false
		}
		s.WriteRune(r)
	}
	return s.String()
}
