// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rialto-bridge/rialto/mqttgw/packet"
)

// oracle is MQTT 5.0 section 4.7 as a regular expression.
func oracle(filter string) *regexp.Regexp {
	var b strings.Builder
	b.WriteString(`^`)
	levels := strings.Split(filter, "/")
	for i, l := range levels {
		switch {
		case l == "#" && i == 0:
			b.WriteString(`[^$].*|^$|^[^$]*$`)
		case l == "#":
			b.WriteString(`(/.*)?`)
		default:
			if i > 0 {
				b.WriteString(`/`)
			}
			switch {
			case l == "+" && i == 0:
				b.WriteString(`([^$/][^/]*)?`)
			case l == "+":
				b.WriteString(`[^/]*`)
			default:
				b.WriteString(regexp.QuoteMeta(l))
			}
		}
	}
	b.WriteString(`$`)
	return regexp.MustCompile(`(?s)` + b.String())
}

func route(r *router, topic string) (found []string) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	r.root.match(topic, true, func(subs []*subscription) {
		for _, s := range subs {
			found = append(found, s.filter)
		}
	})
	slices.Sort(found)
	return found
}

func hang(r *router, subs ...*subscription) {
	r.change(subs, nil, func() []*subscription { return nil })
}

// The trie, the rule for one filter and the oracle agree while subscriptions come and go, and an empty trie holds nothing.
func TestTrieAgreesWithTheRule(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	words := []string{"a", "b", "", "$x", "aa", "c", "d", "e", "f", "g", "h", "i"}
	name := func(wild bool) string {
		var levels []string
		for range 1 + rnd.IntN(4) {
			w := words[rnd.IntN(len(words))]
			if wild && rnd.IntN(3) == 0 {
				w = "+"
			}
			levels = append(levels, w)
		}
		if wild && rnd.IntN(4) == 0 {
			levels = append(levels, "#")
		}
		return strings.Join(levels, "/")
	}
	var r router
	var subs []*subscription
	for round := range 100 {
		for range 10 {
			s := &subscription{filter: name(true)}
			if !packet.ValidFilter(s.filter) {
				continue
			}
			hang(&r, s)
			subs = append(subs, s)
		}
		for range 5 {
			topic := name(false)
			var byRule, byOracle []string
			for _, s := range subs {
				if matches(s.filter, topic) {
					byRule = append(byRule, s.filter)
				}
				if oracle(s.filter).MatchString(topic) {
					byOracle = append(byOracle, s.filter)
				}
			}
			slices.Sort(byRule)
			slices.Sort(byOracle)
			if got := route(&r, topic); !slices.Equal(got, byRule) || !slices.Equal(got, byOracle) {
				t.Fatalf("%q: trie %q, rule %q, oracle %q", topic, got, byRule, byOracle)
			}
		}
		keep := 40
		if round == 99 {
			keep = 0
		}
		rnd.Shuffle(len(subs), func(i, j int) { subs[i], subs[j] = subs[j], subs[i] })
		if len(subs) > keep {
			r.change(nil, nil, func() []*subscription { return subs[keep:] })
			subs = subs[:keep]
		}
	}
	if !r.root.bare() {
		t.Errorf("the trie is not empty: %+v", r.root)
	}
}

func FuzzMatches(f *testing.F) {
	f.Add("a/+/#", "a/b")
	f.Add("#", "$SYS/x")
	f.Add("+/+", "/")
	f.Fuzz(func(t *testing.T, filter, topic string) {
		if !packet.ValidFilter(filter) || !packet.ValidTopic([]byte(topic)) || strings.ContainsRune(topic, '\n') {
			return
		}
		var r router
		hang(&r, &subscription{filter: filter})
		trie, rule := len(route(&r, topic)) == 1, matches(filter, topic)
		if trie != rule {
			t.Errorf("%q against %q: trie %v, rule %v", filter, topic, trie, rule)
		}
	})
}

func TestPacketIDsInFlightAreNotGivenAgain(t *testing.T) {
	s := session{maxFlying: 10}
	old := s.takeOff(flight{seq: 1}) // stays unacknowledged
	third := uint16(0)
	for seq := range uint64(200_000) {
		id := s.takeOff(flight{seq: seq + 2})
		if id == 0 || id == old || id == third {
			t.Fatalf("id %d given while in flight", id)
		}
		switch {
		case seq == 3:
			third = id
		default:
			if f, ok := s.land(id); !ok || f.seq != seq+2 {
				t.Fatalf("id %d was not in flight", id)
			}
		}
	}
	if _, ok := s.land(4711); ok {
		t.Error("an id that is not in flight landed")
	}
}

// What a match costs depends on the topic and on who matches, not on how many do not.
func BenchmarkMatch(b *testing.B) {
	for _, others := range []int{0, 1_000, 100_000} {
		b.Run(fmt.Sprintf("others=%d", others), func(b *testing.B) {
			var r router
			for i := range others {
				hang(&r, &subscription{filter: fmt.Sprintf("fleet/%d/box/%d/cmd", i, i)}, &subscription{filter: fmt.Sprintf("fleet/%d/+/telemetry", i)})
			}
			hang(&r, &subscription{filter: "fleet/x/box/1/telemetry"}, &subscription{filter: "fleet/+/box/#"})
			b.ReportAllocs()
			for b.Loop() {
				n := 0
				r.root.match("fleet/x/box/1/telemetry", true, func(s []*subscription) { n += len(s) })
				if n != 2 {
					b.Fatal(n)
				}
			}
		})
	}
}
