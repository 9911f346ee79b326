// SPDX-License-Identifier: Apache-2.0

package app_test

import (
	"net"
	"slices"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/internal/app"
	"github.com/rialto-bridge/rialto/mqttgw"
	"github.com/rialto-bridge/rialto/mqttgw/packet"
)

// The limits of the options are those that clients are told, in each profile.
func TestLimitsOfMQTTReachTheClients(t *testing.T) {
	for _, profile := range app.Profiles() {
		t.Run(profile, func(t *testing.T) {
			o := options(t.TempDir())
			o.Profile, o.MQTTAnonymous = profile, true
			o.MQTTLimits = mqttgw.Limits{MaxPacket: 3000, ReceiveMaximum: 9, MaxKeepAlive: time.Minute, MaxSessionExpiry: time.Hour}
			_, a := start(t, o)
			nc, err := net.Dial("tcp", a.MQTTAddr())
			if err != nil {
				t.Fatal(err)
			}
			defer nc.Close()
			if err := nc.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
				t.Fatal(err)
			}
			ask := packet.Connect{Version: packet.V5, ClientID: []byte("c"), Properties: packet.Properties(nil).AppendInt(packet.SessionExpiry, 7200)}
			if _, err := nc.Write(ask.Append(nil, packet.V5)); err != nil {
				t.Fatal(err)
			}
			first, body, err := packet.NewReader(nc).Next(1 << 16)
			if err != nil {
				t.Fatal(err)
			}
			p, err := packet.Decode(first, slices.Clone(body), packet.V5)
			ack, ok := p.(*packet.Connack)
			if !ok || err != nil || ack.Code != packet.Success {
				t.Fatalf("got %+v, %v, want CONNACK 0x00", p, err)
			}
			for id, want := range map[packet.PropertyID]uint32{packet.MaximumPacketSize: 3000, packet.ReceiveMaximum: 9, packet.TopicAliasMaximum: 16, packet.ServerKeepAlive: 60, packet.SessionExpiry: 3600} {
				if got := ack.Properties.Int(id, 0); got != want {
					t.Errorf("property %#x = %d, want %d", byte(id), got, want)
				}
			}
		})
	}
}
