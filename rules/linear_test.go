// SPDX-License-Identifier: Apache-2.0

//go:build !race

package rules_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/rules"
)

// TestGateLinear gives matching what makes it slow, in two sizes of event, and holds that eight times the event takes
// no more than about eight times the time, with events of a quarter of a megabyte and of two.
func TestGateLinear(t *testing.T) {
	repeat := func(n int, one string) string { return strings.TrimSuffix(strings.Repeat(one+",", n), ",") }
	each := func(n int, f func(i int) string) string {
		var b strings.Builder
		for i := range n {
			if i > 0 {
				b.WriteByte(',')
			}
			b.WriteString(f(i))
		}
		return b.String()
	}
	for _, tt := range []struct {
		name     string
		patterns []string
		event    func(size int) string // of about so many bytes
	}{
		{"stars", []string{`{"w":[{"wildcard":"` + strings.Repeat("*a", 200) + `*b*"}]}`, `{"w":[{"wildcard":"*ab*ba*ab*ba*c"}]}`, `{"w":[{"wildcard":"*aaaaaaab*"}]}`},
			func(n int) string { return `{"w":"` + strings.Repeat("a", n) + `"}` }},
		{"stars over many values", []string{`{"w":[{"wildcard":"*a*a*a*b"}]}`},
			func(n int) string { return `{"w":[` + repeat(n/12, `"aaaaaaaaa"`) + `]}` }},
		{"one gram again and again", many(500, func(i int) string { return fmt.Sprintf(`{"w":[{"wildcard":"*aaaaaaaa*%d"}]}`, i) }),
			func(n int) string { return `{"w":[` + repeat(n/103, `"`+strings.Repeat("a", 100)+`"`) + `]}` }},
		{"nested prefixes", many(300, func(i int) string { return `{"w":[{"prefix":"` + strings.Repeat("a", i+1) + `"}],"x":[1]}` }),
			func(n int) string { return `{"w":[` + repeat(n/303, `"`+strings.Repeat("a", 300)+`"`) + `]}` }},
		{"a list of one value", many(100, func(i int) string { return fmt.Sprintf(`{"w":["a"],"x":[%d]}`, i) }),
			func(n int) string { return `{"w":[` + repeat(n/4, `"a"`) + `]}` }},
		{"overlapping ranges", many(60, func(i int) string { return fmt.Sprintf(`{"w":[{"numeric":[">",-%d,"<",%d]}],"x":[1]}`, i+1, i+1) }),
			func(n int) string { return `{"w":[` + repeat(n/2, `0`) + `]}` }},
		{"array of objects", []string{`{"r":{"k":["x"],"v":[1]}}`, `{"r":{"k":["x"],"v":[{"exists":false}],"w":["z"]}}`},
			func(n int) string { return `{"r":[` + repeat(n/20, `{"k":"x","v":2}`) + `]}` }},
		{"arrays in arrays", []string{`{"a":{"b":{"c":{"x":[1],"y":[1]}}}}`},
			func(n int) string {
				return `{"a":[` + repeat(n/260, `{"b":[`+repeat(3, `{"c":[{"x":1},{"y":1},[{"x":1,"z":[1,2]}],{"y":[1],"x":2}]}`)+`]}`) + `]}`
			}},
		{"deep arrays", []string{`{"a":{"x":[1],"y":[1]}}`},
			func(n int) string {
				return `{"a":[` + repeat(n/2000, strings.Repeat("[", 900)+`{"x":1},{"y":1}`+strings.Repeat("]", 900)) + `]}`
			}},
		{"independent arrays", []string{`{` + each(12, func(i int) string { return fmt.Sprintf(`"a%d":{"k":["x"],"n":[0]}`, i) }) + `,"z":{"x":[1],"y":[1]}}`},
			func(n int) string {
				return `{` + each(12, func(i int) string { return fmt.Sprintf(`"a%d":[%s]`, i, repeat(n/240, `{"k":"x","n":0}`)) }) + `,"z":[{"x":1},{"y":1}]}`
			}},
		{"repeated names", []string{`{"r":{` + each(16, func(i int) string { return fmt.Sprintf(`"f%d":[1]`, i) }) + `}}`},
			func(n int) string {
				return `{` + each(n/30, func(i int) string { return fmt.Sprintf(`"r":[{"f%d":1},{"f%d":1}]`, i%16, (i+1)%16) }) + `}`
			}},
		{"names with dots", []string{`{"a":{"b":{"c":[1],"d":[1]}}}`},
			func(n int) string {
				return `{` + each(n/12, func(i int) string { return `"a.b.c":1` }) + `,"a.b":[{"d":1}]}`
			}},
		{"branches over an array", []string{`{"r":{"$or":[{"a":[1],"b":[1]},{"c":[1],"d":[1]},{"e":[1],"f":[1]}]}}`},
			func(n int) string {
				return `{"r":[` + repeat(n/40, `{"a":1,"c":1,"e":1},{"b":1,"d":1}`) + `]}`
			}},
		{"long numbers", []string{`{"n":[{"numeric":[">",1e300]}]}`, `{"n":[5]}`},
			func(n int) string { return `{"n":0.` + strings.Repeat("0", n) + `1}` }},
		{"escapes", []string{`{"w":["x"]}`, `{"w":[{"equals-ignore-case":"x"}]}`},
			func(n int) string { return `{"w":"` + strings.Repeat(`\u00e9\n`, n/8) + `"}` }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var list []*rules.Rule
			for i, p := range tt.patterns {
				list = append(list, &rules.Rule{Name: fmt.Sprintf("r%d", i), Pattern: mustPattern(t, `{"data":`+p+`}`)})
			}
			x, err := rules.Compile(list)
			if err != nil {
				t.Fatal(err)
			}
			var s rules.Scratch
			measure := func(size int) time.Duration {
				ev := &event.Event{ID: "1", Source: "/s", Type: "t", DataContentType: "application/json", Data: []byte(tt.event(size))}
				best := time.Hour
				for range 3 {
					start := cpu(t)
					if _, err := x.Match(ev, &s, nil); err != nil {
						t.Fatal(err)
					}
					best = min(best, cpu(t)-start)
				}
				return best
			}
			small, large := measure(1<<18), measure(1<<21)
			t.Logf("256 KiB in %v, 2 MiB in %v", small, large)
			// A quadratic step would take 64 times as long. What takes next to no time is not worth comparing.
			if large > 30*small && large > 50*time.Millisecond || large > 10*time.Second {
				t.Errorf("256 KiB take %v and 2 MiB take %v", small, large)
			}
		})
	}
}

