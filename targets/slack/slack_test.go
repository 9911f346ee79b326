// SPDX-License-Identifier: Apache-2.0

package slack_test

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	goslack "github.com/slack-go/slack"
	"go.uber.org/goleak"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/targets"
	"github.com/rialto-bridge/rialto/targets/slack"
	"github.com/rialto-bridge/rialto/targets/targettest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func kind() targets.Kind { return slack.Kind(targettest.Guard().CheckURL) }

func TestSlackIsATarget(t *testing.T) {
	t.Run("webhook", func(t *testing.T) {
		targettest.Run(t, targettest.Subject{
			Kind:   kind(),
			Config: func(url string) string { return `{"url": {"value": "` + url + `"}}` },
			Accept: func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok") },
		})
	})
	t.Run("token", func(t *testing.T) {
		targettest.Run(t, targettest.Subject{
			Kind: kind(),
			Config: func(url string) string {
				return `{"token": {"value": "xoxb-1"}, "channel": "C1", "apiUrl": "` + url + `"}`
			},
			Accept: func(w http.ResponseWriter, _ *http.Request) {
				io.WriteString(w, `{"ok":true,"ts":"1503435956.000247"}`)
			},
		})
	})
}

func target(t testing.TB, config string) targets.Target {
	t.Helper()
	return targettest.Make(t, kind(), config, targettest.Env(t))
}

// message delivers an event and returns what the far side was sent, read by Slack's own form of a message.
func message(t *testing.T, f *targettest.Sink, config string, e *event.Event) goslack.WebhookMessage {
	t.Helper()
	d := targettest.Delivery()
	d.Event = e
	if res, err := target(t, config).Deliver(t.Context(), d); err != nil {
		t.Fatalf("%+v, %v", res, err)
	}
	var m goslack.WebhookMessage
	if err := json.Unmarshal(f.Body, &m); err != nil {
		t.Fatalf("%v: %s", err, f.Body)
	}
	return m
}

// hostile is an event that wants to be more than text.
func hostile() *event.Event {
	return &event.Event{ID: "1", Source: "/<!here>", Type: "com.acme.warm", Subject: "<!channel> & <https://evil.example|click>", DataContentType: "application/json",
		Time: time.Date(2027, 3, 1, 12, 0, 0, 0, time.UTC), Data: []byte(`{"t":9.5,"who":"<@U1> ` + "```" + ` \"q\"","list":["a","b"]}`)}
}

const escaped = "&lt;!channel&gt; &amp; &lt;https://evil.example|click&gt;"

func TestDefaultMessage(t *testing.T) {
	f := targettest.NewSink(t, "ok")
	m := message(t, f, `{"url": {"value": "`+f.URL+`/services/T0/B0/XXXXXXXXXXXXXXXXXXXXXXXX"}}`, hostile())
	if f.Path != "/services/T0/B0/XXXXXXXXXXXXXXXXXXXXXXXX" || f.Header.Get("Content-Type") != "application/json; charset=utf-8" || f.Header.Get("Authorization") != "" {
		t.Errorf("%s %v", f.Path, f.Header)
	}
	if m.Text != "com.acme.warm: "+escaped || m.UnfurlLinks || m.UnfurlMedia || m.Channel != "" {
		t.Errorf("%+v", m)
	}
	if len(m.Blocks.BlockSet) != 3 {
		t.Fatalf("%d blocks: %s", len(m.Blocks.BlockSet), f.Body)
	}
	header := m.Blocks.BlockSet[0].(*goslack.HeaderBlock)
	if header.Text.Type != goslack.PlainTextType || header.Text.Text != m.Text {
		t.Errorf("header %+v", header.Text)
	}
	var fields []string
	for _, field := range m.Blocks.BlockSet[1].(*goslack.SectionBlock).Fields {
		fields = append(fields, field.Text)
	}
	if diff := cmp.Diff([]string{"*Source*\n/&lt;!here&gt;", "*Subject*\n" + escaped, "*Time*\n2027-03-01T12:00:00Z", "*Rule*\ndevices/too-warm", "*Event*\n1"}, fields); diff != "" {
		t.Error(diff)
	}
	want := "```{\n  \"t\": 9.5,\n  \"who\": \"&lt;@U1&gt; `\u200b`\u200b`\u200b \\\"q\\\"\",\n  \"list\": [\n    \"a\",\n    \"b\"\n  ]\n}```"
	if data := m.Blocks.BlockSet[2].(*goslack.SectionBlock).Text; data.Text != want || data.Type != goslack.MarkdownType {
		t.Errorf("data %q, want %q", data.Text, want)
	}
}

