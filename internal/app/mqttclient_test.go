// SPDX-License-Identifier: Apache-2.0

package app_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/paho"
	"github.com/google/go-cmp/cmp"

	"github.com/rialto-bridge/rialto/internal/app"
	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/sources"
	"github.com/rialto-bridge/rialto/sources/mqttclient"
	"github.com/rialto-bridge/rialto/sources/sourcetest"
)

// upstream is what a source subscribes at. It keeps its sessions when it is stopped and started again.
type upstream interface {
	start(t testing.TB) (addr string)
	stop(t testing.TB)
}

// farBridge is a whole bridge as the broker.
type farBridge struct {
	dir string
	app *app.App
}

func (b *farBridge) start(t testing.TB) string {
	t.Helper()
	var err error
	if b.app, err = app.Start(context.Background(), options(b.dir)); err != nil {
		t.Fatal(err)
	}
	return b.app.MQTTAddr()
}

func (b *farBridge) stop(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := b.app.Close(ctx); err != nil {
		t.Error(err)
	}
}

// farMosquitto is Mosquitto as the broker, which writes what it keeps to disk when it ends.
type farMosquitto struct {
	dir string
	end func()
}

func (b *farMosquitto) start(t testing.TB) string {
	t.Helper()
	// As root it would become a user who may not write there.
	addr, _, end := runMosquitto(t, fmt.Sprintf("persistence true\npersistence_location %s/\nmax_inflight_messages 0\nuser root\n", b.dir))
	b.end = end
	return addr
}

func (b *farMosquitto) stop(testing.TB) { b.end() }

// farBroker is a broker behind a wire that can be cut and that counts acknowledgements.
type farBroker struct {
	broker upstream
	wire   net.Listener

	mu         sync.Mutex // guards below
	addr       string
	publisher  *paho.Client
	conns      []net.Conn
	puts, acks int
	sent       int // messages to subscribers
	subacks    int
	subscribed chan struct{} // closed by the first SUBACK
	once       sync.Once
	all        sync.WaitGroup
}

func newFarBroker(t *testing.T, broker upstream) *farBroker {
	b := &farBroker{broker: broker, subscribed: make(chan struct{})}
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
	addr := b.broker.start(t)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.addr = addr
}

func (b *farBroker) close(t testing.TB) {
	t.Helper()
	b.mu.Lock()
	p := b.publisher
	b.publisher = nil
	b.mu.Unlock()
	if p != nil {
		_ = p.Disconnect(&paho.Disconnect{}) // or the end of the broker does it
		<-p.Done()
	}
	b.broker.stop(t)
}

// accept passes connections on to wherever the broker is by now.
func (b *farBroker) accept() {
	for {
		in, err := b.wire.Accept()
		if err != nil {
			return
		}
		b.mu.Lock()
		address := b.addr
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
		case 3:
			b.mu.Lock()
			b.sent++
			b.mu.Unlock()
		case 4:
			b.mu.Lock()
			b.acks++
			b.mu.Unlock()
		case 9:
			b.mu.Lock()
			b.subacks++
			b.mu.Unlock()
			b.once.Do(func() { close(b.subscribed) })
		}
	}
}

func (b *farBroker) Config() string {
	return fmt.Sprintf(`{"url":"mqtt://%s","topics":["up/#"],"type":"com.acme.up"}`, b.wire.Addr())
}

func (b *farBroker) Put(t testing.TB, data []byte) {
	t.Helper()
	b.publish(t, "up/x", data)
}

