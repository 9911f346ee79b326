// SPDX-License-Identifier: Apache-2.0

package api_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rialto-bridge/rialto/bridge"
	"github.com/rialto-bridge/rialto/internal/event"
)

func TestOneDeadLetter(t *testing.T) {
	s := start(t)
	s.bridge.dead = []bridge.DeadLetter{{ID: "DEAD:1", Bus: "default", Print: "abc", Event: &event.Event{ID: "a", Source: "/s", Type: "t"}}}
	a := s.do("GET", "/v1/deadletters/DEAD:1?bus=default", "").want(t, http.StatusOK)
	if d := into[struct {
		Fingerprint string
		Event       struct{ ID string }
	}](t, a); d.Fingerprint != "abc" || d.Event.ID != "a" {
		t.Errorf("dead letter = %s", a.body)
	}
	s.do("GET", "/v1/deadletters/DEAD%3A1", "").want(t, http.StatusOK)
	wantProblem(t, s.do("GET", "/v1/deadletters/DEAD:1?bus=devices", ""), 404, "not-found")
	wantProblem(t, s.do("GET", "/v1/deadletters/DEAD:1?buss=default", ""), 400, "invalid", "/buss")
	s.do("GET", "/v1/deadletters:count?bus=default&fingerprint=abc&reason=status", "").want(t, http.StatusOK)
	if d := cmp.Diff(bridge.DeadFilter{Bus: "default", Fingerprint: "abc", Reason: "status"}, s.bridge.lastQuery()); d != "" {
		t.Errorf("filter (-want +got):\n%s", d)
	}
	wantProblem(t, s.do("GET", "/v1/deadletters:count?limit=3", ""), 400, "invalid", "/limit")
}

func TestJobs(t *testing.T) {
	s := start(t)
	a := s.do("POST", "/v1/deadletters:redrive?bus=default", `{"filter":{"rule":"r","target":"hook","ids":["DEAD:7"],"from":"2027-01-01T00:00:00Z"},
		"to":"spare","rate":5,"why":"mended","event":{"specversion":"1.0","id":"a","source":"/s","type":"t","data":{"n":1}}}`, "X-Request-Id", "one").want(t, http.StatusAccepted)
	if a.header.Get("Location") != "/v1/jobs/redrive-1" || !strings.Contains(a.body, `"job":{"id":"redrive-1"`) {
		t.Errorf("answer %v %s", a.header, a.body)
	}
	want := bridge.JobSpec{Kind: "redrive", To: "spare", Rate: 5, Why: "mended", By: "admin", RequestID: "one",
		Filter: bridge.DeadFilter{Bus: "default", Rule: "r", Target: "hook", IDs: []string{"DEAD:7"}, From: time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)},
		Event:  &event.Event{ID: "a", Source: "/s", Type: "t", DataContentType: "application/json", Data: []byte(`{"n":1}`)}}
	if d := cmp.Diff(want, s.bridge.lastQuery()); d != "" {
		t.Errorf("job (-want +got):\n%s", d)
	}
	s.do("POST", "/v1/deadletters:discard", `{"filter":{},"why":"x"}`).want(t, http.StatusAccepted)
	if a := s.do("POST", "/v1/deadletters:redrive", `{"filter":{},"dryRun":true}`).want(t, http.StatusOK); a.body != `{"total":0,"groups":[]}` {
		t.Errorf("dry run %s", a.body)
	}
	if n := len(into[struct{ Items []bridge.Job }](t, s.do("GET", "/v1/jobs", "").want(t, http.StatusOK)).Items); n != 2 {
		t.Errorf("%d jobs, want 2: a dry run makes none", n)
	}
	if n := len(into[struct{ Items []bridge.Job }](t, s.do("GET", "/v1/jobs?bus=default", "").want(t, http.StatusOK)).Items); n != 1 {
		t.Errorf("%d jobs of the bus, want 1", n)
	}
	s.do("GET", "/v1/jobs/redrive-1?bus=default", "").want(t, http.StatusOK)
	wantProblem(t, s.do("GET", "/v1/jobs/redrive-1?bus=devices", ""), 404, "not-found")
	for verb, state := range map[string]string{"pause": "paused", "resume": "running", "cancel": "cancelled"} {
		s.do("POST", "/v1/jobs/redrive-1:"+verb+"?bus=default", "", "X-Request-Id", verb).want(t, http.StatusOK)
		if d := cmp.Diff(bridge.JobChange{Bus: "default", ID: "redrive-1", State: state, By: "admin", RequestID: verb}, s.bridge.lastQuery()); d != "" {
			t.Errorf("%s (-want +got):\n%s", verb, d)
		}
		wantProblem(t, s.do("POST", "/v1/jobs/none:"+verb, ""), 404, "not-found")
	}
	wantProblem(t, s.do("POST", "/v1/jobs/redrive-1:explode", ""), 405, "method-not-allowed")
}

