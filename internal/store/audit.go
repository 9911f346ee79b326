// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"iter"
	"strconv"
	"strings"
	"time"

	"github.com/rialto-bridge/rialto/internal/fault"
)

// Author is who makes a change.
type Author struct {
	Name      string // of the key, or in parentheses what no key can be called; "" = the bridge itself
	RequestID string // as the answer and the log have it; "" = none
}

type authorKey struct{}

// WithAuthor returns a context whose writes are an author's.
func WithAuthor(ctx context.Context, a Author) context.Context {
	return context.WithValue(ctx, authorKey{}, a)
}

// AuthorOf returns whose writes those under ctx are.
func AuthorOf(ctx context.Context) Author {
	a, _ := ctx.Value(authorKey{}).(Author)
	return a
}

// Actions of audit entries.
const (
	Created = "created"
	Changed = "changed"
	Deleted = "deleted"
)

// AuditEntry is one change of a document. It does not hold the document, which may be secret.
type AuditEntry struct {
	Key
	By          Author
	At          time.Time
	Action      string
	OldRevision uint64 // 0 = there was none
	Revision    uint64 // of the change; of a deletion too
	Detail      []byte // JSON: what was done, if it is no change of a document
}

// EntryOf is the entry of a change that made d, whose revision is set, of old (nil = nothing).
func EntryOf(by Author, at time.Time, old *Document, d Document) AuditEntry {
	e := AuditEntry{Key: d.Key, By: by, At: at, Action: Changed, Revision: d.Revision}
	switch {
	case old == nil:
		e.Action = Created
	case d.Raw == nil:
		e.Action = Deleted
	}
	if old != nil {
		e.OldRevision = old.Revision
	}
	return e
}

// AuditQuery selects audit entries.
type AuditQuery struct {
	From, To time.Time // the first that counts and the first that does not; zero = no bound
	Kind     string    // "" = all
	Name     string    // "" = all
	After    string    // cursor: the Cursor of the last page; "" = start
	Limit    int       // 1-1000; 0 = 100
}

// AuditPage is a part of a list, the newest first. Cursor is "" on the last page.
type AuditPage struct {
	Items  []AuditEntry
	Cursor string
}

// Page checks q: how much a page holds, and the revision below which it begins.
func (q AuditQuery) Page() (limit int, below uint64, err error) {
	limit, err = pageLimit(q.Limit)
	if err != nil || q.After == "" {
		return limit, 1<<63 - 1, err
	}
	number, ok := strings.CutPrefix(q.After, "r")
	below, err = strconv.ParseUint(number, 36, 63)
	if !ok || err != nil {
		return 0, 0, fault.Invalidf("/cursor", "is not a cursor of this list")
	}
	return limit, below, nil
}

// Next is the cursor after an entry.
func (q AuditQuery) Next(e AuditEntry) string { return "r" + strconv.FormatUint(e.Revision, 36) }

// Select answers q from entries that come with the newest first.
func (q AuditQuery) Select(entries iter.Seq[AuditEntry]) (AuditPage, error) {
	limit, below, err := q.Page()
	if err != nil {
		return AuditPage{}, err
	}
	var p AuditPage
	for e := range entries {
		if e.Revision >= below || !q.Has(e) {
			continue
		}
		if len(p.Items) == limit {
			p.Cursor = q.Next(p.Items[limit-1])
			break
		}
		p.Items = append(p.Items, e)
	}
	return p, nil
}

// Has reports whether q asks for an entry, wherever it stands in the list.
func (q AuditQuery) Has(e AuditEntry) bool {
	return (q.Kind == "" || e.Kind == q.Kind) && (q.Name == "" || e.Name == q.Name) &&
		(q.From.IsZero() || !e.At.Before(q.From)) && (q.To.IsZero() || e.At.Before(q.To))
}
