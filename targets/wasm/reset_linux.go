// SPDX-License-Identifier: Apache-2.0

package wasm

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"iter"
	"os"
	"unsafe"

	"github.com/tetratelabs/wazero/experimental"
	"golang.org/x/sys/unix"
)

// Setting a memory back costs what events have changed of it, not what there is. The memory as it was is a file without a
// name, which is mapped into each instance privately: the kernel copies a page when it is first written, and says in
// /proc/self/pagemap which pages are such copies. Instances share the pages that they only read.

// arena is the memory of one instance.
type arena struct {
	whole []byte // as large as the memory may grow; pages that were never touched take none
	pages []byte // of pagemap, to be used again
}

// withArena returns a context in which an instance is made whose memory is the arena, which has room for most bytes.
func withArena(ctx context.Context, most int) (context.Context, *arena, error) {
	whole, err := unix.Mmap(-1, 0, most, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		return nil, nil, fmt.Errorf("reserve %d bytes of addresses: %w", most, err)
	}
	a := &arena{whole: whole}
	return experimental.WithMemoryAllocator(ctx, a), a, nil
}

// Allocate implements experimental.MemoryAllocator.
func (a *arena) Allocate(_, _ uint64) experimental.LinearMemory { return a }

// Reallocate implements experimental.LinearMemory.
func (a *arena) Reallocate(size uint64) []byte {
	if size > uint64(len(a.whole)) {
		return nil
	}
	return a.whole[:size]
}

// Free implements experimental.LinearMemory. It may be called again, because not every way in which an instance ends
// calls it.
func (a *arena) Free() {
	if a.whole == nil {
		return
	}
	if err := unix.Munmap(a.whole); err != nil {
		panic(fmt.Errorf("give back memory: %w", err)) // only a wrong address does that
	}
	a.whole = nil
}

// sharing is the file that a snapshot's memory is a mapping of.
type sharing struct{ file *os.File }

// newSnapshot copies a memory.
func newSnapshot(memory []byte) (*snapshot, error) {
	fd, err := unix.MemfdCreate("rialto-function", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make a file in memory: %w", err)
	}
	s := &snapshot{shared: sharing{os.NewFile(uintptr(fd), "memory of a function")}} //nolint:gosec // a descriptor
	if err = s.write(memory); err == nil && len(memory) > 0 {
		s.memory, err = unix.Mmap(fd, 0, len(memory), unix.PROT_READ, unix.MAP_SHARED)
	}
	if err != nil {
		s.close()
		return nil, fmt.Errorf("keep a memory: %w", err)
	}
	return s, nil
}

// write leaves out what is zero, which is most of it.
func (s *snapshot) write(memory []byte) error {
	if err := s.shared.file.Truncate(int64(len(memory))); err != nil {
		return err
	}
	zero := make([]byte, systemPage)
	for at := range everyPage(memory) {
		if page := memory[at : at+systemPage]; !bytes.Equal(page, zero) {
			if _, err := s.shared.file.WriteAt(page, int64(at)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *snapshot) close() {
	if s.memory != nil {
		if err := unix.Munmap(s.memory); err != nil {
			panic(fmt.Errorf("give back memory: %w", err))
		}
		s.memory = nil
	}
	s.shared.file.Close() // nothing is lost with it
}

// adopt makes an arena's memory, which view is and which has the snapshot's size, what the snapshot is.
func (a *arena) adopt(view []byte, s *snapshot) error {
	if len(view) == 0 {
		return nil
	}
	_, err := unix.MmapPtr(int(s.shared.file.Fd()), 0, unsafe.Pointer(&view[0]), uintptr(len(view)), //nolint:gosec // the mapping is ours
		unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_FIXED)
	if err != nil {
		return fmt.Errorf("map a memory: %w", err)
	}
	return nil
}

// Bits of an entry of pagemap (Documentation/admin-guide/mm/pagemap.rst of Linux).
const (
	pagePresent = 1 << 63
	pageSwapped = 1 << 62
	pageOfFile  = 1 << 61
)

// written gives the pages that are not those of the snapshot's file; all, where the system does not say which these are.
func (a *arena) written(view []byte) iter.Seq[int] {
	if len(view) == 0 || !a.readPages(view) {
		return everyPage(view)
	}
	return func(yield func(int) bool) {
		for i := 0; i < len(a.pages); i += 8 {
			e := binary.NativeEndian.Uint64(a.pages[i:])
			own := e&pageSwapped != 0 || e&pagePresent != 0 && e&pageOfFile == 0
			if own && !yield(i/8*systemPage) {
				return
			}
		}
	}
}

// readPages reads what the system knows of the pages of a memory.
func (a *arena) readPages(view []byte) bool {
	fd, err := unix.Open("/proc/self/pagemap", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	n := len(view) / systemPage * 8
	if cap(a.pages) < n {
		a.pages = make([]byte, n)
	}
	a.pages = a.pages[:n]
	at := int64(uintptr(unsafe.Pointer(&view[0])) / uintptr(systemPage) * 8) //nolint:gosec // an address of user space
	got, err := unix.Pread(fd, a.pages, at)
	return err == nil && got == n
}
