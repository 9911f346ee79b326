// SPDX-License-Identifier: Apache-2.0

package app_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	mqtt5 "github.com/eclipse/paho.golang/paho"
	mqtt3 "github.com/eclipse/paho.mqtt.golang"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/mqttgw"
	"github.com/rialto-bridge/rialto/mqttgw/packet"
)

// listener is an MQTT 5 client with a session that takes commands and acknowledges them.
type listener struct {
	id string

	mu    sync.Mutex
	ready bool           // is subscribed; guarded by mu
	nc    net.Conn       // guarded by mu
	got   map[string]int // by payload; guarded by mu
	taken func(payload []byte)
}

// run is one connection, until it breaks.
func (l *listener) run(addr string) error {
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	defer nc.Close()
	l.mu.Lock()
	l.nc = nc
	l.mu.Unlock()
	send := func(ps ...packet.Packet) {
		var b []byte
		for _, p := range ps {
			b = p.Append(b, packet.V5)
		}
		nc.Write(b) //nolint:errcheck // noticed when reading
	}
	send(&packet.Connect{Version: packet.V5, ClientID: []byte(l.id), Properties: packet.Properties(nil).AppendInt(packet.SessionExpiry, 3600)},
		&packet.Subscribe{PacketID: 1, Filters: []packet.Subscription{{Filter: []byte("devices/" + l.id + "/#"), QoS: 1}}})
	in := packet.NewReader(nc)
	for {
		b, body, err := in.Next(1 << 20)
		if err != nil {
			return err
		}
		p, err := packet.Decode(b, slices.Clone(body), packet.V5)
		if err != nil {
			return err
		}
		switch p := p.(type) {
		case *packet.Suback:
			l.mu.Lock()
			l.ready = true
			l.mu.Unlock()
		case *packet.Publish:
			if l.taken != nil {
				l.taken(p.Payload)
			}
			l.mu.Lock()
			l.got[string(p.Payload)]++
			l.mu.Unlock()
			if p.QoS > 0 {
				send(&packet.Ack{Kind: packet.TypePuback, PacketID: p.PacketID})
			}
		}
	}
}

func (l *listener) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.nc.Close()
}

func (l *listener) times(payload string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.got[payload]
}

func (l *listener) await(t testing.TB) {
	t.Helper()
	eventually(t, 20*time.Second, func() (string, bool) {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.id + " is not subscribed", l.ready
	})
}

// TestKillCommands kills the process again and again while commands are sent. Every command that was accepted reaches its
// device, or expires if that is away, and what was told of one that has ended stays true.
func TestKillCommands(t *testing.T) {
	const rounds, perRound = 4, 40
	dir := t.TempDir()
	box := &listener{id: "box", got: map[string]int{}}
	var accepted []string
	told := map[string]string{} // statuses that were final when they were told
	look := func(s *server, device, id string) (c mqttgw.Command, ok bool) {
		status, body := s.call("GET", "/v1/devices/"+device+"/commands/"+id, "")
		if status != http.StatusOK || json.Unmarshal([]byte(body), &c) != nil {
			return c, false
		}
		if was, known := told[id]; known && (c.Status != was || !c.Final) {
			t.Errorf("command %s was %s, and is %s", id, was, c.Status)
		}
		if c.Final {
			told[id] = c.Status
		}
		return c, true
	}
	for round := range rounds {
		s, cmd := spawn(t, dir)
		var wg sync.WaitGroup
		wg.Go(func() { box.run(s.mqtt) }) //nolint:errcheck // ends with the process
		kill := time.AfterFunc(time.Duration(300+rand.IntN(700))*time.Millisecond, func() { cmd.Process.Kill() })
		for n := range perRound {
			id := fmt.Sprintf("c-%d-%d", round, n)
			if status, _ := s.call("POST", "/v1/devices/box/commands", fmt.Sprintf(`{"id":%q,"payload":%q}`, id, id)); status == http.StatusAccepted {
				accepted = append(accepted, id)
			}
			look(s, "box", id)
		}
		if round == 0 {
			s.call("POST", "/v1/devices/away/commands", `{"id":"away","payload":"x","expiry":"2s"}`)
		}
		wg.Wait() // the connection ends with the process
		kill.Stop()
		cmd.Wait() // killed: the error is known
	}
	s, cmd := spawn(t, dir)
	var wg sync.WaitGroup
	wg.Go(func() { box.run(s.mqtt) }) //nolint:errcheck // ends with the process
	eventually(t, 60*time.Second, func() (string, bool) {
		for _, id := range accepted {
			if c, ok := look(s, "box", id); !ok || c.Status != mqttgw.StatusAcknowledged {
				return fmt.Sprintf("command %s is %q", id, c.Status), false
			}
		}
		return "", true
	})
	repeated := 0
	for _, id := range accepted {
		switch n := box.times(id); {
		case n == 0:
			t.Errorf("command %s is acknowledged and did not come", id)
		case n > 1:
			repeated++
		}
	}
	if c, ok := look(s, "away", "away"); ok {
		eventually(t, 20*time.Second, func() (string, bool) {
			c, _ = look(s, "away", "away")
			return "away is " + c.Status, c.Status == mqttgw.StatusExpired
		})
	}
	if len(accepted) < rounds {
		t.Errorf("%d commands in %d lives", len(accepted), rounds)
	}
	t.Logf("%d commands in %d lives, %d came more than once", len(accepted), rounds, repeated)
	if err := cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Error(err)
	}
	wg.Wait()
	cmd.Wait() // killed: the error is known
}

