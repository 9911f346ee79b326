// SPDX-License-Identifier: Apache-2.0

package journal_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/internal/journal"
)

// childViews, in the environment, makes this test binary a process that feeds views from the log in that directory.
const childViews = "RIALTO_TEST_CHILD_VIEWS"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childViews); dir != "" {
		if err := beIndexer(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// source is a log with a bus and its JOURNEY.
type source struct {
	log     *eventlog.Log
	bus     *eventlog.Bus
	journey *eventlog.Stream
}

func openSource(ctx context.Context, dir string) (*source, error) {
	log, err := eventlog.Open(ctx, eventlog.Options{Dir: filepath.Join(dir, "events"), Durability: eventlog.OS, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	s := &source{log: log}
	if s.bus, err = log.Bus(ctx, eventlog.BusConfig{Name: "devices"}); err != nil {
		return nil, err
	}
	s.journey, err = log.Stream(ctx, eventlog.StreamConfig{Name: "JOURNEY_devices", Subjects: []string{"journey.devices"}})
	return s, err
}

// feed brings JOURNEY, up to a sequence, and the events, up to another, into views.
func (s *source) feed(ctx context.Context, j *journal.Journal, journey, events uint64) error {
	var wg sync.WaitGroup
	var errs [2]error
	wg.Go(func() {
		errs[0] = s.messages(ctx, j, journey, func(raw eventlog.Raw) error { return j.Apply("devices", raw.Seq, raw.Data) })
	})
	wg.Go(func() { errs[1] = s.index(ctx, j, events) })
	wg.Wait()
	return errors.Join(errs[:]...)
}

func (s *source) messages(ctx context.Context, j *journal.Journal, last uint64, fn func(eventlog.Raw) error) error {
	from := uint64(1)
	if j != nil {
		done, err := j.Applied("devices")
		if err != nil {
			return err
		}
		from = done + 1
	}
	for from <= last {
		raws, err := s.journey.Read(ctx, eventlog.ReadOptions{From: from, Max: 64}, nil)
		if err != nil {
			return err
		}
		for _, raw := range raws {
			if raw.Seq > last {
				return nil
			}
			if err := fn(raw); err != nil {
				return err
			}
			from = raw.Seq + 1
		}
	}
	return nil
}

func (s *source) index(ctx context.Context, j *journal.Journal, last uint64) error {
	done, err := j.Indexed("devices")
	if err != nil {
		return err
	}
	for from := done + 1; from <= last; {
		entries, next, err := s.bus.Read(ctx, from, int(min(100, last-from+1)), nil)
		if err != nil {
			return err
		}
		if err := j.Index("devices", entries, nil, next); err != nil {
			return err
		}
		from = next
	}
	return nil
}

// beIndexer feeds views, and writes out what they hold again and again, until it is killed.
func beIndexer(dir string) error {
	ctx := context.Background()
	s, err := openSource(ctx, dir)
	if err != nil {
		return err
	}
	j, err := journal.Open(journal.Options{Dir: filepath.Join(dir, "views"), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	fmt.Println("ready")
	go func() {
		for range time.Tick(10 * time.Millisecond) {
			if err := j.Flush(); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
		}
	}()
	if err := s.feed(ctx, j, s.journey.Committed(), s.bus.Committed()); err != nil {
		return err
	}
	if err := j.Flush(); err != nil {
		return err
	}
	fmt.Println("done")
	_, err = io.Copy(io.Discard, os.Stdin) // until it is killed, or the parent is gone
	return err
}

// TestKillIndexing kills a process that indexes, again and again, at random moments. Each time the views must be those of
// some position, key for key what feeding up to there gives, and tell of every delivery what a full scan of JOURNEY tells.
// Views that are deleted are rebuilt to the same.
func TestKillIndexing(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	s, err := openSource(ctx, dir)
	if err != nil {
		t.Fatal(err)
	}
	h := newHistory(uint64(time.Now().UnixNano()))
	var e journal.Encoder
	const messages, events = 800, 10_000
	var wg sync.WaitGroup
	for range messages {
		wg.Add(1)
		if err := s.journey.Append(ctx, eventlog.Message{Subject: "journey.devices", Data: h.message(&e)}, func(r eventlog.Result) {
			if r.Err != nil {
				t.Error(r.Err)
			}
			wg.Done()
		}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range events {
		wg.Add(1)
		rec := &event.Record{Event: event.Event{ID: fmt.Sprint("id-", i), Source: "/s", Type: "t", Subject: fmt.Sprint("subject-", i%50)}}
		if err := s.bus.Append(ctx, rec, func(r eventlog.Receipt) {
			if r.Err != nil {
				t.Error(r.Err)
			}
			wg.Done()
		}); err != nil {
			t.Fatal(err)
		}
	}
	wg.Wait()
	if err := s.log.Close(ctx); err != nil {
		t.Fatal(err)
	}

	kills := 0
	for last := uint64(0); last < messages; kills++ {
		if kills == 200 {
			t.Fatalf("after %d lives the views hold %d of %d messages", kills, last, messages)
		}
		killIndexer(t, dir, time.Duration(10+rand.IntN(100))*time.Millisecond)
		if kills%4 == 0 {
			last = check(t, dir)
		}
	}
	t.Logf("fed in %d lives", kills)
	if err := os.RemoveAll(filepath.Join(dir, "views")); err != nil {
		t.Fatal(err)
	}
	killIndexer(t, dir, time.Minute)
	if last := check(t, dir); last == 0 {
		t.Error("views that were deleted hold nothing")
	}
}

// killIndexer lets a process index for a while, or until it is done, and kills it.
func killIndexer(t *testing.T, dir string, after time.Duration) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childViews+"="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	if !lines.Scan() || lines.Text() != "ready" {
		t.Fatalf("the process says %q: %v", lines.Text(), cmd.Wait())
	}
	timer := time.AfterFunc(after, func() { cmd.Process.Kill() })
	lines.Scan() // done, or its end
	timer.Stop()
	cmd.Process.Kill()
	cmd.Wait() // killed: the error is known
}

// check compares the views that a crash has left with a full scan, and with views that are fed up to the same positions.
// It returns the position in JOURNEY.
func check(t *testing.T, dir string) uint64 {
	t.Helper()
	ctx := context.Background()
	s, err := openSource(ctx, dir)
	if err != nil {
		t.Fatal(err)
	}
	defer s.log.Close(ctx)
	j := open(t, filepath.Join(dir, "views"))
	defer j.Close()
	applied, err := j.Applied("devices")
	if err != nil {
		t.Fatal(err)
	}
	indexed, err := j.Indexed("devices")
	if err != nil {
		t.Fatal(err)
	}
	want := ends{}
	if err := s.messages(ctx, nil, applied, func(raw eventlog.Raw) error { return want.read(raw.Data) }); err != nil {
		t.Fatal(err)
	}
	agree(t, j, want)
	fresh := open(t, t.TempDir())
	defer fresh.Close()
	if err := s.feed(ctx, fresh, applied, indexed); err != nil {
		t.Fatal(err)
	}
	if d := gocmp.Diff(dump(t, fresh), dump(t, j)); d != "" {
		t.Errorf("at %d and %d (-fed +left by the crash):\n%s", applied, indexed, d)
	}
	return applied
}
