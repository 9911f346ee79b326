// SPDX-License-Identifier: Apache-2.0

package event_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rialto-bridge/rialto/internal/event"
)

var gateway = event.MQTTDefaults{Source: event.MQTTSource("gw-1:1883", "box 17|sign=ü"), Time: received}

// plain is the event of a publish that is no CloudEvent.
func plain(topic, contentType, data string) event.Event {
	e := event.Event{Source: "mqtt://gw-1:1883/box%2017%7Csign%3D%C3%BC", Type: event.DefaultMQTTType, Subject: topic,
		DataContentType: contentType, Time: received}
	if data != "" {
		e.Data = []byte(data)
	}
	return e
}

var required = [][2]string{{"specversion", "1.0"}, {"id", "1"}, {"source", "/s"}, {"type", "t"}}

func with(more ...[2]string) [][2]string { return append(required[:4:4], more...) }

func TestFromMQTT(t *testing.T) {
	structured := `{` + head + `,"e":5,"data":{"a":1}}`
	good := minimal(func(e *event.Event) {
		e.Extensions = []event.Attribute{{Name: "e", Value: int32(5)}}
		e.DataContentType, e.Data = "application/json", []byte(`{"a":1}`)
	})
	for name, tt := range map[string]struct {
		m    event.MQTTMessage
		want event.Event // without an id when it is to be minted
	}{
		"3.1.1 JSON":                {event.MQTTMessage{Version: 4, Topic: "a/b", Payload: []byte(`{"celsius":9.1}`)}, plain("a/b", "application/json", `{"celsius":9.1}`)},
		"3.1.1 number":              {event.MQTTMessage{Version: 4, Topic: "a", Payload: []byte("21.5")}, plain("a", "application/json", "21.5")},
		"3.1.1 text":                {event.MQTTMessage{Version: 4, Topic: "a", Payload: []byte("ON")}, plain("a", "", "ON")},
		"3.1.1 bytes":               {event.MQTTMessage{Version: 4, Topic: "a", Payload: []byte{0, 0xff}}, plain("a", "", "\x00\xff")},
		"3.1.1 nothing":             {event.MQTTMessage{Version: 4, Topic: "a", Payload: []byte{}}, plain("a", "", "")},
		"3.1.1 structured":          {event.MQTTMessage{Version: 4, Topic: "a", Payload: []byte(structured)}, good},
		"3.1.1 not quite an event":  {event.MQTTMessage{Version: 4, Topic: "a", Payload: []byte(`{"specversion":"1.0","id":"1"}`)}, plain("a", "application/json", `{"specversion":"1.0","id":"1"}`)},
		"5 plain":                   {event.MQTTMessage{Version: 5, Topic: "a", Payload: []byte("x"), UserProperties: [][2]string{{"id", "7"}, {"a", "b"}, {"a", "b"}}}, plain("a", "", "x")},
		"5 content type":            {event.MQTTMessage{Version: 5, Topic: "a", ContentType: "text/csv", Payload: []byte("1")}, plain("a", "text/csv", "1")},
		"5 no media type":           {event.MQTTMessage{Version: 5, Topic: "a", ContentType: "json", Payload: []byte("x")}, plain("a", "", "x")},
		"5 UTF-8":                   {event.MQTTMessage{Version: 5, Topic: "a", PayloadUTF8: true, Payload: []byte("é")}, plain("a", "text/plain; charset=utf-8", "é")},
		"5 UTF-8 that is none":      {event.MQTTMessage{Version: 5, Topic: "a", PayloadUTF8: true, Payload: []byte{0xff}}, plain("a", "", "\xff")},
		"5 event without announce":  {event.MQTTMessage{Version: 5, Topic: "a", Payload: []byte(structured)}, plain("a", "application/json", structured)},
		"5 unknown format":          {event.MQTTMessage{Version: 5, Topic: "a", ContentType: "application/cloudevents+avro", Payload: []byte("x")}, plain("a", "application/cloudevents+avro", "x")},
		"5 structured":              {event.MQTTMessage{Version: 5, Topic: "a", ContentType: "Application/CloudEvents+JSON; charset=utf-8", Payload: []byte(structured)}, good},
		"5 binary, nothing more":    {event.MQTTMessage{Version: 5, Topic: "a", UserProperties: required, Payload: []byte("x")}, minimal(func(e *event.Event) { e.Data = []byte("x") })},
		"topic with a control byte": {event.MQTTMessage{Version: 4, Topic: "a\x01\u0085\ufdd0é%", Payload: []byte("x")}, plain("a%01%C2%85%EF%B7%90é%", "", "x")},
		"5 binary": {event.MQTTMessage{Version: 5, Topic: "a", ContentType: "text/xml", Payload: []byte("<a/>"), UserProperties: with(
			[2]string{"subject", "s 100%"}, [2]string{"time", "2018-04-05T17:31:00Z"}, [2]string{"dataschema", "urn:s"},
			[2]string{"datacontenttype", "text/plain"}, [2]string{"e2", "true"}, [2]string{"e1", ""},
			[2]string{"X-Other", "1"}, [2]string{"X-Other", "2"}, [2]string{"", "v"}, [2]string{"data", "v"})},
			minimal(func(e *event.Event) {
				e.Subject, e.Time, e.DataSchema, e.DataContentType = "s 100%", time.Date(2018, 4, 5, 17, 31, 0, 0, time.UTC), "urn:s", "text/xml"
				e.Data = []byte("<a/>")
				e.Extensions = []event.Attribute{{Name: "e1", Value: ""}, {Name: "e2", Value: "true"}}
			})},
		"5 binary, type in a user property": {event.MQTTMessage{Version: 5, Topic: "a", UserProperties: with([2]string{"datacontenttype", "text/plain"})},
			minimal(func(e *event.Event) { e.DataContentType = "text/plain" })},
	} {
		t.Run(name, func(t *testing.T) {
			got, minted, err := event.FromMQTT(tt.m, gateway, event.Limits{})
			if err != nil {
				t.Fatal(err)
			}
			if minted != (tt.want.ID == "") {
				t.Errorf("minted = %v", minted)
			}
			clear(tt.m.Payload)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if minted {
				got.ID = event.NewID()
			}
			checkRoundTrips(t, got)
		})
	}
}

