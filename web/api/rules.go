// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rialto-bridge/rialto/bridge"
	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/rules"
)

const kindRule = "Rule"

// Limits of one test.
const (
	maxTried       = 100              // events
	maxTriedWork   = 64 << 20         // bytes of events, each once for the rule and once for each of its targets
	maxTriedOutput = 4 << 20          // bytes of outputs that are answered
	leastWork      = 4 << 10          // what a small event counts for
	maxTriedTime   = 10 * time.Second // of the functions of its transforms, all together
)

// draftName is what a rule, a target and an event are called that have no name.
const draftName = "test"

// candidate is an event that a rule is tried on.
type candidate struct {
	ev       *event.Event
	position string // of a stored one
	received time.Time
}

// testRequest is the body of POST /v1/rules:test.
type testRequest struct {
	bus                      string
	rule, pattern, transform json.RawMessage
	when, sql                json.RawMessage
	events, stored           []json.RawMessage
}

// testRule answers what a rule that is not stored would do to some events. It stores nothing.
func (a *API) testRule(w *reply, r *http.Request) error {
	who, body, err := a.question(w, r)
	if err != nil {
		return err
	}
	var in testRequest
	if err := readMembers(body, map[string]any{"bus": &in.bus, "rule": &in.rule, "pattern": &in.pattern, "when": &in.when, "sql": &in.sql,
		"transform": &in.transform, "events": &in.events, "stored": &in.stored}); err != nil {
		return err
	}
	if in.bus, err = in.onBus(); err != nil {
		return err
	}
	if err := a.mayAsk(r.Context(), who, in.bus, len(in.stored) > 0); err != nil {
		return err
	}
	rule, err := in.compile()
	if err != nil {
		return err
	}
	if len(rule.Functions()) > 0 { // they run, as those do that are tried by themselves
		if err := who.permit(areaDefinitions, accessWrite, in.bus); err != nil {
			return err
		}
	}
	tried, err := a.candidates(r.Context(), &in)
	if err != nil {
		return err
	}
	work := 0
	for _, c := range tried {
		work += (leastWork + len(c.ev.Data)) * (1 + len(rule.Targets))
	}
	if work > maxTriedWork {
		return fault.New(fault.TooLarge, "that is too much for one test: try the rule on fewer, or smaller, events")
	}
	out := testAnswer{Bus: in.bus, Results: []tested{}}
	out.Warnings = a.lint(r.Context(), w, a.kind(kindRule), in.bus, rule.Raw)
	for i := range out.Warnings {
		if in.rule != nil {
			out.Warnings[i].Pointer = "/rule" + out.Warnings[i].Pointer
		}
	}
	call, end := a.functions(r.Context())
	defer end()
	room := maxTriedOutput
	for _, c := range tried {
		if err := r.Context().Err(); err != nil {
			return err
		}
		result := try(rule, c, call, &room)
		if result.Explanation.Matched {
			out.Matched++
		}
		if in.rule == nil { // the target stands for none
			for i := range result.Outputs {
				result.Outputs[i].Target = ""
			}
			if in.transform == nil {
				result.Outputs = nil
			}
		}
		out.Results = append(out.Results, result)
	}
	return w.answer(out)
}

// testAnswer is the answer of POST /v1/rules:test.
type testAnswer struct {
	Bus      string          `json:"bus"`
	Matched  int             `json:"matched"`
	Results  []tested        `json:"results"` // of the events and then the stored ones, in the order of the request
	Warnings []rules.Warning `json:"warnings,omitempty"`
}

type tested struct {
	Event       eventName         `json:"event"`
	Position    string            `json:"position,omitempty"`
	Matched     bool              `json:"matched"`
	Explanation rules.Explanation `json:"explanation"`
	Outputs     []triedOutput     `json:"outputs,omitempty"` // for each target, if it matched
}

type eventName struct {
	ID     string `json:"id"`
	Source string `json:"source"`
	Type   string `json:"type"`
}

// triedOutput is what would be delivered to a target: one of Output, Error and Omitted.
type triedOutput struct {
	Target  string          `json:"target,omitempty"`
	Output  json.RawMessage `json:"output,omitempty"`  // a CloudEvent in JSON format
	Error   string          `json:"error,omitempty"`   // why nothing could be rendered
	Omitted bool            `json:"omitted,omitempty"` // the answer has no room for it
}

