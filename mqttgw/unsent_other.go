// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package mqttgw

import "net"

// limitUnsent does nothing here: what the kernel has taken in for a slow client goes out before what is urgent.
func limitUnsent(net.Conn) error { return nil }
