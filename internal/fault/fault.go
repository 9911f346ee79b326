// SPDX-License-Identifier: Apache-2.0

// Package fault names the kinds of failure that a user is told about.
//
// Every package that can be at the end of a user's request returns a *Error for what the user can understand or mend;
// whatever is not a *Error is an internal failure, whose cause goes to the log and never to the user. One table, in
// web/api, maps a Kind to an HTTP status and a problem type. Values are immutable once returned and safe to share.
package fault

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// Kind is what went wrong, as far as the caller can act on it.
type Kind uint8

// The kinds, with the HTTP status each becomes.
const (
	Internal     Kind = iota // 500: no detail is shown
	Invalid                  // 400: the request or document is wrong; Details say where
	Unauthorized             // 401: no or wrong credentials
	Forbidden                // 403: the credentials do not allow it
	NotFound                 // 404
	Conflict                 // 409: exists already, is in use, or has changed (412 where If-Match was sent)
	TooLarge                 // 413
	Unsupported              // 415: media type or encoding
	RateLimited              // 429
	Unavailable              // 503: try again after RetryAfter
	Full                     // 507: the log has no room
	Unfit                    // 422: it is well-formed, and does not fit its schema; Details say where
)

var kindNames = [...]string{"internal", "invalid", "unauthorized", "forbidden", "not-found", "conflict", "too-large",
	"unsupported", "rate-limited", "unavailable", "full", "unfit"}

// String returns the stable slug of the kind, as used in problem types.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return "internal"
}

// Detail is one complaint about a document.
type Detail struct {
	Pointer string `json:"pointer"` // JSON pointer (RFC 6901) into what was sent; "" is the whole
	Detail  string `json:"detail"`  // what is wrong and what is allowed; never a payload or a secret
}

// Error is a failure that a user is told about.
type Error struct {
	Kind       Kind
	Message    string        // for users: lower case, no secrets, no payloads
	Details    []Detail      // for Invalid: where
	RetryAfter time.Duration // for RateLimited and Unavailable: when to come back; 0 says nothing
	Err        error         // the cause, for the log only; may be nil
}

// Error returns the message and its details, and not the cause.
func (e *Error) Error() string {
	if len(e.Details) == 0 {
		return e.Message
	}
	var b strings.Builder
	b.WriteString(e.Message)
	for i, d := range e.Details {
		sep := "; "
		if i == 0 {
			sep = ": "
		}
		b.WriteString(sep)
		if d.Pointer != "" {
			b.WriteString(d.Pointer + ": ")
		}
		b.WriteString(d.Detail)
	}
	return b.String()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// New returns an error of a kind.
func New(k Kind, format string, args ...any) *Error {
	return &Error{Kind: k, Message: fmt.Sprintf(format, args...)}
}

// Invalidf returns an Invalid error with one detail at pointer.
func Invalidf(pointer, format string, args ...any) *Error {
	return &Error{Kind: Invalid, Message: "invalid", Details: []Detail{{Pointer: pointer, Detail: fmt.Sprintf(format, args...)}}}
}

// Collect joins several complaints into one Invalid error; nil if there are none.
func Collect(details []Detail) error {
	if len(details) == 0 {
		return nil
	}
	return &Error{Kind: Invalid, Message: "invalid", Details: details}
}

// At returns err with pointer put in front of the pointers of its details, for errors of a part of a document. An
// error that is not a *Error becomes an Invalid one whose detail is its text.
func At(pointer string, err error) error {
	if err == nil {
		return nil
	}
	var e *Error
	if !errors.As(err, &e) {
		return &Error{Kind: Invalid, Message: "invalid", Details: []Detail{{Pointer: pointer, Detail: err.Error()}}, Err: err}
	}
	c := *e
	c.Details = make([]Detail, 0, len(e.Details)+1)
	for _, d := range e.Details {
		c.Details = append(c.Details, Detail{Pointer: pointer + d.Pointer, Detail: d.Detail})
	}
	if len(c.Details) == 0 {
		c.Details = append(c.Details, Detail{Pointer: pointer, Detail: e.Message})
	}
	return &c
}

// KindOf returns the kind of err; Internal for every error that is not, and does not wrap, a *Error.
func KindOf(err error) Kind {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind
	}
	return Internal
}

// Pointer escapes one segment of a JSON pointer and puts a slash before it.
func Pointer(segment string) string {
	return "/" + strings.ReplaceAll(strings.ReplaceAll(segment, "~", "~0"), "/", "~1")
}
