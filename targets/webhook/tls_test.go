// SPDX-License-Identifier: Apache-2.0

package webhook_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/targets"
	"github.com/rialto-bridge/rialto/targets/targettest"
)

// authority signs certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  string
}

// issue makes a certificate for a name; of a nil authority, an authority.
func (a *authority) issue(t *testing.T, name string) (cert *x509.Certificate, certPEM, keyPEM string, key *ecdsa.PrivateKey) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: serial, Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		DNSNames: []string{name}, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, BasicConstraintsValid: true}
	parent, signer := tmpl, key
	if a != nil {
		parent, signer = a.cert, a.key
		tmpl.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	} else {
		tmpl.IsCA = true
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	if cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	return cert, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})), pemOf(t, key), key
}

func newAuthority(t *testing.T) *authority {
	a := &authority{}
	a.cert, a.pem, _, a.key = (*authority)(nil).issue(t, "an authority")
	return a
}

// tlsFar is a far side whose certificate is for target.example, and which wants one that clients has signed; nil = none.
func tlsFar(t *testing.T, servers, clients *authority, maxVersion uint16) (url string, shown *[]string) {
	_, certPEM, keyPEM, _ := servers.issue(t, "target.example")
	pair, err := tls.X509KeyPair([]byte(certPEM), []byte(keyPEM))
	if err != nil {
		t.Fatal(err)
	}
	shown = &[]string{}
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := ""
		if certs := r.TLS.PeerCertificates; len(certs) > 0 {
			name = certs[0].Subject.CommonName
		}
		*shown = append(*shown, name)
		w.WriteHeader(http.StatusAccepted)
	}))
	srv.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MaxVersion: maxVersion}
	if clients != nil {
		srv.TLS.ClientAuth, srv.TLS.ClientCAs = tls.RequireAndVerifyClientCert, x509.NewCertPool()
		srv.TLS.ClientCAs.AddCert(clients.cert)
	}
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	srv.StartTLS()
	t.Cleanup(srv.Close)
	_, port, err := net.SplitHostPort(srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return "https://127.0.0.1:" + port, shown
}

func TestTLSOptions(t *testing.T) {
	servers, clients, others := newAuthority(t), newAuthority(t), newAuthority(t)
	_, certPEM, keyPEM, _ := clients.issue(t, "rialto")
	_, otherCert, otherKey, _ := others.issue(t, "somebody")
	secrets := map[string]string{"env:CERT": certPEM, "env:KEY": keyPEM, "env:OTHERCERT": otherCert, "env:OTHERKEY": otherKey, "env:CA": servers.pem, "env:OTHERCA": others.pem}
	for name, c := range map[string]struct {
		tls        string
		clients    *authority
		maxVersion uint16
		shown      string // "" = the attempt fails
	}{
		"own CA and name":         {`{"ca": {"ref": "env:CA"}, "serverName": "target.example"}`, nil, 0, "nothing"},
		"unknown CA":              {`{"serverName": "target.example"}`, nil, 0, ""},
		"other CA":                {`{"ca": {"ref": "env:OTHERCA"}, "serverName": "target.example"}`, nil, 0, ""},
		"own CA, other name":      {`{"ca": {"ref": "env:CA"}}`, nil, 0, ""},
		"not verified":            {`{"insecureSkipVerify": true}`, nil, 0, "nothing"},
		"client certificate":      {`{"ca": {"ref": "env:CA"}, "serverName": "target.example", "certificate": {"ref": "env:CERT"}, "key": {"ref": "env:KEY"}}`, clients, 0, "rialto"},
		"no client certificate":   {`{"ca": {"ref": "env:CA"}, "serverName": "target.example"}`, clients, 0, ""},
		"other client":            {`{"ca": {"ref": "env:CA"}, "serverName": "target.example", "certificate": {"ref": "env:OTHERCERT"}, "key": {"ref": "env:OTHERKEY"}}`, clients, 0, ""},
		"TLS 1.2 is not enough":   {`{"ca": {"ref": "env:CA"}, "serverName": "target.example", "minVersion": "1.3"}`, nil, tls.VersionTLS12, ""},
		"TLS 1.2 is":              {`{"ca": {"ref": "env:CA"}, "serverName": "target.example", "minVersion": "1.2"}`, nil, tls.VersionTLS12, "nothing"},
		"certificate and its key": {fmt.Sprintf(`{"insecureSkipVerify": true, "certificate": {"value": %s}, "key": {"value": %s}}`, quoted(t, certPEM), quoted(t, keyPEM)), clients, 0, "rialto"},
	} {
		t.Run(name, func(t *testing.T) {
			url, shown := tlsFar(t, servers, c.clients, c.maxVersion)
			now := time.Now()
			w := target(t, fmt.Sprintf(`{"url": "%s", "tls": %s}`, url, c.tls), env(t, &now, secrets))
			_, err := w.Deliver(t.Context(), targettest.Delivery())
			switch {
			case c.shown == "" && (targets.ReasonOf(err) != targets.ReasonTLS || len(*shown) > 0):
				t.Errorf("Deliver = %v, %v was shown; want it to fail with TLS", err, *shown)
			case c.shown == "":
			case err != nil || len(*shown) != 1 || (*shown)[0] != strings.TrimPrefix(c.shown, "nothing"):
				t.Errorf("Deliver = %v, %q was shown; want %s", err, *shown, c.shown)
			}
			warns := len(w.(targets.Warner).Warnings()) > 0
			if want := strings.Contains(c.tls, "insecureSkipVerify"); warns != want {
				t.Errorf("it warns: %v, want %v", warns, want)
			}
		})
	}
}

// A certificate that has changed is shown from then on.
func TestTLSCertificatesAreRenewed(t *testing.T) {
	servers, clients := newAuthority(t), newAuthority(t)
	secrets := map[string]string{}
	issue := func(name string) { _, secrets["env:CERT"], secrets["env:KEY"], _ = clients.issue(t, name) }
	issue("first")
	url, shown := tlsFar(t, servers, clients, 0)
	now := time.Now()
	w := target(t, fmt.Sprintf(`{"url": "%s", "tls": {"insecureSkipVerify": true, "certificate": {"ref": "env:CERT"}, "key": {"ref": "env:KEY"}}}`, url), env(t, &now, secrets))
	deliver(t, w, targettest.Delivery())
	issue("second")
	secrets["env:KEY"], secrets["kept"] = "half of a change", secrets["env:KEY"]
	now = now.Add(time.Minute)
	deliver(t, w, targettest.Delivery()) // with what was there before
	secrets["env:KEY"] = secrets["kept"]
	now = now.Add(time.Minute)
	deliver(t, w, targettest.Delivery())
	if got := fmt.Sprint(*shown); got != "[first first second]" {
		t.Errorf("%s were shown", got)
	}
}

func TestKeyOfAnotherCertificateIsRefused(t *testing.T) {
	a := newAuthority(t)
	_, cert, _, _ := a.issue(t, "one")
	_, _, key, _ := a.issue(t, "other")
	_, err := targets.ParseDefinition(fmt.Appendf(nil, `{"name": "ops", "type": "webhook", "config": {"url": "https://ops.example.com/", "tls": {"certificate": {"value": %s}, "key": {"value": %s}}}}`,
		quoted(t, cert), quoted(t, key)), targets.NewCatalog(kind()))
	if err == nil || !strings.Contains(err.Error(), "/config/tls/key: is not the key") || strings.Contains(err.Error(), "BEGIN") {
		t.Errorf("it gives %v", err)
	}
}
