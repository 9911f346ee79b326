// SPDX-License-Identifier: Apache-2.0

// Package kv keeps definitions in a NATS JetStream key-value bucket: the default store, on the state plane that the
// bridge embeds or on a cluster.
//
// The bucket's stream sequence is the revision, so revisions grow over the whole store, and compare-and-swap is the
// server's. A change set of several writes is an atomic batch of the stream (batch.go). A write is durable when the
// server says so (the state plane syncs every write). Deleting leaves a tombstone, so that every process
// hears of it. Each process has one watcher, however many Watch calls there are; a list is answered from that watcher's
// view once it has reached the bucket's last sequence, so it shows every write that was finished before it was asked for,
// by whatever process.
//
// While the server cannot be reached, every call but Watch ends with fault.Unavailable within Options.Timeout. A write
// that timed out may still have happened. Watch waits and goes on.
package kv

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/store"
)

const (
	defaultBucket  = "definitions"
	defaultTimeout = 3 * time.Second
	maxTries       = 100 // of a change set that others overtake
	minBackoff     = 50 * time.Millisecond
	maxBackoff     = 2 * time.Second
)

// Error codes of the JetStream API that nats.go has no name for.
const (
	errBatchIncomplete       = 10176
	errBatchesInFlight       = 10210
	errInsufficientResources = 10023
	errMemoryExceeded        = 10028
	errStorageExceeded       = 10047
)

// Options says where and how definitions are kept.
type Options struct {
	Bucket   string           // "" = definitions
	Replicas int              // of the bucket when it is made; 0 = 1
	Timeout  time.Duration    // bound of one call; 0 = 3 s
	Logger   *slog.Logger     // nil = none
	Now      func() time.Time // nil = time.Now
	// After is a revision that the store goes beyond: no later write has it or a smaller one. The way there takes a
	// fraction of a millisecond a revision, and is not bound by Timeout.
	After uint64
}

// Store is a store.Store on a bucket.
type Store struct {
	nc      *nats.Conn
	kv      jetstream.KeyValue
	stream  jetstream.Stream // the bucket's
	timeout time.Duration
	log     *slog.Logger
	now     func() time.Time
	view    *store.View
	// batching lets one batch be made at a time: two would only overtake each other.
	batching chan struct{}

	cancel context.CancelFunc
	ctx    context.Context // done when the store is closed; ends what is under way
	wg     sync.WaitGroup
}

var _ store.Store = (*Store)(nil)

// value is what stands in the bucket.
type value struct {
	CreatedAt time.Time       `json:"createdAt"`
	UpdatedAt time.Time       `json:"updatedAt"`
	Document  json.RawMessage `json:"document"`
}

// Open makes or opens the bucket over nc and starts to watch it. The connection stays the caller's: it must outlive
// the store and is not closed by it. Unavailable when the server does not answer in time.
func Open(ctx context.Context, nc *nats.Conn, o Options) (*Store, error) {
	if o.Bucket == "" {
		o.Bucket = defaultBucket
	}
	if o.Replicas == 0 {
		o.Replicas = 1
	}
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("definitions bucket: %w", err)
	}
	s := &Store{nc: nc, timeout: o.Timeout, log: o.Logger.With("component", "store"), now: o.Now, view: store.NewView(),
		batching: make(chan struct{}, 1)}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	err = s.call(ctx, func(ctx context.Context) error {
		kv, err := js.KeyValue(ctx, o.Bucket)
		if errors.Is(err, jetstream.ErrBucketNotFound) {
			kv, err = js.CreateKeyValue(ctx, jetstream.KeyValueConfig{
				Bucket: o.Bucket, Description: "Rialto definitions", History: history, Storage: jetstream.FileStorage, Replicas: o.Replicas})
			if errors.Is(err, jetstream.ErrBucketExists) { // another process was faster
				kv, err = js.KeyValue(ctx, o.Bucket)
			}
		}
		if err != nil {
			return err
		}
		s.kv = kv
		return s.openStream(ctx, js, o.Bucket)
	})
	if err == nil {
		err = s.advance(ctx, o.After)
	}
	if err != nil {
		s.cancel()
		return nil, err
	}
	s.wg.Go(s.watch)
	return s, nil
}

