// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"net/http"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/rialto-bridge/rialto/internal/fault"
)

// tarpit holds back the answers to hooks that were refused, once there are many of them: who floods waits for each answer, and good hooks
// have the processor. It knows no senders, since a flood has many addresses; a good hook never waits, whoever else sends from where it
// comes from.
//
// What is held is a connection and its goroutine, no body. A server whose handlers wait does not read on, so a sender that does not wait
// for answers is stopped by TCP.
type tarpit struct {
	quick *rate.Limiter // answers at once
	held  atomic.Int32
	most  int32 // that are held at a time
}

const (
	// quickRefusals is how many refused hooks are answered at once, a second and after a quiet second.
	quickRefusals = 50
	// refusalWait is how long the others are held. Providers wait 3 seconds and more.
	refusalWait = time.Second
	// maxHeld is how many are held at a time: with more than that under way, connections are closed after their answer.
	maxHeld = 4096
)

// newTarpit makes a tarpit that lets so many refusals pass at once, a second; 0 = quickRefusals, negative = all.
func newTarpit(perSecond int) *tarpit {
	switch {
	case perSecond == 0:
		perSecond = quickRefusals
	case perSecond < 0:
		return &tarpit{quick: rate.NewLimiter(rate.Inf, 0)}
	}
	return &tarpit{quick: rate.NewLimiter(rate.Limit(perSecond), perSecond), most: maxHeld}
}

// hold returns when a refusal may be answered, or ctx is done, and reports whether it had to wait. There is no waiting when too many do;
// the connection then ends with the answer, which h is the header of.
func (t *tarpit) hold(ctx context.Context, h http.Header) bool {
	if t.quick.Allow() {
		return false
	}
	defer t.held.Add(-1)
	if t.held.Add(1) > t.most {
		h.Set("Connection", "close")
		return false
	}
	timer := time.NewTimer(refusalWait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	return true
}

// unproved reports whether an error answers a request of which nobody knows whom it is from.
func unproved(err error) bool {
	if err == nil {
		return false
	}
	switch fault.KindOf(err) {
	case fault.Unauthorized, fault.Forbidden, fault.NotFound, fault.TooLarge, fault.Unsupported:
		return true
	}
	return false
}

// proxied reports whether a request says that a proxy has passed it on. Its connection is shared then, with good hooks that would wait
// for it: it is for the proxy to slow a flood down. Who lies about it is answered at once, as a few are anyway.
func proxied(h http.Header) bool {
	return len(h["X-Forwarded-For"])+len(h["Forwarded"])+len(h["Via"]) > 0
}
