// SPDX-License-Identifier: Apache-2.0

package http_test

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"sigs.k8s.io/yaml"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/targets"
	request "github.com/rialto-bridge/rialto/targets/http"
	"github.com/rialto-bridge/rialto/targets/outbound"
	"github.com/rialto-bridge/rialto/targets/targettest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func kind() targets.Kind { return request.Kind(targettest.Guard().CheckURL) }

func TestHTTPIsATarget(t *testing.T) {
	accept := func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, `{"result": [{"code": 0}]}`) }
	for name, config := range map[string]string{
		"data": `{"url": "%s"}`,
		"templates": `{"url": "%s", "method": "PUT", "body": {"json": {"at": "${data.temperature}", "text": "box ${subject}"}}, "headers": {"X-Id": "${type}"},
			"answer": {"path": "$.result[0].code", "equals": 0}}`,
		"delete": `{"url": "%s", "method": "DELETE", "success": [200, 204]}`,
		"get":    `{"url": "%s", "method": "GET", "auth": {"type": "bearer", "token": {"value": "tkn"}}}`,
	} {
		t.Run(name, func(t *testing.T) {
			targettest.Run(t, targettest.Subject{Kind: kind(), Config: func(url string) string { return fmt.Sprintf(config, url) }, Accept: accept})
		})
	}
}

// got is a request that a far side has got.
type got struct {
	method, url, body string
	header            http.Header
}

// far is a far side that keeps what it got.
func far(t *testing.T, answer http.HandlerFunc) (url string, requests *[]got) {
	t.Helper()
	requests = new([]got)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		*requests = append(*requests, got{r.Method, r.RequestURI, string(body), r.Header})
		if answer != nil {
			answer(w, r)
		}
	}))
	t.Cleanup(srv.Close)
	return srv.URL, requests
}

func target(t *testing.T, config string) targets.Target {
	t.Helper()
	kinds := targets.NewCatalog(kind())
	doc, err := yaml.YAMLToJSON([]byte("name: far\ntype: http\nconfig:\n  " + strings.ReplaceAll(strings.TrimSpace(config), "\n", "\n  ")))
	if err != nil {
		t.Fatal(err)
	}
	d, err := targets.ParseDefinition(doc, kinds)
	if err != nil {
		t.Fatal(err)
	}
	client := outbound.Client(targettest.Guard(), outbound.Options{})
	t.Cleanup(client.CloseIdleConnections)
	made, err := kinds.New(d, targets.Env{HTTP: client, TLS: func(*tls.Config) *http.Client { return client }, Logger: slog.New(slog.DiscardHandler), Now: time.Now,
		Secrets: func(ref string) (string, error) { return "secret-of-" + ref, nil }})
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func deliver(t *testing.T, made targets.Target, data string) (targets.Result, *targets.Error) {
	t.Helper()
	d := targettest.Delivery()
	d.Event = &event.Event{ID: "e1", Source: "/boxes", Type: "com.acme.alarm", Subject: "box-17", DataContentType: "application/json", Data: []byte(data),
		Time: time.Date(2027, 3, 1, 12, 0, 0, 0, time.UTC)}
	d.Received = time.Date(2027, 3, 1, 12, 0, 1, 0, time.UTC)
	res, err := made.Deliver(t.Context(), d)
	var te *targets.Error
	if err != nil && !errors.As(err, &te) {
		t.Fatalf("error %T %v", err, err)
	}
	return res, te
}

// PagerDuty Events API v2: the key is in the body, and what the service answers is 202 with a word.
func TestPager(t *testing.T) {
	to, requests := far(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusAccepted)
		io.WriteString(w, `{"status":"success","message":"Event processed","dedup_key":"/boxes box-17"}`)
	})
	made := target(t, `
url: `+to+`/v2/enqueue
secrets: {key: {ref: pager}}
body:
  json:
    routing_key: ${secret.key}
    event_action: '${data.clear ? "resolve" : "trigger"}'
    dedup_key: ${source} ${subject}
    payload:
      summary: 'Box ${subject} is at ${data.temperature} C: "${data.note}"'
      source: ${subject}
      severity: critical
      timestamp: ${time}
      custom_details: ${data}
success: [202]
answer: {path: $.status, equals: success}
`)
	if _, err := deliver(t, made, `{"temperature": 9.5, "clear": false, "note": "too \"warm\"\n"}`); err != nil {
		t.Fatal(err)
	}
	r := (*requests)[0]
	const want = `{"routing_key":"secret-of-pager","event_action":"trigger","dedup_key":"/boxes box-17",` +
		`"payload":{"summary":"Box box-17 is at 9.5 C: \"too \"warm\"\n\"","source":"box-17","severity":"critical","timestamp":"2027-03-01T12:00:00Z",` +
		`"custom_details":{"temperature": 9.5, "clear": false, "note": "too \"warm\"\n"}}}`
	if !sameJSON(t, r.body, want) {
		t.Errorf("sent %s", r.body)
	}
	if r.method != "POST" || r.url != "/v2/enqueue" || r.header.Get("Content-Type") != "application/json" {
		t.Errorf("%+v", r)
	}
}

