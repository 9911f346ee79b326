// SPDX-License-Identifier: Apache-2.0

package kv

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// A watcher whose context ended while it was being made is stopped, and its channel is never closed: whoever drains it comes to an
// end all the same, and lets a callback through that waits for room.
func TestDrainEndsWithoutAClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		updates := make(chan jetstream.KeyValueEntry)
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			for range 3 {
				updates <- nil
			}
		}()
		begin := time.Now()
		drain(updates)
		<-sent
		if took := time.Since(begin); took != drainQuiet {
			t.Errorf("it took %v, want %v", took, drainQuiet)
		}
		close(updates)
		begin = time.Now()
		drain(updates)
		if took := time.Since(begin); took != 0 {
			t.Errorf("a closed channel took %v", took)
		}
	})
}
