// SPDX-License-Identifier: Apache-2.0

package rules_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/rules"
)

func angles(s string) string { return strings.NewReplacer("<", "&lt;", ">", "&gt;").Replace(s) }

func note() *event.Event {
	return &event.Event{ID: "1", Source: "/s", Type: "com.acme", Subject: "a <b>", DataContentType: "application/json",
		Data: []byte(`{"n":41.50,"s":"<x> \"y\"\n","o":{"k":"<z>"},"list":[1,"<2>"]}`)}
}

func fill(t *rules.Text, ev *event.Event, rc rules.RenderContext) ([]byte, error) {
	f, err := rules.NewFiller(ev, rc, nil)
	if err != nil {
		return nil, err
	}
	return t.Fill(f)
}

func TestMessage(t *testing.T) {
	for _, tt := range []struct{ name, template, plain, escaped string }{
		{"words", "no placeholder <b>", "no placeholder <b>", "no placeholder <b>"},
		{"values", "${type}: ${subject} ${data.n}", "com.acme: a <b> 41.50", "com.acme: a &lt;b&gt; 41.50"},
		{"what looks like JSON is text", "[${type}]", "[com.acme]", "[com.acme]"},
		{"so does an object", `{"a": ${data.n}}`, `{"a": 41.50}`, `{"a": 41.50}`},
		{"an object", "${data.o}", `{"k":"<z>"}`, `{"k":"&lt;z&gt;"}`},
		{"an expression", "${upper(data.s)}", "<X> \"Y\"\n", "&lt;X&gt; \"Y\"\n"},
		{"nothing", "[${data.no}]", "[]", "[]"},
		{"variables", "${rialto.rule} on ${rialto.bus}", "r on b", "r on b"},
		{"a literal", "$${x} <", "${x} <", "${x} <"},
		{"empty", "", "", ""},
	} {
		for want, escape := range map[string]rules.Escape{tt.plain: nil, tt.escaped: angles} {
			if tt.plain == tt.escaped && escape == nil {
				continue
			}
			text, err := rules.ParseMessage(tt.template, escape)
			if err != nil {
				t.Errorf("%s: %v", tt.name, err)
				continue
			}
			got, err := fill(text, note(), rules.RenderContext{Rule: "r", Bus: "b"})
			if err != nil || string(got) != want {
				t.Errorf("%s: %q, %v; want %q", tt.name, got, err, want)
			}
		}
	}
}

// Only the strings that are asked for are escaped, and they stay strings.
func TestMessageJSON(t *testing.T) {
	const doc = `[{"text":"${data.s}!","url":"${data.s}"},{"n":"${data.n}","text":"${data.n}","deep":[{"text":"<i> ${data.o} ${subject}"}]},7,"${data.list}"]`
	text, err := rules.ParseMessageJSON([]byte(doc), func(pointer string) rules.Escape {
		if strings.HasSuffix(pointer, "/text") {
			return angles
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	got, err := fill(text, note(), rules.RenderContext{})
	const want = `[{"text":"&lt;x&gt; \"y\"\n!","url":"<x> \"y\"\n"},{"n":41.50,"text":"41.50","deep":[{"text":"<i> {\"k\":\"&lt;z&gt;\"} a &lt;b&gt;"}]},7,[1,"<2>"]]`
	if err != nil || string(got) != want || !json.Valid(got) {
		t.Errorf("%s, %v\nwant %s", got, err, want)
	}
}

func TestMessageRefused(t *testing.T) {
	for template, want := range map[string]string{
		"${data.x":                               "not closed",
		"${}":                                    "empty",
		"${now()}":                               "same event must give the same",
		"${subject.x}":                           "one value",
		strings.Repeat("x", rules.MaxTemplate+1): "32768",
	} {
		if _, err := rules.ParseMessage(template, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40s: %v, want %s", template, err, want)
		}
		doc, err := json.Marshal(map[string]any{"a": []string{template}})
		if err != nil {
			t.Fatal(err)
		}
		_, err = rules.ParseMessageJSON(doc, func(string) rules.Escape { return nil })
		if len(template) > rules.MaxTemplate {
			checkRefused(t, err, "", want)
		} else {
			checkRefused(t, err, "/a/0", want)
		}
	}
	_, err := rules.ParseMessageJSON([]byte(`{"${data.k}":1}`), nil)
	checkRefused(t, err, "/${data.k}", "name of a member")
	_, err = rules.ParseMessageJSON([]byte(`{"a":`), nil)
	checkRefused(t, err, "", "")
}

// What a value is changes nothing of the document around it.
func FuzzMessageJSON(f *testing.F) {
	f.Add(`{"a":"${data}","b":["x ${data} y","${data.x}"]}`, `"<b> \"q\" \\"`)
	f.Add(`"${subject}"`, `{"x":[1,null]}`)
	f.Add(`["$${","${upper(subject)}"]`, `"\ud800"`)
	f.Fuzz(func(t *testing.T, doc, data string) {
		text, err := rules.ParseMessageJSON([]byte(doc), func(string) rules.Escape { return angles })
		if err != nil {
			return
		}
		ev := &event.Event{ID: "1", Source: "/s", Type: "t", Subject: "<s>", DataContentType: "application/json", Data: []byte(data)}
		got, err := fill(text, ev, rules.RenderContext{})
		if err != nil {
			return
		}
		if !json.Valid(got) {
			t.Fatalf("%s with %s gives %s", doc, data, got)
		}
		if !strings.Contains(doc, "<") && !strings.Contains(doc, `\u`) && strings.Contains(string(got), "<") {
			t.Fatalf("%s with %s gives %s, which is not escaped", doc, data, got)
		}
	})
}