func sameJSON(t *testing.T, a, b string) bool {
	t.Helper()
	var x, y any
	if err := json.Unmarshal([]byte(a), &x); err != nil {
		t.Fatalf("%s: %v", a, err)
	}
	if err := json.Unmarshal([]byte(b), &y); err != nil {
		t.Fatalf("%s: %v", b, err)
	}
	p, err := json.Marshal(x)
	q, err2 := json.Marshal(y)
	return err == nil && err2 == nil && string(p) == string(q)
}

// A gateway for text messages takes a form and answers 200 to everything.
func TestTextMessages(t *testing.T) {
	answer := ""
	to, requests := far(t, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, answer)
	})
	made := target(t, `
url: `+to+`/v1/${data.account}/messages?trace=${id}
auth: {type: basic, username: acme, password: {value: "pass word"}}
idempotencyKey: true
headers: {X-Level: "${data.level}", X-Team: cold-chain, X-Got: "${rialto.received} ${rialto.rule}"}
body: {form: {To: "${data.phone}", Text: "${subject} & more: ${data.text}", "the key": "${secret.key}"}}
secrets: {key: {value: "k&y=1"}}
answer: {path: $.code, equals: [0, "ok"], permanent: [21211]}
`)
	const data = `{"account": "a/b", "phone": "+4917", "text": "50% = ü", "level": "high"}`
	for _, c := range []struct {
		answer    string
		want      string // in the error; "" = delivered
		reason    targets.Reason
		permanent bool
	}{
		{`{"code": 0}`, "", "", false},
		{"\ufeff" + `{"code": "ok"}`, "", "", false},
		{`{"code": 21211, "message": "no phone"}`, "$.code = 21211", targets.ReasonStatus, true},
		{`{"code": 11}`, "$.code = 11", targets.ReasonStatus, false},
		{`{"code": "0"}`, `$.code = "0"`, targets.ReasonStatus, false},
		{`{"code": "` + strings.Repeat("é", 99) + `\u0000 pass word"}`, `$.code = "éé`, targets.ReasonStatus, false},
		{`{"code": "said pass word and k&y=1"}`, `[redacted] and`, targets.ReasonStatus, false},
		{`{"code": {"a": 1}}`, "an object or a list", targets.ReasonStatus, false},
		{`{}`, "nothing at $.code", targets.ReasonProtocol, false},
		{`<html>`, "is not JSON", targets.ReasonProtocol, false},
		{``, "is not JSON", targets.ReasonProtocol, false},
		{`{"code": 0, "x": "` + strings.Repeat("x", 70<<10) + `"}`, "longer than 65536", targets.ReasonProtocol, false},
	} {
		answer = c.answer
		res, err := deliver(t, made, data)
		switch {
		case c.want == "" && (err != nil || res.Head != ""):
			t.Errorf("%.80s: %v, head %q", c.answer, err, res.Head)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || err.Reason != c.reason || err.Permanent != c.permanent || err.Status != 200 || res.Status != 200):
			t.Errorf("%.80s: %+v, want %s", c.answer, err, c.want)
		case c.want != "" && !strings.HasPrefix(res.Head, "HTTP/1.1 200 OK\n"):
			t.Errorf("%.80s: the head is %q", c.answer, res.Head)
		}
		if err != nil && (strings.Contains(err.Error()+res.Head, "pass word") || strings.Contains(err.Error()+res.Head, "k&y")) {
			t.Errorf("%.80s: a secret is told: %v %q", c.answer, err, res.Head)
		}
	}
	r := (*requests)[0]
	form, err := url.ParseQuery(r.body)
	if err != nil || form.Get("To") != "+4917" || form.Get("Text") != "box-17 & more: 50% = ü" || form.Get("the key") != "k&y=1" || len(form) != 3 {
		t.Errorf("the form is %s, %v", r.body, err)
	}
	for name, want := range map[string]string{"Content-Type": "application/x-www-form-urlencoded", "X-Level": "high", "X-Team": "cold-chain",
		"Idempotency-Key": targettest.Delivery().ID, "Authorization": "Basic YWNtZTpwYXNzIHdvcmQ=", "X-Got": "2027-03-01T12:00:01Z too-warm"} {
		if is := r.header.Get(name); is != want {
			t.Errorf("%s is %q, want %q", name, is, want)
		}
	}
	if r.url != "/v1/a%2Fb/messages?trace=e1" {
		t.Errorf("it went to %s", r.url)
	}
}

