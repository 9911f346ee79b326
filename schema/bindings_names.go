// SPDX-License-Identifier: Apache-2.0

package schema

import (
	"fmt"
	"strings"
	"unicode"
)

// words splits a name where its parts end: order-id, order_id, orderId and OrderID are all order and id. Only ASCII
// letters and digits are kept.
func words(name string) []string {
	var out []string
	var word strings.Builder
	end := func() {
		if word.Len() > 0 {
			out = append(out, strings.ToLower(word.String()))
			word.Reset()
		}
	}
	runes := []rune(name)
	for i, r := range runes {
		if r >= unicode.MaxASCII || !isAlnum(byte(r)) {
			end()
			continue
		}
		if unicode.IsUpper(r) && i > 0 {
			afterLower := unicode.IsLower(runes[i-1]) || unicode.IsDigit(runes[i-1])
			beforeLower := i+1 < len(runes) && unicode.IsLower(runes[i+1])
			if afterLower || beforeLower {
				end()
			}
		}
		word.WriteRune(r)
	}
	end()
	return out
}

// typeName is the name in Pascal case: a letter first, and no word that the code of a language needs itself.
func typeName(name string) string {
	var b strings.Builder
	for _, w := range words(name) {
		b.WriteString(strings.ToUpper(w[:1]) + w[1:])
	}
	out := b.String()
	if out == "" {
		out = "Value"
	}
	if out[0] >= '0' && out[0] <= '9' {
		out = "N" + out
	}
	if takenTypes[out] {
		out += "Type"
	}
	return out[:min(len(out), 80)]
}

// takenTypes are the names of types that generated code uses for something else.
var takenTypes = nameSet(`Any Array Boolean Dict Double Enum False Function Integer Iterable LinkedHashMap List Long Map None Number
	Object Optional Override Record String Symbol True Union IllegalArgumentException ArrayList Date Error JSON Math Promise
	Set Decode Encode Type System Void Character Class Comparable Float Short Byte Process Thread Self Unknown Never`)

func nameSet(names string) map[string]bool {
	out := map[string]bool{}
	for _, n := range strings.Fields(names) {
		out[n] = true
	}
	return out
}

// camelName is the name with a small letter first.
func camelName(name string) string {
	t := typeName(name)
	parts := words(name)
	if len(parts) == 0 || t[0] == 'N' && isDigits(parts[0][:1]) {
		return strings.ToLower(t[:1]) + t[1:]
	}
	out := parts[0]
	for _, w := range parts[1:] {
		out += strings.ToUpper(w[:1]) + w[1:]
	}
	return out
}

// snakeName is the name in small letters with _ between its parts.
func snakeName(name string) string {
	out := strings.Join(words(name), "_")
	if out == "" {
		return "value"
	}
	if out[0] >= '0' && out[0] <= '9' {
		return "n" + out
	}
	return out
}

// uniqueName marks a name as used, with a number behind it if it was used before. Where a number would run into one
// that is part of the name, sep keeps them apart.
func uniqueName(name, sep string, used map[string]bool) string {
	out := name
	for i := 2; used[out]; i++ {
		out = fmt.Sprintf("%s%s%d", name, sep, i)
	}
	used[out] = true
	return out
}

// fieldIdents names the fields of an object in a language: reserved words get a _ behind them.
func fieldIdents(fields []bindField, style func(string) string, reserved map[string]bool) map[string]string {
	used, out := map[string]bool{}, map[string]string{}
	for _, f := range fields {
		ident := style(f.Name)
		if reserved[ident] {
			ident += "_"
		}
		out[f.Name] = uniqueName(ident, "_", used)
	}
	return out
}

// docLine makes a text safe for comments of all languages: one line, printable, without what ends a comment or begins
// an escape.
func docLine(text string) string {
	text = strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case !unicode.IsPrint(r):
			return -1
		case r == '\\':
			return '/'
		case r == '"':
			return '\''
		}
		return r
	}, text)
	text = strings.Join(strings.Fields(text), " ")
	for strings.Contains(text, "*/") || strings.Contains(text, "/*") {
		text = strings.ReplaceAll(strings.ReplaceAll(text, "*/", "* /"), "/*", "/ *")
	}
	if r := []rune(text); len(r) > 300 {
		text = string(r[:300]) + "..."
	}
	return text
}
