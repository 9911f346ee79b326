// SPDX-License-Identifier: Apache-2.0

package region

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/internal/fault"
)

// Taker is where forwarded events go: the bridge.
type Taker interface {
	// Bus returns the log of a bus. The error is NotFound if there is none.
	Bus(name string) (*eventlog.Bus, error)
	// Publish takes an event in. If it returns nil, done is called once, after the commit or the failure.
	Publish(ctx context.Context, bus string, rec *event.Record, done func(eventlog.Receipt)) error
}

// InletOptions are what an Inlets is made of. Instance, Log and Conn are required.
type InletOptions struct {
	Instance string // the name of this bridge in hops
	Log      Taker
	Conn     *nats.Conn   // to the state plane; must outlive it and is not closed by it
	Bucket   string       // of the states; "" = inlets
	Limits   event.Limits // of events

	MaxConnections int           // at a time; 0 = 256
	Quiet          time.Duration // how long a connection may be without an answer to a ping; 0 = 30 s

	Logger     *slog.Logger          // nil = none
	Registerer prometheus.Registerer // nil = no metrics
	Now        func() time.Time      // nil = time.Now
}

// Validate joins all complaints about the options.
func (o *InletOptions) Validate() error {
	if !event.IsInstance(o.Instance) || o.Log == nil || o.Conn == nil {
		return errors.New("region: instance, log and connection are required")
	}
	return nil
}

// Inlets takes in what links of other bridges forward. Safe for concurrent use.
type Inlets struct {
	o       InletOptions
	log     *slog.Logger
	kv      jetstream.KeyValue
	metrics *inletMetrics
	ctx     context.Context // done when it is closed
	cancel  context.CancelCauseFunc
	wg      sync.WaitGroup // connections, and the writer of states

	scanning chan struct{} // held by who reads a log for links

	mu     sync.Mutex // guards below
	known  map[string]*inlet
	conns  int
	closed bool
}

// maxInlets is how many links of others are known: what is done of each is kept for ever.
const maxInlets = 10_000

// Why a connection is ended.
var (
	errReplaced = errors.New("a newer connection of the link has taken over")
	errStopping = errors.New("the bridge is stopping")
	errQuiet    = errors.New("no answer from the other side")
)

// OpenInlets reads what is known of the links of others, and starts. It blocks while the bucket is opened and read.
func OpenInlets(ctx context.Context, o InletOptions) (*Inlets, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if o.Bucket == "" {
		o.Bucket = "inlets"
	}
	if o.MaxConnections == 0 {
		o.MaxConnections = 256
	}
	if o.Quiet == 0 {
		o.Quiet = 30 * time.Second
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	x := &Inlets{o: o, log: o.Logger.With("component", "inlets"), known: make(map[string]*inlet), scanning: make(chan struct{}, 1)}
	if err := x.load(ctx); err != nil {
		return nil, err
	}
	x.metrics = newInletMetrics(o.Registerer)
	x.ctx, x.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	x.wg.Go(x.keep)
	return x, nil
}

// Close ends all connections, waits until what they have handed to the log has ended, and writes the states down. It waits
// until ctx is done.
func (x *Inlets) Close(ctx context.Context) error {
	x.mu.Lock()
	x.closed = true
	x.mu.Unlock()
	x.cancel(errStopping)
	done := make(chan struct{})
	go func() {
		defer close(done)
		x.wg.Wait()
	}()
	select {
	case <-done:
		return x.flush(ctx)
	case <-ctx.Done():
		return errors.Join(errors.New("some links do not end"), context.Cause(ctx))
	}
}

// Serve answers a request of a link that wants to forward to a bus: it becomes a WebSocket, and Serve returns when that has
// ended. An error is for the sender, and nothing was written then. by is whose right it is; a link that another one has used
// before is refused, until it is forgotten. good is asked every minute whether the sender may still write to the bus.
func (x *Inlets) Serve(w http.ResponseWriter, r *http.Request, bus, by string, good func() error) error {
	o, epochName, err := readRequest(r, bus)
	if err != nil {
		return err
	}
	if o.instance == x.o.Instance {
		return fault.New(fault.Conflict, "the link leads from this bridge to itself")
	}
	log, err := x.o.Log.Bus(bus)
	if err != nil {
		return err
	}
	if err := log.Err(); err != nil {
		return err
	}
	if err := x.enter(o, by); err != nil {
		return err
	}
	defer x.leave()
	ws, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{Protocol}, CompressionMode: websocket.CompressionDisabled})
	if err != nil {
		x.log.Debug("no WebSocket", "link", o.name(), "err", err)
		return nil // Accept has answered
	}
	ws.SetReadLimit(maxFrame)
	x.talk(ws, &intake{in: x.inlet(o), stream: o.stream, epoch: epochName, by: by}, good)
	return nil
}

