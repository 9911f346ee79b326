// SPDX-License-Identifier: Apache-2.0

package api_test

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/mqttgw"
	"github.com/rialto-bridge/rialto/web/api"
)

// fakeCommander notes what it is asked for.
type fakeCommander struct {
	mu    sync.Mutex // guards what follows
	spec  mqttgw.CommandSpec
	cast  mqttgw.BroadcastSpec
	asked string
}

func (f *fakeCommander) SendCommand(_ context.Context, spec mqttgw.CommandSpec) (mqttgw.Command, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.spec = spec
	if spec.Device == "full" {
		return mqttgw.Command{}, fault.New(fault.RateLimited, "too many commands wait for this device")
	}
	return mqttgw.Command{ID: "c1", Device: spec.Device, Status: mqttgw.StatusQueued}, nil
}

func (f *fakeCommander) note(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = fmt.Sprintf(format, args...)
}

func (f *fakeCommander) Command(_ context.Context, device, id string) (mqttgw.Command, error) {
	f.note("%s %s", device, id)
	return mqttgw.Command{ID: id, Device: device}, nil
}

func (f *fakeCommander) Commands(_ context.Context, device, status, cursor string, limit int) (mqttgw.CommandPage, error) {
	f.note("%s %s %s %d", device, status, cursor, limit)
	return mqttgw.CommandPage{Items: []mqttgw.Command{{ID: "c1"}}, NextCursor: "n"}, nil
}

func (f *fakeCommander) CancelCommand(_ context.Context, device, id, by string) (mqttgw.Command, error) {
	f.note("%s %s %s", device, id, by)
	return mqttgw.Command{ID: id, Status: mqttgw.StatusCancelled}, nil
}

func (f *fakeCommander) Broadcast(_ context.Context, spec mqttgw.BroadcastSpec) (mqttgw.Broadcast, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cast = spec
	return mqttgw.Broadcast{ID: "broadcast-1", State: mqttgw.BroadcastRunning}, nil
}

func (f *fakeCommander) PlanBroadcast(_ context.Context, spec mqttgw.BroadcastSpec) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cast = spec
	return 7, nil
}

func (f *fakeCommander) Broadcasts(context.Context) ([]mqttgw.Broadcast, error) {
	return []mqttgw.Broadcast{{ID: "broadcast-1"}}, nil
}

func (f *fakeCommander) BroadcastByID(_ context.Context, id string) (mqttgw.Broadcast, error) {
	return mqttgw.Broadcast{}, fault.New(fault.NotFound, "no broadcast with this id")
}

func (f *fakeCommander) SetBroadcast(_ context.Context, id, state, by string) (mqttgw.Broadcast, error) {
	f.note("%s %s %s", id, state, by)
	return mqttgw.Broadcast{ID: id, State: state}, nil
}

func TestCommands(t *testing.T) {
	f := &fakeCommander{}
	s := start(t, func(o *api.Options) { o.Commands = f })
	for body, want := range map[string]mqttgw.CommandSpec{
		`{}`: {QoS: 1},
		`{"id":"x","topic":"a/b","payload":"hé","contentType":"text/plain","qos":2,"expiry":"90s","correlation":"c","responseTopic":"r","userProperties":{"b":"2","a":"1"},"principal":"p"}`: {
			ID: "x", Topic: "a/b", Payload: []byte("hé"), UTF8: true, ContentType: "text/plain", QoS: 2, Expiry: 90 * time.Second, Correlation: "c", ResponseTopic: "r",
			UserProperties: [][2]string{{"a", "1"}, {"b", "2"}}, Principal: "p"},
		`{"payloadBase64":"AAH/","qos":0}`: {Payload: []byte{0, 1, 255}},
		`{"data":{"n": 1.0}}`:              {Payload: []byte(`{"n":1.0}`), UTF8: true, ContentType: "application/json", QoS: 1},
	} {
		a := s.do("POST", "/v1/devices/box%2F17/commands", body, "Content-Type", "application/json").want(t, http.StatusAccepted)
		if got := a.header.Get("Location"); got != "/v1/devices/box%2F17/commands/c1" {
			t.Errorf("Location %s", got)
		}
		want.Device, want.By = "box/17", "admin"
		f.mu.Lock()
		if d := cmp.Diff(want, f.spec, cmpopts.IgnoreUnexported(mqttgw.CommandSpec{})); d != "" {
			t.Errorf("%s (-want +got):\n%s", body, d)
		}
		f.mu.Unlock()
	}
	for pointer, body := range map[string]string{
		"": "[]", "/payload": `{"payload":"x","data":1}`, "/payloadBase64": `{"payloadBase64":"?"}`, "/qos": `{"qos":3}`,
		"/expiry": `{"expiry":"soon"}`, "/userProperties": `{"userProperties":{"a":1}}`, "/topics": `{"topics":"x"}`, "/id": `{"id":7}`,
	} {
		wantProblem(t, s.do("POST", "/v1/devices/box/commands", body, "Content-Type", "application/json"), 400, "invalid", pointer)
	}
	wantProblem(t, s.do("POST", "/v1/devices/full/commands", "{}"), 429, "rate-limited")
	for _, c := range []struct{ method, path, asked string }{
		{"GET", "/v1/devices/box/commands?status=sent&limit=5&cursor=q", "box sent q 5"},
		{"GET", "/v1/devices/box/commands", "box   100"},
		{"GET", "/v1/devices/box/commands/c%3A1", "box c:1"},
		{"DELETE", "/v1/devices/box/commands/c1", "box c1 admin"},
		{"POST", "/v1/broadcasts/broadcast-1:pause", "broadcast-1 paused admin"},
		{"POST", "/v1/broadcasts/broadcast-1:resume", "broadcast-1 running admin"},
		{"POST", "/v1/broadcasts/broadcast-1:cancel", "broadcast-1 cancelled admin"},
	} {
		s.do(c.method, c.path, "").want(t, http.StatusOK)
		if f.asked != c.asked {
			t.Errorf("%s %s asks %q, want %q", c.method, c.path, f.asked, c.asked)
		}
	}
	wantProblem(t, s.do("GET", "/v1/devices/box/commands?status=lost", ""), 400, "invalid", "/status")
	wantProblem(t, s.do("GET", "/v1/broadcasts/x", ""), 404, "not-found")
}

