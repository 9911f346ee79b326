// SPDX-License-Identifier: Apache-2.0

package function_test

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strings"
	"testing"
	"time"

	acs "github.com/alibabacloud-go/openapi-util/service"
	"github.com/alibabacloud-go/tea/tea"
	"github.com/aws/aws-sdk-go-v2/aws"
	sigv4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/targets"
	"github.com/rialto-bridge/rialto/targets/targettest"
)

// outcome is what a platform answers, and what is to become of it.
type outcome struct {
	name      string
	answer    http.HandlerFunc
	reason    targets.Reason // "" = delivered
	permanent bool
	rest      time.Duration
	says      string // in the error
	replies   int
}

func (c *caller) outcomes(t *testing.T, all []outcome) {
	t.Helper()
	for _, o := range all {
		err := c.deliver(t, nil, o.answer)
		switch {
		case o.reason == "" && err != nil:
			t.Errorf("%s: %v", o.name, err)
		case o.reason != "" && (err == nil || err.Reason != o.reason || err.Permanent != o.permanent || err.RetryAfter != o.rest || !strings.Contains(err.Error(), o.says) || c.res.Head == ""):
			t.Errorf("%s: %+v, want %s, permanent = %v, rest %v, %s; head %.40q", o.name, err, o.reason, o.permanent, o.rest, o.says, c.res.Head)
		case len(c.events) != o.replies:
			t.Errorf("%s: %d replies, want %d", o.name, len(c.events), o.replies)
		}
	}
}

// lambdaError is an error of a service of AWS as the REST JSON protocol has it.
func lambdaError(status int, kind string, headers ...string) http.HandlerFunc {
	return answers(status, `{"Type":"User","message":"Rate Exceeded."}`, append(headers, "x-amzn-ErrorType", kind+":http://internal.amazon.com/coral/com.amazonaws.awsgirapi/", "Content-Type", "application/json")...)
}

