// SPDX-License-Identifier: Apache-2.0

package mqttgw_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rialto-bridge/rialto/mqttgw"
	"github.com/rialto-bridge/rialto/mqttgw/packet"
)

// text, number and user are properties in short.
func text(id packet.PropertyID) packet.Properties {
	return packet.Properties(nil).AppendString(id, "p")
}
func number(id packet.PropertyID, v uint32) packet.Properties {
	return packet.Properties(nil).AppendInt(id, v)
}
func user() packet.Properties { return packet.Properties(nil).AppendUser("k", "v") }

func concat(ps ...packet.Properties) packet.Properties { return slices.Concat(ps...) }

// messageProperties are all that PUBLISH and a will have in common.
var messageProperties = concat(number(packet.PayloadFormat, 1), number(packet.MessageExpiry, 100), text(packet.ContentType), text(packet.ResponseTopic),
	text(packet.CorrelationData), user())

// everyConnect are CONNECTs with all that there is: one that is accepted, and one with enhanced authentication, which is not.
func everyConnect(v packet.Version) (all [][]byte) {
	p := &packet.Connect{Version: v, CleanStart: true, KeepAlive: 100, ClientID: []byte("d"), HasUser: true, Username: []byte("u"), HasPass: true, Password: []byte("p"),
		Will: &packet.Will{QoS: 1, Topic: []byte("w"), Payload: []byte("x"), Properties: concat(number(packet.WillDelay, 1), messageProperties)}}
	p.Properties = concat(number(packet.SessionExpiry, 60), number(packet.ReceiveMaximum, 5), number(packet.MaximumPacketSize, 1000),
		number(packet.TopicAliasMaximum, 1), number(packet.RequestResponseInfo, 1), number(packet.RequestProblemInfo, 1), user())
	all = append(all, p.Append(nil, v))
	if v == packet.V5 {
		p.Properties = concat(p.Properties, text(packet.AuthenticationMethod), text(packet.AuthenticationData))
		all = append(all, p.Append(nil, v))
	}
	return all
}

// everyPacket are the packets that may come after CONNECT, with all that there is, and those that only a server sends.
func everyPacket(v packet.Version) (all [][]byte) {
	because := concat(text(packet.ReasonString), user())
	packets := []packet.Packet{
		&packet.Publish{Topic: []byte("a/b"), Retain: true, Properties: concat(number(packet.TopicAlias, 1), messageProperties), Payload: []byte("x")},
		&packet.Publish{Topic: []byte("a/b"), QoS: 1, PacketID: 1, Properties: concat(number(packet.TopicAlias, 1), messageProperties), Payload: []byte("x")},
		&packet.Publish{Topic: []byte("a/b"), QoS: 2, PacketID: 1, Dup: true, Properties: messageProperties, Payload: []byte("x")},
		&packet.Subscribe{PacketID: 1, Properties: concat(number(packet.SubscriptionID, 200), user()), Filters: []packet.Subscription{
			{Filter: []byte("a/+"), QoS: 2, NoLocal: v == packet.V5, RetainAsPublished: v == packet.V5, RetainHandling: 1}, {Filter: []byte("$share/g/a"), QoS: 1}}},
		&packet.Unsubscribe{PacketID: 1, Properties: user(), Filters: [][]byte{[]byte("a"), []byte("b/#")}},
		&packet.Ack{Kind: packet.TypePuback, PacketID: 1, Code: packet.NoMatchingSubscribers, Properties: because},
		&packet.Ack{Kind: packet.TypePubrec, PacketID: 1, Code: packet.QuotaExceeded, Properties: because},
		&packet.Ack{Kind: packet.TypePubrel, PacketID: 1, Code: packet.PacketIDNotFound, Properties: because},
		&packet.Ack{Kind: packet.TypePubcomp, PacketID: 1, Code: packet.PacketIDNotFound, Properties: because},
		&packet.Ping{Kind: packet.TypePingreq},
		&packet.Disconnect{Kind: packet.TypeDisconnect, Code: packet.DisconnectWithWill, Properties: concat(number(packet.SessionExpiry, 5), because)},
		&packet.Connack{Properties: concat(number(packet.ReceiveMaximum, 5), text(packet.AssignedClientID), because)},
		&packet.Suback{Kind: packet.TypeSuback, PacketID: 1, Properties: because, Codes: []packet.Reason{1, packet.QuotaExceeded}},
		&packet.Suback{Kind: packet.TypeUnsuback, PacketID: 1, Properties: because, Codes: []packet.Reason{0, packet.NoSubscriptionExisted}},
		&packet.Ping{Kind: packet.TypePingresp},
	}
	if v == packet.V5 {
		packets = append(packets, &packet.Disconnect{Kind: packet.TypeAuth, Code: packet.ReAuthenticate,
			Properties: concat(text(packet.AuthenticationMethod), text(packet.AuthenticationData), because)})
	}
	for _, p := range packets {
		all = append(all, p.Append(nil, v))
	}
	return all
}

