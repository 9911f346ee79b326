// SPDX-License-Identifier: Apache-2.0

package webhook_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/targets"
	"github.com/rialto-bridge/rialto/targets/targettest"
)

// memory is what a target keeps over restarts.
type memory struct {
	mu      sync.Mutex // guards all below
	b       []byte
	err     error
	loadErr error // of Load alone
}

func (m *memory) Load(context.Context) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.b, cmp.Or(m.err, m.loadErr)
}

func (m *memory) Save(_ context.Context, b []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.b = b
	return m.err
}

// abuse is a target that is asked first. It answers OPTIONS with these headers.
type abuse struct {
	mu      sync.Mutex // guards all below
	cut     bool       // the connection ends instead
	allow   map[string]string
	asked   []http.Header
	events  int
	origins map[string]int
}

func (a *abuse) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if r.Method == http.MethodOptions {
		a.asked = append(a.asked, r.Header)
		if a.cut {
			panic(http.ErrAbortHandler)
		}
		for name, value := range a.allow {
			w.Header().Set(name, value)
		}
		w.WriteHeader(http.StatusMethodNotAllowed) // which means nothing
		return
	}
	a.events++
	if a.origins == nil {
		a.origins = map[string]int{}
	}
	a.origins[r.Header.Get("WebHook-Request-Origin")]++
	w.WriteHeader(http.StatusAccepted)
}

func (a *abuse) answers(allow map[string]string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.allow = allow
}

func (a *abuse) counts() (asked, events int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.asked), a.events
}

func newAbuse(t *testing.T) (*abuse, string) {
	a := &abuse{}
	srv, _ := receiver(t, nil)
	srv.Config.Handler = a
	return a, srv.URL
}

// Who need not agree is sent events although the question fails, or nobody answers it in time.
func TestHandshakeWithoutAnAnswer(t *testing.T) {
	for name, c := range map[string]struct {
		mode   string
		answer func(w http.ResponseWriter, r *http.Request)
		sent   bool
	}{
		"cut off":           {"best-effort", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, true},
		"silent":            {"best-effort", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, true},
		"cut off, required": {"required", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			var asked, events atomic.Int64
			srv, _ := receiver(t, nil)
			srv.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodOptions {
					asked.Add(1)
					c.answer(w, r)
					return
				}
				events.Add(1)
			})
			now := time.Now()
			e := env(t, &now, nil)
			e.State = &memory{}
			w := target(t, fmt.Sprintf(`{"url": "%s/hook", "handshake": {"mode": "%s", "origin": "rialto.example.com", "rate": 600}}`, srv.URL, c.mode), e)
			attempt := func() error {
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
				defer cancel()
				_, err := w.Deliver(ctx, targettest.Delivery())
				return err
			}
			if err := attempt(); (err == nil) != c.sent {
				t.Fatalf("Deliver = %v", err)
			}
			if !c.sent {
				return
			}
			if err := attempt(); err != nil || events.Load() != 2 {
				t.Errorf("%d events, %v", events.Load(), err)
			}
			if p := w.(targets.Paced).Pace(); p.PerSecond*60 != 600 {
				t.Errorf("it goes at %+v", p)
			}
			if warnings := w.(targets.Warner).Warnings(); len(warnings) != 1 || !strings.Contains(warnings[0].Message, "does not say") {
				t.Errorf("warnings: %v", warnings)
			}
			once := asked.Load()
			now = now.Add(10 * time.Minute)
			if err := attempt(); err != nil || asked.Load() == once {
				t.Errorf("asked %d times and %d after a while, %v", once, asked.Load(), err)
			}
		})
	}
}

