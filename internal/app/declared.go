// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rialto-bridge/rialto/bridge"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/store"
	"github.com/rialto-bridge/rialto/internal/store/files"
	"github.com/rialto-bridge/rialto/targets/function"
	"github.com/rialto-bridge/rialto/web/api"
)

// declared keeps the definitions as a directory has them: each new state of it is one change set, which also removes what is
// not in it. A state that is wrong, or empty, or cannot be read changes nothing, and is said in the log, in /readyz?verbose
// and by a metric.
//
// Keys are not declared: nobody would see their secrets. Devices, Secrets and Functions are when the directory has them, and others stay
// as they are, since fleets are provisioned and code is uploaded by the API, and a repository is no place for secrets; one that
// leaves the directory is not removed. Schemas are registered, and
// never removed.
type declared struct {
	dir     string
	every   time.Duration
	changes *api.Changes
	store   store.Store
	log     *slog.Logger
	valid   prometheus.Gauge
	loads   *prometheus.CounterVec
	hurry   chan struct{} // holds a wish to look now

	tried   string // digest of the state that was tried last, if that need not be tried again
	pending string // digest of a state that is new, and may be half written
	applied string // digest of the state that is in force

	wrong   atomic.Pointer[string]             // why the state of the directory is not in force; nil when it is
	lasting atomic.Pointer[map[store.Key]bool] // devices, secrets and functions that are declared
}

// What a load has come to.
const (
	loadApplied = "applied"
	loadInvalid = "invalid"
	loadFailed  = "failed" // the store did not take it
)

// declare puts what the directory declares into the store, and follows it. A directory that is wrong stops the start of a
// bridge that has no definitions yet, unless it only names what comes by the API; another goes on with those it has.
func (a *App) declare(ctx context.Context) error {
	if a.o.Definitions == "" {
		return nil
	}
	d := &declared{dir: a.o.Definitions, every: a.o.DefinitionsPoll, changes: a.changes, store: a.store, log: a.o.Logger.With("component", "declared"),
		hurry: make(chan struct{}, 1),
		valid: prometheus.NewGauge(prometheus.GaugeOpts{Name: "rialto_declared_definitions_valid",
			Help: "1 if what --definitions declares is in force, 0 if its state is wrong and the one before is."}),
		loads: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "rialto_declared_definitions_loads_total",
			Help: "States of --definitions that were loaded, by result: applied, invalid, or failed because of the store. One that goes wrong again in the same way counts once."}, []string{"result"})}
	a.registry.MustRegister(d.valid, d.loads)
	for _, result := range []string{loadApplied, loadInvalid, loadFailed} {
		d.loads.WithLabelValues(result)
	}
	docs, digest, readErr := d.read()
	if err := d.load(ctx, docs, digest, readErr); err != nil {
		fresh, storeErr := d.fresh(ctx)
		if storeErr == nil && fresh && (readErr != nil || !d.incomplete(ctx, docs)) {
			return fmt.Errorf("definitions of %s: %w", d.dir, err)
		}
	}
	a.declared = d
	a.background("declared definitions", d.run)
	return nil
}

// Reload has the directory of definitions looked at now. It does not wait for that.
func (a *App) Reload() {
	if a.declared == nil {
		return
	}
	select {
	case a.declared.hurry <- struct{}{}:
	default: // there is a wish already
	}
}

// declaredBy says what declares a definition; nil if nothing declares any.
func (a *App) declaredBy() func(store.Key) string {
	if a.declared == nil {
		return nil
	}
	return a.declared.by
}

func (d *declared) by(k store.Key) string {
	switch k.Kind {
	case kindKey, kindSchema: // the registry stays writable, too
		return ""
	case kindDevice, kindSecret, function.Kind:
		if lasting := d.lasting.Load(); lasting == nil || !(*lasting)[k] {
			return ""
		}
	}
	return d.dir
}

// check is what /readyz?verbose says. Definitions that do not change are no reason to send requests elsewhere.
func (d *declared) check() bridge.Check {
	c := bridge.Check{Name: "declared definitions", OK: true}
	if why := d.wrong.Load(); why != nil {
		first, _, more := strings.Cut(*why, "; ")
		if more {
			first += "; and more, see the log"
		}
		c.Detail = "what " + d.dir + " declares is not in force, the definitions before it are: " + first
	}
	return c
}

// fresh reports whether the bridge has no definitions but those that it makes itself.
func (d *declared) fresh(ctx context.Context) (bool, error) {
	for _, kind := range d.changes.Prunable() {
		p, err := d.store.List(ctx, store.Query{Kind: kind, AllScopes: true})
		if err != nil {
			return false, err
		}
		most := 0
		if kind == kindBus {
			most = len(builtinBuses)
		}
		if len(p.Items) > most {
			return false, nil
		}
	}
	return true, nil
}

// incomplete reports whether nothing is wrong with the documents but that something they name is not there yet: Secrets are
// written, and code is uploaded, when the bridge runs.
func (d *declared) incomplete(ctx context.Context, docs []files.Document) bool {
	if refuseKeys(docs) != nil {
		return false
	}
	wrong, _, err := d.changes.Check(ctx, d.changeSet(docs).Documents)
	return err == nil && !slices.ContainsFunc(wrong, func(w fault.Detail) bool { return !lacksCode(docs, w.Pointer) })
}

// lacksCode reports whether what is wrong at a place of a change set is that the code of a function is not known.
func lacksCode(docs []files.Document, pointer string) bool {
	rest, _ := strings.CutPrefix(pointer, "/documents/")
	number, member, _ := strings.Cut(rest, "/")
	n, err := strconv.Atoi(number)
	if err != nil || n >= len(docs) || docs[n].Head.Kind != function.Kind || member != "code" {
		return false
	}
	_, err = function.ParseDefinition(docs[n].Raw)
	return err == nil
}

