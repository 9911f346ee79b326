// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rialto-bridge/rialto/internal/store"
)

// channel is where committed changes are told.
const channel = "rialto_changes"

// Put is store.Store.Put.
func (s *Store) Put(ctx context.Context, k store.Key, raw json.RawMessage, c store.Condition) (store.Document, error) {
	docs, err := s.Apply(ctx, []store.Write{{Key: k, Raw: raw, If: c}})
	if err != nil {
		return store.Document{}, err
	}
	return docs[0], nil
}

// Delete is store.Store.Delete.
func (s *Store) Delete(ctx context.Context, k store.Key, c store.Condition) error {
	_, err := s.Apply(ctx, []store.Write{{Key: k, Delete: true, If: c}})
	return err
}

// Apply is store.Store.Apply.
func (s *Store) Apply(ctx context.Context, set []store.Write) (docs []store.Document, err error) {
	set, err = store.Prepare(set)
	if err != nil {
		return nil, err
	}
	err = s.write(ctx, func(ctx context.Context, tx pgx.Tx, last uint64) (uint64, error) {
		docs, last, err = s.apply(ctx, tx, set, last)
		return last, err
	})
	if err != nil {
		return nil, err
	}
	return docs, nil
}

// write runs do in a transaction in which nobody else writes. do is given the last revision and returns the one that it has
// used last; if that is the same it has written nothing.
func (s *Store) write(ctx context.Context, do func(ctx context.Context, tx pgx.Tx, last uint64) (uint64, error)) error {
	return s.call(ctx, func(ctx context.Context, c *pgxpool.Conn) (err error) {
		// What is read after the lock must be what the writer before has left, whatever the database's default is.
		tx, err := c.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
		if err != nil {
			return err
		}
		defer func() {
			if err != nil {
				// A connection that cannot even do that is closed, which ends the transaction, too.
				ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.timeout)
				defer cancel()
				if rollback := tx.Rollback(ctx); rollback != nil && !errors.Is(rollback, pgx.ErrTxClosed) {
					s.log.Debug("rollback", "err", rollback)
				}
			}
		}()
		var last uint64
		if err := tx.QueryRow(ctx, `SELECT last FROM revision FOR UPDATE`).Scan(&last); err != nil {
			return err
		}
		revision, err := do(ctx, tx, last)
		if err != nil {
			return err
		}
		if revision != last {
			var b pgx.Batch
			b.Queue(`UPDATE revision SET last = $1`, revision)
			b.Queue(`SELECT pg_notify($1, '')`, channel)
			if err := tx.SendBatch(ctx, &b).Close(); err != nil {
				return err
			}
		}
		return tx.Commit(ctx)
	})
}

func (s *Store) apply(ctx context.Context, tx pgx.Tx, set []store.Write, last uint64) ([]store.Document, uint64, error) {
	stored, err := s.current(ctx, tx, set)
	if err != nil {
		return nil, 0, err
	}
	at, by := s.now().UTC().Truncate(time.Microsecond), store.AuthorOf(ctx) // as fine as Postgres keeps it
	docs := make([]store.Document, len(set))
	var rows documentRows
	var entries auditRows
	for i, w := range set {
		var old *store.Document
		if d, ok := stored[w.Key]; ok {
			old = &d
		}
		d, changed, err := w.On(old, at)
		if err != nil {
			return nil, 0, err
		}
		if changed {
			last++
			d.Revision = last
			rows.add(d, at)
			entries.add(store.EntryOf(by, at, old, d))
		}
		docs[i] = d
	}
	if len(rows.kind) == 0 {
		return docs, last, nil
	}
	var b pgx.Batch
	rows.queue(&b, s.table)
	entries.queue(&b, s.table)
	return docs, last, tx.SendBatch(ctx, &b).Close()
}

// current returns the documents there are under the keys of a set.
func (s *Store) current(ctx context.Context, tx pgx.Tx, set []store.Write) (map[store.Key]store.Document, error) {
	var kind, scope, name []string
	for _, w := range set {
		kind, scope, name = append(kind, w.Key.Kind), append(scope, w.Key.Scope), append(name, w.Key.Name)
	}
	get := `SELECT kind, scope, name, revision, created_at, updated_at, document FROM ` + s.table + `
		JOIN unnest($1::text[], $2::text[], $3::text[]) AS wanted (kind, scope, name) USING (kind, scope, name) WHERE document IS NOT NULL`
	rows, err := tx.Query(ctx, get, kind, scope, name)
	if err != nil {
		return nil, err
	}
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (store.Change, error) { return scanChange(row) })
	docs := make(map[store.Key]store.Document, len(found))
	for _, c := range found {
		docs[c.Key] = c.Document
	}
	return docs, err
}

// documentRows are rows of a table of documents, by column.
type documentRows struct {
	kind, scope, name []string
	revision          []uint64
	created, updated  []time.Time
	document          []*string // nil = deleted
}

func (r *documentRows) add(d store.Document, at time.Time) {
	r.kind, r.scope, r.name = append(r.kind, d.Kind), append(r.scope, d.Scope), append(r.name, d.Name)
	r.revision = append(r.revision, d.Revision)
	if d.Raw == nil {
		r.created, r.updated, r.document = append(r.created, at), append(r.updated, at), append(r.document, nil)
		return
	}
	document := string(d.Raw)
	r.created, r.updated, r.document = append(r.created, d.CreatedAt), append(r.updated, d.UpdatedAt), append(r.document, &document)
}

func (r *documentRows) queue(b *pgx.Batch, table string) {
	b.Queue(`INSERT INTO `+table+` (kind, scope, name, revision, created_at, updated_at, document)
		SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::timestamptz[], $6::timestamptz[], $7::text[])
		ON CONFLICT (kind, scope, name) DO UPDATE SET revision = excluded.revision, created_at = excluded.created_at,
			updated_at = excluded.updated_at, document = excluded.document`,
		r.kind, r.scope, r.name, r.revision, r.created, r.updated, r.document)
}
