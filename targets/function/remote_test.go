// SPDX-License-Identifier: Apache-2.0

package function_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/targets"
	"github.com/rialto-bridge/rialto/targets/function"
	"github.com/rialto-bridge/rialto/targets/outbound"
	"github.com/rialto-bridge/rialto/targets/targettest"
)

func remoteKind() targets.Kind { return function.TargetKind(nil, targettest.Guard().CheckURL) }

const (
	awsAuth     = `"auth": {"type": "awsSigV4", "region": "eu-central-1", "service": "lambda", "accessKeyId": {"value": "AKIDEXAMPLE"}, "secretAccessKey": {"value": "aws-secret"}}`
	alibabaAuth = `"auth": {"type": "alibabaACS3", "accessKeyId": {"value": "LTAI-1"}, "secretAccessKey": {"value": "acs-secret"}, "sessionToken": {"ref": "sts"}}`
)

func TestRemoteIsATarget(t *testing.T) {
	for name, config := range map[string]string{
		"binary":     `{"runtime": "http", "url": "%s"}`,
		"structured": `{"runtime": "http", "url": "%s", "mode": "structured", "headers": {"X-Team": "ops"}}`,
		"lambda":     `{"runtime": "http", "preset": "aws-lambda", "url": "%s", "function": "resize", ` + awsAuth + `}`,
		"fc":         `{"runtime": "http", "preset": "alibaba-fc", "url": "%s", "function": "resize", "auth": {"type": "alibabaACS3", "accessKeyId": {"value": "a"}, "secretAccessKey": {"value": "b"}}}`,
		"openfaas":   `{"runtime": "http", "preset": "openfaas", "url": "%s", "function": "resize", "invocation": "async"}`,
	} {
		t.Run(name, func(t *testing.T) {
			targettest.Run(t, targettest.Subject{Kind: remoteKind(), Config: func(url string) string { return fmt.Sprintf(config, url) }})
		})
	}
}

// request is what a function was called with.
type request struct {
	*http.Request
	body []byte
}

// caller is a target with a far side.
type caller struct {
	url    string
	target targets.Target
	got    []request
	answer http.HandlerFunc
	refuse error // of the bus
	bus    string
	events []event.Event // replies
	res    targets.Result
}

// call makes a target; URL in its config is a far side that answers with answer.
func call(t *testing.T, config string) *caller {
	t.Helper()
	c := &caller{answer: func(http.ResponseWriter, *http.Request) {}}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		c.got = append(c.got, request{r, body})
		c.answer(w, r)
	}))
	t.Cleanup(srv.Close)
	c.url = srv.URL
	kinds := targets.NewCatalog(remoteKind())
	d, err := targets.ParseDefinition([]byte(`{"name": "fn", "type": "function", "config": `+strings.ReplaceAll(config, "URL", srv.URL)+`}`), kinds)
	if err != nil {
		t.Fatal(err)
	}
	client := outbound.Client(targettest.Guard(), outbound.Options{})
	t.Cleanup(client.CloseIdleConnections)
	c.target, err = kinds.New(d, targets.Env{HTTP: client, TLS: func(*tls.Config) *http.Client { return client }, Logger: slog.New(slog.DiscardHandler), Now: time.Now,
		Secrets: func(ref string) (string, error) { return "secret-of-" + ref, nil },
		Emit: func(_ context.Context, bus string, evs ...event.Event) error {
			for i := range evs {
				if err := evs[i].Validate(event.Limits{MaxData: 8 << 20}); err != nil {
					t.Errorf("reply %+v: %v", evs[i], err)
				}
			}
			c.bus, c.events = bus, evs
			return c.refuse
		}})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// deliver makes an attempt with an answer.
func (c *caller) deliver(t *testing.T, ev *event.Event, answer http.HandlerFunc) *targets.Error {
	t.Helper()
	c.answer, c.bus, c.events = answer, "", nil
	d := targettest.Delivery()
	if ev != nil {
		d.Event = ev
	}
	res, err := c.target.Deliver(t.Context(), d)
	c.res = res
	var te *targets.Error
	if err != nil && !errors.As(err, &te) {
		t.Fatalf("error %T %v", err, err)
	}
	return te
}

func answers(status int, body string, headers ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		for i := 0; i < len(headers); i += 2 {
			w.Header().Set(headers[i], headers[i+1])
		}
		w.WriteHeader(status)
		io.WriteString(w, body)
	}
}

