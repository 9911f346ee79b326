// SPDX-License-Identifier: Apache-2.0

package rules_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/rialto-bridge/rialto/rules"
)

func TestPatternRefused(t *testing.T) {
	var values strings.Builder
	for i := range 11 {
		fmt.Fprintf(&values, `,"g%d":{"$or":[{"a":[1]},{"b":[1]}]}`, i)
	}
	costly := strings.Repeat("1,", 199) + "1"
	for i := range 10 {
		costly = fmt.Sprintf(`%s],"g%d":{"$or":[{"a":[1]},{"b":[1]}]},"h%d":[1`, costly, i, i)
	}
	for _, tt := range []struct{ name, pattern, pointer, detail string }{
		{"empty text", " \n", "", `{"source":[{"exists":true}]}`},
		{"null", `null`, "", `{"source":[{"exists":true}]}`},
		{"empty", `{}`, "", `{"source":[{"exists":true}]}`},
		{"list", `[1]`, "", "this is an array"},
		{"not JSON", `{"a":[1,]}`, "", "not valid JSON at byte 8"},
		{"behind it", `{"a":[1]} x`, "", "text behind the value"},
		{"half a pair", `{"a":["\ud800"]}`, "", "surrogate"},
		{"scalar", `{"a":{"b/c":"x"}}`, "/a/b~1c", `write ["x"]`},
		{"true", `{"a":true}`, "/a", "write [true]"},
		{"empty list", `{"a":[]}`, "/a", `{"exists":false}`},
		{"empty object", `{"a":{"b":{}}}`, "/a/b", `{"exists":true}`},
		{"operator without list", `{"a":{"prefix":"x"}}`, "/a", `write [{"prefix":...}]`},
		{"list in list", `{"a":["x",["y"]]}`, "/a/1", "no other list"},
		{"typo", `{"a":[{"prefx":"x"}]}`, "/a/0/prefx", "did you mean prefix?"},
		{"case", `{"a":[{"Exists":true}]}`, "/a/0/Exists", "did you mean exists?"},
		{"unknown", `{"a":[{"zzzzzzzz":"x"}]}`, "/a/0/zzzzzzzz", "anything-but"},
		{"two operators", `{"a":[{"prefix":"x","suffix":"y"}]}`, "/a/0", "exactly one"},
		{"no operator", `{"a":[1,{}]}`, "/a/1", "no operator"},
		{"list for a string", `{"a":[{"prefix":["x","y"]}]}`, "/a/0/prefix", "one object each"},
		{"prefix of a number", `{"a":[{"prefix":5}]}`, "/a/0/prefix", "this is a number"},
		{"prefix of another", `{"a":[{"prefix":{"suffix":"x"}}]}`, "/a/0/prefix", "equals-ignore-case"},
		{"wildcard stars", `{"a":[{"wildcard":"a**"}]}`, "/a/0/wildcard", "write one *"},
		{"wildcard backslash", `{"a":[{"wildcard":"a\\"}]}`, "/a/0/wildcard", "backslash"},
		{"exists", `{"a":[{"exists":"yes"}]}`, "/a/0/exists", "true or false"},
		{"cidr", `{"a":[{"cidr":"10.0.0.0"}]}`, "/a/0/cidr", "10.0.0.0/8"},
		{"numeric operator", `{"a":[{"numeric":["!=",1]}]}`, "/a/0/numeric/0", "= < <= > >="},
		{"numeric operand", `{"a":[{"numeric":["<","1"]}]}`, "/a/0/numeric/1", "this is a string"},
		{"numeric range", `{"a":[{"numeric":[">",5,"<",5]}]}`, "/a/0/numeric", "less than"},
		{"numeric exponent", `{"a":[{"numeric":["<",1e9999999999]}]}`, "/a/0/numeric/1", "exponent"},
		{"literal exponent", `{"a":[1e-9999999999]}`, "/a/0", "exponent"},
		{"anything-but bool", `{"a":[{"anything-but":[true]}]}`, "/a/0/anything-but/0", "this is true"},
		{"anything-but mixed", `{"a":[{"anything-but":["x",1]}]}`, "/a/0/anything-but/1", "cannot be mixed"},
		{"anything-but numeric", `{"a":[{"anything-but":{"numeric":["<",1]}}]}`, "/a/0/anything-but/numeric", "wildcard"},
		{"anything-but empty prefix", `{"a":[{"anything-but":{"prefix":["x",""]}}]}`, "/a/0/anything-but/prefix/1", "empty prefix"},
		{"anything-but empty list", `{"a":[{"anything-but":{"prefix":[]}}]}`, "/a/0/anything-but/prefix", "excludes nothing"},
		{"name twice", `{"a":[1],"a":[2]}`, "/a", "stands twice"},
		{"group twice", `{"a":{"b":[1]},"a":{"c":[2]}}`, "/a", "stands twice"},
		{"path twice by dots", `{"a":{"b":[1]},"a.b":[2]}`, "/a.b", "already tested at /a/b"},
		{"path twice by $or", `{"x":{"a":[1]},"$or":[{"x.a":[2]},{"b":[1]}]}`, "/$or/0/x.a", "already tested at /x/a"},
		{"path twice in two $or", `{"x":{"$or":[{"a":[1]},{"b":[1]}]},"$or":[{"x":{"a":[2]}},{"c":[1]}]}`, "/x/$or/0/a", "already tested at /$or"},
		{"$or with one", `{"$or":[{"a":[1]}]}`, "/$or", "at least two"},
		{"$or not a list", `{"$or":{"a":[1]}}`, "/$or", "this is an object"},
		{"$or of values", `{"$or":["a","b"]}`, "/$or/0", "this is a string"},
		{"$or with an empty branch", `{"$or":[{"a":[1]},{}]}`, "/$or/1", "always match"},
		{"$or of operators", `{"a":{"$or":[{"prefix":["x"]},{"b":[1]}]}}`, "/a/$or/0/prefix", "reserved"},
		{"too many alternatives", `{"x":[1]` + values.String() + `}`, "", "2048 ways; at most 1024"},
		{"too costly", `{"x":[` + costly + `]}`, "", "225280 tests of one value, over all combinations of its $or; at most 100000"},
		{"too long", `{"a":["` + strings.Repeat("x", rules.MaxPattern) + `"]}`, "", "at most 32768"},
		{"too deep", strings.Repeat(`{"a":`, 1001) + `[1]` + strings.Repeat(`}`, 1001), "", "deeper than 1000"},
		{"too many steps", `{"` + strings.Repeat("a.", 1001) + `":[1]}`, "/" + strings.Repeat("a.", 1001), "1002 steps"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := rules.ParsePattern([]byte(tt.pattern))
			checkRefused(t, err, tt.pointer, tt.detail)
		})
	}
}

