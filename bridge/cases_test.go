// SPDX-License-Identifier: Apache-2.0

package bridge_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/bridge"
	"github.com/rialto-bridge/rialto/targets"
)

// covered says where each case of testdata/delivery.jsonl is tested: a file, or this folder, and a test.
var covered = map[string][2]string{
	"D01": {"failure_test.go", "TestALogThatHasFailed"},
	"D02": {"cases_test.go", "TestEveryRuleSeesEveryEvent"},
	"D03": {"cases_test.go", "TestEveryRuleSeesEveryEvent"},
	"D07": {"cases_test.go", "TestEachFailureIsAnAttemptOfItsOwnKind"},
	"D09": {"enable_test.go", "TestWhatWasMissedIsOfferedWhenATargetIsEnabled"},
	"D10": {"enable_test.go", "TestTheOwnerIsToldOfTheAnswer"},
	"D11": {"bridge_test.go", "TestDeletedRulesAndTargetsCancelWhatIsPending"},
	"D17": {"redrive_test.go", "TestAnythingThatHasEndedCanBeRetried"},
	"D18": {"redrive_test.go", "TestDeadLettersAreCountedByWhatTheyDiedOf"},
	"D20": {"order_test.go", "TestAFailingHeadBlocksOnlyItsKey"},
	"D21": {"../internal/app/disk_test.go", "TestDiskFullIsSaidAndHeals"},
	"D23": {"property_test.go", "TestWhateverHappensAllIsDelivered"},
	"D25": {"cases_test.go", "TestSchedulesMeanWhatTheySay"},
	"D26": {"standing_test.go", "TestWhenFailuresDisable"},
	"D27": {"enable_test.go", "TestWhatWasMissedIsOfferedWhenATargetIsEnabled"},
	"D28": {"patience_test.go", "TestALaneThatCannotReadWaits"},
	"D29": {"cases_test.go", "TestADeadLetterSurvivesAnyAnswer"},
	"D31": {"bridge_test.go", "TestWhatCannotSucceedBecomesADeadLetter"},
	"D32": {"../internal/event/peer_test.go", "TestSDKSendsAndWeRead"},
	"D33": {"bridge_test.go", "TestWhatCannotSucceedBecomesADeadLetter"},
	"D35": {"bridge_test.go", "TestWhatIsOwedSurvivesARestart"},
	"D36": {"bridge_test.go", "TestABacklogDrainsOnce"},
	"D38": {"cases_test.go", "TestARestartDeliversNothingAgain"},
	"D40": {"order_test.go", "TestSkipAndBlock"},
	"D45": {"../targets/outbound/exchange_test.go", "TestExchangeSucceedsWith2xxOnly"},
}

func TestEveryCaseHasATest(t *testing.T) {
	f, err := os.Open("testdata/delivery.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	left := maps.Clone(covered)
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var c struct{ ID, Right string }
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			t.Fatal(err)
		}
		at, ok := left[c.ID]
		if !ok {
			t.Errorf("no test for %s: %s", c.ID, c.Right)
			continue
		}
		delete(left, c.ID)
		source, err := os.ReadFile(at[0])
		if err != nil || !bytes.Contains(source, []byte("\nfunc "+at[1]+"(t *testing.T)")) {
			t.Errorf("%s: no test %s in %s: %v", c.ID, at[1], at[0], err)
		}
	}
	for id := range left {
		t.Errorf("no case %s", id)
	}
}

// Events that differ in their id alone, sent at once, and rules with the same pattern.
func TestEveryRuleSeesEveryEvent(t *testing.T) {
	f := newFixture(t).start()
	defer f.stop(time.Second)
	ops := f.target("ops", quick, nil)
	const n = 5
	for i := range n {
		f.rule(fmt.Sprint("rule", i), "reading", "ops")
	}
	var wg sync.WaitGroup
	for i := range 3 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			f.send("reading", fmt.Sprint("e", i))
		}()
	}
	wg.Wait()
	l := f.balanced()
	if l.Events.Accepted != 3 || len(l.Deliveries) != n || len(ops.attempts(t, 3*n)) != 3*n {
		t.Errorf("account %+v", l)
	}
	for _, d := range l.Deliveries {
		if d.Delivered != 3 {
			t.Errorf("%s saw %d events, want 3", d.Rule, d.Delivered)
		}
	}
}

// Every failure is an attempt with its own reason; only the one that our own stop cuts off is not counted.
func TestEachFailureIsAnAttemptOfItsOwnKind(t *testing.T) {
	f := newFixture(t)
	reasons := []targets.Reason{targets.ReasonConnect, targets.ReasonReset, targets.ReasonTLS, targets.ReasonTimeout}
	var up atomic.Bool
	ops := f.target("ops", quick, func(d targets.Delivery) error {
		switch {
		case d.Attempt <= len(reasons):
			return &targets.Error{Reason: reasons[d.Attempt-1], Err: errors.New("no luck")}
		case !up.Load():
			return errHang
		}
		return nil
	})
	f.rule("all", "reading", "ops")
	f.start()
	f.send("reading", "a")
	ops.attempts(t, len(reasons)+1)
	f.stop(20 * time.Millisecond)
	up.Store(true)
	f.start()
	defer f.stop(time.Second)
	got := f.journey("a", bridge.StateDelivered).Journey.Deliveries[0].Attempts
	if len(got) != len(reasons)+1 || !got[len(reasons)].OK || got[len(reasons)].N != len(reasons)+1 {
		t.Fatalf("attempts %+v", got)
	}
	for i, r := range reasons {
		if got[i].Reason != string(r) || got[i].N != i+1 {
			t.Errorf("attempt %+v, want %d for %s", got[i], i+1, r)
		}
	}
}