const reply = `{"specversion":"1.0","id":"r-1","source":"/fn","type":"done","causationid":"echoed","rialtohops":0,"data":{"ok":true}}`

// What a function answers is a reply if it says that it is an event, in any mode, and is stored as such.
func TestRemoteReplies(t *testing.T) {
	binary := []string{"Content-Type", "application/json", "ce-specversion", "1.0", "ce-id", "r-1", "ce-source", "/fn", "ce-type", "done", "ce-x", "a%20b", "ce-rialtohops", "0"}
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		want   int
	}{
		"structured":            {answers(200, reply, "Content-Type", "application/cloudevents+json"), 1},
		"binary":                {answers(201, `{"ok":true}`, binary...), 1},
		"batch":                 {answers(200, "["+reply+","+strings.Replace(reply, "r-1", "r-2", 1)+"]", "Content-Type", "application/cloudevents-batch+json; charset=utf-8"), 2},
		"202":                   {answers(202, reply, "Content-Type", "application/cloudevents+json"), 0},
		"an empty batch":        {answers(200, "[]", "Content-Type", "application/cloudevents-batch+json"), 0},
		"nothing":               {answers(204, ""), 0},
		"nothing, with a type":  {answers(200, "", "Content-Type", "application/cloudevents+json"), 0},
		"something else":        {answers(200, reply, "Content-Type", "application/json"), 0},
		"something else, large": {answers(200, strings.Repeat("x", 2<<20), "Content-Type", "text/html"), 0},
	} {
		call := call(t, `{"runtime": "http", "url": "URL/fn", "replyBus": "replies"}`)
		if err := call.deliver(t, nil, c.answer); err != nil || len(call.events) != c.want || call.res.Head != "" {
			t.Errorf("%s: %d replies, %v", name, len(call.events), err)
			continue
		}
		first := call.events
		if err := call.deliver(t, nil, c.answer); err != nil || len(call.events) != len(first) {
			t.Errorf("%s: %d replies to a repeated call, %v", name, len(call.events), err)
			continue
		}
		for i, ev := range call.events {
			hops, _ := ev.Extension(targets.HopsExtension)
			cause, _ := ev.Extension(targets.CausationExtension)
			if ev.ID != fmt.Sprintf("dlv_0123456789abcdef-%d", i) || ev.ID != first[i].ID || ev.Source != "/fn" || ev.Type != "done" || hops != int32(1) || cause != targettest.Event().ID ||
				call.bus != "replies" || string(ev.Data) != `{"ok":true}` {
				t.Errorf("%s: %+v on %s", name, ev, call.bus)
			}
		}
	}
	own := call(t, `{"runtime": "http", "url": "URL/fn", "replyIds": "own"}`)
	if err := own.deliver(t, nil, answers(200, reply, "Content-Type", "application/cloudevents+json")); err != nil || own.events[0].ID != "r-1" || own.bus != "devices" {
		t.Errorf("%+v on %s, %v", own.events, own.bus, err)
	}
}

// What is no event although it says so has failed and is tried again: another version of the function may mend it.
func TestRemoteRepliesThatAreRefused(t *testing.T) {
	large := strings.Replace(reply, `{"ok":true}`, `"`+strings.Repeat("x", 3000)+`"`, 1)
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		want   string
	}{
		"not JSON":        {answers(200, "{", "Content-Type", "application/cloudevents+json"), "says that it is an event, and is none"},
		"no type":         {answers(200, `{"specversion":"1.0","id":"1","source":"/"}`, "Content-Type", "application/cloudevents+json"), "type"},
		"another format":  {answers(200, "x", "Content-Type", "application/cloudevents+avro"), "format is not understood"},
		"no id in binary": {answers(200, "x", "ce-specversion", "1.0", "ce-type", "t", "ce-source", "/"), "id"},
		"encoded":         {answers(200, reply, "Content-Type", "application/cloudevents+json", "Content-Encoding", "gzip"), "content encodings"},
		"too large":       {answers(200, large, "Content-Type", "application/cloudevents+json"), "more than 2048 bytes (maxReply)"},
		"large, binary":   {answers(200, large, "ce-specversion", "1.0", "ce-type", "t", "ce-source", "/", "ce-id", "1"), "more than 2048 bytes (maxReply)"},
		"too many":        {answers(200, "["+strings.TrimSuffix(strings.Repeat(`{"specversion":"1.0"},`, 90), ",")+"]", "Content-Type", "application/cloudevents-batch+json"), "none"},
	} {
		call := call(t, `{"runtime": "http", "url": "URL/fn", "maxReply": "2KiB"}`)
		err := call.deliver(t, nil, c.answer)
		if err == nil || err.Reason != targets.ReasonFunction || err.Permanent || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(call.res.Head, "HTTP/1.1 200 OK\n") || call.events != nil {
			t.Errorf("%s: %v, want %s, head %.60q", name, err, c.want, call.res.Head)
		}
	}
}

