// SPDX-License-Identifier: Apache-2.0

package app_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	mqtt5 "github.com/eclipse/paho.golang/paho"
	mqtt3 "github.com/eclipse/paho.mqtt.golang"

	"github.com/rialto-bridge/rialto/bridge"
	"github.com/rialto-bridge/rialto/internal/app"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/store"
	"github.com/rialto-bridge/rialto/mqttgw"
	"github.com/rialto-bridge/rialto/targets/outbound"
)

// TestFromTheBoxToTheWebhook is the main job once: readings over both versions of MQTT and an event over HTTP are
// stored, picked, shaped, signed, delivered, and can be explained.
func TestFromTheBoxToTheWebhook(t *testing.T) {
	const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	signer, err := outbound.NewSigner(outbound.Key{Text: secret})
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	got := map[string]http.Header{}
	sink := newSink(t, func(_ http.ResponseWriter, r *http.Request, body []byte) {
		var at int64
		if _, err := fmt.Sscan(r.Header.Get("webhook-timestamp"), &at); err != nil {
			t.Errorf("webhook-timestamp: %v", err)
		}
		if want := signer.Sign(r.Header.Get("webhook-id"), at, body); r.Header.Get("webhook-signature") != want {
			t.Errorf("signature %q, want %q", r.Header.Get("webhook-signature"), want)
		}
		mu.Lock()
		defer mu.Unlock()
		got[string(body)] = r.Header
	})
	o := options(t.TempDir())
	o.MQTTAnonymous = false
	s, _ := start(t, o)
	s.must("PUT", "/v1/devices/box-17", `{"principal":"box-17","password":{"value":"cold enough"}}`)
	s.must("PUT", "/v1/targets/ops", fmt.Sprintf(`{"type":"webhook","config":{"url":%q,"secret":{"value":%q}}}`, sink.URL, secret))
	for _, bus := range []string{"default", "devices"} {
		s.must("PUT", "/v1/buses/"+bus+"/rules/too-warm", `{"pattern":{"data":{"temperature":[{"numeric":[">",8]}]}},
			"targets":[{"target":"ops","transform":{"template":{"text":"Box ${subject} is at ${data.temperature} C"}}}]}`)
	}

	three := mqtt3.NewClient(mqtt3.NewClientOptions().AddBroker("tcp://" + s.mqtt).SetClientID("three").SetUsername("box-17").SetPassword("cold enough"))
	if tok := three.Connect(); !tok.WaitTimeout(10*time.Second) || tok.Error() != nil {
		t.Fatal(tok.Error())
	}
	defer three.Disconnect(100)
	for _, reading := range []string{`{"temperature":9.1}`, `{"temperature":4}`} {
		if tok := three.Publish("truck/17/box/3", 1, false, reading); !tok.WaitTimeout(10*time.Second) || tok.Error() != nil {
			t.Fatal(tok.Error())
		}
	}
	nc, err := net.Dial("tcp", s.mqtt)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	five := mqtt5.NewClient(mqtt5.ClientConfig{Conn: nc})
	if _, err := five.Connect(ctx, &mqtt5.Connect{ClientID: "five", CleanStart: true, KeepAlive: 30, UsernameFlag: true, Username: "box-17",
		PasswordFlag: true, Password: []byte("cold enough")}); err != nil {
		t.Fatal(err)
	}
	defer five.Disconnect(&mqtt5.Disconnect{}) //nolint:errcheck // the test is over
	if _, err := five.Publish(ctx, &mqtt5.Publish{Topic: "truck/17/box/5", QoS: 2, Payload: []byte(`{"temperature":10}`)}); err != nil {
		t.Fatal(err)
	}
	if status, body := s.call("POST", "/v1/buses/default/events", `{"temperature":11}`, "ce-specversion", "1.0", "ce-id", "app-1", "ce-source", "/app",
		"ce-type", "com.example.reading", "ce-subject", "truck/17/box/app"); status != http.StatusAccepted {
		t.Fatalf("%d %s", status, body)
	}

	want := []string{`{"text":"Box truck/17/box/3 is at 9.1 C"}`, `{"text":"Box truck/17/box/5 is at 10 C"}`, `{"text":"Box truck/17/box/app is at 11 C"}`}
	eventually(t, 20*time.Second, func() (string, bool) {
		missing := sink.missing(want)
		return fmt.Sprintf("missing %q", missing), len(missing) == 0
	})
	mu.Lock()
	if h := got[want[0]]; h.Get("Ce-Type") != "io.rialto.mqtt.publish" || h.Get("Ce-Source") != "mqtt://rialto/three" || h.Get("Content-Type") != "application/json" {
		t.Errorf("headers %v", h)
	}
	id := got[want[0]].Get("Ce-Id")
	mu.Unlock()

	devices := s.settled("devices", 20*time.Second)
	const connects = 2 // which are events too
	if e := devices.Events; e.Accepted != 3+connects || e.Matched != 2 || e.Unmatched != 1+connects {
		t.Errorf("account of devices: %+v", e)
	}
	var story struct {
		Journey struct {
			Rules []struct {
				Rule    string
				Matched bool
			}
			Deliveries []struct {
				Rule, Target, State string
				Attempts            []struct{ Status int }
			}
		}
	}
	if err := json.Unmarshal(s.event("devices", id), &story); err != nil {
		t.Fatal(err)
	}
	if j := story.Journey; len(j.Rules) != 1 || !j.Rules[0].Matched || len(j.Deliveries) != 1 || j.Deliveries[0].State != "delivered" || j.Deliveries[0].Attempts[0].Status != 200 {
		t.Errorf("journey %+v", j)
	}
	// Secrets are not shown, and what was read can be written again.
	for _, path := range []string{"/v1/targets/ops", "/v1/devices/box-17"} {
		doc := s.must("GET", path, "")
		if strings.Contains(doc, "MfKQ9r8") || strings.Contains(doc, "cold enough") || !strings.Contains(doc, "[redacted]") {
			t.Errorf("%s shows %s", path, doc)
		}
		s.must("PUT", path, doc)
	}
	again := mqtt3.NewClient(mqtt3.NewClientOptions().AddBroker("tcp://" + s.mqtt).SetClientID("again").SetUsername("box-17").SetPassword("cold enough"))
	if tok := again.Connect(); !tok.WaitTimeout(10*time.Second) || tok.Error() != nil {
		t.Errorf("after the device was written again: %v", tok.Error())
	}
	again.Disconnect(100)
}

