// SPDX-License-Identifier: Apache-2.0

package region

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/coder/websocket"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/secret"
)

const (
	dialTime     = 5 * time.Second // for all up to the Welcome
	ackTime      = 30 * time.Second
	pingEvery    = 5 * time.Second
	pingTime     = 10 * time.Second
	writeTime    = 30 * time.Second
	answerSize   = 4 << 10   // bytes that are read of an answer that is no WebSocket
	controlSize  = 128 << 10 // bytes of a Welcome of 2048 ranges; an Ack is much less
	maxReason    = 300       // characters that are shown of what the far side says
	refusedRetry = 5 * time.Second
	fullRetry    = 2 * time.Second
	firstRetry   = 100 * time.Millisecond
	lastRetry    = 500 * time.Millisecond
)

// trouble is why there is no connection, or one has ended.
type trouble struct {
	state State
	err   error
	retry time.Duration // 0 = sooner, and then later
}

func (t *trouble) Error() string { return t.err.Error() }
func (t *trouble) Unwrap() error { return t.err }

func refusedFor(format string, args ...any) *trouble {
	return &trouble{Refused, fmt.Errorf(format, args...), refusedRetry}
}

// line is a connection to an Inlet that has said Welcome.
type line struct {
	ws      *websocket.Conn
	welcome Welcome
	acks    chan Ack
	ctx     context.Context // done when the line is; the cause says why
	cancel  context.CancelCauseFunc
	wait    func() // for the goroutines of the line
}

// target is where a line goes.
type target struct {
	region                *Region
	instance, link, epoch string
	bus, stream           string // the bus there, and the stream here
	dial                  func(ctx context.Context, network, address string) (net.Conn, error)
	secrets               func(ref string) (string, error)
	count                 func(bytes int) // on the wire, both ways
	now                   func() time.Time
}

// connect makes a line. The error is a *trouble.
func connect(ctx context.Context, t target) (*line, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, dialTime, errors.New("the region does not answer"))
	defer cancel()
	key, err := t.region.Key.Resolve(t.secrets)
	if err != nil {
		return nil, &trouble{Failing, fmt.Errorf("key: %w", err), refusedRetry}
	}
	config, err := t.tls()
	if err != nil {
		return nil, &trouble{Failing, err, refusedRetry}
	}
	answers := &answers{next: &http.Transport{DialContext: t.counted, TLSClientConfig: config, TLSHandshakeTimeout: dialTime, DisableKeepAlives: true,
		MaxResponseHeaderBytes: 64 << 10}}
	client := &http.Client{Transport: answers, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	ws, _, err := websocket.Dial(ctx, t.url(), &websocket.DialOptions{HTTPClient: client, Subprotocols: []string{Protocol},
		HTTPHeader: http.Header{"Authorization": {"Bearer " + key.Reveal()}}, CompressionMode: websocket.CompressionDisabled})
	if err != nil {
		return nil, noLine(ctx, answers, err)
	}
	if ws.Subprotocol() != Protocol {
		ws.CloseNow() //nolint:errcheck // nothing was said
		return nil, refusedFor("the region speaks no %s", Protocol)
	}
	ws.SetReadLimit(controlSize)
	l := &line{ws: ws, acks: make(chan Ack, 2*maxFlights)}
	if err := l.greet(ctx); err != nil {
		ws.CloseNow() //nolint:errcheck // the other error counts
		return nil, err
	}
	return l, nil
}

// url is where the inlet is.
func (t *target) url() string {
	u := *t.region.URL
	u = *u.JoinPath("v1", "buses", t.bus, "link")
	u.RawQuery = url.Values{"instance": {t.instance}, "link": {t.link}, "epoch": {t.epoch}, "stream": {t.stream}}.Encode()
	return u.String()
}

