// SPDX-License-Identifier: Apache-2.0

package bridge_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/internal/fault"
)

// Types are known after a restart, since the log knows them; what was routed is counted anew.
func TestTraffic(t *testing.T) {
	f := newFixture(t)
	clock := f.useClock()
	f.start()
	f.send("order.placed", "1", "2", "3")
	f.send("order.sent", "4")
	shown := func() string {
		tr, err := f.Traffic(context.Background(), "default")
		f.must(err)
		out := ""
		for _, x := range tr.Types {
			out += fmt.Sprintf("%s stored %d routed %d from %s;", x.Type, x.Stored, x.Routed, x.Sources)
		}
		return out
	}
	f.eventually(func() (string, bool) {
		clock.pass(time.Minute) // what the log says is kept for a while
		got := shown()
		return got, got == "order.placed stored 3 routed 3 from [/test];order.sent stored 1 routed 1 from [/test];"
	})
	f.stop(time.Second)
	f.start()
	defer f.stop(time.Second)
	if got := shown(); got != "order.placed stored 3 routed 0 from [];order.sent stored 1 routed 0 from [];" {
		t.Errorf("after a restart: %s", got)
	}
	if _, err := f.Traffic(context.Background(), "none"); fault.KindOf(err) != fault.NotFound {
		t.Errorf("of a bus that is not there: %v", err)
	}
}

func TestRulesInForce(t *testing.T) {
	f := newFixture(t)
	f.target("b", `{"ordering":"key","orderBy":"subject"}`, nil)
	f.target("a", `{}`, nil)
	f.rule("two", "x", "a")
	f.rule("one", "x", "b")
	f.start()
	defer f.stop(time.Second)
	list, err := f.Rules(context.Background(), "default")
	f.must(err)
	names := []string{}
	for _, r := range list {
		names = append(names, r.Name)
	}
	if !slices.Equal(names, []string{"one", "two"}) {
		t.Errorf("rules %v", names)
	}
	if o := f.Ordering("b"); o == nil || o.Reads()[0].Path.String() != "/subject" {
		t.Errorf("the order of b: %+v", o)
	}
	if f.Ordering("a") != nil || f.Ordering("none") != nil {
		t.Error("there is an order that nobody asked for")
	}
}