// Get is store.Store.Get.
func (s *Store) Get(ctx context.Context, k store.Key) (store.Document, error) {
	var d *store.Document
	err := s.call(ctx, func(ctx context.Context) (err error) {
		d, _, err = s.get(ctx, k)
		return err
	})
	if err == nil && d == nil {
		err = store.NotFound(k)
	}
	if err != nil {
		return store.Document{}, err
	}
	return *d, nil
}

// List is store.Store.List.
func (s *Store) List(ctx context.Context, q store.Query) (store.Page, error) {
	if err := s.reach(ctx); err != nil {
		return store.Page{}, err
	}
	return s.view.List(q)
}

// Watch is store.Store.Watch. While the server is away it hears nothing, and all that was missed when it is back.
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
	return s.call(ctx, func(ctx context.Context) error {
		_, err := s.last(ctx)
		return err
	})
}

// last returns the last sequence of the stream; the view has everything up to it.
func (s *Store) last(ctx context.Context) (uint64, error) {
	st, err := s.kv.Status(ctx)
	if err != nil {
		return 0, err
	}
	bucket, ok := st.(*jetstream.KeyValueBucketStatus)
	if !ok {
		return 0, fmt.Errorf("bucket status is a %T", st)
	}
	seq := bucket.StreamInfo().State.LastSeq
	return seq, s.view.Wait(ctx, seq)
}

// Close stops watching and waits for it. Calls under way end with store.ErrClosed.
func (s *Store) Close() error {
	s.view.Close(store.ErrClosed)
	s.cancel()
	s.wg.Wait()
	return nil
}

// subject is where the messages of an encoded key are.
func (s *Store) subject(encoded string) string { return "$KV." + s.kv.Bucket() + "." + encoded }

// get returns the stored document, nil if there is none, and the sequence of the last message of its key, 0 if there is
// none.
func (s *Store) get(ctx context.Context, k store.Key) (*store.Document, uint64, error) {
	m, err := s.stream.GetLastMsgForSubject(ctx, s.subject(encodeKey(k)))
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	if m.Header.Get(headerOperation) != "" {
		return nil, m.Sequence, nil
	}
	d, err := document(k, m.Sequence, m.Data)
	if err != nil {
		return nil, 0, err
	}
	return &d, m.Sequence, nil
}

