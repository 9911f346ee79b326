// SPDX-License-Identifier: Apache-2.0

package event

import "strings"

// Path is a place in the JSON form of an event: attributes at the top, the payload under data.
type Path []Step

// Step leads from a value to one inside it.
type Step struct {
	Name string // of a member, or the number of an item
	Each bool   // every member or item; Name is "" then
}

var pointerEscapes = strings.NewReplacer("~", "~0", "/", "~1")

// String returns the path as a JSON pointer (RFC 6901) in which * stands for every member or item: /data/lines/*/sku.
func (p Path) String() string {
	var b strings.Builder
	for _, s := range p {
		b.WriteByte('/')
		if s.Each {
			b.WriteByte('*')
		} else {
			b.WriteString(pointerEscapes.Replace(s.Name))
		}
	}
	return b.String()
}
