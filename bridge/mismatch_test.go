// SPDX-License-Identifier: Apache-2.0

package bridge_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/bridge"
	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/journal"
)

// An account that does not balance is told once, also where that could not be stored at first.
func TestAMismatchIsTold(t *testing.T) {
	f := newFixture(t).start()
	defer f.stop(time.Second)
	ctx := context.Background()
	f.must(f.SetBus(ctx, &bridge.BusDoc{Name: "other", DedupWindow: time.Minute}))
	f.must(f.SetRules("other", 1, nil))
	_, err := f.Ingest(ctx, "other", []*event.Record{{Event: event.Event{ID: "a", Source: "/test", Type: "reading"}}})
	f.must(err)
	f.CheckLedgers()
	f.must(f.RemoveBus("default"))
	f.eventually(func() (string, bool) { // it is routed, and the floor has passed it
		l, err := f.Ledger(ctx, bridge.LedgerQuery{Bus: "other"})
		f.must(err)
		floor, err := f.journal.Floor("other")
		f.must(err)
		return fmt.Sprintf("%+v", l), floor == 1 && l.Balanced
	})
	f.must(f.Misplace(ctx, "other", journal.Route{Rule: "none", Revision: 1, Target: "nobody"}))
	f.CheckLedgers() // there is no bus to tell it on
	unready := false
	for _, c := range f.Checks() {
		unready = unready || c.Name == "ledger/other" && !c.OK
	}
	if !unready {
		t.Errorf("checks %+v", f.Checks())
	}
	f.setBus()
	for range 2 {
		f.CheckLedgers()
		f.eventually(func() (string, bool) {
			page, err := f.Search(ctx, "default", bridge.SearchQuery{Type: "io.rialto.ledger.mismatch"})
			f.must(err)
			return fmt.Sprintf("%d alarms, want 1", len(page.Items)), len(page.Items) == 1
		})
	}
	page, err := f.Search(ctx, "default", bridge.SearchQuery{Type: "io.rialto.ledger.mismatch"})
	f.must(err)
	var data struct {
		Bus        string
		Difference int64
		Deliveries []bridge.LedgerDelivery
	}
	ev := page.Items[0].Event
	f.must(json.Unmarshal(ev.Data, &data))
	if ev.Source != "rialto/ledger" || ev.Subject != "other" || data.Bus != "other" || data.Difference != 1 || len(data.Deliveries) != 1 {
		t.Errorf("told %+v, %s", ev, ev.Data)
	}
}

// An account since long ago is one of everything, also where hours begin to be counted later.
func TestAnAccountSinceLongAgoIsWhole(t *testing.T) {
	f := newFixture(t).start()
	defer f.stop(time.Second)
	f.send("reading", "a")
	f.balanced()
	long := time.Date(1960, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		from, to time.Time
		want     uint64
	}{{long, time.Time{}, 1}, {long, time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC), 1}, {time.Time{}, long, 0}} {
		l, err := f.Ledger(context.Background(), bridge.LedgerQuery{Bus: "default", From: c.from, To: c.to})
		if err != nil || l.Events.Accepted != c.want {
			t.Errorf("from %v to %v: %d accepted, %v, want %d", c.from, c.to, l.Events.Accepted, err, c.want)
		}
	}
}