func TestTemplates(t *testing.T) {
	f := targettest.NewSink(t, "ok")
	f.Answer = `{"ok":true}`
	const blocks = `[{"type":"section","text":{"type":"mrkdwn","text":"<!here> *${subject}*"}},
		{"type":"rich_text","elements":[{"type":"rich_text_section","elements":[{"type":"text","text":"${subject}"}]}]},
		{"type":"actions","elements":[{"type":"button","action_id":"a","url":"https://x.example/?q=a&b=${id}","text":{"type":"plain_text","text":"${data.no}"}}]}]`
	m := message(t, f, `{"token": {"value": "xoxb-1"}, "channel": "#${data.list[0]}", "apiUrl": "`+f.URL+`/api/chat.postMessage", "text": "<!here> ${subject} ${data.t}", "unfurl": true, "blocks": `+blocks+`}`, hostile())
	if f.Path != "/api/chat.postMessage" || f.Header.Get("Authorization") != "Bearer xoxb-1" || m.Channel != "#a" || !m.UnfurlLinks || m.Text != "<!here> "+escaped+" 9.5" {
		t.Errorf("%s %v %+v", f.Path, f.Header, m)
	}
	section := m.Blocks.BlockSet[0].(*goslack.SectionBlock)
	rich := m.Blocks.BlockSet[1].(*goslack.RichTextBlock).Elements[0].(*goslack.RichTextSection).Elements[0].(*goslack.RichTextSectionTextElement)
	button := m.Blocks.BlockSet[2].(*goslack.ActionBlock).Elements.ElementSet[0].(*goslack.ButtonBlockElement)
	if section.Text.Text != "<!here> *"+escaped+"*" || rich.Text != hostile().Subject || button.URL != "https://x.example/?q=a&b=1" || button.Text.Text != " " {
		t.Errorf("%q %q %q %q", section.Text.Text, rich.Text, button.URL, button.Text.Text)
	}
	m = message(t, f, `{"url": {"value": "`+f.URL+`"}, "text": "${subject}"}`, hostile())
	if m.Blocks != nil || m.Text != escaped {
		t.Errorf("with a text alone: %s", f.Body)
	}
}

// A block of Markdown has its text as a string; values are text in it, and all of them together are cut to what Slack takes.
func TestMarkdownBlocks(t *testing.T) {
	f := targettest.NewSink(t, "ok")
	texts := func(config string, e *event.Event) (all []string) {
		t.Helper()
		d := targettest.Delivery()
		d.Event = e
		if _, err := target(t, `{"url": {"value": "`+f.URL+`"}, "blocks": `+config+`}`).Deliver(t.Context(), d); err != nil {
			t.Fatal(err)
		}
		var m struct{ Blocks []struct{ Type, Text string } }
		if err := json.Unmarshal(f.Body, &m); err != nil {
			t.Fatal(err)
		}
		for _, b := range m.Blocks {
			all = append(all, b.Text)
		}
		return all
	}
	e := &event.Event{ID: "1", Source: "/s", Type: "t", Subject: "# <!here> [x](https://evil.example)"}
	if got, want := texts(`[{"type":"markdown","text":"**${subject}**"}]`, e)[0], "**\u200b# &lt;\u200b!\u200bhere&gt; [\u200bx]\u200b(https://evil.example)**"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	e.Subject = strings.Repeat("é", 9000)
	got := texts(`[{"type":"markdown","text":"${subject}"},{"type":"markdown","text":"${subject}"},{"type":"markdown","text":"${data.no}"}]`, e)
	if n := utf8.RuneCountInString(got[1]); got[0] != e.Subject || n != 2999 || !strings.HasSuffix(got[1], "…") || got[2] != " " {
		t.Errorf("%d characters, then %d, then %q", utf8.RuneCountInString(got[0]), n, got[2])
	}
}

