// SPDX-License-Identifier: Apache-2.0

package mqttgw_test

import (
	"crypto/tls"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rialto-bridge/rialto/mqttgw"
	"github.com/rialto-bridge/rialto/mqttgw/packet"
)

func device(t testing.TB, doc string) *mqttgw.Device {
	t.Helper()
	d, err := mqttgw.ParseDevice([]byte(doc))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestConnackSaysWhatIsOffered(t *testing.T) {
	s := start(t)
	_, ack := s.tryConnect(packet.V5, "", props(packet.Properties(nil).AppendInt(packet.SessionExpiry, 100)))
	for id, want := range map[packet.PropertyID]uint32{packet.SessionExpiry: 0, packet.ReceiveMaximum: 256, packet.RetainAvailable: 0,
		packet.MaximumPacketSize: 256 << 10, packet.TopicAliasMaximum: 16} {
		if got := ack.Properties.Int(id, 99); got != want {
			t.Errorf("property %#x = %d, want %d", byte(id), got, want)
		}
	}
	for _, id := range []packet.PropertyID{packet.ServerKeepAlive, packet.MaximumQoS, packet.WildcardAvailable, packet.SubscriptionIDAvailable,
		packet.SharedAvailable} {
		if _, ok := ack.Properties.Find(id); ok {
			t.Errorf("property %#x is there, want its default", byte(id))
		}
	}
	first := string(ack.Properties.Bytes(packet.AssignedClientID))
	_, ack = s.tryConnect(packet.V5, "")
	if second := string(ack.Properties.Bytes(packet.AssignedClientID)); first == "" || second == "" || first == second {
		t.Errorf("assigned ids %q and %q, want two different ones", first, second)
	}
	_, ack = s.tryConnect(packet.V311, "kept", func(p *packet.Connect) { p.CleanStart = false })
	if ack.SessionPresent {
		t.Error("Session Present 1 where no session is kept")
	}
}

func TestConnectRefusals(t *testing.T) {
	dir := mqttgw.NewDirectory()
	dir.Set("box", device(t, `{"kind":"Device","name":"box","principal":"Box 17","password":{"value":"right"},"clientIds":["box-*"]}`))
	s := start(t, func(o *mqttgw.Options) { o.Directory, o.Anonymous = dir, false })
	will := func(w packet.Will) func(*packet.Connect) {
		return func(p *packet.Connect) { p.Will = &w }
	}
	good := credentials("Box 17", "right")
	tests := []struct {
		name   string
		id     string
		with   []func(*packet.Connect)
		v3, v5 packet.Reason
	}{
		{"right", "box-1", []func(*packet.Connect){good}, 0, 0},
		{"wrong password", "box-1", []func(*packet.Connect){credentials("Box 17", "wrong")}, 4, packet.BadUserOrPassword},
		{"unknown user", "box-1", []func(*packet.Connect){credentials("box", "right")}, 4, packet.BadUserOrPassword},
		{"no user", "box-1", nil, 5, packet.NotAuthorized},
		{"client id of another", "cat-1", []func(*packet.Connect){good}, 2, packet.ClientIDInvalid},
		{"client id too long", "box-" + strings.Repeat("x", 253), []func(*packet.Connect){good}, 2, packet.ClientIDInvalid},
		{"will for $", "box-1", []func(*packet.Connect){good, will(packet.Will{Topic: []byte("$SYS/x")})}, 5, packet.NotAuthorized},
		{"will of a deep topic", "box-1", []func(*packet.Connect){good, will(packet.Will{Topic: []byte(strings.Repeat("/", 40))})}, 5, packet.TopicNameInvalid},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for v, want := range map[packet.Version]packet.Reason{packet.V311: tt.v3, packet.V5: tt.v5} {
				c, ack := s.tryConnect(v, tt.id, tt.with...)
				if ack.Code != want {
					t.Errorf("v%d: CONNACK %v, want %v", v, ack.Code, want)
				}
				if want != 0 && c.next() != nil {
					t.Errorf("v%d: not closed", v)
				}
			}
		})
	}
	_, ack := s.tryConnect(packet.V311, "", good, func(p *packet.Connect) { p.CleanStart = false })
	if ack.Code != 2 {
		t.Errorf("3.1.1 without id and clean session: %v, want 2", ack.Code)
	}
	_, ack = s.tryConnect(packet.V5, "box-1", good, will(packet.Will{Topic: []byte("a"), Retain: true}))
	if ack.Code != packet.RetainNotSupported {
		t.Errorf("retained will: %v, want 0x9A", ack.Code)
	}
	_, ack = s.tryConnect(packet.V5, "box-1", good, props(packet.Properties(nil).AppendString(packet.AuthenticationMethod, "SCRAM")))
	if ack.Code != packet.BadAuthenticationMethod {
		t.Errorf("enhanced authentication: %v, want 0x8C", ack.Code)
	}
}

