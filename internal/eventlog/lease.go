// SPDX-License-Identifier: Apache-2.0

package eventlog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// ErrLeaseLost is the cause of the context of Hold when another node has the lease, or may have it.
var ErrLeaseLost = errors.New("another node has the lease")

const (
	defaultLeaseTTL = 10 * time.Second
	leaseMarkerTTL  = time.Hour // how long the bucket remembers a lease that was given back
)

// Leases let one node at a time have a thing of a name. They stand in a key-value bucket of the state plane, and need no
// clocks that agree: whoever wants a lease takes it when it has seen it unrenewed for the whole TTL, by its own clock.
// The holder stops when it could not renew for two thirds of that. Safe for concurrent use.
type Leases struct {
	kv   jetstream.KeyValue
	node string
	ttl  time.Duration
}

// LeaseOptions configures Leases.
type LeaseOptions struct {
	Bucket   string        // "" = leases
	Node     string        // names this process among those that share the bucket; required
	TTL      time.Duration // 0 = 10 s
	Replicas int           // of the bucket when it is made; 0 = 1
}

// OpenLeases opens the bucket, or makes it. nc, which Log.Connect makes, must outlive it and is not closed by it.
func OpenLeases(ctx context.Context, nc *nats.Conn, o LeaseOptions) (*Leases, error) {
	if o.Node == "" {
		return nil, errors.New("leases: the node has no name")
	}
	if o.Bucket == "" {
		o.Bucket = "leases"
	}
	if o.TTL == 0 {
		o.TTL = defaultLeaseTTL
	}
	kv, err := openBucket(ctx, nc, jetstream.KeyValueConfig{Bucket: o.Bucket, Description: "Which node has what", History: 1,
		Storage: jetstream.FileStorage, Replicas: max(1, o.Replicas), LimitMarkerTTL: leaseMarkerTTL})
	if err != nil {
		return nil, err
	}
	return &Leases{kv: kv, node: o.Node, ttl: o.TTL}, nil
}

func openBucket(ctx context.Context, nc *nats.Conn, c jetstream.KeyValueConfig) (jetstream.KeyValue, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("bucket %s: %w", c.Bucket, err)
	}
	kv, err := js.KeyValue(ctx, c.Bucket)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		kv, err = js.CreateKeyValue(ctx, c)
		if errors.Is(err, jetstream.ErrBucketExists) { // another process was faster
			kv, err = js.KeyValue(ctx, c.Bucket)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("bucket %s: %w", c.Bucket, err)
	}
	return kv, nil
}

// Node is the name of this process.
func (l *Leases) Node() string { return l.node }

// Holder returns the node that has a lease, or had it last; "" when it is free.
func (l *Leases) Holder(ctx context.Context, name string) (string, error) {
	e, err := l.kv.Get(ctx, name)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("lease %s: %w", name, err)
	}
	return string(e.Value()), nil
}

// Hold blocks until this node has the lease, calls fn, gives the lease back when fn returns, and returns its error. The
// context of fn is done with the cause ErrLeaseLost as soon as another node could take the lease; fn must return then. A
// lease that the same node had in an earlier life is taken at once. One process holds a name at most once at a time.
func (l *Leases) Hold(ctx context.Context, name string, fn func(ctx context.Context) error) error {
	renewed := time.Now()
	revision, err := l.acquire(ctx, name, &renewed)
	if err != nil {
		return err
	}
	held, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan error, 1)
	go func() { done <- fn(held) }()
	tick := time.NewTicker(l.ttl / 3)
	defer tick.Stop()
	for {
		select {
		case err := <-done:
			return errors.Join(err, l.release(ctx, name, revision))
		case <-tick.C:
			start := time.Now()
			next, err := l.write(ctx, name, revision)
			switch {
			case err == nil:
				revision, renewed = next, start
			case overtaken(err), time.Since(renewed) > l.ttl*2/3:
				cancel(ErrLeaseLost)
				return errors.Join(<-done, ErrLeaseLost)
			}
		}
	}
}

// acquire blocks until the lease is ours. renewed is set to when the write that made it so began.
func (l *Leases) acquire(ctx context.Context, name string, renewed *time.Time) (uint64, error) {
	var seen uint64 // the revision that stands there since
	since := time.Now()
	for {
		*renewed = time.Now()
		e, err := l.kv.Get(ctx, name)
		var revision uint64
		switch {
		case errors.Is(err, jetstream.ErrKeyNotFound):
			revision, err = l.kv.Create(ctx, name, []byte(l.node))
		case err != nil:
		case string(e.Value()) == l.node, e.Revision() == seen && time.Since(since) >= l.ttl:
			revision, err = l.write(ctx, name, e.Revision())
		case e.Revision() != seen:
			seen, since = e.Revision(), *renewed
		}
		if revision > 0 && err == nil {
			return revision, nil
		}
		if err != nil && !overtaken(err) {
			return 0, fmt.Errorf("lease %s: %w", name, err)
		}
		timer := time.NewTimer(l.ttl / 5)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return 0, context.Cause(ctx)
		}
	}
}

// write puts our name over a revision.
func (l *Leases) write(ctx context.Context, name string, revision uint64) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, l.ttl/3)
	defer cancel()
	return l.kv.Update(ctx, name, []byte(l.node), revision)
}

// release gives the lease back, also when ctx is done, unless another node has taken it.
func (l *Leases) release(ctx context.Context, name string, revision uint64) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.ttl/3)
	defer cancel()
	err := l.kv.Purge(ctx, name, jetstream.LastRevision(revision), jetstream.PurgeTTL(leaseMarkerTTL))
	if err != nil && !overtaken(err) {
		return fmt.Errorf("give lease %s back: %w", name, err)
	}
	return nil
}

// overtaken reports whether a write lost against another one.
func overtaken(err error) bool {
	var api *jetstream.APIError
	return errors.Is(err, jetstream.ErrKeyExists) || errors.As(err, &api) &&
		(api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence || api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant)
}
