// SPDX-License-Identifier: Apache-2.0

package eventlog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// plane is one embedded server.
type plane struct {
	srv *server.Server
}

type planeConfig struct {
	name       string // stable: it names the peer when nodes are clustered
	dir        string
	maxData    int
	syncAlways bool
	logger     *slog.Logger
}

// startPlane runs a server without a listener and waits for its recovery.
func startPlane(ctx context.Context, c planeConfig) (*plane, error) {
	opts := &server.Options{
		ServerName: c.name,
		DontListen: true,
		NoSigs:     true, // signals belong to main
		JetStream:  true,
		StoreDir:   c.dir,
		SyncAlways: c.syncAlways,
		// The disk reserve and Options.MaxStore refuse appends before JetStream does: a stream that fills in the middle
		// of a batch is seen only as a wrong sequence.
		JetStreamMaxStore:      1 << 62,
		JetStreamMaxMemory:     64 << 20,
		MaxPayload:             int32(c.maxData + payloadSlack), //nolint:gosec // at most 8 MiB + 128 KiB
		MaxControlLine:         maxControlLine,
		DisableJetStreamBanner: true,
		PingInterval:           time.Hour, // connections are pipes
		WriteDeadline:          time.Minute,
		JetStreamLimits: server.JSLimitOpts{
			DefaultMaxConsumers: -1,              // not 1000
			Duplicates:          2 * time.Minute, // streams of the event plane ask for the shortest
		},
	}
	srv, err := server.NewServer(opts)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.name, err)
	}
	lg := &serverLogger{logger: c.logger.With("plane", c.name)}
	srv.SetLoggerV2(lg, false, false, false)
	p := &plane{srv: srv}
	started := make(chan struct{})
	go func() {
		defer close(started)
		srv.Start()
	}()
	select {
	case <-started:
	case <-ctx.Done():
		p.stop()
		<-started
		return nil, fmt.Errorf("%s: %w", c.name, context.Cause(ctx))
	}
	if !srv.JetStreamEnabled() {
		p.stop()
		err := errors.New("storage did not start")
		if msg := lg.fatal.Load(); msg != nil {
			err = errors.New(*msg)
		}
		return nil, fmt.Errorf("%s: %w", c.name, err)
	}
	return p, nil
}

// connect returns a new connection through a pipe.
func (p *plane) connect() (*nats.Conn, error) {
	nc, err := nats.Connect("", nats.InProcessServer(p.srv), nats.Name("rialto"), nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond))
	if err != nil {
		return nil, fmt.Errorf("connect to the embedded server: %w", err)
	}
	return nc, nil
}

func (p *plane) stop() {
	p.srv.Shutdown()
	p.srv.WaitForShutdown()
}

// serverLogger passes on what the server logs. Its notices are our debug lines.
type serverLogger struct {
	logger *slog.Logger
	fatal  atomic.Pointer[string]
}

func (s *serverLogger) log(level slog.Level, format string, v []any) string {
	text := fmt.Sprintf(format, v...)
	s.logger.Log(context.Background(), level, "embedded server", "text", text)
	return text
}

// Noticef implements server.Logger.
func (s *serverLogger) Noticef(format string, v ...any) { s.log(slog.LevelDebug, format, v) }

// Warnf implements server.Logger.
func (s *serverLogger) Warnf(format string, v ...any) { s.log(slog.LevelWarn, format, v) }

// Errorf implements server.Logger.
func (s *serverLogger) Errorf(format string, v ...any) { s.log(slog.LevelError, format, v) }

// Fatalf implements server.Logger. It does not end the process: the start fails instead.
func (s *serverLogger) Fatalf(format string, v ...any) {
	text := s.log(slog.LevelError, format, v)
	s.fatal.CompareAndSwap(nil, &text)
}

// Debugf implements server.Logger.
func (s *serverLogger) Debugf(format string, v ...any) { s.log(slog.LevelDebug, format, v) }

// Tracef implements server.Logger.
func (s *serverLogger) Tracef(format string, v ...any) { s.log(slog.LevelDebug, format, v) }