// A rule's delivery to a device is a command.
func TestDeviceTarget(t *testing.T) {
	s, _ := start(t, options(t.TempDir()))
	box := &listener{id: "box-17", got: map[string]int{}}
	var wg sync.WaitGroup
	wg.Go(func() { box.run(s.mqtt) }) //nolint:errcheck // ends with the test
	t.Cleanup(func() {
		box.close()
		wg.Wait()
	})
	box.await(t)
	s.must("PUT", "/v1/targets/boxes", `{"type":"device","config":{"device":"box-${data.box}"}}`)
	s.rule("default", "defrost", `{"type":["defrost"]}`, "boxes")
	if status := s.publish("default", "e1", "defrost", `{"box":17}`); status != http.StatusAccepted {
		t.Fatalf("publish: %d", status)
	}
	s.settled("default", 20*time.Second)
	eventually(t, 20*time.Second, func() (string, bool) { return "no command", box.times(`{"box":17}`) == 1 })
	var page struct{ Items []mqttgw.Command }
	eventually(t, 20*time.Second, func() (string, bool) {
		if err := json.Unmarshal([]byte(s.must("GET", "/v1/devices/box-17/commands", "")), &page); err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(page), len(page.Items) == 1 && page.Items[0].Status == mqttgw.StatusAcknowledged && page.Items[0].By == "target boxes"
	})
}

