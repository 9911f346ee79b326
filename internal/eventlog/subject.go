// SPDX-License-Identifier: Apache-2.0

package eventlog

import (
	"bytes"
	"context"
	"hash/fnv"
	"hash/maphash"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/rialto-bridge/rialto/internal/event"
)

// Subjects of a bus are
//
//	ev.<bus>.<type>.e.<bucket>
//	ev.<bus>.<type>.m.<level>.<level>...    for events published over MQTT
//
// <type> and <level> are escaped so that they are one token and can be read back: "." becomes "/"; "/", "%", the
// wildcards, blanks, controls and DEL become %XX. A level cannot hold "/". An empty level is the token "%", which no
// escape begins without two digits. <bucket> is two hexadecimal digits of a hash of the source.
//
// JetStream keeps every subject in memory, so their number is bounded: only the first levels of a topic stand in the
// subject, as many as subjectLevels and subjectBytes allow, and fewer of them the nearer a bus comes to subjectLimit
// subjects: when four fifths are used up new ones have three levels, then one, in the end none and no type ("%" in its
// place). So what comes when there are too many topics still has a subject that says something. What is left out is in
// the event; whoever matches by subject checks the event.
const (
	subjectLevels = 8
	subjectBytes  = 1 << 10
	subjectLimit  = 100_000

	emptyToken = "%" // an empty level, or a type that is not said
)

const upperHex = "0123456789ABCDEF"

// appendToken appends s as one token of a subject.
func appendToken(dst []byte, s string) []byte {
	if s == "" {
		return append(dst, emptyToken...)
	}
	valid := utf8.ValidString(s)
	for i := range len(s) {
		switch c := s[i]; {
		case c == '.':
			dst = append(dst, '/')
		case c <= ' ', c == '/', c == '%', c == '*', c == '>', c == 0x7f, c >= 0x80 && !valid:
			dst = append(dst, '%', upperHex[c>>4], upperHex[c&15])
		default:
			dst = append(dst, c)
		}
	}
	return dst
}

// parseToken is the inverse of appendToken.
func parseToken(tok string) (string, bool) {
	if tok == emptyToken {
		return "", true
	}
	var b strings.Builder
	for i := 0; i < len(tok); i++ {
		switch c := tok[i]; c {
		case '/':
			b.WriteByte('.')
		case '%':
			if i+2 >= len(tok) {
				return "", false
			}
			hi, lo := strings.IndexByte(upperHex, tok[i+1]), strings.IndexByte(upperHex, tok[i+2])
			if hi < 0 || lo < 0 {
				return "", false
			}
			b.WriteByte(byte(hi<<4 | lo))
			i += 2
		default:
			b.WriteByte(c)
		}
	}
	return b.String(), b.Len() > 0
}

// subjects gives events of one bus their subjects and keeps the number of these bounded. It may be used concurrently.
type subjects struct {
	prefix string // ev.<bus>.
	limit  int
	seed   maphash.Seed

	mu   sync.Mutex
	seen map[uint64]struct{} // hashes
}

func newSubjects(bus string) *subjects {
	return &subjects{prefix: "ev." + bus + ".", limit: subjectLimit, seed: maphash.MakeSeed(), seen: map[uint64]struct{}{}}
}

// admit reports whether a subject is known, or there is room for one more.
func (s *subjects) admit(subject []byte) bool { return s.admitBelow(subject, s.limit) }

// admitBelow is admit with a limit of its own.
func (s *subjects) admitBelow(subject []byte, limit int) bool {
	h := maphash.Bytes(s.seed, subject)
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.seen[h]; ok {
		return true
	}
	if len(s.seen) >= limit {
		return false
	}
	s.seen[h] = struct{}{}
	return true
}

// of returns the subject of an event.
func (s *subjects) of(rec *event.Record) string {
	var buf [512]byte
	if rec.MQTT == nil {
		b := appendBucket(append(appendToken(append(buf[:0], s.prefix...), rec.Event.Type), ".e."...), rec.Event.Source)
		if !s.admit(b) {
			b = appendBucket(append(append(buf[:0], s.prefix...), emptyToken+".e."...), rec.Event.Source)
		}
		return string(b)
	}
	most := subjectLevels
	if n := int(rec.MQTT.Levels); n > 0 {
		most = min(n, most)
	}
	for _, step := range [...]struct{ levels, limit int }{{most, s.limit - s.limit/5}, {min(most, 3), s.limit - s.limit/20}, {1, s.limit}} {
		b := append(appendToken(append(buf[:0], s.prefix...), rec.Event.Type), ".m"...)
		b = appendLevels(b, rec.MQTT.Topic, step.levels)
		if s.admitBelow(b, step.limit) {
			return string(b)
		}
	}
	return s.prefix + emptyToken + ".m"
}

// TopicSubjects gives messages with a name and a topic the subjects
//
//	<prefix>.<name>.<level>.<level>...
//
// escaped as those of a bus. A message without a name has "%" in its place. Their number is bounded as that of a bus's:
// when there are too many, the levels are left out, and then the name, in whose place "%%" and a hash of two digits
// stands. It may be used concurrently.
type TopicSubjects struct{ subjects *subjects }

