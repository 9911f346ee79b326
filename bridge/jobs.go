// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/internal/fault"
)

// Kinds of jobs.
const (
	JobRedrive = "redrive"
	JobDiscard = "discard"
)

// States of a job.
const (
	JobRunning   = "running"
	JobPaused    = "paused"
	JobDone      = "done"      // everything it selected was handled
	JobCancelled = "cancelled" // what it had handled by then stays so
)

// Limits of jobs.
const (
	maxActiveJobs = 100
	maxJobs       = 1000 // in the list
	maxRate       = 10_000
	defaultRate   = 100
	maxWhy        = 256
)

// JobSpec is what is asked for.
type JobSpec struct {
	Kind   string // JobRedrive or JobDiscard
	Filter DeadFilter
	// Outcome makes a redrive one of the deliveries that have ended so, one of EndedOutcomes, in place of dead letters. Bus and Target of
	// the filter are required then; its IDs are not for this, and From and To are times at which events arrived. Subject, which goes
	// with it, is that of the events; "" selects all.
	Outcome, Subject string

	To    string       // redrive: another target; "" = the same
	Rate  float64      // redrive: deliveries a second, up to 10 000; 0 = 100
	Event *event.Event // redrive: sent instead of the one dead letter that the filter names; same id and source
	Why   string       // for people, at most 256 bytes; a discard needs it

	By, RequestID string // who asks, in which request of the API
}

// JobFilter is what a job selects: dead letters, or, with an Outcome, deliveries that have ended so: see JobSpec.
type JobFilter struct {
	DeadFilter
	Outcome string `json:"outcome,omitempty"`
	Subject string `json:"subject,omitempty"`
}

func (s *JobSpec) filter() JobFilter { return JobFilter{s.Filter, s.Outcome, s.Subject} }

// Job is work over many dead letters, or deliveries that have ended. It goes on after a restart where it was.
type Job struct {
	ID      string    `json:"id"`
	Kind    string    `json:"kind"`
	State   string    `json:"state"`
	Waiting string    `json:"waiting,omitempty"` // why it is running and gets no further at the moment
	Filter  JobFilter `json:"filter"`
	To      string    `json:"to,omitempty"`
	Rate    float64   `json:"rate,omitempty"`
	Edited  bool      `json:"edited,omitempty"`
	By      string    `json:"by,omitempty"`
	Why     string    `json:"why,omitempty"`

	Total   uint64 `json:"total"`             // how many it selected when it was made
	Partial bool   `json:"partial,omitempty"` // there are more, which were not counted; it handles them all the same
	Handled uint64 `json:"handled"`           // redriven or discarded so far
	Skipped uint64 `json:"skipped,omitempty"` // left as they are
	Skip    string `json:"skipReason,omitempty"`
	// How those that were redriven stand.
	Pending   uint64 `json:"pending"`
	Delivered uint64 `json:"delivered"`
	Dead      uint64 `json:"dead"`
	Otherwise uint64 `json:"endedOtherwise"` // expired or cancelled

	CreatedAt time.Time `json:"createdAt"`
	ChangedAt time.Time `json:"changedAt"` // of the state
}

func jobID(kind string, n uint64) string { return kind + "-" + strconv.FormatUint(n, 10) }

// jobRecord is a job as JOBS has it. A message of JOBS is a whole one; the last of a job counts.
type jobRecord struct {
	Job
	N      uint64 `json:"n"`      // its number: the sequence of its first message, which itself says 0
	Cursor uint64 `json:"cursor"` // everything up to here in DEAD was looked at; with an outcome, in the bus
	Last   uint64 `json:"last"`   // nothing behind is its business
	Event  uint64 `json:"event,omitempty"`
	// ChangedBy is who has asked for the state, if it was not the job itself; a message that changes no state has nobody.
	ChangedBy string `json:"changedBy,omitempty"`
	RequestID string `json:"requestId,omitempty"` // of who has made the job, or asked for the state, by this message
	// Buses are those of the dead letters it selected. The views may have to be rebuilt after a start, and know of no dead
	// letters of a bus before it is open.
	Buses []string `json:"buses"`
}

