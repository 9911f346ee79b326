// SPDX-License-Identifier: Apache-2.0

package kv

import (
	"regexp"
	"testing"

	"github.com/rialto-bridge/rialto/internal/store"
)

func FuzzKey(f *testing.F) {
	for _, k := range []store.Key{{Kind: "Bus", Name: "default"}, {Kind: "Rule", Scope: "a.b", Name: "c"}, {Kind: "=", Scope: "=", Name: ""},
		{Kind: "ü", Scope: "*", Name: ">\x00\xff"}} {
		f.Add(k.Kind, k.Scope, k.Name)
	}
	valid := regexp.MustCompile(`^[-/_=a-zA-Z0-9]+(\.[-/_=a-zA-Z0-9]+)*$`) // what NATS takes as a key
	f.Fuzz(func(t *testing.T, kind, scope, name string) {
		k := store.Key{Kind: kind, Scope: scope, Name: name}
		enc := encodeKey(k)
		if !valid.MatchString(enc) {
			t.Fatalf("encodeKey(%q) = %q is no key", k, enc)
		}
		if got, err := decodeKey(enc); err != nil || got != k {
			t.Fatalf("decodeKey(%q) = %q, %v, want %q", enc, got, err, k)
		}
	})
}

func FuzzDecodeKey(f *testing.F) {
	for _, s := range []string{"Bus.=.default", "a.b", "a..b", "a.=4.b", "a.=41.b", "a.=2f.b", "a.=2F.b", "...", "a.b.c.d", "a.b==.c"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		k, err := decodeKey(s)
		if err == nil && encodeKey(k) != s {
			t.Fatalf("decodeKey(%q) = %q, which is written %q: a key has two forms", s, k, encodeKey(k))
		}
	})
}