func TestPatternRefusalsAreCollected(t *testing.T) {
	_, err := rules.ParsePattern([]byte(`{"a":"x","b":[{"prefx":1}],"c":[]}`))
	for _, pointer := range []string{"/a", "/b/0/prefx", "/c"} {
		checkRefused(t, err, pointer, "")
	}
	_, err = rules.ParsePattern([]byte(`{"a":[` + strings.Repeat("[],", 100) + `[]]}`))
	if n := strings.Count(err.Error(), "no other list"); n != 20 {
		t.Errorf("%d complaints in one error, want 20", n)
	}
}

// documentCases say what the shared cases leave open.
var documentCases = []struct {
	name, pattern, document string
	want                    bool
}{
	{"operand and value of any size", `{"n":[{"numeric":["<",1e999999999]}]}`, `{"n":1e999999998}`, true},
	{"exponent beyond int64", `{"n":[{"numeric":["<",1e999999999]}]}`, `{"n":1e99999999999999999999}`, false},
	{"negative exponent beyond int64", `{"n":[{"numeric":[">",0,"<",1e-999999999]}]}`, `{"n":1e-99999999999999999999}`, true},
	{"twenty digits behind the point", `{"n":[0.10000000000000000001]}`, `{"n":0.1000000000000000000100}`, true},
	{"which differ", `{"n":[0.10000000000000000001]}`, `{"n":0.1}`, false},
	{"minus", `{"n":[{"numeric":["<",-1.5]}]}`, `{"n":-1.50001}`, true},
	{"minus the other way", `{"n":[{"numeric":[">",-1.5]}]}`, `{"n":-1.50001}`, false},
	{"long s folds to s", `{"s":[{"equals-ignore-case":"s"}]}`, `{"s":"ſ"}`, true},
	{"prefix at the end of the value", `{"s":[{"prefix":{"equals-ignore-case":"abc"}}]}`, `{"s":"AB"}`, false},
	{"suffix longer than the value", `{"s":[{"suffix":{"equals-ignore-case":"abc"}}]}`, `{"s":"BC"}`, false},
	{"exactly", `{"s":[{"exactly":"x"}]}`, `{"s":"x"}`, true},
	{"anything-but numbers and a big one", `{"n":[{"anything-but":[1e400]}]}`, `{"n":10e399}`, false},
	{"repeated name, first", `{"a":[1]}`, `{"a":1,"a":2}`, true},
	{"repeated name, last", `{"a":[2]}`, `{"a":1,"a":2}`, true},
	{"repeated name, absent", `{"a":[{"exists":false}]}`, `{"a":{},"a":2}`, false},
	{"repeated arrays are one", `{"r":{"k":[1],"v":[2]}}`, `{"r":[{"k":1}],"r":[{"v":2}]}`, false},
	{"repeated array and object are one array", `{"r":{"k":[1],"v":[2]}}`, `{"r":[{"k":1}],"r":{"v":2}}`, false},
	{"repeated array of a scalar and objects", `{"r":{"k":[1],"v":[2]}}`, `{"r":[5],"r":{"k":1},"r":{"v":2}}`, false},
	{"repeated objects beside a scalar", `{"r":{"k":[1],"v":[2]}}`, `{"r":5,"r":{"k":1},"r":{"v":2}}`, true},
	{"array of a scalar and names with dots", `{"r":{"k":[1],"v":[2]}}`, `{"r":[5],"r.k":1,"r.v":2}`, false},
	{"event name with dots", `{"a":{"b":{"c":[1]}}}`, `{"a.b":{"c":1}}`, true},
	{"event name with dots across", `{"a.b":{"c":[1]}}`, `{"a":{"b.c":1}}`, true},
	{"event name with dots beside", `{"a":{"b":[1],"c":[2]}}`, `{"a.b":1,"a":{"c":2}}`, true},
	{"event name that only begins so", `{"a":{"b":[1]}}`, `{"a.bc":1,"ab":{"b":1}}`, false},
	{"escaped names", `{"a\u002eb":[1]}`, `{"\u0061":{"b":1}}`, true},
	{"empty steps", `{"a..b":[1]}`, `{"a":{"":{"b":1}}}`, true},
	{"surrogate pair", `{"a":["😀!"]}`, `{"a":"\uD83d\ude00!"}`, true},
	{"two halves of different pairs", `{"a":["\ufffd😀"]}`, `{"a":"\ud83d\ud83d\ude00"}`, true},
	{"every escape", `{"a":["\"\\/\b\f\n\r\t"]}`, `{"a":"\u0022\u005C\/\u0008\u000c\u000a\u000D\u0009"}`, true},
	{"half a surrogate pair", `{"a":["\ufffd"]}`, `{"a":"\ud800"}`, true},
	{"absent beside a value in the same element", `{"r":{"k":["x"],"v":[{"exists":false}]}}`, `{"r":[{"k":"x","v":1},{"k":"y"}]}`, false},
	{"absent in an element that nothing binds", `{"r":{"v":[{"exists":false}]}}`, `{"r":[{"v":1},{"k":"y"}]}`, false},
	{"absent or a value, per element", `{"r":{"k":["x"],"v":[{"exists":false},2]}}`, `{"r":[{"k":"x","v":1},{"k":"x","v":2}]}`, true},
	{"absent through $or in no element", `{"r":{"$or":[{"a":[{"exists":false}]},{"b":[{"exists":false}]}]}}`, `{"r":[{"a":1},{"a":2}]}`, true},
	{"$or in an element with a field outside", `{"r":{"k":["x"]},"$or":[{"r":{"v":[1]}},{"z":[1]}]}`, `{"r":[{"k":"x"},{"v":1}]}`, false},
	{"deep array of a scalar", `{"a":[1]}`, `{"a":` + strings.Repeat("[", 999) + "1" + strings.Repeat("]", 999) + `}`, true},
	{"an element of an inner array", `{"m":{"k":["a"],"v":["1"]}}`, `{"m":[[{"k":"a"}],[{"k":"b"},{"k":"a","v":"1"}]]}`, true},
}

