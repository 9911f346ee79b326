// SPDX-License-Identifier: Apache-2.0

package memory_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/rialto-bridge/rialto/internal/store"
	"github.com/rialto-bridge/rialto/internal/store/memory"
	"github.com/rialto-bridge/rialto/internal/store/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestStore(t *testing.T) {
	storetest.Run(t, func(t *testing.T) store.Store {
		s := memory.New(nil)
		t.Cleanup(func() { s.Close() })
		return s
	})
}

func TestBlobs(t *testing.T) {
	storetest.RunBlobs(t, func(*testing.T) store.Blobs { return new(memory.Blobs) })
}
