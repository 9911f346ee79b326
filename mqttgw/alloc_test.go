// SPDX-License-Identifier: Apache-2.0

//go:build !race

package mqttgw

import (
	"testing"

	"github.com/rialto-bridge/rialto/mqttgw/packet"
)

// A message costs a few allocations, whatever the number of its receivers.
func TestDeliveryAllocatesPerMessageOnly(t *testing.T) {
	const sessions = 500
	tail, all := fan(t, sessions, packet.V5, 1)
	seq := uint64(0)
	n := testing.AllocsPerRun(50, func() {
		seq++
		tail.route(entry(seq))
		for _, c := range all {
			c.empty()
		}
	})
	if n > sessions+40 { // recycling a chunk allocates its header
		t.Errorf("%v allocations for a message to %d sessions", n, sessions)
	}
}
