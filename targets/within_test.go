// SPDX-License-Identifier: Apache-2.0

package targets_test

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rialto-bridge/rialto/targets"
)

// A Within ends as what context.WithTimeout returns does, whether somebody has asked for Done or not, and so do its children.
func TestWithinEnds(t *testing.T) {
	type key struct{}
	for name, c := range map[string]struct {
		end  func(w *targets.Within, stop context.CancelFunc)
		want error
	}{
		"at its moment":  {func(*targets.Within, context.CancelFunc) { time.Sleep(time.Second) }, context.DeadlineExceeded},
		"with shared":    {func(_ *targets.Within, stop context.CancelFunc) { stop() }, context.Canceled},
		"when closed":    {func(w *targets.Within, _ context.CancelFunc) { w.Close() }, context.Canceled},
		"not too early":  {func(*targets.Within, context.CancelFunc) { time.Sleep(time.Second - 1) }, nil},
		"not by nothing": {func(*targets.Within, context.CancelFunc) {}, nil},
	} {
		for _, asked := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					shared, stop := context.WithCancel(context.WithValue(t.Context(), key{}, "value"))
					defer stop()
					w := targets.NewWithin(shared, time.Second)
					defer w.Close()
					if at, ok := w.Deadline(); !ok || !at.Equal(time.Now().Add(time.Second)) || w.Shared() != shared || w.Value(key{}) != "value" {
						t.Errorf("ends at %v", at)
					}
					var child context.Context
					if asked {
						before := runtime.NumGoroutine()
						c, cancel := context.WithCancel(w)
						defer cancel()
						child = c
						if n := runtime.NumGoroutine(); n != before {
							t.Errorf("a child takes %d goroutines", n-before)
						}
					}
					c.end(w, stop)
					synctest.Wait()
					if err := w.Err(); !errors.Is(err, c.want) {
						t.Errorf("Err = %v, want %v", err, c.want)
					}
					if child != nil && !errors.Is(child.Err(), c.want) {
						t.Errorf("Err of a child = %v, want %v", child.Err(), c.want)
					}
					select {
					case <-w.Done():
						if c.want == nil {
							t.Error("it has ended")
						}
					default:
						if c.want != nil {
							t.Error("it has not ended")
						}
					}
					if w.Value(key{}) != "value" {
						t.Error("the value is gone")
					}
				})
			})
		}
	}
}

// The sooner of two deadlines counts.
func TestWithinSharedDeadline(t *testing.T) {
	shared, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	w := targets.NewWithin(shared, time.Hour)
	defer w.Close()
	want, _ := shared.Deadline()
	if at, _ := w.Deadline(); !at.Equal(want) {
		t.Errorf("ends at %v, want %v", at, want)
	}
}
