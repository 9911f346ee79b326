// SPDX-License-Identifier: Apache-2.0

package rules_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/rules"
)

func TestWhen(t *testing.T) {
	for _, tt := range []struct {
		when   string
		want   bool
		failed string
	}{
		{`data.temperature > 8`, true, ""},
		{`data.temperature > 8 and data.door != "open"`, true, ""},
		{`data.temperature - 9 > 3`, false, ""},
		{`type startsWith "com.acme." && subject == "truck/17"`, true, ""},
		{`attempt >= 3 && test && zone in ["north", "south"]`, true, ""},
		{`time.Hour() == 13 && time.Year() == 2026`, true, ""},
		{`time > date("2026-11-30T00:00:00Z")`, true, ""},
		{`let warm = data.temperature > 9; warm`, true, ""},
		{`data.nothing == nil`, true, ""},
		{`nothing == nil`, true, ""},
		{`data?.deep?.er == nil`, true, ""},
		{`len(keys(data)) == 2 and keys(data)[0] == "door"`, true, ""},
		{`any(values(data), # == "closed")`, true, ""},
		{`uniq([1, "1", 1.0, nil, true, "true", 1.5, 1.5, nil, [1, "a"], [1.0, "a"], ["1a"]]) == [1, "1", nil, true, "true", 1.5, [1, "a"], ["1a"]]`, true, ""},
		{`len(uniq([{"a": 1, "b": [2]}, {"b": [2], "a": 1}, {"a": 1}, {"a": "1"}, time, date("2026-11-30T00:00:00Z"), time, duration("1h"), duration("60m")])) == 6`, true, ""},
		{`uniq(map(1..3, # % 2)) == [1, 0] && 2 in uniq(split("a b", " ") | map(2))`, true, ""},
		{`flatten([1, [2, [], ["a", nil]], 1..2]) == [1, 2, "a", nil, 1, 2]`, true, ""},
		{`let r = map(1..1000, #); len(flatten(map(1..500, r))) > 0`, false, "too long a list"},
		{`len(flatten(subject)) == 1`, false, "flatten takes a list, this is a string"},
		{`len(uniq(subject)) == 1`, false, "uniq takes a list, this is a string"},
		{`data.temperature`, false, "bool(float64)"},
		{`data.door`, false, "bool(string)"},
		{`data.nothing > 5`, false, "line 1"},
		{`data.deep.er == nil`, false, "line 1"},
		{`data.door + 1 == 2`, false, "line 1"},
		{`let r = 1..2000; any(r, any(r, # == 0))`, false, "it takes too"},
		{`len(map(1..1000000, #)) > 0`, false, "memory budget"},
		{`len(map(1..20, repeat(subject, 100000) + subject)) > 0`, false, "too much text"},
		{`len(repeat(subject, 1000000)) > 0`, false, "too much text"},
		{`len(replace(repeat("a", 1000000), "a", subject)) > 0`, false, "too much text"},
		{`len(join(map(1..9, repeat(subject, 20000)), subject)) > 0`, false, "too much text"},
		{`replace(subject, "truck", "box") == "box/17" && join(["a", "b"], "-") == "a-b" && repeat("ab", 2) == "abab"`, true, ""},
		{`1 / 0 > 5`, true, ""}, // as floating point has it
		{`1 % (attempt - 3) > 5`, false, "divi"},
	} {
		t.Run(tt.when, func(t *testing.T) {
			r := mustRule(t, fmt.Sprintf(`{"name":"r","targets":[{"target":"t"}],"pattern":{"type":[{"exists":true}]},"when":%q}`, tt.when))
			checkCondition(t, r, tt.want, tt.failed)
		})
	}
}

