// SPDX-License-Identifier: Apache-2.0

package wasm_test

import (
	"slices"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/targets/wasm"
)

// The bars, for a call of a function that has begun, with its time limit and with nothing left of the event before.
const (
	mostSmall = 80 * time.Microsecond // of a module that looks at nothing
	mostGo    = time.Millisecond      // of a Go module that edits a KiB of JSON
)

func TestGateWasm(t *testing.T) {
	for name, c := range map[string]struct {
		code []byte
		most time.Duration
	}{"small": {shout(t), mostSmall}, "Go": {inGo(t, "c-shared"), mostGo}} {
		f := function(t, wasm.Options{}, c.code, nil)
		took := make([]time.Duration, 1000)
		for i := range took {
			began := time.Now()
			if _, err := f.Call(t.Context(), wasm.Call{Delivery: "dlv_1", Event: oneKiB}); err != nil {
				t.Fatal(err)
			}
			took[i] = time.Since(began)
		}
		// The fastest twentieth: what it takes when nothing else wants the processor.
		slices.Sort(took)
		if got := took[len(took)/20]; got > c.most {
			t.Errorf("%s: a call takes %v, want at most %v", name, got, c.most)
		} else {
			t.Logf("%s: a call takes %v", name, got)
		}
	}
}
