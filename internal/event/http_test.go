// SPDX-License-Identifier: Apache-2.0

package event_test

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rialto-bridge/rialto/internal/event"
)

// probe is one line of testdata/http.jsonl: a request, and whether the specification accepts it, refuses it, or leaves
// that open ("either": refused, or carried without change).
type probe struct {
	Name, Verdict, Why string
	Headers            [][2]string // a value in front of which stands base64: is not UTF-8
	Chunked            bool
	Body, BodyBase64   string
	Status             []int // of a refusal
	Names, Pointer     string
	Events             []struct {
		Attributes       map[string]string // canonical; nothing else may be there
		Types            []string          // right datacontenttypes; nil for any
		NoData           bool
		Data, DataBase64 string
	}
}

func probes(tb testing.TB) []probe {
	f, err := os.Open("testdata/http.jsonl")
	if err != nil {
		tb.Fatal(err)
	}
	defer f.Close()
	var all []probe
	for d := json.NewDecoder(f); ; {
		var p probe
		if err := d.Decode(&p); err == io.EOF {
			return all
		} else if err != nil {
			tb.Fatal(err)
		}
		all = append(all, p)
	}
}

// request reads the probe as net/http reads it from a connection.
func (p *probe) request(tb testing.TB) (http.Header, []byte) {
	body := []byte(p.Body)
	if p.BodyBase64 != "" {
		body = decode64(tb, p.BodyBase64)
	}
	var b bytes.Buffer
	b.WriteString("POST / HTTP/1.1\r\nHost: localhost\r\n")
	for _, h := range p.Headers {
		value := h[1]
		if enc, ok := strings.CutPrefix(value, "base64:"); ok {
			value = string(decode64(tb, enc))
		}
		b.WriteString(h[0] + ": " + value + "\r\n")
	}
	if p.Chunked {
		fmt.Fprintf(&b, "Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(body), body)
	} else {
		fmt.Fprintf(&b, "Content-Length: %d\r\n\r\n%s", len(body), body)
	}
	r, err := http.ReadRequest(bufio.NewReader(&b))
	if err != nil {
		tb.Fatalf("%s: %v", p.Name, err)
	}
	body, err = io.ReadAll(r.Body)
	if err != nil {
		tb.Fatalf("%s: %v", p.Name, err)
	}
	return r.Header, body
}

func decode64(tb testing.TB, s string) []byte {
	b, err := base64.StdEncoding.DecodeString(s)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

func TestHTTPProbes(t *testing.T) {
	for _, p := range probes(t) {
		t.Run(p.Name, func(t *testing.T) {
			h, body := p.request(t)
			_, events, err := event.FromHTTP(h, body, event.Limits{})
			switch {
			case err != nil && p.Verdict != "accept":
				checkRefusal(t, p, fault(t, err))
			case err != nil:
				t.Fatalf("refused (%v), but %s", err, p.Why)
			case p.Verdict == "refuse":
				t.Fatalf("accepted as %+v, but %s", events, p.Why)
			default:
				checkEvents(t, p, events)
			}
		})
	}
}

func checkRefusal(t *testing.T, p probe, f *event.Error) {
	t.Helper()
	status := http.StatusBadRequest
	switch {
	case f.Unsupported:
		status = http.StatusUnsupportedMediaType
	case f.TooLarge:
		status = http.StatusRequestEntityTooLarge
	}
	if !slices.Contains(p.Status, status) {
		t.Errorf("refused (%v) with %d, want %v", f, status, p.Status)
	}
	if p.Names != "" && !regexp.MustCompile(`(^|[^a-z0-9])`+regexp.QuoteMeta(p.Names)+`($|[^a-z0-9])`).MatchString(strings.ToLower(f.Error())) {
		t.Errorf("refused (%v) without naming %s", f, p.Names)
	}
	if ptr := f.Pointer(); p.Pointer != "" && ptr != p.Pointer && !strings.HasPrefix(ptr, p.Pointer+"/") {
		t.Errorf("refused (%v) at %q, want %s", f, ptr, p.Pointer)
	}
	if strings.Contains(f.Error(), "hunter2") {
		t.Errorf("the error repeats the payload: %v", f)
	}
}

func checkEvents(t *testing.T, p probe, events []event.Event) {
	t.Helper()
	if len(events) != len(p.Events) {
		t.Fatalf("%d events, want %d", len(events), len(p.Events))
	}
	for i, want := range p.Events {
		e := events[i]
		got := attributes(&e)
		if at, ok := want.Attributes["time"]; ok {
			wantTime, err := time.Parse(time.RFC3339Nano, strings.ToUpper(at))
			if err != nil {
				t.Fatal(err)
			}
			if !e.Time.Equal(wantTime) {
				t.Errorf("time is %v, sent %s", e.Time, at)
			}
			got["time"] = at
		}
		if diff := cmp.Diff(want.Attributes, got); diff != "" {
			t.Errorf("attributes (-want +got):\n%s", diff)
		}
		if want.Types != nil && !slices.Contains(want.Types, e.DataContentType) {
			t.Errorf("datacontenttype is %q, want one of %q", e.DataContentType, want.Types)
		}
		data := []byte(want.Data)
		if want.DataBase64 != "" {
			data = decode64(t, want.DataBase64)
		}
		if want.NoData && len(e.Data) > 0 || !want.NoData && (want.Data != "" || want.DataBase64 != "") && !bytes.Equal(e.Data, data) {
			t.Errorf("data is %q, sent %q", e.Data, data)
		}
		checkRoundTrips(t, e)
	}
}

// attributes returns all attributes but datacontenttype in canonical text.
func attributes(e *event.Event) map[string]string {
	m := map[string]string{"specversion": "1.0", "id": e.ID, "source": e.Source, "type": e.Type}
	if e.Subject != "" {
		m["subject"] = e.Subject
	}
	if e.DataSchema != "" {
		m["dataschema"] = e.DataSchema
	}
	if !e.Time.IsZero() {
		m["time"] = e.Time.Format(time.RFC3339Nano)
	}
	for _, x := range e.Extensions {
		m[x.Name] = x.Canonical()
	}
	return m
}

func TestModeOf(t *testing.T) {
	for in, want := range map[string]event.Mode{
		"":                             event.Binary,
		"application/json":             event.Binary,
		"application/x-cloudevents":    event.Binary,
		"application/cloudevents+json": event.Structured,
		"Application/CloudEvents+JSON; charset=UTF-8": event.Structured,
		"application/cloudevents":                     event.Structured,
		"application/cloudevents-batch+json":          event.Batch,
		" APPLICATION/CLOUDEVENTS-BATCH+AVRO":         event.Batch,
	} {
		if got := event.ModeOf(in); got != want {
			t.Errorf("ModeOf(%q) = %v, want %v", in, got, want)
		}
	}
}

func binaryHeader(extra ...string) http.Header {
	h := http.Header{"Ce-Specversion": {"1.0"}, "Ce-Id": {"1"}, "Ce-Source": {"/s"}, "Ce-Type": {"t"}}
	for i := 0; i < len(extra); i += 2 {
		h[extra[i]] = append(h[extra[i]], extra[i+1])
	}
	return h
}

func TestFromHTTPRefuses(t *testing.T) {
	for _, tt := range []struct {
		name      string
		header    http.Header
		body      string
		attribute string
	}{
		{"two content types", binaryHeader("Content-Type", "text/plain", "Content-Type", "text/html"), "", "datacontenttype"},
		{"no media type", binaryHeader("Content-Type", "json"), "", "datacontenttype"},
		{"one id in two cases", binaryHeader("ce-id", "1"), "", "id"},
		{"one extension in two cases", binaryHeader("Ce-Ext", "1", "ce-ext", "1"), "", "ext"},
		{"specversion in two cases", binaryHeader("ce-specversion", "1.0"), "", "specversion"},
		{"time in two cases", binaryHeader("Ce-Time", "2018-04-05T17:31:00Z", "ce-time", "2018-04-05T17:31:00Z"), "", "time"},
		{"time in lower case, bad", binaryHeader("ce-time", "never"), "", "time"},
		{"percent at the end", binaryHeader("Ce-Subject", "a%2"), "", "subject"},
		{"quote inside quotes", binaryHeader("Ce-Subject", `"a"b"`), "", "subject"},
		{"escape without end", binaryHeader("Ce-Subject", `"a\"`), "", "subject"},
		{"one quote", binaryHeader("Ce-Subject", `"`), "", "subject"},
		{"first of two faults", binaryHeader("Ce-Subject", "%", "Ce-Ext", "%"), "", "ext"},
		{"finer than a nanosecond", binaryHeader("Ce-Time", "2018-04-05T17:31:00.0000000001Z"), "", "time"},
		{"zero time", binaryHeader("Ce-Time", "0001-01-01T00:00:00Z"), "", "time"},
		{"point without digits", binaryHeader("Ce-Time", "2018-04-05T17:31:00.Z"), "", "time"},
		{"long name", binaryHeader("Ce-"+strings.Repeat("A", 65), "v"), "", strings.Repeat("a", 64)},
		{"long type", binaryHeader("Ce-Subject", "s", "Ce-Dataschema", "x:"+strings.Repeat("t", 8192)), "", "dataschema"},
		{"long value", binaryHeader("Ce-Ext", strings.Repeat("v", 4097)), "", "ext"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, _, err := event.FromHTTP(tt.header, []byte(tt.body), event.Limits{})
			if f := fault(t, err); f.Attribute != tt.attribute {
				t.Errorf("refused (%v) at %q, want %q", f, f.Attribute, tt.attribute)
			}
		})
	}
}

func TestFromHTTPTakesExactlyTheseTimes(t *testing.T) {
	for in, want := range map[string]string{
		"2018-04-05T17:31:00.120000000000Z": "2018-04-05T17:31:00.12Z",
		"2018-04-05T17:31:00-00:00":         "2018-04-05T17:31:00Z",
		"2018-04-05T17:31:00-23:59":         "2018-04-05T17:31:00-23:59",
		"2000-02-29T00:00:00z":              "2000-02-29T00:00:00Z",
		"0000-01-01T00:00:00+01:00":         "0000-01-01T00:00:00+01:00",
		"9999-12-31T23:59:59.999999999Z":    "9999-12-31T23:59:59.999999999Z",
	} {
		e, err := event.FromHTTPBinary(binaryHeader("Ce-Time", in), nil, event.Limits{})
		if err != nil {
			t.Errorf("%s: %v", in, err)
			continue
		}
		if got := e.Time.Format(time.RFC3339Nano); got != want {
			t.Errorf("time %s became %s, want %s", in, got, want)
		}
		checkRoundTrips(t, e)
	}
	for _, in := range []string{"2018-04-05 17:31:00Z", "2018-4-05T17:31:00Z0", "2018-04-05T17:60:00Z", "2018-00-05T17:31:00Z",
		"2018-13-05T17:31:00Z", "2018-04-00T17:31:00Z", "2018-04-31T17:31:00Z", "2100-02-29T00:00:00Z", "2018-04-05T17:31:61Z",
		"2018-04-05T17:31:00", "2018-04-05T17:31:00+0530", "2018-04-05T17:31:00+05:60", "2018-04-05T17:31:00Zx", "+018-04-05T17:31:00Z"} {
		if _, err := event.FromHTTPBinary(binaryHeader("Ce-Time", in), nil, event.Limits{}); err == nil {
			t.Errorf("time %q was accepted", in)
		}
	}
}

func TestFromHTTPLimits(t *testing.T) {
	big := bytes.Repeat([]byte("x"), 1<<20)
	if _, err := event.FromHTTPBinary(binaryHeader(), big, event.Limits{}); err != nil {
		t.Errorf("1 MiB of data: %v", err)
	}
	_, err := event.FromHTTPBinary(binaryHeader(), append(big, 'x'), event.Limits{})
	if f := fault(t, err); !f.TooLarge || f.Attribute != "data" {
		t.Errorf("more than 1 MiB of data: %+v", f)
	}
	if _, err := event.FromHTTPBinary(binaryHeader(), append(big, 'x'), event.Limits{MaxData: 2 << 20}); err != nil {
		t.Errorf("more than 1 MiB of data under a larger limit: %v", err)
	}
	if _, err := event.FromHTTPBinary(binaryHeader("Ce-Subject", strings.Repeat("s", 8192), "Ce-Type", "t"), nil, event.Limits{}); err == nil {
		t.Error("a type that is sent twice was accepted")
	}
	h := binaryHeader("Ce-Subject", strings.Repeat("s", 8192))
	for i := range 128 {
		h["Ce-E"+strconv.Itoa(i)] = []string{"v"}
	}
	e, err := event.FromHTTPBinary(h, nil, event.Limits{})
	if err != nil || len(e.Extensions) != 128 {
		t.Fatalf("128 extensions: %d, %v", len(e.Extensions), err)
	}
	checkRoundTrips(t, e)
	h["Ce-More"] = []string{"v"}
	if _, err := event.FromHTTPBinary(h, nil, event.Limits{}); err == nil {
		t.Error("129 extensions were accepted")
	}
	// All single limits are kept and the whole is too large for the log.
	h = binaryHeader()
	for i := range 16 {
		h["Ce-E"+strconv.Itoa(i)] = []string{strings.Repeat("%C3%A9", 1000)}
	}
	_, err = event.FromHTTPBinary(h, nil, event.Limits{})
	if f := fault(t, err); !f.TooLarge {
		t.Errorf("96 kB of header: %+v", f)
	}
	for i := 9; i < 16; i++ {
		delete(h, "Ce-E"+strconv.Itoa(i))
	}
	if e, err = event.FromHTTPBinary(h, nil, event.Limits{}); err != nil {
		t.Fatalf("54 kB of header: %v", err)
	}
	if n := len(event.AppendNATS(nil, &event.Record{Event: e})); n > 65535 {
		t.Errorf("an event within the limits takes a header block of %d bytes", n)
	}
}

func TestToHTTPBinaryReplacesContentType(t *testing.T) {
	h := http.Header{"Content-Type": {"text/plain"}, "X-Other": {"x"}}
	event.ToHTTPBinary(h, &event.Event{ID: "1", Source: "/s", Type: "t"})
	want := http.Header{"Ce-Specversion": {"1.0"}, "Ce-Id": {"1"}, "Ce-Source": {"/s"}, "Ce-Type": {"t"}, "X-Other": {"x"}}
	if diff := cmp.Diff(want, h); diff != "" {
		t.Error(diff)
	}
	for name := range h {
		if http.CanonicalHeaderKey(name) != name {
			t.Errorf("header %s is not canonical", name)
		}
	}
}

func FuzzFromHTTP(f *testing.F) {
	for _, p := range probes(f) {
		h, body := p.request(f)
		var text strings.Builder
		for name, values := range h {
			for _, v := range values {
				text.WriteString(name + ": " + v + "\n")
			}
		}
		f.Add(text.String(), body)
	}
	f.Fuzz(func(t *testing.T, text string, body []byte) {
		h := http.Header{}
		for line := range strings.SplitSeq(text, "\n") {
			if name, value, ok := strings.Cut(line, ": "); ok {
				h[name] = append(h[name], value)
			}
		}
		_, events, err := event.FromHTTP(h, body, event.Limits{})
		if err != nil {
			fault(t, err)
			if events != nil {
				t.Error("events beside an error")
			}
			return
		}
		for _, e := range events {
			checkRoundTrips(t, e)
		}
	})
}

// readingRequest is a binary request of 1 KiB with eight attributes, as net/http hands it over.
func readingRequest(tb testing.TB) (http.Header, []byte) {
	e := reading()
	h := http.Header{}
	body := event.ToHTTPBinary(h, &e)
	var b bytes.Buffer
	b.WriteString("POST / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: x\r\nAccept: */*\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n")
	if err := h.Write(&b); err != nil {
		tb.Fatal(err)
	}
	b.WriteString("\r\n")
	b.Write(body)
	r, err := http.ReadRequest(bufio.NewReader(&b))
	if err != nil {
		tb.Fatal(err)
	}
	return r.Header, body
}

func TestFromHTTPBinaryAllocations(t *testing.T) {
	if raceEnabled {
		return // the race detector allocates; the pass without it counts
	}
	h, body := readingRequest(t)
	n := testing.AllocsPerRun(100, func() {
		if _, err := event.FromHTTPBinary(h, body, event.Limits{}); err != nil {
			t.Fatal(err)
		}
	})
	if n > 8 {
		t.Errorf("FromHTTPBinary allocates %v times, want at most 8", n)
	}
	rec := event.Record{Event: reading(), Received: received}
	buf := event.AppendNATS(nil, &rec)
	if n := testing.AllocsPerRun(100, func() { buf = event.AppendNATS(buf[:0], &rec) }); n > 0 {
		t.Errorf("AppendNATS into a buffer allocates %v times, want 0", n)
	}
}

// TestFromHTTPBinarySpeed holds the ingest path to its bar. Other load on the machine can only slow a window down, so the
// best of many short windows counts.
func TestFromHTTPBinarySpeed(t *testing.T) {
	if raceEnabled {
		return // the race detector slows everything down; the pass without it measures
	}
	const bar, each = 3500 * time.Nanosecond, 500
	h, body := readingRequest(t)
	best := time.Hour
	for range 100 {
		start := time.Now()
		for range each {
			if _, err := event.FromHTTPBinary(h, body, event.Limits{}); err != nil {
				t.Fatal(err)
			}
		}
		if best = min(best, time.Since(start)/each); best <= bar {
			return
		}
	}
	t.Errorf("FromHTTPBinary takes %v, want at most %v", best, bar)
}

func BenchmarkFromHTTPBinary(b *testing.B) {
	h, body := readingRequest(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := event.FromHTTPBinary(h, body, event.Limits{}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkToHTTPBinary(b *testing.B) {
	e := reading()
	b.ReportAllocs()
	for b.Loop() {
		event.ToHTTPBinary(make(http.Header, 16), &e)
	}
}

func ExampleFromHTTP() {
	h := http.Header{}
	h.Set("Content-Type", "application/json")
	h.Set("ce-specversion", "1.0")
	h.Set("ce-id", "42")
	h.Set("ce-source", "/boxes/17")
	h.Set("ce-type", "com.example.reading")
	h.Set("ce-subject", "Z%C3%BCrich")
	mode, events, err := event.FromHTTP(h, []byte(`{"celsius":9.1}`), event.Limits{})
	fmt.Println(mode, err)
	fmt.Println(events[0].Subject, string(events[0].Data))

	h.Del("ce-source")
	_, _, err = event.FromHTTP(h, nil, event.Limits{})
	fmt.Println(err)
	// Output:
	// binary <nil>
	// Zürich {"celsius":9.1}
	// source: is required and must not be empty
}

func ExampleToHTTPBinary() {
	h := http.Header{}
	body := event.ToHTTPBinary(h, &event.Event{ID: "42", Source: "/boxes/17", Type: "com.example.reading", Subject: "Euro € 😀",
		DataContentType: "application/json", Data: []byte(`{"celsius":9.1}`)})
	fmt.Println(h.Get("ce-subject"))
	fmt.Println(h.Get("Content-Type"), string(body))
	// Output:
	// Euro%20%E2%82%AC%20%F0%9F%98%80
	// application/json {"celsius":9.1}
}
