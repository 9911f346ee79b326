// SPDX-License-Identifier: Apache-2.0

package region

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// errMoved says that what is kept of a link was changed by somebody else: it was reset, or another node has the link.
var errMoved = errors.New("the position of the link was moved by somebody else")

// stateTime bounds an exchange with the bucket.
const stateTime = 3 * time.Second

// States keeps where links are, in a key-value bucket. Safe for concurrent use.
type States struct{ kv jetstream.KeyValue }

// state is what is kept of a link: one document, so that what is done and what became of it never differ.
type state struct {
	Epoch  string `json:"epoch"`
	Bus    string `json:"bus,omitempty"`
	Region string `json:"region,omitempty"`
	To     string `json:"to,omitempty"`
	Begin  string `json:"begin,omitempty"` // of a reset: where to begin, as in a definition; only before the first start

	Start  uint64   `json:"start,omitempty"`      // first sequence of main; 0 = it has not begun
	Urgent uint64   `json:"urgentFrom,omitempty"` // first sequence of the urgent lane; 0 = there never was an urgent pattern
	Done   Progress `json:"done"`
	Acked  Progress `json:"acked"` // what the other side has said is done; the rest of Done was dropped here
	Main   tally    `json:"main"`
	Fast   tally    `json:"urgent"`
	Lost   uint64   `json:"lost,omitempty"`

	Last     last      `json:"last"`
	Segments []segment `json:"segments,omitempty"`
	Instance string    `json:"instance,omitempty"` // of the other side
	Foreign  string    `json:"foreign,omitempty"`  // why the log is not the one that the other side knows; ends the epoch
	Behind   bool      `json:"behind,omitempty"`   // io.rialto.link.behind was raised and not taken back
}

// last is the event that was read last, by which the log is recognised.
type last struct {
	Seq uint64 `json:"seq,omitempty"`
	Key []byte `json:"key,omitempty"` // event.Key
}

// segment says which pattern decides what is urgent, from a sequence on up to the next segment.
type segment struct {
	From   uint64 `json:"from"`
	Urgent string `json:"urgent,omitempty"` // as in Link
}

// tally is what became of the sequences of a lane that are done.
type tally struct {
	Forwarded uint64 `json:"forwarded,omitempty"`
	Known     uint64 `json:"known,omitempty"`
	Filtered  uint64 `json:"filtered,omitempty"`
	Looped    uint64 `json:"looped,omitempty"`
	Refused   uint64 `json:"refused,omitempty"`
	Failed    uint64 `json:"failed,omitempty"`
	Dropped   uint64 `json:"dropped,omitempty"`
	Gaps      uint64 `json:"gaps,omitempty"`
	Urgent    uint64 `json:"urgent,omitempty"`
	Others    uint64 `json:"others,omitempty"`
}

func (t *tally) sum() uint64 {
	return t.Forwarded + t.Known + t.Filtered + t.Looped + t.Refused + t.Failed + t.Dropped + t.Gaps + t.Urgent + t.Others
}

func (t *tally) add(o *tally) {
	t.Forwarded += o.Forwarded
	t.Known += o.Known
	t.Filtered += o.Filtered
	t.Looped += o.Looped
	t.Refused += o.Refused
	t.Failed += o.Failed
	t.Dropped += o.Dropped
	t.Gaps += o.Gaps
	t.Urgent += o.Urgent
	t.Others += o.Others
}

// of returns the tally of a lane.
func (s *state) of(l Lane) *tally {
	if l == Urgent {
		return &s.Fast
	}
	return &s.Main
}

// start returns the first sequence of a lane; 0 if the lane is not in use.
func (s *state) start(l Lane) uint64 {
	if l == Urgent {
		return s.Urgent
	}
	return s.Start
}

// first returns the lowest sequence that a lane has still to do; 0 if the lane is not in use. What is above committed, or
// nothing is urgent in, may be the answer.
func (s *state) first(l Lane) uint64 {
	from := s.start(l)
	if from == 0 {
		return 0
	}
	if done := *s.Done.Of(l); len(done) > 0 && done[0].From <= from {
		return max(from, done[0].To+1)
	}
	return from
}

// urgentAt returns the index of the segment that decides on seq; -1 if nothing is urgent there.
func (s *state) urgentAt(seq uint64) int {
	if s.Urgent == 0 || seq < s.Urgent {
		return -1
	}
	at := 0
	for i := range s.Segments {
		if s.Segments[i].From <= seq {
			at = i
		}
	}
	if at >= len(s.Segments) || s.Segments[at].Urgent == "" {
		return -1
	}
	return at
}

// quietTo returns the last of the sequences from seq on in which nothing is urgent: seq-1 if something may be at seq, and
// the highest that there is if nothing is urgent any more.
func (s *state) quietTo(seq uint64) uint64 {
	for s.urgentAt(seq) < 0 {
		end := s.segmentEnd(seq)
		if end == math.MaxUint64 {
			return end
		}
		seq = end + 1
	}
	return seq - 1
}

