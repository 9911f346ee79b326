// SPDX-License-Identifier: Apache-2.0

package targets

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/rialto-bridge/rialto/internal/event"
)

// HopsExtension is the extension of an event that a target has published, on a bus of this bridge, in the place of another one: how
// many targets have done so, one after the other. It bounds loops of rules. DefaultMaxHops is how many that may be where nobody
// says otherwise, and MaxHops the most that somebody can say.
const (
	HopsExtension  = "rialtohops"
	DefaultMaxHops = 8
	MaxHops        = 64
)

// CausationExtension is the extension of an event that says by its id which event it was made of.
const CausationExtension = "causationid"

// hopsOf is how many targets an event has gone through, 0 to MaxHops, whatever it was published with. What is no number counts as
// none. Where it has come by HTTP the number is a text.
func hopsOf(ev *event.Event) int32 {
	switch v, _ := ev.Extension(HopsExtension); v := v.(type) {
	case int32:
		return min(max(v, 0), MaxHops)
	case string:
		if n, err := strconv.ParseUint(v, 10, 64); err == nil {
			return int32(min(n, MaxHops))
		} else if strings.Trim(v, "0123456789") == "" && v != "" { // more than any number here
			return MaxHops
		}
	}
	return 0
}

// NextHop is the value of HopsExtension for what a target publishes in the place of an event; an error if that would be more than
// maxHops (0 = DefaultMaxHops).
func NextHop(ev *event.Event, maxHops int) (int32, error) {
	if maxHops <= 0 {
		maxHops = DefaultMaxHops
	}
	n := hopsOf(ev) + 1
	if int(n) > maxHops {
		return 0, fmt.Errorf("it would have gone through %d targets of this bridge one after the other, and %d are allowed: is there a loop?", n, maxHops)
	}
	return n, nil
}

// WithExtensions returns extensions with some set. The ones that are given are not changed.
func WithExtensions(given []event.Attribute, set ...event.Attribute) []event.Attribute {
	out := make([]event.Attribute, 0, len(given)+len(set))
	for _, a := range given {
		if !slices.ContainsFunc(set, func(s event.Attribute) bool { return s.Name == a.Name }) {
			out = append(out, a)
		}
	}
	out = append(out, set...)
	slices.SortFunc(out, func(a, b event.Attribute) int { return strings.Compare(a.Name, b.Name) })
	return out
}
