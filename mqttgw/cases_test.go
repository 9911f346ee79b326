// SPDX-License-Identifier: Apache-2.0

package mqttgw_test

import (
	"bufio"
	"encoding/json"
	"maps"
	"os"
	"testing"

	"github.com/rialto-bridge/rialto/mqttgw/packet"
)

// covered says where each case of testdata/mqtt.jsonl that concerns what the gateway does today is tested.
var covered = map[string]func(*testing.T){
	"subscribe-truncated":      all(TestDamagedPackets, TestBrokenProtocol),
	"connect-256mib":           TestHugeAnnouncement,
	"publish-malformed":        TestMalformedPublish,
	"connect-order":            TestBrokenProtocol,
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
