// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bytes"
	"cmp"
	"context"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/rialto-bridge/rialto/bridge"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/store"
	"github.com/rialto-bridge/rialto/rules"
)

const (
	kindBus = "Bus"
	// maxTries is how often a write without a precondition is tried again when another came between.
	maxTries = 20
	// maxUsers is how many users of a definition a refusal names.
	maxUsers = 10
)

// Kind is a sort of definition. Its functions are called concurrently and keep nothing they are given.
type Kind struct {
	Name   string // as documents say it, such as Rule
	Plural string // as paths say it, such as rules
	Doc    string // a sentence for OpenAPI
	Scoped bool   // belongs to a bus: /v1/buses/{bus}/<plural>, and the bus must exist
	Area   string // of the rights it needs; "" = definitions

	// Normalize checks a document as a user wrote it (one JSON object without server-owned members, with kind and name)
	// and returns what is stored. old is what is stored now, nil if nothing. The error is a *fault.Error with pointers
	// into doc. nil stores documents as they are.
	Normalize func(ctx context.Context, doc, old []byte) ([]byte, error)
	// Lint returns what is doubtful about a document that Normalize has taken; it is answered with it as
	// status.warnings. observed says that it may look at stored events; it should be done within a second. nil has no
	// doubts.
	Lint func(ctx context.Context, doc []byte, observed bool) []rules.Warning
	// Redact returns a stored document without what may not be shown. nil shows all.
	Redact func(doc []byte) []byte
	// Refs lists the definitions that a stored document names; each must exist when it is written, and stays while it
	// is named. nil means none.
	Refs func(doc []byte) []Ref
	// Status returns what the process knows of the thing that a document defines, to be shown beside it; nil if it knows
	// nothing. brief says that it is one of many. nil shows none.
	Status func(name string, brief bool) any
	// Keep lists names that cannot be deleted.
	Keep []string
	// Lasting says that a change set removes documents of the kind only if it names the kind: they are made one by one, and
	// files do not hold all of them.
	Lasting bool
	// Schema is the JSON Schema 2020-12 of the document, for OpenAPI; nil = any object.
	Schema []byte
}

// Ref is a reference from one definition to another.
type Ref struct {
	Kind    string
	Name    string
	Pointer string // where it stands in the document
}

func (k *Kind) area() string { return cmp.Or(k.Area, areaDefinitions) }

// path is where the documents of the kind are.
func (k *Kind) path() string {
	if k.Scoped {
		return "/v1/buses/{bus}/" + k.Plural
	}
	return "/v1/" + k.Plural
}

// need is the right that an access to the documents of the kind takes. A bus itself is on the bus.
func (k *Kind) need(access string, item bool) need {
	n := need{area: k.area(), access: access}
	switch {
	case k.Scoped:
		n.bus = func(w *reply, _ *http.Request) string { return w.bus }
	case k.Name == kindBus && item:
		n.bus = func(_ *reply, r *http.Request) string { return pathParam(r, "name") }
	}
	return n
}

func (a *API) kind(name string) *Kind {
	for _, k := range a.kinds {
		if k.Name == name {
			return k
		}
	}
	return nil
}

type listIn struct {
	Limit  int    `query:"limit" minimum:"1" maximum:"1000" default:"100" doc:"how many at most"`
	Cursor string `query:"cursor" maxLength:"1024" doc:"nextCursor of the page before"`
	Labels string `query:"labels" maxLength:"4096" doc:"only documents with all of these labels: name=value,name=value"`

	Watch       bool   `query:"watch" doc:"answer with server-sent events: put for each document, synced, and then put and delete as they happen; ids are revisions"`
	Since       string `query:"since" maxLength:"20" doc:"with watch: only what has changed after this revision; 410 if that is not known any more"`
	LastEventID string `header:"Last-Event-ID" doc:"the same, as browsers send it"`
}

type getIn struct {
	IfNoneMatch string `header:"If-None-Match" doc:"answer 304 if the document still has this ETag"`
}

