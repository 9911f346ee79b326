// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/targets"
	"github.com/rialto-bridge/rialto/targets/outbound"
)

// handshakeConfig says whether the target is asked for its consent (CloudEvents HTTP webhook specification, section 4).
type handshakeConfig struct {
	Mode     string `json:"mode"`
	Origin   string `json:"origin"`
	Rate     int    `json:"rate"`     // requests a minute that are asked for; 0 = none
	Callback string `json:"callback"` // where the target reaches this bridge, to agree later; "" = it cannot
}

const (
	handshakeOff        = "off"
	handshakeRequired   = "required"
	handshakeBestEffort = "best-effort"
)

// How long an answer is good before the target is asked again: one that agrees, one that does not and need not, one that does not
// and must, and none at all.
const (
	consentAge   = 24 * time.Hour
	refusalAge   = time.Hour
	forbiddenAge = time.Minute
	silenceAge   = 10 * time.Minute
)

func (r *reader) handshaking(c *handshakeConfig) {
	if c.Mode == handshakeOff {
		return
	}
	if c.Origin == "" {
		r.Complain("/handshake/origin", "is missing: the target is told who asks")
	}
	if u, err := url.Parse(c.Callback); c.Callback != "" && (err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "") {
		r.Complain("/handshake/callback", "is no URL of a server: http or https, a host, and maybe a path")
	}
	r.handshake = c
}

// consent is what a target has answered, and what it was asked. It is kept over restarts.
type consent struct {
	URL, Origin string
	Asked       int       // the rate
	Granted     bool      // events may be sent
	Rate        int       // requests a minute that may be sent; 0 = any number
	Status      int       // of the answer; 0 = there was none
	At          time.Time // when that was; zero = it was not asked to the end yet
	Token       string    // who knows it may agree later; "" = nobody
	Later       bool      // that has happened
}

// handshake asks a target for its consent, and remembers it. It is safe for concurrent use.
type handshake struct {
	handshakeConfig
	w      *webhook
	turn   chan struct{}           // held by who asks
	unread bool                    // what is kept could not be read, and nothing is written over it; guarded by turn
	answer atomic.Pointer[consent] // nil = not known yet
}

func newHandshake(c handshakeConfig, w *webhook) *handshake {
	return &handshake{handshakeConfig: c, w: w, turn: make(chan struct{}, 1)}
}

// agreed blocks until it is known what the target says, and returns nil if events may be sent. However many ask, the target is asked
// once.
func (h *handshake) agreed(ctx context.Context) error {
	if a := h.answer.Load(); h.fresh(a) {
		return h.verdict(a)
	}
	select {
	case h.turn <- struct{}{}:
		defer func() { <-h.turn }()
	case <-ctx.Done():
		return &targets.Error{Reason: targets.ReasonOf(ctx.Err()), Err: ctx.Err()}
	}
	a, err := h.known(ctx)
	if err != nil {
		h.w.env.Logger.Warn("what the target has agreed to cannot be read, it is asked again", slog.Any("err", err))
	}
	if !h.fresh(a) {
		token := h.tokenOf(a)
		if token != "" && (!h.current(a) || a.Token != token) { // it is good from when it may be read, whatever becomes of the answer
			h.keep(ctx, &consent{URL: h.w.settings.url, Origin: h.Origin, Asked: h.Rate, Token: token})
		}
		var err *targets.Error
		if a, err = h.answerTo(ctx, token); err != nil {
			return err
		}
		h.keep(ctx, a)
	}
	h.answer.Store(a)
	return h.verdict(a)
}

// keep has a be what is known, and writes it down.
func (h *handshake) keep(ctx context.Context, a *consent) {
	h.answer.Store(a)
	if h.unread {
		return
	}
	if err := h.remember(ctx, a); err != nil {
		h.w.env.Logger.Warn("what the target has agreed to is not written down, it is asked again after a restart", slog.Any("err", err))
	}
}

// fresh reports whether an answer is to what would be asked now, and not too old.
func (h *handshake) fresh(a *consent) bool {
	if !h.current(a) {
		return false
	}
	if a.Granted && a.Later { // who agreed by hand need not do so every day
		return true
	}
	good := consentAge
	switch {
	case a.Granted:
	case h.Mode == handshakeRequired:
		good = forbiddenAge
	case a.Status == 0:
		good = silenceAge
	default:
		good = refusalAge
	}
	age := h.w.env.Now().Sub(a.At)
	return age >= 0 && age < good
}

// current reports whether an answer is to what would be asked now.
func (h *handshake) current(a *consent) bool {
	return a != nil && a.URL == h.w.settings.url && a.Origin == h.Origin && a.Asked == h.Rate
}

// tokenOf is the token that is sent along: the one that was sent before, since somebody may have it by now, or a new one.
func (h *handshake) tokenOf(a *consent) string {
	switch {
	case h.Callback == "":
		return ""
	case h.current(a) && a.Token != "":
		return a.Token
	}
	return rand.Text()
}

// Consent implements targets.Consenter.
func (w *webhook) Consent(ctx context.Context, token, rate string) error {
	if w.asks == nil {
		return errNoConsent
	}
	return w.asks.granted(ctx, token, rate)
}

var errNoConsent = fault.New(fault.NotFound, "no target has asked for this consent")

