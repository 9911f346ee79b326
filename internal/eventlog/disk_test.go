// SPDX-License-Identifier: Apache-2.0

package eventlog_test

import (
	"math"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/internal/fault"
)

// smallDisk returns a directory on a tmpfs of 64 MiB. Where one cannot be mounted the quota is simulated by counting the bytes of the
// directory, except in CI, where the test fails.
func smallDisk(t *testing.T) eventlog.Options {
	t.Helper()
	const size = 64 << 20
	dir := t.TempDir()
	err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=64m")
	if err == nil {
		t.Cleanup(func() {
			if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
				t.Error("unmount:", err)
			}
		})
		return eventlog.Options{Dir: filepath.Join(dir, "data")}
	}
	if os.Getenv("CI") == "true" {
		t.Fatalf("the disk test needs a tmpfs, and mounting one failed: %v (run the tests as root, or with CAP_SYS_ADMIN)", err)
	}
	t.Logf("no tmpfs (%v): the disk's size is simulated", err)
	return eventlog.Options{Dir: filepath.Join(dir, "data")}.WithStatfs(func(string) (int64, int64, error) {
		var used int64
		err := filepath.Walk(dir, func(_ string, fi os.FileInfo, err error) error {
			if err == nil && !fi.IsDir() {
				used += fi.Size()
			}
			return nil //nolint:nilerr // files come and go
		})
		return size - used, size, err
	})
}

// Producers are refused before the disk is full, readers and other streams go on, and a trim heals without a restart.
func TestDiskReserve(t *testing.T) {
	o := smallDisk(t)
	o.Reserve, o.Durability, o.Logger = 16<<20, eventlog.OS, logger(t)
	l := open(t, o)
	b, outcomes := openBus(t, l, "default"), openStream(t, l, "JOURNEY_default")
	var stored, refused atomic.Int64
	fill := func() (full bool) {
		done := make(chan struct{}, 1000)
		sent := 0
		for n := range 1000 { // far more than the disk holds
			rec := record(n)
			rec.Minted, rec.Event.Data = true, make([]byte, 256<<10)
			err := b.Append(t.Context(), rec, func(r eventlog.Receipt) {
				switch {
				case r.Err == nil:
					stored.Add(1)
				case fault.KindOf(r.Err) == fault.Full:
					refused.Add(1)
				default:
					t.Error(r.Err)
				}
				done <- struct{}{}
			})
			if err != nil {
				if fault.KindOf(err) != fault.Full {
					t.Fatal(err)
				}
				full = true
				break
			}
			sent++
		}
		for range sent {
			<-done
		}
		return full
	}
	if !fill() {
		t.Fatal("no append was refused at once")
	}
	d := l.Disk()
	if !d.Full || d.Free > d.Reserve+8<<20 || d.Free < d.Reserve-1<<20 || fault.KindOf(l.Err()) != fault.Full {
		t.Errorf("Disk() = %+v, Err() = %v, want full with about %d free", d, l.Err(), d.Reserve)
	}
	n := stored.Load()
	if n < 100 || b.Committed() != uint64(n) {
		t.Errorf("%d events stored, committed %d", n, b.Committed())
	}
	// Readers go on, and so do outcomes.
	if e, err := b.Get(t.Context(), 1); err != nil || len(e.Record.Event.Data) != 256<<10 {
		t.Errorf("Get on a full disk = %v", err)
	}
	for _, r := range appendRaw(t, outcomes, 100, 1000) {
		if r.Err != nil {
			t.Fatalf("outcome on a full disk: %v", r.Err)
		}
	}
	tr, err := b.Trim(t.Context(), eventlog.TrimPolicy{MaxBytes: 16 << 20, Protect: math.MaxUint64})
	if err != nil || tr.Blocks < 2 {
		t.Fatalf("Trim = %+v, %v", tr, err)
	}
	l.LookAtDisk()
	if err := l.Err(); err != nil {
		t.Fatalf("Err() after space came back = %v", err)
	}
	if !fill() || stored.Load() <= n+50 {
		t.Errorf("%d events stored after space came back", stored.Load()-n)
	}
	// The other streams have a floor of their own, and the server never meets a full disk.
	big := 0
	for ; big < 1000; big++ {
		if r := appendRaw(t, outcomes, 1, 256<<10)[0]; r.Err != nil {
			if fault.KindOf(r.Err) != fault.Full {
				t.Fatal(r.Err)
			}
			break
		}
	}
	if d := l.Disk(); big == 1000 || d.Free < d.Reserve/8 {
		t.Errorf("%d outcomes of 256 KiB were taken, %d bytes are free", big, d.Free)
	}
	if r := appendRaw(t, outcomes, 1, 10)[0]; r.Err != nil && fault.KindOf(r.Err) != fault.Full {
		t.Errorf("small outcome = %v", r.Err)
	}
}

