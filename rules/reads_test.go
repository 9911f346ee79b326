// SPDX-License-Identifier: Apache-2.0

package rules_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rialto-bridge/rialto/rules"
)

// shownReads writes reads as lines that a table can hold.
func shownReads(list []rules.Read) string {
	var b strings.Builder
	for _, r := range list {
		fmt.Fprintf(&b, "%s by %s", r.Path, r.Pointer)
		for _, f := range []struct {
			name string
			is   bool
		}{{"whole", r.Whole}, {"through", r.Through}, {"needed", r.Needed}, {"either", r.Either}, {"absent", r.Decides() && r.HoldsAbsent()}} {
			if f.is {
				b.WriteString(" " + f.name)
			}
		}
		if r.Target != "" {
			b.WriteString(" for " + r.Target)
		}
		if r.Types != nil {
			fmt.Fprintf(&b, " types %s", strings.Join(r.Types, ","))
		}
		if r.Operators != nil {
			fmt.Fprintf(&b, " operators %s", strings.Join(r.Operators, ","))
		}
		b.WriteByte('\n')
	}
	return b.String()
}

func TestReads(t *testing.T) {
	const anything = `"pattern":{"source":[{"exists":true}]}`
	const source = "/source by /pattern/source through types boolean,null,number,string operators exists\n"
	constant := `"targets":[{"target":"a","transform":{"constant":"x"}}]`
	for _, c := range []struct{ name, rule, want string }{
		{"a pattern", `"pattern":{"type":["x"],"data":{"a":{"b.c":["s",1,null,true]},"d":[{"numeric":[">",1]}],"e":[{"prefix":"x"},{"exists":false}],"f":[{"anything-but":["y"]}],"g":[{"cidr":"10.0.0.0/8"}],"h":[{"wildcard":"a*"}]}},` + constant,
			`/type by /pattern/type through types string operators exact
/data/a/b/c by /pattern/data/a/b.c through types boolean,null,number,string operators exact
/data/d by /pattern/data/d through types number operators numeric
/data/e by /pattern/data/e through absent types string operators exists,prefix
/data/f by /pattern/data/f through types boolean,null,number,string operators anything-but
/data/g by /pattern/data/g through types string operators cidr
/data/h by /pattern/data/h through types string operators wildcard
`},
		{"branches", `"pattern":{"data":{"$or":[{"a":["x"]},{"b":[1]}]}},` + constant,
			`/data/a by /pattern/data/$or/0/a through either types string operators exact
/data/b by /pattern/data/$or/1/b through either types number operators exact
`},
		{"a condition", anything + `,"when":"data.a > 3 && data[\"b c\"] == 'x' && type matches '^o' && data.list[0].q in [1, 2] && !data.off && data.x?.y - 1 < data.z",` + constant,
			source + `/data/a by /when types number operators >
/data/b c by /when types string operators ==
/type by /when types string operators matches
/data/list/0/q by /when types number operators in
/data/off by /when types boolean operators !
/data/x/y by /when types number operators -
/data/z by /when operators <
`},
		{"lists in a condition", anything + `,"when":"any(data.lines, .sku == 'a' && any(.tags, # == 't')) && len(data.k) > 1 && len(filter(data.m, .v > 1)) > 0 && data.n[-1] == data.o[data.p]",` + constant,
			source + `/data/lines by /when operators any
/data/lines/*/sku by /when types string operators ==
/data/lines/*/tags by /when operators any
/data/lines/*/tags/* by /when types string operators ==
/data/k by /when operators len
/data/m by /when whole operators filter
/data/m/*/v by /when types number operators >
/data/n/* by /when whole operators ==
/data/o by /when whole
/data/p by /when
`},
		{"a variable of a condition", anything + `,"when":"let d = data.a; d > 1",` + constant, source + "/data/a by /when whole\n"},
		{"a query", anything + `,"sql":"subject LIKE 'a%' AND LENGTH(myext) > 3 OR EXISTS other",` + constant,
			source + "/subject by /sql\n/myext by /sql\n/other by /sql\n"},
		{"transforms", anything + `,"targets":[{"target":"a"},{"target":"b","transform":{"path":"$.data.id"}},{"target":"c","transform":{"path":"$.data.lines[*].sku"}},
			{"target":"d","transform":{"path":"$.data..sku"}},{"target":"e","transform":{"path":"$.data.lines[?@.qty > 1].sku"}},{"target":"f","transform":{"path":"$.data.lines[-1]"}},
			{"target":"g","transform":{"template":{"x":"${data.a[1].b}","y":"at ${time}: ${data.n * 2}","z":"${rialto.rule}"}}},
			{"target":"h","transform":{"template":"${rialto.event}"}},
			{"target":"i","transform":{"paths":{"id":"$.data.id"},"template":"{\"id\":<id>}"}},{"target":"j","transform":{"constant":{}}},
			{"target":"k","transform":{"function":"f"}}]`,
			source + ` by /targets/0 whole for a
/data/id by /targets/1/transform/path whole needed for b
/data/lines/*/sku by /targets/2/transform/path whole for c
/data by /targets/3/transform/path whole for d
/data/lines by /targets/4/transform/path whole for e
/data/lines/* by /targets/5/transform/path whole needed for f
/data/a/1/b by /targets/6/transform/template whole for g
/time by /targets/6/transform/template whole for g
/data/n by /targets/6/transform/template for g types number operators *
 by /targets/7/transform/template whole for h
/data/id by /targets/8/transform/template whole for i
 by /targets/10/transform/function whole for k
`},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, err := rules.ParseRule([]byte(`{"name":"r",` + c.rule + `}`))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, shownReads(r.Reads())); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}

