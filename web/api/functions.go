// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/rialto-bridge/rialto/bridge"
	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/store"
	"github.com/rialto-bridge/rialto/rules"
	"github.com/rialto-bridge/rialto/targets"
	"github.com/rialto-bridge/rialto/targets/wasm"
)

const kindFunction = "Function"

var contentCode = []string{"application/wasm"}

// Functions is what the API needs of the functions of this process.
type Functions interface {
	// Trial runs functions for a test of a rule until ctx is done, on instances of its own; end comes after the last call.
	Trial(ctx context.Context, delivery string) (call rules.CallFunction, end func())
	// Upload keeps code and returns the document of a function with it; old is the one that is stored, nil = none.
	Upload(ctx context.Context, name string, code, old []byte) ([]byte, error)
	// Code returns the code of a version; "" = the one in force.
	Code(ctx context.Context, name, digest string) ([]byte, error)
	// Call hands an event to a version; "" = the one in force. The error is a *targets.Error.
	Call(ctx context.Context, name, digest, delivery string, ev *event.Event) (wasm.Result, error)
}

func (a *API) addFunctionRoutes() {
	const function = "/v1/functions/{name}"
	write := need{area: areaDefinitions, access: accessWrite}
	a.add("PUT", function+"/code", write, a.putCode)
	a.add("GET", function+"/code", need{area: areaDefinitions, access: accessRead}, a.getCode)
	a.add("POST", function+":test", write, a.testFunction)
}

// putCode uploads code, and puts it in force for a function, which is made if there is none.
func (a *API) putCode(w *reply, r *http.Request) error {
	if _, err := noQuery(r); err != nil {
		return err
	}
	if media, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";"); strings.TrimSpace(media) != contentCode[0] {
		return fault.New(fault.Unsupported, "code is sent as %s", contentCode[0])
	}
	sk := store.Key{Kind: kindFunction, Name: pathParam(r, "name")}
	if why := bridge.CheckName(sk.Name); why != "" {
		return fault.Invalidf("/name", "%s", why)
	}
	code, err := a.readBody(r, nil, wasm.MaxCode)
	if err != nil {
		return err
	}
	ctx := controlContext(w, r)
	for range maxTries {
		old, err := current(ctx, a.o.Store, sk)
		if err != nil {
			return err
		}
		if err := precondition(r.Header.Get("If-Match"), r.Header.Get("If-None-Match"), old); err != nil {
			return err
		}
		out, err := a.putVersion(ctx, sk, code, old)
		var moved *httpError
		if errors.As(err, &moved) && moved.kind == problemPrecondition {
			continue // its settings were changed meanwhile: look again
		}
		if err != nil {
			return err
		}
		w.Header().Set("ETag", out.ETag)
		if out.Location != "" {
			w.Header().Set("Location", out.Location)
		}
		return w.send(out.Status, contentJSON, out.Body)
	}
	return fault.New(fault.Conflict, "%s is being changed by others all the time", sk)
}

// putVersion writes the document of a function with new code, if it still is what it was.
func (a *API) putVersion(ctx context.Context, sk store.Key, code []byte, old *store.Document) (*documentOut, error) {
	in, was := &putIn{IfNoneMatch: "*"}, []byte(nil)
	if old != nil {
		in, was = &putIn{IfMatch: etagOf(old.Revision)}, old.Raw
	}
	doc, err := a.o.Functions.Upload(ctx, sk.Name, code, was)
	if err != nil {
		return nil, err
	}
	return a.writeDocument(ctx, a.kind(kindFunction), sk, doc, in)
}

// getCode answers the code of a version.
func (a *API) getCode(w *reply, r *http.Request) error {
	q, err := readQuery(r, "digest")
	if err != nil {
		return err
	}
	digest := q.text("digest")
	if err := q.err(); err != nil {
		return err
	}
	code, err := a.o.Functions.Code(r.Context(), pathParam(r, "name"), digest)
	if err != nil {
		return err
	}
	return w.send(http.StatusOK, contentCode, code)
}

// functionTest is the answer of a test: what the function has returned, or its error.
type functionTest struct {
	Events          []json.RawMessage `json:"events,omitempty"`
	Data            json.RawMessage   `json:"data,omitempty"`
	DataBase64      []byte            `json:"data_base64,omitempty"`
	DataContentType string            `json:"datacontenttype,omitempty"`
	Error           string            `json:"error,omitempty"`
	Reason          targets.Reason    `json:"reason,omitempty"`
	Retry           bool              `json:"retry,omitempty"` // the error may go away
	Took            string            `json:"took"`
}

