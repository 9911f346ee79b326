// SPDX-License-Identifier: Apache-2.0

package device_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/targets"
	"github.com/rialto-bridge/rialto/targets/device"
	"github.com/rialto-bridge/rialto/targets/targettest"
)

// sink takes commands.
type sink struct {
	got []targets.Command
	err error
}

func (s *sink) Command(_ context.Context, c targets.Command) error {
	s.got = append(s.got, c)
	return s.err
}

func document(config string) []byte {
	return []byte(`{"kind":"Target","name":"ops","type":"device","config":` + config + `}`)
}

func open(t *testing.T, s *sink, config string) targets.Target {
	t.Helper()
	kinds := targets.NewCatalog(device.Kind())
	d, err := targets.ParseDefinition(document(config), kinds)
	if err != nil {
		t.Fatal(err)
	}
	target, err := kinds.New(d, targets.Env{Downlink: s, Logger: slog.New(slog.DiscardHandler), Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	return target
}

func TestDeliver(t *testing.T) {
	s := &sink{}
	target := open(t, s, `{"device":"box-${data.box}-${n}","topic":"cmd/${device}/${type}/${data.a.b}","qos":2,"expiry":"90s"}`)
	d := targettest.Delivery()
	d.Event = targettest.Event()
	d.Event.Data = []byte(`{"box": 17, "a": {"b": "x y"}}`)
	for range 2 { // every attempt is the same command
		if _, err := target.Deliver(t.Context(), d); err != nil {
			t.Fatal(err)
		}
	}
	want := targets.Command{ID: d.ID, Device: "box-17--7", Topic: "cmd/box-17--7/com.acme.telemetry/x y", Payload: d.Event.Data, ContentType: "application/json",
		UTF8: true, QoS: 2, Expiry: 90 * time.Second, By: "target ops"}
	if diff := cmp.Diff([]targets.Command{want, want}, s.got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	s = &sink{}
	if _, err := open(t, s, `{"device":"${subject}"}`).Deliver(t.Context(), targettest.Delivery()); err != nil || s.got[0].Topic != "" || s.got[0].QoS != 1 {
		t.Errorf("%+v, %v", s.got, err)
	}
}

// A command can carry the whole event, in the modes of the MQTT binding of CloudEvents.
func TestDeliverEncoded(t *testing.T) {
	deliver := func(encoding string) targets.Command {
		t.Helper()
		s := &sink{}
		if _, err := open(t, s, `{"device":"a","encoding":"`+encoding+`"}`).Deliver(t.Context(), targettest.Delivery()); err != nil {
			t.Fatal(err)
		}
		return s.got[0]
	}
	e := targettest.Event()
	for _, encoding := range []string{"binary", "structured"} {
		c := deliver(encoding)
		got, minted, err := event.FromMQTT(event.MQTTMessage{Payload: c.Payload, Version: 5, ContentType: c.ContentType, UserProperties: c.UserProperties},
			event.MQTTDefaults{}, event.Limits{})
		if err != nil || minted || !c.UTF8 {
			t.Fatalf("%s: %+v, %v", encoding, c, err)
		}
		want := *e
		if encoding == "binary" { // every extension is text there
			want.Extensions = []event.Attribute{{Name: "flag", Value: "true"}, {Name: "n", Value: "-7"}, {Name: "partitionkey", Value: "box 17"}}
		}
		if diff := cmp.Diff(want.ID+want.Source+want.Type+want.Subject+want.DataSchema, got.ID+got.Source+got.Type+got.Subject+got.DataSchema); diff != "" {
			t.Errorf("%s (-want +got):\n%s", encoding, diff)
		}
		if diff := cmp.Diff(want.Extensions, got.Extensions); diff != "" || !got.Time.Equal(want.Time) || got.DataContentType != want.DataContentType {
			t.Errorf("%s: %+v", encoding, got)
		}
	}
	if c := deliver("binary"); string(c.Payload) != string(e.Data) || c.ContentType != e.DataContentType {
		t.Errorf("binary: %+v", c)
	}
	if c := deliver("structured"); c.ContentType != event.StructuredType || c.UserProperties != nil {
		t.Errorf("structured: %+v", c)
	}
	if c := deliver("data"); c.UserProperties != nil || c.ContentType != e.DataContentType {
		t.Errorf("data: %+v", c)
	}
}

// What an event does not have is said at once; whether trying again can help depends on what is wrong.
func TestDeliverFails(t *testing.T) {
	timeout, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	stopped, stop := context.WithCancel(t.Context())
	stop()
	for _, c := range []struct {
		config    string
		ctx       context.Context
		err       error
		reason    targets.Reason
		permanent bool
	}{
		{`{"device":"${data.nothing}"}`, t.Context(), nil, targets.ReasonTransform, true},
		{`{"device":"a","topic":"${data}"}`, t.Context(), nil, targets.ReasonTransform, true},
		{`{"device":"a"}`, t.Context(), fault.Invalidf("/topic", "no"), targets.ReasonStatus, true},
		{`{"device":"a"}`, t.Context(), fault.New(fault.TooLarge, "no"), targets.ReasonTooLarge, true},
		{`{"device":"a"}`, t.Context(), fault.New(fault.RateLimited, "too many"), targets.ReasonStatus, false},
		{`{"device":"a"}`, t.Context(), errors.New("disk"), targets.ReasonInternal, false},
		{`{"device":"a"}`, timeout, fault.New(fault.Unavailable, "gave up"), targets.ReasonTimeout, false},
		{`{"device":"a"}`, stopped, fault.New(fault.Unavailable, "gave up"), targets.ReasonInterrupted, false},
	} {
		_, err := open(t, &sink{err: c.err}, c.config).Deliver(c.ctx, targettest.Delivery())
		var e *targets.Error
		if !errors.As(err, &e) || e.Reason != c.reason || e.Permanent != c.permanent {
			t.Errorf("%s, %v: %v, want %s, permanent = %v", c.config, c.err, err, c.reason, c.permanent)
		}
	}
}

func TestDefinition(t *testing.T) {
	kinds := targets.NewCatalog(device.Kind())
	for pointer, config := range map[string]string{
		"/config/device":   `{"device":"${data..x}"}`,
		"/config/topic":    `{"device":"a","topic":"${x.y}"}`,
		"/config/expiry":   `{"device":"a","expiry":"soon"}`,
		"/config/qos":      `{"device":"a","qos":3}`,
		"/config/encoding": `{"device":"a","encoding":"xml"}`,
		"/config/retain":   `{"device":"a","retain":true}`,
		"/config/device:":  `{"device":"${device}"}`,
	} {
		if _, err := targets.ParseDefinition(document(config), kinds); err == nil || !strings.Contains(err.Error(), pointer) {
			t.Errorf("%s gives %v, want a complaint at %s", config, err, pointer)
		}
	}
	if _, err := targets.ParseDefinition(document(`{}`), kinds); err == nil {
		t.Error("a target without a device is taken")
	}
}

// FuzzText: whatever can be parsed can be rendered, or says why not.
func FuzzText(f *testing.F) {
	for _, s := range []string{"a", "${subject}", "${data.a.b}", "${", "${}", "${data.}", "$${id}"} {
		f.Add(s, `{"a":{"b":1}}`)
	}
	f.Fuzz(func(t *testing.T, text, data string) {
		config, err := json.Marshal(text)
		if err != nil {
			t.Fatal(err)
		}
		kinds := targets.NewCatalog(device.Kind())
		d, err := targets.ParseDefinition(document(`{"device":`+string(config)+`}`), kinds)
		if err != nil {
			return
		}
		s := &sink{}
		target, err := kinds.New(d, targets.Env{Downlink: s})
		if err != nil {
			t.Fatal(err)
		}
		_, err = target.Deliver(t.Context(), targets.Delivery{ID: "dlv_1", Event: &event.Event{ID: "i", Source: "s", Type: "t", Data: []byte(data)}})
		if (err == nil) != (len(s.got) == 1) || err == nil && s.got[0].Device == "" {
			t.Errorf("%q, %q: %+v, %v", text, data, s.got, err)
		}
	})
}
