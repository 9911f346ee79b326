// SPDX-License-Identifier: Apache-2.0

package notice_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/rules"
	"github.com/rialto-bridge/rialto/targets"
	"github.com/rialto-bridge/rialto/targets/notice"
)

func TestTitleAndFacts(t *testing.T) {
	e := &event.Event{ID: "1\n2", Source: "/boxes", Type: "com.acme.warm", Subject: "box\t 17\r\n", Time: time.Date(2027, 3, 1, 12, 0, 0, 5, time.FixedZone("", 3600))}
	d := targets.Delivery{Event: e, Bus: "devices", Rule: "too-warm"}
	if got := notice.Title(e); got != "com.acme.warm: box 17" {
		t.Errorf("Title = %q", got)
	}
	want := []notice.Fact{{"Source", "/boxes"}, {"Subject", "box 17"}, {"Time", "2027-03-01T11:00:00Z"}, {"Rule", "devices/too-warm"}, {"Event", "1 2"}}
	if diff := cmp.Diff(want, notice.Facts(d)); diff != "" {
		t.Error(diff)
	}
	bare := targets.Delivery{Event: &event.Event{ID: "1", Source: "/s", Type: "t"}}
	if diff := cmp.Diff([]notice.Fact{{"Source", "/s"}, {"Event", "1"}}, notice.Facts(bare)); diff != "" || notice.Title(bare.Event) != "t" {
		t.Error(diff, notice.Title(bare.Event))
	}
}

func TestData(t *testing.T) {
	for _, tt := range []struct{ kind, data, want string }{
		{"application/json", `{"a":[1,2],"b":"<x>"}`, "{\n  \"a\": [\n    1,\n    2\n  ],\n  \"b\": \"<x>\"\n}"},
		{"application/vnd.x+json; charset=utf-8", `1`, "1"},
		{"", `{"a":1}`, "{\n  \"a\": 1\n}"},
		{"", "words", "words"},
		{"application/json", "not {json", "not {json"},
		{"text/plain", "one\r\ntwo\rthree\x1b\n\n", "8 bytes"},
		{"text/plain", "one\r\ntwo\rthree\u0085\n \n", "one\ntwo\nthree"},
		{"image/png", "\x89PNG\r\n\x1a\n", "8 bytes of image/png"},
		{"", "\x00", "1 bytes of an unknown type"},
		{"application/json", "", ""},
	} {
		got := notice.Data(&event.Event{DataContentType: tt.kind, Data: []byte(tt.data)}, 1000)
		if tt.want == "8 bytes" {
			tt.want = "17 bytes of text/plain"
		}
		if got != tt.want {
			t.Errorf("%s %q: %q, want %q", tt.kind, tt.data, got, tt.want)
		}
	}
}

func TestCut(t *testing.T) {
	for _, tt := range []struct {
		s     string
		limit int
		want  string
	}{
		{"abc", 3, "abc"}, {"abcdef", 5, "ab…"}, {"ééé", 5, "é…"}, {"ééé", 4, "…"}, {"ééé", 2, "é"}, {"ééé", 1, ""}, {"abc", 0, ""},
		{"a&amp;b&amp;c", 12, "a&amp;b…"}, {"a & b; c d e f g", 8, "a & b…"},
	} {
		if got := notice.Cut(tt.s, tt.limit); got != tt.want {
			t.Errorf("Cut(%q, %d) = %q, want %q", tt.s, tt.limit, got, tt.want)
		}
	}
	for _, tt := range []struct {
		s     string
		limit int
		want  string
	}{{"ééé", 3, "ééé"}, {"éééé", 3, "éé…"}, {"éé", 1, "…"}, {"éé", 0, ""}, {"ab&amp;cd", 6, "ab…"}} {
		if got := notice.CutRunes(tt.s, tt.limit); got != tt.want {
			t.Errorf("CutRunes(%q, %d) = %q, want %q", tt.s, tt.limit, got, tt.want)
		}
	}
}

func TestParts(t *testing.T) {
	for _, tt := range []struct {
		s        string
		limit, n int
		want     []string
	}{
		{"", 10, 3, nil},
		{"one\ntwo", 10, 3, []string{"one\ntwo"}},
		{"one\ntwo\nthree", 8, 3, []string{"one\ntwo", "three"}},
		{"abcdefghij", 4, 3, []string{"abcd", "efgh", "ij"}},
		{"abcdefghijklm", 4, 2, []string{"abcd", "e…"}},
		{"éééé", 3, 9, []string{"é", "é", "é", "é"}},
		{"a\nbcdefg", 4, 9, []string{"a", "bcde", "fg"}},
	} {
		if diff := cmp.Diff(tt.want, notice.Parts(tt.s, tt.limit, tt.n)); diff != "" {
			t.Errorf("Parts(%q, %d, %d): %s", tt.s, tt.limit, tt.n, diff)
		}
	}
}

