// SPDX-License-Identifier: Apache-2.0

package rules_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/rules"
)

func TestLint(t *testing.T) {
	for _, tt := range []struct{ name, list, pointer, message, fix string }{
		{"two anything-but", `[{"anything-but":"a"},{"anything-but":"b"}]`, "", "every value matches", `[{"anything-but":["a","b"]}]`},
		{"lists of anything-but", `[{"anything-but":["a","c"]},{"anything-but":"b"},{"exists":false}]`, "", "every value matches", `[{"anything-but":["a","c","b"]}]`},
		{"nested anything-but", `[{"anything-but":{"prefix":"a"}},{"anything-but":{"prefix":"b"}}]`, "", "every value matches", `[{"anything-but":{"prefix":["a","b"]}}]`},
		{"anything-but of two kinds", `[{"anything-but":"a"},{"anything-but":1}]`, "", "every value matches", ""},
		{"anything-but and what it excludes", `["a",{"anything-but":"a"}]`, "", "every value matches", `[{"exists":true}]`},
		{"anything-but and a prefix of it", `[{"prefix":"a"},{"anything-but":"ab"}]`, "", "every value matches", `[{"exists":true}]`},
		{"exists and more", `["a",{"exists":true}]`, "", "needless", `[{"exists":true}]`},
		{"exists and not", `[{"exists":false},{"exists":true}]`, "", "always true", ""},
		{"bounds apart", `[{"numeric":[">",0]},{"numeric":["<=",10]}]`, "", "every number", `[{"numeric":[">",0,"<=",10]}]`},
		{"a prefix of a prefix", `[{"prefix":"ab"},{"prefix":"a"}]`, "", `[{"prefix":"ab"}] is needless`, `[{"prefix":"a"}]`},
		{"a suffix of a suffix", `[{"suffix":"a"},{"suffix":"ba"}]`, "", `[{"suffix":"ba"}] is needless`, `[{"suffix":"a"}]`},
		{"a string with the prefix", `[{"prefix":"a"},"abc"]`, "", `["abc"] is needless: [{"prefix":"a"}]`, `[{"prefix":"a"}]`},
		{"twice", `["a","b","a"]`, "", `["a"] is needless`, `["a","b"]`},
		{"absent twice", `[{"exists":false},1,{"exists":false}]`, "", "needless", `[{"exists":false},1]`},
		{"a number in a range", `[5,{"numeric":[">",1]}]`, "", "needless", `[{"numeric":[">",1]}]`},
		{"a range in a range", `[{"numeric":[">",1,"<",3]},{"numeric":[">=",1]}]`, "", "needless", `[{"numeric":[">=",1]}]`},
		{"a block in a block", `[{"cidr":"10.1.0.0/16"},{"cidr":"10.0.0.0/8"}]`, "", "needless", `[{"cidr":"10.0.0.0/8"}]`},
		{"a case of a case", `[{"prefix":"AB"},{"prefix":{"equals-ignore-case":"a"}}]`, "", "needless", `[{"prefix":{"equals-ignore-case":"a"}}]`},
		{"digits", `["5"]`, "/0", "matches no number", ""},
		{"a star", `["ab*"]`, "/0", "just a star", `{"wildcard":"ab*"}`},
		{"no star", `[{"wildcard":"a\\*"}]`, "/0", "without a *", `"a*"`},
		{"bounds that leave a gap", `[{"numeric":[">",10]},{"numeric":["<",0]}]`, "", "", ""},
		{"a range around another end", `[{"numeric":[">",1,"<",3]},{"numeric":[">",2]}]`, "", "", ""},
		{"different prefixes", `[{"prefix":"ab"},{"prefix":"b"},{"suffix":"a"}]`, "", "", ""},
		{"anything-but or absent", `[{"anything-but":"a"},{"exists":false}]`, "", "", ""},
		{"anything-but and another", `["b",{"prefix":"x"},{"numeric":[">",1]},true,null]`, "", "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := rules.Lint(patternRule(t, "r", `{"$or":[{"data":{"x":`+tt.list+`}},{"type":["t"]}]}`))
			if tt.message == "" {
				if len(got) > 0 {
					t.Errorf("Lint = %+v, want nothing", got)
				}
				return
			}
			if len(got) != 1 || got[0].Pointer != "/pattern/$or/0/data/x"+tt.pointer || !strings.Contains(got[0].Message, tt.message) || got[0].Fix != tt.fix {
				t.Fatalf("Lint = %+v, want %s with the fix %s", got, tt.message, tt.fix)
			}
			if tt.fix != "" && !json.Valid([]byte(tt.fix)) {
				t.Errorf("the fix %s is not JSON", tt.fix)
			}
		})
	}
}

