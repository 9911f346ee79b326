// SPDX-License-Identifier: Apache-2.0

// Package device is the target kind "device": each event becomes a command to a device over MQTT.
//
// An event is delivered when its command is stored: from then on it waits for its device, whatever becomes of the target.
// What becomes of the command is an event of its own. The command's id derives from the delivery's, which is the same on
// every attempt, so that a retry is not a second command.
package device

import (
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/targets"
)

//go:embed config.schema.json
var configSchema []byte

// Kind returns the kind.
func Kind() targets.Kind {
	return targets.Kind{
		Name: "device",
		Doc: "Sends each event's data, or the whole event, as a command to a device over MQTT. An event is delivered when its command is stored; the command then " +
			"waits for its device until it expires.",
		Example: "kind: Target\nname: boxes\ntype: device\nconfig:\n  device: \"box-${data.box}\"\n  topic: \"cmd/${device}/defrost\"\n" +
			"  expiry: 10m\n",
		ConfigSchema: configSchema,
		Check: func(cfg json.RawMessage) error {
			_, err := parse(cfg)
			return err
		},
		New: func(cfg json.RawMessage, env targets.Env) (targets.Target, error) {
			t, err := parse(cfg)
			if err != nil {
				return nil, err
			}
			t.downlink = env.Downlink
			return t, nil
		},
	}
}

// config is the config of a target, in the form that config.schema.json describes.
type config struct {
	Device   string   `json:"device"`
	Topic    string   `json:"topic"`
	QoS      *byte    `json:"qos"`
	Expiry   string   `json:"expiry"`
	Encoding encoding `json:"encoding"`
}

// encoding is what of an event a command carries.
type encoding string

const (
	encodeData       encoding = "data"       // and the content type
	encodeBinary     encoding = "binary"     // of the MQTT binding of CloudEvents
	encodeStructured encoding = "structured" // of the same
)

// target is a target. It is safe for concurrent use.
type target struct {
	downlink      targets.Downlink
	device, topic text
	qos           byte
	expiry        time.Duration
	encoding      encoding
}

func parse(cfg json.RawMessage) (*target, error) {
	var c config
	if err := json.Unmarshal(cfg, &c); err != nil {
		return nil, fault.Invalidf("", "is not a config of a device target")
	}
	t := &target{qos: 1, encoding: cmp.Or(c.Encoding, encodeData)}
	if c.QoS != nil {
		t.qos = *c.QoS
	}
	var bad []fault.Detail
	complain := func(pointer string, err error) {
		if err != nil {
			bad = append(bad, fault.Detail{Pointer: pointer, Detail: err.Error()})
		}
	}
	var err error
	t.device, err = parseText(c.Device, false)
	complain("/device", err)
	t.topic, err = parseText(c.Topic, true)
	complain("/topic", err)
	if c.Expiry != "" {
		if t.expiry, err = time.ParseDuration(c.Expiry); err != nil || t.expiry < time.Second {
			complain("/expiry", errors.New("must be a duration of a second at least, such as 90s or 12h"))
		}
	}
	return t, fault.Collect(bad)
}

// Deliver makes a command of an event. It implements targets.Target.
func (t *target) Deliver(ctx context.Context, d targets.Delivery) (targets.Result, error) {
	name, err := t.device.render(d.Event, "")
	if err == nil && name == "" {
		err = errors.New("device: is empty")
	}
	if err != nil {
		return targets.Result{}, &targets.Error{Reason: targets.ReasonTransform, Permanent: true, Err: err}
	}
	topic, err := t.topic.render(d.Event, name)
	if err != nil {
		return targets.Result{}, &targets.Error{Reason: targets.ReasonTransform, Permanent: true, Err: err}
	}
	c := targets.Command{ID: d.ID, Device: name, Topic: topic, QoS: t.qos, Expiry: t.expiry, By: "target " + d.Target}
	if err := t.encode(&c, d.Event); err != nil {
		return targets.Result{}, &targets.Error{Reason: targets.ReasonTransform, Permanent: true, Err: err}
	}
	if err := t.downlink.Command(ctx, c); err != nil {
		return targets.Result{}, failure(ctx, err)
	}
	return targets.Result{}, nil
}

