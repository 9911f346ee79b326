// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"crypto/sha256"
	"fmt"
	"sync"
	"testing"
)

// HMACs that are used again know nothing of what they signed before, and those of secrets that were replaced are forgotten.
func TestMACsAreUsedAgain(t *testing.T) {
	s := &scheme{hash: sha256.New}
	var kept macs
	var all sync.WaitGroup
	for w := range 4 {
		all.Go(func() {
			for i := range 200 {
				secret := fmt.Sprint("secret ", (w+i)%(2*maxMacs))
				body := [][]byte{fmt.Appendf(nil, "a body %d", i), []byte(" in parts")}
				var fresh macs
				mac := fresh.pool(s, secret).Get().(*keyed)
				for _, part := range body {
					mac.Write(part)
				}
				sum := mac.Sum(nil)
				other := append([]byte(nil), sum...)
				other[i%len(other)] ^= 1
				if kept.match(s, secret, body, [][]byte{other, sum}) != 1 {
					t.Errorf("%s: its own signature does not match", secret)
				}
				if kept.match(s, secret, body, [][]byte{other}) != 0 || kept.match(s, secret+"x", body, [][]byte{sum}) != 0 {
					t.Errorf("%s: another signature matches", secret)
				}
			}
		})
	}
	all.Wait()
	n := 0
	kept.bySecret.Range(func(any, any) bool { n++; return true })
	if n > maxMacs+4 { // a few came while the others were forgotten
		t.Errorf("HMACs of %d secrets are kept", n)
	}
}
