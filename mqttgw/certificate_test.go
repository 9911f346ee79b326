// SPDX-License-Identifier: Apache-2.0

package mqttgw_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/mqttgw"
	"github.com/rialto-bridge/rialto/mqttgw/packet"
)

// authority signs certificates for tests.
type authority struct {
	t    testing.TB
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	a := &authority{t: t, pool: x509.NewCertPool()}
	pair := a.issue(&x509.Certificate{Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true})
	a.cert, a.key = pair.Leaf, pair.PrivateKey.(*ecdsa.PrivateKey)
	a.pool.AddCert(a.cert)
	return a
}

// issue signs a certificate; the first one itself.
func (a *authority) issue(c *x509.Certificate) *tls.Certificate {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	c.SerialNumber, c.NotBefore, c.NotAfter = big.NewInt(time.Now().UnixNano()), time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	if err != nil {
		a.t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

// client issues a certificate with the names given; "" = without.
func (a *authority) client(uri, dns, cn string) *tls.Certificate {
	a.t.Helper()
	c := &x509.Certificate{Subject: pkix.Name{CommonName: cn}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	if uri != "" {
		u, err := url.Parse(uri)
		if err != nil {
			a.t.Fatal(err)
		}
		c.URIs = []*url.URL{u}
	}
	if dns != "" {
		c.DNSNames = []string{dns}
	}
	return a.issue(c)
}

func (a *authority) server(auth tls.ClientAuthType) *tls.Config {
	a.t.Helper()
	cert := a.issue(&x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}})
	return &tls.Config{Certificates: []tls.Certificate{*cert}, ClientCAs: a.pool, ClientAuth: auth, NextProtos: []string{"mqtt"}}
}

// dial connects with a client certificate, or without.
func (a *authority) dial(addr net.Addr, cert *tls.Certificate) (net.Conn, error) {
	return tls.Dial("tcp", addr.String(), a.dialer(cert))
}

func (a *authority) dialer(cert *tls.Certificate) *tls.Config {
	cfg := &tls.Config{RootCAs: a.pool, NextProtos: []string{"mqtt"}}
	if cert != nil {
		cfg.Certificates = []tls.Certificate{*cert}
	}
	return cfg
}

func startTLS(t testing.TB, ca *authority, auth tls.ClientAuthType, with ...setup) *server {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := startOn(t, tls.NewListener(ln, ca.server(auth)), with...)
	s.dial = func() (net.Conn, error) { return net.Dial("tcp", ln.Addr().String()) }
	return s
}

func TestCertificateIsTheIdentity(t *testing.T) {
	ca := newAuthority(t)
	d := defined(t, `{"name":"mapped","clientIds":["other-*"]}`, `{"name":"blocked","blocked":true}`)
	for name, tt := range map[string]struct {
		names         []mqttgw.CertificateName
		uri, dns, cn  string
		clientID      string
		want          packet.Reason
		wantPrincipal string
	}{
		"URI first":         {nil, "urn:dev:1", "dev-1", "cn-1", "urn:dev:1", packet.Success, "urn:dev:1"},
		"then DNS":          {nil, "", "dev-1", "cn-1", "dev-1", packet.Success, "dev-1"},
		"then common name":  {nil, "", "", "cn-1", "cn-1", packet.Success, "cn-1"},
		"chosen":            {[]mqttgw.CertificateName{mqttgw.CommonName}, "urn:dev:1", "dev-1", "cn-1", "cn-1", packet.Success, "cn-1"},
		"no name":           {[]mqttgw.CertificateName{mqttgw.SANURI}, "", "dev-1", "cn-1", "dev-1", packet.NotAuthorized, ""},
		"another client id": {nil, "", "", "dev-1", "dev-2", packet.ClientIDInvalid, ""},
		"mapped":            {nil, "", "", "mapped", "other-2", packet.Success, "mapped"},
		"not mapped":        {nil, "", "", "mapped", "mapped", packet.ClientIDInvalid, ""},
		"blocked":           {nil, "", "", "blocked", "blocked", packet.Banned, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := startTLS(t, ca, tls.VerifyClientCertIfGiven, with(d), func(o *mqttgw.Options) { o.CertificateNames = tt.names })
			s.dial = func() (net.Conn, error) { return ca.dial(s.ln.Addr(), ca.client(tt.uri, tt.dns, tt.cn)) }
			// The user name is not asked.
			c, ack := s.tryConnect(packet.V5, tt.clientID, credentials("dev-3", "x"))
			if ack.Code != tt.want {
				t.Fatalf("CONNACK %v, want %v", ack.Code, tt.want)
			}
			if tt.want == packet.Success {
				c.publish("t", "x")
				if o := s.bus.records()[0].MQTT; o.Principal != tt.wantPrincipal {
					t.Errorf("principal %q, want %q", o.Principal, tt.wantPrincipal)
				}
			}
		})
	}
}

