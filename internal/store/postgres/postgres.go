// SPDX-License-Identifier: Apache-2.0

// Package postgres keeps definitions and the registry of schemas in PostgreSQL, for any number of bridges that share them.
//
// Revisions come from one row that every write locks until it commits, so they become visible in their order, and the feed
// is "what has a larger revision than the last one seen", without gaps. A write, its audit entries and the notification of
// other processes are one transaction; who was not listening when it committed catches up when it connects. Each process
// has one listener and one view, from which lists and watches are served; a list waits until the view has every write that
// was finished before it was asked for, by whatever process.
//
// While Postgres cannot be reached, every call but Watch ends with fault.Unavailable within Options.Timeout; a write that
// ended so may still have happened. Watch waits and goes on. Postgres may also be away when the store is opened: it is then
// migrated when it is there.
package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/store"
	"github.com/rialto-bridge/rialto/migrations"
	"github.com/rialto-bridge/rialto/schema"
)

const (
	defaultTimeout = 5 * time.Second
	connectTimeout = 3 * time.Second // unless the DSN says otherwise
	// hungTransaction is when Postgres ends the transaction of a process that does not go on with it: it holds the lock
	// that every writer needs.
	hungTransaction = "10s"
)

// Options says where definitions are kept.
type Options struct {
	DSN     string           // a URL or key=value pairs, as libpq reads them; PGPASSWORD and the like are looked at
	Timeout time.Duration    // bound of one call; 0 = 5 s
	Logger  *slog.Logger     // nil = none
	Now     func() time.Time // nil = time.Now
	// Resolved is told the addresses of the servers before each connection; nil = nobody is. A Unix socket has none.
	Resolved func(addrs ...netip.AddrPort)
	// After is a revision that the store goes beyond: no later write has it or a smaller one.
	After uint64

	migrations fs.FS // instead of migrations.Files, for tests
}

// The tables of documents.
const (
	tableDefinitions = "definitions"
	tableSchemas     = "schemas"
)

// Store is a store.Store in Postgres.
type Store struct {
	pool    *pgxpool.Pool
	table   string
	timeout time.Duration
	log     *slog.Logger
	now     func() time.Time
	files   fs.FS
	after   uint64
	view    *store.View

	migrated atomic.Bool
	broken   atomic.Pointer[error] // why the feed is broken; nil when it is not

	cancel context.CancelFunc
	ctx    context.Context // done when the store is closed; ends what is under way
	wg     sync.WaitGroup
}

var _ store.Store = (*Store)(nil)

// Open opens the store of definitions and migrates it, which blocks for as long as that takes. It is no error that Postgres is away, but
// one that it refuses us, or that a migration fails.
func Open(ctx context.Context, o Options) (*Store, error) { return open(ctx, o, tableDefinitions) }

// OpenSchemas is Open for the registry of schemas.
func OpenSchemas(ctx context.Context, o Options) (schema.Store, error) {
	s, err := OpenSchemaRecords(ctx, o)
	if err != nil {
		return nil, err
	}
	return schema.OnRecords(store.Records{Store: s}), nil
}

// OpenSchemaRecords is OpenSchemas for who needs the records as they are: to move them, or to see who changed them.
func OpenSchemaRecords(ctx context.Context, o Options) (*Store, error) {
	return open(ctx, o, tableSchemas)
}

func open(ctx context.Context, o Options, table string) (*Store, error) {
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.migrations == nil {
		o.migrations = migrations.Files
	}
	cfg, err := poolConfig(o.DSN)
	if err != nil {
		return nil, err
	}
	if o.Resolved != nil {
		tellResolved(cfg.ConnConfig, o.Resolved)
	}
	pool, err := pgxpool.NewWithConfig(context.WithoutCancel(ctx), cfg) // it connects when it is asked
	if err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	s := &Store{pool: pool, table: table, timeout: o.Timeout, log: o.Logger.With("component", "store"), now: o.Now, files: o.migrations, after: o.After,
		view: store.NewView()}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	if err := s.migrate(ctx); err != nil {
		if !Away(err) {
			s.cancel()
			pool.Close()
			return nil, fmt.Errorf("postgres: %w", err)
		}
		s.broken.Store(&err)
		s.log.Warn("postgres is away", "err", err)
	}
	s.wg.Go(s.follow)
	return s, nil
}

// poolConfig reads a DSN. The error does not show the password.
func poolConfig(dsn string) (*pgxpool.Config, error) {
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	c := cfg.ConnConfig
	if c.ConnectTimeout == 0 {
		c.ConnectTimeout = connectTimeout
	}
	for name, value := range map[string]string{"application_name": "rialto", "idle_in_transaction_session_timeout": hungTransaction} {
		if _, there := c.RuntimeParams[name]; !there {
			c.RuntimeParams[name] = value
		}
	}
	return cfg, nil
}

