// SPDX-License-Identifier: Apache-2.0

package app_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v3 "github.com/eclipse/paho.mqtt.golang"
)

// issued is a certificate in files.
type issued struct {
	certFile, keyFile string
	cert              *x509.Certificate
	key               *ecdsa.PrivateKey
}

// issue writes a certificate and its key; ca nil signs itself.
func issue(t *testing.T, dir, name string, ca *issued, c *x509.Certificate) *issued {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c.SerialNumber, c.NotBefore, c.NotAfter = big.NewInt(time.Now().UnixNano()), time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := c, key
	if ca != nil {
		parent, signer = ca.cert, ca.key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	out := &issued{certFile: filepath.Join(dir, name+".pem"), keyFile: filepath.Join(dir, name+".key"), key: key}
	if out.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{out.certFile: {Type: "CERTIFICATE", Bytes: der}, out.keyFile: {Type: "PRIVATE KEY", Bytes: keyDER}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

func newCA(t *testing.T, dir, name string) *issued {
	return issue(t, dir, name, nil, &x509.Certificate{Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true})
}

func (i *issued) pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(i.cert)
	return p
}

func (i *issued) pair() tls.Certificate {
	return tls.Certificate{Certificate: [][]byte{i.cert.Raw}, PrivateKey: i.key}
}

// Devices come over TLS and over secure WebSockets, by certificate or by password, beside a plain listener for the machine
// itself.
func TestMQTTListeners(t *testing.T) {
	dir := t.TempDir()
	ca := newCA(t, dir, "ca")
	loopback := []net.IP{net.IPv4(127, 0, 0, 1)}
	one := issue(t, dir, "one", ca, &x509.Certificate{DNSNames: []string{"one.example"}, IPAddresses: loopback})
	two := issue(t, dir, "two", ca, &x509.Certificate{DNSNames: []string{"two.example"}})
	device := issue(t, dir, "device", ca, &x509.Certificate{Subject: pkix.Name{CommonName: "box-17"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})

	o := options(filepath.Join(dir, "data"))
	o.MQTT = "mqtts://127.0.0.1:0,mqtt://127.0.0.1:0,wss://127.0.0.1:0,ws://127.0.0.1:0"
	o.TLSCert, o.TLSKey, o.MQTTClientCA = one.certFile+","+two.certFile, one.keyFile+","+two.keyFile, ca.certFile
	s, a := start(t, o)
	s.url = strings.Replace(s.url, "http:", "https:", 1)
	listeners := a.MQTTListeners()
	var schemes, addrs []string
	for _, l := range listeners {
		scheme, addr, _ := strings.Cut(l, "://")
		schemes, addrs = append(schemes, scheme), append(addrs, addr)
	}
	if got := strings.Join(schemes, " "); got != "mqtts mqtt wss ws" || addrs[0] != a.MQTTAddr() {
		t.Fatalf("listeners %s", listeners)
	}

	// A client gets the certificate for the name that it asks for, and speaks what it says it speaks.
	for name, want := range map[string]string{"one.example": "one.example", "two.example": "two.example", "": "one.example"} {
		cfg := &tls.Config{RootCAs: ca.pool(), ServerName: name, NextProtos: []string{"mqtt"}}
		c, err := tls.Dial("tcp", addrs[0], cfg)
		if err != nil {
			t.Fatalf("%q: %v", name, err)
		}
		st := c.ConnectionState()
		if got := st.PeerCertificates[0].DNSNames[0]; got != want || st.NegotiatedProtocol != "mqtt" {
			t.Errorf("asked for %q, got %s and protocol %q", name, got, st.NegotiatedProtocol)
		}
		c.Close()
	}
	if c, err := tls.Dial("tcp", addrs[0], &tls.Config{RootCAs: ca.pool(), ServerName: "one.example", NextProtos: []string{"h2"}}); err == nil {
		c.Close()
		t.Error("a client that speaks HTTP only is let in")
	}

	host, port, err := net.SplitHostPort(addrs[0])
	if err != nil {
		t.Fatal(err)
	}
	pub := func(args ...string) error {
		args = append([]string{"-h", host, "-p", port, "-q", "1", "-t", "t", "-m", "hello", "--cafile", ca.certFile}, args...)
		out, err := exec.Command("mosquitto_pub", args...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}
	if err := pub("--cert", device.certFile, "--key", device.keyFile, "-i", "box-17"); err != nil {
		t.Error(err)
	}
	if err := pub("--cert", device.certFile, "--key", device.keyFile, "-i", "box-18"); err == nil {
		t.Error("a certificate lets another client id in")
	}

	for _, url := range []string{listeners[2] + "/mqtt", listeners[3] + "/mqtt", strings.Replace(listeners[0], "mqtts", "ssl", 1)} {
		opts := v3.NewClientOptions().AddBroker(url).SetClientID("box-17").
			SetTLSConfig(&tls.Config{RootCAs: ca.pool(), Certificates: []tls.Certificate{device.pair()}})
		c := v3.NewClient(opts)
		token := c.Connect()
		if !token.WaitTimeout(10*time.Second) || token.Error() != nil {
			t.Errorf("%s: %v", url, token.Error())
			continue
		}
		c.Disconnect(0)
	}
}

// Renewed client CAs are used without a restart, and a file that cannot be read changes nothing.
func TestClientCAIsReadAgain(t *testing.T) {
	dir := t.TempDir()
	ca, other := newCA(t, dir, "ca"), newCA(t, dir, "other")
	srv := issue(t, dir, "server", ca, &x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}})
	device := issue(t, dir, "device", other, &x509.Certificate{Subject: pkix.Name{CommonName: "box-17"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	trusted := filepath.Join(dir, "trusted.pem")
	written := time.Now().Add(-time.Hour)
	trust := func(file string) {
		t.Helper()
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		written = written.Add(time.Minute)
		if err := os.WriteFile(trusted, b, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(trusted, written, written); err != nil {
			t.Fatal(err)
		}
	}
	trust(ca.certFile)
	o := options(filepath.Join(dir, "data"))
	o.MQTT, o.TLSCert, o.TLSKey, o.MQTTClientCA, o.MQTTRequireCert = "mqtts://127.0.0.1:0", srv.certFile, srv.keyFile, trusted, true
	s, _ := start(t, o)
	connect := func() error {
		opts := v3.NewClientOptions().AddBroker("ssl://" + s.mqtt).SetClientID("box-17").SetConnectRetry(false).
			SetTLSConfig(&tls.Config{RootCAs: ca.pool(), Certificates: []tls.Certificate{device.pair()}})
		c := v3.NewClient(opts)
		token := c.Connect()
		token.WaitTimeout(10 * time.Second)
		c.Disconnect(0)
		return token.Error()
	}
	if connect() == nil {
		t.Fatal("a certificate of a CA that is not trusted lets in")
	}
	trust(other.certFile)
	eventually(t, 10*time.Second, func() (string, bool) {
		err := connect()
		return fmt.Sprint(err), err == nil
	})
	trust(srv.keyFile)
	if err := connect(); err != nil {
		t.Error(err)
	}
}

// With --client-ca the API is for clients with a certificate, hooks are for all but those whose source demands one, and a certificate
// of somebody else lets nobody in.
func TestClientCertificatesOfTheAPIAndOfHooks(t *testing.T) {
	dir := t.TempDir()
	ca, other := newCA(t, dir, "ca"), newCA(t, dir, "other")
	srv := issue(t, dir, "srv", ca, &x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}})
	usage := []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	own := issue(t, dir, "own", ca, &x509.Certificate{DNSNames: []string{"sender.example"}, ExtKeyUsage: usage})
	foreign := issue(t, dir, "foreign", other, &x509.Certificate{DNSNames: []string{"sender.example"}, ExtKeyUsage: usage})
	o := options(filepath.Join(dir, "data"))
	o.TLSCert, o.TLSKey, o.ClientCA = srv.certFile, srv.keyFile, ca.certFile
	s, _ := start(t, o)
	send := func(method, path, body string, certs ...tls.Certificate) (int, error) {
		t.Helper()
		cfg := &tls.Config{RootCAs: ca.pool(), GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			if len(certs) == 0 {
				return &tls.Certificate{}, nil
			}
			return &certs[0], nil // also one that the server does not ask for
		}}
		tr := &http.Transport{TLSClientConfig: cfg, ForceAttemptHTTP2: true}
		defer tr.CloseIdleConnections()
		req, err := http.NewRequest(method, strings.Replace(s.url, "http:", "https:", 1)+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+s.key)
		req.Header.Set("Content-Type", "application/json")
		resp, err := (&http.Client{Transport: tr, Timeout: 10 * time.Second}).Do(req)
		if err != nil {
			return 0, err
		}
		return resp.StatusCode, resp.Body.Close()
	}
	expect := func(want int, method, path, body string, certs ...tls.Certificate) {
		t.Helper()
		if got, err := send(method, path, body, certs...); got != want || err != nil {
			t.Errorf("%s %s with %d certificates: %d, %v, want %d", method, path, len(certs), got, err, want)
		}
	}
	const open = `{"type":"webhook","config":{"provider":"generic","bearer":{"value":"%s"}}}`
	const closed = `{"type":"webhook","config":{"provider":"generic","clientCertificate":{"names":["sender.example"]}}}`
	expect(http.StatusCreated, "PUT", "/v1/sources/open", fmt.Sprintf(open, s.key), own.pair())
	expect(http.StatusCreated, "PUT", "/v1/sources/closed", closed, own.pair())
	expect(http.StatusForbidden, "GET", "/v1/buses", "")
	expect(http.StatusForbidden, "GET", "/livez", "")
	expect(http.StatusForbidden, "GET", "/hooks", "")
	expect(http.StatusNoContent, "POST", "/hooks/open", `{}`)
	expect(http.StatusForbidden, "POST", "/hooks/closed", `{}`)
	expect(http.StatusNoContent, "POST", "/hooks/closed", `{}`, own.pair())
	if status, err := send("POST", "/hooks/open", `{}`, foreign.pair()); err == nil {
		t.Errorf("a certificate of another CA is answered %d", status)
	}
}
