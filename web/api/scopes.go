// SPDX-License-Identifier: Apache-2.0

package api

import (
	"slices"
	"strings"

	"github.com/rialto-bridge/rialto/bridge"
)

// Areas and accesses of rights.
const (
	areaEvents      = "events"
	areaDefinitions = "definitions"
	areaDevices     = "devices"
	areaQueues      = "queues"
	areaAdmin       = "admin" // every other area, and keys, metrics

	accessRead  = "read"
	accessWrite = "write"
	accessAll   = "*"
)

var areas = []string{areaEvents, areaDefinitions, areaDevices, areaQueues, areaAdmin}

// scope is one right of a key, written <area>:<access>[:<bus>].
type scope struct {
	area, access string
	bus          string // "" = all
}

// parseScope reads a right; fault says what is wrong with it, "" if nothing is.
func parseScope(s string) (sc scope, fault string) {
	parts := strings.Split(s, ":")
	if len(parts) != 2 && len(parts) != 3 {
		return scope{}, "must be <area>:<access> or <area>:<access>:<bus>"
	}
	sc = scope{area: parts[0], access: parts[1]}
	if !slices.Contains(areas, sc.area) {
		return scope{}, "the area must be one of " + strings.Join(areas, ", ")
	}
	if sc.access != accessRead && sc.access != accessWrite && sc.access != accessAll {
		return scope{}, "the access must be read, write or *"
	}
	if len(parts) == 3 {
		if sc.area != areaEvents && sc.area != areaDefinitions {
			return scope{}, "only events and definitions have a bus"
		}
		if why := bridge.CheckName(parts[2]); why != "" {
			return scope{}, "the bus " + why
		}
		sc.bus = parts[2]
	}
	return sc, ""
}

// allows reports whether the right covers an area and access, on a bus ("" = without any, or on all).
func (s scope) allows(area, access, bus string) bool {
	return (s.area == area || s.area == areaAdmin) &&
		(s.access == access || s.access == accessAll) &&
		(s.bus == "" || s.bus == bus)
}
