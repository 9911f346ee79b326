// SPDX-License-Identifier: Apache-2.0

package feishu_test

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/go-lark/lark"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/targets"
	"github.com/rialto-bridge/rialto/targets/feishu"
	"github.com/rialto-bridge/rialto/targets/targettest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const accepts = `{"StatusCode":0,"StatusMessage":"success","code":0,"data":{},"msg":"success"}`

func kind() targets.Kind { return feishu.Kind(targettest.Guard().CheckURL) }

func TestFeishuIsATarget(t *testing.T) {
	targettest.Run(t, targettest.Subject{
		Kind:   kind(),
		Config: func(url string) string { return `{"url": {"value": "` + url + `"}, "secret": {"value": "s1"}}` },
		Accept: func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, accepts) },
	})
}

// Another sender of bots' messages signs the same.
func TestSignaturesAreThoseOfAnotherSender(t *testing.T) {
	s := targettest.NewSink(t, accepts)
	for i, secret := range []string{"zs0T1a2b3c", "x", "+/="} {
		now := time.Unix(1_800_000_000+int64(i)*4001, 999_000_000)
		env := targettest.Env(t)
		env.Now = func() time.Time { return now }
		if _, err := targettest.Make(t, kind(), `{"url": {"value": "`+s.URL+`"}, "secret": {"value": "`+secret+`"}}`, env).Deliver(t.Context(), targettest.Delivery()); err != nil {
			t.Fatal(err)
		}
		var m struct{ Timestamp, Sign string }
		if err := json.Unmarshal(s.Body, &m); err != nil {
			t.Fatal(err)
		}
		want, err := lark.GenSign(secret, now.Unix())
		if err != nil {
			t.Fatal(err)
		}
		if m.Sign != want || m.Timestamp != strconv.FormatInt(now.Unix(), 10) {
			t.Errorf("%+v, want %s", m, want)
		}
	}
}

func hostile() *event.Event {
	return &event.Event{ID: "1", Source: "/s", Type: "com.acme.warm", Subject: "<at id=all></at> [x](https://evil.example)", DataContentType: "application/json",
		Time: time.Date(2027, 3, 1, 12, 0, 0, 0, time.UTC), Data: []byte(`{"t":9.5,"who":"<at user_id=\"all\"></at>"}`)}
}

func send(t *testing.T, s *targettest.Sink, config string, e *event.Event) map[string]any {
	t.Helper()
	d := targettest.Delivery()
	d.Event = e
	if _, err := targettest.Make(t, kind(), `{"url": {"value": "`+s.URL+`"}`+config+`}`, targettest.Env(t)).Deliver(t.Context(), d); err != nil {
		t.Fatalf("%s: %v", config, err)
	}
	var m map[string]any
	if err := json.Unmarshal(s.Body, &m); err != nil {
		t.Fatal(err)
	}
	return m
}

