// SPDX-License-Identifier: Apache-2.0

package api

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rialto-bridge/rialto/bridge"
)

// reply is the response of one request and what is noted of it. It is pooled: nothing may keep it beyond the request.
type reply struct {
	http.ResponseWriter
	status int // 0 until the header is written
	route  *route
	bus    string               // that the path names; "" for none
	hook   string               // the same of a source
	aside  *bridge.AsideRequest // why its events are kept for later; nil = they are not
	id     string               // request id
	who    caller               // once it has been identified
	key    string               // name of the key that came with it; "" for none
	slug   string               // of the problem that was answered; "" for none
	long   bool                 // the answer goes on for as long as the client likes, or was held back: no latency is measured
}

var replies = sync.Pool{New: func() any { return new(reply) }}

// WriteHeader notes the status and passes it on.
func (w *reply) WriteHeader(status int) {
	if w.status == 0 && status >= 200 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write passes b on.
func (w *reply) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	return w.ResponseWriter.Write(b)
}

// Unwrap is for http.ResponseController.
func (w *reply) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// nameRequest tells the client how the request is called in the log.
func (w *reply) nameRequest() { w.Header()["X-Request-Id"] = []string{w.id} }

// Header values that are set on many answers. net/http does not change them.
var (
	contentJSON    = []string{"application/json"}
	contentProblem = []string{"application/problem+json"}
	noStore        = []string{"no-store"}
	noSniff        = []string{"nosniff"}
)

// send writes a whole answer.
func (w *reply) send(status int, contentType []string, body []byte) error {
	h := w.Header()
	h["Content-Type"] = contentType
	if &contentType[0] != &contentJSON[0] {
		h["X-Content-Type-Options"] = noSniff // browsers leave JSON alone
	}
	if len(body) > 2048 { // net/http says it itself of what fits into its buffer
		h["Content-Length"] = []string{strconv.Itoa(len(body))}
	}
	w.WriteHeader(status)
	// Who has gone does not read an error either, and the server notices by itself.
	_, _ = w.Write(body)
	return nil
}

// ServeHTTP answers a request.
func (a *API) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	start := a.o.Now()
	w := replies.Get().(*reply)
	*w = reply{ResponseWriter: rw, id: requestID(r)}
	a.metrics.inFlight.Inc()
	defer func() {
		a.metrics.inFlight.Dec()
		a.note(w, r, start)
		*w = reply{}
		replies.Put(w)
	}()
	defer func() {
		if p := recover(); p != nil {
			a.recovered(w, r, p)
		}
	}()
	if err := a.admit(r); err != nil {
		a.fail(w, r, err)
		return
	}
	bus, ingest := between(r, "/v1/buses/", "/events")
	if !ingest || len(r.Header["X-Request-Id"]) > 0 { // an accepted event is named by its id; a header that nobody asked for costs both sides
		w.nameRequest()
	}
	if ingest {
		w.bus = bus
		a.serve(w, r, a.ingestRoute)
		return
	}
	if source, ok := between(r, "/hooks/", ""); ok {
		w.hook = source
		a.serve(w, r, a.hookRoute)
		return
	}
	a.mux.ServeHTTP(w, r)
}

// admit refuses what nobody may ask from where it comes from. Hooks and consents trust nobody unproved, and come from anywhere.
func (a *API) admit(r *http.Request) error {
	foreign := a.o.Anonymous && !loopbackHost(r.Host)
	bare := a.o.ClientCerts && (r.TLS == nil || len(r.TLS.VerifiedChains) == 0)
	switch {
	case !foreign && !bare, strings.HasPrefix(r.URL.Path, "/hooks/"), strings.HasPrefix(r.URL.Path, "/consents/"):
		return nil
	case bare:
		return errNoCertificate
	}
	return errForeignHost
}

// between recognises a POST to a path of one name between two texts, unless something in it is escaped.
func between(r *http.Request, before, after string) (name string, ok bool) {
	if r.Method != http.MethodPost || r.URL.RawPath != "" {
		return "", false
	}
	rest, ok := strings.CutPrefix(r.URL.Path, before)
	if !ok {
		return "", false
	}
	name, ok = strings.CutSuffix(rest, after)
	return name, ok && name != "" && !strings.Contains(name, "/")
}

// recovered answers a request whose handler panicked.
func (a *API) recovered(w *reply, r *http.Request, p any) {
	if err, ok := p.(error); ok && errors.Is(err, http.ErrAbortHandler) {
		panic(p)
	}
	a.log.Error("handler panicked", "requestId", w.id, "method", r.Method, "err", fmt.Sprint(p), "stack", string(debug.Stack()))
	if w.status == 0 {
		a.fail(w, r, errPanicked)
		return
	}
	panic(http.ErrAbortHandler) // half an answer is out: breaking the connection is all that tells
}

// note counts the request and writes the access log.
func (a *API) note(w *reply, r *http.Request, start time.Time) {
	took := a.o.Now().Sub(start)
	m := &a.metrics.unmatched
	if w.route != nil {
		m = &w.route.metrics
	}
	m.observe(w.status, took, w.long)
	if a.log.Enabled(r.Context(), slog.LevelDebug) {
		pattern := ""
		if w.route != nil {
			pattern = w.route.pattern
		}
		a.log.Debug("request", "method", r.Method, "route", pattern, "status", w.status, "duration", took, "requestId", w.id,
			"key", w.key)
	}
}

// requestID is what the client called the request, if that is sane, else a new one.
func requestID(r *http.Request) string {
	if v := r.Header["X-Request-Id"]; len(v) == 1 && saneID(v[0]) {
		return v[0]
	}
	var b [16]byte
	s := strconv.AppendUint(b[:0], rand.Uint64()|1<<63, 36) // always 13 digits
	return string(s)
}

func saneID(s string) bool {
	if s == "" || len(s) > 64 {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '_' || c == '.') {
			return false
		}
	}
	return true
}
