// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/rialto-bridge/rialto/internal/eventlog"
)

// RedriveEntry says who made deliveries owed again, or wrote them off: by a job, or one of them by its event.
type RedriveEntry struct {
	Seq    uint64    `json:"-"` // place in JOBS: a later entry has a higher one
	At     time.Time `json:"at"`
	By     string    `json:"by"`
	Kind   string    `json:"kind"`             // JobRedrive or JobDiscard
	Bus    string    `json:"bus,omitempty"`    // "" = a job over all
	Name   string    `json:"name"`             // id of the job, or of the event
	State  string    `json:"state,omitempty"`  // of the job: what it was made to be; "" = it was made, or there is none
	Source string    `json:"source,omitempty"` // of the event; "" = it is a job
	Rule   string    `json:"rule,omitempty"`   // of the event's delivery, as all below to Edited
	Target string    `json:"target,omitempty"`
	Was    string    `json:"was,omitempty"`
	To     string    `json:"to,omitempty"` // another target; of a job, too
	Edited bool      `json:"edited,omitempty"`

	Filter *JobFilter `json:"filter,omitempty"` // of a job that was made, as all below
	Count  uint64     `json:"count,omitempty"`  // how many it selected, 1 for an event
	Why    string     `json:"why,omitempty"`

	RequestID string `json:"requestId,omitempty"` // of the API; "" = none, or written before it was noted
}

// auditKept is how many entries are kept at most, the newest. They go with JOBS after 31 days.
const auditKept = 10_000

const auditSubject = "jobs.audit"

// RedriveEntries lists who redrove and discarded, the newest first.
func (b *Bridge) RedriveEntries() []RedriveEntry {
	b.jobs.mu.Lock()
	defer b.jobs.mu.Unlock()
	out := slices.Clone(b.jobs.entries)
	slices.Reverse(out)
	return out
}

// enter brings an entry into the list. Called with mu held, or before anything runs.
func (m *jobs) enter(e RedriveEntry) {
	i, _ := slices.BinarySearchFunc(m.entries, e.Seq, func(x RedriveEntry, seq uint64) int { return cmp.Compare(x.Seq, seq) })
	m.entries = slices.Insert(m.entries, i, e)
	if n := len(m.entries) - auditKept; n > 0 {
		m.entries = slices.Delete(m.entries, 0, n)
	}
}

// made is the entry of a job's first message, changed that of one that has another state because somebody has asked for it.
func (r *jobRecord) made(seq uint64) RedriveEntry {
	f := r.Filter
	return RedriveEntry{Seq: seq, At: r.CreatedAt, By: r.By, RequestID: r.RequestID, Kind: r.Kind, Bus: f.Bus, Name: r.ID, To: r.To, Edited: r.Edited, Filter: &f, Count: r.Total, Why: r.Why}
}

func (r *jobRecord) changed(seq uint64) RedriveEntry {
	return RedriveEntry{Seq: seq, At: r.ChangedAt, By: r.ChangedBy, RequestID: r.RequestID, Kind: r.Kind, Bus: r.Filter.Bus, Name: r.ID, State: r.State}
}

// enterRead is enter for a job that was read from JOBS, before it is put.
func (m *jobs) enterRead(r *jobRecord, seq uint64) {
	switch old := m.all[r.N]; {
	case r.N == seq:
		m.enter(r.made(seq))
	case old != nil && old.State != r.State && r.ChangedBy != "":
		m.enter(r.changed(seq))
	}
}

func (m *jobs) readEntry(raw eventlog.Raw) error {
	e := RedriveEntry{Seq: raw.Seq}
	if err := json.Unmarshal(raw.Data, &e); err != nil {
		return err
	}
	m.enter(e)
	return nil
}

// noteRedrive writes down that somebody has redriven one delivery. The delivery is owed already, and its journey says so too.
func (m *jobs) noteRedrive(ctx context.Context, e RedriveEntry) {
	data, err := json.Marshal(e)
	if err == nil {
		e.Seq, err = m.append(ctx, eventlog.Message{Subject: auditSubject, Data: data})
	}
	if err != nil {
		m.b.log.Error("redrive is missing in the audit", "bus", e.Bus, "eventId", e.Name, "key", e.By, "err", err)
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.enter(e)
}
