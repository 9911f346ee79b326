// SPDX-License-Identifier: Apache-2.0

package rules

import "net/netip"

// tables collects the accesses of one path for its lookup.
type tables struct {
	strings, folded                        map[string]posting
	prefix, suffix, foldPrefix, foldSuffix map[string]posting
	numbers                                map[int64]posting
	ranges                                 map[[2]int64]posting
	v4                                     map[uint64]posting
	v6                                     map[netip.Prefix]posting
	grams                                  [9]map[uint64]posting // by size
	kinds                                  [kindTrue + 1]posting
	present                                posting
}

func put[K comparable](m *map[K]posting, key K, p posting) {
	if *m == nil {
		*m = map[K]posting{}
	}
	(*m)[key] = p
}

func (t *tables) add(a *access, p posting) {
	switch a.class {
	case byString:
		put(&t.strings, a.text, p)
	case byFold:
		put(&t.folded, a.text, p)
	case byPrefix:
		put(&t.prefix, a.text, p)
	case bySuffix:
		put(&t.suffix, a.text, p)
	case byFoldPrefix:
		put(&t.foldPrefix, a.text, p)
	case byFoldSuffix:
		put(&t.foldSuffix, a.text, p)
	case byNumber:
		put(&t.numbers, a.low, p)
	case byRange:
		put(&t.ranges, [2]int64{a.low, a.high}, p)
	case byBlock4:
		put(&t.v4, uint64(a.low), p)
	case byBlock6:
		put(&t.v6, netip.PrefixFrom(netip.AddrFrom16([16]byte([]byte(a.text))), int(a.low)), p)
	case byGram:
		put(&t.grams[a.high], uint64(a.low), p)
	case byKind:
		t.kinds[a.low] = p
	default:
		t.present = p
	}
}

func (t *tables) lookup() *lookup {
	l := &lookup{strings: t.strings, folded: t.folded, numbers: t.numbers, kinds: t.kinds, present: t.present}
	affix := func(entries map[string]posting, reversed bool) *affixes {
		if entries == nil {
			return nil
		}
		return newAffixes(entries, reversed)
	}
	l.prefix, l.suffix = affix(t.prefix, false), affix(t.suffix, true)
	l.foldPrefix, l.foldSuffix = affix(t.foldPrefix, false), affix(t.foldSuffix, true)
	l.folds = l.folded != nil || l.foldPrefix != nil || l.foldSuffix != nil
	if t.ranges != nil {
		l.ranges = newRanges(t.ranges)
	}
	if t.v4 != nil {
		l.v4 = &blocks4{postings: t.v4}
		var used [33]bool
		for key := range t.v4 {
			used[key>>32] = true
		}
		l.v4.masks = lengths(used[:])
	}
	if t.v6 != nil {
		l.v6 = &blocks6{postings: t.v6}
		var used [129]bool
		for key := range t.v6 {
			used[key.Bits()] = true
		}
		l.v6.masks = lengths(used[:])
	}
	for size, entries := range t.grams {
		if entries != nil {
			l.grams = append(l.grams, newGrams(size, entries))
		}
	}
	return l
}

// lengths lists the indexes that are used.
func lengths(used []bool) []uint8 {
	var list []uint8
	for i, ok := range used {
		if ok {
			list = append(list, uint8(i))
		}
	}
	return list
}
