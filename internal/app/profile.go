// SPDX-License-Identifier: Apache-2.0

package app

import (
	"cmp"

	"github.com/rialto-bridge/rialto/mqttgw"
)

// Profiles of a process.
const (
	ProfileStandard = "standard"
	ProfileEdge     = "edge" // a small machine beside the devices
)

// Profiles returns all of them.
func Profiles() []string { return []string{ProfileStandard, ProfileEdge} }

// profile is what a process has for its size and no option of its own says. Zero fields are the defaults of their packages.
type profile struct {
	small        bool  // memory is given back early, and so are the pages of the program
	reserveLeast int64 // of the disk
	viewCache    int64 // of the local views
	viewBuffer   int64
	limits       mqttgw.Limits
}

func (o Options) profile() profile {
	if cmp.Or(o.Profile, ProfileStandard) == ProfileStandard {
		return profile{}
	}
	return profile{small: true, reserveLeast: 128 << 20, viewCache: 2 << 20, viewBuffer: 1 << 20,
		limits: mqttgw.Limits{MaxCommands: 20_000, MaxRetained: 20_000, MaxBirthBytes: 4 << 20, MaxConnectingPerIP: 128, MaxWaiting: 256, MaxPending: 256 << 10}}
}