// job is a jobRecord with what runs it.
type job struct {
	jobRecord
	want    chosen
	seq     uint64        // of its last message
	writing chan struct{} // held while its state is written
	wake    chan struct{} // its state has changed
	active  bool          // its goroutine exists
}

// Subjects in JOBS.
const (
	jobSubject   = "jobs.state"
	eventSubject = "jobs.event"
)

// jobs is the list of jobs, kept in the stream JOBS, and runs them.
type jobs struct {
	b      *Bridge
	stream *eventlog.Stream

	mu      sync.Mutex // guards all and entries, and of each job what writing does not
	all     map[uint64]*job
	entries []RedriveEntry // in order of Seq
}

// openJobs reads the jobs that an earlier run left.
func openJobs(ctx context.Context, b *Bridge) (*jobs, error) {
	stream, err := b.o.Log.Stream(ctx, eventlog.StreamConfig{Name: "JOBS", Subjects: []string{"jobs.>"}})
	if err != nil {
		return nil, err
	}
	known, err := b.o.Journal.LastJob()
	if err != nil {
		return nil, err
	}
	if err := stream.SkipTo(ctx, known); err != nil { // after damage: a number is not used again
		return nil, err
	}
	m := &jobs{b: b, stream: stream, all: make(map[uint64]*job)}
	var buf []eventlog.Raw
	for from := stream.First(); from <= stream.Committed(); {
		if buf, err = stream.Read(ctx, eventlog.ReadOptions{From: from, Max: 256}, buf[:0]); err != nil {
			return nil, err
		}
		if len(buf) == 0 {
			break
		}
		for _, raw := range buf {
			from = raw.Seq + 1
			switch raw.Subject {
			case jobSubject:
				err = m.read(raw)
			case auditSubject:
				err = m.readEntry(raw)
			}
			if err != nil {
				return nil, fmt.Errorf("job at %d: %w", raw.Seq, err)
			}
		}
	}
	m.prune()
	return m, nil
}

func (m *jobs) read(raw eventlog.Raw) error {
	var r jobRecord
	if err := json.Unmarshal(raw.Data, &r); err != nil {
		return err
	}
	if r.N == 0 {
		r.N = raw.Seq
	}
	r.ID = jobID(r.Kind, r.N)
	m.enterRead(&r, raw.Seq)
	return m.put(r, raw.Seq)
}

// put takes a job into the list. Called with mu held, or before anything runs.
func (m *jobs) put(r jobRecord, seq uint64) error {
	want, err := r.Filter.choose()
	if err != nil {
		return err
	}
	j := m.all[r.N]
	if j == nil {
		j = &job{writing: make(chan struct{}, 1), wake: make(chan struct{}, 1)}
		m.all[r.N] = j
	}
	j.jobRecord, j.want, j.seq = r, want, seq
	return nil
}

// prune forgets the oldest jobs that have ended if there are too many. Called with mu held, or before anything runs.
func (m *jobs) prune() {
	var ended []uint64
	for n, j := range m.all {
		if !j.open() {
			ended = append(ended, n)
		}
	}
	slices.Sort(ended)
	for len(m.all) > maxJobs && len(ended) > 0 {
		delete(m.all, ended[0])
		ended = ended[1:]
	}
}

func (j *job) open() bool { return j.State == JobRunning || j.State == JobPaused }

// append writes a message to JOBS and blocks until it is committed. What it has handed over it waits for, also if ctx ends
// meanwhile: a message that is committed and not in the list would be found by the next start.
func (m *jobs) append(ctx context.Context, msg eventlog.Message) (uint64, error) {
	done := make(chan eventlog.Result, 1)
	if err := m.stream.Append(ctx, msg, func(r eventlog.Result) { done <- r }); err != nil {
		return 0, unavailable(err)
	}
	select {
	case r := <-done:
		return r.Seq, unavailable(r.Err)
	case <-m.b.hard.Done():
		return 0, unavailable(context.Cause(m.b.hard))
	}
}

