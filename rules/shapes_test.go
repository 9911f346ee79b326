// SPDX-License-Identifier: Apache-2.0

package rules_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/rules"
)

// shape is a kind of rule that people have many of.
type shape struct {
	name    string
	pattern func(i int) string // of rule i
}

// keySpace is how many different values a field has in the events of the benchmarks; a rule names one of them.
const keySpace = 100_000

func key(i int) int { return (i*7919 + i/keySpace) % keySpace }

// word is one of keySpace words.
func word(i int) string {
	const syllables = "bacadafagahakalamanaparasatavaxazabecedefegehekelemeneperesetevexezebicidifigihikiliminipirisitivixizi"
	out := make([]byte, 0, 10)
	for range 3 {
		at := i % 50 * 2
		out = append(out, syllables[at], syllables[at+1])
		i /= 50
	}
	return string(append(out, "lmnrst"[i%6]))
}

var shapes = []shape{
	{"exact1", func(i int) string { return fmt.Sprintf(`{"data":{"device":["device-%05d"]}}`, key(i)) }},
	{"exact3", func(i int) string {
		return fmt.Sprintf(`{"type":["com.acme.telemetry"],"data":{"device":["device-%05d","device-%05d"],"door":[%q]}}`, key(i), key(i+7), [...]string{"open", "closed", "ajar"}[i%3])
	}},
	{"mixed", func(i int) string {
		switch {
		case i%10 < 6:
			return fmt.Sprintf(`{"type":["com.acme.telemetry"],"data":{"device":["device-%05d"]}}`, key(i))
		case i%10 == 6:
			return fmt.Sprintf(`{"type":[{"prefix":"com.acme."}],"data":{"path":[{"prefix":"/var/%s/"}]}}`, word(key(i)))
		case i%10 == 7:
			return fmt.Sprintf(`{"data":{"user":["user-%05d"],"state":[{"anything-but":["test","draft"]}]}}`, key(i))
		case i%10 == 8:
			return fmt.Sprintf(`{"source":[{"prefix":"mqtt://"}],"data":{"user":["user-%05d"],"door":["closed"]}}`, key(i))
		}
		return fmt.Sprintf(`{"type":["com.acme.telemetry"],"data":{"door":["closed"],"sequence":[%d]}}`, key(i))
	}},
	{"prefix", func(i int) string { return fmt.Sprintf(`{"data":{"path":[{"prefix":"/var/%s/"}]}}`, word(key(i))) }},
	{"tenant-but", func(i int) string {
		return fmt.Sprintf(`{"data":{"user":["user-%05d"],"state":[{"anything-but":["test","draft","%d"]}]}}`, key(i), i%50)
	}},
	{"ignore-case", func(i int) string {
		return fmt.Sprintf(`{"data":{"user":[{"equals-ignore-case":"USER-%05d"}]}}`, key(i))
	}},
	{"number", func(i int) string { return fmt.Sprintf(`{"data":{"sequence":[%d]}}`, key(i)) }},
	{"range", func(i int) string {
		return fmt.Sprintf(`{"data":{"sequence":[{"numeric":[">=",%d,"<",%d]}]}}`, key(i), key(i)+1+i%2)
	}},
	{"suffix", func(i int) string { return fmt.Sprintf(`{"data":{"path":[{"suffix":"-%05d.jar"}]}}`, key(i)) }},
	{"cidr", func(i int) string {
		k := key(i)
		return fmt.Sprintf(`{"data":{"ip":[{"cidr":"10.%d.%d.%d/%d"}]}}`, k>>13&15, k>>5&255, k<<3&255, 29+k%3)
	}},
	{"wildcard", func(i int) string {
		return fmt.Sprintf(`{"data":{"path":[{"wildcard":"/var/%s/*.jar"}]}}`, word(key(i)))
	}},
	{"infix", func(i int) string { return fmt.Sprintf(`{"data":{"path":[{"wildcard":"*%s*"}]}}`, word(key(i))) }},
}

