// SPDX-License-Identifier: Apache-2.0

package rules_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/rules"
)

// The tests here hold the index to the evaluator, and Explain to both, on random rules and events. They are made of few
// names and values, so that they meet often, and of all that is difficult: arrays of objects in arrays, names that are
// repeated or have dots, numbers of any size and spelling, text beyond ASCII, escapes, deep nesting.

// chooser draws the choices that a pair is made of: from a seed, or from the bytes of a fuzzer.
type chooser interface{ IntN(n int) int }

// bytesChooser takes its choices from bytes; at their end it always takes the first.
type bytesChooser struct{ b []byte }

func (c *bytesChooser) IntN(n int) int {
	if len(c.b) == 0 {
		return 0
	}
	x := int(c.b[0])
	c.b = c.b[1:]
	return x % n
}

// maker makes patterns and events.
type maker struct{ chooser }

func (m maker) one(list ...string) string { return list[m.IntN(len(list))] }

var (
	makerNames   = []string{"a", "b", "c", "a.b", "b.c", "é", "", "long-name-of-a-field"}
	makerStrings = []string{"", "a", "ab", "abc", "ABC", "abcabc", "b", "x/y/z.jar", "/var/abc/z.jar", "ÀÉ", "àé", "straße", "ſ", "S", "😀", "*", `q"\`,
		"10.0.0.1", "10.1.2.3", "192.168.1.255", "::1", "2001:db8::1", "::ffff:10.0.0.1", "1", "true", "null", "5", "K", "k", "\u212a"}
	makerNumbers = []string{"0", "-0", "1", "1.0", "10e-1", "5", "5e0", "0.5E1", "-3", "-3.5", "100", "1e2", "1e400", "10e399", "1e-400", "9007199254740992", "9007199254740993",
		"123456789012345678", "123456789012345679", "123456789012345678.1", "0.1", "0.10000000000000000001", "1e5000", "-1e5000", "1e-5000"}
	makerBlocks = []string{"10.0.0.0/8", "10.0.0.1/32", "10.1.0.0/16", "0.0.0.0/0", "192.168.1.0/24", "::/0", "2001:db8::/32", "::1/128", "::ffff:0:0/96"}
)

func (m maker) name() string {
	if m.IntN(4) > 0 {
		return makerNames[m.IntN(3)]
	}
	return m.one(makerNames...)
}

func (m maker) string() string { return m.one(makerStrings...) }

// quote writes s as JSON, sometimes with escapes that need not be there.
func (m maker) quote(s string) string {
	if m.IntN(8) == 0 {
		var b strings.Builder
		for _, r := range s {
			if r > 0xffff {
				fmt.Fprintf(&b, `\u%04x\u%04x`, 0xd800+(r-0x10000)>>10, 0xdc00+(r-0x10000)&0x3ff)
			} else {
				fmt.Fprintf(&b, `\u%04X`, r)
			}
		}
		return `"` + b.String() + `"`
	}
	b, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	return string(b)
}

func (m maker) literal() string {
	switch m.IntN(8) {
	case 0, 1, 2:
		return m.one(makerNumbers...)
	case 3:
		return m.one("true", "false", "null")
	}
	return m.quote(m.string())
}

func (m maker) wildcard() string {
	return m.one("*", "a*", "*b", "*b*", "a*c", "*abc*", "/var/*/*.jar", "*.jar", "*a*b*", "abc", "*é", "*/y/*", "", `\*`, `*\\*`, "*var*abc*z*", "*/var/abc*", "*cabc*")
}

// entry is one entry of a list of values.
func (m maker) entry() string {
	switch m.IntN(20) {
	case 0:
		return `{"prefix":` + m.quote(m.string()) + `}`
	case 1:
		return `{"suffix":` + m.quote(m.string()) + `}`
	case 2:
		return `{"prefix":{"equals-ignore-case":` + m.quote(m.string()) + `}}`
	case 3:
		return `{"suffix":{"equals-ignore-case":` + m.quote(m.string()) + `}}`
	case 4:
		return `{"equals-ignore-case":` + m.quote(m.string()) + `}`
	case 5:
		return `{"wildcard":` + m.quote(m.wildcard()) + `}`
	case 6:
		return `{"numeric":[` + m.quote(m.one("=", "<", "<=", ">", ">=")) + `,` + m.one(makerNumbers...) + `]}`
	case 7:
		return `{"numeric":[` + m.quote(m.one(">", ">=")) + `,` + m.one(makerNumbers...) + `,` + m.quote(m.one("<", "<=")) + `,` + m.one(makerNumbers...) + `]}`
	case 8:
		return `{"cidr":"` + m.one(makerBlocks...) + `"}`
	case 9:
		return `{"exists":true}`
	case 10, 11:
		return `{"exists":false}`
	case 12:
		return `{"anything-but":` + m.one(m.quote(m.string()), m.one(makerNumbers...)) + `}`
	case 13:
		return `{"anything-but":[` + m.quote(m.string()) + `,` + m.quote(m.string()) + `]}`
	case 14:
		return `{"anything-but":{"` + m.one("prefix", "suffix", "equals-ignore-case") + `":[` + m.quote(m.string()) + `]}}`
	case 15:
		return `{"anything-but":{"wildcard":` + m.quote(m.wildcard()) + `}}`
	}
	return m.literal()
}

func (m maker) list() string {
	entries := []string{m.entry()}
	for m.IntN(3) == 0 && len(entries) < 8 {
		entries = append(entries, m.entry())
	}
	return "[" + strings.Join(entries, ",") + "]"
}

// pattern is an object of a pattern. It may be none, when a path is there twice.
func (m maker) pattern(depth int) string {
	var members []string
	for range 1 + m.IntN(3) {
		switch k := m.IntN(8); {
		case k == 0 && depth > 0:
			branches := []string{m.pattern(depth - 1), m.pattern(depth - 1)}
			if m.IntN(3) == 0 {
				branches = append(branches, m.pattern(depth-1))
			}
			members = append(members, `"$or":[`+strings.Join(branches, ",")+`]`)
		case k < 4 && depth > 0:
			members = append(members, m.quote(m.name())+":"+m.pattern(depth-1))
		default:
			members = append(members, m.quote(m.name())+":"+m.list())
		}
	}
	return "{" + strings.Join(members, ",") + "}"
}

func (m maker) object(depth int) string {
	var members []string
	for range m.IntN(5) {
		members = append(members, m.space()+m.quote(m.name())+m.space()+":"+m.space()+m.value(depth-1))
	}
	return "{" + strings.Join(members, ",") + m.space() + "}"
}

func (m maker) space() string {
	if m.IntN(6) == 0 {
		return m.one(" ", "\n\t", "\r\n  ")
	}
	return ""
}

func (m maker) value(depth int) string {
	switch k := m.IntN(9); {
	case depth > 0 && k < 3:
		return m.object(depth)
	case depth > 0 && k < 6:
		var elements []string
		for range m.IntN(4) {
			if m.IntN(2) == 0 {
				elements = append(elements, m.space()+m.object(depth-1))
			} else {
				elements = append(elements, m.value(depth-1))
			}
		}
		return "[" + strings.Join(elements, m.space()+",") + m.space() + "]"
	}
	return m.literal()
}

// document is the text of an event's data; now and then it is not JSON.
func (m maker) document() string {
	text := m.space() + m.object(4) + m.space()
	switch m.IntN(40) {
	case 0:
		at := m.IntN(len(text))
		text = text[:at] + m.one(",", "}", "]", `"`, `\`, "0", "\x01", "\xff", "e", ".", "") + text[min(len(text), at+m.IntN(2)):]
	case 1:
		text = m.value(3)
	case 2:
		depth := m.one("10", "998", "999", "1000", "1001")
		n, _ := strconv.Atoi(depth)
		text = `{"x":` + strings.Repeat(`[`, n-1) + strings.Repeat(`]`, n-1) + `,"a":` + m.value(2) + `}`
	}
	return text
}

