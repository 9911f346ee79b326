// SPDX-License-Identifier: Apache-2.0

package rules_test

import (
	"fmt"
	"log"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/rules"
)

// warm is a reading of a box.
func warm() *event.Event {
	return &event.Event{
		ID: "1", Source: "/box/2", Type: "com.acme.telemetry", Subject: "truck/17/box/2",
		DataContentType: "application/json", Data: []byte(`{"temperature":9.1,"door":"closed"}`),
	}
}

func Example() {
	rule, err := rules.ParseRule([]byte(`{
		"kind": "Rule", "name": "too-warm", "bus": "devices",
		"pattern": {"type": ["com.acme.telemetry"], "data": {"temperature": [{"numeric": [">", 8]}]}},
		"targets": [{"target": "ops-webhook", "transform": {"template": {"text": "${subject} is at ${data.temperature} C"}}}]
	}`))
	if err != nil {
		log.Fatal(err)
	}
	index, err := rules.Compile([]*rules.Rule{rule})
	if err != nil {
		log.Fatal(err)
	}

	ev := warm()
	var scratch rules.Scratch // one for each goroutine, for any number of events
	matches, err := index.Match(ev, &scratch, nil)
	if err != nil {
		log.Fatal(err)
	}
	for _, m := range matches {
		for _, target := range m.Rule.Targets {
			out, err := target.Transform.Apply(ev, rules.RenderContext{Rule: m.Rule.Name, Bus: m.Rule.Bus, Received: time.Now()})
			if err != nil {
				log.Fatal(err)
			}
			fmt.Printf("%s -> %s: %s\n", m.Rule.Name, target.Target, out.Data)
		}
	}
	// Output: too-warm -> ops-webhook: {"text":"truck/17/box/2 is at 9.1 C"}
}

func ExampleRule_Explain() {
	rule, err := rules.ParseRule([]byte(`{"name": "open-doors", "targets": [{"target": "ops-webhook"}],
		"pattern": {"type": ["com.acme.telemetry"], "data": {"door": ["open"], "temprature": [{"numeric": [">", 8]}]}}}`))
	if err != nil {
		log.Fatal(err)
	}
	for _, clause := range rule.Explain(warm()).Clauses {
		fmt.Printf("%s %s: want %s, got %s\n", clause.Verdict, clause.Path, clause.Expected, clause.Actual)
		if clause.Hint != "" {
			fmt.Println("  hint:", clause.Hint)
		}
	}
	// Output:
	// matched type: want ["com.acme.telemetry"], got "com.acme.telemetry"
	// failed data.door: want ["open"], got "closed"
	// failed data.temprature: want [{"numeric":[">",8]}], got absent
	//   hint: the event has: data.temperature
}

func ExampleParsePattern() {
	_, err := rules.ParsePattern([]byte(`{"type": "com.acme.order", "data": {"total": [{"numerc": [">", 8]}]}}`))
	fmt.Println(err)
	// Output: invalid pattern: /type: a field takes a list of values: write ["com.acme.order"] instead of "com.acme.order"; /data/total/0/numerc: unknown operator; did you mean numeric?
}
