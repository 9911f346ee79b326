// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/rialto-bridge/rialto/bridge"
	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/internal/secret/token"
	"github.com/rialto-bridge/rialto/internal/store"
	"github.com/rialto-bridge/rialto/rules"
	"github.com/rialto-bridge/rialto/schema"
	"github.com/rialto-bridge/rialto/targets"
)

// Bridge is what the API needs of the event path. OnBridge makes one of the real thing.
type Bridge interface {
	Ingest(ctx context.Context, bus string, recs []*event.Record) ([]bridge.Receipt, error)
	SetAside(ctx context.Context, bus string, recs []*event.Record, q bridge.AsideRequest) ([]bridge.Kept, error)
	Kept(ctx context.Context, q bridge.KeptQuery) (bridge.KeptPage, error)
	Scheduled(ctx context.Context, bus, id, source string) (bridge.Kept, error)
	Cancel(ctx context.Context, bus, id, source string) error
	Prepared(ctx context.Context, bus, token string) (bridge.Kept, error)
	Decide(ctx context.Context, bus, token string, commit bool) (bridge.Decision, error)
	EventPage(ctx context.Context, q bridge.EventQuery) (*bridge.Found, error)
	Find(ctx context.Context, bus, id, source string) (*bridge.Found, error)
	Search(ctx context.Context, bus string, q bridge.SearchQuery) (bridge.SearchPage, error)
	Follow(ctx context.Context, o bridge.FollowOptions, fn func(eventlog.Entry) error) error
	DeadLetters(ctx context.Context, q bridge.DeadQuery) (bridge.DeadPage, error)
	DeadLetter(ctx context.Context, bus, id string) (*bridge.DeadLetter, error)
	CountDead(ctx context.Context, f bridge.DeadFilter) (bridge.DeadCount, error)
	Redrive(ctx context.Context, q bridge.RedriveRequest) (delivery string, err error)
	Skip(ctx context.Context, q bridge.SkipRequest) (deadLetter string, err error)
	PlanJob(ctx context.Context, s bridge.JobSpec) (bridge.DeadCount, error)
	StartJob(ctx context.Context, s bridge.JobSpec) (bridge.Job, error)
	Jobs(bus string) ([]bridge.Job, error)
	Job(bus, id string) (bridge.Job, error)
	SetJob(ctx context.Context, c bridge.JobChange) (bridge.Job, error)
	EnableTarget(ctx context.Context, name, by string) (bridge.Enabled, error)
	Consent(ctx context.Context, target, token, rate string) error
	Ledger(ctx context.Context, q bridge.LedgerQuery) (bridge.Ledger, error)
	ExplainEvent(ctx context.Context, bus string, ev *event.Event) (explained []rules.RuleExplanation, more int, err error)
	ExplainRule(ctx context.Context, bus, rule string, ev *event.Event) (rules.RuleExplanation, error)
	Buses() []string
	Rules(ctx context.Context, bus string) ([]*rules.Rule, error)
	Traffic(ctx context.Context, bus string) (bridge.Traffic, error)
	Ordering(target string) *targets.Ordering
	TargetReads(target string) []rules.Read
	Checks() []bridge.Check
	// Position is the last committed position of a bus; its sequence is 0 when the bus is empty.
	Position(bus string) (event.Position, error)
}

// OnBridge makes b what the API needs.
func OnBridge(b *bridge.Bridge) Bridge { return onBridge{b} }

type onBridge struct{ *bridge.Bridge }

func (b onBridge) Position(bus string) (event.Position, error) {
	l, err := b.Bus(bus)
	if err != nil {
		return event.Position{}, err
	}
	return event.Position{Stream: l.StreamName(), Seq: l.Committed()}, nil
}

