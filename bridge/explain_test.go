// SPDX-License-Identifier: Apache-2.0

package bridge_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/rialto-bridge/rialto/bridge"
	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/rules"
)

// document adds a rule as it is written, all but kind, bus and targets.
func (f *fixture) document(name, members string) {
	f.t.Helper()
	r, err := rules.ParseRule(fmt.Appendf(nil, `{"kind":"Rule","name":%q,"bus":"default","targets":[{"target":"ops"}],%s}`, name, members))
	f.must(err)
	f.rev++
	r.Revision = f.rev
	f.setRules(append(f.rules, r))
}

var reading = &event.Event{ID: "1", Source: "/box", Type: "reading", DataContentType: "application/json", Data: []byte(`{"t":"9","door":"shut"}`)}

func TestExplainEvent(t *testing.T) {
	f := newFixture(t)
	f.document("off", `"disabled":true,"pattern":{"type":["reading"]}`)
	f.document("far", `"pattern":{"type":["other"],"data":{"t":[1],"door":["open"]}}`)
	f.document("near", `"pattern":{"type":["reading"],"data":{"door":["open"]}}`)
	f.document("hit", `"pattern":{"type":["reading"]}`)
	f.start()
	defer f.stop(time.Second)
	got, more, err := f.ExplainEvent(t.Context(), "default", reading)
	f.must(err)
	var order []string
	for _, x := range got {
		order = append(order, fmt.Sprintf("%s %t %t %d", x.Rule, x.Matched, x.Disabled, x.Revision))
	}
	want := []string{"hit true false 4", "near false false 3", "far false false 2", "off true true 1"}
	if diff := cmp.Diff(want, order); diff != "" || more != 0 {
		t.Errorf("%d more, order (-want +got):\n%s", more, diff)
	}
	one, err := f.ExplainRule(t.Context(), "default", "near", reading)
	f.must(err)
	if diff := cmp.Diff(got[1], one); diff != "" {
		t.Errorf("one rule is not explained as among all (-all +one):\n%s", diff)
	}

	for range rules.MaxExplained {
		f.rule(fmt.Sprintf("more-%d", len(f.rules)), "reading", "ops")
	}
	if got, more, err = f.ExplainEvent(t.Context(), "default", reading); err != nil || len(got) != rules.MaxExplained || more != 4 {
		t.Errorf("of 104 rules %d are explained, and %d more (%v)", len(got), more, err)
	}
}

func TestExplainNothing(t *testing.T) {
	f := newFixture(t).start()
	defer f.stop(time.Second)
	doc, err := bridge.ParseBus([]byte(`{"kind":"Bus","name":"young"}`))
	f.must(err)
	f.must(f.SetBus(t.Context(), doc))
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for _, c := range []struct {
		name, bus, rule string
		ctx             context.Context
		kind            fault.Kind
	}{
		{"no bus", "none", "x", t.Context(), fault.NotFound},
		{"no rules yet", "young", "x", t.Context(), fault.Unavailable},
		{"no rule", "default", "x", t.Context(), fault.NotFound},
		{"nobody waits", "default", "x", gone, fault.Internal},
	} {
		if _, err := f.ExplainRule(c.ctx, c.bus, c.rule, reading); err == nil || fault.KindOf(err) != c.kind {
			t.Errorf("%s: ExplainRule = %v, want %v", c.name, err, c.kind)
		}
		if _, _, err := f.ExplainEvent(c.ctx, c.bus, reading); (err == nil) != (c.name == "no rule") {
			t.Errorf("%s: ExplainEvent = %v", c.name, err)
		}
	}
}

// Paths are those of stored events that have the attributes the rule wants.
func TestObserved(t *testing.T) {
	f := newFixture(t).start()
	defer f.stop(time.Second)
	r, err := rules.ParseRule([]byte(`{"name":"r","pattern":{"type":["reading"],"data":{"m":[1]}},"targets":[{"target":"a"}]}`))
	f.must(err)
	ids := make([]string, 60)
	for i := range ids {
		ids[i] = fmt.Sprint(i)
	}
	observed := func() rules.Paths {
		t.Helper()
		seen, err := f.Observed(t.Context(), r)
		f.must(err)
		return seen
	}
	if seen := observed(); seen != nil {
		t.Errorf("of an empty bus: %v", seen)
	}
	f.send("other", ids...)
	f.send("reading", ids[:19]...) // dropped, the ids are known
	if seen := observed(); seen != nil {
		t.Errorf("none of that type is stored: %v", seen)
	}
	for i := range ids {
		ids[i] = fmt.Sprint("r", i)
	}
	f.send("reading", ids[:19]...)
	if seen := observed(); seen != nil {
		t.Errorf("of 19 events: %v", seen)
	}
	f.send("reading", ids[19:]...)
	if seen := observed(); seen["data.n"] != 60 || seen["type"] != 60 || seen["data.m"] != 0 {
		t.Errorf("of 60 events: %v", seen)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := f.Observed(gone, r); err == nil {
		t.Error("nobody waits, and it reads on")
	}
	r.Bus = "none"
	if _, err := f.Observed(t.Context(), r); fault.KindOf(err) != fault.NotFound {
		t.Errorf("of no bus: %v", err)
	}
}

// What fails while an event is routed is counted, and the rule does not match.
func TestExpressionErrors(t *testing.T) {
	f := newFixture(t)
	reg := prometheus.NewRegistry()
	f.opts.Registerer = reg
	f.document("wrong", `"pattern":{"type":["reading"]},"when":"data.n > data.list"`)
	f.document("right", `"pattern":{"type":["reading"]},"when":"data.n > 5"`)
	f.start()
	defer f.stop(time.Second)
	f.send("reading", "1", "2", "3")
	f.journey("3", bridge.StateUnmatched)
	families, err := reg.Gather()
	f.must(err)
	for _, m := range families {
		if m.GetName() != "rialto_rule_expression_errors_total" {
			continue
		}
		if len(m.Metric) != 1 || m.Metric[0].Counter.GetValue() != 3 || m.Metric[0].Label[0].GetValue() != "default" {
			t.Errorf("expression errors are counted as %v, want 3 on the bus default", m)
		}
		return
	}
	t.Error("expression errors are not counted")
}