// What a device target sends of an event is kept as it was sent, over a restart too, and reaches clients of both versions.
func TestDeviceTargetEncodings(t *testing.T) {
	dir := t.TempDir()
	s, a := start(t, options(dir))
	for _, encoding := range []string{"data", "binary", "structured"} {
		s.must("PUT", "/v1/targets/"+encoding, `{"type":"device","config":{"device":"box-${data.v}","topic":"to/${device}/`+encoding+`","encoding":"`+encoding+`"}}`)
		s.rule("default", encoding, `{"type":["defrost"]}`, encoding)
	}
	extensions := []string{"Ce-Subject", "s", "Ce-Zone", "1", "Ce-Big", strings.Repeat("x", 4000), "Ce-Area", "2"}
	for i, v := range []string{"3", "5"} {
		header := append([]string{"ce-specversion", "1.0", "ce-id", fmt.Sprint("e", i), "ce-source", "/test", "ce-type", "defrost"}, extensions...)
		s.must("POST", "/v1/buses/default/events", `{"v":`+v+`}`, header...)
	}
	tooMany := []string{"ce-specversion", "1.0", "ce-id", "many", "ce-source", "/test", "ce-type", "defrost"}
	for i := range 5 {
		tooMany = append(tooMany, fmt.Sprint("Ce-Big", i), strings.Repeat("x", 4000))
	}
	s.must("POST", "/v1/buses/default/events", `{"v":9}`, tooMany...)
	s.settled("default", 20*time.Second)
	var dead struct {
		Items []struct{ Target, Error string }
	}
	if err := json.Unmarshal([]byte(s.must("GET", "/v1/deadletters", "")), &dead); err != nil || len(dead.Items) != 1 || dead.Items[0].Target != "binary" {
		t.Fatalf("%+v, %v, want the one whose properties are too large", dead, err)
	}
	if err := a.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	s, _ = start(t, options(dir))

	young := make(chan *mqtt5.Publish, 3)
	nc, err := net.Dial("tcp", s.mqtt)
	if err != nil {
		t.Fatal(err)
	}
	c5 := mqtt5.NewClient(mqtt5.ClientConfig{Conn: nc, OnPublishReceived: []func(mqtt5.PublishReceived) (bool, error){
		func(p mqtt5.PublishReceived) (bool, error) { young <- p.Packet; return true, nil },
	}})
	if _, err := c5.Connect(t.Context(), &mqtt5.Connect{ClientID: "box-5", CleanStart: true, KeepAlive: 60}); err != nil {
		t.Fatal(err)
	}
	defer c5.Disconnect(&mqtt5.Disconnect{}) //nolint:errcheck // the test is over
	if _, err := c5.Subscribe(t.Context(), &mqtt5.Subscribe{Subscriptions: []mqtt5.SubscribeOptions{{Topic: "to/#", QoS: 1}}}); err != nil {
		t.Fatal(err)
	}
	props := func(ps mqtt5.UserProperties) (all []string) {
		for _, p := range ps {
			all = append(all, p.Key+"="+p.Value)
		}
		return all
	}
	for range 3 {
		p := <-young
		got := props(p.Properties.User)
		switch p.Topic {
		case "to/box-5/data":
			if got != nil || p.Properties.ContentType != "application/json" || string(p.Payload) != `{"v":5}` {
				t.Errorf("%s: %v, %s", p.Topic, got, p)
			}
		case "to/box-5/binary":
			want := []string{"specversion=1.0", "id=e1", "source=/test", "type=defrost", "subject=s", "area=2", "big=" + extensions[5], "zone=1"}
			got = slices.DeleteFunc(got, func(s string) bool { return strings.HasPrefix(s, "time=") })
			if !slices.Equal(got, want) || p.Properties.ContentType != "application/json" || string(p.Payload) != `{"v":5}` {
				t.Errorf("%s: %v, want %v; %s", p.Topic, got, want, p)
			}
		case "to/box-5/structured":
			if e, err := event.ParseJSON(p.Payload, event.Limits{}); got != nil || p.Properties.ContentType != "application/cloudevents+json" || err != nil || e.ID != "e1" {
				t.Errorf("%s: %v, %s", p.Topic, got, p)
			}
		}
	}

	old := make(chan mqtt3.Message, 3)
	c3 := mqtt3.NewClient(mqtt3.NewClientOptions().AddBroker("tcp://" + s.mqtt).SetClientID("box-3").SetProtocolVersion(4))
	if token := c3.Connect(); !token.WaitTimeout(20*time.Second) || token.Error() != nil {
		t.Fatal(token.Error())
	}
	defer c3.Disconnect(0)
	c3.Subscribe("to/#", 1, func(_ mqtt3.Client, m mqtt3.Message) { old <- m })
	for range 3 {
		m := <-old
		e, err := event.ParseJSON(m.Payload(), event.Limits{})
		if whole := err == nil && e.ID == "e0"; whole != (m.Topic() == "to/box-3/structured") || !whole && string(m.Payload()) != `{"v":3}` {
			t.Errorf("%s: %s", m.Topic(), m.Payload())
		}
	}
}

// commandDelay is what a flood may add to the way of a command, beside what it adds to any request.
const commandDelay = 5 * time.Millisecond

// floodDelay is what it may add in all.
const floodDelay = 50 * time.Millisecond

// isolationScale, in the environment, makes the turns of TestGateCommandsPassTelemetry so many times as long.
const isolationScale = "RIALTO_ISOLATION"