func TestUnknownVersionsAreAnswered(t *testing.T) {
	s := start(t)
	for raw, want := range map[string]string{
		"\x10\x0c\x00\x04MQTT\x09\x02\x00\x00\x00\x00":   "\x20\x03\x00\x84\x00",
		"\x10\x0e\x00\x06MQIsdp\x03\x02\x00\x00\x00\x00": "\x20\x02\x00\x01",
	} {
		c := s.open(packet.V311)
		c.raw([]byte(raw))
		got := make([]byte, len(want))
		if _, err := c.Read(got); err != nil || string(got) != want {
			t.Errorf("%q: answer %q, %v, want %q", raw, got, err, want)
		}
	}
}

func TestTakeover(t *testing.T) {
	versions(t, func(t *testing.T, v packet.Version) {
		s := start(t)
		old := s.connect(v, "same", func(p *packet.Connect) {
			p.Will = &packet.Will{Topic: []byte("gone"), Payload: []byte("old")}
			if v == packet.V5 {
				p.Will.Properties = packet.Properties(nil).AppendInt(packet.WillDelay, 30)
			}
		})
		old.subscribe(1, "t")
		c := s.connect(v, "same")
		// The will is in the log before the new connection can publish.
		if r := s.bus.records(); len(r) != 1 || r[0].MQTT.Topic != "gone" || string(r[0].Event.Data) != "old" {
			t.Errorf("log after the takeover: %+v, want the will", r)
		}
		old.closed(packet.SessionTakenOver)
		c.publish("t", "x")
		c.nothing() // the subscription of the old session is gone
	})
}

// One principal cannot disturb the client ids of another.
func TestClientIDsBelongToThePrincipal(t *testing.T) {
	dir := mqttgw.NewDirectory()
	dir.Set("a", device(t, `{"name":"a","password":{"value":"x"}}`))
	dir.Set("b", device(t, `{"name":"b","password":{"value":"y"}}`))
	s := start(t, func(o *mqttgw.Options) { o.Directory = dir })
	a := s.connect(packet.V5, "same", credentials("a", "x"))
	s.connect(packet.V5, "same", credentials("b", "y"))
	a.nothing()
}

func TestWills(t *testing.T) {
	will := func(p *packet.Connect) { p.Will = &packet.Will{Topic: []byte("gone"), QoS: 1, Payload: []byte("x")} }
	tests := []struct {
		name string
		v    packet.Version
		end  func(c *client)
		want int
	}{
		{"connection lost", packet.V311, func(c *client) { c.Close() }, 1},
		{"normal v3", packet.V311, func(c *client) { c.raw([]byte{0xe0, 0}); c.drain() }, 0},
		{"normal v5", packet.V5, func(c *client) { c.raw([]byte{0xe0, 0}); c.drain() }, 0},
		{"disconnect with will", packet.V5, func(c *client) { c.raw([]byte{0xe0, 1, 4}); c.drain() }, 1},
		{"protocol error", packet.V5, func(c *client) { c.raw([]byte{0x82, 0}); c.drain() }, 1},
		{"session expiry from 0 to n", packet.V5, func(c *client) {
			c.send(&packet.Disconnect{Kind: packet.TypeDisconnect, Properties: packet.Properties(nil).AppendInt(packet.SessionExpiry, 9)})
			c.closed(packet.ProtocolError)
		}, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := start(t)
			c := s.connect(tt.v, "w", will)
			tt.end(c)
			c.Close()
			s.stop() // waits for the session's end
			if got := len(s.bus.records()); got != tt.want {
				t.Errorf("%d wills, want %d", got, tt.want)
			}
		})
	}
}

