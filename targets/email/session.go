// SPDX-License-Identifier: Apache-2.0

package email

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/textproto"
	"strconv"
	"strings"
	"time"

	"github.com/wneessen/go-mail/smtp"

	"github.com/rialto-bridge/rialto/targets"
)

const (
	// maxAnswers is how many bytes of a server are read in a session, those of TLS included.
	maxAnswers = 256 << 10
	// farewell is how long the end of a session may take when all is said.
	farewell = time.Second
)

var errAnswers = fmt.Errorf("the server says more than %d bytes", maxAnswers)

// conn is a connection to a server, of which what can be read is bounded. Its deadline is the attempt's, which open sets and nobody else
// moves until close does.
type conn struct {
	net.Conn
	left int
}

func (c *conn) Read(p []byte) (int, error) {
	if c.left <= 0 {
		return 0, errAnswers
	}
	n, err := c.Conn.Read(p[:min(len(p), c.left)])
	c.left -= n
	return n, err
}

// session is one connection with one mail. It belongs to one goroutine.
type session struct {
	*settings
	secrets map[string]string
	hidden  []string
	start   time.Time
	result  targets.Result
	conn    *conn
	client  *smtp.Client
	leave   func() bool // ends looking out for the attempt's end
}

// send opens the connection and hands the mail over.
func (s *session) send(ctx context.Context, dial func(ctx context.Context, network, address string) (net.Conn, error), m *message) *targets.Error {
	if err := s.open(ctx, dial); err != nil {
		return s.failure(ctx, err, false)
	}
	if err := s.encrypt(); err != nil {
		return s.failure(ctx, err, false)
	}
	if err := s.login(); err != nil {
		return s.failure(ctx, err, true)
	}
	if err := s.submit(m); err != nil {
		return s.failure(ctx, err, false)
	}
	s.result.Status = 250
	return nil
}

// open connects and hears the server out until it has said what it can.
func (s *session) open(ctx context.Context, dial func(ctx context.Context, network, address string) (net.Conn, error)) error {
	c, err := dial(ctx, "tcp", s.address)
	s.result.Connect = time.Since(s.start) // the name is looked up in it
	if err != nil {
		return err
	}
	s.conn = &conn{Conn: c, left: maxAnswers}
	s.result.Remote = c.RemoteAddr().String()
	if end, ok := ctx.Deadline(); ok {
		if err := c.SetDeadline(end); err != nil {
			return err
		}
	}
	s.leave = context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) }) // wakes who reads or writes
	var over net.Conn = s.conn
	if s.security == securityTLS {
		t := tls.Client(s.conn, s.tlsFor(s.secrets))
		before := time.Now()
		err := t.HandshakeContext(ctx)
		s.result.TLS = time.Since(before)
		if err != nil {
			return err
		}
		over = t
	}
	s.client, err = smtp.NewClient(over, s.host)
	if err == nil || errors.As(err, new(*textproto.Error)) {
		s.result.FirstByte = time.Since(s.start)
	}
	if err != nil {
		return err
	}
	s.client.SkipSMTPUTF8(true) // addresses are ASCII
	return s.client.Hello(s.helo)
}

var errNoStartTLS = errors.New("tls: the server does not offer STARTTLS, and security is not none")

// encrypt goes on over TLS.
func (s *session) encrypt() error {
	if s.security != securityStartTLS {
		return nil
	}
	if ok, _ := s.client.Extension("STARTTLS"); !ok {
		return errNoStartTLS
	}
	before := time.Now()
	err := s.client.StartTLS(s.tlsFor(s.secrets))
	s.result.TLS = time.Since(before)
	return err
}

// login shows the server who we are.
func (s *session) login() error {
	if s.auth == nil {
		return nil
	}
	secret, user := s.secret(s.secrets), s.auth.Username
	var a smtp.Auth
	switch s.auth.Type {
	case authLogin:
		a = smtp.LoginAuth(user, secret, s.host, false)
	case authCRAMMD5:
		a = smtp.CRAMMD5Auth(user, secret)
	case authXOAuth2:
		a = smtp.XOAuth2Auth(user, secret)
	default:
		a = smtp.PlainAuth("", user, secret, s.host, false)
	}
	_, offered := s.client.Extension("AUTH")
	mechanism := strings.ToUpper(s.auth.Type)
	for _, m := range strings.Fields(offered) {
		if strings.EqualFold(m, mechanism) {
			return s.client.Auth(a)
		}
	}
	return errMechanism
}

var errMechanism = errors.New("the server does not offer this type of authentication")

// submit hands the mail over.
func (s *session) submit(m *message) error {
	if _, size := s.client.Extension("SIZE"); size != "" {
		if most, err := strconv.Atoi(size); err == nil && most > 0 && len(m.body) > most {
			return &tooLarge{len(m.body), most}
		}
	}
	if err := s.client.Mail("<" + m.from + ">"); err != nil {
		return err
	}
	var refused error
	for _, r := range m.recipients {
		err := s.client.Rcpt("<" + r + ">")
		var reply *textproto.Error
		if err != nil && (!errors.As(err, &reply) || reply.Code == 421) {
			return err
		}
		var before *textproto.Error
		if err != nil && (refused == nil || reply.Code >= 500 && errors.As(refused, &before) && before.Code < 500) {
			refused = err // one that is for good says more than one that may pass
		}
	}
	if refused != nil {
		return refused
	}
	w, err := s.client.Data()
	if err != nil {
		return err
	}
	if _, err := w.Write(m.body); err != nil {
		return err
	}
	return w.Close()
}

// close ends the session. What became of the mail is known by then.
func (s *session) close() {
	if s.conn == nil {
		return
	}
	if s.leave != nil && s.leave() && s.result.Status == 250 && s.conn.SetDeadline(time.Now().Add(farewell)) == nil {
		_ = s.client.Quit() // a courtesy
	}
	_ = s.conn.Close()
}