// If the server meets a full disk all the same, the log closes, and a restart heals it.
func TestWriteErrorOfTheServer(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=16m"); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("the test needs a tmpfs, and mounting one failed: %v (run the tests as root, or with CAP_SYS_ADMIN)", err)
		}
		t.Logf("no tmpfs: %v", err)
		return
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error("unmount:", err)
		}
	})
	blind := func(string) (int64, int64, error) { return 1 << 40, 1 << 40, nil }
	o := eventlog.Options{Dir: filepath.Join(dir, "data")}.WithStatfs(blind)
	l := open(t, o.WithAckTimeout(2*time.Second)) // a full disk is noticed by it; a busy machine is not to be
	b := openBus(t, l, "default")
	acked := uint64(0)
	for n := 0; ; n++ {
		rec := record(n)
		rec.Event.Data = make([]byte, 900_000)
		got := make(chan eventlog.Receipt, 1)
		if err := b.Append(t.Context(), rec, func(r eventlog.Receipt) { got <- r }); err != nil {
			t.Fatal(err)
		}
		if r := <-got; r.Err != nil {
			if fault.KindOf(r.Err) != fault.Unavailable {
				t.Errorf("append on a full disk = %v", r.Err)
			}
			break
		}
		acked++
	}
	if fault.KindOf(l.Err()) != fault.Unavailable || acked < 5 || b.Committed() != acked {
		t.Errorf("Err() = %v after %d appends, committed %d", l.Err(), acked, b.Committed())
	}
	if _, err := b.Get(t.Context(), acked); err != nil {
		t.Error(err)
	}
	closeLog(t, l)
	must(t, syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_REMOUNT, "size=64m"))
	b = openBus(t, open(t, o), "default")
	if len(b.Lost()) > 0 || len(readAll(t, b)) < int(acked) {
		t.Errorf("after a restart: lost %v, %d events of %d", b.Lost(), len(readAll(t, b)), acked)
	}
	if r := appendAll(t, b, record(1000))[0]; r.Err != nil {
		t.Errorf("append after a restart: %v", r.Err)
	}
}

func TestMaxStore(t *testing.T) {
	l := open(t, eventlog.Options{Dir: t.TempDir(), MaxStore: 1 << 20, Durability: eventlog.OS})
	b := openBus(t, l, "default")
	rec := record(1)
	rec.Minted, rec.Event.Data = true, make([]byte, 300_000)
	r := appendAll(t, b, rec, rec, rec)
	if r[2].Err != nil {
		t.Fatal(r[2].Err)
	}
	if r := appendAll(t, b, rec)[0]; fault.KindOf(r.Err) != fault.Full {
		t.Errorf("append above the cap = %+v, want full", r)
	}
}

func TestDefaultReserve(t *testing.T) {
	for _, c := range []struct{ total, least, want int64 }{
		{64 << 20, 0, 16 << 20}, {1 << 30, 0, 256 << 20}, {4 << 30, 0, 512 << 20}, {100 << 30, 0, 5 << 30},
		{1 << 30, 128 << 20, 128 << 20}, {100 << 30, 128 << 20, 5 << 30}, {64 << 20, 128 << 20, 16 << 20},
	} {
		if got := eventlog.DefReserve(c.total, c.least); got != c.want {
			t.Errorf("reserve of %d = %d, want %d", c.total, got, c.want)
		}
	}
}