// run looks at the directory until ctx is done.
func (d *declared) run(ctx context.Context) {
	tick := time.NewTicker(d.every)
	defer tick.Stop()
	for {
		hurry := false
		select {
		case <-ctx.Done():
			return
		case <-d.hurry:
			hurry = true
		case <-tick.C:
		}
		docs, digest, err := d.read()
		switch {
		case digest == d.tried && !hurry:
			d.pending = digest
		case digest != d.pending && !hurry:
			d.pending = digest // who writes files writes them one after the other: they must look the same twice
		default:
			_ = d.load(ctx, docs, digest, err) // has been told
		}
	}
}

// read returns the documents of the directory, and what tells its states apart.
func (d *declared) read() ([]files.Document, string, error) {
	docs, err := files.Read([]string{d.dir}, strings.NewReader(""))
	if err == nil && len(docs) == 0 {
		err = errors.New("it holds no definition")
	}
	h := sha256.New()
	for _, doc := range docs {
		fmt.Fprintf(h, "%d\n", len(doc.Raw))
		h.Write(doc.Raw)
	}
	if err != nil {
		fmt.Fprintf(h, "wrong: %v", err)
	}
	return docs, hex.EncodeToString(h.Sum(nil)), err
}

// load puts a state of the directory in force, or says what was wrong when it was read. The error has been told.
func (d *declared) load(ctx context.Context, docs []files.Document, digest string, err error) error {
	d.tried, d.pending = digest, digest
	if err == nil {
		err = refuseKeys(docs)
	}
	if err != nil {
		return d.failed(loadInvalid, err)
	}
	set := d.changeSet(docs)
	ctx = store.WithAuthor(ctx, store.Author{Name: "(declared)", RequestID: digest[:16]})
	done, err := d.changes.Apply(ctx, set)
	if fault.KindOf(err) == fault.Invalid && err != nil {
		d.tried = "" // what it lacks may come by the API
		return d.failed(loadInvalid, located(docs, err))
	}
	if err != nil {
		if kind := fault.KindOf(err); kind != fault.TooLarge {
			d.tried = "" // the store may take it another time
		}
		return d.failed(loadFailed, err)
	}
	d.took(docs, digest, done)
	return nil
}

// changeSet makes the store what the directory is.
func (d *declared) changeSet(docs []files.Document) api.ChangeSet {
	var set api.ChangeSet
	there := map[files.Head]bool{}
	kept := map[string]bool{}
	for _, doc := range docs {
		set.Documents = append(set.Documents, doc.Raw)
		there[doc.Head] = true
		if doc.Head.Kind != kindBus {
			continue
		}
		// The bus for what does not fit is made by the bridge itself.
		if bus, err := bridge.ParseBus(doc.Raw); err == nil && bus.SchemaPolicy == bridge.PolicyQuarantine {
			kept[bus.QuarantineBus] = true
		}
	}
	for _, bus := range builtinBuses {
		if !there[files.Head{Kind: kindBus, Name: bus}] {
			set.Documents = append(set.Documents, builtinBus(bus))
		}
	}
	set.Prune = &api.Prune{Kinds: d.changes.Prunable(), Keep: func(doc store.Document) bool { return doc.Kind == kindBus && kept[doc.Name] }}
	return set
}

// refuseKeys complains about keys, whose secrets nobody would be told.
func refuseKeys(docs []files.Document) error {
	var wrong []error
	for _, doc := range docs {
		if doc.Head.Kind == kindKey {
			wrong = append(wrong, doc.Complain("/kind", "keys cannot be declared, since nobody would see their secrets: POST /v1/keys, or rialto apply, makes one"))
		}
	}
	return errors.Join(wrong...)
}

// located is an error of a change set with the places in the files.
func located(docs []files.Document, err error) error {
	var f *fault.Error
	if !errors.As(err, &f) {
		return err
	}
	var wrong []error
	for _, detail := range f.Details {
		wrong = append(wrong, errors.New(files.Locate(docs, detail)))
	}
	return errors.Join(wrong...)
}

// took notes that a state is in force, or will be within moments.
func (d *declared) took(docs []files.Document, digest string, done []api.Changed) {
	lasting := map[store.Key]bool{}
	for _, doc := range docs {
		switch doc.Head.Kind {
		case kindDevice, kindSecret, function.Kind:
			lasting[store.Key{Kind: doc.Head.Kind, Name: doc.Head.Name}] = true
		}
	}
	d.lasting.Store(&lasting)
	d.wrong.Store(nil)
	d.valid.Set(1)
	d.loads.WithLabelValues(loadApplied).Inc()
	counts := map[string]int{}
	for _, c := range done {
		counts[c.Outcome]++
	}
	if d.applied != digest {
		d.log.Info("declared definitions are in the store", "documents", len(docs), "created", counts["created"], "configured", counts["configured"], "pruned", counts["pruned"])
	}
	d.applied = digest
}

// failed tells and counts why a state is not in force, unless that has been told.
func (d *declared) failed(result string, err error) error {
	d.valid.Set(0)
	why := strings.ReplaceAll(err.Error(), "\n", "; ")
	if len(why) > maxWhy {
		why = strings.ToValidUTF8(why[:maxWhy], "") + "..."
	}
	if old := d.wrong.Swap(&why); old == nil || *old != why {
		d.loads.WithLabelValues(result).Inc()
		d.log.Error("declared definitions are not in force", "reason", result, "err", why)
	}
	return err
}

// maxWhy is how much of what is wrong is told.
const maxWhy = 4 << 10