// readRequest reads what a link says of itself.
func readRequest(r *http.Request, bus string) (o origin, epochName string, err error) {
	q := r.URL.Query()
	o = origin{instance: q.Get("instance"), link: q.Get("link"), stream: q.Get("stream"), bus: bus}
	epochName = q.Get("epoch")
	var bad []fault.Detail
	check := func(name string, ok bool, what string) {
		if !ok {
			bad = append(bad, fault.Detail{Pointer: fault.Pointer(name), Detail: "must be " + what})
		}
	}
	check("instance", event.IsInstance(o.instance), "1 to 32 of a-z and 0-9")
	check("link", isName(o.link), "the name of a link")
	check("epoch", event.IsInstance(strings.ToLower(epochName)), "1 to 32 letters and digits")
	check("stream", strings.HasPrefix(o.stream, streamPrefix) && isName(o.stream[len(streamPrefix):]), "that of a bus, such as EV_default")
	if !slices.ContainsFunc(r.Header.Values("Sec-Websocket-Protocol"), speaks) {
		return o, epochName, &fault.Error{Kind: fault.Invalid, Message: "links speak " + Protocol + " over WebSocket here", Details: bad}
	}
	return o, epochName, fault.Collect(bad)
}

func speaks(header string) bool {
	for p := range strings.SplitSeq(header, ",") {
		if strings.TrimSpace(p) == Protocol {
			return true
		}
	}
	return false
}

// isName reports whether s is the name of a resource.
func isName(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') && (c != '-' || i == 0 || i == len(s)-1) {
			return false
		}
	}
	return len(s) > 0 && len(s) <= 63
}

// enter counts a connection in, if it may come.
func (x *Inlets) enter(o origin, by string) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	in := x.known[o.name()]
	switch {
	case x.closed:
		return &fault.Error{Kind: fault.Unavailable, Message: errStopping.Error(), RetryAfter: time.Second}
	case x.conns >= x.o.MaxConnections:
		return &fault.Error{Kind: fault.Unavailable, Message: "too many links are connected", RetryAfter: 10 * time.Second}
	case in == nil && len(x.known) >= maxInlets:
		return fault.New(fault.Conflict, "%d links have forwarded to this bridge; no more are known, until some are forgotten", maxInlets)
	case in != nil && !in.mayUse(by):
		return fault.New(fault.Forbidden, "another key has forwarded as this link; it has to be forgotten here first")
	}
	x.conns++
	x.wg.Add(1)
	x.metrics.connected.Inc()
	return nil
}

func (in *inlet) mayUse(by string) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.by == "" || in.by == by
}

// leave counts a connection out.
func (x *Inlets) leave() {
	x.mu.Lock()
	x.conns--
	x.mu.Unlock()
	x.metrics.connected.Dec()
	x.wg.Done()
}

// inlet finds the inlet of an origin, or makes it.
func (x *Inlets) inlet(o origin) *inlet {
	x.mu.Lock()
	defer x.mu.Unlock()
	in := x.known[o.name()]
	if in == nil {
		in = x.newInlet(o)
		in.scanned = true // nothing of it can be in the log
		x.known[o.name()] = in
	}
	return in
}

