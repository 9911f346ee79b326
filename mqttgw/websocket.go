// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"
)

// WebSocket makes Gateway.Serve speak MQTT over WebSocket (MQTT 5 section 6) on a listener, at the path /mqtt.
type WebSocket struct {
	net.Listener
	// Origins are the hosts whose web pages may connect beside those of the listener's own host: host, host:port or
	// scheme://host, with * for any text. What sends no Origin is no web page and is not asked.
	Origins []string
}

const (
	webSocketPath     = "/mqtt"
	webSocketProtocol = "mqtt"
	webSocketHeader   = 16 << 10 // bytes of the request that opens one
)

// webSocketServer serves one WebSocket.
type webSocketServer struct {
	g  *Gateway
	ws *WebSocket

	mu      sync.Mutex
	entered map[net.Conn]netip.Addr // guarded by mu; counted in, and not upgraded yet
}

// serveWebSocket accepts until ctx is done.
func (g *Gateway) serveWebSocket(ctx context.Context, ws *WebSocket) error {
	s := &webSocketServer{g: g, ws: ws, entered: map[net.Conn]netip.Addr{}}
	server := &http.Server{Handler: s, ReadTimeout: g.limits.ConnectTimeout, MaxHeaderBytes: webSocketHeader, ConnContext: s.enter, ConnState: s.follow,
		ErrorLog: slog.NewLogLogger(g.log.Handler(), slog.LevelDebug)}
	server.SetKeepAlivesEnabled(false) // what is no WebSocket gets one answer
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		<-ctx.Done()
		limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTime)
		defer cancel()
		if server.Shutdown(limit) != nil {
			if err := server.Close(); err != nil {
				g.log.Debug("close WebSocket listener", "err", err)
			}
		}
	}()
	err := server.Serve(&pacedListener{Listener: ws.Listener, g: g, ctx: ctx})
	if ctx.Err() != nil {
		<-stopped
		return nil
	}
	return fmt.Errorf("mqttgw: accept: %w", err)
}

// enter counts a connection in, or closes it.
func (s *webSocketServer) enter(ctx context.Context, nc net.Conn) context.Context {
	addr := addressOf(nc)
	if why := s.g.gate.enter(addr, s.g.now()); why != "" {
		s.g.metrics.refused(why)
		s.g.discard(nc)
		return ctx
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.entered[nc] = addr
	return ctx
}

// follow counts a connection out that ends before it is a WebSocket. One that is belongs to its conn.
func (s *webSocketServer) follow(nc net.Conn, state http.ConnState) {
	if state != http.StateClosed && state != http.StateHijacked {
		return
	}
	s.mu.Lock()
	addr, ok := s.entered[nc]
	delete(s.entered, nc)
	s.mu.Unlock()
	if ok && state == http.StateClosed {
		s.g.gate.leave(addr, true)
	}
}

// ServeHTTP makes a WebSocket of a request and serves it.
func (s *webSocketServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != webSocketPath {
		http.Error(w, "MQTT over WebSocket is at "+webSocketPath, http.StatusNotFound)
		return
	}
	if !offersMQTT(r.Header.Values("Sec-WebSocket-Protocol")) {
		http.Error(w, "the subprotocol must be "+webSocketProtocol, http.StatusBadRequest)
		return
	}
	hijacked := &hijackWriter{ResponseWriter: w}
	ws, err := websocket.Accept(hijacked, r, &websocket.AcceptOptions{Subprotocols: []string{webSocketProtocol},
		OriginPatterns: s.ws.Origins, CompressionMode: websocket.CompressionDisabled})
	if err != nil {
		s.g.metrics.refused(refusedMalformed)
		s.g.log.Debug("no WebSocket", "address", r.RemoteAddr, "err", err)
		return
	}
	ws.SetReadLimit(-1) // a message is a piece of the stream; MQTT packets have their own limit
	nc := &webSocketConn{Conn: hijacked.nc, ws: ws}
	if c := s.g.adopt(nc, addressOf(nc)); c != nil {
		c.serve()
	}
}

func offersMQTT(protocols []string) bool {
	for _, line := range protocols {
		for name := range strings.SplitSeq(line, ",") {
			if strings.TrimSpace(name) == webSocketProtocol {
				return true
			}
		}
	}
	return false
}

// hijackWriter keeps the connection that is taken over, whose deadlines are the conn's to set.
type hijackWriter struct {
	http.ResponseWriter
	nc net.Conn
}

// Hijack is http.Hijacker.Hijack.
func (w *hijackWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	nc, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	w.nc = nc
	return nc, rw, err
}

// webSocketConn is the stream of bytes in the binary messages of a WebSocket. Deadlines, addresses and TLS are those of the
// connection below; every write is one message.
type webSocketConn struct {
	net.Conn // below
	ws       *websocket.Conn
	message  io.Reader // what is left of the message that is read; the reader's
}

var errNotBinary = errors.New("WebSocket message that is not binary") // MQTT-6.0.0-1

// Read reads from messages. Where they begin and end has no meaning (MQTT-6.0.0-2).
func (c *webSocketConn) Read(p []byte) (int, error) {
	for {
		if c.message == nil {
			kind, r, err := c.ws.Reader(context.Background()) // the deadline is the connection's
			if err != nil {
				return 0, webSocketError(err)
			}
			if kind != websocket.MessageBinary {
				return 0, errNotBinary
			}
			c.message = r
		}
		n, err := c.message.Read(p)
		if errors.Is(err, io.EOF) {
			c.message, err = nil, nil
		}
		if n > 0 || err != nil {
			return n, webSocketError(err)
		}
	}
}

// webSocketError makes io.EOF of the end of a WebSocket.
func webSocketError(err error) error {
	if status := websocket.CloseStatus(err); status != -1 {
		return io.EOF
	}
	return err
}

// Write writes one message.
func (c *webSocketConn) Write(p []byte) (int, error) {
	if err := c.ws.Write(context.Background(), websocket.MessageBinary, p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Close says goodbye and closes the connection; a second at most.
func (c *webSocketConn) Close() error {
	if err := c.Conn.SetDeadline(time.Now().Add(lingerTime)); err != nil && !errors.Is(err, net.ErrClosed) {
		return errors.Join(err, c.ws.CloseNow())
	}
	err := c.ws.Close(websocket.StatusNormalClosure, "")
	if err != nil {
		return c.ws.CloseNow()
	}
	return nil
}

// ConnectionState is that of the TLS connection below.
func (c *webSocketConn) ConnectionState() tls.ConnectionState {
	if t, ok := c.Conn.(*tls.Conn); ok {
		return t.ConnectionState()
	}
	return tls.ConnectionState{}
}