// testFunction calls a function. What it replies is answered and not published.
func (a *API) testFunction(w *reply, r *http.Request) error {
	if _, err := noQuery(r); err != nil {
		return err
	}
	if err := checkContentType(r.Header.Get("Content-Type")); err != nil {
		return err
	}
	body, err := a.readBody(r, nil, maxDocument+a.maxBody(event.Structured))
	if err != nil {
		return err
	}
	var code string
	var inline json.RawMessage
	if err := readMembers(body, map[string]any{"event": &inline, "code": &code}); err != nil {
		return err
	}
	if inline == nil {
		return fault.Invalidf("/event", "is missing")
	}
	ev, err := event.ParseJSON(inline, a.o.Limits)
	if err != nil {
		return fault.Invalidf("/event", "%s", err)
	}
	name := pathParam(r, "name")
	if _, err := a.o.Store.Get(r.Context(), store.Key{Kind: kindFunction, Name: name}); err != nil {
		return err
	}
	if code != "" { // one that the function has, since a library keeps what it has called
		if _, err := a.o.Functions.Code(r.Context(), name, code); err != nil {
			return err
		}
	}
	began := a.o.Now()
	result, err := a.o.Functions.Call(r.Context(), name, code, draftName, &ev)
	return w.answer(testedFunction(result, err, a.o.Now().Sub(began)))
}

func testedFunction(result wasm.Result, err error, took time.Duration) functionTest {
	out := functionTest{Took: took.Round(time.Microsecond).String()}
	var te *targets.Error
	switch {
	case errors.As(err, &te):
		out.Error, out.Reason, out.Retry = te.Error(), te.Reason, !te.Permanent
		return out
	case err != nil:
		out.Error, out.Reason = err.Error(), targets.ReasonOf(err)
		return out
	}
	out.DataContentType = result.DataContentType
	switch {
	case result.Data == nil:
	case event.IsJSON(result.DataContentType) && json.Valid(result.Data):
		out.Data = result.Data
	default:
		out.DataBase64 = result.Data
	}
	for i := range result.Events {
		out.Events = append(out.Events, event.AppendJSON(nil, &result.Events[i]))
	}
	return out
}

// functionOperations describes the routes.
func functionOperations() map[string]*huma.Operation {
	name := pathParamDoc("name", "of the function")
	code := map[string]*huma.MediaType{contentCode[0]: {Schema: &huma.Schema{Type: "string", Format: "binary"}}}
	result := object([]string{"took"}, map[string]*huma.Schema{
		"events": {Type: "array", Items: &huma.Schema{Type: "object"}, Description: "replies, in the JSON format of CloudEvents"},
		"data":   {Description: "JSON"}, "data_base64": {Type: "string", ContentEncoding: "base64"}, "datacontenttype": text(""),
		"error": text("why there is no result"), "reason": text("as of a delivery"), "retry": {Type: "boolean", Description: "the error may go away"},
		"took": text("such as 1.2ms")})
	answer := func(description, media string, s *huma.Schema) map[string]*huma.Response {
		return map[string]*huma.Response{"200": {Description: description, Content: map[string]*huma.MediaType{media: {Schema: s}}}}
	}
	return map[string]*huma.Operation{
		"PUT /v1/functions/{name}/code": {
			OperationID: "put-function-code", Tags: []string{"functions"}, Summary: "Upload code and put it in force",
			Description: "Makes the function if there is none. The code is a WebAssembly module of at most 16 MiB.",
			Parameters:  []*huma.Param{name}, RequestBody: &huma.RequestBody{Required: true, Content: code},
			Responses: map[string]*huma.Response{
				"200": {Description: "The function", Content: jsonContent(ref(kindFunction))},
				"201": {Description: "The function, which is new", Content: jsonContent(ref(kindFunction))}},
		},
		"GET /v1/functions/{name}/code": {
			OperationID: "get-function-code", Tags: []string{"functions"}, Summary: "Get the code of a function",
			Parameters: []*huma.Param{name, queryDoc("digest", "of a version that is kept; default: the one in force", nil)},
			Responses:  answer("The module", contentCode[0], &huma.Schema{Type: "string", Format: "binary"}),
		},
		"POST /v1/functions/{name}:test": {
			OperationID: "test-function", Tags: []string{"functions"}, Summary: "Try a function on an event",
			Description: "What it replies is answered and not published. A function that fails is answered with 200 and its error.",
			Parameters:  []*huma.Param{name},
			RequestBody: &huma.RequestBody{Required: true, Content: jsonContent(object([]string{"event"}, map[string]*huma.Schema{
				"event": {Type: "object", Description: "in the JSON format of CloudEvents"}, "code": text("digest of a version that is kept; default: the one in force")}))},
			Responses: answer("What came of it", "application/json", result),
		},
	}
}
