// SPDX-License-Identifier: Apache-2.0

package eventlog_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/internal/eventlog"
)

const childDir = "RIALTO_EVENTLOG_CHILD"

// runChild is the process that is killed: it appends as fast as it can and prints "<number> <sequence>" for each
// acknowledged event.
func runChild() bool {
	dir := os.Getenv(childDir)
	if dir == "" {
		return false
	}
	if err := appendForever(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return true
}

func appendForever(dir string) error {
	ctx := context.Background()
	l, err := eventlog.Open(ctx, eventlog.Options{Dir: dir, Reserve: 1 << 20})
	if err != nil {
		return err
	}
	b, err := l.Bus(ctx, eventlog.BusConfig{Name: "default"})
	if err != nil {
		return err
	}
	var mu sync.Mutex
	for n := int(b.Committed()) * 1000; ; n++ {
		err := b.Append(ctx, record(n), func(r eventlog.Receipt) {
			mu.Lock()
			defer mu.Unlock()
			if r.Err == nil {
				_, r.Err = fmt.Println(n, r.Pos.Seq)
			}
			if r.Err != nil {
				os.Exit(1)
			}
		})
		if err != nil {
			return err
		}
	}
}

// A process that appends is killed again and again. Every event that it saw acknowledged is where its position says.
func TestKill(t *testing.T) {
	dir := t.TempDir()
	acked := map[uint64]string{}
	for round := range 6 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), childDir+"="+dir)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		must(t, err)
		must(t, cmd.Start())
		sc := bufio.NewScanner(out)
		before := len(acked)
		var kill *time.Timer
		for sc.Scan() {
			n, pos, ok := strings.Cut(sc.Text(), " ")
			seq, err := strconv.ParseUint(pos, 10, 64)
			if !ok || err != nil {
				break // the line that the kill has cut
			}
			if id, dup := acked[seq]; dup {
				t.Fatalf("sequence %d was given to %s and to %s", seq, id, n)
			}
			acked[seq] = "id-" + n
			if kill == nil { // random in effect: counted from the first acknowledgement
				kill = time.AfterFunc(time.Duration(20+17*round)*time.Millisecond, func() {
					if err := cmd.Process.Kill(); err != nil {
						t.Error(err)
					}
				})
			}
		}
		var exit *exec.ExitError
		if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != -1 {
			t.Fatalf("child ended with %v, want killed", err)
		}
		if len(acked) == before {
			t.Fatal("nothing was acknowledged in this round")
		}
	}
	l := open(t, eventlog.Options{Dir: dir})
	b := openBus(t, l, "default")
	if lost := b.Lost(); len(lost) > 0 {
		t.Errorf("Lost() = %v", lost)
	}
	found := readAll(t, b)
	for seq, id := range acked {
		if found[seq] != id {
			t.Fatalf("acknowledged event %s at %d: the log has %q there", id, seq, found[seq])
		}
	}
	t.Logf("%d acknowledged, %d in the log after 6 kills", len(acked), len(found))
}
