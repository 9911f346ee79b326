// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/schema"
)

// What reads the API of Kafka's registries finds schemas here: serializers resolve ids and look up what is registered. A
// subject is the name of a schema in the group "default"; of another group it is ":.<group>:<name>", which is how a
// context is written there. Nothing can be written.

const (
	subjectContent = "application/vnd.schemaregistry.v1+json"
	defaultGroup   = "default"
)

// subjectError is an error as those clients read it.
type subjectError struct {
	status, code int
	message      string
}

var (
	errNoSubject  = subjectError{http.StatusNotFound, 40401, "there is no such subject"}
	errNoVersion  = subjectError{http.StatusNotFound, 40402, "there is no such version"}
	errNoSchema   = subjectError{http.StatusNotFound, 40403, "there is no such schema"}
	errBadVersion = subjectError{http.StatusUnprocessableEntity, 42202, "a version is a number from 1, or latest"}
)

// Error is the message.
func (e subjectError) Error() string { return e.message }

type subjectIn struct {
	Normalize  string `query:"normalize" hidden:"true"`
	Deleted    string `query:"deleted" hidden:"true"`
	Verbose    bool   `query:"verbose" doc:"list why"`
	FetchMaxID string `query:"fetchMaxId" hidden:"true"`
	Format     string `query:"format" hidden:"true"`
	Subject    string `query:"subject" hidden:"true"`
	Prefix     string `query:"subjectPrefix" maxLength:"256" doc:"only subjects that begin so"`
	Defaults   string `query:"defaultToGlobal" hidden:"true"`
}

type subjectTextIn struct {
	Normalize string `query:"normalize" hidden:"true"`
	Deleted   string `query:"deleted" hidden:"true"`
	Verbose   bool   `query:"verbose" doc:"list why"`
	RawBody   []byte `contentType:"application/json"`
}

// addSubjectRoutes adds the routes of that API.
func (a *API) addSubjectRoutes() {
	read := need{area: areaDefinitions, access: accessRead}
	subject, version := pathParamDoc("subject", "name of a schema"), pathParamDoc("version", "number, or latest")
	id := pathParamDoc("id", "id of a version")
	op := func(name, method, path, summary string, params ...*huma.Param) huma.Operation {
		return huma.Operation{OperationID: name, Method: method, Path: path, Tags: []string{"subjects"}, Summary: summary, Parameters: params, MaxBodyBytes: maxSchemaBody,
			Responses: map[string]*huma.Response{"default": {Description: "an error: error_code and message"}, "200": {Description: "as Kafka's registries answer"}}}
	}
	get := func(name, path, summary string, handle func(context.Context, *subjectIn) (any, error), params ...*huma.Param) {
		control(a, op(name, "GET", path, summary, params...), read, func(ctx context.Context, in *subjectIn) (*documentOut, error) {
			v, err := handle(ctx, in)
			return subjectOut(v, err)
		})
	}
	get("list-subjects", "/subjects", "List subjects", a.subjects)
	get("list-subject-versions", "/subjects/{subject}/versions", "List the versions of a subject", a.subjectVersions, subject)
	get("get-subject-version", "/subjects/{subject}/versions/{version}", "Get a version of a subject", a.subjectVersion, subject, version)
	get("get-subject-text", "/subjects/{subject}/versions/{version}/schema", "Get the text of a version", a.subjectText, subject, version)
	get("list-subject-users", "/subjects/{subject}/versions/{version}/referencedby", "List the ids of what refers to a version", a.subjectUsers, subject, version)
	get("get-schema-id", "/schemas/ids/{id}", "Get a text by its id", a.schemaByID, id)
	get("get-schema-id-text", "/schemas/ids/{id}/schema", "Get a text by its id, alone", a.textByID, id)
	get("list-schema-id-subjects", "/schemas/ids/{id}/subjects", "List the subjects of an id", a.subjectsByID, id)
	get("list-schema-id-versions", "/schemas/ids/{id}/versions", "List the versions of an id", a.versionsByID, id)
	get("list-schema-formats", "/schemas/types", "List the formats", func(context.Context, *subjectIn) (any, error) { return []string{"AVRO", "JSON", "PROTOBUF"}, nil })
	get("get-config", "/config", "Get the mode of schemas that say nothing", func(context.Context, *subjectIn) (any, error) {
		return map[string]string{"compatibilityLevel": upper(schema.Backward)}, nil
	})
	get("get-subject-config", "/config/{subject}", "Get the mode of a subject", a.subjectConfig, subject)
	readOnly := func(context.Context, *subjectIn) (any, error) { return map[string]string{"mode": "READONLY"}, nil }
	get("get-mode", "/mode", "Say that nothing can be written here", readOnly)
	get("get-subject-mode", "/mode/{subject}", "Say that nothing can be written here", readOnly, subject)
	post := func(name, path, summary string, handle func(context.Context, *subjectTextIn) (any, error), params ...*huma.Param) {
		o := op(name, "POST", path, summary, params...)
		o.RequestBody = &huma.RequestBody{Required: true, Content: jsonContent(&huma.Schema{Type: "object"})}
		control(a, o, read, func(ctx context.Context, in *subjectTextIn) (*documentOut, error) {
			v, err := handle(ctx, in)
			return subjectOut(v, err)
		})
	}
	post("find-subject-version", "/subjects/{subject}", "Find the version that has a text", a.findSubjectVersion, subject)
	post("check-subject", "/compatibility/subjects/{subject}/versions", "Say whether a text may be the next version", a.checkSubject, subject)
	post("check-subject-version", "/compatibility/subjects/{subject}/versions/{version}", "Say whether a text may follow a version", a.checkSubject, subject, version)
}