func TestMatchDocument(t *testing.T) {
	for _, tt := range documentCases {
		t.Run(tt.name, func(t *testing.T) {
			p, err := rules.ParsePattern([]byte(tt.pattern))
			if err != nil {
				t.Fatal(err)
			}
			if got := matchDocument(t, p, tt.document); got != tt.want {
				t.Errorf("Match(%s, %s) = %t, want %t", tt.pattern, tt.document, got, tt.want)
			}
		})
	}
}

func TestDocumentRefused(t *testing.T) {
	p, err := rules.ParsePattern([]byte(`{"a":[1]}`))
	if err != nil {
		t.Fatal(err)
	}
	x, err := rules.Compile([]*rules.Rule{{Pattern: p}})
	if err != nil {
		t.Fatal(err)
	}
	var s rules.Scratch
	for _, tt := range []struct{ document, want string }{
		{``, "byte 0: the text ends where a value is due"},
		{`[{"a":1}]`, "must be an object, this is an array"},
		{`{"a":1`, "byte 6: the text ends inside an object"},
		{`{"a":1]`, "byte 6: expected , or }"},
		{`{"a":[1}`, "byte 7: expected , or ]"},
		{`{"a" 1}`, "byte 5: expected : behind the name"},
		{`{a:1}`, "byte 1: expected a name in quotes"},
		{`{"a:1}`, "byte 6: the text ends inside a string"},
		{`{"a\n`, "byte 5: the text ends inside a string"},
		{"{\"a\":\"\\n\t\"}", "byte 8: a control character"},
		{`{"a":"\x"}`, "byte 6: unknown escape"},
		{`{"a":"\u12g4"}`, "byte 6: \\u wants four hexadecimal digits"},
		{`{"a":"\u12`, "byte 6: \\u wants four hexadecimal digits"},
		{`{"a":1.}`, "byte 7: expected a digit behind the decimal point"},
		{`{"a":1e+}`, "byte 8: expected a digit in the exponent"},
		{`{"a":-}`, "byte 6: expected a digit"},
		{`{"a":nul}`, "byte 5: expected a value"},
		{`{"a":1}{}`, "byte 7: text behind the value"},
		{"{\"a\":\"é\xff\"}", "byte 8: not UTF-8"},
	} {
		_, err := x.MatchDocument([]byte(tt.document), &s, nil)
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("MatchDocument(%q) = %v, want %s", tt.document, err, tt.want)
		}
	}
	if got, err := x.MatchDocument([]byte(`{"a":1}`), &s, nil); err != nil || len(got) != 1 {
		t.Errorf("MatchDocument = %v, %v after errors, want a match", got, err)
	}
}