// away is a store that nobody can reach.
type away struct{}

var errAway = &fault.Error{Kind: fault.Unavailable, Message: "the store is away", RetryAfter: time.Second}

func (away) Get(context.Context, store.Key) (store.Document, error) {
	return store.Document{}, errAway
}
func (away) Put(context.Context, store.Key, json.RawMessage, store.Condition) (store.Document, error) {
	return store.Document{}, errAway
}
func (away) Delete(context.Context, store.Key, store.Condition) error       { return errAway }
func (away) Apply(context.Context, []store.Write) ([]store.Document, error) { return nil, errAway }
func (away) Audit(context.Context, store.AuditQuery) (store.AuditPage, error) {
	return store.AuditPage{}, errAway
}
func (away) List(context.Context, store.Query) (store.Page, error) { return store.Page{}, errAway }
func (away) Watch(context.Context, func(store.Change) error) error { return errAway }
func (away) WatchSince(context.Context, uint64, func(store.Change) error) error {
	return errAway
}
func (away) Close() error { return nil }

// asked is such a store that ends the wait for it once it was asked.
type asked struct {
	away
	cancel func()
}

func (a asked) Watch(context.Context, func(store.Change) error) error {
	a.cancel()
	return errAway
}

// TestStartWithoutTheStore starts a bridge whose store is away: it works by the last snapshot, keys included, and says
// what it cannot do.
func TestStartWithoutTheStore(t *testing.T) {
	dir := t.TempDir()
	sink := newSink(t, nil)
	first, a := start(t, options(dir))
	first.target("sink", sink.URL, `{}`)
	first.rule("default", "all", `{"type":["reading"]}`, "sink")
	if err := a.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	o := options(dir)
	o.Store = away{}
	s, _ := start(t, o)
	if status := s.publish("default", "e1", "reading", "by the snapshot"); status != http.StatusAccepted {
		t.Fatalf("publish: %d", status)
	}
	eventually(t, 20*time.Second, func() (string, bool) {
		return "not delivered", len(sink.missing([]string{"by the snapshot"})) == 0
	})
	status, body := s.call("PUT", "/v1/targets/other", `{"type":"webhook","config":{"url":"http://127.0.0.1:9/"}}`)
	if status != http.StatusServiceUnavailable || !strings.Contains(body, "urn:rialto:problem:unavailable") {
		t.Errorf("write without the store: %d %s", status, body)
	}
	if status, body := s.call("GET", "/readyz?verbose", ""); status != http.StatusOK || !strings.Contains(body, "definitions: the store does not answer") {
		t.Errorf("readyz: %d %s", status, body)
	}
}