func TestHandshake(t *testing.T) {
	const origin = "rialto.example.com"
	for name, c := range map[string]struct {
		mode    string
		allow   map[string]string
		sent    bool
		pace    float64 // a minute
		warning bool
	}{
		"agreed":                 {"required", map[string]string{"WebHook-Allowed-Origin": origin, "WebHook-Allowed-Rate": "120"}, true, 120, false},
		"agreed, in other case":  {"required", map[string]string{"WebHook-Allowed-Origin": strings.ToUpper(origin), "WebHook-Allowed-Rate": "6000"}, true, 6000, false},
		"agreed to all":          {"required", map[string]string{"WebHook-Allowed-Origin": "*", "WebHook-Allowed-Rate": "*"}, true, 0, false},
		"agreed without a rate":  {"required", map[string]string{"WebHook-Allowed-Origin": "*"}, true, 600, false},
		"agreed to a bad rate":   {"required", map[string]string{"WebHook-Allowed-Origin": "*", "WebHook-Allowed-Rate": "-1"}, true, 600, false},
		"another origin":         {"required", map[string]string{"WebHook-Allowed-Origin": "other.example.com"}, false, 60, true},
		"not known":              {"required", nil, false, 60, true},
		"agreed, and need not":   {"best-effort", map[string]string{"WebHook-Allowed-Origin": origin, "WebHook-Allowed-Rate": "120"}, true, 120, false},
		"not known, and need be": {"best-effort", nil, true, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			far, url := newAbuse(t)
			far.answers(c.allow)
			now := time.Now()
			e := env(t, &now, nil)
			e.State = &memory{}
			w := target(t, fmt.Sprintf(`{"url": "%s/hook", "auth": {"type": "bearer", "token": {"value": "tkn-1"}}, "handshake": {"mode": "%s", "origin": "%s", "rate": 600}}`, url, c.mode, origin), e)
			if p := w.(targets.Paced).Pace(); p.PerSecond != 1 || p.Burst != 1 {
				t.Errorf("before it is known it goes at %+v", p)
			}
			var wg sync.WaitGroup
			for range 4 {
				wg.Go(func() {
					_, err := w.Deliver(t.Context(), targettest.Delivery())
					var te *targets.Error
					if c.sent && err != nil || !c.sent && (!errors.As(err, &te) || te.Reason != targets.ReasonAuth || te.Permanent || te.Status != 0) {
						t.Errorf("Deliver = %v", err)
					}
				})
			}
			wg.Wait()
			asked, events := far.counts()
			if asked != 1 || (events == 4) != c.sent || far.origins[origin] != events {
				t.Errorf("asked %d times, %d events, of %v", asked, events, far.origins)
			}
			if h := far.asked[0]; h.Get("WebHook-Request-Origin") != origin || h.Get("WebHook-Request-Rate") != "600" || h.Get("Authorization") != "" {
				t.Errorf("asked with %v", h)
			}
			if p := w.(targets.Paced).Pace(); p.PerSecond*60 != c.pace || c.pace > 0 && p.Burst < 1 {
				t.Errorf("it goes at %+v, want %v a minute", p, c.pace)
			}
			if warnings := w.(targets.Warner).Warnings(); (len(warnings) > 0) != c.warning {
				t.Errorf("warnings: %v", warnings)
			}
		})
	}
}

// An answer is kept over restarts, until it is too old or something else would be asked.
func TestHandshakeIsRemembered(t *testing.T) {
	far, url := newAbuse(t)
	far.answers(map[string]string{"WebHook-Allowed-Origin": "*", "WebHook-Allowed-Rate": "120"})
	now := time.Now()
	e := env(t, &now, nil)
	state := &memory{}
	e.State = state
	asks := func(want int, path, origin string, rate int) {
		t.Helper()
		w := target(t, fmt.Sprintf(`{"url": "%s%s", "handshake": {"mode": "required", "origin": "%s", "rate": %d}}`, url, path, origin, rate), e)
		deliver(t, w, targettest.Delivery())
		deliver(t, w, targettest.Delivery())
		if asked, _ := far.counts(); asked != want {
			t.Errorf("asked %d times, want %d", asked, want)
		}
		if p := w.(targets.Paced).Pace(); p.PerSecond != 2 {
			t.Errorf("it goes at %+v", p)
		}
	}
	asks(1, "/a", "a.example", 200)
	asks(1, "/a", "a.example", 200)
	now = now.Add(24*time.Hour - time.Second)
	asks(1, "/a", "a.example", 200)
	now = now.Add(time.Second)
	asks(2, "/a", "a.example", 200)
	asks(3, "/b", "a.example", 200)
	asks(4, "/b", "b.example", 200)
	asks(5, "/b", "b.example", 300)
	now = now.Add(-48 * time.Hour) // the clock was set back
	asks(6, "/b", "b.example", 300)
	state.b = []byte("not what was saved")
	asks(7, "/b", "b.example", 300)
	state.err = errors.New("away")
	asks(8, "/b", "b.example", 300)
}

