// SPDX-License-Identifier: Apache-2.0

package packet_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"
	"testing/iotest"

	v5 "github.com/eclipse/paho.golang/packets"
	v3 "github.com/eclipse/paho.mqtt.golang/packets"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/rialto-bridge/rialto/mqttgw/packet"
)

type sample struct {
	v packet.Version
	p packet.Packet
}

func (s sample) name(i int) string { return fmt.Sprintf("%02d-v%d-%s", i, s.v, s.p.Type()) }

var message = packet.Properties(nil).AppendInt(packet.PayloadFormat, 1).AppendInt(packet.MessageExpiry, 300).
	AppendString(packet.ContentType, "application/json").AppendString(packet.ResponseTopic, "réponse/1").
	AppendString(packet.CorrelationData, "\x00\xff").AppendUser("a", "1").AppendUser("b", "").AppendUser("a", "1")

var reason = packet.Properties(nil).AppendString(packet.ReasonString, "why").AppendUser("k", "v")

// samples has every packet type of both versions with everything in it, and the short forms.
func samples() []sample {
	all := []sample{
		{packet.V311, &packet.Connect{Version: packet.V311, CleanStart: true, KeepAlive: 60, ClientID: []byte("box 17")}},
		{packet.V311, &packet.Connect{Version: packet.V311, KeepAlive: 65535, ClientID: []byte("a"), HasUser: true, Username: []byte("u"),
			HasPass: true, Password: []byte("p\x00"), Will: &packet.Will{QoS: 1, Retain: true, Topic: []byte("gone/a"), Payload: []byte("x")}}},
		{packet.V5, &packet.Connect{Version: packet.V5, ClientID: []byte{}}},
		{packet.V5, &packet.Connect{Version: packet.V5, CleanStart: true, KeepAlive: 10, ClientID: []byte("é"), HasUser: true, Username: []byte("u"),
			HasPass: true, Password: []byte("p"), Properties: packet.Properties(nil).AppendInt(packet.SessionExpiry, 7).
					AppendInt(packet.ReceiveMaximum, 20).AppendInt(packet.MaximumPacketSize, 4096).AppendInt(packet.TopicAliasMaximum, 5).
					AppendInt(packet.RequestResponseInfo, 1).AppendInt(packet.RequestProblemInfo, 0).AppendUser("x", "y").
					AppendString(packet.AuthenticationMethod, "m").AppendString(packet.AuthenticationData, "\x00"),
			Will: &packet.Will{QoS: 2, Topic: []byte("w"), Payload: []byte{}, Properties: message.AppendInt(packet.WillDelay, 9)}}},
		{packet.V311, &packet.Connack{Code: 5}},
		{packet.V311, &packet.Connack{SessionPresent: true}},
		{packet.V5, &packet.Connack{SessionPresent: true, Properties: packet.Properties(nil).AppendInt(packet.SessionExpiry, 0).
			AppendInt(packet.ReceiveMaximum, 256).AppendInt(packet.MaximumQoS, 1).AppendInt(packet.RetainAvailable, 0).
			AppendInt(packet.MaximumPacketSize, 1<<18).AppendString(packet.AssignedClientID, "auto-1").AppendInt(packet.TopicAliasMaximum, 16).
			AppendString(packet.ReasonString, "r").AppendUser("k", "v").AppendInt(packet.WildcardAvailable, 1).
			AppendInt(packet.SubscriptionIDAvailable, 1).AppendInt(packet.SharedAvailable, 0).AppendInt(packet.ServerKeepAlive, 60).
			AppendString(packet.ResponseInfo, "i").AppendString(packet.ServerReference, "s")}},
		{packet.V5, &packet.Connack{Code: packet.BadUserOrPassword}},
		{packet.V311, &packet.Publish{Topic: []byte("a"), Payload: []byte("x")}},
		{packet.V311, &packet.Publish{Topic: []byte("a/b"), QoS: 2, Dup: true, Retain: true, PacketID: 65535, Payload: []byte{}}},
		{packet.V5, &packet.Publish{Topic: []byte("é/*/>. "), QoS: 1, PacketID: 7, Properties: message.AppendInt(packet.TopicAlias, 3), Payload: bytes.Repeat([]byte("z"), 300)}},
		{packet.V5, &packet.Publish{Topic: []byte{}, Properties: packet.Properties(nil).AppendInt(packet.TopicAlias, 1), Payload: []byte{}}},
		{packet.V311, &packet.Subscribe{PacketID: 1, Filters: []packet.Subscription{{Filter: []byte("a/+"), QoS: 2}, {Filter: []byte("#")}}}},
		{packet.V5, &packet.Subscribe{PacketID: 9, Properties: packet.Properties(nil).AppendInt(packet.SubscriptionID, 268435455).AppendUser("k", "v"),
			Filters: []packet.Subscription{{Filter: []byte("a"), QoS: 1, NoLocal: true, RetainAsPublished: true, RetainHandling: 2}, {Filter: []byte("$share/g/x")}}}},
		{packet.V311, &packet.Unsubscribe{PacketID: 1, Filters: [][]byte{[]byte("a"), []byte("b/#")}}},
		{packet.V5, &packet.Unsubscribe{PacketID: 1, Properties: packet.Properties(nil).AppendUser("k", "v"), Filters: [][]byte{[]byte("a")}}},
		{packet.V311, &packet.Suback{Kind: packet.TypeSuback, PacketID: 1, Codes: []packet.Reason{0, 1, 2, 0x80}}},
		{packet.V5, &packet.Suback{Kind: packet.TypeSuback, PacketID: 1, Properties: reason, Codes: []packet.Reason{1, packet.SharedNotSupported}}},
		{packet.V311, &packet.Suback{Kind: packet.TypeUnsuback, PacketID: 1}},
		{packet.V5, &packet.Suback{Kind: packet.TypeUnsuback, PacketID: 1, Codes: []packet.Reason{packet.NoSubscriptionExisted, 0}}},
		{packet.V311, &packet.Ping{Kind: packet.TypePingreq}}, {packet.V5, &packet.Ping{Kind: packet.TypePingresp}},
		{packet.V311, &packet.Disconnect{Kind: packet.TypeDisconnect}},
		{packet.V5, &packet.Disconnect{Kind: packet.TypeDisconnect}},
		{packet.V5, &packet.Disconnect{Kind: packet.TypeDisconnect, Code: packet.DisconnectWithWill, Properties: packet.Properties(nil).AppendInt(packet.SessionExpiry, 1)}},
		{packet.V5, &packet.Disconnect{Kind: packet.TypeDisconnect, Code: packet.ServerMoved, Properties: reason.AppendString(packet.ServerReference, "x")}},
		{packet.V5, &packet.Disconnect{Kind: packet.TypeAuth, Code: packet.ReAuthenticate, Properties: packet.Properties(nil).AppendString(packet.AuthenticationMethod, "m").AppendString(packet.AuthenticationData, "d")}},
	}
	for _, k := range []packet.Type{packet.TypePuback, packet.TypePubrec, packet.TypePubrel, packet.TypePubcomp} {
		code := packet.PacketIDNotFound
		if k == packet.TypePuback || k == packet.TypePubrec {
			code = packet.QuotaExceeded
		}
		all = append(all, sample{packet.V311, &packet.Ack{Kind: k, PacketID: 513}}, sample{packet.V5, &packet.Ack{Kind: k, PacketID: 513}},
			sample{packet.V5, &packet.Ack{Kind: k, PacketID: 1, Code: code}}, sample{packet.V5, &packet.Ack{Kind: k, PacketID: 1, Code: code, Properties: reason}})
	}
	return all
}

