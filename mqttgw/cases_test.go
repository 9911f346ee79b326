// SPDX-License-Identifier: Apache-2.0

package mqttgw_test

import (
	"bufio"
	"encoding/json"
	"maps"
	"os"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rialto-bridge/rialto/mqttgw"
	"github.com/rialto-bridge/rialto/mqttgw/packet"
)

// covered says where each case of testdata/mqtt.jsonl that concerns what the gateway does today is tested.
var covered = map[string]func(*testing.T){
	"subscribe-truncated":      TestDamagedPackets,
	"connect-256mib":           TestHugeAnnouncement,
	"publish-malformed":        TestMalformedPublish,
	"connect-order":            TestProtocolErrorsAfterConnect,
	"topic-space":              TestTopicsReachTheirFilters,
	"topic-dot-star":           TestTopicsReachTheirFilters,
	"filter-parent":            TestTopicsReachTheirFilters,
	"filter-malformed":         TestSuback,
	"topic-dollar":             TestDollarTopics,
	"qos2-duplicate":           TestQoS2IsStoredOnce,
	"packet-id-spaces":         TestInFlightComesAgain,
	"resend-on-reconnect":      TestInFlightComesAgain,
	"session-offline-order":    TestSessionResumes,
	"takeover-will":            TestWillAndReturn,
	"takeover-session-end":     TestTakeoverOfAnEndingSession,
	"session-expired":          TestSessionExpires,
	"session-expiry-change":    TestSessionExpiryInDisconnect,
	"will-delay":               TestWillDelay,
	"retained-many":            TestManyRetained,
	"retained-qos":             TestRetainedQoS,
	"retained-clear":           TestRetainedMessages,
	"shared-offline-member":    TestSharedWithAnAwayMember,
	"shared-retained":          TestRetainHandling,
	"will-properties":          TestWillKeepsItsProperties,
	"receive-maximum":          TestReceiveMaximumOfTheClient,
	"receive-maximum-exceeded": TestReceiveMaximumExceeded,
	"alias-wrong":              TestTopicAliases,
	"slow-reader":              all(TestStalledSubscriber, TestSlowReadersCostNoMemory, TestWriteTimeout),
	"keepalive-large":          TestKeepAlive,
	"subscription-ids":         TestOverlappingSubscriptionsAreOneMessage,
	"message-expiry":           TestMessageExpiryWhileAway,
	"ack-properties":           TestAcksCarryNothingOfThePublish,
	"connect-stall":            all(TestSilenceBeforeConnect, TestSilenceInTheHandshake),
	"queue-limit-zero":         all(TestNoQueueLimitIsNone, TestGoneMessagesAreTold),
	"will-access":              TestWillNeedsTheRight,
	"access-template":          TestTemplateValuesAreLiterals,
	"access-wide-filter":       TestSubscribeNeedsTheRight,
	"access-two-users":         TestTwoPrincipals,
	"tls-identity":             TestCertificateIsTheIdentity,
	"reconnect-storm":          all(TestReconnectStorm, TestFleetComesBackAfterARestart),
}

// all is for a case that several tests cover.
func all(tests ...func(*testing.T)) func(*testing.T) {
	return func(t *testing.T) {
		for _, test := range tests {
			test(t)
		}
	}
}

func TestEveryCaseHasATest(t *testing.T) {
	f, err := os.Open("testdata/mqtt.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	left := maps.Clone(covered)
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var c struct{ ID, Steps, Right string }
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			t.Fatal(err)
		}
		if left[c.ID] == nil {
			t.Errorf("no test for %s: %s", c.ID, c.Right)
		}
		delete(left, c.ID)
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	for id := range left {
		t.Errorf("no case %s", id)
	}
}

func TestHugeAnnouncement(t *testing.T) {
	s := start(t)
	c := s.open(packet.V311)
	c.raw([]byte("\x10\xff\xff\xff\x7f"))
	c.closed(0)
}

func TestMalformedPublish(t *testing.T) {
	s := start(t)
	watch := s.connect(packet.V5, "watch")
	watch.subscribe(1, "#")
	for name, tt := range map[string]struct {
		raw  string
		want packet.Reason
	}{
		"not UTF-8": {"\x32\x07\x00\x02a\xff\x00\x01\x00", packet.MalformedPacket},
		"U+0000":    {"\x32\x08\x00\x03a\x00b\x00\x01\x00", packet.MalformedPacket},
		"QoS 3":     {"\x36\x06\x00\x01a\x00\x01\x00", packet.MalformedPacket},
		"id 0":      {"\x32\x06\x00\x01a\x00\x00\x00", packet.ProtocolError},
		"wildcard":  {"\x32\x06\x00\x01+\x00\x01\x00", packet.TopicNameInvalid},
	} {
		c := s.connect(packet.V5, name)
		c.raw([]byte(tt.raw))
		c.closed(tt.want)
	}
	watch.nothing()
	if r := s.bus.records(); len(r) != 0 {
		t.Errorf("%d stored", len(r))
	}
}

