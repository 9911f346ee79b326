// SPDX-License-Identifier: Apache-2.0

package region

import (
	"encoding/json"
	"errors"
	"slices"
	"sort"
)

// Range is a run of sequences of a stream, both ends included.
type Range struct{ From, To uint64 }

// Ranges is a set of sequences: sorted runs that neither meet nor overlap. The methods that change it return the changed
// set and may reuse its memory.
type Ranges []Range

// maxRanges is how many runs a set may have that is read.
const maxRanges = 64 << 10

// Has reports whether seq is in the set.
func (r Ranges) Has(seq uint64) bool {
	i := sort.Search(len(r), func(i int) bool { return r[i].To >= seq })
	return i < len(r) && r[i].From <= seq
}

// Add puts the sequences from..to, both included, into the set. Nothing is added when to is below from.
func (r Ranges) Add(from, to uint64) Ranges {
	if to < from {
		return r
	}
	lo := sort.Search(len(r), func(i int) bool { return r[i].To >= from || r[i].To+1 == from })
	hi := lo
	for hi < len(r) && (r[hi].From <= to || r[hi].From == to+1) {
		from, to = min(from, r[hi].From), max(to, r[hi].To)
		hi++
	}
	return slices.Replace(r, lo, hi, Range{from, to})
}

// Both returns what is in both sets, in memory of its own.
func (r Ranges) Both(other Ranges) Ranges {
	var out Ranges
	for i, j := 0, 0; i < len(r) && j < len(other); {
		from, to := max(r[i].From, other[j].From), min(r[i].To, other[j].To)
		if from <= to {
			out = append(out, Range{from, to})
		}
		if r[i].To < other[j].To {
			i++
		} else {
			j++
		}
	}
	return out
}

// join puts all of another set into the set.
func (r Ranges) join(other Ranges) Ranges {
	for _, x := range other {
		r = r.Add(x.From, x.To)
	}
	return r
}

// Missing returns the first run of sequences from..to that is not in the set; false if all are.
func (r Ranges) Missing(from, to uint64) (Range, bool) {
	for i := range r {
		if r[i].To < from {
			continue
		}
		if r[i].From > from {
			return Range{from, min(to, r[i].From-1)}, from <= to
		}
		if r[i].To >= to {
			return Range{}, false
		}
		from = r[i].To + 1
	}
	return Range{from, to}, from <= to
}

// Count is how many sequences are in the set.
func (r Ranges) Count() (n uint64) {
	for i := range r {
		n += r[i].To - r[i].From + 1
	}
	return n
}

// MarshalJSON writes [[from,to],...].
func (r Ranges) MarshalJSON() ([]byte, error) {
	pairs := make([][2]uint64, len(r))
	for i := range r {
		pairs[i] = [2]uint64{r[i].From, r[i].To}
	}
	return json.Marshal(pairs)
}

var errRanges = errors.New("is no sorted list of at most 65536 pairs of sequences")

// UnmarshalJSON reads what MarshalJSON writes, and refuses what is no set.
func (r *Ranges) UnmarshalJSON(b []byte) error {
	var pairs [][2]uint64
	if err := json.Unmarshal(b, &pairs); err != nil || len(pairs) > maxRanges {
		return errRanges
	}
	*r = make(Ranges, len(pairs))
	for i, p := range pairs {
		if p[0] == 0 || p[1] < p[0] || i > 0 && p[0] <= pairs[i-1][1] {
			return errRanges
		}
		(*r)[i] = Range{p[0], p[1]}
	}
	return nil
}
