// SPDX-License-Identifier: Apache-2.0

package webhook_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/secret"
	"github.com/rialto-bridge/rialto/sources"
	"github.com/rialto-bridge/rialto/sources/webhook"
)

// unread is a body that nobody may read.
type unread struct{ t *testing.T }

func (u unread) Read([]byte) (int, error) {
	u.t.Error("the body is read")
	return 0, io.EOF
}

// What the header alone shows to be no good is refused without the body: no proof, one that is none, and one that is too old.
func TestRefusedBeforeTheBody(t *testing.T) {
	malformed := map[string]string{"github": "X-Hub-Signature-256", "gitlab": "Webhook-Signature", "stripe": "Stripe-Signature", "slack": "X-Slack-Signature",
		"shopify": "X-Shopify-Hmac-Sha256", "pagerduty": "X-Pagerduty-Signature", "twilio": "X-Twilio-Signature", "standard": "Webhook-Signature",
		"alibaba-eventbridge": "X-Eventbridge-Signature-V2", "generic": "X-Sig"}
	for _, s := range senders {
		if s.bodyOnly || s.name == "feishu" { // whose proof is in the body, or whose question has none
			continue
		}
		src, err := webhook.Kind().New(json.RawMessage(s.config("http://example.com")), sources.Env{Name: "s", Now: time.Now, MaxData: 1 << 16,
			HTTP: &http.Client{Transport: &vault{}}, Secrets: secret.Resolver{}.Resolve})
		if err != nil {
			t.Fatal(err)
		}
		refused := func(t *testing.T, r *http.Request, h http.Header) {
			t.Helper()
			probe := httptest.NewRequest(http.MethodPost, r.URL.RequestURI(), unread{t})
			probe.Header = h
			err := src.(sources.HookHandler).ServeHook(httptest.NewRecorder(), probe, nil)
			if k := fault.KindOf(err); k != fault.Forbidden && k != fault.Unauthorized {
				t.Errorf("answered with %v", err)
			}
		}
		signed := func(at time.Time) *http.Request {
			body, header := s.payload(1, at)
			return s.sign(t, "http://example.com/hooks/s", body, header, at)
		}
		t.Run(s.name+"/no proof", func(t *testing.T) {
			r := signed(time.Now())
			r.URL.RawQuery = ""
			refused(t, r, http.Header{"Content-Type": r.Header["Content-Type"]})
		})
		if name := malformed[s.name]; name != "" {
			t.Run(s.name+"/malformed", func(t *testing.T) {
				r := signed(time.Now())
				r.Header.Set(name, "t="+unix(time.Now())+",none!")
				refused(t, r, r.Header)
			})
		}
		if s.timed {
			t.Run(s.name+"/stale", func(t *testing.T) {
				r := signed(time.Now().Add(-2 * time.Hour))
				refused(t, r, r.Header)
			})
		}
	}
}

// A log that is slow is the sender's to wait for, but no longer than he does: he is told to come again before he gives up, and
// what comes again is stored.
func TestSlowLogIsAnsweredInTime(t *testing.T) {
	for _, s := range senders {
		synctest.Test(t, func(t *testing.T) {
			src, err := webhook.Kind().New(json.RawMessage(s.config("http://example.com")), sources.Env{Name: "s", Now: time.Now, MaxData: 1 << 16,
				HTTP: &http.Client{Transport: &vault{}}, Secrets: secret.Resolver{}.Resolve,
				Stored: func(context.Context, *event.Event) (bool, error) { return false, nil }})
			if err != nil {
				t.Fatal(err)
			}
			stored, slow := 0, true
			emit := func(ctx context.Context, evs ...event.Event) error {
				if slow {
					<-ctx.Done()
					return context.Cause(ctx)
				}
				stored += len(evs)
				return nil
			}
			send := func() error {
				body, header := s.payload(1, time.Now())
				signed := s.sign(t, "http://example.com/hooks/s", body, header, time.Now())
				r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, signed.URL.RequestURI(), signed.Body)
				r.Header = signed.Header
				return src.(sources.HookHandler).ServeHook(httptest.NewRecorder(), r, emit)
			}
			began := time.Now()
			if err := send(); fault.KindOf(err) != fault.Unavailable {
				t.Errorf("%s: answered with %v", s.name, err)
			}
			if took := time.Since(began); took < time.Second || took > 14*time.Second {
				t.Errorf("%s: answered after %s", s.name, took)
			}
			slow = false
			if err := send(); err != nil || stored != 1 {
				t.Errorf("%s: again: %v, %d stored", s.name, err, stored)
			}
		})
	}
}