// tls is what connections are secured with.
func (t *target) tls() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.region.TLS.ServerName, Time: t.now}
	text := map[string]string{}
	for name, s := range map[string]secret.Source{"ca": t.region.TLS.CA, "certificate": t.region.TLS.Certificate, "key": t.region.TLS.Key} {
		if s.IsZero() {
			continue
		}
		v, err := s.Resolve(t.secrets)
		if err != nil {
			return nil, fmt.Errorf("tls %s: %w", name, err)
		}
		text[name] = v.Reveal()
	}
	if ca := text["ca"]; ca != "" {
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM([]byte(ca)) {
			return nil, errors.New("tls ca: holds no certificate in PEM")
		}
	}
	if key := text["key"]; key != "" {
		cert, err := tls.X509KeyPair([]byte(text["certificate"]), []byte(key))
		if err != nil {
			return nil, errors.New("tls key: is not the key, in PEM, of the certificate") // other words might repeat something
		}
		c.Certificates = []tls.Certificate{cert}
	}
	return c, nil
}

// counted dials, and counts what goes over the connection.
func (t *target) counted(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := t.dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return &countedConn{c, t.count}, nil
}

type countedConn struct {
	net.Conn
	count func(int)
}

// Read is net.Conn.Read.
func (c *countedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.count(n)
	return n, err
}

// Write is net.Conn.Write.
func (c *countedConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.count(n)
	return n, err
}

// answers keeps the start of an answer that is no WebSocket.
type answers struct {
	next   *http.Transport
	status atomic.Int32
	body   atomic.Pointer[[]byte]
}

// RoundTrip is http.RoundTripper.
func (a *answers) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := a.next.RoundTrip(r)
	if err != nil || resp.StatusCode == http.StatusSwitchingProtocols {
		return resp, err
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, answerSize))
	if cerr := resp.Body.Close(); err == nil && cerr != nil && len(body) < answerSize {
		err = cerr
	}
	if err != nil {
		body = nil // the status says enough
	}
	a.body.Store(&body)
	a.status.Store(int32(resp.StatusCode)) //nolint:gosec // three digits
	resp.Body = io.NopCloser(bytes.NewReader(body))
	return resp, nil
}

// noLine says why there is no connection.
func noLine(ctx context.Context, a *answers, err error) *trouble {
	status := int(a.status.Load())
	if status == 0 {
		return noAnswer(ctx, err)
	}
	said, more := problem(status, *a.body.Load())
	switch {
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		return refusedFor("the region refuses the key: %s", said)
	case status == http.StatusNotFound:
		return refusedFor("the region has no such bus, or no links: %s", said)
	case status == http.StatusInsufficientStorage:
		return &trouble{Waiting, fmt.Errorf("the region is full: %s", said), fullRetry}
	case status == http.StatusConflict, status == http.StatusBadRequest && more:
		return refusedFor("the region refuses the link: %s", said)
	case status == http.StatusTooManyRequests || status >= 500:
		return &trouble{Connecting, fmt.Errorf("the region cannot take the link now: %s", said), 0}
	}
	return refusedFor("the region speaks no %s: %s", Protocol, said)
}

// noAnswer says why nothing came back.
func noAnswer(ctx context.Context, err error) *trouble {
	var (
		verification *tls.CertificateVerificationError
		record       tls.RecordHeaderError
		remote       *net.OpError
	)
	inner := err
	for next := errors.Unwrap(inner); next != nil; next = errors.Unwrap(inner) { // the outer ones repeat the URL
		if _, ok := inner.(*url.Error); ok { //nolint:errorlint // this very one
			inner = next
			break
		}
		inner = next
	}
	switch {
	case ctx.Err() != nil:
		return &trouble{Connecting, context.Cause(ctx), 0}
	case errors.As(err, &verification):
		return refusedFor("tls: %s", plain(verification.Err.Error()))
	case errors.As(err, &record), errors.Is(err, http.ErrSchemeMismatch):
		return refusedFor("tls: the region does not speak TLS at this address")
	case errors.As(err, &remote) && remote.Op == "remote error": // an alert of TLS
		return refusedFor("tls: the region refuses: %s", plain(remote.Err.Error()))
	}
	return &trouble{Connecting, errors.New(plain(inner.Error())), 0}
}

// problem is what an answer says; more if its body says something beside the status: title and detail of a problem+json.
func problem(status int, body []byte) (said string, more bool) {
	var p struct{ Title, Detail string }
	said = fmt.Sprintf("%d %s", status, cmp.Or(http.StatusText(status), "status"))
	if json.Unmarshal(body, &p) != nil {
		return said, false
	}
	switch title, detail := plain(p.Title), plain(p.Detail); {
	case detail != "":
		return said + ": " + detail, true
	case title != "" && !strings.EqualFold(title, http.StatusText(status)):
		return said + ": " + title, true
	}
	return said, false
}