func TestJobsByOutcome(t *testing.T) {
	s := start(t)
	a := s.do("POST", "/v1/buses/default/deliveries:redrive", `{"filter":{"outcome":"cancelled","target":"hook","rule":"r","reason":"rule_deleted",
		"subject":"box-1","to":"2027-01-01T00:00:00Z"},"to":"spare","rate":5,"why":"it is back"}`, "X-Request-Id", "one").want(t, http.StatusAccepted)
	if a.header.Get("Location") != "/v1/jobs/redrive-1" || !strings.Contains(a.body, `"outcome":"cancelled","subject":"box-1"`) {
		t.Errorf("answer %v %s", a.header, a.body)
	}
	want := bridge.JobSpec{Kind: "redrive", To: "spare", Rate: 5, Why: "it is back", By: "admin", RequestID: "one", Outcome: "cancelled", Subject: "box-1",
		Filter: bridge.DeadFilter{Bus: "default", Rule: "r", Target: "hook", Reason: "rule_deleted", To: time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)}}
	if d := cmp.Diff(want, s.bridge.lastQuery()); d != "" {
		t.Errorf("job (-want +got):\n%s", d)
	}
	s.do("POST", "/v1/buses/default/deliveries:redrive", `{"filter":{"outcome":"delivered","target":"hook"},"dryRun":true}`).want(t, http.StatusOK)
	for body, pointer := range map[string]string{
		`{}`:                                  "/filter/outcome",
		`{"filter":{"target":"hook"}}`:        "/filter/outcome",
		`{"filter":{"outcome":""}}`:           "/filter/outcome",
		`{"filter":{"ids":["DEAD:1"]}}`:       "/filter/ids",
		`{"filter":{"subject":1}}`:            "/filter/subject",
		`{"event":{}}`:                        "/event",
		`{"rate":0}`:                          "/rate",
		`{"filter":{"outcome":"dead"},"x":1}`: "/x",
	} {
		wantProblem(t, s.do("POST", "/v1/buses/default/deliveries:redrive", body), 400, "invalid", pointer)
	}
	wantProblem(t, s.do("POST", "/v1/buses/default/deliveries:redrive?bus=x", `{}`), 400, "invalid", "/bus")
}

func TestBadJobs(t *testing.T) {
	s := start(t)
	for body, pointer := range map[string]string{
		``:                                          "",
		`null`:                                      "",
		`[]`:                                        "",
		`{}`:                                        "/filter",
		`{"filter":null}`:                           "/filter",
		`{"filter":{},"rate":"fast"}`:               "/rate",
		`{"filter":{},"rate":0}`:                    "/rate",
		`{"filter":{},"rate":-1}`:                   "/rate",
		`{"filter":{},"to":7}`:                      "/to",
		`{"filter":{},"dryrun":true}`:               "/dryrun",
		`{"filter":{},"dryRun":1}`:                  "/dryRun",
		`{"filter":{"bus":"devices"}}`:              "/filter/bus",
		`{"filter":{"targt":"x"}}`:                  "/filter/targt",
		`{"filter":{"target":""}}`:                  "/filter/target",
		`{"filter":{"target":null}}`:                "/filter/target",
		`{"filter":{"ids":[]}}`:                     "/filter/ids",
		`{"filter":{"ids":"DEAD:1"}}`:               "/filter/ids",
		`{"filter":{"from":"today"}}`:               "/filter/from",
		`{"filter":{},"event":{}}`:                  "/event/specversion",
		`{"filter":{},"event":"x"}`:                 "/event",
		`{"filter":{},"event":{"specversion":"1"}}`: "/event/specversion",
	} {
		wantProblem(t, s.do("POST", "/v1/deadletters:redrive", body), 400, "invalid", pointer)
	}
	wantProblem(t, s.do("POST", "/v1/deadletters:discard", `{"filter":{},"to":"x","rate":1,"why":"x"}`), 400, "invalid", "/to", "/rate")
	wantProblem(t, s.do("POST", "/v1/deadletters:redrive?target=x", `{"filter":{}}`), 400, "invalid", "/target")
	wantProblem(t, s.do("POST", "/v1/deadletters:redrive", `{"filter":{}}`, "Content-Type", "text/plain"), 415, "unsupported")
	wantProblem(t, s.do("POST", "/v1/deadletters:redrive", `{"why":"`+strings.Repeat("x", 4<<20)+`"}`), 413, "too-large")
	if len(s.bridge.jobs) != 0 {
		t.Errorf("jobs %+v", s.bridge.jobs)
	}
}

func TestRedriveOfAnEvent(t *testing.T) {
	s := start(t)
	a := s.do("POST", "/v1/buses/default/events/a%2Fb:redrive", `{"source":"/s","rule":"r","target":"hook","to":"spare","delivered":true}`, "X-Request-Id", "one").want(t, http.StatusAccepted)
	if a.body != `{"delivery":"dlv_1"}` {
		t.Errorf("answer %s", a.body)
	}
	want := bridge.RedriveRequest{Bus: "default", ID: "a/b", Source: "/s", Rule: "r", Target: "hook", To: "spare", Delivered: true, By: "admin", RequestID: "one"}
	if d := cmp.Diff(want, s.bridge.lastQuery()); d != "" {
		t.Errorf("request (-want +got):\n%s", d)
	}
	wantProblem(t, s.do("POST", "/v1/buses/default/events/a:redrive", `{"Rule":"r"}`), 400, "invalid", "/Rule")
	wantProblem(t, s.do("POST", "/v1/buses/default/events/a:redrive?x=1", `{}`), 400, "invalid", "/x")
	wantProblem(t, s.do("POST", "/v1/buses/none/events/a:redrive", `{}`), 404, "not-found")
}

func TestSkipOfAnEvent(t *testing.T) {
	s := start(t)
	a := s.do("POST", "/v1/buses/default/events/a%2Fb:skip", `{"source":"/s","rule":"r","target":"hook"}`).want(t, http.StatusOK)
	if a.body != `{"deadLetter":"DEAD:7"}` {
		t.Errorf("answer %s", a.body)
	}
	want := bridge.SkipRequest{Bus: "default", ID: "a/b", Source: "/s", Rule: "r", Target: "hook", By: "admin"}
	if d := cmp.Diff(want, s.bridge.lastQuery()); d != "" {
		t.Errorf("request (-want +got):\n%s", d)
	}
	wantProblem(t, s.do("POST", "/v1/buses/default/events/a:skip", `{"to":"r"}`), 400, "invalid", "/to")
}