// rule makes a rule for events, from a pattern that is one; nil after a number of tries.
func (m maker) rule(name string) *rules.Rule {
	for range 20 {
		text := m.pattern(3)
		switch m.IntN(4) {
		case 0:
			text = `{"type":` + m.list() + `,"data":` + text + `}`
		case 1:
			text = `{"$or":[{"subject":` + m.list() + `},{"data":` + text + `}]}`
		default:
			text = `{"data":` + text + `}`
		}
		if p, err := rules.ParsePattern([]byte(text)); err == nil {
			return &rules.Rule{Name: name, Bus: "b", Pattern: p, Disabled: m.IntN(30) == 0}
		}
	}
	return nil
}

func (m maker) event() *event.Event {
	ev := &event.Event{ID: "1", Source: "/s", Type: m.string(), Subject: m.string(), DataContentType: "application/json", Data: []byte(m.document())}
	if m.IntN(10) == 0 {
		ev.DataContentType = m.one("", "text/plain", "application/cloudevents+json; charset=utf-8")
	}
	if m.IntN(20) == 0 {
		ev.Data = nil
	}
	if m.IntN(3) == 0 {
		ev.Extensions = []event.Attribute{{Name: "a", Value: int32(m.IntN(9))}, {Name: "b", Value: m.IntN(2) == 0}, {Name: "c", Value: m.string()}}
	}
	if m.IntN(3) == 0 {
		ev.Time = time.Unix(int64(m.IntN(1e9)), 0).UTC()
	}
	return ev
}