type putIn struct {
	DryRun      bool   `query:"dryRun" doc:"check, answer what would be stored, and store nothing"`
	IfMatch     string `header:"If-Match" doc:"write only over the document with this ETag"`
	IfNoneMatch string `header:"If-None-Match" doc:"* writes only a new document"`
	Content     string `header:"Content-Type" hidden:"true"`
	RawBody     []byte `contentType:"application/json"`
}

type deleteIn struct {
	DryRun  bool   `query:"dryRun" doc:"check, and delete nothing"`
	IfMatch string `header:"If-Match" doc:"delete only the document with this ETag"`
}

// documentOut is an answer: a document, a list of them, or nothing.
type documentOut struct {
	Status       int
	ContentType  string `header:"Content-Type" hidden:"true"`
	ETag         string `header:"ETag"`
	Location     string `header:"Location"`
	CacheControl string `header:"Cache-Control" hidden:"true"`
	Body         []byte
}

// nothingOut is an answer without a body.
type nothingOut struct{}

// addKind adds the routes of a kind.
func (a *API) addKind(k *Kind) {
	a.kinds = append(a.kinds, k)
	one := strings.ToLower(k.Name)
	tags := []string{k.Plural}
	item := k.path() + "/{name}"
	onItem := pathParams(k, true)
	control(a, huma.Operation{
		OperationID: "list-" + k.Plural, Method: "GET", Path: k.path(), Tags: tags, Summary: "List " + k.Plural, Description: k.Doc,
		Parameters: pathParams(k, false), Responses: listResponses(k),
	}, k.need(accessRead, false), func(ctx context.Context, in *listIn) (*listOut, error) { return a.listDocuments(ctx, k, in) })
	control(a, huma.Operation{
		OperationID: "get-" + one, Method: "GET", Path: item, Tags: tags, Summary: "Get a " + one, Parameters: onItem,
		Responses: documentResponses(k, http.StatusOK),
	}, k.need(accessRead, true), func(ctx context.Context, in *getIn) (*documentOut, error) { return a.getDocument(ctx, k, in) })
	control(a, huma.Operation{
		OperationID: "put-" + one, Method: "PUT", Path: item, Tags: tags, Summary: "Make or change a " + one, Parameters: onItem,
		RequestBody: documentBody(k), Responses: documentResponses(k, http.StatusOK, http.StatusCreated),
	}, k.need(accessWrite, true), func(ctx context.Context, in *putIn) (*documentOut, error) { return a.putDocument(ctx, k, in) })
	control(a, huma.Operation{
		OperationID: "delete-" + one, Method: "DELETE", Path: item, Tags: tags, Summary: "Delete a " + one, Parameters: onItem,
		Responses: noContentResponses(), DefaultStatus: http.StatusNoContent,
	}, k.need(accessWrite, true), func(ctx context.Context, in *deleteIn) (*nothingOut, error) { return a.deleteDocument(ctx, k, in) })
}

// keyOf is the key of the document that a request's path names.
func (k *Kind) keyOf(r *http.Request) store.Key {
	sk := store.Key{Kind: k.Name, Name: pathParam(r, "name")}
	if k.Scoped {
		sk.Scope = pathParam(r, "bus")
	}
	return sk
}

// listOut is a page, or a stream that has been written by then.
type listOut struct {
	Body func(huma.Context)
}

func (a *API) listDocuments(ctx context.Context, k *Kind, in *listIn) (*listOut, error) {
	q := store.Query{Kind: k.Name, After: in.Cursor, Limit: in.Limit}
	if k.Scoped {
		q.Scope = pathParam(requestOf(ctx), "bus")
		if err := a.busExists(ctx, q.Scope); err != nil {
			return nil, err
		}
	}
	var err error
	if q.Labels, err = parseLabels(in.Labels); err != nil {
		return nil, err
	}
	if in.Watch {
		return &listOut{func(huma.Context) {}}, a.watchDocuments(ctx, k, in, q.Labels)
	}
	if in.Since != "" {
		return nil, fault.Invalidf("/since", "goes with watch=true")
	}
	page, err := a.o.Store.List(ctx, q)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	b.WriteString(`{"items":[`)
	for i, d := range page.Items {
		if i > 0 {
			b.WriteByte(',')
		}
		if err := k.writeDoc(&b, d, aside{brief: true}); err != nil {
			return nil, err
		}
	}
	b.WriteByte(']')
	if page.Cursor != "" {
		b.WriteString(`,"nextCursor":"` + page.Cursor + `"`)
	}
	b.WriteByte('}')
	return &listOut{func(huma.Context) {
		_ = replyOf(ctx).send(http.StatusOK, contentJSON, b.Bytes()) // it has no error
	}}, nil
}

