// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"strings"

	"github.com/rialto-bridge/rialto/internal/fault"
)

// Auditor lists changes, the newest first; a Store is one.
type Auditor interface {
	Audit(ctx context.Context, q AuditQuery) (AuditPage, error)
}

// OfKind is the part of a log that is about one kind, which the list calls by another name.
type OfKind struct {
	Log           Auditor
	Stored, Shown string
}

// Audit is Auditor.Audit.
func (o OfKind) Audit(ctx context.Context, q AuditQuery) (AuditPage, error) {
	if q.Kind != "" && q.Kind != o.Shown {
		return AuditPage{}, nil
	}
	q.Kind = o.Stored
	p, err := o.Log.Audit(ctx, q)
	for i := range p.Items {
		p.Items[i].Kind = o.Shown
	}
	return p, err
}

// Audits is one list of the changes in several logs, each in its own order and between them by time. Its cursor is where
// each log is, so that no entry is left out or told twice, whatever the clocks said.
type Audits []Auditor

// exhausted is the cursor of a log that has no more.
const exhausted = "-"

// Audit is Auditor.Audit.
func (as Audits) Audit(ctx context.Context, q AuditQuery) (AuditPage, error) {
	limit, err := pageLimit(q.Limit)
	if err != nil {
		return AuditPage{}, err
	}
	cursors := make([]string, len(as))
	if q.After != "" {
		if cursors = strings.Split(q.After, "."); len(cursors) != len(as) {
			return AuditPage{}, fault.Invalidf("/cursor", "is not a cursor of this list")
		}
	}
	pages := make([]AuditPage, len(as))
	for i, a := range as {
		if cursors[i] == exhausted {
			continue
		}
		of := q
		of.After = cursors[i]
		if pages[i], err = a.Audit(ctx, of); err != nil {
			return AuditPage{}, err
		}
	}
	return q.merge(limit, cursors, pages), nil
}

// merge takes the newest of pages, which begin at the cursors.
func (q AuditQuery) merge(limit int, cursors []string, pages []AuditPage) AuditPage {
	var out AuditPage
	taken := make([]int, len(pages))
	for len(out.Items) < limit {
		next := -1
		for i, p := range pages {
			if taken[i] < len(p.Items) && (next < 0 || p.Items[taken[i]].At.After(pages[next].Items[taken[next]].At)) {
				next = i
			}
		}
		if next < 0 {
			break
		}
		out.Items = append(out.Items, pages[next].Items[taken[next]])
		taken[next]++
	}
	more := false
	for i, p := range pages {
		switch {
		case taken[i] == len(p.Items) && p.Cursor == "":
			cursors[i] = exhausted
			continue
		case taken[i] > 0:
			cursors[i] = q.Next(p.Items[taken[i]-1])
		}
		more = true
	}
	if more {
		out.Cursor = strings.Join(cursors, ".")
	}
	return out
}