func TestStartWithoutStoreAndSnapshotSaysSo(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	o := options(t.TempDir())
	o.Store = asked{cancel: cancel}
	if _, err := app.Start(ctx, o); err == nil || !strings.Contains(err.Error(), "start definitions") {
		t.Errorf("Start = %v", err)
	}
}

// A target's definition says where it stands; what 410 has disabled is held until the definition is written again,
// changed, also over a restart.
func TestADefinitionSaysWhereItsTargetStands(t *testing.T) {
	dir := t.TempDir()
	s, a := start(t, options(dir))
	var back atomic.Bool
	hook := newSink(t, func(w http.ResponseWriter, _ *http.Request, _ []byte) {
		if !back.Load() {
			w.WriteHeader(http.StatusGone)
		}
	})
	s.target("ops", hook.URL, `{}`)
	s.rule("default", "all", `{"type":["reading"]}`, "ops")
	s.publish("default", "a", "reading", `{"n":1}`)
	standing := func(s *server, state string, parked int) {
		t.Helper()
		eventually(t, 10*time.Second, func() (string, bool) {
			var doc struct{ Status bridge.TargetStatus }
			if err := json.Unmarshal([]byte(s.must("GET", "/v1/targets/ops", "")), &doc); err != nil {
				t.Fatal(err)
			}
			return fmt.Sprintf("%+v, want %s and %d parked", doc.Status, state, parked), doc.Status.State == state && doc.Status.Parked == parked
		})
	}
	standing(s, bridge.TargetDisabled, 0)
	s.publish("default", "b", "reading", `{"n":2}`)
	standing(s, bridge.TargetDisabled, 1)
	if m := s.must("GET", "/metrics", ""); !strings.Contains(m, `rialto_target_state{state="disabled",target="ops"} 1`) {
		t.Error("the metrics do not say that the target is disabled")
	}
	if err := a.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	back.Store(true)
	s, _ = start(t, options(dir))
	standing(s, bridge.TargetDisabled, 1)
	s.target("ops", hook.URL, `{"concurrency":4}`)
	standing(s, bridge.TargetActive, 0)
	eventually(t, 10*time.Second, func() (string, bool) {
		return "b has not arrived", len(hook.missing([]string{`{"n":2}`})) == 0
	})
}

// TestStopIsBounded stops a bridge while a target hangs: it does not wait for ever, and the delivery is made after the
// next start.
func TestStopIsBounded(t *testing.T) {
	dir := t.TempDir()
	hang := make(chan struct{})
	arrived := make(chan struct{}, 8)
	sink := newSink(t, func(_ http.ResponseWriter, r *http.Request, _ []byte) {
		arrived <- struct{}{}
		select {
		case <-hang:
		case <-r.Context().Done():
		}
	})
	s, a := start(t, options(dir))
	s.target("sink", sink.URL, `{"timeout":"60s"}`)
	s.rule("default", "all", `{"type":["reading"]}`, "sink")
	s.publish("default", "e1", "reading", "one")
	<-arrived
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	began := time.Now()
	if err := a.Close(ctx); err != nil {
		t.Errorf("Close = %v", err)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("the stop took %v", took)
	}
	close(hang)
	again, _ := start(t, options(dir))
	if l := again.settled("default", 20*time.Second); l.Deliveries[0].Delivered != 1 {
		t.Errorf("account %+v", l)
	}
}