// parseLabels reads name=value,name=value.
func parseLabels(s string) (map[string]string, error) {
	if s == "" {
		return nil, nil
	}
	out := map[string]string{}
	for pair := range strings.SplitSeq(s, ",") {
		name, value, ok := strings.Cut(pair, "=")
		name = strings.TrimSpace(name)
		if _, twice := out[name]; !ok || name == "" || twice {
			return nil, fault.Invalidf("/labels", "must be name=value,name=value with each name once")
		}
		out[name] = strings.TrimSpace(value)
	}
	return out, nil
}

func (a *API) getDocument(ctx context.Context, k *Kind, in *getIn) (*documentOut, error) {
	d, err := a.o.Store.Get(ctx, k.keyOf(requestOf(ctx)))
	if err != nil {
		return nil, err
	}
	if matchesETag(in.IfNoneMatch, d.Revision, true) {
		return &documentOut{Status: http.StatusNotModified, ETag: etagOf(d.Revision)}, nil
	}
	return a.documentOut(k, d, http.StatusOK, aside{})
}

func (a *API) documentOut(k *Kind, d store.Document, status int, more aside) (*documentOut, error) {
	body, err := k.showDoc(d, more)
	if err != nil {
		return nil, err
	}
	out := &documentOut{Status: status, ContentType: "application/json", Body: body}
	if d.Revision != 0 {
		out.ETag = etagOf(d.Revision)
	}
	if status == http.StatusCreated {
		out.Location = "/v1/" + k.Plural + "/" + url.PathEscape(d.Name)
		if k.Scoped {
			out.Location = "/v1/buses/" + url.PathEscape(d.Scope) + "/" + k.Plural + "/" + url.PathEscape(d.Name)
		}
	}
	return out, nil
}

func (a *API) putDocument(ctx context.Context, k *Kind, in *putIn) (*documentOut, error) {
	if err := checkContentType(in.Content); err != nil {
		return nil, err
	}
	sk := k.keyOf(requestOf(ctx))
	if why := bridge.CheckName(sk.Name); why != "" {
		return nil, fault.Invalidf("/name", "%s", why)
	}
	doc, err := prepareDoc(k, in.RawBody, sk.Scope, sk.Name)
	if err != nil {
		return nil, err
	}
	if !in.DryRun {
		if err := a.undeclared(sk); err != nil {
			return nil, err
		}
	}
	return a.writeDocument(ctx, k, sk, doc, in)
}

// writeDocument checks a document that is prepared, and stores it, declared or not. What in says of the body is not looked at.
func (a *API) writeDocument(ctx context.Context, k *Kind, sk store.Key, doc []byte, in *putIn) (*documentOut, error) {
	leave, err := a.changes.enter(ctx)
	if err != nil {
		return nil, err
	}
	leave = sync.OnceFunc(leave)
	defer leave()
	for range maxTries {
		old, err := current(ctx, a.o.Store, sk)
		if err != nil {
			return nil, err
		}
		if err := precondition(in.IfMatch, in.IfNoneMatch, old); err != nil {
			return nil, err
		}
		raw, err := a.normalize(ctx, k, sk, doc, old)
		if err != nil {
			return nil, err
		}
		if in.DryRun {
			leave()
			return a.dryRun(k, sk, raw, old, a.lint(ctx, replyOf(ctx), k, sk.Scope, raw))
		}
		cond, status := store.Condition{Absent: true}, http.StatusCreated
		if old != nil {
			cond, status = store.Condition{Revision: old.Revision}, http.StatusOK
		}
		d, err := a.o.Store.Put(ctx, sk, raw, cond)
		if fault.KindOf(err) == fault.Conflict {
			continue // another process was faster: look again
		}
		if err != nil {
			return nil, err
		}
		if k.Name == kindKey {
			if err := a.keyChanged(d, false); err != nil {
				return nil, err
			}
		}
		leave()
		a.awaitInForce(ctx, sk, d.Revision)
		return a.documentOut(k, d, status, aside{warnings: a.lint(ctx, replyOf(ctx), k, sk.Scope, raw)})
	}
	return nil, fault.New(fault.Conflict, "%s is being changed by others all the time", sk)
}

