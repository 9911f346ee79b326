// SPDX-License-Identifier: Apache-2.0

package kv

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/store"
)

const (
	blobsBucket = "blobs"
	// chunkSize is less than the server takes in a message, however it is set.
	chunkSize = 64 << 10
)

// Blobs is a store.Blobs in a bucket of its own. The chunks of a blob are under <digest>.<upload>.<number>; the entry under
// <digest> is written after them and says which upload is whole. So an upload that is cut off is never read, two at a time
// do not meet, and to remove one takes nothing from another.
type Blobs struct {
	nc      *nats.Conn
	kv      jetstream.KeyValue
	stream  jetstream.Stream
	timeout time.Duration // of one exchange
}

var _ store.Blobs = (*Blobs)(nil)

// whole is the entry of a blob.
type whole struct {
	Upload string `json:"upload"`
	Size   int    `json:"size"`
}

// OpenBlobs makes or opens the bucket over nc, which stays the caller's. Unavailable when the server does not answer in
// time.
func OpenBlobs(ctx context.Context, nc *nats.Conn, o Options) (*Blobs, error) {
	if o.Bucket == "" {
		o.Bucket = blobsBucket
	}
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("blobs bucket: %w", err)
	}
	b := &Blobs{nc: nc, timeout: o.Timeout}
	err = b.call(ctx, func(ctx context.Context) error {
		b.kv, err = js.KeyValue(ctx, o.Bucket)
		if errors.Is(err, jetstream.ErrBucketNotFound) {
			b.kv, err = js.CreateKeyValue(ctx, jetstream.KeyValueConfig{
				Bucket: o.Bucket, Description: "Rialto code", Storage: jetstream.FileStorage, Replicas: max(o.Replicas, 1)})
			if errors.Is(err, jetstream.ErrBucketExists) { // another process was faster
				b.kv, err = js.KeyValue(ctx, o.Bucket)
			}
		}
		if err == nil {
			b.stream, err = js.Stream(ctx, "KV_"+o.Bucket)
		}
		return err
	})
	return b, err
}

// Put is store.Blobs.Put.
func (b *Blobs) Put(ctx context.Context, data []byte) (string, error) {
	if len(data) > store.MaxBlob {
		return "", errTooLarge
	}
	digest := store.Digest(data)
	upload := nats.NewInbox()[len(nats.InboxPrefix):]
	for n, rest := 0, data; n == 0 || len(rest) > 0; n++ {
		chunk := rest[:min(len(rest), chunkSize)]
		rest = rest[len(chunk):]
		if err := b.put(ctx, chunkKey(digest, upload, n), chunk); err != nil {
			return "", err
		}
	}
	entry, err := json.Marshal(whole{Upload: upload, Size: len(data)})
	if err != nil {
		return "", err
	}
	return digest, b.put(ctx, digest, entry)
}

func chunkKey(digest, upload string, n int) string { return fmt.Sprintf("%s.%s.%d", digest, upload, n) }

func (b *Blobs) put(ctx context.Context, key string, value []byte) error {
	return b.call(ctx, func(ctx context.Context) error {
		_, err := b.kv.Put(ctx, key, value)
		return err
	})
}

// Get is store.Blobs.Get. What is put again meanwhile may take the chunks away that are being read; then it begins again.
func (b *Blobs) Get(ctx context.Context, digest string) ([]byte, error) {
	if strings.Trim(digest, "0123456789abcdef") != "" || digest == "" {
		return nil, store.NoBlob(digest)
	}
	for try := 0; ; try++ {
		data, err := b.read(ctx, digest)
		if err == nil && store.Digest(data) != digest {
			err = fmt.Errorf("blob %s is damaged", digest)
		}
		if err == nil || !errors.Is(err, errChunk) || try == 3 {
			return data, err
		}
	}
}

// errChunk is a chunk that is not there.
var errChunk = errors.New("a part of a blob is missing")

func (b *Blobs) read(ctx context.Context, digest string) ([]byte, error) {
	value, err := b.get(ctx, digest)
	switch {
	case err != nil:
		return nil, err
	case value == nil:
		return nil, store.NoBlob(digest)
	}
	var w whole
	if err := json.Unmarshal(value, &w); err != nil || w.Size < 0 || w.Size > store.MaxBlob {
		return nil, fmt.Errorf("entry of blob %s is damaged", digest)
	}
	data := make([]byte, 0, w.Size)
	for n := 0; len(data) < w.Size; n++ {
		chunk, err := b.get(ctx, chunkKey(digest, w.Upload, n))
		switch {
		case err != nil:
			return nil, err
		case len(chunk) == 0:
			return nil, errChunk
		}
		data = append(data, chunk...)
	}
	return data, nil
}

