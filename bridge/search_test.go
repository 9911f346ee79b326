// SPDX-License-Identifier: Apache-2.0

package bridge_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/bridge"
	"github.com/rialto-bridge/rialto/internal/event"
)

// A page of large events ends at its size, and the pages together have each event once, whichever way the search takes.
func TestAPageOfLargeEventsIsShort(t *testing.T) {
	f := newFixture(t)
	f.target("ops", "{}", nil)
	f.rule("all", "reading", "ops")
	f.start()
	defer f.stop(time.Second)
	const count, size = 12, 1 << 20
	for i := range count {
		_, err := f.Ingest(context.Background(), "default", []*event.Record{{Event: event.Event{ID: fmt.Sprint("e", i), Source: "/test",
			Subject: "box", Type: "reading", Data: make([]byte, size)}}})
		f.must(err)
	}
	f.balanced()
	for _, q := range []bridge.SearchQuery{{}, {Subject: "box"}, {Target: "ops"}} {
		q.Limit = 1000
		seen, pages := 0, 0
		for more := true; more; pages++ {
			page, err := f.Search(context.Background(), "default", q)
			f.must(err)
			if n := len(page.Items); n > 9 || pages > count {
				t.Fatalf("%+v: page %d has %d events of 1 MiB", q, pages, n)
			}
			for _, item := range page.Items {
				seen++
				if want := fmt.Sprint("e", count-seen); item.Event.ID != want {
					t.Fatalf("%+v: %s, want %s", q, item.Event.ID, want)
				}
			}
			q.Cursor, more = page.NextCursor, page.NextCursor != ""
		}
		if seen != count || pages < 2 {
			t.Errorf("%+v: %d events on %d pages", q, seen, pages)
		}
	}
}