func (m *jobs) write(ctx context.Context, r jobRecord) (uint64, error) {
	data, err := json.Marshal(r)
	if err != nil {
		return 0, err
	}
	return m.append(ctx, eventlog.Message{Subject: jobSubject, Data: data})
}

// checkEdited says what is wrong with an edited event. Only what the original has as id and source may it have.
func checkEdited(edited, original *event.Event) error {
	switch {
	case edited.ID != original.ID:
		return fault.Invalidf("/event/id", "must be that of the stored event: it is the same delivery")
	case edited.Source != original.Source:
		return fault.Invalidf("/event/source", "must be that of the stored event: it is the same delivery")
	}
	return nil
}

// keepEvent writes an edited event to JOBS and returns its place.
func (m *jobs) keepEvent(ctx context.Context, rec *event.Record, original *event.Event) (uint64, error) {
	if err := checkEdited(&rec.Event, original); err != nil {
		return 0, err
	}
	return m.append(ctx, eventlog.Message{Subject: eventSubject, Header: event.AppendNATS(nil, rec), Data: rec.Event.Data})
}

// StartJob makes a job and starts it. It blocks until the job is committed: from then on it will be done, whatever
// happens. Errors are *fault.Error.
func (b *Bridge) StartJob(ctx context.Context, s JobSpec) (Job, error) {
	if err := b.checkJob(&s); err != nil {
		return Job{}, err
	}
	n, r, err := b.selectFor(ctx, &s)
	if err != nil {
		return Job{}, err
	}
	m := b.jobs
	if m.openJobs() >= maxActiveJobs {
		return Job{}, &fault.Error{Kind: fault.RateLimited, Message: "there are too many jobs that have not ended", RetryAfter: time.Minute}
	}
	now := b.o.Now()
	r.RequestID = s.RequestID
	r.Job = Job{Kind: s.Kind, State: JobRunning, Filter: s.filter(), To: s.To, Rate: s.Rate,
		By: s.By, Why: s.Why, Total: n.Total, Partial: n.Partial, CreatedAt: now, ChangedAt: now}
	if s.Event != nil {
		dl, err := b.DeadLetter(ctx, s.Filter.Bus, s.Filter.IDs[0])
		if err != nil {
			return Job{}, err
		}
		if r.Event, err = m.keepEvent(ctx, &event.Record{Event: *s.Event, Received: dl.received}, dl.Event); err != nil {
			return Job{}, err
		}
		r.Edited = true
	}
	seq, err := m.write(ctx, r)
	if err != nil {
		return Job{}, err
	}
	r.N, r.ID = seq, jobID(r.Kind, seq)
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.put(r, seq); err != nil {
		return Job{}, err
	}
	m.enter(r.made(seq))
	m.prune()
	m.run(m.all[r.N])
	b.log.Info("job started", "job", r.ID, "key", r.By, "count", r.Total, "bus", r.Filter.Bus, "reason", r.Why)
	return r.Job, nil
}

// PlanJob says what StartJob would select, and refuses what it would refuse.
func (b *Bridge) PlanJob(ctx context.Context, s JobSpec) (DeadCount, error) {
	if err := b.checkJob(&s); err != nil {
		return DeadCount{}, err
	}
	if s.Event != nil {
		dl, err := b.DeadLetter(ctx, s.Filter.Bus, s.Filter.IDs[0])
		if err == nil {
			err = checkEdited(s.Event, dl.Event)
		}
		if err != nil {
			return DeadCount{}, err
		}
	}
	n, _, err := b.selectFor(ctx, &s)
	return n, err
}