func TestCertificatesThatAreNotTrusted(t *testing.T) {
	ca, stranger := newAuthority(t), newAuthority(t)
	s := startTLS(t, ca, tls.VerifyClientCertIfGiven, with(defined(t, `{"name":"p","password":{"value":"x"}}`)))
	s.dial = func() (net.Conn, error) { return ca.dial(s.ln.Addr(), stranger.client("", "", "p")) }
	c := s.open(packet.V5)
	c.send(&packet.Connect{Version: packet.V5, CleanStart: true, ClientID: []byte("p")})
	if p := c.next(); p != nil {
		t.Errorf("a stranger's certificate is answered by %+v", p)
	}
	// Without one, the password counts.
	s.dial = func() (net.Conn, error) { return ca.dial(s.ln.Addr(), nil) }
	s.connect(packet.V5, "p", credentials("p", "x"))
	if _, ack := s.tryConnect(packet.V5, "p", credentials("p", "y")); ack.Code != packet.BadUserOrPassword {
		t.Errorf("CONNACK %v", ack.Code)
	}
	if _, ack := s.tryConnect(packet.V5, "p"); ack.Code != packet.NotAuthorized {
		t.Errorf("neither: CONNACK %v", ack.Code)
	}
}

// Many devices that come back at once over TLS are let in at a pace, all of them, while those that are connected are served.
func TestReconnectStorm(t *testing.T) {
	ca := newAuthority(t)
	const devices = 150
	s := startTLS(t, ca, tls.NoClientCert, func(o *mqttgw.Options) {
		o.Limits.MaxConnectRate = 60 // 120 at once, and the last after half a second
		o.Limits.ConnectTimeout = 6 * patience
	})
	s.dial = func() (net.Conn, error) { return ca.dial(s.ln.Addr(), nil) }
	served := s.connect(packet.V5, "served")
	began := time.Now()
	var storm sync.WaitGroup
	failed := make(chan string, devices)
	for i := range devices {
		storm.Go(func() {
			nc, err := s.dial()
			if err != nil {
				failed <- err.Error()
				return
			}
			defer nc.Close()
			p := packet.Connect{Version: packet.V5, CleanStart: true, ClientID: []byte(strconv.Itoa(i))}
			if _, err := nc.Write(p.Append(nil, packet.V5)); err != nil {
				failed <- err.Error()
				return
			}
			first, _, err := packet.NewReader(nc).Next(1 << 10)
			if err != nil || packet.TypeOf(first) != packet.TypeConnack {
				failed <- fmt.Sprintf("%02x, %v", first, err)
			}
		})
	}
	over := make(chan struct{})
	go func() { storm.Wait(); close(over) }()
	for published := 0; ; published++ {
		select {
		case <-over:
			if len(failed) > 0 {
				t.Fatalf("%d of %d did not come back: %s", len(failed), devices, <-failed)
			}
			if took := time.Since(began); took < 400*time.Millisecond {
				t.Errorf("all came back in %s, which is no pace", took)
			}
			if published == 0 {
				t.Error("nobody was served meanwhile")
			}
			return
		default:
			served.publish("t", "x")
		}
	}
}
