// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rialto-bridge/rialto/internal/store"
)

// auditRows are rows of audit, by column.
type auditRows struct {
	revision, old                              []uint64
	at                                         []time.Time
	author, request, action, kind, scope, name []string
}

func (r *auditRows) add(e store.AuditEntry) {
	r.revision, r.old, r.at = append(r.revision, e.Revision), append(r.old, e.OldRevision), append(r.at, e.At)
	r.author, r.request, r.action = append(r.author, e.By.Name), append(r.request, e.By.RequestID), append(r.action, e.Action)
	r.kind, r.scope, r.name = append(r.kind, e.Kind), append(r.scope, e.Scope), append(r.name, e.Name)
}

func (r *auditRows) queue(b *pgx.Batch, table string) {
	b.Queue(`INSERT INTO audit (store, revision, at, author, request_id, action, kind, scope, name, old_revision)
		SELECT $1, * FROM unnest($2::bigint[], $3::timestamptz[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[], $10::bigint[])`,
		table, r.revision, r.at, r.author, r.request, r.action, r.kind, r.scope, r.name, r.old)
}

// Audit is store.Store.Audit. It goes back to the first change, or to where the operator has cut the table.
func (s *Store) Audit(ctx context.Context, q store.AuditQuery) (p store.AuditPage, err error) {
	limit, below, err := q.Page()
	if err != nil || !store.Storable(store.Key{Kind: q.Kind, Name: q.Name}) {
		return store.AuditPage{}, err
	}
	err = s.call(ctx, func(ctx context.Context, c *pgxpool.Conn) error {
		const list = `SELECT revision, at, author, request_id, action, kind, scope, name, old_revision FROM audit
			WHERE revision < $1 AND ($2 = '' OR kind = $2) AND ($3 = '' OR name = $3)
				AND ($4::timestamptz IS NULL OR at >= $4) AND ($5::timestamptz IS NULL OR at < $5) AND store = $7
			ORDER BY revision DESC LIMIT $6`
		rows, err := c.Query(ctx, list, below, q.Kind, q.Name, bound(q.From), bound(q.To), limit+1, s.table)
		if err != nil {
			return err
		}
		p.Items, err = pgx.CollectRows(rows, scanEntry)
		return err
	})
	if err != nil {
		return store.AuditPage{}, err
	}
	if len(p.Items) > limit {
		p.Items = p.Items[:limit]
		p.Cursor = q.Next(p.Items[limit-1])
	}
	return p, nil
}

func scanEntry(row pgx.CollectableRow) (store.AuditEntry, error) {
	var e store.AuditEntry
	err := row.Scan(&e.Revision, &e.At, &e.By.Name, &e.By.RequestID, &e.Action, &e.Kind, &e.Scope, &e.Name, &e.OldRevision)
	e.At = e.At.UTC()
	return e, err
}

// bound is a time as a parameter; the zero one is NULL.
func bound(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
