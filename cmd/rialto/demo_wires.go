// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"time"
)

// wire is one rule of the demo and the webhook it leads to, with its pattern a second time in Go.
type wire struct {
	bus, rule, endpoint string
	pattern             map[string]any
	transform           map[string]any
	mode                string
	retry               []string
	picks               func(e eventHead) bool
}

const (
	readingType = "io.rialto.mqtt.publish"
	orderType   = "com.acme.order.placed"

	opsWebhook  = "ops-webhook"
	maintenance = "maintenance"
	archive     = "archive"

	tooWarm = 8.0 // degrees Celsius
)

// demoBuses are the two buses that always exist.
var demoBuses = []string{"devices", "default"}

// wires are all rules and targets of cold-chain. It is never changed.
var wires = []wire{
	{
		bus: "devices", rule: "too-warm", endpoint: opsWebhook, mode: "binary",
		pattern: map[string]any{"type": []any{readingType}, "data": map[string]any{"temperature": []any{map[string]any{"numeric": []any{">", tooWarm}}}}},
		transform: map[string]any{"template": map[string]any{"text": "Box ${data.box} is at ${data.temperature} C", "box": "${data.box}",
			"temperature": "${data.temperature}", "at": "${time}"}},
		retry: []string{"1s", "2s", "5s"},
		picks: func(e eventHead) bool { return e.Type == readingType && anyOf(e.Data, "temperature", warm) },
	},
	{
		bus: "devices", rule: "door-open", endpoint: maintenance, mode: "binary",
		pattern:   map[string]any{"type": []any{readingType}, "data": map[string]any{"door": []any{"open"}}},
		transform: map[string]any{"template": "Door of box ${data.box} is open, ${data.temperature} C inside"},
		// Short waits, many of them: the backlog of an outage drains in a second, and nothing dies of a long one.
		retry: []string{"1s"},
		picks: func(e eventHead) bool {
			return e.Type == readingType && anyOf(e.Data, "door", func(v any) bool { return v == "open" })
		},
	},
	{
		bus: "default", rule: "orders", endpoint: archive, mode: "structured",
		pattern: map[string]any{"type": []any{orderType}},
		retry:   []string{"1s", "2s", "5s"},
		picks:   func(e eventHead) bool { return e.Type == orderType },
	},
}

func warm(v any) bool {
	f, ok := v.(float64)
	return ok && f > tooWarm
}

// anyOf reports whether a field of a JSON object, or a member of it if it is an array, satisfies ok.
func anyOf(data json.RawMessage, field string, ok func(any) bool) bool {
	var object map[string]any
	if json.Unmarshal(data, &object) != nil {
		return false
	}
	values, isArray := object[field].([]any)
	if !isArray {
		values = []any{object[field]}
	}
	for _, v := range values {
		if ok(v) {
			return true
		}
	}
	return false
}

// attemptsOfDemo are enough for an outage of minutes.
const attemptsOfDemo = 500

// define writes the targets, the rules and the device through the API, as every user would.
func define(ctx context.Context, cl *client, hooks, secret, user, password string) error {
	put := func(path string, doc map[string]any) error {
		body, err := json.Marshal(doc)
		if err != nil {
			return err
		}
		_, err = cl.do(ctx, request{Method: http.MethodPut, Path: path, Body: body, Header: http.Header{"Content-Type": {"application/json"}}})
		if err != nil {
			return fmt.Errorf("define %s: %w", path, err)
		}
		return nil
	}
	for _, w := range wires {
		err := put("/v1/targets/"+w.endpoint, map[string]any{"kind": "Target", "name": w.endpoint, "type": "webhook",
			"config":   map[string]any{"url": hooks + "/" + w.endpoint, "mode": w.mode, "secret": map[string]any{"value": secret}},
			"delivery": map[string]any{"timeout": "5s", "breaker": map[string]any{"open": "1s", "maxOpen": "2s"}, "retry": map[string]any{"schedule": w.retry, "maxAttempts": attemptsOfDemo}}})
		if err != nil {
			return err
		}
	}
	for _, w := range wires {
		target := map[string]any{"target": w.endpoint}
		if w.transform != nil {
			target["transform"] = w.transform
		}
		err := put("/v1/buses/"+url.PathEscape(w.bus)+"/rules/"+w.rule, map[string]any{"kind": "Rule", "name": w.rule, "bus": w.bus,
			"labels": map[string]any{"demo": "cold-chain"}, "pattern": w.pattern, "targets": []any{target}})
		if err != nil {
			return err
		}
	}
	return put("/v1/devices/"+user, map[string]any{"kind": "Device", "name": user, "password": map[string]any{"value": password},
		"clientIds": []string{"box-*"}})
}

// inForce sends an event to each bus until one of them met all our rules, so that what follows is certain to meet them.
func inForce(ctx context.Context, cl *client, shop *shop) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 10*time.Second, fmt.Errorf("the rules did not come into force"))
	defer cancel()
	for _, bus := range demoBuses {
		for {
			id, err := shop.send(ctx, bus, "com.acme.demo.opened", nil)
			if err != nil {
				return err
			}
			met, err := meets(ctx, cl, bus, id)
			if err != nil {
				return err
			}
			if met {
				break
			}
			if !wait(ctx, 100*time.Millisecond) {
				return context.Cause(ctx)
			}
		}
	}
	return nil
}

// meets waits until an event is routed and reports whether all our rules of its bus were asked.
func meets(ctx context.Context, cl *client, bus, id string) (bool, error) {
	for {
		story, err := cl.story(ctx, bus, id)
		if err != nil {
			return false, err
		}
		if story.Journey.State == "pending" {
			if !wait(ctx, 20*time.Millisecond) {
				return false, context.Cause(ctx)
			}
			continue
		}
		asked := make(map[string]bool)
		for _, r := range story.Journey.Rules {
			asked[r.Rule] = true
		}
		for _, w := range wires {
			if w.bus == bus && !asked[w.rule] {
				return false, nil
			}
		}
		return true, nil
	}
}

// story reads an event with its journey.
func (cl *client) story(ctx context.Context, bus, id string) (eventStory, error) {
	var s eventStory
	err := cl.get(ctx, "/v1/buses/"+url.PathEscape(bus)+"/events/"+escapeSegment(id), nil, &s)
	return s, err
}
