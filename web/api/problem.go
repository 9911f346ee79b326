// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/go-chi/chi/v5"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/schema"
)

// Problem is the body of every error (RFC 9457).
type Problem struct {
	Type      string         `json:"type" doc:"urn:rialto:problem:<slug>; stable, one of a documented few" example:"urn:rialto:problem:invalid"`
	Title     string         `json:"title" doc:"what the type means, the same each time"`
	Status    int            `json:"status"`
	Detail    string         `json:"detail,omitempty" doc:"what is wrong with this request"`
	Errors    []fault.Detail `json:"errors,omitempty" doc:"where it is wrong: JSON pointers into what was sent; of a query parameter, its name"`
	RequestID string         `json:"requestId" doc:"to be named when asking for help; the log has it, too"`

	Incompatibilities []schema.Finding `json:"incompatibilities,omitempty" doc:"of a schema: what a new version would break, with documents that show it"`

	retryAfter time.Duration
	header     http.Header
	cause      error
}

// problemKind is a sort of problem: slug and title never change once released.
type problemKind struct {
	slug, title string
	status      int
}

var (
	problemInternal     = problemKind{"internal", "Something went wrong here", http.StatusInternalServerError}
	problemInvalid      = problemKind{"invalid", "The request is not valid", http.StatusBadRequest}
	problemUnauthorized = problemKind{"unauthorized", "A valid key is needed", http.StatusUnauthorized}
	problemForbidden    = problemKind{"forbidden", "The key does not allow this", http.StatusForbidden}
	problemNotFound     = problemKind{"not-found", "There is no such thing", http.StatusNotFound}
	problemMethod       = problemKind{"method-not-allowed", "The method is not for this resource", http.StatusMethodNotAllowed}
	problemTimeout      = problemKind{"request-timeout", "The request did not arrive in time", http.StatusRequestTimeout}
	problemConflict     = problemKind{"conflict", "What is there does not allow it", http.StatusConflict}
	problemGone         = problemKind{"gone", "That is not known any more", http.StatusGone}
	problemPrecondition = problemKind{"precondition-failed", "The document has changed", http.StatusPreconditionFailed}
	problemIncompatible = problemKind{"incompatible", "The schema is not compatible", http.StatusUnprocessableEntity}
	problemTooLarge     = problemKind{"too-large", "The request is too large", http.StatusRequestEntityTooLarge}
	problemUnsupported  = problemKind{"unsupported", "The media type or encoding is not understood", http.StatusUnsupportedMediaType}
	problemRateLimited  = problemKind{"rate-limited", "Too many requests", http.StatusTooManyRequests}
	problemUnavailable  = problemKind{"unavailable", "Not possible at the moment", http.StatusServiceUnavailable}
	problemFull         = problemKind{"full", "The log has no room", http.StatusInsufficientStorage}
	problemUnfit        = problemKind{"unfit", "The content does not fit its schema", http.StatusUnprocessableEntity}
)

// problemKinds is the whole set.
var problemKinds = []problemKind{problemInternal, problemInvalid, problemUnauthorized, problemForbidden, problemNotFound,
	problemMethod, problemTimeout, problemConflict, problemGone, problemPrecondition, problemIncompatible, problemTooLarge, problemUnsupported,
	problemRateLimited, problemUnavailable, problemFull, problemUnfit}

// ofFault is the table from kinds of failure to problems.
var ofFault = map[fault.Kind]problemKind{
	fault.Internal: problemInternal, fault.Invalid: problemInvalid, fault.Unauthorized: problemUnauthorized,
	fault.Forbidden: problemForbidden, fault.NotFound: problemNotFound, fault.Conflict: problemConflict,
	fault.TooLarge: problemTooLarge, fault.Unsupported: problemUnsupported, fault.RateLimited: problemRateLimited,
	fault.Unavailable: problemUnavailable, fault.Full: problemFull, fault.Unfit: problemUnfit,
}

// defaultRetryAfter is for what is unavailable without saying for how long.
const defaultRetryAfter = time.Second

// httpError is an error that only HTTP knows.
type httpError struct {
	kind   problemKind
	detail string
	header http.Header
}

func (e *httpError) Error() string { return e.detail }

var (
	errNoRoute     = &httpError{kind: problemNotFound, detail: "no such resource; GET /openapi.json lists what there is"}
	errPanicked    = errors.New("handler panicked")
	errForeignHost = &httpError{kind: problemForbidden,
		detail: "anonymous access is for this machine only: the Host header must be localhost or a loopback address"}
	errNoCertificate = &httpError{kind: problemForbidden, detail: "a client certificate is needed here, and this connection has none"}
)

