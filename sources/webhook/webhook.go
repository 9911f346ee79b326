// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/sources"
)

// hook is one source of the kind.
type hook struct {
	env      sources.Env
	s        settings
	provider *provider
	receive  receiver
	seen     *seen
	unclear  *seen // ids of which it is not known whether they were committed
	room     room
	waiting  atomic.Int32 // requests that wait for the log
	macs     macs         // of the scheme that the provider has
}

var _ sources.Heir = (*hook)(nil)

// provider is what is known of one product.
type provider struct {
	name  string // as the config says it
	title string
	doc   string // how it is set up, in Markdown
	// fields are the members of the config that it needs; optional ones it may have beside those that all have.
	fields, optional []string
	within           time.Duration // how long it waits for an answer
	age              time.Duration // how old a good request may be; 0 = the tolerance
	status           int           // of the answer to what was stored
	check            func(c *config) error
	open             func(h *hook) (receiver, error)
}

// receiver proves a request and says what is to become of it. A *fault.Error is the answer to what is not good. It reads the
// body once what stands outside of it is not wrong by itself: most of a flood ends before that.
type receiver func(ctx context.Context, r *request) (taken, error)

// taken is what a request holds: events to be stored before the answer.
type taken struct {
	events []event.Event
	answer *answer // nil = the provider's status and no body
}

type answer struct {
	contentType string
	body        []byte
}

// newHook makes a source. It opens nothing.
func newHook(cfg json.RawMessage, env sources.Env) (sources.Source, error) {
	s, err := parse(cfg)
	if err != nil {
		return nil, err
	}
	h := &hook{env: env, s: s, provider: s.provider}
	h.seen, h.unclear = newSeen(env.Now, h.good()), newSeen(env.Now, h.good())
	h.room.left.Store(roomBytes)
	if h.receive, err = s.provider.open(h); err != nil {
		return nil, err
	}
	return h, nil
}

// Run is sources.Source.Run: everything happens when a request comes.
func (h *hook) Run(ctx context.Context, _ sources.Emit) error {
	<-ctx.Done()
	return ctx.Err()
}

// Inherit is sources.Heir.Inherit. Both share what they know: the one before may still commit something.
func (h *hook) Inherit(before sources.HookHandler) {
	old, ok := before.(*hook)
	if !ok {
		return
	}
	h.seen, h.unclear = old.seen, old.unclear
	h.seen.stay(h.good())
	h.unclear.stay(h.good())
}

// good is how long a request may be proved again: from what it may be ahead of us until it is too old.
func (h *hook) good() time.Duration { return h.s.tolerance + max(h.s.tolerance, h.provider.age) }

// ServeHook is sources.HookHandler.ServeHook.
func (h *hook) ServeHook(w http.ResponseWriter, r *http.Request, emit sources.Emit) error {
	late := time.Now().Add(h.provider.within)
	if !h.allowed(r.RemoteAddr) {
		return errAddress
	}
	req, err := h.accept(r)
	if err != nil {
		return err
	}
	defer req.release()
	t, err := h.receive(r.Context(), req)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithDeadlineCause(r.Context(), late, errLate)
	defer cancel()
	if err := h.store(ctx, t.events, emit); err != nil {
		return err
	}
	h.answer(w, t.answer)
	return nil
}

// Answers to what is not proved. They are made once: in a flood they are what is most of it.
var (
	errAddress   = fault.New(fault.Forbidden, "the address is not allowed here")
	errSignature = fault.New(fault.Forbidden, "the signature does not match") // whatever is wrong with it
	errTimestamp = fault.New(fault.Forbidden, "the timestamp is not one")
	errToken     = fault.New(fault.Forbidden, "the token does not match")
)

// maxWaiting is how many requests of a source may wait for the log at a time, so that one that is slow costs a bounded memory: senders come
// again. A log that takes 10 ms for a commit takes 100,000 a second of as many.
const maxWaiting = 1024

var errLate = errors.New("the commit takes longer than the sender waits")

// store commits what is not known yet.
func (h *hook) store(ctx context.Context, evs []event.Event, emit sources.Emit) error {
	fresh := evs[:0]
	for i := range evs {
		known, err := h.known(ctx, &evs[i])
		if err != nil {
			return &fault.Error{Kind: fault.Unavailable, Message: "the log cannot be asked for the event now", RetryAfter: time.Second, Err: err}
		}
		if !known {
			fresh = append(fresh, evs[i])
		}
	}
	if known := len(evs) - len(fresh); known > 0 {
		h.env.Known(known)
	}
	if len(fresh) == 0 {
		return nil
	}
	defer h.waiting.Add(-1)
	if h.waiting.Add(1) > maxWaiting {
		return &fault.Error{Kind: fault.Unavailable, Message: "too many requests wait for the log", RetryAfter: time.Second}
	}
	if err := emit(ctx, fresh...); err != nil {
		if ctx.Err() != nil {
			for i := range fresh {
				h.unclear.add(fresh[i].Key())
			}
			return &fault.Error{Kind: fault.Unavailable, Message: "the event was not stored in time", RetryAfter: time.Second, Err: err}
		}
		return err
	}
	for i := range fresh {
		h.seen.add(fresh[i].Key())
	}
	return nil
}

// known reports whether an event was committed lately. The log may have committed one that it was given and that nobody waited for: the
// sender comes again, and perhaps when the bus remembers ids of then no more.
func (h *hook) known(ctx context.Context, ev *event.Event) (bool, error) {
	k := ev.Key()
	if h.seen.has(k) {
		return true, nil
	}
	if !h.unclear.has(k) {
		return false, nil
	}
	there, err := h.env.Stored(ctx, ev)
	if there {
		h.seen.add(k)
	}
	return there, err
}

func (h *hook) answer(w http.ResponseWriter, a *answer) {
	if a == nil {
		w.WriteHeader(h.provider.status)
		return
	}
	w.Header().Set("Content-Type", a.contentType)
	w.WriteHeader(http.StatusOK)
	_, _ = w.Write(a.body) // who has gone does not read an error either
}

// allowed reports whether a client may send at all.
func (h *hook) allowed(remote string) bool {
	if len(h.s.allowFrom) == 0 {
		return true
	}
	ap, err := netip.ParseAddrPort(remote)
	if err != nil {
		return false
	}
	for _, p := range h.s.allowFrom {
		if p.Contains(ap.Addr().Unmap().WithZone("")) {
			return true
		}
	}
	return false
}

// fresh checks that a request was signed about now.
func (h *hook) fresh(r *request, at time.Time) error {
	if d := r.now.Sub(at); d > h.s.tolerance || d < -h.s.tolerance {
		return fault.New(fault.Forbidden, "the timestamp is more than %s away: signed too long ago, or a clock is wrong", h.s.tolerance)
	}
	return nil
}
