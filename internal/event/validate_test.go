// SPDX-License-Identifier: Apache-2.0

package event_test

import (
	"strings"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
)

func TestValidate(t *testing.T) {
	for name, tt := range map[string]struct {
		change    func(*event.Event)
		attribute string
	}{
		"no id":          {func(e *event.Event) { e.ID = "" }, "id"},
		"no source":      {func(e *event.Event) { e.Source = "" }, "source"},
		"no type":        {func(e *event.Event) { e.Type = "" }, "type"},
		"long id":        {func(e *event.Event) { e.ID = strings.Repeat("x", 1025) }, "id"},
		"long source":    {func(e *event.Event) { e.Source = strings.Repeat("x", 1025) }, "source"},
		"long type":      {func(e *event.Event) { e.Type = strings.Repeat("x", 1025) }, "type"},
		"long media":     {func(e *event.Event) { e.DataContentType = "a/" + strings.Repeat("x", 1023) }, "datacontenttype"},
		"control":        {func(e *event.Event) { e.Type = "a\x7f" }, "type"},
		"noncharacter":   {func(e *event.Event) { e.Subject = "\ufdd0" }, "subject"},
		"not UTF-8":      {func(e *event.Event) { e.Subject = "\xc0\xa0" }, "subject"},
		"relative":       {func(e *event.Event) { e.DataSchema = "//example.com/s" }, "dataschema"},
		"year":           {func(e *event.Event) { e.Time = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC) }, "time"},
		"int":            {func(e *event.Event) { e.Extensions = []event.Attribute{{Name: "a", Value: 5}} }, "a"},
		"nil":            {func(e *event.Event) { e.Extensions = []event.Attribute{{Name: "a"}} }, "a"},
		"unsorted":       {func(e *event.Event) { e.Extensions = []event.Attribute{{"b", "1"}, {"a", "1"}} }, "a"},
		"twice":          {func(e *event.Event) { e.Extensions = []event.Attribute{{"a", "1"}, {"a", "1"}} }, "a"},
		"core name":      {func(e *event.Event) { e.Extensions = []event.Attribute{{"subject", "1"}} }, "subject"},
		"reserved name":  {func(e *event.Event) { e.Extensions = []event.Attribute{{"data", "1"}} }, "data"},
		"name":           {func(e *event.Event) { e.Extensions = []event.Attribute{{"data_base64", "1"}} }, "data_base64"},
		"secret in name": {func(e *event.Event) { e.Extensions = []event.Attribute{{"A\nB" + strings.Repeat("c", 100), "1"}} }, "a?b" + strings.Repeat("c", 61)},
	} {
		t.Run(name, func(t *testing.T) {
			e := minimal(tt.change)
			if f := fault(t, e.Validate(event.Limits{})); f.Attribute != tt.attribute {
				t.Errorf("refused (%v) at %q, want %q", f, f.Attribute, tt.attribute)
			}
		})
	}
	e := records["all attributes"].Event
	if err := e.Validate(event.Limits{}); err != nil {
		t.Error(err)
	}
}

func TestSourceIsAURIReference(t *testing.T) {
	for _, s := range []string{"/", "/a/b", "a", "a/b:c", "?q", "#f", "urn:x", "urn:", "mailto:a@b.c", "tag:a,2005:b", "//h", "//u:p@h:80/p?q#f",
		"https://[::1]:8080/a", "http://[v1.a:b]", "http://h:/", "http://", "a%20b", "1-555-123-4567", "./a:b", "x+y-z.1:a", "a?/?:@#/?",
		"https://example.com/(a);b=1,2!$&'*+"} {
		e := minimal(func(e *event.Event) { e.Source = s })
		if err := e.Validate(event.Limits{}); err != nil {
			t.Errorf("source %q: %v", s, err)
		}
	}
	for _, s := range []string{" ", "a b", "a\"b", "a<b", "a\\b", "a^b", "a`b", "a{b}", "a|b", "%", "%a", "%zz", "a%2", "1:b", ":b", "a_b:c", "é", "#a#b",
		"http://[::1", "http://[]", "http://h:8a", "http://a@b@c", "http://h[1]", "/a[1]", "http://%zz/", "http://u%@h", "http://[::1]x"} {
		e := minimal(func(e *event.Event) { e.Source = s })
		if err := e.Validate(event.Limits{}); err == nil {
			t.Errorf("source %q was accepted", s)
		}
	}
	for _, s := range []string{"https://example.com/s", "urn:a:b", "a:"} {
		e := minimal(func(e *event.Event) { e.DataSchema = s })
		if err := e.Validate(event.Limits{}); err != nil {
			t.Errorf("dataschema %q: %v", s, err)
		}
	}
}

func TestCanonicalPanicsForOtherTypes(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("Canonical of a float64 gave a value")
		}
	}()
	_ = event.Attribute{Name: "a", Value: 1.5}.Canonical()
}

func TestErrorPointer(t *testing.T) {
	for want, e := range map[string]event.Error{
		"":               {Index: -1},
		"/subject":       {Attribute: "subject", Index: -1},
		"/3":             {Index: 3},
		"/3/a~1b~0":      {Attribute: "a/b~", Index: 3},
		"/0/data_base64": {Attribute: "data_base64"},
	} {
		if got := e.Pointer(); got != want {
			t.Errorf("Pointer() = %q, want %q", got, want)
		}
	}
}

func TestPosition(t *testing.T) {
	p := event.Position{Stream: "EV_default", Seq: 7}
	text, err := p.MarshalText()
	if err != nil || string(text) != "EV_default:7" {
		t.Fatalf("MarshalText() = %s, %v", text, err)
	}
	var back event.Position
	if err := back.UnmarshalText(text); err != nil || back != p {
		t.Errorf("UnmarshalText(%s) = %v, %v", text, back, err)
	}
	if p.IsZero() || !(event.Position{}).IsZero() {
		t.Error("IsZero tells the wrong one")
	}
	for _, s := range []string{"", "EV:0", ":1", "EV", "EV:-1", "EV:1x", "EV:18446744073709551616"} {
		if _, err := event.ParsePosition(s); err == nil {
			t.Errorf("ParsePosition(%q) was accepted", s)
		}
	}
}

func TestKeyTellsSourceFromID(t *testing.T) {
	a := event.Event{Source: "/a", ID: "b"}
	b := event.Event{Source: "/", ID: "ab"}
	if a.Key() == b.Key() {
		t.Error("two identities have one key")
	}
	if c := (event.Event{Source: "/a", ID: "b", Type: "t"}); a.Key() != c.Key() {
		t.Error("the key depends on more than source and id")
	}
}