// What the templates look at is told, with where they stand.
// A far side that repeats what it was sent, as it was or as its own JSON has it, tells no secret to those who look at attempts.
func TestSecretsThatComeBack(t *testing.T) {
	for name, c := range map[string]struct{ config, answer string }{
		"JSON":      {`body: {json: {key: "${secret.key}"}}`, ""},
		"XML":       {"contentType: text/xml\n" + `body: {text: "<key>${secret.key}</key>"}`, ""},
		"a form":    {`body: {form: {key: "${secret.key}"}}`, ""},
		"a URL":     {`body: {text: "${secret.key}"}`, "k&y%221%2F2%3C3"},
		"their own": {`body: {text: "${secret.key}"}`, `{"error":"no such key: k&y\"1\/2<3"}`},
	} {
		var requests *[]got
		to := ""
		to, requests = far(t, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusInternalServerError)
			io.WriteString(w, cmp.Or(c.answer, (*requests)[0].body))
		})
		res, err := deliver(t, target(t, "url: "+to+"\n"+c.config+"\nsecrets: {key: {value: 'k&y\"1/2<3'}}"), `{}`)
		if err == nil || !strings.Contains(res.Head, "[redacted]") || strings.Contains(res.Head, "1/2") || strings.Contains(res.Head, `1\/2`) || strings.Contains(res.Head, "1%2F2") {
			t.Errorf("%s: %v, head %q", name, err, res.Head)
		}
	}
}

func TestReads(t *testing.T) {
	made := target(t, `
url: https://h.example/${data.account}?q=${subject}
headers: {X-Level: "${data.level}", X-Fixed: a}
body: {form: {a/b: "${data.text}", c: "${data.n + 1}", d: d}}
`)
	var got []string
	for _, r := range made.(targets.Reading).Reads() {
		got = append(got, fmt.Sprint(r.Path, " ", r.Pointer, " ", r.Needed))
	}
	const want = "/data/account /config/url true; /subject /config/url false; /data/level /config/headers/X-Level false; /data/text /config/body/form/a~1b false; /data/n /config/body/form/c false"
	if strings.Join(got, "; ") != want {
		t.Errorf("reads %s", strings.Join(got, "; "))
	}
	if reads := target(t, "url: https://h.example/\nbody: {json: {a: \"${data.x}\"}}").(targets.Reading).Reads(); len(reads) != 1 || reads[0].Pointer != "/config/body/json" {
		t.Errorf("reads %+v", reads)
	}
}

