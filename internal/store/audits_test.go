// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/store"
)

// entries is a log in memory, the newest first.
type entries []store.AuditEntry

func (e entries) Audit(_ context.Context, q store.AuditQuery) (store.AuditPage, error) {
	return q.Select(slices.Values(e))
}

// Pages of every size tell every entry of every log once and in the order of its log, also where clocks went back.
func TestAuditsMerge(t *testing.T) {
	base := time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)
	log := func(kind string, minutes ...int) (e entries) {
		for i, m := range minutes {
			e = append(e, store.AuditEntry{Key: store.Key{Kind: kind, Name: fmt.Sprint(m)}, At: base.Add(time.Duration(m) * time.Minute), Revision: uint64(len(minutes) - i)})
		}
		return e
	}
	a, b, c := log("A", 9, 7, 8, 7, 1), log("b", 10, 7, 2, 3), log("C")
	all := store.Audits{a, store.OfKind{Log: b, Stored: "b", Shown: "B"}, store.OfKind{Log: b, Stored: "none", Shown: "None"}, c}
	want := "B10 A9 A7 A8 A7 B7 B2 B3 A1"
	for limit := 1; limit <= 10; limit++ {
		var got []string
		q := store.AuditQuery{Limit: limit}
		for pages := 0; ; pages++ {
			p, err := all.Audit(t.Context(), q)
			if err != nil || pages > 10 {
				t.Fatalf("limit %d: %v after %d pages", limit, err, pages)
			}
			if len(p.Items) > limit || p.Cursor != "" && len(p.Items) < limit {
				t.Errorf("limit %d: a page of %d", limit, len(p.Items))
			}
			for _, e := range p.Items {
				got = append(got, e.Kind+e.Name)
			}
			if q.After = p.Cursor; q.After == "" {
				break
			}
		}
		if text := strings.Join(got, " "); text != want {
			t.Errorf("limit %d: %s, want %s", limit, text, want)
		}
	}
	p, err := all.Audit(t.Context(), store.AuditQuery{Kind: "B", Name: "7"})
	if err != nil || len(p.Items) != 1 || p.Items[0].Kind != "B" || p.Cursor != "" {
		t.Errorf("one kind: %+v, %v", p, err)
	}
	for _, cursor := range []string{"r1", "x.-.-.-", "-.-.-.-.-"} {
		if _, err := all.Audit(t.Context(), store.AuditQuery{After: cursor}); fault.KindOf(err) != fault.Invalid {
			t.Errorf("cursor %s: %v", cursor, err)
		}
	}
}
