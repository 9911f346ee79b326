// SPDX-License-Identifier: Apache-2.0

package outbound

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"time"

	"github.com/rialto-bridge/rialto/targets"
)

// Message is a request that is about to be sent.
type Message struct {
	Method string
	URL    *url.URL    // shared, not changed
	Header http.Header // given away: Exchange adds to it; its value slices are shared, not changed
	Body   []byte      // not to be changed afterwards: it may still be on its way when Exchange has returned
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
	var res targets.Result
	trace := &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) { res.Remote = remote(info.Conn) }}
	resp, err := transport(client).RoundTrip(m.request(httptrace.WithClientTrace(ctx, trace)))
	if err != nil {
		return res, failure(ctx, err)
	}
	res.Status = resp.StatusCode
	head, err := readAnswer(resp)
	res.Head = head
	retryAfter := time.Duration(0)
	if v := resp.Header.Get("Retry-After"); v != "" {
		retryAfter = targets.ParseRetryAfter(v, now())
	}
	if e := targets.StatusError(resp.StatusCode, retryAfter); e != nil {
		if to, _, _ := strings.Cut(resp.Header.Get("Location"), "?"); to != "" && e.Reason == targets.ReasonRedirect {
			e.Err = fmt.Errorf("status %d to %s, which is not followed", resp.StatusCode, Sanitise([]byte(to[:min(len(to), maxLocation)])))
		}
		return res, e // the status has said it; how the rest of the answer fared does not matter
	}
	if err != nil {
		e := failure(ctx, err)
		e.Status = resp.StatusCode
		return res, e
	}
	return res, nil
}

func transport(client *http.Client) http.RoundTripper {
	if client.Transport == nil {
		return http.DefaultTransport
	}
	return client.Transport
}

func (m Message) request(ctx context.Context) *http.Request {
	m.Header["User-Agent"] = userAgent
	// Not sent, but it tells net/http that the message may go out once more when a kept connection was closed.
	m.Header["Idempotency-Key"] = nil
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

func remote(conn net.Conn) string {
	if a, ok := conn.RemoteAddr().(*net.TCPAddr); ok {
		return a.AddrPort().String()
	}
	return conn.RemoteAddr().String()
}
