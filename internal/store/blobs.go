// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"time"

	"github.com/rialto-bridge/rialto/internal/fault"
)

// MaxBlob is the most bytes of a blob.
const MaxBlob = 16 << 20

// Blobs keeps pieces of data that are too large for documents, such as code, by their SHA-256. They are beside the
// definitions that name them, where every process finds them; nobody holds them in memory, and no feed carries them.
//
// Errors are as those of a Store. Implementations are safe for concurrent use; storetest.RunBlobs is their suite.
type Blobs interface {
	// Put keeps data and returns its digest, in hex. It is durable and whole when that returns; of a Put that fails or is cut
	// off nothing can be got. Data that is kept already is as young as new data from then on.
	Put(ctx context.Context, data []byte) (digest string, err error)
	// Get returns the data with a digest, which it has checked; NotFound if there is none.
	Get(ctx context.Context, digest string) ([]byte, error)
	// Sweep removes what was last put before a time and is not to be kept, and what was left half.
	Sweep(ctx context.Context, keep map[string]bool, before time.Time) error
}

// Digest is the name of a blob: its SHA-256 in hex.
func Digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// NoBlob is the error for a blob that is not there.
func NoBlob(digest string) error {
	return fault.New(fault.NotFound, "nothing with the digest sha256:%s is stored", digest)
}
