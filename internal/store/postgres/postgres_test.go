// SPDX-License-Identifier: Apache-2.0

package postgres_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"testing"

	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/store"
	"github.com/rialto-bridge/rialto/internal/store/postgres"
	"github.com/rialto-bridge/rialto/internal/store/postgres/pgtest"
	"github.com/rialto-bridge/rialto/internal/store/storetest"
	"github.com/rialto-bridge/rialto/schema"
)

// shared is the server of most tests; their databases are migrated.
var shared = &pgtest.Shared{Prepare: func(ctx context.Context, dsn string) error {
	_, err := postgres.Migrate(ctx, dsn)
	return err
}}

func TestMain(m *testing.M) {
	code := m.Run()
	if err := shared.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func open(t *testing.T, o postgres.Options) *postgres.Store {
	t.Helper()
	s, err := postgres.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestStore(t *testing.T) {
	storetest.Run(t, func(t *testing.T) store.Store { return open(t, postgres.Options{DSN: shared.Database(t)}) })
}

func TestShared(t *testing.T) {
	storetest.RunShared(t, func(t *testing.T) (a, b store.Store) {
		o := postgres.Options{DSN: shared.Database(t)}
		return open(t, o), open(t, o)
	})
}

func TestSchemas(t *testing.T) {
	storetest.RunSchemas(t, func(t *testing.T) (a, b schema.Store) {
		o := postgres.Options{DSN: shared.Database(t)}
		return openSchemas(t, o), openSchemas(t, o)
	})
}

func TestBlobs(t *testing.T) {
	storetest.RunBlobs(t, func(t *testing.T) store.Blobs { return open(t, postgres.Options{DSN: shared.Database(t)}).Blobs() })
}

func openSchemas(t *testing.T, o postgres.Options) schema.Store {
	t.Helper()
	s, err := postgres.OpenSchemas(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// Definitions and schemas share a database, and neither disturbs the other.
func TestBothStores(t *testing.T) {
	o := postgres.Options{DSN: shared.Database(t)}
	definitions, schemas := open(t, o), openSchemas(t, o)
	k := store.Key{Kind: "schema", Scope: "shop", Name: "Order"}
	for range 3 {
		if _, err := schemas.Bind(t.Context(), schema.Binding{EventType: t.Name() + rand.Text(), Name: schema.Name{Group: "shop", Schema: "Order"}}); err != nil {
			t.Fatal(err)
		}
		d, err := definitions.Put(t.Context(), k, []byte(`"`+rand.Text()+`"`), store.Condition{})
		if err != nil {
			t.Fatal(err)
		}
		p, err := definitions.List(t.Context(), store.Query{Kind: k.Kind, AllScopes: true})
		if err != nil || len(p.Items) != 1 || p.Items[0].Revision != d.Revision {
			t.Errorf("List = %v, %v", p, err)
		}
	}
	if _, err := schemas.Schema(t.Context(), schema.Name{Group: "shop", Schema: "Order"}); fault.KindOf(err) != fault.NotFound {
		t.Errorf("a definition is a schema: %v", err)
	}
	if p, err := definitions.Audit(t.Context(), store.AuditQuery{}); err != nil || len(p.Items) != 3 {
		t.Errorf("Audit of the definitions = %v, %v", p, err)
	}
}

func TestAfter(t *testing.T) {
	dsn := shared.Database(t)
	k := store.Key{Kind: "Bus", Name: "b"}
	first := open(t, postgres.Options{DSN: dsn})
	for _, after := range []uint64{3, 1 << 40, 7} {
		s := open(t, postgres.Options{DSN: dsn, After: after})
		for _, s := range []*postgres.Store{first, s} {
			if p, err := s.List(t.Context(), store.Query{Kind: "Target"}); err != nil || len(p.Items) != 0 {
				t.Errorf("List after %d = %v, %v", after, p, err)
			}
		}
		d, err := s.Put(t.Context(), k, fmt.Append(nil, after), store.Condition{})
		if err != nil || d.Revision <= after {
			t.Errorf("Put after %d has revision %d, %v", after, d.Revision, err)
		}
	}
}
