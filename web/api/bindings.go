// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"net/http"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/rialto-bridge/rialto/schema"
)

// addBindingRoutes adds what is made of the versions of schemas for those who write code.
func (a *API) addBindingRoutes() {
	read := need{area: areaDefinitions, access: accessRead}
	params := []*huma.Param{pathParamDoc("group", "name of the group"), pathParamDoc("schema", "name of the schema"), pathParamDoc("version", "number of the version, or latest")}
	answer := func(contentType string) map[string]*huma.Response {
		return map[string]*huma.Response{"default": problemResponse(), "200": {Description: "OK", Content: map[string]*huma.MediaType{contentType: {}}}}
	}
	control(a, huma.Operation{OperationID: "get-schema-example", Method: http.MethodGet, Path: versionPath + "/example", Tags: []string{"schemas"},
		Summary: "Get a document that is valid for a version", Parameters: params, Responses: answer("application/json")}, read, a.getExample)
	lang := pathParamDoc("lang", strings.Join(schema.Languages(), ", "))
	control(a, huma.Operation{OperationID: "get-schema-bindings", Method: http.MethodGet, Path: versionPath + "/bindings/{lang}", Tags: []string{"schemas"},
		Summary: "Get code for the documents of a version", Parameters: append(params[:3:3], lang), Responses: answer("text/plain")}, read, a.getBindings)
}

func (a *API) getExample(ctx context.Context, _ *struct{}) (*documentOut, error) {
	ref, err := a.schemaRef(ctx)
	if err != nil {
		return nil, err
	}
	doc, err := a.o.Schemas.Example(ctx, ref)
	if err != nil {
		return nil, err
	}
	return &documentOut{Status: http.StatusOK, ContentType: "application/json", Body: doc}, nil
}

func (a *API) getBindings(ctx context.Context, _ *struct{}) (*documentOut, error) {
	ref, err := a.schemaRef(ctx)
	if err != nil {
		return nil, err
	}
	code, err := a.o.Schemas.Bindings(ctx, ref, pathParam(requestOf(ctx), "lang"))
	if err != nil {
		return nil, err
	}
	return &documentOut{Status: http.StatusOK, ContentType: "text/plain; charset=utf-8", Body: code.Source}, nil
}
