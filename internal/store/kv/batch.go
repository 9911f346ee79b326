// SPDX-License-Identifier: Apache-2.0

package kv

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/store"
)

// A single write is one message, which the server refuses unless the document's last message still is the one that was
// looked at.
//
// A change set of several is an atomic batch of the bucket's stream. The server stages it in a file before it begins to
// commit it; if the process is killed in between, the next start finds the last message to be of a batch that is not
// whole, and finishes it from that file. So a batch is there whole or not at all. All that a set depends on is read from
// the view at the stream's last sequence, and the batch is refused unless that still is the last sequence. This makes a
// set atomic also towards documents that it only looks at, such as those that it would not change.

// Headers of the protocols of buckets (ADR-8) and batches (ADR-50), which nats.go has no names for.
const (
	headerOperation = "KV-Operation" // of a tombstone
	operationDelete = "DEL"

	headerBatch    = "Nats-Batch-Id"
	headerSequence = "Nats-Batch-Sequence"
	headerCommit   = "Nats-Batch-Commit"
)

// Put is store.Store.Put.
func (s *Store) Put(ctx context.Context, k store.Key, raw json.RawMessage, c store.Condition) (store.Document, error) {
	docs, err := s.Apply(ctx, []store.Write{{Key: k, Raw: raw, If: c}})
	if err != nil {
		return store.Document{}, err
	}
	return docs[0], nil
}

// Delete is store.Store.Delete.
func (s *Store) Delete(ctx context.Context, k store.Key, c store.Condition) error {
	_, err := s.Apply(ctx, []store.Write{{Key: k, Delete: true, If: c}})
	return err
}

// Apply is store.Store.Apply.
func (s *Store) Apply(ctx context.Context, set []store.Write) (docs []store.Document, err error) {
	set, err = store.Prepare(set)
	if err != nil {
		return nil, err
	}
	for _, w := range set {
		if int64(len(w.Raw)) > s.nc.MaxPayload() {
			return nil, errTooLarge
		}
	}
	try := s.tryBatch
	if len(set) == 1 {
		try = s.trySingle
	}
	err = s.call(ctx, func(ctx context.Context) error {
		for range maxTries {
			if docs, err = try(ctx, set); !overtaken(err) {
				return err
			}
		}
		return fault.New(fault.Conflict, "the definitions are being changed by others all the time")
	})
	if err != nil {
		return nil, err
	}
	return docs, nil
}

// trySingle makes one attempt at a set of one, which fails if the document is written meanwhile.
func (s *Store) trySingle(ctx context.Context, set []store.Write) ([]store.Document, error) {
	w := set[0]
	old, last, err := s.get(ctx, w.Key)
	if err != nil {
		return nil, err
	}
	at := s.now().UTC()
	d, changed, err := w.On(old, at)
	if err != nil || !changed {
		return []store.Document{d}, err
	}
	m, err := s.message(ctx, w, old, d, at)
	if err != nil {
		return nil, err
	}
	m.Header.Set(jetstream.ExpectedLastSubjSeqHeader, strconv.FormatUint(last, 10))
	d.Revision, err = s.request(ctx, m)
	return []store.Document{d}, err
}

