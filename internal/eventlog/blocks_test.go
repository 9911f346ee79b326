// SPDX-License-Identifier: Apache-2.0

package eventlog_test

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/rialto-bridge/rialto/internal/eventlog"
)

// A trim reads the directory while the committer adds blocks: a block that was added is there afterwards, and once.
func TestBlocksThatComeDuringARefreshStay(t *testing.T) {
	b := eventlog.NewBlocks(t.TempDir())
	var rounds atomic.Int64
	done := make(chan struct{})
	var refresher sync.WaitGroup
	refresher.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			if err := b.Refresh(); err != nil {
				t.Error(err)
			}
			rounds.Add(1)
		}
	})
	defer refresher.Wait()
	defer close(done)
	for index := uint32(1); index <= 100; index++ {
		if ok, err := b.Write(index); !ok || err != nil {
			t.Fatalf("add %d = %v, %v", index, ok, err)
		}
		for end := rounds.Load() + 2; rounds.Load() < end; {
			if !b.Has(uint64(index)) {
				t.Fatalf("message %d was there and is not any more", index)
			}
			if n := b.Len(); n != int(index) {
				t.Fatalf("of %d blocks %d are known", index, n)
			}
		}
	}
}
