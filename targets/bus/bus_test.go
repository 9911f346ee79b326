// SPDX-License-Identifier: Apache-2.0

package bus_test

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/targets"
	"github.com/rialto-bridge/rialto/targets/bus"
	"github.com/rialto-bridge/rialto/targets/targettest"
)

type emitter func(ctx context.Context, bus string, evs ...event.Event) error

func target(t *testing.T, config string, emit emitter) targets.Target {
	t.Helper()
	kinds := targets.NewCatalog(bus.Kind())
	d, err := targets.ParseDefinition([]byte(`{"name": "far", "type": "bus", "config": `+config+`}`), kinds)
	if err != nil {
		t.Fatal(err)
	}
	made, err := kinds.New(d, targets.Env{Emit: emit})
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// An event is published as it is, with its source and id, on every attempt the same.
func TestDeliver(t *testing.T) {
	var got []event.Event
	var to string
	made := target(t, `{"bus": "archive"}`, func(_ context.Context, bus string, evs ...event.Event) error {
		got, to = append(got, evs...), bus
		return nil
	})
	d := targettest.Delivery()
	for range 2 {
		if _, err := made.Deliver(t.Context(), d); err != nil {
			t.Fatal(err)
		}
	}
	if !reflect.DeepEqual(d, targettest.Delivery()) {
		t.Error("the delivery, which is shared, was changed")
	}
	want := *targettest.Event()
	want.Extensions = targets.WithExtensions(want.Extensions, event.Attribute{Name: "rialtohops", Value: int32(1)})
	if to != "archive" || !reflect.DeepEqual(got, []event.Event{want, want}) {
		t.Errorf("%+v on %s", got, to)
	}
}

// Loops end.
func TestLoops(t *testing.T) {
	published := 0
	emit := func(context.Context, string, ...event.Event) error { published++; return nil }
	refused := func(config string, hops any, on string) bool {
		d := targettest.Delivery()
		d.Bus = on
		d.Event.Extensions = targets.WithExtensions(d.Event.Extensions, event.Attribute{Name: "rialtohops", Value: hops})
		before := published
		_, err := target(t, config, emit).Deliver(t.Context(), d)
		var te *targets.Error
		if err != nil && (!errors.As(err, &te) || !te.Permanent || te.Reason != targets.ReasonStatus || !strings.Contains(err.Error(), "loop") || published != before) {
			t.Errorf("%s after %v hops: %v", config, hops, err)
		}
		return err != nil
	}
	if refused(`{"bus": "archive"}`, int32(7), "devices") || !refused(`{"bus": "archive"}`, int32(8), "devices") || !refused(`{"bus": "archive"}`, "8", "devices") {
		t.Error("not eight hops are allowed")
	}
	if refused(`{"bus": "archive", "maxHops": 2}`, int32(1), "devices") || !refused(`{"bus": "archive", "maxHops": 2}`, int32(2), "devices") {
		t.Error("not two hops are allowed")
	}
	if !refused(`{"bus": "devices"}`, int32(0), "devices") {
		t.Error("an event is sent to the bus that it is on")
	}
}

// What the other bus says decides whether it is tried again.
func TestRefusals(t *testing.T) {
	for _, c := range []struct {
		err       error
		reason    targets.Reason
		permanent bool
		rest      time.Duration
	}{
		{&fault.Error{Kind: fault.Unfit, Message: "does not fit", Details: []fault.Detail{{Pointer: "/data/a", Detail: "is missing"}}}, targets.ReasonStatus, true, 0},
		{fault.Invalidf("/id", "is bad"), targets.ReasonStatus, true, 0},
		{fault.New(fault.TooLarge, "is too large"), targets.ReasonTooLarge, true, 0},
		{fault.New(fault.NotFound, "there is no bus archive"), targets.ReasonStatus, false, 0},
		{fault.New(fault.Full, "the log is full"), targets.ReasonStatus, false, 0},
		{&fault.Error{Kind: fault.Unavailable, Message: "not now", RetryAfter: time.Second}, targets.ReasonStatus, false, time.Second},
		{errors.New("a disk"), targets.ReasonInternal, false, 0},
	} {
		_, err := target(t, `{"bus": "archive"}`, func(context.Context, string, ...event.Event) error { return c.err }).Deliver(t.Context(), targettest.Delivery())
		var te *targets.Error
		if !errors.As(err, &te) || te.Reason != c.reason || te.Permanent != c.permanent || te.RetryAfter != c.rest || !strings.Contains(err.Error(), "bus archive: "+c.err.Error()) {
			t.Errorf("%v gives %+v", c.err, err)
		}
	}
	for want, end := range map[targets.Reason]func(context.Context) (context.Context, context.CancelFunc){
		targets.ReasonInterrupted: context.WithCancel,
		targets.ReasonTimeout:     func(ctx context.Context) (context.Context, context.CancelFunc) { return context.WithTimeout(ctx, 0) },
	} {
		ctx, cancel := end(t.Context())
		cancel()
		_, err := target(t, `{"bus": "archive"}`, func(ctx context.Context, _ string, _ ...event.Event) error { return ctx.Err() }).Deliver(ctx, targettest.Delivery())
		if targets.ReasonOf(err) != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

func TestConfigsThatAreRefused(t *testing.T) {
	kinds := targets.NewCatalog(bus.Kind())
	for config, want := range map[string]string{`{}`: "/config/bus", `{"bus": "A"}`: "/config/bus", `{"bus": "a", "maxHops": 0}`: "/config/maxHops", `{"bus": "a", "x": 1}`: "/config/x"} {
		if _, err := targets.ParseDefinition([]byte(`{"name": "far", "type": "bus", "config": `+config+`}`), kinds); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", config, err, want)
		}
	}
}