// TopicSubjects returns the subjects of a stream below a prefix. It blocks while those that the stream has are counted.
func (s *Stream) TopicSubjects(ctx context.Context, prefix string) (*TopicSubjects, error) {
	t := &TopicSubjects{&subjects{prefix: prefix + ".", limit: subjectLimit, seed: maphash.MakeSeed(), seen: map[uint64]struct{}{}}}
	return t, s.eachSubject(ctx, prefix+".>", func(subject string, _ uint64) { t.subjects.admit([]byte(subject)) })
}

// Of returns the subject of a message, with at most as many levels of its topic as are asked for.
func (t *TopicSubjects) Of(name, topic string, levels int) string {
	var buf [512]byte
	s := t.subjects
	for _, n := range [...]int{levels, min(levels, 1), 0} {
		b := appendToken(append(buf[:0], s.prefix...), name)
		if len(b) > subjectBytes {
			break
		}
		if b = appendLevels(b, topic, n); s.admit(b) {
			return string(b)
		}
	}
	b := append(buf[:0], s.prefix...)
	if name == "" {
		return string(append(b, emptyToken...))
	}
	return string(appendBucket(append(b, emptyToken+emptyToken...), name))
}

// Unnamed reports whether a subject below a prefix is that of a message without a name.
func Unnamed(prefix, subject string) bool {
	rest, ok := strings.CutPrefix(subject, prefix+"."+emptyToken)
	return ok && (rest == "" || rest[0] == '.')
}

func appendBucket(dst []byte, source string) []byte {
	h := fnv.New32a()
	h.Write([]byte(source)) //nolint:errcheck // never fails
	c := byte(h.Sum32())
	return append(dst, upperHex[c>>4], upperHex[c&15])
}

// appendLevels appends the first levels of a topic.
func appendLevels(dst []byte, topic string, levels int) []byte {
	start := len(dst)
	for range levels {
		level, rest, more := strings.Cut(topic, "/")
		next := appendToken(append(dst, '.'), level)
		if len(next)-start > subjectBytes {
			break
		}
		dst = next
		if !more {
			break
		}
		topic = rest
	}
	return dst
}

// subjectQuery is a coarse test of subjects: it lets everything pass that may match.
type subjectQuery struct {
	prefix []byte
	typ    []byte   // escaped; nil: any
	bucket []byte   // of a source; nil: any
	levels [][]byte // escaped levels of an MQTT filter, nil for +
	mqtt   bool     // only .m. subjects
	more   bool     // the filter ends with #
}

func (s *subjects) query(q Query) subjectQuery {
	var c subjectQuery
	c.prefix = []byte(s.prefix)
	if q.Type != "" {
		c.typ = appendToken(nil, q.Type)
	}
	if q.Source != "" {
		c.bucket = appendBucket(nil, q.Source)
	}
	if q.MQTTFilter == "" {
		return c
	}
	c.mqtt = true
	for _, level := range strings.Split(q.MQTTFilter, "/") {
		switch level {
		case "#":
			c.more = true
		case "+":
			c.levels = append(c.levels, nil)
		default:
			c.levels = append(c.levels, appendToken(nil, level))
		}
	}
	return c
}

// topics returns a coarse test of subjects for MQTT filters, which lets everything pass that may match one; nil when there are no
// filters.
func (s *subjects) topics(filters []string) func(subject []byte) bool {
	if len(filters) == 0 {
		return nil
	}
	queries := make([]subjectQuery, len(filters))
	for i, f := range filters {
		queries[i] = s.query(Query{MQTTFilter: f})
	}
	return func(subject []byte) bool {
		for i := range queries {
			if queries[i].match(subject) {
				return true
			}
		}
		return false
	}
}

var dot = []byte(".")

// match reports whether an event with this subject may be wanted.
func (c *subjectQuery) match(subject []byte) bool {
	rest, ok := bytes.CutPrefix(subject, c.prefix)
	if !ok {
		return false
	}
	typ, rest, _ := bytes.Cut(rest, dot)
	if c.typ != nil && !bytes.Equal(typ, c.typ) && string(typ) != emptyToken {
		return false
	}
	kind, rest, more := bytes.Cut(rest, dot)
	if string(kind) == "e" {
		return !c.mqtt && (c.bucket == nil || bytes.Equal(rest, c.bucket))
	}
	if !c.mqtt {
		return true
	}
	n := 0
	for ; more; n++ {
		var level []byte
		if level, rest, more = bytes.Cut(rest, dot); n >= len(c.levels) {
			return c.more
		}
		if want := c.levels[n]; want != nil && !bytes.Equal(level, want) {
			return false
		}
	}
	return true // fewer levels than the filter has: the topic may have been cut
}

// matchTopic reports whether an MQTT topic matches an MQTT filter. Wildcards at the start of a filter do not match
// topics that start with $ (MQTT 5 section 4.7.2).
func matchTopic(filter, topic string) bool {
	if strings.HasPrefix(topic, "$") && (strings.HasPrefix(filter, "+") || strings.HasPrefix(filter, "#")) {
		return false
	}
	for {
		f, frest, fmore := strings.Cut(filter, "/")
		if f == "#" {
			return true
		}
		t, trest, tmore := strings.Cut(topic, "/")
		if f != "+" && f != t {
			return false
		}
		if !tmore {
			return !fmore || frest == "#" // a/# matches a
		}
		if !fmore {
			return false
		}
		filter, topic = frest, trest
	}
}
