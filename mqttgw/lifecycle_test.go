// SPDX-License-Identifier: Apache-2.0

package mqttgw_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/mqttgw"
	"github.com/rialto-bridge/rialto/mqttgw/packet"
)

type lifecycleEvent struct {
	typ  string
	data mqttgw.LifecycleData
}

// lifecycle waits for n life-cycle events of the server and returns them without their versions and addresses.
func (s *server) lifecycle(n int) (all []lifecycleEvent) {
	s.t.Helper()
	s.bus.await(s.t, "life-cycle events", func() bool {
		all = nil
		var last int64
		for _, e := range s.bus.entries {
			ev := &e.Record.Event
			if !strings.HasPrefix(ev.Type, "io.rialto.device.") {
				continue
			}
			if err := ev.Validate(event.Limits{}); err != nil {
				s.t.Errorf("%s: %v", ev.Type, err)
			}
			l := lifecycleEvent{typ: strings.TrimPrefix(ev.Type, "io.rialto.device.")}
			if err := json.Unmarshal(ev.Data, &l.data); err != nil {
				s.t.Errorf("%s: %v", ev.Type, err)
			}
			if l.data.Version <= last {
				s.t.Errorf("version %d after %d", l.data.Version, last)
			}
			if l.data.Address != "" && l.data.Address != "127.0.0.1" {
				s.t.Errorf("address %s", l.data.Address)
			}
			last = l.data.Version
			l.data.Version, l.data.Address = 0, ""
			all = append(all, l)
		}
		return len(all) >= n
	})
	return all
}

func TestLifecycleEvents(t *testing.T) {
	d := defined(t, `{"name":"p","password":{"value":"x"}}`)
	s := start(t, with(d), func(o *mqttgw.Options) { o.Lifecycle = true })
	c := s.connect(packet.V5, "a/ü", credentials("p", "x"))
	c.subscribe(1, "t", "u/#")
	c.send(&packet.Unsubscribe{PacketID: 2, Filters: [][]byte{[]byte("t"), []byte("nothing")}})
	recv[*packet.Suback](c)
	again := s.connect(packet.V311, "a/ü", credentials("p", "x"))
	again.send(&packet.Disconnect{Kind: packet.TypeDisconnect})
	s.lifecycle(6)
	s.tryConnect(packet.V5, "b", credentials("p", "y"))
	lost := s.connect(packet.V5, "c", credentials("p", "x"))
	lost.Close()
	s.lifecycle(9)
	bad := s.connect(packet.V5, "d", credentials("p", "x"))
	bad.raw([]byte{0x82, 0})
	bad.drain()
	want := []lifecycleEvent{
		{"connected", mqttgw.LifecycleData{ClientID: "a/ü", Principal: "p", Via: "password", Protocol: "5"}},
		{"subscribed", mqttgw.LifecycleData{ClientID: "a/ü", Principal: "p", Filters: []string{"t", "u/#"}}},
		{"unsubscribed", mqttgw.LifecycleData{ClientID: "a/ü", Principal: "p", Filters: []string{"t"}}},
		{"disconnected", mqttgw.LifecycleData{ClientID: "a/ü", Principal: "p", Reason: "taken-over", ByServer: true}},
		{"connected", mqttgw.LifecycleData{ClientID: "a/ü", Principal: "p", Via: "password", Protocol: "3.1.1"}},
		{"disconnected", mqttgw.LifecycleData{ClientID: "a/ü", Principal: "p", Reason: "client"}},
		{"auth-failed", mqttgw.LifecycleData{ClientID: "b", Reason: "password"}},
		{"connected", mqttgw.LifecycleData{ClientID: "c", Principal: "p", Via: "password", Protocol: "5"}},
		{"disconnected", mqttgw.LifecycleData{ClientID: "c", Principal: "p", Reason: "connection-lost"}},
		{"connected", mqttgw.LifecycleData{ClientID: "d", Principal: "p", Via: "password", Protocol: "5"}},
		{"disconnected", mqttgw.LifecycleData{ClientID: "d", Principal: "p", Reason: "protocol-error", ByServer: true}},
	}
	if d := cmp.Diff(want, s.lifecycle(len(want)), cmp.AllowUnexported(lifecycleEvent{})); d != "" {
		t.Errorf("events (-want +got):\n%s", d)
	}
	if first := s.bus.records()[0].Event; first.Source != "mqtt://gw/a%2F%C3%BC" || first.Subject != "a%2F%C3%BC" {
		t.Errorf("source %s, subject %s", first.Source, first.Subject)
	}
}

