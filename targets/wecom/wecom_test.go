// SPDX-License-Identifier: Apache-2.0

package wecom_test

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
	"go.uber.org/goleak"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/targets"
	"github.com/rialto-bridge/rialto/targets/targettest"
	"github.com/rialto-bridge/rialto/targets/wecom"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const accepts = `{"errcode":0,"errmsg":"ok"}`

func kind() targets.Kind { return wecom.Kind(targettest.Guard().CheckURL) }

func TestWeComIsATarget(t *testing.T) {
	targettest.Run(t, targettest.Subject{
		Kind:   kind(),
		Config: func(url string) string { return `{"url": {"value": "` + url + `"}}` },
		Accept: func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, accepts) },
	})
}

func hostile() *event.Event {
	return &event.Event{ID: "1", Source: "/s", Type: "com.acme.warm", Subject: "<@all>\n# [x](https://evil.example)", DataContentType: "application/json",
		Time: time.Date(2027, 3, 1, 12, 0, 0, 0, time.UTC), Data: []byte(`{"t":9.5,"who":"<@u1>"}`)}
}

func send(t *testing.T, s *targettest.Sink, config string, e *event.Event) map[string]any {
	t.Helper()
	d := targettest.Delivery()
	d.Event = e
	if _, err := targettest.Make(t, kind(), `{"url": {"value": "`+s.URL+`"}`+config+`}`, targettest.Env(t)).Deliver(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(s.Body, &m); err != nil {
		t.Fatal(err)
	}
	return m
}

func TestMessages(t *testing.T) {
	type object = map[string]any
	s := targettest.NewSink(t, accepts)
	for name, c := range map[string]struct {
		config string
		want   object
	}{
		"default": {``, object{"msgtype": "markdown", "markdown": object{"content": "### com.acme.warm: <\u200b@all> # [\u200bx]\u200b(https://evil.example)\n> Source: /s\n> Subject: <\u200b@all> # [\u200bx]\u200b(https://evil.example)\n" +
			"> Time: 2027-03-01T12:00:00Z\n> Rule: devices/too-warm\n> Event: 1\n\n{\n\u200b  \"t\": 9.5,\n\u200b  \"who\": \"<\u200b@u1>\"\n\u200b}"}}},
		"template": {`, "text": "**${data.t}** ${subject} <@u9>", "mentionedUsers": ["u1", "@u2"]`,
			object{"msgtype": "markdown", "markdown": object{"content": "**9.5** <\u200b@all>\n\u200b# [\u200bx]\u200b(https://evil.example) <@u9>\n<@u1><@u2>"}}},
		"text": {`, "message": "text", "text": "${subject}", "mentionedUsers": ["u1", "@all"], "mentionedMobiles": ["13800000000"]`,
			object{"msgtype": "text", "text": object{"content": hostile().Subject, "mentioned_list": []any{"u1", "@all"}, "mentioned_mobile_list": []any{"13800000000"}}}},
		"default text": {`, "message": "text"`, object{"msgtype": "text", "text": object{"content": "com.acme.warm: <@all> # [x](https://evil.example)\nSource: /s\nSubject: <@all> # [x](https://evil.example)\n" +
			"Time: 2027-03-01T12:00:00Z\nRule: devices/too-warm\nEvent: 1\n\n{\n  \"t\": 9.5,\n  \"who\": \"<@u1>\"\n}"}}},
	} {
		if diff := cmp.Diff(c.want, send(t, s, c.config, hostile())); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestLimits(t *testing.T) {
	s := targettest.NewSink(t, accepts)
	long := &event.Event{ID: strings.Repeat("i", 9000), Source: "/s", Type: "t", Subject: strings.Repeat("é<", 30_000), DataContentType: "text/plain", Data: []byte(strings.Repeat("é\n", 60_000))}
	for _, c := range []struct {
		config, kind, end string
		limit             int
	}{
		{``, "markdown", "…", 4096}, {`, "text": "x${subject}", "mentionedUsers": ["u1"]`, "markdown", "…\n<@u1>", 4096},
		{`, "message": "text"`, "text", "…", 2048}, {`, "message": "text", "text": "${data}"`, "text", "…", 2048},
	} {
		text := send(t, s, c.config, long)[c.kind].(map[string]any)["content"].(string)
		if len(text) > c.limit || len(text) < c.limit-4 || !utf8.ValidString(text) || !strings.HasSuffix(text, c.end) {
			t.Errorf("%s: %d bytes, ends with %q", c.config, len(text), text[len(text)-10:])
		}
	}
}

func TestAnswers(t *testing.T) {
	s := targettest.NewSink(t, accepts)
	to := targettest.Make(t, kind(), `{"url": {"value": "`+s.URL+`/cgi-bin/webhook/send?key=0a1b2c3d4e"}}`, targettest.Env(t))
	for _, c := range []struct {
		status       int
		answer, want string
	}{
		{200, accepts, "ok"},
		{200, `{"errcode":45009,"errmsg":"api freq out of limit"}`, "status after 1m0s: WeCom says 45009: api freq out of limit"},
		{200, `{"errcode":93000,"errmsg":"invalid webhook url, key 0a1b2c3d4e"}`, "auth after 1m0s: WeCom says 93000: invalid webhook url, key [redacted]"},
		{200, `{"errcode":45002,"errmsg":"content size out of limit"}`, "too_large for good: WeCom says 45002: content size out of limit"},
		{200, `{"errcode":40058,"errmsg":"markdown.content exceed max length 4096"}`, "status for good: WeCom says 40058: markdown.content exceed max length 4096"},
		{200, `{"errcode":-1,"errmsg":"system busy"}`, "status: WeCom says -1: system busy"},
		{200, `{"errcode":999,"errmsg":"new"}`, "status: WeCom says 999: new"},
		{200, `{}`, "protocol: the answer is not one of WeCom's"},
		{200, `<html>`, "protocol: the answer is not one of WeCom's"},
		{502, `<html>`, "status: status 502"},
		{500, accepts, "status: status 500"},
	} {
		s.Status, s.Answer = c.status, c.answer
		res, err := to.Deliver(t.Context(), targettest.Delivery())
		if got := targettest.Verdict(err); got != c.want {
			t.Errorf("%d %s: %s, want %s", c.status, c.answer, got, c.want)
		}
		if strings.Contains(res.Head, "0a1b2c3d4e") {
			t.Errorf("the key is told: %s", res.Head)
		}
	}
	if s.Path != "/cgi-bin/webhook/send?key=0a1b2c3d4e" || s.Header.Get("Content-Type") != "application/json; charset=utf-8" {
		t.Errorf("%s %v", s.Path, s.Header)
	}
	pace := to.(targets.Paced).Pace()
	if n := float64(pace.Burst) + 60*pace.PerSecond; n > 20 {
		t.Errorf("%v in a minute", n)
	}
	empty := targettest.Make(t, kind(), `{"url": {"value": "`+s.URL+`"}, "text": " ${data.no}"}`, targettest.Env(t))
	if _, err := empty.Deliver(t.Context(), targettest.Delivery()); targettest.Verdict(err) != "transform for good: text: is empty" {
		t.Errorf("nothing to say: %v", err)
	}
}

func TestSecretIsRenewed(t *testing.T) {
	targettest.Renews(t, kind(), accepts, `{"errcode":93000,"errmsg":"invalid webhook url"}`)
}

func TestReads(t *testing.T) {
	want := []string{
		"/config/text /data/t",
		"/config/text /data/u",
	}
	if diff := cmp.Diff(want, targettest.Reads(t, kind(), `{"url": {"ref": "a"}, "text": "${data.t} ${data.u}"}`)); diff != "" {
		t.Error(diff)
	}
}

func TestRefusedConfigs(t *testing.T) {
	many := `["` + strings.Repeat(`aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa","`, 40) + `b"]`
	for config, want := range map[string]string{
		`{}`:                                     "/config/url",
		`{"url": {"value": "http://10.0.0.1/"}}`: "/config/url: address 10.0.0.1",
		`{"url": {"ref": "a"}, "text": "${"}`:    "/config/text: a ${ is not closed",
		`{"url": {"ref": "a"}, "mentionedUsers": ["a>b"]}`:           "/config/mentionedUsers/0",
		`{"url": {"ref": "a"}, "mentionedUsers": ` + many + `}`:      "/config/mentionedUsers: take",
		`{"url": {"ref": "a"}, "mentionedMobiles": ["13800000000"]}`: "/config/mentionedMobiles: goes with",
		`{"url": {"ref": "a"}, "mentionedUsers": ["u1", "@all"]}`:    "/config/mentionedUsers/1: mentions nobody in Markdown",
		`{"url": {"ref": "a"}, "message": "markdown_v2"}`:            "/config/message",
	} {
		if got := targettest.Complaints(t, kind(), config); !strings.Contains(got, want) {
			t.Errorf("%s: %s, want %s", config, got, want)
		}
	}
}

// Whatever an event holds, what is sent keeps to the limit and mentions nobody.
func FuzzMessage(f *testing.F) {
	config := func(url string) string { return `{"url": {"value": "` + url + `"}}` }
	targettest.FuzzRobot(f, targettest.Robot{Kind: kind(), Config: config, Accepts: accepts, Check: func(body []byte) error {
		var m struct {
			Markdown struct{ Content string }
		}
		if json.Unmarshal(body, &m) != nil || len(m.Markdown.Content) > 4096 || !utf8.Valid(body) || strings.Contains(string(body), "<@") || strings.Contains(string(body), "](") {
			return errors.New("no JSON, too long, or markup")
		}
		return nil
	}})
}
