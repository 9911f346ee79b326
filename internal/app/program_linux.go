// SPDX-License-Identifier: Apache-2.0

package app

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// releaseProgram takes the pages of the program's code and constants out of the process. They are those of the file, so nothing is
// lost: the next access maps them again. It costs about a microsecond for each sixteen pages that are needed again.
func releaseProgram() error {
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return err
	}
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		return err
	}
	ms, err := programMappings(f, exe)
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	for _, m := range ms {
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, m.start, m.end-m.start, unix.MADV_DONTNEED); errno != 0 {
			return fmt.Errorf("madvise: %w", errno)
		}
	}
	return nil
}

// filePages is how many bytes of files are in the process; 0 if that is unknown.
func filePages() int64 {
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	var size, resident, file int64 // pages
	if _, err := fmt.Sscan(string(b), &size, &resident, &file); err != nil {
		return 0
	}
	return file * int64(os.Getpagesize())
}

// mapping is a run of addresses.
type mapping struct{ start, end uintptr }

// programMappings reads /proc/<pid>/smaps and returns the mappings of a file that cannot be written to and have no page that is not
// the file's: a debugger's breakpoint, or what the loader of a position-independent program has put in place, would be lost.
func programMappings(smaps io.Reader, file string) ([]mapping, error) {
	var ms []mapping
	var m mapping
	candidate := false
	s := bufio.NewScanner(smaps)
	for s.Scan() {
		line := s.Text()
		var start, end uint64
		var perm, offset, device, inode string
		if n, err := fmt.Sscanf(line, "%x-%x %s %s %s %s", &start, &end, &perm, &offset, &device, &inode); err == nil && n == 6 {
			m = mapping{uintptr(start), uintptr(end)}
			candidate = !strings.Contains(perm, "w") && strings.HasSuffix(perm, "p") && strings.HasSuffix(line, " "+file)
			continue
		}
		var kb uint64
		if n, err := fmt.Sscanf(line, "Anonymous: %d kB", &kb); candidate && err == nil && n == 1 {
			if kb == 0 {
				ms = append(ms, m)
			}
			candidate = false
		}
	}
	return ms, s.Err()
}
