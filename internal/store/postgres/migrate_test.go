// SPDX-License-Identifier: Apache-2.0

package postgres_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	"github.com/jackc/pgx/v5"

	"github.com/rialto-bridge/rialto/internal/store"
	"github.com/rialto-bridge/rialto/internal/store/postgres"
	"github.com/rialto-bridge/rialto/migrations"
)

func contains(text, part string) bool { return strings.Contains(text, part) }

// query returns the one value that a statement has for an answer.
func query[T any](t *testing.T, dsn, sql string) (v T) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	if err := conn.QueryRow(t.Context(), sql).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// with returns the migrations there are and more.
func with(t *testing.T, more map[string]string) fs.FS {
	t.Helper()
	all := fstest.MapFS{}
	entries, err := fs.ReadDir(migrations.Files, ".")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		b, err := fs.ReadFile(migrations.Files, e.Name())
		if err != nil {
			t.Fatal(err)
		}
		all[e.Name()] = &fstest.MapFile{Data: b}
	}
	for name, text := range more {
		all[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return all
}

func TestManyStartAtOnce(t *testing.T) {
	dsn := shared.Empty(t)
	const nodes = 6
	stores := make([]*postgres.Store, nodes)
	var wg sync.WaitGroup
	for i := range nodes {
		wg.Go(func() {
			var err error
			if stores[i], err = postgres.Open(t.Context(), postgres.Options{DSN: dsn}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for i, s := range stores {
		if s == nil {
			continue
		}
		if _, err := s.Put(t.Context(), store.Key{Kind: "Bus", Name: fmt.Sprint("b", i)}, json.RawMessage(`{}`), store.Condition{}); err != nil {
			t.Error(err)
		}
		if p, err := s.List(t.Context(), store.Query{Kind: "Bus"}); err != nil || len(p.Items) != i+1 {
			t.Errorf("List by node %d: %d documents, %v", i, len(p.Items), err)
		}
	}
	for _, s := range stores {
		if s != nil {
			s.Close()
		}
	}
	if n := query[int](t, dsn, `SELECT count(*) - count(DISTINCT version_id) FROM rialto_migrations`); n != 0 {
		t.Errorf("%d migrations were carried out twice", n)
	}
}

func TestFailingMigration(t *testing.T) {
	dsn := shared.Database(t)
	k := store.Key{Kind: "Bus", Name: "b"}
	s := open(t, postgres.Options{DSN: dsn})
	if _, err := s.Put(t.Context(), k, json.RawMessage(`{}`), store.Condition{}); err != nil {
		t.Fatal(err)
	}
	before := query[int](t, dsn, `SELECT max(version_id) FROM rialto_migrations`)
	bad := with(t, map[string]string{"99998_more.sql": "-- +goose Up\nCREATE TABLE more (a int);\nDROP TABLE definitions;\nALTER TABLE none ADD b int;\n"})
	for range 2 { // a failure is no state that anybody has to repair
		_, err := postgres.Open(t.Context(), postgres.WithMigrations(postgres.Options{DSN: dsn}, bad))
		if err == nil || !contains(err.Error(), "migration 99998") || !contains(err.Error(), `"none" does not exist`) {
			t.Fatalf("Open with a migration that fails = %v", err)
		}
	}
	if after := query[int](t, dsn, `SELECT max(version_id) FROM rialto_migrations`); after != before {
		t.Errorf("the database is at migration %d, and was at %d", after, before)
	}
	if query[bool](t, dsn, `SELECT to_regclass('more') IS NOT NULL`) {
		t.Error("a migration that failed left a table")
	}
	if _, err := s.Get(t.Context(), k); err != nil {
		t.Errorf("a bridge of the version before: %v", err)
	}
	good := with(t, map[string]string{"99998_more.sql": "-- +goose Up\nCREATE TABLE more (a int);\n"})
	mended, err := postgres.Open(t.Context(), postgres.WithMigrations(postgres.Options{DSN: dsn}, good))
	if err != nil {
		t.Fatal(err)
	}
	mended.Close()
	if !query[bool](t, dsn, `SELECT to_regclass('more') IS NOT NULL`) {
		t.Error("a migration that was mended was not carried out")
	}
	// What comes next is an older version, which does not know what it would break.
	if _, err := postgres.Migrate(t.Context(), dsn); err == nil || !contains(err.Error(), "migration 99998") {
		t.Errorf("Migrate by an older version = %v", err)
	}
}

// Who may read and write the tables and do nothing else can run a bridge once the tables are there.
func TestFewRights(t *testing.T) {
	dsn := shared.Database(t)
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("bridge_%d", conn.PgConn().PID())
	_, err = conn.Exec(t.Context(), `REVOKE CREATE ON SCHEMA public FROM PUBLIC; CREATE ROLE `+name+` LOGIN;
		GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA public TO `+name)
	if err := errors.Join(err, conn.Close(t.Context())); err != nil {
		t.Fatal(err)
	}
	s := open(t, postgres.Options{DSN: dsn + " user=" + name})
	k := store.Key{Kind: "Bus", Name: "b"}
	if _, err := s.Put(t.Context(), k, json.RawMessage(`{}`), store.Condition{}); err != nil {
		t.Fatal(err)
	}
	if err := s.Delete(t.Context(), k, store.Condition{}); err != nil {
		t.Fatal(err)
	}
	if done, err := postgres.Migrate(t.Context(), dsn); err != nil || len(done) != 0 {
		t.Errorf("Migrate of what is migrated = %v, %v", done, err)
	}
}
