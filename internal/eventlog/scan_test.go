// SPDX-License-Identifier: Apache-2.0

package eventlog_test

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
)

// Scan leaves out what its filters do not match, and nothing else: on disk by the subject, in memory not at all.
func TestScanReadsWhatItsTopicsMatch(t *testing.T) {
	const n, devices = 3000, 10
	for _, c := range []struct {
		name   string
		ring   int64
		topics []string
		want   func(k int) bool // of the events on disk
		looked bool
	}{
		{"one device", 1, []string{"site/7/#"}, func(k int) bool { return k%devices == 7 }, true},
		{"two devices", 1, []string{"site/7/+", "site/3/temperature"}, func(k int) bool { return k%devices == 7 || k%devices == 3 }, true},
		{"nobody", 1, []string{"elsewhere"}, func(int) bool { return false }, true},
		{"all", 1, nil, func(int) bool { return true }, true},
		{"from memory", 1 << 30, []string{"site/7/#"}, func(int) bool { return true }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			bus := openBus(t, open(t, eventlog.Options{Dir: t.TempDir(), Logger: logger(t), RingBytes: c.ring}), "default")
			var want []uint64
			recs := records(1, n)
			for k, rec := range recs {
				if k%devices != 0 { // those come over HTTP
					rec.MQTT = &event.Origin{Topic: fmt.Sprintf("site/%d/temperature", k%devices), QoS: 1}
				}
				if (k%devices != 0 || c.topics == nil || !c.looked) && c.want(k) {
					want = append(want, uint64(k+1))
				}
			}
			appendAll(t, bus, recs...)
			for _, to := range []uint64{0, n / 2} {
				end := uint64(n)
				if to > 0 {
					end = to
				}
				var got []uint64
				bytes := 0
				for next := uint64(1); next <= end; {
					entries, after, looked, err := bus.Scan(t.Context(), eventlog.ScanOptions{From: next, To: to, Max: 77, Topics: c.topics}, nil)
					if err != nil || after <= next || len(entries) > 77 {
						t.Fatalf("%d entries from %d, on from %d, %v", len(entries), next, after, err)
					}
					for _, e := range entries {
						got = append(got, e.Seq)
					}
					next, bytes = after, bytes+looked
				}
				upTo, _ := slices.BinarySearch(want, end+1)
				if !slices.Equal(got, want[:upTo]) {
					t.Errorf("to %d: %d events, want %d", to, len(got), upTo)
				}
				if (bytes > int(end)*100) != c.looked {
					t.Errorf("to %d: %d bytes looked at", to, bytes)
				}
			}
		})
	}
}

// However little matches, a Scan ends after some megabytes, so that its caller can do something else.
func TestScanEndsThoughNothingMatches(t *testing.T) {
	bus := openBus(t, open(t, eventlog.Options{Dir: t.TempDir(), Logger: logger(t), RingBytes: 1}), "default")
	recs := records(1, 100)
	for _, rec := range recs {
		rec.Event.Data, rec.MQTT = make([]byte, 100<<10), &event.Origin{Topic: "a"}
	}
	appendAll(t, bus, recs...)
	entries, next, looked, err := bus.Scan(t.Context(), eventlog.ScanOptions{From: 1, Max: 1000, Topics: []string{"b"}}, nil)
	if err != nil || len(entries) != 0 || next < 40 || next > 45 || looked < 4<<20 {
		t.Errorf("%d entries, on from %d, %d bytes, %v", len(entries), next, looked, err)
	}
}

func FuzzEmptyLine(f *testing.F) {
	for _, s := range []string{"", "\r\n\r\n", "NATS/1.0\r\na: b\r\n\r\n", "\n\r\n\r\n", "a\n\r\n", "a\r\n\r", "\r\r\n\r\n\r\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, header []byte) {
		if got, want := eventlog.EmptyLine(header), bytes.Index(header, []byte("\r\n\r\n")); got != want {
			t.Errorf("%q: %d, want %d", header, got, want)
		}
	})
}
