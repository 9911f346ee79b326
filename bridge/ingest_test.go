// SPDX-License-Identifier: Apache-2.0

package bridge_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
)

// Who gave up waiting knows nothing of the event, and no receipt says that it is stored.
func TestGivingUpIsNoReceipt(t *testing.T) {
	f := newFixture(t).start()
	defer f.stop(time.Second)
	given := 0
	for i := range 500 {
		ctx, cancel := context.WithCancel(context.Background())
		go cancel()
		receipts, err := f.Ingest(ctx, "default", []*event.Record{{Event: event.Event{ID: fmt.Sprint(i), Source: "/test", Type: "t"}}})
		if err == nil {
			continue
		}
		given++
		if fault.KindOf(err) != fault.Unavailable || len(receipts) != 1 || receipts[0].Err == nil {
			t.Fatalf("Ingest = %+v, %v", receipts, err)
		}
	}
	if given == 0 {
		t.Error("nobody gave up")
	}
}
