// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/store"
	"github.com/rialto-bridge/rialto/schema"
)

// maxSchemaBody is the most bytes of a request that brings a schema: the text, written as a JSON string.
const maxSchemaBody = 1 << 20

const (
	schemaPath   = "/v1/schemas/{group}/{schema}"
	versionsPath = schemaPath + "/versions"
	versionPath  = versionsPath + "/{version}"
)

// addSchemaRoutes adds what the registry of schemas answers.
func (a *API) addSchemaRoutes() {
	read, write := need{area: areaDefinitions, access: accessRead}, need{area: areaDefinitions, access: accessWrite}
	named := []*huma.Param{pathParamDoc("group", "name of the group"), pathParamDoc("schema", "name of the schema")}
	numbered := append(slices.Clone(named), pathParamDoc("version", "number of the version, or latest"))
	typed := append(slices.Clone(named), pathParamDoc("type", "type of events"))
	body := func(name string) *huma.RequestBody {
		return &huma.RequestBody{Required: true, Content: jsonContent(ref(name))}
	}
	answers := func(name string, statuses ...int) map[string]*huma.Response {
		out := map[string]*huma.Response{"default": problemResponse()}
		for _, s := range statuses {
			out[strconv.Itoa(s)] = &huma.Response{Description: name, Content: jsonContent(ref(name))}
		}
		return out
	}
	page := func(name string) map[string]*huma.Response {
		return map[string]*huma.Response{"default": problemResponse(), "200": {Description: "A page", Content: jsonContent(pageSchema(ref(name)))}}
	}
	tags := []string{"schemas"}
	op := func(id, method, path, summary string, params []*huma.Param, in *huma.RequestBody, out map[string]*huma.Response) huma.Operation {
		return huma.Operation{OperationID: id, Method: method, Path: path, Tags: tags, Summary: summary, Parameters: params, RequestBody: in, Responses: out, MaxBodyBytes: maxSchemaBody}
	}
	control(a, op("list-schemas", "GET", "/v1/schemas", "List schemas", nil, nil, page("Schema")), read, a.listSchemas)
	control(a, op("get-schema", "GET", schemaPath, "Get a schema", named, nil, answers("Schema", 200)), read, a.getSchema)
	control(a, op("put-schema", "PUT", schemaPath, "Make a schema, or change what its versions have in common", named, body("Schema"), answers("Schema", 200, 201)), write, a.putSchema)
	gone := op("delete-schema", "DELETE", schemaPath, "Delete a schema and its versions", named, nil, noContentResponses())
	gone.DefaultStatus = http.StatusNoContent
	control(a, gone, write, a.deleteSchema)
	control(a, op("check-schema", "POST", schemaPath+":check", "Say whether a text may be the next version", named, body("SchemaText"), answers("SchemaVerdict", 200)), read, a.checkSchema)
	control(a, op("schema-impact", "POST", schemaPath+":impact", "Say who reads what a text would change as the next version", named, body("SchemaText"), answers("SchemaImpact", 200)), read, a.impact)
	control(a, op("list-schema-versions", "GET", versionsPath, "List the versions of a schema", named, nil, page("SchemaVersion")), read, a.listVersions)
	control(a, op("register-schema", "POST", versionsPath, "Register a version; content that is there is answered with 200", named, body("SchemaText"), answers("SchemaVersion", 200, 201)), write, a.registerVersion)
	control(a, op("get-schema-version", "GET", versionPath, "Get a version", numbered, nil, answers("SchemaVersion", 200)), read, a.getVersion)
	control(a, op("put-schema-state", "PUT", versionPath+"/state", "Change the state of a version", numbered, body("SchemaState"), answers("SchemaVersion", 200)), write, a.putState)
	gone = op("delete-schema-version", "DELETE", versionPath, "Delete a version; it stays as a tombstone", numbered, nil, noContentResponses())
	gone.DefaultStatus = http.StatusNoContent
	control(a, gone, write, a.deleteVersion)
	control(a, op("list-schema-types", "GET", schemaPath+"/types", "List the event types that have a schema", named, nil, page("SchemaType")), read, a.listTypes)
	control(a, op("bind-schema-type", "PUT", schemaPath+"/types/{type}", "Say that events of a type have a schema", typed, nil, answers("SchemaType", 200)), write, a.bindType)
	gone = op("unbind-schema-type", "DELETE", schemaPath+"/types/{type}", "End that", typed, nil, noContentResponses())
	gone.DefaultStatus = http.StatusNoContent
	control(a, gone, write, a.unbindType)
	a.describeSchemas()
}