// Options are what an API is made of. Bridge, Store and Keys are required.
type Options struct {
	Bridge Bridge
	Store  store.Store
	Keys   *Keys
	// Audit lists who changed what; nil = that of Store.
	Audit store.Auditor
	// Providers is who vouches for users with signed tokens; nil = nobody does.
	Providers *Providers
	Kinds     []Kind // of definitions, without keys, which the API knows itself

	// Changes makes change sets of the same kinds in the same store, also for others; nil makes its own.
	Changes *Changes
	// Declared says why a definition cannot be changed here: what it is declared by. "" is for one that can; nil for all.
	Declared func(store.Key) string

	Clients  Clients          // of the MQTT gateway; nil = it is off
	Commands Commander        // the same
	Schemas  *schema.Registry // nil = there is no registry
	Sources  Sources          // nil = there are none
	// Links and Inlets are those of other regions; Kinds must have the kind Link then. Both nil = there are none.
	Links  Links
	Inlets Inlets
	// Functions are those of the kind Function, which Kinds must have then. nil = there are none.
	Functions Functions

	Anonymous bool // who sends no key may do everything: for a loopback listener only
	// ClientCerts refuses requests over connections without a certificate that the listener has verified, but for hooks and consents.
	ClientCerts bool
	Limits      event.Limits  // of ingested events
	MaxDelay    time.Duration // how long events may be scheduled ahead; 0 = 365 days
	Version     string        // of the program, for /openapi.json and the page
	Listeners   func() []Listener
	// InForce blocks until a definition is in force at a revision or a later one, for revision 0 until it is gone, or
	// until ctx is done. nil does not wait.
	InForce func(ctx context.Context, k store.Key, revision uint64)
	// Checks adds to what the bridge says to /readyz; may be nil.
	Checks func() []bridge.Check

	// QuickRefusals is how many refused hooks are answered at once, a second; the others are held back. 0 = 50, negative = all.
	QuickRefusals int

	MaxStreams int           // server-sent event streams at a time; 0 = 1000
	Heartbeat  time.Duration // of a quiet stream; 0 = 15 s
	SlowClient time.Duration // how long a stream waits for its client to take one write; 0 = 30 s

	Logger     *slog.Logger          // nil = none
	Registerer prometheus.Registerer // nil = no metrics
	Gatherer   prometheus.Gatherer   // what /metrics shows; nil = nothing
	Now        func() time.Time      // nil = time.Now
}

// Listener is a line of the page at "/": what listens where.
type Listener struct {
	Name    string // such as HTTP, MQTT
	Address string
	Try     string // a command to try
}

// Validate joins all complaints about the options.
func (o *Options) Validate() error {
	var errs []error
	if o.Bridge == nil || o.Store == nil || o.Keys == nil {
		errs = append(errs, errors.New("api: bridge, store and keys are required"))
	}
	if (o.Links == nil) != (o.Inlets == nil) {
		errs = append(errs, errors.New("api: links and inlets go together"))
	}
	seen := map[string]bool{kindKey: true, kindProvider: true}
	for _, k := range o.Kinds {
		if k.Name == "" || k.Plural == "" || seen[k.Name] {
			errs = append(errs, errors.New("api: a kind needs a plural and a name of its own: "+k.Name))
		}
		seen[k.Name] = true
	}
	return errors.Join(errs...)
}

// API serves the HTTP surface. It is safe for concurrent use; Close ends its streams.
type API struct {
	o       Options
	log     *slog.Logger
	metrics *metrics
	mux     *chi.Mux
	huma    huma.API
	routes  []*route
	// ingestRoute and hookRoute are where most requests go. ServeHTTP knows them without asking the router.
	ingestRoute, hookRoute *route

	spec []byte // /openapi.json

	kinds   []*Kind
	changes *Changes
	streams chan struct{} // a place for each stream
	tarpit  *tarpit       // of refused hooks
	closed  context.Context
	close   context.CancelFunc
	noisy   throttle
}

// route is a line of the table.
type route struct {
	method, pattern string
	need            need
	handle          handler
	metrics         routeMetrics
}

// handler answers a request or returns an error, and then has written nothing.
type handler func(w *reply, r *http.Request) error

