// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/internal/secret"
	"github.com/rialto-bridge/rialto/mqttgw/packet"
)

// Publisher takes what devices publish.
type Publisher interface {
	// Publish stores rec on a bus. It blocks while there is no room and ctx is not done. If it returns nil, done is called
	// exactly once, in the order of the stream, with nil after the commit or with why there is none; it may be called
	// before Publish returns. If it returns an error, done is not called. rec is not to be changed afterwards.
	Publish(ctx context.Context, bus string, rec *event.Record, done func(error)) error
}

// Tail reads the bus that subscriptions are served from. It is safe for concurrent use.
type Tail interface {
	// First and Committed are the ends of what can be read.
	First() uint64
	Committed() uint64
	// Wait blocks until Committed is larger than after.
	Wait(ctx context.Context, after uint64) error
	// Hot is the lowest sequence that is read from memory.
	Hot() uint64
	// Scan appends the entries that its options ask for to dst and returns the sequence to go on from, and how many bytes it
	// has read from disk. It may end earlier, after some megabytes. Sequences without an event are left out, and what was
	// published to a topic that no filter in the options matches may be. From below First it reads from First on, or fails
	// with eventlog.ErrGone.
	Scan(ctx context.Context, o eventlog.ScanOptions, dst []eventlog.Entry) (entries []eventlog.Entry, next uint64, looked int, err error)
}

// Options are what a Gateway needs. Publisher and Tail are required.
type Options struct {
	Name      string // stands in event sources: mqtt://<name>/<client id>; "" = rialto
	Bus       string // where publishes go that no mapping sends to another bus, and what Tail reads; "" = DefaultBus
	Publisher Publisher
	Tail      Tail

	// Tails opens the tail of another bus, for the subscribers to what mappings send there; an error of kind NotFound says
	// that there is no such bus. The same tail is returned each time. nil = only Bus has subscribers.
	Tails func(bus string) (Tail, error)

	Sessions   SessionLog   // where sessions are kept; nil = they end with their connection
	Owners     Owners       // which node has a session; nil = this one has all
	Down       *Downlink    // messages to devices that are on no bus; nil = none
	Commands   *CommandView // how far the commands in Down have come; nil = no commands; stays the caller's to close, after Serve
	Broadcasts SessionLog   // where broadcasts of commands are kept; nil = none; needs Commands
	Retained   *Retained    // nil = no retained messages; stays the caller's to close, after Serve
	Mappings   *Mappings    // which events publishes become; nil = none
	Directory  *Directory   // the devices that may connect; nil = none
	Lifecycle  bool         // clients that come and go, subscribe, and are refused become events on Bus (see LifecycleData)
	Anonymous  bool         // a client without user name may connect, as principal ""
	Limits     Limits       // zero fields = defaults

	Secrets secret.Resolver // looks up the passwords that devices refer to

	// CertificateNames are the places of a client's certificate in which its identity is looked for; nil = uri, dns, cn.
	CertificateNames []CertificateName

	EventLimits event.Limits // for CloudEvents that devices publish; zero = defaults of package event

	Logger     *slog.Logger          // nil = slog.Default
	Registerer prometheus.Registerer // nil = no metrics
	Now        func() time.Time      // nil = time.Now; arrival and expiry of messages
}

// Validate reports everything that is wrong.
func (o *Options) Validate() error {
	var errs []error
	if o.Publisher == nil {
		errs = append(errs, errors.New("mqttgw: Publisher is required"))
	}
	if o.Tail == nil {
		errs = append(errs, errors.New("mqttgw: Tail is required"))
	}
	if o.Broadcasts != nil && o.Commands == nil {
		errs = append(errs, errors.New("mqttgw: Broadcasts needs Commands"))
	}
	if o.Commands != nil && o.Down == nil {
		errs = append(errs, errors.New("mqttgw: Commands needs Down"))
	}
	if o.Directory == nil && !o.Anonymous {
		errs = append(errs, errors.New("mqttgw: without a Directory and without Anonymous nobody could connect"))
	}
	if err := o.Limits.Validate(); err != nil {
		errs = append(errs, fmt.Errorf("mqttgw: %w", err))
	}
	return errors.Join(errs...)
}

