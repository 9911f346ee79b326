// SPDX-License-Identifier: Apache-2.0

package memory

import (
	"bytes"
	"context"
	"sync"
	"time"

	"github.com/rialto-bridge/rialto/internal/store"
)

// Blobs is a store.Blobs in memory. The zero value is empty and ready for use.
type Blobs struct {
	mu    sync.Mutex // guards blobs
	blobs map[string]blob
}

type blob struct {
	data []byte
	at   time.Time
}

var _ store.Blobs = (*Blobs)(nil)

// Put is store.Blobs.Put.
func (b *Blobs) Put(ctx context.Context, data []byte) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.blobs == nil {
		b.blobs = make(map[string]blob)
	}
	digest := store.Digest(data)
	b.blobs[digest] = blob{bytes.Clone(data), time.Now()}
	return digest, nil
}

// Get is store.Blobs.Get.
func (b *Blobs) Get(ctx context.Context, digest string) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	found, ok := b.blobs[digest]
	if !ok {
		return nil, store.NoBlob(digest)
	}
	return bytes.Clone(found.data), nil
}

// Sweep is store.Blobs.Sweep.
func (b *Blobs) Sweep(ctx context.Context, keep map[string]bool, before time.Time) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for digest, found := range b.blobs {
		if !keep[digest] && found.at.Before(before) {
			delete(b.blobs, digest)
		}
	}
	return nil
}