// Forget forgets what a link has brought to a bus, so that another key may forward as that link, or none does any more. What it
// forwards again is recognised within the deduplication window only. NotFound if there is none; Conflict while it is connected.
func (x *Inlets) Forget(ctx context.Context, bus, instance, link string) error {
	o := origin{instance: instance, link: link, bus: bus}
	x.mu.Lock()
	in := x.known[o.name()]
	x.mu.Unlock()
	if in == nil {
		return fault.New(fault.NotFound, "no link %q of %q has forwarded to bus %q", link, instance, bus)
	}
	select {
	case in.turn <- struct{}{}: // no connection takes anything in until it is gone
		defer func() { <-in.turn }()
	default:
		return fault.New(fault.Conflict, "the link is connected")
	}
	select {
	case in.saving <- struct{}{}:
		defer func() { <-in.saving }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if err := x.kv.Purge(ctx, in.name()); err != nil {
		return &fault.Error{Kind: fault.Unavailable, Message: "it cannot be forgotten now", RetryAfter: time.Second, Err: err}
	}
	in.mu.Lock()
	in.epochs, in.by, in.stored, in.dirty, in.counts = nil, "", false, false, inletCounts{}
	in.mu.Unlock()
	x.mu.Lock()
	delete(x.known, in.name())
	x.mu.Unlock()
	return nil
}

func (x *Inlets) newInlet(o origin) *inlet {
	return &inlet{origin: o, x: x, turn: make(chan struct{}, 1), saving: make(chan struct{}, 1)}
}

// closeWithin is how long the other side has to answer a close.
const closeWithin = time.Second

// talk speaks with a link until one of both ends it. What was handed to the log has ended when it returns.
func (x *Inlets) talk(ws *websocket.Conn, t *intake, good func() error) {
	ctx, cancel := context.WithCancelCause(x.ctx)
	in := t.in
	t.cancel = cancel
	err := in.begin(ctx, t)
	if err != nil {
		code, why := closing(err)
		_ = ws.Close(code, why)
		return
	}
	defer t.end()
	// A context that ends takes the connection with it. So that of what is read and written ends a moment after ctx: the other side is
	// told why.
	wire, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var closer sync.WaitGroup
	closer.Go(func() {
		<-ctx.Done()
		grace := time.AfterFunc(closeWithin, stop)
		defer grace.Stop()
		code, why := closing(context.Cause(ctx))
		if err := ws.Close(code, why); err != nil {
			x.log.Debug("close link", "link", in.name(), "err", err)
		}
	})
	cancel(x.session(ctx, wire, ws, t, good))
	closer.Wait()
	if code, _ := closing(context.Cause(ctx)); code != websocket.StatusNormalClosure {
		x.log.Info("link ended", "link", in.name(), "err", context.Cause(ctx))
	}
}

// closing is how an error is said to the sender.
func closing(err error) (websocket.StatusCode, string) {
	var told *fault.Error
	switch {
	case err == nil || websocket.CloseStatus(err) >= 0:
		return websocket.StatusNormalClosure, ""
	case errors.Is(err, errStopping):
		return websocket.StatusGoingAway, errStopping.Error()
	case errors.Is(err, errReplaced):
		return CloseReplaced, errReplaced.Error()
	case errors.Is(err, errProtocol):
		return CloseProtocol, cutReason(err.Error())
	case !errors.As(err, &told):
		return CloseTrouble, "the connection is of no use any more"
	}
	why := cutReason(told.Message)
	switch told.Kind {
	case fault.Full:
		return CloseFull, why
	case fault.NotFound:
		return CloseNoBus, why
	case fault.Forbidden, fault.Unauthorized:
		return CloseDenied, why
	default:
		return CloseTrouble, why
	}
}

// cutReason makes a text fit into a close frame, which has room for 123 bytes.
func cutReason(s string) string {
	if len(s) > 120 {
		s = strings.ToValidUTF8(s[:120], "")
	}
	return s
}

var errProtocol = errors.New("the link breaks its protocol")

// session takes batches in until the connection or ctx ends.
func (x *Inlets) session(ctx, wire context.Context, ws *websocket.Conn, t *intake, good func() error) error {
	if err := t.in.prepare(ctx, t.stream, t.by); err != nil {
		return err
	}
	if err := writeJSON(wire, ws, t.in.welcome(t.epoch)); err != nil {
		return err
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	acks := make(chan *pending, 2*maxFlights)
	defer close(acks)
	wg.Go(func() { x.acknowledge(wire, ws, t, acks) })
	wg.Go(func() { x.watch(ctx, wire, ws, t, good) })
	err := x.receive(ctx, wire, ws, t, acks)
	t.cancel(err)
	return err
}

// receive reads batches.
func (x *Inlets) receive(ctx, wire context.Context, ws *websocket.Conn, t *intake, acks chan<- *pending) error {
	for {
		kind, msg, err := ws.Read(wire)
		if err != nil {
			return err
		}
		if kind != websocket.MessageBinary {
			return fmt.Errorf("%w: a message is no batch", errProtocol)
		}
		b, err := parseBatch(msg, x.o.Limits)
		if err != nil {
			return fmt.Errorf("%w: %w", errProtocol, err)
		}
		x.metrics.bytes.Add(float64(len(msg)))
		p, err := t.take(ctx, b)
		acks <- p // acknowledge takes all there are, also when nobody can be told
		if err != nil {
			return err
		}
	}
}

// acknowledge waits for the batches, in order, and tells the sender, until acks is closed. After a failure it tells nothing
// more.
func (x *Inlets) acknowledge(wire context.Context, ws *websocket.Conn, t *intake, acks <-chan *pending) {
	broken := false
	for p := range acks {
		ack, ok := t.commit(p)
		x.metrics.count(ack)
		if broken || p.cut { // receive has the reason
			broken = true
			continue
		}
		var err error
		if !ok {
			err = &fault.Error{Kind: fault.Unavailable, Message: "the log does not take events now"}
		} else if p.diverted { // a start looks for them in this bus only, so they are written down before they are acknowledged
			err = t.in.save(context.WithoutCancel(wire))
		}
		if err == nil {
			err = writeJSON(wire, ws, ack)
		}
		if err != nil {
			broken = true
			t.cancel(err)
		}
	}
}

// watch asks whether the other side is there, and whether it still may, until ctx is done.
func (x *Inlets) watch(ctx, wire context.Context, ws *websocket.Conn, t *intake, good func() error) {
	tick := time.NewTicker(x.o.Quiet / 2)
	defer tick.Stop()
	asked := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		limit, cancel := context.WithTimeoutCause(wire, x.o.Quiet, errQuiet)
		err := ws.Ping(limit)
		cancel()
		if err == nil && time.Since(asked) >= time.Minute {
			asked = time.Now()
			err = good()
		}
		if err != nil {
			t.cancel(err)
		}
	}
}

// streamPrefix is before the name of a bus in that of its stream.
const streamPrefix = "EV_"

// writeWithin bounds a write: a sender that does not read its acknowledgements is not there.
const writeWithin = 30 * time.Second

func writeJSON(ctx context.Context, ws *websocket.Conn, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, writeWithin, errQuiet)
	defer cancel()
	return ws.Write(ctx, websocket.MessageText, b)
}