// subjectOut answers in those clients' words.
func subjectOut(v any, err error) (*documentOut, error) {
	var e subjectError
	switch {
	case errors.As(err, &e):
	case fault.KindOf(err) == fault.Invalid && err != nil:
		e = subjectError{http.StatusUnprocessableEntity, 42201, err.Error()}
	case err != nil:
		return nil, err
	}
	if err != nil {
		out, err := jsonOut(e.status, 0, map[string]any{"error_code": e.code, "message": e.message})
		if err == nil {
			out.ContentType = subjectContent
		}
		return out, err
	}
	if text, ok := v.(rawText); ok {
		return &documentOut{Status: http.StatusOK, ContentType: subjectContent, Body: []byte(text)}, nil
	}
	out, err := jsonOut(http.StatusOK, 0, v)
	if err == nil {
		out.ContentType = subjectContent
	}
	return out, err
}

// rawText is answered as it is.
type rawText string

func upper(m schema.Mode) string { return strings.ToUpper(string(m)) }

func subjectOf(n schema.Name) string {
	if n.Group == defaultGroup {
		return n.Schema
	}
	return ":." + n.Group + ":" + n.Schema
}

// nameOfSubject reads a subject.
func nameOfSubject(s string) schema.Name {
	if rest, ok := strings.CutPrefix(s, ":."); ok {
		if group, name, ok := strings.Cut(rest, ":"); ok {
			return schema.Name{Group: group, Schema: name}
		}
	}
	return schema.Name{Group: defaultGroup, Schema: s}
}

// subject is the schema that a path names.
func (a *API) subject(ctx context.Context) (schema.Schema, error) {
	s, err := a.liveSchema(ctx, nameOfSubject(pathParam(requestOf(ctx), "subject")))
	if err != nil && fault.KindOf(err) == fault.NotFound {
		err = errNoSubject
	}
	return s, err
}

func (a *API) subjects(ctx context.Context, in *subjectIn) (any, error) {
	out := []string{}
	err := a.eachSchema(ctx, "", func(s schema.Schema) error {
		if name := subjectOf(s.Name); strings.HasPrefix(name, in.Prefix) {
			out = append(out, name)
		}
		return nil
	})
	return out, err
}

