// SPDX-License-Identifier: Apache-2.0

package event_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/rialto-bridge/rialto/internal/event"
)

// checkRoundTrips encodes a valid event in every way there is and reads it back. What an encoding cannot say is all that
// may differ: JSON data loses the blanks around it in the JSON format; in headers and user properties extensions are
// strings and empty data is no data.
func checkRoundTrips(t *testing.T, e event.Event) {
	t.Helper()
	if err := e.Validate(event.Limits{}); err != nil {
		t.Fatalf("not a valid event: %v", err)
	}

	block := event.AppendNATS(nil, &event.Record{Event: e})
	if rec, err := event.FromNATS(block, e.Data); err != nil {
		t.Fatalf("NATS %q: %v", block, err)
	} else if diff := cmp.Diff(e, rec.Event); diff != "" {
		t.Fatalf("NATS %q (-want +got):\n%s", block, diff)
	}

	doc := event.AppendJSON(nil, &e)
	if !json.Valid(doc) || !utf8.Valid(doc) {
		t.Fatalf("AppendJSON gave no JSON: %q", doc)
	}
	inJSON := e
	if event.IsJSON(e.DataContentType) && e.Data != nil && bytes.Contains(doc, []byte(`,"data":`)) {
		inJSON.Data = bytes.Trim(e.Data, " \t\r\n")
	}
	if got, err := event.ParseJSON(doc, event.Limits{}); err != nil {
		t.Fatalf("JSON %q: %v", doc, err)
	} else if diff := cmp.Diff(inJSON, got); diff != "" {
		t.Fatalf("JSON %q (-want +got):\n%s", doc, diff)
	}

	text := asText(e)
	if event.ModeOf(e.DataContentType) != event.Binary {
		text = inJSON // a type that cannot travel in binary mode
	}
	h := http.Header{}
	body := event.ToHTTPBinary(h, &e)
	if _, got, err := event.FromHTTP(h, body, event.Limits{}); err != nil {
		t.Fatalf("HTTP %q: %v", h, err)
	} else if diff := cmp.Diff([]event.Event{text}, got); diff != "" {
		t.Fatalf("HTTP %q (-want +got):\n%s", h, diff)
	}

	for _, structured := range []bool{false, true} {
		m, err := event.ToMQTT(&e, 5, structured)
		if err != nil {
			t.Fatalf("ToMQTT: %v", err)
		}
		want := text
		if structured {
			want = inJSON
		}
		if got, minted, err := event.FromMQTT(m, event.MQTTDefaults{}, event.Limits{}); err != nil || minted {
			t.Fatalf("MQTT %+v: minted %v, %v", m, minted, err)
		} else if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("MQTT %+v (-want +got):\n%s", m, diff)
		}
	}
	m, err := event.ToMQTT(&e, 4, true)
	if err != nil {
		t.Fatalf("ToMQTT: %v", err)
	}
	if got, minted, err := event.FromMQTT(m, event.MQTTDefaults{}, event.Limits{}); err != nil || minted {
		t.Fatalf("MQTT 3.1.1 %q: minted %v, %v", m.Payload, minted, err)
	} else if diff := cmp.Diff(inJSON, got); diff != "" {
		t.Fatalf("MQTT 3.1.1 %q (-want +got):\n%s", m.Payload, diff)
	}
}

// asText is an event as it comes out of headers.
func asText(e event.Event) event.Event {
	x := make([]event.Attribute, 0, len(e.Extensions))
	for _, a := range e.Extensions {
		x = append(x, event.Attribute{Name: a.Name, Value: a.Canonical()})
	}
	if e.Extensions = nil; len(x) > 0 {
		e.Extensions = x
	}
	if len(e.Data) == 0 {
		e.Data = nil
	}
	return e
}

func TestRoundTrips(t *testing.T) {
	for name, r := range records {
		t.Run(name, func(t *testing.T) { checkRoundTrips(t, r.Event) })
	}
	for name, data := range map[string]string{
		"application/json":                  " {\"a\" : 1}\n",
		"application/json; charset=utf-16":  "\xff\xfe{\x00}\x00",
		"application/xml":                   "<a b=\"c\">\u2028\x00</a>",
		"text/plain; charset=iso-8859-1":    "caf\xe9",
		"text/plain;charset=\"UTF-8\"":      "Z\u00fcrich\r\n\t\b\\",
		"application/cloudevents+json":      `{"a":1}`,
		"application/cloudevents-batch+xml": "x",
		"image/svg+xml":                     "<svg/>",
		"image/png":                         "\x89PNG",
	} {
		t.Run(name, func(t *testing.T) {
			checkRoundTrips(t, event.Event{ID: "1", Source: "/s", Type: "t", DataContentType: name, Data: []byte(data)})
		})
	}
}

// fault returns err as *event.Error and fails the test when it is none.
func fault(t *testing.T, err error) *event.Error {
	t.Helper()
	var f *event.Error
	if !errors.As(err, &f) {
		t.Fatalf("error is %v (%T), want an *event.Error", err, err)
	}
	return f
}