// New makes an API. It reads and opens nothing.
func New(o Options) (*API, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Audit == nil {
		o.Audit = o.Store
	}
	if o.Providers == nil {
		o.Providers = NewProviders(token.Env{})
	}
	if o.Listeners == nil {
		o.Listeners = func() []Listener { return nil }
	}
	if o.InForce == nil {
		o.InForce = func(context.Context, store.Key, uint64) {}
	}
	if o.Declared == nil {
		o.Declared = func(store.Key) string { return "" }
	}
	if o.Checks == nil {
		o.Checks = func() []bridge.Check { return nil }
	}
	if o.Gatherer == nil {
		o.Gatherer = prometheus.NewRegistry()
	}
	if o.MaxDelay == 0 {
		o.MaxDelay = defaultMaxDelay
	}
	if o.MaxStreams == 0 {
		o.MaxStreams = 1000
	}
	if o.Heartbeat == 0 {
		o.Heartbeat = 15 * time.Second
	}
	if o.SlowClient == 0 {
		o.SlowClient = 30 * time.Second
	}
	a := &API{o: o, log: o.Logger.With("component", "api"), metrics: newMetrics(o.Registerer), mux: chi.NewMux(),
		changes: o.Changes, streams: make(chan struct{}, o.MaxStreams), tarpit: newTarpit(o.QuickRefusals)}
	if a.changes == nil {
		a.changes = NewChanges(o.Store, o.Kinds, o.Schemas)
	}
	a.closed, a.close = context.WithCancel(context.Background())
	a.mux.Use(middleware.GetHead)
	a.mux.NotFound(func(w http.ResponseWriter, r *http.Request) { a.fail(w.(*reply), r, errNoRoute) })
	a.mux.MethodNotAllowed(a.otherMethod)
	a.openControlPlane()
	for _, k := range o.Kinds {
		a.addKind(&k)
	}
	a.addKind(keyKind(o.Keys))
	a.addKind(providerKind())
	a.addKeyRoutes()
	if o.Schemas != nil {
		a.addSchemaRoutes()
		a.addBindingRoutes()
		a.addSubjectRoutes()
		a.addXRegistryRoutes()
	}
	a.addCatalog()
	if o.Functions != nil {
		a.addFunctionRoutes()
	}
	if o.Links != nil {
		a.addLinkRoutes()
	}
	a.addPlainRoutes()
	if err := a.describe(); err != nil {
		return nil, err
	}
	return a, nil
}

func (a *API) addPlainRoutes() {
	const anyBus = "/v1/buses/{bus}"
	a.ingestRoute = a.add("POST", anyBus+"/events", onBus(areaEvents, accessWrite), a.ingest)
	a.add("GET", anyBus+"/events", onBus(areaEvents, accessRead), a.searchEvents)
	a.add("GET", anyBus+"/events/{id}", onBus(areaEvents, accessRead), a.getEvent)
	a.add("GET", "/v1/stream", need{open: true}, a.stream) // each topic is checked
	a.addAsideRoutes()
	a.addDeadLetterRoutes()
	write := need{area: areaDefinitions, access: accessWrite}
	a.add("POST", "/v1/targets/{name}:enable", write, a.enableTarget)
	a.add("POST", "/v1/targets/{name}:pause", write, a.pause(kindTarget, true))
	a.add("POST", "/v1/targets/{name}:resume", write, a.pause(kindTarget, false))
	a.addConsentRoutes()
	a.addDeviceRoutes()
	a.add("POST", "/v1/definitions:apply", need{open: true}, a.applyDefinitions) // each document is checked
	a.add("GET", "/v1/audit", need{area: areaAdmin, access: accessRead}, a.listAudit)
	a.addCommandRoutes()
	a.addSourceRoutes()
	a.add("GET", "/v1/ledger", onQueryBus(areaEvents, accessRead), a.getLedger)
	a.add("POST", "/v1/rules:test", need{open: true}, a.testRule)        // the body says which bus
	a.add("POST", "/v1/rules:explain", need{open: true}, a.explainRules) // as well
	a.add("GET", "/livez", need{open: true}, a.livez)
	a.add("GET", "/readyz", need{open: true}, a.readyz)
	a.add("GET", "/metrics", need{area: areaAdmin, access: accessRead}, a.showMetrics())
	a.add("GET", "/openapi.json", need{open: true}, a.showSpec)
	a.add("GET", "/", need{open: true}, a.showPage)
}

// add puts a route into the table.
func (a *API) add(method, pattern string, n need, h handler) *route {
	rt := &route{method: method, pattern: pattern, need: n, handle: h, metrics: a.metrics.route(method, pattern)}
	a.routes = append(a.routes, rt)
	a.mux.MethodFunc(method, pattern, func(rw http.ResponseWriter, r *http.Request) {
		w := rw.(*reply) // ServeHTTP made it, and no middleware wraps it
		w.bus = pathParam(r, "bus")
		a.serve(w, r, rt)
	})
	return rt
}

// serve answers a request on its route.
func (a *API) serve(w *reply, r *http.Request, rt *route) {
	w.route = rt
	err := a.authorize(w, r, rt.need)
	if err == nil {
		err = rt.handle(w, r)
	}
	if err != nil {
		a.fail(w, r, err)
	}
}

// Close ends the streams, now and later ones. It is for http.Server.RegisterOnShutdown, since a server that shuts down
// waits for requests under way. Safe to call twice.
func (a *API) Close() { a.close() }