// rules makes n rules of a shape.
func (s shape) rules(tb testing.TB, n int) []*rules.Rule {
	tb.Helper()
	list := make([]*rules.Rule, n)
	for i := range list {
		p, err := rules.ParsePattern([]byte(s.pattern(i)))
		if err != nil {
			tb.Fatal(err)
		}
		list[i] = &rules.Rule{Name: fmt.Sprintf("rule-%d", i), Bus: "default", Pattern: p}
	}
	return list
}

func (s shape) index(tb testing.TB, n int) *rules.Index {
	tb.Helper()
	x, err := rules.Compile(s.rules(tb, n))
	if err != nil {
		tb.Fatal(err)
	}
	return x
}

// shapeEvents are CloudEvents of about 600 bytes in JSON form.
func shapeEvents(n int) []*event.Event {
	r := rand.New(rand.NewPCG(1, 1))
	events := make([]*event.Event, n)
	for i := range events {
		k := func() int { return r.IntN(keySpace) }
		ip := k()
		events[i] = &event.Event{
			ID: fmt.Sprintf("0198c5f0-0000-7000-8000-%012d", i), Source: fmt.Sprintf("mqtt://rialto/box-%d", i%50), Type: "com.acme.telemetry",
			Subject: "truck/17/box/2", DataContentType: "application/json", Time: time.Date(2026, 11, 29, 12, 0, 0, i*1000, time.UTC),
			Data: fmt.Appendf(nil, `{"device":"device-%05d","sequence":%d,"door":%q,"state":"running","user":"user-%05d","temperature":%d.5,"humidity":61.2,`+
				`"path":"/var/%s/lib/%s-%05d.jar","ip":"10.%d.%d.%d","battery":{"volts":3.71,"percent":88},"position":{"lat":45.438,"lon":12.3359,"speed":17},`+
				`"tags":["cold","fragile"],"firmware":"2.4.1","note":"measured every minute, reported every hour"}`,
				k(), k(), [...]string{"open", "closed", "ajar"}[i%3], k(), i%20, word(k()), word(k()), k(), ip>>13&15, ip>>5&255, ip<<3&255),
		}
	}
	return events
}

// cpu is the processor time that the process has taken.
func cpu(tb testing.TB) time.Duration {
	tb.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkMatch counts events by processor seconds, the collector's included, which other load disturbs less than
// seconds of the clock.
func BenchmarkMatch(b *testing.B) {
	events := shapeEvents(4096)
	for _, s := range shapes {
		for _, n := range []int{1, 100, 10_000, 100_000} {
			b.Run(fmt.Sprintf("%s/%d", s.name, n), func(b *testing.B) {
				x := s.index(b, n)
				var scratch rules.Scratch
				dst := make([]rules.Match, 0, 64)
				for _, ev := range events { // lets the scratch grow
					if _, err := x.Match(ev, &scratch, dst[:0]); err != nil {
						b.Fatal(err)
					}
				}
				runtime.GC()
				matched := 0
				b.ReportAllocs()
				start := cpu(b)
				for i := 0; b.Loop(); i++ {
					found, err := x.Match(events[i%len(events)], &scratch, dst[:0])
					if err != nil {
						b.Fatal(err)
					}
					matched += len(found)
				}
				b.ReportMetric(float64(b.N)/(cpu(b)-start).Seconds(), "ev/cpu-s")
				b.ReportMetric(float64(matched)/float64(b.N), "matches/ev")
				b.ReportMetric(0, "ns/op")
				runtime.KeepAlive(x)
			})
		}
	}
}

// BenchmarkCompile is what it takes to index 100,000 mixed rules, and what one change among them takes.
func BenchmarkCompile(b *testing.B) {
	for _, s := range shapes {
		b.Run(s.name, func(b *testing.B) {
			list := s.rules(b, 100_000)
			b.ReportAllocs()
			start := cpu(b)
			for b.Loop() {
				if _, err := rules.Compile(list); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric((cpu(b)-start).Seconds()/float64(b.N), "cpu-s/op")
		})
	}
}
