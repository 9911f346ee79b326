// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/rialto-bridge/rialto/bridge"
	"github.com/rialto-bridge/rialto/internal/egress"
	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/journal"
	"github.com/rialto-bridge/rialto/internal/secret/token"
	"github.com/rialto-bridge/rialto/internal/store"
	"github.com/rialto-bridge/rialto/internal/store/kv"
	"github.com/rialto-bridge/rialto/internal/store/postgres"
	"github.com/rialto-bridge/rialto/mqttgw"
	"github.com/rialto-bridge/rialto/mqttgw/sparkplug"
	"github.com/rialto-bridge/rialto/schema"
	"github.com/rialto-bridge/rialto/sources"
	"github.com/rialto-bridge/rialto/targets"
	"github.com/rialto-bridge/rialto/targets/function"
	"github.com/rialto-bridge/rialto/targets/outbound"
	"github.com/rialto-bridge/rialto/targets/region"
	"github.com/rialto-bridge/rialto/web/api"
)

// App is a running process. Close ends it.
type App struct {
	o           Options
	log         *eventlog.Log
	journal     *journal.Journal
	registry    *prometheus.Registry
	catalog     *targets.Catalog
	sourceKinds *sources.Catalog
	sources     *sources.Supervisor
	functions   *function.Library
	instance    string // the name of this bridge in hops
	inlets      *region.Inlets
	links       *region.Links
	devices     *mqttgw.Directory
	topics      *mqttgw.Mappings
	keys        *api.Keys
	providers   *api.Providers
	store       store.Store
	postgres    *postgres.Store // the store, if it is this one
	schemas     *schema.Registry
	audit       store.Audits
	discovery   *schema.Discovery
	guard       *egress.Guard
	vault       *vault
	states      store.Store // of targets
	bridge      *bridge.Bridge
	gateway     *mqttgw.Gateway
	downlink    downlink
	defs        *definitions
	changes     *api.Changes
	declared    *declared // nil = no directory declares the definitions
	server      *http.Server
	httpLn      net.Listener
	mqttLns     []net.Listener
	adminKey    string

	steps  []step
	failed chan error // what ended a listener by itself
	close  sync.Once
	closed error
}

// step is a part that was started and how it is stopped. Steps are undone in reverse order.
type step struct {
	name string
	stop func(ctx context.Context) error
}

// readyWithin is how long a start waits for the first definitions.
const readyWithin = 30 * time.Second

// Start opens and starts everything, and returns when the listeners accept. If a part cannot be started, those before
// it are stopped again and the error names it.
func Start(ctx context.Context, o Options) (*App, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	a := &App{o: o.WithDefaults(), failed: make(chan error, 4)}
	for _, part := range []struct {
		name  string
		start func(context.Context) error
	}{
		{"data directory", a.openData},
		{"event log", a.openLog},
		{"secrets", a.openVault},
		{"views", a.openJournal},
		{"definitions store", a.openStore},
		{"schemas", a.openSchemas},
		{"states of the targets", a.openStates},
		{"functions", a.openFunctions},
		{"bridge", a.startBridge},
		{"sources", a.startSources},
		{"links", a.startRegions},
		{"definitions", a.followDefinitions},
		{"MQTT listener", a.startMQTT},
		{"HTTP listener", a.startHTTP},
	} {
		if err := part.start(ctx); err != nil {
			stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
			defer cancel()
			return nil, errors.Join(fmt.Errorf("start %s: %w", part.name, err), a.Close(stop))
		}
	}
	a.bridge.StartRetention()
	a.background("memory", func(ctx context.Context) { giveBackMemory(ctx, a.o.profile().small, a.o.Logger) })
	a.o.Logger.Info("ready", "http", a.HTTPAddr(), "mqtt", a.MQTTAddr(), "data", a.o.Data, "durability", a.o.Durability)
	return a, nil
}

// Failed delivers what ended a listener without Close; the process should then stop.
func (a *App) Failed() <-chan error { return a.failed }

// HTTPAddr returns the address of the HTTP listener.
func (a *App) HTTPAddr() string { return a.httpLn.Addr().String() }

