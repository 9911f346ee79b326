// SPDX-License-Identifier: Apache-2.0

package rules_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/rules"
)

// reading is an event of about 600 bytes, as a device sends it.
func reading(n int) *event.Event {
	return &event.Event{
		ID: fmt.Sprintf("0198c5f0-0000-7000-8000-%012d", n), Source: "mqtt://rialto/box-17", Type: "com.acme.telemetry",
		Subject: "truck/17/box/2", DataContentType: "application/json",
		Time:       time.Date(2026, 11, 30, 12, 0, 0, n*1000, time.UTC),
		Extensions: []event.Attribute{{Name: "partitionkey", Value: "truck-17"}},
		Data: fmt.Appendf(nil, `{"box":"box-%d","temperature":%d.5,"humidity":61.2,"door":"closed","battery":{"volts":3.71,"percent":88},
"position":{"lat":45.438,"lon":12.3359,"speed":17},"tags":["cold","fragile","pharma"],"firmware":"2.4.1","tenant":"tenant-%d","ip":"10.1.2.3",
"alarms":[{"code":"E17","level":"warn","at":"2026-11-30T11:58:00Z"},{"code":"E02","level":"info","at":"2026-11-30T11:59:00Z"}],"sequence":%d}`,
			n%100, n%20, n%100, n),
	}
}

// threeFields is a set of rules with a type, a list of two tenants and a door each.
func threeFields(tb testing.TB, n int) *rules.Index {
	tb.Helper()
	list := make([]*rules.Rule, n)
	for i := range list {
		doc := fmt.Sprintf(`{"name":"r%d","pattern":{"type":["com.acme.telemetry"],"data":{"tenant":["tenant-%d","tenant-x%d"],"door":["closed"]}},"targets":[{"target":"a"}]}`, i, i, i)
		r, err := rules.ParseRule([]byte(doc))
		if err != nil {
			tb.Fatal(err)
		}
		list[i] = r
	}
	x, err := rules.Compile(list)
	if err != nil {
		tb.Fatal(err)
	}
	return x
}

func BenchmarkTransform(b *testing.B) {
	for _, bm := range []struct{ name, transform string }{
		{"template", `{"template":{"text":"Box ${subject} is at ${data.temperature} C","at":"${time}"}}`},
		{"path", `{"path":"$.data.alarms[*].code"}`},
	} {
		b.Run(bm.name, func(b *testing.B) {
			tr, err := rules.ParseTransform([]byte(bm.transform))
			if err != nil {
				b.Fatal(err)
			}
			ev := reading(1)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := tr.Apply(ev, rules.RenderContext{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// TestMatchAllocatesNothing holds for attributes, payloads, arrays of objects, $or and every operator.
func TestMatchAllocatesNothing(t *testing.T) {
	for _, pattern := range []string{
		`{"type":["com.acme.telemetry"]}`,
		`{"subject":[{"prefix":"truck/"}],"time":[{"suffix":"Z"}],"partitionkey":[{"anything-but":"x"}]}`,
		`{"data":{"tenant":["tenant-1"],"door":["closed"],"temperature":[{"numeric":[">",0,"<",8]}]}}`,
		`{"data":{"alarms":{"code":["E02"],"level":["info"],"cleared":[{"exists":false}]}}}`,
		`{"data":{"alarms":{"cleared":[{"exists":false}]},"none":{"deep":[{"exists":false}]}}}`,
		`{"data":{"$or":[{"door":["open"]},{"tags":[{"wildcard":"*pharm*"}]},{"box":[{"equals-ignore-case":"BOX-1"}]}]}}`,
		`{"data":{"ip":[{"cidr":"10.0.0.0/8"}]}}`,
		`{"data":{"firmware":[{"prefix":{"equals-ignore-case":"2.4"}}],"box":[{"anything-but":{"suffix":["-7","-8"]}}]}}`,
	} {
		r, err := rules.ParseRule([]byte(`{"name":"r","targets":[{"target":"a"}],"pattern":` + pattern + `}`))
		if err != nil {
			t.Fatal(err)
		}
		x, err := rules.Compile([]*rules.Rule{r})
		if err != nil {
			t.Fatal(err)
		}
		ev := reading(1)
		var s rules.Scratch
		dst := make([]rules.Match, 0, 1)
		allocs := testing.AllocsPerRun(100, func() {
			if dst, err = x.Match(ev, &s, dst[:0]); err != nil || len(dst) != 1 {
				t.Fatalf("Match(%s) = %v, %v; want a match", pattern, dst, err)
			}
		})
		if allocs != 0 {
			t.Errorf("Match(%s) allocates %v times; want 0", pattern, allocs)
		}
	}
}
