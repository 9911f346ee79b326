// SPDX-License-Identifier: Apache-2.0

package bridge_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/bridge"
	"github.com/rialto-bridge/rialto/targets"
)

// diskBytes returns the size of the files under a folder.
func diskBytes(t *testing.T, dir string) (sum int64) {
	t.Helper()
	if err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err == nil {
			sum += info.Size()
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return sum
}

// heap returns how much memory is in use.
func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// residentKB returns how much memory the process has of the system.
func residentKB(t *testing.T) int64 {
	t.Helper()
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	var total, resident int64
	if _, err := fmt.Sscan(string(b), &total, &resident); err != nil {
		t.Fatal(err)
	}
	return resident * int64(os.Getpagesize()) / 1024
}

// An outage, scaled: a target is down while 100 000 events come (RIALTO_OUTAGE sets another number). Each costs 100 bytes of
// disk at most beyond the event itself, and next to no memory. When the target is back, what is fresh is there within a
// second, and all the rest follows, once.
func TestGateOutage(t *testing.T) {
	count := 100_000
	if s := os.Getenv("RIALTO_OUTAGE"); s != "" {
		var err error
		if count, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	data := make([]byte, 256)
	take := func(with func(f *fixture)) *fixture {
		f := newFixture(t)
		with(f)
		f.start()
		f.publish("reading", "warm", 0, 1000, data) // what there is in any case
		for from := 0; from < count; from += 10_000 {
			f.publish("reading", fmt.Sprint("e", from, "-"), 0, 10_000, data)
		}
		f.within(time.Minute, func() (string, bool) {
			l, err := f.Ledger(t.Context(), bridge.LedgerQuery{Bus: "default"})
			f.must(err)
			return fmt.Sprintf("%+v", l.Events), l.Balanced && l.Events.NotYetRouted == 0 && l.Events.Accepted >= uint64(count)
		})
		return f
	}
	f := take(func(*fixture) {})              // nothing matches
	before, resident := heap(), residentKB(t) // with as much in the caches as below
	f.stop(time.Second)
	events := diskBytes(t, f.dir)

	var up atomic.Bool
	var delivered atomic.Int64
	f = take(func(f *fixture) {
		r := f.target("ops", `{"concurrency":16,"breaker":{"minAttempts":3,"open":"200ms","maxOpen":"200ms"},"retry":{"schedule":["100ms"],"maxAttempts":1000}}`, nil)
		r.forgets = func(targets.Delivery) error {
			if !up.Load() {
				return targets.StatusError(503, 0)
			}
			delivered.Add(1)
			return nil
		}
		f.rule("all", "reading", "ops")
	})
	owed := count + 1000
	s := f.parked("ops", owed)
	grew, grewKB := heap()-before, residentKB(t)-resident
	f.stop(time.Second)
	each := float64(diskBytes(t, f.dir)-events) / float64(owed)
	t.Logf("%d deliveries wait, %d of them in a range: %.1f bytes of disk each beyond the event; heap grew by %.1f MB, resident by %.1f MB",
		owed, s.Ranged, each, float64(grew)/1e6, float64(grewKB)/1e3)
	if each > 100 {
		t.Errorf("a parked delivery costs %.1f bytes of disk, at most 100 are allowed", each)
	}
	if grew > 50<<20 {
		t.Errorf("the heap grew by %d bytes", grew)
	}
	f.start()
	defer func() { f.stop(time.Second) }()
	f.status("ops", bridge.TargetOpen)
	up.Store(true)
	f.eventually(func() (string, bool) { return "it does not come back", delivered.Load() > 0 })
	back := time.Now()
	f.send("reading", "fresh")
	f.journey("fresh", bridge.StateDelivered)
	if d := time.Since(back); d > time.Second {
		t.Errorf("the first fresh event took %v", d)
	} else {
		t.Logf("the first fresh event took %v, when %d had been delivered", d.Round(time.Millisecond), delivered.Load())
	}
	l := f.balancedWithin(10 * time.Minute)
	took := time.Since(back)
	t.Logf("drained in %v, %.0f deliveries/s", took.Round(time.Millisecond), float64(owed)/took.Seconds())
	if d := l.Deliveries[0]; d.Delivered != uint64(owed)+1 || int64(d.Delivered) != delivered.Load() {
		t.Errorf("account %+v, %d were delivered", d, delivered.Load())
	}
}
