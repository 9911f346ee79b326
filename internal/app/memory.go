// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"log/slog"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	restLook   = time.Second
	restBytes  = 1 << 20  // allocated between two looks: less than this is quiet
	restLooks  = 5        // quiet ones in a row are rest: after a shorter pause the memory is wanted again, and would have to come back page by page
	worthBytes = 16 << 20 // allocated since memory was given back: less is not worth a collection

	smallRestLooks  = 1 // the same on a small machine
	smallWorthBytes = 8 << 20
)

// giveBackMemory returns memory to the system when the process has come to rest, until ctx is done. A burst, such as ten
// thousand devices that connect, leaves garbage, and the collector keeps its room until as much has been allocated again,
// which in a process at rest is never. It costs one collection after each burst, at a time when nobody waits.
//
// A small machine also gets back the pages of the program: a start runs through most of it once, and the system, which maps
// sixteen pages where one is asked for, leaves three quarters of the file in the process. What is needed again comes back from
// the page cache, without a read while the system has no better use for it.
func giveBackMemory(ctx context.Context, small bool, logger *slog.Logger) {
	r := rest{looks: restLooks, worth: worthBytes}
	if small {
		r = rest{looks: smallRestLooks, worth: smallWorthBytes}
	}
	pages := programPages{resident: filePages}
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
		if small && r.quiet > 0 && pages.due(time.Now()) {
			if err := releaseProgram(); err != nil {
				logger.Debug("pages of the program stay in memory", "err", err)
			}
		}
	}
}

// Pages of the program go when they take more than this, and not too often: a process at rest needs about 10 MB of them, and what it
// needs is back within milliseconds.
const (
	pagesMost  = 16 << 20
	pagesEvery = 5 * time.Second
)

// programPages knows how much of the process are pages of files.
type programPages struct {
	resident func() int64 // bytes; 0: unknown
	at       time.Time    // of the last release
}

// due reports whether it is worth releasing them, which is then done.
func (p *programPages) due(now time.Time) bool {
	if p.resident() <= pagesMost || !p.at.IsZero() && now.Sub(p.at) < pagesEvery {
		return false
	}
	p.at = now
	return true
}

// rest knows whether a process that has been busy is at rest.
type rest struct {
	looks         int // quiet ones that make a rest
	worth         uint64
	quiet         int    // looks in a row before which little was allocated
	seen, settled uint64 // bytes allocated until the last look, and until rest was reached last
}

// reached takes the bytes that have been allocated so far, at every look.
func (r *rest) reached(allocated uint64) bool {
	if allocated-r.seen < restBytes {
		r.quiet++
	} else {
		r.quiet = 0
	}
	r.seen = allocated
	if r.quiet < r.looks || allocated-r.settled < r.worth {
		return false
	}
	r.settled = allocated
	return true
}
