// SPDX-License-Identifier: Apache-2.0

package event_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/cloudevents/sdk-go/v2/binding"
	sdk "github.com/cloudevents/sdk-go/v2/event"
	sdkhttp "github.com/cloudevents/sdk-go/v2/protocol/http"
	"github.com/google/go-cmp/cmp"

	"github.com/rialto-bridge/rialto/internal/event"
)

// The official Go SDK is the peer: what it sends we read, and what we send it reads, over a real connection. It is known
// to be wrong (version 2.16.2) in these points, which the cases leave out or name:
//   - it does not percent-code header values in either direction (its issue 1331), so that a blank reaches it as %20 and
//     a source that has a percent sign of its own cannot come from it in binary mode;
//   - in structured mode it takes data of a +json type other than application/cloudevents+json for text;
//   - it takes malformed values that the specification refuses (those are in testdata/http.jsonl).

// peers are events that both sides can say in every mode.
var peers = map[string]event.Event{
	"minimal": {ID: "1", Source: "/s", Type: "t"},
	"reading": reading(),
	"text": {ID: "a/b?c", Source: "https://example.com/a/b?c=d#e", Type: "com.example.t", Subject: "a'b'", DataContentType: "text/plain; charset=utf-8",
		DataSchema: "https://example.com/s/1", Time: time.Date(2018, 4, 5, 17, 31, 0, 123456789, time.UTC), Data: []byte("Zürich\r\n")},
	"bytes": {ID: "1", Source: "/s", Type: "t", DataContentType: "application/octet-stream", Data: []byte{0, 1, 0xff}},
	"json":  {ID: "1", Source: "/s", Type: "t", DataContentType: "application/json", Data: []byte(`{"n":12345678901234567890,"f":1.10}`)},
	"xml":   {ID: "1", Source: "/s", Type: "t", DataContentType: "application/xml", Data: []byte(`<a b="c"/>`)},
}

// toSDK builds the SDK's form of an event attribute by attribute.
func toSDK(t *testing.T, e event.Event) sdk.Event {
	t.Helper()
	s := sdk.New()
	s.SetID(e.ID)
	s.SetSource(e.Source)
	s.SetType(e.Type)
	if e.Subject != "" {
		s.SetSubject(e.Subject)
	}
	if !e.Time.IsZero() {
		s.SetTime(e.Time)
	}
	if e.DataSchema != "" {
		s.SetDataSchema(e.DataSchema)
	}
	for _, x := range e.Extensions {
		s.SetExtension(x.Name, x.Value)
	}
	if e.DataContentType != "" {
		if err := s.SetData(e.DataContentType, e.Data); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Validate(); err != nil {
		t.Fatal(err)
	}
	return s
}

// fromSDK reads the SDK's form of an event.
func fromSDK(s *sdk.Event) event.Event {
	e := event.Event{ID: s.ID(), Source: s.Source(), Type: s.Type(), Subject: s.Subject(), DataContentType: s.DataContentType(),
		DataSchema: s.DataSchema(), Time: s.Time(), Data: s.Data()}
	for name, v := range s.Extensions() {
		e.Extensions = append(e.Extensions, event.Attribute{Name: name, Value: v})
	}
	sortAttributes(e.Extensions)
	if len(e.Data) == 0 {
		e.Data = nil
	}
	return e
}

func sortAttributes(x []event.Attribute) {
	for i := range x {
		for j := i; j > 0 && x[j-1].Name > x[j].Name; j-- {
			x[j-1], x[j] = x[j], x[j-1]
		}
	}
}

// carry sends one request to handle over loopback.
func carry(t *testing.T, fill func(*http.Request), handle func(*http.Request)) {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { handle(r) }))
	defer srv.Close()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, srv.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	fill(r)
	res, err := srv.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	if err := res.Body.Close(); err != nil {
		t.Error(err)
	}
}

