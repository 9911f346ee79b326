// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var objects = []struct{ in, want string }{
	{`{"token":"x","a":1}`, `{"a":1}`},
	{`{"a":1,"token":"x"}`, `{"a":1}`},
	{`{"a":1.50,"token":"x","b":[ 1e3 ,{"token":"y"}]}`, `{"a":1.50,"b":[ 1e3 ,{"token":"y"}]}`},
	{` { "token" : {"x":","} , "token":"x" ,  "a" : "é\u00e9" } `, ` {  "a" : "é\u00e9" } `},
	{`{"token":"x"}`, `{}`},
	{"{\n  \"token\": \"x\"\n}\n", "{\n}\n"},
	{`{"\u0074oken":"x","Token":"y"}`, `{"Token":"y"}`},
	{`{}`, `{}`},
	{`{"a":{"token":"x"}}`, `{"a":{"token":"x"}}`},
}

func TestWithout(t *testing.T) {
	for _, c := range objects {
		if got := string(without([]byte(c.in), "token")); got != c.want {
			t.Errorf("without(%s) = %q, want %q", c.in, got, c.want)
		}
	}
	if got := string(without([]byte(`{"header":{"token":"x"},"header":{ "a":1,"token":2 },"token":3}`), "header", "token")); got != `{"header":{},"header":{ "a":1 },"token":3}` {
		t.Errorf("below a member it leaves %s", got)
	}
	if got := string(without([]byte(`{"header":"token"}`), "header", "token")); got != `{"header":"token"}` {
		t.Errorf("below a text it leaves %s", got)
	}
}

// A source is as long as the attribute may be; what is no reference becomes one, as long as that allows.
func TestReference(t *testing.T) {
	long := "https://example.com/" + strings.Repeat("x", maxAttribute-20)
	for _, c := range []struct{ in, want string }{
		{"", ""},
		{"/a", "/a"},
		{long, long},
		{long + "y", long},
		{"100 %", "100%20%25"},
		{":", "%3A"},
		{"a b:c", "a%20b%3Ac"},
		{strings.Repeat("%", maxAttribute), strings.Repeat("%25", maxAttribute/3)},
	} {
		if got := reference(c.in); got != c.want {
			t.Errorf("reference(%.40q), of %d bytes, has %d, want %d: %q", c.in, len(c.in), len(got), len(c.want), got)
		}
	}
}

// What stands behind an object makes it none.
func TestParsePayloadReadsOneObject(t *testing.T) {
	for _, raw := range []string{`{"a":1}}`, `{"a":1}]`, `{"a":1}{}`, `{"a":1},`, `[]`, `null`, ``, "\ufeff{}"} {
		if p, err := parsePayload([]byte(raw)); err == nil {
			t.Errorf("parsePayload(%s) = %v", raw, p)
		}
	}
	if _, err := parsePayload([]byte(" {\"a\":1}\r\n ")); err != nil {
		t.Error(err)
	}
}

// Whatever an object holds, what is left of it is the object without the member.
func FuzzWithout(f *testing.F) {
	for _, c := range objects {
		f.Add([]byte(c.in))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		want, err := parsePayload(raw)
		if err != nil {
			return
		}
		delete(want, "token")
		got, err := parsePayload(without(raw, "token"))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", raw, diff)
		}
		if again := without(without(raw, "token"), "token"); string(again) != string(without(raw, "token")) {
			t.Errorf("%s", again)
		}
	})
}