func FuzzCut(f *testing.F) {
	f.Add("one &amp; two\nthree é😀", 7, 3)
	f.Fuzz(func(t *testing.T, s string, limit, n int) {
		if !utf8.ValidString(s) || limit < 0 || limit > 1000 || n < 1 || n > 20 {
			return
		}
		if got := notice.Cut(s, limit); len(got) > limit || !utf8.ValidString(got) || len(s) <= limit && got != s {
			t.Fatalf("Cut(%q, %d) = %q", s, limit, got)
		}
		if got := notice.CutRunes(s, limit); utf8.RuneCountInString(got) > limit || !utf8.ValidString(got) {
			t.Fatalf("CutRunes(%q, %d) = %q", s, limit, got)
		}
		parts := notice.Parts(s, limit, n)
		if len(parts) > n {
			t.Fatalf("Parts(%q, %d, %d) = %q", s, limit, n, parts)
		}
		for _, p := range parts {
			if len(p) > limit || !utf8.ValidString(p) {
				t.Fatalf("Parts(%q, %d, %d) = %q", s, limit, n, parts)
			}
		}
		for _, clean := range []string{notice.Line(s), strings.NewReplacer("\n", "", "\t", "").Replace(notice.Block(s))} {
			if strings.ContainsFunc(clean, unicode.IsControl) {
				t.Fatalf("%q has control characters", clean)
			}
		}
	})
}

func TestApart(t *testing.T) {
	if got := notice.Apart("a](b <@all> ```", "](", "<@", "```"); got != "a]\u200b(b <\u200b@all> `\u200b``" {
		t.Errorf("%q", got)
	}
}

func TestRender(t *testing.T) {
	text, err := rules.ParseMessage("${rialto.bus}/${rialto.rule}: ${data.x}", nil)
	if err != nil {
		t.Fatal(err)
	}
	d := targets.Delivery{Bus: "b", Rule: "r", Event: &event.Event{ID: "1", Source: "/s", Type: "t", Data: []byte(`{"x":"\ud800"}`)}}
	if got, err := notice.NewDraft(d).Render(text); err != nil || got != "b/r: \uFFFD" {
		t.Errorf("%q, %v", got, err)
	}
	fails, err := rules.ParseMessage("${data.x - 1}", nil)
	if err != nil {
		t.Fatal(err)
	}
	var te *targets.Error
	if _, err := notice.NewDraft(d).Render(fails); !errors.As(err, &te) || te.Reason != targets.ReasonTransform || !te.Permanent {
		t.Errorf("%v", err)
	}
}