// plain makes text of the far side fit to be shown: no control characters, and not too long.
func plain(s string) string {
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || !unicode.IsPrint(r) && r != ' ' {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
	s = strings.Join(strings.Fields(s), " ")
	if utf8.RuneCountInString(s) > maxReason {
		s = string([]rune(s)[:maxReason]) + "…"
	}
	return s
}

// greet reads the Welcome and starts what belongs to the line.
func (l *line) greet(ctx context.Context) error {
	kind, msg, err := l.ws.Read(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return &trouble{Connecting, context.Cause(ctx), 0}
		}
		return cut(err)
	}
	if kind != websocket.MessageText || json.Unmarshal(msg, &l.welcome) != nil || !event.IsInstance(l.welcome.Instance) {
		return refusedFor("the region says no welcome that %s knows", Protocol)
	}
	return nil
}

// cut says why a line has ended.
func cut(err error) *trouble {
	var ce websocket.CloseError
	if !errors.As(err, &ce) {
		return &trouble{Connecting, fmt.Errorf("the line is cut: %s", plain(innermost(err).Error())), 0}
	}
	said := cmp.Or(plain(ce.Reason), fmt.Sprintf("close %d", ce.Code))
	switch ce.Code {
	case CloseProtocol:
		return &trouble{Failing, fmt.Errorf("the region did not understand the link: %s", said), refusedRetry}
	case CloseReplaced:
		return refusedFor("another connection of this link has taken over: %s", said)
	case CloseFull:
		return &trouble{Waiting, fmt.Errorf("the region is full: %s", said), fullRetry}
	case CloseNoBus:
		return refusedFor("the region has no such bus: %s", said)
	case CloseTrouble:
		return &trouble{Connecting, fmt.Errorf("the region cannot store now: %s", said), 0}
	case CloseDenied:
		return refusedFor("the region refuses the key: %s", said)
	}
	return &trouble{Connecting, fmt.Errorf("the region has ended the connection: %s", said), 0}
}

func innermost(err error) error {
	for next := errors.Unwrap(err); next != nil; next = errors.Unwrap(err) {
		err = next
	}
	return err
}

// start runs the goroutines of the line until it ends: one reads acks, one looks whether the far side is there.
func (l *line) start(ctx context.Context) {
	l.ctx, l.cancel = context.WithCancelCause(ctx)
	done := make(chan struct{}, 2)
	go func() {
		l.cancel(l.readAcks())
		done <- struct{}{}
	}()
	go func() {
		l.ping()
		done <- struct{}{}
	}()
	l.wait = func() { <-done; <-done }
}

// lastWords is how long a line that cannot be written to is read for why.
const lastWords = 250 * time.Millisecond

// hear waits until the line has ended for a reason of its own, but not for long.
func (l *line) hear() {
	timer := time.NewTimer(lastWords)
	defer timer.Stop()
	select {
	case <-l.ctx.Done():
	case <-timer.C:
	}
}

// end closes the line and waits for its goroutines.
func (l *line) end() {
	l.cancel(nil)
	l.ws.CloseNow() //nolint:errcheck // whatever it says, it is over
	l.wait()
}

// readAcks returns why there are no more.
func (l *line) readAcks() error {
	for {
		kind, msg, err := l.ws.Read(l.ctx)
		if err != nil {
			return cut(err)
		}
		var a Ack
		if kind != websocket.MessageText || json.Unmarshal(msg, &a) != nil {
			return &trouble{Failing, errors.New("the region answers what is no ack"), refusedRetry}
		}
		select {
		case l.acks <- a:
		default: // there is room for more than can be under way
			return &trouble{Failing, errors.New("the region acknowledges more than was sent"), refusedRetry}
		}
	}
}

// ping ends the line when the far side does not answer.
func (l *line) ping() {
	tick := time.NewTicker(pingEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-l.ctx.Done():
			return
		}
		ctx, cancel := context.WithTimeout(l.ctx, pingTime)
		err := l.ws.Ping(ctx)
		cancel()
		if err != nil {
			l.cancel(&trouble{Connecting, errors.New("the region does not answer a ping"), 0})
			return
		}
	}
}