func namesOf(list []*rules.Rule) string {
	var names []string
	for _, r := range list {
		names = append(names, r.Name)
	}
	return strings.Join(names, " ")
}

func namesOfMatches(matches []rules.Match) string {
	var names []string
	for _, m := range matches {
		names = append(names, m.Rule.Name)
	}
	return strings.Join(names, " ")
}

// disagreement describes a pair on which the index and the evaluator differ.
func disagreement(list []*rules.Rule, ev *event.Event, got, want string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Match = %q, the evaluator says %q\ntype %q subject %q %s\ndata %s\n", got, want, ev.Type, ev.Subject, ev.DataContentType, ev.Data)
	for _, r := range list {
		if slices.Contains(strings.Fields(got), r.Name) != slices.Contains(strings.Fields(want), r.Name) {
			fmt.Fprintf(&b, "%s: %s\n", r.Name, r.Pattern)
		}
	}
	return b.String()
}

// checkAgreement compares Match, MatchDocument and Explain of some rules with the evaluator.
func checkAgreement(t *testing.T, x *rules.Index, ev *event.Event, s *rules.Scratch, explain bool) {
	t.Helper()
	got, err := x.Match(ev, s, nil)
	if err != nil {
		t.Fatal(err)
	}
	list := x.Rules()
	want := rules.Direct(list, ev)
	if namesOfMatches(got) != namesOf(want) {
		t.Fatal(disagreement(list, ev, namesOfMatches(got), namesOf(want)))
	}
	document := fmt.Sprintf(`{"type":"x","subject":"a","data":%s}`, ev.Data)
	gotDocument, err := x.MatchDocument([]byte(document), s, nil)
	wantDocument, wantErr := rules.DirectDocument(list, []byte(document))
	if (err == nil) != (wantErr == nil) || namesOfMatches(gotDocument) != namesOf(wantDocument) {
		t.Fatalf("MatchDocument = %q, %v; the evaluator says %q, %v\n%s", namesOfMatches(gotDocument), err, namesOf(wantDocument), wantErr,
			disagreement(list, ev, namesOfMatches(gotDocument), namesOf(wantDocument)))
	}
	if !explain {
		return
	}
	for _, r := range list {
		why := r.Explain(ev)
		failed := slices.ContainsFunc(why.Clauses, func(c rules.Clause) bool { return c.Verdict == rules.Failed })
		matched := slices.Contains(want, r) || r.Disabled && len(rules.Direct([]*rules.Rule{{Pattern: r.Pattern}}, ev)) == 1
		if why.Matched != matched || matched && failed || !matched && !failed && why.Note == "" {
			t.Fatalf("Explain = %+v, the evaluator says %t\npattern %s\ndata %s", why, matched, r.Pattern, ev.Data)
		}
	}
}