// describeSchemas adds the documents of these routes to the description.
func (a *API) describeSchemas() {
	schemas := a.huma.OpenAPI().Components.Schemas.Map()
	list := func(of *huma.Schema) *huma.Schema { return &huma.Schema{Type: "array", Items: of} }
	number := &huma.Schema{Type: "integer"}
	moment := &huma.Schema{Type: "string", Format: "date-time"}
	reference := object([]string{"name", "group", "schema", "version"}, map[string]*huma.Schema{"name": text("in the text: a $ref, a type, an import"), "group": text(""), "schema": text(""), "version": number})
	schemas["Schema"] = object(nil, map[string]*huma.Schema{"group": text(""), "name": text(""), "format": text("jsonschema, avro or protobuf; default jsonschema"),
		"compatibility": text("none, backward (default), forward, full, backward_transitive, forward_transitive or full_transitive"),
		"policy":        text("lenient (default) or strict"), "allowUnknown": {Type: "boolean", Description: "let a check without a verdict pass"},
		"description": text(""), "labels": {Type: "object", AdditionalProperties: text("")}, "revision": number, "createdAt": moment, "updatedAt": moment})
	schemas["SchemaText"] = object([]string{"schema"}, map[string]*huma.Schema{"schema": {Description: "the text: a string, or the JSON itself"},
		"format": text("of a schema that is new"), "references": list(reference), "state": text("active (default), draft or discovered"),
		"version": {Type: "integer", Description: "check: against this version only"}, "compatibility": text("check: instead of the schema's"), "policy": text("check: instead of the schema's")})
	schemas["SchemaVersion"] = object([]string{"group", "schema", "version", "id", "state", "format", "text", "hash", "url"}, map[string]*huma.Schema{
		"group": text(""), "schema": text(""), "version": number, "id": {Type: "integer", Description: "in the whole registry"}, "state": text("discovered, draft, active, deprecated, disabled or deleted"),
		"format": text(""), "dialect": text("of a JSON Schema"), "text": text("as it was registered"), "hash": text("of the canonical text and its references"),
		"references": list(reference), "url": text("what events name it by in dataschema"), "revision": number, "createdAt": moment, "updatedAt": moment})
	schemas["SchemaVerdict"] = object([]string{"outcome"}, map[string]*huma.Schema{"outcome": text("COMPATIBLE, INCOMPATIBLE or UNKNOWN"), "findings": list(&huma.Schema{Type: "object"})})
	schemas["SchemaState"] = object([]string{"state"}, map[string]*huma.Schema{"state": text("active, draft, deprecated, disabled or deleted")})
	schemas["SchemaType"] = object([]string{"type", "group", "schema"}, map[string]*huma.Schema{"type": text("of events"), "group": text(""), "schema": text("")})
}

// schemaName is the schema that a path names.
func schemaName(ctx context.Context) schema.Name {
	r := requestOf(ctx)
	return schema.Name{Group: pathParam(r, "group"), Schema: pathParam(r, "schema")}
}

// schemaRef is the version that a path names; "latest" is the latest active one.
func (a *API) schemaRef(ctx context.Context) (schema.Ref, error) {
	return a.versionNamed(ctx, schemaName(ctx), pathParam(requestOf(ctx), "version"))
}

func (a *API) versionNamed(ctx context.Context, n schema.Name, s string) (schema.Ref, error) {
	if s == "latest" {
		v, err := a.o.Schemas.Latest(ctx, n)
		return v.Ref, err
	}
	number, err := strconv.Atoi(s)
	if err != nil || number < 1 || number > 1<<30 {
		return schema.Ref{}, fault.New(fault.NotFound, "a version is a number from 1, or latest")
	}
	return schema.Ref{Name: n, Version: number}, nil
}

