// SPDX-License-Identifier: Apache-2.0

// Package targets is the contract between the bridge and the ways out of it: what a delivery is, what a target
// promises, how a failure is classed, and when it is tried again.
//
// A Target is called from many goroutines at once, up to the lane's concurrency. It makes exactly one attempt per
// call, honours ctx, starts nothing that outlives the call, and leaves retry, order, rate and dead letters to the lane.
package targets

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/rules"
)

// Delivery is one event on its way to one target. It is the same on every attempt but for Attempt.
type Delivery struct {
	ID       string       // stable for (event, rule, target) over all attempts; no dots; becomes webhook-id
	Event    *event.Event // after the transform; shared, not to be changed
	Bus      string
	Rule     string
	Target   string
	Attempt  int // 1 is the first
	Position event.Position
	Received time.Time // when the bridge accepted the event
}

// Target delivers events to one destination.
type Target interface {
	// Deliver makes one attempt and blocks until the far side has answered or ctx is done. A nil error means that the
	// far side accepted the event. An error that is not a *Error counts as ReasonOf says, and as retryable. Result is
	// filled as far as it is known, also beside an error. The attempt's time limit is the deadline of ctx; a ctx that is
	// cancelled before it gives ReasonInterrupted. The bridge's ctx is a *Within, as long as nobody wraps it.
	Deliver(ctx context.Context, d Delivery) (Result, error)
}

// Warner is a Target that may have something to say to whoever looks at its status.
type Warner interface {
	// Warnings are what its owner should know, without secrets, with pointers into its definition. It does not block.
	Warnings() []rules.Warning
}

// Reading is a Target that looks into the events which it is sent.
type Reading interface {
	// Reads lists what it looks at, with pointers into its definition. It does not block.
	Reads() []rules.Read
}

// Paced is a Target that knows how fast it may be sent deliveries.
type Paced interface {
	// Pace is a limit beside that of the delivery policy: both are kept, so that the smaller rate counts, and the smaller burst.
	// Zero = none. It may change with every attempt, and does not block.
	Pace() RateLimit
}

// Consenter is a Target whose far side may agree to be sent deliveries after it was asked.
type Consenter interface {
	// Consent takes the consent of who knows the token, with the rate that was allowed ("" = as asked for), and blocks until it is
	// written down. The error is a *fault.Error: NotFound, Unavailable.
	Consent(ctx context.Context, token, rate string) error
}

// State keeps a few bytes of a target over restarts. The zero state is none.
type State interface {
	// Load returns what was saved last; nil if nothing was.
	Load(ctx context.Context) ([]byte, error)
	Save(ctx context.Context, b []byte) error
}

// Result is what is known of an attempt, whether it succeeded or not.
type Result struct {
	Status int // HTTP status or the like; 0 when there was no answer
	Exchange
}

// Exchange is how an attempt went on the wire, as far as it got. A target that does not know a part leaves it zero. How
// long the attempt took altogether the caller of Deliver knows.
type Exchange struct {
	// Remote is the address that was dialled, such as 192.0.2.7:443; of several that were tried, the last. It is empty
	// when none was, and when the egress guard refused it.
	Remote string
	// Reused says that the connection was there already, or was being made for another attempt: DNS, Connect and TLS,
	// which are what making it took, are zero.
	Reused            bool
	DNS, Connect, TLS time.Duration
	FirstByte         time.Duration // from the start of the attempt until an answer began; 0 when none did
	// Head is how the answer of a failed attempt began, at most MaxHead bytes: a line with the status, a line for each
	// header, an empty line, and what came of the body. It is sanitised: valid UTF-8, no control characters but the \n
	// that ends a line, no values of headers that may hold secrets. It is empty when the attempt succeeded, and always when
	// the address was refused.
	Head string
}

// MaxHead is how many bytes of an answer are kept.
const MaxHead = 16 << 10

// Reason is why an attempt failed: a closed set, so that it can be a metric label.
type Reason string