// normalize checks a document and everything that it names, and returns what is to be stored.
func (a *API) normalize(ctx context.Context, k *Kind, sk store.Key, doc []byte, old *store.Document) ([]byte, error) {
	if k.Scoped {
		if err := a.busExists(ctx, sk.Scope); err != nil {
			return nil, err
		}
	}
	raw := doc
	if k.Normalize != nil {
		var was []byte
		if old != nil {
			was = old.Raw
		}
		var err error
		if raw, err = k.Normalize(ctx, doc, was); err != nil {
			return nil, err
		}
	}
	raw, err := store.Compact(raw)
	if err != nil || k.Refs == nil {
		return raw, err
	}
	var faults []fault.Detail
	for _, ref := range k.Refs(raw) {
		_, err := a.o.Store.Get(ctx, store.Key{Kind: ref.Kind, Name: ref.Name})
		switch {
		case fault.KindOf(err) == fault.NotFound && err != nil:
			faults = append(faults, fault.Detail{Pointer: ref.Pointer, Detail: "there is no " + strings.ToLower(ref.Kind) + " of this name"})
		case err != nil:
			return nil, err
		}
	}
	return raw, fault.Collect(faults)
}

func (a *API) dryRun(k *Kind, sk store.Key, raw []byte, old *store.Document, warnings []rules.Warning) (*documentOut, error) {
	d, status := store.Document{Key: sk, Raw: raw}, http.StatusCreated
	if old != nil {
		status = http.StatusOK
		if bytes.Equal(old.Raw, raw) {
			d = *old
		} else {
			d.CreatedAt, d.UpdatedAt = old.CreatedAt, old.UpdatedAt
		}
	}
	out, err := a.documentOut(k, d, status, aside{warnings: warnings})
	if err == nil {
		out.Location = ""
	}
	return out, err
}

func (a *API) deleteDocument(ctx context.Context, k *Kind, in *deleteIn) (*nothingOut, error) {
	sk := k.keyOf(requestOf(ctx))
	if !in.DryRun {
		if err := a.undeclared(sk); err != nil {
			return nil, err
		}
	}
	leave, err := a.changes.enter(ctx)
	if err != nil {
		return nil, err
	}
	leave = sync.OnceFunc(leave)
	defer leave()
	for range maxTries {
		old, err := a.o.Store.Get(ctx, sk)
		if err != nil {
			return nil, err
		}
		if err := precondition(in.IfMatch, "", &old); err != nil {
			return nil, err
		}
		if slices.Contains(k.Keep, sk.Name) {
			return nil, fault.New(fault.Conflict, "%s %s is always there and cannot be deleted", strings.ToLower(k.Name), sk.Name)
		}
		if err := a.unused(ctx, k, sk); err != nil {
			return nil, err
		}
		if in.DryRun {
			return nil, nil
		}
		err = a.o.Store.Delete(ctx, sk, store.Condition{Revision: old.Revision})
		if fault.KindOf(err) == fault.Conflict {
			continue
		}
		if err == nil && k.Name == kindKey {
			err = a.keyChanged(old, true)
		}
		if err == nil {
			leave()
			a.awaitInForce(ctx, sk, 0)
		}
		return nil, err
	}
	return nil, fault.New(fault.Conflict, "%s is being changed by others all the time", sk)
}

// inForceWithin is how long an answer waits for a written definition to be in force.
const inForceWithin = 2 * time.Second