// An event is read once for all the templates of a message, and not at all for those that take nothing of it.
func TestDraftReadsOnce(t *testing.T) {
	static, err := rules.ParseMessage("ops@example.com", nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err := rules.ParseMessage("${data.x}", nil)
	if err != nil {
		t.Fatal(err)
	}
	data := []byte(`{"pad":[` + strings.Repeat(`"x",`, 50_000) + `"x"],"x":1}`)
	used := func(texts ...*rules.Text) uint64 {
		t.Helper()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		d := notice.NewDraft(targets.Delivery{Event: &event.Event{ID: "1", Source: "/s", Type: "t", Data: data}})
		for _, text := range texts {
			if _, err := d.Render(text); err != nil {
				t.Fatal(err)
			}
		}
		runtime.ReadMemStats(&after)
		return after.TotalAlloc - before.TotalAlloc
	}
	one, many := used(text), used(slices.Repeat([]*rules.Text{text}, 100)...)
	if none := used(slices.Repeat([]*rules.Text{static}, 100)...); one < 200_000 || none > one/10 || many > 2*one {
		t.Errorf("one template takes %d bytes of memory, a hundred %d, a hundred without placeholders %d", one, many, none)
	}
}

func TestForm(t *testing.T) {
	blocked := func(string) error { return errors.New("is not allowed") }
	for _, tt := range []struct {
		name string
		read func(f *notice.Form)
		want []string
	}{
		{"nothing", func(f *notice.Form) {
			if f.Secret("/a", nil, nil) || f.Secret("/a", json.RawMessage("null"), nil) || f.Text("/a", "", nil) != nil || f.JSON("/a", nil, nil) != nil {
				t.Error("something was read")
			}
		}, nil},
		{"a hook", func(f *notice.Form) {
			f.Hook("/url", json.RawMessage(`{"value": "https://example.com/x"}`), nil)
			f.Hook("/url", json.RawMessage(`{"value": "http://127.0.0.1/x"}`), nil) // loaded: it was checked before
			f.Hook("/url", json.RawMessage(`{"ref": "env:A"}`), blocked)
		}, nil},
		{"bad hooks", func(f *notice.Form) {
			f.Hook("/a", json.RawMessage(`{"value": "https://example.com/x"}`), blocked)
			f.Hook("/b", json.RawMessage(`{"value": "ftp://example.com/x"}`), nil)
			f.Hook("/c", json.RawMessage(`"https://example.com/x"`), nil)
		}, []string{"/a", "/b", "/c"}},
		{"templates", func(f *notice.Form) {
			f.Text("/a", "${", nil)
			f.JSON("/b", json.RawMessage(`{"x":["${"]}`), func(string) rules.Escape { return nil })
			f.Complain("/c", "is %d", 1)
		}, []string{"/a", "/b/x/0", "/c"}},
	} {
		f := &notice.Form{}
		tt.read(f)
		var got []string
		for _, d := range f.Details {
			got = append(got, d.Pointer)
		}
		if !slices.Equal(got, tt.want) || (f.Err() == nil) != (len(tt.want) == 0) || tt.want != nil && fault.KindOf(f.Err()) != fault.Invalid {
			t.Errorf("%s: %v", tt.name, f.Err())
		}
		for _, s := range f.Slots { // what is asked when it is resolved
			if err := s.Check("http://10.0.0.1/x"); err != nil {
				t.Errorf("%s: an address: %v", tt.name, err)
			}
			if s.Check("10.0.0.1") == nil || s.Check("https://user:pass@example.com/") == nil {
				t.Errorf("%s: what is no URL is taken", tt.name)
			}
		}
	}
}

func TestHide(t *testing.T) {
	u, err := url.Parse("https://hooks.example.com/services/T0/abcdefghijklmnop?access_token=a%2Fb%2Fc&x=1")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{u.String(), "/services/T0/abcdefghijklmnop?access_token=a%2Fb%2Fc&x=1", "abcdefghijklmnop", "a%2Fb%2Fc", `a\/b\/c`, "secret", "a/b/c"}
	if diff := cmp.Diff(want, notice.Hide(u, "secret", "x")); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"k%22%3C+%26", "k%22%3C%20&", `k\"\u003c \u0026`, `k\"< &`, "k&#34;&lt; &amp;", "k&quot;&lt; &amp;", `k"< &`}, notice.Forms(`k"< &`), cmpopts.SortSlices(strings.Compare)); diff != "" {
		t.Error(diff)
	}
}

func TestPlain(t *testing.T) {
	for in, want := range map[string]string{
		"a\nb":                   "a\n\u200bb",
		"# a":                    "\u200b# a",
		"[x](y) ![z](w)":         "[\u200bx]\u200b(y) !\u200b[\u200bz]\u200b(w)",
		"<font> a < b":           "<\u200bfont> a <\u200b b",
		"```":                    "\u200b`\u200b`\u200b`\u200b",
		"plain *words* of a_b_c": "plain *words* of a_b_c",
		"":                       "",
		"［x］（y）！＜@all＞〈":         "［\u200bx］\u200b（y）！\u200b＜\u200b@all＞〈\u200b",
	} {
		if got := notice.Plain(in); got != want {
			t.Errorf("Plain(%q) = %q, want %q", in, got, want)
		}
	}
	for _, tt := range []struct {
		s     string
		limit int
		want  string
	}{{"", 100, ""}, {"a", 100, "```\na\n```"}, {"a```b", 100, "```\na`\u200b`\u200b`\u200bb\n```"}, {"````", 100, "```\n`\u200b`\u200b`\u200b`\u200b\n```"}, {"abcdefgh", 13, "```\nab…\n```"}, {"abc", 8, ""}} {
		if got := notice.Fence(tt.s, tt.limit); got != tt.want {
			t.Errorf("Fence(%q, %d) = %q, want %q", tt.s, tt.limit, got, tt.want)
		}
	}
}

