// SPDX-License-Identifier: Apache-2.0

package mqttgw_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/rialto-bridge/rialto/mqttgw"
	"github.com/rialto-bridge/rialto/mqttgw/packet"
)

// oneDevice are mappings that send cmd/<device>/... to one device.
func oneDevice(t testing.TB) []*mqttgw.TopicMapping {
	t.Helper()
	m, err := mqttgw.ParseTopicMapping([]byte(`{"name":"one","filter":"cmd/+/#","lane":"down","device":"box-{1}"}`))
	if err != nil {
		t.Fatal(err)
	}
	return []*mqttgw.TopicMapping{m}
}

// newPost is a station where cmd/<n>/... is for the device box-<n>.
func newPost(t testing.TB, with ...setup) *station {
	t.Helper()
	st := newStation(t, with...)
	st.set = oneDevice(t)
	if err := st.maps.Set(t.Context(), 1, st.set); err != nil {
		t.Fatal(err)
	}
	return st
}

// commands are those of a device, newest first.
func (st *station) commands(device string) []mqttgw.Command {
	st.t.Helper()
	page, err := st.now.gateway.Commands(st.t.Context(), device, "", "", 100)
	if err != nil {
		st.t.Fatal(err)
	}
	return page.Items
}

// A message that a mapping says is for one device is a command to it: it waits for it, nobody else gets it, and what becomes of
// it can be asked.
func TestPublishedCommand(t *testing.T) {
	versions(t, func(t *testing.T, v packet.Version) {
		st := newPost(t)
		other := st.now.connect(v, "box-8")
		other.subscribe(2, "cmd/#", "$share/g/cmd/#")
		p := st.now.connect(v, "p")
		var want []*packet.Publish
		for qos := range byte(3) {
			m := publish("cmd/7/open", fmt.Sprint("qos ", qos), qos, uint16(qos)*5)
			if v == packet.V5 {
				m.Properties = m.Properties.AppendString(packet.CorrelationData, "\xff\x00").AppendUser("k", "1").AppendUser("k", "2").AppendString(packet.ResponseTopic, "re")
			}
			want = append(want, m)
			p.send(m)
			switch qos {
			case 1:
				p.ack(packet.TypePuback, 5, packet.Success)
			case 2:
				p.ack(packet.TypePubrec, 10, packet.Success)
				p.send(&packet.Ack{Kind: packet.TypePubrel, PacketID: 10})
				p.ack(packet.TypePubcomp, 10, packet.Success)
			}
		}
		if n := len(st.bus.records()); n != 1 { // the mark of the mapping
			t.Errorf("%d events on the bus", n)
		}
		other.nothing()
		box := st.now.connect(v, "box-7")
		box.send(&packet.Subscribe{PacketID: 1, Filters: []packet.Subscription{{Filter: []byte("cmd/7/#"), QoS: 2}}})
		recv[*packet.Suback](box)
		for _, m := range want {
			got := box.message()
			if string(got.Payload) != string(m.Payload) || string(got.Topic) != "cmd/7/open" || got.QoS != m.QoS || string(got.Properties) != string(m.Properties) {
				t.Errorf("got %+v, want %+v", got, m)
			}
			box.complete(got)
		}
		all := st.commands("box-7")
		if len(all) != 3 {
			t.Fatalf("commands %+v", all)
		}
		for i, c := range all {
			st.status("box-7", c.ID, map[bool]string{true: mqttgw.StatusAcknowledged, false: mqttgw.StatusSent}[i < 2])
			if c.By != "p" || c.Topic != "cmd/7/open" || c.QoS != byte(2-i) {
				t.Errorf("%+v", c)
			}
		}
		other.nothing()
	})
}

// Its expiry is that of the message, and a will may be one.
func TestPublishedCommandExpires(t *testing.T) {
	st := newPost(t)
	p := st.now.connect(packet.V5, "p", func(c *packet.Connect) {
		c.Will = &packet.Will{Topic: []byte("cmd/1/lost"), Payload: []byte("x"), QoS: 1}
	})
	m := publish("cmd/1/open", "x", 1, 3)
	m.Properties = m.Properties.AppendInt(packet.MessageExpiry, 3600)
	p.send(m)
	p.ack(packet.TypePuback, 3, packet.Success)
	if c := st.commands("box-1")[0]; c.ExpiresAt.Sub(c.CreatedAt).Round(1e9).Hours() != 1 {
		t.Errorf("%+v", c)
	}
	p.Close()
	eventually(t, "the will is a command", func() bool { return len(st.commands("box-1")) == 2 })
}

func TestPublishedCommandRefused(t *testing.T) {
	d := defined(t, `{"name":"box-9","blocked":true}`)
	st := newPost(t, func(o *mqttgw.Options) { o.Limits.MaxDeviceCommands, o.Directory = 2, d })
	p := st.now.connect(packet.V5, "p")
	for _, tt := range []struct {
		topic  string
		retain bool
		code   packet.Reason
		why    string
	}{
		{"cmd/1/a", true, packet.ImplementationError, "cannot be retained"},
		{"cmd/9/a", false, packet.ImplementationError, "blocked"},
		{"cmd/" + strings.Repeat("x", 300) + "/a", false, packet.ImplementationError, "/device"},
		{"cmd/2/a", false, packet.Success, ""},
		{"cmd/2/b", false, packet.Success, ""},
		{"cmd/2/c", false, packet.QuotaExceeded, "too many commands"},
	} {
		m := publish(tt.topic, "x", 1, 4)
		m.Retain = tt.retain
		p.send(m)
		a := recv[*packet.Ack](p)
		if why := string(a.Properties.Bytes(packet.ReasonString)); a.Code != tt.code || !strings.Contains(why, tt.why) {
			t.Errorf("%.20s: code %v, %q; want %v, %q", tt.topic, a.Code, why, tt.code, tt.why)
		}
	}
}

// A QoS 2 message is one command, wherever the process is killed and whatever the client sends first when it is back.
func TestPublishedCommandOnce(t *testing.T) {
	for _, first := range []string{"", "t", "cmd/2/x"} {
		t.Run("first "+first, func(t *testing.T) {
			st := newPost(t)
			p := st.now.resume(packet.V5, "p", false)
			st.world.log.set(func() { st.world.log.hold = true }) // PUBREC waits for the session's record
			p.send(publish("cmd/1/open", "x", 2, 7))
			eventually(t, "the command is stored", func() bool { return len(st.commands("box-1")) == 1 })
			st.kill()
			p = st.now.resume(packet.V5, "p", true)
			if first != "" {
				p.send(publish(first, "y", 2, 8))
				p.ack(packet.TypePubrec, 8, packet.Success)
			}
			again := publish("cmd/1/open", "x", 2, 7)
			again.Dup = true
			p.send(again)
			p.ack(packet.TypePubrec, 7, packet.Success)
			p.send(&packet.Ack{Kind: packet.TypePubrel, PacketID: 7})
			p.ack(packet.TypePubcomp, 7, packet.Success)
			if all := st.commands("box-1"); len(all) != 1 {
				t.Errorf("%d commands, want 1: %+v", len(all), all)
			}
			p.send(publish("cmd/1/open", "x", 2, 7)) // another message with the id
			p.ack(packet.TypePubrec, 7, packet.Success)
			if all := st.commands("box-1"); len(all) != 2 {
				t.Errorf("%d commands, want 2: %+v", len(all), all)
			}
		})
	}
}
