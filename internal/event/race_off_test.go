// SPDX-License-Identifier: Apache-2.0

//go:build !race

package event_test

// raceEnabled says whether the race detector is on; it allocates, so that allocations cannot be counted with it.
const raceEnabled = false