// try is what a rule does to an event. room is how many bytes of output the answer still takes.
func try(rule *rules.Rule, c candidate, call rules.CallFunction, room *int) tested {
	out := tested{Event: nameOf(c.ev), Position: c.position, Explanation: rule.Explain(c.ev)}
	if out.Matched = out.Explanation.Matched; !out.Matched {
		return out
	}
	for _, t := range rule.Targets {
		o := triedOutput{Target: t.Target}
		if *room <= 0 {
			o.Omitted = true
			out.Outputs = append(out.Outputs, o)
			continue
		}
		ev, err := t.Transform.Apply(c.ev, rules.RenderContext{Rule: rule.Name, Bus: rule.Bus, Received: c.received, Function: call})
		if err != nil {
			o.Error = err.Error()
		} else if o.Output = event.AppendJSON(nil, ev); len(o.Output) > *room {
			o.Output, o.Omitted, *room = nil, true, 0
		}
		*room -= len(o.Output)
		out.Outputs = append(out.Outputs, o)
	}
	return out
}

// functions runs functions for a test, within its time; call is nil if there are none. end comes after the last call.
func (a *API) functions(ctx context.Context) (call rules.CallFunction, end func()) {
	if a.o.Functions == nil {
		return nil, func() {}
	}
	ctx, cancel := context.WithTimeout(ctx, maxTriedTime)
	run, give := a.o.Functions.Trial(ctx, draftName)
	call = func(name, code string, ev *event.Event) ([]byte, string, error) {
		if ctx.Err() != nil {
			return nil, "", errTriedTime
		}
		return run(name, code, ev)
	}
	return call, func() { give(); cancel() }
}

var errTriedTime = fmt.Errorf("the functions of one test have %s, and that is over", maxTriedTime)

func nameOf(ev *event.Event) eventName { return eventName{ev.ID, ev.Source, ev.Type} }

// explainRules answers why the rules of a bus that are in force, or one of them, match an event or do not.
func (a *API) explainRules(w *reply, r *http.Request) error {
	who, body, err := a.question(w, r)
	if err != nil {
		return err
	}
	var bus, id, source, rule string
	var inline json.RawMessage
	if err := readMembers(body, map[string]any{"bus": &bus, "event": &inline, "id": &id, "source": &source, "rule": &rule}); err != nil {
		return err
	}
	var faults []fault.Detail
	if bus, err = checkBus(bus, "/bus"); err != nil {
		return err
	}
	switch {
	case inline == nil && id == "":
		faults = append(faults, fault.Detail{Pointer: "/event", Detail: "is missing; send an event, or the id of a stored one"})
	case inline != nil && id != "":
		faults = append(faults, fault.Detail{Pointer: "/id", Detail: "is for a stored event, and there is an event already"})
	case inline != nil && source != "":
		faults = append(faults, fault.Detail{Pointer: "/source", Detail: "goes with id, for a stored event"})
	}
	if err := fault.Collect(faults); err != nil {
		return err
	}
	if err := a.mayAsk(r.Context(), who, bus, inline == nil); err != nil {
		return err
	}
	var c candidate
	if inline == nil {
		c, err = a.storedCandidate(r.Context(), bus, id, source)
		err = atID(err, "/id")
	} else {
		c, err = a.inlineCandidate(inline, "/event")
	}
	if err != nil {
		return err
	}
	out := explainAnswer{Bus: bus, Event: nameOf(c.ev), Position: c.position}
	if rule == "" {
		out.Rules, out.RulesMore, err = a.o.Bridge.ExplainEvent(r.Context(), bus, c.ev)
	} else {
		out.Rules = make([]rules.RuleExplanation, 1)
		out.Rules[0], err = a.o.Bridge.ExplainRule(r.Context(), bus, rule, c.ev)
	}
	if err != nil {
		return err
	}
	return w.answer(out)
}

// explainAnswer is the answer of POST /v1/rules:explain.
type explainAnswer struct {
	Bus       string                  `json:"bus"`
	Event     eventName               `json:"event"`
	Position  string                  `json:"position,omitempty"`
	Rules     []rules.RuleExplanation `json:"rules"`
	RulesMore int                     `json:"rulesMore,omitempty"`
}

