// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/danielgtaylor/huma/v2"

	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/store"
)

// maxSetBody is the most bytes of a change set.
const maxSetBody = 16 << 20

// appliedDoc is the answer of POST /v1/definitions:apply.
type appliedDoc struct {
	DryRun  bool      `json:"dryRun"`
	Results []Changed `json:"results"` // of the documents, in their order, and then of what was pruned
}

// applyDefinitions makes, changes and removes definitions, all that a request says or nothing.
func (a *API) applyDefinitions(w *reply, r *http.Request) error {
	who, err := a.identify(w, r)
	if err != nil {
		return err
	}
	q, err := readQuery(r, "dryRun", "show")
	if err != nil {
		return err
	}
	set := ChangeSet{DryRun: q.flag("dryRun"), Show: q.flag("show")}
	if err := q.err(); err != nil {
		return err
	}
	if err := checkContentType(r.Header.Get("Content-Type")); err != nil {
		return err
	}
	body, err := a.readBody(r, nil, maxSetBody)
	if err != nil {
		return err
	}
	if err := a.readSet(body, &set); err != nil {
		return err
	}
	set.Permit = func(k store.Key) error { return a.mayChange(who, k, set) }
	set.Observed = func(bus string) bool { return who.permit(areaEvents, accessRead, bus) == nil }
	ctx := authored(r.Context(), w)
	done, err := a.changes.Apply(ctx, set)
	if err != nil {
		return err
	}
	if !set.DryRun {
		if err := a.putInForce(ctx, done); err != nil {
			return err
		}
		w.Header()["Cache-Control"] = noStore // it may hold secrets
	}
	return w.answer(appliedDoc{set.DryRun, done})
}

// readSet reads the body of a change set.
func (a *API) readSet(body []byte, set *ChangeSet) error {
	var prune json.RawMessage
	if err := readMembers(body, map[string]any{"documents": &set.Documents, "prune": &prune}); err != nil {
		return err
	}
	if len(set.Documents) == 0 {
		return fault.Invalidf("/documents", "is missing, or empty; send a list of definitions")
	}
	if prune == nil {
		return nil
	}
	var labels string
	var kinds []string
	if err := readMembers(prune, map[string]any{"labels": &labels, "kinds": &kinds}); err != nil {
		return fault.At("/prune", err)
	}
	set.Prune = &Prune{Kinds: kinds}
	var faults []fault.Detail
	var err error
	if set.Prune.Labels, err = parseLabels(labels); err != nil || len(set.Prune.Labels) == 0 {
		faults = append(faults, fault.Detail{Pointer: "/prune/labels", Detail: "must be name=value,name=value: only what has these labels is removed"})
	}
	for i, name := range kinds {
		if a.changes.kind(name) == nil {
			faults = append(faults, fault.Detail{Pointer: "/prune/kinds/" + strconv.Itoa(i), Detail: "is no kind that can be pruned"})
		}
	}
	if kinds == nil {
		set.Prune.Kinds = a.changes.Prunable()
	}
	return fault.Collect(faults)
}

// mayChange checks the rights that a change set needs for a definition, and that it is to be changed here.
func (a *API) mayChange(who caller, key store.Key, set ChangeSet) error {
	area, bus := areaDefinitions, ""
	if k := a.changes.kind(key.Kind); k != nil {
		area = k.area()
		switch {
		case k.Scoped:
			bus = key.Scope
		case k.Name == kindBus:
			bus = key.Name
		}
	}
	if err := who.permit(area, accessWrite, bus); err != nil {
		return err
	}
	if set.Show {
		if err := who.permit(area, accessRead, bus); err != nil {
			return err
		}
	}
	if set.DryRun {
		return nil
	}
	return a.undeclared(key)
}

// putInForce waits until what a change set has changed is in force here.
func (a *API) putInForce(ctx context.Context, done []Changed) error {
	ctx, cancel := context.WithTimeout(ctx, inForceWithin)
	defer cancel()
	for _, c := range done {
		if c.Outcome == outcomeUnchanged || c.Kind == schemaKind {
			continue
		}
		gone, revision := c.Outcome == outcomePruned, c.doc.Revision
		if c.Kind == kindKey {
			if err := a.keyChanged(c.doc, gone); err != nil {
				return err
			}
		}
		if gone {
			revision = 0
		}
		a.o.InForce(ctx, c.doc.Key, revision)
	}
	return nil
}

// applyOperation describes POST /v1/definitions:apply.
func applyOperation() *huma.Operation {
	number := &huma.Schema{Type: "integer"}
	definition := &huma.Schema{Type: "object", Description: "A definition of any kind, with kind and name; or a Schema, with group, name, schema (the text), types and what PUT takes."}
	example := json.RawMessage(`{"documents":[
		{"kind":"Target","name":"books","type":"webhook","labels":{"team":"books"},"config":{"url":"https://books.example.com/hook"}},
		{"kind":"Rule","name":"refunds","labels":{"team":"books"},"pattern":{"type":["com.example.order.refunded"]},"targets":[{"target":"books"}]}],
		"prune":{"labels":"team=books"}}`)
	body := jsonContent(object([]string{"documents"}, map[string]*huma.Schema{
		"documents": {Type: "array", Items: definition},
		"prune": object([]string{"labels"}, map[string]*huma.Schema{"labels": text("name=value,name=value"),
			"kinds": {Type: "array", Items: text(""), Description: "default: all but Key and Device; schemas are never removed"}})}))
	body["application/json"].Example = example
	return &huma.Operation{
		OperationID: "apply-definitions", Tags: []string{"definitions"}, Summary: "Make, change and remove definitions as one change",
		Security: security(need{area: areaDefinitions, access: accessWrite}),
		Description: "All documents are checked together, as if each saw all others, and written together: a set is there whole or not at all. What is " +
			"wrong is said of all documents at once, with pointers /documents/<n>/.... A document that says what is stored changes nothing. " +
			"With prune, definitions that have all of the labels and are not among the documents are removed. Needs the right to write each of them. " +
			"At most " + strconv.Itoa(maxSetDocuments) + " documents, those that are removed among them, and 16 MiB.",
		Parameters: []*huma.Param{queryDoc("dryRun", "check everything, answer what would become of each, and store nothing", &huma.Schema{Type: "boolean"}),
			queryDoc("show", "answer each document that changes before and after, without secrets; needs the right to read, too", &huma.Schema{Type: "boolean"})},
		RequestBody: &huma.RequestBody{Required: true, Content: body},
		Responses: map[string]*huma.Response{"200": {Description: "What became of each", Content: jsonContent(object([]string{"dryRun", "results"}, map[string]*huma.Schema{
			"dryRun": {Type: "boolean"},
			"results": {Type: "array", Items: object([]string{"kind", "name", "outcome"}, map[string]*huma.Schema{
				"kind": text(""), "bus": text("of a rule"), "group": text("of a schema"), "name": text(""), "outcome": text("created, configured, unchanged or pruned"),
				"oldRevision": number, "revision": number, "version": {Type: "integer", Description: "of a schema"},
				"secret":   text("of a key that was made: this once"),
				"warnings": {Type: "array", Items: &huma.Schema{Type: "object"}}, "before": {Type: "object"}, "after": {Type: "object"},
				"secretsDiffer": {Type: "boolean", Description: "in before and after something differs that is not shown"}})}}))}},
	}
}
