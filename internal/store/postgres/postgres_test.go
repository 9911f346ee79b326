// SPDX-License-Identifier: Apache-2.0

package postgres_test

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/rialto-bridge/rialto/internal/store"
	"github.com/rialto-bridge/rialto/internal/store/postgres"
	"github.com/rialto-bridge/rialto/internal/store/postgres/pgtest"
	"github.com/rialto-bridge/rialto/internal/store/storetest"
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