// Bodies of all sorts.
func TestBodies(t *testing.T) {
	const data = `{"v": "a<b & \"c\"", "n": [1]}`
	for config, want := range map[string]string{
		`url: URL`:                                     "POST application/json " + data,
		"url: URL\nmethod: PATCH\nbody: event":         `PATCH application/cloudevents+json {"specversion":"1.0","id":"e1","source":"/boxes","type":"com.acme.alarm","subject":"box-17","time":"2027-03-01T12:00:00Z","datacontenttype":"application/json","data":` + data + `}`,
		"url: URL\nbody: none":                         "POST  ",
		"url: URL\nmethod: DELETE":                     "DELETE  ",
		"url: URL\nmethod: GET":                        "GET  ",
		"url: URL\nmethod: DELETE\nbody: {text: gone}": "DELETE text/plain; charset=utf-8 gone",
		"url: URL\nbody: {text: \"${data.v}!\"}":       `POST text/plain; charset=utf-8 a<b & "c"!`,
		"url: URL\nbody: {text: \"<a>${data.v}</a>\"}\ncontentType: application/soap+xml; charset=utf-8": `POST application/soap+xml; charset=utf-8 <a>a&lt;b &amp; &#34;c&#34;</a>`,
		"url: URL\nbody: {text: \"v=${data.v}\"}\ncontentType: application/x-www-form-urlencoded":        `POST application/x-www-form-urlencoded v=a%3Cb+%26+%22c%22`,
		"url: URL\nbody: {json: '{\"value\": \"${data.v}\"}'}\ncontentType: application/vnd.acme+json":   `POST application/vnd.acme+json {"value": "a<b & \"c\""}`,
		"url: URL\nbody: {json: [\"${data.n}\", \"${data.none}\", true]}":                                `POST application/json [[1],null,true]`,
		"url: URL\nbody: {text: '{\"a\":\"${data.v}\"}'}\ncontentType: application/json":                 `POST application/json {"a":"a<b & \"c\""}`,
		"url: URL\nbody: none\nheaders: {X-None: \"${data.none}\", X-Amz-Target: a.b}\nauth: " + aws:     "POST  ",
	} {
		to, requests := far(t, nil)
		if _, err := deliver(t, target(t, strings.Replace(config, "URL", to, 1)), data); err != nil {
			t.Errorf("%s: %v", config, err)
			continue
		}
		r := (*requests)[0]
		if is := r.method + " " + r.header.Get("Content-Type") + " " + r.body; is != want {
			t.Errorf("%s sends\n%s, want\n%s", config, is, want)
		}
		if _, ok := r.header["X-None"]; ok {
			t.Error("a header without a value is sent")
		}
	}
}

const aws = `{type: awsSigV4, region: eu-central-1, service: sqs, accessKeyId: {value: AKID}, secretAccessKey: {value: abcdefgh}}`

// What an event cannot fill in is a dead letter, and no request is made.
func TestEventsThatDoNotFit(t *testing.T) {
	to, requests := far(t, nil)
	for config, want := range map[string]string{
		"url: URL/users/${data.none}\nmethod: DELETE":          "url: a value in the path of the URL is empty",
		"url: URL/users/${data.up}/x":                          "url: a value makes a segment",
		"url: URL\nheaders: {X-Text: \"a ${data.lines}\"}":     "header X-Text: is not printable ASCII",
		"url: URL\nbody: {text: \"${data.lines.x + 1}\"}":      "body: ${data.lines.x + 1}",
		"url: URL\nbody: {form: {a: \"${data.lines.x + 1}\"}}": "body: a: ${data.lines.x + 1}",
		"url: URL/${data.long}":                                "url: is too long",
		"url: URL\nbody: {form: {a: \"${data.long}\", b: \"${data.long + data.long + data.long}\", c: \"${repeat(data.long, 70)}\", d: \"${repeat(data.long, 70)}\"}}": "body: would have more than 1048576 bytes",
	} {
		_, err := deliver(t, target(t, strings.Replace(config, "URL", to, 1)), `{"up": "..", "lines": "a\r\nHost: x", "long": "`+strings.Repeat("x", 9000)+`"}`)
		if err == nil || err.Reason != targets.ReasonTransform || !err.Permanent || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "Host") {
			t.Errorf("%s: %v, want %s", config, err, want)
		}
	}
	if len(*requests) > 0 {
		t.Errorf("%d requests were made", len(*requests))
	}
}

