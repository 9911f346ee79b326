// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humachi"

	"github.com/rialto-bridge/rialto/internal/fault"
)

// The control plane goes through huma, which reads parameters, writes answers and describes both. This file fits it
// into the table of routes: the adapter registers huma's routes as handlers like all others, so that rights, metrics and
// request ids are the same, and a transformer replaces every error, huma's own ones too, by the problem that
// API.problem makes of it.

// openControlPlane makes the huma API.
func (a *API) openControlPlane() {
	registry := huma.NewMapRegistry("#/components/schemas/", huma.DefaultSchemaNamer)
	a.huma = huma.NewAPI(huma.Config{
		OpenAPI:                      newSpec(a.o.Version, registry),
		Formats:                      huma.DefaultFormats,
		DefaultFormat:                "application/json",
		RejectUnknownQueryParameters: true,
		Transformers:                 []huma.Transformer{a.transform},
	}, adapter{a})
}

// adapter registers huma's operations in the table of routes.
type adapter struct{ a *API }

// needKey is where an operation's metadata holds the right it needs.
const needKey = "rialto-need"

// Handle is huma.Adapter.Handle.
func (d adapter) Handle(op *huma.Operation, serve func(huma.Context)) {
	n, ok := op.Metadata[needKey].(need)
	if !ok {
		panic("api: operation " + op.OperationID + " does not say which right it needs")
	}
	d.a.add(op.Method, op.Path, n, func(w *reply, r *http.Request) error {
		r = r.WithContext(controlContext(w, r))
		serve(&exchange{humaContext: humachi.NewContext(op, r, w), r: r, w: w})
		return nil
	})
}

// ServeHTTP is huma.Adapter.ServeHTTP.
func (d adapter) ServeHTTP(w http.ResponseWriter, r *http.Request) { d.a.ServeHTTP(w, r) }

// controlContext is the context in which handlers of the control plane work for a request.
func controlContext(w *reply, r *http.Request) context.Context {
	return context.WithValue(context.WithValue(authored(r.Context(), w), requestKey{}, r), replyKey{}, w)
}

type requestKey struct{}

// requestOf returns the request that a handler of the control plane works for.
func requestOf(ctx context.Context) *http.Request {
	return ctx.Value(requestKey{}).(*http.Request) // the adapter put it there
}

type replyKey struct{}

// replyOf returns the reply that goes with requestOf.
func replyOf(ctx context.Context) *reply {
	return ctx.Value(replyKey{}).(*reply) // the adapter put it there
}

type humaContext huma.Context

// exchange is huma's view of a request, with the status that a problem has set.
type exchange struct {
	humaContext
	r       *http.Request
	w       *reply
	problem *Problem
}

// Unwrap is for humachi.Unwrap.
func (x *exchange) Unwrap() huma.Context { return x.humaContext }

// SetStatus is huma.Context.SetStatus. A problem has its own idea of the status.
func (x *exchange) SetStatus(code int) {
	if x.problem != nil {
		code = x.problem.Status
	}
	x.humaContext.SetStatus(code)
}

// failure carries a handler's error through huma to transform.
type failure struct{ err error }

func (f *failure) Error() string { return f.err.Error() }

// GetStatus is huma.StatusError.GetStatus; transform decides.
func (f *failure) GetStatus() int { return http.StatusInternalServerError }

// Unwrap returns the handler's error.
func (f *failure) Unwrap() error { return f.err }

// transform replaces errors by problems.
func (a *API) transform(ctx huma.Context, _ string, v any) (any, error) {
	var err error
	switch v := v.(type) {
	case *failure:
		err = v.err
	case *huma.ErrorModel:
		err = v
	default:
		return v, nil
	}
	x, ok := ctx.(*exchange)
	if !ok { // every context of this API is made by the adapter
		return nil, fault.New(fault.Internal, "not our exchange")
	}
	x.problem = a.problem(x.w, x.r, err)
	x.SetHeader("Content-Type", contentProblem[0])
	return x.problem, nil
}

// control registers an operation of the control plane.
func control[I, O any](a *API, op huma.Operation, n need, handle func(context.Context, *I) (*O, error)) {
	op.Metadata = map[string]any{needKey: n}
	if op.MaxBodyBytes == 0 {
		op.MaxBodyBytes = maxDocument + 1 // huma refuses a body that fills the limit
	}
	op.SkipValidateBody = true // the kinds check their documents themselves, and say more
	op.Security = security(n)
	if op.Responses["default"] == nil {
		if op.Responses == nil {
			op.Responses = map[string]*huma.Response{}
		}
		op.Responses["default"] = problemResponse()
	}
	body := op.RequestBody // huma describes a raw body as bytes, whatever stands here
	huma.Register(a.huma, op, func(ctx context.Context, in *I) (*O, error) {
		out, err := handle(ctx, in)
		if err != nil {
			return nil, &failure{err}
		}
		return out, nil
	})
	if body != nil {
		described(a.huma.OpenAPI().Paths[op.Path], op.Method).RequestBody = body
	}
}

// described returns the description of an operation.
func described(p *huma.PathItem, method string) *huma.Operation {
	if method == http.MethodPost {
		return p.Post
	}
	return p.Put
}