// Gateway serves MQTT connections. Its methods are safe for concurrent use.
type Gateway struct {
	opts    Options
	limits  Limits
	log     *slog.Logger
	metrics *metrics
	now     func() time.Time
	base    string // of event sources

	router     router
	failures   *failures     // of authentication, by address and user
	hashing    chan struct{} // a slot for each password hash under way
	gate       gate
	lifecycle  lifecycle
	presence   presence
	quotas     quotas
	recorder   *recorder   // nil without Options.Sessions
	commands   *commands   // nil without Options.Commands
	broadcasts *broadcasts // nil without Options.Broadcasts
	clock      *clock
	late       *lateWills
	feeds      *feeds
	births     *births
	cuts       cuts
	walks      [lanes]walk
	catchUp    *rate.Limiter // of bytes that are read from disk for who is far behind
	served     atomic.Bool
	conns      sync.WaitGroup

	// life ends when Serve is told to stop. It bounds what connections wait for; they have no context of their own,
	// because 100,000 idle ones would pay for it.
	life context.Context
	stop context.CancelFunc

	mu       sync.Mutex
	seen     map[sessionKey]seen        // guarded by mu; those that were connected
	kin      kin                        // guarded by mu; connections by principal
	peers    map[string]*conn           // guarded by mu; connections by client id
	holders  map[sessionKey]*conn       // guarded by mu; who holds a client id now
	sessions map[sessionKey]*session    // guarded by mu; those that outlive their connection
	mortal   map[*session]struct{}      // guarded by mu; those that are recorded for their will only
	ending   map[sessionKey]*session    // guarded by mu; those that have ended, until that is written down
	wills    map[*parting]chan struct{} // guarded by mu; those that the log has; closed when it has said what became of them
	open     map[*conn]struct{}         // guarded by mu; every connection that is being served
	stopping bool                       // guarded by mu
}

