// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/store"
)

var errNotMigrated = errors.New("the tables are not migrated yet")

// call runs one exchange on a connection, like within.
func (s *Store) call(ctx context.Context, do func(context.Context, *pgxpool.Conn) error) error {
	return s.within(ctx, func(ctx context.Context) error {
		return s.pool.AcquireFunc(ctx, func(c *pgxpool.Conn) error { return do(ctx, c) })
	})
}

// within runs do within the bound of a call, and says in fault's words what went wrong.
func (s *Store) within(ctx context.Context, do func(context.Context) error) error {
	if s.ctx.Err() != nil {
		return store.ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if !s.migrated.Load() {
		return unavailable(errors.Join(errNotMigrated, s.Broken()))
	}
	bound, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	stop := context.AfterFunc(s.ctx, cancel)
	defer stop()
	err := do(bound)
	var f *fault.Error
	var connect *pgconn.ConnectError
	switch {
	case err == nil, errors.As(err, &f):
		return err
	case s.ctx.Err() != nil:
		return store.ErrClosed
	case ctx.Err() != nil:
		return ctx.Err()
	case bound.Err() != nil, errors.As(err, &connect), Away(err):
		return unavailable(err)
	case inClass(err, "53100"): // the disk
		return &fault.Error{Kind: fault.Full, Message: "the definitions store has no room", Err: err}
	case inClass(err, "54"):
		return &fault.Error{Kind: fault.TooLarge, Message: "the definition is larger than the store takes", Err: err}
	}
	return fmt.Errorf("postgres: %w", err)
}

func unavailable(cause error) error {
	return &fault.Error{Kind: fault.Unavailable, Message: "the definitions store is away", RetryAfter: time.Second, Err: cause}
}

// Away reports whether an error says that Postgres cannot be reached, or cannot answer now, and may later.
func Away(err error) bool {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		// Lost connections, shutdown and start, too many connections, a standby, locks, what was cut off by a bound.
		return inClass(err, "08", "57P01", "57P02", "57P03", "57P05", "57014", "53300", "25006", "25P03", "55P03", "40")
	}
	var network net.Error
	var connect *pgconn.ConnectError
	return errors.As(err, &connect) || errors.As(err, &network) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, net.ErrClosed) || errors.Is(err, context.DeadlineExceeded) || pgconn.SafeToRetry(err)
}

// inClass reports whether Postgres has answered with a code that begins with one of these.
func inClass(err error, classes ...string) bool {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return false
	}
	for _, c := range classes {
		if len(pg.Code) >= len(c) && pg.Code[:len(c)] == c {
			return true
		}
	}
	return false
}
