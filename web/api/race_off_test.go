// SPDX-License-Identifier: Apache-2.0

//go:build !race

package api_test

const raceEnabled = false