// The reasons.
const (
	ReasonStatus         Reason = "status"          // the answer's status says no
	ReasonRedirect       Reason = "redirect"        // 3xx, never followed
	ReasonGone           Reason = "gone"            // 410
	ReasonTimeout        Reason = "timeout"         // no answer in time
	ReasonConnect        Reason = "connect"         // no connection: refused, unreachable, reset while dialling
	ReasonDNS            Reason = "dns"             // the name does not resolve
	ReasonTLS            Reason = "tls"             // handshake or certificate
	ReasonReset          Reason = "reset"           // the connection broke before the answer was complete
	ReasonProtocol       Reason = "protocol"        // the answer is not one: malformed, or its header is too large
	ReasonBlockedAddress Reason = "blocked_address" // the egress guard refused the address
	ReasonTransform      Reason = "transform"       // the transform could not be rendered
	ReasonTooLarge       Reason = "too_large"       // larger than the target takes
	ReasonAuth           Reason = "auth"            // no credentials, or no consent, could be got for the target
	ReasonFunction       Reason = "function"        // a function of ours has failed, or does not want the event
	ReasonInterrupted    Reason = "interrupted"     // our own stop cut the attempt off; it does not count
	ReasonInternal       Reason = "internal"
)

// Reasons returns all reasons, for pre-created metric series.
func Reasons() []Reason {
	return []Reason{ReasonStatus, ReasonRedirect, ReasonGone, ReasonTimeout, ReasonConnect, ReasonDNS, ReasonTLS, ReasonReset,
		ReasonProtocol, ReasonBlockedAddress, ReasonTransform, ReasonTooLarge, ReasonAuth, ReasonFunction, ReasonInterrupted, ReasonInternal}
}

// Error is a failed attempt.
type Error struct {
	Reason     Reason
	Permanent  bool          // trying again cannot help: dead letter at once
	Abort      bool          // the far side has said so itself, beside its status: it is Permanent whatever the policy says
	Disable    bool          // it wants nothing any more: the target is disabled
	RetryAfter time.Duration // the far side asked for this much rest, for the whole target; 0 = it did not say
	Status     int
	Err        error // for people; no secrets, no credentials of a URL
}

// Error returns the reason and its cause.
func (e *Error) Error() string {
	if e.Err == nil {
		return string(e.Reason)
	}
	return string(e.Reason) + ": " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Command is a command to a device over MQTT.
type Command struct {
	ID          string // the same again is the same command
	Device      string // name of a Device, or a client id
	Topic       string // "" = the device's default
	Payload     []byte
	ContentType string
	UTF8        bool          // the payload is text
	QoS         byte          // 0, 1, 2
	Expiry      time.Duration // 0 = as long as commands are kept
	By          string        // who asks

	// UserProperties go with it to MQTT 5 clients, in this order.
	UserProperties [][2]string
}

// Downlink commands devices.
type Downlink interface {
	// Command stores a command and blocks until that is committed. The error is a *fault.Error.
	Command(ctx context.Context, c Command) error
}

// Env is what a kind may use. Every field is set.
type Env struct {
	Target string // its name; Catalog.New sets it
	// HTTP is guarded: it refuses addresses the operator has not allowed and follows no redirects. It belongs to the
	// target alone and has room for its concurrency; who made it closes its idle connections when the target is gone.
	HTTP *http.Client
	// TLS returns another such client, with settings of its own for TLS.
	TLS func(cfg *tls.Config) *http.Client
	// Dial connects over TCP for what is not HTTP. It is guarded as HTTP is, and does not speak TLS.
	Dial    func(ctx context.Context, network, address string) (net.Conn, error)
	Secrets func(ref string) (string, error)
	State   State // of the target of this name
	// Downlink refuses all commands while the MQTT gateway is off.
	Downlink Downlink
	// Emit publishes events, such as replies, on a bus, and blocks until they are committed. The error is a *fault.Error.
	Emit   func(ctx context.Context, bus string, evs ...event.Event) error
	Logger *slog.Logger
	Now    func() time.Time
}

// Kind is a sort of target. Kinds are listed in internal/app; there is no registration.
type Kind struct {
	Name         string // such as webhook
	Doc          string // one paragraph
	Example      string // a Target document in YAML, whole and valid
	ConfigSchema []byte // JSON Schema 2020-12 of the config; validates the API and is the documentation
	// Check says what the schema cannot: it is called when a definition is written, opens nothing, and returns a
	// *fault.Error whose pointers are relative to the config.
	Check func(cfg json.RawMessage) error
	New   func(cfg json.RawMessage, env Env) (Target, error)
}