func TestDollarTopics(t *testing.T) {
	s := start(t)
	c := s.connect(packet.V5, "c")
	c.subscribe(1, "#", "+/x", "$SYS/#", "$SYS/x")
	for _, topic := range []string{"$SYS", "$SYS/x"} {
		p := s.connect(packet.V5, "p")
		p.send(publish(topic, "x", 1, 1))
		p.ack(packet.TypePuback, 1, packet.NotAuthorized)
		old := s.connect(packet.V311, "old")
		old.send(publish(topic, "x", 1, 1))
		old.closed(0) // an acknowledgement would say that it is stored
	}
	versions(t, func(t *testing.T, v packet.Version) {
		s.connect(v, "p").publish("$foo/x", "x") // a topic like any other, but for the wildcards
	})
	c.nothing()
	c.subscribe(1, "$foo/+")
	s.connect(packet.V5, "p").publish("$foo/x", "mine")
	if m := c.message(); string(m.Payload) != "mine" {
		t.Errorf("got %q", m.Payload)
	}
}

// Without a place to keep them, sessions end with their connection, and the client is told.
func TestNoSessionIsKept(t *testing.T) {
	versions(t, func(t *testing.T, v packet.Version) {
		s := start(t)
		keep := func(p *packet.Connect) {
			p.CleanStart = false
			if v == packet.V5 {
				p.Properties = p.Properties.AppendInt(packet.SessionExpiry, 3600)
			}
		}
		c := s.connect(v, "c", keep)
		c.subscribe(1, "t")
		c.Close()
		c, ack := s.tryConnect(v, "c", keep)
		if ack.SessionPresent || v == packet.V5 && ack.Properties.Int(packet.SessionExpiry, 99) != 0 {
			t.Errorf("CONNACK %+v promises a session", ack)
		}
		c.publish("t", "x")
		c.nothing()
	})
}

// Every packet cut short, and every packet with a bit flipped, ends or answers its own connection at most; others live.
func TestDamagedPackets(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	s := startPipes(t, func(o *mqttgw.Options) { o.Sessions, o.Registerer = &memoryLog{}, reg })
	other := s.connect(packet.V5, "other")
	for _, v := range []packet.Version{packet.V311, packet.V5} {
		connect := (&packet.Connect{Version: v, CleanStart: true, ClientID: []byte("d"), HasUser: true, Username: []byte("u"),
			Will: &packet.Will{Topic: []byte("w"), Payload: []byte("x")}}).Append(nil, v)
		ps := packet.Properties(nil).AppendInt(packet.TopicAlias, 1).AppendUser("k", "v")
		alive := [][]byte{
			(&packet.Publish{Topic: []byte("a/b"), QoS: 1, PacketID: 1, Properties: ps, Payload: []byte("x")}).Append(nil, v),
			(&packet.Publish{Topic: []byte("a/b"), QoS: 2, PacketID: 1, Payload: []byte("x")}).Append(nil, v),
			(&packet.Subscribe{PacketID: 1, Filters: []packet.Subscription{{Filter: []byte("a"), QoS: 1}}}).Append(nil, v),
			(&packet.Unsubscribe{PacketID: 1, Filters: [][]byte{[]byte("a")}}).Append(nil, v),
			(&packet.Ack{Kind: packet.TypePuback, PacketID: 1, Code: 0x10, Properties: ps}).Append(nil, v),
			(&packet.Ack{Kind: packet.TypePubrec, PacketID: 1}).Append(nil, v),
			(&packet.Ack{Kind: packet.TypePubrel, PacketID: 1}).Append(nil, v),
			(&packet.Ack{Kind: packet.TypePubcomp, PacketID: 1}).Append(nil, v),
			(&packet.Ping{Kind: packet.TypePingreq}).Append(nil, v),
			(&packet.Disconnect{Kind: packet.TypeDisconnect, Code: 4}).Append(nil, v),
			(&packet.Disconnect{Kind: packet.TypeAuth, Code: 0x19, Properties: packet.Properties(nil).AppendString(packet.AuthenticationMethod, "m")}).Append(nil, packet.V5),
		}
		for _, damaged := range damage(connect) {
			s.throw(t, damaged)
		}
		hello := (&packet.Connect{Version: v, ClientID: []byte("kept")}).Append(nil, v)
		if v == packet.V5 {
			hello = (&packet.Connect{Version: v, ClientID: []byte("kept"), Properties: packet.Properties(nil).AppendInt(packet.SessionExpiry, 60)}).Append(nil, v)
		}
		for _, p := range alive {
			for _, damaged := range damage(p) {
				s.throw(t, append(slices.Clone(hello), damaged...))
			}
		}
	}
	other.nothing()
	if got := metric(t, reg, "rialto_mqtt_panics_total"); got != 0 {
		t.Errorf("%v connections ended by a programming error", got)
	}
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

// throw sends bytes on a connection of its own, ends it, and waits until the server has closed it.
func (s *server) throw(t *testing.T, b []byte) {
	t.Helper()
	nc, err := s.dial()
	if err != nil {
		t.Fatal(err)
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		for p := make([]byte, 512); ; {
			if _, err := nc.Read(p); err != nil {
				return
			}
		}
	}()
	nc.Write(b) //nolint:errcheck // the server may close before it has read everything
	nc.Close()
	<-read
}