// Statuses count as the config says.
func TestSuccess(t *testing.T) {
	status := 0
	to, _ := far(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "7")
		w.WriteHeader(status)
	})
	made := target(t, "url: "+to+"\nsuccess: [200, 409]")
	for n, want := range map[int]string{200: "", 409: "", 201: "status 201, which does not count", 202: "status 202", 404: "status 404", 400: "status 400", 302: "redirect"} {
		status = n
		_, err := deliver(t, made, `{}`)
		if (err == nil) != (want == "") || err != nil && (!strings.Contains(err.Error(), want) || err.Permanent != (n == 400 || n == 302)) {
			t.Errorf("%d: %v, want %s", n, err, want)
		}
		if n == 202 && err.RetryAfter != 7*time.Second {
			t.Errorf("%d: rest %v", n, err.RetryAfter)
		}
	}
}

// Every mistake in a config is found when it is written.
func TestConfigsThatAreRefused(t *testing.T) {
	kinds := targets.NewCatalog(kind())
	for config, want := range map[string]string{
		`{}`:                                               "/config/url",
		`{"url": "https://${data.host}/x"}`:                "/config/url: has a placeholder in front of the path",
		`{"url": "https://127.0.0.2/${a"}`:                 "/config/url: a ${ is not closed",
		`{"url": "http://10.0.0.1/${type}"}`:               "/config/url: ",
		`{"url": "https://h.example/", "method": "TRACE"}`: "/config/method",
		`{"url": "https://h.example/", "method": "GET", "body": "data"}`:                        "/config/body: is not for GET",
		`{"url": "https://h.example/", "body": "all"}`:                                          "/config/body",
		`{"url": "https://h.example/", "body": {"json": {}, "text": "x"}}`:                      "/config/body",
		`{"url": "https://h.example/", "body": {"json": {"a": ["${1 +}"]}}}`:                    "/config/body/json/a/0: ",
		`{"url": "https://h.example/", "body": {"json": "{"}}`:                                  "/config/body/json: ",
		`{"url": "https://h.example/", "body": {"json": {"a": {"ref": "x"}}}}`:                  "/config/body/json/a: looks like a secret",
		`{"url": "https://h.example/", "body": {"json": {"a": [{"sealed": "x", "until": 1}]}}}`: "/config/body/json/a/0: looks like a secret",
		`{"url": "https://h.example/", "body": {"form": {"sealed": "x"}}}`:                      "/config/body/form: looks like a secret",
		`{"url": "https://h.example/", "body": {"form": {"value": "${type}"}}}`:                 "/config/body/form: looks like a secret",
		`{"url": "https://h.example/", "headers": {"Sealed": "x", "ref": "${type}"}}`:           "",
		`{"url": "https://h.example/", "headers": {"ref": "a"}}`:                                "/config/headers: looks like a secret",
		`{"url": "https://h.example/", "auth": {"type": "oauth2", "tokenUrl": "https://h.example/", "clientId": "c", "clientSecret": {"value": "s"}, "parameters": {"sealed": "x"}}}`: "/config/auth/parameters: looks like a secret",
		`{"url": "https://h.example/", "body": {"form": {"a/b": "${secret.x}"}}}`:                                                                                                     "/config/body/form/a~1b: there is no secret of the name x",
		`{"url": "https://h.example/", "contentType": "text/plain"}`:                                                                                                                  "/config/contentType: is for a body",
		`{"url": "https://h.example/", "body": {"text": "x"}, "contentType": "text plain"}`:                                                                                           "/config/contentType: is not a content type",
		`{"url": "https://h.example/", "secrets": {"k": "v"}}`:                                                                                                                        "/config/secrets/k",
		`{"url": "https://h.example/", "secrets": {"a.b": {"value": "v"}}}`:                                                                                                           "/config/secrets/a.b: is not a name",
		`{"url": "https://h.example/", "secrets": {"k": {"value": "a\nb"}}}`:                                                                                                          "/config/secrets/k: has control characters",
		`{"url": "https://h.example/", "headers": {"Content-Type": "a/b"}}`:                                                                                                           "/config/headers/Content-Type: is set by the bridge",
		`{"url": "https://h.example/", "headers": {"X-Amz-Target": "a"}}`:                                                                                                             "/config/headers/X-Amz-Target: is set by the bridge",
		`{"url": "https://h.example/", "headers": {"X-Acs-Action": "a"}}`:                                                                                                             "/config/headers/X-Acs-Action: is set by the bridge",
		`{"url": "https://h.example/", "headers": {"X-Fc-Log-Type": "a"}}`:                                                                                                            "/config/headers/X-Fc-Log-Type: is set by the bridge",
		`{"url": "https://h.example/", "headers": {"X-Acs-Action": "a", "X-Acs-Version": "b"}, "auth": {"type": "alibabaACS3", "accessKeyId": {"value": "a"}, "secretAccessKey": {"value": "b"}}}`: "",
		`{"url": "https://h.example/", "headers": {"X-Acs-Date": "a"}, "auth": {"type": "alibabaACS3", "accessKeyId": {"value": "a"}, "secretAccessKey": {"value": "b"}}}`:                         "/config/headers/X-Acs-Date: is set by the bridge",
		`{"url": "https://h.example/", "headers": {"ce-id": "${id}"}}`:                                                                               "/config/headers/ce-id: is set by the bridge",
		`{"url": "https://h.example/", "headers": {"X-A": "${1 +}"}}`:                                                                                "/config/headers/X-A: ",
		`{"url": "https://h.example/", "headers": {"Authorization": "Bearer ${data.token}"}}`:                                                        "/config/headers/Authorization: is a secret",
		`{"url": "https://h.example/", "success": [302]}`:                                                                                            "/config/success: has a redirect",
		`{"url": "https://h.example/", "success": []}`:                                                                                               "/config/success",
		`{"url": "https://h.example/", "answer": {"path": "$..code", "equals": 0}}`:                                                                  "/config/answer/path: may lead to more than one",
		`{"url": "https://h.example/", "answer": {"path": "code", "equals": 0}}`:                                                                     "/config/answer/path: not a JSONPath",
		`{"url": "https://h.example/", "answer": {"path": "$.code"}}`:                                                                                "/config/answer/equals",
		`{"url": "https://h.example/", "answer": {"path": "$.code", "equals": {}}}`:                                                                  "/config/answer/equals",
		`{"url": "https://h.example/", "answer": {"path": "$.code", "equals": [0, 1], "permanent": 1}}`:                                              "/config/answer/permanent: has a value that stands in equals",
		`{"url": "https://h.example/", "auth": {"type": "alibabaACS3", "accessKeyId": {"value": "a"}}}`:                                              "/config/auth/secretAccessKey: is missing",
		`{"url": "https://h.example/", "auth": {"type": "oauth2", "tokenUrl": "http://10.0.0.1/", "clientId": "c", "clientSecret": {"value": "s"}}}`: "/config/auth/tokenUrl",
	} {
		_, err := targets.ParseDefinition([]byte(`{"name": "far", "type": "http", "config": `+config+`}`), kinds)
		if (err != nil) != (want != "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", config, err, want)
		}
	}
}

// An attempt that ends takes its request with it.
func TestDeliverEndsWithItsContext(t *testing.T) {
	to, _ := far(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := target(t, "url: "+to+"\nmethod: PUT\nbody: {text: \"${id}\"}").Deliver(ctx, targettest.Delivery())
	if targets.ReasonOf(err) != targets.ReasonTimeout {
		t.Errorf("%v, want a timeout", err)
	}
}
