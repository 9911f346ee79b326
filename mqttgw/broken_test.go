// SPDX-License-Identifier: Apache-2.0

package mqttgw_test

import (
	"testing"

	"github.com/rialto-bridge/rialto/mqttgw/packet"
)

// What an MQTT 5 client is told that breaks the protocol after its CONNECT, as the specification says it (the section is named where it
// does not say so with the field).
func TestBrokenProtocol(t *testing.T) {
	const malformed, violation = packet.MalformedPacket, packet.ProtocolError
	for _, tt := range []struct {
		name string
		raw  string
		want packet.Reason
	}{
		{"second CONNECT", "\x10\x0d\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x00", violation},
		{"CONNACK", "\x20\x03\x00\x00\x00", violation},
		{"SUBACK", "\x90\x04\x00\x01\x00\x00", violation},
		{"UNSUBACK", "\xb0\x04\x00\x01\x00\x00", violation},
		{"PINGRESP", "\xd0\x00", violation},
		{"CONNACK cut short", "\x20\x01\x00", malformed},
		{"type 0", "\x00\x00", malformed},
		{"too large", "\x30\x80\x80\x80\x01", packet.PacketTooLarge},
		{"remaining length of five bytes", "\xc0\xff\xff\xff\xff\x01", malformed},
		{"PINGREQ with flags", "\xc1\x00", malformed},
		{"PUBACK with flags", "\x41\x02\x00\x01", malformed},
		{"PUBREL without flags", "\x60\x02\x00\x01", malformed},
		{"PUBACK with a code of PUBREL", "\x40\x03\x00\x01\x92", malformed},
		{"PUBACK for id 0", "\x40\x02\x00\x00", violation},

		{"QoS 3", "\x36\x06\x00\x01a\x00\x01\x00", malformed},
		{"DUP with QoS 0", "\x38\x04\x00\x01a\x00", malformed},
		{"RETAIN where nothing is retained", "\x31\x04\x00\x01t\x00", packet.RetainNotSupported},
		{"neither topic nor alias", "\x30\x03\x00\x00\x00", violation},
		{"alias that was not set", "\x30\x06\x00\x00\x03\x23\x00\x01", violation},
		{"alias above the maximum", "\x30\x07\x00\x01t\x03\x23\xff\xff", packet.TopicAliasInvalid},
		{"alias twice", "\x30\x0a\x00\x01t\x06\x23\x00\x01\x23\x00\x01", violation},
		{"payload format twice", "\x30\x08\x00\x01t\x04\x01\x01\x01\x01", violation},
		{"subscription identifier in PUBLISH", "\x30\x06\x00\x01t\x02\x0b\x01", violation},
		{"property of CONNECT in PUBLISH", "\x30\x07\x00\x01t\x03\x21\x00\x01", malformed}, // 2.2.2.2
		{"unknown property", "\x30\x06\x00\x01t\x02\x7f\x00", malformed},
		{"properties beyond the packet", "\x30\x05\x00\x01t\x09\x01", malformed},
		{"property that is not UTF-8", "\x30\x08\x00\x01t\x04\x03\x00\x01\xff", malformed},

		{"SUBSCRIBE without flags", "\x80\x07\x00\x01\x00\x00\x01a\x00", malformed},
		{"SUBSCRIBE without options", "\x82\x06\x00\x01\x00\x00\x01a", malformed},
		{"SUBSCRIBE without filter", "\x82\x03\x00\x01\x00", violation},
		{"SUBSCRIBE with QoS 3", "\x82\x07\x00\x01\x00\x00\x01a\x03", violation}, // 3.8.3.1
		{"SUBSCRIBE with retain handling 3", "\x82\x07\x00\x01\x00\x00\x01a\x30", violation},
		{"SUBSCRIBE with reserved options", "\x82\x07\x00\x01\x00\x00\x01a\x40", malformed},
		{"no local on a shared subscription", "\x82\x10\x00\x01\x00\x00\x0a$share/g/a\x04", violation},
		{"subscription identifier 0", "\x82\x09\x00\x01\x02\x0b\x00\x00\x01a\x00", violation},
		{"subscription identifier twice", "\x82\x0b\x00\x01\x04\x0b\x01\x0b\x02\x00\x01a\x00", violation},
		{"UNSUBSCRIBE without filter", "\xa2\x03\x00\x01\x00", violation},
		{"UNSUBSCRIBE with a subscription identifier", "\xa2\x08\x00\x01\x02\x0b\x01\x00\x01a", malformed},

		{"server reference in DISCONNECT", "\xe0\x06\x00\x04\x1c\x00\x01x", violation},
		{"session expiry in DISCONNECT after none in CONNECT", "\xe0\x07\x00\x05\x11\x00\x00\x00\x05", violation},
		{"session expiry twice", "\xe0\x0c\x00\x0a\x11\x00\x00\x00\x00\x11\x00\x00\x00\x00", violation},
		{"DISCONNECT with flags", "\xe1\x00", malformed},
		{"AUTH", "\xf0\x06\x18\x04\x15\x00\x01m", violation},
		{"AUTH without method", "\xf0\x00", violation},
		{"AUTH with flags", "\xf1\x00", malformed},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := start(t)
			c := s.connect(packet.V5, "a")
			c.raw([]byte(tt.raw))
			c.closed(tt.want)
			if packet.TypeOf(tt.raw[0]) != packet.TypeConnect {
				c := s.open(packet.V311) // as the first packet: nothing is said before a CONNECT
				c.raw([]byte(tt.raw))
				c.closed(0)
			}
		})
	}
}

// A 3.1.1 client is not told, and closed.
func TestBrokenProtocolOf311(t *testing.T) {
	s := start(t)
	for name, raw := range map[string]string{
		"second CONNECT": "\x10\x0c\x00\x04MQTT\x04\x02\x00\x00\x00\x00",
		"CONNACK":        "\x20\x02\x00\x00",
		"SUBACK":         "\x90\x03\x00\x01\x00",
		"UNSUBACK":       "\xb0\x02\x00\x01",
		"PINGRESP":       "\xd0\x00",
		"AUTH":           "\xf0\x00",
		"PUBACK code":    "\x40\x03\x00\x01\x00",
		"QoS 3":          "\x82\x06\x00\x01\x00\x01a\x03",
	} {
		t.Run(name, func(t *testing.T) {
			c := s.in(t).connect(packet.V311, "a")
			c.raw([]byte(raw))
			c.closed(0)
		})
	}
}
