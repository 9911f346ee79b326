// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/store/files"
	"github.com/rialto-bridge/rialto/rules"
)

// question is what the flags of explain say.
type question struct{ rule, bus, event, source string }

func newExplain(c *cli) *cobra.Command {
	var q question
	cmd := &cobra.Command{
		Use:   "explain --event ID|FILE|- [--rule NAME|FILE]",
		Short: "Say why rules match an event, or why they do not",
		Long: `Say why a rule matches an event, or why it does not, clause by clause; without --rule, all rules of
the bus, those that match first and then those that nearly do.

The event is one that is stored, by its id, or a file with a CloudEvent in JSON or YAML (- is stdin),
whose id, source and type may be missing. The rule is one that is in force, by its name, or a file
with a rule: anything that cannot be a name, such as ./warm.yaml. Two files need no server.
Journeys tell the same of the rules that were in force when the event was routed.`,
		Example: `  rialto explain --event 0192f0c1-7d3a-7c11-a1b2-6f0e5a9d1c17
  rialto explain --rule too-warm --event reading.json
  rialto explain --rule ./too-warm.yaml --event reading.json -o json`,
		Args: arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error { return c.explain(cmd.Context(), q) },
	}
	f := cmd.Flags()
	f.StringVar(&q.event, "event", "", "id of a stored event, a file, or - for stdin")
	f.StringVar(&q.rule, "rule", "", "name of a rule, or a file with one (default: all rules of the bus)")
	f.StringVar(&q.bus, "bus", "", "bus of the rule and the event (default: the one that has them)")
	f.StringVar(&q.source, "source", "", "source of a stored event, when several events have this id")
	return cmd
}

// subject is the event that is asked about.
type subject struct {
	raw        json.RawMessage // CloudEvent
	id, source string
	bus        string // where it is stored; "" for a file
	position   string
}

// verdicts is the answer to a question, as the server gives it.
type verdicts struct {
	Bus   string `json:"bus"`
	Event struct {
		ID     string `json:"id"`
		Source string `json:"source"`
		Type   string `json:"type"`
	} `json:"event"`
	Position  string                  `json:"position,omitempty"`
	Rules     []rules.RuleExplanation `json:"rules"`
	RulesMore int                     `json:"rulesMore,omitempty"`
}

func (c *cli) explain(ctx context.Context, q question) error {
	switch {
	case q.event == "":
		return usagef("explain needs --event with an id, a file or -")
	case q.event == "-" && q.rule == "-":
		return usagef("stdin is either the event or the rule")
	}
	s, err := c.subject(ctx, q)
	if err != nil {
		return err
	}
	var answer json.RawMessage
	if q.rule == "" || resourceName.MatchString(q.rule) {
		answer, err = c.ask(ctx, q, s)
	} else {
		answer, err = c.explainFile(q, s)
	}
	if err != nil {
		return err
	}
	var v verdicts
	if err := json.Unmarshal(answer, &v); err != nil {
		return fmt.Errorf("unreadable answer: %w", err)
	}
	foreign := ""
	if s.bus != "" && s.bus != v.Bus {
		foreign = fmt.Sprintf("the event is on bus %s and the rule on bus %s: a rule takes events of its own bus only", clean(s.bus), clean(v.Bus))
		if c.output != "table" {
			fmt.Fprintln(c.err, foreign)
		}
	}
	return c.print(answer, func(w io.Writer) error {
		_, err := io.WriteString(w, drawVerdicts(s, v, q.rule != "", foreign, palette(c.colour)))
		return err
	})
}

// subject finds the event: a file of this name, or else a stored one with this id.
func (c *cli) subject(ctx context.Context, q question) (subject, error) {
	info, statErr := os.Stat(q.event)
	if q.event == "-" || statErr == nil && info.Mode().IsRegular() {
		if q.source != "" {
			return subject{}, usagef("--source is for a stored event, and --event is a file")
		}
		raw, err := c.readEvent(q.event)
		if err != nil {
			return subject{}, fmt.Errorf("%s: %w", q.event, err)
		}
		return subject{raw: raw}, nil
	}
	cl, err := c.client()
	if err != nil {
		return subject{}, err
	}
	raw, bus, err := cl.findEvent(ctx, q.bus, q.event, q.source, 0)
	if err != nil {
		if exitCode(err) == exitNotFound && slices.Contains(files.Endings, filepath.Ext(q.event)) {
			err = fmt.Errorf("there is no such file, and %w", err)
		}
		return subject{}, err
	}
	var story struct {
		Event    json.RawMessage `json:"event"`
		Position string          `json:"position"`
	}
	var name struct{ ID, Source string }
	if err := errors.Join(json.Unmarshal(raw, &story), json.Unmarshal(story.Event, &name)); err != nil {
		return subject{}, fmt.Errorf("unreadable answer: %w", err)
	}
	return subject{raw: story.Event, id: name.ID, source: name.Source, bus: bus, position: story.Position}, nil
}