// pairs is RIALTO_PAIRS, or n.
func pairs(t *testing.T, n int) int {
	t.Helper()
	text := os.Getenv("RIALTO_PAIRS")
	if text == "" {
		return n
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestIndexAgrees compares the index with the evaluator on the same 200,000 random pairs of a rule and an event each
// time, or as many as RIALTO_PAIRS says. A gate does so with many more, which are others each time.
func TestIndexAgrees(t *testing.T) { agreeOn(t, pairs(t, 200_000), 0) }

// agreeOn compares the index with the evaluator on so many pairs.
func agreeOn(t *testing.T, pairs int, seed uint64) {
	t.Helper()
	matched, total := 0, 0
	var s rules.Scratch
	for total < pairs {
		seed++
		m := maker{rand.New(rand.NewPCG(seed, 7))}
		var list []*rules.Rule
		for i := range 1 + m.IntN(60) {
			if r := m.rule(fmt.Sprintf("r%d", i)); r != nil {
				list = append(list, r)
			}
		}
		x, err := rules.Compile(list)
		if err != nil {
			t.Fatal(err)
		}
		for range 40 {
			ev := m.event()
			checkAgreement(t, x, ev, &s, m.IntN(40) == 0)
			found, err := x.Match(ev, &s, nil)
			if err != nil {
				t.Fatal(err)
			}
			matched += len(found)
			total += len(list)
		}
	}
	if matched < total/100 {
		t.Errorf("%d matches of %d pairs: the rules and events meet too seldom", matched, total)
	}
}

// TestIndexAgreesAfterChanges compares an index that has grown and shrunk with one compiled of the same rules.
func TestIndexAgreesAfterChanges(t *testing.T) {
	m := maker{rand.New(rand.NewPCG(3, 4))}
	x, err := rules.Compile(nil)
	if err != nil {
		t.Fatal(err)
	}
	var want []*rules.Rule
	var s rules.Scratch
	next := 0
	for step := range 400 {
		var add []*rules.Rule
		var remove []string
		for range m.IntN(12) {
			next++
			if r := m.rule(fmt.Sprintf("r%d", next)); r != nil {
				add = append(add, r)
			}
		}
		if len(want) > 0 && m.IntN(3) == 0 {
			name := want[m.IntN(len(want))].Name // to be replaced
			if r := m.rule(name); r != nil {
				add = append(add, r)
			}
		}
		for range m.IntN(3) + step/250*6 {
			if len(want) == 0 {
				break
			}
			name := want[m.IntN(len(want))].Name
			if !slices.ContainsFunc(add, func(r *rules.Rule) bool { return r.Name == name }) {
				remove = append(remove, name)
			}
		}
		before := namesOf(x.Rules())
		y, err := x.With(add, append(remove, "no-such-rule"))
		if err != nil {
			t.Fatal(err)
		}
		if namesOf(x.Rules()) != before {
			t.Fatal("With has changed its receiver")
		}
		x = y
		want = slices.DeleteFunc(slices.Clone(want), func(r *rules.Rule) bool { return slices.Contains(remove, r.Name) })
		for _, r := range add {
			if i := slices.IndexFunc(want, func(old *rules.Rule) bool { return old.Name == r.Name }); i >= 0 {
				want[i] = r
			} else {
				want = append(want, r)
			}
		}
		if !slices.Equal(x.Rules(), want) {
			t.Fatalf("step %d: Rules() = %s, want %s", step, namesOf(x.Rules()), namesOf(want))
		}
		for range 3 {
			checkAgreement(t, x, m.event(), &s, false)
		}
	}
	if len(x.Parts()) > 3 {
		t.Errorf("%v parts, want at most 3", x.Parts())
	}
}

// TestIndexOfManyFields has more fields beside each other than are looked for one by one, and long $or.
func TestIndexOfManyFields(t *testing.T) {
	x, err := rules.Compile(nil)
	if err != nil {
		t.Fatal(err)
	}
	var data strings.Builder
	for i := range 400 {
		if i%3 == 0 {
			fmt.Fprintf(&data, `"f%d":%d,"x.f%d":"v",`, i, i%5, i)
		}
		branches := make([]string, 0, 8)
		for j := range 8 {
			branches = append(branches, fmt.Sprintf(`{"f%d":[%d]}`, (i*8+j)%450, j%5))
		}
		pattern := fmt.Sprintf(`{"data":{"f%d":[%d],"x":{"f%d":["v"]}}}`, i, i%5, i)
		if i%4 == 0 {
			pattern = `{"data":{"$or":[` + strings.Join(branches, ",") + `]}}`
		}
		if x, err = x.With([]*rules.Rule{{Name: fmt.Sprintf("r%d", i), Pattern: mustPattern(t, pattern)}}, nil); err != nil {
			t.Fatal(err)
		}
	}
	ev := full()
	ev.Data = []byte("{" + data.String() + `"end":1}`)
	checkAgreement(t, x, ev, new(rules.Scratch), true)
	ev.Extensions = nil
	for i := range 300 {
		ev.Extensions = append(ev.Extensions, event.Attribute{Name: fmt.Sprintf("f%d", i), Value: "v"})
	}
	checkAgreement(t, x, ev, new(rules.Scratch), false)
}

// TestWithWhileMatching changes an index while others match with what was there before.
func TestWithWhileMatching(t *testing.T) {
	m := maker{rand.New(rand.NewPCG(5, 6))}
	var current atomic.Pointer[rules.Index]
	x, err := rules.Compile(nil)
	if err != nil {
		t.Fatal(err)
	}
	current.Store(x)
	events := make([]*event.Event, 50)
	for i := range events {
		events[i] = m.event()
	}
	done := make(chan struct{})
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			var s rules.Scratch
			for i := 0; ; i++ {
				select {
				case <-done:
					return
				default:
				}
				x, ev := current.Load(), events[i%len(events)]
				got, err := x.Match(ev, &s, nil)
				if want := rules.Direct(x.Rules(), ev); err != nil || namesOfMatches(got) != namesOf(want) {
					t.Errorf("Match = %q, %v; the evaluator says %q", namesOfMatches(got), err, namesOf(want))
					return
				}
			}
		})
	}
	for i := range 200 {
		r := m.rule(fmt.Sprintf("r%d", i%80))
		if r == nil {
			continue
		}
		if x, err = x.With([]*rules.Rule{r}, []string{fmt.Sprintf("r%d", (i+40)%80)}); err != nil {
			t.Fatal(err)
		}
		current.Store(x)
	}
	close(done)
	wg.Wait()
}

