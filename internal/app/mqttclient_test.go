// SPDX-License-Identifier: Apache-2.0

package app_test

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/paho"

	"github.com/rialto-bridge/rialto/internal/app"
	"github.com/rialto-bridge/rialto/sources/mqttclient"
	"github.com/rialto-bridge/rialto/sources/sourcetest"
)

// farBroker is a whole bridge as the broker that another one subscribes at, behind a wire that can be cut and that counts
// acknowledgements.
type farBroker struct {
	dir  string
	wire net.Listener

	mu         sync.Mutex // guards below
	app        *app.App
	publisher  *paho.Client
	conns      []net.Conn
	puts, acks int
	subscribed chan struct{} // closed by the first SUBACK
	once       sync.Once
	all        sync.WaitGroup
}

func newFarBroker(t *testing.T) *farBroker {
	b := &farBroker{dir: t.TempDir(), subscribed: make(chan struct{})}
	b.open(t)
	var err error
	if b.wire, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	b.all.Go(b.accept)
	t.Cleanup(func() {
		b.wire.Close()
		b.Cut(t)
		b.all.Wait()
		b.close(t)
	})
	return b
}

func (b *farBroker) open(t testing.TB) {
	t.Helper()
	a, err := app.Start(context.Background(), options(b.dir))
	if err != nil {
		t.Fatal(err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.app = a
}

func (b *farBroker) close(t testing.TB) {
	t.Helper()
	b.mu.Lock()
	a, p := b.app, b.publisher
	b.publisher = nil
	b.mu.Unlock()
	if p != nil {
		_ = p.Disconnect(&paho.Disconnect{}) // or the end of the broker does it
		<-p.Done()
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := a.Close(ctx); err != nil {
		t.Error(err)
	}
}

// accept passes connections on to wherever the broker is by now.
func (b *farBroker) accept() {
	for {
		in, err := b.wire.Accept()
		if err != nil {
			return
		}
		b.mu.Lock()
		address := b.app.MQTTAddr()
		b.mu.Unlock()
		out, err := net.Dial("tcp", address)
		if err != nil {
			in.Close()
			continue
		}
		b.mu.Lock()
		b.conns = append(b.conns, in, out)
		b.mu.Unlock()
		b.all.Go(func() { b.pipe(out, in) })
		b.all.Go(func() { b.pipe(in, out) })
	}
}

// pipe copies MQTT packets and looks at their types.
func (b *farBroker) pipe(to, from net.Conn) {
	defer to.Close()
	defer from.Close()
	r := bufio.NewReader(from)
	for {
		head, err := r.ReadByte()
		if err != nil {
			return
		}
		n, err := binary.ReadUvarint(r) // a Variable Byte Integer is one
		if err != nil {
			return
		}
		packet := binary.AppendUvarint([]byte{head}, n)
		at := len(packet)
		packet = append(packet, make([]byte, n)...)
		if _, err := io.ReadFull(r, packet[at:]); err != nil {
			return
		}
		if _, err := to.Write(packet); err != nil {
			return
		}
		switch head >> 4 {
		case 4:
			b.mu.Lock()
			b.acks++
			b.mu.Unlock()
		case 9:
			b.once.Do(func() { close(b.subscribed) })
		}
	}
}

func (b *farBroker) Config() string {
	return fmt.Sprintf(`{"url":"mqtt://%s","topics":["up/#"],"type":"com.acme.up"}`, b.wire.Addr())
}

// Put publishes with QoS 1, once somebody has subscribed.
func (b *farBroker) Put(t testing.TB, data []byte) {
	t.Helper()
	select {
	case <-b.subscribed:
	case <-time.After(sourcetest.Patience):
		t.Fatal("nobody subscribes")
	}
	ctx, cancel := context.WithTimeout(context.Background(), sourcetest.Patience)
	defer cancel()
	b.mu.Lock()
	p, address := b.publisher, b.app.MQTTAddr()
	b.puts++
	b.mu.Unlock()
	if p == nil {
		nc, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		p = paho.NewClient(paho.ClientConfig{Conn: nc})
		if _, err := p.Connect(ctx, &paho.Connect{ClientID: "publisher", CleanStart: true, KeepAlive: 60}); err != nil {
			t.Fatal(err)
		}
		b.mu.Lock()
		b.publisher = p
		b.mu.Unlock()
	}
	if _, err := p.Publish(ctx, &paho.Publish{Topic: "up/x", QoS: 1, Payload: data}); err != nil {
		t.Fatal(err)
	}
}

func (b *farBroker) Restart(t testing.TB) {
	t.Helper()
	b.close(t)
	b.open(t)
	b.Cut(t)
}

func (b *farBroker) Cut(testing.TB) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, nc := range b.conns {
		nc.Close()
	}
	b.conns = nil
}

func (b *farBroker) Unacknowledged(testing.TB) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return max(0, b.puts-b.acks)
}

// The suite of pulled sources, with a bridge as the broker, which takes packets of 256 KiB.
func TestMQTTClientPassesTheSuite(t *testing.T) {
	sourcetest.RunPulled(t, sourcetest.Pulled{Kind: mqttclient.Kind(), Largest: 200 << 10, New: func(t *testing.T) sourcetest.Upstream { return newFarBroker(t) }})
}

// One bridge subscribes at another, with a password, in a shared subscription; CloudEvents stay what they are.
func TestMQTTClientFromBridgeToBridge(t *testing.T) {
	far, _ := start(t, options(t.TempDir()))
	far.must("PUT", "/v1/devices/near", `{"principal":"near","password":{"value":"secret-of-near"}}`)
	near, _ := start(t, options(t.TempDir()))
	near.must("PUT", "/v1/sources/far", fmt.Sprintf(`{"type":"mqtt-client","bus":"devices","config":{"url":"mqtt://%s","username":"near","password":{"value":"secret-of-near"},
		"topics":["plant/+/t"],"share":"g","type":"com.acme.telemetry"}}`, far.mqtt))
	eventually(t, 20*time.Second, func() (string, bool) {
		clients := far.must("GET", "/v1/clients", "")
		return "the source does not connect: " + clients, strings.Contains(clients, `"rialto-far"`)
	})
	nc, err := net.Dial("tcp", far.mqtt)
	if err != nil {
		t.Fatal(err)
	}
	p := paho.NewClient(paho.ClientConfig{Conn: nc})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := p.Connect(ctx, &paho.Connect{ClientID: "p", CleanStart: true, KeepAlive: 60}); err != nil {
		t.Fatal(err)
	}
	defer func() { err = errors.Join(err, p.Disconnect(&paho.Disconnect{})); <-p.Done() }()
	binaryEvent := &paho.PublishProperties{ContentType: "application/json", User: paho.UserProperties{{Key: "id", Value: "ce-1"}, {Key: "source", Value: "/plant"},
		{Key: "type", Value: "com.acme.alarm"}, {Key: "specversion", Value: "1.0"}}}
	eventually(t, 20*time.Second, func() (string, bool) { // until the subscription is there
		for _, m := range []*paho.Publish{{Topic: "plant/7/t", QoS: 1, Payload: []byte(`{"t":9}`)}, {Topic: "plant/8/t", QoS: 1, Payload: []byte(`{"t":10}`), Properties: binaryEvent}} {
			if _, err := p.Publish(ctx, m); err != nil {
				t.Fatal(err)
			}
		}
		return "the CloudEvent does not arrive", near.event("devices", "ce-1") != nil
	})
	plain := near.must("GET", "/v1/buses/devices/events?type=com.acme.telemetry&limit=1", "")
	for _, want := range []string{`"subject":"plant/7/t"`, `"source":"mqtt://`, `"data":{"t":9}`} {
		if !strings.Contains(plain, want) {
			t.Errorf("%s is not in %s", want, plain)
		}
	}
	alarm := string(near.event("devices", "ce-1"))
	if !strings.Contains(alarm, `"type":"com.acme.alarm"`) || !strings.Contains(alarm, `"source":"/plant"`) {
		t.Errorf("%s", alarm)
	}
	far.must("PUT", "/v1/devices/near", `{"principal":"near","password":{"value":"another"}}`)
	near.must("POST", "/v1/sources/far:pause", "")
	near.must("POST", "/v1/sources/far:resume", "")
	eventually(t, 20*time.Second, func() (string, bool) {
		doc := near.must("GET", "/v1/sources/far", "")
		return "the status does not say why: " + doc, strings.Contains(doc, `refuses the connection`) && !strings.Contains(doc, "secret-of-near")
	})
}