// segmentEnd returns the last sequence on which the same segment decides as on seq, or a lower one.
func (s *state) segmentEnd(seq uint64) uint64 {
	for i := range s.Segments {
		if s.Segments[i].From > seq {
			return s.Segments[i].From - 1
		}
	}
	return math.MaxUint64
}

// maxSegments is how many changes of the urgent pattern wait for both lanes to come by; what comes then waits itself.
const maxSegments = 16

// adopt has pattern decide what is urgent from a sequence on that no lane has come to. It is false when too many changes
// wait for that already.
func (s *state) adopt(pattern string, from uint64) bool {
	n := len(s.Segments)
	switch {
	case n > 0 && s.Segments[n-1].Urgent == pattern:
		return true
	case n > 0 && s.Segments[n-1].From >= from:
		s.Segments[n-1].Urgent = pattern
	case n >= maxSegments:
		return false
	default:
		s.Segments = append(s.Segments, segment{from, pattern})
	}
	if pattern != "" && s.Urgent == 0 {
		s.Urgent = from
	}
	return true
}

// prune drops the segments that both lanes have behind them.
func (s *state) prune() {
	by := s.first(Main)
	if s.Urgent > 0 {
		by = min(by, max(s.first(Urgent), s.Urgent))
	}
	for len(s.Segments) > 1 && s.Segments[1].From <= by {
		s.Segments = s.Segments[1:]
	}
}

// OpenStates opens the bucket, or makes it. nc must outlive it and is not closed by it.
func OpenStates(ctx context.Context, nc *nats.Conn, bucket string) (*States, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("bucket %s: %w", bucket, err)
	}
	kv, err := js.KeyValue(ctx, bucket)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		kv, err = js.CreateKeyValue(ctx, jetstream.KeyValueConfig{Bucket: bucket, Description: "Where links to other regions are", History: 1,
			Storage: jetstream.FileStorage})
		if errors.Is(err, jetstream.ErrBucketExists) { // another process was faster
			kv, err = js.KeyValue(ctx, bucket)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("bucket %s: %w", bucket, err)
	}
	return &States{kv}, nil
}

func stateContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, stateTime, errors.New("the bucket of links does not answer"))
}

// get returns what is kept of a link, and its revision; 0 if nothing.
func (s *States) get(ctx context.Context, link string) (st *state, revision uint64, err error) {
	ctx, cancel := stateContext(ctx)
	defer cancel()
	st = &state{}
	e, err := s.kv.Get(ctx, link)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return st, 0, nil
	}
	if err == nil {
		err = json.Unmarshal(e.Value(), st)
		revision = e.Revision()
	}
	if err != nil {
		return nil, 0, fmt.Errorf("position of link %s: %w", link, err)
	}
	return st, revision, nil
}

// put writes over a revision, 0 being nothing, and returns the new one; errMoved if something else stands there.
func (s *States) put(ctx context.Context, link string, st *state, over uint64) (uint64, error) {
	ctx, cancel := stateContext(ctx)
	defer cancel()
	b, err := json.Marshal(st)
	if err != nil {
		return 0, err
	}
	var revision uint64
	if over == 0 {
		revision, err = s.kv.Create(ctx, link, b)
	} else {
		revision, err = s.kv.Update(ctx, link, b, over)
	}
	var api *jetstream.APIError
	if errors.Is(err, jetstream.ErrKeyExists) || errors.As(err, &api) &&
		(api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence || api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant) {
		return 0, errMoved
	}
	if err != nil {
		return 0, fmt.Errorf("position of link %s: %w", link, err)
	}
	return revision, nil
}

// reset begins a new epoch at a start that ParseStart has accepted, "" being that of the definition. Whoever runs the link now
// can write no more.
func (s *States) reset(ctx context.Context, link, start, epoch string) error {
	ctx, cancel := stateContext(ctx)
	defer cancel()
	b, err := json.Marshal(&state{Epoch: epoch, Begin: start})
	if err == nil {
		_, err = s.kv.Put(ctx, link, b)
	}
	if err != nil {
		return fmt.Errorf("position of link %s: %w", link, err)
	}
	return nil
}

// names lists the links of which something is kept.
func (s *States) names(ctx context.Context) ([]string, error) {
	ctx, cancel := stateContext(ctx)
	defer cancel()
	keys, err := s.kv.ListKeys(ctx)
	if errors.Is(err, jetstream.ErrNoKeysFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("positions of links: %w", err)
	}
	defer keys.Stop() //nolint:errcheck // it has ended, or ends with ctx
	var names []string
	for name := range keys.Keys() {
		names = append(names, name)
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return names, nil
}

// forget removes what is kept of a link that is gone.
func (s *States) forget(ctx context.Context, link string) error {
	ctx, cancel := stateContext(ctx)
	defer cancel()
	if err := s.kv.Purge(ctx, link); err != nil {
		return fmt.Errorf("position of link %s: %w", link, err)
	}
	return nil
}
