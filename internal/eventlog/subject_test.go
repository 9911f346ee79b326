// SPDX-License-Identifier: Apache-2.0

package eventlog_test

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
)

func TestSubjects(t *testing.T) {
	mqtt := func(typ, topic string) *event.Record {
		return &event.Record{Event: event.Event{Type: typ, Source: "s"}, MQTT: &event.Origin{Topic: topic}}
	}
	for _, c := range []struct {
		rec  *event.Record
		want string
	}{
		{&event.Record{Event: event.Event{Type: "com.acme.reading", Source: "/box/1"}}, "ev.b.com/acme/reading.e.F7"},
		{&event.Record{Event: event.Event{Type: "a/b%c*d>e f\x7f", Source: "s"}}, "ev.b.a%2Fb%25c%2Ad%3Ee%20f%7F.e.82"},
		{&event.Record{Event: event.Event{Type: "größe", Source: "s"}}, "ev.b.größe.e.82"},
		{mqtt("t", "home/kitchen/t"), "ev.b.t.m.home.kitchen.t"},
		{mqtt("t", "/a//b/"), "ev.b.t.m.%.a.%.b.%"},
		{mqtt("t", "a.b/c d/*"), "ev.b.t.m.a/b.c%20d.%2A"},
		{mqtt("t", "1/2/3/4/5/6/7/8/9/10"), "ev.b.t.m.1.2.3.4.5.6.7.8"},
		{mqtt("t", "a/"+strings.Repeat("x", 2000)+"/b"), "ev.b.t.m.a"},
	} {
		if got := eventlog.SubjectOf("b", 100, c.rec)[0]; got != c.want {
			t.Errorf("subject of %q %v = %s, want %s", c.rec.Event.Type, c.rec.MQTT, got, c.want)
		}
	}
}

// The number of subjects of a bus is bounded, and an event is still found by what its subject leaves out.
func TestSubjectLimit(t *testing.T) {
	var recs []*event.Record
	for n := range 5000 {
		recs = append(recs,
			&event.Record{Event: event.Event{Type: fmt.Sprintf("type-%d", n), Source: "s"}},
			&event.Record{Event: event.Event{Type: "t", Source: "s"}, MQTT: &event.Origin{Topic: fmt.Sprintf("reply/x/y/%d/z", n)}})
	}
	seen := map[string]bool{}
	for i, s := range eventlog.SubjectOf("b", 1000, recs...) {
		seen[s] = true
		q := eventlog.Query{Type: recs[i].Event.Type}
		if m := recs[i].MQTT; m != nil {
			q.MQTTFilter = m.Topic
		} else {
			q.Source = "s"
		}
		if !eventlog.SubjectMatches("b", s, q) {
			t.Fatalf("%s is not found by %+v", s, q)
		}
	}
	if len(seen) > 1000+256+1 {
		t.Errorf("%d subjects with a limit of 1000", len(seen))
	}
}

// The more subjects there are, the fewer levels new topics keep, down to none.
func TestSubjectsGetCoarse(t *testing.T) {
	const limit = 1000
	var recs []*event.Record
	topic := func(format string, args ...any) {
		recs = append(recs, &event.Record{Event: event.Event{Type: "t"}, MQTT: &event.Origin{Topic: fmt.Sprintf(format, args...)}})
	}
	for i := range 5000 {
		topic("plant/%d/line/%d", i%10, i)
	}
	for i := range 5000 {
		topic("other-%d/a/b/c", i)
	}
	levels, seen := map[int]int{}, map[string]bool{}
	for _, s := range eventlog.SubjectOf("b", limit, recs...) {
		seen[s] = true
		levels[strings.Count(strings.TrimPrefix(s, "ev.b."), ".")-1]++
	}
	// 800 with all levels, ten with three that stand for the rest of the plant; others with three while there are 950,
	// then with one.
	if want := map[int]int{4: 800, 3: 4200 + 140, 1: 50, 0: 4810}; !maps.Equal(levels, want) || len(seen) != limit+1 {
		t.Errorf("levels %v of %d subjects, want %v of %d", levels, len(seen), want, limit+1)
	}
}

