// SPDX-License-Identifier: Apache-2.0

package wasm

import "time"

// ABI is how a module is spoken to.
type ABI string

// The ABIs; see the package's documentation.
const (
	ABIHandle  ABI = "handle"
	ABICommand ABI = "command"
)

// Bounds and defaults of Settings.
const (
	DefaultMemory    = 32 << 20
	MaxMemory        = 256 << 20
	DefaultTimeout   = 100 * time.Millisecond
	MinTimeout       = time.Millisecond
	MaxTimeout       = 10 * time.Second
	DefaultOutput    = 1 << 20
	MaxOutput        = 8 << 20
	DefaultInstances = 4
	MaxInstances     = 64
)

// Settings are what a function may have. They are valid if each is set and within its bounds.
type Settings struct {
	ABI ABI
	// Memory is the most bytes that an instance's memory may have; what is not whole pages of 64 KiB is not used. Its stack
	// of calls comes on top, up to 50 MB, and is freed with the instance.
	Memory    int64
	Timeout   time.Duration // of the work on one event
	MaxOutput int           // bytes of a result
	Stateful  bool          // an instance keeps what it has from event to event
	Instances int           // the most at a time; who comes then waits
}

// pages is the memory limit in pages.
func (s Settings) pages() uint32 { return uint32(s.Memory / pageSize) } //nolint:gosec // at most MaxMemory