// call runs one exchange with the server within the bound, and says in fault's words what went wrong.
func (s *Store) call(ctx context.Context, do func(context.Context) error) error {
	if s.ctx.Err() != nil {
		return store.ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if !s.nc.IsConnected() {
		// Not even tried: a write would wait in the client's buffer and happen some time after this call has failed.
		return unavailable(fmt.Errorf("connection is %s", s.nc.Status()))
	}
	bound, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	stop := context.AfterFunc(s.ctx, cancel)
	defer stop()
	err := do(bound)
	var f *fault.Error
	switch {
	case err == nil, errors.As(err, &f):
		return err
	case s.ctx.Err() != nil:
		return store.ErrClosed
	case ctx.Err() != nil:
		return ctx.Err()
	case full(err):
		return &fault.Error{Kind: fault.Full, Message: "the definitions store has no room", Err: err}
	case bound.Err() != nil, away(err):
		return unavailable(err)
	case errors.Is(err, nats.ErrMaxPayload):
		return errTooLarge
	}
	return fmt.Errorf("definitions bucket: %w", err)
}

// watch keeps the view up to date until the store is closed.
func (s *Store) watch() {
	wait := minBackoff
	for {
		started, err := s.follow()
		if s.ctx.Err() != nil {
			return
		}
		if started {
			wait = minBackoff
		}
		s.log.Warn("definitions feed broken", "err", err, "retryIn", wait)
		select {
		case <-time.After(wait):
		case <-s.ctx.Done():
			return
		}
		wait = min(2*wait, maxBackoff)
	}
}

// follow runs one watcher until it breaks. It starts with the last state of every key; the view ignores what it knows.
func (s *Store) follow() (started bool, err error) {
	// A watcher that lost its server notices only after two missed heartbeats, ten seconds. So a new one is made
	// whenever the connection is back.
	back := s.nc.StatusChanged(nats.CONNECTED)
	defer s.nc.RemoveStatusListener(back)

	ctx, cancel := context.WithCancel(s.ctx) // the watcher's for its whole life, so only its start is bound by time
	defer cancel()
	start := time.AfterFunc(s.timeout, cancel)
	w, err := s.kv.WatchAll(ctx)
	if err != nil {
		return false, err
	}
	defer func() {
		if stopErr := w.Stop(); stopErr != nil && !errors.Is(stopErr, nats.ErrConnectionClosed) && !errors.Is(stopErr, nats.ErrBadSubscription) {
			err = errors.Join(err, stopErr)
		}
		drain(w.Updates())
	}()
	start.Stop()
	for {
		select {
		case e, ok := <-w.Updates():
			switch {
			case !ok:
				return true, errors.New("watcher ended")
			case e == nil:
				s.view.CaughtUp()
			default:
				s.apply(e)
			}
		case <-back:
			return true, errors.New("connection was lost")
		case <-ctx.Done():
			return true, ctx.Err()
		}
	}
}

// drainQuiet is how long nothing comes out of a watcher that was stopped before it is taken for ended.
const drainQuiet = time.Second

// drain reads what a watcher that was stopped has still to say: its callback may be waiting for room. Its end is not always said: not
// when its context ended while it was being made.
func drain(updates <-chan jetstream.KeyValueEntry) {
	quiet := time.NewTimer(drainQuiet)
	defer quiet.Stop()
	for {
		select {
		case _, ok := <-updates:
			if !ok {
				return
			}
			quiet.Reset(drainQuiet)
		case <-quiet.C:
			return
		}
	}
}

func (s *Store) apply(e jetstream.KeyValueEntry) {
	k, err := decodeKey(e.Key())
	if err != nil {
		s.log.Warn("definitions bucket holds a foreign key", "key", e.Key(), "err", err)
		s.view.Skip(e.Revision())
		return
	}
	if e.Operation() != jetstream.KeyValuePut {
		s.view.Apply(store.Change{Document: store.Document{Key: k, Revision: e.Revision()}, Deleted: true})
		return
	}
	d, err := document(k, e.Revision(), e.Value())
	if err != nil {
		s.log.Error("definition is damaged", "key", k.String(), "revision", e.Revision(), "err", err)
		s.view.Skip(e.Revision())
		return
	}
	s.view.Apply(store.Change{Document: d})
}

// encode writes a value by hand: encoding/json would escape <, > and & within the document, which is to stay as it is.
func encode(d store.Document) []byte {
	b := make([]byte, 0, len(d.Raw)+128)
	b = append(b, `{"createdAt":"`...)
	b = d.CreatedAt.AppendFormat(b, time.RFC3339Nano)
	b = append(b, `","updatedAt":"`...)
	b = d.UpdatedAt.AppendFormat(b, time.RFC3339Nano)
	b = append(b, `","document":`...)
	b = append(b, d.Raw...)
	return append(b, '}')
}

func document(k store.Key, revision uint64, data []byte) (store.Document, error) {
	var v value
	if err := json.Unmarshal(data, &v); err != nil {
		return store.Document{}, fmt.Errorf("definition %s at revision %d: %w", k, revision, err)
	}
	return store.Document{Key: k, Revision: revision, CreatedAt: v.CreatedAt, UpdatedAt: v.UpdatedAt, Raw: v.Document}, nil
}

// away reports whether the server could not be asked, or could not answer now.
func away(err error) bool {
	for _, e := range []error{context.DeadlineExceeded, nats.ErrTimeout, nats.ErrNoResponders, nats.ErrConnectionClosed,
		nats.ErrDisconnected, nats.ErrConnectionReconnecting, nats.ErrNoServers, nats.ErrReconnectBufExceeded,
		jetstream.ErrNoStreamResponse, jetstream.ErrJetStreamNotEnabled} {
		if errors.Is(err, e) {
			return true
		}
	}
	var api *jetstream.APIError
	return errors.As(err, &api) && (api.Code == 503 && !full(err) || api.ErrorCode == errBatchIncomplete || api.ErrorCode == errBatchesInFlight)
}

// full reports whether the server has no room for the write.
func full(err error) bool {
	var api *jetstream.APIError
	if !errors.As(err, &api) {
		return false
	}
	switch api.ErrorCode {
	case errInsufficientResources, errMemoryExceeded, errStorageExceeded:
		return true
	}
	return false
}

var errTooLarge = fault.New(fault.TooLarge, "the definition is larger than the store takes")

func unavailable(cause error) error {
	return &fault.Error{Kind: fault.Unavailable, Message: "the definitions store is away", RetryAfter: time.Second, Err: cause}
}
