// SPDX-License-Identifier: Apache-2.0

package email_test

import (
	"bufio"
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/textproto"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/targets/targettest"
)

// server is an SMTP server that keeps what it is told, and answers as a test wants.
type server struct {
	*targettest.Listener
	extensions []string          // beside STARTTLS
	replies    map[string]string // by how a command begins; its own otherwise
	cert       *tls.Certificate  // nil = no TLS
	implicit   bool              // TLS from the start
	challenge  string            // of CRAM-MD5

	mu       sync.Mutex // guards all below
	sessions []*said
}

// said is what a client has said in a session.
type said struct {
	helo      []string
	auth      []string // what it answered, decoded
	mechanism string
	from      string
	to        []string
	data      string
	commands  []string // verbs, in their order
	sni       string
	version   uint16
}

func newServer(t testing.TB, change func(s *server)) *server {
	t.Helper()
	s := &server{replies: map[string]string{}, challenge: "<1.2@mail.example>"}
	if change != nil {
		change(s)
	}
	s.Listener = targettest.Listen(t, s.serve)
	return s
}

// last is what was said in the last session.
func (s *server) last(t testing.TB) *said {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.sessions) == 0 {
		t.Fatal("nobody has come")
	}
	return s.sessions[len(s.sessions)-1]
}

func (s *server) serve(conn net.Conn) {
	me := &said{}
	s.mu.Lock()
	s.sessions = append(s.sessions, me)
	s.mu.Unlock()
	if s.implicit {
		var ok bool
		if conn, ok = s.overTLS(conn, me); !ok {
			return
		}
	}
	c := textproto.NewConn(conn)
	reply := func(command, otherwise string) bool {
		for begin, r := range s.replies {
			if strings.HasPrefix(command, begin) {
				otherwise = r
			}
		}
		if otherwise == "hang" {
			io.Copy(io.Discard, conn)
			return false
		}
		_, err := io.WriteString(conn, otherwise)
		return err == nil && !strings.HasPrefix(otherwise, "421") && otherwise != ""
	}
	if !reply("GREETING", "220 mail.example ESMTP\r\n") {
		return
	}
	for {
		line, err := c.ReadLine()
		if err != nil {
			return
		}
		verb, rest, _ := strings.Cut(line, " ")
		s.mu.Lock()
		me.commands = append(me.commands, verb)
		s.mu.Unlock()
		good := "250 2.0.0 fine\r\n"
		switch verb {
		case "EHLO":
			me.helo = append(me.helo, rest)
			good = "250-mail.example\r\n"
			if s.cert != nil && me.version == 0 {
				good += "250-STARTTLS\r\n"
			}
			for _, e := range s.extensions {
				good += "250-" + e + "\r\n"
			}
			good += "250 HELP\r\n"
		case "STARTTLS":
			if !reply(line, "220 2.0.0 go on\r\n") {
				return
			}
			secured, ok := s.overTLS(conn, me)
			if !ok {
				return
			}
			conn, c = secured, textproto.NewConn(secured)
			continue
		case "AUTH":
			good = s.login(c, conn, me, rest)
		case "MAIL":
			me.from = rest
		case "RCPT":
			me.to = append(me.to, rest)
		case "DATA":
			if !reply(line, "354 go on\r\n") {
				return
			}
			if s.replies["DATA"] != "" {
				continue
			}
			b, err := c.ReadDotBytes()
			if err != nil {
				return
			}
			me.data = string(b)
			line = "."
		case "QUIT":
			reply(line, "221 2.0.0 bye\r\n")
			return
		case "*":
			good = "501 5.0.0 given up\r\n"
		}
		if !reply(line, good) {
			return
		}
	}
}

func (s *server) overTLS(conn net.Conn, me *said) (net.Conn, bool) {
	t := tls.Server(conn, &tls.Config{Certificates: []tls.Certificate{*s.cert}})
	if err := t.Handshake(); err != nil {
		return nil, false
	}
	state := t.ConnectionState()
	s.mu.Lock()
	defer s.mu.Unlock()
	me.sni, me.version = state.ServerName, state.Version
	return t, true
}

// login asks for what a mechanism says, and takes it whatever it is.
func (s *server) login(c *textproto.Conn, conn io.Writer, me *said, rest string) string {
	mechanism, first, _ := strings.Cut(rest, " ")
	me.mechanism = mechanism
	take := func(text string) {
		b, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			b = []byte("not base64: " + text)
		}
		me.auth = append(me.auth, string(b))
	}
	if first != "" {
		take(first)
	}
	for _, ask := range map[string][]string{"LOGIN": {"Username:", "Password:"}, "CRAM-MD5": {s.challenge}}[mechanism] {
		fmt.Fprintf(conn, "334 %s\r\n", base64.StdEncoding.EncodeToString([]byte(ask)))
		line, err := c.ReadLine()
		if err != nil {
			return ""
		}
		take(line)
	}
	return "235 2.7.0 welcome\r\n"
}

// authority is a CA that signs certificates for names.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  string
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	a := &authority{}
	var err error
	if a.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		t.Fatal(err)
	}
	form := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test CA"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, form, form, &a.key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	a.pem = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	return a
}

// sign returns a certificate, and its key and itself in PEM.
func (a *authority) sign(t testing.TB, names ...string) (cert *tls.Certificate, keyPEM, certPEM string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	form := &x509.Certificate{SerialNumber: big.NewInt(2), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), DNSNames: names}
	der, err := x509.CreateCertificate(rand.Reader, form, a.cert, &key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	keyPEM = string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw}))
	certPEM = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	pair, err := tls.X509KeyPair([]byte(certPEM), []byte(keyPEM))
	if err != nil {
		t.Fatal(err)
	}
	return &pair, keyPEM, certPEM
}

// headerOf splits a mail and returns the lines of its header, unfolded.
func headerOf(t testing.TB, mail string) (names []string, header textproto.MIMEHeader) {
	t.Helper()
	head, _, ok := strings.Cut(mail, "\n\n")
	if !ok {
		t.Fatalf("no end of the header in %q", mail)
	}
	header, err := textproto.NewReader(bufio.NewReader(bytes.NewBufferString(head + "\n\n"))).ReadMIMEHeader()
	if err != nil {
		t.Fatalf("%v in %q", err, head)
	}
	for line := range strings.SplitSeq(head, "\n") {
		if name, _, ok := strings.Cut(line, ":"); ok && line[0] != ' ' && line[0] != '\t' {
			names = append(names, name)
		}
	}
	return names, header
}
