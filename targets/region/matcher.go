// SPDX-License-Identifier: Apache-2.0

package region

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/rules"
)

// fate is what a link makes of an event.
type fate byte

const (
	taken    fate = iota // to be forwarded on the lane that asks
	filtered             // the pattern does not take it
	looped               // it has been there
	elsewise             // it is of the other lane
)

// matcher decides what a link takes, and on which lane. It is for one goroutine.
type matcher struct {
	rule    *rules.Rule
	index   *rules.Index
	urgent  []*rules.Index // by segment; nil = nothing is urgent
	context rules.RenderContext
	call    CallFunction
	view    func(*event.Record) *event.Record

	scratch, fast rules.Scratch // of index, and of urgent
	matches       []rules.Match
}

// newMatcher makes a matcher. The patterns have been read before.
func newMatcher(def *Link, segments []segment, view func(*event.Record) *event.Record, call CallFunction) (*matcher, error) {
	m := &matcher{rule: def.Rule, view: view, call: call, context: rules.RenderContext{Rule: def.Name, Bus: def.Bus}}
	var err error
	if m.index, err = rules.Compile([]*rules.Rule{def.Rule}); err != nil {
		return nil, err
	}
	return m, m.setUrgent(segments)
}

// setUrgent has the matcher know the patterns of segments.
func (m *matcher) setUrgent(segments []segment) error {
	m.urgent = make([]*rules.Index, len(segments))
	for i, s := range segments {
		if s.Urgent == "" {
			continue
		}
		r, err := parseRule(json.RawMessage(s.Urgent), nil, nil)
		if err != nil {
			return fmt.Errorf("urgent pattern: %w", err)
		}
		if m.urgent[i], err = rules.Compile([]*rules.Rule{r}); err != nil {
			return fmt.Errorf("urgent pattern: %w", err)
		}
	}
	return nil
}

// matched reports whether an index takes an event. Match has no errors but in words: what is not matched is not taken.
func (m *matcher) matched(x *rules.Index, ev *event.Event, s *rules.Scratch) bool {
	matches, err := x.Match(ev, s, m.matches[:0])
	m.matches = matches
	return err == nil && len(matches) > 0
}

// look says what becomes of a record on a lane. segment is the one that decides what is urgent, negative for none; there is
// the other side's instance.
func (m *matcher) look(l Lane, rec *event.Record, segment int, there string) fate {
	isUrgent := func(ev *event.Event) bool { return segment >= 0 && m.matched(m.urgent[segment], ev, &m.fast) }
	ev := &m.view(rec).Event
	if l == Urgent && !isUrgent(ev) { // most are not
		return elsewise
	}
	switch {
	case !m.matched(m.index, ev, &m.scratch):
		return filtered
	case rec.Passed(there):
		return looped
	case l == Main && isUrgent(ev):
		return elsewise
	}
	return taken
}

// shape returns what is forwarded of a record that is taken. A function that is asked runs until ctx is done.
func (m *matcher) shape(ctx context.Context, rec *event.Record) (*event.Record, error) {
	t := m.rule.Targets[0].Transform
	if t == nil {
		return rec, nil
	}
	rc := m.context
	rc.Received = rec.Received
	if m.call != nil {
		rc.Function = func(name, code string, ev *event.Event) ([]byte, string, error) { return m.call(ctx, name, code, ev) }
	}
	ev, err := t.Apply(&m.view(rec).Event, rc)
	if err != nil {
		return nil, err
	}
	out := *rec
	out.Event = *ev
	if rec.MQTT != nil { // where it was published stays; what was said of the old payload goes
		o := *rec.MQTT
		o.Properties, o.Sparkplug = nil, nil
		out.MQTT = &o
	}
	return &out, nil
}
