// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

const (
	goodCase = `{"id":"good","pattern":"{\"a\":[1]}","event":"{\"a\":1}","expect":true}` + "\n"
	badCase  = `{"id":"bad","pattern":"{\"a\":[1]}","event":"{\"a\":2}","expect":true}` + "\n"
)

// watched is `rialto test --watch` on a file, in the time of a synctest bubble.
type watched struct {
	t        *testing.T
	file     string
	out, err syncBuffer
	stop     context.CancelFunc
	done     chan int
}

func watchCases(t *testing.T, screen bool, text string) *watched {
	w := &watched{t: t, file: filepath.Join(t.TempDir(), "cases.jsonl"), done: make(chan int, 1)}
	writeFile(t, w.file, text)
	ctx, cancel := context.WithCancel(t.Context())
	w.stop = cancel
	go func() {
		w.done <- run(ctx, &cli{in: strings.NewReader(""), out: &w.out, err: &w.err, http: &http.Client{}, now: time.Now, screen: screen,
			getenv: func(string) string { return "" }}, []string{"test", "--watch", w.file})
	}()
	synctest.Wait()
	return w
}

// after changes the file, lets the watcher look, and returns what it has printed since.
func (w *watched) after(change func()) string {
	w.t.Helper()
	before := len(w.out.String())
	change()
	<-time.After(2 * watchEvery)
	synctest.Wait()
	return w.out.String()[before:]
}

func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watchCases(t, false, goodCase)
		if got := w.out.String(); got != "1 passed, 0 failed\n" {
			t.Errorf("the first run prints %q", got)
		}
		if got := w.after(func() {}); got != "" {
			t.Errorf("nothing has changed, and it prints %q", got)
		}
		if got := w.after(func() { writeFile(t, w.file, goodCase+badCase) }); !strings.HasPrefix(got, "FAIL bad: ") || !strings.HasSuffix(got, "1 passed, 1 failed\n") {
			t.Errorf("after a change: %q", got)
		}
		if got := w.after(func() {
			if err := os.Remove(w.file); err != nil {
				t.Error(err)
			}
		}); got != "" || !strings.Contains(w.err.String(), "no such file") {
			t.Errorf("without the file: %q, stderr %q", got, w.err.String())
		}
		if got := w.after(func() { writeFile(t, w.file, `{"id"`) }); got != "" || !strings.Contains(w.err.String(), "line 1") {
			t.Errorf("a file that is half written: %q, stderr %q", got, w.err.String())
		}
		if got := w.after(func() { writeFile(t, w.file, badCase) }); !strings.HasSuffix(got, "0 passed, 1 failed\n") {
			t.Errorf("the file is back: %q", got)
		}
		w.stop()
		if code := <-w.done; code != exitProblems {
			t.Errorf("ended with %d after a run that failed, want %d", code, exitProblems)
		}
		if strings.Contains(w.out.String(), "\x1b") {
			t.Errorf("no terminal is cleared: %q", w.out.String())
		}
	})
}

// A test may name a rule that stands in a file beside it, which is then watched as well.
func TestWatchBeside(t *testing.T) {
	const test = "rule: warm\nevent: {data: {t: 9}}\nexpect: match\n"
	rule := func(name string, least int) string {
		return fmt.Sprintf("kind: Rule\nname: %s\npattern: {data: {t: [{numeric: ['>', %d]}]}}\ntargets: [{target: a}]\n", name, least)
	}
	synctest.Test(t, func(t *testing.T) {
		w := watchCases(t, false, test)
		beside := filepath.Join(filepath.Dir(w.file), "rules.yaml")
		if !strings.Contains(w.err.String(), "no rule warm in the file before its tests, nor in the files beside it") {
			t.Errorf("without the rule: %q", w.err.String())
		}
		for _, step := range []struct {
			name, text, out, err string
		}{
			{"the rule", rule("warm", 8), "1 passed, 0 failed\n", ""},
			{"a change", rule("warm", 10), "0 passed, 1 failed\n", ""},
			{"another rule", rule("cold", 8), "", "no rule warm"},
			{"twice", rule("warm", 8) + "---\n" + rule("warm", 9), "", "rule warm stands in"},
			{"a rule that is refused", "kind: Rule\nname: warm\npattern: {}\n", "", "/targets"},
			{"no definitions", "a: [", "", "no rule warm"},
		} {
			w.err.Reset()
			if got := w.after(func() { writeFile(t, beside, step.text) }); !strings.HasSuffix(got, step.out) || (got == "") != (step.out == "") || !strings.Contains(w.err.String(), step.err) {
				t.Errorf("%s: %q, stderr %q", step.name, got, w.err.String())
			}
		}
		w.stop()
		if code := <-w.done; code != exitFailed {
			t.Errorf("ended with %d after a run that could not find its rule, want %d", code, exitFailed)
		}
	})
}

func TestWatchScreen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watchCases(t, true, badCase)
		if got := w.after(func() { writeFile(t, w.file, goodCase) }); got != clearScreen+"1 passed, 0 failed\n" {
			t.Errorf("on a terminal it prints %q", got)
		}
		w.stop()
		if code := <-w.done; code != exitOK {
			t.Errorf("ended with %d after a run that passed, want 0", code)
		}
	})
}
