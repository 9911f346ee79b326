// SPDX-License-Identifier: Apache-2.0

package kv_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"github.com/rialto-bridge/rialto/internal/store/kv"
	"github.com/rialto-bridge/rialto/internal/store/storetest"
	"github.com/rialto-bridge/rialto/schema"
)

func openSchemas(t *testing.T, nc *nats.Conn, o kv.Options) schema.Store {
	t.Helper()
	s, err := kv.OpenSchemas(context.Background(), nc, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func TestSchemas(t *testing.T) {
	srv := serve(t, t.TempDir(), 0)
	one, two := connect(t, srv), connect(t, srv)
	var n atomic.Int32
	storetest.RunSchemas(t, func(t *testing.T) (a, b schema.Store) {
		o := kv.Options{Bucket: fmt.Sprintf("schemas-%d", n.Add(1))}
		return openSchemas(t, one, o), openSchemas(t, two, o)
	})
}

// Numbers and ids go on where they were, also over what was deleted.
func TestSchemasSurviveRestart(t *testing.T) {
	ctx, dir := context.Background(), t.TempDir()
	name := schema.Name{Group: "shop", Schema: "Order"}
	at := func(n int) schema.Version {
		return schema.Version{Ref: schema.Ref{Name: name, Version: n}, State: schema.Active, Format: schema.Avro, Text: `"int"`, Hash: "h"}
	}
	srv := serve(t, dir, 0)
	nc := connect(t, srv)
	s := openSchemas(t, nc, kv.Options{})
	one, err := s.AddVersion(ctx, at(1))
	if err != nil {
		t.Fatal(err)
	}
	one.State = schema.Deleted
	if one, err = s.SetState(ctx, one); err != nil {
		t.Fatal(err)
	}
	s.Close()
	nc.Close()
	stop(srv)

	s = openSchemas(t, connect(t, serve(t, dir, 0)), kv.Options{})
	got, err := s.Version(ctx, one.Ref)
	if diff := cmp.Diff(one, got); err != nil || diff != "" {
		t.Errorf("the tombstone after the restart: %v\n%s", err, diff)
	}
	if _, err := s.AddVersion(ctx, at(1)); err == nil {
		t.Error("the number of a deleted version was given again")
	}
	two, err := s.AddVersion(ctx, at(2))
	if err != nil || two.ID <= one.ID {
		t.Errorf("AddVersion after the restart: id %d after %d, %v", two.ID, one.ID, err)
	}
}
