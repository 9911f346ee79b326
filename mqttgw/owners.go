// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Owners says which node has a session. A claim by another node takes it away: its revision is larger, and records with
// a smaller one no longer count. Safe for concurrent use.
type Owners interface {
	// Claim makes this node the owner and returns the claim's revision, which is above that of every claim before.
	Claim(ctx context.Context, principal, clientID string) (revision uint64, err error)
	// Release gives a claim back, unless another node has claimed since.
	Release(ctx context.Context, principal, clientID string, revision uint64) error
}

// OwnerBucket keeps claims in a key-value bucket.
type OwnerBucket struct {
	kv   jetstream.KeyValue
	node string
}

var _ Owners = (*OwnerBucket)(nil)

const (
	ownerTime  = 3 * time.Second // of one exchange with the bucket
	ownerTries = 10              // of a claim that others overtake
	markerTime = time.Hour       // how long the bucket knows of a claim that was given back
)

// OpenOwners opens the bucket, or makes it. nc must outlive it and is not closed by it. node names this process among
// those that share the bucket.
func OpenOwners(ctx context.Context, nc *nats.Conn, bucket, node string) (*OwnerBucket, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("bucket %s: %w", bucket, err)
	}
	kv, err := js.KeyValue(ctx, bucket)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		kv, err = js.CreateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: bucket, Description: "Which node has an MQTT session", History: 1,
			Storage: jetstream.FileStorage, LimitMarkerTTL: markerTime})
		if errors.Is(err, jetstream.ErrBucketExists) { // another process was faster
			kv, err = js.KeyValue(ctx, bucket)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("bucket %s: %w", bucket, err)
	}
	return &OwnerBucket{kv: kv, node: node}, nil
}

// ownerKey is a key of the bucket: a digest, because principals and client ids are any text of any length.
func ownerKey(principal, clientID string) string {
	h := sha256.New()
	fmt.Fprintf(h, "%d.%s%s", len(principal), principal, clientID)
	return hex.EncodeToString(h.Sum(nil))
}

// Claim is Owners.Claim.
func (b *OwnerBucket) Claim(ctx context.Context, principal, clientID string) (uint64, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, ownerTime, errors.New("the bucket of sessions does not answer"))
	defer cancel()
	key := ownerKey(principal, clientID)
	for range ownerTries {
		var revision uint64
		e, err := b.kv.Get(ctx, key)
		switch {
		case errors.Is(err, jetstream.ErrKeyNotFound):
			revision, err = b.kv.Create(ctx, key, []byte(b.node))
		case err == nil:
			revision, err = b.kv.Update(ctx, key, []byte(b.node), e.Revision())
		}
		if err == nil {
			return revision, nil
		}
		if !overtaken(err) {
			return 0, fmt.Errorf("claim session: %w", err)
		}
	}
	return 0, errors.New("claim session: others claim it all the time")
}

// Release is Owners.Release.
func (b *OwnerBucket) Release(ctx context.Context, principal, clientID string, revision uint64) error {
	ctx, cancel := context.WithTimeout(ctx, ownerTime)
	defer cancel()
	err := b.kv.Purge(ctx, ownerKey(principal, clientID), jetstream.LastRevision(revision), jetstream.PurgeTTL(markerTime))
	if overtaken(err) {
		return nil
	}
	return err
}

// overtaken reports whether a write lost against another one.
func overtaken(err error) bool {
	var api *jetstream.APIError
	return errors.Is(err, jetstream.ErrKeyExists) || errors.As(err, &api) &&
		(api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence || api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant)
}