// TestGateCommandsPassTelemetry measures the way of a command, from the request to the device, on an idle bridge and while
// publishers send as fast as they can, in turns. No command may be lost, and at the 99th percentile, by the median of five turns,
// a flood may add 5 ms, or as much again as the command takes without one.
//
// What it adds to a request that does nothing, /livez, in the same turns, is not counted: bridge, publishers and this process share
// the processors, which are full then, and whoever wants one waits for it.
func TestGateCommandsPassTelemetry(t *testing.T) {
	scale := 1
	if v := os.Getenv(isolationScale); v != "" {
		var err error
		if scale, err = strconv.Atoi(v); err != nil || scale < 1 {
			t.Fatalf("%s=%s is no scale", isolationScale, v)
		}
	}
	s, _ := spawn(t, t.TempDir())
	var mu sync.Mutex
	var commands, requests []time.Duration
	box := &listener{id: "box", got: map[string]int{}, taken: func(payload []byte) {
		sent, err := strconv.ParseInt(string(payload), 10, 64)
		if err != nil {
			t.Errorf("payload %q", payload)
		}
		mu.Lock()
		defer mu.Unlock()
		commands = append(commands, time.Duration(time.Now().UnixNano()-sent))
	}}
	var wg sync.WaitGroup
	wg.Go(func() { box.run(s.mqtt) }) //nolint:errcheck // ends with the test
	t.Cleanup(func() {
		box.close()
		wg.Wait()
	})
	box.await(t)
	const rate = 50 // of each
	perTurn := 150 * scale
	turn := func() (command, request time.Duration) {
		mu.Lock()
		commands, requests = commands[:0], requests[:0]
		mu.Unlock()
		pace(t, 2*rate, 2*perTurn, func(i int) {
			if began := time.Now(); i%2 == 0 {
				s.must("GET", "/livez", "")
				mu.Lock()
				defer mu.Unlock()
				requests = append(requests, time.Since(began))
				return
			}
			if status, body := s.call("POST", "/v1/devices/box/commands", fmt.Sprintf(`{"payload":"%d"}`, time.Now().UnixNano())); status != http.StatusAccepted {
				t.Errorf("command: %d %s", status, body)
			}
		})
		eventually(t, 30*time.Second, func() (string, bool) {
			mu.Lock()
			defer mu.Unlock()
			return fmt.Sprintf("%d of %d commands came", len(commands), perTurn), len(commands) >= perTurn
		})
		slices.Sort(commands)
		slices.Sort(requests)
		return commands[perTurn*99/100], requests[perTurn*99/100]
	}
	turn() // warms up
	for try := range 3 {
		var idle, flooded, live, liveFlooded []time.Duration
		published := 0
		for range 5 {
			command, request := turn()
			idle, live = append(idle, command), append(live, request)
			stop := flood(t, s.mqtt)
			command, request = turn()
			flooded, liveFlooded = append(flooded, command), append(liveFlooded, request)
			published += stop()
		}
		a, b, l, m := median(idle), median(flooded), median(live), median(liveFlooded)
		t.Logf("p99 of a command: idle %v, flooded %v (medians of %v and %v); of a request that does nothing: %v, %v; %d messages acknowledged meanwhile",
			a, b, idle, flooded, l, m, published)
		if published < 10*len(flooded)*perTurn {
			t.Errorf("%d messages are no flood", published)
		}
		if b-max(0, m-l) <= a+max(a, commandDelay) && b <= a+floodDelay {
			return
		}
		t.Logf("try %d failed", try)
	}
	t.Error("the flood has delayed commands, three times")
}

// childFlood, in the environment, has a process of the test program flood the gateway there.
const childFlood = "RIALTO_TEST_CHILD_FLOOD"

// flood floods a gateway from a process of its own until stop, which says how many messages were acknowledged.
func flood(t testing.TB, addr string) (stop func() int) {
	t.Helper()
	cmd, stdin, out := startChild(t, childFlood+"="+addr)
	return func() int {
		stdin.Close()
		text, err := io.ReadAll(out)
		if err := errors.Join(err, cmd.Wait()); err != nil {
			t.Fatal(err)
		}
		n, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
}

// beFlood publishes with QoS 1 over a few connections, each with a full window, until stdin ends; then it prints how many messages
// were acknowledged.
func beFlood(addr string) int {
	const publishers, window = 4, 100
	var wg sync.WaitGroup
	var acked atomic.Int64
	var conns []net.Conn
	for i := range publishers {
		nc, err := net.Dial("tcp", addr)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		conns = append(conns, nc)
		wg.Go(func() {
			b := (&packet.Connect{Version: packet.V5, CleanStart: true, ClientID: fmt.Append(nil, "flood-", i)}).Append(nil, packet.V5)
			for n := range window {
				b = telemetry(b, uint16(n+1))
			}
			nc.Write(b) //nolint:errcheck // noticed when reading
			in := packet.NewReader(nc)
			for {
				first, body, err := in.Next(1 << 20)
				if err != nil {
					return
				}
				p, err := packet.Decode(first, body, packet.V5)
				if err != nil {
					fmt.Fprintln(os.Stderr, err)
					return
				}
				if a, ok := p.(*packet.Ack); ok && a.Kind == packet.TypePuback {
					acked.Add(1)
					nc.Write(telemetry(nil, a.PacketID)) //nolint:errcheck // noticed when reading
				}
			}
		})
	}
	io.Copy(io.Discard, os.Stdin) //nolint:errcheck // its end is what is waited for
	for _, nc := range conns {
		nc.Close()
	}
	wg.Wait()
	fmt.Println(acked.Load())
	return 0
}

func telemetry(b []byte, id uint16) []byte {
	return (&packet.Publish{Topic: []byte("flood/t"), QoS: 1, PacketID: id, Payload: make([]byte, 256)}).Append(b, packet.V5)
}