// schemaDoc is a schema as it is answered, and as it is written.
type schemaDoc struct {
	Group         string            `json:"group"`
	Name          string            `json:"name"`
	Format        schema.Format     `json:"format"`
	Compatibility schema.Mode       `json:"compatibility"`
	Policy        schema.Policy     `json:"policy"`
	AllowUnknown  bool              `json:"allowUnknown,omitempty"`
	Description   string            `json:"description,omitempty"`
	Labels        map[string]string `json:"labels,omitempty"`
	Revision      uint64            `json:"revision"`
	CreatedAt     time.Time         `json:"createdAt"`
	UpdatedAt     time.Time         `json:"updatedAt"`
}

func showSchema(s schema.Schema) schemaDoc {
	return schemaDoc{s.Name.Group, s.Name.Schema, s.Format, s.Compatibility, s.Policy, s.AllowUnknown, s.Description, s.Labels, s.Revision, s.CreatedAt, s.UpdatedAt}
}

// versionDoc is a version as it is answered.
type versionDoc struct {
	Group  string `json:"group"`
	Schema string `json:"schema"`
	Number int    `json:"version"`
	schema.Version
	URL      string `json:"url"`
	Revision uint64 `json:"revision"`
}

func (a *API) showVersion(r *http.Request, v schema.Version) versionDoc {
	return versionDoc{v.Ref.Group, v.Ref.Schema, v.Ref.Version, v, schemaURL(r, v.Ref), v.Revision}
}

// schemaURL is the address of a version, as the client sees this server.
func schemaURL(r *http.Request, ref schema.Ref) string {
	scheme := "http"
	if r.TLS != nil {
		scheme = "https"
	}
	return scheme + "://" + r.Host + pathOfVersion(ref)
}

func pathOfVersion(ref schema.Ref) string {
	return "/v1/schemas/" + url.PathEscape(ref.Group) + "/" + url.PathEscape(ref.Schema) + "/versions/" + strconv.Itoa(ref.Version)
}

type typeDoc struct {
	Type   string `json:"type"`
	Group  string `json:"group"`
	Schema string `json:"schema"`
}

// jsonOut answers v.
func jsonOut(status int, revision uint64, v any) (*documentOut, error) {
	var b bytes.Buffer
	if err := encodeJSON(&b, v); err != nil {
		return nil, err
	}
	out := &documentOut{Status: status, ContentType: "application/json", Body: b.Bytes()}
	if revision != 0 {
		out.ETag = etagOf(revision)
	}
	return out, nil
}

// pageOut answers a page of a list.
func pageOut[T, D any](p schema.Page[T], show func(T) D) (*documentOut, error) {
	out := struct {
		Items      []D    `json:"items"`
		NextCursor string `json:"nextCursor,omitempty"`
	}{[]D{}, p.Cursor}
	for _, item := range p.Items {
		out.Items = append(out.Items, show(item))
	}
	return jsonOut(http.StatusOK, 0, out)
}

type schemasIn struct {
	Group  string `query:"group" maxLength:"63" doc:"only schemas of this group"`
	Limit  int    `query:"limit" minimum:"1" maximum:"1000" default:"100" doc:"how many at most"`
	Cursor string `query:"cursor" maxLength:"1024" doc:"nextCursor of the page before"`
	Labels string `query:"labels" maxLength:"4096" doc:"only schemas with all of these labels: name=value,name=value"`
}

func (a *API) listSchemas(ctx context.Context, in *schemasIn) (*documentOut, error) {
	labels, err := parseLabels(in.Labels)
	if err != nil {
		return nil, err
	}
	p, err := a.o.Schemas.Store().Schemas(ctx, schema.Query{Group: in.Group, Labels: labels, After: in.Cursor, Limit: in.Limit})
	if err != nil {
		return nil, err
	}
	return pageOut(p, showSchema)
}

// liveSchema is a schema that is not deleted.
func (a *API) liveSchema(ctx context.Context, n schema.Name) (schema.Schema, error) {
	s, err := a.o.Schemas.Store().Schema(ctx, n)
	if err == nil && s.Deleted {
		err = fault.New(fault.NotFound, "there is no schema %s", n)
	}
	return s, err
}

