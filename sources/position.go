// SPDX-License-Identifier: Apache-2.0

package sources

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// ErrMoved says that a position was changed by somebody else: it was reset, or another node has the source.
var ErrMoved = errors.New("the position was moved by somebody else")

// positionTime bounds an exchange with the bucket.
const positionTime = 3 * time.Second

// Positions keeps where sources are, in a key-value bucket. Safe for concurrent use.
type Positions struct{ kv jetstream.KeyValue }

// standing is what is kept of a source.
type standing struct {
	At    string `json:"at,omitempty"`    // in words of its kind; "" = it has not begun
	Start string `json:"start,omitempty"` // of a reset, instead of the definition's, until it has begun
	// Paused says that the source was paused by its definition after it had got there.
	Paused bool `json:"paused,omitempty"`
}

// OpenPositions opens the bucket, or makes it. nc must outlive it and is not closed by it.
func OpenPositions(ctx context.Context, nc *nats.Conn, bucket string) (*Positions, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("bucket %s: %w", bucket, err)
	}
	kv, err := js.KeyValue(ctx, bucket)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		kv, err = js.CreateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: bucket, Description: "Where sources are upstream", History: 1,
			Storage: jetstream.FileStorage})
		if errors.Is(err, jetstream.ErrBucketExists) { // another process was faster
			kv, err = js.KeyValue(ctx, bucket)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("bucket %s: %w", bucket, err)
	}
	return &Positions{kv}, nil
}

// get returns what is kept of a source, and its revision; 0 if nothing.
func (p *Positions) get(ctx context.Context, source string) (s standing, revision uint64, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, positionTime, errors.New("the bucket of positions does not answer"))
	defer cancel()
	e, err := p.kv.Get(ctx, source)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return s, 0, nil
	}
	if err == nil {
		err = json.Unmarshal(e.Value(), &s)
		revision = e.Revision()
	}
	if err != nil {
		return s, 0, fmt.Errorf("position of source %s: %w", source, err)
	}
	return s, revision, nil
}

// put writes over a revision, 0 being nothing, and returns the new one; ErrMoved if something else stands there.
func (p *Positions) put(ctx context.Context, source string, s standing, over uint64) (uint64, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, positionTime, errors.New("the bucket of positions does not answer"))
	defer cancel()
	b, err := json.Marshal(s)
	if err != nil {
		return 0, err
	}
	var revision uint64
	if over == 0 {
		revision, err = p.kv.Create(ctx, source, b)
	} else {
		revision, err = p.kv.Update(ctx, source, b, over)
	}
	var api *jetstream.APIError
	if errors.Is(err, jetstream.ErrKeyExists) || errors.As(err, &api) &&
		(api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence || api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant) {
		return 0, ErrMoved
	}
	if err != nil {
		return 0, fmt.Errorf("position of source %s: %w", source, err)
	}
	return revision, nil
}

// pause notes that a source which has begun is paused.
func (p *Positions) pause(ctx context.Context, source string) error {
	st, revision, err := p.get(ctx, source)
	if err != nil || st.At == "" || st.Paused {
		return err
	}
	st.Paused = true
	_, err = p.put(ctx, source, st, revision)
	return err
}

// Reset forgets where a source is: it begins at start, which ParseStart has accepted, the next time it runs. Whoever runs it
// now can save its position no more.
func (p *Positions) Reset(ctx context.Context, source, start string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, positionTime, errors.New("the bucket of positions does not answer"))
	defer cancel()
	b, err := json.Marshal(standing{Start: start})
	if err == nil {
		_, err = p.kv.Put(ctx, source, b)
	}
	if err != nil {
		return fmt.Errorf("position of source %s: %w", source, err)
	}
	return nil
}

// Forget removes what is kept of a source that is gone.
func (p *Positions) Forget(ctx context.Context, source string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, positionTime, errors.New("the bucket of positions does not answer"))
	defer cancel()
	if err := p.kv.Purge(ctx, source); err != nil {
		return fmt.Errorf("position of source %s: %w", source, err)
	}
	return nil
}
