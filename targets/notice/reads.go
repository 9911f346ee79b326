// SPDX-License-Identifier: Apache-2.0

package notice

import "github.com/rialto-bridge/rialto/rules"

// Place is where in a config a template stands.
type Place struct {
	Pointer string
	Text    *rules.Text // nil = there is none
}

// Reads lists what templates look at, with pointers into the definition.
func Reads(places ...Place) (all []rules.Read) {
	for _, p := range places {
		if p.Text != nil {
			all = append(all, p.Text.Reads("/config"+p.Pointer)...)
		}
	}
	return all
}
