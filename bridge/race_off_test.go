// SPDX-License-Identifier: Apache-2.0

//go:build !race

package bridge_test

// race says whether the race detector is on, with which memory is not what it is otherwise.
const race = false
