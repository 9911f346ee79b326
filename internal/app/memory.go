// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	restLook   = time.Second
	restBytes  = 1 << 20  // allocated between two looks: less than this is rest
	worthBytes = 16 << 20 // allocated since memory was given back: less is not worth a collection
)

// giveBackMemory returns memory to the system when the process has come to rest, until ctx is done. A burst, such as ten
// thousand devices that connect, leaves garbage, and the collector keeps its room until as much has been allocated again,
// which in a process at rest is never. It costs one collection after each burst, at a time when nobody waits.
func giveBackMemory(ctx context.Context) {
	var r rest
	allocated := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	look := time.NewTicker(restLook)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		}
		if metrics.Read(allocated); r.reached(allocated[0].Value.Uint64()) {
			debug.FreeOSMemory()
		}
	}
}

// rest knows whether a process that has been busy is at rest.
type rest struct {
	seen, settled uint64 // bytes allocated until the last look, and until rest was reached last
}

// reached takes the bytes that have been allocated so far, at every look.
func (r *rest) reached(allocated uint64) bool {
	quiet := allocated-r.seen < restBytes
	r.seen = allocated
	if !quiet || allocated-r.settled < worthBytes {
		return false
	}
	r.settled = allocated
	return true
}
