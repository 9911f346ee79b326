// SPDX-License-Identifier: Apache-2.0

// Package function is functions: the definitions of kind Function and their code (Library), and the target kind
// "function", which hands each event to one, in this process (runtime wasm) or elsewhere (runtime http).
//
// A target's function of runtime wasm is the version in force when an attempt is made. Whoever needs the same version again,
// as a transform does, names its digest.
//
// What a function replies is published before the delivery counts as made. Replies have ids that derive from the
// delivery's, which is the same on every attempt, so that within the bus's dedup window a retry is not a second reply. A
// reply carries the id of its cause, and how many targets stand before it (targets.HopsExtension), which bounds loops.
package function

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/targets"
	"github.com/rialto-bridge/rialto/targets/outbound"
)

//go:embed config.schema.json
var configSchema []byte

// The runtimes.
const (
	runtimeWASM = "wasm"
	runtimeHTTP = "http"
)

// TargetKind returns the kind, whose targets call functions of l, or such as are reached by HTTP. checkURL says, when a definition
// is written, why a URL cannot be called; it is the egress guard's CheckURL.
func TargetKind(l *Library, checkURL func(url string) error) targets.Kind {
	return targets.Kind{
		Name: "function",
		Doc: "Hands each event to a function, and publishes the events it replies with: one that runs in this process (runtime wasm), or one that is reached by " +
			"HTTP (runtime http), with presets for AWS Lambda, Alibaba Function Compute, OpenFaaS and Knative. An event is delivered when the function has ended " +
			"without an error and its replies are stored.",
		Example: "kind: Target\nname: resize\ntype: function\nconfig:\n  runtime: http\n  preset: aws-lambda\n  function: resize\n  qualifier: live\n" +
			"  auth: {type: awsSigV4, region: eu-central-1, service: lambda, accessKeyId: {ref: aws-id}, secretAccessKey: {ref: aws-key}}\n  replyBus: default\n",
		ConfigSchema: outbound.ConfigSchema(configSchema),
		Check: func(cfg json.RawMessage) error {
			r := parse(cfg)
			if r.call.url != nil {
				r.CheckURLs(map[string]string{"/url": r.call.url.String()}, checkURL)
			}
			return fault.Collect(r.Details())
		},
		New: func(cfg json.RawMessage, env targets.Env) (targets.Target, error) {
			r := parse(cfg)
			if err := fault.Collect(r.Details()); err != nil {
				return nil, err
			}
			replies := replies{bus: r.ReplyBus, maxHops: r.MaxHops, ownIDs: r.ReplyIDs == replyIDsOwn, emit: env.Emit}
			if r.Runtime == runtimeHTTP {
				return newRemote(r, replies, env), nil
			}
			return &target{library: l, function: r.Function, replies: replies}, nil
		},
	}
}

// target is a target of runtime wasm. It is safe for concurrent use.
type target struct {
	library  *Library
	function string
	replies  replies
}

// Deliver is targets.Target.Deliver.
func (t *target) Deliver(ctx context.Context, d targets.Delivery) (targets.Result, error) {
	r, err := t.library.Call(ctx, t.function, "", d.ID, d.Event)
	if err != nil {
		return targets.Result{}, err
	}
	if r.Data != nil {
		return targets.Result{}, refused("the function has returned data, which is for a transform; a target's function returns events, or nothing")
	}
	return targets.Result{}, t.replies.publish(ctx, d, "rialto/functions/"+t.function, r.Events)
}

// replies is what becomes of the events that a function replies with.
type replies struct {
	bus     string // "" = the bus that the event is of
	maxHops int    // 0 = the default
	ownIDs  bool   // an id that the function gives is kept
	emit    func(ctx context.Context, bus string, evs ...event.Event) error
}

// publish publishes the replies to a delivery, and blocks until they are stored. It changes evs. source is that of a reply that says
// none.
func (r *replies) publish(ctx context.Context, d targets.Delivery, source string, evs []event.Event) error {
	if len(evs) == 0 {
		return nil
	}
	hops, err := targets.NextHop(d.Event, r.maxHops)
	if err != nil {
		return refused("reply: " + err.Error())
	}
	for i := range evs {
		ev := &evs[i]
		if ev.ID == "" || !r.ownIDs {
			ev.ID = fmt.Sprintf("%s-%d", d.ID, i)
		}
		if ev.Source == "" {
			ev.Source = source
		}
		ev.Extensions = targets.WithExtensions(ev.Extensions, event.Attribute{Name: targets.HopsExtension, Value: hops},
			event.Attribute{Name: targets.CausationExtension, Value: d.Event.ID})
	}
	bus := r.bus
	if bus == "" {
		bus = d.Bus
	}
	if err := r.emit(ctx, bus, evs...); err != nil {
		return replyError(ctx, bus, err)
	}
	return nil
}

func refused(why string) error {
	return &targets.Error{Reason: targets.ReasonFunction, Permanent: true, Err: errors.New(why)}
}

// replyError says why replies could not be published. What is wrong with the events themselves stays so.
func replyError(ctx context.Context, bus string, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var f *fault.Error
	if !errors.As(err, &f) {
		return &targets.Error{Reason: targets.ReasonInternal, Err: err}
	}
	permanent := f.Kind == fault.Invalid || f.Kind == fault.TooLarge || f.Kind == fault.Unfit
	return &targets.Error{Reason: targets.ReasonFunction, Permanent: permanent, Err: fmt.Errorf("reply to bus %s: %w", bus, err)}
}
