// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/rialto-bridge/rialto/internal/fault"
)

// lateWills are wills that their buses have not taken: a bus is full, or its disk stalls. Nobody is there who would send them again, so
// they are tried until they are stored, their client is back, or the bus refuses them for good. They stand in the records of their
// sessions meanwhile. What comes for a bus that is behind waits at once: nobody but the goroutine of run spends time on such a bus.
type lateWills struct {
	g    *Gateway
	wake chan struct{}

	mu      sync.Mutex
	waiting map[string][]*parting // guarded by mu; by bus; a bus that is behind has an entry, if only of one that is being tried
	count   int                   // guarded by mu; of those that wait
	bytes   int                   // guarded by mu; that they take
}

const (
	lateWillMin = 250 * time.Millisecond // between two tries of the wills of a bus; twice as long each time
	lateWillMax = 5 * time.Second
	maxLateWill = 64 << 20 // bytes that wills may take while they wait; what is above is lost
)

func newLateWills(g *Gateway) *lateWills {
	return &lateWills{g: g, wake: make(chan struct{}, 1), waiting: map[string][]*parting{}}
}

// passing reports whether an error of a bus says nothing of the will: the next try may do better.
func passing(err error) bool {
	switch fault.KindOf(err) {
	case fault.Internal, fault.Unavailable, fault.Full, fault.RateLimited:
		return true
	}
	return false
}

// join has a will wait if its bus is behind, and reports whether it does.
func (l *lateWills) join(bus string, p *parting) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, behind := l.waiting[bus]
	return behind && !p.tried && l.push(bus, p)
}

// add has a will wait that its bus has not taken, and reports whether it does.
func (l *lateWills) add(bus string, p *parting, err error) bool {
	l.mu.Lock()
	_, behind := l.waiting[bus]
	ok := l.push(bus, p)
	l.mu.Unlock()
	if !ok {
		return false
	}
	if !behind {
		l.g.log.Warn("wills are not stored, and tried again", "bus", bus, "err", err)
	}
	select {
	case l.wake <- struct{}{}:
	default:
	}
	return true
}

// push appends a will, unless its client is back or there are too many. mu is held.
func (l *lateWills) push(bus string, p *parting) bool {
	if !p.recorded || p.last || l.bytes+p.will.size() > maxLateWill {
		return false
	}
	p.tried = false
	l.waiting[bus] = append(l.waiting[bus], p)
	l.counted(1, p)
	return true
}

// counted counts a will that comes, 1, or goes, -1. mu is held.
func (l *lateWills) counted(n int, p *parting) {
	l.count += n
	l.bytes += n * p.will.size()
	l.g.metrics.lateWills.Set(float64(l.count))
}

// take is called when the client of a will is back: the will is tried once more at most. It reports whether it has been waiting; then
// the caller tries.
func (l *lateWills) take(p *parting) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	p.last = true
	for bus, all := range l.waiting {
		if i := slices.Index(all, p); i >= 0 {
			l.waiting[bus] = slices.Delete(all, i, i+1)
			l.counted(-1, p)
			p.tried = true
			return true
		}
	}
	return false
}

// release is take undone: the client was not let in.
func (l *lateWills) release(p *parting) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p.last = false
}

// run tries the wills again until ctx is done, and leaves what is left then to the next start.
func (l *lateWills) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	wait, armed := lateWillMin, true
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.wake:
			if !armed {
				timer.Reset(wait)
				armed = true
			}
		case <-timer.C:
			if armed = l.retry(ctx); armed {
				wait = min(2*wait, lateWillMax)
				timer.Reset(wait)
			} else {
				wait = lateWillMin
			}
		}
	}
}

// retry tries the wills of each bus until one fails, and reports whether a bus is still behind.
func (l *lateWills) retry(ctx context.Context) (behind bool) {
	for bus, n := range l.behind() {
		for p := l.next(bus); p != nil && ctx.Err() == nil; p = l.next(bus) {
			l.g.publishWill(p.s)
			if n--; l.failed(p) || n <= 0 {
				break
			}
		}
		behind = !l.caughtUp(bus) || behind
	}
	return behind
}

// behind returns how many wills wait for which bus.
func (l *lateWills) behind() map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := make(map[string]int, len(l.waiting))
	for bus, of := range l.waiting {
		all[bus] = len(of)
	}
	return all
}

// next takes the will that has waited longest for a bus; nil if none waits.
func (l *lateWills) next(bus string) *parting {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := l.waiting[bus]
	if len(all) == 0 {
		return nil
	}
	p := all[0]
	all[0] = nil
	l.waiting[bus] = all[1:]
	l.counted(-1, p)
	p.tried = true
	return p
}

// failed reports whether a will that was tried waits again.
func (l *lateWills) failed(p *parting) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !p.tried
}

// caughtUp takes a bus that no will waits for out of those that are behind.
func (l *lateWills) caughtUp(bus string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.waiting[bus]) > 0 {
		return false
	}
	delete(l.waiting, bus)
	return true
}