// hello opens a session that is kept.
func hello(v packet.Version) []byte {
	p := &packet.Connect{Version: v, CleanStart: v == packet.V5, ClientID: []byte("kept"), HasUser: true, Username: []byte("u"), HasPass: true, Password: []byte("p")}
	p.Properties = number(packet.SessionExpiry, 60)
	return p.Append(nil, v)
}

// damage returns p cut at every length, with a remaining length that fits, and with every bit flipped.
func damage(p []byte) (all [][]byte) {
	for n := 2; n < len(p); n++ {
		cut := slices.Clone(p[:n])
		cut[1] = byte(n - 2)
		all = append(all, cut)
	}
	for i := range len(p) * 8 {
		flipped := slices.Clone(p)
		flipped[i/8] ^= 1 << (i % 8)
		all = append(all, flipped)
	}
	return all
}

// everyDamage is the whole sweep of a version: what is sent, from the CONNECT on.
func everyDamage(v packet.Version) (all [][]byte) {
	for _, connect := range everyConnect(v) {
		all = append(all, damage(connect)...)
	}
	for _, p := range everyPacket(v) {
		for _, damaged := range damage(p) {
			all = append(all, append(hello(v), damaged...))
		}
	}
	return all
}

// undamaged requires that what the sweep damages is right when it is whole.
func (s *server) undamaged(t *testing.T, v packet.Version) {
	t.Helper()
	for _, connect := range [][]byte{everyConnect(v)[0], hello(v)} {
		c := s.open(v)
		c.raw(connect)
		if ack := recv[*packet.Connack](c); ack.Code != packet.Success {
			t.Fatalf("CONNACK %v for the CONNECT that is to be damaged", ack.Code)
		}
		c.Close()
	}
	for _, p := range everyPacket(v) {
		if _, err := packet.Decode(p[0], p[2:], v); err != nil || int(p[1]) != len(p)-2 {
			t.Fatalf("%x is to be damaged, and is not right: %v", p, err)
		}
	}
}

// withUser has a user u with the password p, and no limits to failed log-ins.
func withUser(t *testing.T, reg *prometheus.Registry) setup {
	t.Helper()
	t.Setenv("TEST_DAMAGE", "p")
	dir := mqttgw.NewDirectory()
	dir.Set("u", device(t, `{"name":"u","password":{"ref":"env:TEST_DAMAGE"}}`))
	return func(o *mqttgw.Options) {
		o.Directory, o.Sessions, o.Registerer = dir, &memoryLog{}, reg
		o.Limits.MaxFailuresPerMinute, o.Limits.MaxFailuresPerAddress, o.Limits.MaxConnectRate = 1<<30, 1<<30, 1<<30
	}
}

// bystander publishes and receives, whatever others send.
type bystander struct {
	*client
	n int
}

func (s *server) bystander() *bystander {
	b := &bystander{client: s.connect(packet.V5, "other")}
	b.subscribe(1, "alive")
	return b
}

// lives publishes a message and receives it.
func (b *bystander) lives() {
	b.t.Helper()
	b.n++
	b.send(publish("alive", fmt.Sprint(b.n), 1, 77))
	for acked, got := false, false; !acked || !got; {
		switch p := b.next().(type) {
		case *packet.Ack:
			acked = p.Kind == packet.TypePuback && p.Code == packet.Success
		case *packet.Publish:
			if got = string(p.Payload) == fmt.Sprint(b.n); !got {
				b.t.Fatalf("got %q, want %d", p.Payload, b.n)
			}
			b.send(&packet.Ack{Kind: packet.TypePuback, PacketID: p.PacketID})
		default:
			b.t.Fatalf("got %T %+v", p, p)
		}
	}
}

