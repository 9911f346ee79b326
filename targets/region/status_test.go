// SPDX-License-Identifier: Apache-2.0

package region

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
)

// Whatever keeps a link from forwarding is said within seconds, and when it is mended the link goes on by itself.
func TestLinkSaysWhatIsWrong(t *testing.T) {
	for name, c := range map[string]struct {
		wrong, mended func(f *far)
		state         State
		says          string
	}{
		"key":         {func(f *far) { f.key = "other" }, func(f *far) { f.key = "secret" }, Refused, "refuses the key: 401 Unauthorized: the key is not known"},
		"rights":      {func(f *far) { f.status, f.body = 403, `{"detail":"no\u0000t\nyours"}` }, func(f *far) { f.status = 0 }, Refused, "403 Forbidden: no t yours"},
		"bus":         {func(f *far) { f.status, f.body = 404, `{"title":"no such bus"}` }, func(f *far) { f.status = 0 }, Refused, "404 Not Found: no such bus"},
		"older":       {func(f *far) { f.status, f.body = 426, `<html>` }, func(f *far) { f.status = 0 }, Refused, "speaks no rialto-link.v1: 426"},
		"subprotocol": {func(f *far) { f.protocol = "other" }, func(f *far) { f.protocol = Protocol }, Refused, "speaks no rialto-link.v1"},
		"no instance": {func(f *far) { f.instance = "NOT ONE" }, func(f *far) { f.instance = "far" }, Refused, "no welcome"},
		"full":        {func(f *far) { f.status, f.body = 507, `{"detail":"the disk is full"}` }, func(f *far) { f.status = 0 }, Waiting, "is full: 507 Insufficient Storage: the disk is full"},
		"runs full":   {func(f *far) { f.closes = CloseFull }, func(f *far) { f.closes = 0 }, Waiting, "is full: for the test"},
		"bus goes":    {func(f *far) { f.closes = CloseNoBus }, func(f *far) { f.closes = 0 }, Refused, "no such bus: for the test"},
		"denied":      {func(f *far) { f.closes = CloseDenied }, func(f *far) { f.closes = 0 }, Refused, "refuses the key: for the test"},
		"replaced":    {func(f *far) { f.closes = CloseReplaced }, func(f *far) { f.closes = 0 }, Refused, "has taken over"},
		"trouble":     {func(f *far) { f.closes = CloseTrouble }, func(f *far) { f.closes = 0 }, Connecting, "cannot store now"},
		"protocol":    {func(f *far) { f.closes = CloseProtocol }, func(f *far) { f.closes = 0 }, Failing, "did not understand"},
		"going away":  {func(f *far) { f.closes = websocket.StatusGoingAway }, func(f *far) { f.closes = 0 }, Connecting, "has ended the connection"},
		"busy":        {func(f *far) { f.status, f.body = 503, `` }, func(f *far) { f.status = 0 }, Connecting, "cannot take the link now: 503"},
		"conflict":    {func(f *far) { f.status, f.body = 409, `{"title":"Conflict","detail":"it leads to itself"}` }, func(f *far) { f.status = 0 }, Refused, "the region refuses the link: 409 Conflict: it leads to itself"},
		"bad":         {func(f *far) { f.status, f.body = 400, `{"title":"Bad Request","detail":"no such epoch"}` }, func(f *far) { f.status = 0 }, Refused, "the region refuses the link: 400 Bad Request: no such epoch"},
		"bad, silent": {func(f *far) { f.status, f.body = 400, `{"title":"bad request"}` }, func(f *far) { f.status = 0 }, Refused, "speaks no rialto-link.v1: 400 Bad Request"},
		"elsewhere":   {func(f *far) { f.status, f.body = 302, `` }, func(f *far) { f.status = 0 }, Refused, "302"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, f := newNear(t), newFar(t).start()
			n.most = 50 * time.Millisecond
			n.region(f.srv.URL, "")
			n.link(everything)
			n.append(10)
			c.wrong(f)
			n.start()
			said := func() bool {
				st := n.status()
				return st.State == c.state && st.Error != nil && strings.Contains(st.Error.Message, c.says)
			}
			if !poll(patience, said) {
				st := n.status()
				t.Fatalf("state %s, %+v, want %s and %q", st.State, st.Error, c.state, c.says)
			}
			if st, _ := n.links.RegionStatus("far"); st.State != c.state || st.Error == nil || st.Connected != 0 || st.Links != 1 {
				t.Errorf("the region's status is %+v", st)
			}
			f.set(c.mended)
			if a := n.settle().Account; a.Main.Forwarded+a.Main.Known != 10 || a.Difference != 0 {
				t.Errorf("account %+v", a)
			}
			// The same in the middle of the work.
			f.set(c.wrong)
			if !strings.HasPrefix(name, "runs") {
				f.cut()
			}
			n.append(10)
			until(t, "it is said once more", said)
			f.set(c.mended)
			if a := n.settle().Account; a.Main.Forwarded+a.Main.Known != 20 || a.Difference != 0 {
				t.Errorf("account %+v", a)
			}
		})
	}
}

