// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"github.com/rialto-bridge/rialto/internal/store"
	"github.com/rialto-bridge/rialto/schema"
)

// NewSchemas returns an empty registry of schemas in memory.
func NewSchemas() schema.Store { return schema.OnRecords(store.Records{Store: New(nil)}) }
