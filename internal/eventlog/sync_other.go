// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package eventlog

import "os"

// datasync syncs a file.
func datasync(f *os.File) error { return f.Sync() }