// split takes one encoded packet apart with a Reader.
func split(t testing.TB, b []byte) (byte, []byte) {
	t.Helper()
	first, body, err := packet.NewReader(bytes.NewReader(b)).Next(len(b))
	if err != nil {
		t.Fatalf("Next(%x): %v", b, err)
	}
	return first, body
}

func TestEveryPacketSurvivesEncodingAndDecoding(t *testing.T) {
	for i, s := range samples() {
		t.Run(s.name(i), func(t *testing.T) {
			first, body := split(t, s.p.Append([]byte("before"), s.v)[6:])
			got, err := packet.Decode(first, body, s.v)
			if err != nil {
				t.Fatalf("Decode(%x): %v", body, err)
			}
			if d := cmp.Diff(s.p, got, cmpopts.EquateEmpty()); d != "" {
				t.Errorf("decoded differs (-want +got):\n%s", d)
			}
		})
	}
}

// sorted makes two packets comparable whose peer may write properties in its own order.
var sorted = cmp.FilterValues(func(a, b packet.Properties) bool { return len(a)+len(b) > 0 }, cmp.Transformer("sorted", func(ps packet.Properties) []string {
	var all []string
	for p := range ps.All() {
		all = append(all, string(p.Raw))
	}
	slices.SortStableFunc(all, func(a, b string) int { return int(a[0]) - int(b[0]) })
	return all
}))