// A target that refuses is asked again, but not with every attempt; and one that cannot be reached is a failed attempt like any other.
func TestHandshakeIsRepeated(t *testing.T) {
	far, url := newAbuse(t)
	now := time.Now()
	e := env(t, &now, nil)
	e.State = &memory{}
	w := target(t, fmt.Sprintf(`{"url": "%s", "handshake": {"mode": "required", "origin": "a.example"}}`, url), e)
	for range 3 {
		if _, err := w.Deliver(t.Context(), targettest.Delivery()); targets.ReasonOf(err) != targets.ReasonAuth || !strings.Contains(err.Error(), "405") {
			t.Errorf("Deliver = %v", err)
		}
	}
	far.answers(map[string]string{"WebHook-Allowed-Origin": "a.example"})
	now = now.Add(time.Minute)
	deliver(t, w, targettest.Delivery())
	if asked, events := far.counts(); asked != 2 || events != 1 {
		t.Errorf("asked %d times, %d events", asked, events)
	}
	away := target(t, `{"url": "http://127.0.0.1:1/", "handshake": {"mode": "best-effort", "origin": "a.example"}}`, e)
	if _, err := away.Deliver(t.Context(), targettest.Delivery()); targets.ReasonOf(err) != targets.ReasonConnect {
		t.Errorf("Deliver = %v", err)
	}
}

// Who does not answer the handshake may agree later, by who knows the address that was sent along, and has then agreed for good.
func TestHandshakeByCallback(t *testing.T) {
	far, url := newAbuse(t)
	now := time.Now()
	e := env(t, &now, nil)
	state := &memory{}
	e.State = state
	config := fmt.Sprintf(`{"url": "%s", "handshake": {"mode": "required", "origin": "a.example", "rate": 600, "callback": "https://rialto.example.com/base/"}}`, url)
	w := target(t, config, e)
	consent := func(w targets.Target, token, rate string) error {
		return w.(targets.Consenter).Consent(t.Context(), token, rate)
	}
	refused := func(w targets.Target) {
		t.Helper()
		if _, err := w.Deliver(t.Context(), targettest.Delivery()); targets.ReasonOf(err) != targets.ReasonAuth {
			t.Errorf("Deliver = %v", err)
		}
	}
	if err := consent(w, "", ""); fault.KindOf(err) != fault.NotFound {
		t.Errorf("before anybody was asked: %v", err)
	}
	refused(w)
	callback := far.asked[0].Get("WebHook-Request-Callback")
	token, ok := strings.CutPrefix(callback, "https://rialto.example.com/base/consents/ops/")
	if !ok || len(token) < 26 {
		t.Fatalf("asked with the callback %q", callback)
	}
	now = now.Add(time.Hour)
	refused(w)
	if again := far.asked[1].Get("WebHook-Request-Callback"); again != callback {
		t.Errorf("asked again with %q, and was with %q", again, callback)
	}
	for _, bad := range []string{"", token[1:], token + "x", strings.ToLower(token)} {
		if err := consent(w, bad, ""); fault.KindOf(err) != fault.NotFound {
			t.Errorf("token %q: %v", bad, err)
		}
	}
	w = target(t, config, e) // a restart: the address is still good
	state.err = errors.New("away")
	if err := consent(w, token, "120"); err == nil {
		t.Error("a consent that is not written down is taken")
	}
	state.err = nil
	if err := consent(w, token, "120"); err != nil {
		t.Fatal(err)
	}
	deliver(t, w, targettest.Delivery())
	w = target(t, config, e)
	now = now.Add(1000 * time.Hour)
	deliver(t, w, targettest.Delivery())
	if asked, events := far.counts(); asked != 2 || events != 2 {
		t.Errorf("asked %d times, %d events", asked, events)
	}
	if p := w.(targets.Paced).Pace(); p.PerSecond != 2 {
		t.Errorf("it goes at %+v", p)
	}
	if err := consent(w, token, ""); err != nil || w.(targets.Paced).Pace().PerSecond != 10 {
		t.Errorf("%v, it goes at %+v", err, w.(targets.Paced).Pace())
	}
	other := target(t, strings.Replace(config, "a.example", "b.example", 1), e)
	if err := consent(other, token, ""); fault.KindOf(err) != fault.NotFound {
		t.Errorf("for another origin: %v", err)
	}
	refused(other)
	if err := consent(target(t, `{"url": "`+url+`"}`, e), token, ""); fault.KindOf(err) != fault.NotFound {
		t.Errorf("without a handshake: %v", err)
	}
}