// encode puts an event into a command. What version the device speaks is not known before it is connected: the properties are
// those of MQTT 5, and the payload is all that 3.1.1 gets.
func (t *target) encode(c *targets.Command, e *event.Event) error {
	if t.encoding == encodeData {
		c.Payload, c.ContentType = e.Data, e.DataContentType
		c.UTF8 = event.IsJSON(e.DataContentType) && utf8.Valid(e.Data)
		return nil
	}
	m, err := event.ToMQTT(e, 5, t.encoding == encodeStructured)
	if err != nil {
		return err
	}
	c.Payload, c.ContentType, c.UTF8, c.UserProperties = m.Payload, m.ContentType, m.PayloadUTF8, m.UserProperties
	return nil
}

// failure is what a refusal of a command is to the lane: what is wrong with the command will be wrong again, the rest may pass.
func failure(ctx context.Context, err error) *targets.Error {
	e := &targets.Error{Reason: targets.ReasonStatus, Err: err}
	var f *fault.Error
	errors.As(err, &f)
	switch kind := fault.KindOf(err); {
	case ctx.Err() != nil && errors.Is(context.Cause(ctx), context.DeadlineExceeded):
		e.Reason = targets.ReasonTimeout
	case ctx.Err() != nil:
		e.Reason = targets.ReasonInterrupted
	case kind == fault.TooLarge:
		e.Reason, e.Permanent = targets.ReasonTooLarge, true
	case kind == fault.Invalid:
		e.Permanent = true
	case kind == fault.Internal:
		e.Reason = targets.ReasonInternal
	}
	return e
}

// text is a text with ${path} in it.
type text []part

// part is a literal, or a path of the event.
type part struct {
	literal string
	path    []string
}

func parseText(s string, withDevice bool) (t text, err error) {
	for s != "" {
		literal, rest, found := strings.Cut(s, "${")
		if literal != "" {
			t = append(t, part{literal: literal})
		}
		if !found {
			break
		}
		name, after, closed := strings.Cut(rest, "}")
		path := strings.Split(name, ".")
		for _, p := range path {
			if p == "" || !closed {
				return nil, errors.New("has ${ that is no path of the event, such as ${subject} or ${data.box}")
			}
		}
		if len(path) > 1 && path[0] != "data" || path[0] == "device" && !withDevice {
			return nil, errors.New("has ${...} that is none of an attribute, ${data} with the names of members, and, in a topic, ${device}")
		}
		t, s = append(t, part{path: path}), after
	}
	return t, nil
}

// render fills an event in.
func (t text) render(e *event.Event, device string) (string, error) {
	var b strings.Builder
	for _, p := range t {
		if p.path == nil {
			b.WriteString(p.literal)
			continue
		}
		v, ok := value(e, p.path, device)
		if !ok {
			return "", errors.New("the event has no text or number at " + strings.Join(p.path, "."))
		}
		b.WriteString(v)
	}
	return b.String(), nil
}

// value is what stands at a path of an event, as text.
func value(e *event.Event, path []string, device string) (string, bool) {
	switch path[0] {
	case "device":
		return device, true
	case "id":
		return e.ID, true
	case "source":
		return e.Source, true
	case "type":
		return e.Type, true
	case "subject":
		return e.Subject, e.Subject != ""
	case "data":
		return member(e.Data, path[1:])
	}
	for i := range e.Extensions {
		if e.Extensions[i].Name == path[0] {
			return e.Extensions[i].Canonical(), true
		}
	}
	return "", false
}

// member is a text, number or truth value in JSON data.
func member(data []byte, path []string) (string, bool) {
	raw := json.RawMessage(data)
	for _, name := range path {
		var members map[string]json.RawMessage
		if json.Unmarshal(raw, &members) != nil {
			return "", false
		}
		var ok bool
		if raw, ok = members[name]; !ok {
			return "", false
		}
	}
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s, string(raw) != "null"
	}
	raw = json.RawMessage(strings.TrimSpace(string(raw)))
	if !json.Valid(raw) || raw[0] == '{' || raw[0] == '[' {
		return "", false
	}
	return string(raw), true
}