// What we write the Eclipse Paho codecs read, and what they write of it we read as the same.
func TestPahoCodecsAgree(t *testing.T) {
	for i, s := range samples() {
		if c, ok := s.p.(*packet.Connect); ok && c.Version == packet.V5 && c.Will != nil {
			c.Will.Properties = packet.Properties(nil).AppendInt(packet.WillDelay, 9) // paho writes a part of them only
		}
		sent := s.p.Append(nil, s.v)
		if bytes.Equal(sent, []byte{0xe0, 0}) && s.v == packet.V5 {
			continue // paho does not read a version 5 DISCONNECT without a code
		}
		t.Run(s.name(i), func(t *testing.T) {
			var back bytes.Buffer
			if s.v == packet.V5 {
				cp, err := v5.ReadPacket(bytes.NewReader(sent))
				if err != nil {
					t.Fatalf("paho cannot read %x: %v", sent, err)
				}
				if _, err := cp.WriteTo(&back); err != nil {
					t.Fatal(err)
				}
			} else {
				cp, err := v3.ReadPacket(bytes.NewReader(sent))
				if err != nil {
					t.Fatalf("paho cannot read %x: %v", sent, err)
				}
				if err := cp.Write(&back); err != nil {
					t.Fatal(err)
				}
			}
			first, body := split(t, back.Bytes())
			got, err := packet.Decode(first, body, s.v)
			if err != nil {
				t.Fatalf("Decode of paho's %x: %v", back.Bytes(), err)
			}
			if d := cmp.Diff(s.p, got, cmpopts.EquateEmpty(), sorted); d != "" {
				t.Errorf("after paho (-want +got):\n%s", d)
			}
		})
	}
}

// A packet cut short, with its remaining length made to fit, is refused or decodes to what encodes to it again.
func TestTruncations(t *testing.T) {
	refused := 0
	for _, s := range samples() {
		first, body := split(t, s.p.Append(nil, s.v))
		for n := range len(body) {
			for _, v := range []packet.Version{packet.V311, packet.V5} {
				if checkStable(t, first, body[:n:n], v) {
					refused++
				}
			}
		}
	}
	if refused < 900 {
		t.Errorf("%d truncations refused, want most of them", refused)
	}
}

func TestBitFlips(t *testing.T) {
	for _, s := range samples() {
		first, body := split(t, s.p.Append(nil, s.v))
		for i := range len(body) * 8 {
			flipped := bytes.Clone(body)
			flipped[i/8] ^= 1 << (i % 8)
			checkStable(t, first, flipped, s.v)
		}
		for i := range 8 {
			checkStable(t, first^1<<i, body, s.v)
		}
	}
}

// checkStable requires that what decodes encodes to something that decodes to the same, and is never longer.
func checkStable(t testing.TB, first byte, body []byte, v packet.Version) (refused bool) {
	t.Helper()
	p, err := packet.Decode(first, body, v)
	if err != nil {
		var pe *packet.Error
		if !errors.As(err, &pe) || !pe.Code.Failed() {
			t.Fatalf("Decode(%02x %x, v%d) error %v is not an *Error with a failure code", first, body, v, err)
		}
		return true
	}
	if c, ok := p.(*packet.Connect); ok {
		v = c.Version
	}
	again := p.Append(nil, v)
	if len(again) > len(body)+5 {
		t.Fatalf("%02x %x encodes to the longer %x", first, body, again)
	}
	f2, b2 := split(t, again)
	q, err := packet.Decode(f2, b2, v)
	if err != nil {
		t.Fatalf("%02x %x encodes to %x, which is refused: %v", first, body, again, err)
	}
	if third := q.Append(nil, v); !bytes.Equal(again, third) {
		t.Fatalf("%02x %x encodes to %x, and that to %x", first, body, again, third)
	}
	return false
}