// A commit that came too late for its sender is one: what he sends again is not stored again, also when the bus remembers its id no more.
// What did not come about is stored then.
func TestLateCommitIsKnown(t *testing.T) {
	for _, late := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			s := senderOf("stripe")
			stored, known, slow := map[string]int{}, 0, true
			src, err := webhook.Kind().New(json.RawMessage(s.config("")), sources.Env{Name: "s", Now: time.Now, MaxData: 1 << 16, Secrets: secret.Resolver{}.Resolve,
				Known:  func(n int) { known += n },
				Stored: func(_ context.Context, ev *event.Event) (bool, error) { return stored[ev.ID] > 0, nil }})
			if err != nil {
				t.Fatal(err)
			}
			emit := func(ctx context.Context, evs ...event.Event) error {
				if slow {
					<-ctx.Done()
				}
				if !slow || late {
					stored[evs[0].ID]++
				}
				return context.Cause(ctx)
			}
			send := func() error {
				body, header := s.payload(1, time.Unix(1, 0))
				return src.(sources.HookHandler).ServeHook(httptest.NewRecorder(), s.sign(t, "/hooks/s", body, header, time.Now()), emit)
			}
			if err := send(); fault.KindOf(err) != fault.Unavailable {
				t.Errorf("answered with %v", err)
			}
			slow = false
			time.Sleep(10 * time.Minute) // of the bubble's clock
			for range 2 {
				if err := send(); err != nil {
					t.Error(err)
				}
			}
			want := 1
			if late {
				want = 2
			}
			if len(stored) != 1 || known != want {
				t.Errorf("late %t: %v are stored, and %d were known", late, stored, known)
			}
			for id, n := range stored {
				if n != 1 {
					t.Errorf("late %t: %s is stored %d times", late, id, n)
				}
			}
		})
	}
}

// Bodies of those who have not shown yet who they are hold so much memory together and no more. Small ones pass all the same.
func TestLargeBodiesShareRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := senderOf("github")
		const limit = 8 << 20
		src, err := webhook.Kind().New(json.RawMessage(s.config("")), sources.Env{Name: "s", Now: time.Now, MaxData: limit, Secrets: secret.Resolver{}.Resolve})
		if err != nil {
			t.Fatal(err)
		}
		serve := func(r *http.Request) error {
			return src.(sources.HookHandler).ServeHook(httptest.NewRecorder(), r, func(context.Context, ...event.Event) error { return nil })
		}
		large := func(pad int) *http.Request {
			body, header := s.payload(pad, time.Now())
			body = append(body[:len(body)-1], `,"pad":"`+strings.Repeat("x", pad)+`"}`...)
			return s.sign(t, "/hooks/s", body, header, time.Now())
		}
		// Eight announce 8 MiB, send a part of it, and then wait.
		var wires []*io.PipeWriter
		ended := make(chan error, 8)
		for range cap(ended) {
			out, in := io.Pipe()
			wires = append(wires, in)
			r := httptest.NewRequest(http.MethodPost, "/hooks/s", out)
			r.ContentLength, r.Header = limit, large(1).Header
			go func() { ended <- serve(r) }()
			go in.Write(make([]byte, 32<<10))
		}
		synctest.Wait()
		if err := serve(large(1 << 20)); fault.KindOf(err) != fault.Unavailable {
			t.Errorf("another large one is answered with %v", err)
		}
		if err := serve(large(8 << 10)); err != nil {
			t.Errorf("a small one is answered with %v", err)
		}
		for _, w := range wires {
			w.CloseWithError(io.ErrUnexpectedEOF)
		}
		for range cap(ended) {
			if err := <-ended; fault.KindOf(err) != fault.Invalid {
				t.Errorf("half a body is answered with %v", err)
			}
		}
		if err := serve(large(1<<20 + 1)); err != nil {
			t.Errorf("when there is room again: %v", err)
		}
	})
}
