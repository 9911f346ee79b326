// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"slices"

	"github.com/rialto-bridge/rialto/rules"
)

// busRule is a rule in force, with what tells which types of events it may match.
type busRule struct {
	bus   string
	rule  *rules.Rule
	takes func(eventType string) bool
	reads []rules.Read // made when they are first asked for
}

func (r *busRule) on(bus string) bool { return bus == "" || bus == r.bus }

// busRules lists the enabled rules of some buses.
func (a *API) busRules(ctx context.Context, buses []string) ([]*busRule, error) {
	var out []*busRule
	for _, bus := range buses {
		list, err := a.o.Bridge.Rules(ctx, bus)
		if err != nil {
			return nil, err
		}
		for _, r := range list {
			if !r.Disabled {
				out = append(out, &busRule{bus: bus, rule: r, takes: r.TypeFilter()})
			}
		}
	}
	return out, nil
}

// readsFor lists what decides about, or goes into, the deliveries to a target of the rule: what the rule looks at before it
// knows where to, the target's transform, the key of its order, and what the target itself looks at; of data that a transform has
// made, nothing is said.
func (a *API) readsFor(r *busRule, target string) []rules.Read {
	if r.reads == nil {
		r.reads = r.rule.Reads()
	}
	var out []rules.Read
	for _, read := range r.reads {
		if read.Target == "" || read.Target == target {
			out = append(out, read)
		}
	}
	if o := a.o.Bridge.Ordering(target); o != nil {
		for _, read := range o.Reads() {
			read.Target = target
			out = append(out, read)
		}
	}
	for _, read := range a.o.Bridge.TargetReads(target) {
		if r.transforms(target) && (len(read.Path) == 0 || read.Path[0].Name == "data") {
			continue
		}
		read.Target = target
		out = append(out, read)
	}
	return out
}

// transforms reports whether the rule makes other data of an event for a target.
func (r *busRule) transforms(target string) bool {
	return slices.ContainsFunc(r.rule.Targets, func(t rules.RuleTarget) bool { return t.Target == target && t.Transform != nil })
}

// readDoc is a Read as it is answered.
type readDoc struct {
	Path      string   `json:"path"` // JSON pointer into the event; * stands for each item or member, "" for the whole event
	By        string   `json:"by"`   // JSON pointer into the rule; into the target for its order and its templates
	Whole     bool     `json:"whole,omitempty"`
	Needed    bool     `json:"needed,omitempty"`
	Either    bool     `json:"either,omitempty"`
	Absent    bool     `json:"absent,omitempty"` // the clause holds where nothing is
	Types     []string `json:"types,omitempty"`
	Operators []string `json:"operators,omitempty"`
}

func showRead(r rules.Read) readDoc {
	return readDoc{Path: r.Path.String(), By: r.Pointer, Whole: r.Whole, Needed: r.Needed, Either: r.Either, Absent: r.Decides() && r.HoldsAbsent(), Types: r.Types, Operators: r.Operators}
}

// consumerDoc is a target that gets events of a type by a rule.
type consumerDoc struct {
	Bus    string    `json:"bus,omitempty"` // if the entry of the catalog has none
	Rule   string    `json:"rule"`
	Target string    `json:"target"`
	Reads  []readDoc `json:"reads"`
}

// maxConsumers is how many consumers an entry of the catalog lists.
const maxConsumers = 1000

// consumersOf lists who gets events of a type on a bus, on any if bus is "", and how many more do.
func (a *API) consumersOf(list []*busRule, bus, eventType string) (out []consumerDoc, more int) {
	out = []consumerDoc{}
	for _, r := range list {
		if !r.on(bus) || !r.takes(eventType) {
			continue
		}
		for _, t := range r.rule.Targets {
			if len(out) == maxConsumers {
				more++
				continue
			}
			c := consumerDoc{Bus: r.bus, Rule: r.rule.Name, Target: t.Target, Reads: []readDoc{}}
			if bus != "" {
				c.Bus = ""
			}
			for _, read := range a.readsFor(r, t.Target) {
				c.Reads = append(c.Reads, showRead(read))
			}
			out = append(out, c)
		}
	}
	return out, more
}

// hasTarget reports whether a rule for events of a type delivers to a target.
func hasTarget(list []*busRule, bus, eventType, target string) bool {
	return slices.ContainsFunc(list, func(r *busRule) bool {
		return r.on(bus) && slices.ContainsFunc(r.rule.Targets, func(t rules.RuleTarget) bool { return t.Target == target }) && r.takes(eventType)
	})
}