// tryBatch makes one attempt, which fails if anything is written meanwhile.
func (s *Store) tryBatch(ctx context.Context, set []store.Write) ([]store.Document, error) {
	select {
	case s.batching <- struct{}{}:
		defer func() { <-s.batching }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	last, err := s.last(ctx)
	if err != nil {
		return nil, err
	}
	at := s.now().UTC()
	docs := make([]store.Document, len(set))
	var batch []*nats.Msg
	for i, w := range set {
		var old *store.Document
		if d, ok := s.view.Get(w.Key); ok {
			old = &d
		}
		d, changed, err := w.On(old, at)
		if err != nil {
			return nil, err
		}
		if changed {
			m, err := s.message(ctx, w, old, d, at)
			if err != nil {
				return nil, err
			}
			batch = append(batch, m)
			d.Revision = last + uint64(len(batch))
		}
		docs[i] = d
	}
	if len(batch) == 0 {
		return docs, nil
	}
	batch[0].Header.Set(jetstream.ExpectedLastSeqHeader, strconv.FormatUint(last, 10))
	return docs, s.publish(ctx, batch, last+uint64(len(batch)))
}

// message is what stands in the stream for a write that makes d of old.
func (s *Store) message(ctx context.Context, w store.Write, old *store.Document, d store.Document, at time.Time) (*nats.Msg, error) {
	m := nats.NewMsg(s.subject(encodeKey(w.Key)))
	if w.Delete {
		m.Header.Set(headerOperation, operationDelete)
	} else {
		m.Data = encode(d)
	}
	var err error
	m.Header[headerAudit], err = auditHeader(store.EntryOf(store.AuthorOf(ctx), at, old, d))
	return m, err
}

// request publishes a message and returns its sequence; 0 if it was staged.
func (s *Store) request(ctx context.Context, m *nats.Msg) (uint64, error) {
	answer, err := s.nc.RequestMsgWithContext(ctx, m)
	if err != nil || len(answer.Data) == 0 {
		return 0, err
	}
	var ack struct {
		Seq   uint64              `json:"seq"`
		Error *jetstream.APIError `json:"error"`
	}
	if err := json.Unmarshal(answer.Data, &ack); err != nil {
		return 0, fmt.Errorf("answer to a write: %w", err)
	}
	if ack.Error != nil {
		return 0, ack.Error
	}
	return ack.Seq, nil
}

// publish commits a batch, which must end at a sequence. Whether it has happened is not known after an error that says
// nothing else.
func (s *Store) publish(ctx context.Context, batch []*nats.Msg, end uint64) error {
	id := nats.NewInbox()[len(nats.InboxPrefix):]
	for i, m := range batch {
		m.Header.Set(headerBatch, id)
		m.Header.Set(headerSequence, strconv.Itoa(i+1))
		if i == len(batch)-1 {
			m.Header.Set(headerCommit, "1")
		}
		if int64(m.Size()) > s.nc.MaxPayload() {
			return nats.ErrMaxPayload // before the server has begun to stage anything
		}
	}
	for i, m := range batch {
		if i > 0 && i < len(batch)-1 { // what is refused in between lets the commit fail
			if err := s.nc.PublishMsg(m); err != nil {
				return err
			}
			continue
		}
		seq, err := s.request(ctx, m)
		if err != nil {
			return err
		}
		if i == len(batch)-1 && seq != end {
			return fmt.Errorf("a batch ended at %d, not at %d", seq, end)
		}
	}
	return nil
}

// openStream looks the bucket's stream up, and lets it take batches and keep what Audit shows, also where an earlier
// version has made it.
func (s *Store) openStream(ctx context.Context, js jetstream.JetStream, bucket string) (err error) {
	if s.stream, err = js.Stream(ctx, "KV_"+bucket); err != nil {
		return err
	}
	c := s.stream.CachedInfo().Config
	if c.AllowAtomicPublish && c.MaxMsgsPerSubject == history {
		return nil
	}
	c.AllowAtomicPublish, c.MaxMsgsPerSubject = true, history
	s.stream, err = js.UpdateStream(ctx, c)
	return err
}

// fillKey is a document that never is: its tombstones take up revisions that must not be given.
var fillKey = store.Key{Kind: "revision", Name: "fill"}

const (
	maxFill  = 1_000_000
	fillStep = 32 // what is surely written within the bound of a call
)

// advance brings the stream's last sequence to a revision at least.
func (s *Store) advance(ctx context.Context, revision uint64) error {
	if revision == 0 {
		return nil
	}
	for first := true; ; first = false {
		var last uint64
		err := s.call(ctx, func(ctx context.Context) error {
			info, err := s.stream.Info(ctx)
			if err == nil {
				last = info.State.LastSeq
			}
			return err
		})
		if err != nil || last >= revision {
			return err
		}
		if first && revision-last > maxFill {
			return fmt.Errorf("definitions bucket: it is at revision %d, and %d was given already: the two are too far apart", last, revision)
		}
		err = s.call(ctx, func(ctx context.Context) error {
			for n := min(revision-last, fillStep); n > 0; n-- {
				m := nats.NewMsg(s.subject(encodeKey(fillKey)))
				m.Header.Set(headerOperation, operationDelete)
				if n == 1 { // the answer to the last one says that all are written
					_, err := s.request(ctx, m)
					return err
				}
				if err := s.nc.PublishMsg(m); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
}

// overtaken reports whether a change set lost against another one.
func overtaken(err error) bool {
	var api *jetstream.APIError
	return errors.As(err, &api) &&
		(api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence || api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant)
}