// tellResolved has somebody told the addresses of a server whenever its name is looked up.
func tellResolved(c *pgx.ConnConfig, tell func(addrs ...netip.AddrPort)) {
	ports := map[string][]uint16{c.Host: {c.Port}}
	for _, other := range c.Fallbacks {
		ports[other.Host] = append(ports[other.Host], other.Port)
	}
	lookup := c.LookupFunc
	c.LookupFunc = func(ctx context.Context, host string) ([]string, error) {
		found, err := lookup(ctx, host)
		for _, text := range found {
			if addr, err := netip.ParseAddr(text); err == nil {
				for _, port := range ports[host] {
					tell(netip.AddrPortFrom(addr, port))
				}
			}
		}
		return found, err
	}
}

func connConfig(dsn string) (*pgx.ConnConfig, error) {
	cfg, err := poolConfig(dsn)
	if err != nil {
		return nil, err
	}
	return cfg.ConnConfig, nil
}

// CheckDSN says what is wrong with a DSN, without showing the password in it.
func CheckDSN(dsn string) error {
	_, err := poolConfig(dsn)
	return err
}

// migrate brings the tables up to date and the revision to where it must be, once.
func (s *Store) migrate(ctx context.Context) error {
	done, err := migrate(ctx, s.pool.Config().ConnConfig, s.files)
	if err != nil {
		return err
	}
	if len(done) > 0 {
		s.log.Info("postgres is migrated", "migrations", done)
	}
	err = s.pool.AcquireFunc(ctx, func(c *pgxpool.Conn) error {
		_, err := c.Exec(ctx, `WITH moved AS (UPDATE revision SET last = $1 WHERE last < $1 RETURNING last)
			SELECT pg_notify($2, '') FROM moved`, s.after, channel)
		return err
	})
	if err == nil {
		s.migrated.Store(true)
	}
	return err
}

// Broken returns why changes by others are not heard of at the moment; nil if they are.
func (s *Store) Broken() error {
	if err := s.broken.Load(); err != nil {
		return *err
	}
	return nil
}

// Get is store.Store.Get.
func (s *Store) Get(ctx context.Context, k store.Key) (d store.Document, err error) {
	if !store.Storable(k) {
		return store.Document{}, store.NotFound(k)
	}
	err = s.call(ctx, func(ctx context.Context, c *pgxpool.Conn) error {
		get := `SELECT kind, scope, name, revision, created_at, updated_at, document FROM ` + s.table + `
			WHERE kind = $1 AND scope = $2 AND name = $3 AND document IS NOT NULL`
		change, err := scanChange(c.QueryRow(ctx, get, k.Kind, k.Scope, k.Name))
		if errors.Is(err, pgx.ErrNoRows) {
			return store.NotFound(k)
		}
		d = change.Document
		return err
	})
	return d, err
}

// scanChange reads a row of definitions.
func scanChange(row pgx.Row) (store.Change, error) {
	var c store.Change
	var document *string
	err := row.Scan(&c.Kind, &c.Scope, &c.Name, &c.Revision, &c.CreatedAt, &c.UpdatedAt, &document)
	if err != nil {
		return store.Change{}, err
	}
	if document == nil {
		return store.Change{Document: store.Document{Key: c.Key, Revision: c.Revision}, Deleted: true}, nil
	}
	c.Raw = json.RawMessage(*document)
	c.CreatedAt, c.UpdatedAt = c.CreatedAt.UTC(), c.UpdatedAt.UTC()
	return c, nil
}

// List is store.Store.List.
func (s *Store) List(ctx context.Context, q store.Query) (store.Page, error) {
	if err := s.reach(ctx); err != nil {
		return store.Page{}, err
	}
	return s.view.List(q)
}

// Watch is store.Store.Watch. While Postgres is away it hears nothing, and all that was missed when it is back.
func (s *Store) Watch(ctx context.Context, fn func(store.Change) error) error {
	return s.WatchSince(ctx, 0, fn)
}

// WatchSince is store.Store.WatchSince.
func (s *Store) WatchSince(ctx context.Context, since uint64, fn func(store.Change) error) error {
	if err := s.reach(ctx); err != nil && fault.KindOf(err) != fault.Unavailable {
		return err
	}
	return s.view.WatchSince(ctx, since, fn)
}

// reach waits until the view has everything that was written before the call.
func (s *Store) reach(ctx context.Context) error {
	return s.within(ctx, func(ctx context.Context) error {
		var last uint64
		err := s.pool.AcquireFunc(ctx, func(c *pgxpool.Conn) (err error) {
			last, err = lastRevision(ctx, c.Conn())
			return err
		})
		if err != nil {
			return err
		}
		return s.view.Wait(ctx, last)
	})
}

func lastRevision(ctx context.Context, c *pgx.Conn) (last uint64, err error) {
	err = c.QueryRow(ctx, `SELECT last FROM revision`).Scan(&last)
	return last, err
}

// Close ends the listener and waits for it and for the connections. Calls under way end with store.ErrClosed.
func (s *Store) Close() error {
	s.view.Close(store.ErrClosed)
	s.cancel()
	s.wg.Wait()
	s.pool.Close()
	return nil
}