func TestBroadcasts(t *testing.T) {
	f := &fakeCommander{}
	s := start(t, func(o *api.Options) { o.Commands = f })
	a := s.do("POST", "/v1/broadcasts", `{"select":{"labels":{"site":"north"},"clientId":"box-*","online":true},"topic":"cmd/${device}","payload":"x","rate":5,"batch":7,"why":"w"}`)
	if a.want(t, http.StatusAccepted).header.Get("Location") != "/v1/broadcasts/broadcast-1" {
		t.Errorf("%v", a.header)
	}
	want := mqttgw.BroadcastSpec{Select: mqttgw.Selection{Labels: map[string]string{"site": "north"}, ClientID: "box-*", Online: true}, Rate: 5, Batch: 7, Why: "w",
		Command: mqttgw.CommandSpec{Topic: "cmd/${device}", Payload: []byte("x"), UTF8: true, QoS: 1, By: "admin"}}
	if d := cmp.Diff(want, f.cast, cmpopts.IgnoreUnexported(mqttgw.CommandSpec{})); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if a := s.do("POST", "/v1/broadcasts", `{"select":{"devices":["a","b"]},"dryRun":true}`).want(t, http.StatusOK); a.body != `{"total":7}` {
		t.Errorf("dry run: %s", a.body)
	}
	s.do("GET", "/v1/broadcasts", "").want(t, http.StatusOK)
	for pointer, body := range map[string]string{
		"/select": `{}`, "/select/devices": `{"select":{"devices":[]}}`, "/select/label": `{"select":{"label":{}}}`, "/rate": `{"select":{"all":true},"rate":-1}`,
		"/batch": `{"select":{"all":true},"batch":0}`, "/id": `{"select":{"all":true},"id":"x"}`,
	} {
		wantProblem(t, s.do("POST", "/v1/broadcasts", body), 400, "invalid", pointer)
	}
}

// Commands are the business of devices' keys.
func TestCommandScopes(t *testing.T) {
	s := start(t, func(o *api.Options) { o.Commands = &fakeCommander{} })
	s.key = s.addKey("reader", "devices:read")
	for _, c := range []struct {
		method, path string
		status       int
	}{
		{"GET", "/v1/devices/box/commands", 200}, {"GET", "/v1/devices/box/commands/c", 200}, {"GET", "/v1/broadcasts", 200},
		{"POST", "/v1/devices/box/commands", 403}, {"DELETE", "/v1/devices/box/commands/c", 403}, {"POST", "/v1/broadcasts", 403}, {"POST", "/v1/broadcasts/b:pause", 403},
	} {
		s.do(c.method, c.path, "{}").want(t, c.status)
	}
	off := start(t)
	for _, c := range [][2]string{{"GET", "/v1/devices/box/commands"}, {"POST", "/v1/devices/box/commands"}, {"GET", "/v1/broadcasts"}} {
		wantProblem(t, off.do(c[0], c[1], "{}"), 503, "unavailable")
	}
}
