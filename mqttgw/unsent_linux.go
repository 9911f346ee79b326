// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"crypto/tls"
	"net"

	"golang.org/x/sys/unix"
)

// limitUnsent keeps the kernel from taking in more than it can soon send: what waits for a slow client waits here, where
// something urgent still gets before it.
func limitUnsent(nc net.Conn) error {
	if t, ok := nc.(*tls.Conn); ok {
		nc = t.NetConn()
	}
	tcp, ok := nc.(*net.TCPConn)
	if !ok {
		return nil
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if err := raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, writeSize)
	}); err != nil {
		return err
	}
	return failed
}