func TestMessages(t *testing.T) {
	type object = map[string]any
	type list = []any
	s := targettest.NewSink(t, accepts)
	const subject = "&#60;at id=all&#62;&#60;/at&#62; &#91;x&#93;&#40;https://evil.example&#41;"
	const data = "{\n  \"t\": 9.5,\n  \"who\": \"<at user_id=\\\"all\\\"></at>\"\n}"
	field := func(name, value string) object {
		return object{"is_short": true, "text": object{"tag": "lark_md", "content": "**" + name + "**\n" + value}}
	}
	card := func(title string, elements ...any) object {
		return object{"msg_type": "interactive", "card": object{"config": object{"wide_screen_mode": true},
			"header": object{"template": "blue", "title": object{"tag": "plain_text", "content": title}}, "elements": elements}}
	}
	title := "com.acme.warm: " + hostile().Subject
	for name, c := range map[string]struct {
		config string
		want   object
	}{
		"default": {``, card(title, object{"tag": "div", "fields": list{field("Source", "/s"), field("Subject", subject), field("Time", "2027-03-01T12:00:00Z"), field("Rule", "devices/too-warm"), field("Event", "1")}},
			object{"tag": "hr"}, object{"tag": "div", "text": object{"tag": "plain_text", "content": data}})},
		"card of templates": {`, "title": "${data.t}", "text": "**${data.t}** ${subject}", "atAll": true, "atUserIds": ["ou_1"]`,
			card("9.5", object{"tag": "markdown", "content": "**9.5** " + subject}, object{"tag": "markdown", "content": "<at id=all></at><at id=ou_1></at>"})},
		"card": {`, "card": {"elements": [{"tag": "div", "text": {"tag": "lark_md", "content": "<at id=all></at> ${subject}"}}, {"tag": "div", "text": {"tag": "plain_text", "content": "${subject}"}}, {"tag": "x", "n": "${data.t}"}]}`,
			object{"msg_type": "interactive", "card": object{"elements": list{object{"tag": "div", "text": object{"tag": "lark_md", "content": "<at id=all></at> " + subject}},
				object{"tag": "div", "text": object{"tag": "plain_text", "content": hostile().Subject}}, object{"tag": "x", "n": 9.5}}}}},
		"text": {`, "message": "text", "text": "<at user_id=\"all\"></at> ${subject}", "atUserIds": ["ou_1"]`,
			object{"msg_type": "text", "content": object{"text": "<at user_id=\"all\"></at> <\u200bat id=all><\u200b/at> [x]\u200b(https://evil.example) <at user_id=\"ou_1\"></at>"}}},
		"text of several values": {`, "message": "text", "text": "${\"<\"}${\"at user_id=x>\"}${\"[x]\"}${\"(y)\"}"`,
			object{"msg_type": "text", "content": object{"text": "<\u200bat user_id=x>[x]\u200b(y)"}}},
		"default text": {`, "message": "text"`, object{"msg_type": "text", "content": object{"text": strings.NewReplacer("<", "<\u200b", "]", "]\u200b").Replace(title + "\nSource: /s\nSubject: " + hostile().Subject +
			"\nTime: 2027-03-01T12:00:00Z\nRule: devices/too-warm\nEvent: 1\n\n" + data)}}},
		"post": {`, "message": "post", "title": "T", "text": "${subject}", "atAll": true`, object{"msg_type": "post", "content": object{"post": object{"zh_cn": object{"title": "T",
			"content": list{list{object{"tag": "text", "text": hostile().Subject}}, list{object{"tag": "at", "user_id": "all"}}}}}}}},
		"default post": {`, "message": "post"`, object{"msg_type": "post", "content": object{"post": object{"zh_cn": object{"title": title,
			"content": list{list{object{"tag": "text", "text": "Source: /s\nSubject: " + hostile().Subject + "\nTime: 2027-03-01T12:00:00Z\nRule: devices/too-warm\nEvent: 1\n\n" + data}}}}}}}},
	} {
		if diff := cmp.Diff(c.want, send(t, s, c.config, hostile())); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestLimits(t *testing.T) {
	s := targettest.NewSink(t, accepts)
	for _, unit := range []string{"é", "\\u0001\\\"", "x\\n", "[*_"} {
		long := &event.Event{ID: strings.Repeat("i", 9000), Source: "/s", Type: "t", Subject: strings.Repeat("é<", 15_000), DataContentType: "application/json", Data: []byte(`{"a":"` + strings.Repeat(unit, 15_000) + `"}`)}
		for _, config := range []string{``, `, "text": "${data.a}"`, `, "message": "post"`, `, "message": "post", "text": "${data.a}"`, `, "message": "text"`, `, "message": "text", "text": "${data.a}"`} {
			send(t, s, config, long)
			if len(s.Body) > 20_000 || len(s.Body) < 4000 || !utf8.Valid(s.Body) {
				t.Errorf("%s of %s: %d bytes", config, unit, len(s.Body))
			}
		}
		d := targettest.Delivery()
		d.Event = long
		_, err := targettest.Make(t, kind(), `{"url": {"value": "`+s.URL+`"}, "card": {"x": "${data.a}"}}`, targettest.Env(t)).Deliver(t.Context(), d)
		if got := targettest.Verdict(err); !strings.HasPrefix(got, "too_large for good") {
			t.Errorf("a card: %s", got)
		}
	}
}

func TestAnswers(t *testing.T) {
	s := targettest.NewSink(t, accepts)
	to := targettest.Make(t, kind(), `{"url": {"value": "`+s.URL+`/open-apis/bot/v2/hook/0a1b2c3d-0a1b-2c3d"}, "secret": {"value": "zs0Txyz"}}`, targettest.Env(t))
	for _, c := range []struct {
		status       int
		answer, want string
		reset        string
	}{
		{200, accepts, "ok", ""},
		{200, `{"code":0,"msg":"success","data":{}}`, "ok", ""},
		{200, `{"StatusCode":0,"StatusMessage":"success"}`, "ok", ""},
		{200, `{"code":11232,"msg":"frequency limited"}`, "status after 1m0s: Feishu says 11232: frequency limited", ""},
		{400, `{"code":11232,"msg":"frequency limited"}`, "status after 3s: Feishu says 11232: frequency limited", "3"},
		{429, `{"code":99991400,"msg":"limit"}`, "status after 1h0m0s: Feishu says 99991400: limit", "999999"},
		{200, `{"code":19021,"msg":"sign match fail or timestamp is not within one hour from current time"}`, "auth after 1m0s: Feishu says 19021: sign match fail or timestamp is not within one hour from current time", ""},
		{200, `{"code":19001,"msg":"param invalid: incoming webhook access token invalid 0a1b2c3d-0a1b-2c3d zs0Txyz"}`, "auth after 1m0s: Feishu says 19001: param invalid: incoming webhook access token invalid [redacted] [redacted]", ""},
		{200, `{"code":19024,"msg":"Key Words Not Found"}`, "auth after 1m0s: Feishu says 19024: Key Words Not Found", ""},
		{400, `{"code":9499,"msg":"Bad Request","data":{}}`, "status for good: Feishu says 9499: Bad Request", ""},
		{400, `{"code":9499,"msg":"too many request","data":{}}`, "status after 1m0s: Feishu says 9499: too many request", ""},
		{200, `{"code":9499,"msg":"Too Many Requests"}`, "status after 1m0s: Feishu says 9499: Too Many Requests", ""},
		{400, `{"code":9499,"msg":"too many request"}`, "status after 7s: Feishu says 9499: too many request", "7"},
		{200, `{"StatusCode":999,"StatusMessage":"new"}`, "status: Feishu says 999: new", ""},
		{200, `{}`, "protocol: the answer is not one of Feishu's", ""},
		{200, `<html>`, "protocol: the answer is not one of Feishu's", ""},
		{502, `<html>`, "status: status 502", ""},
		{500, accepts, "status: status 500", ""},
	} {
		s.Status, s.Answer, s.Reply = c.status, c.answer, http.Header{}
		if c.reset != "" {
			s.Reply.Set("X-Ogw-Ratelimit-Reset", c.reset)
		}
		res, err := to.Deliver(t.Context(), targettest.Delivery())
		if got := targettest.Verdict(err); got != c.want {
			t.Errorf("%d %s: %s, want %s", c.status, c.answer, got, c.want)
		}
		if strings.Contains(res.Head, "0a1b2c3d") || strings.Contains(res.Head, "zs0Txyz") {
			t.Errorf("a secret is told: %s", res.Head)
		}
	}
	pace := to.(targets.Paced).Pace()
	if a, b := float64(pace.Burst)+60*pace.PerSecond, float64(pace.Burst)+pace.PerSecond; a > 100 || b > 5 {
		t.Errorf("%v in a minute, %v in a second", a, b)
	}
	empty := targettest.Make(t, kind(), `{"url": {"value": "`+s.URL+`"}, "text": " ${data.no}"}`, targettest.Env(t))
	if _, err := empty.Deliver(t.Context(), targettest.Delivery()); targettest.Verdict(err) != "transform for good: text: is empty" {
		t.Errorf("nothing to say: %v", err)
	}
}

func TestSecretIsRenewed(t *testing.T) {
	targettest.Renews(t, kind(), accepts, `{"code":19001,"msg":"token invalid"}`)
}

func TestReads(t *testing.T) {
	want := []string{
		"/config/card /data/t",
	}
	if diff := cmp.Diff(want, targettest.Reads(t, kind(), `{"url": {"ref": "a"}, "card": {"a": ["${data.t}"]}}`)); diff != "" {
		t.Error(diff)
	}
}

func TestRefusedConfigs(t *testing.T) {
	for config, want := range map[string]string{
		`{}`:                                     "/config/url",
		`{"url": {"value": "http://10.0.0.1/"}}`: "/config/url: address 10.0.0.1",
		`{"url": {"ref": "a"}, "secret": {"value": "a b"}}`:          "/config/secret: is not the secret",
		`{"url": {"ref": "a"}, "text": "${"}`:                        "/config/text: a ${ is not closed",
		`{"url": {"ref": "a"}, "card": {"sealed": "x"}}`:             "/config/card: looks like a secret",
		`{"url": {"ref": "a"}, "card": {"a": [{"ref": "x"}]}}`:       "/config/card/a/0: looks like a secret",
		`{"url": {"ref": "a"}, "card": {"a": ["${"]}}`:               "/config/card/a/0: a ${ is not closed",
		`{"url": {"ref": "a"}, "card": {"a": 1}, "message": "text"}`: "/config/card: goes with",
		`{"url": {"ref": "a"}, "card": {"a": 1}, "title": "x"}`:      "/config/card: is all",
		`{"url": {"ref": "a"}, "card": {"a": 1}, "atAll": true}`:     "/config/card: is all",
		`{"url": {"ref": "a"}, "message": "text", "title": "x"}`:     "/config/title: is for",
		`{"url": {"ref": "a"}, "atUserIds": ["a></at>"]}`:            "/config/atUserIds/0",
	} {
		if got := targettest.Complaints(t, kind(), config); !strings.Contains(got, want) {
			t.Errorf("%s: %s, want %s", config, got, want)
		}
	}
}

// Whatever an event holds, what is sent is a message that Feishu's limit allows, and mentions nobody.
func FuzzMessage(f *testing.F) {
	config := func(url string) string { return `{"url": {"value": "` + url + `"}, "message": "text"}` }
	targettest.FuzzRobot(f, targettest.Robot{Kind: kind(), Config: config, Accepts: accepts, Check: func(body []byte) error {
		if !json.Valid(body) || !utf8.Valid(body) || len(body) > 20_000 || strings.Contains(string(body), "<at") {
			return errors.New("no JSON, too large, or a mention")
		}
		return nil
	}})
}