// question reads a body that asks something. Whoever sends it has a good key; whether the key may ask that is seen once
// the body has said which bus it is about.
func (a *API) question(w *reply, r *http.Request) (caller, []byte, error) {
	who, err := a.identify(w, r)
	if err != nil {
		return who, nil, err
	}
	if _, err := noQuery(r); err != nil {
		return who, nil, err
	}
	if t := r.Header.Get("Content-Type"); t != "" && !isJSONType(t) {
		return who, nil, fault.New(fault.Unsupported, "the body is sent as application/json")
	}
	body, err := a.readBody(r, nil, maxDocument+a.maxBody(event.Batch))
	return who, body, err
}

// mayAsk checks that a key may know the rules of a bus, and its events where stored ones are read.
func (a *API) mayAsk(ctx context.Context, who caller, bus string, stored bool) error {
	if err := who.permit(areaDefinitions, accessRead, bus); err != nil {
		return err
	}
	if stored {
		if err := who.permit(areaEvents, accessRead, bus); err != nil {
			return err
		}
	}
	return a.busExists(ctx, bus)
}

// answer sends v.
func (w *reply) answer(v any) error {
	var b bytes.Buffer
	if err := encodeJSON(&b, v); err != nil {
		return err
	}
	return w.send(http.StatusOK, contentJSON, b.Bytes())
}

// readMembers reads the members of an object: into has a place for each name. All that is wrong is said at once.
func readMembers(doc []byte, into map[string]any) error {
	ms, err := members(doc)
	if err != nil {
		return err
	}
	var faults []fault.Detail
	for _, m := range ms {
		place, ok := into[m.name]
		switch {
		case !ok:
			names := make([]string, 0, len(into))
			for name := range into {
				names = append(names, name)
			}
			slices.Sort(names)
			faults = append(faults, fault.Detail{Pointer: fault.Pointer(m.name), Detail: "is not known here; there are " + strings.Join(names, ", ")})
		case json.Unmarshal(m.value, place) != nil:
			faults = append(faults, fault.Detail{Pointer: fault.Pointer(m.name), Detail: "must be " + placeName(place)})
		}
	}
	return fault.Collect(faults[:min(len(faults), maxComplaints)])
}

// maxComplaints is how many complaints one answer lists.
const maxComplaints = 20

func placeName(place any) string {
	if _, ok := place.(*string); ok {
		return "a string"
	}
	return "a list"
}

// withLacking returns an object with the members that it lacks.
func withLacking(doc []byte, lacking ...member) ([]byte, error) {
	ms, err := members(doc)
	if err != nil {
		return nil, err
	}
	for _, l := range lacking {
		if !slices.ContainsFunc(ms, func(m member) bool { return m.name == l.name }) {
			ms = append(ms, l)
		}
	}
	return join(ms)
}

func textMember(name, value string) member {
	return member{name, appendJSONString(nil, value)}
}

// checkBus returns the bus that is meant, the default one if none is.
func checkBus(bus, pointer string) (string, error) {
	if bus == "" {
		return builtinBus, nil
	}
	if why := bridge.CheckName(bus); why != "" {
		return "", fault.Invalidf(pointer, "%s", why)
	}
	return bus, nil
}

// builtinBus is the bus of what does not name one.
const builtinBus = "default"

// onBus is the bus that the request is about: it says so, or its rule does.
func (in *testRequest) onBus() (string, error) {
	if in.rule == nil {
		return checkBus(in.bus, "/bus")
	}
	ms, err := members(in.rule)
	if err != nil {
		return "", fault.At("/rule", err)
	}
	i := slices.IndexFunc(ms, func(m member) bool { return m.name == "bus" })
	if i < 0 {
		return checkBus(in.bus, "/bus")
	}
	var bus string
	if json.Unmarshal(ms[i].value, &bus) != nil {
		return "", fault.Invalidf("/rule/bus", "must be a string")
	}
	if in.bus != "" && in.bus != bus {
		return "", fault.Invalidf("/rule/bus", "must be as the bus beside the rule, or one of them left out")
	}
	return checkBus(bus, "/rule/bus")
}

