// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"bytes"
	"container/heap"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/internal/fault"
)

// Subjects of ASIDE, and the header in which the story of a kept event stands beside the event's own.
const (
	keepSubject = "aside.keep"
	endSubject  = "aside.end"
	asideHeader = "Rialto-Aside"
)

// keptStory is why an event is kept.
type keptStory struct {
	Bus        string        `json:"bus"`
	To         string        `json:"to,omitempty"` // the bus that takes it, if its schema policy has chosen another
	KeptAt     time.Time     `json:"keptAt"`
	At         time.Time     `json:"at,omitzero"`
	Prepared   bool          `json:"prepared,omitempty"`
	CheckBack  string        `json:"checkBack,omitempty"`
	CheckAfter time.Duration `json:"checkAfter,omitempty"`
}

// to is the bus that takes the event.
func (s *keptStory) to() string {
	if s.To != "" {
		return s.To
	}
	return s.Bus
}

// attribute is the extension attribute by which a stored event is known to be this one.
func (s *keptStory) attribute() (name, value string) {
	if s.Prepared {
		return PreparedAttribute, s.KeptAt.Format(time.RFC3339Nano)
	}
	return ScheduledAttribute, s.At.Format(time.RFC3339Nano)
}

func (s *keptStory) mark(rec *event.Record) {
	name, value := s.attribute()
	mark(&rec.Event, name, value)
}

// message is what ASIDE has of a kept event.
func (s *keptStory) message(rec *event.Record) (eventlog.Message, error) {
	story, err := json.Marshal(s)
	if err != nil {
		return eventlog.Message{}, err
	}
	header := event.AppendNATS(nil, rec)
	header = append(header[:len(header)-2], asideHeader+": "...)
	header = append(append(header, story...), "\r\n\r\n"...)
	return eventlog.Message{Subject: keepSubject, Header: header, Data: rec.Event.Data}, nil
}

// sizeOfKept is what a kept event counts for.
func sizeOfKept(header, data []byte) int64 { return int64(len(header) + len(data)) }

// readKept is the inverse of message.
func readKept(raw eventlog.Raw) (*event.Record, keptStory, error) {
	var story keptStory
	if err := json.Unmarshal(headerValue(raw.Header, asideHeader), &story); err != nil {
		return nil, story, err
	}
	rec, err := event.FromNATS(raw.Header, raw.Data)
	return rec, story, err
}

// endMessage says that kept events have ended. A key that was kept again since is another message's.
type endMessage struct {
	How  string   `json:"how"`
	Keys [][]byte `json:"keys"`
	Seqs []uint64 `json:"seqs"`
}

func readEnd(data []byte) (m endMessage, err error) {
	if err := json.Unmarshal(data, &m); err != nil {
		return m, err
	}
	for _, key := range m.Keys {
		if len(key) != len(keptKey{}) {
			return m, errors.New("a key has another length")
		}
	}
	return m, nil
}

// read returns a kept event and its story. Called while it is busy, or for looks only: then it may have ended, or moved.
func (s *aside) read(ctx context.Context, k *kept) (*event.Record, keptStory, error) {
	for {
		s.mu.Lock()
		seq := k.seq
		s.mu.Unlock()
		raw, err := s.stream.Get(ctx, seq)
		if err == nil {
			return readKept(raw)
		}
		s.mu.Lock()
		moved := k.seq != seq
		s.mu.Unlock()
		if !moved {
			return nil, keptStory{}, fmt.Errorf("event kept for later at %d: %w", seq, err)
		}
	}
}

