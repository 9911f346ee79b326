// SPDX-License-Identifier: Apache-2.0

// Package bus is the target kind "bus": each event is published on another bus of this bridge.
//
// An event is delivered when the other bus has stored it. It keeps its source and id, so that an attempt that is repeated
// within the dedup window of that bus stores nothing twice, and so does an event that comes there by two rules. What the
// schema policy of the other bus refuses is a dead letter. Loops end: each event carries how many targets it has gone
// through (targets.HopsExtension), and no target publishes it on the bus that it is on.
package bus

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/targets"
)

//go:embed config.schema.json
var configSchema []byte

// Kind returns the kind.
func Kind() targets.Kind {
	return targets.Kind{
		Name: "bus",
		Doc: "Publishes each event on another bus of this bridge, as it is or as the rule's transform makes it, with its source and id. An event is " +
			"delivered when the other bus has stored it.",
		Example:      "kind: Target\nname: to-devices\ntype: bus\nconfig:\n  bus: devices\n",
		ConfigSchema: configSchema,
		New: func(cfg json.RawMessage, env targets.Env) (targets.Target, error) {
			t := &target{emit: env.Emit}
			if err := json.Unmarshal(cfg, &t.config); err != nil {
				return nil, fault.Invalidf("", "is not a config of a bus target")
			}
			return t, nil
		},
	}
}

// config is the config of a target, in the form that config.schema.json describes.
type config struct {
	Bus     string `json:"bus"`
	MaxHops int    `json:"maxHops"`
}

// target is a target. It is safe for concurrent use.
type target struct {
	config
	emit func(ctx context.Context, bus string, evs ...event.Event) error
}

// Deliver publishes an event. It implements targets.Target.
func (t *target) Deliver(ctx context.Context, d targets.Delivery) (targets.Result, error) {
	if d.Bus == t.Bus {
		return targets.Result{}, refused(fmt.Errorf("the event is on the bus %s: to be sent there again would be a loop", t.Bus))
	}
	hops, err := targets.NextHop(d.Event, t.MaxHops)
	if err != nil {
		return targets.Result{}, refused(err)
	}
	ev := *d.Event
	ev.Extensions = targets.WithExtensions(ev.Extensions, event.Attribute{Name: targets.HopsExtension, Value: hops})
	if err := t.emit(ctx, t.Bus, ev); err != nil {
		return targets.Result{}, t.failure(ctx, err)
	}
	return targets.Result{}, nil
}

func refused(err error) *targets.Error {
	return &targets.Error{Reason: targets.ReasonStatus, Permanent: true, Err: err}
}

// failure is what a refusal of the bus is to the lane: what is wrong with the event will be wrong again, the rest may pass.
func (t *target) failure(ctx context.Context, err error) *targets.Error {
	e := &targets.Error{Reason: targets.ReasonStatus, Err: fmt.Errorf("bus %s: %w", t.Bus, err)}
	var f *fault.Error
	switch isFault := errors.As(err, &f); {
	case ctx.Err() != nil:
		e.Reason = targets.ReasonOf(ctx.Err())
	case !isFault || f.Kind == fault.Internal:
		e.Reason = targets.ReasonInternal
	case f.Kind == fault.TooLarge:
		e.Reason, e.Permanent = targets.ReasonTooLarge, true
	case f.Kind == fault.Invalid || f.Kind == fault.Unfit:
		e.Permanent = true
	default:
		e.RetryAfter = f.RetryAfter
	}
	return e
}