// Values that stand side by side make no more of each other than one alone.
func TestPlainSideBySide(t *testing.T) {
	for _, values := range [][]string{{"[x]", "(https://evil.example)"}, {"!", "[x", "]", "(y)"}, {"<", "@all>"}, {"``", "`", "``", "``"}, {"[x", "]", "", "(y)"}} {
		all := ""
		for _, v := range values {
			all += notice.Plain(v)
		}
		for _, mark := range []string{"](", "![", "<@", "``"} {
			if strings.Contains(all, mark) {
				t.Errorf("%q make %q", values, all)
			}
		}
	}
}

func TestRefused(t *testing.T) {
	known := map[int]notice.Refusal{1: {Reason: targets.ReasonAuth}, 2: {Reason: targets.ReasonStatus, Passes: true, Rest: time.Minute}}
	for code, want := range map[int]targets.Error{1: {Reason: targets.ReasonAuth, RetryAfter: time.Minute}, 2: {Reason: targets.ReasonStatus, RetryAfter: time.Minute}, 3: {Reason: targets.ReasonStatus}} {
		got := notice.Refused("X", code, "no", known)
		if got.Reason != want.Reason || got.Permanent != want.Permanent || got.RetryAfter != want.RetryAfter || !strings.Contains(got.Error(), "X says") {
			t.Errorf("%d: %+v", code, got)
		}
	}
	if e := notice.Unreadable("X"); e.Reason != targets.ReasonProtocol || e.Permanent {
		t.Errorf("%+v", e)
	}
}

// A deep nesting is not laid out as deep: it would be thousands of times as long as the data.
func TestDataDeep(t *testing.T) {
	deep := func(n int) *event.Event {
		return &event.Event{Data: []byte(strings.Repeat("[", n) + "1" + strings.Repeat("]", n))}
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for _, n := range []int{1, 40, 900, 9000} {
		if got := notice.Data(deep(n), 256<<10); len(got) > 8000+2*n {
			t.Errorf("%d levels: %d bytes", n, len(got))
		}
	}
	wide := strings.Repeat(strings.Repeat("[", 900)+"1"+strings.Repeat("]", 900)+",", 500) // 0.9 MB
	if got := notice.Data(&event.Event{Data: []byte("[" + wide + "1]")}, 4096); len(got) > 4096 || !strings.HasSuffix(got, "…") {
		t.Errorf("%d bytes, at the end %q", len(got), got[max(0, len(got)-10):])
	}
	runtime.ReadMemStats(&after)
	if used := after.TotalAlloc - before.TotalAlloc; used > 16<<20 {
		t.Errorf("%d bytes of memory were used", used)
	}
	if got, want := notice.Data(deep(34), 1<<20), "\n"+strings.Repeat("  ", 32)+"[[1]]\n"; !strings.Contains(got, want) {
		t.Errorf("34 levels: %q", got)
	}
}

func FuzzData(f *testing.F) {
	for _, seed := range []string{`{"a":[1,2, {}],"b":"<x> \" \\ ","c":[ ]}`, "words\r\n", "\x89PNG", `"` + "a\u0085\u007f" + `"`, strings.Repeat("[", 40) + strings.Repeat("]", 40)} {
		f.Add([]byte(seed), 1000)
		f.Add([]byte(seed), 12)
	}
	f.Fuzz(func(t *testing.T, data []byte, limit int) {
		limit = 8 + (limit&0xffff+0x10000)&0xffff
		got := notice.Data(&event.Event{Data: data}, limit)
		if len(got) > limit || !utf8.ValidString(got) {
			t.Fatalf("%d bytes of %d, %q", len(got), limit, got)
		}
		if !json.Valid(data) || !utf8.Valid(data) {
			return
		}
		var indented, compact bytes.Buffer
		if err := json.Indent(&indented, data, "", "  "); err != nil {
			t.Fatal(err)
		}
		if err := json.Compact(&compact, data); err != nil {
			t.Fatal(err)
		}
		want := notice.Block(indented.String())
		switch {
		case strings.HasSuffix(got, "…"): // cut off
		case !strings.Contains(want, strings.Repeat("  ", 33)):
			if got != want {
				t.Fatalf("%q, want %q", got, want)
			}
		case !strings.ContainsFunc(compact.String(), unicode.IsControl):
			var again bytes.Buffer
			if err := json.Compact(&again, []byte(got)); err != nil || again.String() != compact.String() {
				t.Fatalf("%q is not %q", got, compact.String())
			}
		}
	})
}