// eachSchema calls fn for the schemas of a group, or of all.
func (a *API) eachSchema(ctx context.Context, group string, fn func(schema.Schema) error) error {
	q := schema.Query{Group: group, Limit: 1000}
	for {
		p, err := a.o.Schemas.Store().Schemas(ctx, q)
		if err != nil {
			return err
		}
		for _, s := range p.Items {
			if err := fn(s); err != nil {
				return err
			}
		}
		if q.After = p.Cursor; q.After == "" {
			return nil
		}
	}
}

// inUse returns the versions of a schema that are active or deprecated.
func (a *API) inUse(ctx context.Context, n schema.Name) ([]schema.Version, error) {
	var out []schema.Version
	for after := ""; ; {
		p, err := a.o.Schemas.Store().Versions(ctx, n, after, 0)
		if err != nil {
			return nil, err
		}
		for _, v := range p.Items {
			if v.State == schema.Active || v.State == schema.Deprecated {
				out = append(out, v)
			}
		}
		if after = p.Cursor; after == "" {
			return out, nil
		}
	}
}

func (a *API) subjectVersions(ctx context.Context, _ *subjectIn) (any, error) {
	s, err := a.subject(ctx)
	if err != nil {
		return nil, err
	}
	all, err := a.inUse(ctx, s.Name)
	out := []int{}
	for _, v := range all {
		out = append(out, v.Ref.Version)
	}
	return out, err
}

// versionOfSubject is the version that a path names.
func (a *API) versionOfSubject(ctx context.Context) (schema.Version, error) {
	s, err := a.subject(ctx)
	if err != nil {
		return schema.Version{}, err
	}
	named := pathParam(requestOf(ctx), "version")
	if number, err := strconv.Atoi(named); named != "latest" && (err != nil || number < 1) {
		return schema.Version{}, errBadVersion
	}
	at, err := a.versionNamed(ctx, s.Name, named)
	var v schema.Version
	if err == nil {
		v, err = a.o.Schemas.Store().Version(ctx, at)
	}
	if err != nil && fault.KindOf(err) == fault.NotFound || err == nil && !v.State.Counts() {
		err = errNoVersion
	}
	return v, err
}

// subjectDoc is a version as those clients read it. AVRO is what no type means.
type subjectDoc struct {
	Subject    string             `json:"subject,omitempty"`
	ID         int                `json:"id,omitempty"`
	Version    int                `json:"version,omitempty"`
	SchemaType string             `json:"schemaType,omitempty"`
	References []subjectReference `json:"references,omitempty"`
	Schema     string             `json:"schema"`
}

type subjectReference struct {
	Name    string `json:"name"`
	Subject string `json:"subject"`
	Version int    `json:"version"`
}

var subjectTypes = map[schema.Format]string{schema.JSONSchema: "JSON", schema.Protobuf: "PROTOBUF"}

func showSubject(v schema.Version) subjectDoc {
	out := subjectDoc{Subject: subjectOf(v.Ref.Name), ID: v.ID, Version: v.Ref.Version, SchemaType: subjectTypes[v.Format], Schema: v.Text}
	for _, r := range v.References {
		out.References = append(out.References, subjectReference{r.Name, subjectOf(r.Ref().Name), r.Version})
	}
	return out
}

func (a *API) subjectVersion(ctx context.Context, _ *subjectIn) (any, error) {
	v, err := a.versionOfSubject(ctx)
	return showSubject(v), err
}

func (a *API) subjectText(ctx context.Context, _ *subjectIn) (any, error) {
	v, err := a.versionOfSubject(ctx)
	return rawText(v.Text), err
}

func (a *API) subjectUsers(ctx context.Context, _ *subjectIn) (any, error) {
	v, err := a.versionOfSubject(ctx)
	if err != nil {
		return nil, err
	}
	refs, err := a.o.Schemas.ReferencedBy(ctx, v.Ref)
	ids := []int{}
	for _, r := range refs {
		user, err := a.o.Schemas.Store().Version(ctx, r)
		if err != nil {
			return nil, err
		}
		ids = append(ids, user.ID)
	}
	return ids, err
}