// What is too long is cut, between characters, and never inside what was escaped.
func TestLimits(t *testing.T) {
	f := targettest.NewSink(t, "ok")
	long := &event.Event{ID: "1", Source: "/" + strings.Repeat("s&", 4000), Type: "t", Subject: strings.Repeat("é<", 30_000), DataContentType: "text/plain",
		Data: []byte(strings.Repeat(strings.Repeat("é&", 40)+"\n", 1000))}
	config := func(more string) string { return `{"url": {"value": "` + f.URL + `"}` + more + `}` }
	m := message(t, f, config(""), long)
	check := func(what, text string, limit int) {
		t.Helper()
		n := utf8.RuneCountInString(text)
		cut := strings.TrimSuffix(strings.TrimSuffix(text, "```"), "…")
		if n > limit || n < limit-120 || !utf8.ValidString(text) {
			t.Errorf("%s has %d characters, the limit is %d", what, n, limit)
		}
		if i := strings.LastIndexByte(cut, '&'); !strings.Contains(cut[i:], ";") {
			t.Errorf("%s ends with %q", what, cut[len(cut)-10:])
		}
	}
	check("text", m.Text, 40_000)
	check("header", m.Blocks.BlockSet[0].(*goslack.HeaderBlock).Text.Text, 150)
	check("field", m.Blocks.BlockSet[1].(*goslack.SectionBlock).Fields[0].Text, 2000)
	if len(m.Blocks.BlockSet) != 5 {
		t.Fatalf("%d blocks", len(m.Blocks.BlockSet))
	}
	for _, b := range m.Blocks.BlockSet[2:] {
		text := b.(*goslack.SectionBlock).Text.Text
		if n := utf8.RuneCountInString(text); n > 3000 || !strings.HasPrefix(text, "```") || !strings.HasSuffix(text, "```") {
			t.Errorf("data of %d characters: %.20q", n, text)
		}
	}
	m = message(t, f, config(`, "blocks": [{"type":"header","text":{"type":"plain_text","text":"${subject}"}},
		{"type":"section","text":{"type":"mrkdwn","text":"${subject}"},"fields":[{"type":"mrkdwn","text":"${subject}"}],"accessory":{"type":"button","action_id":"a","text":{"type":"plain_text","text":"${subject}"}}}]`), long)
	section := m.Blocks.BlockSet[1].(*goslack.SectionBlock)
	check("header", m.Blocks.BlockSet[0].(*goslack.HeaderBlock).Text.Text, 150)
	check("section", section.Text.Text, 3000)
	check("field", section.Fields[0].Text, 2000)
	check("button", section.Accessory.ButtonElement.Text.Text, 75)
}

