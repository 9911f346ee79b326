// SPDX-License-Identifier: Apache-2.0

package bridge_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/bridge"
	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
)

// liveAside is a bridge that keeps events for moments, and cancels, commits and rolls back some, until it is killed. It says on
// standard output what it was told: "<what> <id>". Its bus does not deduplicate.
func liveAside(dir, life string) {
	f := &fixture{t: child{}, dir: dir, targets: map[string]*recipient{}, busDoc: withoutDedup}
	f.start()
	go io.Copy(io.Discard, os.Stdin) //nolint:errcheck // until the parent is gone
	var out sync.Mutex
	say := func(what, id string) {
		out.Lock()
		defer out.Unlock()
		fmt.Println(what, id)
	}
	for worker := range 8 {
		go func() {
			rnd := rand.New(rand.NewPCG(uint64(worker), uint64(len(life))))
			for i := 0; ; i++ {
				id := fmt.Sprintf("%s-%d-%d", life, worker, i)
				if i%2 == 0 {
					f.decideSoon(id, rnd, say)
				} else {
					f.scheduleSoon(id, rnd, say)
				}
			}
		}()
	}
	select {}
}

func (f *fixture) scheduleSoon(id string, rnd *rand.Rand, say func(what, id string)) {
	at := time.Now().Add(time.Duration(rnd.IntN(300)) * time.Millisecond)
	_, err := f.SetAside(context.Background(), "default", []*event.Record{later(id)}, bridge.AsideRequest{At: at})
	f.must(err)
	if rnd.IntN(3) > 0 {
		say("scheduled", id)
		return
	}
	switch err := f.Cancel(context.Background(), "default", id, "/test"); {
	case err == nil:
		say("cancelled", id)
	case fault.KindOf(err) == fault.NotFound:
		say("scheduled", id)
	default:
		f.must(err)
	}
}

func (f *fixture) decideSoon(id string, rnd *rand.Rand, say func(what, id string)) {
	kept, err := f.SetAside(context.Background(), "default", []*event.Record{later(id)}, bridge.AsideRequest{Prepare: true})
	f.must(err)
	say("prepared", id+" "+kept[0].Token)
	commit := rnd.IntN(3) > 0
	_, err = f.Decide(context.Background(), "default", kept[0].Token, commit)
	f.must(err)
	if commit {
		say("committed", id)
	} else {
		say("rolledback", id)
	}
}

// A bridge is killed at random moments while events are kept, become due, are cancelled, committed and rolled back. What was
// acknowledged holds: what was scheduled or committed is stored, what was cancelled or rolled back is not, and nothing is
// stored twice, although the bus does not deduplicate.
func TestKillWhileEventsAreKeptForLater(t *testing.T) {
	dir := t.TempDir()
	rnd := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 2))
	said := map[string]string{} // the last word about each event
	tokens := map[string]string{}
	const lives = 5
	for life := range lives {
		for _, line := range asideLife(t, dir, fmt.Sprintf("aside-%d", life), time.Duration(200+rnd.IntN(600))*time.Millisecond) {
			word := strings.Fields(line)
			if len(word) < 2 || word[0] == "prepared" && len(word) < 3 {
				continue // cut off
			}
			said[word[1]] = word[0]
			if word[0] == "prepared" {
				tokens[word[1]] = word[2]
			}
		}
	}
	f := &fixture{t: t, dir: dir, targets: map[string]*recipient{}, busDoc: withoutDedup}
	f.start()
	defer func() { f.stop(time.Second) }()
	for id, word := range said {
		if word != "prepared" {
			continue
		}
		switch _, err := f.Decide(t.Context(), "default", tokens[id], true); {
		case err == nil:
			said[id] = "committed"
		case fault.KindOf(err) == fault.NotFound:
			said[id] = "rolledback" // that was under way
		default:
			t.Fatal(err)
		}
	}
	f.awaitWaiting(false)
	times := map[string]int{}
	for _, id := range f.logged("later") {
		times[id]++
	}
	count := map[string]int{}
	for id, word := range said {
		count[word]++
		want := 0
		if word == "scheduled" || word == "committed" {
			want = 1
		}
		if times[id] != want {
			t.Errorf("%s was %s, and is stored %d times", id, word, times[id])
		}
	}
	for id, n := range times {
		if n > 1 {
			t.Errorf("%s is stored %d times", id, n)
		}
	}
	t.Logf("in %d lives: %v", lives, count)
	for _, word := range []string{"scheduled", "cancelled", "committed", "rolledback"} {
		if count[word] == 0 {
			t.Errorf("no event was %s", word)
		}
	}
}

// asideLife runs this test binary as liveAside, kills it a while after its first line, and returns its lines.
func asideLife(t *testing.T, dir, life string, wait time.Duration) (lines []string) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childDir+"="+dir, childLife+"="+life)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close() //nolint:errcheck // only to hold it
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var kill *time.Timer
	scan := bufio.NewScanner(out)
	for scan.Scan() {
		if kill == nil {
			kill = time.AfterFunc(wait, func() {
				if err := cmd.Process.Kill(); err != nil {
					t.Error(err)
				}
			})
		}
		lines = append(lines, scan.Text())
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); kill == nil || !errors.As(err, &exit) || exit.ExitCode() != -1 {
		t.Fatalf("life %s ended by itself: %v", life, err)
	}
	return lines
}
