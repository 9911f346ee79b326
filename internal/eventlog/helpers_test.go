// SPDX-License-Identifier: Apache-2.0

package eventlog_test

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
)

func TestMain(m *testing.M) {
	if runChild() {
		return
	}
	goleak.VerifyTestMain(m,
		// Process-wide clocks and collectors of nats-server and client libraries, without an end.
		goleak.IgnoreAnyFunction("github.com/nats-io/nats-server/v2/server/ats.init.0.func1"),
		goleak.IgnoreAnyFunction("github.com/nats-io/nats-server/v2/server/pse.periodic"),
		goleak.IgnoreAnyFunction("github.com/nats-io/nats-server/v2/server.(*fileStore).cleanupOldMeta"))
}

// testLog collects log lines for the test.
type testWriter struct{ tb testing.TB }

func (w testWriter) Write(p []byte) (int, error) {
	w.tb.Log(string(p[:len(p)-1]))
	return len(p), nil
}

func logger(tb testing.TB) *slog.Logger {
	return slog.New(slog.NewTextHandler(testWriter{tb}, &slog.HandlerOptions{Level: slog.LevelInfo}))
}

// open opens a log that the test closes unless it does so itself.
func open(tb testing.TB, o eventlog.Options) *eventlog.Log {
	tb.Helper()
	if o.ClockTrust == 0 {
		o.ClockTrust = -1
	}
	if o.Reserve == 0 {
		o.Reserve = 1 << 20
	}
	l, err := eventlog.Open(tb.Context(), o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { closeLog(tb, l) })
	return l
}

func closeLog(tb testing.TB, l *eventlog.Log) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := l.Close(ctx); err != nil {
		tb.Error("close:", err)
	}
}

func openBus(tb testing.TB, l *eventlog.Log, name string) *eventlog.Bus {
	tb.Helper()
	b, err := l.Bus(tb.Context(), eventlog.BusConfig{Name: name})
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

func openStream(tb testing.TB, l *eventlog.Log, name string) *eventlog.Stream {
	tb.Helper()
	s, err := l.Stream(tb.Context(), eventlog.StreamConfig{Name: name, Subjects: []string{"t." + name + ".>"}})
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

var base = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

// record is event number n, with an id of its own.
func record(n int) *event.Record {
	return &event.Record{
		Received: base.Add(time.Duration(n) * time.Millisecond),
		Event: event.Event{
			ID: fmt.Sprintf("id-%d", n), Source: fmt.Sprintf("/box/%d", n%7), Type: "com.acme.reading",
			Subject: fmt.Sprintf("box-%d", n), DataContentType: "application/json", Time: base,
			Data: []byte(fmt.Sprintf(`{"n":%d}`, n)),
		},
	}
}

// appendAll appends records and waits for all receipts, which it returns in order.
func appendAll(tb testing.TB, b *eventlog.Bus, recs ...*event.Record) []eventlog.Receipt {
	tb.Helper()
	got := make(chan eventlog.Receipt, len(recs))
	for _, r := range recs {
		if err := b.Append(tb.Context(), r, func(r eventlog.Receipt) { got <- r }); err != nil {
			tb.Fatal(err)
		}
	}
	out := make([]eventlog.Receipt, 0, len(recs))
	for range recs {
		select {
		case r := <-got:
			out = append(out, r)
		case <-tb.Context().Done():
			tb.Fatal("no receipt")
		}
	}
	return out
}

func records(from, to int) []*event.Record {
	var out []*event.Record
	for n := from; n <= to; n++ {
		out = append(out, record(n))
	}
	return out
}

// appendRaw appends n messages with data of a size to a stream and waits for the last.
func appendRaw(tb testing.TB, s *eventlog.Stream, n, size int) []eventlog.Result {
	tb.Helper()
	got := make(chan eventlog.Result, n)
	for i := range n {
		data := make([]byte, size)
		copy(data, fmt.Sprint(i))
		if err := s.Append(tb.Context(), eventlog.Message{Subject: "t." + s.Name() + ".x", Data: data}, func(r eventlog.Result) { got <- r }); err != nil {
			tb.Fatal(err)
		}
	}
	out := make([]eventlog.Result, 0, n)
	for range n {
		out = append(out, <-got)
	}
	return out
}

var kvConfig = &nats.KeyValueConfig{Bucket: "definitions"}

// heap returns the bytes that are in use after a collection.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
