// SPDX-License-Identifier: Apache-2.0

package region

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// All goes over, as it was, and in order.
func TestLinkForwards(t *testing.T) {
	n, f := newNear(t), newFar(t).start()
	n.region(f.srv.URL, "")
	n.link(everything + `,"ordering":"log"`)
	n.append(300)
	n.start()
	n.append(300)
	st := n.settle()
	if a := st.Account; a.Main.Forwarded != 600 || a.Difference != 0 || a.Main.Covered != 600 || st.Instance != "far" {
		t.Errorf("account %+v of %+v", a, st)
	}
	bus := n.bus("default")
	for i, r := range f.records() {
		e, err := bus.Get(t.Context(), uint64(i+1))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(e.Record, r.rec); diff != "" || r.hop.Position.Seq != e.Seq {
			t.Fatalf("event %d differs (-near +far):\n%s", i+1, diff)
		}
	}
	if len(f.records()) != 600 {
		t.Errorf("%d events arrived", len(f.records()))
	}
}