// problem says what an error is to the client.
func problem(err error) *Problem {
	if e, ok := errors.AsType[*httpError](err); ok {
		p := e.kind.problem(err)
		p.Detail, p.header = e.detail, e.header
		return p
	}
	if e, ok := errors.AsType[*event.Error](err); ok {
		return ofEvent(e, err)
	}
	f, isFault := errors.AsType[*fault.Error](err)
	if e, ok := errors.AsType[*schema.IncompatibleError](err); ok {
		p := problemIncompatible.problem(err)
		p.Incompatibilities = e.Verdict.Findings
		if isFault {
			p.Detail, p.Errors = f.Message, f.Details
		}
		return p
	}
	if isFault {
		return ofFaultError(f, err)
	}
	if e, ok := errors.AsType[*http.MaxBytesError](err); ok {
		p := problemTooLarge.problem(err)
		p.Detail = "the body is larger than " + strconv.FormatInt(e.Limit, 10) + " bytes"
		return p
	}
	if e, ok := errors.AsType[*huma.ErrorModel](err); ok {
		return ofHuma(e, err)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		p := problemUnavailable.problem(err)
		p.Detail, p.retryAfter = "gave up waiting", defaultRetryAfter
		return p
	}
	return problemInternal.problem(err)
}

// problem makes a problem of the kind of an error.
func (k problemKind) problem(err error) *Problem {
	return &Problem{Type: problemType + k.slug, Title: k.title, Status: k.status, cause: err}
}

const problemType = "urn:rialto:problem:"

// ofEvent is for what is wrong with an event.
func ofEvent(e *event.Error, err error) *Problem {
	k := problemInvalid
	switch {
	case e.Unsupported:
		k = problemUnsupported
	case e.TooLarge:
		k = problemTooLarge
	}
	p := k.problem(err)
	p.Detail = e.Error()
	p.Errors = []fault.Detail{{Pointer: e.Pointer(), Detail: e.Reason}}
	return p
}

// ofFaultError is for what a user is told about.
func ofFaultError(f *fault.Error, err error) *Problem {
	k, ok := ofFault[f.Kind]
	if !ok || k == problemInternal {
		return problemInternal.problem(err)
	}
	p := k.problem(err)
	p.Detail, p.Errors, p.retryAfter = f.Message, f.Details, f.RetryAfter
	if k == problemUnavailable && p.retryAfter == 0 {
		p.retryAfter = defaultRetryAfter
	}
	if k == problemUnauthorized {
		p.header = http.Header{"Www-Authenticate": {`Bearer realm="rialto"`}}
	}
	return p
}

// ofHuma is for what huma finds wrong with parameters and bodies before a handler runs.
func ofHuma(m *huma.ErrorModel, err error) *Problem {
	switch m.Status {
	case http.StatusBadRequest, http.StatusUnprocessableEntity:
		p := problemInvalid.problem(err)
		p.Detail = m.Detail
		for _, d := range m.Errors {
			if d != nil {
				p.Errors = append(p.Errors, fault.Detail{Pointer: humaPointer(d.Location), Detail: d.Message})
			}
		}
		return p
	case http.StatusRequestEntityTooLarge:
		p := problemTooLarge.problem(err)
		p.Detail = "the document is larger than this resource takes"
		return p
	case http.StatusUnsupportedMediaType:
		return problemUnsupported.problem(err)
	case http.StatusRequestTimeout:
		return problemTimeout.problem(err)
	}
	return problemInternal.problem(err)
}

// humaPointer turns query.limit and body.a[0].b into pointers.
func humaPointer(location string) string {
	_, rest, _ := strings.Cut(location, ".")
	if rest == "" {
		return ""
	}
	rest = strings.NewReplacer("[", ".", "]", "").Replace(rest)
	var b strings.Builder
	for part := range strings.SplitSeq(rest, ".") {
		b.WriteString(fault.Pointer(part))
	}
	return b.String()
}

// fail answers a request with an error.
func (a *API) fail(w *reply, r *http.Request, err error) {
	p := a.problem(w, r, err)
	if w.status != 0 {
		return // the answer has begun; the stream says itself what broke it
	}
	b := problemBodies.Get().(*bytes.Buffer)
	defer problemBodies.Put(b)
	b.Reset()
	if len(p.Errors)+len(p.Incompatibilities) == 0 {
		b.Write(p.appendPlain(b.AvailableBuffer()))
	} else if err := encodeJSON(b, p); err != nil {
		a.log.Error("problem is not JSON", "requestId", w.id, "err", err)
	}
	_ = w.send(p.Status, contentProblem, b.Bytes())
}