// publish publishes with QoS 1, once somebody has subscribed.
func (b *farBroker) publish(t testing.TB, topic string, data []byte) {
	t.Helper()
	select {
	case <-b.subscribed:
	case <-time.After(sourcetest.Patience):
		t.Fatal("nobody subscribes")
	}
	ctx, cancel := context.WithTimeout(context.Background(), sourcetest.Patience)
	defer cancel()
	b.mu.Lock()
	p, address := b.publisher, b.addr
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
	if _, err := p.Publish(ctx, &paho.Publish{Topic: topic, QoS: 1, Payload: data}); err != nil {
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
	sourcetest.RunPulled(t, sourcetest.Pulled{Kind: mqttclient.Kind(), Largest: 200 << 10, New: func(t *testing.T) sourcetest.Upstream {
		return newFarBroker(t, &farBridge{dir: t.TempDir()})
	}})
}

// The same with Mosquitto, and so with payloads of 1 MiB.
func TestMQTTClientPassesTheSuiteWithMosquitto(t *testing.T) {
	sourcetest.RunPulled(t, sourcetest.Pulled{Kind: mqttclient.Kind(), New: func(t *testing.T) sourcetest.Upstream {
		return newFarBroker(t, &farMosquitto{dir: t.TempDir()})
	}})
}

// What was taken out of a definition does not arrive any more, and what goes over to a shared subscription arrives once: whether the
// definition was changed under way or while nobody was there. Messages that wait in the session come all the same.
func TestMQTTClientUnsubscribes(t *testing.T) {
	b := newFarBroker(t, &farMosquitto{dir: t.TempDir()})
	kind, log, state := mqttclient.Kind(), sourcetest.NewLog(), sourcetest.State(t)
	s, stop := sourcetest.Node(t, "one", state, log, nil, kind)
	subacks := func() int {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.subacks
	}
	define := func(config string) {
		t.Helper()
		before := subacks() // it may have connected more than once: a busy machine takes leases away
		sourcetest.Define(t, s, fmt.Sprintf(`{"name":"s","type":"mqtt-client","config":{"url":"mqtt://%s",%s}}`, b.wire.Addr(), config), kind)
		sourcetest.Await(t, "it subscribes", nil, func() bool { return subacks() > before })
	}
	var want []string
	arrive := func(messages ...string) { // topics, the last of which arrives
		t.Helper()
		for _, topic := range messages {
			b.publish(t, topic, []byte(topic))
			if !strings.HasPrefix(topic, "not/") {
				want = append(want, topic)
			}
		}
		log.Await(t, "the last message arrives", func() bool {
			return slices.ContainsFunc(log.Events(), func(ev event.Event) bool { return ev.Subject == messages[len(messages)-1] })
		})
		sourcetest.Await(t, "what came is acknowledged, so that none of it comes again", nil, func() bool {
			b.mu.Lock()
			defer b.mu.Unlock()
			return b.acks >= len(log.Events())
		})
		var got []string
		for _, ev := range log.Events() {
			got = append(got, ev.Subject)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	define(`"topics":["up/#","down/#","not/#"]`)
	arrive("up/1", "down/1")
	define(`"topics":["up/#","down/#"]`)
	arrive("not/2", "up/2", "down/2")
	define(`"topics":["up/#","down/#"],"share":"g"`)
	arrive("not/3", "up/3", "down/3")
	stop()
	b.publish(t, "up/waits", []byte("up/waits"))
	want = append(want, "up/waits")
	s, _ = sourcetest.Node(t, "two", state, log, nil, kind)
	define(`"topics":["down/#"]`)
	arrive("down/4")
	b.publish(t, "up/4", []byte("up/4")) // nobody wants it any more
	arrive("down/5")
}

// While the log stands still, the broker keeps what waits and the source does not: its window of unacknowledged messages is full.
func TestGateMQTTClientMemoryStaysFlat(t *testing.T) {
	const messages, size = 150, 1 << 20
	const window = 128 << 20 / sourcetest.MaxData // of messages as large as may be
	b := newFarBroker(t, &farMosquitto{dir: t.TempDir()})
	kind, log := mqttclient.Kind(), sourcetest.NewLog()
	s, _ := sourcetest.Node(t, "one", sourcetest.State(t), log, nil, kind)
	release := log.Hold()
	defer release()
	sourcetest.Define(t, s, `{"name":"s","type":"mqtt-client","config":`+b.Config()+`}`, kind)
	data := make([]byte, size)
	b.Put(t, data)
	log.Await(t, "an event is on its way", func() bool { return log.Asked() > 0 })
	before := heap()
	for i := 1; i < messages; i++ {
		data[0]++
		b.Put(t, data)
	}
	sent := func() int {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.sent
	}
	sourcetest.Await(t, "the window is full", nil, func() bool { return sent() >= window })
	if n := sent(); n != window {
		t.Errorf("%d messages came while none was acknowledged, want %d", n, window)
	}
	if grown := heap() - before; grown > (window+32)*size {
		t.Errorf("%d MiB are kept while %d MiB wait", grown>>20, messages*size>>20)
	}
	release()
	log.Await(t, "everything arrives", func() bool { return len(log.Events()) == messages })
}

// Messages larger than an event may be are taken, so that an event tells of each; but not more of them at a time than fit into the
// memory for a window, although their number alone would allow it.
func TestGateMQTTClientMemoryWithLargeMessages(t *testing.T) {
	const messages, size, room = 26, 12 << 20, 141 << 20
	b := newFarBroker(t, &farMosquitto{dir: t.TempDir()})
	kind, log := mqttclient.Kind(), sourcetest.NewLog()
	s, _ := sourcetest.Node(t, "one", sourcetest.State(t), log, nil, kind)
	release := log.Hold()
	defer release()
	sourcetest.Define(t, s, `{"name":"s","type":"mqtt-client","config":`+b.Config()+`}`, kind)
	data := make([]byte, size)
	b.Put(t, data)
	log.Await(t, "an event is on its way", func() bool { return log.Asked() > 0 })
	before := heap()
	for i := 1; i < messages; i++ {
		data[0]++
		b.Put(t, data)
	}
	sent := func() int {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.sent
	}
	sourcetest.Await(t, "there is no more room", nil, func() bool { return sent() >= room/size })
	if grown := heap() - before; grown > room+4*size { // two in the wire, and one that is read and copied
		t.Errorf("%d MiB are kept while %d MiB wait", grown>>20, messages*size>>20)
	}
	release()
	log.Await(t, "an event tells of each", func() bool { return len(log.Events()) == messages })
	for _, ev := range log.Events() {
		if ev.Type != sources.RefusedType {
			t.Errorf("an event of type %s", ev.Type)
		}
	}
}

// heap is the memory in use, after a collection.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// The broker is known by a private CA, and knows the source by its certificate. A source that cannot prove one or the other says
// so in its status, and runs once its definition is mended.
func TestMQTTClientOverTLS(t *testing.T) {
	dir := t.TempDir()
	ca, other := newCA(t, dir, "ca"), newCA(t, dir, "other")
	client := []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	srv := issue(t, dir, "server", ca, &x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}})
	near := issue(t, dir, "near", ca, &x509.Certificate{Subject: pkix.Name{CommonName: "near"}, ExtKeyUsage: client})
	foreign := issue(t, dir, "foreign", other, &x509.Certificate{Subject: pkix.Name{CommonName: "near"}, ExtKeyUsage: client})
	device := issue(t, dir, "device", ca, &x509.Certificate{Subject: pkix.Name{CommonName: "box-17"}, ExtKeyUsage: client})
	o := options(filepath.Join(dir, "far"))
	o.MQTT, o.TLSCert, o.TLSKey, o.MQTTClientCA, o.MQTTRequireCert = "mqtts://127.0.0.1:0", srv.certFile, srv.keyFile, ca.certFile, true
	far, _ := start(t, o)
	_, port, err := net.SplitHostPort(far.mqtt)
	if err != nil {
		t.Fatal(err)
	}

	s, _ := start(t, options(filepath.Join(dir, "here")))
	define := func(host string, ca *issued, cert, key string) {
		t.Helper()
		trusted := ""
		if ca != nil {
			trusted = fmt.Sprintf(`"ca":{"ref":"file:%s"},`, ca.certFile)
		}
		if cert != "" {
			trusted += fmt.Sprintf(`"certificate":{"ref":"file:%s"},"key":{"ref":"file:%s"},`, cert, key)
		}
		s.must("PUT", "/v1/sources/far", fmt.Sprintf(`{"type":"mqtt-client","bus":"devices","config":{"url":"mqtts://%s","clientId":"near",%s"topics":["up/#"],"type":"com.acme.up"}}`,
			net.JoinHostPort(host, port), trusted))
	}
	status := func(want string) {
		t.Helper()
		eventually(t, 20*time.Second, func() (string, bool) {
			doc := s.must("GET", "/v1/sources/far", "")
			return "want " + want + " in " + doc, strings.Contains(doc, want) && !strings.Contains(doc, "PRIVATE KEY")
		})
	}
	for _, c := range []struct {
		name, host string
		ca         *issued
		cert, key  string
		want       string
	}{
		{"another CA", "127.0.0.1", other, near.certFile, near.keyFile, "certificate signed by unknown authority"},
		{"the CAs of the system", "127.0.0.1", nil, near.certFile, near.keyFile, "certificate signed by unknown authority"},
		{"another name", "localhost", ca, near.certFile, near.keyFile, "certificate is not valid for any names, but wanted to match localhost"},
		{"no client certificate", "127.0.0.1", ca, "", "", "certificate required"},
		{"a client certificate of another CA", "127.0.0.1", ca, foreign.certFile, foreign.keyFile, "certificate required"}, // it is not asked for, and so not shown
		{"a certificate and another key", "127.0.0.1", ca, near.certFile, device.keyFile, "certificate and key are not a pair in PEM"},
		{"a file that holds no CA", "127.0.0.1", &issued{certFile: near.keyFile}, near.certFile, near.keyFile, "ca holds no certificate in PEM"},
	} {
		t.Run(c.name, func(t *testing.T) {
			define(c.host, c.ca, c.cert, c.key)
			status(c.want)
		})
	}

	define("127.0.0.1", ca, near.certFile, near.keyFile)
	status(`"state":"running"`)
	nc, err := tls.Dial("tcp", far.mqtt, &tls.Config{RootCAs: ca.pool(), Certificates: []tls.Certificate{device.pair()}})
	if err != nil {
		t.Fatal(err)
	}
	p := paho.NewClient(paho.ClientConfig{Conn: nc})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := p.Connect(ctx, &paho.Connect{ClientID: "box-17", CleanStart: true, KeepAlive: 60}); err != nil {
		t.Fatal(err)
	}
	eventually(t, 20*time.Second, func() (string, bool) { // until the subscription is there
		if _, err := p.Publish(ctx, &paho.Publish{Topic: "up/x", QoS: 1, Payload: []byte(`{"t":9}`)}); err != nil {
			t.Fatal(err)
		}
		found := s.must("GET", "/v1/buses/devices/events?type=com.acme.up&limit=1", "")
		return "nothing arrives over TLS: " + s.must("GET", "/v1/sources/far", ""), strings.Contains(found, `"subject":"up/x"`)
	})
	if err := p.Disconnect(&paho.Disconnect{}); err != nil {
		t.Error(err)
	}
	<-p.Done()
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
		return "the source does not subscribe: " + clients, strings.Contains(clients, `plant/+/t`)
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
		found := near.must("GET", "/v1/buses/devices/events?type=com.acme.telemetry&limit=1", "") // the subscription may come between the two
		return "the events do not arrive: " + found, near.event("devices", "ce-1") != nil && strings.Contains(found, "plant/7/t")
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
