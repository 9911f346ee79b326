// SPDX-License-Identifier: Apache-2.0

package bridge_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rialto-bridge/rialto/targets"
)

// accepts is a target that takes everything and remembers nothing.
type accepts struct{}

func (accepts) Deliver(context.Context, targets.Delivery) (targets.Result, error) {
	return targets.Result{Status: 204}, nil
}

// Ten thousand targets that have had something to do, and have nothing to do now, take 4 KB each at most, their definitions
// and metrics included, and no goroutine. Under the race detector only the goroutines count.
func TestIdleTargetsTakeLittle(t *testing.T) {
	const allowed = 4 << 10
	count := 10_000
	if race {
		count = 1000
	}
	f := newFixture(t)
	f.opts.Registerer = prometheus.NewRegistry()
	f.start()
	defer f.stop(10 * time.Second)
	kinds := targets.NewCatalog(targets.Kind{Name: "test", ConfigSchema: []byte(`{}`)})
	work := func(prefix string, from, to, events int) {
		var names []string
		b := f.Bridge
		for i := from; i < to; i++ {
			name := fmt.Sprint("target-", i)
			def, err := targets.ParseDefinition(fmt.Appendf(nil, `{"name":%q,"type":"test","delivery":{"rateLimit":{"perSecond":100}}}`, name), kinds)
			f.must(err)
			f.must(b.SetTarget(def, accepts{}))
			if names = append(names, name); len(names) == 100 {
				f.Bridge = nil // all rules at once, below
				f.rule(fmt.Sprint(prefix, i), "reading", names...)
				f.Bridge, names = b, nil
			}
		}
		f.setRules(f.rules)
		f.send("reading", ids(prefix, events)...)
		f.balancedWithin(2 * time.Minute)
		f.setRules(nil)
	}
	heap := func() (bytes, goroutines int) {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int(m.HeapAlloc), runtime.NumGoroutine()
	}
	// The log and the views have had more to do already, so that their caches, which are on this heap in a build without
	// cgo, are as large as they get.
	work("warm", 0, 100, 10*count/100)
	before, goroutines := heap()
	work("many", 100, 100+count, 1)
	var each, more int
	f.eventually(func() (string, bool) {
		after, n := heap()
		each, more = (after-before)/count, n-goroutines
		return fmt.Sprintf("%d bytes for each target, at most %d are allowed; %d goroutines more", each, allowed, more), (each <= allowed || race) && more <= 10
	})
	t.Logf("%d bytes for each idle target, %d goroutines more", each, more)
}
