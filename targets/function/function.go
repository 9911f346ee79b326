// SPDX-License-Identifier: Apache-2.0

// Package function is functions: the definitions of kind Function and their code (Library), and the target kind
// "function", which hands each event to one.
//
// A target's function is the version in force when an attempt is made. Whoever needs the same version again, as a transform
// does, names its digest.
//
// What a function replies is published before the delivery counts as made. Replies have ids that derive from the
// delivery's, which is the same on every attempt, so that within the bus's dedup window a retry is not a second reply. A
// reply carries how many functions stand before it (HopsExtension), and MaxHops bounds loops.
package function

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/targets"
)

// HopsExtension is the extension of a reply that says how many functions have made it, one after the other, and MaxHops how
// many that may be.
const (
	HopsExtension = "rialtohops"
	MaxHops       = 8
)

//go:embed config.schema.json
var configSchema []byte

// TargetKind returns the kind, whose targets call functions of l.
func TargetKind(l *Library) targets.Kind {
	return targets.Kind{
		Name: "function",
		Doc: "Hands each event to a function that runs in this process, and publishes the events it replies with. An event is delivered when the " +
			"function has ended without an error and its replies are stored.",
		Example:      "kind: Target\nname: shout\ntype: function\nconfig:\n  runtime: wasm\n  function: shout\n  replyBus: default\n",
		ConfigSchema: configSchema,
		New: func(cfg json.RawMessage, env targets.Env) (targets.Target, error) {
			t := &target{library: l, emit: env.Emit}
			if err := json.Unmarshal(cfg, &t.config); err != nil {
				return nil, fault.Invalidf("", "is not a config of a function target")
			}
			return t, nil
		},
	}
}

// config is the config of a target, in the form that config.schema.json describes.
type config struct {
	Function string `json:"function"`
	ReplyBus string `json:"replyBus"` // "" = the bus that the event is of
}

// target is a target. It is safe for concurrent use.
type target struct {
	config
	library *Library
	emit    func(ctx context.Context, bus string, evs ...event.Event) error
}

// Deliver is targets.Target.Deliver.
func (t *target) Deliver(ctx context.Context, d targets.Delivery) (targets.Result, error) {
	r, err := t.library.Call(ctx, t.Function, "", d.ID, d.Event)
	if err != nil {
		return targets.Result{}, err
	}
	if r.Data != nil {
		return targets.Result{}, refused("the function has returned data, which is for a transform; a target's function returns events, or nothing")
	}
	if len(r.Events) == 0 {
		return targets.Result{}, nil
	}
	hops := hopsOf(d.Event) + 1
	if hops > MaxHops {
		return targets.Result{}, refused(fmt.Sprintf("a reply would have gone through %d functions, and %d are allowed: is there a loop?", hops, MaxHops))
	}
	for i := range r.Events {
		t.complete(&r.Events[i], d.ID, i, hops)
	}
	bus := t.ReplyBus
	if bus == "" {
		bus = d.Bus
	}
	if err := t.emit(ctx, bus, r.Events...); err != nil {
		return targets.Result{}, replyError(ctx, bus, err)
	}
	return targets.Result{}, nil
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

// complete fills in what the function has not said of a reply.
func (t *target) complete(ev *event.Event, delivery string, n int, hops int32) {
	if ev.ID == "" {
		ev.ID = fmt.Sprintf("%s-%d", delivery, n)
	}
	if ev.Source == "" {
		ev.Source = "rialto/functions/" + t.Function
	}
	ev.Extensions = slices.DeleteFunc(slices.Clone(ev.Extensions), func(a event.Attribute) bool { return a.Name == HopsExtension })
	ev.Extensions = append(ev.Extensions, event.Attribute{Name: HopsExtension, Value: hops})
	slices.SortFunc(ev.Extensions, func(a, b event.Attribute) int { return strings.Compare(a.Name, b.Name) })
}

// hopsOf is how many functions an event has gone through, 0 to MaxHops, whatever it was published with. Another value than a
// number counts as none.
func hopsOf(ev *event.Event) int32 {
	for _, a := range ev.Extensions {
		if n, ok := a.Value.(int32); ok && a.Name == HopsExtension {
			return min(max(n, 0), MaxHops)
		}
	}
	return 0
}
