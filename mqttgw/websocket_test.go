// SPDX-License-Identifier: Apache-2.0

package mqttgw_test

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	v3 "github.com/eclipse/paho.mqtt.golang"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/rialto-bridge/rialto/mqttgw"
	"github.com/rialto-bridge/rialto/mqttgw/packet"
)

// startWebSocket serves a gateway on a WebSocket; dial opens one, whose every Write is one message.
func startWebSocket(t testing.TB, with ...setup) *server {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := startOn(t, &mqttgw.WebSocket{Listener: ln, Origins: []string{"*.example.com"}}, with...)
	s.dial = func() (net.Conn, error) {
		return openWebSocket(t, "ws://"+ln.Addr().String(), nil, websocket.MessageBinary)
	}
	return s
}

func openWebSocket(t testing.TB, url string, client *http.Client, kind websocket.MessageType) (net.Conn, error) {
	c, _, err := websocket.Dial(t.Context(), url+"/mqtt", &websocket.DialOptions{Subprotocols: []string{"mqtt"}, HTTPClient: client})
	if err != nil {
		return nil, err
	}
	return websocket.NetConn(context.Background(), c, kind), nil
}

func TestWebSocketFraming(t *testing.T) {
	versions(t, func(t *testing.T, v packet.Version) {
		s := startWebSocket(t)
		c := s.connect(v, "c")
		c.subscribe(1, "t")
		one := publish("t", strings.Repeat("x", 5000), 1, 1).Append(nil, v)
		for piece := range slices.Chunk(one, 700) { // one packet in many messages, some of them empty
			c.raw(piece)
			c.raw(nil)
		}
		var many []byte
		for i := range uint16(10) { // many packets in one message, and the beginning of another
			many = publish("t", "y", 1, i+2).Append(many, v)
		}
		ping := (&packet.Ping{Kind: packet.TypePingreq}).Append(nil, v)
		c.raw(append(many, ping[0]))
		c.raw(ping[1:])
		acks, messages, pongs := 0, 0, 0
		for acks < 11 || messages < 11 || pongs < 1 {
			switch p := c.next().(type) {
			case *packet.Ack:
				acks++
			case *packet.Publish:
				messages++
			case *packet.Ping:
				pongs++
			default:
				t.Fatalf("got %T", p)
			}
		}
	})
}

// The reason why a connection ends arrives over WebSocket too.
func TestWebSocketEndsWithAReason(t *testing.T) {
	s := startWebSocket(t)
	old := s.connect(packet.V5, "c")
	s.connect(packet.V5, "c")
	old.closed(packet.SessionTakenOver)
	bad := s.connect(packet.V5, "d")
	bad.raw([]byte{0x82, 0})
	bad.closed(packet.MalformedPacket)
	last := s.connect(packet.V5, "e")
	s.stop()
	last.closed(packet.ServerShuttingDown)
}

func TestWebSocketTakesBinaryMessagesOnly(t *testing.T) {
	s := startWebSocket(t)
	s.dial = func() (net.Conn, error) {
		return openWebSocket(t, "ws://"+s.ln.Addr().String(), nil, websocket.MessageText)
	}
	c := s.open(packet.V5)
	c.send(&packet.Connect{Version: packet.V5, CleanStart: true, ClientID: []byte("p")})
	if p := c.next(); p != nil {
		t.Errorf("text is answered by %+v", p)
	}
}

func TestWebSocketHandshake(t *testing.T) {
	s := startWebSocket(t)
	base := "http://" + s.ln.Addr().String()
	for name, tt := range map[string]struct {
		path, protocol, origin string
		want                   int // 101 = accepted
	}{
		"good":         {"/mqtt", "mqtt", "", 101},
		"one of many":  {"/mqtt", "mqttv3.1, mqtt", "", 101},
		"path":         {"/", "mqtt", "", 404},
		"no protocol":  {"/mqtt", "", "", 400},
		"old protocol": {"/mqtt", "mqttv3.1", "", 400},
		"own host":     {"/mqtt", "mqtt", "http://" + s.ln.Addr().String(), 101},
		"allowed":      {"/mqtt", "mqtt", "https://shop.example.com", 101},
		"other origin": {"/mqtt", "mqtt", "https://evil.example.org", 403},
	} {
		req, err := http.NewRequest(http.MethodGet, base+tt.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		for header, v := range map[string]string{"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
			"Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Protocol": tt.protocol, "Origin": tt.origin} {
			if v != "" {
				req.Header.Set(header, v)
			}
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if resp.StatusCode != tt.want {
			t.Errorf("%s: %d, want %d", name, resp.StatusCode, tt.want)
		}
		resp.Body.Close()
	}
}

// A WebSocket counts from the first byte of its handshake until it has ended, and a request that is none until it has.
func TestWebSocketsAreCounted(t *testing.T) {
	reg := prometheus.NewRegistry()
	s := startWebSocket(t, func(o *mqttgw.Options) { o.Registerer = reg; o.Limits.MaxConnectionsPerIP = 1 })
	c := s.connect(packet.V5, "c")
	if _, err := s.dial(); err == nil {
		t.Error("a second connection of the address")
	}
	if n := metric(t, reg, "rialto_mqtt_refused_total", "connections-of-address"); n != 1 {
		t.Errorf("%v refused, want 1", n)
	}
	c.Close()
	again := func() {
		t.Helper()
		for deadline := time.Now().Add(patience); ; {
			nc, err := s.dial()
			if err == nil {
				nc.Close()
				return
			}
			if time.Now().After(deadline) {
				t.Fatal(err)
			}
		}
	}
	again()
	resp, err := http.Get("http://" + s.ln.Addr().String() + "/else")
	for deadline := time.Now().Add(patience); err != nil; resp, err = http.Get("http://" + s.ln.Addr().String() + "/else") {
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	resp.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	again()
}

func TestPahoOverSecureWebSocketWithACertificate(t *testing.T) {
	ca := newAuthority(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	cfg := ca.server(tls.RequireAndVerifyClientCert)
	cfg.NextProtos = []string{"http/1.1"}
	s := startOn(t, &mqttgw.WebSocket{Listener: tls.NewListener(ln, cfg)}, with(mqttgw.NewDirectory()))
	mine := ca.dialer(ca.client("", "", "dev-1"))
	mine.NextProtos = nil
	c := v3.NewClient(v3.NewClientOptions().AddBroker("wss://" + ln.Addr().String() + "/mqtt").SetClientID("dev-1").SetTLSConfig(mine))
	await(t, c.Connect())
	defer c.Disconnect(0)
	arrived := make(chan string, 1)
	await(t, c.Subscribe("t", 1, func(_ v3.Client, m v3.Message) { arrived <- string(m.Payload()) }))
	await(t, c.Publish("t", 1, false, strings.Repeat("x", 100_000)))
	if got := <-arrived; len(got) != 100_000 {
		t.Errorf("%d bytes", len(got))
	}
	if p := s.bus.records()[0].MQTT.Principal; p != "dev-1" {
		t.Errorf("principal %q", p)
	}
}