// TestMatchIsLinear gives the matcher what makes backtracking ones give up. Without the guarantee it would not end.
func TestMatchIsLinear(t *testing.T) {
	var independent, names strings.Builder
	for i := range 12 {
		fmt.Fprintf(&independent, `"a%d":[`, i)
		for j := range 100 {
			fmt.Fprintf(&independent, `{"k":"x","n":%d},`, j)
		}
		independent.WriteString(`{}],`)
		fmt.Fprintf(&names, `"a%d":{"k":["x"]},`, i)
	}
	var repeated strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&repeated, `"r":[{"f%d":1},{"f%d":1}],`, i%16, (i+1)%16)
	}
	var fields []string
	for i := range 16 {
		fields = append(fields, fmt.Sprintf(`"f%d":[1]`, i))
	}
	for _, tt := range []struct{ name, pattern, document string }{
		{"stars", `{"w":[{"wildcard":"` + strings.Repeat("*a", 500) + `*b*"}]}`, `{"w":"` + strings.Repeat("a", 1<<20) + `"}`},
		{"independent arrays", `{` + names.String() + `"z":{"x":[1],"y":[1]}}`, `{` + independent.String() + `"z":[{"x":1},{"y":1}]}`},
		{"repeated arrays", `{"r":{` + strings.Join(fields, ",") + `}}`, `{` + repeated.String() + `"e":1}`},
		{"arrays in arrays", `{"a":{"a":{"a":{"a":{"x":[1],"y":[1]}}}}}`,
			`{"a":` + nested(`[{"x":1,"a":`, `},{"y":1,"z":[1,2]}]`, 4, `[{"x":1},{"y":1}]`, 8) + `}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, err := rules.ParsePattern([]byte(tt.pattern))
			if err != nil {
				t.Fatal(err)
			}
			if matchDocument(t, p, tt.document) {
				t.Error("Match = true, want false")
			}
		})
	}
}

// nested wraps core in depth layers, each of which stands width times in a row.
func nested(before, after string, depth int, core string, width int) string {
	for range depth {
		one := before + core + after
		core = "[" + strings.Repeat(one+",", width-1) + one + "]"
	}
	return core
}

func TestPatternString(t *testing.T) {
	in := ` { "b" : [ 1.0 , "x\u0041", null, true, {"exists":false}, {"exists":true} ],
		"a.b": {"c": [{"prefix":{"equals-ignore-case":"P"}}, {"suffix":"s"}, {"anything-but":["a","b"]}, {"anything-but":5},
		{"anything-but":{"wildcard":["*x","y\\*"]}}, {"cidr":"10.1.2.3/8"}, {"numeric":[">",1,"<=",2e1]}, {"equals-ignore-case":"e"}, {"wildcard":"w*"}, {"exactly":"q"}]},
		"$or": [ {"x":[1]}, {"y":[2]} ] }`
	want := `{"b":[1.0,"xA",null,true,{"exists":false},{"exists":true}],` +
		`"a.b":{"c":[{"prefix":{"equals-ignore-case":"P"}},{"suffix":"s"},{"anything-but":["a","b"]},{"anything-but":5},` +
		`{"anything-but":{"wildcard":["*x","y\\*"]}},{"cidr":"10.0.0.0/8"},{"numeric":[">",1,"<=",2e1]},{"equals-ignore-case":"e"},{"wildcard":"w*"},"q"]},` +
		`"$or":[{"x":[1]},{"y":[2]}]}`
	p, err := rules.ParsePattern([]byte(in))
	if err != nil {
		t.Fatal(err)
	}
	if got := p.String(); got != want {
		t.Errorf("String() =\n%s, want\n%s", got, want)
	}
}