// The address is good for who has read it, though no answer to the question has come back.
func TestHandshakeByCallbackWithoutAnAnswer(t *testing.T) {
	for _, restart := range []bool{false, true} {
		far, url := newAbuse(t)
		far.cut = true
		now := time.Now()
		e := env(t, &now, nil)
		e.State = &memory{}
		config := fmt.Sprintf(`{"url": "%s", "handshake": {"mode": "required", "origin": "a.example", "rate": 600, "callback": "https://rialto.example.com"}}`, url)
		w := target(t, config, e)
		for range 2 {
			if _, err := w.Deliver(t.Context(), targettest.Delivery()); targets.ReasonOf(err) != targets.ReasonReset {
				t.Fatalf("Deliver = %v", err)
			}
		}
		if p := w.(targets.Paced).Pace(); p.PerSecond != 1 || p.Burst != 1 {
			t.Errorf("while it is not known it goes at %+v", p)
		}
		if restart {
			w = target(t, config, e)
		}
		far.mu.Lock()
		first, second := far.asked[0].Get("WebHook-Request-Callback"), far.asked[1].Get("WebHook-Request-Callback")
		far.mu.Unlock()
		token := strings.TrimPrefix(first, "https://rialto.example.com/consents/ops/")
		if err := w.(targets.Consenter).Consent(t.Context(), token, "120"); err != nil || first != second {
			t.Fatalf("%v, after it was asked with %q and %q", err, first, second)
		}
		deliver(t, w, targettest.Delivery())
		if asked, events := far.counts(); asked != 2 || events != 1 || w.(targets.Paced).Pace().PerSecond != 2 {
			t.Errorf("asked %d times, %d events, it goes at %+v", asked, events, w.(targets.Paced).Pace())
		}
	}
}

// What somebody has agreed to by hand is not lost because it could not be read for a while.
func TestHandshakeThatCannotBeRead(t *testing.T) {
	far, url := newAbuse(t)
	now := time.Now()
	e := env(t, &now, nil)
	state := &memory{}
	e.State = state
	config := fmt.Sprintf(`{"url": "%s", "handshake": {"mode": "required", "origin": "a.example", "rate": 600, "callback": "https://rialto.example.com"}}`, url)
	refused := func(w targets.Target) {
		t.Helper()
		if _, err := w.Deliver(t.Context(), targettest.Delivery()); targets.ReasonOf(err) != targets.ReasonAuth {
			t.Errorf("Deliver = %v", err)
		}
	}
	w := target(t, config, e)
	refused(w)
	token := strings.TrimPrefix(far.asked[0].Get("WebHook-Request-Callback"), "https://rialto.example.com/consents/ops/")
	consent := func(w targets.Target) error { return w.(targets.Consenter).Consent(t.Context(), token, "120") }
	w = target(t, config, e)
	state.loadErr = errors.New("away")
	if err := consent(w); fault.KindOf(err) != fault.Unavailable {
		t.Errorf("a consent while the store is away: %v", err)
	}
	state.loadErr = nil
	if err := consent(w); err != nil {
		t.Fatal(err)
	}
	w = target(t, config, e)
	state.loadErr = errors.New("away")
	refused(w)
	state.loadErr = nil
	now = now.Add(time.Minute)
	deliver(t, w, targettest.Delivery())
	deliver(t, target(t, config, e), targettest.Delivery())
	if asked, events := far.counts(); asked != 2 || events != 2 {
		t.Errorf("asked %d times, %d events", asked, events)
	}
}

func TestHandshakeConfigsThatAreRefused(t *testing.T) {
	for config, want := range map[string]string{
		`{"mode": "required"}`:                                                              "/config/handshake/origin: is missing",
		`{"mode": "required", "origin": "https://a.example"}`:                               "/config/handshake/origin: does not match",
		`{"mode": "required", "origin": "a.example", "callback": "rialto.example.com"}`:     "/config/handshake/callback: is no URL",
		`{"mode": "required", "origin": "a.example", "callback": "https://a.example/?b=c"}`: "/config/handshake/callback: is no URL",
		`{"mode": "always", "origin": "a.example"}`:                                         "/config/handshake/mode: is not one of",
		`{"mode": "required", "origin": "a.example", "rate": 0}`:                            "/config/handshake/rate: is less than 1",
		`{"mode": "required", "origin": "a.example", "burst": 1}`:                           "/config/handshake/burst: is not a known field",
	} {
		_, err := targets.ParseDefinition([]byte(`{"name": "ops", "type": "webhook", "config": {"url": "https://ops.example.com/", "handshake": `+config+`}}`), targets.NewCatalog(kind()))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s gives %v, want %s", config, err, want)
		}
	}
}