func TestFromMQTTRefuses(t *testing.T) {
	for name, tt := range map[string]struct {
		m         event.MQTTMessage
		attribute string
	}{
		"structured":          {event.MQTTMessage{Version: 5, ContentType: event.StructuredType, Payload: []byte("{}")}, "specversion"},
		"version":             {event.MQTTMessage{Version: 5, UserProperties: [][2]string{{"specversion", "0.3"}, {"id", "1"}, {"source", "/s"}, {"type", "t"}}}, "specversion"},
		"empty id":            {event.MQTTMessage{Version: 5, UserProperties: [][2]string{{"specversion", "1.0"}, {"id", ""}, {"source", "/s"}, {"type", "t"}}}, "id"},
		"id twice":            {event.MQTTMessage{Version: 5, UserProperties: with([2]string{"id", "1"})}, "id"},
		"empty subject":       {event.MQTTMessage{Version: 5, UserProperties: with([2]string{"subject", ""})}, "subject"},
		"time":                {event.MQTTMessage{Version: 5, UserProperties: with([2]string{"time", "never"})}, "time"},
		"extension twice":     {event.MQTTMessage{Version: 5, UserProperties: with([2]string{"e", "1"}, [2]string{"e", "1"})}, "e"},
		"extension, control":  {event.MQTTMessage{Version: 5, UserProperties: with([2]string{"e", "\n"})}, "e"},
		"long name":           {event.MQTTMessage{Version: 5, UserProperties: with([2]string{strings.Repeat("e", 65), "1"})}, strings.Repeat("e", 64)},
		"content type":        {event.MQTTMessage{Version: 5, UserProperties: required, ContentType: "json"}, "datacontenttype"},
		"many extensions":     {event.MQTTMessage{Version: 5, UserProperties: with(manyProperties(129)...)}, ""},
		"large payload":       {event.MQTTMessage{Version: 4, Topic: "a", Payload: make([]byte, 1<<20+1)}, "data"},
		"long topic":          {event.MQTTMessage{Version: 4, Topic: strings.Repeat("a", 8193)}, "subject"},
		"large properties":    {event.MQTTMessage{Version: 5, Topic: "a", Raw: make([]byte, 46000)}, ""},
		"long topic, event":   {event.MQTTMessage{Version: 5, Topic: strings.Repeat("é", 10000), UserProperties: required, Raw: make([]byte, 10000)}, ""},
		"long topic in 3.1.1": {event.MQTTMessage{Version: 4, Topic: strings.Repeat("é", 12000), Payload: []byte("{" + head + "}")}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			e, minted, err := event.FromMQTT(tt.m, gateway, event.Limits{})
			if f := fault(t, err); f.Attribute != tt.attribute {
				t.Errorf("refused (%v) at %q, want %q", f, f.Attribute, tt.attribute)
			}
			if minted || e.Source != "" {
				t.Errorf("an event beside an error: %+v", e)
			}
		})
	}
}

