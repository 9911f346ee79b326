// SPDX-License-Identifier: Apache-2.0

package outbound_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/targets"
	"github.com/rialto-bridge/rialto/targets/outbound"
)

// ask makes one attempt, which the body of the answer decides: no, or no for good.
func ask(t *testing.T, ctx context.Context, srv string, hide ...string) (targets.Result, *targets.Error, []outbound.Answer) {
	t.Helper()
	u, err := url.Parse(srv)
	if err != nil {
		t.Fatal(err)
	}
	var answers []outbound.Answer
	m := outbound.Message{Method: http.MethodPost, URL: u, Header: http.Header{}, Body: []byte("hello"), Hide: hide}
	res, err := outbound.Judge(ctx, client(t, loopback(), nil), m, time.Now, func(a outbound.Answer) *targets.Error {
		answers = append(answers, a)
		said := string(a.Body)
		if !strings.HasPrefix(said, "no") {
			return nil
		}
		return &targets.Error{Reason: targets.ReasonAuth, Permanent: strings.HasPrefix(said, "no for good"), Err: errors.New("it says " + said)}
	})
	if err == nil {
		return res, nil, answers
	}
	var te *targets.Error
	if !errors.As(err, &te) {
		t.Fatalf("error %T %v, want a *targets.Error", err, err)
	}
	if text := te.Error(); len(text) > 300 || strings.ContainsAny(text, "\r\n\x00\x1b") {
		t.Errorf("error text %q is not fit to be shown", text)
	}
	return res, te, answers
}

// The body decides where it says something, and the status elsewhere.
func TestJudgeHearsTheBody(t *testing.T) {
	for _, c := range []struct {
		status    int
		body      string
		want      targets.Reason // "" = success
		permanent bool
		rest      time.Duration
	}{
		{200, "ok", "", false, 0},
		{204, "", "", false, 0},
		{200, "no", targets.ReasonAuth, false, 0},
		{200, "no for good", targets.ReasonAuth, true, 0},
		{503, "no", targets.ReasonAuth, false, 7 * time.Second},
		{403, "no for good", targets.ReasonAuth, true, 0},
		{503, "busy", targets.ReasonStatus, false, 7 * time.Second},
		{410, "gone", targets.ReasonGone, true, 0},
		{302, "see there", targets.ReasonRedirect, true, 0},
	} {
		srv := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "7")
			w.Header().Set("Location", "/elsewhere")
			w.WriteHeader(c.status)
			io.WriteString(w, c.body)
		})
		res, err, answers := ask(t, within(t, 5*time.Second), srv.URL)
		if res.Status != c.status || res.Remote == "" || len(answers) != 1 || string(answers[0].Body) != c.body || answers[0].Status != c.status {
			t.Errorf("%d %s: %+v, %+v", c.status, c.body, res, answers)
		}
		switch {
		case c.want == "" && (err != nil || res.Head != ""):
			t.Errorf("%d %s: %v, head %q", c.status, c.body, err, res.Head)
		case c.want == "":
		case err == nil || err.Reason != c.want || err.Permanent != c.permanent || err.RetryAfter != c.rest || err.Status != c.status:
			t.Errorf("%d %s: %+v", c.status, c.body, err)
		case !strings.HasSuffix(res.Head, "\n\n"+c.body):
			t.Errorf("%d %s: head %q", c.status, c.body, res.Head)
		}
	}
}

// Nothing that is to be hidden is told, however the far side repeats it.
func TestJudgeHides(t *testing.T) {
	const hidden = "token-5f1c0b7a3d"
	for _, body := range []string{"no " + hidden + "\r\n\x00", "no " + strings.Repeat("x", targets.MaxHead-8) + hidden, "no " + strings.Repeat("x", 100<<10)} {
		srv := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Echo", hidden)
			io.WriteString(w, body)
		})
		res, err, answers := ask(t, within(t, 5*time.Second), srv.URL, hidden)
		if err == nil || len(answers) != 1 || len(answers[0].Body) != min(len(body), 64<<10) {
			t.Fatalf("%v, %d answers", err, len(answers))
		}
		if told := res.Head + err.Error(); strings.Contains(told, hidden) || strings.Contains(told, hidden[:6]) {
			t.Errorf("%.60q is told as %.200q", body, told)
		}
	}
}

func TestJudgeFails(t *testing.T) {
	breaks := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		io.WriteString(w, "ok")
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	})
	switches := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			panic(err)
		}
		fmt.Fprint(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n")
		io.Copy(io.Discard, conn) // open until the other side closes it
		conn.Close()
	})
	slow := serve(t, func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "o")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	for name, c := range map[string]struct {
		url    string
		within time.Duration
		want   targets.Reason
		asked  int
	}{
		"breaks off": {breaks.URL, 5 * time.Second, targets.ReasonReset, 0},
		"switches":   {switches.URL, 5 * time.Second, targets.ReasonStatus, 1},
		"slow":       {slow.URL, 100 * time.Millisecond, targets.ReasonTimeout, 0},
		"nobody":     {"http://127.0.0.1:1", 5 * time.Second, targets.ReasonConnect, 0},
	} {
		if _, err, answers := ask(t, within(t, c.within), c.url); err == nil || err.Reason != c.want || err.Permanent || len(answers) != c.asked {
			t.Errorf("%s: %v, %d answers; want a retryable %s", name, err, len(answers), c.want)
		}
	}
}
