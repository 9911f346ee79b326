// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"

	"github.com/rialto-bridge/rialto/bridge"
	"github.com/rialto-bridge/rialto/internal/store"
)

// redriveAudit lists redrives and discards among the changes of definitions. It implements store.Auditor.
type redriveAudit struct{ bridge *bridge.Bridge }

// Audit is store.Auditor.Audit. The kinds are Redrive and Discard, and a revision is a place in JOBS.
func (a redriveAudit) Audit(_ context.Context, q store.AuditQuery) (store.AuditPage, error) {
	var failed error
	p, err := q.Select(auditEntries(a.bridge.RedriveEntries(), &failed))
	if err == nil {
		err = failed
	}
	return p, err
}

func auditEntries(list []bridge.RedriveEntry, failed *error) iter.Seq[store.AuditEntry] {
	return func(yield func(store.AuditEntry) bool) {
		for _, r := range list {
			e, err := auditEntry(r)
			if err != nil {
				*failed = err
				return
			}
			if !yield(e) {
				return
			}
		}
	}
}

func auditEntry(r bridge.RedriveEntry) (store.AuditEntry, error) {
	e := store.AuditEntry{Key: store.Key{Kind: "Redrive", Scope: r.Bus, Name: r.Name}, By: store.Author{Name: r.By, RequestID: r.RequestID}, At: r.At,
		Action: store.Created, Revision: r.Seq}
	if r.Kind == bridge.JobDiscard {
		e.Kind = "Discard"
	}
	if r.State != "" {
		e.Action = store.Changed
	}
	var err error
	if e.Detail, err = json.Marshal(redriveDetail{State: r.State, Filter: r.Filter, Source: r.Source, Rule: r.Rule, Target: r.Target, Was: r.Was,
		To: r.To, Edited: r.Edited, Count: r.Count, Why: r.Why}); err != nil {
		return e, fmt.Errorf("audit entry %d: %w", r.Seq, err)
	}
	return e, nil
}

// redriveDetail is what an entry says beside who, when and what.
type redriveDetail struct {
	State  string            `json:"state,omitempty"`
	Filter *bridge.JobFilter `json:"filter,omitempty"`
	Source string            `json:"source,omitempty"`
	Rule   string            `json:"rule,omitempty"`
	Target string            `json:"target,omitempty"`
	Was    string            `json:"was,omitempty"`
	To     string            `json:"to,omitempty"`
	Edited bool              `json:"edited,omitempty"`
	Count  uint64            `json:"count,omitempty"`
	Why    string            `json:"why,omitempty"`
}
