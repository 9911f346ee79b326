// SPDX-License-Identifier: Apache-2.0

package event_test

import (
	"bytes"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rialto-bridge/rialto/internal/event"
)

var received = time.Date(2026, 11, 30, 12, 34, 56, 123456789, time.UTC)

// reading is an event as a device's reading becomes one: 1 KiB of JSON and nine attributes.
func reading() event.Event {
	return event.Event{
		ID:              "0192f0c4-8f2b-7c1d-9c0e-5b7d4a1e2f30",
		Source:          "/boxes/17",
		Type:            "com.example.reading",
		Subject:         "box 17/temperature",
		DataContentType: "application/json",
		Time:            time.Date(2026, 11, 30, 12, 34, 56, 123000000, time.UTC),
		Extensions: []event.Attribute{
			{Name: "partitionkey", Value: "17"},
			{Name: "traceparent", Value: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"},
		},
		Data: kilobyte,
	}
}

var kilobyte = []byte(`{"celsius":9.1,"door":"open","pad":"` + strings.Repeat("x", 1024-38) + `"}`)

// records are the cases that every form of storage must give back unchanged.
var records = map[string]event.Record{
	"minimal": {Event: event.Event{ID: "1", Source: "/s", Type: "t"}},
	"reading": {Event: reading(), Received: received},
	"all attributes": {Event: event.Event{
		ID: "a/b?c#d%é ..", Source: "https://example.com/a%20b?c=d#e", Type: "com.exämple.t", Subject: ` 100% "q" 😀 `,
		DataContentType: `text/plain; charset="utf-8"`, DataSchema: "https://example.com/s/1#x",
		Time: time.Date(2018, 4, 5, 17, 31, 0, 123456789, time.FixedZone("", 5*3600+1800)),
		Data: []byte("Zürich"),
	}, Received: received, Minted: true},
	"types of extensions": {Event: event.Event{ID: "1", Source: "/s", Type: "t", Extensions: []event.Attribute{
		{Name: "1st", Value: "5"}, {Name: "a", Value: int32(5)}, {Name: "b", Value: true}, {Name: "c", Value: "true"},
		{Name: "d", Value: false}, {Name: "e", Value: int32(math.MinInt32)}, {Name: "f", Value: ""},
	}}, Received: received},
	"empty data":  {Event: event.Event{ID: "1", Source: "/s", Type: "t", Data: []byte{}}},
	"binary data": {Event: event.Event{ID: "1", Source: "/s", Type: "t", Data: []byte{0, 1, 0xff, '\r', '\n'}}},
	"mqtt": {Event: event.Event{ID: "1", Source: "mqtt://gw/box%2017", Type: "t", Subject: "boxes/17/té mp"}, Received: received,
		MQTT: &event.Origin{Topic: "boxes/17/té mp", Client: "box 17|x=ü", Principal: "box-17", QoS: 2, Retain: true, Version: 5,
			Properties: []byte{0x01, 0x01, 0x26, 0, 1, 'a', 0, 1, 'b', 0x26, 0, 1, 'a', 0, 1, 'b'}}},
	"mqtt 3.1.1, own subject": {Event: event.Event{ID: "1", Source: "/s", Type: "t", Subject: "other"},
		MQTT: &event.Origin{Topic: "boxes/17", Version: 4, QoS: 1}},
	"mqtt, odd":       {Event: event.Event{ID: "1", Source: "/s", Type: "t", Subject: "s"}, MQTT: &event.Origin{Version: 5, Properties: []byte{}}},
	"mqtt, sparkplug": {Event: event.Event{ID: "1", Source: "/s", Type: "t", Data: []byte{8, 1}}, MQTT: &event.Origin{Topic: "spBv1.0/g/NDATA/n", Version: 4, Sparkplug: []byte{0, 3, 1, 'a'}}},
	"mqtt, born":      {Event: event.Event{ID: "1", Source: "/s", Type: "t"}, MQTT: &event.Origin{Topic: "spBv1.0/g/NBIRTH/n", Version: 4, Sparkplug: []byte{}}},
	"hops": {Event: event.Event{ID: "1", Source: "/s", Type: "t"}, Received: received, Link: "up/ABC", Hops: []event.Hop{
		{Instance: "a1", Position: event.Position{Stream: "EV_default", Seq: 1}}, {Instance: "0192f0c48f2b7c1d", Position: event.Position{Stream: "EV_a-b", Seq: math.MaxUint64}}}},
	"mqtt, raw control": {Event: event.Event{ID: "1", Source: "/s", Type: "t"}, MQTT: &event.Origin{Topic: "a\r\nb\x01", Version: 5}},
}

func TestNATSRoundTrip(t *testing.T) {
	for name, want := range records {
		t.Run(name, func(t *testing.T) {
			header := event.AppendNATS(nil, &want)
			data := bytes.Clone(want.Event.Data)
			got, err := event.FromNATS(header, data)
			if err != nil {
				t.Fatalf("FromNATS(%q): %v", header, err)
			}
			clear(header)
			clear(data)
			if diff := cmp.Diff(&want, got); diff != "" {
				t.Errorf("FromNATS(AppendNATS(r)) differs (-want +got):\n%s", diff)
			}
		})
	}
}

func TestNATSIgnoresOtherHeaders(t *testing.T) {
	header := "NATS/1.0\r\nNats-Expected-Stream: EV_default\r\nce-specversion: 1.0\r\nce-id: 1\r\nce-source: /s\r\nce-type: t\r\nNats-Msg-Id: x%\r\n\r\n"
	got, err := event.FromNATS([]byte(header), nil)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&event.Record{Event: event.Event{ID: "1", Source: "/s", Type: "t"}}, got); diff != "" {
		t.Error(diff)
	}
}

