// SPDX-License-Identifier: Apache-2.0

//go:build !race

package packet_test

import (
	"testing"

	"github.com/rialto-bridge/rialto/mqttgw/packet"
)

func TestPublishDecodesWithoutAllocation(t *testing.T) {
	p := packet.Publish{QoS: 1, PacketID: 9, Topic: []byte("fleet/17/box/2"), Properties: message, Payload: []byte("21.5")}
	first, body := split(t, p.Append(nil, packet.V5))
	var got packet.Publish
	var ack packet.Ack
	puback := []byte{0, 1, 0}
	n := testing.AllocsPerRun(100, func() {
		if got.Decode(first, body, packet.V5) != nil || ack.Decode(0x40, puback, packet.V5) != nil {
			t.Fatal("refused")
		}
	})
	if n != 0 {
		t.Errorf("%v allocations for PUBLISH and PUBACK, want 0", n)
	}
}
