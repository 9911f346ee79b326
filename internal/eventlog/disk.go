// SPDX-License-Identifier: Apache-2.0

package eventlog

import (
	"cmp"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rialto-bridge/rialto/internal/fault"
)

// DiskState is the state of the disk under the data directory, in bytes.
type DiskState struct {
	Free    int64 // for unprivileged writers
	Total   int64
	Reserve int64 // producers are refused below this much free space
	Used    int64 // by the streams of the event plane
	Cap     int64 // what they may take; 0: the disk is the limit
	Full    bool  // producers are refused now
}

// disk watches free space. JetStream must never meet a full disk: its write error sticks until a restart.
//
// Producers are refused when less than the reserve would be left. The reserve is for what goes on then: outcomes,
// dead letters (until a quarter of the reserve is left), JetStream's index files and the local views.
type disk struct {
	dir     string
	statfs  func(string) (free, total int64, err error)
	reserve int64
	logger  *slog.Logger
	metrics *metrics

	free  atomic.Int64 // at the last look
	total atomic.Int64
	since atomic.Int64 // bytes written after it
	going atomic.Int64 // bytes of batches on their way; what of them is written already counts twice
	full  atomic.Bool

	done chan struct{}
	wg   sync.WaitGroup
}

const (
	diskInterval  = time.Second
	reserveLeast  = 512 << 20
	reserveShare  = 20 // a twentieth of the disk
	reserveAtMost = 4  // a quarter of a small disk
	slackShare    = 8  // an eighth of the reserve is the difference between full and free again
	floorShare    = 4  // streams that are not for producers stop at a quarter of the reserve
)

// defaultReserve is the larger of least, if not of 512 MiB, and 5 % of the disk, but no more than a quarter of it.
func defaultReserve(total, least int64) int64 {
	return min(max(cmp.Or(least, reserveLeast), total/reserveShare), total/reserveAtMost)
}

func newDisk(o Options, logger *slog.Logger, m *metrics, eachLook func()) (*disk, error) {
	d := &disk{dir: o.Dir, statfs: o.statfs, reserve: o.Reserve, logger: logger, metrics: m, done: make(chan struct{})}
	free, total, err := d.statfs(d.dir)
	if err != nil {
		return nil, fmt.Errorf("free space of %s: %w", d.dir, err)
	}
	if d.reserve == 0 {
		d.reserve = defaultReserve(total, o.ReserveLeast)
	}
	d.free.Store(free)
	d.total.Store(total)
	d.metrics.diskFree.Set(float64(free))
	d.judge(free, free)
	d.wg.Add(1)
	go func() {
		defer d.wg.Done()
		t := time.NewTicker(diskInterval)
		defer t.Stop()
		for {
			select {
			case <-d.done:
				return
			case <-t.C:
				d.look(0)
				eachLook()
			}
		}
	}()
	return d, nil
}

func (d *disk) close() {
	close(d.done)
	d.wg.Wait()
}

// look asks the system. need is what is about to be written on top of what is.
func (d *disk) look(need int64) {
	before := d.since.Load()
	free, total, err := d.statfs(d.dir)
	if err != nil {
		d.logger.Warn("free space is unknown", "err", err)
		return
	}
	d.since.Add(-before)
	d.free.Store(free)
	d.total.Store(total)
	d.metrics.diskFree.Set(float64(free))
	d.judge(free-need, free)
}

// judge sets full and tells of a change. It takes more space to be called free again than to be called full, so that
// producers are not let in for one batch at a time.
func (d *disk) judge(left, free int64) {
	switch {
	case left < d.reserve && d.full.CompareAndSwap(false, true):
		d.logger.Warn("disk is full to the reserve: producers are refused", "free", free, "reserve", d.reserve)
	case left >= d.reserve+d.reserve/slackShare && d.full.CompareAndSwap(true, false):
		d.logger.Info("disk has space again", "free", free, "reserve", d.reserve)
	}
}

// begin counts a batch that was let through, end what became of it.
func (d *disk) begin(n int64) { d.going.Add(n) }

func (d *disk) end(n int64) {
	d.since.Add(n) // first, so that it is never left out
	d.going.Add(-n)
}

// refuse returns fault.Full when n more bytes would not leave enough. It looks again before it says so for the first time, and when
// much was written since the last look.
func (d *disk) refuse(producer bool, n int64) error {
	limit := d.reserve
	if !producer {
		limit /= floorShare
	}
	n += d.going.Load()
	since := d.since.Load()
	if d.free.Load()-since-n < limit && (n > 0 || since > 0) || since >= d.reserve/slackShare {
		need := n
		if !producer {
			need = 0 // what others write says nothing about producers before it is written
		}
		d.look(need)
	}
	if d.free.Load()-n >= limit && !(producer && d.full.Load()) {
		return nil
	}
	d.metrics.refused.WithLabelValues("disk").Inc()
	return fault.New(fault.Full, "the disk of the log is full")
}

func (d *disk) state() DiskState {
	return DiskState{Free: d.free.Load(), Total: d.total.Load(), Reserve: d.reserve, Full: d.full.Load()}
}

func statfs(dir string) (free, total int64, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, 0, err
	}
	size := int64(st.Bsize)
	return int64(st.Bavail) * size, int64(st.Blocks) * size, nil //nolint:gosec,unconvert // types differ by system
}