const natsMinimal = "NATS/1.0\r\nce-specversion: 1.0\r\nce-id: 1\r\nce-source: /s\r\nce-type: t\r\n"

// brokenHeaders are blocks that no record was stored under.
var brokenHeaders = map[string]string{
	"nothing":          "",
	"no version":       "ce-id: 1\r\n\r\n",
	"status line":      "NATS/1.0 404\r\n\r\n",
	"no attributes":    "NATS/1.0\r\n\r\n",
	"cut":              natsMinimal,
	"cut in a line":    natsMinimal[:40],
	"bytes after":      natsMinimal + "\r\nx",
	"no colon":         natsMinimal + "x\r\n\r\n",
	"id twice":         natsMinimal + "ce-id: 1\r\n\r\n",
	"extension twice":  natsMinimal + "ce-e: 1\r\nce-e: 1\r\n\r\n",
	"specversion":      strings.Replace(natsMinimal, "1.0\r\nce-id", "1.1\r\nce-id", 1) + "\r\n",
	"no type":          strings.Replace(natsMinimal, "ce-type: t\r\n", "", 1) + "\r\n",
	"empty subject":    natsMinimal + "ce-subject: \r\n\r\n",
	"bad percent":      natsMinimal + "ce-subject: %zz\r\n\r\n",
	"bad name":         natsMinimal + "ce-A: x\r\n\r\n",
	"bad time":         natsMinimal + "ce-time: never\r\n\r\n",
	"bad received":     natsMinimal + "Rialto-Received: never\r\n\r\n",
	"bad mqtt":         natsMinimal + "Rialto-Mqtt: 5\r\n\r\n",
	"bad properties":   natsMinimal + "Rialto-Mqtt: 5 1 0\r\nRialto-Properties: *\r\n\r\n",
	"no hop":           natsMinimal + "Rialto-Hops: \r\n\r\n",
	"hop of nobody":    natsMinimal + "Rialto-Hops: /EV_a:1\r\n\r\n",
	"hop to nowhere":   natsMinimal + "Rialto-Hops: a/EV_a:0\r\n\r\n",
	"hop, bad stream":  natsMinimal + "Rialto-Hops: a/EV a:1\r\n\r\n",
	"too many hops":    natsMinimal + "Rialto-Hops:" + strings.Repeat(" a/EV_a:1", event.MaxHops+1) + "\r\n\r\n",
	"type of nothing":  natsMinimal + "Rialto-Types: e=i\r\n\r\n",
	"type not fitting": natsMinimal + "ce-e: x\r\nRialto-Types: e=i\r\n\r\n",
	"unknown type":     natsMinimal + "ce-e: x\r\nRialto-Types: e=f\r\n\r\n",
}

func TestFromNATSRefusesBrokenBlocks(t *testing.T) {
	for name, header := range brokenHeaders {
		if rec, err := event.FromNATS([]byte(header), nil); err == nil {
			t.Errorf("%s: FromNATS(%q) = %+v, want an error", name, header, rec)
		}
	}
	whole := event.AppendNATS(nil, new(records["mqtt"]))
	for n := range whole {
		if _, err := event.FromNATS(whole[:n], nil); err == nil {
			t.Errorf("FromNATS of the first %d of %d bytes gave no error", n, len(whole))
		}
	}
}

func FuzzFromNATS(f *testing.F) {
	for _, r := range records {
		f.Add(event.AppendNATS(nil, &r), r.Event.Data)
	}
	for _, h := range brokenHeaders {
		f.Add([]byte(h), []byte("x"))
	}
	f.Fuzz(func(t *testing.T, header, data []byte) {
		rec, err := event.FromNATS(header, data)
		if err != nil {
			return
		}
		block := event.AppendNATS(nil, rec)
		again, err := event.FromNATS(block, rec.Event.Data)
		if err != nil {
			t.Fatalf("stored as %q: %v", block, err)
		}
		if diff := cmp.Diff(rec, again); diff != "" {
			t.Fatalf("stored as %q (-want +got):\n%s", block, diff)
		}
	})
}

func BenchmarkAppendNATS(b *testing.B) {
	rec := event.Record{Event: reading(), Received: received}
	buf := event.AppendNATS(nil, &rec)
	b.ReportAllocs()
	for b.Loop() {
		buf = event.AppendNATS(buf[:0], &rec)
	}
}

func BenchmarkFromNATS(b *testing.B) {
	rec := event.Record{Event: reading(), Received: received}
	header := event.AppendNATS(nil, &rec)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := event.FromNATS(header, rec.Event.Data); err != nil {
			b.Fatal(err)
		}
	}
}

func ExampleAppendNATS() {
	rec := event.Record{
		Event: event.Event{ID: "42", Source: "/boxes/17", Type: "com.example.reading", Subject: "box 17",
			Extensions: []event.Attribute{{Name: "priority", Value: int32(3)}}},
		Received: time.Unix(0, 1796042096123456789),
	}
	fmt.Print(strings.ReplaceAll(string(event.AppendNATS(nil, &rec)), "\r\n", "\n"))
	// Output:
	// NATS/1.0
	// ce-specversion: 1.0
	// ce-id: 42
	// ce-source: /boxes/17
	// ce-type: com.example.reading
	// ce-subject: box%2017
	// ce-priority: 3
	// Rialto-Types: priority=i
	// Rialto-Received: 1796042096123456789
}