// Every packet cut short, and every packet with a bit flipped, ends or answers its own connection at most; others live, and nothing is
// left behind.
func TestDamagedPackets(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	s := startPipes(t, withUser(t, reg))
	other := s.bystander()
	before := runtime.NumGoroutine()
	for _, v := range []packet.Version{packet.V311, packet.V5} {
		s.undamaged(t, v)
		for _, b := range everyDamage(v) {
			s.throw(t, b)
			other.lives()
		}
	}
	other.nothing()
	eventually(t, "all connections end", func() bool { return metric(t, reg, "rialto_mqtt_connections") == 1 })
	// Who has a session can come back and end it.
	for _, c := range s.gateway.Clients("", true) {
		if c.ClientID != "other" {
			who := credentials(c.Principal, "p")
			if c.Principal == "" {
				who = func(*packet.Connect) {}
			}
			back := s.connect(packet.V5, c.ClientID, who)
			back.send(&packet.Disconnect{Kind: packet.TypeDisconnect})
			back.until(0)
		}
	}
	for name, want := range map[string]float64{"panics_total": 0, "sessions": 0, "subscriptions": 1} {
		if got := metric(t, reg, "rialto_mqtt_"+name); got != want {
			t.Errorf("rialto_mqtt_%s is %v, want %v", name, got, want)
		}
	}
	eventually(t, "the goroutines of all connections end", func() bool { return runtime.NumGoroutine() <= before })
}

// A sample of them over WebSocket.
func TestDamagedPacketsOverWebSocket(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	s := startWebSocket(t, withUser(t, reg))
	other := s.bystander()
	for _, v := range []packet.Version{packet.V311, packet.V5} {
		for i, b := range everyDamage(v) {
			if i%53 == 0 {
				s.throw(t, b)
				other.lives()
			}
		}
	}
	if got := metric(t, reg, "rialto_mqtt_panics_total"); got != 0 {
		t.Errorf("%v connections ended by a programming error", got)
	}
	eventually(t, "all connections end", func() bool { return metric(t, reg, "rialto_mqtt_connections") == 1 })
}

// throw sends bytes and a PINGREQ on a connection of its own, and waits until the server has closed it or has answered the PINGREQ. If
// the server has to wait for the rest of a packet, the connection is closed.
func (s *server) throw(t *testing.T, b []byte) {
	t.Helper()
	b = append(b, byte(packet.TypePingreq)<<4, 0)
	nc, err := s.dial()
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	waits := waitsForMore(b)
	written := make(chan struct{})
	go func() {
		defer close(written)
		nc.Write(b) //nolint:errcheck // the server may close before it has read everything
		if waits {
			nc.Close()
		}
	}()
	c := &client{Conn: nc, t: t, in: packet.NewReader(nc)}
	c.until(packet.TypePingresp)
	nc.Close()
	<-written
}

// until reads until a packet of a type comes, or the server closes. 0 is no type.
func (c *client) until(last packet.Type) {
	c.t.Helper()
	for {
		first, _, err := c.in.Next(1 << 20)
		var bad *packet.Error
		switch {
		case errors.As(err, &bad):
			c.t.Fatalf("the server has sent what is no packet: %v", err)
		case errors.Is(err, os.ErrDeadlineExceeded):
			c.t.Fatal("nothing from the server in time")
		}
		if err != nil || packet.TypeOf(first) == last {
			return
		}
	}
}

// waitsForMore reports whether a server that reads b neither closes for its form nor finds a PINGREQ at its end.
func waitsForMore(b []byte) bool {
	in := packet.NewReader(bytes.NewReader(b))
	ping := false
	for {
		first, body, err := in.Next(1 << 20)
		var bad *packet.Error
		switch {
		case errors.As(err, &bad):
			return false
		case err != nil:
			return !errors.Is(err, io.EOF) || !ping
		}
		ping = packet.TypeOf(first) == packet.TypePingreq && len(body) == 0
	}
}