func TestReadHolds(t *testing.T) {
	r, err := rules.ParseRule([]byte(`{"name":"r","pattern":{"data":{"a":[{"numeric":[">",3]},"x",{"exists":false}]}},"targets":[{"target":"a"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	clause := r.Reads()[0]
	if !clause.Decides() || !clause.HoldsAbsent() {
		t.Errorf("%+v", clause)
	}
	for value, want := range map[string]bool{`4`: true, `3`: false, `"x"`: true, `"\u0078"`: true, `null`: false, `[4]`: false, `no`: false} {
		if got := clause.Holds([]byte(value)); got != want {
			t.Errorf("%s: %v", value, got)
		}
	}
}

func TestTypeFilter(t *testing.T) {
	for _, c := range []struct {
		pattern  string
		yes, not []string
	}{
		{`{"type":["a",{"prefix":"com.acme."}]}`, []string{"a", "com.acme.x"}, []string{"b", "com.acme"}},
		{`{"type":[{"anything-but":["a"]}],"data":{"x":[1]}}`, []string{"b"}, []string{"a"}},
		{`{"source":["/s"]}`, []string{"anything"}, nil},
		{`{"$or":[{"type":["a"]},{"type":["b"],"source":["/s"]}]}`, []string{"a", "b"}, []string{"c"}},
		{`{"$or":[{"type":["a"]},{"source":["/s"]}]}`, []string{"a", "c"}, nil},
		{`{"type":[{"exists":false}]}`, nil, []string{"a"}},
	} {
		r, err := rules.ParseRule([]byte(`{"name":"r","pattern":` + c.pattern + `,"targets":[{"target":"a"}]}`))
		if err != nil {
			t.Fatal(err)
		}
		takes := r.TypeFilter()
		for _, eventType := range c.yes {
			if !takes(eventType) {
				t.Errorf("%s does not take %s", c.pattern, eventType)
			}
		}
		for _, eventType := range c.not {
			if takes(eventType) {
				t.Errorf("%s takes %s", c.pattern, eventType)
			}
		}
		r.Disabled = true
		if r.TypeFilter()("a") {
			t.Errorf("%s takes events while it is disabled", c.pattern)
		}
	}
}
