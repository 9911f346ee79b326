// SPDX-License-Identifier: Apache-2.0

package app_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/rialto-bridge/rialto/mqttgw/packet"
)

// plantBirth announces the metrics Inlet/Temp, a Float with the alias 1, and Pump, a Boolean with the alias 2.
func plantBirth() []byte {
	var b []byte
	for _, m := range []struct {
		name        string
		alias, kind uint64
	}{{"Inlet/Temp", 1, 9}, {"Pump", 2, 11}} {
		x := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), m.name)
		x = protowire.AppendVarint(protowire.AppendTag(x, 2, protowire.VarintType), m.alias)
		x = protowire.AppendVarint(protowire.AppendTag(x, 4, protowire.VarintType), m.kind)
		x = protowire.AppendVarint(protowire.AppendTag(x, 7, protowire.VarintType), 1) // is null
		b = protowire.AppendBytes(protowire.AppendTag(b, 2, protowire.BytesType), x)
	}
	return b
}

// plantData says that the inlet has a temperature, by its alias: 0x41a80000 is 21.
func plantData(seq byte) []byte {
	return append([]byte("\x12\x07\x10\x01\x65\x00\x00\xa8\x41\x18"), seq)
}

const (
	plantMapping = `{"kind":"TopicMapping","name":"plant","filter":"spBv1.0/#","decode":"sparkplug","type":"com.acme.plant"}`
	plantRule    = `{"kind":"Rule","name":"too-warm","bus":"devices","pattern":{"type":["com.acme.plant"],"data":{"metrics":{"Inlet/Temp":{"value":[{"numeric":[">",20]}]}}}},
		"targets":[{"target":"sink","transform":{"template":{"node":"${data.node}","t":"${ data.metrics[\"Inlet/Temp\"].value }","seq":"${data.seq}"}}}]}`
)

// publishTo publishes with QoS 1 as a client that comes for it and goes.
func publishTo(t testing.TB, s *server, topic string, payload []byte) {
	t.Helper()
	p, err := dialMQTT(s.mqtt, "edge", true)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := p.publish(1, 1, 1, func(int) string { return topic }, payload); err != nil {
		t.Fatal(err)
	}
}

// plantInForce waits until the rule matches what is published, with messages that it matches too.
func plantInForce(t testing.TB, s *server, to *sink) {
	t.Helper()
	s.must("PUT", "/v1/topicmappings/plant", plantMapping)
	s.must("PUT", "/v1/buses/devices/rules/too-warm", plantRule)
	eventually(t, 20*time.Second, func() (string, bool) {
		publishTo(t, s, "spBv1.0/g/NBIRTH/probe", plantBirth())
		publishTo(t, s, "spBv1.0/g/NDATA/probe", plantData(0))
		return "the rule and the mapping are not in force", len(to.missing([]string{`{"node":"probe","t":21,"seq":0}`})) == 0
	})
}

// A rule on the name of a metric matches a message that has its alias only. Readers see JSON, the subscriber gets the bytes.
func TestSparkplugRule(t *testing.T) {
	s, _ := start(t, options(t.TempDir()))
	to := newSink(t, nil)
	s.target("sink", to.URL, `{}`)
	plantInForce(t, s, to)
	host, err := dialMQTT(s.mqtt, "host", true)
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	if err := host.subscribe("spBv1.0/g/+/n", 0); err != nil {
		t.Fatal(err)
	}
	publishTo(t, s, "spBv1.0/g/NBIRTH/n", plantBirth())
	publishTo(t, s, "spBv1.0/g/NDATA/n", plantData(7))
	for _, want := range [][]byte{plantBirth(), plantData(7)} {
		first, body, err := host.in.Next(1 << 20)
		if err != nil {
			t.Fatal(err)
		}
		var m packet.Publish
		if err := m.Decode(first, body, packet.V311); err != nil || string(m.Payload) != string(want) {
			t.Errorf("the host got %q, %v; want %q", m.Payload, err, want)
		}
	}
	eventually(t, 20*time.Second, func() (string, bool) {
		return "the rule does not match", len(to.missing([]string{`{"node":"n","t":21,"seq":7}`})) == 0
	})
	var found struct {
		Items []struct {
			Event struct {
				ID   string
				Data json.RawMessage
			}
		}
	}
	if err := json.Unmarshal([]byte(s.must("GET", "/v1/buses/devices/events?subject=spBv1.0/g/NDATA/n", "")), &found); err != nil || len(found.Items) != 1 {
		t.Fatal(err, found)
	}
	want := `{"message":"NDATA","group":"g","node":"n","seq":7,"metrics":{"Inlet/Temp":{"value":21,"type":"Float","alias":1}}}`
	if got := found.Items[0].Event; string(got.Data) != want {
		t.Errorf("a search shows %s, want %s", got.Data, want)
	}
	id := found.Items[0].Event.ID
	for path, ask := range map[string]string{
		"/v1/rules:explain": fmt.Sprintf(`{"bus":"devices","id":%q,"rule":"too-warm"}`, id),
		"/v1/rules:test":    fmt.Sprintf(`{"rule":%s,"stored":[{"id":%q}]}`, plantRule, id),
	} {
		if answer := s.must("POST", path, ask); !strings.Contains(answer, `"matched":true`) && !strings.Contains(answer, `"matched":1`) {
			t.Errorf("%s: %s", path, answer)
		}
	}
	s.settled("devices", 20*time.Second)
}

// TestKillSparkplug kills the process between a birth and the data that needs it, and between two attempts: the alias has its
// name all the same, and every attempt the same bytes.
func TestKillSparkplug(t *testing.T) {
	dir := t.TempDir()
	var mu sync.Mutex
	refuse, refused := false, 0
	to := newSink(t, func(w http.ResponseWriter, _ *http.Request, body []byte) {
		mu.Lock()
		defer mu.Unlock()
		if refuse && strings.Contains(string(body), `"node":"n"`) {
			refused++
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	s, cmd := spawn(t, dir)
	kill := func() {
		t.Helper()
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		cmd.Wait() // killed: the error is known
		s, cmd = spawn(t, dir)
	}
	s.target("sink", to.URL, `{"retry":{"schedule":["50ms"],"maxAttempts":100}}`)
	plantInForce(t, s, to)
	host, err := dialMQTT(s.mqtt, "host", true)
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	if err := host.subscribe("$sparkplug/certificates/spBv1.0/g/NBIRTH/n", 0); err != nil {
		t.Fatal(err)
	}
	publishTo(t, s, "spBv1.0/g/NBIRTH/n", plantBirth())
	if _, _, err := host.in.Next(1 << 20); err != nil { // the certificate is committed
		t.Fatal(err)
	}
	kill()
	mu.Lock()
	refuse = true
	mu.Unlock()
	publishTo(t, s, "spBv1.0/g/NDATA/n", plantData(9))
	eventually(t, 20*time.Second, func() (string, bool) {
		mu.Lock()
		defer mu.Unlock()
		return "no attempt is made", refused > 0
	})
	kill()
	mu.Lock()
	refuse = false
	mu.Unlock()
	l := s.settled("devices", 30*time.Second)
	to.mu.Lock()
	defer to.mu.Unlock()
	for body, n := range to.seen {
		if strings.Contains(body, `"node":"n"`) && (body != `{"node":"n","t":21,"seq":9}` || n < 2) {
			t.Errorf("%s arrived %d times; the account is %+v", body, n, l)
		}
	}
	if to.seen[`{"node":"n","t":21,"seq":9}`] < 2 {
		t.Errorf("arrived: %v", to.seen)
	}
}