func TestFailedLogInsDoNotFloodTheBus(t *testing.T) {
	now := time.Now()
	s := start(t, with(defined(t, `{"name":"p","password":{"value":"x"}}`)), func(o *mqttgw.Options) {
		o.Lifecycle, o.Now = true, func() time.Time { return now }
	})
	for range 150 {
		s.tryConnect(packet.V5, "c", credentials("p", "wrong"))
	}
	if n := len(s.lifecycle(100)); n != 100 {
		t.Errorf("%d events, want 100", n)
	}
}

func TestClients(t *testing.T) {
	d := defined(t, `{"name":"dev","principal":"p","password":{"value":"x"},"clientIds":["1*"]}`, `{"name":"q","password":{"value":"x"}}`)
	s := start(t, with(d), func(o *mqttgw.Options) { o.Limits.MaxInFlight = 1 })
	g := s.gateway
	if all := g.Clients("", true); len(all) != 0 {
		t.Errorf("clients of nobody: %+v", all)
	}
	before := time.Now()
	c := s.connect(packet.V5, "1", credentials("p", "x"))
	c.subscribe(1, "t", "u")
	gone := s.connect(packet.V311, "1b", credentials("p", "x"))
	gone.send(&packet.Disconnect{Kind: packet.TypeDisconnect})
	gone.drain()
	other := s.connect(packet.V311, "other", credentials("q", "x"))
	for range 3 {
		other.publish("t", "x")
	}
	recv[*packet.Publish](c) // without a PUBACK
	var mine []mqttgw.Client
	eventually(t, "three messages for 1", func() bool {
		mine = g.Clients("p", false)
		return len(mine) == 2 && mine[0].Queued == 2 && !mine[1].Online
	})
	for i := range mine {
		if mine[i].LastSeen.Before(before) || mine[i].Address != "127.0.0.1" || mine[i].Device != "dev" {
			t.Errorf("client %+v", mine[i])
		}
		mine[i].LastSeen, mine[i].Address, mine[i].Since = time.Time{}, "", nil
	}
	want := []mqttgw.Client{
		{Principal: "p", ClientID: "1", Device: "dev", Online: true, Via: "password", Protocol: "5", Subscriptions: []string{"t", "u"}, InFlight: 1, Queued: 2},
		{Principal: "p", ClientID: "1b", Device: "dev", Reason: "client"},
	}
	if d := cmp.Diff(want, mine); d != "" {
		t.Errorf("clients (-want +got):\n%s", d)
	}
	if all := g.Clients("", true); len(all) != 3 {
		t.Errorf("%d clients in all", len(all))
	}
	if n := g.Disconnect("p", "2"); n != 0 {
		t.Errorf("%d connections of a client that is not there", n)
	}
	if n := g.Disconnect("p"); n != 1 {
		t.Errorf("%d connections ended, want 1", n)
	}
	c.closed(packet.AdministrativeAction)
}

// What a session keeps is known while its client is away, over a restart too; and how many commands wait for a device.
func TestClientsKeepWhatIsKnown(t *testing.T) {
	versions(t, func(t *testing.T, v packet.Version) {
		d := defined(t, `{"name":"box","password":{"value":"x"}}`)
		st := newStation(t, with(d))
		c := st.now.connect(v, "1", credentials("box", "x"), kept)
		c.subscribe(1, "t", "devices/box/#")
		c.Close()
		look := func() (s mqttgw.DeviceStatus) {
			s, _ = st.now.gateway.DeviceStatus("box", false)
			return s
		}
		eventually(t, "it has gone", func() bool { return !look().Online })
		st.now.connect(v, "2", credentials("box", "x")).publish("t", "x")
		for range 2 {
			st.send(mqttgw.CommandSpec{Device: "box", QoS: 1})
		}
		var away mqttgw.Client
		waits := func() bool {
			if all := look().Clients; len(all) > 0 {
				away = all[0]
			}
			return away.Behind
		}
		eventually(t, "a message waits", waits)
		protocol := map[packet.Version]string{packet.V311: "3.1.1", packet.V5: "5"}[v]
		if n := look().WaitingCommands; away.LastSeen.IsZero() || away.Protocol != protocol || len(away.Subscriptions) != 2 || n != 2 {
			t.Errorf("%+v, %d commands", away, n)
		}
		if brief, _ := st.now.gateway.DeviceStatus("box", true); brief.WaitingCommands != 0 {
			t.Errorf("%d commands in a list", brief.WaitingCommands)
		}
		away = mqttgw.Client{}
		st.restart()
		eventually(t, "a message waits after the restart", waits)
		if n := look().WaitingCommands; !away.LastSeen.IsZero() || away.Protocol != protocol || len(away.Subscriptions) != 2 || n != 2 {
			t.Errorf("after a restart: %+v, %d commands", away, n)
		}
		if text, err := json.Marshal(away); err != nil || strings.Contains(string(text), "lastSeen") {
			t.Errorf("%s, %v", text, err)
		}
		c = st.now.connect(v, "1", credentials("box", "x"), kept)
		for range 3 {
			c.message()
		}
		if n := look().WaitingCommands; n != 0 {
			t.Errorf("%d commands wait that were sent", n)
		}
	})
}

