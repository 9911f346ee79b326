// SPDX-License-Identifier: Apache-2.0

package schema

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
)

// Bounds of discovery, for each process.
const (
	DiscoveredGroup  = "discovered" // of the schemas that are made
	defaultQuiet     = 5 * time.Minute
	discoveredTypes  = 1000 // types that are looked at
	samplesPerSecond = 20   // of each type
	discoveryQueue   = 256  // samples that wait
	summaryKind      = "schemasummary"
	flushWithin      = 5 * time.Second
)

// Summaries keeps what nodes have seen together: documents by kind, scope and name with compare-and-swap, as in Records.
type Summaries interface {
	GetRecord(ctx context.Context, kind, scope, name string) (raw []byte, revision uint64, err error)
	PutRecord(ctx context.Context, kind, scope, name string, raw []byte, expect uint64) (revision uint64, err error)
}

// DiscoveryOptions are what a Discovery is made of. Registry and Summaries are required.
type DiscoveryOptions struct {
	Registry  *Registry
	Summaries Summaries
	Quiet     time.Duration    // the least time between two versions of a type, and before the first; 0 = 5 minutes
	Logger    *slog.Logger     // nil = none
	Now       func() time.Time // nil = time.Now
}

// Discovery makes schemas of events. It summarises a sample of each type, merges what it has seen into what all nodes
// have, and registers the schema of that as a version in state discovered, at most one in each quiet period and only if
// it is another. Such versions are not enforced; who wants one makes it active. A type that is bound to no schema is
// bound to the one that was made.
//
// Observe may be called from any goroutine. Run does the work; until then, and when events come faster than it takes
// them, they are not looked at.
type Discovery struct {
	o     DiscoveryOptions
	log   *slog.Logger
	queue chan *event.Event

	mu     sync.Mutex // guards budget
	budget map[string]*sampleBudget
}

// sampleBudget is how many more events of a type are looked at within a second.
type sampleBudget struct {
	second int64
	left   int
}

// NewDiscovery returns a Discovery.
func NewDiscovery(o DiscoveryOptions) *Discovery {
	if o.Quiet == 0 {
		o.Quiet = defaultQuiet
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Discovery{o: o, log: o.Logger.With("component", "discovery"), queue: make(chan *event.Event, discoveryQueue), budget: map[string]*sampleBudget{}}
}

// Observe takes a sample of the events of a bus. It does not block.
func (d *Discovery) Observe(_ string, ev *event.Event) {
	if ev.Data == nil || ev.DataContentType != "" && !event.IsJSON(ev.DataContentType) || !d.wants(ev.Type) {
		return
	}
	select {
	case d.queue <- ev:
	default:
	}
}

func (d *Discovery) wants(eventType string) bool {
	second := d.o.Now().Unix()
	d.mu.Lock()
	defer d.mu.Unlock()
	b := d.budget[eventType]
	switch {
	case b == nil && len(d.budget) >= discoveredTypes:
		return false
	case b == nil:
		b = &sampleBudget{}
		d.budget[strings.Clone(eventType)] = b
	}
	if b.second != second {
		b.second, b.left = second, samplesPerSecond
	}
	b.left--
	return b.left >= 0
}

// Run summarises what is observed until ctx is done, and then keeps what it has for the other nodes and the next start.
func (d *Discovery) Run(ctx context.Context) {
	seen := map[string]*Summary{}
	every := time.NewTicker(max(d.o.Quiet/5, time.Millisecond))
	defer every.Stop()
	for {
		select {
		case ev := <-d.queue:
			d.summarise(seen, ev)
		case <-every.C:
			d.flush(ctx, seen)
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushWithin)
			defer cancel()
			d.flush(last, seen)
			return
		}
	}
}

func (d *Discovery) summarise(seen map[string]*Summary, ev *event.Event) {
	doc, err := Decode(ev.Data)
	if err != nil {
		return // what is not JSON has no schema
	}
	s := seen[ev.Type]
	if s == nil {
		s = NewSummary()
		seen[strings.Clone(ev.Type)] = s
	}
	s.Add(doc)
}

// flush hands on what was seen since the last time. What cannot be kept now stays for the next.
func (d *Discovery) flush(ctx context.Context, seen map[string]*Summary) {
	for eventType, s := range seen {
		waits, err := d.keep(ctx, eventType, s)
		switch kind := fault.KindOf(err); {
		case err == nil && waits: // for the end of the quiet period, also if no more events come
			seen[eventType] = NewSummary()
		case err == nil:
			delete(seen, eventType)
		case kind == fault.Unavailable || kind == fault.Conflict || ctx.Err() != nil:
			d.log.Debug("what was seen of a type waits", "eventType", eventType, "err", err)
		default:
			d.log.Warn("what was seen of a type is not kept", "eventType", eventType, "err", err)
			delete(seen, eventType)
		}
	}
}

// summaryRecord is what is kept of a type.
type summaryRecord struct {
	Summary []byte    `json:"summary"`
	Since   time.Time `json:"since"`          // when it was begun to make a version, or the type first seen
	Made    string    `json:"made,omitempty"` // hash of the schema that was made last: it is registered, and the type bound
}

