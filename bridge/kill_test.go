// SPDX-License-Identifier: Apache-2.0

package bridge_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/rialto-bridge/rialto/bridge"
	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/rules"
	"github.com/rialto-bridge/rialto/targets"
)

// childDir, in the environment, makes this test binary a bridge with its data there, until it is killed; childLife is the
// number of its life.
const (
	childDir  = "RIALTO_TEST_BRIDGE_DIR"
	childLife = "RIALTO_TEST_BRIDGE_LIFE"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		if life, aside := strings.CutPrefix(os.Getenv(childLife), "aside-"); aside {
			liveAside(dir, life)
		} else {
			live(dir, life)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// child is the testing.TB of a process that is no test.
type child struct{ testing.TB }

func (child) Helper() {}

func (c child) Error(args ...any) { c.Fatal(args...) }

func (child) Fatal(args ...any) {
	fmt.Fprintln(os.Stderr, args...)
	os.Exit(1)
}

// live is a bridge whose targets fail, hang and recover, and whose rules and targets change, with more coming than they take.
// It says which events were accepted, on standard output, and writes down what was delivered.
func live(dir, life string) {
	f := &fixture{t: child{}, dir: dir, targets: map[string]*recipient{}}
	f.opts = killOptions()
	out, err := os.OpenFile(filepath.Join(dir, "delivered"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	f.must(err)
	var up atomic.Bool
	var n atomic.Uint64
	answer := func(d targets.Delivery) error {
		switch i := n.Add(1); {
		case up.Load() && i%50 != 0:
			_, err := fmt.Fprintf(out, "%s %s\n", d.Target, d.Event.ID)
			return err
		case i%97 == 0:
			return errHang
		}
		return targets.StatusError(503, 0)
	}
	for _, name := range []string{"ops", "other", "passing"} {
		f.target(name, killPolicy, answer)
	}
	inOrder, err := os.OpenFile(filepath.Join(dir, "order"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	f.must(err)
	f.target("ordered", killOrdered, func(d targets.Delivery) error {
		if n.Add(1)%20 == 0 || !up.Load() {
			return targets.StatusError(503, 0)
		}
		_, err := fmt.Fprintf(inOrder, "%s %d\n", d.Event.Subject, d.Position.Seq)
		return err
	})
	f.rule("all", "reading", "ops", "other", "ordered")
	f.rule("passing", "reading", "passing")
	f.start()
	go io.Copy(io.Discard, os.Stdin) //nolint:errcheck // until the parent is gone
	seed := uint64(len(life))*1000 + uint64(life[len(life)-1])
	go disturb(f, rand.New(rand.NewPCG(seed, 7)), &up)
	acked := make(chan string, 10_000)
	go func() {
		for i := 0; ; i++ {
			id := fmt.Sprintf("%s-%d", life, i)
			rec := &event.Record{Event: event.Event{ID: id, Source: "/test", Subject: fmt.Sprint("k", i%40), Type: "reading", Data: []byte("{}")}}
			f.must(f.Publish(context.Background(), "default", rec, func(r bridge.Receipt) {
				if r.Err == nil {
					acked <- id
				}
			}))
			if i%100 == 0 && !pace() {
				return
			}
		}
	}()
	for id := range acked {
		fmt.Println(id)
	}
}

// pace is a breath between two bursts.
func pace() bool { <-time.After(10 * time.Millisecond); return true }

func killOptions() bridge.Options {
	return bridge.Options{RangeAfter: 100, LiveQueue: 16, Unsettled: 20 * time.Millisecond, Window: 1000}
}

const killPolicy = `{"concurrency":4,"timeout":"1s","retry":{"schedule":["20ms"],"maxAttempts":1000},
	"breaker":{"window":"1s","minAttempts":3,"open":"100ms","maxOpen":"100ms"}}`

var killOrdered = `{"ordering":"key",` + killPolicy[1:]

// disturb takes the targets down and up, edits and deletes a rule, and deletes a target, for ever.
func disturb(f *fixture, rnd *rand.Rand, up *atomic.Bool) {
	passing := f.targets["passing"]
	for {
		<-time.After(time.Duration(20+rnd.IntN(80)) * time.Millisecond)
		switch rnd.IntN(7) {
		case 0, 1, 2:
			up.Store(!up.Load())
		case 3: // the rule again, at a new revision
			f.setRules(f.rules[:1:1])
			f.rule("passing", "reading", "passing")
		case 4:
			f.rev++
			edited := *f.rules[0]
			edited.Revision = f.rev
			f.setRules(append([]*rules.Rule{&edited}, f.rules[1:]...))
		case 5:
			f.RemoveTarget("passing")
			<-time.After(time.Duration(rnd.IntN(20)) * time.Millisecond)
			f.must(f.SetTarget(passing.def, passing))
		case 6: // what was cancelled is made again, while its rule is not there
			f.setRules(f.rules[:1:1])
			redriveCancelled(f)
			f.rule("passing", "reading", "passing")
		}
	}
}

// redriveCancelled makes some of what was cancelled owed again.
func redriveCancelled(f *fixture) {
	page, err := f.Search(context.Background(), "default", bridge.SearchQuery{Target: "passing", Outcome: "cancelled", Limit: 20})
	f.must(err)
	for _, found := range page.Items {
		_, err := f.Redrive(context.Background(), bridge.RedriveRequest{Bus: "default", ID: found.Event.ID, Rule: "passing", Target: "passing"})
		if k := fault.KindOf(err); err != nil && k != fault.Conflict { // it may be owed again, or its target be gone
			f.t.Fatal(err)
		}
	}
}

// A bridge is killed at random moments while deliveries go into ranges and come out of them, while rules are edited and
// deleted, what they had sent is redriven, and a target is deleted, with its views kept or deleted. A target that keeps order gets each key in order, and after a
// kill again what it got last, at most. In the end all that was accepted has ended, and was
// delivered where its rule and target are still there; the account adds up.
func TestKillWithRanges(t *testing.T) {
	dir := t.TempDir()
	rnd := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 2))
	var acked []string
	const lives = 6
	for life := range lives {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), childDir+"="+dir, fmt.Sprintf("%s=%d", childLife, life))
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		cmd.Stderr = os.Stderr
		stdin, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		killed := false
		until := time.Time{}
		for lines.Scan() {
			if acked = append(acked, lines.Text()); until.IsZero() {
				until = time.Now().Add(time.Duration(200+rnd.IntN(600)) * time.Millisecond)
			}
			if !killed && time.Now().After(until) {
				killed = true
				if err := cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
		}
		stdin.Close()
		if err := cmd.Wait(); !killed {
			t.Fatalf("life %d ended by itself: %v", life, err)
		}
		if life%4 == 3 {
			if err := os.RemoveAll(filepath.Join(dir, "views")); err != nil {
				t.Fatal(err)
			}
		}
	}
	f := &fixture{t: t, dir: dir, targets: map[string]*recipient{}}
	f.opts = killOptions()
	f.rev = 1 << 20
	var mu sync.Mutex
	delivered := map[string]int{}
	for _, name := range []string{"ops", "other", "passing"} {
		f.target(name, killPolicy, func(d targets.Delivery) error {
			mu.Lock()
			defer mu.Unlock()
			delivered[name+" "+d.Event.ID]++
			return nil
		})
	}
	seq := newSequence(t)
	if b, err := os.ReadFile(filepath.Join(dir, "order")); err == nil {
		for line := range bytes.Lines(b) {
			var key string
			var at uint64
			if _, err := fmt.Sscan(string(line), &key, &at); err != nil {
				t.Fatal(err)
			}
			seq.accepted(key, at)
		}
	}
	f.target("ordered", killOrdered, func(d targets.Delivery) error { return seq.attempt(d, func() error { return nil }) })
	f.rule("all", "reading", "ops", "other", "ordered")
	f.rule("passing", "reading", "passing")
	f.start()
	defer func() { f.stop(time.Second) }()
	l := f.balancedWithin(time.Minute)
	b, err := os.ReadFile(filepath.Join(dir, "delivered"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	before := bytes.Count(b, []byte("\n"))
	for line := range bytes.Lines(b) {
		delivered[string(bytes.TrimSpace(line))]++
	}
	repeats, missing := 0, 0
	for _, n := range delivered {
		repeats += n - 1
	}
	for _, id := range acked {
		for _, name := range []string{"ops", "other"} {
			if delivered[name+" "+id] == 0 {
				missing++
				t.Logf("%s was not delivered to %s", id, name)
			}
		}
	}
	if missing > 0 {
		t.Errorf("%d of %d accepted events were not delivered", missing, len(acked))
	}
	for _, d := range l.Deliveries {
		if d.Rule == "all" && d.Delivered != d.Owed || d.Dead > 0 || d.Expired > 0 {
			t.Errorf("account %+v", d)
		}
	}
	t.Logf("%d accepted in %d lives, %d deliveries before the last start, %d repeated; %+v", len(acked), lives, before, repeats, l.Deliveries)
	if seq.count < len(acked) {
		t.Errorf("%d events were delivered in order, %d were accepted", seq.count, len(acked))
	}
	t.Logf("in order: %d, repeated %d", seq.count, seq.repeats)
	was := l.Deliveries
	f.rebuild()
	if l := f.balanced(); fmt.Sprint(l.Deliveries) != fmt.Sprint(was) {
		t.Errorf("account %+v, and when it was rebuilt %+v", was, l.Deliveries)
	}
}