// TestGatePatternCheck gives the checker the worst that fits in a pattern: what refuses costly patterns must not be costly.
func TestGatePatternCheck(t *testing.T) {
	leaves := func(n int) string {
		list := make([]string, n)
		for i := range list {
			list[i] = fmt.Sprintf(`"f%d":[1]`, i)
		}
		return strings.Join(list, ",")
	}
	ors := strings.Join(many(300, func(i int) string { return fmt.Sprintf(`"g%d":{"$or":[{"a":[1]},{"b":[1]},{"c":[1]}]}`, i) }), ",")
	deepOr := `{"z":[1]}`
	for range 400 {
		deepOr = `{"$or":[` + deepOr + `,{"b":[1],"c":[2]}]}`
	}
	for _, tt := range []struct{ name, pattern string }{
		{"a long path to many fields", `{"` + strings.Repeat("a.", 900) + `a":{` + leaves(2500) + `}}`},
		{"a path that is too long, to many fields", `{"` + strings.Repeat("a.", 8000) + `a":{` + leaves(1200) + `}}`},
		{"a deep path to many fields", strings.Repeat(`{"abcdefghij":`, 900) + `{` + leaves(1500) + `}` + strings.Repeat(`}`, 900)},
		{"many $or", `{` + ors + `}`},
		{"deep $or", deepOr},
		{"a long list", `{"a":[` + strings.Repeat(`"x",`, 8000) + `"x"]}`},
		{"stars", `{"a":[{"wildcard":"` + strings.Repeat("*a", 16000) + `"}]}`},
		{"objects alone", strings.Repeat(`{"a":`, 6000)},
	} {
		start := cpu(t)
		p, err := rules.ParsePattern([]byte(tt.pattern))
		if took := cpu(t) - start; took > 500*time.Millisecond {
			t.Errorf("%s: %v", tt.name, took)
		}
		if err == nil {
			start = cpu(t)
			if _, err := rules.Compile([]*rules.Rule{{Pattern: p}}); err != nil {
				t.Fatal(err)
			}
			if took := cpu(t) - start; took > 500*time.Millisecond {
				t.Errorf("%s, compiled: %v", tt.name, took)
			}
		}
	}
}

// many makes n patterns.
func many(n int, f func(i int) string) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = f(i)
	}
	return list
}
