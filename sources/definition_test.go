// SPDX-License-Identifier: Apache-2.0

package sources_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/sources"
)

var kinds = sources.NewCatalog(
	sources.Kind{Name: "one", Starts: true, ConfigSchema: []byte(`{"type":"object","additionalProperties":false,"required":["url"],
		"properties":{"url":{"type":"string","maxLength":10},"n":{"type":"integer","minimum":1,"maximum":9}}}`),
		Check: func(cfg json.RawMessage) error {
			if strings.Contains(string(cfg), "bad") {
				return fault.Invalidf("/url", "is bad")
			}
			return nil
		}},
	sources.Kind{Name: "two", Hook: true, ConfigSchema: []byte(`{"type":"object"}`)})

func TestDefinitions(t *testing.T) {
	for _, c := range []struct {
		doc  string
		want []fault.Detail
	}{
		{`{"kind":"Source","name":"a","type":"one","config":{"url":"x"},"start":"earliest","labels":{"a":"b"},"status":{"state":"running"},"revision":7}`, nil},
		{`{"name":"a","type":"two"}`, nil},
		{`{"name":"a","type":"two","start":"latest"}`, []fault.Detail{{Pointer: "/start", Detail: "is not for sources of this type: they have no position"}}},
		{`{"name":"a","type":"one","config":{"url":"x"},"start":"soon"}`, []fault.Detail{{Pointer: "/start", Detail: "is not earliest, latest or a time such as 2027-01-02T03:04:05Z"}}},
		{`{"name":"a","type":"three"}`, []fault.Detail{{Pointer: "/type", Detail: "is not one of: one, two"}}},
		{`{"name":"A","type":"two","bus":"","extra":1,"paused":"yes"}`, []fault.Detail{
			{Pointer: "/bus", Detail: "does not match ^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"}, {Pointer: "/extra", Detail: "is not a known field"},
			{Pointer: "/name", Detail: "does not match ^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"}, {Pointer: "/paused", Detail: "is not of type boolean"}}},
		{`{"name":"a","type":"one"}`, []fault.Detail{{Pointer: "/config/url", Detail: "is missing"}}},
		{`{"name":"a","type":"one","config":{"url":"much too long","n":10,"a/b":1}}`, []fault.Detail{
			{Pointer: "/config/a~1b", Detail: "is not a known field"}, {Pointer: "/config/n", Detail: "is more than 9"},
			{Pointer: "/config/url", Detail: "is longer than 10 characters"}}},
		{`{"name":"a","type":"one","config":{"url":"bad"}}`, []fault.Detail{{Pointer: "/config/url", Detail: "is bad"}}},
		{`{"name":"a"`, []fault.Detail{{Detail: "is not JSON"}}},
		{`[]`, []fault.Detail{{Detail: "is not of type object"}}},
	} {
		d, err := sources.ParseDefinition([]byte(c.doc), kinds)
		var fe *fault.Error
		if errors.As(err, &fe); err != nil && fe == nil {
			t.Errorf("%s: %v is no fault", c.doc, err)
			continue
		}
		var got []fault.Detail
		if fe != nil {
			got = fe.Details
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.doc, diff)
		}
		if err == nil && (d.Name != "a" || d.Bus != "default") {
			t.Errorf("%s: %+v", c.doc, d)
		}
	}
}

// What was accepted once is loaded whatever the check says by now.
func TestLoadLeavesTheCheckOut(t *testing.T) {
	if _, err := sources.LoadDefinition([]byte(`{"name":"a","type":"one","config":{"url":"bad"}}`), kinds); err != nil {
		t.Error(err)
	}
}

func FuzzDefinition(f *testing.F) {
	for _, doc := range []string{`{"name":"a","type":"one","config":{"url":"x"}}`, `{"kind":"Source","name":"a","type":"two","start":"latest","paused":true}`, `[1]`, `{"config":null}`} {
		f.Add(doc)
	}
	f.Fuzz(func(t *testing.T, doc string) {
		d, err := sources.ParseDefinition([]byte(doc), kinds)
		if err != nil {
			if fault.KindOf(err) != fault.Invalid {
				t.Errorf("%v is not a complaint", err)
			}
			return
		}
		if _, ok := kinds.Lookup(d.Type); !ok || d.Name == "" || d.Bus == "" || !json.Valid(d.Config) {
			t.Errorf("accepted %+v", d)
		}
		if _, ok := sources.ParseStart(d.Start); !ok {
			t.Errorf("accepted start %q", d.Start)
		}
	})
}
