// SPDX-License-Identifier: Apache-2.0

package outbound

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/rialto-bridge/rialto/targets"
)

// Judge is Exchange for far sides that say in the body what became of a message, also beside a status of success. judge reads
// the answer: an error that it returns is what came of the attempt, and nil leaves it to the status. The error may repeat
// what the far side said: what of it Hide names is taken out, and the rest is sanitised.
func Judge(ctx context.Context, client *http.Client, m Message, now func() time.Time, judge func(Answer) *targets.Error) (targets.Result, error) {
	a := begin(ctx)
	m.Header["User-Agent"] = userAgent
	resp, err := a.send(client, &m)
	if err != nil {
		e := failure(ctx, err)
		return targets.Result{Exchange: a.failed(e)}, e
	}
	res := targets.Result{Status: resp.StatusCode, Exchange: a.exchange()}
	e := Terms{}.refusedBy(resp, m.Hide, now)
	body, err := readSaid(resp)
	if err != nil && e == nil {
		e := failure(ctx, err)
		e.Status, res.Head = resp.StatusCode, headOf(resp, nil, m.Hide)
		return res, e
	}
	if own := judge(Answer{Status: resp.StatusCode, Header: resp.Header, Body: body}); own != nil {
		own.Status = resp.StatusCode
		if own.Err != nil {
			own.Err = errors.New(clip(hide(own.Err.Error(), m.Hide), maxText))
		}
		if e != nil && own.RetryAfter == 0 && !own.Permanent {
			own.RetryAfter = e.RetryAfter
		}
		e = own
	}
	if e == nil {
		return res, nil
	}
	switch {
	case resp.Header.Get("Content-Encoding") != "":
		body = nil
	case len(body) > targets.MaxHead:
		body = uncut(body[:targets.MaxHead], m.Hide)
	}
	res.Head = headOf(resp, body, m.Hide)
	return res, e
}

// readSaid reads a bounded part of a body and closes it. What is longer is cut off, and its connection with it.
func readSaid(resp *http.Response) ([]byte, error) {
	if resp.StatusCode < 200 {
		return nil, resp.Body.Close() // after 101 the body is an open connection
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxDrain))
	if closeErr := resp.Body.Close(); err == nil && len(body) < maxDrain {
		err = closeErr
	}
	return body, err
}
