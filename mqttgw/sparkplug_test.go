// SPDX-License-Identifier: Apache-2.0

package mqttgw_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/mqttgw"
	"github.com/rialto-bridge/rialto/mqttgw/packet"
	"github.com/rialto-bridge/rialto/mqttgw/sparkplug"
)

// sparkMetric is a metric of type Int32.
type sparkMetric struct {
	name  string // "" = none
	alias int    // < 0 = none
	value int32
	typed bool
}

// sparkPayload is a Payload.
func sparkPayload(seq int, metrics ...sparkMetric) string {
	b := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 1486144502122)
	for _, m := range metrics {
		var x []byte
		if m.name != "" {
			x = protowire.AppendString(protowire.AppendTag(x, 1, protowire.BytesType), m.name)
		}
		if m.alias >= 0 {
			x = protowire.AppendVarint(protowire.AppendTag(x, 2, protowire.VarintType), uint64(m.alias)) //nolint:gosec // not negative
		}
		if m.typed {
			x = protowire.AppendVarint(protowire.AppendTag(x, 4, protowire.VarintType), 3)
		}
		x = protowire.AppendVarint(protowire.AppendTag(x, 10, protowire.VarintType), uint64(uint32(m.value))) //nolint:gosec // as protobuf has it
		b = protowire.AppendBytes(protowire.AppendTag(b, 2, protowire.BytesType), x)
	}
	return string(protowire.AppendVarint(protowire.AppendTag(b, 3, protowire.VarintType), uint64(seq))) //nolint:gosec // not negative
}

// births announces metrics with the aliases 0, 1, ...
func births(names ...string) string {
	var all []sparkMetric
	for i, n := range names {
		all = append(all, sparkMetric{n, i, 0, true})
	}
	return sparkPayload(0, all...)
}

// changes are values of aliases as NDATA and DDATA have them.
func changes(aliases ...int) string {
	var all []sparkMetric
	for _, a := range aliases {
		all = append(all, sparkMetric{"", a, -1, false})
	}
	return sparkPayload(1, all...)
}

// newPlant is a world that decodes what is published below spBv1.0, and has DOWN.
func newPlant(t *testing.T, with ...setup) *world {
	t.Helper()
	w := newDownWorld(t, with...)
	m, err := mqttgw.ParseTopicMapping([]byte(`{"name":"plant","filter":"spBv1.0/#","decode":"sparkplug","type":"com.acme.sparkplug"}`))
	if err != nil {
		t.Fatal(err)
	}
	w.mapped++
	m.Revision, w.set = w.mapped, append(w.downMaps(), m)
	if err := w.maps.Set(t.Context(), w.mapped, w.set); err != nil {
		t.Fatal(err)
	}
	return w
}

// published are the records of the bus that clients have published.
func (w *world) published() []*event.Record {
	return slices.DeleteFunc(w.bus.records(), func(r *event.Record) bool { return r.MQTT == nil })
}

// last is the newest record of the bus, and what of its metrics can be told: their names with values, then the aliases that
// are not resolved.
func (w *world) last() (rec *event.Record, metrics string) {
	w.t.Helper()
	all := w.published()
	rec = all[len(all)-1]
	var d struct {
		Metrics    map[string]struct{ Value int64 }
		Unresolved []struct{ Alias, Value int64 }
	}
	view := sparkplug.View(rec)
	if err := json.Unmarshal(view.Event.Data, &d); err != nil {
		w.t.Fatalf("%q: %v", view.Event.Data, err)
	}
	var out []string
	for name, m := range d.Metrics {
		out = append(out, fmt.Sprintf("%s=%d", name, m.Value))
	}
	slices.Sort(out)
	for _, m := range d.Unresolved {
		out = append(out, fmt.Sprintf("#%d=%d", m.Alias, m.Value))
	}
	return rec, strings.Join(out, " ")
}

