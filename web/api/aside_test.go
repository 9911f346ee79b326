// SPDX-License-Identifier: Apache-2.0

package api_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rialto-bridge/rialto/bridge"
	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/web/api"
)

func (f *fakeBridge) SetAside(_ context.Context, bus string, recs []*event.Record, q bridge.AsideRequest) ([]bridge.Kept, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.bus(bus); err != nil {
		return nil, err
	}
	f.asked = q
	var out []bridge.Kept
	for _, rec := range recs {
		ev := &rec.Event
		k := bridge.Kept{ID: ev.ID, Bus: bus, Source: ev.Source, Type: ev.Type, KeptAt: arrived, Event: ev}
		if q.Prepare {
			k.Token = "token-" + ev.ID
		} else {
			k.At = &q.At
		}
		out = append(out, k)
	}
	f.kept = append(f.kept, out...)
	return out, nil
}

func (f *fakeBridge) Kept(_ context.Context, q bridge.KeptQuery) (bridge.KeptPage, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = q
	return bridge.KeptPage{Items: f.kept, NextCursor: "7"}, nil
}

func (f *fakeBridge) one(bus string, is func(bridge.Kept) bool) (bridge.Kept, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, k := range f.kept {
		if is(k) && (bus == "" || bus == k.Bus) {
			return k, nil
		}
	}
	return bridge.Kept{}, fault.New(fault.NotFound, "no such event")
}

func (f *fakeBridge) Scheduled(_ context.Context, bus, id, source string) (bridge.Kept, error) {
	return f.one(bus, func(k bridge.Kept) bool { return k.At != nil && k.ID == id && (source == "" || k.Source == source) })
}

func (f *fakeBridge) Cancel(ctx context.Context, bus, id, source string) error {
	_, err := f.Scheduled(ctx, bus, id, source)
	return err
}

func (f *fakeBridge) Prepared(_ context.Context, bus, token string) (bridge.Kept, error) {
	return f.one(bus, func(k bridge.Kept) bool { return k.Token == token })
}

func (f *fakeBridge) Decide(ctx context.Context, bus, token string, commit bool) (bridge.Decision, error) {
	k, err := f.Prepared(ctx, bus, token)
	if err != nil {
		return bridge.Decision{}, err
	}
	if !commit {
		return bridge.Decision{State: "rolledback", ID: k.ID}, nil
	}
	return bridge.Decision{State: "committed", ID: k.ID, Position: "EV_default:1"}, nil
}

const (
	oneLater = `{"specversion":"1.0","id":"a","source":"/s","type":"t","data":{"n":1}}`
	twoLater = `[` + oneLater + `,{"specversion":"1.0","id":"b","source":"/s","type":"t"}]`
)

func TestScheduleOverHTTP(t *testing.T) {
	s := start(t)
	ingest := "/v1/buses/default/events"
	structured := []string{"Content-Type", "application/cloudevents+json"}
	a := s.do("POST", ingest+"?deliverAt=2027-01-02T05:00:00.5%2B01:00", oneLater, structured...).want(t, http.StatusAccepted)
	if a.body != `{"scheduled":[{"id":"a","at":"2027-01-02T05:00:00.5+01:00"}]}` {
		t.Errorf("answer %s", a.body)
	}
	s.do("POST", ingest+"?delay=90s", twoLater, "Content-Type", "application/cloudevents-batch+json").want(t, http.StatusAccepted)
	s.do("POST", ingest+"?delay=0s", "x", "ce-specversion", "1.0", "ce-id", "c", "ce-source", "/s", "ce-type", "t").want(t, http.StatusAccepted)
	if n := s.bridge.stored("default"); n != 0 {
		t.Errorf("%d events are stored at once", n)
	}
	a = s.do("GET", "/v1/scheduled?bus=default&limit=5&cursor=3", "").want(t, http.StatusOK)
	if d := cmp.Diff(bridge.KeptQuery{Bus: "default", Limit: 5, Cursor: "3"}, s.bridge.lastQuery()); d != "" {
		t.Errorf("query (-want +got):\n%s", d)
	}
	if !strings.Contains(a.body, `"nextCursor":"7"`) || strings.Contains(a.body, `"event"`) {
		t.Errorf("list %s", a.body)
	}
	a = s.do("GET", "/v1/scheduled/a?bus=default&source=/s", "").want(t, http.StatusOK)
	if !strings.Contains(a.body, `"event":{"specversion":"1.0","id":"a"`) {
		t.Errorf("event %s", a.body)
	}
	if a := s.do("DELETE", "/v1/scheduled/a", "").want(t, http.StatusNoContent); a.body != "" {
		t.Errorf("cancel answers %q", a.body)
	}
	wantProblem(t, s.do("DELETE", "/v1/scheduled/x", ""), 404, "not-found")
	wantProblem(t, s.do("DELETE", "/v1/scheduled/a?sauce=x", ""), 400, "invalid", "/sauce")
	wantProblem(t, s.do("GET", "/v1/scheduled?limit=0", ""), 400, "invalid", "/limit")
	wantProblem(t, s.do("POST", "/v1/buses/nobus/events?delay=1s", oneLater, structured...), 404, "not-found")
}