func FuzzDecode(f *testing.F) {
	for _, s := range samples() {
		first, body := split(f, s.p.Append(nil, s.v))
		f.Add(first, body, s.v == packet.V5)
	}
	f.Add(byte(0x82), []byte("\x00\x01\x00\x00\x01a"), true)
	f.Fuzz(func(t *testing.T, first byte, body []byte, five bool) {
		v := packet.V311
		if five {
			v = packet.V5
		}
		checkStable(t, first, body, v)
	})
}

func TestRefusals(t *testing.T) {
	const any, v3, v5 = 0, packet.V311, packet.V5
	tests := []struct {
		name string
		v    packet.Version
		raw  string
		want packet.Reason
	}{
		{"type 0", any, "\x00\x00", packet.MalformedPacket},
		{"subscribe without options byte", v5, "\x82\x06\x00\x01\x00\x00\x01a", packet.MalformedPacket},
		{"subscribe flags", any, "\x80\x06\x00\x01\x00\x01a\x00", packet.MalformedPacket},
		{"subscribe without filter", v5, "\x82\x03\x00\x01\x00", packet.ProtocolError},
		{"subscribe reserved options", v5, "\x82\x07\x00\x01\x00\x00\x01a\x40", packet.MalformedPacket},
		{"subscribe options of v5 in v3", v3, "\x82\x06\x00\x01\x00\x01a\x04", packet.MalformedPacket},
		{"subscribe retain handling 3", v5, "\x82\x07\x00\x01\x00\x00\x01a\x30", packet.ProtocolError},
		{"subscribe QoS 3", v3, "\x82\x06\x00\x01\x00\x01a\x03", packet.MalformedPacket},
		{"subscribe QoS 3 v5", v5, "\x82\x07\x00\x01\x00\x00\x01a\x03", packet.ProtocolError},
		{"subscribe id 0", v3, "\x82\x06\x00\x00\x00\x01a\x00", packet.ProtocolError},
		{"subscription identifier 0", v5, "\x82\x09\x00\x01\x02\x0b\x00\x00\x01a\x00", packet.ProtocolError},
		{"subscription identifier twice", v5, "\x82\x0b\x00\x01\x04\x0b\x01\x0b\x02\x00\x01a\x00", packet.ProtocolError},
		{"no local on a shared one", v5, "\x82\x10\x00\x01\x00\x00\x0a$share/g/a\x04", packet.ProtocolError},
		{"publish QoS 3", v3, "\x36\x05\x00\x01a\x00\x01", packet.MalformedPacket},
		{"publish DUP QoS 0", v3, "\x38\x03\x00\x01a", packet.MalformedPacket},
		{"publish id 0", v3, "\x32\x05\x00\x01a\x00\x00", packet.ProtocolError},
		{"publish U+0000", v3, "\x30\x05\x00\x03a\x00b", packet.MalformedPacket},
		{"publish not UTF-8", v3, "\x30\x04\x00\x02a\xff", packet.MalformedPacket},
		{"publish surrogate", v3, "\x30\x05\x00\x03\xed\xa0\x80", packet.MalformedPacket},
		{"publish wildcard", v3, "\x30\x05\x00\x03a/#", packet.TopicNameInvalid},
		{"publish without topic v3", v3, "\x30\x02\x00\x00", packet.ProtocolError},
		{"publish without topic and alias", v5, "\x30\x03\x00\x00\x00", packet.ProtocolError},
		{"publish alias 0", v5, "\x30\x07\x00\x01a\x03\x23\x00\x00", packet.TopicAliasInvalid},
		{"publish property of CONNECT", v5, "\x30\x07\x00\x01a\x03\x21\x00\x01", packet.MalformedPacket},
		{"publish unknown property", v5, "\x30\x06\x00\x01a\x02\x7f\x00", packet.MalformedPacket},
		{"publish format 2", v5, "\x30\x06\x00\x01a\x02\x01\x02", packet.ProtocolError},
		{"publish response topic wildcard", v5, "\x30\x08\x00\x01a\x04\x08\x00\x01#", packet.ProtocolError},
		{"property length not minimal", v5, "\x30\x05\x00\x01a\x80\x00", packet.MalformedPacket},
		{"connect level 9", any, "\x10\x0c\x00\x04MQTT\x09\x02\x00\x00\x00\x00", packet.UnsupportedVersion},
		{"connect level 3", any, "\x10\x0e\x00\x06MQIsdp\x03\x02\x00\x00\x00\x00", packet.UnsupportedVersion},
		{"connect reserved flag", any, "\x10\x0c\x00\x04MQTT\x04\x03\x00\x00\x00\x00", packet.MalformedPacket},
		{"connect will QoS without will", any, "\x10\x0c\x00\x04MQTT\x04\x0a\x00\x00\x00\x00", packet.MalformedPacket},
		{"connect password without user v3", any, "\x10\x0e\x00\x04MQTT\x04\x42\x00\x00\x00\x00\x00\x00", packet.MalformedPacket},
		{"connect receive maximum 0", any, "\x10\x10\x00\x04MQTT\x05\x02\x00\x00\x03\x21\x00\x00\x00\x00", packet.ProtocolError},
		{"connect authentication data alone", any, "\x10\x11\x00\x04MQTT\x05\x02\x00\x00\x04\x16\x00\x01x\x00\x00", packet.ProtocolError},
		{"connect bytes behind", any, "\x10\x0d\x00\x04MQTT\x04\x02\x00\x00\x00\x00x", packet.MalformedPacket},
		{"puback code of PUBREL", v5, "\x40\x03\x00\x01\x92", packet.MalformedPacket},
		{"puback code in v3", v3, "\x40\x03\x00\x01\x00", packet.MalformedPacket},
		{"pubrel flags", any, "\x60\x02\x00\x01", packet.MalformedPacket},
		{"pingreq with a body", any, "\xc0\x01x", packet.MalformedPacket},
		{"disconnect code in v3", v3, "\xe0\x01\x00", packet.MalformedPacket},
		{"auth in v3", v3, "\xf0\x00", packet.MalformedPacket},
		{"auth without method", v5, "\xf0\x00", packet.ProtocolError},
		{"remaining length of five bytes", any, "\xc0\xff\xff\xff\xff\x01", packet.MalformedPacket},
		{"remaining length not minimal", any, "\xc0\x80\x00", packet.MalformedPacket},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			versions := []packet.Version{tt.v}
			if tt.v == any {
				versions = []packet.Version{v3, v5}
			}
			for _, v := range versions {
				first, body, err := packet.NewReader(bytes.NewReader([]byte(tt.raw))).Next(1 << 20)
				if err == nil {
					_, err = packet.Decode(first, body, v)
				}
				var pe *packet.Error
				if !errors.As(err, &pe) || pe.Code != tt.want {
					t.Errorf("v%d %q: %v, want %v", v, tt.raw, err, tt.want)
				}
			}
		})
	}
}

