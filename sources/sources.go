// SPDX-License-Identifier: Apache-2.0

package sources

import (
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
)

// Emit stores events and blocks until they are committed. nil means that upstream may be acknowledged now. After an error
// nothing may be acknowledged; some of the events may be stored, and are repeated under the same ids.
type Emit func(ctx context.Context, evs ...event.Event) error

// Source is a way in. The supervisor calls Run in a goroutine of its own and never twice at a time.
type Source interface {
	// Run takes events in until ctx is done, and returns when nothing that it started is left. An error, or a nil before
	// ctx is done, has it made and run again after a pause.
	Run(ctx context.Context, emit Emit) error
}

// HookHandler is a Source that is sent to, behind POST /hooks/{source}. Its Run does what has to be done beside that.
type HookHandler interface {
	// ServeHook answers a request, from many goroutines. If it returns an error it has written nothing, and the error
	// becomes the answer: a *fault.Error of its kind, or an *Unread with one.
	ServeHook(w http.ResponseWriter, r *http.Request, emit Emit) error
}

// Heir is a HookHandler that goes on with what the one before it knows of requests when the definition has changed and the bus has not.
type Heir interface {
	HookHandler
	// Inherit is called before the first request, with a source of the same kind, which may still answer some.
	Inherit(before HookHandler)
}

// Unread is the error of a hook that knows who sends, and does not read what because it is larger than can be stored. An event of type
// RefusedType stands for it.
type Unread struct {
	Err   error // the answer
	Bytes int64 // that were announced, or that there are at least
}

// Error is that of the answer.
func (u *Unread) Error() string { return u.Err.Error() }

// Unwrap returns the answer.
func (u *Unread) Unwrap() error { return u.Err }

// Kind is a sort of source. Kinds are listed in internal/app; there is no registration.
type Kind struct {
	Name         string // such as webhook
	Doc          string // one paragraph
	ConfigSchema []byte // JSON Schema 2020-12 of the config; validates the API and is the documentation
	Example      string // a Source document in YAML, whole and valid
	Hook         bool   // what New makes is a HookHandler
	// Starts says that the kind honours Env.Start: there is something upstream to begin at.
	Starts bool
	// Endless says that there is nothing earliest upstream: a start is latest or a time.
	Endless bool
	// Check says what the schema cannot: it is called when a definition is written, opens nothing, and returns a
	// *fault.Error whose pointers are relative to the config. nil accepts all.
	Check func(cfg json.RawMessage) error
	// New makes a source and opens nothing. It is called before every run of a pulled source.
	New func(cfg json.RawMessage, env Env) (Source, error)
}

// Env is what a kind may use. Every field is set.
type Env struct {
	Name string // of the source
	// HTTP is guarded: it refuses addresses the operator has not allowed and follows no redirects.
	HTTP *http.Client
	// Dial is guarded as well, for those who speak no HTTP.
	Dial    func(ctx context.Context, network, address string) (net.Conn, error)
	Secrets func(ref string) (string, error)
	MaxData int // bytes of the largest payload that can be stored
	Start   Start
	// Stored reports whether an event of this source and id, or what stands for it because it was refused, is in the log. A source
	// whose ids follow from what is upstream asks it about what an earlier run may have stored without noting it: what the
	// deduplication of the bus forgets while nobody is there, the log still knows. A lookup costs as much as one over HTTP.
	Stored func(ctx context.Context, ev *event.Event) (bool, error)
	// Position is where the source is upstream.
	Position Position
	// Resumed says that the source was paused by its definition since it saved its position.
	Resumed bool
	// Lag reports how many events are known to wait upstream; negative is not known.
	Lag func(n int64)
	// Known counts events that the source knows already and does not hand to Emit again.
	Known  func(n int)
	Logger *slog.Logger
	Now    func() time.Time
}

// Position is where a source is upstream, in words of its kind. It is kept over restarts and handed from node to node.
// Save fails with ErrMoved when another node has the source or the position was reset: Run then returns that error.
type Position interface {
	Load(ctx context.Context) (at string, err error) // "" = nowhere yet: begin at Env.Start
	// Save is durable when it returns. It is called after Emit, so that a crash in between repeats and loses nothing.
	Save(ctx context.Context, at string) error
}

// Start is where a source begins that has no position yet.
type Start struct {
	Earliest bool
	Time     time.Time // if not zero: what is from this time on
}

// Latest reports whether the source begins with what comes from now on.
func (s Start) Latest() bool { return !s.Earliest && s.Time.IsZero() }

// ParseStart reads earliest, latest, "" (which is latest) or a time in RFC 3339.
func ParseStart(s string) (Start, bool) {
	switch s {
	case "", "latest":
		return Start{}, true
	case "earliest":
		return Start{Earliest: true}, true
	}
	t, err := time.Parse(time.RFC3339, s)
	return Start{Time: t}, err == nil && !t.IsZero()
}

// startFault says why a source of a kind cannot start at s; "" if it can.
func startFault(k Kind, s string) string {
	start, ok := ParseStart(s)
	switch {
	case ok && start.Earliest && k.Endless:
		return "is earliest, and sources of this type have nothing earliest: say latest, or a time such as 2027-01-02T03:04:05Z"
	case !ok:
		return "is not earliest, latest or a time such as 2027-01-02T03:04:05Z"
	}
	return ""
}