func TestAnswers(t *testing.T) {
	f := targettest.NewSink(t, "ok")
	hook := target(t, `{"url": {"value": "`+f.URL+`"}}`)
	api := target(t, `{"token": {"value": "xoxb-secret"}, "channel": "C1", "apiUrl": "`+f.URL+`"}`)
	for _, c := range []struct {
		to            targets.Target
		status        int
		answer, after string
		want          targets.Reason // "" = success
		permanent     bool
		rest          time.Duration
		says          string
	}{
		{hook, 200, "ok", "", "", false, 0, ""},
		{hook, 200, "ok\n", "", "", false, 0, ""},
		{hook, 200, "okay", "", targets.ReasonStatus, false, 0, "Slack says okay"},
		{hook, 200, "<html>", "", targets.ReasonProtocol, false, 0, "not one of Slack's"},
		{hook, 200, "", "", targets.ReasonProtocol, false, 0, "not one of Slack's"},
		{hook, 400, "invalid_payload", "", targets.ReasonStatus, true, 0, "Slack says invalid_payload"},
		{hook, 403, "invalid_token", "", targets.ReasonAuth, false, time.Minute, "Slack says invalid_token"},
		{hook, 404, "no_service", "", targets.ReasonGone, true, 0, "Slack says no_service"},
		{hook, 410, "channel_is_archived", "", targets.ReasonGone, true, 0, "archived"},
		{hook, 429, "rate_limited", "42", targets.ReasonStatus, false, 42 * time.Second, "rate_limited"},
		{hook, 429, "", "42", targets.ReasonStatus, false, 42 * time.Second, "status 429"},
		{hook, 500, "rollup_error", "", targets.ReasonStatus, false, 0, "status 500"},
		{api, 200, `{"ok":true}`, "", "", false, 0, ""},
		{api, 200, "ok", "", targets.ReasonProtocol, false, 0, "not one of Slack's"},
		{api, 200, `{"ok":false,"error":"invalid_auth"}`, "", targets.ReasonAuth, false, time.Minute, "Slack says invalid_auth"},
		{api, 200, `{"ok":false,"error":"channel_not_found"}`, "", targets.ReasonStatus, true, 0, "channel_not_found"},
		{api, 200, `{"ok":false,"error":"msg_too_long"}`, "", targets.ReasonTooLarge, true, 0, "msg_too_long"},
		{api, 200, `{"ok":false,"error":"internal_error"}`, "", targets.ReasonStatus, false, 0, "internal_error"},
		{api, 200, `{"ok":false,"error":"something_new"}`, "", targets.ReasonStatus, false, 0, "something_new"},
		{api, 200, `{"ok":false,"error":"ratelimited"}`, "", targets.ReasonStatus, false, 30 * time.Second, "ratelimited"},
		{api, 429, `{"ok":false,"error":"ratelimited"}`, "7", targets.ReasonStatus, false, 7 * time.Second, "ratelimited"},
		{api, 200, `{"ok":false,"error":"xoxb-secret <b>"}`, "", targets.ReasonProtocol, false, 0, "not one of Slack's"},
		{api, 503, `{"ok":true}`, "", targets.ReasonStatus, false, 0, "status 503"},
	} {
		f.Status, f.Answer, f.Reply = c.status, c.answer, http.Header{}
		if c.after != "" {
			f.Reply.Set("Retry-After", c.after)
		}
		res, err := c.to.Deliver(t.Context(), targettest.Delivery())
		if c.want == "" {
			if err != nil || res.Status != 200 {
				t.Errorf("%d %s: %+v, %v", c.status, c.answer, res, err)
			}
			continue
		}
		var te *targets.Error
		if !errors.As(err, &te) || te.Reason != c.want || te.Permanent != c.permanent || te.RetryAfter != c.rest || te.Status != c.status || !strings.Contains(te.Error(), c.says) {
			t.Errorf("%d %s: %+v", c.status, c.answer, err)
		}
		if strings.Contains(res.Head, "xoxb-secret") {
			t.Errorf("the token is told: %s", res.Head)
		}
	}
}