// selectFor counts what a job selects, and says where that is.
func (b *Bridge) selectFor(ctx context.Context, s *JobSpec) (n DeadCount, r jobRecord, err error) {
	if s.Outcome == "" {
		r.Last = b.dead.Committed()
		n, buses, err := b.countDead(ctx, s.Filter)
		r.Buses = slices.Sorted(maps.Keys(buses))
		return n, r, err
	}
	e, err := b.endedJob(s.filter())
	if err != nil {
		return n, r, err
	}
	r.Buses = []string{s.Filter.Bus}
	if r.Cursor, r.Last, err = e.span(ctx); err != nil {
		return n, r, err
	}
	n, err = e.count(ctx, r.Cursor, r.Last)
	return n, r, err
}

func (b *Bridge) checkJob(s *JobSpec) error {
	var bad []fault.Detail
	if s.Kind != JobRedrive && s.Kind != JobDiscard {
		return fmt.Errorf("job of kind %q", s.Kind)
	}
	if s.Kind == JobRedrive {
		if s.Rate == 0 {
			s.Rate = defaultRate
		}
		if !(s.Rate >= 0.01 && s.Rate <= maxRate) {
			complain(&bad, "/rate", fmt.Sprintf("must be 0.01 to %d deliveries a second", maxRate))
		}
		if s.To != "" && b.lane(s.To) == nil {
			complain(&bad, "/to", "there is no such target")
		}
		if s.Event != nil && len(s.Filter.IDs) != 1 {
			complain(&bad, "/event", "is for one dead letter, named in /filter/ids")
		}
	}
	if s.Outcome != "" || s.Subject != "" {
		s.checkEnded(&bad)
	}
	if s.Kind == JobDiscard && strings.TrimSpace(s.Why) == "" {
		complain(&bad, "/why", "is required: it says later why these were written off")
	}
	if len(s.Why) > maxWhy {
		complain(&bad, "/why", fmt.Sprintf("must be at most %d bytes", maxWhy))
	}
	if !s.Filter.From.IsZero() && !s.Filter.To.IsZero() && s.Filter.To.Before(s.Filter.From) {
		complain(&bad, "/filter/to", "must not be before from")
	}
	if _, err := s.Filter.choose(); err != nil {
		var f *fault.Error
		if !errors.As(err, &f) {
			return err
		}
		for _, d := range f.Details {
			complain(&bad, "/filter"+d.Pointer, d.Detail)
		}
	}
	return fault.Collect(bad)
}

func (m *jobs) openJobs() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := 0
	for _, j := range m.all {
		if j.open() {
			n++
		}
	}
	return n
}

// Jobs lists the jobs of a bus ("" = all), newest first. Those that ended are kept for 31 days.
func (b *Bridge) Jobs(bus string) ([]Job, error) {
	m := b.jobs
	m.mu.Lock()
	var found []jobRecord
	for _, j := range m.all {
		if bus == "" || j.Filter.Bus == bus {
			found = append(found, j.jobRecord)
		}
	}
	m.mu.Unlock()
	slices.SortFunc(found, func(x, y jobRecord) int { return cmp.Compare(y.N, x.N) })
	out := make([]Job, 0, len(found))
	for _, r := range found {
		j, err := m.progress(r)
		if err != nil {
			return nil, err
		}
		out = append(out, j)
	}
	return out, nil
}

// Job returns one job; bus, if it is not empty, is the one it must be about. The error is NotFound if there is none.
func (b *Bridge) Job(bus, id string) (Job, error) {
	m := b.jobs
	m.mu.Lock()
	j, err := m.find(bus, id)
	if err != nil {
		m.mu.Unlock()
		return Job{}, err
	}
	r := j.jobRecord
	m.mu.Unlock()
	return m.progress(r)
}