// What a server has to do to be Sparkplug compliant (Sparkplug 3.0, section 10, conformance of MQTT servers), whether it
// decodes or not.
func TestSparkplugCompliant(t *testing.T) {
	for name, begin := range map[string]func(*testing.T) *world{
		"plain": func(t *testing.T) *world { return newDownWorld(t) }, "decoding": func(t *testing.T) *world { return newPlant(t) },
	} {
		t.Run(name, func(t *testing.T) {
			versions(t, func(t *testing.T, v packet.Version) {
				t.Run("mqtt-qos0 and mqtt-qos1: every message as it was, in order", func(t *testing.T) {
					w := begin(t)
					host := w.now.connect(v, "host")
					host.subscribe(1, "spBv1.0/#")
					node := w.now.connect(v, "node")
					var want []string
					for seq := range 256 {
						topic := []string{"spBv1.0/g/NBIRTH/n", "spBv1.0/g/DBIRTH/n/d", "spBv1.0/g/NDATA/n", "spBv1.0/g/DDATA/n/d"}[min(seq, 2+seq%2)]
						payload := births("a", fmt.Sprint("seq ", seq))
						if seq > 1 {
							payload = changes(seq%3, seq)
						}
						want = append(want, topic+" "+payload)
						node.send(publish(topic, payload, byte(seq/2%2), uint16(seq%50+1)))
						if seq/2%2 == 1 {
							node.ack(packet.TypePuback, uint16(seq%50+1), packet.Success)
						}
					}
					for i := range want {
						m := host.message()
						if got := string(m.Topic) + " " + string(m.Payload); got != want[i] || m.QoS != byte(i/2%2) || m.Retain {
							t.Fatalf("message %d is %q with QoS %d, want %q", i, got, m.QoS, want[i])
						}
					}
				})
				t.Run("mqtt-will-messages and mqtt-retained: STATE of a host", func(t *testing.T) {
					w := begin(t)
					state := func(online bool) string { return fmt.Sprintf(`{"online":%t,"timestamp":1}`, online) }
					host := w.now.connect(v, "host", func(p *packet.Connect) {
						p.Will = &packet.Will{Topic: []byte("spBv1.0/STATE/host"), Payload: []byte(state(false)), QoS: 1, Retain: true}
					})
					host.retain("spBv1.0/STATE/host", state(true), 1, nil)
					node := w.now.connect(v, "node")
					node.subscribe(1, "spBv1.0/STATE/host")
					if m := node.message(); !m.Retain || m.QoS != 1 || string(m.Payload) != state(true) {
						t.Fatalf("got %q, RETAIN %v", m.Payload, m.Retain)
					}
					host.Close()
					if m := node.message(); m.QoS != 1 || string(m.Payload) != state(false) {
						t.Fatalf("got %q after the host had gone", m.Payload)
					}
					late := w.now.connect(v, "late")
					late.subscribe(1, "spBv1.0/STATE/+")
					if m := late.message(); !m.Retain || string(m.Payload) != state(false) {
						t.Fatalf("got %q, RETAIN %v", m.Payload, m.Retain)
					}
				})
				t.Run("NDEATH: as it was at CONNECT, before what the next connection publishes", func(t *testing.T) {
					w := begin(t)
					host := w.now.connect(v, "host")
					host.subscribe(1, "spBv1.0/g/#")
					dead := func(bdSeq int32) string { return sparkPayload(0, sparkMetric{"bdSeq", -1, bdSeq, true}) }
					dies := func(bdSeq int32) func(*packet.Connect) {
						return func(p *packet.Connect) {
							p.Will = &packet.Will{Topic: []byte("spBv1.0/g/NDEATH/n"), Payload: []byte(dead(bdSeq)), QoS: 1}
						}
					}
					old := w.now.connect(v, "node", dies(6))
					old.publish("spBv1.0/g/NBIRTH/n", births("a"))
					again := w.now.connect(v, "node", dies(7)) // takes over
					again.publish("spBv1.0/g/NBIRTH/n", births("a", "b"))
					again.Close()
					want := []string{births("a"), dead(6), births("a", "b"), dead(7)}
					if got := host.payloads(4); !slices.Equal(got, want) {
						t.Errorf("got %q, want %q", got, want)
					}
					last := w.now.connect(v, "node", dies(8))
					last.leave() // in good order: the node has said it by itself
					host.nothing()
				})
			})
		})
	}
}

