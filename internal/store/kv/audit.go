// SPDX-License-Identifier: Apache-2.0

package kv

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/rialto-bridge/rialto/internal/store"
)

// The audit entry of a change is a header of its message, so neither can be there without the other. The bucket keeps
// the last messages of each document: that is how far back the audit goes.

// history is how many changes of each document are kept.
const history = 16

// headerAudit is the header with what the message does not say itself.
const headerAudit = "Rialto-Audit"

const (
	auditFetch  = 1000             // messages that are read at a time
	auditLinger = time.Minute      // of a reader that was not taken down
	auditSlack  = 10 * time.Second // how far the clocks of server and writer may be apart
)

// auditNote is the value of headerAudit.
type auditNote struct {
	At        time.Time `json:"at"`
	By        string    `json:"by,omitempty"`
	RequestID string    `json:"requestId,omitempty"`
	Old       uint64    `json:"old,omitempty"`
}

// auditHeader encodes an entry.
func auditHeader(e store.AuditEntry) ([]string, error) {
	b, err := json.Marshal(auditNote{At: e.At, By: e.By.Name, RequestID: e.By.RequestID, Old: e.OldRevision})
	return []string{string(b)}, err
}

// auditEntry decodes the entry of a message. One that an earlier version has written has the time only.
func (s *Store) auditEntry(m jetstream.Msg) (store.AuditEntry, error) {
	meta, err := m.Metadata()
	if err != nil {
		return store.AuditEntry{}, err
	}
	k, err := decodeKey(m.Subject()[len(s.subject("")):])
	if err != nil {
		return store.AuditEntry{}, err
	}
	note := auditNote{At: meta.Timestamp}
	if h := m.Headers().Get(headerAudit); h != "" {
		if err := json.Unmarshal([]byte(h), &note); err != nil {
			return store.AuditEntry{}, fmt.Errorf("audit entry %d: %w", meta.Sequence.Stream, err)
		}
	}
	e := store.AuditEntry{Key: k, By: store.Author{Name: note.By, RequestID: note.RequestID}, At: note.At.UTC(), OldRevision: note.Old,
		Revision: meta.Sequence.Stream, Action: store.Changed}
	switch {
	case m.Headers().Get(headerOperation) != "":
		e.Action = store.Deleted
	case note.Old == 0:
		e.Action = store.Created
	}
	return e, nil
}

// Audit is store.Store.Audit, over the last 16 changes of each document.
func (s *Store) Audit(ctx context.Context, q store.AuditQuery) (store.AuditPage, error) {
	limit, below, err := q.Page()
	if err != nil {
		return store.AuditPage{}, err
	}
	var newest []store.AuditEntry // with the newest last
	err = s.call(ctx, func(ctx context.Context) error {
		return s.readAudit(ctx, q, func(e store.AuditEntry) {
			if e.Revision >= below || !q.Has(e) {
				return
			}
			newest = append(newest, e)
			if len(newest) > 2*limit+auditFetch {
				newest = slices.Delete(newest, 0, len(newest)-limit-1)
			}
		})
	})
	if err != nil {
		return store.AuditPage{}, err
	}
	slices.Reverse(newest)
	return q.Select(slices.Values(newest))
}

// readAudit calls fn for entries, the oldest first: all that q asks for, and maybe others.
func (s *Store) readAudit(ctx context.Context, q store.AuditQuery, fn func(store.AuditEntry)) error {
	c := jetstream.ConsumerConfig{FilterSubject: s.subject(auditFilter(q)), HeadersOnly: true, AckPolicy: jetstream.AckNonePolicy,
		MemoryStorage: true, InactiveThreshold: auditLinger}
	if !q.From.IsZero() {
		from := q.From.Add(-auditSlack)
		c.DeliverPolicy, c.OptStartTime = jetstream.DeliverByStartTimePolicy, &from
	}
	reader, err := s.stream.CreateConsumer(ctx, c)
	if err != nil {
		return err
	}
	defer func() {
		// One that stays behind, because the server or the caller has gone, ends by itself.
		if err := s.stream.DeleteConsumer(ctx, reader.CachedInfo().Name); err != nil {
			s.log.Debug("audit reader stays behind", "err", err)
		}
	}()
	for pending := reader.CachedInfo().NumPending; pending > 0; {
		batch, err := reader.Fetch(int(min(pending, auditFetch)), jetstream.FetchMaxWait(s.timeout)) //nolint:gosec // bounded
		if err != nil {
			return err
		}
		before := pending
		for m := range batch.Messages() {
			pending--
			e, err := s.auditEntry(m)
			if err != nil {
				s.log.Warn("bucket holds what is no change", "subject", m.Subject(), "err", err)
				continue
			}
			if e.Key != fillKey {
				fn(e)
			}
		}
		if err := batch.Error(); err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if pending == before {
			return nil // the rest was superseded meanwhile
		}
	}
	return nil
}

// auditFilter is what keys look like that q may ask for.
func auditFilter(q store.AuditQuery) string {
	kind, name := "*", "*"
	if q.Kind != "" {
		kind = encodePart(q.Kind)
	}
	if q.Name != "" {
		name = encodePart(q.Name)
	}
	return kind + ".*." + name
}
