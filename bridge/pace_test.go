// SPDX-License-Identifier: Apache-2.0

package bridge_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/targets"
)

// paced is a target that says how fast it may be sent deliveries.
type paced struct {
	mu   sync.Mutex // guards all below
	rate targets.RateLimit
	next targets.RateLimit // from the first delivery on
	got  int
}

func (p *paced) Deliver(context.Context, targets.Delivery) (targets.Result, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.got++
	p.rate = p.next
	return targets.Result{Status: 204}, nil
}

func (p *paced) Pace() targets.RateLimit {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.rate
}

// A lane goes as fast as its target has agreed to, from the attempt on that finds that out, and no faster than its policy says.
func TestATargetSaysHowFast(t *testing.T) {
	for name, c := range map[string]struct {
		policy      string
		next        targets.RateLimit
		first, then int // deliveries at once, and after ten seconds more
	}{
		"slow at first":        {`{}`, targets.RateLimit{PerSecond: 1, Burst: 1}, 1, 2},
		"then faster":          {`{}`, targets.RateLimit{PerSecond: 2, Burst: 3}, 1, 4},
		"then any number":      {`{}`, targets.RateLimit{}, 40, 40},
		"not above its policy": {`{"rateLimit":{"perSecond":0.1,"burst":1}}`, targets.RateLimit{PerSecond: 2, Burst: 3}, 1, 2},
		"not in its bursts":    {`{"rateLimit":{"perSecond":0.2,"burst":30}}`, targets.RateLimit{PerSecond: 1, Burst: 3}, 1, 3},
		"nor in the policy's":  {`{"rateLimit":{"perSecond":20,"burst":2}}`, targets.RateLimit{PerSecond: 1, Burst: 3}, 1, 3},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			now := f.useClock()
			f.start()
			defer f.stop(time.Second)
			kinds := targets.NewCatalog(targets.Kind{Name: "test", ConfigSchema: []byte(`{}`)})
			def, err := targets.ParseDefinition(fmt.Appendf(nil, `{"name":"ops","type":"test","delivery":%s}`, c.policy), kinds)
			f.must(err)
			p := &paced{rate: targets.RateLimit{PerSecond: 1, Burst: 1}, next: c.next}
			f.must(f.SetTarget(def, p))
			f.rule("all", "reading", "ops")
			f.setRules(f.rules)
			f.send("reading", ids("e", 40)...)
			reaches := func(n int) {
				t.Helper()
				f.eventually(func() (string, bool) {
					p.mu.Lock()
					defer p.mu.Unlock()
					return fmt.Sprintf("%d deliveries, want %d", p.got, n), p.got == n
				})
			}
			reaches(c.first)
			f.eventually(func() (string, bool) { // the attempt is counted before its lane knows what it has changed
				got, want := f.RateOf("ops"), def.Delivery.Rate.Within(c.next)
				return fmt.Sprintf("the rate is %+v, want %+v", got, want), got == want
			})
			now.advance(f, 10*time.Second)
			reaches(c.then)
			if c.then < 40 {
				f.status("ops", "limited")
			}
		})
	}
}
