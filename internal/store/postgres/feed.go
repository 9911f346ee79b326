// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/rialto-bridge/rialto/internal/store"
)

const (
	feedPage = 1000
	// lookEvery is how long the listener hears nothing before it looks by itself, which is also how it notices that the
	// other end has gone without a word.
	lookEvery  = 5 * time.Second
	minBackoff = 50 * time.Millisecond
	maxBackoff = time.Second
)

// follow keeps the view up to date until the store is closed.
func (s *Store) follow() {
	wait := minBackoff
	for {
		listening, err := s.listen()
		if s.ctx.Err() != nil {
			return
		}
		if listening {
			wait = minBackoff
		}
		if s.broken.Swap(&err) == nil {
			s.log.Warn("definitions feed broken", "err", err)
		}
		select {
		case <-time.After(wait):
		case <-s.ctx.Done():
			return
		}
		wait = min(2*wait, maxBackoff)
	}
}

// listen runs one connection until it breaks. It hears of changes from before its first look on, so none is missed.
func (s *Store) listen() (listening bool, err error) {
	if !s.migrated.Load() {
		if err := s.migrate(s.ctx); err != nil {
			return false, err
		}
	}
	conn, err := pgx.ConnectConfig(s.ctx, s.pool.Config().ConnConfig)
	if err != nil {
		return false, err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		err = errors.Join(err, conn.Close(ctx))
	}()
	if err := s.bounded(func(ctx context.Context) error {
		_, err := conn.Exec(ctx, `LISTEN `+channel)
		return err
	}); err != nil {
		return false, err
	}
	s.pool.Reset() // connections of the time before are as broken as the last listener was
	if err := s.checkAge(conn); err != nil {
		return false, err
	}
	for {
		if err := s.catchUp(conn); err != nil {
			return listening, err
		}
		listening = true
		if s.broken.Swap(nil) != nil {
			s.log.Info("definitions feed is back")
		}
		s.view.CaughtUp()
		if err := s.await(conn); err != nil {
			return true, err
		}
	}
}

// await blocks until a change is told, or it is time to look.
func (s *Store) await(conn *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(s.ctx, lookEvery)
	defer cancel()
	_, err := conn.WaitForNotification(ctx)
	if err != nil && ctx.Err() != nil && s.ctx.Err() == nil && !conn.IsClosed() {
		return nil
	}
	return err
}

// checkAge complains about a database that has forgotten what was read from it.
func (s *Store) checkAge(conn *pgx.Conn) error {
	return s.bounded(func(ctx context.Context) error {
		last, err := lastRevision(ctx, conn)
		if err == nil && last < s.view.Revision() {
			s.log.Error("the database is older than what was read from it: was a backup restored? restart every bridge that uses it")
		}
		return err
	})
}

// catchUp brings the view to where the tables are.
func (s *Store) catchUp(conn *pgx.Conn) error {
	return s.bounded(func(ctx context.Context) error {
		last, err := lastRevision(ctx, conn)
		if err != nil {
			return err
		}
		for {
			page, err := s.changesAfter(ctx, conn, s.view.Revision())
			if err != nil {
				return err
			}
			s.view.Apply(page...)
			if len(page) < feedPage {
				s.view.Skip(last) // it may not be a definition's
				return nil
			}
		}
	})
}

func (s *Store) changesAfter(ctx context.Context, conn *pgx.Conn, revision uint64) ([]store.Change, error) {
	changes := `SELECT kind, scope, name, revision, created_at, updated_at, document FROM ` + s.table + `
		WHERE revision > $1 ORDER BY revision LIMIT $2`
	rows, err := conn.Query(ctx, changes, revision, feedPage)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (store.Change, error) { return scanChange(row) })
}

// bounded runs a short exchange of the listener.
func (s *Store) bounded(do func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(s.ctx, s.timeout)
	defer cancel()
	return do(ctx)
}
