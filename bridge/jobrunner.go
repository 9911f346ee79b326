// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"context"
	"errors"
	"time"

	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/journal"
)

// start goes on with the jobs that were running.
func (m *jobs) start() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, j := range m.all {
		m.run(j)
	}
}

// run makes the goroutine of a job if it should have one. Called with mu held.
func (m *jobs) run(j *job) {
	m.b.mu.RLock() // Close waits for what was added before it
	defer m.b.mu.RUnlock()
	if j.State != JobRunning || j.active || m.b.closed {
		return
	}
	j.active = true
	m.b.wg.Add(1)
	go func() {
		defer m.b.wg.Done()
		m.work(j)
	}()
}

const (
	// stepTime is how much of its work a job hands over at a time, and stepMost how many dead letters at most.
	stepTime = 250 * time.Millisecond
	stepMost = 500
	// checkpointEvery is how often a job writes down how far it is. What it does twice after a crash has no effect.
	checkpointEvery = 5 * time.Second
	// jobRetry is how long a job waits for what it cannot do at the moment.
	jobRetry = 250 * time.Millisecond
)

// work is a job's goroutine. It ends when the job has, or is paused.
func (m *jobs) work(j *job) {
	ctx := m.b.ctx
	saved := m.b.o.Now()
	for {
		r, ok := m.next(j)
		if !ok || ctx.Err() != nil {
			return
		}
		began := m.b.o.Now()
		done, handed, err := m.step(ctx, j, r)
		pace := time.Duration(0)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			m.note(j, func(r *jobRecord) { r.Waiting = waitingFor(err) })
			pace = jobRetry
		case done:
			err = m.change(ctx, j, func(r *jobRecord) error {
				if r.State == JobRunning {
					r.State = JobDone
				}
				return nil
			})
			if err == nil {
				m.b.log.Info("job done", "job", r.ID)
				continue
			}
			pace = jobRetry
		default:
			if r.Kind == JobRedrive {
				pace = time.Duration(float64(handed)/r.Rate*float64(time.Second)) - m.b.o.Now().Sub(began)
			}
			if now := m.b.o.Now(); now.Sub(saved) >= checkpointEvery {
				if err := m.change(ctx, j, func(*jobRecord) error { return nil }); err != nil {
					m.b.log.Warn("job's progress cannot be written", "job", r.ID, "err", err)
				}
				saved = now
			}
		}
		if !m.rest(ctx, j, pace) {
			return
		}
	}
}

// waitingFor is what a person reads about a job that cannot go on.
func waitingFor(err error) string {
	var f *fault.Error
	if errors.As(err, &f) {
		return f.Message
	}
	return "an internal error, see the server's log"
}

// next returns the job as it is; false ends its goroutine.
func (m *jobs) next(j *job) (jobRecord, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if j.State != JobRunning {
		j.active = false
		return jobRecord{}, false
	}
	return j.jobRecord, true
}

func (m *jobs) note(j *job, fn func(*jobRecord)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	fn(&j.jobRecord)
}

// rest waits, or until the job is not to run any more. It returns false if the bridge is stopping.
func (m *jobs) rest(ctx context.Context, j *job, d time.Duration) bool {
	t := time.NewTimer(max(d, 0))
	defer t.Stop()
	for {
		select {
		case <-t.C:
			return true
		case <-j.wake:
			if !m.isRunning(j) {
				return true
			}
		case <-ctx.Done():
			return false
		}
	}
}

func (m *jobs) isRunning(j *job) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return j.State == JobRunning
}

// step hands over the next dead letters of a job. done says that there are no more.
func (m *jobs) step(ctx context.Context, j *job, r jobRecord) (done bool, handed int, err error) {
	for _, bus := range r.Buses {
		if _, err := m.b.path(bus); err != nil {
			return false, 0, fault.New(fault.Unavailable, "bus %s is not open", bus)
		}
	}
	most := stepMost
	if r.Kind == JobRedrive {
		most = max(1, min(stepMost, int(r.Rate*stepTime.Seconds())))
	}
	if r.Filter.Outcome != "" {
		return m.stepEnded(ctx, j, r, most)
	}
	var refs []journal.DeadRef
	after, last := j.want.span(r.Cursor, r.Last)
	if err := m.b.o.Journal.EachDead(after, last, func(d journal.DeadRef) (bool, error) {
		if !j.want.has(&d) {
			return true, ctx.Err()
		}
		if len(refs) > 0 && refs[0].Bus != d.Bus {
			return false, nil // one bus at a time
		}
		refs = append(refs, d)
		return len(refs) < most, ctx.Err()
	}); err != nil {
		return false, 0, err
	}
	if len(refs) == 0 {
		return true, 0, nil
	}
	p, err := m.b.path(refs[0].Bus)
	if err != nil {
		return false, 0, fault.New(fault.Unavailable, "bus %s is not open", refs[0].Bus)
	}
	if err := p.lockEnded(ctx); err != nil {
		return false, 0, err
	}
	defer p.unlockEnded()
	var why []error
	if r.Kind == JobDiscard {
		why, err = p.discard(ctx, refs, r.N, r.By, r.Why)
	} else {
		why, err = p.reopen(ctx, m.reopenings(r, refs))
	}
	if err != nil {
		return false, 0, err
	}
	m.handed(j, refs[len(refs)-1].Seq, why)
	return false, len(refs), nil
}

// handed notes how far a job is, and what it has passed over.
func (m *jobs) handed(j *job, cursor uint64, why []error) {
	m.note(j, func(r *jobRecord) {
		r.Cursor, r.Waiting = cursor, ""
		for _, w := range why {
			if w != nil {
				r.Skipped++
				r.Skip = waitingFor(w)
			}
		}
	})
}

// dueAt spreads what a step hands over over the time that the rate of its job gives it.
func (m *jobs) dueAt(r jobRecord, i int) time.Time {
	return m.b.o.Now().Add(time.Duration(float64(i) / r.Rate * float64(time.Second)))
}

// reopenings makes dead letters what is to be owed again.
func (m *jobs) reopenings(r jobRecord, refs []journal.DeadRef) []reopening {
	out := make([]reopening, len(refs))
	for i, d := range refs {
		out[i] = reopening{seq: d.Outcome.Seq, check: d.Check, hour: d.Hour, rule: d.Route.Rule, revision: d.Route.Revision, from: d.Route.Target, to: r.To,
			was: journal.Dead, dead: d.Seq, edited: r.Event, job: r.N, by: r.By,
			due: m.dueAt(r, i)}
	}
	return out
}