// compile makes the rule that is tried, out of a document or of its parts.
func (in *testRequest) compile() (*rules.Rule, error) {
	parts := []member{{"pattern", in.pattern}, {"when", in.when}, {"sql", in.sql}, {"transform", in.transform}}
	parts = slices.DeleteFunc(parts, func(m member) bool { return m.value == nil })
	if in.rule != nil {
		var faults []fault.Detail
		for _, p := range parts {
			faults = append(faults, fault.Detail{Pointer: "/" + p.name, Detail: "belongs into the rule, when there is one"})
		}
		if err := fault.Collect(faults); err != nil {
			return nil, err
		}
		doc, err := withLacking(in.rule, textMember("kind", kindRule), textMember("name", draftName), textMember("bus", in.bus))
		if err != nil {
			return nil, fault.At("/rule", err)
		}
		rule, err := rules.ParseRule(doc)
		return rule, fault.At("/rule", err)
	}
	target := []member{textMember("target", draftName)}
	if in.transform != nil {
		target = append(target, parts[len(parts)-1])
		parts = parts[:len(parts)-1]
	}
	one, err := join(target)
	if err != nil {
		return nil, err
	}
	head := []member{textMember("kind", kindRule), textMember("name", draftName), textMember("bus", in.bus), {"targets", slices.Concat([]byte{'['}, one, []byte{']'})}}
	doc, err := join(append(head, parts...))
	if err != nil {
		return nil, err
	}
	rule, err := rules.ParseRule(doc)
	var f *fault.Error
	if errors.As(err, &f) {
		moved := *f
		moved.Details = slices.Clone(f.Details)
		for i, d := range moved.Details {
			moved.Details[i].Pointer = strings.TrimPrefix(d.Pointer, "/targets/0")
		}
		return nil, &moved
	}
	return rule, err
}

// candidates returns the events of a request, those that it holds and then those that it names.
func (a *API) candidates(ctx context.Context, in *testRequest) ([]candidate, error) {
	switch n := len(in.events) + len(in.stored); {
	case n == 0:
		return nil, fault.Invalidf("/events", "is missing; send events, or name stored ones in stored")
	case n > maxTried:
		return nil, fault.New(fault.TooLarge, "one test takes at most %d events", maxTried)
	}
	var out []candidate
	for i, raw := range in.events {
		c, err := a.inlineCandidate(raw, "/events/"+strconv.Itoa(i))
		if err != nil {
			return nil, err
		}
		out = append(out, c)
	}
	for i, raw := range in.stored {
		at := "/stored/" + strconv.Itoa(i)
		var id, source string
		err := readMembers(raw, map[string]any{"id": &id, "source": &source})
		if err == nil && id == "" {
			err = fault.Invalidf("/id", "is missing")
		}
		if err != nil {
			return nil, fault.At(at, err)
		}
		c, err := a.storedCandidate(ctx, in.bus, id, source)
		if err != nil {
			return nil, atID(err, at+"/id")
		}
		out = append(out, c)
	}
	return out, nil
}

// atID points at the id of a stored event that is not there; other errors stay as they are.
func atID(err error, pointer string) error {
	if err != nil && fault.KindOf(err) == fault.NotFound {
		return fault.At(pointer, err)
	}
	return err
}

func (a *API) storedCandidate(ctx context.Context, bus, id, source string) (candidate, error) {
	found, err := a.o.Bridge.Find(ctx, bus, id, source)
	if err != nil {
		return candidate{}, err
	}
	return candidate{found.Event, found.Position.String(), found.Received}, nil
}

// inlineCandidate reads an event. What it lacks of the required attributes is filled in, so that one can be written by
// hand.
func (a *API) inlineCandidate(raw json.RawMessage, pointer string) (candidate, error) {
	doc, err := withLacking(raw, textMember("specversion", "1.0"), textMember("id", draftName), textMember("source", "/"+draftName), textMember("type", draftName))
	if err != nil {
		return candidate{}, fault.At(pointer, err)
	}
	ev, err := event.ParseJSON(doc, a.o.Limits)
	var e *event.Error
	if errors.As(err, &e) {
		kind := fault.Invalid
		if e.TooLarge {
			kind = fault.TooLarge
		}
		return candidate{}, &fault.Error{Kind: kind, Message: e.Error(), Details: []fault.Detail{{Pointer: pointer + e.Pointer(), Detail: e.Reason}}}
	}
	return candidate{ev: &ev, received: a.o.Now()}, err
}

// lint returns what is doubtful about a document that can be stored. Stored events are asked only for those who may read
// them, since a doubt names what they hold.
func (a *API) lint(ctx context.Context, w *reply, k *Kind, bus string, doc []byte) []rules.Warning {
	if k == nil || k.Lint == nil {
		return nil
	}
	return k.Lint(ctx, doc, w.who.permit(areaEvents, accessRead, bus) == nil)
}
