// SPDX-License-Identifier: Apache-2.0

//go:build unix

package outbound

import (
	"net"
	"syscall"
)

// quiet reports whether an idle connection is open and nothing has come over it.
func quiet(conn net.Conn) bool {
	if t, ok := conn.(*timedConn); ok {
		conn = t.Conn
	}
	sc, ok := conn.(syscall.Conn)
	if !ok {
		return true
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return false
	}
	open := false
	err = raw.Read(func(fd uintptr) bool {
		var b [1]byte
		_, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		open = err == syscall.EAGAIN || err == syscall.EWOULDBLOCK
		return true
	})
	return err == nil && open
}
