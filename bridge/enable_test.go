// SPDX-License-Identifier: Apache-2.0

package bridge_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/bridge"
	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/targets"
)

// The owner of a target that fails until it is disabled is told by which event, is told when it is enabled what was missed,
// and gets exactly that when it is redriven. What came meanwhile was held, and is made by itself.
func TestWhatWasMissedIsOfferedWhenATargetIsEnabled(t *testing.T) {
	f := newFixture(t)
	var status atomic.Int32
	status.Store(422)
	ops := f.target("ops", `{"concurrency":1,"retry":{"schedule":[]}}`, func(targets.Delivery) error {
		if s := status.Load(); s != 200 {
			return targets.StatusError(int(s), 0)
		}
		return nil
	})
	f.rule("all", "reading", "ops")
	f.start()
	defer func() { f.stop(time.Second) }()
	f.dead("refused") // for itself: the target works
	status.Store(503)
	f.dead("missed-0", "missed-1")
	status.Store(410)
	f.dead("missed-2")
	f.status("ops", bridge.TargetDisabled)
	f.send("reading", "held-0", "held-1")
	f.parked("ops", 2)

	told := f.announced(1)[0]
	last, ok := told["lastAttempt"].(map[string]any)
	if !ok || told["target"] != "ops" || last["eventId"] != "missed-2" || last["eventType"] != "reading" || last["bus"] != "default" ||
		last["rule"] != "all" || last["attempt"] != 1.0 || last["status"] != 410.0 || last["reason"] != "gone" || last["detail"] == nil {
		t.Errorf("told %v", told)
	}

	f.stop(time.Second)
	f.start()
	f.status("ops", bridge.TargetDisabled)
	if _, err := f.EnableTarget(context.Background(), "none", ""); fault.KindOf(err) != fault.NotFound {
		t.Errorf("enable no target: %v", err)
	}
	status.Store(200)
	e, err := f.EnableTarget(context.Background(), "ops", "me")
	f.must(err)
	if e.Target != "ops" || e.Held != 2 || e.Missed.Total != 3 || len(e.Missed.Groups) != 2 || e.DisabledAt.IsZero() || e.Reason != "it answered 410" {
		t.Errorf("enabled: %+v", e)
	}
	f.journey("held-0", bridge.StateDelivered)
	f.journey("held-1", bridge.StateDelivered)
	if _, err := f.EnableTarget(context.Background(), "ops", "me"); fault.KindOf(err) != fault.Conflict || !strings.Contains(err.Error(), "active") {
		t.Errorf("enable again: %v", err)
	}
	f.eventually(func() (string, bool) { // dead letters have the millisecond of their attempt
		return "it is still the millisecond of the filter", time.Now().Truncate(time.Millisecond).After(e.Filter.To)
	})
	status.Store(422)
	f.dead("refused later")
	status.Store(200)
	job := f.startJob(bridge.JobSpec{Kind: bridge.JobRedrive, Filter: e.Filter})
	if j := f.job(job.ID, bridge.JobDone); j.Total != 3 || j.Handled != 3 {
		t.Errorf("job %+v", j)
	}
	for _, id := range []string{"missed-0", "missed-1", "missed-2"} {
		f.journey(id, bridge.StateDelivered)
	}
	f.balanced()
	if left := f.deadLetters(bridge.DeadFilter{}); len(left) != 2 {
		t.Errorf("dead letters %+v", left)
	}
	if got := f.announced(2); got[1]["type"] != "io.rialto.target.enabled" || got[1]["failingSince"] == nil {
		t.Errorf("told %v", got)
	}
	f.stop(time.Second)
	f.start()
	f.status("ops", bridge.TargetActive)
	if n := len(ops.attempts(t, 10)); n != 10 {
		t.Errorf("%d attempts, want 10", n)
	}
}

// An attempt that was under way when its target was disabled does not disable it again after it was enabled.
func TestAnAttemptOfBeforeDoesNotDisableAgain(t *testing.T) {
	f := newFixture(t)
	gate := make(chan struct{})
	ops := f.target("ops", `{"concurrency":2}`, func(d targets.Delivery) error {
		if d.Event.ID == "slow" {
			<-gate
		}
		if d.Event.ID == "fresh" {
			return nil
		}
		return targets.StatusError(410, 0)
	})
	f.rule("all", "reading", "ops")
	f.start()
	defer f.stop(time.Second)
	f.send("reading", "slow", "quick")
	f.status("ops", bridge.TargetDisabled)
	ops.attempts(t, 2)
	_, err := f.EnableTarget(context.Background(), "ops", "me")
	f.must(err)
	close(gate)
	f.journey("slow", bridge.StateDead)
	f.send("reading", "fresh")
	f.journey("fresh", bridge.StateDelivered)
	f.status("ops", bridge.TargetActive)
}

// What the owner is told of an answer has neither its length nor its control characters.
func TestTheOwnerIsToldOfTheAnswer(t *testing.T) {
	f := newFixture(t)
	f.target("ops", quick, nil)
	f.targets["ops"].result = &targets.Result{Status: 410, Exchange: targets.Exchange{Head: strings.Repeat("gone for good ", 1000)}}
	f.targets["ops"].answer = func(targets.Delivery) error {
		return &targets.Error{Reason: targets.ReasonGone, Permanent: true, Status: 410, Err: errors.New("status\r\n410")}
	}
	f.rule("all", "reading", "ops")
	f.start()
	defer f.stop(time.Second)
	f.send("reading", "a")
	last, _ := f.announced(1)[0]["lastAttempt"].(map[string]any)
	response, _ := last["response"].(string)
	if len(response) > 1024 || !strings.HasPrefix(response, "gone for good") || last["detail"] != "status 410" {
		t.Errorf("told %v", last)
	}
}

