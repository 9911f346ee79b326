// SPDX-License-Identifier: Apache-2.0

package eventlog

import (
	"os"
	"syscall"
)

// datasync is fdatasync: the data and what is needed to find it, not the times.
func datasync(f *os.File) error {
	for {
		if err := syscall.Fdatasync(int(f.Fd())); err != syscall.EINTR { //nolint:errorlint // errno
			return err
		}
	}
}