// New returns a Gateway. It starts nothing.
func New(o Options) (*Gateway, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if o.Name == "" {
		o.Name = "rialto"
	}
	if o.Bus == "" {
		o.Bus = DefaultBus
	}
	if o.Mappings == nil {
		o.Mappings = NewMappings()
	}
	if o.Directory == nil {
		o.Directory = NewDirectory()
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	m, err := newMetrics(o.Registerer)
	if err != nil {
		return nil, fmt.Errorf("mqttgw: %w", err)
	}
	g := &Gateway{
		opts: o, limits: o.Limits.withDefaults(), log: o.Logger.With("component", "mqtt"), metrics: m, now: o.Now,
		base: "mqtt://" + url.PathEscape(o.Name) + "/", holders: map[sessionKey]*conn{}, seen: map[sessionKey]seen{}, kin: kin{}, peers: map[string]*conn{}, sessions: map[sessionKey]*session{}, mortal: map[*session]struct{}{}, ending: map[sessionKey]*session{}, wills: map[*parting]chan struct{}{}, open: map[*conn]struct{}{},
		hashing: make(chan struct{}, hashersAtOnce()),
	}
	g.failures = newFailures(g.limits)
	g.gate.limits = g.limits
	g.catchUp = rate.NewLimiter(rate.Limit(g.limits.MaxCatchUp), max(g.limits.MaxCatchUp, catchUpBurst))
	if g.opts.CertificateNames == nil {
		g.opts.CertificateNames = CertificateNames()
	}
	g.opts.Directory.serve(g)
	g.clock, g.late = newClock(g), newLateWills(g)
	g.feeds = newFeeds(g)
	g.births = newBirths(g)
	if o.Commands != nil {
		g.commands = newCommands(g, o.Down, o.Commands)
	}
	if o.Broadcasts != nil {
		g.broadcasts = newBroadcasts(g, o.Broadcasts)
	}
	if o.Sessions != nil {
		g.recorder = newRecorder(g, o.Sessions)
	}
	g.life, g.stop = context.WithCancel(context.Background())
	return g, nil
}

// stopTime bounds how long a stop waits for the commits of messages that have been taken.
const stopTime = 3 * time.Second

// Serve accepts connections from all listeners until ctx is done or one of them fails, then tells every client (MQTT 5:
// DISCONNECT 0x8B), and returns after all connections and goroutines have ended, which takes a few seconds at most. On a
// *WebSocket it speaks MQTT over WebSocket; a listener of package crypto/tls makes either secure. It closes the listeners
// and may be called once. The error is nil after a stop through ctx.
func (g *Gateway) Serve(ctx context.Context, lns ...net.Listener) error {
	if !g.served.CompareAndSwap(false, true) {
		return errors.New("mqttgw: Serve is called a second time")
	}
	accepting, done := context.WithCancel(ctx)
	defer done()
	var own sync.WaitGroup
	own.Go(func() {
		<-accepting.Done()
		for _, ln := range lns {
			if err := ln.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
				g.log.Warn("close listener", "err", err)
			}
		}
	})
	parting, err := g.start(accepting)
	if err != nil {
		done()
		own.Wait()
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	working, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	own.Go(func() { g.feeds.serve(working) })
	endRecorder := g.startRecorder(working)
	endCommands := g.startCommands(working)
	if err := g.opts.Mappings.serve(ctx, g); err != nil {
		g.log.Warn("topic mappings are in force without a mark", "err", err)
	}

	// Nobody is let in, and no will comes, before the tails have seen what a crash has left.
	endClock := func() {}
	if err = g.awaitTails(accepting, g.momentBy(func(f *feed) uint64 { return f.recovered })); err == nil {
		g.births.load()
		parting = g.publishWills(accepting, parting, startTime)
		endClock = g.startClock(working, parting)
		err = g.acceptAll(accepting, done, lns)
	} else if ctx.Err() != nil {
		err = nil
	}
	done()
	g.disconnectAll(packet.ServerShuttingDown)
	timer := time.AfterFunc(stopTime, g.stop) // whatever still waits for the log gives up then
	g.conns.Wait()
	endClock()
	g.awaitWills()
	g.clock.release(g.life)
	timer.Stop()
	endCommands() // it records what it ends
	endRecorder()
	g.stop()
	end()
	own.Wait()
	return errors.Join(err, g.settleRetained())
}

// start reads what is kept, and sets where the feeds begin. It returns the sessions whose wills are to be published.
func (g *Gateway) start(ctx context.Context) (parting []*session, err error) {
	l := &loaded{}
	if g.commands != nil {
		if g.commands.loading, err = g.commands.load(ctx); err != nil {
			return nil, fmt.Errorf("mqttgw: read commands: %w", err)
		}
	}
	if g.broadcasts != nil {
		if err := g.broadcasts.load(ctx); err != nil {
			return nil, fmt.Errorf("mqttgw: read broadcasts: %w", err)
		}
	}
	if g.recorder != nil {
		if l, err = g.load(ctx); err != nil {
			return nil, fmt.Errorf("mqttgw: %w", err)
		}
	}
	if err := g.feeds.begin(l.checkpoint); err != nil {
		return nil, fmt.Errorf("mqttgw: %w", err)
	}
	if g.recorder != nil {
		parting = g.restore(l)
	}
	if g.commands != nil {
		if err := g.commands.resume(ctx); err != nil {
			return nil, fmt.Errorf("mqttgw: %w", err)
		}
	}
	return parting, nil
}

// startTime is how long a start hands wills to the log before it lets clients in.
const startTime = time.Second

// publishWills publishes what a start has found due, behind the cut of the start: topics may have moved. It returns the rest when
// ctx is done or most of the time is over.
func (g *Gateway) publishWills(ctx context.Context, of []*session, most time.Duration) (rest []*session) {
	begun := time.Now()
	for len(of) > 0 && ctx.Err() == nil && time.Since(begun) < most {
		g.publishWill(of[0])
		of = of[1:]
	}
	return of
}

// startClock runs the clock, after the wills that the start has left, and tries those again that are late. What it returns ends that and
// waits for the goroutines.
func (g *Gateway) startClock(ctx context.Context, wills []*session) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	var own sync.WaitGroup
	own.Go(func() {
		g.publishWills(ctx, wills, math.MaxInt64)
		g.clock.run(ctx)
	})
	own.Go(func() { g.late.run(ctx) })
	return func() {
		cancel()
		own.Wait()
	}
}