// Who pauses a disabled target does not enable it, nor does a change of it while it is paused; who lets it go on does.
func TestAPauseEnablesNothing(t *testing.T) {
	f := newFixture(t)
	var back atomic.Bool
	f.target("ops", quick, func(targets.Delivery) error {
		if back.Load() {
			return nil
		}
		return targets.StatusError(410, 0)
	})
	f.rule("all", "reading", "ops")
	f.start()
	defer func() { f.stop(time.Second) }()
	f.dead("a")
	f.status("ops", bridge.TargetDisabled)
	f.announced(1)
	for range 2 {
		f.pause("ops", true)
		f.status("ops", bridge.TargetDisabled)
	}
	f.stop(time.Second)
	f.start()
	if s, err := f.TargetStatus("ops", false); err != nil || s.State != bridge.TargetDisabled {
		t.Errorf("after a restart: %+v, %v", s, err)
	}
	back.Store(true)
	f.send("reading", "b")
	f.parked("ops", 1)
	f.pause("ops", false)
	f.journey("b", bridge.StateDelivered)
	if got := f.announced(2); len(got) != 2 || got[1]["type"] != "io.rialto.target.enabled" {
		t.Errorf("told %v", got)
	}
}

// What the owner of a target is to be told stays to be told while bus default takes nothing, over stops, and is told once when there is
// room, in order, also of a target that is deleted by then.
func TestWhatTheOwnerIsToldOutlivesARestart(t *testing.T) {
	f := newFixture(t)
	f.busDoc, f.opts.HoldRetention = newest, true
	full := make(chan struct{})
	f.target("ops", quick, func(targets.Delivery) error {
		<-full
		return targets.StatusError(410, 0)
	})
	f.rule("all", "reading", "ops")
	f.start()
	f.send("reading", "a")
	f.targets["ops"].attempts(t, 1)
	for size := 1 << 19; size > 16; { // to the last byte
		if _, err := f.Ingest(context.Background(), "default", []*event.Record{{Event: event.Event{Source: "/test", Type: "other", Data: make([]byte, size)}}}); err != nil {
			size /= 2
		}
	}
	close(full)
	f.status("ops", bridge.TargetDisabled)
	f.stop(time.Second)
	f.start()
	f.status("ops", bridge.TargetDisabled)
	_, err := f.EnableTarget(context.Background(), "ops", "me")
	f.must(err)
	f.stop(time.Second)
	f.start()
	f.status("ops", bridge.TargetActive)
	f.RemoveTarget("ops")
	delete(f.targets, "ops")
	f.stop(time.Second)
	f.start()
	if page, err := f.Search(context.Background(), "default", bridge.SearchQuery{Source: "rialto/targets"}); err != nil || len(page.Items) != 0 {
		t.Errorf("on a bus that is full: %+v, %v", page.Items, err)
	}
	f.StartRetention()
	f.roomAgain()
	types := func() (out []string) {
		for _, e := range f.announced(2) {
			out = append(out, e["type"].(string))
		}
		return out
	}
	want := []string{"io.rialto.target.disabled", "io.rialto.target.enabled"}
	if got := types(); !slices.Equal(got, want) {
		t.Errorf("told %v, want %v", got, want)
	}
	f.stop(time.Second)
	f.start()
	defer f.stop(time.Second)
	if got := types(); !slices.Equal(got, want) {
		t.Errorf("told %v after a restart, want %v", got, want)
	}
}

// A kill before the event about a target is stored, and one before it is written down that it is: it is told once.
func TestAKillDoesNotTakeWhatTheOwnerIsTold(t *testing.T) {
	f := newFixture(t)
	f.target("ops", quick, func(targets.Delivery) error { return targets.StatusError(410, 0) })
	f.rule("all", "reading", "ops")
	f.start()
	defer func() { f.stop(time.Second) }()
	f.send("reading", "a")
	settled := func(n uint64) {
		t.Helper()
		f.eventually(func() (string, bool) {
			got := f.Lanes().Committed()
			return fmt.Sprintf("%d messages in LANES, want %d", got, n), got == n
		})
	}
	settled(2) // disabled, to be told; told
	first, err := f.Lanes().Get(context.Background(), 1)
	f.must(err)
	var m struct{ Untold []struct{ ID string } }
	if err := json.Unmarshal(first.Data, &m); err != nil || len(m.Untold) != 1 {
		t.Fatalf("LANES has %s, %v", first.Data, err)
	}
	for i, c := range []struct{ id, name string }{{m.Untold[0].ID, "after the event"}, {"other", "before it"}} {
		data := bytes.Replace(first.Data, []byte(m.Untold[0].ID), []byte(c.id), 1)
		done := make(chan error, 1)
		f.must(f.Lanes().Append(context.Background(), eventlog.Message{Subject: "lanes", Data: data}, func(r eventlog.Result) { done <- r.Err }))
		f.must(<-done)
		f.stop(time.Second)
		f.start()
		f.status("ops", bridge.TargetDisabled)
		settled(uint64(4 + 2*i))
		if got := f.announced(1 + i); len(got) != 1+i {
			t.Errorf("killed %s: told %v", c.name, got)
		}
	}
}
