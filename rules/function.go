// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
)

// CallFunction has a function make the data of an event. code is the digest of the version that is asked for; "" = the one
// in force. For the same function, code and event the result is the same, if the rule's owner can promise that.
type CallFunction func(name, code string, ev *event.Event) (data []byte, contentType string, err error)

// functionCall is the transform function.
type functionCall struct {
	name string
	code string // sha256:<hex>; "" = not pinned
}

var errNoFunctions = errors.New("functions are not run here")

var codePattern = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

func (p *ruleParser) function(fields map[string]int32) (*Transform, error) {
	name := &p.doc.nodes[fields["function"]]
	if name.kind != kindString || !isName(string(name.text)) {
		return nil, fault.Invalidf("/function", "must be the name of a function")
	}
	call := &functionCall{name: string(name.text)}
	if i, ok := fields["code"]; ok {
		n := &p.doc.nodes[i]
		if n.kind != kindString || !codePattern.Match(n.text) {
			return nil, fault.Invalidf("/code", "must be the digest of a version: sha256: and 64 hexadecimal digits")
		}
		call.code = string(n.text)
	}
	return &Transform{function: call}, nil
}

// call returns what the function makes of an event.
func (f *functionCall) call(ev *event.Event, rc RenderContext) (data []byte, contentType string, err error) {
	if rc.Function == nil {
		return nil, "", errNoFunctions
	}
	return rc.Function(f.name, f.code, ev)
}

// Functions lists the functions that the transforms of a rule name; one may be there several times.
func (r *Rule) Functions() []string {
	var names []string
	for _, t := range r.Targets {
		if t.Transform != nil && t.Transform.function != nil {
			names = append(names, t.Transform.function.name)
		}
	}
	return names
}

// Code lists the versions of functions that the rule itself pins, as sha256:<hex>; one may be there several times.
func (r *Rule) Code() []string {
	var digests []string
	for _, t := range r.Targets {
		if t.Transform != nil && t.Transform.function != nil && t.Transform.function.code != "" {
			digests = append(digests, t.Transform.function.code)
		}
	}
	return digests
}

// Pinned returns the rule with the version of each function that its transforms name, where the rule does not say it: what
// code returns, "" = it is not known. So the rule, and its Raw, render the same for ever. The revision is as it was.
func (r *Rule) Pinned(code func(name string) string) (*Rule, error) {
	if len(r.Functions()) == 0 {
		return r, nil
	}
	var doc map[string]json.RawMessage
	var list []map[string]json.RawMessage
	if err := json.Unmarshal(r.Raw, &doc); err != nil {
		return nil, fmt.Errorf("pin rule %s: %w", r.Name, err)
	}
	if err := json.Unmarshal(doc["targets"], &list); err != nil {
		return nil, fmt.Errorf("pin rule %s: %w", r.Name, err)
	}
	for i, t := range r.Targets {
		if t.Transform == nil || t.Transform.function == nil || t.Transform.function.code != "" {
			continue
		}
		if digest := code(t.Transform.function.name); digest != "" {
			list[i]["transform"] = fmt.Appendf(nil, `{"function":%q,"code":%q}`, t.Transform.function.name, digest)
		}
	}
	var err error
	if doc["targets"], err = json.Marshal(list); err != nil {
		return nil, fmt.Errorf("pin rule %s: %w", r.Name, err)
	}
	raw, err := json.Marshal(doc)
	if err != nil {
		return nil, fmt.Errorf("pin rule %s: %w", r.Name, err)
	}
	pinned, err := ParseRule(raw)
	if err != nil {
		return nil, fmt.Errorf("pin rule %s: %w", r.Name, err)
	}
	pinned.Revision = r.Revision
	return pinned, nil
}