// Replies that a bus refuses, and those of a loop, end the delivery as their kind of failure says.
func TestRemoteRepliesThatAreNotStored(t *testing.T) {
	answer := answers(200, reply, "Content-Type", "application/cloudevents+json")
	c := call(t, `{"runtime": "http", "url": "URL/fn", "maxHops": 3}`)
	for kind, permanent := range map[fault.Kind]bool{fault.Unfit: true, fault.TooLarge: true, fault.NotFound: false, fault.Full: false, fault.Unavailable: false} {
		c.refuse = fault.New(kind, "told why")
		if err := c.deliver(t, nil, answer); err == nil || err.Reason != targets.ReasonFunction || err.Permanent != permanent || !strings.Contains(err.Error(), "reply to bus devices: told why") {
			t.Errorf("%s: %v", kind, err)
		}
	}
	c.refuse = nil
	for hops, want := range map[any]bool{int32(0): true, "1": true, int32(2): true, int32(3): false, "3": false} {
		ev := targettest.Event()
		ev.Extensions = append(ev.Extensions, event.Attribute{Name: targets.HopsExtension, Value: hops})
		err := c.deliver(t, ev, answer)
		if want != (err == nil) || err != nil && (!err.Permanent || err.Reason != targets.ReasonFunction || !strings.Contains(err.Error(), "is there a loop?")) {
			t.Errorf("after %v hops: %v", hops, err)
		}
	}
}

// The event is sent as the mode says.
func TestRemoteModes(t *testing.T) {
	binary := call(t, `{"runtime": "http", "url": "URL/fn?a=b", "headers": {"X-Team": "ops"}, "auth": {"type": "bearer", "token": {"ref": "tkn"}}}`)
	if err := binary.deliver(t, nil, answers(200, "")); err != nil {
		t.Fatal(err)
	}
	r := binary.got[0]
	want := targettest.Event()
	mode, evs, err := event.FromHTTP(http.Header(r.Header), r.body, event.Limits{})
	if err != nil || mode != event.Binary || evs[0].ID != want.ID || evs[0].Subject != want.Subject || string(evs[0].Data) != string(want.Data) || r.RequestURI != "/fn?a=b" ||
		r.Header.Get("X-Team") != "ops" || r.Header.Get("Prefer") != "reply" || r.Header.Get("Authorization") != "Bearer secret-of-tkn" || r.Method != "POST" {
		t.Errorf("%v %+v, %v", mode, evs, err)
	}
	structured := call(t, `{"runtime": "http", "preset": "knative", "url": "URL", "mode": "structured"}`)
	if err := structured.deliver(t, nil, answers(202, "")); err != nil {
		t.Fatal(err)
	}
	r = structured.got[0]
	if mode, evs, err := event.FromHTTP(r.Header, r.body, event.Limits{}); err != nil || mode != event.Structured || evs[0].ID != want.ID || r.Header.Get("Prefer") != "reply" {
		t.Errorf("%v %+v, %v, %v", mode, evs, err, r.Header)
	}
	raw := call(t, `{"runtime": "http", "url": "URL", "headerCoding": "raw"}`)
	ev := &event.Event{ID: "100%", Source: "/s", Type: "a b"}
	if err := raw.deliver(t, ev, answers(200, "")); err != nil || raw.got[0].Header.Get("Ce-Id") != "100%" {
		t.Errorf("%v, %v", err, raw.got[0].Header)
	}
}