// MQTTAddr returns the address of the first MQTT listener; "off" if there is none.
func (a *App) MQTTAddr() string {
	if len(a.mqttLns) == 0 {
		return "off"
	}
	return a.mqttLns[0].Addr().String()
}

// MQTTListeners returns all MQTT listeners as clients write them, such as wss://127.0.0.1:8884, in the order of the options.
func (a *App) MQTTListeners() []string {
	wanted, err := a.o.mqttListeners()
	if err != nil {
		return nil // Start has refused it
	}
	var all []string
	for i, ln := range a.mqttLns {
		all = append(all, wanted[i].scheme+"://"+ln.Addr().String())
	}
	return all
}

// AdminKey returns the bearer key of the first start, as it stands in <data>/admin.key.
func (a *App) AdminKey() string { return a.adminKey }

// Close stops taking in, lets what is under way finish for as long as ctx allows, writes everything down, and returns
// the errors of all steps. Safe to call twice.
func (a *App) Close(ctx context.Context) error {
	a.close.Do(func() {
		var errs []error
		for i := len(a.steps) - 1; i >= 0; i-- {
			s := a.steps[i]
			if err := s.stop(ctx); err != nil {
				errs = append(errs, fmt.Errorf("stop %s: %w", s.name, err))
			}
		}
		a.closed = errors.Join(errs...)
	})
	return a.closed
}

// undo adds a step that Close undoes.
func (a *App) undo(name string, stop func(ctx context.Context) error) {
	a.steps = append(a.steps, step{name, stop})
}

// background runs fn in a goroutine that Close cancels and waits for.
func (a *App) background(name string, fn func(ctx context.Context)) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		fn(ctx)
	}()
	a.undo(name, func(limit context.Context) error {
		cancel()
		select {
		case <-done:
			return nil
		case <-limit.Done():
			return context.Cause(limit)
		}
	})
}

func (a *App) openData(context.Context) error {
	a.guard = egress.New(egress.Options{Allow: a.o.EgressAllow})
	a.sourceKinds = SourceKinds()
	return os.MkdirAll(a.o.Data, 0o700)
}

func (a *App) openLog(ctx context.Context) (err error) {
	a.registry = prometheus.NewRegistry()
	a.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	a.log, err = eventlog.Open(ctx, eventlog.Options{Dir: a.o.Data, Durability: a.o.Durability, MaxData: a.o.MaxData, Reserve: a.o.Reserve,
		ReserveLeast: a.o.profile().reserveLeast, MaxStore: a.o.MaxStore, RingBytes: a.o.RingBytes, Logger: a.o.Logger, Registerer: a.registry})
	if err == nil {
		a.undo("event log", a.log.Close)
	}
	return err
}

func (a *App) openJournal(context.Context) (err error) {
	p := a.o.profile()
	a.journal, err = journal.Open(journal.Options{Dir: filepath.Join(a.o.Data, "views"), CacheBytes: p.viewCache, BufferBytes: p.viewBuffer, Logger: a.o.Logger})
	if err == nil {
		a.undo("views", func(context.Context) error { return a.journal.Close() })
	}
	return err
}

func (a *App) openStore(ctx context.Context) error {
	// The log knows rules by name and revision, so a revision must not be given again, also where the definitions have moved
	// from another store, or the store is an older backup.
	last, err := a.snapshot().read()
	if err != nil && !os.IsNotExist(err) {
		a.o.Logger.Error("snapshot of the definitions cannot be read", "err", err)
	}
	a.store = a.o.Store
	switch {
	case a.store != nil:
	case a.o.Postgres != "":
		pg, err := postgres.Open(ctx, postgres.Options{DSN: a.o.Postgres, After: last.Revision, Logger: a.o.Logger,
			Resolved: func(addrs ...netip.AddrPort) { a.guard.Protect("this bridge's database", addrs...) }})
		if err != nil {
			return err
		}
		a.store, a.postgres = pg, pg
	default:
		nc, err := a.log.Connect()
		if err != nil {
			return err
		}
		a.undo("store connection", func(context.Context) error { nc.Close(); return nil })
		if a.store, err = kv.Open(ctx, nc, kv.Options{After: last.Revision, Logger: a.o.Logger}); err != nil {
			return err
		}
	}
	a.undo("definitions store", func(context.Context) error { return a.store.Close() })
	return nil
}