func TestWillKeepsItsProperties(t *testing.T) {
	s := start(t)
	w := s.connect(packet.V5, "watch")
	w.subscribe(1, "gone")
	kept := packet.Properties(nil).AppendInt(packet.PayloadFormat, 1).AppendInt(packet.MessageExpiry, 300).AppendString(packet.ContentType, "text/plain").
		AppendString(packet.ResponseTopic, "r/t").AppendString(packet.CorrelationData, "c\x00").AppendUser("k", "v").AppendUser("k", "v")
	c := s.connect(packet.V5, "w", func(p *packet.Connect) {
		p.Will = &packet.Will{Topic: []byte("gone"), QoS: 1, Payload: []byte("x"), Properties: append(packet.Properties(nil).AppendInt(packet.WillDelay, 60), kept...)}
	})
	c.Close()
	if m := w.message(); string(m.Properties) != string(kept) {
		t.Errorf("properties %q, want %q", m.Properties, kept)
	}
}

func TestKeepAlive(t *testing.T) {
	for _, tt := range []struct {
		version packet.Version
		seconds uint16
		most    time.Duration
		want    time.Duration
	}{{packet.V5, 2, 0, 3 * time.Second}, {packet.V5, 43690, 0, 65535 * time.Second}, {packet.V5, 43691, 0, 65536500 * time.Millisecond}, {packet.V5, 65535, 0, 98302500 * time.Millisecond},
		{packet.V5, 120, time.Minute, 90 * time.Second}, {packet.V5, 0, time.Minute, 90 * time.Second},
		{packet.V311, 43691, 0, 65536500 * time.Millisecond}, {packet.V311, 65535, 0, 98302500 * time.Millisecond},
		{packet.V311, 120, time.Minute, 180 * time.Second}, // it cannot be told another one
		{packet.V5, 0, 0, 0}, {packet.V311, 0, time.Minute, 0}} {
		synctest.Test(t, func(t *testing.T) {
			s := startPipes(t, func(o *mqttgw.Options) { o.Limits.MaxKeepAlive = tt.most })
			c, ack := s.tryConnect(tt.version, "k", func(p *packet.Connect) { p.KeepAlive = tt.seconds })
			if _, told := ack.Properties.Find(packet.ServerKeepAlive); told != (tt.most > 0 && tt.version == packet.V5) || told && ack.Properties.Int(packet.ServerKeepAlive, 0) != 60 {
				t.Errorf("%+v: Server Keep Alive %d", tt, ack.Properties.Int(packet.ServerKeepAlive, 0))
			}
			time.Sleep(tt.want / 2) // of the bubble: costs no time
			c.nothing()
			if tt.want == 0 { // never
				time.Sleep(1000 * time.Hour)
				c.nothing()
				c.Close()
				s.stop()
				return
			}
			begin := time.Now()
			if err := c.SetReadDeadline(time.Time{}); err != nil {
				t.Fatal(err)
			}
			var first [1]byte
			switch n, err := c.Read(first[:]); {
			case tt.version == packet.V311 && err == nil, tt.version == packet.V5 && (n != 1 || first[0] != 0xe0):
				t.Fatalf("%+v: read %x, %v, want the end, MQTT 5 with a DISCONNECT", tt, first, err)
			}
			if took := time.Since(begin); took != tt.want {
				t.Errorf("%+v: closed after %s", tt, took)
			}
			c.Close()
			s.stop()
		})
	}
}

func TestSilenceBeforeConnect(t *testing.T) {
	for name, sent := range map[string]string{"nothing": "", "half a CONNECT": "\x10\x20\x00\x04MQ"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := startPipes(t)
				c := s.open(packet.V311)
				begin := time.Now()
				c.raw([]byte(sent))
				if p := c.next(); p != nil {
					t.Errorf("answered with %T", p)
				}
				if took := time.Since(begin); took != 5*time.Second {
					t.Errorf("closed after %s, want 5 s", took)
				}
				s.stop()
			})
		})
	}
}