// FuzzIndex compares the index with the evaluator; the input is the choices that rules and an event are made of.
func FuzzIndex(f *testing.F) {
	for seed := range uint64(30) {
		r := rand.New(rand.NewPCG(seed, 1))
		b := make([]byte, 200)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, choices []byte) {
		m := maker{&bytesChooser{choices}}
		ev := m.event()
		var list []*rules.Rule
		for i := range 1 + m.IntN(6) {
			if r := m.rule(fmt.Sprintf("r%d", i)); r != nil {
				list = append(list, r)
			}
		}
		x, err := rules.Compile(list)
		if err != nil {
			t.Fatal(err)
		}
		checkAgreement(t, x, ev, new(rules.Scratch), m.IntN(4) == 0)
	})
}

func TestNumberKeys(t *testing.T) {
	for _, a := range makerNumbers {
		for _, b := range makerNumbers {
			c := rules.CompareNumbers(a, b)
			x, exact := rules.NumberKey(a)
			y, exactly := rules.NumberKey(b)
			if c < 0 && x > y || c > 0 && x < y || c == 0 && x != y || c != 0 && x == y && exact && exactly {
				t.Errorf("%s and %s compare %d and have the keys %d (%t) and %d (%t)", a, b, c, x, exact, y, exactly)
			}
		}
	}
}

// FuzzAddress holds that addresses are read as netip reads them.
func FuzzAddress(f *testing.F) {
	for _, s := range []string{"10.0.0.1", "::", "::1", "1::", "1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7::", "::2:3:4:5:6:7:8", "::ffff:1.2.3.4", "1:2:3:4:5:6:1.2.3.4",
		"1::2::3", ":1", "1:", "12345::", "::1.2.3", "::1.2.3.4:5", "1:2:3:4:5:6:7:1.2.3.4", ":::", "2001:DB8::a", "1:2:3:4:5:6:7:8:9", "::1:2:3:4:5:6:7:8", "01.2.3.4", "fe80::1%eth0"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, ok := rules.ParseAddress(s)
		address, err := netip.ParseAddr(s)
		if want := err == nil && address.Zone() == ""; ok != want || ok && got != address.String() {
			t.Errorf("%q is %s, %t; netip says %s, %v", s, got, ok, address, err)
		}
	})
}