func TestPrepareOverHTTP(t *testing.T) {
	s := start(t)
	a := s.do("POST", "/v1/buses/default/events?prepare=true&checkBack=https://shop.example/check&checkAfter=30s", oneLater,
		"Content-Type", "application/cloudevents+json").want(t, http.StatusAccepted)
	if a.body != `{"prepared":[{"id":"a","token":"token-a"}]}` {
		t.Errorf("answer %s", a.body)
	}
	want := bridge.AsideRequest{Prepare: true, CheckBack: "https://shop.example/check", CheckAfter: 30 * time.Second}
	if d := cmp.Diff(want, s.bridge.lastQuery()); d != "" {
		t.Errorf("request (-want +got):\n%s", d)
	}
	s.do("GET", "/v1/prepared?bus=default", "").want(t, http.StatusOK)
	s.do("GET", "/v1/prepared/token-a", "").want(t, http.StatusOK)
	if a := s.do("POST", "/v1/prepared/token-a:commit?bus=default", "").want(t, http.StatusOK); a.body != `{"state":"committed","id":"a","position":"EV_default:1"}` {
		t.Errorf("commit %s", a.body)
	}
	if a := s.do("POST", "/v1/prepared/token-a:rollback", "").want(t, http.StatusOK); a.body != `{"state":"rolledback","id":"a"}` {
		t.Errorf("roll-back %s", a.body)
	}
	wantProblem(t, s.do("POST", "/v1/prepared/token-a:commit?bus=devices", ""), 404, "not-found")
	wantProblem(t, s.do("POST", "/v1/prepared/token-a:commit?x=1", ""), 400, "invalid", "/x")
}

func TestParametersThatKeepEvents(t *testing.T) {
	s := start(t)
	for query, pointers := range map[string][]string{
		"deliverAt=tomorrow":             {"/deliverAt"},
		"deliverAt=":                     {"/deliverAt"},
		"deliverAt=9999-01-01T00:00:00Z": {"/deliverAt"},
		"delay=-1s":                      {"/delay"},
		"delay=":                         {"/delay"},
		"delay=8761h":                    {"/delay"},
		"delay=1s&deliverAt=2027-01-02T05:00:00Z":     {"/delay"},
		"delay=1s&delay=2s":                           {"/delay"},
		"delay=1s&prepare=true":                       {"/prepare"},
		"prepare=maybe":                               {"/prepare"},
		"checkBack=https://shop.example/":             {"/checkBack"},
		"prepare=true&checkAfter=1s":                  {"/checkAfter"},
		"prepare=true&checkBack=x&checkAfter=1ms":     {"/checkAfter"},
		"prepare=true&checkBack=x&checkAfter=25h&z=1": {"/checkAfter", "/z"},
	} {
		a := s.do("POST", "/v1/buses/default/events?"+query, oneLater, "Content-Type", "application/cloudevents+json")
		wantProblem(t, a, 400, "invalid", pointers...)
	}
	s.do("POST", "/v1/buses/default/events?prepare=false", oneLater, "Content-Type", "application/cloudevents+json").want(t, http.StatusAccepted)
	if n := s.bridge.stored("default"); n != 1 {
		t.Errorf("%d events stored, want the one that is not to be prepared", n)
	}
}

// Whatever the query is, it is refused, or keeps events within the limits.
func FuzzAsideParameters(f *testing.F) {
	for _, q := range []string{"", "delay=90s", "deliverAt=2027-01-02T05:00:00Z", "deliverAt=0001-01-01T00:00:00Z", "prepare&checkBack=x&checkAfter=1m", "delay=9e9h", "%zz"} {
		f.Add(q)
	}
	now := time.Date(2027, 1, 2, 3, 4, 5, 0, time.UTC)
	f.Fuzz(func(t *testing.T, raw string) {
		r := httptest.NewRequest("POST", "/", nil)
		r.URL = &url.URL{Path: "/", RawQuery: raw}
		q, err := api.ReadAside(r, now, time.Hour)
		switch {
		case err != nil:
			if fault.KindOf(err) != fault.Invalid {
				t.Errorf("%q: %v", raw, err)
			}
		case q == nil:
		case q.At.After(now.Add(time.Hour)), q.Prepare && !q.At.IsZero(), q.CheckAfter != 0 && q.CheckBack == "",
			q.CheckAfter < 0, q.CheckAfter > 24*time.Hour:
			t.Errorf("%q: %+v", raw, q)
		}
	})
}