// What makes a server aware: births are kept as certificates, and are available with RETAIN, over restarts and kills too.
func TestSparkplugAware(t *testing.T) {
	const node, device = "$sparkplug/certificates/spBv1.0/g/NBIRTH/n", "$sparkplug/certificates/spBv1.0/g/DBIRTH/n/d"
	versions(t, func(t *testing.T, v packet.Version) {
		for _, again := range []func(*world){(*world).restart, (*world).kill} {
			w := newPlant(t)
			live := w.now.connect(v, "live")
			live.subscribe(1, "$sparkplug/certificates/#")
			other := w.now.connect(v, "other")
			other.subscribe(0, "#")
			edge := w.now.connect(v, "edge")
			for _, m := range [][3]string{{"spBv1.0/g/NBIRTH/n", births("old"), node}, {"spBv1.0/g/NBIRTH/n", births("a"), node}, {"spBv1.0/g/DBIRTH/n/d", births("b"), device}} {
				edge.send(publish(m[0], m[1], 0, 0))
				if got := live.message(); string(got.Topic) != m[2] || string(got.Payload) != m[1] || got.QoS != 1 {
					t.Fatalf("live: %s %q, want %s %q", got.Topic, got.Payload, m[2], m[1])
				}
				if got := other.message(); string(got.Topic) != m[0] { // and no certificate
					t.Fatalf("got %s, want %s", got.Topic, m[0])
				}
			}
			edge.publish("spBv1.0/g/NDATA/n", changes(0))
			other.message()
			live.nothing()
			for _, r := range w.published() {
				if strings.HasPrefix(r.MQTT.Topic, "$") || r.Event.Type == mqttgw.CertificateType {
					t.Errorf("a certificate is on the bus: %+v", r.Event)
				}
			}
			again(w)
			late := w.now.connect(v, "late")
			late.subscribe(1, "$sparkplug/certificates/spBv1.0/+/NBIRTH/+", "$sparkplug/certificates/spBv1.0/g/DBIRTH/n/+")
			got := map[string]string{}
			for range 2 {
				m := late.message()
				if !m.Retain {
					t.Errorf("%s is not retained", m.Topic)
				}
				got[string(m.Topic)] = string(m.Payload)
			}
			if got[node] != births("a") || got[device] != births("b") {
				t.Errorf("certificates %q", got)
			}
			late.nothing()
		}
	})
}

// A birth holds until the next one, also if the message that it came with is not to be delivered for long.
func TestSparkplugBirthThatExpires(t *testing.T) {
	var passed atomic.Int64
	begin := time.Now()
	w := newPlant(t, func(o *mqttgw.Options) { o.Now = func() time.Time { return begin.Add(time.Duration(passed.Load())) } })
	node := w.now.connect(packet.V5, "node")
	node.send(&packet.Publish{Topic: []byte("spBv1.0/g/NBIRTH/n"), Payload: []byte(births("a")), QoS: 1, PacketID: 5,
		Properties: packet.Properties(nil).AppendInt(packet.MessageExpiry, 10).AppendUser("k", "v")})
	node.ack(packet.TypePuback, 5, packet.Success)
	passed.Store(int64(time.Minute))
	c := w.now.connect(packet.V5, "c")
	c.subscribe(1, "$sparkplug/certificates/#")
	if m := c.message(); string(m.Topic) != "$sparkplug/certificates/spBv1.0/g/NBIRTH/n" || string(m.Properties) != string(packet.Properties(nil).AppendUser("k", "v")) {
		t.Errorf("%+v", m)
	}
}

