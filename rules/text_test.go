// SPDX-License-Identifier: Apache-2.0

package rules_test

import (
	"encoding/json"
	"encoding/xml"
	"io"
	"net/url"
	"strings"
	"testing"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/rules"
)

func filler(t testing.TB, value string) *rules.Filler {
	t.Helper()
	data, err := json.Marshal(map[string]any{"v": value, "n": 9.5, "list": []int{1, 2}, "empty": ""})
	if err != nil {
		t.Fatal(err)
	}
	ev := &event.Event{ID: "1", Source: "/s", Type: "t", Subject: "truck/4", DataContentType: "application/json", Data: data}
	f, err := rules.NewFiller(ev, rules.RenderContext{Rule: "r", Bus: "default"}, map[string]string{"key": `k"/ 1`})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// A value never breaks what is around it.
func TestTextEscapes(t *testing.T) {
	const value = "a/b?c=d&e f%\"<'\u00e9\n"
	for _, c := range []struct {
		form rules.Form
		in   string
		want string
	}{
		{rules.FormPlain, "x ${data.v} $${y}", "x " + value + " ${y}"},
		{rules.FormPlain, "${subject}: ${data.n}, ${data.list}, ${data.none}${data.n + 1}", "truck/4: 9.5, [1,2], 10.5"},
		{rules.FormURL, "https://h/${subject}/x?q=${data.v}&k=${secret.key}", "https://h/truck%2F4/x?q=a%2Fb%3Fc%3Dd%26e+f%25%22%3C%27%C3%A9%0A&k=k%22%2F+1"},
		{rules.FormURL, "https://h/a${data.v}", "https://h/aa%2Fb%3Fc=d&e%20f%25%22%3C%27%C3%A9%0A"},
		{rules.FormURL, "https://h?q=${data.empty}", "https://h?q="},
		{rules.FormQuery, "a=${data.v}", "a=a%2Fb%3Fc%3Dd%26e+f%25%22%3C%27%C3%A9%0A"},
		{rules.FormXML, `<a b="${data.v}">${data.v}</a>`, `<a b="a/b?c=d&amp;e f%&#34;&lt;&#39;é&#xA;">a/b?c=d&amp;e f%&#34;&lt;&#39;é&#xA;</a>`},
		{rules.FormJSON, `{"a": ${data.n}, "b": "x${data.v}", "k": "${secret.key}", "none": ${data.none}}`, `{"a": 9.5, "b": "xa/b?c=d&e f%\"<'é\n", "k": "k\"/ 1", "none": null}`},
	} {
		text, err := rules.ParseText(c.in, c.form, []string{"key"})
		if err != nil {
			t.Errorf("%s: %v", c.in, err)
			continue
		}
		if got, err := text.Fill(filler(t, value)); err != nil || string(got) != c.want {
			t.Errorf("%s:\n%s, %v, want\n%s", c.in, got, err, c.want)
		}
	}
	text, err := rules.ParseJSON([]byte(`{"n": "${data.n}", "all": ["${data}"], "k": "${secret.key}", "t": "at ${data.n}"}`), []string{"key"})
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"n":9.5,"all":[{"empty":"","list":[1,2],"n":9.5,"v":"x"}],"k":"k\"/ 1","t":"at 9.5"}`
	if got, err := text.Fill(filler(t, "x")); err != nil || string(got) != want {
		t.Errorf("%s, %v, want %s", got, err, want)
	}
}

// What cannot work is refused when it is written.
func TestTextsThatAreRefused(t *testing.T) {
	for _, c := range []struct {
		form rules.Form
		in   string
		want string
	}{
		{rules.FormURL, "https://${data.host}/", "no event decides where it is sent"},
		{rules.FormURL, "${data.url}", "no event decides where it is sent"},
		{rules.FormURL, "https://h${data.port}/x", "no event decides where it is sent"},
		{rules.FormURL, "https://h:${data.port}?x", "no event decides where it is sent"},
		{rules.FormPlain, "${data.v", "is not closed"},
		{rules.FormPlain, "${secret.other}", "there is no secret of the name other"},
		{rules.FormPlain, "${1 +}", "no expression"},
		{rules.FormJSON, `{"a": ${data.v}`, "is"},
		{rules.FormJSON, `{"${data.v}": 1}`, "cannot be the name of a member"},
		{rules.FormPlain, strings.Repeat("x", rules.MaxTemplate+1), "at most"},
	} {
		if _, err := rules.ParseText(c.in, c.form, []string{"key"}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.60s: %v, want %s", c.in, err, c.want)
		}
	}
	if _, err := rules.ParseJSON([]byte(`{"a": {"b": "${secret.other}"}}`), nil); err == nil || !strings.Contains(err.Error(), "/a/b: there is no secret") {
		t.Errorf("%v", err)
	}
}

// A path of an event that leads elsewhere than the one that was written is no path.
func TestTextKeepsThePath(t *testing.T) {
	for in, value := range map[string]string{
		"https://h/users/${data.v}": "", "https://h/users/${data.v}/x": "..", "https://h/a/${data.v}": ".", "https://h/a/.${data.v}": ".", "https://h/${data.none}/x": "y",
	} {
		text, err := rules.ParseText(in, rules.FormURL, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := text.Fill(filler(t, value)); err == nil || strings.Contains(err.Error(), "users") {
			t.Errorf("%s with %q becomes %s, %v", in, value, got, err)
		}
	}
}

// Whatever an event holds, a URL leads to the same host with as many segments and parameters, JSON and XML stay what they are.
func FuzzText(f *testing.F) {
	for _, s := range []string{"", "x", "..", "a/../b", "?x=1&y=2", "#", "%2e%2e", "\"}", "</a>", "\x00", "é😀", "@evil.example/", "\r\nHost: x"} {
		f.Add(s)
	}
	parse := func(s string, form rules.Form) *rules.Text {
		t, err := rules.ParseText(s, form, nil)
		if err != nil {
			f.Fatal(err)
		}
		return t
	}
	to, doc, mark, form := parse("https://h.example/a/${data.v}/b?x=${data.v}&y=2", rules.FormURL), parse(`{"a":"${data.v}","b":${data.v},"c":1}`, rules.FormJSON),
		parse(`<r a="${data.v}">${data.v}</r>`, rules.FormXML), parse("x=${data.v}&y=2", rules.FormQuery)
	f.Fuzz(func(t *testing.T, value string) {
		value = strings.ToValidUTF8(value, "\ufffd")
		fill := filler(t, value)
		if got, err := to.Fill(fill); err == nil {
			u, err := url.Parse(string(got))
			if err != nil || u.Host != "h.example" || u.User != nil || u.Fragment != "" || strings.Count(u.EscapedPath(), "/") != 3 || len(u.Query()) != 2 || u.Query().Get("x") != value {
				t.Errorf("%q becomes %s, %v", value, got, err)
			}
		} else if value != "" && value != "." && value != ".." {
			t.Errorf("%q: %v", value, err)
		}
		var v struct {
			A, B string
			C    int
		}
		if got, err := doc.Fill(fill); err != nil || json.Unmarshal(got, &v) != nil || v.A != value || v.B != value || v.C != 1 {
			t.Errorf("%q becomes %s, %v", value, got, err)
		}
		if got, err := form.Fill(fill); err != nil {
			t.Errorf("%q: %v", value, err)
		} else if q, err := url.ParseQuery(string(got)); err != nil || q.Get("x") != value || len(q) != 2 {
			t.Errorf("%q becomes %s, %v", value, got, err)
		}
		got, err := mark.Fill(fill)
		if err != nil {
			t.Fatalf("%q: %v", value, err)
		}
		dec, elements := xml.NewDecoder(strings.NewReader(string(got))), 0
		for {
			tok, err := dec.Token()
			if err == io.EOF {
				break
			} else if err != nil {
				t.Fatalf("%q becomes %s, %v", value, got, err)
			}
			if _, ok := tok.(xml.StartElement); ok {
				elements++
			}
		}
		if elements != 1 {
			t.Errorf("%q becomes %s", value, got)
		}
	})
}
