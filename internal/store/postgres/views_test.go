// SPDX-License-Identifier: Apache-2.0

package postgres_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/rialto-bridge/rialto/internal/store/postgres"
	"github.com/rialto-bridge/rialto/schema"
)

// What is registered can be asked for in SQL: schemas, versions, references and bindings as rows.
func TestSchemasAsRows(t *testing.T) {
	dsn := shared.Database(t)
	s := openSchemas(t, postgres.Options{DSN: dsn})
	address := schema.Name{Group: "shop", Schema: "Address"}
	order := schema.Name{Group: "shop", Schema: "Order"}
	for _, n := range []schema.Name{address, order} {
		if _, err := s.PutSchema(t.Context(), schema.Schema{Name: n, Format: schema.JSONSchema, Compatibility: schema.Backward, Policy: schema.Lenient,
			Labels: map[string]string{"team": "shop"}}); err != nil {
			t.Fatal(err)
		}
	}
	for _, v := range []schema.Version{
		{Ref: schema.Ref{Name: address, Version: 1}, State: schema.Active, Format: schema.JSONSchema, Text: `{"type":"object"}`, Hash: "a"},
		{Ref: schema.Ref{Name: order, Version: 1}, State: schema.Deprecated, Format: schema.JSONSchema, Text: `{}`, Hash: "b"},
		{Ref: schema.Ref{Name: order, Version: 2}, State: schema.Active, Format: schema.JSONSchema, Text: `{"$ref":"address"}`, Hash: "c",
			References: []schema.Reference{{Name: "address", Group: "shop", Schema: "Address", Version: 1}}},
	} {
		if _, err := s.AddVersion(t.Context(), v); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Bind(t.Context(), schema.Binding{EventType: "com.example.order", Name: order}); err != nil {
		t.Fatal(err)
	}

	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	for query, want := range map[string][]string{
		`SELECT schema_group, schema_name, format, compatibility, policy, labels ->> 'team', deleted FROM registered_schemas ORDER BY 1, 2`: {
			"[shop Address jsonschema backward lenient shop false]", "[shop Order jsonschema backward lenient shop false]"},
		`SELECT schema_group, schema_name, version, id, state, text, hash FROM schema_versions ORDER BY 2, 3`: {
			`[shop Address 1 1 active {"type":"object"} a]`, `[shop Order 1 2 deprecated {} b]`, `[shop Order 2 3 active {"$ref":"address"} c]`},
		`SELECT * FROM schema_references`:                                   {"[shop Order 2 address shop Address 1]"},
		`SELECT event_type, schema_group, schema_name FROM schema_bindings`: {"[com.example.order shop Order]"},
	} {
		rows, err := conn.Query(t.Context(), query)
		if err != nil {
			t.Fatal(err)
		}
		got, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (string, error) {
			v, err := row.Values()
			return fmt.Sprint(v), err
		})
		if err != nil {
			t.Fatalf("%s: %v", query, err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s (-want +got)\n%s", query, d)
		}
	}
}
