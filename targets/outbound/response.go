// SPDX-License-Identifier: Apache-2.0

package outbound

import (
	"errors"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"github.com/rialto-bridge/rialto/targets"
)

const (
	maxDrain       = 64 << 10 // of an answer, read so that the connection can be used again
	maxHeaderLine  = 1 << 10  // of a header in a head, kept
	maxHeaderLines = 4 << 10  // of all headers in a head: a body says more
)

// buffers are what answers are read into, and heads what is kept of those that say no.
var (
	buffers = sync.Pool{New: func() any { return new([4 << 10]byte) }}
	heads   = sync.Pool{New: func() any { return new([targets.MaxHead]byte) }}
)

// drain reads a bounded part of the body and closes it. A body that is longer than the bound is cut off without
// complaint (and its connection with it); one that breaks off before is an error.
func drain(resp *http.Response) error {
	if resp.ContentLength == 0 || resp.StatusCode < 200 {
		return resp.Body.Close() // after 101 the body is an open connection
	}
	return discard(resp, 0, nil)
}

// keep reads a body up to a limit and closes it. cut says that there was more.
func keep(resp *http.Response, limit int) (body []byte, cut bool, err error) {
	if resp.ContentLength == 0 || resp.StatusCode < 200 {
		return nil, false, resp.Body.Close()
	}
	body, err = io.ReadAll(io.LimitReader(resp.Body, int64(limit)+1))
	if closeErr := resp.Body.Close(); err == nil {
		err = closeErr
	}
	if len(body) > limit {
		body, cut = body[:limit], true
	}
	return body, cut, err
}

// discard reads what is left of a body of which n bytes were read, and closes it. err is what reading has said so far.
func discard(resp *http.Response, n int, err error) error {
	buf := buffers.Get().(*[4 << 10]byte)
	defer buffers.Put(buf)
	for total := n; err == nil && total < maxDrain; total += n {
		n, err = resp.Body.Read(buf[:])
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	if closeErr := resp.Body.Close(); err == nil {
		err = closeErr
	}
	return err
}

// readRefusal is drain for an answer that says no, and returns how it began. The body is left out when it is encoded. The texts
// of hidden, which the request had, do not stand in it, as far as the far side has repeated them as they were.
func readRefusal(resp *http.Response, hidden []string) (head string, err error) {
	if resp.ContentLength == 0 || resp.StatusCode < 200 {
		return headOf(resp, nil, hidden), resp.Body.Close()
	}
	buf := heads.Get().(*[targets.MaxHead]byte)
	defer heads.Put(buf)
	n := 0
	for n < len(buf) && err == nil {
		var m int
		m, err = resp.Body.Read(buf[n:])
		n += m
	}
	body := buf[:n]
	if n == len(buf) {
		body = uncut(body, hidden)
	}
	if resp.Header.Get("Content-Encoding") != "" {
		body = nil
	}
	return headOf(resp, body, hidden), discard(resp, n, err)
}

// headOf writes the head of an answer, as targets.Exchange describes it.
func headOf(resp *http.Response, body []byte, hidden []string) string {
	var s strings.Builder
	s.WriteString(clip(hide(resp.Proto+" "+resp.Status, hidden), maxHeaderLine) + "\n")
	for _, name := range slices.Sorted(maps.Keys(resp.Header)) {
		for _, v := range resp.Header[name] {
			switch {
			case holdsSecret(name):
				v = redacted
			case name == "Location" || name == "Content-Location" || name == "Refresh" || name == "Link":
				v = withoutQuery(v)
			}
			line := clip(hide(name, hidden), maxHeaderLine) + ": " + clip(hide(v, hidden), maxHeaderLine)
			if s.Len()+len(line) > maxHeaderLines {
				continue
			}
			s.WriteString(line + "\n")
		}
	}
	s.WriteByte('\n')
	if len(hidden) > 0 {
		body = []byte(hide(string(body), hidden))
	}
	s.WriteString(sanitise(body, targets.MaxHead-s.Len()))
	return s.String()
}

const (
	redacted  = "[redacted]"
	minHidden = 4 // a shorter text would be found where it does not stand
)

// hide takes texts out of what a far side said.
func hide(s string, hidden []string) string {
	for _, h := range hidden {
		if len(h) >= minHidden {
			s = strings.ReplaceAll(s, h, redacted)
		}
	}
	return s
}

// uncut takes the beginning of a text off the end of a body that was not read to its end.
func uncut(body []byte, hidden []string) []byte {
	for _, h := range hidden {
		for n := min(len(h)-1, len(body)); n >= minHidden; n-- {
			if string(body[len(body)-n:]) == h[:n] {
				body = body[:len(body)-n]
				break
			}
		}
	}
	return body
}

// secretWords are what names of headers have in common whose values are nobody else's business.
var secretWords = []string{"auth", "cookie", "token", "secret", "passw", "pwd", "key", "credential", "session", "signature", "jwt", "csrf", "xsrf"}

// holdsSecret reports whether a header may hold a secret. WWW-Authenticate says why an answer is 401, and holds none.
func holdsSecret(name string) bool {
	name = strings.ToLower(name)
	return name != "www-authenticate" && slices.ContainsFunc(secretWords, func(w string) bool { return strings.Contains(name, w) })
}

// withoutQuery returns a URL without what may hold secrets: its query, its fragment, and who it is for.
func withoutQuery(s string) string {
	s, _, _ = strings.Cut(s, "?")
	s, _, _ = strings.Cut(s, "#")
	if !strings.Contains(s, "@") {
		return s
	}
	u, err := url.Parse(s)
	if err != nil || u.Opaque != "" {
		return "[redacted]"
	}
	u.User = nil
	return u.String()
}

// clip is sanitise for a string.
func clip(s string, limit int) string { return sanitise([]byte(s[:min(len(s), limit)]), limit) }

const maxClean = 1 << 10 // of what Sanitise returns

// Sanitise returns the start of what a stranger sent as text that can stand in a log line, a header or a terminal:
// valid UTF-8, at most 1 KiB, without control and format characters, runs of white space as one blank.
func Sanitise(b []byte) string { return sanitise(b, maxClean) }

func sanitise(b []byte, limit int) string {
	if len(b) > limit {
		b = b[:max(limit, 0)]
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
		if s.Len()+grows > limit { // an invalid byte grows to three
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