// Without a mapping that says so, nothing is known of Sparkplug. What is below $sparkplug is the server's all the same.
func TestSparkplugUnaware(t *testing.T) {
	w := newDownWorld(t)
	c := w.now.connect(packet.V5, "c")
	c.subscribe(1, "$sparkplug/#")
	c.publish("spBv1.0/g/NBIRTH/n", births("a"))
	c.nothing()
	if rec := w.published()[0]; rec.MQTT.Sparkplug != nil {
		t.Errorf("it is decoded: %q", rec.MQTT.Sparkplug)
	}
	for _, topic := range []string{"$sparkplug", "$sparkplug/certificates/spBv1.0/g/NBIRTH/n"} {
		c.send(publish(topic, "x", 1, 5))
		c.ack(packet.TypePuback, 5, packet.NotAuthorized)
	}
	c.publish("$sparkplugs/x", "x")
}

// Aliases have the names of the last birth of their node or device, also after the process was killed. What is stored is the
// payload as it was.
func TestSparkplugAliases(t *testing.T) {
	for name, again := range map[string]func(*world){"running": func(*world) {}, "restarted": (*world).restart, "killed": (*world).kill} {
		t.Run(name, func(t *testing.T) {
			w := newPlant(t)
			edge := w.now.connect(packet.V5, "edge")
			step := func(topic, payload, want string) {
				t.Helper()
				edge.publish("spBv1.0/g/"+topic, payload)
				rec, got := w.last()
				if string(rec.Event.Data) != payload || rec.Event.Type != "com.acme.sparkplug" || rec.Event.Subject != "spBv1.0/g/"+topic {
					t.Errorf("%s: stored is %+v", topic, rec.Event)
				}
				if got != want {
					t.Errorf("%s: %q, want %q", topic, got, want)
				}
			}
			step("NDATA/n", changes(0), "#0=4294967295") // before any birth
			step("NBIRTH/n", births("old", "older"), "old=0 older=0")
			step("DBIRTH/n/gone", births("x"), "x=0")
			step("NBIRTH/n", births("a", "b"), "a=0 b=0")
			step("DBIRTH/n/d", births("c"), "c=0")
			step("NBIRTH/m", births("other"), "other=0")
			// The certificates are in the view before the tail says so.
			watch := w.now.connect(packet.V5, "watch")
			watch.subscribe(0, "$sparkplug/certificates/spBv1.0/g/NBIRTH/m")
			watch.message()
			again(w)
			edge = w.now.connect(packet.V5, "edge")
			step("NDATA/n", changes(1, 7, 0), "a=-1 b=-1 #7=4294967295")
			step("NCMD/n", changes(1), "b=-1")
			step("DDATA/n/d", changes(0, 1), "c=-1 #1=4294967295")
			step("DCMD/n/d", changes(0), "c=-1")
			step("DDATA/n/gone", changes(0), "#0=4294967295") // the birth of its node has ended that of the device
			step("NDATA/m", changes(0), "other=-1")
			step("NDEATH/n", sparkPayload(0, sparkMetric{"bdSeq", -1, 3, true}), "bdSeq=3")
			step("NBIRTH/n", births("z"), "z=0")
			step("NDATA/n", changes(0), "z=-1")
			step("DDATA/n/d", changes(0), "#0=4294967295")
		})
	}
}