// authority makes certificates.
type authority struct {
	t    *testing.T
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	pem  string
}

func newAuthority(t *testing.T) *authority {
	a := &authority{t: t}
	a.cert, a.key, a.pem, _ = a.make(&x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}, nil, nil)
	return a
}

func (a *authority) make(c, parent *x509.Certificate, by *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey, string, string) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	if parent == nil {
		parent, by = c, key
	}
	c.SerialNumber, c.Subject = big.NewInt(time.Now().UnixNano()), pkix.Name{CommonName: "test"}
	c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, by)
	if err != nil {
		a.t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	return cert, key, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}))
}

// leaf returns a certificate and its key, in PEM.
func (a *authority) leaf() (cert, key string) {
	_, _, cert, key = a.make(&x509.Certificate{DNSNames: []string{"far.example"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}, a.cert, a.key)
	return cert, key
}

func asJSON(s string) string {
	b, _ := json.Marshal(s)
	return string(b)
}

// A certificate of another authority, and the lack of a client certificate, are said; with both the link runs.
func TestLinkOverTLS(t *testing.T) {
	ours, others := newAuthority(t), newAuthority(t)
	n, f := newNear(t), newFar(t)
	n.most = 50 * time.Millisecond
	cert, key := ours.leaf()
	pair, err := tls.X509KeyPair([]byte(cert), []byte(key))
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(ours.cert)
	f.srv.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert}
	f.srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	f.srv.StartTLS()
	t.Cleanup(f.stop)
	n.link(everything)
	n.append(10)
	n.start()
	says := func(what string, state State) {
		t.Helper()
		var st LinkStatus
		if !poll(patience, func() bool {
			st = n.status()
			return st.State == state && st.Error != nil && strings.Contains(st.Error.Message, what) && st.Error.At.After(n.changed)
		}) {
			t.Fatalf("state %s, %+v, want %s and %q", st.State, st.Error, state, what)
		}
	}
	says(`there is no region "far"`, Failing)
	n.region(f.srv.URL, "")
	says("tls: x509: certificate signed by unknown authority", Refused)
	n.region(f.srv.URL, `,"tls":{"ca":{"value":`+asJSON(others.pem)+`}}`)
	says("tls: x509: certificate signed by unknown authority", Refused)
	n.region(f.srv.URL, `,"tls":{"ca":{"value":`+asJSON(ours.pem)+`},"serverName":"other.example"}`)
	says("tls: x509: certificate is valid for far.example, not other.example", Refused)
	n.region(f.srv.URL, `,"tls":{"ca":{"value":`+asJSON(ours.pem)+`}}`)
	says("tls: the region refuses: tls: certificate required", Refused)
	wrong, wrongKey := others.leaf()
	n.region(f.srv.URL, `,"tls":{"ca":{"value":`+asJSON(ours.pem)+`},"certificate":{"value":`+asJSON(wrong)+`},"key":{"value":`+asJSON(wrongKey)+`}}`)
	says("tls: the region refuses: tls: unknown certificate authority", Refused)
	cert, key = ours.leaf()
	n.region(f.srv.URL, `,"tls":{"ca":{"value":`+asJSON(ours.pem)+`},"certificate":{"value":`+asJSON(cert)+`},"key":{"value":`+asJSON(key)+`},"serverName":"far.example"}`)
	if a := n.settle().Account; a.Main.Forwarded != 10 {
		t.Errorf("account %+v", a)
	}
	n.region(strings.Replace(f.srv.URL, "https", "http", 1), "")
	says("400", Refused)
	plainFar := newFar(t).start()
	n.region(strings.Replace(plainFar.srv.URL, "http", "https", 1), "")
	says("does not speak TLS", Refused)
}

// An address where nobody is, and one that says nothing.
func TestLinkWithoutAnswer(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := newNear(t)
	n.region("http://"+silent.Addr().String(), "")
	n.link(everything)
	n.append(1)
	n.start()
	if err := silent.Close(); err != nil {
		t.Fatal(err)
	}
	until(t, "it is refused", func() bool {
		st := n.status()
		return st.State == Connecting && st.Error != nil && strings.Contains(st.Error.Message, "connection refused")
	})
	if st := n.status(); st.Lag.Events != 1 || st.Lag.Seconds <= 0 || st.Account.Pending != 1 {
		t.Errorf("status %+v", st)
	}
	srv := newFar(t)
	srv.srv.Config.Handler = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	srv.srv.Start()
	t.Cleanup(srv.srv.Close)
	n.region(srv.srv.URL, "")
	until(t, "it does not answer", func() bool { return strings.Contains(n.status().Error.Message, "does not answer") })
	srv.srv.CloseClientConnections()
}