// find is called with mu held.
func (m *jobs) find(bus, id string) (*job, error) {
	for _, j := range m.all {
		if j.ID == id && (bus == "" || j.Filter.Bus == bus) {
			return j, nil
		}
	}
	return nil, fault.New(fault.NotFound, "no job with this id")
}

// progress adds what the views have counted.
func (m *jobs) progress(r jobRecord) (Job, error) {
	c, err := m.b.o.Journal.JobCounts(r.N)
	if err != nil {
		return Job{}, err
	}
	j := r.Job
	j.Handled = c.Handled
	if j.Kind == JobRedrive {
		j.Delivered, j.Dead, j.Otherwise = c.Delivered, c.Counts.Dead, c.Expired+c.Cancelled
		j.Pending = c.Handled - min(c.Handled, c.Delivered+c.Counts.Dead+c.Expired+c.Cancelled)
	}
	return j, nil
}

// JobChange is what is asked for of a job.
type JobChange struct {
	Bus, ID       string // Bus, if it is not empty, is the one it must be about
	State         string // JobPaused, JobRunning or JobCancelled
	By, RequestID string // who asks, in which request of the API
}

// SetJob pauses, resumes or cancels a job, and blocks until that is committed. A job that is in the state already is left
// alone; one that has ended is a Conflict.
func (b *Bridge) SetJob(ctx context.Context, c JobChange) (Job, error) {
	m := b.jobs
	m.mu.Lock()
	j, err := m.find(c.Bus, c.ID)
	m.mu.Unlock()
	if err != nil {
		return Job{}, err
	}
	if err := m.change(ctx, j, func(r *jobRecord) error {
		if r.State != c.State && r.State != JobRunning && r.State != JobPaused {
			return fault.New(fault.Conflict, "the job is %s", r.State)
		}
		r.State, r.ChangedBy, r.RequestID = c.State, c.By, c.RequestID
		return nil
	}); err != nil {
		return Job{}, err
	}
	b.log.Info("job changed", "job", c.ID, "key", c.By, "state", c.State)
	return b.Job(c.Bus, c.ID)
}

// change writes a job with what fn makes of it, and then puts it in force.
func (m *jobs) change(ctx context.Context, j *job, fn func(*jobRecord) error) error {
	select {
	case j.writing <- struct{}{}:
	case <-ctx.Done():
		return unavailable(context.Cause(ctx))
	}
	defer func() { <-j.writing }()
	m.mu.Lock()
	next := j.jobRecord
	m.mu.Unlock()
	old := next.State
	next.ChangedBy, next.RequestID = "", ""
	if err := fn(&next); err != nil {
		return err
	}
	if old != next.State {
		next.ChangedAt, next.Waiting = m.b.o.Now(), ""
	}
	seq, err := m.write(ctx, next)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	// What its goroutine has done meanwhile stands.
	j.State, j.ChangedAt, j.seq = next.State, next.ChangedAt, seq
	if old != next.State {
		j.Waiting = ""
		if next.ChangedBy != "" {
			m.enter(next.changed(seq))
		}
	}
	m.run(j)
	select {
	case j.wake <- struct{}{}:
	default:
	}
	return nil
}

// needed returns the lowest sequence of JOBS that a job which has not ended needs.
func (m *jobs) needed() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	lowest := ^uint64(0)
	for _, j := range m.all {
		if j.open() {
			lowest = min(lowest, j.seq)
			if j.Event > 0 {
				lowest = min(lowest, j.Event)
			}
		}
	}
	return lowest
}

// forget drops the jobs whose last message is gone.
func (m *jobs) forget(first uint64) error {
	m.mu.Lock()
	lowest := ^uint64(0)
	for n, j := range m.all {
		if j.seq < first {
			delete(m.all, n)
		} else {
			lowest = min(lowest, n)
		}
	}
	m.entries = slices.DeleteFunc(m.entries, func(e RedriveEntry) bool { return e.Seq < first })
	m.mu.Unlock()
	return m.b.o.Journal.ForgetJobs(min(lowest, first))
}
