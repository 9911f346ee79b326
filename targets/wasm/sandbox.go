// SPDX-License-Identifier: Apache-2.0

package wasm

import (
	"context"
	"crypto/sha256"
	"errors"
	"math/rand/v2"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// errOutput stops a function that writes more than it may.
var errOutput = errors.New("too much output")

const (
	// maxStderr is how much of what a function says of an error is kept.
	maxStderr = 2 << 10
	// maxMessage is how many bytes an error's text may have.
	maxMessage = 512
)

// sandbox is what an instance sees of the world: a clock and chance that depend on the event alone, and streams. It
// belongs to one call at a time.
type sandbox struct {
	now    time.Time
	nano   int64 // of the monotonic clock, which goes on by a millisecond each time it is read
	chance *rand.ChaCha8
	stdout limited
	stderr limited
}

// begin makes the sandbox ready for a call. stop ends a call that writes more than
// maxOutput to its standard output; nil = what is more is dropped.
func (s *sandbox) begin(seed string, now time.Time, maxOutput int, stop context.CancelCauseFunc) {
	s.now, s.nano = now, 0
	s.chance = rand.NewChaCha8(sha256.Sum256([]byte(seed)))
	s.stdout = limited{max: maxOutput}
	if stop != nil {
		s.stdout.full = func() { stop(errOutput) }
	}
	s.stderr = limited{max: maxStderr}
}

func (s *sandbox) walltime() (sec int64, nsec int32) {
	s.now = s.now.Add(time.Microsecond)            // programs wait for it to go on
	return s.now.Unix(), int32(s.now.Nanosecond()) //nolint:gosec // below a thousand million
}

func (s *sandbox) nanotime() int64 {
	s.nano += int64(time.Millisecond)
	return s.nano
}

// Read gives random bytes.
func (s *sandbox) Read(p []byte) (int, error) { return s.chance.Read(p) }

// limited keeps the first max bytes of what is written to it.
type limited struct {
	b    []byte
	max  int
	full func() // called when there is more; nil = the rest is dropped
}

func (l *limited) Write(p []byte) (int, error) {
	room := l.max - len(l.b)
	l.b = append(l.b, p[:min(room, len(p))]...)
	if len(p) > room && l.full != nil {
		l.full()
		return 0, errOutput
	}
	return len(p), nil
}

// presentable is text of a function as it may stand in an error.
func presentable(s string) string {
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
	if len(s) > maxMessage {
		s = s[:maxMessage]
		for !utf8.ValidString(s) {
			s = s[:len(s)-1]
		}
	}
	return strings.TrimSpace(s)
}
