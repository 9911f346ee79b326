// SPDX-License-Identifier: Apache-2.0

package sparkplug

import (
	"cmp"
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"unsafe"
)

// Births are the metrics that a birth has announced: their names, aliases and types. Immutable.
type Births struct {
	byName  []definition // sorted by name
	byAlias []int32      // places in byName, sorted by alias; those with an alias only
}

type definition struct {
	name     string
	alias    uint64
	datatype uint32
}

// ReadBirth reads the payload of an NBIRTH or DBIRTH. Nothing of it is kept. Of several metrics with one name the last
// one counts. The error says why it cannot be read.
func ReadBirth(b []byte) (*Births, error) {
	p, err := parsePayload(b)
	if err != nil {
		return nil, err
	}
	size := 0
	for i := range p.metrics {
		size += len(p.metrics[i].name)
	}
	var names strings.Builder // one text for all
	names.Grow(size)
	d := &Births{byName: make([]definition, 0, len(p.metrics))}
	aliased := map[string]bool{}
	for i := range slices.Backward(p.metrics) {
		m := &p.metrics[i]
		if !m.named {
			continue
		}
		from := names.Len()
		names.Write(m.name)
		name := names.String()[from:]
		if _, twice := aliased[name]; twice {
			continue
		}
		aliased[name] = m.hasAlias
		d.byName = append(d.byName, definition{name, m.alias, m.datatype})
	}
	slices.SortFunc(d.byName, func(a, b definition) int { return strings.Compare(a.name, b.name) })
	for i := range d.byName {
		if aliased[d.byName[i].name] {
			d.byAlias = append(d.byAlias, int32(i)) //nolint:gosec // at most MaxMetrics
		}
	}
	slices.SortStableFunc(d.byAlias, func(a, b int32) int { return cmp.Compare(d.byName[a].alias, d.byName[b].alias) })
	return d, nil
}

// Size is how many bytes of memory the births take, about.
func (d *Births) Size() int {
	size := int(unsafe.Sizeof(*d)) + cap(d.byName)*int(unsafe.Sizeof(definition{})) + cap(d.byAlias)*int(unsafe.Sizeof(int32(0)))
	for i := range d.byName {
		size += len(d.byName[i].name)
	}
	return size
}

// named returns the metric of a name; nil = none.
func (d *Births) named(name []byte) *definition {
	if i, ok := slices.BinarySearchFunc(d.byName, string(name), func(a definition, name string) int { return strings.Compare(a.name, name) }); ok {
		return &d.byName[i]
	}
	return nil
}

// aliased returns the metric of an alias; nil = none.
func (d *Births) aliased(alias uint64) *definition {
	i, ok := slices.BinarySearchFunc(d.byAlias, alias, func(at int32, alias uint64) int { return cmp.Compare(d.byName[at].alias, alias) })
	if !ok {
		return nil
	}
	return &d.byName[d.byAlias[i]]
}

// Names returns what a payload leaves to its birth, for event.Origin.Sparkplug: for each of its metrics that has an alias
// and no name, or no type, what the birth says. It is at most most bytes: what there is no room for, or the birth does not
// have, View shows as unresolved. It is empty and not nil when nothing is left. The error says why the payload cannot be
// read, and then nothing can be made of it.
func (d *Births) Names(b []byte, most int) ([]byte, error) {
	p, err := parsePayload(b)
	if err != nil {
		return []byte{}, err
	}
	names := []byte{}
	for i := range p.metrics {
		m := &p.metrics[i]
		var def *definition
		name := ""
		switch {
		case m.named && m.datatype == 0:
			def = d.named(m.name)
		case !m.named && m.hasAlias:
			if def = d.aliased(m.alias); def != nil {
				name = def.name
			}
		}
		if def == nil {
			continue
		}
		before := len(names)
		names = appendHint(names, hint{i, def.datatype, name})
		if len(names) > most {
			return names[:before], nil
		}
	}
	return names, nil
}

// hint is what a birth says of one metric of a payload.
type hint struct {
	index    int // of the metric
	datatype uint32
	name     string // "" = it has its own
}

func appendHint(dst []byte, h hint) []byte {
	dst = binary.AppendUvarint(dst, uint64(h.index)) //nolint:gosec // not negative
	dst = binary.AppendUvarint(dst, uint64(h.datatype))
	dst = binary.AppendUvarint(dst, uint64(len(h.name)))
	return append(dst, h.name...)
}

var errHints = errors.New("the names that were stored with it are damaged")

// readHint is the inverse of appendHint.
func readHint(b []byte) (h hint, rest []byte, err error) {
	var numbers [3]uint64
	for i := range numbers {
		n := 0
		if numbers[i], n = binary.Uvarint(b); n <= 0 {
			return h, nil, errHints
		}
		b = b[n:]
	}
	if numbers[0] > MaxMetrics || numbers[1] > 1<<32-1 || numbers[2] > min(uint64(len(b)), MaxName) {
		return h, nil, errHints
	}
	return hint{int(numbers[0]), uint32(numbers[1]), string(b[:numbers[2]])}, b[numbers[2]:], nil //nolint:gosec // bounded
}

// complete fills in what stands in hints.
func (p *payload) complete(hints []byte) error {
	for len(hints) > 0 {
		h, rest, err := readHint(hints)
		if err != nil || h.index >= len(p.metrics) {
			return errHints
		}
		hints = rest
		m := &p.metrics[h.index]
		if m.datatype == 0 {
			m.datatype = h.datatype
		}
		if !m.named && h.name != "" {
			m.name, m.named = []byte(h.name), true
		}
	}
	return nil
}
