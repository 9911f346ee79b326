// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// site is a bridge in a process of its own.
type site struct {
	cmd  *exec.Cmd
	http string // address of its listener
	done chan error
	said said
}

// said keeps the beginning of what a process says on stderr. Safe for concurrent use.
type said struct {
	mu   sync.Mutex // guards text
	text []byte
}

const maxSaid = 4 << 10

// Write takes what there is room for.
func (s *said) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text = append(s.text, b[:min(len(b), maxSaid-len(s.text))]...)
	return len(b), nil
}

func (s *said) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return clean(strings.TrimSpace(string(s.text)))
}

// startWithin is how long a bridge may take until it is ready.
const startWithin = 30 * time.Second

// startSite runs rialto serve and waits until it is ready.
func startSite(ctx context.Context, program string, args ...string) (*site, error) {
	s := &site{cmd: exec.Command(program, append([]string{"serve", "--log-level", "error"}, args...)...), done: make(chan error, 1)} //nolint:gosec // our own program
	s.cmd.Stderr = &s.said
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for the demo, which stops its sites itself
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	ready := make(chan string, 1)
	go func() { // ends with the process
		lines := bufio.NewReader(out)
		line, err := lines.ReadString('\n')
		if err == nil {
			ready <- line
			_, err = io.Copy(io.Discard, lines)
		}
		if errors.Is(err, io.EOF) {
			err = nil
		}
		s.done <- errors.Join(err, s.cmd.Wait())
	}()
	timer := time.NewTimer(startWithin)
	defer timer.Stop()
	select {
	case line := <-ready:
		for word := range strings.FieldsSeq(line) {
			if addr, ok := strings.CutPrefix(word, "http="); ok {
				s.http = addr
			}
		}
		return s, nil
	case err := <-s.done:
		return nil, fmt.Errorf("a bridge did not start: %w: %s", err, &s.said)
	case <-timer.C:
		err = errors.New("a bridge did not start in time")
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	return nil, errors.Join(err, s.kill())
}

// kill ends the process at once, as a power cut does.
func (s *site) kill() error {
	if err := s.cmd.Process.Kill(); err != nil {
		return err
	}
	<-s.done // how it ended is no news
	return nil
}

// stop asks the process to end, and waits.
func (s *site) stop(ctx context.Context) error {
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case err := <-s.done:
		return err
	case <-ctx.Done():
		return errors.Join(context.Cause(ctx), s.kill())
	}
}

// line is a network between two sites that can be cut.
type line struct {
	ln net.Listener
	to string

	mu     sync.Mutex // guards below
	cut    bool
	conns  map[net.Conn]bool
	bytes  int64 // that have passed towards to
	closed bool
	wg     sync.WaitGroup
}

// newLine listens for connections that lead to an address.
func newLine(to string) (*line, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	l := &line{ln: ln, to: to, conns: make(map[net.Conn]bool)}
	l.wg.Go(l.accept)
	return l, nil
}

func (l *line) accept() {
	for {
		near, err := l.ln.Accept()
		if err != nil {
			return // it was closed
		}
		l.wg.Go(func() { l.carry(near) })
	}
}

// enter notes a connection; false if there is no line.
func (l *line) enter(c net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut || l.closed {
		return false
	}
	l.conns[c] = true
	return true
}

func (l *line) leave(c net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.conns, c)
	_ = c.Close() // nothing is owed on it
}

// carry copies both ways until one side ends.
func (l *line) carry(near net.Conn) {
	defer l.leave(near)
	if !l.enter(near) {
		return
	}
	far, err := net.Dial("tcp", l.to)
	if err != nil {
		return
	}
	defer l.leave(far)
	if !l.enter(far) {
		return
	}
	l.wg.Go(func() {
		defer near.Close() //nolint:errcheck // the other way ends too
		_, _ = io.Copy(near, far)
	})
	buf := make([]byte, 32<<10)
	for {
		n, err := near.Read(buf)
		if n > 0 {
			l.mu.Lock()
			l.bytes += int64(n)
			l.mu.Unlock()
			if _, werr := far.Write(buf[:n]); werr != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// setCut cuts the line, also what is on it, or brings it back.
func (l *line) setCut(cut bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = cut
	if cut {
		for c := range l.conns {
			_ = c.Close() // in the middle of whatever it carries
		}
	}
}

func (l *line) passed() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.bytes
}

func (l *line) close() error {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.setCut(true)
	err := l.ln.Close()
	l.wg.Wait()
	return err
}