func TestMappingsApplyToPublishes(t *testing.T) {
	maps := mqttgw.NewMappings()
	set := func(revision uint64, docs ...string) error {
		var all []*mqttgw.TopicMapping
		for _, doc := range docs {
			m, err := mqttgw.ParseTopicMapping([]byte(doc))
			if err != nil {
				t.Fatal(err)
			}
			m.Revision = revision
			all = append(all, m)
		}
		return maps.Set(context.Background(), revision, all)
	}
	if err := set(7, `{"name":"m","filter":"fleet/+/t","type":"com.acme.telemetry","subject":"truck/{1}","bus":"telemetry","subjectLevels":1}`); err != nil {
		t.Fatal(err)
	}
	s := start(t, func(o *mqttgw.Options) { o.Mappings = maps })
	marks := 2 // one for each bus
	s.bus.await(t, "the first marks", func() bool { return len(s.bus.entries) == marks })
	c := s.connect(packet.V5, "c", func(p *packet.Connect) { p.Will = &packet.Will{Topic: []byte("fleet/9/t"), Payload: []byte("lost")} })
	c.publish("fleet/7/t", `{"t":9}`)
	c.publish("else", `x`)
	ce := publish("fleet/7/t", "x", 1, 5)
	ce.Properties = packet.Properties(nil).AppendUser("specversion", "1.0").AppendUser("id", "1").AppendUser("source", "/s").AppendUser("type", "own")
	c.send(ce)
	c.ack(packet.TypePuback, 5, packet.Success)
	rs := s.bus.records()[marks:]
	if e := rs[0].Event; e.Type != "com.acme.telemetry" || e.Subject != "truck/7" || rs[0].MQTT.Topic != "fleet/7/t" || rs[0].MQTT.Levels != 1 {
		t.Errorf("mapped: %+v", rs[0])
	}
	if e := rs[1].Event; e.Type != event.DefaultMQTTType || e.Subject != "else" {
		t.Errorf("not mapped: %+v", rs[1])
	}
	if e := rs[2].Event; e.Type != "own" || e.Subject != "" {
		t.Errorf("a CloudEvent: %+v", rs[2])
	}
	if err := set(8, `{"name":"m","filter":"fleet/+/t","type":"other"}`); err != nil {
		t.Fatal(err)
	}
	if err := set(8, `{"name":"m","filter":"fleet/+/t","type":"other"}`); err != nil { // no change, no mark
		t.Fatal(err)
	}
	c.Close()
	s.bus.await(t, "the will", func() bool { return len(s.bus.entries) == 2*marks+4 })
	rs = s.bus.records()
	mark := rs[len(rs)-2].Event
	if mark.Type != mqttgw.MappingsChanged || mark.Source != "mqtt://gw" || mark.Validate(event.Limits{}) != nil ||
		string(mark.Data) != `{"revision":8,"count":1,"mappings":[{"name":"m","revision":8,"filter":"fleet/+/t","bus":"devices"}]}` {
		t.Errorf("mark %+v %s", mark, mark.Data)
	}
	if will := rs[len(rs)-1].Event; will.Type != "other" {
		t.Errorf("will %+v", will)
	}
	// Without its mark a change does not hold.
	s.bus.set(func() { s.bus.fail = errors.New("disk") })
	if err := set(9); err == nil {
		t.Error("a change without a mark")
	}
	s.bus.set(func() { s.bus.fail = nil })
	d := s.connect(packet.V5, "d")
	d.publish("fleet/7/t", "x")
	rs = s.bus.records()
	if e := rs[len(rs)-1].Event; e.Type != "other" {
		t.Errorf("after a change that failed: %+v", e)
	}
}

// Of two Devices of one principal a client is the one whose password it has shown.
func TestStatusOfTwoPasswords(t *testing.T) {
	s := start(t, with(defined(t, `{"name":"one","principal":"p","password":{"value":"1"}}`, `{"name":"two","principal":"p","password":{"value":"2"}}`)))
	c := s.connect(packet.V5, "c", credentials("p", "2"))
	for name, online := range map[string]bool{"one": false, "two": true} {
		if got, _ := s.gateway.DeviceStatus(name, false); got.Online != online {
			t.Errorf("%s: %+v", name, got)
		}
	}
	if n, _ := s.gateway.DisconnectDevice("one"); n != 0 {
		t.Errorf("%d connections of one", n)
	}
	c.nothing()
	if n, _ := s.gateway.DisconnectDevice("two"); n != 1 {
		t.Errorf("%d connections of two", n)
	}
	c.closed(packet.AdministrativeAction)
}