// clientHello is the first flight of a TLS client.
func clientHello(t *testing.T) []byte {
	t.Helper()
	a, b := net.Pipe()
	defer a.Close()
	go func() {
		defer b.Close()
		tls.Client(b, &tls.Config{ServerName: "gw", MinVersion: tls.VersionTLS12}).Handshake() //nolint:errcheck // nobody answers
	}()
	hello := make([]byte, 4096)
	n, err := a.Read(hello)
	if err != nil {
		t.Fatal(err)
	}
	return hello[:n]
}

// A TLS handshake that comes to a stand takes no longer than a CONNECT that does not come, wherever it stands.
func TestSilenceInTheHandshake(t *testing.T) {
	for name, tt := range map[string]struct {
		sent func(hello []byte) []byte
		read bool
	}{
		"nothing":                    {func([]byte) []byte { return nil }, true},
		"half a hello":               {func(b []byte) []byte { return b[:len(b)/2] }, true},
		"a hello":                    {func(b []byte) []byte { return b }, true},
		"a hello, and reads nothing": {func(b []byte) []byte { return b }, false},
	} {
		t.Run(name, func(t *testing.T) {
			ca := newAuthority(t)
			cfg := ca.server(tls.NoClientCert)
			synctest.Test(t, func(t *testing.T) {
				reg := prometheus.NewRegistry()
				s := startPipesOn(t, func(ln net.Listener) net.Listener { return tls.NewListener(ln, cfg) }, func(o *mqttgw.Options) { o.Registerer = reg })
				hello := clientHello(t)
				c := s.open(packet.V5)
				begin := time.Now()
				c.raw(tt.sent(hello))
				if tt.read {
					if err := c.SetReadDeadline(time.Time{}); err != nil {
						t.Fatal(err)
					}
					if _, err := io.Copy(io.Discard, c); err != nil {
						t.Error(err)
					}
				} else {
					time.Sleep(5 * time.Second) // of the bubble
					synctest.Wait()
					if n, err := c.Read(make([]byte, 1)); err != io.EOF {
						t.Errorf("read %d bytes, %v, want the end", n, err)
					}
				}
				if took := time.Since(begin); took != 5*time.Second {
					t.Errorf("closed after %s, want 5 s", took)
				}
				if n := metric(t, reg, "rialto_mqtt_refused_total", "timeout"); n != 1 {
					t.Errorf("%v connections counted, want 1", n)
				}
				s.stop()
			})
		})
	}
}

func TestStop(t *testing.T) {
	s := start(t)
	three, five := s.connect(packet.V311, "three"), s.connect(packet.V5, "five")
	idle := s.open(packet.V5)
	s.bus.set(func() { s.bus.hold = true })
	five.send(publish("t", "last", 1, 9))
	s.bus.await(t, "publish", func() bool { return len(s.bus.held) == 1 })
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.stop()
	}()
	three.closed(0) // so the stop is under way; what was taken is still acknowledged
	s.bus.release(-1)
	five.ack(packet.TypePuback, 9, packet.Success)
	five.closed(packet.ServerShuttingDown)
	idle.drain()
	three.Close()
	five.Close()
	idle.Close()
	<-done
	if nc, err := s.dial(); err == nil {
		nc.Close()
		t.Error("the listener still accepts")
	}
}

func TestConnectionLimits(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	s := start(t, func(o *mqttgw.Options) {
		o.Registerer = reg
		o.Limits.MaxConnectionsPerIP = 3
		o.Limits.MaxConnectingPerIP = 2
	})
	half := []*client{s.open(packet.V5), s.open(packet.V5)}
	if s.open(packet.V5).next() != nil {
		t.Error("a third connection without CONNECT is served")
	}
	for i, c := range half {
		c.send(&packet.Connect{Version: packet.V5, CleanStart: true, ClientID: []byte{'a' + byte(i)}})
		recv[*packet.Connack](c)
	}
	s.connect(packet.V5, "third")
	if s.open(packet.V5).next() != nil {
		t.Error("a fourth connection is served")
	}
	half[0].send(&packet.Disconnect{Kind: packet.TypeDisconnect})
	half[0].drain()
	for reason, want := range map[string]float64{"connecting-of-address": 1, "connections-of-address": 1, "connections": 0} {
		if got := metric(t, reg, "rialto_mqtt_refused_total", reason); got != want {
			t.Errorf("refused for %s: %v, want %v", reason, got, want)
		}
	}
}