// What cannot be decoded is stored and passed on as it is, and says so.
func TestSparkplugDamaged(t *testing.T) {
	w := newPlant(t)
	host := w.now.connect(packet.V311, "host")
	host.subscribe(0, "spBv1.0/#")
	edge := w.now.connect(packet.V311, "edge")
	edge.publish("spBv1.0/g/NBIRTH/n", births("a"))
	edge.publish("spBv1.0/g/NBIRTH/n", "\xff")
	edge.publish("spBv1.0/g/NDATA/n", "\xfe")
	edge.publish("spBv1.0/g/NDATA/n", changes(0))
	if got, want := host.payloads(4), []string{births("a"), "\xff", "\xfe", changes(0)}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	for _, rec := range w.published()[1:3] {
		view := sparkplug.View(rec)
		why, _ := view.Event.Extension(sparkplug.ErrorAttribute)
		if why != "it is no protobuf message" || string(view.Event.Data) != string(rec.Event.Data) {
			t.Errorf("%q says %v", view.Event.Data, why)
		}
	}
	if _, got := w.last(); got != "#0=4294967295" { // the names of the birth before might be wrong
		t.Errorf("got %q after a birth that cannot be read", got)
	}
}

// The births in memory are bounded: those of the node that was silent for longest are forgotten, and wrong names are never given.
func TestSparkplugBirthsAreBounded(t *testing.T) {
	w := newPlant(t, func(o *mqttgw.Options) { o.Limits.MaxBirthBytes = 2000 }) // of three nodes
	edge := w.now.connect(packet.V5, "edge")
	see := func(node, payload, want string) {
		t.Helper()
		kind := "NDATA/"
		if strings.HasPrefix(want, "a") && strings.HasSuffix(want, "=0") {
			kind = "NBIRTH/"
		}
		edge.publish("spBv1.0/g/"+kind+node, payload)
		if _, got := w.last(); got != want {
			t.Errorf("%s: %q, want %q", node, got, want)
		}
	}
	for n := range 3 {
		see(fmt.Sprint(n), births("a", "b"), "a=0 b=0")
	}
	see("0", changes(0), "a=-1")
	see("3", births("a", "b"), "a=0 b=0") // 1 is forgotten
	see("1", changes(0), "#0=4294967295")
	see("0", changes(1), "b=-1")
	see("2", changes(0), "a=-1")
	for n := range 100 { // one node that is born again and again costs once
		see("2", births("a", fmt.Sprint(n)), fmt.Sprintf("%d=0 a=0", n))
	}
	see("3", changes(0), "a=-1")
	see("1", births("a", "b"), "a=0 b=0")
	see("1", changes(0), "a=-1")
}

// Births are counted by their bytes: a few metrics with long names are as many short ones.
func TestSparkplugBirthsAreBoundedByBytes(t *testing.T) {
	w := newPlant(t, func(o *mqttgw.Options) { o.Limits.MaxBirthBytes = 4000 })
	edge := w.now.connect(packet.V5, "edge")
	long := strings.Repeat("n", 1000)
	for n := range 3 {
		edge.publish(fmt.Sprint("spBv1.0/g/NBIRTH/", n), births("a"+long, "b"+long))
	}
	for n, want := range []string{"#0=4294967295", "#0=4294967295", "a" + long + "=-1"} {
		edge.publish(fmt.Sprint("spBv1.0/g/NDATA/", n), changes(0))
		if _, got := w.last(); got != want {
			t.Errorf("node %d: %q, want %q", n, got, want)
		}
	}
}