// TestWhenComesAfterThePattern holds that nothing is evaluated, and so nothing fails, where the pattern does not match.
func TestWhenComesAfterThePattern(t *testing.T) {
	r := mustRule(t, `{"name":"r","targets":[{"target":"t"}],"pattern":{"type":["other"]},"when":"data.nothing > 5","sql":"nothing > 5"}`)
	checkCondition(t, r, false, "")
	why := r.Explain(full())
	if why.When.Verdict != rules.Unneeded || why.SQL.Verdict != rules.Unneeded || !strings.Contains(why.When.Actual, "not evaluated") {
		t.Errorf("Explain = %+v, %+v", why.When, why.SQL)
	}
}

func TestWhenOfData(t *testing.T) {
	for _, tt := range []struct {
		contentType, data, when string
		want                    bool
	}{
		{"application/json", `{"n":9007199254740993}`, `data.n == 9007199254740993`, true},
		{"application/json", `{"n":1e400}`, `data.n > 1e300`, true},
		{"application/json", `{"n":-1e400}`, `data.n < -1e300`, true},
		{"application/json", `[1,2,3]`, `sum(data) == 6`, true},
		{"application/json", `{"a":[{"x":1},{"x":2}]}`, `any(data.a, .x > 1)`, true},
		{"application/json", `{"a":1,"a":2}`, `data.a == 2`, true},
		{"application/json", `"text"`, `data == "text"`, true},
		{"application/json", `{oops`, `data == "{oops"`, true},
		{"text/plain", `hello`, `data startsWith "hell"`, true},
		{"application/octet-stream", "\xff", `data == nil`, true},
		{"", `{"a":true}`, `data.a`, true},
	} {
		r := mustRule(t, fmt.Sprintf(`{"name":"r","targets":[{"target":"t"}],"pattern":{"type":["t"]},"when":%q}`, tt.when))
		x, err := rules.Compile([]*rules.Rule{r})
		if err != nil {
			t.Fatal(err)
		}
		got, err := x.Match(&event.Event{ID: "1", Source: "/s", Type: "t", DataContentType: tt.contentType, Data: []byte(tt.data)}, nil, nil)
		if err != nil || (len(got) == 1) != tt.want || x.Failures() != 0 {
			t.Errorf("%s on %s: %v, %v, %d failures; want %t", tt.when, tt.data, got, err, x.Failures(), tt.want)
		}
	}
	r := mustRule(t, `{"name":"r","targets":[{"target":"t"}],"pattern":{"data":{"n":[1]}},"when":"data.data.n == 1"}`)
	x, err := rules.Compile([]*rules.Rule{r})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := x.MatchDocument([]byte(`{"data":{"n":1}}`), nil, nil); err != nil || len(got) != 1 {
		t.Errorf("MatchDocument = %v, %v; want a match", got, err)
	}
}

// What a device sends in a list does not hold the events behind it up for minutes.
func TestUniqOfMany(t *testing.T) {
	var list strings.Builder
	for i := range 100_000 {
		fmt.Fprintf(&list, ",%d", i)
	}
	r := mustRule(t, `{"name":"r","targets":[{"target":"t"}],"pattern":{"type":["t"]},"when":"len(uniq(data)) == 100001"}`)
	x, err := rules.Compile([]*rules.Rule{r})
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	got, err := x.Match(&event.Event{ID: "1", Source: "/s", Type: "t", Data: []byte(`["a"` + list.String() + `]`)}, nil, nil)
	if took := time.Since(began); err != nil || len(got) != 1 || took > 20*time.Second {
		t.Errorf("%d matches, %v, after %v", len(got), err, took)
	}
}

// A list deep inside of others is copied once, and not at each level.
func TestFlattenOfDeepLists(t *testing.T) {
	const deep = 900
	r := mustRule(t, `{"name":"r","targets":[{"target":"t"}],"pattern":{"type":["t"]},"when":"len(flatten(data)) == 50000"}`)
	x, err := rules.Compile([]*rules.Rule{r})
	if err != nil {
		t.Fatal(err)
	}
	data := strings.Repeat("[", deep) + strings.TrimSuffix(strings.Repeat("1,", 50_000), ",") + strings.Repeat("]", deep)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	got, err := x.Match(&event.Event{ID: "1", Source: "/s", Type: "t", Data: []byte(data)}, nil, nil)
	runtime.ReadMemStats(&after)
	if made := after.TotalAlloc - before.TotalAlloc; err != nil || len(got) != 1 || made > 200<<20 {
		t.Errorf("%d matches, %v, with %d bytes", len(got), err, made)
	}
}