// versionByID is the version that has the id in a path, in whatever state: events with that id may be in a log.
func (a *API) versionByID(ctx context.Context) (schema.Version, error) {
	id, err := strconv.Atoi(pathParam(requestOf(ctx), "id"))
	if err != nil || id < 1 {
		return schema.Version{}, errNoSchema
	}
	v, err := a.o.Schemas.Store().VersionByID(ctx, id)
	if err != nil && fault.KindOf(err) == fault.NotFound {
		err = errNoSchema
	}
	return v, err
}

func (a *API) schemaByID(ctx context.Context, _ *subjectIn) (any, error) {
	v, err := a.versionByID(ctx)
	out := showSubject(v)
	out.Subject, out.ID, out.Version = "", 0, 0
	return out, err
}

func (a *API) textByID(ctx context.Context, _ *subjectIn) (any, error) {
	v, err := a.versionByID(ctx)
	return rawText(v.Text), err
}

func (a *API) subjectsByID(ctx context.Context, _ *subjectIn) (any, error) {
	v, err := a.versionByID(ctx)
	return []string{subjectOf(v.Ref.Name)}, err
}

func (a *API) versionsByID(ctx context.Context, _ *subjectIn) (any, error) {
	v, err := a.versionByID(ctx)
	return []map[string]any{{"subject": subjectOf(v.Ref.Name), "version": v.Ref.Version}}, err
}

func (a *API) subjectConfig(ctx context.Context, _ *subjectIn) (any, error) {
	s, err := a.subject(ctx)
	return map[string]string{"compatibilityLevel": upper(s.Compatibility), "compatibilityPolicy": strings.ToUpper(string(s.Policy))}, err
}

// readSubjectText reads what those clients send: a text, its type and what it refers to.
func readSubjectText(in *subjectTextIn, n schema.Name) (schema.Registration, error) {
	var d subjectDoc
	if json.Unmarshal(in.RawBody, &d) != nil || d.Schema == "" {
		return schema.Registration{}, fault.Invalidf("/schema", "must be a text")
	}
	reg := schema.Registration{Name: n, Text: d.Schema, Format: schema.Avro}
	for f, t := range subjectTypes {
		if d.SchemaType == t {
			reg.Format = f
		}
	}
	if reg.Format == schema.Avro && !slices.Contains([]string{"", "AVRO"}, d.SchemaType) {
		return reg, fault.Invalidf("/schemaType", "must be AVRO, JSON or PROTOBUF")
	}
	for _, r := range d.References {
		to := nameOfSubject(r.Subject)
		reg.References = append(reg.References, schema.Reference{Name: r.Name, Group: to.Group, Schema: to.Schema, Version: r.Version})
	}
	return reg, nil
}

func (a *API) findSubjectVersion(ctx context.Context, in *subjectTextIn) (any, error) {
	s, err := a.subject(ctx)
	if err != nil {
		return nil, err
	}
	reg, err := readSubjectText(in, s.Name)
	if err != nil {
		return nil, err
	}
	v, err := a.o.Schemas.Find(ctx, reg)
	if k := fault.KindOf(err); err != nil && (k == fault.NotFound || k == fault.Conflict) || err == nil && !v.State.Counts() {
		err = errNoSchema
	}
	return showSubject(v), err
}

// checkSubject answers is_compatible. A subject without versions takes everything.
func (a *API) checkSubject(ctx context.Context, in *subjectTextIn) (any, error) {
	s, err := a.subject(ctx)
	if err != nil {
		return nil, err
	}
	reg, err := readSubjectText(in, s.Name)
	if err != nil {
		return nil, err
	}
	var o schema.CheckOptions
	if pathParam(requestOf(ctx), "version") != "" {
		v, err := a.versionOfSubject(ctx)
		if err != nil {
			return nil, err
		}
		o.Version = v.Ref.Version
	}
	verdict, err := a.o.Schemas.Check(ctx, reg, o)
	if err != nil {
		return nil, err
	}
	out := map[string]any{"is_compatible": verdict.Err(s.AllowUnknown) == nil}
	if in.Verbose {
		messages := []string{}
		for _, f := range verdict.Findings {
			messages = append(messages, f.String())
		}
		out["messages"] = messages
	}
	return out, nil
}