// awaitInForce blocks until what was written is in force here, so that whoever has the answer can rely on it: an event
// published next meets the rule. If that takes too long the answer goes out all the same.
func (a *API) awaitInForce(ctx context.Context, sk store.Key, revision uint64) {
	ctx, cancel := context.WithTimeout(ctx, inForceWithin)
	defer cancel()
	a.o.InForce(ctx, sk, revision)
}

// unused refuses to delete what others name.
func (a *API) unused(ctx context.Context, k *Kind, sk store.Key) error {
	if k.Scoped {
		return nil // what is on a bus is named by nobody
	}
	var users []string
	for _, other := range a.kinds {
		if other.Refs == nil && !(other.Scoped && k.Name == kindBus) {
			continue
		}
		q := store.Query{Kind: other.Name, AllScopes: true, Limit: 1000}
		for {
			page, err := a.o.Store.List(ctx, q)
			if err != nil {
				return err
			}
			for _, d := range page.Items {
				if uses(other, d, k, sk) {
					users = append(users, strings.ToLower(other.Name)+" "+strings.TrimPrefix(d.Scope+"/"+d.Name, "/"))
				}
			}
			if page.Cursor == "" || len(users) > maxUsers {
				break
			}
			q.After = page.Cursor
		}
	}
	if len(users) == 0 {
		return nil
	}
	named := users[:min(len(users), maxUsers)]
	more := ""
	if len(users) > len(named) {
		more = " and others"
	}
	return fault.New(fault.Conflict, "%s %s is in use by %s%s", strings.ToLower(k.Name), sk.Name, strings.Join(named, ", "), more)
}

func uses(other *Kind, d store.Document, k *Kind, sk store.Key) bool {
	if other.Scoped && k.Name == kindBus && d.Scope == sk.Name {
		return true
	}
	return other.Refs != nil && slices.ContainsFunc(other.Refs(d.Raw), func(r Ref) bool { return r.Kind == k.Name && r.Name == sk.Name })
}

// busExists is NotFound for a bus that is not there.
func (a *API) busExists(ctx context.Context, bus string) error {
	_, err := a.o.Store.Get(ctx, store.Key{Kind: kindBus, Name: bus})
	if err != nil && fault.KindOf(err) == fault.NotFound {
		return fault.New(fault.NotFound, "no bus %q", bus)
	}
	return err
}

// undeclared refuses to change what files declare.
func (a *API) undeclared(k store.Key) error {
	if by := a.o.Declared(k); by != "" {
		return fault.New(fault.Conflict, "%s is read-only here: definitions are declared by %s", k, by)
	}
	return nil
}

func etagOf(revision uint64) string { return `"` + strconv.FormatUint(revision, 10) + `"` }

// precondition checks If-Match and If-None-Match against what is stored (nil = nothing).
func precondition(ifMatch, ifNoneMatch string, old *store.Document) error {
	var revision uint64
	if old != nil {
		revision = old.Revision
	}
	if ifMatch != "" && !matchesETag(ifMatch, revision, false) {
		detail := "the document is not there"
		if old != nil {
			detail = "the document is at " + etagOf(revision)
		}
		return &httpError{kind: problemPrecondition, detail: detail}
	}
	if ifNoneMatch != "" && matchesETag(ifNoneMatch, revision, true) {
		return &httpError{kind: problemPrecondition, detail: "the document is there, at " + etagOf(revision)}
	}
	return nil
}

// matchesETag reports whether a list of ETags, or *, has the one of a revision (0 = no document). Weak ETags count
// only where RFC 9110 compares weakly.
func matchesETag(list string, revision uint64, weak bool) bool {
	if list == "" || revision == 0 {
		return false
	}
	for tag := range strings.SplitSeq(list, ",") {
		tag = strings.TrimSpace(tag)
		if weak {
			tag = strings.TrimPrefix(tag, "W/")
		}
		if tag == "*" || tag == etagOf(revision) {
			return true
		}
	}
	return false
}

func checkContentType(s string) error {
	if s == "" || isJSONType(s) {
		return nil
	}
	return fault.New(fault.Unsupported, "definitions are sent as application/json")
}