// end writes down that kept events, which are the caller's, have ended, and blocks until it is committed. If it cannot, they
// are in doubt and the caller's still.
func (s *aside) end(how string, ks ...*kept) error {
	if len(ks) == 0 {
		return nil
	}
	m := endMessage{How: how, Keys: make([][]byte, len(ks)), Seqs: make([]uint64, len(ks))}
	for i, k := range ks {
		m.Keys[i], m.Seqs[i] = k.key[:], k.seq
	}
	data, err := json.Marshal(m)
	if err == nil {
		_, err = s.append(eventlog.Message{Subject: endSubject, Data: data})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range ks {
		if err != nil {
			k.doubt = true
			continue
		}
		s.forget(k)
		s.metrics.ended.WithLabelValues(kindName(k.prepared), how).Inc()
	}
	if err == nil {
		s.release(ks[0])
	}
	return err
}

// append writes a message to ASIDE and blocks until it is committed. It does not give up what it has handed over before the
// bridge does: the next start would find it.
func (s *aside) append(msg eventlog.Message) (uint64, error) {
	done := make(chan eventlog.Result, 1)
	if err := s.stream.Append(s.b.hard, msg, func(r eventlog.Result) { done <- r }); err != nil {
		return 0, unavailable(err)
	}
	select {
	case r := <-done:
		return r.Seq, unavailable(r.Err)
	case <-s.b.hard.Done():
		return 0, unavailable(context.Cause(s.b.hard))
	}
}

// asideSlack is how much more than twice what it keeps ASIDE may hold before it is written again.
const asideSlack = 64 << 20

// compact writes again what is kept when most of ASIDE is of events that have ended, and removes what was before.
func (s *aside) compact(ctx context.Context) error {
	s.mu.Lock()
	live := s.bytes
	s.mu.Unlock()
	if s.stream.Info().Bytes < 2*live+s.slack {
		return nil
	}
	from := s.stream.Committed() + 1
	for ks := range slices.Chunk(s.list(func(k *kept) bool { return k.seq > 0 }), asideBatch) {
		if err := s.move(ctx, ks); err != nil {
			return err
		}
	}
	for _, k := range s.list(func(k *kept) bool { return k.seq > 0 }) { // those that were busy have not moved
		from = min(from, k.seq)
	}
	_, err := s.stream.Trim(ctx, eventlog.TrimPolicy{MaxBytes: 1, Protect: from})
	return err
}

// move writes kept events again at the end of ASIDE, but for those that are busy.
func (s *aside) move(ctx context.Context, ks []*kept) error {
	mine := s.takeFree(ks)
	defer func() {
		for _, k := range mine {
			s.later(k, 0)
		}
	}()
	bySeq := make(map[uint64]*kept, len(mine))
	for _, k := range mine {
		bySeq[k.seq] = k
	}
	var waits sync.WaitGroup // the log completes every append, at the latest when it is closed
	var failed atomic.Pointer[error]
	err := s.stream.Each(ctx, slices.Sorted(maps.Keys(bySeq)), func(raw eventlog.Raw) error {
		k := bySeq[raw.Seq]
		waits.Add(1)
		err := s.stream.Append(s.b.hard, eventlog.Message{Subject: keepSubject, Header: bytes.Clone(raw.Header), Data: bytes.Clone(raw.Data)}, func(r eventlog.Result) {
			defer waits.Done()
			if r.Err != nil {
				failed.Store(&r.Err)
				return
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			k.seq = r.Seq
		})
		if err != nil {
			waits.Done()
		}
		return err
	})
	waits.Wait()
	if e := failed.Load(); e != nil {
		err = errors.Join(err, *e)
	}
	return err
}

// takeFree makes those that are kept and not busy the caller's.
func (s *aside) takeFree(ks []*kept) []*kept {
	s.mu.Lock()
	defer s.mu.Unlock()
	var mine []*kept
	for _, k := range ks {
		if s.all[k.key] != k || k.busy {
			continue
		}
		k.busy = true
		if k.place >= 0 {
			heap.Remove(&s.order, k.place)
		}
		mine = append(mine, k)
	}
	return mine
}

// current returns k if it is still kept. Called with mu held.
func (s *aside) current(k *kept) *kept {
	if s.all[k.key] == k {
		return k
	}
	return nil
}

// list returns what is kept and wanted, in no order.
func (s *aside) list(want func(*kept) bool) []*kept {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []*kept
	for _, k := range s.all {
		if want(k) {
			out = append(out, k)
		}
	}
	return out
}

func encodeToken(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }

// readToken is the inverse of tokenOf.
func readToken(token string) (bus, source, id string, err error) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(token)
	parts := strings.Split(string(b), "\x00")
	if err != nil || len(parts) != 3 || parts[0] == "" || parts[1] == "" || parts[2] == "" {
		return "", "", "", fault.New(fault.NotFound, "this is no token of a prepared event")
	}
	return parts[0], parts[1], parts[2], nil
}