func manyProperties(n int) [][2]string {
	p := make([][2]string, n)
	for i := range p {
		p[i] = [2]string{fmt.Sprintf("e%d", i), "v"}
	}
	return p
}

func TestMQTTSource(t *testing.T) {
	for _, tt := range [][3]string{
		{"gw", "box-17", "mqtt://gw/box-17"},
		{"[::1]:1883", "a", "mqtt://[::1]:1883/a"},
		{"gateway one", "a/b:c%d+#", "mqtt://gateway%20one/a%2Fb%3Ac%25d%2B%23"},
		{"gw", "", "mqtt://gw/"},
	} {
		got := event.MQTTSource(tt[0], tt[1])
		if got != tt[2] {
			t.Errorf("MQTTSource(%q, %q) = %q, want %q", tt[0], tt[1], got, tt[2])
		}
		e := minimal(func(e *event.Event) { e.Source = got })
		if err := e.Validate(event.Limits{}); err != nil {
			t.Errorf("MQTTSource(%q, %q): %v", tt[0], tt[1], err)
		}
	}
}

func TestToMQTT(t *testing.T) {
	e := records["types of extensions"].Event
	e.DataContentType, e.Data = "application/json", []byte(`{"a":1}`)
	m, err := event.ToMQTT(&e, 5, false)
	if err != nil {
		t.Fatal(err)
	}
	want := event.MQTTMessage{Version: 5, Payload: e.Data, ContentType: "application/json", PayloadUTF8: true,
		UserProperties: with([2]string{"1st", "5"}, [2]string{"a", "5"}, [2]string{"b", "true"}, [2]string{"c", "true"},
			[2]string{"d", "false"}, [2]string{"e", "-2147483648"}, [2]string{"f", ""})}
	want.Raw = properties(want)
	if diff := cmp.Diff(want, m); diff != "" {
		t.Errorf("MQTT 5 binary (-want +got):\n%s", diff)
	}
	if m, err = event.ToMQTT(&e, 5, true); err != nil {
		t.Fatal(err)
	}
	want = event.MQTTMessage{Version: 5, Payload: event.AppendJSON(nil, &e), ContentType: event.StructuredType, PayloadUTF8: true}
	want.Raw = properties(want)
	if diff := cmp.Diff(want, m); diff != "" {
		t.Errorf("MQTT 5 structured (-want +got):\n%s", diff)
	}
	if m, err = event.ToMQTT(&e, 4, false); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(event.MQTTMessage{Version: 4, Payload: e.Data}, m); diff != "" {
		t.Errorf("MQTT 3.1.1 (-want +got):\n%s", diff)
	}
	e.Subject = strings.Repeat("x", 65536)
	_, err = event.ToMQTT(&e, 5, false)
	if f := fault(t, err); f.Attribute != "subject" {
		t.Errorf("refused (%v) at %q, want subject", f, f.Attribute)
	}
}