func TestWhenRefused(t *testing.T) {
	for _, tt := range []struct{ when, detail string }{
		{``, "empty"},
		{`data.x >`, "line 1, column 8"},
		{`1 % 0 > 5`, "divide by zero"},
		{`subject`, "expected bool"},
		{`subject > 5`, "invalid operation"},
		{`subject.x == 1`, "one value"},
		{`dta.temperature > 5`, "did you mean data?"},
		{`Subject == "x"`, "cannot be an attribute"},
		{`_budget == 1`, "cannot be an attribute"},
		{`$env.x == 1`, "$env"},
		{`now() > time`, "the same event"},
		{`reduce(data.x, #acc + #) > 1`, "cost cannot be bounded"},
		{`fliter(data.x, true)`, "did you mean filter()?"},
		{`_step(1, 2)`, "no function"},
		{`zzzzzz(1)`, "no function"},
		{`time.Month2() == 1`, "no method"},
		{`data.x == ` + strings.Repeat("1 + ", 600) + "1", "nodes"},
		{strings.Repeat(" ", rules.MaxExpression) + "true", "at most 4096"},
		{`(`, "line 1"},
	} {
		_, err := rules.ParseWhen(tt.when)
		if err == nil || !strings.Contains(err.Error(), tt.detail) {
			t.Errorf("ParseWhen(%.60s) = %v, want %s", tt.when, err, tt.detail)
		}
	}
}

// TestWhenIsSafeForConcurrentUse runs one expression on many goroutines; the race detector has the last word.
func TestWhenIsSafeForConcurrentUse(t *testing.T) {
	r := mustRule(t, `{"name":"r","targets":[{"target":"t"}],"pattern":{"type":[{"exists":true}]},"when":"any(keys(data), # + subject == \"doortruck/17\")","sql":"subject LIKE 'truck%'"}`)
	x, err := rules.Compile([]*rules.Rule{r})
	if err != nil {
		t.Fatal(err)
	}
	for range 4 {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			var s rules.Scratch
			for range 200 {
				if got, err := x.Match(full(), &s, nil); err != nil || len(got) != 1 {
					t.Fatalf("Match = %v, %v", got, err)
				}
			}
		})
	}
}

// FuzzCondition holds that no when or sql, on whatever event, does more than hold, not hold, or fail.
func FuzzCondition(f *testing.F) {
	for _, when := range []string{`data.x > 1`, `any(data, # == subject)`, `data.x + subject == "a"`, `sum(map(data.x, len(#))) > 2`, `let a = data; a.b ?? true`, `time.Unix() > 0`, `sortBy(data, #)[0] == 1`, `data matches "^a+$"`} {
		f.Add(when, `subject LIKE '%a_' AND attempt > 1 OR EXISTS zone`, `{"x":[1,"a",null,{"b":2}]}`)
	}
	f.Fuzz(func(t *testing.T, when, sql, data string) {
		ev := full()
		ev.Data = []byte(data)
		r := &rules.Rule{Pattern: mustPattern(t, `{"type":[{"exists":true}]}`)}
		if e, err := rules.ParseWhen(when); err == nil {
			r.When = e
		}
		if q, err := rules.ParseSQL(sql); err == nil {
			r.SQL = q
		}
		x, err := rules.Compile([]*rules.Rule{r})
		if err != nil {
			t.Fatal(err)
		}
		got, err := x.Match(ev, nil, nil)
		if err != nil || x.Failures() > 0 && len(got) > 0 {
			t.Errorf("Match = %v, %v after %d failures", got, err, x.Failures())
		}
	})
}

func mustPattern(t testing.TB, text string) *rules.Pattern {
	t.Helper()
	p, err := rules.ParsePattern([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return p
}