// readEvent reads one CloudEvent, also one that a command has printed with its position and journey. What it lacks of
// the required attributes is filled in.
func (c *cli) readEvent(name string) (json.RawMessage, error) {
	r := io.NopCloser(c.in)
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		r = f
	}
	text, err := readAll(r)
	if err := errors.Join(err, r.Close()); err != nil {
		return nil, err
	}
	values, err := files.Split(text)
	switch {
	case err != nil:
		return nil, err
	case len(values) != 1:
		return nil, fmt.Errorf("holds %s; one is explained at a time", count(len(values), "event"))
	}
	fields, order, err := objectFields(values[0])
	if err != nil {
		return nil, errors.New("an event is a JSON object")
	}
	if inner, ok := fields["event"]; ok && fields["position"] != nil {
		return inner, nil
	}
	for _, lacking := range [][2]string{{"specversion", "1.0"}, {"id", "test"}, {"source", "/test"}, {"type", "test"}} {
		if _, ok := fields[lacking[0]]; !ok {
			fields[lacking[0]] = json.RawMessage(`"` + lacking[1] + `"`)
			order = append(order, lacking[0])
		}
	}
	return writeObject(fields, order)
}

// ask has the server explain the rules in force.
func (c *cli) ask(ctx context.Context, q question, s subject) (json.RawMessage, error) {
	cl, err := c.client()
	if err != nil {
		return nil, err
	}
	bus := orDefault(q.bus, s.bus)
	if bus == "" && q.rule != "" {
		r, err := cl.resolve(ctx, resource{kind: ruleKind, name: q.rule})
		if err != nil {
			return nil, err
		}
		bus = r.bus
	}
	answer, err := cl.why(ctx, orDefault(bus, defaultBus), q.rule, s)
	if exitCode(err) != exitNotFound || q.rule == "" || q.bus != "" || s.bus == "" {
		return answer, err
	}
	// Perhaps the rule is on another bus than the event: then that is why.
	r, err := cl.resolve(ctx, resource{kind: ruleKind, name: q.rule})
	if err != nil {
		return nil, err
	}
	return cl.why(ctx, r.bus, q.rule, s)
}

// why asks a bus about an event, which it has or is sent.
func (cl *client) why(ctx context.Context, bus, rule string, s subject) (json.RawMessage, error) {
	body := map[string]any{"bus": bus}
	if rule != "" {
		body["rule"] = rule
	}
	if s.bus == bus {
		body["id"], body["source"] = s.id, s.source
	} else {
		body["event"] = s.raw
	}
	text, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	a, err := cl.do(ctx, request{Method: http.MethodPost, Path: "/v1/rules:explain", Body: text,
		Header: http.Header{"Content-Type": {"application/json"}}})
	if err != nil {
		return nil, err
	}
	return a.Body, nil
}

// explainFile explains the rules of a file without a server.
func (c *cli) explainFile(q question, s subject) (json.RawMessage, error) {
	docs, err := c.readDocuments([]string{q.rule})
	if err != nil {
		return nil, err
	}
	ev, err := event.ParseJSON(s.raw, event.Limits{MaxData: maxPublishData})
	if err != nil {
		return nil, fmt.Errorf("%s: the event is refused: %w", q.event, err)
	}
	v := verdicts{Position: s.position}
	v.Event.ID, v.Event.Source, v.Event.Type = ev.ID, ev.Source, ev.Type
	for _, doc := range docs {
		if doc.kind.name != "Rule" || q.bus != "" && doc.bus != q.bus {
			continue
		}
		r, err := rules.ParseRule(doc.Raw)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", doc.Place(), err)
		}
		if v.Bus == "" {
			v.Bus = r.Bus
		}
		v.Rules = append(v.Rules, rules.RuleExplanation{Rule: r.Name, Bus: r.Bus, Disabled: r.Disabled, Explanation: r.Explain(&ev)})
	}
	if len(v.Rules) == 0 {
		return nil, usagef("there is no rule in %s", q.rule)
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err = enc.Encode(v)
	return b.Bytes(), err
}