func (a *API) getSchema(ctx context.Context, in *getIn) (*documentOut, error) {
	s, err := a.liveSchema(ctx, schemaName(ctx))
	if err != nil {
		return nil, err
	}
	if matchesETag(in.IfNoneMatch, s.Revision, true) {
		return &documentOut{Status: http.StatusNotModified, ETag: etagOf(s.Revision)}, nil
	}
	return jsonOut(http.StatusOK, s.Revision, showSchema(s))
}

type putSchemaIn struct {
	IfMatch     string `header:"If-Match" doc:"write only over the schema with this ETag"`
	IfNoneMatch string `header:"If-None-Match" doc:"* writes only a new schema"`
	Content     string `header:"Content-Type" hidden:"true"`
	RawBody     []byte `contentType:"application/json"`
}

func (a *API) putSchema(ctx context.Context, in *putSchemaIn) (*documentOut, error) {
	if err := checkContentType(in.Content); err != nil {
		return nil, err
	}
	n := schemaName(ctx)
	s, err := readSchema(in.RawBody, n)
	if err != nil {
		return nil, err
	}
	for range maxTries {
		old, err := a.o.Schemas.Store().Schema(ctx, n)
		if err != nil && fault.KindOf(err) != fault.NotFound {
			return nil, err
		}
		there := err == nil && !old.Deleted
		if err := precondition(in.IfMatch, in.IfNoneMatch, revisionOf(old.Revision, there)); err != nil {
			return nil, err
		}
		s.Revision = old.Revision
		if there && s.Format == "" {
			s.Format = old.Format
		}
		out, err := a.o.Schemas.Configure(ctx, s)
		if fault.KindOf(err) == fault.Conflict && a.moved(ctx, n, old.Revision) {
			continue
		}
		if err != nil {
			return nil, err
		}
		status := http.StatusOK
		if !there {
			status = http.StatusCreated
		}
		return jsonOut(status, out.Revision, showSchema(out))
	}
	return nil, fault.New(fault.Conflict, "schema %s is being changed by others all the time", n)
}

// revisionOf is what precondition wants to know of a record.
func revisionOf(revision uint64, there bool) *store.Document {
	if !there {
		return nil
	}
	return &store.Document{Revision: revision}
}

// moved reports whether a schema is not at a revision any more.
func (a *API) moved(ctx context.Context, n schema.Name, revision uint64) bool {
	s, err := a.o.Schemas.Store().Schema(ctx, n)
	return err == nil && s.Revision != revision
}

// readSchema reads the settings of a schema.
func readSchema(doc []byte, n schema.Name) (schema.Schema, error) {
	ms, err := members(doc)
	if err != nil {
		return schema.Schema{}, err
	}
	if bad := checkLabels(ms); bad != nil {
		return schema.Schema{}, fault.Collect(bad)
	}
	ms = slices.DeleteFunc(ms, func(m member) bool { return slices.Contains(serverOwned, m.name) })
	bare, err := join(ms)
	if err != nil {
		return schema.Schema{}, err
	}
	var d struct {
		Kind          string            `json:"kind"`
		Group         string            `json:"group"`
		Name          string            `json:"name"`
		Format        schema.Format     `json:"format"`
		Compatibility schema.Mode       `json:"compatibility"`
		Policy        schema.Policy     `json:"policy"`
		AllowUnknown  bool              `json:"allowUnknown"`
		Description   string            `json:"description"`
		Labels        map[string]string `json:"labels"`
	}
	if err := decodeStrict(bare, &d); err != nil {
		return schema.Schema{}, err
	}
	var bad []fault.Detail
	for _, c := range []struct{ name, have, want string }{{"kind", d.Kind, "Schema"}, {"group", d.Group, n.Group}, {"name", d.Name, n.Schema}} {
		if c.have != "" && c.have != c.want {
			bad = append(bad, fault.Detail{Pointer: "/" + c.name, Detail: "must be " + c.want + ", as the path says"})
		}
	}
	return schema.Schema{Name: n, Format: d.Format, Compatibility: d.Compatibility, Policy: d.Policy, AllowUnknown: d.AllowUnknown,
		Description: d.Description, Labels: d.Labels}, fault.Collect(bad)
}

