// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

// shorten cuts s to at most n bytes at a rune, and says how much is gone.
func shorten(s string, n int) string {
	if len(s) <= n {
		return s
	}
	cut := n
	for cut > 0 && s[cut]&0xC0 == 0x80 {
		cut--
	}
	return s[:cut] + "… (" + strconv.Itoa(len(s)) + " bytes)"
}

// join writes list as `a, b or c`.
func join(list []string, word string) string {
	switch n := len(list); n {
	case 0:
		return ""
	case 1:
		return list[0]
	default:
		return strings.Join(list[:n-1], ", ") + " " + word + " " + list[n-1]
	}
}

// nearest returns the word of list that s was probably meant to be; "" when none is close.
func nearest(s string, list []string) string {
	best, distance := "", max(1, len(s)/3)+1
	for _, word := range list {
		if d := editDistance(strings.ToLower(s), strings.ToLower(word), distance); d < distance {
			best, distance = word, d
		}
	}
	return best
}

// allNearest returns up to n words of list that s was probably meant to be, the nearest first.
func allNearest(s string, list []string, n int) []string {
	type near struct {
		word     string
		distance int
	}
	var found []near
	limit := max(1, len(s)/3) + 1
	for _, word := range list {
		d := editDistance(strings.ToLower(s), strings.ToLower(word), limit)
		if d >= limit && len(s) >= 3 && len(word) >= 3 && (strings.HasPrefix(s, word) || strings.HasPrefix(word, s)) {
			d = limit - 1 // an abbreviation
		}
		if d < limit {
			found = append(found, near{word, d})
		}
	}
	slices.SortStableFunc(found, func(a, b near) int { return cmp.Compare(a.distance, b.distance) })
	var words []string
	for _, f := range found[:min(n, len(found))] {
		words = append(words, f.word)
	}
	return words
}

// editDistance counts insertions, deletions, replacements and swaps of neighbours between a and b; limit and above are
// all limit.
func editDistance(a, b string, limit int) int {
	if len(a) > 64 || len(b) > 64 || len(a)-len(b) >= limit || len(b)-len(a) >= limit {
		return limit
	}
	var rows [3][65]int // of the character before the last, of the last, and of this one
	for j := range len(b) + 1 {
		rows[1][j] = j
	}
	for i := range len(a) {
		before, last, row := &rows[i%3], &rows[(i+1)%3], &rows[(i+2)%3]
		row[0] = i + 1
		for j := range len(b) {
			if row[j+1] = last[j]; a[i] != b[j] {
				row[j+1] = 1 + min(last[j], row[j], last[j+1])
			}
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
	}
	return min(rows[(len(a)+1)%3][len(b)], limit)
}