func TestValidFilter(t *testing.T) {
	for f, want := range map[string]bool{
		"a": true, "#": true, "+": true, "+/+": true, "/": true, "a/#": true, "a/+/b": true, "//": true, "$SYS/#": true, "a/*/>": true,
		"$share/g/a": true, "$share/g/#": true, "$shared": true,
		"": false, "a/b#": false, "a+/b": false, "a/#/b": false, "#/": false, "##": false, "$share": false, "$share/g": false, "$share/": false,
		"$share//x": false, "$share/g+/x": false, "$share/g/": false, "$share/g/a#": false,
	} {
		if got := packet.ValidFilter(f); got != want {
			t.Errorf("ValidFilter(%q) = %v, want %v", f, got, want)
		}
	}
}

func TestFrameIsThePublish(t *testing.T) {
	ids := packet.Properties(nil).AppendInt(packet.SubscriptionID, 5).AppendInt(packet.SubscriptionID, 600)
	payload := []byte("payload")
	for _, v := range []packet.Version{packet.V311, packet.V5} {
		for qos := range byte(3) {
			for _, alias := range []struct {
				number uint16
				known  bool
			}{{0, false}, {700, false}, {7, true}} {
				if v == packet.V311 && alias.number > 0 {
					continue
				}
				f := packet.NewFrame(v, qos, "a/b", message, len(payload))
				want := packet.Publish{QoS: qos, Retain: true, Dup: qos > 0, Topic: []byte("a/b"), Payload: payload}
				h := packet.Head{Retain: true, Dup: qos > 0, Alias: alias.number, Known: alias.known}
				if v == packet.V5 {
					h.IDs = ids
					if alias.number > 0 {
						want.Properties = want.Properties.AppendInt(packet.TopicAlias, uint32(alias.number))
					}
					want.Properties = append(append(want.Properties, ids...), message...)
				}
				if alias.known {
					want.Topic = nil
				}
				if qos > 0 {
					want.PacketID, h.ID = 9, 9
				}
				got := append(f.Append(nil, &h), payload...)
				if !bytes.Equal(got, want.Append(nil, v)) {
					t.Errorf("v%d QoS %d alias %v: frame %x, want %x", v, qos, alias, got, want.Append(nil, v))
				}
				if f.Size(&h) != len(got) {
					t.Errorf("v%d QoS %d alias %v: Size %d, want %d", v, qos, alias, f.Size(&h), len(got))
				}
			}
		}
	}
}