func TestEventsThatCannotBeShown(t *testing.T) {
	f := targettest.NewSink(t, "ok")
	for config, want := range map[string]string{
		`"text": "${data.no}"`:                                 "text: is empty",
		`"text": "${data.who - 1}"`:                            "invalid operation",
		`"blocks": [{"type":"section","x":"${data.who - 1}"}]`: "invalid operation",
	} {
		d := targettest.Delivery()
		d.Event = hostile()
		_, err := target(t, `{"url": {"value": "`+f.URL+`"}, `+config+`}`).Deliver(t.Context(), d)
		var te *targets.Error
		if !errors.As(err, &te) || te.Reason != targets.ReasonTransform || !te.Permanent || !strings.Contains(te.Error(), want) {
			t.Errorf("%s: %v", config, err)
		}
	}
	_, err := target(t, `{"token": {"value": "t"}, "apiUrl": "`+f.URL+`", "channel": "${data.no}"}`).Deliver(t.Context(), targettest.Delivery())
	if err == nil || !strings.Contains(err.Error(), "channel: is empty") || f.Body != nil {
		t.Errorf("no channel: %v, %s", err, f.Body)
	}
	if _, err := target(t, `{"url": {"ref": "env:NO"}}`).Deliver(t.Context(), targettest.Delivery()); err == nil || !strings.Contains(err.Error(), "env:NO") {
		t.Errorf("no secret: %v", err)
	}
}

func TestSecretIsRenewed(t *testing.T) { targettest.Renews(t, kind(), "ok", `invalid_token`) }

func TestReads(t *testing.T) {
	want := []string{
		"/config/channel /data/site",
		"/config/text /subject",
		"/config/text /data/t",
		"/config/blocks /data/box",
	}
	if diff := cmp.Diff(want, targettest.Reads(t, kind(), `{"token": {"ref": "a"}, "channel": "#${data.site}", "text": "${subject} ${data.t + 1}", "blocks": [{"type":"section","text":{"type":"mrkdwn","text":"${data.box}"}}]}`)); diff != "" {
		t.Error(diff)
	}
}

func TestRefusedConfigs(t *testing.T) {
	for config, want := range map[string]string{
		`{}`: "/config/url: is missing",
		`{"url": {"value": "https://a.example"}, "token": {"ref": "a"}, "channel": "C1"}`: "/config/token: stands beside url",
		`{"url": {"value": "https://a.example"}, "channel": "C1"}`:                        "/config/channel: goes with token",
		`{"url": {"value": "https://a.example"}, "apiUrl": "https://a.example"}`:          "/config/apiUrl: goes with token",
		`{"token": {"ref": "a"}}`:                                                                     "/config/channel: is missing",
		`{"token": {"value": "a b"}, "channel": "C1"}`:                                                "/config/token: is not a token",
		`{"token": {"ref": "a"}, "channel": "C1", "apiUrl": "http://10.0.0.1/"}`:                      "/config/apiUrl: address 10.0.0.1",
		`{"url": "https://a.example"}`:                                                                "/config/url",
		`{"url": {"ref": "a"}, "text": "${"}`:                                                         "/config/text: a ${ is not closed",
		`{"url": {"ref": "a"}, "blocks": [{"type": "x", "y": {"sealed": "x"}}, {"value": "x"}]}`:      "/config/blocks/0/y: looks like a secret",
		`{"url": {"ref": "a"}, "blocks": []}`:                                                         "/config/blocks",
		`{"url": {"ref": "a"}, "blocks": [{"type":"section","text":{"type":"mrkdwn","text":"${}"}}]}`: "/config/blocks/0/text/text",
	} {
		if got := targettest.Complaints(t, kind(), config); !strings.Contains(got, want) {
			t.Errorf("%s: %s, want %s", config, got, want)
		}
	}
}

// Whatever an event holds, what is sent is JSON, and no value is markup.
func FuzzMessage(f *testing.F) {
	targettest.FuzzRobot(f, targettest.Robot{Kind: kind(), Config: func(url string) string { return `{"url": {"value": "` + url + `"}}` }, Accepts: "ok", Check: func(body []byte) error {
		if !json.Valid(body) || strings.ContainsAny(string(body), "<>") {
			return errors.New("no JSON, or markup")
		}
		return nil
	}})
}
