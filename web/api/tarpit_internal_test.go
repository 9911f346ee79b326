// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// The first refusals of a second are answered at once, the others wait, and when too many wait the next ones lose their connection.
func TestTarpit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newTarpit(0)
		p.most = 2
		began := time.Now()
		for range quickRefusals {
			if p.hold(t.Context(), http.Header{}) {
				t.Fatal("one of the first waits")
			}
		}
		var waited atomic.Int32
		var all sync.WaitGroup
		for range p.most {
			all.Go(func() {
				h := http.Header{}
				if p.hold(t.Context(), h) && len(h) == 0 {
					waited.Add(1)
				}
			})
		}
		synctest.Wait()
		h := http.Header{}
		if p.hold(t.Context(), h) || h.Get("Connection") != "close" {
			t.Errorf("one more than may wait gets the header %v", h)
		}
		if d := time.Since(began); d != 0 {
			t.Errorf("it took %v", d)
		}
		all.Wait()
		if d := time.Since(began); d != refusalWait || waited.Load() != p.most {
			t.Errorf("%d waited for %v", waited.Load(), d)
		}
		if p.hold(t.Context(), http.Header{}) {
			t.Error("one waits after a quiet second")
		}
	})
}

// Who goes away while it is held makes room, and a tarpit that lets all pass holds nobody.
func TestTarpitLetsGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newTarpit(1)
		p.hold(t.Context(), http.Header{})
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		began := time.Now()
		if !p.hold(gone, http.Header{}) || time.Since(began) != 0 || p.held.Load() != 0 {
			t.Errorf("it took %v, and %d are held", time.Since(began), p.held.Load())
		}
		open := newTarpit(-1)
		for range 10_000 {
			if open.hold(t.Context(), http.Header{}) {
				t.Fatal("one is held")
			}
		}
	})
}