func TestSDKSendsAndWeRead(t *testing.T) {
	for _, mode := range []event.Mode{event.Binary, event.Structured} {
		for name, want := range peers {
			t.Run(mode.String()+" "+name, func(t *testing.T) {
				carry(t, func(r *http.Request) {
					ctx := binding.WithForceBinary(context.Background())
					if mode == event.Structured {
						ctx = binding.WithForceStructured(context.Background())
					}
					s := toSDK(t, want)
					if err := sdkhttp.WriteRequest(ctx, binding.ToMessage(&s), r); err != nil {
						t.Error(err)
					}
				}, func(r *http.Request) { checkReceived(t, r, mode, want) })
			})
		}
	}
	t.Run("batch", func(t *testing.T) {
		var batch []sdk.Event
		var want []event.Event
		for _, e := range peers {
			batch, want = append(batch, toSDK(t, e)), append(want, e)
		}
		carry(t, func(r *http.Request) {
			b, err := sdkhttp.NewHTTPRequestFromEvents(context.Background(), r.URL.String(), batch)
			if err != nil {
				t.Error(err)
				return
			}
			*r = *b
		}, func(r *http.Request) { checkReceived(t, r, event.Batch, want...) })
	})
}

func checkReceived(t *testing.T, r *http.Request, mode event.Mode, want ...event.Event) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		t.Error(err)
		return
	}
	gotMode, got, err := event.FromHTTP(r.Header, body, event.Limits{})
	if err != nil || gotMode != mode {
		t.Errorf("read as %v: %v", gotMode, err)
		return
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestWeSendAndSDKReads(t *testing.T) {
	for _, structured := range []bool{false, true} {
		for name, want := range peers {
			mode := map[bool]string{false: "binary ", true: "structured "}[structured]
			t.Run(mode+name, func(t *testing.T) {
				carry(t, func(r *http.Request) { fill(r, want, structured) }, func(r *http.Request) {
					got, err := sdkhttp.NewEventFromHTTPRequest(r)
					if err != nil {
						t.Error(err)
						return
					}
					if !structured { // the encoding that the specification asks for is not undone
						want.Subject = strings.ReplaceAll(want.Subject, " ", "%20")
					}
					if err := got.Validate(); err != nil {
						t.Errorf("the peer finds the event invalid: %v", err)
					}
					if diff := cmp.Diff(want, fromSDK(got)); diff != "" {
						t.Errorf("-want +got:\n%s", diff)
					}
				})
			})
		}
	}
	t.Run("types of extensions", func(t *testing.T) {
		want := records["types of extensions"].Event
		carry(t, func(r *http.Request) { fill(r, want, true) }, func(r *http.Request) {
			got, err := sdkhttp.NewEventFromHTTPRequest(r)
			if err != nil {
				t.Error(err)
				return
			}
			if diff := cmp.Diff(want, fromSDK(got)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	})
	t.Run("batch", func(t *testing.T) {
		var want []event.Event
		doc := []byte("[")
		for _, e := range peers {
			if len(want) > 0 {
				doc = append(doc, ',')
			}
			doc = event.AppendJSON(doc, &e)
			want = append(want, e)
		}
		doc = append(doc, ']')
		carry(t, func(r *http.Request) {
			r.Header.Set("Content-Type", event.BatchType)
			setBody(r, doc)
		}, func(r *http.Request) {
			events, err := sdkhttp.NewEventsFromHTTPRequest(r)
			if err != nil {
				t.Error(err)
				return
			}
			got := make([]event.Event, len(events))
			for i := range events {
				got[i] = fromSDK(&events[i])
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	})
}

// TestKnownFaultsOfTheSDK notices when a newer SDK has mended what the cases above leave out.
func TestKnownFaultsOfTheSDK(t *testing.T) {
	e := event.Event{ID: "1", Source: "/a%20b", Type: "t", DataContentType: "application/vnd.example+json", Data: []byte(`{}`)}
	carry(t, func(r *http.Request) { fill(r, e, true) }, func(r *http.Request) {
		if got, err := sdkhttp.NewEventFromHTTPRequest(r); err == nil {
			t.Errorf("the SDK now reads +json data: %v", got)
		}
	})
	carry(t, func(r *http.Request) { fill(r, e, false) }, func(r *http.Request) {
		got, err := sdkhttp.NewEventFromHTTPRequest(r)
		if err != nil {
			t.Error(err)
			return
		}
		if got.Source() != "/a%2520b" {
			t.Errorf("the SDK now decodes header values: %s", got.Source())
		}
	})
}

func fill(r *http.Request, e event.Event, structured bool) {
	if structured {
		r.Header.Set("Content-Type", event.StructuredType)
		setBody(r, event.AppendJSON(nil, &e))
		return
	}
	setBody(r, event.ToHTTPBinary(r.Header, &e))
}

func setBody(r *http.Request, b []byte) {
	r.Body = io.NopCloser(bytes.NewReader(b))
	r.ContentLength = int64(len(b))
}