// get returns the value of a key; nil if there is none.
func (b *Blobs) get(ctx context.Context, key string) (value []byte, err error) {
	err = b.call(ctx, func(ctx context.Context) error {
		e, err := b.kv.Get(ctx, key)
		if errors.Is(err, jetstream.ErrKeyNotFound) {
			return nil
		}
		if err == nil {
			value = e.Value()
		}
		return err
	})
	return value, err
}

// Sweep is store.Blobs.Sweep.
func (b *Blobs) Sweep(ctx context.Context, keep map[string]bool, before time.Time) error {
	uploads, err := b.uploads(ctx)
	if err != nil {
		return err
	}
	for digest, all := range uploads {
		current, at, revision, err := b.entry(ctx, digest)
		if err != nil {
			return err
		}
		if current != "" && !keep[digest] && at.Before(before) {
			// Not if it was put again: then it is young.
			err := b.call(ctx, func(ctx context.Context) error { return b.kv.Purge(ctx, digest, jetstream.LastRevision(revision)) })
			if overtaken(err) {
				continue
			}
			if err != nil {
				return err
			}
			current = ""
		}
		for upload := range all {
			if upload == current {
				continue
			}
			if err := b.drop(ctx, digest, upload, before); err != nil {
				return err
			}
		}
	}
	return nil
}

// uploads are the uploads of each digest, whole or not.
func (b *Blobs) uploads(ctx context.Context) (map[string]map[string]bool, error) {
	all := map[string]map[string]bool{}
	err := b.call(ctx, func(ctx context.Context) error {
		info, err := b.stream.Info(ctx, jetstream.WithSubjectFilter(b.subject(">")))
		if err != nil {
			return err
		}
		for subject := range info.State.Subjects {
			parts := strings.Split(strings.TrimPrefix(subject, b.subject("")), ".")
			if all[parts[0]] == nil {
				all[parts[0]] = map[string]bool{}
			}
			if len(parts) == 3 {
				all[parts[0]][parts[1]] = true
			}
		}
		return nil
	})
	return all, err
}

func (b *Blobs) subject(key string) string { return "$KV." + b.kv.Bucket() + "." + key }

// entry returns which upload of a digest is whole, "" if none, and when that was written.
func (b *Blobs) entry(ctx context.Context, digest string) (upload string, at time.Time, revision uint64, err error) {
	err = b.call(ctx, func(ctx context.Context) error {
		e, err := b.kv.Get(ctx, digest)
		if errors.Is(err, jetstream.ErrKeyNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		var w whole
		at, revision = e.Created(), e.Revision()
		if json.Unmarshal(e.Value(), &w) == nil {
			upload = w.Upload
		}
		return nil
	})
	return upload, at, revision, err
}

// drop removes the chunks of an upload, unless it may be under way.
func (b *Blobs) drop(ctx context.Context, digest, upload string, before time.Time) error {
	return b.call(ctx, func(ctx context.Context) error {
		first, err := b.kv.Get(ctx, chunkKey(digest, upload, 0))
		if err == nil && !first.Created().Before(before) {
			return nil
		}
		if err != nil && !errors.Is(err, jetstream.ErrKeyNotFound) {
			return err
		}
		return b.stream.Purge(ctx, jetstream.WithPurgeSubject(b.subject(digest+"."+upload+".>")))
	})
}

// call runs one exchange with the server within the bound, and says in fault's words what went wrong.
func (b *Blobs) call(ctx context.Context, do func(context.Context) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if !b.nc.IsConnected() {
		return unavailable(fmt.Errorf("connection is %s", b.nc.Status()))
	}
	bound, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	err := do(bound)
	var f *fault.Error
	switch {
	case err == nil, errors.As(err, &f), overtaken(err):
		return err
	case ctx.Err() != nil:
		return ctx.Err()
	case full(err):
		return &fault.Error{Kind: fault.Full, Message: "the definitions store has no room", Err: err}
	case bound.Err() != nil, away(err):
		return unavailable(err)
	}
	return fmt.Errorf("blobs bucket: %w", err)
}
