// SPDX-License-Identifier: Apache-2.0

package rules_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/rules"
)

const digest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

func TestFunctionTransform(t *testing.T) {
	ev := &event.Event{ID: "1", Source: "/s", Type: "a", Subject: "b", DataSchema: "https://example.com/s", Data: []byte(`1`)}
	for in, want := range map[string]string{`{"function":"f"}`: "f  a", `{"function":"f","code":"` + digest + `"}`: "f " + digest + " a"} {
		tr, err := rules.ParseTransform([]byte(in))
		if err != nil {
			t.Fatal(err)
		}
		out, err := tr.Apply(ev, rules.RenderContext{Function: func(name, code string, ev *event.Event) ([]byte, string, error) {
			return []byte(name + " " + code + " " + ev.Type), "text/plain", nil
		}})
		if err != nil || string(out.Data) != want || out.DataContentType != "text/plain" || out.Subject != "b" || out.DataSchema != "" {
			t.Errorf("%s makes %+v, %v", in, out, err)
		}
		if _, err := tr.Apply(ev, rules.RenderContext{}); err == nil || !strings.Contains(err.Error(), "functions are not run here") {
			t.Errorf("%s where there are no functions: %v", in, err)
		}
		broken := errors.New("broken")
		if _, err := tr.Apply(ev, rules.RenderContext{Function: func(string, string, *event.Event) ([]byte, string, error) { return nil, "", broken }}); !errors.Is(err, broken) {
			t.Errorf("%s when the function fails: %v", in, err)
		}
	}
	for in, want := range map[string]string{
		`{"function":1}`: "/function", `{"function":"F"}`: "/function", `{"function":"f","code":"x"}`: "/code",
		`{"code":"` + digest + `"}`: "/code", `{"function":"f","path":"$.data"}`: "exactly one",
		`{"constant":1,"code":"` + digest + `"}`: "/code",
	} {
		if _, err := rules.ParseTransform([]byte(in)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want a complaint about %s", in, err, want)
		}
	}
}

// A rule that is pinned reads the same from its document, says which versions, and keeps those that it was given.
func TestPinned(t *testing.T) {
	parse := func(raw string) *rules.Rule {
		t.Helper()
		r, err := rules.ParseRule([]byte(raw))
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	plain := parse(`{"name":"r","pattern":{"type":["a"]},"targets":[{"target":"t"},{"target":"u","transform":"original"}]}`)
	if p, err := plain.Pinned(func(string) string { return digest }); err != nil || p != plain {
		t.Errorf("a rule without functions: %v, %v", p, err)
	}
	other := strings.Replace(digest, "0123", "3210", 1)
	r := parse(`{"name":"r","description":"<&>","pattern":{"type":["a"]},"targets":[{"target":"t","transform":{"function":"f"}},
		{"target":"u","transform":{"function":"g","code":"` + other + `"}},{"target":"v","transform":{"function":"unknown"}}]}`)
	r.Revision = 7
	p, err := r.Pinned(func(name string) string { return map[string]string{"f": digest, "g": digest}[name] })
	if err != nil {
		t.Fatal(err)
	}
	codes := func(r *rules.Rule) (all []string) {
		for _, target := range r.Targets {
			_, err := target.Transform.Apply(&event.Event{}, rules.RenderContext{Function: func(name, code string, _ *event.Event) ([]byte, string, error) {
				all = append(all, name+" "+code)
				return nil, "", nil
			}})
			if err != nil {
				t.Error(err)
			}
		}
		return all
	}
	want := "f " + digest + ",g " + other + ",unknown "
	for _, r := range []*rules.Rule{p, parse(string(p.Raw))} {
		if got := strings.Join(codes(r), ","); got != want || r.Description != "<&>" {
			t.Errorf("versions %s, want %s", got, want)
		}
	}
	if got, all := strings.Join(r.Code(), ","), strings.Join(p.Code(), ","); got != other || all != digest+","+other {
		t.Errorf("the rule pins %s, and pinned %s", got, all)
	}
	if p.Revision != 7 || strings.Join(p.Functions(), ",") != "f,g,unknown" {
		t.Errorf("revision %d, functions %v", p.Revision, p.Functions())
	}
}