type deleteSchemaIn struct {
	IfMatch string `header:"If-Match" doc:"delete only what has this ETag"`
}

func (a *API) deleteSchema(ctx context.Context, in *deleteSchemaIn) (*nothingOut, error) {
	s, err := a.liveSchema(ctx, schemaName(ctx))
	if err != nil {
		return nil, err
	}
	if err := precondition(in.IfMatch, "", revisionOf(s.Revision, true)); err != nil {
		return nil, err
	}
	return nil, a.o.Schemas.Delete(ctx, s.Name, s.Revision)
}

type schemaTextIn struct {
	Content string `header:"Content-Type" hidden:"true"`
	RawBody []byte `contentType:"application/json"`
}

// registration reads a text and what goes with it.
func registration(ctx context.Context, in *schemaTextIn) (schema.Registration, schema.CheckOptions, error) {
	reg, o := schema.Registration{Name: schemaName(ctx)}, schema.CheckOptions{}
	if err := checkContentType(in.Content); err != nil {
		return reg, o, err
	}
	var d struct {
		Schema        json.RawMessage    `json:"schema"`
		Format        schema.Format      `json:"format"`
		References    []schema.Reference `json:"references"`
		State         schema.State       `json:"state"`
		Version       int                `json:"version"`
		Compatibility string             `json:"compatibility"`
		Policy        schema.Policy      `json:"policy"`
	}
	if err := decodeStrict(in.RawBody, &d); err != nil {
		return reg, o, err
	}
	if d.Schema == nil {
		return reg, o, fault.Invalidf("/schema", "is missing")
	}
	reg.Text = schemaText(d.Schema)
	reg.Format, reg.References, reg.State = d.Format, d.References, d.State
	o.Version, o.Policy = d.Version, d.Policy
	if d.Compatibility == "" {
		return reg, o, nil
	}
	var err error
	o.Compatibility, err = schema.ParseMode(d.Compatibility)
	return reg, o, err
}

func (a *API) registerVersion(ctx context.Context, in *schemaTextIn) (*documentOut, error) {
	reg, o, err := registration(ctx, in)
	if err == nil && o != (schema.CheckOptions{}) {
		err = fault.Invalidf("", "version, compatibility and policy are for a check; PUT the schema to change what it is held to")
	}
	if err != nil {
		return nil, err
	}
	done, err := a.o.Schemas.Register(ctx, reg)
	if err != nil {
		return nil, inText(err)
	}
	status := http.StatusOK
	if done.Created {
		status = http.StatusCreated
	}
	out, err := jsonOut(status, done.Version.Revision, a.showVersion(requestOf(ctx), done.Version))
	if err == nil && done.Created {
		out.Location = pathOfVersion(done.Version.Ref)
	}
	return out, err
}

// inText points into the member that holds the text, for what is wrong with the text itself.
func inText(err error) error {
	f, ok := err.(*fault.Error) //nolint:errorlint // an incompatible version is told otherwise
	if !ok || f.Kind != fault.Invalid {
		return err
	}
	c := *f
	c.Details = slices.Clone(f.Details)
	for i, d := range c.Details {
		if !strings.HasPrefix(d.Pointer, "/references") && !slices.Contains([]string{"/group", "/schema", "/state", "/format"}, d.Pointer) {
			c.Details[i].Pointer = "/schema" + d.Pointer
		}
	}
	return &c
}

func (a *API) checkSchema(ctx context.Context, in *schemaTextIn) (*documentOut, error) {
	reg, o, err := registration(ctx, in)
	if err != nil {
		return nil, err
	}
	verdict, err := a.o.Schemas.Check(ctx, reg, o)
	if err != nil {
		return nil, inText(err)
	}
	return jsonOut(http.StatusOK, 0, verdict)
}

type versionsIn struct {
	Limit  int    `query:"limit" minimum:"1" maximum:"1000" default:"100" doc:"how many at most"`
	Cursor string `query:"cursor" maxLength:"1024" doc:"nextCursor of the page before"`
}