// openSchemas opens the registry of schemas where the definitions are, and follows it.
func (a *App) openSchemas(ctx context.Context) error {
	nc, err := a.log.Connect()
	if err != nil {
		return err
	}
	a.undo("schemas connection", func(context.Context) error { nc.Close(); return nil })
	s, err := a.openSchemaStore(ctx, nc)
	if err != nil {
		return err
	}
	a.undo("schemas store", func(context.Context) error { return s.Close() })
	a.audit = auditOf(a.store, s)
	a.schemas = schema.NewRegistry(schema.RegistryOptions{Store: schema.OnRecords(store.Records{Store: s}), Logger: a.o.Logger})
	a.background("schemas", a.schemas.Run)
	select {
	case <-a.schemas.Ready():
	case <-time.After(storeGrace): // buses that enforce schemas refuse until they are known
		a.o.Logger.Warn("the schemas are not known yet")
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	seen, err := kv.Open(ctx, nc, kv.Options{Bucket: summariesBucket, Logger: a.o.Logger})
	if err != nil {
		return err
	}
	a.undo("summaries store", func(context.Context) error { return seen.Close() })
	a.discovery = schema.NewDiscovery(schema.DiscoveryOptions{Registry: a.schemas, Summaries: store.Records{Store: seen}, Quiet: a.o.SchemaQuiet, Logger: a.o.Logger})
	a.background("schema discovery", a.discovery.Run)
	return nil
}

func (a *App) openSchemaStore(ctx context.Context, nc *nats.Conn) (store.Store, error) {
	if a.o.Postgres != "" {
		return postgres.OpenSchemaRecords(ctx, postgres.Options{DSN: a.o.Postgres, Logger: a.o.Logger})
	}
	return kv.Open(ctx, nc, kv.Options{Bucket: kv.SchemasBucket, Logger: a.o.Logger})
}

// auditOf is one list of the changes of definitions and of schemas; what the registry numbers things with is not in it.
func auditOf(definitions, schemas store.Store) store.Audits {
	return store.Audits{definitions, store.OfKind{Log: schemas, Stored: "schema", Shown: "Schema"},
		store.OfKind{Log: schemas, Stored: "schemaversion", Shown: "SchemaVersion"},
		store.OfKind{Log: schemas, Stored: "schemabinding", Shown: "SchemaBinding"}}
}

// summariesBucket holds what was seen of types of events, of which schemas are made.
const summariesBucket = "summaries"

func (a *App) startBridge(ctx context.Context) (err error) {
	asks := outbound.Client(a.guard, outbound.Options{})
	a.undo("questions to producers", func(context.Context) error { asks.CloseIdleConnections(); return nil })
	a.bridge, err = bridge.New(ctx, bridge.Options{Log: a.log, Journal: a.journal, Schemas: a.schemas, Discover: a.discovery, View: sparkplug.View, Functions: a.functions, HoldRetention: true, Logger: a.o.Logger, Registerer: a.registry,
		Aside: bridge.AsideOptions{MaxEvents: a.o.AsideMaxEvents, MaxBytes: a.o.AsideMaxBytes, MaxAge: a.o.PreparedMaxAge, HTTP: asks, CheckURL: a.guard.CheckURL}})
	if err == nil {
		a.audit = append(a.audit, redriveAudit{a.bridge})
		a.undo("bridge", func(ctx context.Context) error {
			// Deliveries get what is left of the time but for a quarter, in which the log writes down what became of them.
			if deadline, ok := ctx.Deadline(); ok {
				var cancel context.CancelFunc
				ctx, cancel = context.WithDeadline(ctx, deadline.Add(-time.Until(deadline)/4))
				defer cancel()
			}
			return a.bridge.Close(ctx)
		})
	}
	return err
}

// followDefinitions makes what every process has (two buses, a key), puts the definitions in force, and waits until
// they are.
func (a *App) followDefinitions(ctx context.Context) error {
	a.catalog = TargetKinds(a.guard, a.functions)
	a.devices, a.topics, a.keys = mqttgw.NewDirectory(), mqttgw.NewMappings(), api.NewKeys()
	client := outbound.Client(a.guard, outbound.Options{})
	a.undo("connections to issuers", func(context.Context) error { client.CloseIdleConnections(); return nil })
	issuers := token.Env{HTTP: client, Secrets: a.vault.outside}
	a.providers = api.NewProviders(issuers)
	a.defs = (&definitions{store: a.store, bridge: a.bridge, devices: a.devices, topics: a.topics, keys: a.keys, providers: a.providers, issuers: issuers, kinds: a.catalog,
		sourceKinds: a.sourceKinds, sources: a.sources, links: a.links, functions: a.functions, guard: a.guard, vault: a.vault, states: a.states, downlink: &a.downlink,
		snapshot: a.snapshot(), log: a.o.Logger}).begin()
	if err := a.bootstrap(ctx); err != nil {
		return err
	}
	a.changes = api.NewChanges(a.store, a.kinds(), a.schemas)
	if err := a.declare(ctx); err != nil {
		return err
	}
	a.background("definitions", a.defs.run)
	a.background("code of functions", a.sweepCode)
	wait, cancel := context.WithTimeoutCause(ctx, readyWithin, errors.New("the store does not answer, and there is no snapshot"))
	defer cancel()
	select {
	case <-a.defs.ready:
		a.background("sealing", func(ctx context.Context) { a.vault.resealAll(ctx, a.store, a.o.Logger.With("component", "secrets")) })
		return nil
	case <-wait.Done():
		return context.Cause(wait)
	}
}

// bootstrap stores the two buses that always exist. If the store is away that is left to a later start.
func (a *App) bootstrap(ctx context.Context) error {
	b, err := os.ReadFile(filepath.Join(a.o.Data, adminKeyFile))
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	a.adminKey = strings.TrimSpace(string(b))
	fresh := false
	for _, bus := range builtinBuses {
		k := store.Key{Kind: kindBus, Name: bus}
		_, err := a.store.Put(ctx, k, builtinBus(bus), store.Condition{Absent: true})
		switch kind := fault.KindOf(err); {
		case err == nil:
			fresh = true
		case kind == fault.Conflict:
		case kind == fault.Unavailable:
			a.o.Logger.Warn("the store does not answer", "err", err)
			return nil
		default:
			return err
		}
	}
	switch {
	case a.adminKey == "":
		return a.makeAdminKey(ctx)
	case fresh: // a new store under a directory that had another: without its key nobody could come in
		return a.takeAdminKey(ctx)
	}
	return nil
}

// adminScopes are what the first key may do.
var adminScopes = []string{"admin:*", "events:*", "definitions:*", "devices:*", "queues:*"}

// takeAdminKey makes the key in the data directory good in a store that has no key yet.
func (a *App) takeAdminKey(ctx context.Context) error {
	doc, err := api.KeyOf(a.adminKey, "admin", adminScopes...)
	if err != nil {
		return err
	}
	_, err = a.store.Put(ctx, store.Key{Kind: kindKey, Name: "admin"}, doc, store.Condition{Absent: true})
	if err != nil && fault.KindOf(err) == fault.Conflict {
		return nil
	}
	return err
}

const adminKeyFile = "admin.key"

// makeAdminKey makes a key that may do everything at the first start, and leaves it in the data directory.
func (a *App) makeAdminKey(ctx context.Context) error {
	file := filepath.Join(a.o.Data, adminKeyFile)
	if _, err := a.store.Get(ctx, store.Key{Kind: kindKey, Name: "admin"}); err == nil {
		return nil // the file was taken away on purpose
	}
	secret, doc, err := api.NewKey("admin", adminScopes...)
	if err != nil {
		return err
	}
	// The file comes first: a key that nobody knows is worse than a file for a key that is not there.
	if err := writeFile(file, []byte(secret+"\n")); err != nil {
		return err
	}
	_, err = a.store.Put(ctx, store.Key{Kind: kindKey, Name: "admin"}, doc, store.Condition{Absent: true})
	if err != nil && fault.KindOf(err) == fault.Conflict {
		return os.Remove(file) // another bridge with the same store was faster, and has it
	}
	if err != nil {
		return errors.Join(err, os.Remove(file))
	}
	a.adminKey = secret
	return nil
}

// listen opens a listener that no target can reach. It is closed to them before it is open, because deliveries are under
// way by then.
func (a *App) listen(what, address string) (net.Listener, error) {
	addr, err := net.ResolveTCPAddr("tcp", address)
	if err != nil {
		return nil, err
	}
	a.guard.Protect(what, addr.AddrPort())
	ln, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	if bound, ok := ln.Addr().(*net.TCPAddr); ok { // the port is known by now, also if it was to be any
		a.guard.Protect(what, bound.AddrPort())
	}
	return ln, nil
}

// startHTTP serves the API. It comes last: whoever can reach it finds everything working.
func (a *App) startHTTP(context.Context) error {
	cfg, err := a.o.httpTLS()
	if err != nil {
		return err
	}
	if a.httpLn, err = a.listen("this bridge's HTTP listener", a.o.Listen); err != nil {
		return err
	}
	handler, err := api.New(api.Options{Bridge: api.OnBridge(a.bridge), Store: a.store, Keys: a.keys, Providers: a.providers, Audit: a.audit, Kinds: a.kinds(), Changes: a.changes, Declared: a.declaredBy(), Sources: a.sources, Links: a.links, Inlets: a.inlets, Functions: a.functions, Clients: a.clients(), Commands: a.commander(), Schemas: a.schemas,
		Anonymous: a.o.Anonymous, ClientCerts: a.o.ClientCA != "", Limits: event.Limits{MaxData: a.o.MaxData}, MaxDelay: a.o.ScheduledMaxDelay, Version: a.o.Version, Listeners: a.listeners, InForce: a.defs.await, Checks: a.checks,
		Logger: a.o.Logger, Registerer: a.registry, Gatherer: a.registry})
	if err != nil {
		return errors.Join(err, a.httpLn.Close())
	}
	a.server = &http.Server{Handler: handler, TLSConfig: cfg, ReadTimeout: readTimeout,
		IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10, ErrorLog: slog.NewLogLogger(a.o.Logger.Handler(), slog.LevelDebug)}
	a.server.RegisterOnShutdown(handler.Close)
	done := make(chan struct{})
	go func() {
		defer close(done)
		serve := func() error { return a.server.Serve(a.httpLn) }
		if cfg != nil {
			serve = func() error { return a.server.ServeTLS(a.httpLn, "", "") }
		}
		if err := serve(); !errors.Is(err, http.ErrServerClosed) {
			a.failed <- fmt.Errorf("HTTP listener: %w", err)
		}
	}()
	a.undo("HTTP listener", func(ctx context.Context) error {
		// Requests under way get a part of the time; what the log still has to write needs the rest.
		limit, cancel := context.WithTimeout(ctx, httpGrace)
		defer cancel()
		err := a.server.Shutdown(limit)
		if err != nil {
			err = a.server.Close() // whoever is left is cut off and was told nothing
		}
		<-done
		return err
	})
	return nil
}

// readTimeout is how long a request may take to arrive. The header has no limit of its own: two would cost each request a
// system call more.
const readTimeout = 30 * time.Second

// httpGrace is how long a stop waits for HTTP requests under way.
const httpGrace = 3 * time.Second

// listeners is what the page at / says.
func (a *App) listeners() []api.Listener {
	scheme := "http"
	if a.o.TLSCert != "" {
		scheme = "https"
	}
	list := []api.Listener{{Name: "HTTP", Address: scheme + "://" + a.HTTPAddr(),
		Try: fmt.Sprintf(`curl -i %s://%s/v1/buses/default/events -H "Authorization: Bearer $RIALTO_KEY" -H 'ce-specversion: 1.0' -H 'ce-id: 1' -H 'ce-source: /me' -H 'ce-type: hello' -H 'Content-Type: application/json' -d '{"n":1}'`, scheme, a.HTTPAddr())}}
	for _, l := range a.MQTTListeners() {
		scheme, addr, _ := strings.Cut(l, "://")
		line := api.Listener{Name: "MQTT", Address: l}
		if host, port, err := net.SplitHostPort(addr); err == nil && scheme == schemeMQTT {
			line.Try = fmt.Sprintf("mosquitto_pub -h %s -p %s -u DEVICE -P PASSWORD -q 1 -t hello -m world", host, port)
		}
		list = append(list, line)
	}
	return list
}
