// SPDX-License-Identifier: Apache-2.0

package region

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rialto-bridge/rialto/internal/event"
)

// copy returns a bucket with the same in it.
func (m *memory) copy() *memory {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := newMemory()
	c.values, c.revision = maps.Clone(m.values), m.revision
	return c
}

// backup copies the whole directory, log and positions, and returns a function that goes on with the copy instead.
func (n *near) backup() (restore func()) {
	n.tb.Helper()
	n.stop()
	n.closeLog()
	dir := filepath.Join(n.tb.TempDir(), "data")
	if err := os.CopyFS(dir, os.DirFS(n.dir)); err != nil {
		n.tb.Fatal(err)
	}
	kv := n.kv.copy()
	n.open()
	return func() {
		n.stop()
		n.closeLog()
		n.dir, n.kv, n.n = dir, kv, n.n+1000
		n.open()
	}
}

// stops waits until the link has stopped and says why.
func (n *near) stops(why string) {
	n.tb.Helper()
	until(n.tb, why, func() bool {
		st := n.status()
		return st.State == Failing && st.Error != nil && strings.Contains(st.Error.Message, why)
	})
}

// A directory that is restored as a whole has a position that agrees with its log. What it takes in at sequences that the other
// side has seen with other events is not lost: the link stops until it is reset.
func TestRestoredDirectoryIsRecognised(t *testing.T) {
	for name, c := range map[string]struct {
		link  string
		grown int    // events that came before the first connection
		says  string // at the first connection
	}{
		"shorter":            {everything, 0, "it ends at 100, the other region knows what stood at 150"},
		"longer":             {everything, 60, "another event stands at 150"},
		"urgent":             {`"pattern":{"type":["alarm"]},"urgent":{"type":["alarm"]},"start":"earliest"`, 60, "another event stands at 147"},
		"only passed over":   {`"pattern":{"type":["late"]},"start":"earliest"`, 0, "it ends at 100, the other region knows what stood at 150"},
		"shorter by an inch": {everything, 49, "it ends at 149, the other region knows what stood at 150"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, f := newNear(t), newFar(t).start()
			n.region(f.srv.URL, "")
			n.link(c.link)
			n.append(100)
			n.start()
			n.settle()
			restore := n.backup()
			n.start()
			n.append(50)
			n.settle()
			restore()
			before := len(f.records())
			late := func(i int) *event.Record {
				r := record(i)
				r.Event.Type = map[bool]string{true: "alarm", false: "late"}[i%7 == 0]
				return r
			}
			n.appendThose(c.grown, late)
			n.start()
			n.stops(c.says)
			n.appendThose(60, late) // over what it was seen by
			if err := n.links.Trimming(t.Context(), "default", 120); err != nil {
				t.Errorf("retention waits: %v", err)
			}
			n.stop()
			n.start()
			n.stops(c.says)
			if a := n.status().Account; a != nil && a.Main.Dropped > 0 {
				t.Errorf("account %+v", a)
			}
			if got := len(f.records()); got != before {
				t.Errorf("%d events arrived, there were %d", got, before)
			}
			if err := n.links.Reset(t.Context(), "up", "earliest"); err != nil {
				t.Fatal(err)
			}
			until(t, "it runs", func() bool { return n.status().State == Running })
			st := n.settle()
			if a := st.Account; a.Difference != 0 || a.Main.Refused+a.Main.Dropped > 0 || len(f.records()) == before {
				t.Errorf("account %+v, %d events arrived", a, len(f.records()))
			}
		})
	}
}

// What an ordinary crash leaves is no other log: the other side may know more than what was written down here, as long as it stands here.
func TestCrashIsNoOtherLog(t *testing.T) {
	n, f := newNear(t), newFar(t).start()
	n.region(f.srv.URL, "")
	n.link(everything + `,"urgent":{"type":["alarm"]}`)
	n.start()
	for range 3 {
		n.append(100)
		until(t, "all is there", func() bool { return len(f.records()) == n.n })
		n.crash(true)
		n.start()
	}
	if a := n.settle().Account; a.Difference != 0 || len(f.records()) != 300 {
		t.Errorf("account %+v, %d events arrived", a, len(f.records()))
	}
}
