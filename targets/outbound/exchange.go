// SPDX-License-Identifier: Apache-2.0

package outbound

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rialto-bridge/rialto/targets"
)

// Message is a request that is about to be sent.
type Message struct {
	Method string
	URL    *url.URL    // shared, not changed
	Header http.Header // given away: Exchange adds to it; its value slices are shared, not changed. Host and what frames a message are not in it.
	Body   []byte      // not to be changed afterwards: it may still be on its way when Exchange has returned
	Hide   []string    // what of the message nobody is shown when an answer repeats it; see readRefusal
}

// maxLocation is how much of a redirect's Location an attempt names; its query, which may hold secrets, is left out.
const maxLocation = 200

// emptyRequest is what requests are made from: a copy with a context is one allocation.
var emptyRequest http.Request

var userAgent = []string{UserAgent}

// Exchange sends a message and says what became of it: nil for a complete answer with status 200-299, otherwise a
// *targets.Error. It blocks until the answer is there or ctx is done, reads at most 64 KiB of the answer, and leaves the
// connection for the next message when the answer was not longer. A redirect is never followed, whatever the client would
// do: only its transport is used.
//
// A message is sent again, at once and unseen, when a kept connection turns out to have been closed by the far side
// before any byte of an answer: a server that closes idle connections is no failure.
func Exchange(ctx context.Context, client *http.Client, m Message, now func() time.Time) (targets.Result, error) {
	res, _, err := Ask(ctx, client, m, Terms{}, now)
	return res, err
}

// Terms say what counts as an answer that accepts, and what is kept of it.
type Terms struct {
	Success []int // statuses; nil = 200-299. What is a redirect is never one.
	MaxBody int   // bytes of the body that are kept; 0 = none
}

// refusal is what a status means; nil = it accepts. A 2xx that does not count as success may do so another time.
func (t Terms) refusal(status int, retryAfter time.Duration) *targets.Error {
	e := targets.StatusError(status, retryAfter)
	switch {
	case t.Success == nil:
		return e
	case slices.Contains(t.Success, status) && (status < 300 || status > 399):
		return nil
	case e == nil:
		e = &targets.Error{Reason: targets.ReasonStatus, Status: status, RetryAfter: retryAfter, Err: fmt.Errorf("status %d, which does not count as success here", status)}
	}
	return e
}

// Answer is what came back. The zero value is no answer.
type Answer struct {
	Status int
	Header http.Header // also of an answer that refuses
	Body   []byte      // as much of it as was asked for; of one that refuses only what a judge reads
	Cut    bool        // the body is longer

	resp *http.Response
	hide []string
}

// Head is how an answer began that accepts by its status and is a failure all the same, as targets.Exchange describes it.
func (a *Answer) Head() string {
	body := a.Body[:min(len(a.Body), targets.MaxHead)]
	if len(body) < len(a.Body) || a.Cut {
		body = uncut(body, a.hide)
	}
	if a.Header.Get("Content-Encoding") != "" {
		body = nil
	}
	return headOf(a.resp, body, a.hide)
}

// Clean is a part of an answer as text that can be shown, at most limit bytes of it: see Sanitise.
func (a *Answer) Clean(part []byte, limit int) string { return clip(hide(string(part), a.hide), limit) }

// Ask is Exchange for who wants to know the answer, or has other terms.
func Ask(ctx context.Context, client *http.Client, m Message, t Terms, now func() time.Time) (res targets.Result, ans Answer, _ error) {
	a := begin(ctx)
	m.Header["User-Agent"] = userAgent
	resp, err := a.send(client, &m)
	if err != nil {
		e := failure(ctx, err)
		return targets.Result{Exchange: a.failed(e)}, ans, e
	}
	ans.Status, ans.Header, ans.resp, ans.hide = resp.StatusCode, resp.Header, resp, m.Hide
	res = targets.Result{Status: resp.StatusCode, Exchange: a.exchange()}
	if e := t.refusedBy(resp, m.Hide, now); e != nil {
		res.Head, _ = readRefusal(resp, m.Hide) // the status has said it; how the rest of the answer fares does not matter
		return res, ans, e
	}
	if t.MaxBody > 0 {
		ans.Body, ans.Cut, err = keep(resp, t.MaxBody)
	} else {
		err = drain(resp)
	}
	if err != nil {
		e := failure(ctx, err)
		e.Status, res.Head = resp.StatusCode, headOf(resp, nil, m.Hide)
		return res, ans, e
	}
	return res, ans, nil
}

