// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/schema"
)

// A view of the registry by the names of xRegistry, to be read: groups are schemagroups, versions have their texts at their
// address and what is known of them at the same with $details.

// details is the suffix of what is known of a thing, instead of its text.
const details = "$details"

// addXRegistryRoutes adds that view.
func (a *API) addXRegistryRoutes() {
	group, name := pathParamDoc("group", "schemagroupid"), pathParamDoc("schema", "schemaid, with $details for what is known of it")
	version := pathParamDoc("version", "versionid, with $details for what is known of it")
	for _, r := range []struct {
		id, path, summary string
		handle            func(context.Context, *struct{}) (*documentOut, error)
		params            []*huma.Param
	}{
		{"xregistry", "", "The registry", a.xRegistry, nil},
		{"xregistry-groups", "/schemagroups", "Groups by id", a.xGroups, nil},
		{"xregistry-group", "/schemagroups/{group}", "A group", a.xGroup, []*huma.Param{group}},
		{"xregistry-schemas", "/schemagroups/{group}/schemas", "Schemas of a group by id", a.xSchemas, []*huma.Param{group}},
		{"xregistry-schema", "/schemagroups/{group}/schemas/{schema}", "The default version of a schema", a.xSchema, []*huma.Param{group, name}},
		{"xregistry-meta", "/schemagroups/{group}/schemas/{schema}/meta", "What the versions of a schema have in common", a.xMeta, []*huma.Param{group, name}},
		{"xregistry-versions", "/schemagroups/{group}/schemas/{schema}/versions", "Versions of a schema by id", a.xVersions, []*huma.Param{group, name}},
		{"xregistry-version", "/schemagroups/{group}/schemas/{schema}/versions/{version}", "A version", a.xVersion, []*huma.Param{group, name, version}},
	} {
		control(a, huma.Operation{OperationID: r.id, Method: "GET", Path: "/xregistry" + r.path, Tags: []string{"xregistry"}, Summary: r.summary, Parameters: r.params,
			Responses: map[string]*huma.Response{"default": problemResponse(), "200": {Description: "as xRegistry says"}}},
			need{area: areaDefinitions, access: accessRead}, r.handle)
	}
}

// xEntity is what everything in xRegistry has.
type xEntity struct {
	Self  string `json:"self"`
	XID   string `json:"xid"`
	Epoch uint64 `json:"epoch"`
}

func xAt(ctx context.Context, xid string, epoch uint64) xEntity {
	r := requestOf(ctx)
	scheme := "http"
	if r.TLS != nil {
		scheme = "https"
	}
	return xEntity{strings.TrimSuffix(scheme+"://"+r.Host+"/xregistry"+xid, "/"), xid, epoch}
}

type xGroupDoc struct {
	ID string `json:"schemagroupid"`
	xEntity
	SchemasURL   string `json:"schemasurl"`
	SchemasCount int    `json:"schemascount"`
}

