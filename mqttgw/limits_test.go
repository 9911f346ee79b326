// SPDX-License-Identifier: Apache-2.0

package mqttgw_test

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rialto-bridge/rialto/mqttgw"
	"github.com/rialto-bridge/rialto/mqttgw/packet"
)

// CONNACK says what is configured, and only what is different from what the client asks for.
func TestConnackAnnouncesTheLimits(t *testing.T) {
	w := newWorld(t, func(o *mqttgw.Options) {
		o.Limits.MaxPacket, o.Limits.ReceiveMaximum, o.Limits.MaxTopicAlias = 4096, 7, 3
		o.Limits.MaxKeepAlive, o.Limits.MaxSessionExpiry = 30*time.Second, time.Minute
	})
	const none = 1 << 30
	for _, c := range []struct{ keepAlive, expiry, toldKeepAlive, toldExpiry uint32 }{
		{100, 3600, 30, 60}, {31, 61, 30, 60}, {30, 60, none, none}, {10, 0, none, none}, {0, 0xFFFFFFFF, 30, 60},
	} {
		ask := func(p *packet.Connect) {
			p.KeepAlive = uint16(c.keepAlive)
			p.Properties = p.Properties.AppendInt(packet.SessionExpiry, c.expiry)
		}
		_, ack := w.now.tryConnect(packet.V5, "c", ask)
		for id, want := range map[packet.PropertyID]uint32{packet.MaximumPacketSize: 4096, packet.ReceiveMaximum: 7, packet.TopicAliasMaximum: 3,
			packet.ServerKeepAlive: c.toldKeepAlive, packet.SessionExpiry: c.toldExpiry} {
			if got := ack.Properties.Int(id, none); got != want {
				t.Errorf("asked for %+v: property %#x = %d, want %d", c, byte(id), got, want)
			}
		}
	}
}

// All filters of a session have 256 KiB. One that does not fit is refused, and takes no room from those behind it.
func TestFiltersHaveRoom(t *testing.T) {
	s := start(t, func(o *mqttgw.Options) { o.Limits.MaxPacket, o.Limits.MaxFilters = 1<<20, 1000 })
	c := s.connect(packet.V5, "c")
	p := &packet.Subscribe{PacketID: 1}
	for i := range 300 {
		p.Filters = append(p.Filters, packet.Subscription{Filter: fmt.Appendf(nil, "%01000d", i), QoS: 1})
	}
	p.Filters = append(p.Filters, packet.Subscription{Filter: []byte("short"), QoS: 1})
	c.send(p)
	got := recv[*packet.Suback](c).Codes
	if refused := slices.Index(got, packet.QuotaExceeded); refused != 262 || got[299] != packet.QuotaExceeded || got[300] != 1 {
		t.Errorf("the first that is refused is %d, want 262; the last is answered %v, and a short one %v", refused, got[299], got[300])
	}
}

// What is just within a limit is taken; what is beyond it is answered by its reason code, and counted.
func TestLimitsHold(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	s := start(t, func(o *mqttgw.Options) {
		o.Limits.MaxPacket, o.Limits.MaxLevels, o.Limits.MaxFilters, o.Registerer = 1024, 3, 2, reg
	})
	c := s.connect(packet.V5, "c")
	c.subscribe(1, "a/b/c")
	c.subscribe(1, "$share/g/a/b/c") // the group is no level
	for filter, want := range map[string]packet.Reason{"a/b/c/d": packet.TopicFilterInvalid, "$share/h/a/b/c/d": packet.TopicFilterInvalid, "third": packet.QuotaExceeded, "a/b/c": 1} {
		c.send(&packet.Subscribe{PacketID: 1, Filters: []packet.Subscription{{Filter: []byte(filter), QoS: 1}}})
		if got := recv[*packet.Suback](c).Codes[0]; got != want {
			t.Errorf("SUBSCRIBE %s: %v, want %v", filter, got, want)
		}
	}
	p := s.connect(packet.V5, "p")
	p.publish("a/b/c", "x")
	p.send(publish("a/b/c/d", "x", 1, 1))
	if a := recv[*packet.Ack](p); a.Code != packet.TopicNameInvalid || !strings.Contains(string(a.Properties.Bytes(packet.ReasonString)), "3 levels") {
		t.Errorf("four levels: %+v", a)
	}
	if n := metric(t, reg, "rialto_mqtt_publishes_total", "1", "refused"); n != 1 {
		t.Errorf("%v publishes are counted as refused, want 1", n)
	}
	versions(t, func(t *testing.T, v packet.Version) {
		before := metric(t, reg, "rialto_mqtt_disconnects_total", "packet-too-large")
		p := s.connect(v, "large")
		whole := func(size int) packet.Packet {
			m := publish("t", "", 1, 1)
			m.Payload = make([]byte, size-len(m.Append(nil, v))-1) // the remaining length takes a byte more
			return m
		}
		p.send(whole(1024))
		p.ack(packet.TypePuback, 1, packet.Success)
		p.send(whole(1025))
		p.closed(packet.PacketTooLarge)
		p.drain()
		eventually(t, "it is counted", func() bool { return metric(t, reg, "rialto_mqtt_disconnects_total", "packet-too-large") == before+1 })
	})
}

// A session outlives its connection by MaxSessionExpiry at most, however long its client asks for, now or when it leaves, or if it
// cannot ask.
func TestSessionsExpireAfterTheMaximum(t *testing.T) {
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for name, c := range map[string]struct {
		version       packet.Version
		expiry, leave uint32 // seconds; 0 in DISCONNECT = as it is
		last          time.Duration
	}{
		"3.1.1":           {packet.V311, 0, 0, time.Minute},
		"never":           {packet.V5, 0xFFFFFFFF, 0, time.Minute},
		"longer":          {packet.V5, 61, 0, time.Minute},
		"shorter":         {packet.V5, 20, 0, 20 * time.Second},
		"longer at leave": {packet.V5, 20, 0xFFFFFFFF, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			for _, after := range []time.Duration{c.last - time.Second, c.last} {
				var now atomic.Int64
				w := newWorld(t, func(o *mqttgw.Options) {
					o.Limits.MaxSessionExpiry = time.Minute
					o.Now = func() time.Time { return begin.Add(time.Duration(now.Load())) }
				})
				ask := func(p *packet.Connect) {
					p.CleanStart = false
					if c.version == packet.V5 {
						p.Properties = p.Properties.AppendInt(packet.SessionExpiry, c.expiry)
					}
				}
				cl := w.now.connect(c.version, "c", ask)
				bye := &packet.Disconnect{Kind: packet.TypeDisconnect}
				if c.leave > 0 {
					bye.Properties = bye.Properties.AppendInt(packet.SessionExpiry, c.leave)
				}
				cl.send(bye)
				cl.drain()
				w.kill()
				w.now.connect(packet.V5, "other") // now it has begun
				now.Store(int64(after))
				if _, ack := w.now.tryConnect(c.version, "c", ask); ack.SessionPresent != (after < c.last) {
					t.Errorf("after %s: Session Present %v", after, ack.SessionPresent)
				}
			}
		})
	}
}