// keep merges what was seen into what all nodes have, and makes a version when it is time. waits says that there will be
// one.
func (d *Discovery) keep(ctx context.Context, eventType string, s *Summary) (waits bool, err error) {
	for range maxRaces {
		text, next, err := d.merge(ctx, eventType, s)
		if fault.KindOf(err) == fault.Conflict {
			continue // another node has merged
		}
		if err != nil || next != versionDue {
			return next == versionWaits, err
		}
		// It was this node that has begun a quiet period, so no other makes a version in it.
		if err = d.register(ctx, eventType, text); err == nil {
			err = d.made(ctx, eventType, text)
		}
		if err != nil {
			d.log.Warn("a discovered schema is not registered, it is tried again after the quiet period", "eventType", eventType, "err", err)
		}
		return err != nil, nil
	}
	return false, fault.New(fault.Conflict, "the summary of %q is being changed by others all the time", eventType)
}

// What a merge finds.
const (
	versionKnown = iota // the schema is the one that was made last
	versionWaits        // it is another, and the quiet period is not over
	versionDue          // it is another, and to be registered
)

// merge stores the sum. That a version is due begins a quiet period in what it stores.
func (d *Discovery) merge(ctx context.Context, eventType string, s *Summary) (text []byte, next int, err error) {
	rec, revision, err := d.record(ctx, eventType)
	if err != nil {
		return nil, versionKnown, err
	}
	all, err := DecodeSummary(rec.Summary)
	if err != nil {
		if revision != 0 {
			d.log.Warn("the summary of a type cannot be read, and begins again", "eventType", eventType)
		}
		all = NewSummary()
	}
	all.Merge(s)
	text = all.Schema()
	if madeOf(text) != rec.Made {
		next = versionWaits
		if now := d.o.Now().UTC(); now.Sub(rec.Since) >= d.o.Quiet {
			next, rec.Since = versionDue, now
		}
	}
	if s.Count() == 0 && next != versionDue {
		return text, next, nil
	}
	rec.Summary = all.Encode(nil)
	return text, next, d.put(ctx, eventType, &rec, revision)
}

// made notes that the version with a text is registered, and its type bound. Where that is not noted both are done again.
func (d *Discovery) made(ctx context.Context, eventType string, text []byte) error {
	for range maxRaces {
		rec, revision, err := d.record(ctx, eventType)
		if err != nil {
			return err
		}
		rec.Made = madeOf(text)
		if err = d.put(ctx, eventType, &rec, revision); fault.KindOf(err) != fault.Conflict {
			return err
		}
	}
	return fault.New(fault.Conflict, "the summary of %q is being changed by others all the time", eventType)
}

func madeOf(text []byte) string {
	hash := sha256.Sum256(text)
	return hex.EncodeToString(hash[:])
}

func (d *Discovery) put(ctx context.Context, eventType string, rec *summaryRecord, revision uint64) error {
	raw, err := json.Marshal(rec)
	if err == nil {
		_, err = d.o.Summaries.PutRecord(ctx, summaryKind, "", eventType, raw, revision)
	}
	return err
}

// record reads what is kept of a type; of one that is new, revision is 0.
func (d *Discovery) record(ctx context.Context, eventType string) (rec summaryRecord, revision uint64, err error) {
	rec.Since = d.o.Now().UTC()
	raw, revision, err := d.o.Summaries.GetRecord(ctx, summaryKind, "", eventType)
	if fault.KindOf(err) == fault.NotFound {
		return rec, 0, nil
	}
	if err == nil {
		err = unmarshal(summaryKind, "", eventType, raw, &rec)
	}
	return rec, revision, err
}

func (d *Discovery) register(ctx context.Context, eventType string, text []byte) error {
	name := Name{DiscoveredGroup, discoveredName(eventType)}
	out, err := d.o.Registry.Register(ctx, Registration{Name: name, Text: string(text), Format: JSONSchema, State: Discovered})
	if err != nil {
		return err
	}
	d.log.Info("schema discovered", "eventType", eventType, "schema", out.Version.Ref.String())
	_, err = d.o.Registry.Store().Binding(ctx, eventType)
	if fault.KindOf(err) != fault.NotFound {
		return err
	}
	_, err = d.o.Registry.Bind(ctx, eventType, name)
	return err
}

// discoveredName is the name of the schema of a type: the type itself if it can be one, else what can be of it, with a
// part of its hash so that it stays the only one.
func discoveredName(eventType string) string {
	if (Name{DiscoveredGroup, eventType}).Check() == nil {
		return eventType
	}
	plain := strings.Map(func(r rune) rune {
		if r < 0x80 && (isAlnum(byte(r)) || r == '.' || r == '_') {
			return r
		}
		return '-'
	}, eventType)
	hash := sha256.Sum256([]byte(eventType))
	return fmt.Sprintf("x%.100s-%x", plain, hash[:4])
}