// awaitWills waits, while the gateway's life lasts, until the fate of all wills that the log has is known, so that the next start does
// not publish them again.
func (g *Gateway) awaitWills() {
	g.mu.Lock()
	wills := slices.Collect(maps.Values(g.wills))
	g.mu.Unlock()
	for _, known := range wills {
		select {
		case <-known:
		case <-g.life.Done():
		}
	}
}

// startRecorder runs the recorder. What it returns has everything written down, for recorderTime at most, and waits for
// its goroutine.
func (g *Gateway) startRecorder(ctx context.Context) (end func()) {
	if g.recorder == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var own sync.WaitGroup
	own.Go(func() { g.recorder.run(ctx) })
	return func() {
		timer := time.AfterFunc(stopTime, cancel)
		g.recorder.close()
		own.Wait()
		timer.Stop()
		cancel()
	}
}

// startCommands runs what commands need. What it returns has everything written down, and waits.
func (g *Gateway) startCommands(ctx context.Context) (stop func()) {
	if g.commands == nil {
		return func() {}
	}
	end := g.commands.serve(ctx)
	if g.broadcasts == nil {
		return end
	}
	g.broadcasts.start()
	return func() {
		g.broadcasts.stop()
		limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTime)
		defer cancel()
		if err := g.broadcasts.save(limit); err != nil {
			g.log.Warn("progress of broadcasts is not written; what is sent again is the same commands", "err", err)
		}
		end()
	}
}

// settleRetained writes down how far the retained messages go.
func (g *Gateway) settleRetained() error {
	if g.opts.Retained == nil {
		return nil
	}
	var errs []error
	for _, f := range g.feeds.all() {
		errs = append(errs, g.opts.Retained.advance(f.name, f.routed.Load()))
	}
	return errors.Join(append(errs, g.opts.Retained.sync())...)
}

// acceptAll accepts from all listeners until ctx is done or one of them fails, which ends all through done.
func (g *Gateway) acceptAll(ctx context.Context, done func(), lns []net.Listener) (err error) {
	ended := make(chan error, len(lns))
	for _, ln := range lns {
		go func() {
			defer done()
			if ws, ok := ln.(*WebSocket); ok {
				ended <- g.serveWebSocket(ctx, ws)
			} else {
				ended <- g.accept(ctx, &pacedListener{Listener: ln, g: g, ctx: ctx})
			}
		}()
	}
	for range lns {
		err = errors.Join(err, <-ended)
	}
	return err
}

// mark publishes an event about the gateway itself and delivers its outcome.
func (g *Gateway) mark(ctx context.Context, bus string, rec *event.Record) <-chan error {
	stored := make(chan error, 1)
	ev := g.own(rec.Event)
	if err := g.opts.Publisher.Publish(ctx, g.busNamed(bus), ev, func(err error) { stored <- err }); err != nil {
		stored <- err
	}
	return stored
}