func (a *API) listVersions(ctx context.Context, in *versionsIn) (*documentOut, error) {
	s, err := a.liveSchema(ctx, schemaName(ctx))
	if err != nil {
		return nil, err
	}
	p, err := a.o.Schemas.Store().Versions(ctx, s.Name, in.Cursor, in.Limit)
	if err != nil {
		return nil, err
	}
	return pageOut(p, func(v schema.Version) versionDoc { return a.showVersion(requestOf(ctx), v) })
}

type getVersionIn struct {
	IfNoneMatch string `header:"If-None-Match" doc:"answer 304 if the version still has this ETag"`
	Raw         bool   `query:"raw" doc:"answer the text alone"`
}

// textTypes are the media types of texts.
var textTypes = map[schema.Format]string{schema.JSONSchema: "application/schema+json", schema.Avro: "application/vnd.apache.avro+json", schema.Protobuf: "text/plain; charset=utf-8"}

func (a *API) getVersion(ctx context.Context, in *getVersionIn) (*documentOut, error) {
	v, err := a.version(ctx)
	if err != nil {
		return nil, err
	}
	if matchesETag(in.IfNoneMatch, v.Revision, true) {
		return &documentOut{Status: http.StatusNotModified, ETag: etagOf(v.Revision)}, nil
	}
	if in.Raw {
		return &documentOut{Status: http.StatusOK, ContentType: cmp.Or(textTypes[v.Format], "text/plain"), ETag: etagOf(v.Revision), Body: []byte(v.Text)}, nil
	}
	return jsonOut(http.StatusOK, v.Revision, a.showVersion(requestOf(ctx), v))
}

func (a *API) version(ctx context.Context) (schema.Version, error) {
	at, err := a.schemaRef(ctx)
	if err != nil {
		return schema.Version{}, err
	}
	return a.o.Schemas.Store().Version(ctx, at)
}

type stateIn struct {
	IfMatch string `header:"If-Match" doc:"change only the version with this ETag"`
	Content string `header:"Content-Type" hidden:"true"`
	RawBody []byte `contentType:"application/json"`
}

func (a *API) putState(ctx context.Context, in *stateIn) (*documentOut, error) {
	if err := checkContentType(in.Content); err != nil {
		return nil, err
	}
	var d struct {
		State schema.State `json:"state"`
	}
	if err := decodeStrict(in.RawBody, &d); err != nil {
		return nil, err
	}
	v, err := a.changeState(ctx, d.State, in.IfMatch)
	if err != nil {
		return nil, err
	}
	return jsonOut(http.StatusOK, v.Revision, a.showVersion(requestOf(ctx), v))
}

func (a *API) changeState(ctx context.Context, to schema.State, ifMatch string) (schema.Version, error) {
	v, err := a.version(ctx)
	if err != nil {
		return v, err
	}
	if err := precondition(ifMatch, "", revisionOf(v.Revision, true)); err != nil {
		return v, err
	}
	return a.o.Schemas.SetState(ctx, v.Ref, to, v.Revision)
}

func (a *API) deleteVersion(ctx context.Context, in *deleteSchemaIn) (*nothingOut, error) {
	_, err := a.changeState(ctx, schema.Deleted, in.IfMatch)
	return nil, err
}

func (a *API) listTypes(ctx context.Context, in *versionsIn) (*documentOut, error) {
	s, err := a.liveSchema(ctx, schemaName(ctx))
	if err != nil {
		return nil, err
	}
	p, err := a.o.Schemas.Store().Bindings(ctx, s.Name, in.Cursor, in.Limit)
	if err != nil {
		return nil, err
	}
	return pageOut(p, showBinding)
}

func showBinding(b schema.Binding) typeDoc { return typeDoc{b.EventType, b.Name.Group, b.Name.Schema} }

func (a *API) bindType(ctx context.Context, _ *struct{}) (*documentOut, error) {
	b, err := a.o.Schemas.Bind(ctx, pathParam(requestOf(ctx), "type"), schemaName(ctx))
	if err != nil {
		return nil, err
	}
	return jsonOut(http.StatusOK, 0, showBinding(b))
}

func (a *API) unbindType(ctx context.Context, _ *struct{}) (*nothingOut, error) {
	return nil, a.o.Schemas.Unbind(ctx, pathParam(requestOf(ctx), "type"), schemaName(ctx))
}