type xVersionDoc struct {
	SchemaID  string `json:"schemaid"`
	VersionID string `json:"versionid"`
	xEntity
	IsDefault   bool              `json:"isdefault"`
	Description string            `json:"description,omitempty"`
	Format      string            `json:"format"`
	ContentType string            `json:"contenttype"`
	CreatedAt   time.Time         `json:"createdat"`
	ModifiedAt  time.Time         `json:"modifiedat"`
	Deprecated  *struct{}         `json:"deprecated,omitempty"`
	State       string            `json:"state"`
	References  []xRefs           `json:"references,omitempty"`
	MetaURL     string            `json:"metaurl,omitempty"`
	VersionsURL string            `json:"versionsurl,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
}

type xRefs struct {
	Name string `json:"name"`
	XID  string `json:"xid"`
}

func (a *API) xRegistry(ctx context.Context, _ *struct{}) (*documentOut, error) {
	groups, err := a.groups(ctx, "")
	if err != nil {
		return nil, err
	}
	at := xAt(ctx, "/", 1)
	return jsonOut(http.StatusOK, 0, struct {
		Spec string `json:"specversion"`
		ID   string `json:"registryid"`
		xEntity
		GroupsURL   string `json:"schemagroupsurl"`
		GroupsCount int    `json:"schemagroupscount"`
	}{"1.0-rc4", "rialto", at, at.Self + "/schemagroups", len(groups)})
}

// groups counts the schemas of groups; of one if it is named.
func (a *API) groups(ctx context.Context, one string) (map[string]int, error) {
	out := map[string]int{}
	return out, a.eachSchema(ctx, one, func(s schema.Schema) error {
		out[s.Name.Group]++
		return nil
	})
}

func xGroupOf(ctx context.Context, id string, n int) xGroupDoc {
	at := xAt(ctx, "/schemagroups/"+id, 1)
	return xGroupDoc{id, at, at.Self + "/schemas", n}
}

func (a *API) xGroups(ctx context.Context, _ *struct{}) (*documentOut, error) {
	groups, err := a.groups(ctx, "")
	out := map[string]xGroupDoc{}
	for id, n := range groups {
		out[id] = xGroupOf(ctx, id, n)
	}
	if err != nil {
		return nil, err
	}
	return jsonOut(http.StatusOK, 0, out)
}

func (a *API) xGroup(ctx context.Context, _ *struct{}) (*documentOut, error) {
	id := strings.TrimSuffix(pathParam(requestOf(ctx), "group"), details)
	groups, err := a.groups(ctx, id)
	if err != nil {
		return nil, err
	}
	if groups[id] == 0 {
		return nil, fault.New(fault.NotFound, "there is no group %q", id)
	}
	return jsonOut(http.StatusOK, 0, xGroupOf(ctx, id, groups[id]))
}

func (a *API) xSchemas(ctx context.Context, _ *struct{}) (*documentOut, error) {
	out := map[string]xVersionDoc{}
	err := a.eachSchema(ctx, pathParam(requestOf(ctx), "group"), func(s schema.Schema) error {
		v, err := a.o.Schemas.Latest(ctx, s.Name)
		if err != nil && fault.KindOf(err) == fault.NotFound {
			return nil // nothing of it is in use yet
		}
		if err == nil {
			out[s.Name.Schema] = xResource(ctx, s, v)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return jsonOut(http.StatusOK, 0, out)
}

// xName is the schema of a path, without $details, and whether that was there.
func xName(ctx context.Context) (schema.Name, bool) {
	n := schemaName(ctx)
	name, bare := strings.CutSuffix(n.Schema, details)
	n.Schema = name
	return n, bare
}

// xResource is a schema by its default version.
func xResource(ctx context.Context, s schema.Schema, v schema.Version) xVersionDoc {
	d := xVersionOf(ctx, v, true)
	at := xAt(ctx, xidOf(v.Ref.Name), v.Revision)
	d.xEntity, d.MetaURL, d.VersionsURL = at, at.Self+"/meta", at.Self+"/versions"
	d.Description, d.Labels = s.Description, s.Labels
	return d
}

func xidOf(n schema.Name) string { return "/schemagroups/" + n.Group + "/schemas/" + n.Schema }

func xVersionOf(ctx context.Context, v schema.Version, isDefault bool) xVersionDoc {
	id := strconv.Itoa(v.Ref.Version)
	d := xVersionDoc{SchemaID: v.Ref.Schema, VersionID: id, xEntity: xAt(ctx, xidOf(v.Ref.Name)+"/versions/"+id, v.Revision), IsDefault: isDefault,
		Format: xFormat(v), ContentType: textTypes[v.Format], CreatedAt: v.CreatedAt, ModifiedAt: v.UpdatedAt, State: string(v.State)}
	if v.State == schema.Deprecated {
		d.Deprecated = &struct{}{}
	}
	for _, r := range v.References {
		d.References = append(d.References, xRefs{r.Name, xidOf(r.Ref().Name) + "/versions/" + strconv.Itoa(r.Version)})
	}
	return d
}

func xFormat(v schema.Version) string {
	switch v.Format {
	case schema.Avro:
		return "Avro/1.9"
	case schema.Protobuf:
		return "Protobuf/3"
	}
	return "JsonSchema/" + v.Dialect
}

func (a *API) xSchema(ctx context.Context, _ *struct{}) (*documentOut, error) {
	n, bare := xName(ctx)
	s, err := a.liveSchema(ctx, n)
	if err != nil {
		return nil, err
	}
	v, err := a.o.Schemas.Latest(ctx, n)
	if err != nil {
		return nil, err
	}
	return xAnswer(ctx, v, xResource(ctx, s, v), bare)
}

// xAnswer is the text with what is known of it in headers, or that alone.
func xAnswer(ctx context.Context, v schema.Version, d xVersionDoc, bare bool) (*documentOut, error) {
	if bare {
		return jsonOut(http.StatusOK, v.Revision, d)
	}
	h := replyOf(ctx).Header()
	for name, value := range map[string]string{"Schemaid": d.SchemaID, "Versionid": d.VersionID, "Self": d.Self, "Xid": d.XID,
		"Epoch": strconv.FormatUint(d.Epoch, 10), "Isdefault": strconv.FormatBool(d.IsDefault), "Format": d.Format} {
		h.Set("Xregistry-"+name, value)
	}
	return &documentOut{Status: http.StatusOK, ContentType: d.ContentType, ETag: etagOf(v.Revision), Body: []byte(v.Text)}, nil
}

func (a *API) xMeta(ctx context.Context, _ *struct{}) (*documentOut, error) {
	n, _ := xName(ctx)
	s, err := a.liveSchema(ctx, n)
	if err != nil {
		return nil, err
	}
	v, err := a.o.Schemas.Latest(ctx, n)
	if err != nil {
		return nil, err
	}
	at := xAt(ctx, xidOf(n)+"/meta", s.Revision)
	return jsonOut(http.StatusOK, s.Revision, struct {
		ID string `json:"schemaid"`
		xEntity
		Created       time.Time   `json:"createdat"`
		Modified      time.Time   `json:"modifiedat"`
		ReadOnly      bool        `json:"readonly"`
		Compatibility schema.Mode `json:"compatibility"`
		Default       string      `json:"defaultversionid"`
	}{n.Schema, at, s.CreatedAt, s.UpdatedAt, true, s.Compatibility, strconv.Itoa(v.Ref.Version)})
}

func (a *API) xVersions(ctx context.Context, _ *struct{}) (*documentOut, error) {
	n, _ := xName(ctx)
	if _, err := a.liveSchema(ctx, n); err != nil {
		return nil, err
	}
	all, err := a.inUse(ctx, n)
	if err != nil {
		return nil, err
	}
	latest, err := a.o.Schemas.Latest(ctx, n)
	if err != nil && fault.KindOf(err) != fault.NotFound {
		return nil, err
	}
	out := map[string]xVersionDoc{}
	for _, v := range all {
		out[strconv.Itoa(v.Ref.Version)] = xVersionOf(ctx, v, v.Ref == latest.Ref)
	}
	return jsonOut(http.StatusOK, 0, out)
}

func (a *API) xVersion(ctx context.Context, _ *struct{}) (*documentOut, error) {
	n, _ := xName(ctx)
	id, bare := strings.CutSuffix(pathParam(requestOf(ctx), "version"), details)
	at, err := a.versionNamed(ctx, n, id)
	if err != nil {
		return nil, err
	}
	v, err := a.o.Schemas.Store().Version(ctx, at)
	if err != nil {
		return nil, err
	}
	latest, err := a.o.Schemas.Latest(ctx, n)
	if err != nil && fault.KindOf(err) != fault.NotFound {
		return nil, err
	}
	return xAnswer(ctx, v, xVersionOf(ctx, v, v.Ref == latest.Ref), bare)
}
