// SPDX-License-Identifier: Apache-2.0

package mqttgw_test

import (
	"context"
	"fmt"
	"net"
	"testing"
	"time"

	v5 "github.com/eclipse/paho.golang/paho"
	v3 "github.com/eclipse/paho.mqtt.golang"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/mqttgw"
)

// busPublisher is how a process joins the gateway with one bus of the log.
type busPublisher struct{ bus *eventlog.Bus }

func (p busPublisher) Publish(ctx context.Context, _ string, rec *event.Record, done func(error)) error {
	return p.bus.Append(ctx, rec, func(r eventlog.Receipt) { done(r.Err) })
}

// The Eclipse Paho clients of both versions publish and subscribe through a gateway on a real log.
func TestPahoClientsOverTheLog(t *testing.T) {
	log, err := eventlog.Open(t.Context(), eventlog.Options{Dir: t.TempDir(), Durability: eventlog.OS, Logger: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := log.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	bus, err := log.Bus(t.Context(), eventlog.BusConfig{Name: "devices"})
	if err != nil {
		t.Fatal(err)
	}
	s := start(t, func(o *mqttgw.Options) { o.Publisher, o.Tail = busPublisher{bus}, bus })
	const each = 30
	arrived := make(chan string, 4*each)

	old := v3.NewClient(v3.NewClientOptions().AddBroker("tcp://" + s.ln.Addr().String()).SetClientID("old").SetProtocolVersion(4))
	await(t, old.Connect())
	defer old.Disconnect(0)
	await(t, old.Subscribe("fleet/#", 1, func(_ v3.Client, m v3.Message) { arrived <- "old " + m.Topic() + " " + string(m.Payload()) }))

	nc, err := net.Dial("tcp", s.ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	young := v5.NewClient(v5.ClientConfig{Conn: nc, OnPublishReceived: []func(v5.PublishReceived) (bool, error){
		func(p v5.PublishReceived) (bool, error) {
			arrived <- "young " + p.Packet.Topic + " " + string(p.Packet.Payload)
			return true, nil
		},
	}})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if ack, err := young.Connect(ctx, &v5.Connect{ClientID: "young", CleanStart: true, KeepAlive: 30}); err != nil || ack.ReasonCode != 0 {
		t.Fatalf("CONNACK %+v, %v", ack, err)
	}
	if _, err := young.Subscribe(ctx, &v5.Subscribe{Subscriptions: []v5.SubscribeOptions{{Topic: "fleet/+/t", QoS: 1}}}); err != nil {
		t.Fatal(err)
	}
	want := map[string]bool{}
	for k := range each {
		topic, qos := fmt.Sprintf("fleet/%d/t", k), byte(1+k%2)
		await(t, old.Publish(topic, qos, false, fmt.Sprint("from old ", k)))
		if _, err := young.Publish(ctx, &v5.Publish{Topic: topic, QoS: qos, Payload: fmt.Appendf(nil, "from young %d", k)}); err != nil {
			t.Fatal(err)
		}
		for _, who := range []string{"old", "young"} {
			want[fmt.Sprintf("%s %s from old %d", who, topic, k)] = true
			want[fmt.Sprintf("%s %s from young %d", who, topic, k)] = true
		}
	}
	timeout := time.After(patience)
	for len(want) > 0 {
		select {
		case m := <-arrived:
			if !want[m] {
				t.Errorf("%q is unknown, or came twice", m)
			}
			delete(want, m)
		case <-timeout:
			t.Fatalf("%d messages did not arrive", len(want))
		}
	}
	if got := bus.Committed() - bus.First() + 1; got != 2*each {
		t.Errorf("%d events in the log, want %d", got, 2*each)
	}
	if err := young.Disconnect(&v5.Disconnect{}); err != nil {
		t.Error(err)
	}
}

func await(t *testing.T, token v3.Token) {
	t.Helper()
	if !token.WaitTimeout(patience) {
		t.Fatal("no answer in time")
	}
	if err := token.Error(); err != nil {
		t.Fatal(err)
	}
}
