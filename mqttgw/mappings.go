// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
)

// Mappings are the topic mappings in force. Safe for concurrent use.
//
// A change has a position in each stream: before the first event that the new mappings make, and behind the last that the
// old ones made, stands an event of type MappingsChanged. Publishes therefore hold mu for reading from the moment when they
// look their mapping up until the log has taken them, and a change holds it for writing while it writes its marks.
type Mappings struct {
	changing sync.Mutex // one change at a time; taken before mu

	mu      sync.RWMutex
	byName  map[string]*TopicMapping // guarded by mu
	root    *mappingNode             // guarded by mu
	gateway *Gateway                 // guarded by mu; nil = nobody publishes yet
}

// MappingsChanged is the type of the mark of a change.
const MappingsChanged = "io.rialto.mqtt.mappings.changed"

// NewMappings returns no mappings.
func NewMappings() *Mappings { return &Mappings{root: &mappingNode{}} }

// markTime bounds how long a change waits for its marks.
const markTime = 5 * time.Second

// Set replaces the mappings and returns when the mark of the change is stored, in the default bus and in every bus that the
// old or the new mappings name. If it cannot be stored the old mappings stay in force. It blocks publishes while the log
// takes the marks.
func (m *Mappings) Set(ctx context.Context, revision uint64, all []*TopicMapping) error {
	next := make(map[string]*TopicMapping, len(all))
	for _, t := range all {
		next[t.Name] = t
	}
	m.changing.Lock()
	defer m.changing.Unlock()
	m.mu.RLock()
	g := m.gateway
	m.mu.RUnlock()
	if g != nil {
		if err := g.feeds.open(ctx, busesOf(next)); err != nil {
			return err
		}
		if err := g.recorded(ctx); err != nil { // before publishes are kept back
			return err
		}
	}
	if err := m.replace(ctx, revision, next, all); err != nil {
		return err
	}
	if g != nil {
		g.feeds.want(busesOf(next))
	}
	return nil
}

// replace marks a change and puts it in force.
func (m *Mappings) replace(ctx context.Context, revision uint64, next map[string]*TopicMapping, all []*TopicMapping) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	ctx, cancel := context.WithTimeoutCause(ctx, markTime, errors.New("the log does not take the mark of a change of topic mappings"))
	defer cancel()
	if err := m.mark(ctx, revision, next); err != nil {
		return err
	}
	if g := m.gateway; g != nil {
		if err := g.cutHere(ctx, printOf(next)); err != nil {
			return err
		}
	}
	m.byName, m.root = next, indexMappings(all)
	return nil
}

// recorded waits until something can be written down about sessions, for markTime at most.
func (g *Gateway) recorded(ctx context.Context) error {
	if g.recorder == nil {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, markTime, errors.New("sessions cannot be written"))
	defer cancel()
	return g.recorder.flush(ctx)
}

// printOf tells sets of mappings apart by where they send topics.
func printOf(set map[string]*TopicMapping) uint64 {
	h := fnv.New64a()
	for _, name := range slices.Sorted(maps.Keys(set)) {
		t := set[name]
		fmt.Fprintf(h, "%q %q %q %t\n", name, t.Filter, t.Bus, t.Down)
	}
	return max(h.Sum64(), notInForce+1)
}

// busesOf returns the buses that mappings name.
func busesOf(set map[string]*TopicMapping) []string {
	buses := map[string]bool{}
	for _, t := range set {
		if !t.Down {
			buses[t.Bus] = true
		}
	}
	return slices.Sorted(maps.Keys(buses))
}

// buses returns the buses that the mappings in force name.
func (m *Mappings) buses() []string {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return busesOf(m.byName)
}

// mark stores the marks of a change. mu is held.
func (m *Mappings) mark(ctx context.Context, revision uint64, next map[string]*TopicMapping) error {
	same := maps.EqualFunc(m.byName, next, func(a, b *TopicMapping) bool { return a.Revision == b.Revision })
	if m.gateway == nil || same {
		return nil
	}
	data, err := json.Marshal(markData(revision, next))
	if err != nil {
		return err
	}
	buses := map[string]bool{DefaultBus: true}
	for _, bus := range slices.Concat(busesOf(m.byName), busesOf(next)) {
		buses[bus] = true
	}
	for _, bus := range slices.Sorted(maps.Keys(buses)) {
		stored := m.gateway.mark(ctx, bus, &event.Record{Event: event.Event{Type: MappingsChanged, DataContentType: "application/json", Data: data}})
		select {
		case err = <-stored:
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		if err != nil && fault.KindOf(err) != fault.NotFound { // a bus that is gone has no stream to mark
			return fmt.Errorf("mark a change of topic mappings on bus %s: %w", bus, err)
		}
	}
	return nil
}

// markedMapping is a mapping as a mark shows it.
type markedMapping struct {
	Name     string `json:"name"`
	Revision uint64 `json:"revision"`
	Filter   string `json:"filter"`
	Bus      string `json:"bus,omitempty"`
	Lane     string `json:"lane,omitempty"`
}

// maxMarked bounds the mappings that a mark lists.
const maxMarked = 1000

func markData(revision uint64, set map[string]*TopicMapping) any {
	d := struct {
		Revision uint64          `json:"revision"`
		Count    int             `json:"count"`
		Mappings []markedMapping `json:"mappings"`
	}{revision, len(set), []markedMapping{}}
	for _, name := range slices.Sorted(maps.Keys(set)) {
		if len(d.Mappings) == maxMarked {
			break
		}
		t := set[name]
		m := markedMapping{Name: t.Name, Revision: t.Revision, Filter: t.Filter, Bus: t.Bus}
		if t.Down {
			m.Lane = laneNameDown
		}
		d.Mappings = append(d.Mappings, m)
	}
	return d
}

// serve makes the mappings those of a gateway that publishes, and marks the first ones. It returns when the cut that they need is
// written down, or ctx is done.
func (m *Mappings) serve(ctx context.Context, g *Gateway) error {
	m.changing.Lock()
	defer m.changing.Unlock()
	opened := g.feeds.open(ctx, m.buses()) // those that have been set since the start
	m.mu.Lock()
	defer m.mu.Unlock()
	m.gateway = g
	marking, cancel := context.WithTimeoutCause(ctx, markTime, errors.New("the log does not take the mark of the topic mappings"))
	defer cancel()
	set := m.byName
	m.byName = nil
	err := m.mark(marking, 0, set)
	m.byName = set
	return errors.Join(opened, err, g.cutHere(ctx, printOf(set))) // they may have changed while no process ran
}

// find returns the mapping of a topic, nil if there is none. mu is held for reading.
func (m *Mappings) find(topic string) *TopicMapping { return m.root.find(topic) }