func FuzzToken(f *testing.F) {
	for _, s := range []string{"", "a", "com.acme.reading", "a/b", "%", "%%41", "*", ">", " ", "\x00\x7f\xff", "größe", "a\r\nb"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		tok := string(eventlog.AppendToken(nil, s))
		if strings.Contains(tok, ".") || !server.IsValidLiteralSubject(tok) || strings.ContainsFunc(tok, func(r rune) bool { return r <= ' ' || r == 0x7f }) {
			t.Errorf("token of %q is %q", s, tok)
		}
		if got, ok := eventlog.ParseToken(tok); !ok || got != s {
			t.Errorf("%q -> %q -> %q, %v", s, tok, got, ok)
		}
	})
}

func FuzzParseToken(f *testing.F) {
	for _, s := range []string{"", "%", "%4", "%4G", "a/b%2F", "%00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, tok string) {
		s, ok := eventlog.ParseToken(tok)
		if !ok {
			return
		}
		// Several tokens may mean one text; the canonical one must mean it too.
		if again, ok := eventlog.ParseToken(string(eventlog.AppendToken(nil, s))); !ok || again != s {
			t.Errorf("%q -> %q -> %q", tok, s, again)
		}
	})
}

func TestMatchTopic(t *testing.T) {
	for _, c := range []struct {
		filter, topic string
		want          bool
	}{
		{"a/b", "a/b", true}, {"a/b", "a/c", false}, {"a/+", "a/b", true}, {"a/+", "a/", true}, {"a/+", "a", false},
		{"a/#", "a", true}, {"a/#", "a/b/c", true}, {"#", "a/b", true}, {"#", "$SYS/a", false}, {"+/a", "$SYS/a", false},
		{"$SYS/#", "$SYS/a", true}, {"+", "", true}, {"+/+", "/", true}, {"/+", "/a", true}, {"+", "/a", false}, {"a/b", "a/b/c", false}, {"a/b/c", "a/b", false},
	} {
		if got := eventlog.MatchTopic(c.filter, c.topic); got != c.want {
			t.Errorf("%s on %s = %v, want %v", c.filter, c.topic, got, c.want)
		}
		if c.want {
			s := eventlog.SubjectOf("b", 10, &event.Record{Event: event.Event{Type: "t"}, MQTT: &event.Origin{Topic: c.topic}})[0]
			if !eventlog.SubjectMatches("b", s, eventlog.Query{MQTTFilter: c.filter}) {
				t.Errorf("subject %s does not pass for %s", s, c.filter)
			}
		}
	}
}

// Whatever matches by topic passes by subject.
func FuzzCoarseMatch(f *testing.F) {
	f.Add("a/+/c", "a/b/c", 8)
	f.Add("#", "/a//b.c/%", 1)
	f.Add("a/b/c/d/e/f/g/h/i/#", "a/b/c/d/e/f/g/h/i", 0)
	f.Fuzz(func(t *testing.T, filter, topic string, limit int) {
		if i := strings.IndexByte(filter, '#'); i >= 0 && i != len(filter)-1 {
			return // no filter (MQTT 5 section 4.7.1.2): the gateway refuses it
		}
		if len(topic) > 2000 || !eventlog.MatchTopic(filter, topic) {
			return
		}
		s := eventlog.SubjectOf("b", limit, &event.Record{Event: event.Event{Type: "t"}, MQTT: &event.Origin{Topic: topic}})[0]
		if !eventlog.SubjectMatches("b", s, eventlog.Query{MQTTFilter: filter, Type: "t"}) {
			t.Errorf("topic %q has subject %q, which does not pass for %q", topic, s, filter)
		}
	})
}

func TestMatchSubject(t *testing.T) {
	for _, c := range []struct {
		filter, subject string
		want            bool
	}{
		{"a.b", "a.b", true}, {"a.*", "a.b", true}, {"a.>", "a.b.c", true}, {"a.>", "a", false}, {"*", "a.b", false}, {"a.b.c", "a.b", false}, {">", "a", true},
	} {
		if got := eventlog.MatchSubject(c.filter, []byte(c.subject)); got != c.want {
			t.Errorf("%s on %s = %v, want %v", c.filter, c.subject, got, c.want)
		}
	}
}