func TestReader(t *testing.T) {
	var stream []byte
	var want []packet.Packet
	for range 40 {
		for _, n := range []int{0, 1, 400, 3000, 20000} {
			p := &packet.Publish{Topic: []byte("t"), Payload: bytes.Repeat([]byte{byte(n)}, n)}
			want, stream = append(want, p), p.Append(stream, packet.V311)
		}
	}
	for name, from := range map[string]func(io.Reader) io.Reader{"whole": func(r io.Reader) io.Reader { return r }, "bytewise": iotest.OneByteReader,
		"halves": iotest.HalfReader, "with EOF": iotest.DataErrReader} {
		for _, resting := range []bool{false, true} {
			t.Run(fmt.Sprint(name, " resting ", resting), func(t *testing.T) {
				r := packet.NewReader(from(bytes.NewReader(stream)))
				for i, p := range want {
					if resting {
						r.Await()
					}
					first, body, err := r.Next(1 << 16)
					if err != nil {
						t.Fatalf("packet %d: %v", i, err)
					}
					got, err := packet.Decode(first, body, packet.V311)
					if err != nil || !bytes.Equal(p.Append(nil, packet.V311), got.Append(nil, packet.V311)) {
						t.Fatalf("packet %d differs, error %v", i, err)
					}
				}
				r.Await()
				if _, _, err := r.Next(1 << 16); err != io.EOF {
					t.Errorf("at the end: %v, want EOF", err)
				}
			})
		}
	}
}

func TestReaderInsideAPacket(t *testing.T) {
	if _, _, err := packet.NewReader(bytes.NewReader([]byte("\x30\x05ab"))).Next(100); err != io.ErrUnexpectedEOF {
		t.Errorf("error %v, want unexpected EOF", err)
	}
}

// stall hands out its bytes and fails the test's purpose if much room is offered for what was only announced.
type stall struct {
	data    []byte
	offered int
}

func (s *stall) Read(p []byte) (int, error) {
	s.offered = max(s.offered, len(p))
	if len(s.data) == 0 {
		return 0, io.EOF
	}
	n := copy(p, s.data)
	s.data = s.data[n:]
	return n, nil
}

func TestReaderMakesNoRoomForAnnouncements(t *testing.T) {
	s := &stall{data: []byte("\x10\xff\xff\xff\x7f\x00\x04MQ")}
	_, _, err := packet.NewReader(s).Next(64 << 10)
	var pe *packet.Error
	if !errors.As(err, &pe) || pe.Code != packet.PacketTooLarge {
		t.Errorf("256 MiB announced: %v, want 0x95", err)
	}
	s = &stall{data: []byte("\x30\xff\xff\x03\x00")} // 64 KiB announced, one byte sent
	if _, _, err := packet.NewReader(s).Next(1 << 20); err != io.ErrUnexpectedEOF {
		t.Error(err)
	}
	if s.offered > 1024 {
		t.Errorf("room of %d bytes for a packet of which 5 bytes came", s.offered)
	}
}

func BenchmarkDecodePublish(b *testing.B) {
	for _, v := range []packet.Version{packet.V311, packet.V5} {
		b.Run(fmt.Sprintf("v%d", v), func(b *testing.B) {
			p := packet.Publish{QoS: 1, PacketID: 9, Topic: []byte("fleet/17/box/2/telemetry"), Payload: bytes.Repeat([]byte("x"), 256)}
			if v == packet.V5 {
				p.Properties = message
			}
			first, body := split(b, p.Append(nil, v))
			b.ReportAllocs()
			for b.Loop() {
				if err := p.Decode(first, body, v); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