// Every mistake in a config is found when it is written.
func TestConfigsThatAreRefused(t *testing.T) {
	kinds := targets.NewCatalog(remoteKind())
	for config, want := range map[string]string{
		`{}`:                "/config/function: is missing: it names a Function",
		`{"function": "A"}`: "/config/function: is not the name of a Function",
		`{"function": "a", "url": "https://h.example/"}`:                                                                                                                "/config/url: is for runtime http",
		`{"function": "a", "maxReply": "1KiB"}`:                                                                                                                         "/config/maxReply: is for runtime http",
		`{"function": "a", "maxHops": 65}`:                                                                                                                              "/config/maxHops",
		`{"runtime": "lambda", "function": "a"}`:                                                                                                                        "/config/runtime",
		`{"runtime": "http"}`:                                                                                                                                           "/config/url: is missing",
		`{"runtime": "http", "url": "http://10.0.0.1/"}`:                                                                                                                "/config/url: ",
		`{"runtime": "http", "url": "https://h.example/", "function": "a"}`:                                                                                             "/config/function: is not for a function without a preset",
		`{"runtime": "http", "url": "https://h.example/", "invocation": "async"}`:                                                                                       "/config/invocation: is not for",
		`{"runtime": "http", "url": "https://h.example/", "qualifier": "a"}`:                                                                                            "/config/qualifier: is not for",
		`{"runtime": "http", "url": "https://h.example/", "permanentErrors": ["a"]}`:                                                                                    "/config/permanentErrors: is not for",
		`{"runtime": "http", "url": "https://h.example/", "maxReply": "9MiB"}`:                                                                                          "/config/maxReply: must be a size",
		`{"runtime": "http", "url": "https://h.example/", "mode": "structured", "headerCoding": "raw"}`:                                                                 "/config/headerCoding: is not for",
		`{"runtime": "http", "url": "https://h.example/", "headers": {"Content-Type": "a/b"}}`:                                                                          "/config/headers/Content-Type",
		`{"runtime": "http", "preset": "aws-lambda", "function": "a"}`:                                                                                                  "/config/auth: is missing: aws-lambda needs the type awsSigV4",
		`{"runtime": "http", "preset": "aws-lambda", "function": "a/b", ` + awsAuth + `}`:                                                                               "/config/function: is not the name of a function of aws-lambda",
		`{"runtime": "http", "preset": "aws-lambda", ` + awsAuth + `}`:                                                                                                  "/config/function: is missing",
		`{"runtime": "http", "preset": "aws-lambda", "function": "a", "mode": "binary", ` + awsAuth + `}`:                                                               "/config/mode: is not for aws-lambda",
		`{"runtime": "http", "preset": "aws-lambda", "function": "a", "url": "https://h.example/?x=1", ` + awsAuth + `}`:                                                "/config/url: has a query",
		`{"runtime": "http", "preset": "aws-lambda", "function": "a", ` + strings.Replace(awsAuth, `"lambda"`, `"sqs"`, 1) + `}`:                                        "/config/auth/service: must be lambda",
		`{"runtime": "http", "preset": "aws-lambda", "function": "a", "auth": {"type": "bearer", "token": {"value": "a"}}}`:                                             "/config/auth/type: must be awsSigV4",
		`{"runtime": "http", "preset": "aws-lambda", "function": "a", "qualifier": "a b", ` + awsAuth + `}`:                                                             "/config/qualifier",
		`{"runtime": "http", "preset": "alibaba-fc", "function": "a", ` + alibabaAuth + `}`:                                                                             "/config/url: is missing",
		`{"runtime": "http", "preset": "alibaba-fc", "function": "1", "url": "https://h.example/", ` + alibabaAuth + `}`:                                                "/config/function: is not the name of a function of alibaba-fc",
		`{"runtime": "http", "preset": "openfaas", "function": "../system", "url": "https://h.example/"}`:                                                               "/config/function: is not the name of a function of openfaas",
		`{"runtime": "http", "preset": "knative", "function": "a", "url": "https://h.example/"}`:                                                                        "/config/function: is not for knative",
		`{"runtime": "http", "preset": "alibaba-fc", "function": "a", "url": "https://h.example/", "headers": {"x-fc-invocation-type": "Async"}, ` + alibabaAuth + `}`:  "/config/headers/x-fc-invocation-type: is set by the bridge",
		`{"runtime": "http", "preset": "alibaba-fc", "function": "a", "url": "https://h.example/", "headers": {"X-ACS-Action": "DeleteFunction"}, ` + alibabaAuth + `}`: "/config/headers/X-ACS-Action: is set by the bridge for alibaba-fc",
		`{"runtime": "http", "preset": "openfaas", "function": "a", "url": "https://h.example/", "headers": {"X-Call-Id": "1"}}`:                                        "/config/headers/X-Call-Id: is set by the bridge",
		`{"runtime": "http", "url": "https://h.example/", "headers": {"prefer": "wait=1"}}`:                                                                             "/config/headers/prefer: is set by the bridge for a function",
		`{"runtime": "http", "url": "https://h.example/", "auth": {"type": "apiKey", "header": "Prefer", "key": {"ref": "k"}}}`:                                         "/config/auth/header: is set by the bridge for a function",
		`{"runtime": "http", "preset": "azure", "url": "https://h.example/"}`:                                                                                           "/config/preset",
	} {
		_, err := targets.ParseDefinition([]byte(`{"name": "fn", "type": "function", "config": `+config+`}`), kinds)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", config, err, want)
		}
	}
	for _, config := range []string{
		`{"runtime": "http", "preset": "openfaas", "function": "resize", "url": "https://gateway.example/of", "invocation": "async", "headers": {"X-Callback-Url": "http://gateway/f", "Prefer": "wait=1"}}`,
		`{"runtime": "http", "preset": "aws-lambda", "function": "arn:aws:lambda:eu-central-1:123456789012:function:resize", "qualifier": "$LATEST", ` + awsAuth + `}`,
		`{"runtime": "http", "preset": "openfaas", "function": "resize.team-a", "url": "https://gateway.example/of", "auth": {"type": "basic", "username": "admin", "password": {"ref": "of"}}}`,
	} {
		if _, err := targets.ParseDefinition([]byte(`{"name": "fn", "type": "function", "config": `+config+`}`), kinds); err != nil {
			t.Errorf("%s: %v", config, err)
		}
	}
}