// appendPlain is encodeJSON of a problem that has no lists: of nearly all that a flood is answered with.
func (p *Problem) appendPlain(b []byte) []byte {
	b = appendJSONString(append(b, `{"type":`...), p.Type)
	b = appendJSONString(append(b, `,"title":`...), p.Title)
	b = strconv.AppendInt(append(b, `,"status":`...), int64(p.Status), 10)
	if p.Detail != "" {
		b = appendJSONString(append(b, `,"detail":`...), p.Detail)
	}
	return append(appendJSONString(append(b, `,"requestId":`...), p.RequestID), '}')
}

// problemBodies are buffers: requests that are refused may come in floods.
var problemBodies = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// problem is where every error of the API passes: it becomes a document, headers, a log line and a count.
func (a *API) problem(w *reply, r *http.Request, err error) *Problem {
	p := problem(err)
	p.RequestID = w.id
	w.slug = strings.TrimPrefix(p.Type, problemType)
	if c := a.metrics.problems[w.slug]; c != nil {
		c.Inc()
	}
	if w.status == 0 {
		w.nameRequest()
		h := w.Header()
		for k, v := range p.header {
			h[k] = v
		}
		if p.retryAfter > 0 {
			h.Set("Retry-After", strconv.FormatInt(int64((p.retryAfter+time.Second-1)/time.Second), 10))
		}
		h["Cache-Control"] = noStore
	}
	a.logProblem(w, r, p)
	return p
}

// logProblem writes what is wrong on our side so that somebody sees it, and the rest for those who look for it.
func (a *API) logProblem(w *reply, r *http.Request, p *Problem) {
	level := slog.LevelDebug
	switch {
	case r.Context().Err() != nil: // the client has gone, and most likely that is all
	case p.Status == http.StatusInternalServerError:
		level = slog.LevelError
	case p.Status > http.StatusInternalServerError && a.noisy.allow(p.Status, a.o.Now()):
		level = slog.LevelWarn
	}
	if !a.log.Enabled(r.Context(), level) {
		return
	}
	pattern := ""
	if w.route != nil {
		pattern = w.route.pattern
	}
	a.log.Log(r.Context(), level, "request failed", "method", r.Method, "route", pattern, "status", p.Status,
		"reason", w.slug, "requestId", w.id, "key", w.key, "err", withCause(p.cause))
}

// withCause is the text of an error for the log: with the cause, which users do not see.
func withCause(err error) string {
	if f, ok := errors.AsType[*fault.Error](err); ok && f.Err != nil {
		return err.Error() + ": " + f.Err.Error()
	}
	return err.Error()
}

// throttle lets one line a second and status through, since a full disk fails thousands of requests a second.
type throttle struct {
	mu   sync.Mutex // guards last
	last map[int]time.Time
}

func (t *throttle) allow(status int, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now.Sub(t.last[status]) < time.Second {
		return false
	}
	if t.last == nil {
		t.last = map[int]time.Time{}
	}
	t.last[status] = now
	return true
}

// otherMethod answers a method that a resource does not have.
func (a *API) otherMethod(rw http.ResponseWriter, r *http.Request) {
	w := rw.(*reply)
	allowed := a.allowed(r)
	if len(allowed) == 0 {
		a.fail(w, r, errNoRoute)
		return
	}
	allow := http.Header{"Allow": {strings.Join(allowed, ", ")}}
	if r.Method == http.MethodOptions {
		w.Header()["Allow"] = allow["Allow"]
		w.WriteHeader(http.StatusNoContent)
		return
	}
	a.fail(w, r, &httpError{kind: problemMethod, detail: "this resource knows " + allow.Get("Allow"), header: allow})
}

// allowed lists the methods of the resource that a request is for.
func (a *API) allowed(r *http.Request) []string {
	path := r.URL.RawPath
	if path == "" {
		path = r.URL.Path
	}
	var out []string
	for _, m := range []string{"GET", "POST", "PUT", "DELETE"} {
		if a.mux.Match(chi.NewRouteContext(), m, path) {
			out = append(out, m)
			if m == "GET" {
				out = append(out, "HEAD")
			}
		}
	}
	if len(out) > 0 {
		out = append(out, "OPTIONS")
	}
	return out
}

// encodeJSON writes v without escaping <, > and &, and without a newline.
func encodeJSON(b *bytes.Buffer, v any) error {
	enc := json.NewEncoder(b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return err
	}
	b.Truncate(b.Len() - 1)
	return nil
}