// properties encodes what MQTT 5 section 2.2.2 says of the properties of a message.
func properties(m event.MQTTMessage) []byte {
	var b bytes.Buffer
	text := func(s string) {
		var n [2]byte
		binary.BigEndian.PutUint16(n[:], uint16(len(s)))
		b.Write(n[:])
		b.WriteString(s)
	}
	if m.PayloadUTF8 {
		b.WriteString("\x01\x01")
	}
	if m.ContentType != "" {
		b.WriteByte(3)
		text(m.ContentType)
	}
	for _, p := range m.UserProperties {
		b.WriteByte(38)
		text(p[0])
		text(p[1])
	}
	return b.Bytes()
}

func FuzzFromMQTT(f *testing.F) {
	for _, r := range records {
		for _, version := range []byte{4, 5} {
			m, err := event.ToMQTT(&r.Event, version, version == 4)
			if err != nil {
				f.Fatal(err)
			}
			var text strings.Builder
			for _, p := range m.UserProperties {
				text.WriteString(p[0] + "=" + p[1] + "\n")
			}
			f.Add(version == 5, "a/b", m.ContentType, m.PayloadUTF8, text.String(), m.Payload)
		}
	}
	f.Add(false, "a\x01", "", false, "", []byte("21.5"))
	f.Fuzz(func(t *testing.T, v5 bool, topic, contentType string, utf8 bool, text string, payload []byte) {
		m := event.MQTTMessage{Version: 4, Topic: topic, Payload: payload}
		if v5 {
			m.Version, m.ContentType, m.PayloadUTF8 = 5, contentType, utf8
			for line := range strings.SplitSeq(text, "\n") {
				name, value, _ := strings.Cut(line, "=")
				m.UserProperties = append(m.UserProperties, [2]string{name, value})
			}
		}
		e, minted, err := event.FromMQTT(m, gateway, event.Limits{})
		if err != nil {
			fault(t, err)
			return
		}
		if minted {
			e.ID = "minted"
		}
		checkRoundTrips(t, e)
	})
}

func BenchmarkFromMQTT(b *testing.B) {
	m := event.MQTTMessage{Version: 4, Topic: "boxes/17/reading", Payload: kilobyte}
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := event.FromMQTT(m, gateway, event.Limits{}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkToMQTT(b *testing.B) {
	e := reading()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := event.ToMQTT(&e, 5, false); err != nil {
			b.Fatal(err)
		}
	}
}

func ExampleFromMQTT() {
	m := event.MQTTMessage{Version: 4, Topic: "boxes/17/reading", Payload: []byte(`{"celsius":9.1}`)}
	d := event.MQTTDefaults{Source: event.MQTTSource("gateway-1", "box 17"), Time: time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)}
	e, minted, err := event.FromMQTT(m, d, event.Limits{})
	fmt.Println(minted, err)
	fmt.Println(e.Source, e.Type, e.Subject, e.DataContentType)
	// Output:
	// true <nil>
	// mqtt://gateway-1/box%2017 io.rialto.mqtt.publish boxes/17/reading application/json
}

func ExampleToMQTT() {
	e := event.Event{ID: "42", Source: "/boxes/17", Type: "com.example.reading", DataContentType: "application/json", Data: []byte(`{"celsius":9.1}`)}
	m, err := event.ToMQTT(&e, 5, false)
	fmt.Println(err, m.ContentType, string(m.Payload))
	fmt.Println(m.UserProperties)
	// Output:
	// <nil> application/json {"celsius":9.1}
	// [[specversion 1.0] [id 42] [source /boxes/17] [type com.example.reading]]
}
