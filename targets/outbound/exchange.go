// SPDX-License-Identifier: Apache-2.0

package outbound

import (
	"context"
	"net/http"
	"net/http/httptrace"
	"time"

	"github.com/rialto-bridge/rialto/targets"
)

// Exchange sends a request and says what became of it: nil for a complete answer with status 200-299, otherwise a
// *targets.Error. It blocks until the answer is there or ctx is done (the context of req is not looked at), reads at most
// 64 KiB of the answer, and leaves the connection for the next request when the answer was not longer.
//
// A request with GetBody is sent again, at once and unseen, on a new connection when a kept one turns out to have been
// closed by the far side before any byte of an answer: a server that closes idle connections is no failure.
func Exchange(ctx context.Context, client *http.Client, req *http.Request, now func() time.Time) (targets.Result, error) {
	var res targets.Result
	req = req.WithContext(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(info httptrace.GotConnInfo) { res.Remote = info.Conn.RemoteAddr().String() },
	}))
	resp, err := client.Do(req)
	if err != nil {
		return res, failure(ctx, err)
	}
	res.Status = resp.StatusCode
	head, err := readAnswer(resp)
	res.Head = head
	retryAfter := targets.ParseRetryAfter(resp.Header.Get("Retry-After"), now())
	if e := targets.StatusError(resp.StatusCode, retryAfter); e != nil {
		return res, e // the status has said it; how the rest of the answer fared does not matter
	}
	if err != nil {
		e := failure(ctx, err)
		e.Status = resp.StatusCode
		return res, e
	}
	return res, nil
}
