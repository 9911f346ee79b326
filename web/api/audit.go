// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/rialto-bridge/rialto/internal/store"
)

// authored returns a context whose writes are those of the request's caller.
func authored(ctx context.Context, w *reply) context.Context {
	return store.WithAuthor(ctx, store.Author{Name: w.caller(), RequestID: w.id})
}

// auditDoc is an audit entry as it is answered.
type auditDoc struct {
	At          time.Time `json:"at"`
	By          string    `json:"by,omitempty"` // the key; absent: the bridge itself
	Action      string    `json:"action"`
	Kind        string    `json:"kind"`
	Bus         string    `json:"bus,omitempty"`
	Name        string    `json:"name"`
	OldRevision uint64    `json:"oldRevision,omitempty"`
	Revision    uint64    `json:"revision"`
	RequestID   string    `json:"requestId,omitempty"`

	Detail json.RawMessage `json:"detail,omitempty"`
}

// listAudit answers who changed which definition, redrove and discarded, the newest first.
func (a *API) listAudit(w *reply, r *http.Request) error {
	q, s, err := readList(r, "kind", "name")
	if err != nil {
		return err
	}
	if err := q.err(); err != nil {
		return err
	}
	page, err := a.o.Audit.Audit(r.Context(), store.AuditQuery{Kind: q.text("kind"), Name: q.text("name"), From: s.from, To: s.to, Limit: s.limit, After: s.cursor})
	if err != nil {
		return err
	}
	out := struct {
		Items      []auditDoc `json:"items"`
		NextCursor string     `json:"nextCursor,omitempty"`
	}{Items: make([]auditDoc, len(page.Items)), NextCursor: page.Cursor}
	for i, e := range page.Items {
		out.Items[i] = auditDoc{At: e.At, By: e.By.Name, Action: e.Action, Kind: e.Kind, Bus: e.Scope, Name: e.Name, OldRevision: e.OldRevision,
			Revision: e.Revision, RequestID: e.By.RequestID, Detail: e.Detail}
	}
	return sendJSON(w, http.StatusOK, out)
}