// When commands that wait keep DOWN from being trimmed, births are not added to what fills it; those that are retained are
// withdrawn, so that no old one is used after a restart, once. When there is room again births are retained as before.
func TestSparkplugBirthsLeaveRoomForCommands(t *testing.T) {
	w := newPlant(t)
	live := w.now.connect(packet.V5, "live")
	live.subscribe(1, "$sparkplug/certificates/#")
	edge := w.now.connect(packet.V5, "edge")
	edge.publish("spBv1.0/g/NBIRTH/n", births("old"))
	edge.publish("spBv1.0/g/DBIRTH/n/d", births("of the device"))
	if got := live.payloads(2); got[0] != births("old") || got[1] != births("of the device") {
		t.Fatalf("retained %q", got)
	}
	crowd := func(bytes int64) { w.down.set(func() { w.down.bytes = bytes }) }
	crowd(mqttgw.DefaultDownlinkBytes + mqttgw.DefaultDownlinkBytes/16 + 25<<20)
	messages := func() uint64 { return w.down.Committed() }
	before := messages()
	for i := range 5 {
		edge.publish("spBv1.0/g/NBIRTH/n", births("new", fmt.Sprint(i)))
	}
	if got := live.payloads(1); got[0] != "" {
		t.Errorf("instead of a birth %q is sent", got[0])
	}
	if n := messages() - before; n != 1 {
		t.Errorf("%d messages are stored, want one that withdraws", n)
	}
	edge.publish("spBv1.0/g/NDATA/n", changes(0))
	if _, got := w.last(); got != "new=-1" {
		t.Errorf("got %q from a birth that is not retained", got)
	}
	w.restart()
	edge = w.now.connect(packet.V5, "edge")
	for _, topic := range []string{"spBv1.0/g/NDATA/n", "spBv1.0/g/DDATA/n/d"} { // that of the device was before the last of its node
		edge.publish(topic, changes(0))
		if _, got := w.last(); got != "#0=4294967295" {
			t.Errorf("got %q on %s after a restart without births", got, topic)
		}
	}
	late := w.now.connect(packet.V5, "late")
	late.subscribe(1, "$sparkplug/certificates/+/+/NBIRTH/#")
	late.nothing()
	crowd(0)
	edge.publish("spBv1.0/g/NBIRTH/n", births("again"))
	if got := late.payloads(1); got[0] != births("again") {
		t.Errorf("with room %q is retained", got[0])
	}
	w.restart()
	edge = w.now.connect(packet.V5, "edge")
	edge.publish("spBv1.0/g/NDATA/n", changes(0))
	if _, got := w.last(); got != "again=-1" {
		t.Errorf("got %q after a restart", got)
	}
}

// A message without room for all names beside it keeps the aliases that are left.
func TestSparkplugManyNames(t *testing.T) {
	w := newPlant(t)
	edge := w.now.connect(packet.V5, "edge")
	var names []string
	var aliases []int
	for n := range 1000 {
		names, aliases = append(names, fmt.Sprintf("%04d %s", n, strings.Repeat("x", 80))), append(aliases, n)
	}
	edge.publish("spBv1.0/g/NBIRTH/n", births(names...))
	ps := packet.Properties(nil)
	for n := range 100 {
		ps = ps.AppendUser(fmt.Sprint(n), strings.Repeat("y", 100))
	}
	m := publish("spBv1.0/g/NDATA/n", changes(aliases...), 1, 9)
	m.Properties = ps
	edge.send(m)
	edge.ack(packet.TypePuback, 9, packet.Success)
	rec, got := w.last()
	if n := len(event.AppendNATS(nil, rec)); n > 52<<10 || n < 50<<10 {
		t.Errorf("the header has %d bytes", n)
	}
	if n := strings.Count(got, "="); n != 1000 || !strings.HasPrefix(got, names[0]+"=-1") || !strings.HasSuffix(got, "#999=4294967295") {
		t.Errorf("%d metrics: %.100q", n, got)
	}
}

// Changing the mapping turns it on and off for what is published from then on.
func TestSparkplugMappingChanges(t *testing.T) {
	w := newPlant(t)
	edge := w.now.connect(packet.V5, "edge")
	edge.publish("spBv1.0/g/NBIRTH/n", births("a"))
	if err := w.maps.Set(context.Background(), 9, w.downMaps()); err != nil {
		t.Fatal(err)
	}
	edge.publish("spBv1.0/g/NDATA/n", changes(0))
	all := w.published()
	if rec := all[len(all)-1]; rec.MQTT.Sparkplug != nil || sparkplug.View(rec) != rec {
		t.Errorf("it is decoded: %+v", rec.MQTT)
	}
}