// FuzzReplies: whatever a function answers, the replies are events that can be stored, and no more than are allowed.
func FuzzReplies(f *testing.F) {
	f.Add("application/cloudevents+json", "", reply)
	f.Add("application/cloudevents-batch+json", "", "["+reply+"]")
	f.Add("application/json", "r-1", `{"a":1}`)
	f.Add("", "", "")
	client := &http.Client{}
	kinds := targets.NewCatalog(remoteKind())
	var contentType, id, body string
	client.Transport = roundTrip(func() *http.Response {
		h := http.Header{}
		if contentType != "" {
			h["Content-Type"] = []string{contentType}
		}
		if id != "" {
			for name, value := range map[string]string{"Ce-Id": id, "Ce-Specversion": "1.0", "Ce-Type": "t", "Ce-Source": "/s"} {
				h[name] = []string{value}
			}
		}
		return &http.Response{StatusCode: 200, Status: "200 OK", Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: h, ContentLength: -1, Body: io.NopCloser(strings.NewReader(body))}
	})
	var made []targets.Target
	var failed error
	for _, config := range []string{`{"runtime":"http","url":"https://h.example/","maxReply":4096}`, `{"runtime":"http","preset":"aws-lambda","function":"a","maxReply":4096,` + awsAuth + `}`} {
		d, err := targets.ParseDefinition([]byte(`{"name":"fn","type":"function","config":`+config+`}`), kinds)
		if err != nil {
			f.Fatal(err)
		}
		one, err := kinds.New(d, targets.Env{HTTP: client, Now: time.Now, Emit: func(_ context.Context, _ string, evs ...event.Event) error {
			if len(evs) > 100 {
				failed = fmt.Errorf("%d replies", len(evs))
			}
			for i := range evs {
				if err := evs[i].Validate(event.Limits{}); err != nil {
					failed = fmt.Errorf("%+v: %w", evs[i], err)
				}
			}
			return nil
		}})
		if err != nil {
			f.Fatal(err)
		}
		made = append(made, one)
	}
	f.Fuzz(func(t *testing.T, ct, ceID, answer string) {
		contentType, id, body, failed = ct, ceID, answer, nil
		for _, one := range made {
			_, err := one.Deliver(t.Context(), targets.Delivery{ID: "dlv_1", Bus: "b", Event: &event.Event{ID: "1", Source: "/s", Type: "t"}})
			var te *targets.Error
			if failed != nil || err != nil && (!errors.As(err, &te) || te.Reason != targets.ReasonFunction) {
				t.Errorf("%q %q %q: %v, %v", ct, ceID, answer, failed, err)
			}
		}
	})
}

type roundTrip func() *http.Response

func (r roundTrip) RoundTrip(*http.Request) (*http.Response, error) { return r(), nil }