func TestLambda(t *testing.T) {
	c := call(t, `{"runtime": "http", "preset": "aws-lambda", "url": "URL", "function": "arn:aws:lambda:eu-central-1:123456789012:function:resize", "qualifier": "live",
		"permanentErrors": ["ValidationError"], `+awsAuth+`}`)
	failed := func(body string) http.HandlerFunc {
		return answers(200, body, "X-Amz-Function-Error", "Unhandled", "X-Amz-Executed-Version", "7", "Content-Type", "application/json")
	}
	c.outcomes(t, []outcome{
		{name: "null", answer: answers(200, "null", "Content-Type", "application/json")},
		{name: "data", answer: answers(200, `{"statusCode":200,"body":"x"}`, "Content-Type", "application/json")},
		{name: "a reply", answer: answers(200, reply, "Content-Type", "application/json"), replies: 1},
		{name: "replies", answer: answers(200, "["+reply+","+reply+"]", "Content-Type", "application/json"), replies: 2},
		{name: "a list of others", answer: answers(200, `[1,{"specversion":"1.0"}]`), replies: 0},
		{name: "no event", answer: answers(200, `{"specversion":"1.0"}`), reason: targets.ReasonFunction, says: "is none"},
		{name: "too large", answer: answers(200, `"`+strings.Repeat("x", 2<<20)+`"`), reason: targets.ReasonFunction, says: "maxReply"},
		{name: "an exception", answer: failed(`{"errorMessage":"'phone'","errorType":"KeyError","requestId":"1","stackTrace":["  File \"/var/task/f.py\""]}`),
			reason: targets.ReasonFunction, says: "(Unhandled): KeyError: 'phone'"},
		{name: "one that stays", answer: failed(`{"errorMessage":"no phone","errorType":"ValidationError","trace":[]}`), reason: targets.ReasonFunction, permanent: true, says: "ValidationError"},
		{name: "an exit", answer: failed(`{"errorType":"Runtime.ExitError","errorMessage":"RequestId: 1 Error: Runtime exited with error: signal: killed"}`), reason: targets.ReasonFunction, says: "Runtime.ExitError"},
		{name: "its time limit", answer: failed(`{"errorMessage":"2027-03-01T12:00:00Z 8f507cfc Task timed out after 3.00 seconds"}`), reason: targets.ReasonTimeout, says: "Task timed out"},
		{name: "its time limit, newer", answer: failed(`{"errorType":"Sandbox.Timedout","errorMessage":"RequestId: 1 Error: Task timed out after 3.00 seconds"}`), reason: targets.ReasonTimeout, says: "Sandbox.Timedout"},
		{name: "no JSON", answer: failed("oops"), reason: targets.ReasonFunction, says: "(Unhandled)"},
		{name: "throttled", answer: lambdaError(429, "TooManyRequestsException", "Retry-After", "3"), reason: targets.ReasonStatus, rest: 3 * time.Second, says: "status 429: TooManyRequestsException"},
		{name: "no such function", answer: lambdaError(404, "ResourceNotFoundException"), reason: targets.ReasonStatus, says: "ResourceNotFoundException"},
		{name: "not allowed", answer: lambdaError(403, "AccessDeniedException"), reason: targets.ReasonStatus, says: "AccessDeniedException"},
		{name: "not JSON", answer: lambdaError(400, "InvalidRequestContentException"), reason: targets.ReasonStatus, permanent: true, says: "InvalidRequestContentException"},
		{name: "being changed", answer: lambdaError(409, "ResourceConflictException"), reason: targets.ReasonStatus, says: "ResourceConflictException"},
		{name: "refused for its size", answer: lambdaError(413, "RequestTooLargeException"), reason: targets.ReasonTooLarge, permanent: true},
		{name: "broken", answer: lambdaError(500, "ServiceException"), reason: targets.ReasonStatus, says: "ServiceException"},
		{name: "no address", answer: lambdaError(502, "ENILimitReachedException"), reason: targets.ReasonStatus, says: "ENILimitReachedException"},
	})
	r := c.got[0]
	if r.URL.EscapedPath() != "/2015-03-31/functions/arn:aws:lambda:eu-central-1:123456789012:function:resize/invocations" || r.URL.RawQuery != "Qualifier=live" ||
		r.Header.Get("X-Amz-Invocation-Type") != "RequestResponse" {
		t.Errorf("%s %v", r.RequestURI, r.Header)
	}
	if ev, err := event.ParseJSON(r.body, event.Limits{}); err != nil || ev.ID != targettest.Event().ID {
		t.Errorf("the payload is %s, %v", r.body, err)
	}
	signedForAWS(t, r)

	async := call(t, `{"runtime": "http", "preset": "aws-lambda", "url": "URL", "function": "resize", "invocation": "async", `+awsAuth+`}`)
	async.outcomes(t, []outcome{{name: "taken", answer: answers(202, "")}, {name: "a reply that nobody sends", answer: answers(202, reply)}})
	if r := async.got[0]; r.Header.Get("X-Amz-Invocation-Type") != "Event" || r.RequestURI != "/2015-03-31/functions/resize/invocations" {
		t.Errorf("%s %v", r.RequestURI, r.Header)
	}
	signedForAWS(t, async.got[0])
	for c, n := range map[*caller]int{c: 6 << 20, async: 1 << 20} { // no request that is refused anyhow
		calls := len(c.got)
		err := c.deliver(t, &event.Event{ID: "1", Source: "/s", Type: "t", DataContentType: "text/plain", Data: []byte(strings.Repeat("x", n))}, answers(200, ""))
		if err == nil || err.Reason != targets.ReasonTooLarge || !err.Permanent || len(c.got) != calls {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
}

// signedForAWS compares a signature with that of the vendor's library for what has arrived.
func signedForAWS(t *testing.T, r request) {
	t.Helper()
	auth := r.Header.Get("Authorization")
	_, list, _ := strings.Cut(auth, "SignedHeaders=")
	list, _, _ = strings.Cut(list, ",")
	again, err := http.NewRequest(r.Method, "http://"+r.Host+r.RequestURI, strings.NewReader(string(r.body)))
	if err != nil {
		t.Fatal(err)
	}
	for name := range strings.SplitSeq(list, ";") {
		if v := r.Header.Get(name); v != "" {
			again.Header.Set(name, v)
		}
	}
	if !strings.Contains(list, "x-amz-invocation-type") {
		t.Errorf("the invocation is not signed: %s", list)
	}
	at, err := time.Parse("20060102T150405Z", r.Header.Get("X-Amz-Date"))
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(r.body)
	if err := sigv4.NewSigner().SignHTTP(t.Context(), aws.Credentials{AccessKeyID: "AKIDEXAMPLE", SecretAccessKey: "aws-secret"}, again, hex.EncodeToString(sum[:]), "lambda", "eu-central-1", at); err != nil {
		t.Fatal(err)
	}
	if want := again.Header.Get("Authorization"); auth != want {
		t.Errorf("signed as\n%s, want\n%s", auth, want)
	}
}

// Lambda knows where it is.
func TestLambdaEndpoint(t *testing.T) {
	for region, want := range map[string]string{"eu-central-1": "lambda.eu-central-1.amazonaws.com", "cn-north-1": "lambda.cn-north-1.amazonaws.com.cn"} {
		kinds := targets.NewCatalog(remoteKind())
		d, err := targets.ParseDefinition([]byte(`{"name": "fn", "type": "function", "config": {"runtime": "http", "preset": "aws-lambda", "function": "resize", `+
			strings.Replace(awsAuth, "eu-central-1", region, 1)+`}}`), kinds)
		if err != nil {
			t.Fatal(err)
		}
		host := ""
		client := &http.Client{Transport: transport(func(r *http.Request) (*http.Response, error) {
			host = r.URL.Scheme + " " + r.URL.Host
			return &http.Response{StatusCode: 200, Header: http.Header{}, Body: http.NoBody}, nil
		})}
		target, err := kinds.New(d, targets.Env{HTTP: client, Now: time.Now})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := target.Deliver(t.Context(), targettest.Delivery()); err != nil || host != "https "+want {
			t.Errorf("%s is called at %s, %v", region, host, err)
		}
	}
}

type transport func(*http.Request) (*http.Response, error)

func (f transport) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestFunctionCompute(t *testing.T) {
	c := call(t, `{"runtime": "http", "preset": "alibaba-fc", "url": "URL", "function": "resize", "qualifier": "live", "permanentErrors": ["ValueError"], `+alibabaAuth+`}`)
	failed := func(class, body string) http.HandlerFunc {
		return answers(200, body, "X-Fc-Error-Type", class, "X-Fc-Request-Id", "1", "Content-Type", "application/octet-stream")
	}
	refused := func(status int, code string, headers ...string) http.HandlerFunc {
		return answers(status, `{"RequestId":"1","HostId":"123.cn-hangzhou.fc.aliyuncs.com","Code":"`+code+`","Message":"no"}`, append(headers, "Content-Type", "application/json")...)
	}
	c.outcomes(t, []outcome{
		{name: "nothing", answer: answers(200, "", "Content-Type", "application/octet-stream")},
		{name: "text", answer: answers(200, "hello world", "Content-Type", "application/octet-stream")},
		{name: "a reply", answer: answers(200, reply, "Content-Type", "application/octet-stream"), replies: 1},
		{name: "unhandled", answer: failed("UnhandledInvocationError", `{"errorMessage":"bad","errorType":"KeyError","stackTrace":[]}`), reason: targets.ReasonFunction, says: "(UnhandledInvocationError): KeyError: bad"},
		{name: "handled", answer: failed("HandledInvocationError", `{"errorMessage":"bad","errorType":"ValueError"}`), reason: targets.ReasonFunction, permanent: true, says: "ValueError"},
		{name: "its start", answer: failed("InitializationError", `{"errorMessage":"function initialization failed"}`), reason: targets.ReasonFunction, says: "InitializationError"},
		{name: "its time limit", answer: failed("InvocationTimeout", `{"errorMessage":"Function timed out after 3 seconds"}`), reason: targets.ReasonTimeout, says: "timed out"},
		{name: "throttled", answer: refused(429, "ResourceThrottled"), reason: targets.ReasonStatus, says: "status 429: ResourceThrottled"},
		{name: "no such function", answer: refused(404, "FunctionNotFound"), reason: targets.ReasonStatus, says: "FunctionNotFound"},
		{name: "not allowed", answer: refused(403, "AccessDenied"), reason: targets.ReasonStatus, says: "AccessDenied"},
		{name: "not understood", answer: refused(400, "InvalidArgument"), reason: targets.ReasonStatus, permanent: true, says: "InvalidArgument"},
		{name: "refused for its size", answer: refused(413, "PayloadTooLarge"), reason: targets.ReasonTooLarge, permanent: true},
		{name: "broken", answer: refused(500, "InternalServerError"), reason: targets.ReasonStatus, says: "InternalServerError"},
		{name: "not signed, as its HTTP side says it", answer: answers(403, "{}", "X-Fc-Error-Type", "FcCommonError"), reason: targets.ReasonStatus, says: "status 403: FcCommonError"},
		{name: "busy", answer: refused(503, "ServiceUnavailable", "Retry-After", "2"), reason: targets.ReasonStatus, rest: 2 * time.Second},
	})
	r := c.got[0]
	if r.RequestURI != "/2023-03-30/functions/resize/invocations?qualifier=live" || r.Header.Get("X-Fc-Invocation-Type") != "Sync" {
		t.Errorf("%s %v", r.RequestURI, r.Header)
	}
	signed := map[string]*string{"host": tea.String(r.Host)}
	for name := range r.Header {
		if name = strings.ToLower(name); strings.HasPrefix(name, "x-acs-") || name == "content-type" {
			signed[name] = tea.String(r.Header.Get(name))
		}
	}
	algorithm := tea.String("ACS3-HMAC-SHA256")
	want := acs.GetAuthorization(&tea.Request{Method: tea.String("POST"), Pathname: tea.String("/2023-03-30/functions/resize/invocations"), Query: map[string]*string{"qualifier": tea.String("live")},
		Headers: signed}, algorithm, acs.HexEncode(acs.Hash(r.body, algorithm)), tea.String("LTAI-1"), tea.String("acs-secret"))
	if got := r.Header.Get("Authorization"); got != *want || r.Header.Get("X-Acs-Action") != "InvokeFunction" || r.Header.Get("X-Acs-Version") != "2023-03-30" || r.Header.Get("X-Acs-Security-Token") != "secret-of-sts" {
		t.Errorf("signed as\n%s, want\n%s\n%v", got, *want, r.Header)
	}

	async := call(t, `{"runtime": "http", "preset": "alibaba-fc", "url": "URL/base/", "function": "resize", "invocation": "async", `+alibabaAuth+`}`)
	async.outcomes(t, []outcome{{name: "taken", answer: answers(202, "", "X-Fc-Request-Id", "1")}})
	if r := async.got[0]; r.Header.Get("X-Fc-Invocation-Type") != "Async" || r.RequestURI != "/base/2023-03-30/functions/resize/invocations" {
		t.Errorf("%s %v", r.RequestURI, r.Header)
	}
	err := async.deliver(t, &event.Event{ID: "1", Source: "/s", Type: "t", DataContentType: "text/plain", Data: make([]byte, 128<<10)}, answers(202, ""))
	if err == nil || err.Reason != targets.ReasonTooLarge || !err.Permanent || len(async.got) != 1 {
		t.Errorf("more than 128 KiB: %v", err)
	}
}

func TestOpenFaaS(t *testing.T) {
	c := call(t, `{"runtime": "http", "preset": "openfaas", "url": "URL", "function": "resize.team-a", "auth": {"type": "basic", "username": "admin", "password": {"ref": "of"}}}`)
	c.outcomes(t, []outcome{
		{name: "text", answer: answers(200, "done", "Content-Type", "text/plain", "X-Call-Id", "1", "X-Duration-Seconds", "0.1")},
		{name: "a reply", answer: answers(200, `{"ok":true}`, "Content-Type", "application/json", "Ce-Specversion", "1.0", "Ce-Id", "1", "Ce-Source", "/fn", "Ce-Type", "done"), replies: 1},
		{name: "no such function", answer: answers(404, "error finding function resize.team-a: server returned non-200 status code (404)"), reason: targets.ReasonStatus, says: "404"},
		{name: "at its limit", answer: answers(429, "Concurrent request limit exceeded. Max concurrent requests: 1", "Retry-After", "1"), reason: targets.ReasonStatus, rest: time.Second},
		{name: "failed", answer: answers(500, "exit status 1\nTraceback"), reason: targets.ReasonStatus, says: "500"},
		{name: "its time limit", answer: answers(504, ""), reason: targets.ReasonStatus, says: "504"},
		{name: "not allowed", answer: answers(401, "invalid credentials", "WWW-Authenticate", `Basic realm="Restricted"`), reason: targets.ReasonStatus, says: "401"},
	})
	if r := c.got[0]; r.RequestURI != "/function/resize.team-a" || r.Header.Get("Authorization") == "" || r.Header.Get("Ce-Id") == "" || r.Header.Get("X-Call-Id") != targettest.Delivery().ID {
		t.Errorf("%s %v", r.RequestURI, r.Header)
	}
	async := call(t, `{"runtime": "http", "preset": "openfaas", "url": "URL", "function": "resize", "invocation": "async", "headers": {"X-Callback-Url": "http://gateway/function/then"}}`)
	async.outcomes(t, []outcome{{name: "taken", answer: answers(202, "", "X-Call-Id", "2")}, {name: "no queue", answer: answers(500, ""), reason: targets.ReasonStatus}})
	if r := async.got[0]; r.RequestURI != "/async-function/resize" || r.Header.Get("X-Callback-Url") != "http://gateway/function/then" || r.Header.Get("X-Call-Id") != targettest.Delivery().ID || r.Header.Get("Prefer") != "" {
		t.Errorf("%s %v", r.RequestURI, r.Header)
	}
}

func TestKnative(t *testing.T) {
	c := call(t, `{"runtime": "http", "preset": "knative", "url": "URL"}`)
	all := []outcome{
		{name: "202", answer: answers(202, "")},
		{name: "a reply", answer: answers(200, reply, "Content-Type", "application/cloudevents+json"), replies: 1},
		{name: "202 with what looks like one", answer: answers(202, reply, "Content-Type", "application/cloudevents+json")},
		{name: "busy", answer: answers(429, "", "Retry-After", "5"), reason: targets.ReasonStatus, rest: 5 * time.Second},
	}
	for status, permanent := range map[int]bool{400: true, 401: true, 403: true, 404: false, 405: true, 408: false, 409: false, 415: true, 418: true, 500: false, 503: false} {
		all = append(all, outcome{name: http.StatusText(status), answer: answers(status, ""), reason: targets.ReasonStatus, permanent: permanent})
	}
	c.outcomes(t, all)
}
