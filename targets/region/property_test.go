// SPDX-License-Identifier: Apache-2.0

package region

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
)

// Whatever is cut, killed, forgotten, restored, paused and changed in whatever order: in the end each event that the pattern takes
// stands at the far side once, in order, as it was, and the account adds up.
func TestLinkKeepsItsPromise(t *testing.T) {
	for seed := range *stories {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { t.Parallel(); story(t, seed) })
	}
}

var stories = flag.Uint64("stories", 16, "how many stories TestLinkKeepsItsPromise tells")

// shortConn ends in the middle of what is written.
type shortConn struct {
	net.Conn
	left int64 // 0 = it does not
}

func (c *shortConn) Write(p []byte) (int, error) {
	if c.left == 0 {
		return c.Conn.Write(p)
	}
	if int64(len(p)) < c.left {
		c.left -= int64(len(p))
		return c.Conn.Write(p)
	}
	n, err := c.Conn.Write(p[:c.left])
	return n, errors.Join(errors.New("cut"), err, c.Conn.Close())
}

func story(t *testing.T, seed uint64) {
	rnd := rand.New(rand.NewPCG(seed, 9))
	n, f := newNear(t), newFar(t).start()
	cuts := 0
	f.before = func(_ int, b Batch) action { // called with the lock of f, as all is that draws there
		if cuts > 0 && len(b.Events) > 0 {
			cuts--
			return action(1 + cuts%3)
		}
		return take
	}
	n.retry, n.batch = time.Millisecond, 1<<10+rnd.IntN(32<<10)
	var limit atomic.Int64 // of what the next connections may send; 0 = none
	n.dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, network, address)
		return &shortConn{c, limit.Swap(0)}, err
	}
	n.region(f.srv.URL, "")
	order, urgent := "none", ""
	if seed%3 == 0 {
		order = "log"
	}
	pattern := `{"source":[{"exists":true}]}`
	if seed%2 == 0 {
		pattern = `{"source":["/box"]}`
	}
	paused := false
	define := func() {
		fields := fmt.Sprintf(`"pattern":%s,"start":"earliest","ordering":%q,"paused":%v`, pattern, order, paused)
		if urgent != "" {
			fields += `,"urgent":` + urgent
		}
		n.link(fields)
	}
	define()
	n.append(1 + rnd.IntN(1500))
	n.start()
	restored, floor := false, uint64(0)
	var back func()
	for range 30 + rnd.IntN(20) {
		switch rnd.IntN(13) {
		case 0:
			n.append(1 + rnd.IntN(3000))
		case 1, 2:
			n.append(1 + rnd.IntN(100))
		case 3:
			f.set(func(*far) { cuts = 1 + rnd.IntN(4) })
		case 4:
			f.cut()
		case 12:
			first := 1 + rnd.Uint64N(n.bus("default").Committed())
			if err := n.links.Trimming(t.Context(), "default", first); err == nil {
				floor = max(floor, first)
				n.kv.keep()
			} else if !errors.Is(err, errUnderWay) {
				t.Errorf("trimming: %v", err)
			}
		case 11:
			limit.Store(1 + rnd.Int64N(60_000))
			f.cut()
		case 5:
			n.crash(rnd.IntN(2) == 0)
			n.start()
		case 6:
			f.restart()
		case 7:
			f.checkpoint()
		case 8:
			if back != nil && rnd.IntN(2) == 0 {
				back()
				back, restored = nil, true
			} else {
				back = f.backup()
			}
		case 9:
			paused = !paused
			define()
		case 10:
			if order == "none" {
				urgent = []string{"", `{"type":["alarm"]}`, `{"source":["/other"]}`}[rnd.IntN(3)]
				define()
			}
		}
		if rnd.IntN(2) == 0 {
			now := n.bus("default").Committed()
			want := uint64(0)
			if now > 0 {
				want = rnd.Uint64N(now)
			}
			poll(50*time.Millisecond, func() bool {
				a := n.status().Account
				return paused || a != nil && a.Main.Covered >= want
			})
		}
	}
	f.set(func(*far) { cuts = 0 })
	paused = false
	define()
	n.append(1)
	st := n.settle()
	f.cut() // what the far side has forgotten comes once more
	n.append(1)
	st = n.settle()

	taken := func(r *event.Record) bool { return seed%2 != 0 || r.Event.Source == "/box" }
	bus, arrived := n.bus("default"), map[uint64]farRecord{}
	for _, r := range f.records() {
		seq := r.hop.Position.Seq
		if _, twice := arrived[seq]; twice {
			t.Errorf("event %d stands there twice", seq)
		}
		arrived[seq] = r
	}
	var want, missing uint64
	for seq := uint64(1); seq <= bus.Committed(); seq++ {
		e, err := bus.Get(t.Context(), seq)
		if err != nil {
			t.Fatal(err)
		}
		r, there := arrived[seq]
		switch {
		case !there && taken(e.Record) && seq < floor:
			missing++
			want++
		case there != taken(e.Record):
			t.Errorf("event %d is there: %v", seq, there)
		}
		if !there {
			continue
		}
		want++
		if !bytes.Equal(r.rec.Event.Data, e.Record.Event.Data) || r.rec.Event.ID != e.Record.Event.ID || !r.rec.Received.Equal(e.Record.Received) {
			t.Errorf("event %d came as %+v", seq, r.rec)
		}
	}
	for _, over := range f.overlaps {
		t.Error(over)
	}
	if order == "log" && !restored {
		for i, r := range f.records() {
			if i > 0 && r.hop.Position.Seq < f.records()[i-1].hop.Position.Seq {
				t.Errorf("event %d comes after %d", r.hop.Position.Seq, f.records()[i-1].hop.Position.Seq)
			}
		}
	}
	a := st.Account
	dropped := a.Main.Dropped
	got := a.Main.Forwarded + a.Main.Known + a.Main.Refused + a.Main.Dropped
	if a.Urgent != nil {
		got += a.Urgent.Forwarded + a.Urgent.Known + a.Urgent.Dropped
		dropped += a.Urgent.Dropped
		if a.Urgent.Failed+a.Urgent.Looped != 0 {
			t.Errorf("urgent %+v", a.Urgent)
		}
	}
	if a.Difference != 0 || a.Pending != 0 || a.Lost != 0 || a.Main.Covered != bus.Committed() || got != want || missing > dropped || a.Main.Gaps+a.Main.Looped != 0 {
		t.Errorf("%d events are to be there or dropped, %d are missing; account %+v, urgent %+v", want, missing, *a, a.Urgent)
	}
}
