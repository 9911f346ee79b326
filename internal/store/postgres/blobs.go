// SPDX-License-Identifier: Apache-2.0

package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/store"
)

// Blobs is a store.Blobs in the table blobs, over the connections of a Store.
type Blobs struct{ s *Store }

var _ store.Blobs = Blobs{}

// Blobs returns the blobs that are beside the definitions. They can be used for as long as the store is open.
func (s *Store) Blobs() Blobs { return Blobs{s} }

// Put is store.Blobs.Put.
func (b Blobs) Put(ctx context.Context, data []byte) (string, error) {
	if len(data) > store.MaxBlob {
		return "", fault.New(fault.TooLarge, "a blob has at most %d bytes", store.MaxBlob)
	}
	digest := store.Digest(data)
	return digest, b.s.call(ctx, func(ctx context.Context, c *pgxpool.Conn) error {
		_, err := c.Exec(ctx, `INSERT INTO blobs (digest, at, data) VALUES ($1, now(), $2) ON CONFLICT (digest) DO UPDATE SET at = now()`, digest, data)
		return err
	})
}

// Get is store.Blobs.Get.
func (b Blobs) Get(ctx context.Context, digest string) (data []byte, err error) {
	if !store.Storable(store.Key{Name: digest}) {
		return nil, store.NoBlob(digest)
	}
	err = b.s.call(ctx, func(ctx context.Context, c *pgxpool.Conn) error {
		err := c.QueryRow(ctx, `SELECT data FROM blobs WHERE digest = $1`, digest).Scan(&data)
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			return store.NoBlob(digest)
		case err == nil && store.Digest(data) != digest:
			return fmt.Errorf("blob %s is damaged", digest)
		}
		return err
	})
	return data, err
}

// Sweep is store.Blobs.Sweep.
func (b Blobs) Sweep(ctx context.Context, keep map[string]bool, before time.Time) error {
	digests := make([]string, 0, len(keep))
	for digest := range keep {
		digests = append(digests, digest)
	}
	return b.s.call(ctx, func(ctx context.Context, c *pgxpool.Conn) error {
		_, err := c.Exec(ctx, `DELETE FROM blobs WHERE at < $1 AND digest <> ALL ($2)`, before, digests)
		return err
	})
}