// granted takes the consent of who knows the token. It blocks until that is written down.
func (h *handshake) granted(ctx context.Context, token, rate string) error {
	select {
	case h.turn <- struct{}{}:
		defer func() { <-h.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	a, err := h.known(ctx)
	if err != nil {
		return &fault.Error{Kind: fault.Unavailable, Message: "what the target was asked cannot be read", RetryAfter: time.Second, Err: err}
	}
	if !h.current(a) || a.Token == "" || subtle.ConstantTimeCompare([]byte(a.Token), []byte(token)) == 0 {
		return errNoConsent
	}
	yes := *a
	yes.Granted, yes.Later, yes.Rate, yes.At = true, true, h.rateOf(rate), h.w.env.Now().UTC()
	if err := h.remember(ctx, &yes); err != nil {
		return &fault.Error{Kind: fault.Unavailable, Message: "the consent cannot be written down", RetryAfter: time.Second, Err: err}
	}
	h.answer.Store(&yes)
	return nil
}

// rateOf reads WebHook-Allowed-Rate. Without one it is the rate that was asked for.
func (h *handshake) rateOf(header string) int {
	switch n, err := strconv.Atoi(strings.TrimSpace(header)); {
	case strings.TrimSpace(header) == "*":
		return 0
	case err == nil && n > 0:
		return n
	}
	return h.Rate
}

func (h *handshake) verdict(a *consent) error {
	if a.Granted || h.Mode == handshakeBestEffort {
		return nil
	}
	return &targets.Error{Reason: targets.ReasonAuth, Err: fmt.Errorf("the target has not agreed to be sent events: it answered OPTIONS with %d, and %s was not allowed by WebHook-Allowed-Origin", a.Status, h.Origin)}
}

// answerTo asks the target. That one whose consent need not be had does not answer is an answer, too, and leaves time for the event.
func (h *handshake) answerTo(ctx context.Context, token string) (*consent, *targets.Error) {
	if h.Mode == handshakeRequired {
		return h.ask(ctx, token)
	}
	bound := ctx
	if end, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		bound, cancel = context.WithTimeout(ctx, time.Until(end)/4)
		defer cancel()
	}
	a, err := h.ask(bound, token)
	if err == nil || ctx.Err() != nil {
		return a, err
	}
	h.w.env.Logger.Warn("the target does not say whether it agrees to be sent events", slog.Any("err", err))
	return &consent{URL: h.w.settings.url, Origin: h.Origin, Asked: h.Rate, Rate: h.Rate, At: h.w.env.Now().UTC(), Token: token}, nil
}

// ask asks the target once. Nothing secret is sent: it is not known yet whether it wants anything. What it means the headers say, and not
// the status.
func (h *handshake) ask(ctx context.Context, token string) (*consent, *targets.Error) {
	m := outbound.Message{Method: http.MethodOptions, URL: h.w.url, Header: http.Header{"Webhook-Request-Origin": {h.Origin}}}
	if h.Rate > 0 {
		m.Header["Webhook-Request-Rate"] = []string{strconv.Itoa(h.Rate)}
	}
	if token != "" {
		m.Header["Webhook-Request-Callback"] = []string{strings.TrimRight(h.Callback, "/") + "/consents/" + h.w.env.Target + "/" + token}
	}
	resp, _, err := outbound.Fetch(ctx, h.w.sender.Client(), m)
	if err != nil {
		return nil, err
	}
	a := &consent{URL: h.w.settings.url, Origin: h.Origin, Asked: h.Rate, Status: resp.StatusCode, At: h.w.env.Now().UTC(), Token: token}
	allowed := strings.TrimSpace(resp.Header.Get("WebHook-Allowed-Origin"))
	a.Granted = allowed == "*" || strings.EqualFold(allowed, h.Origin)
	a.Rate = h.rateOf(resp.Header.Get("WebHook-Allowed-Rate"))
	return a, nil
}

// known is what is known of the target's answer, or, with an error, what is without what was kept over a restart; nil if nothing is. The
// caller has the turn.
func (h *handshake) known(ctx context.Context) (*consent, error) {
	a := h.answer.Load()
	if a != nil && !h.unread {
		return a, nil
	}
	kept, err := h.recall(ctx)
	if h.unread = err != nil; kept != nil {
		a = kept
	}
	return a, err
}

// recall returns the answer that was given before a restart; nil if there is none.
func (h *handshake) recall(ctx context.Context) (*consent, error) {
	b, err := h.w.env.State.Load(ctx)
	if err != nil || b == nil {
		return nil, err
	}
	a := &consent{}
	if err := json.Unmarshal(b, a); err != nil {
		h.w.env.Logger.Warn("what the target has agreed to is not known, it is asked again", slog.Any("err", err))
		return nil, nil
	}
	return a, nil
}

func (h *handshake) remember(ctx context.Context, a *consent) error {
	b, err := json.Marshal(a)
	if err != nil {
		return err
	}
	return h.w.env.State.Save(ctx, b)
}

// pace is how fast the target agreed to be sent requests. While that is not known it is one a second.
func (h *handshake) pace() targets.RateLimit {
	a := h.answer.Load()
	switch {
	case a == nil, a.At.IsZero(), !a.Granted && h.Mode == handshakeRequired:
		return targets.RateLimit{PerSecond: 1, Burst: 1}
	case (a.Granted || a.Status == 0) && a.Rate > 0:
		perSecond := float64(a.Rate) / 60
		return targets.RateLimit{PerSecond: perSecond, Burst: max(int(math.Ceil(perSecond)), 1)}
	}
	return targets.RateLimit{}
}

// warning is what the owner of the target should know; "" if nothing.
func (h *handshake) warning() string {
	a := h.answer.Load()
	switch {
	case a == nil || a.At.IsZero() || a.Granted:
		return ""
	case h.Mode == handshakeRequired:
		return "the target has not agreed to be sent events, so none are sent; it is asked again every minute that an event is due"
	case a.Status == 0:
		return "the target does not say whether it agrees to be sent events; they are sent all the same"
	}
	return "the target has not agreed to be sent events; they are sent all the same"
}
