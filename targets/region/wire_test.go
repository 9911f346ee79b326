// SPDX-License-Identifier: Apache-2.0

package region

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/rialto-bridge/rialto/internal/event"
)

// forwarded are events as they stand in a log.
func forwarded() []Forwarded {
	return []Forwarded{
		{Seq: 5, Record: &event.Record{Event: event.Event{ID: "1", Source: "/s", Type: "t"}, Received: time.Unix(1, 2).UTC(), Minted: true}},
		{Seq: 7, Record: &event.Record{Event: event.Event{ID: "2", Source: "/s", Type: "t", Data: []byte{}, Extensions: []event.Attribute{{Name: "n", Value: int32(5)}, {Name: "x", Value: "ü %"}}}}},
		{Seq: 300, Record: &event.Record{Event: event.Event{ID: "3", Source: "/s", Type: "t", DataContentType: "text/plain", Data: []byte(strings.Repeat("data ", 1000))},
			MQTT: &event.Origin{Topic: "a/b", Version: 5, QoS: 1, Properties: []byte{1, 1}},
			Hops: []event.Hop{{Instance: "b", Position: event.Position{Stream: "EV_x", Seq: 9}}}}},
	}
}

func encode(l Lane, from, to uint64, events []Forwarded) []byte {
	var w batchWriter
	w.begin(l, from)
	for _, f := range events {
		w.add(f.Seq, f.Record)
	}
	return bytes.Clone(w.end(to))
}

func TestBatchComesBackAsItWas(t *testing.T) {
	for _, want := range []Batch{
		{Main, 5, 300, forwarded()},
		{Urgent, 1, 1 << 40, forwarded()},
		{Main, 1, 9, nil},
		{Main, 4096, 4096, []Forwarded{{Seq: 4096, Record: &event.Record{Event: event.Event{ID: strings.Repeat("i", 1000), Source: "/s", Type: "t", Data: make([]byte, 70_000)}}}}},
	} {
		got, err := parseBatch(encode(want.Lane, want.From, want.To, want.Events), event.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		// Byte by byte a megabyte takes seconds.
		if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b []byte) bool { return bytes.Equal(a, b) && (a == nil) == (b == nil) })); diff != "" {
			t.Errorf("a batch differs (-sent +read):\n%s", diff)
		}
	}
}

func TestBatchIsRefused(t *testing.T) {
	good := encode(Main, 5, 300, forwarded())
	for n := range good {
		if b, err := parseBatch(good[:n], event.Limits{}); err == nil {
			t.Errorf("the first %d of %d bytes are read as %+v", n, len(good), b)
		}
	}
	invalid := []Forwarded{{Seq: 1, Record: &event.Record{Event: event.Event{ID: "1", Source: "/s", Type: "t", Data: make([]byte, 100)}}}}
	for name, msg := range map[string][]byte{
		"lane":       append([]byte{2}, good[1:]...),
		"from 0":     encode(Main, 0, 300, nil),
		"to < from":  encode(Main, 9, 8, nil),
		"behind to":  encode(Main, 5, 299, forwarded()),
		"same twice": encode(Main, 5, 300, []Forwarded{forwarded()[0], forwarded()[0]}),
		"more":       append(bytes.Clone(encode(Main, 1, 2, nil)), 0),
	} {
		if b, err := parseBatch(msg, event.Limits{MaxData: 99}); err == nil {
			t.Errorf("%s: read as %+v", name, b)
		}
	}
	if b, err := parseBatch(encode(Main, 1, 2, invalid), event.Limits{MaxData: 99}); err != nil || b.Events[0].Unfit == nil {
		t.Errorf("an event that is too large here: %+v, %v, want it marked", b, err)
	}
	bomb := append([]byte{0, 1, 1, 1}, encoder().EncodeAll(make([]byte, maxBatchBytes+1<<20), nil)...)
	if _, err := parseBatch(bomb, event.Limits{}); err == nil || !strings.Contains(err.Error(), "decompress") {
		t.Errorf("a batch of more than %d bytes: %v", maxBatchBytes, err)
	}
}

func FuzzBatch(f *testing.F) {
	f.Add(encode(Main, 5, 300, forwarded()))
	f.Add(encode(Urgent, 1, 9, nil))
	f.Fuzz(func(t *testing.T, msg []byte) {
		b, err := parseBatch(msg, event.Limits{})
		if err != nil {
			return
		}
		again, err := parseBatch(encode(b.Lane, b.From, b.To, b.Events), event.Limits{})
		if err != nil {
			t.Fatalf("what was read cannot be written: %v", err)
		}
		if diff := cmp.Diff(b, again, cmpopts.IgnoreFields(Forwarded{}, "Unfit")); diff != "" {
			t.Fatal(diff)
		}
	})
}

func BenchmarkBatch(b *testing.B) {
	var events []Forwarded
	for i := range 512 {
		events = append(events, Forwarded{Seq: uint64(i + 1), Record: &event.Record{Received: time.Now(), Event: event.Event{ID: event.NewID(), Source: "/boxes/17", Type: "com.example.reading", Time: time.Now(),
			DataContentType: "application/json", Data: []byte(`{"celsius":9.1,"pad":"` + strings.Repeat("x", 230) + `"}`)}}})
	}
	msg := encode(Main, 1, 512, events)
	b.ReportMetric(float64(len(msg))/512, "wire-B/event")
	b.Run("write", func(b *testing.B) {
		var w batchWriter
		for b.Loop() {
			w.begin(Main, 1)
			for _, f := range events {
				w.add(f.Seq, f.Record)
			}
			w.end(512)
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/512, "ns/event")
	})
	b.Run("read", func(b *testing.B) {
		for b.Loop() {
			if _, err := parseBatch(msg, event.Limits{}); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/512, "ns/event")
	})
}
