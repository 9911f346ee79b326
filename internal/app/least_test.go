// SPDX-License-Identifier: Apache-2.0

package app_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/rialto-bridge/rialto/internal/eventlog"
)

// childLeast, in the environment of a null server, names the directory in which it is the least bridge as well.
const childLeast = "RIALTO_TEST_CHILD_LEAST"

// childLog is the same for leastLog.
const childLog = "RIALTO_TEST_CHILD_LOG"

// leastBridge is as little as a bridge can do with an event that net/http has taken in: it writes it to a file that it syncs before it
// answers, many events at a time, and sends it on to one address over connections that it keeps. It has no rules, no index, no journal
// and no retries, and forgets what it has sent: no bridge that does this much can be faster, so it says how much of a measurement is
// the machine's.
type leastBridge struct {
	file  *os.File
	to    atomic.Pointer[string] // host and port; nil = nothing is sent on
	queue chan *leastEvent
	out   chan *leastEvent
}

type leastEvent struct {
	head   []byte // the attributes, as lines of a header
	body   []byte
	stored chan error
}

// leastBatch is how many events the least bridge syncs together at most, and leastWorkers how many it sends at a time.
const (
	leastBatch   = 4096
	leastWorkers = 32
)

func newLeastBridge(dir string) (*leastBridge, error) {
	f, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return nil, err
	}
	l := &leastBridge{file: f, queue: make(chan *leastEvent, leastBatch), out: make(chan *leastEvent, 1<<20)}
	go l.write() // both until the process ends
	for range leastWorkers {
		go l.send()
	}
	return l, nil
}

// ServeHTTP takes an event in.
func (l *leastBridge) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	takeLeast(w, r, func(e *leastEvent) error { l.queue <- e; return nil })
}

// takeLeast reads an event, has it stored, and answers.
func takeLeast(w http.ResponseWriter, r *http.Request, store func(*leastEvent) error) {
	e := &leastEvent{stored: make(chan error, 1)}
	var err error
	if e.body, err = io.ReadAll(r.Body); err != nil {
		return
	}
	for name, values := range r.Header {
		if strings.HasPrefix(name, "Ce-") {
			e.head = fmt.Appendf(e.head, "%s: %s\r\n", name, values[0])
		}
	}
	if err = store(e); err == nil {
		err = <-e.stored
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.WriteHeader(http.StatusAccepted)
}

// leastLog is the least bridge with the log of this one, and nothing is sent on: it says how much of a measurement is the log's. It
// knows no CloudEvents, no duplicates and no limits.
type leastLog struct{ stream *eventlog.Stream }

func newLeastLog(dir string) (*leastLog, error) {
	ctx := context.Background() // until the process ends
	log, err := eventlog.Open(ctx, eventlog.Options{Dir: dir, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	s, err := log.Stream(ctx, eventlog.StreamConfig{Name: "LEAST", Subjects: []string{"least"}})
	return &leastLog{s}, err
}

// ServeHTTP takes an event in.
func (l *leastLog) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	takeLeast(w, r, func(e *leastEvent) error {
		m := eventlog.Message{Subject: "least", Header: append(append([]byte("NATS/1.0\r\n"), e.head...), "\r\n"...), Data: e.body}
		return l.stream.Append(r.Context(), m, func(res eventlog.Result) { e.stored <- res.Err })
	})
}

// write stores what has come, as much as there is at a time.
func (l *leastBridge) write() {
	var batch []*leastEvent
	var b []byte
	for e := range l.queue {
		batch = append(batch[:0], e)
		for n := len(l.queue); n > 0; n-- {
			batch = append(batch, <-l.queue)
		}
		b = b[:0]
		for _, e := range batch {
			b = append(append(b, e.head...), e.body...)
		}
		_, err := l.file.Write(b)
		if err == nil {
			err = syscall.Fdatasync(int(l.file.Fd()))
		}
		for _, e := range batch {
			if err == nil && l.to.Load() != nil {
				l.out <- e
			}
			e.stored <- err
		}
	}
}

// send sends on what was stored over one connection.
func (l *leastBridge) send() {
	var nc net.Conn
	var in *bufio.Reader
	var b []byte
	for e := range l.out {
		to := *l.to.Load()
		if nc == nil {
			var err error
			if nc, err = net.Dial("tcp", to); err != nil {
				panic(err)
			}
			in = bufio.NewReader(nc)
		}
		b = fmt.Appendf(b[:0], "POST /sink HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n", to, len(e.body))
		b = append(append(append(b, e.head...), "\r\n"...), e.body...)
		if _, err := nc.Write(b); err != nil {
			panic(err)
		}
		if err := readAnswer(in, "HTTP/1.1 204 "); err != nil {
			panic(err)
		}
	}
}
