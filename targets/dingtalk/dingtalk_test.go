// SPDX-License-Identifier: Apache-2.0

package dingtalk_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/targets"
	"github.com/rialto-bridge/rialto/targets/dingtalk"
	"github.com/rialto-bridge/rialto/targets/targettest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const accepts = `{"errcode":0,"errmsg":"ok"}`

func kind() targets.Kind { return dingtalk.Kind(targettest.Guard().CheckURL) }

func TestDingTalkIsATarget(t *testing.T) {
	targettest.Run(t, targettest.Subject{
		Kind:   kind(),
		Config: func(url string) string { return `{"url": {"value": "` + url + `"}, "secret": {"value": "SEC1"}}` },
		Accept: func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, accepts) },
	})
}

const robotPackages = `{"private":true,"dependencies":{"dingtalk-robot-sender":"1.2.0"}}`

// robotScript is what another sender asks for, at the times that it is given.
const robotScript = `
const input = JSON.parse(require('fs').readFileSync(0, 'utf8')), Bot = require('dingtalk-robot-sender');
const out = [];
const httpclient = { request: url => { out.push(url); return Promise.resolve({}); } };
(async () => {
  for (const r of input) {
    Date.now = () => r.now;
    await new Bot({ webhook: r.url, secret: r.secret, httpclient }).send({});
  }
  console.log(JSON.stringify(out));
})();
`

// Another sender of robots' messages signs the same.
func TestSignaturesAreThoseOfAnotherSender(t *testing.T) {
	type request struct {
		URL    string `json:"url"`
		Secret string `json:"secret"`
		Now    int64  `json:"now"`
	}
	s := targettest.NewSink(t, accepts)
	var requests []request
	var ours []string
	for i, secret := range []string{"SEC0a1b2c", "SECd1e2f3", "SEC+/=", "x"} {
		for j := range 5 {
			now := time.UnixMilli(1_800_000_000_000 + int64(i)*777 + int64(j)*3_600_001)
			env := targettest.Env(t)
			env.Now = func() time.Time { return now }
			r := request{s.URL + "/robot/send?access_token=a1b2", secret, now.UnixMilli()}
			if _, err := targettest.Make(t, kind(), `{"url": {"value": "`+r.URL+`"}, "secret": {"value": "`+secret+`"}}`, env).Deliver(t.Context(), targettest.Delivery()); err != nil {
				t.Fatal(err)
			}
			requests, ours = append(requests, r), append(ours, s.URL+s.Path)
		}
	}
	dir := t.TempDir()
	for name, text := range map[string]string{"package.json": robotPackages, "robot.js": robotScript} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	in, err := json.Marshal(requests)
	if err != nil {
		t.Fatal(err)
	}
	node(t, dir, nil, "npm", "install", "--no-audit", "--no-fund", "--prefer-offline", "--loglevel=error")
	var theirs []string
	if err := json.Unmarshal(node(t, dir, in, "node", "robot.js"), &theirs); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(theirs, ours); diff != "" {
		t.Error(diff)
	}
}

func node(t *testing.T, dir string, in []byte, name string, args ...string) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir, cmd.Stdin = dir, bytes.NewReader(in)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, stderr.Bytes())
	}
	return out
}

func hostile() *event.Event {
	return &event.Event{ID: "1", Source: "/s", Type: "com.acme.warm", Subject: "[x](https://evil.example)\n# big", DataContentType: "application/json",
		Time: time.Date(2027, 3, 1, 12, 0, 0, 0, time.UTC), Data: []byte(`{"t":9.5,"code":"` + "```" + `","url":"https://ops.example.com/17"}`)}
}

