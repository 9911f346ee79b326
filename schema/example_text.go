// SPDX-License-Identifier: Apache-2.0

package schema

import (
	"encoding/json"
	"fmt"
	"iter"
	"math/big"
	"regexp/syntax"
	"strings"
	"unicode/utf8"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// exampleVariants is how many different values are made where values must differ.
const exampleVariants = 40

// formatExamples has a value of each format that the validator knows.
var formatExamples = map[string]string{
	"date-time": "2026-01-15T09:30:00Z", "date": "2026-01-15", "time": "09:30:00Z", "duration": "PT15M", "period": "2026-01-15T09:30:00Z/PT15M",
	"uuid": "018bcfe5-6800-7000-8000-000000000001", "email": "someone@example.com", "idn-email": "someone@example.com",
	"hostname": "host.example.com", "idn-hostname": "host.example.com", "ipv4": "192.0.2.1", "ipv6": "2001:db8::1",
	"uri": "https://example.com/path", "iri": "https://example.com/path", "uri-reference": "/path", "iri-reference": "/path",
	"uri-template": "https://example.com/{name}", "json-pointer": "/name", "relative-json-pointer": "0/name", "regex": "^a+$", "semver": "1.0.0",
}

// exampleStrings yields strings for the schemas: of their formats and patterns, else "text", in lengths they allow.
func exampleStrings(all []*jsonschema.Schema) iter.Seq[any] {
	return func(yield func(any) bool) {
		least, most := 0, -1
		var starts []string
		for _, s := range all {
			if s.MinLength != nil {
				least = max(least, *s.MinLength)
			}
			if s.MaxLength != nil && (most < 0 || *s.MaxLength < most) {
				most = *s.MaxLength
			}
			if s.Format != nil {
				starts = append(starts, formatExamples[s.Format.Name])
			}
			if s.Pattern != nil {
				starts = append(starts, patternExamples(s.Pattern.String(), least)...)
			}
		}
		if least > 1<<20 {
			return
		}
		for _, text := range append(starts, "text") {
			for _, v := range []string{text, fitLength(text, least, most)} {
				if !yield(v) {
					return
				}
			}
		}
		for _, text := range append(starts, "text") {
			for i := range exampleVariants {
				if !yield(fitLength(fmt.Sprintf("%s%d", text, i+2), least, most)) || !yield(varied(text, i)) {
					return
				}
			}
		}
	}
}

// varied changes the last letters and digits of a text by i, so that its form stays.
func varied(text string, i int) string {
	b := []byte(text)
	for at := len(b) - 1; at >= 0 && i > 0; at-- {
		switch c := b[at]; {
		case c >= '0' && c <= '9':
			n := int(c-'0') + i
			b[at], i = byte('0'+n%10), n/10
		case c >= 'a' && c <= 'z':
			n := int(c-'a') + i
			b[at], i = byte('a'+n%26), n/26
		case c >= 'A' && c <= 'Z':
			n := int(c-'A') + i
			b[at], i = byte('A'+n%26), n/26
		}
	}
	return string(b)
}

// fitLength repeats or cuts a text; most < 0 is no bound.
func fitLength(text string, least, most int) string {
	if n := utf8.RuneCountInString(text); n < least {
		text += strings.Repeat("x", least-n)
	}
	if most >= 0 && utf8.RuneCountInString(text) > most {
		text = string([]rune(text)[:most])
	}
	return text
}

// patternExamples makes strings that match a pattern, with more and more repetitions.
func patternExamples(pattern string, least int) []string {
	re, err := syntax.Parse(pattern, syntax.Perl)
	if err != nil {
		return nil
	}
	var out []string
	for _, repeat := range []int{0, 1, 2, 3, 5, 8, 16, 64, least} {
		w := patternWriter{repeat: min(repeat, 4096), left: 64 << 10}
		w.write(re)
		if s := w.b.String(); w.left > 0 && (len(out) == 0 || out[len(out)-1] != s) {
			out = append(out, s)
		}
	}
	return out
}

// patternWriter writes a string that matches a pattern, as long as it has bytes left.
type patternWriter struct {
	b      strings.Builder
	repeat int // times that what may come any number of times comes
	left   int
}

func (w *patternWriter) write(re *syntax.Regexp) {
	if w.left--; w.left < 0 {
		return
	}
	times := 1
	switch re.Op {
	case syntax.OpLiteral:
		w.b.WriteString(string(re.Rune))
		w.left -= len(re.Rune)
		return
	case syntax.OpCharClass:
		w.b.WriteRune(pleasant(re.Rune))
		return
	case syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		w.b.WriteByte('x')
		return
	case syntax.OpAlternate:
		w.write(re.Sub[0])
		return
	case syntax.OpStar:
		times = w.repeat
	case syntax.OpPlus:
		times = max(1, w.repeat)
	case syntax.OpQuest:
		times = min(1, w.repeat)
	case syntax.OpRepeat:
		times = max(re.Min, w.repeat)
		if re.Max >= 0 {
			times = min(times, re.Max)
		}
	}
	for range times {
		for _, sub := range re.Sub {
			w.write(sub)
		}
		if w.left < 0 {
			return
		}
	}
}

// pleasant picks a letter or digit of a class if it has one. A class is a list of ranges.
func pleasant(class []rune) rune {
	for _, want := range "aA0x1" {
		for i := 0; i+1 < len(class); i += 2 {
			if class[i] <= want && want <= class[i+1] {
				return want
			}
		}
	}
	if len(class) == 0 {
		return 'x'
	}
	return class[0]
}

// exampleNumbers yields numbers between the bounds of the schemas, then on from them.
func exampleNumbers(all []*jsonschema.Schema, whole bool) iter.Seq[any] {
	return func(yield func(any) bool) {
		low, high, step := numberBounds(all, whole)
		starts := []*big.Rat{}
		switch {
		case low != nil && high != nil:
			middle := new(big.Rat).Add(low, high)
			starts = append(starts, low, middle.Mul(middle, big.NewRat(1, 2)), high)
		case low != nil:
			starts = append(starts, low)
		case high != nil:
			starts = append(starts, high)
		default:
			starts = append(starts, big.NewRat(1, 1))
		}
		for i := range int64(exampleVariants) {
			for _, start := range starts {
				up := onStep(start, step, i)
				down := onStep(start, step, -i)
				if !yield(exampleNumber(up)) || i > 0 && !yield(exampleNumber(down)) {
					return
				}
			}
		}
		for _, n := range starts { // between bounds without a whole number
			if !whole && !yield(exampleNumber(n)) {
				return
			}
		}
	}
}

// numberBounds joins the bounds, which may be excluded themselves, and what all numbers are a multiple of.
func numberBounds(all []*jsonschema.Schema, whole bool) (low, high, step *big.Rat) {
	step = big.NewRat(1, 1)
	known := whole
	for _, s := range all {
		for _, bound := range []*big.Rat{s.Minimum, s.ExclusiveMinimum} {
			if bound != nil && (low == nil || bound.Cmp(low) > 0) {
				low = bound
			}
		}
		for _, bound := range []*big.Rat{s.Maximum, s.ExclusiveMaximum} {
			if bound != nil && (high == nil || bound.Cmp(high) < 0) {
				high = bound
			}
		}
		if s.MultipleOf == nil || s.MultipleOf.Sign() <= 0 {
			continue
		}
		if !known {
			step, known = s.MultipleOf, true
		} else {
			step = commonMultiple(step, s.MultipleOf)
		}
	}
	return low, high, step
}

// commonMultiple is the least number that both divide.
func commonMultiple(a, b *big.Rat) *big.Rat {
	// a = p/q, b = r/s, both in lowest terms: lcm(p, r) / gcd(q, s).
	gcd := new(big.Int).GCD(nil, nil, a.Num(), b.Num())
	num := new(big.Int).Mul(a.Num(), new(big.Int).Quo(b.Num(), gcd))
	return new(big.Rat).SetFrac(num, new(big.Int).GCD(nil, nil, a.Denom(), b.Denom()))
}

// onStep is the multiple of step next above n, and i more of them.
func onStep(n, step *big.Rat, i int64) *big.Rat {
	q := new(big.Rat).Quo(n, step)
	floor, rest := new(big.Int).DivMod(q.Num(), q.Denom(), new(big.Int))
	if rest.Sign() != 0 {
		floor.Add(floor, big.NewInt(1))
	}
	floor.Add(floor, big.NewInt(i))
	return new(big.Rat).Mul(new(big.Rat).SetInt(floor), step)
}

func exampleNumber(n *big.Rat) json.Number {
	if n.IsInt() {
		return json.Number(n.Num().String())
	}
	digits, exact := n.FloatPrec()
	if !exact {
		digits = 12
	}
	return json.Number(n.FloatString(digits))
}
