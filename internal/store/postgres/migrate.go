// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"github.com/rialto-bridge/rialto/migrations"
)

// versionTable says which migrations were carried out.
const versionTable = "rialto_migrations"

// How long a node waits, in seconds, for another one that migrates, and to give the lock back.
const (
	lockWait   = 300
	unlockWait = 5
)

// Migrate brings the tables up to what this program needs and returns the numbers of the migrations that it carried out.
// Any number of processes may do so at a time: one works, the others wait. A migration that fails leaves everything as
// it was before it. Nothing is written, and no right to is needed, when there is nothing to do.
func Migrate(ctx context.Context, dsn string) ([]int64, error) {
	cfg, err := connConfig(dsn)
	if err != nil {
		return nil, err
	}
	return migrate(ctx, cfg, migrations.Files)
}

func migrate(ctx context.Context, cfg *pgx.ConnConfig, files fs.FS) (done []int64, err error) {
	db := stdlib.OpenDB(*cfg)
	defer func() { err = errors.Join(err, db.Close()) }()
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(1, lockWait), lock.WithUnlockTimeout(1, unlockWait))
	if err != nil {
		return nil, err
	}
	p, err := goose.NewProvider(goose.DialectPostgres, db, files, goose.WithDisableGlobalRegistry(true), goose.WithTableName(versionTable),
		goose.WithSessionLocker(locker))
	if err != nil {
		return nil, fmt.Errorf("migrations: %w", err)
	}
	sources := p.ListSources()
	latest := sources[len(sources)-1].Version
	// goose makes its table before it looks, which would take the right to.
	current, err := version(ctx, db)
	switch {
	case err != nil:
		return nil, err
	case current == latest:
		return nil, nil
	case current > latest:
		return nil, fmt.Errorf("the database is at migration %d and this version of rialto knows %d: use the version that has migrated it", current, latest)
	}
	results, err := p.Up(ctx)
	var partial *goose.PartialError
	if errors.As(err, &partial) {
		results = partial.Applied
		err = fmt.Errorf("migration %d: %w", partial.Failed.Source.Version, partial.Err)
	}
	for _, r := range results {
		done = append(done, r.Source.Version)
	}
	return done, err
}

// version is the number of the last migration that was carried out; 0 = none.
func version(ctx context.Context, db *sql.DB) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	var v int64
	err := db.QueryRowContext(ctx, `SELECT coalesce(max(version_id), 0) FROM `+versionTable).Scan(&v)
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "42P01" { // there is no such table
		return 0, nil
	}
	return v, err
}