// send delivers an event and returns the message that arrived.
func send(t *testing.T, s *targettest.Sink, config string, e *event.Event) map[string]any {
	t.Helper()
	d := targettest.Delivery()
	d.Event = e
	s.Body = nil
	if _, err := targettest.Make(t, kind(), `{"url": {"value": "`+s.URL+`"}`+config+`}`, targettest.Env(t)).Deliver(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(s.Body, &m); err != nil {
		t.Fatal(err)
	}
	if len(s.Body) > 20_000 {
		t.Errorf("%d bytes", len(s.Body))
	}
	return m
}

func TestMessages(t *testing.T) {
	type object = map[string]any
	none := object{"atMobiles": []any{}, "atUserIds": []any{}, "isAtAll": false}
	const subject = "[\u200bx]\u200b(https://evil.example)\n\u200b# big"
	const data = "{\n  \"t\": 9.5,\n  \"code\": \"```\",\n  \"url\": \"https://ops.example.com/17\"\n}"
	for name, c := range map[string]struct {
		config string
		want   object
	}{
		"default": {``, object{"msgtype": "markdown", "at": none, "markdown": object{"title": "com.acme.warm: [x](https://evil.example) # big",
			"text": "### com.acme.warm: [\u200bx]\u200b(https://evil.example) # big\n\n- Source: /s\n- Subject: [\u200bx]\u200b(https://evil.example) # big\n- Time: 2027-03-01T12:00:00Z\n- Rule: devices/too-warm\n- Event: 1\n\n```\n" +
				strings.ReplaceAll(data, "```", "`\u200b`\u200b`\u200b") + "\n```"}}},
		"template with mentions": {`, "title": "${data.t}", "text": "# ${subject} @13800000000", "atMobiles": ["13800000000", "13900000000"], "atUserIds": ["u1"], "atAll": true`,
			object{"msgtype": "markdown", "at": object{"atMobiles": []any{"13800000000", "13900000000"}, "atUserIds": []any{"u1"}, "isAtAll": true},
				"markdown": object{"title": "9.5", "text": "# " + subject + " @13800000000\n\n@13900000000 @u1"}}},
		"names that begin alike": {`, "title": "t", "text": "@u12, @u1-a @139000000001 @u3请", "atMobiles": ["13900000000"], "atUserIds": ["u1", "u12", "u3"]`,
			object{"msgtype": "markdown", "at": object{"atMobiles": []any{"13900000000"}, "atUserIds": []any{"u1", "u12", "u3"}, "isAtAll": false},
				"markdown": object{"title": "t", "text": "@u12, @u1-a @139000000001 @u3请\n\n@13900000000 @u1"}}},
		"text":         {`, "message": "text", "text": "${subject}"`, object{"msgtype": "text", "at": none, "text": object{"content": hostile().Subject}}},
		"default text": {`, "message": "text"`, object{"msgtype": "text", "at": none, "text": object{"content": "com.acme.warm: [x](https://evil.example) # big\nSource: /s\nSubject: [x](https://evil.example) # big\nTime: 2027-03-01T12:00:00Z\nRule: devices/too-warm\nEvent: 1\n\n" + data}}},
		"link": {`, "message": "link", "text": "${data.t}", "messageUrl": "${data.url}?a=b", "picUrl": "https://ops.example.com/${data.t}.png"`,
			object{"msgtype": "link", "link": object{"title": "com.acme.warm: [x](https://evil.example) # big", "text": "9.5", "messageUrl": "https://ops.example.com/17?a=b", "picUrl": "https://ops.example.com/9.5.png"}}},
		"card": {`, "message": "actionCard", "text": "${data.t}", "buttons": [{"title": "Open ${data.t}", "url": "${data.url}"}]`,
			object{"msgtype": "actionCard", "actionCard": object{"title": "com.acme.warm: [x](https://evil.example) # big", "text": "9.5", "singleTitle": "Open 9.5", "singleURL": "https://ops.example.com/17"}}},
		"card with two": {`, "message": "actionCard", "text": "${data.t}", "buttons": [{"title": "a", "url": "dingtalk://x/${data.t}"}, {"title": "b", "url": "${data.url}"}]`,
			object{"msgtype": "actionCard", "actionCard": object{"title": "com.acme.warm: [x](https://evil.example) # big", "text": "9.5", "btnOrientation": "0",
				"btns": []any{object{"title": "a", "actionURL": "dingtalk://x/9.5"}, object{"title": "b", "actionURL": "https://ops.example.com/17"}}}}},
	} {
		if diff := cmp.Diff(c.want, send(t, targettest.NewSink(t, accepts), c.config, hostile())); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// What is too long is cut to what DingTalk takes, however much longer JSON makes it.
func TestLimits(t *testing.T) {
	s := targettest.NewSink(t, accepts)
	for _, unit := range []string{"é", "\\u0001\\\"", "x\\n", "[x](y)<"} {
		long := &event.Event{ID: "1", Source: strings.Repeat("s", 1000), Type: "t", Subject: strings.Repeat("<é", 15_000), DataContentType: "application/json", Data: []byte(`{"a":"` + strings.Repeat(unit, 15_000) + `"}`)}
		for _, config := range []string{``, `, "message": "text"`, `, "text": "${subject} ${data.a}"`, `, "text": "${data.a}", "message": "text"`, `, "title": "${data.a}", "text": "x"`} {
			m := send(t, s, config, long)
			if !utf8.Valid(s.Body) || len(s.Body) < 5000 && !strings.Contains(config, "title") {
				t.Errorf("%s of %s: %d bytes", config, unit, len(s.Body))
			}
			if md, ok := m["markdown"].(map[string]any); ok && utf8.RuneCountInString(md["title"].(string)) > 100 {
				t.Errorf("title %q", md["title"])
			} else if ok && config == "" && !strings.HasSuffix(md["text"].(string), "…\n```") {
				t.Errorf("the data ends with %q", md["text"].(string)[len(md["text"].(string))-20:])
			}
		}
	}
}

func TestAnswers(t *testing.T) {
	s := targettest.NewSink(t, accepts)
	to := targettest.Make(t, kind(), `{"url": {"value": "`+s.URL+`/robot/send?access_token=0a1b2c3d4e"}, "secret": {"value": "SECxyz"}}`, targettest.Env(t))
	for _, c := range []struct {
		status       int
		answer, want string
	}{
		{200, accepts, "ok"},
		{200, `{"errcode":130101,"errmsg":"send too fast, exceed 20 times per minute"}`, "status after 10m0s: DingTalk says 130101: send too fast, exceed 20 times per minute"},
		{200, `{"errcode":310000,"errmsg":"sign not match"}`, "auth after 1m0s: DingTalk says 310000: sign not match"},
		{200, `{"errcode":310000,"errmsg":"keywords not in content"}`, "auth after 1m0s: DingTalk says 310000: keywords not in content"},
		{200, `{"errcode":300001,"errmsg":"token is not exist"}`, "auth after 1m0s: DingTalk says 300001: token is not exist"},
		{200, `{"errcode":400102,"errmsg":"robot stopped"}`, "gone for good: DingTalk says 400102: robot stopped"},
		{200, `{"errcode":460101,"errmsg":"too long"}`, "too_large for good: DingTalk says 460101: too long"},
		{200, `{"errcode":-1,"errmsg":"busy"}`, "status: DingTalk says -1: busy"},
		{200, `{"errcode":999,"errmsg":"new"}`, "status: DingTalk says 999: new"},
		{200, `{"errcode":40035,"errmsg":"0a1b2c3d4e SECxyz"}`, "status for good: DingTalk says 40035: [redacted] [redacted]"},
		{200, `{"errcode":"0"}`, "protocol: the answer is not one of DingTalk's"},
		{200, `{}`, "protocol: the answer is not one of DingTalk's"},
		{200, `ok`, "protocol: the answer is not one of DingTalk's"},
		{502, `<html>`, "status: status 502"},
		{500, accepts, "status: status 500"},
		{403, `{"errcode":130101,"errmsg":"x"}`, "status after 10m0s: DingTalk says 130101: x"},
	} {
		s.Status, s.Answer = c.status, c.answer
		res, err := to.Deliver(t.Context(), targettest.Delivery())
		if got := targettest.Verdict(err); got != c.want {
			t.Errorf("%d %s: %s, want %s", c.status, c.answer, got, c.want)
		}
		if strings.Contains(res.Head, "0a1b2c3d4e") || strings.Contains(res.Head, "SECxyz") {
			t.Errorf("a secret is told: %s", res.Head)
		}
	}
	if s.Path == "" || !strings.HasPrefix(s.Path, "/robot/send?access_token=0a1b2c3d4e&timestamp=") {
		t.Errorf("path %s", s.Path)
	}
}

// A robot's quota is kept: in no minute are there more than 20.
func TestPace(t *testing.T) {
	pace := targettest.Make(t, kind(), `{"url": {"ref": "a"}}`, targettest.Env(t)).(targets.Paced).Pace()
	if n := float64(pace.Burst) + 60*pace.PerSecond; n > 20 {
		t.Errorf("%v in a minute", n)
	}
}

func TestEventsThatCannotBeShown(t *testing.T) {
	s := targettest.NewSink(t, accepts)
	for config, want := range map[string]string{
		`"text": "${data.no}"`: "transform for good: text: is empty",
		`"message": "link", "text": "x", "messageUrl": "${data.code}"`:                                            "transform for good: messageUrl: is not a URL that begins with https://, http:// or dingtalk://",
		`"message": "actionCard", "text": "x", "buttons": [{"title": "x", "url": "javascript:alert(${data.t})"}]`: "transform for good: buttons/0/url: is not a URL that begins with https://, http:// or dingtalk://",
	} {
		d := targettest.Delivery()
		d.Event = hostile()
		_, err := targettest.Make(t, kind(), `{"url": {"value": "`+s.URL+`"}, `+config+`}`, targettest.Env(t)).Deliver(t.Context(), d)
		if got := targettest.Verdict(err); got != want || s.Body != nil {
			t.Errorf("%s: %s, want %s", config, got, want)
		}
	}
}

func TestSecretIsRenewed(t *testing.T) {
	targettest.Renews(t, kind(), accepts, `{"errcode":310000,"errmsg":"sign not match"}`)
}

func TestReads(t *testing.T) {
	want := []string{
		"/config/title /type",
		"/config/text /data/t",
		"/config/buttons/0/title /data/b",
		"/config/buttons/0/url /id",
	}
	if diff := cmp.Diff(want, targettest.Reads(t, kind(), `{"url": {"ref": "a"}, "message": "actionCard", "title": "${type}", "text": "${data.t}", "buttons": [{"title": "${data.b}", "url": "https://a.example/${id}"}]}`)); diff != "" {
		t.Error(diff)
	}
}

func TestRefusedConfigs(t *testing.T) {
	for config, want := range map[string]string{
		`{}`:                                     "/config/url",
		`{"url": {"value": "http://10.0.0.1/"}}`: "/config/url: address 10.0.0.1",
		`{"url": {"ref": "a"}, "secret": {"value": "a b"}}`:                                               "/config/secret: is not the secret",
		`{"url": {"ref": "a"}, "message": "link"}`:                                                        "/config/messageUrl: is missing",
		`{"url": {"ref": "a"}, "messageUrl": "https://x.example"}`:                                        "/config/messageUrl: goes with",
		`{"url": {"ref": "a"}, "picUrl": "https://x.example"}`:                                            "/config/picUrl: goes with",
		`{"url": {"ref": "a"}, "message": "actionCard"}`:                                                  "/config/buttons: is missing",
		`{"url": {"ref": "a"}, "buttons": [{"title": "a", "url": "b"}]}`:                                  "/config/buttons: goes with",
		`{"url": {"ref": "a"}, "message": "link", "messageUrl": "https://x.example", "atAll": true}`:      "/config/message: is a type in which nobody",
		`{"url": {"ref": "a"}, "title": "${"}`:                                                            "/config/title: a ${ is not closed",
		`{"url": {"ref": "a"}, "message": "actionCard", "buttons": [{"title": "${", "url": "${now()}"}]}`: "/config/buttons/0/url",
		`{"url": {"ref": "a"}, "atMobiles": ["a b"]}`:                                                     "/config/atMobiles/0",
	} {
		if got := targettest.Complaints(t, kind(), config); !strings.Contains(got, want) {
			t.Errorf("%s: %s, want %s", config, got, want)
		}
	}
}

// Whatever an event holds, what is sent is a message that DingTalk's limit allows.
func FuzzMessage(f *testing.F) {
	config := func(url string) string { return `{"url": {"value": "` + url + `"}, "text": "${subject} ${data}x"}` }
	targettest.FuzzRobot(f, targettest.Robot{Kind: kind(), Config: config, Accepts: accepts, Check: func(body []byte) error {
		if !json.Valid(body) || !utf8.Valid(body) || len(body) > 20_000 {
			return errors.New("no JSON, or too large")
		}
		return nil
	}})
}