func (g *Gateway) accept(ctx context.Context, ln net.Listener) error {
	const shortest, longest = 5 * time.Millisecond, time.Second
	pause := shortest
	for {
		nc, err := ln.Accept()
		if err == nil {
			pause = shortest
			g.admit(nc)
			continue
		}
		if ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, net.ErrClosed) {
			return fmt.Errorf("mqttgw: accept: %w", err)
		}
		// Out of file descriptors, or the peer went away: the listener itself is fine.
		g.log.Warn("accept", "err", err)
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
		pause = min(2*pause, longest)
	}
}

// admit starts serving a connection, or closes it when there are too many.
func (g *Gateway) admit(nc net.Conn) {
	addr := addressOf(nc)
	if why := g.gate.enter(addr, g.now()); why != "" {
		g.metrics.refused(why)
		g.discard(nc)
		return
	}
	if c := g.adopt(nc, addr); c != nil {
		go c.serve()
	}
}

// adopt makes a conn of a connection that the gate has let in; nil when the gateway stops. The caller runs its serve.
func (g *Gateway) adopt(nc net.Conn, addr netip.Addr) *conn {
	c := newConn(g, nc, addr)
	g.mu.Lock()
	stopping := g.stopping
	if !stopping {
		g.open[c] = struct{}{}
		g.conns.Add(1)
	}
	g.mu.Unlock()
	if stopping {
		g.gate.leave(addr, true)
		g.discard(nc)
		return nil
	}
	return c
}

func (g *Gateway) discard(nc net.Conn) {
	if err := nc.Close(); err != nil {
		g.log.Debug("close refused connection", "err", err)
	}
}

// forget takes an ended connection out of the books.
func (g *Gateway) forget(c *conn) {
	g.mu.Lock()
	delete(g.open, c)
	g.mu.Unlock()
	g.gate.leave(c.addr, !c.established)
	g.conns.Done()
}

// claim makes c the holder of its session key and returns the connection that held it.
func (g *Gateway) claim(c *conn) (old *conn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	old = g.holders[c.key]
	g.holders[c.key], c.over = c, old
	g.kin.link(c)
	g.joinPeers(c)
	return old
}

// heldBefore returns the connection that has the session key before c may have it, nil when there is none any more: those that
// waited for it and gave up have left it to the one that they waited for.
func (g *Gateway) heldBefore(c *conn) *conn {
	g.mu.Lock()
	defer g.mu.Unlock()
	return c.waitsFor()
}

// waitsFor is heldBefore with g.mu held.
func (c *conn) waitsFor() *conn {
	for c.over != nil && !c.over.kin.linked { // it has left its session, or has given up
		c.over = c.over.over
	}
	return c.over
}

// release gives the key up, if c still holds it: to the connection that c waited for in vain, if there is one.
func (g *Gateway) release(c *conn) {
	reason, _ := c.endReason()
	g.mu.Lock()
	defer g.mu.Unlock()
	if c.established {
		g.remember(c, reason)
	}
	g.kin.unlink(c)
	g.leavePeers(c)
	if g.holders[c.key] != c {
		return
	}
	if old := c.waitsFor(); old != nil {
		g.holders[c.key] = old
	} else {
		delete(g.holders, c.key)
	}
}

// reconsider puts changes of the directory in force for the connections of some principals, or for all.
func (g *Gateway) reconsider(principals map[string]bool) {
	g.mu.Lock()
	var all []*conn
	if principals == nil {
		for _, c := range g.holders {
			all = append(all, c)
		}
	}
	for p := range principals {
		for c := g.kin[p]; c != nil; c = c.kin.next {
			all = append(all, c)
		}
	}
	g.mu.Unlock()
	for _, c := range all {
		c.reconsider()
	}
}

func (g *Gateway) disconnectAll(code packet.Reason) {
	g.mu.Lock()
	g.stopping = true
	all := make([]*conn, 0, len(g.open))
	for c := range g.open {
		all = append(all, c)
	}
	g.mu.Unlock()
	for _, c := range all {
		c.end(code)
	}
}