func TestSchedulesMeanWhatTheySay(t *testing.T) {
	f := newFixture(t).start()
	defer f.stop(time.Second)
	down := func(targets.Delivery) error { return targets.StatusError(500, 0) }
	f.target("never", `{"retry":{"schedule":[]}}`, down)
	f.target("at-once", `{"retry":{"schedule":[0],"maxAttempts":5}}`, down)
	f.rule("all", "reading", "never", "at-once")
	f.send("reading", "a")
	for _, d := range f.journey("a", bridge.StateDead).Journey.Deliveries {
		want := map[string]int{"never": 1, "at-once": 5}[d.Target]
		if len(d.Attempts) != want || d.Attempts[want-1].At.Sub(d.Attempts[0].At) > 2*time.Second {
			t.Errorf("%s: attempts %+v, want %d at once", d.Target, d.Attempts, want)
		}
	}
}

// By default an event that cannot be delivered holds up no other; the strategies that others have can be written down.
func TestAnEventThatCannotBeDeliveredIsPassedOver(t *testing.T) {
	f := newFixture(t).start()
	defer f.stop(time.Second)
	f.target("ops", `{"concurrency":1,"retry":{"schedule":["1ms"],"maxAttempts":3}}`, func(d targets.Delivery) error {
		if d.Event.ID == "bad" {
			return targets.StatusError(500, 0)
		}
		return nil
	})
	f.rule("all", "reading", "ops")
	f.send("reading", "a", "bad", "b", "c")
	for _, id := range []string{"a", "b", "c"} {
		f.journey(id, bridge.StateDelivered)
	}
	if d := f.journey("bad", bridge.StateDead).Journey.Deliveries[0]; len(d.Attempts) != 3 || d.DeadLetter == "" {
		t.Errorf("delivery %+v", d)
	}

	kinds := targets.NewCatalog(targets.Kind{Name: "test", ConfigSchema: []byte(`{}`)})
	for _, c := range []struct {
		retry       string
		attempts    int
		least, most time.Duration // from the first attempt to the last
	}{
		{`{"exponential":{"initial":"1s","factor":2,"max":"512s"},"maxAttempts":176}`, 176, 23 * time.Hour, 25 * time.Hour},
		{`{"schedule":["15s"],"maxAttempts":3}`, 3, 20 * time.Second, 40 * time.Second},
	} {
		def, err := targets.ParseDefinition(fmt.Appendf(nil, `{"kind":"Target","name":"t","type":"test","delivery":{"retry":%s}}`, c.retry), kinds)
		f.must(err)
		first := time.Unix(1e9, 0)
		now, n := first, 1
		for {
			d := targets.Next(def.Delivery.Retry, n, targets.StatusError(500, 0), first, now, func() float64 { return 0.5 })
			if d.Dead() {
				break
			}
			now, n = d.At, n+1
		}
		if took := now.Sub(first); n != c.attempts || took < c.least || took > c.most {
			t.Errorf("%s: %d attempts in %v", c.retry, n, took)
		}
	}
}

// What a target answers, or an error says, cannot break the dead letter that tells of it.
func TestADeadLetterSurvivesAnyAnswer(t *testing.T) {
	f := newFixture(t).start()
	defer f.stop(time.Second)
	const answer = "<html>\r\n\r\nRialto-Dead: {}\r\nce-id: other\x00\xff</html>\n"
	f.target("ops", `{"retry":{"schedule":[]}}`, func(targets.Delivery) error {
		return &targets.Error{Reason: targets.ReasonStatus, Status: 405, Err: errors.New(answer)}
	})
	f.rule("all", "reading", "ops")
	f.send("reading", "a")
	f.journey("a", bridge.StateDead)
	page, err := f.DeadLetters(context.Background(), bridge.DeadQuery{})
	f.must(err)
	if len(page.Items) != 1 {
		t.Fatalf("dead letters %+v", page)
	}
	dl := page.Items[0]
	if dl.EventID != "a" || dl.Status != 405 || dl.Reason != "status" || string(dl.Event.Data) != `{"n":1}` {
		t.Errorf("dead letter %+v", dl)
	}
	if bytes.ContainsAny([]byte(dl.Detail), "\r\n\x00") {
		t.Errorf("detail %q has control characters", dl.Detail)
	}
	f.balanced()
}

func TestARestartDeliversNothingAgain(t *testing.T) {
	f := newFixture(t)
	ops := f.target("ops", quick, nil)
	f.rule("all", "reading", "ops")
	f.start()
	f.send("reading", "a", "b", "c")
	f.balanced()
	f.stop(time.Second)
	for _, views := range []string{"kept", "deleted"} {
		if views == "deleted" {
			f.must(os.RemoveAll(f.views()))
		}
		f.start()
		f.send("reading", "after-"+views)
		f.journey("after-"+views, bridge.StateDelivered)
		f.balanced()
		f.stop(time.Second)
	}
	seen := map[string]int{}
	for _, d := range ops.attempts(t, 5) {
		seen[d.Event.ID]++
	}
	if len(seen) != 5 || len(ops.attempts(t, 5)) != 5 {
		t.Errorf("delivered %v, want five once each", seen)
	}
}
