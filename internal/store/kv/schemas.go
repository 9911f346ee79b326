// SPDX-License-Identifier: Apache-2.0

package kv

import (
	"cmp"
	"context"

	"github.com/nats-io/nats.go"

	"github.com/rialto-bridge/rialto/internal/store"
	"github.com/rialto-bridge/rialto/schema"
)

// SchemasBucket is where schemas are, apart from the definitions: their feed, and the snapshot that each node keeps of it,
// would carry every text of every version.
const SchemasBucket = "schemas"

// OpenSchemas is Open for the registry of schemas; Options.Bucket "" is "schemas".
func OpenSchemas(ctx context.Context, nc *nats.Conn, o Options) (schema.Store, error) {
	o.Bucket = cmp.Or(o.Bucket, SchemasBucket)
	s, err := Open(ctx, nc, o)
	if err != nil {
		return nil, err
	}
	return schema.OnRecords(store.Records{Store: s}), nil
}