func TestLintOfAttributesAndWhen(t *testing.T) {
	r := mustRule(t, `{"name":"r","targets":[{"target":"t"}],"pattern":{"type":[5],"id":["5"],"attempt":[3]},"when":"tpye == \"x\" && zone == \"n\" && subject != \"\""}`)
	want := []rules.Warning{
		{Pointer: "/pattern/type/0", Message: "the attribute type is always a string, so this never matches"},
		{Pointer: "/when", Message: "tpye is taken for an extension attribute; did you mean type?"},
	}
	if diff := cmp.Diff(want, rules.Lint(r)); diff != "" {
		t.Error(diff)
	}
}

func TestLintObserved(t *testing.T) {
	seen := rules.Paths{}
	ev := full()
	ev.Data = []byte(`{"temp":1,"r":[{"k":1},{"k":2,"deep":{"er":[[true]]}}],"none":{},"a.b":1}`)
	seen.Add(ev)
	seen.Add(full())
	want := rules.Paths{"specversion": 2, "id": 2, "source": 2, "type": 2, "subject": 2, "datacontenttype": 2, "dataschema": 2, "time": 2, "attempt": 2, "test": 2, "zone": 2,
		"data.temp": 1, "data.r.k": 1, "data.r.deep.er": 1, "data.a.b": 1, "data.temperature": 1, "data.door": 1}
	if diff := cmp.Diff(want, seen); diff != "" {
		t.Fatal(diff)
	}
	r := patternRule(t, "r", `{"type":["x"],"data":{"tempp":[1],"r":{"k":[1],"zzzzz":[1]},"gone":[{"exists":false}],"door":["x"]}}`)
	got := rules.LintObserved(r, seen)
	if len(got) != 2 || got[0].Message != "no stored event has data.tempp; there are data.temp" || got[1].Message != "no stored event has data.r.zzzzz" || got[1].Pointer != "/pattern/data/r/zzzzz" {
		t.Errorf("LintObserved = %+v", got)
	}
	var data strings.Builder
	for i := range 60_000 {
		fmt.Fprintf(&data, `,"n%d":1`, i)
	}
	seen.Add(&event.Event{ID: "1", Source: "/s", Type: "t", Data: []byte(`{"a":1` + data.String() + `}`)})
	if len(seen) > 50_000 {
		t.Errorf("%d paths, want at most 50,000", len(seen))
	}
}

// FuzzLint holds that a fix of a list is a list that is accepted.
func FuzzLint(f *testing.F) {
	eachCase(f, func(pattern, _ string) { f.Add(pattern) })
	f.Fuzz(func(t *testing.T, pattern string) {
		p, err := rules.ParsePattern([]byte(pattern))
		if err != nil {
			return
		}
		for _, w := range rules.Lint(&rules.Rule{Pattern: p}) {
			if w.Pointer == "" || w.Pointer[0] != '/' || w.Message == "" {
				t.Errorf("warning %+v", w)
			}
			fix := w.Fix
			if fix == "" {
				continue
			}
			if fix[0] != '[' {
				fix = "[" + fix + "]"
			}
			if _, err := rules.ParsePattern([]byte(`{"x":` + fix + `}`)); err != nil && len(fix) < rules.MaxPattern/2 {
				t.Errorf("the fix %s is refused: %v", w.Fix, err)
			}
		}
	})
}
