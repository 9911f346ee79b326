// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"context"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
)

// busLog is the log of a bus with its events as Options.View shows them. Search, and what is called on the Bus itself, show
// them as they are stored.
type busLog struct {
	*eventlog.Bus
	view func(*event.Record) *event.Record
}

// viewBytes is how much data of events that are not shown as they are stored one Read returns, and one of them more.
const viewBytes = 8 << 20

// Get is Bus.Get.
func (l busLog) Get(ctx context.Context, seq uint64) (eventlog.Entry, error) {
	e, err := l.Bus.Get(ctx, seq)
	if err == nil {
		e.Record = l.view(e.Record)
	}
	return e, err
}

// Read is Bus.Read. It returns fewer events than there are if they are much larger than what is stored of them.
func (l busLog) Read(ctx context.Context, from uint64, limit int, dst []eventlog.Entry) ([]eventlog.Entry, uint64, error) {
	before := len(dst)
	dst, next, err := l.Bus.Read(ctx, from, limit, dst)
	size := 0
	for i := before; i < len(dst); i++ {
		e := &dst[i]
		stored := e.Record
		if e.Record = l.view(stored); e.Record == stored {
			continue
		}
		if size += len(e.Record.Event.Data); size > viewBytes && i+1 < len(dst) {
			clear(dst[i+1:])
			return dst[:i+1], e.Seq + 1, err
		}
	}
	return dst, next, err
}
