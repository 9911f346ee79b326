// SPDX-License-Identifier: Apache-2.0

//go:build !race

// Several blocks of both streams have to be written, which takes the race detector ten times as long.

package bridge_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/bridge"
	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/rules"
)

// large adds a rule whose document is about as large as one may be.
func (f *fixture) large(name string) {
	f.t.Helper()
	f.rev++
	r, err := rules.ParseRule(fmt.Appendf(nil, `{"kind":"Rule","name":%q,"pattern":{"type":["reading"]},
		"targets":[{"target":"ops","transform":{"constant":%q}}]}`, name, strings.Repeat("x", 250<<10)))
	f.must(err)
	r.Revision = f.rev
	for i, old := range f.rules {
		if old.Name == name {
			f.rules = append(f.rules[:i:i], f.rules[i+1:]...)
			break
		}
	}
	f.setRules(append(f.rules[:len(f.rules):len(f.rules)], r))
}

// Retention takes whole blocks of both streams, and what is left is enough to build the views anew.
func TestRetentionLeavesAnAccountThatBalances(t *testing.T) {
	f := newFixture(t)
	ops := f.target("ops", `{}`, nil)
	f.start()
	ctx := context.Background()
	f.send("other", "before")
	f.balanced()
	f.stop(time.Second)
	old := filepath.Join(t.TempDir(), "old")
	f.must(os.CopyFS(old, os.DirFS(f.views())))
	f.start()
	f.must(f.SetBus(ctx, &bridge.BusDoc{Name: "default", MaxAge: time.Hour, MaxBytes: 1, DedupWindow: time.Minute}))
	data := make([]byte, 400<<10)
	const n = 72
	for i := range n {
		f.large("all")
		rec := &event.Record{Event: event.Event{ID: fmt.Sprint(i), Source: "/test", Type: "reading", Data: data}}
		if _, err := f.Ingest(ctx, "default", []*event.Record{rec}); err != nil {
			t.Fatal(err)
		}
		ops.attempts(t, i+1)
	}
	f.balanced()
	f.must(f.Trim(ctx, "default"))
	first, _, journeyFirst, journeyLast, err := f.Streams("default")
	f.must(err)
	if first == 1 || journeyFirst == 1 {
		t.Fatalf("nothing was trimmed: events from %d, JOURNEY from %d", first, journeyFirst)
	}
	f.must(f.Trim(ctx, "default"))
	if _, _, _, again, err := f.Streams("default"); err != nil || again > journeyLast+2 { // a floor may come
		t.Errorf("JOURNEY grew from %d to %d by trimming once more, %v", journeyLast, again, err)
	}
	f.balanced()
	f.stop(time.Second)
	for _, views := range []string{"kept", "deleted", "older than what is left"} {
		if views != "kept" {
			f.must(os.RemoveAll(f.views()))
		}
		if views == "older than what is left" {
			f.must(os.CopyFS(f.views(), os.DirFS(old)))
		}
		f.start()
		f.balanced()
		for seq := first; seq <= n+1; seq++ {
			found := f.journey(fmt.Sprint(seq-2), bridge.StateDelivered)
			if v := found.Journey.Rules; len(v) != 1 || v[0].Explanation == nil {
				t.Errorf("views %s: verdicts of %d: %+v", views, seq, v)
			}
		}
		f.stop(time.Second)
	}
}
