// SPDX-License-Identifier: Apache-2.0

package region

import (
	"encoding/json"
	"math/rand/v2"
	"testing"
)

// model is a set of small sequences.
type model map[uint64]bool

func (m model) ranges() (r Ranges) {
	for seq := range uint64(64) {
		if m[seq] {
			r = r.Add(seq, seq)
		}
	}
	return r
}

func TestRangesAgreeWithASet(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		r, m := Ranges(nil), model{}
		other := model{}
		for range rnd.IntN(12) {
			from := 1 + rnd.Uint64N(60)
			to := from + rnd.Uint64N(6) - 1
			r = r.Add(from, to)
			for seq := from; seq <= to; seq++ {
				m[seq] = true
			}
			other[1+rnd.Uint64N(60)] = true
		}
		for i := range r {
			if r[i].To < r[i].From || i > 0 && r[i].From <= r[i-1].To+1 {
				t.Fatalf("runs meet: %v", r)
			}
		}
		both := r.Both(other.ranges())
		count := uint64(0)
		for seq := range uint64(66) {
			if r.Has(seq) != m[seq] {
				t.Fatalf("Has(%d) = %v in %v", seq, !m[seq], r)
			}
			if both.Has(seq) != (m[seq] && other[seq]) {
				t.Fatalf("Both: Has(%d) is wrong in %v", seq, both)
			}
			if m[seq] {
				count++
			}
		}
		if r.Count() != count {
			t.Fatalf("Count of %v = %d, want %d", r, r.Count(), count)
		}
		from, to := 1+rnd.Uint64N(60), 1+rnd.Uint64N(64)
		gap, ok := r.Missing(from, to)
		first := from
		for first <= to && m[first] {
			first++
		}
		if ok != (first <= to) || ok && (gap.From != first || gap.To < gap.From || gap.To > to || gap.To < to && !m[gap.To+1]) {
			t.Fatalf("Missing(%d, %d) of %v = %v, %v", from, to, r, gap, ok)
		}
		for seq := gap.From; ok && seq <= gap.To; seq++ {
			if m[seq] {
				t.Fatalf("Missing(%d, %d) of %v = %v", from, to, r, gap)
			}
		}
		b, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		var back Ranges
		if err := json.Unmarshal(b, &back); err != nil || len(back) != len(r) || back.Count() != r.Count() {
			t.Fatalf("%s is read as %v: %v", b, back, err)
		}
	}
}

func TestRangesRefuseWhatIsNoSet(t *testing.T) {
	for _, text := range []string{`[[0,1]]`, `[[2,1]]`, `[[1,2],[2,3]]`, `[[5,6],[1,2]]`, `[[1]]`, `[[1,-2]]`, `{}`, `["a"]`} {
		var r Ranges
		if err := json.Unmarshal([]byte(text), &r); err == nil {
			t.Errorf("%s is read as %v", text, r)
		}
	}
}
