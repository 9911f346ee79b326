// SPDX-License-Identifier: Apache-2.0

package schema_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/schema"
)

func TestForms(t *testing.T) {
	f, err := schema.CompileForm([]byte(`{"type":"object","required":["url"],"additionalProperties":false,"properties":{
		"url":{"type":"string","maxLength":10},"n":{"type":"integer","minimum":1,"maximum":9},"mode":{"enum":["a","b"]},"fixed":{"const":1},
		"list":{"type":"array","minItems":1,"maxItems":2,"uniqueItems":true},"never":false,"name":{"pattern":"^[a-z]+$"},
		"key":{"oneOf":[{"type":"string"},{"type":"object","required":["ref"],"minProperties":1,"maxProperties":1}]}}}`))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		doc  string
		want []fault.Detail
	}{
		{`{"url":"x","n":9,"mode":"a","list":[1,2],"key":"k","fixed":1,"name":"n"}`, nil},
		{`{"url":"x"`, []fault.Detail{{Pointer: "/config", Detail: "is not JSON"}}},
		{`[]`, []fault.Detail{{Pointer: "/config", Detail: "is not of type object"}}},
		{`{"url":"secret that is long","a/b":1,"n":0}`, []fault.Detail{{Pointer: "/config/a~1b", Detail: "is not a known field"},
			{Pointer: "/config/n", Detail: "is less than 1"}, {Pointer: "/config/url", Detail: "is longer than 10 characters"}}},
		{`{"n":10,"mode":"c","fixed":2,"name":"N"}`, []fault.Detail{{Pointer: "/config/fixed", Detail: "is not 1"}, {Pointer: "/config/mode", Detail: "is not one of: a, b"},
			{Pointer: "/config/n", Detail: "is more than 9"}, {Pointer: "/config/name", Detail: "does not match ^[a-z]+$"}, {Pointer: "/config/url", Detail: "is missing"}}},
		{`{"url":"x","list":[],"never":1}`, []fault.Detail{{Pointer: "/config/list", Detail: "has fewer than 1 items"}, {Pointer: "/config/never", Detail: "does not go with the other fields here"}}},
		{`{"url":"x","list":[1,1]}`, []fault.Detail{{Pointer: "/config/list", Detail: "has an item twice"}}},
		{`{"url":"x","list":[1,2,3]}`, []fault.Detail{{Pointer: "/config/list", Detail: "has more than 2 items"}}},
		// Of alternatives the one speaks that was meant.
		{`{"url":"x","key":{"a":1}}`, []fault.Detail{{Pointer: "/config/key/ref", Detail: "is missing"}}},
		{`{"url":"x","key":1}`, []fault.Detail{{Pointer: "/config/key", Detail: "has none of the allowed forms"}}},
	} {
		if diff := cmp.Diff(c.want, f.Complaints("/config", []byte(c.doc))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.doc, diff)
		}
	}
	for _, bad := range []string{`{`, `{"type":"nothing"}`, `{"$ref":"https://example.com/s.json"}`, `{"$ref":"file:///etc/passwd"}`} {
		if _, err := schema.CompileForm([]byte(bad)); err == nil {
			t.Errorf("%s is a schema", bad)
		}
	}
}
