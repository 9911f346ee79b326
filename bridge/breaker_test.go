// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/targets"
)

// A script is a line of steps: + an attempt that works, - one that fails, . one that says nothing, ( begins one that
// stays under way and ) lets it fail, { and } the same with success, and a duration in <> passes time. A step that has
// no room fails the test; want is the room, or the state, behind it.
func TestBreaker(t *testing.T) {
	const ten = "----------"
	for _, c := range []struct{ name, script, want string }{
		{"nothing", "", "closed"},
		{"too few say nothing", "---------", "closed"},
		{"enough", ten, "open 30s"},
		{"70 percent", "+++-------", "open 30s"},
		{"less", "++++-------", "closed"},
		{"less, and then more", "++++-------" + "---", "open 30s"},
		{"a success does not open it", "-------++" + "+", "closed"},
		{"what says nothing does not count", "---------" + "....", "closed"},
		{"what is old does not count", "-----<6m>-----", "closed"},
		{"what is younger does", "-----<4m>-----", "open 30s"},
		{"it stays open", ten + "<29s>", "open 1s"},
		{"one probe", ten + "<30s>", "1"},
		{"one probe at a time", ten + "<30s>{", "0"},
		{"a probe that says nothing is no probe", ten + "<30s>.", "1"},
		{"the probe fails: twice as long", ten + "<30s>-", "open 1m0s"},
		{"and again", ten + "<30s>-<1m>-<2m>-", "open 4m0s"},
		{"ten minutes at most", ten + "<30s>-<1m>-<2m>-<4m>-<8m>-<10m>-", "open 10m0s"},
		{"the probe works: one", ten + "<30s>+", "1"},
		{"one more for each round", ten + "<30s>+ + ++", "3"},
		{"half a round", ten + "<30s>+ + +", "2"},
		{"up to the concurrency of 4", ten + "<30s>+ + ++ +++ ++++", "closed"},
		{"a failure halves", ten + "<30s>+ + ++ +++ -", "2"},
		{"what was under way when it opened says nothing", "{{" + ten + "<30s>}}", "1"},
		{"nor does it afterwards", "((" + ten + "<30s>++))", "2"},
		{"it fails while it recovers", ten + "<30s>+" + "+" + "-------" + "--", "open 1m0s"},
		{"closed again it opens for as long as at first", ten + "<30s>+ + ++ +++ ++++" + "<6m>" + ten, "open 30s"},
	} {
		b := breaker{}
		b.set(targets.DefaultBreakerPolicy())
		const concurrency = 4
		now := noon
		var underWay []uint32
		for s := c.script; s != ""; s = s[1:] {
			if s[0] == '<' {
				d, rest, _ := strings.Cut(s[1:], ">")
				length, err := time.ParseDuration(d)
				if err != nil {
					t.Fatal(err)
				}
				now = now.Add(length)
				s = ">" + rest
				continue
			}
			if s[0] == ')' || s[0] == '}' {
				b.end(underWay[0], map[byte]verdict{')': failing, '}': well}[s[0]], concurrency, now)
				underWay = underWay[1:]
				continue
			}
			if s[0] == ' ' {
				continue
			}
			if b.room(now) < 1 {
				t.Errorf("%s: no room before %q", c.name, s)
				break
			}
			term := b.begin()
			switch s[0] {
			case '(', '{':
				underWay = append(underWay, term)
			default:
				b.end(term, map[byte]verdict{'+': well, '-': failing, '.': silent}[s[0]], concurrency, now)
			}
		}
		got := fmt.Sprint(b.room(now))
		switch {
		case b.state == breakerClosed:
			got = "closed"
		case b.resting(now):
			got = fmt.Sprint("open ", b.until.Sub(now))
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

func TestABreakerThatIsOffStaysClosed(t *testing.T) {
	var b breaker
	for range 1000 {
		b.end(b.begin(), failing, 8, noon)
	}
	if b.room(noon) != math.MaxInt32 {
		t.Errorf("state %v", b.state)
	}
}

// Whatever attempts say in whatever order: while it is not closed no more are under way than allowed, and when the target
// works again it closes.
func TestBreakerAlwaysComesBack(t *testing.T) {
	for seed := range uint64(100) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		var b breaker
		b.set(targets.DefaultBreakerPolicy())
		concurrency := 1 + rnd.IntN(20)
		now := noon
		var underWay []uint32
		step := func(v verdict) {
			now = now.Add(time.Duration(rnd.Int64N(int64(20 * time.Second))))
			if len(underWay) < concurrency && b.room(now) > 0 {
				underWay = append(underWay, b.begin())
			}
			if b.state != breakerClosed && b.underWay > max(b.limit, concurrency) {
				t.Fatalf("seed %d: %d under way, %d allowed", seed, b.underWay, b.limit)
			}
			if len(underWay) > 0 && rnd.IntN(2) == 0 {
				i := rnd.IntN(len(underWay))
				b.end(underWay[i], v, concurrency, now)
				underWay = append(underWay[:i], underWay[i+1:]...)
			}
		}
		for range 300 {
			step(verdict(rnd.IntN(3)))
		}
		for range 4000 {
			step(well)
		}
		if b.state != breakerClosed || b.underWay != len(underWay) {
			t.Errorf("seed %d: state %v, %d under way, want %d", seed, b.state, b.underWay, len(underWay))
		}
	}
}