func TestFailedLogInsAreLimited(t *testing.T) {
	dir := mqttgw.NewDirectory()
	dir.Set("box", device(t, `{"name":"box","password":{"value":"right"}}`))
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	s := start(t, func(o *mqttgw.Options) {
		o.Directory, o.Limits.MaxFailuresPerMinute = dir, 3
		o.Now = func() time.Time { return now }
	})
	for range 3 {
		if _, ack := s.tryConnect(packet.V5, "a", credentials("box", "wrong")); ack.Code != packet.BadUserOrPassword {
			t.Fatalf("CONNACK %v, want 0x86", ack.Code)
		}
	}
	if _, ack := s.tryConnect(packet.V5, "a", credentials("box", "right")); ack.Code != packet.ConnectionRateExceeded {
		t.Errorf("after three failures: CONNACK %v, want 0x9F", ack.Code)
	}
}

func TestDirectoryChangesTakeEffectAtOnce(t *testing.T) {
	t.Setenv("TEST_SECRET", "from env")
	file := t.TempDir() + "/secret"
	if err := os.WriteFile(file, []byte("from file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	dir := mqttgw.NewDirectory()
	s := start(t, func(o *mqttgw.Options) { o.Directory, o.Anonymous = dir, false })
	code := func(user, password string) packet.Reason {
		t.Helper()
		_, ack := s.tryConnect(packet.V5, "x", credentials(user, password))
		return ack.Code
	}
	hashed, err := mqttgw.NormalizeDevice([]byte(`{"name":"h","password":{"value":"secret one"}}`), nil)
	if err != nil {
		t.Fatal(err)
	}
	dir.Set("h", device(t, string(hashed)))
	dir.Set("e", device(t, `{"name":"e","password":{"ref":"env:TEST_SECRET"}}`))
	dir.Set("f", device(t, `{"name":"f","password":{"ref":"file:`+file+`"}}`))
	for _, tt := range []struct {
		user, password string
		want           packet.Reason
	}{{"h", "secret one", 0}, {"h", "secret one", 0}, {"h", "secret two", packet.BadUserOrPassword}, {"e", "from env", 0}, {"e", "x", packet.BadUserOrPassword},
		{"f", "from file", 0}, {"f", "from file\n", packet.BadUserOrPassword}} {
		if got := code(tt.user, tt.password); got != tt.want {
			t.Errorf("%s with %q: %v, want %v", tt.user, tt.password, got, tt.want)
		}
	}
	dir.Set("h", device(t, `{"name":"h","password":{"value":"other"}}`))
	if got := code("h", "secret one"); got != packet.BadUserOrPassword {
		t.Errorf("old password after a change: %v", got)
	}
	dir.Remove("h")
	if got := code("h", "other"); got != packet.BadUserOrPassword {
		t.Errorf("removed device: %v", got)
	}
}

func TestTLS(t *testing.T) {
	ca := newAuthority(t)
	s := startTLS(t, ca, tls.NoClientCert)
	plain := s.open(packet.V5)
	plain.raw([]byte("\x10\x0d\x00\x04MQTT\x05\x02\x00\x00\x00\x00\x00"))
	for p := make([]byte, 64); ; { // an alert, then the end
		if _, err := plain.Read(p); err != nil {
			break
		}
	}
	s.dial = func() (net.Conn, error) { return ca.dial(s.ln.Addr(), nil) }
	c := s.connect(packet.V5, "secure")
	c.subscribe(1, "t")
	c.send(publish("t", strings.Repeat("x", 100_000), 1, 5))
	var got *packet.Publish
	for range 2 { // PUBACK and message, in either order
		if p, ok := c.next().(*packet.Publish); ok {
			got = p
		}
	}
	if got == nil || len(got.Payload) != 100_000 {
		t.Error("message did not come back over TLS")
	}
	c.raw([]byte{0x82, 0})
	c.closed(packet.MalformedPacket)
}
