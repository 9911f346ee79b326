// SPDX-License-Identifier: Apache-2.0

package app_test

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

// preload stores events of 256 bytes of data on a bus.
func (s *server) preload(bus string, events int) {
	s.t.Helper()
	pad := strings.Repeat("x", 230)
	for n := 0; n < events; n += 1000 {
		var batch [][]byte
		for i := range 1000 {
			batch = append(batch, fmt.Appendf(nil, `{"specversion":"1.0","id":"p%d","source":"/load","type":"load","data":{"n":%d,"pad":%q}}`, n+i, n+i, pad))
		}
		if !s.batch(bus, batch) {
			s.t.Fatal("the load is refused")
		}
	}
}

// TestGateRegionThroughput forwards a backlog to another bridge on the same two cores, each in a process of its own: at least 30 000
// events of 256 bytes a second.
func TestGateRegionThroughput(t *testing.T) {
	events := drillSize(t, 100_000)
	near, nearCmd := spawn(t, t.TempDir())
	far, farCmd := spawn(t, t.TempDir())
	for _, s := range []*server{near, far} {
		s.must("PUT", "/v1/buses/load", `{"dedupWindow":"0s"}`)
	}
	near.preload("load", events)
	near.settled("load", time.Minute)
	near.link("up", far.url, far.newKey("near", "events:write:load"), `,"bus":"load","start":"earliest","ordering":"log","paused":true`)
	nearCPU, farCPU := cpuOf(t, nearCmd.Process.Pid), cpuOf(t, farCmd.Process.Pid)
	start := time.Now()
	near.must("POST", "/v1/links/up:resume", "")
	near.forwarded("up", time.Minute)
	took := time.Since(start)
	if n := far.storedOn("load"); n != uint64(events) {
		t.Errorf("%d events are there, want %d", n, events)
	}
	per := func(d time.Duration) time.Duration { return d / time.Duration(events) }
	rate := float64(events) / took.Seconds()
	t.Logf("%d events in %v: %.0f/s; CPU an event: near %v, far %v", events, took.Round(time.Millisecond), rate, per(cpuOf(t, nearCmd.Process.Pid)-nearCPU), per(cpuOf(t, farCmd.Process.Pid)-farCPU))
	if rate < 30_000 {
		t.Errorf("%.0f events a second, want 30 000", rate)
	}
}

// TestGateRegionFresh cuts the line, lets a backlog gather, and brings the line back: an event that is published then is there within
// a second, before the backlog.
func TestGateRegionFresh(t *testing.T) {
	events := drillSize(t, 100_000)
	near, _ := spawn(t, t.TempDir())
	far, _ := spawn(t, t.TempDir())
	for _, s := range []*server{near, far} {
		s.must("PUT", "/v1/buses/load", `{"dedupWindow":"0s"}`)
	}
	w := newWire(t, far.url)
	near.link("up", w.url(), far.newKey("near", "events:write:load"), `,"bus":"load","start":"earliest"`)
	near.publish("load", "first", "t", "x")
	near.forwarded("up", 20*time.Second)
	w.setCut(true)
	near.preload("load", events)
	near.settled("load", time.Minute)
	w.setCut(false)
	back := time.Now()
	if status := near.publish("load", "fresh", "t", "x"); status != http.StatusAccepted {
		t.Fatalf("publish: %d", status)
	}
	eventually(t, 20*time.Second, func() (string, bool) { return "the fresh event is not there", far.event("load", "fresh") != nil })
	took := time.Since(back)
	before := far.storedOn("load")
	near.forwarded("up", time.Minute)
	t.Logf("a fresh event is there %v after the line is back, when %d of %d waiting were", took.Round(time.Millisecond), before, events)
	if took > time.Second {
		t.Errorf("a fresh event takes %v, want less than a second", took)
	}
	if n := far.storedOn("load"); n != uint64(events)+2 {
		t.Errorf("%d events are there, want %d", n, events+2)
	}
	if bytes.Count([]byte(near.must("GET", "/v1/ledger?bus=load", "")), []byte(`"difference":0`)) == 0 {
		t.Error("the account of the link does not add up")
	}
}