// refusedBy is what the head of an answer says of an attempt; nil if it accepts.
func (t Terms) refusedBy(resp *http.Response, hidden []string, now func() time.Time) *targets.Error {
	retryAfter := time.Duration(0)
	if v := resp.Header.Get("Retry-After"); v != "" {
		retryAfter = targets.ParseRetryAfter(v, now())
	}
	e := t.refusal(resp.StatusCode, retryAfter)
	if e == nil {
		return nil
	}
	obey(resp.Header, e)
	if to := resp.Header.Get("Location"); to != "" && e.Reason == targets.ReasonRedirect {
		e.Err = fmt.Errorf("status %d to %s, which is not followed", resp.StatusCode, clip(hide(withoutQuery(to), hidden), maxLocation))
	}
	return e
}

// obey reads what a refusing target says of what is to follow, as senders that know Svix do: the event is not tried again, or
// nothing is to be sent any more.
func obey(h http.Header, e *targets.Error) {
	switch strings.ToLower(strings.TrimSpace(h.Get("Webhook-Delivery"))) {
	case "abort-message":
		e.Permanent, e.Abort = true, true
	case "disable":
		e.Permanent, e.Abort, e.Disable = true, true, true
	}
}

// Fetch sends a message that is no delivery and returns the answer, whatever its status, and of its body, which is closed, at most
// 64 KiB. It blocks as Exchange does. An error says why there is no answer.
func Fetch(ctx context.Context, client *http.Client, m Message) (*http.Response, []byte, *targets.Error) {
	m.Header["User-Agent"] = userAgent
	resp, err := transport(client).RoundTrip(m.request(ctx))
	if err != nil {
		return nil, nil, failure(ctx, err)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxDrain))
	if closeErr := resp.Body.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return nil, nil, failure(ctx, err)
	}
	return resp, body, nil
}

// send sends a message the cheapest way there is for it.
func (a *attempt) send(client *http.Client, m *Message) (*http.Response, error) {
	if p, ok := client.Transport.(*plain); ok && p.takes(m) {
		return p.send(a, m)
	}
	return transport(client).RoundTrip(m.request(a.traced(m.URL.Scheme)))
}

func transport(client *http.Client) http.RoundTripper {
	if client.Transport == nil {
		return http.DefaultTransport
	}
	return client.Transport
}

// request is the message for the transport of net/http.
func (m *Message) request(ctx context.Context) *http.Request {
	if m.Header["Idempotency-Key"] == nil {
		// Not sent, but it tells net/http that the message may go out once more when a kept connection was closed.
		m.Header["Idempotency-Key"] = nil
	}
	req := emptyRequest.WithContext(ctx)
	req.Method, req.URL, req.Host, req.Header = m.Method, m.URL, m.URL.Host, m.Header
	req.Proto, req.ProtoMajor, req.ProtoMinor = "HTTP/1.1", 1, 1
	req.ContentLength = int64(len(m.Body))
	if len(m.Body) == 0 {
		req.Body = http.NoBody
		return req
	}
	req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(m.Body)), nil }
	req.Body = io.NopCloser(bytes.NewReader(m.Body))
	return req
}

// append writes the message as HTTP/1.1 sends it (RFC 9112).
func (m *Message) append(b []byte) []byte {
	b = append(append(append(b, m.Method...), ' '), m.URL.RequestURI()...)
	b = appendField(append(b, " HTTP/1.1\r\n"...), "Host", m.URL.Host)
	for name, values := range m.Header {
		for _, v := range values {
			b = appendField(b, name, v)
		}
	}
	b = append(b, "Content-Length: "...)
	b = strconv.AppendInt(b, int64(len(m.Body)), 10)
	b = append(b, "\r\n\r\n"...)
	return append(b, m.Body...)
}

// appendField writes a header. A line break would be the beginning of another one: a blank takes its place, as net/http has it.
func appendField(b []byte, name, value string) []byte {
	b = append(append(b, name...), ": "...)
	start := len(b)
	b = append(b, value...)
	for i := start; i < len(b); i++ {
		if c := b[i]; c == '\r' || c == '\n' || c == 0 {
			b[i] = ' '
		}
	}
	return append(b, "\r\n"...)
}