func TestOptionsNameTheSetting(t *testing.T) {
	for _, c := range []struct {
		change func(*app.Options)
		want   string
	}{
		{func(o *app.Options) { o.Data = "" }, "data directory"},
		{func(o *app.Options) { o.Durability = "maybe" }, "durability"},
		{func(o *app.Options) { o.Listen = "8080" }, "listen"},
		{func(o *app.Options) { o.MQTT = "x" }, "mqtt"},
		{func(o *app.Options) { o.Listen, o.Anonymous = "0.0.0.0:0", true }, "loopback"},
		{func(o *app.Options) { o.TLSCert = "x" }, "tls-key"},
		{func(o *app.Options) { o.ClientCA = "x" }, "client-ca"},
		{func(o *app.Options) { o.MQTT = "http://127.0.0.1:0" }, "wss://"},
		{func(o *app.Options) { o.MQTT = "127.0.0.1:0,wss://127.0.0.1:0" }, "needs tls-cert"},
		{func(o *app.Options) { o.TLSCert, o.TLSKey = "x,y", "x" }, "as many"},
		{func(o *app.Options) { o.MQTTClientCA = "x" }, "mqtt-client-ca"},
		{func(o *app.Options) { o.MQTTRequireCert = true }, "mqtt-require-cert"},
		{func(o *app.Options) { o.MQTTCertNames = []mqttgw.CertificateName{"x"} }, "mqtt-cert-name"},
		{func(o *app.Options) { o.MQTTLimits.MaxConnectRate = -1 }, "mqtt-connect-rate is -1, and must be 1 to 1073741824"},
		{func(o *app.Options) { o.MQTTLimits.MaxKeepAlive = 1500 * time.Millisecond }, "mqtt-max-keepalive is 1.5s"},
		{func(o *app.Options) { o.MQTTLimits.MaxKeepAlive = 20 * time.Hour }, "mqtt-max-keepalive is 20h"},
		{func(o *app.Options) { o.MQTTLimits.MaxSessionExpiry = -time.Second }, "mqtt-max-session-expiry is -1s, and must be whole seconds, at most 1193046h28m14s"},
		{func(o *app.Options) { o.MQTTLimits.ConnectTimeout = time.Millisecond }, "mqtt-connect-timeout is 1ms, and must be 1s to 5m0s"},
		{func(o *app.Options) { o.MQTTLimits.MaxPacket = 100 }, "mqtt-max-packet is 100, and must be 1KiB to 16MiB"},
		{func(o *app.Options) { o.MaxData = 9 << 20 }, "max-data"},
		{func(o *app.Options) { o.RingBytes = -1 }, "negative"},
	} {
		o := options(t.TempDir())
		c.change(&o)
		if err := o.Validate(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("Validate = %v, want something about %q", err, c.want)
		}
	}
}

func TestTwoBridgesDoNotShareADirectory(t *testing.T) {
	dir := t.TempDir()
	start(t, options(dir))
	if _, err := app.Start(context.Background(), options(dir)); err == nil || !strings.Contains(err.Error(), dir) {
		t.Errorf("second start = %v, want a word about %s", err, dir)
	}
}

// certificate writes a certificate for 127.0.0.1, its key, and returns the pool that trusts it.
func certificate(t *testing.T, certFile, keyFile string, serial int64) *x509.CertPool {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "test"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{certFile: {Type: "CERTIFICATE", Bytes: der}, keyFile: {Type: "EC PRIVATE KEY", Bytes: keyDER}} {
		if err := os.WriteFile(name, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return pool
}

func TestBothListenersSpeakTLS(t *testing.T) {
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	pool := certificate(t, cert, key, 1)
	o := options(filepath.Join(dir, "data"))
	o.TLSCert, o.TLSKey = cert, key
	s, _ := start(t, o)
	serial := func(addr string, roots *x509.CertPool) (int64, error) {
		c, err := tls.Dial("tcp", addr, &tls.Config{RootCAs: roots})
		if err != nil {
			return 0, err
		}
		defer c.Close()
		return c.ConnectionState().PeerCertificates[0].SerialNumber.Int64(), nil
	}
	addr := strings.TrimPrefix(s.url, "http://")
	for _, a := range []string{addr, s.mqtt} {
		if n, err := serial(a, pool); err != nil || n != 1 {
			t.Errorf("%s: certificate %d, %v", a, n, err)
		}
	}
	hc := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}}
	defer hc.CloseIdleConnections()
	resp, err := hc.Get("https://" + addr + "/livez")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	// A renewed certificate is used without a restart.
	later := time.Now().Add(2 * time.Second)
	renewed := certificate(t, cert, key, 2)
	for _, f := range []string{cert, key} {
		if err := os.Chtimes(f, later, later); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, 10*time.Second, func() (string, bool) {
		n, err := serial(addr, renewed)
		return fmt.Sprintf("certificate %d, %v, want the renewed one", n, err), err == nil && n == 2
	})
}

// Clients that come and go are events, unless that is switched off.
func TestQuietMQTT(t *testing.T) {
	for _, quiet := range []bool{false, true} {
		o := options(t.TempDir())
		o.MQTTQuiet = quiet
		s, _ := start(t, o)
		c := mqtt3.NewClient(mqtt3.NewClientOptions().AddBroker("tcp://" + s.mqtt).SetClientID("c"))
		if tok := c.Connect(); !tok.WaitTimeout(10*time.Second) || tok.Error() != nil {
			t.Fatal(tok.Error())
		}
		if tok := c.Publish("t", 1, false, "x"); !tok.WaitTimeout(10*time.Second) || tok.Error() != nil {
			t.Fatal(tok.Error())
		}
		c.Disconnect(100)
		want := uint64(2)
		if quiet {
			want = 1
		}
		if e := s.settled("devices", 20*time.Second).Events; e.Accepted < want || quiet && e.Accepted != want {
			t.Errorf("quiet %v: %d events, want %d", quiet, e.Accepted, want)
		}
	}
}
