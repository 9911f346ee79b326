// SPDX-License-Identifier: Apache-2.0

package memory_test

import (
	"testing"

	"github.com/rialto-bridge/rialto/internal/store/memory"
	"github.com/rialto-bridge/rialto/internal/store/storetest"
	"github.com/rialto-bridge/rialto/schema"
)

func TestSchemas(t *testing.T) {
	storetest.RunSchemas(t, func(t *testing.T) (a, b schema.Store) {
		s := memory.NewSchemas()
		t.Cleanup(func() { s.Close() })
		return s, s
	})
}