func FuzzExpectHeader(f *testing.F) {
	f.Add([]byte("NATS/1.0\r\nA: b\r\n\r\n"), []byte("data"), int64(5))
	f.Add([]byte(nil), []byte(nil), int64(0))
	f.Add([]byte("NATS/1.0\r\n\r\n"), []byte("x"), int64(-1))
	f.Fuzz(func(t *testing.T, inner, data []byte, expect int64) {
		if strings.Contains(string(inner), "Nats-Expected-Last-Sequence: ") {
			return
		}
		var header []byte
		if len(inner) > 0 {
			header = append(append([]byte("NATS/1.0\r\nA: "), strings.NewReplacer("\r", "", "\n", "").Replace(string(inner))...), "\r\n\r\n"...)
		}
		frame := string(eventlog.AppendPub(nil, "s", "r", header, data, expect))
		line, rest, _ := strings.Cut(frame, "\r\n")
		var hlen, total int
		if _, err := fmt.Sscanf(line, "HPUB s r %d %d", &hlen, &total); err != nil {
			if _, err := fmt.Sscanf(line, "PUB s r %d", &total); err != nil {
				t.Fatalf("line %q", line)
			}
		}
		if len(rest) != total+2 || rest[hlen:total] != string(data) {
			t.Fatalf("frame %q does not hold %q", frame, data)
		}
		if got := eventlog.StripExpect([]byte(rest[:hlen])); string(got) != string(header) {
			t.Errorf("header %q came back as %q", header, got)
		}
	})
}

// Names and topics that can be told apart have subjects that can, until there are too many.
func TestTopicSubjects(t *testing.T) {
	log := open(t, eventlog.Options{Dir: t.TempDir()})
	s, err := log.Stream(t.Context(), eventlog.StreamConfig{Name: "DOWN", Subjects: []string{"down.>"}})
	if err != nil {
		t.Fatal(err)
	}
	subjects, err := s.TopicSubjects(t.Context(), "down")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, topic, want string }{
		{"box.17", "a/b/c/d", "down.box/17.a.b.c"},
		{"a/b", "/x", "down.a%2Fb.%.x"},
		{"%", "x", "down.%25.x"},
		{"", "x/y", "down.%.x.y"},
	} {
		got := subjects.Of(c.name, c.topic, 3)
		if got != c.want || eventlog.Unnamed("down", got) != (c.name == "") {
			t.Errorf("subject of %q, %q = %s, want %s", c.name, c.topic, got, c.want)
		}
	}
	for n := range 200_000 {
		name := fmt.Sprintf("box-%d", n)
		if got := subjects.Of(name, "x", 3); eventlog.Unnamed("down", got) || n >= 100_000 && !strings.HasPrefix(got, "down.%%") {
			t.Fatalf("subject of %s = %s", name, got)
		}
	}
	if got := subjects.Of("", "new/topic", 3); got != "down.%" {
		t.Errorf("subject of another topic = %s", got)
	}
}

func TestTypes(t *testing.T) {
	l := open(t, eventlog.Options{Dir: t.TempDir(), Durability: eventlog.OS})
	b := openBus(t, l, "x")
	if got, err := b.Types(t.Context()); err != nil || len(got) != 0 {
		t.Errorf("of an empty bus: %v, %v", got, err)
	}
	var recs []*event.Record
	for n, typ := range []string{"com.acme.reading", "com.acme.reading", "odd type/%*>", "com.acme.reading"} {
		r := record(n)
		if r.Event.Type = typ; n == 3 {
			r.MQTT = &event.Origin{Topic: "a/b"}
		}
		recs = append(recs, r)
	}
	appendAll(t, b, recs...)
	if got, err := b.Types(t.Context()); err != nil || len(got) != 2 || got["com.acme.reading"] != 3 || got["odd type/%*>"] != 1 {
		t.Errorf("%v, %v", got, err)
	}
}
