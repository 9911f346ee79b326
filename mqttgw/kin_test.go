// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"math/rand/v2"
	"testing"
)

// The lists of connections against sets, by random changes.
func TestKin(t *testing.T) {
	k, want := kin{}, map[string]map[*conn]bool{"a": {}, "b": {}}
	r := rand.New(rand.NewPCG(1, 2))
	var all []*conn
	for range 2000 {
		if len(all) == 0 || r.IntN(2) == 0 {
			c := &conn{key: sessionKey{principal: string("ab"[r.IntN(2)])}}
			k.link(c)
			all = append(all, c)
			want[c.key.principal][c] = true
		} else {
			i := r.IntN(len(all))
			c := all[i]
			k.unlink(c)
			k.unlink(c) // which is no change
			all[i] = all[len(all)-1]
			all = all[:len(all)-1]
			delete(want[c.key.principal], c)
		}
		for p, set := range want {
			n := 0
			for c := k[p]; c != nil; c = c.kin.next {
				if !set[c] {
					t.Fatalf("a connection of %s is not there, or twice", p)
				}
				n++
			}
			if n != len(set) {
				t.Fatalf("%d connections of %s, want %d", n, p, len(set))
			}
			if _, ok := k[p]; ok != (n > 0) {
				t.Fatalf("%s without connections is kept", p)
			}
		}
	}
}

func BenchmarkNewHash(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := newHash([]byte("a password of a device")); err != nil {
			b.Fatal(err)
		}
	}
}
