// SPDX-License-Identifier: Apache-2.0

package eventlog

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// maxControlLine bounds a protocol line in both directions. The default of 4 KiB would close the connection on one
// event with a long type.
const maxControlLine = 32 << 10

// wire is a NATS client connection inside the process, reduced to what a writer needs: it publishes prepared frames
// and receives replies on one subscription. nats.go does the same for about 6 us more per message.
//
// write may be called by one goroutine at a time; replies and done may be used by any.
type wire struct {
	conn    net.Conn
	inbox   string     // replies arrive on <inbox>.<anything>
	replies chan reply // replies in order of arrival
	done    chan struct{}

	mu  sync.Mutex // guards writes to conn: the reader answers PING
	err error      // why the connection ended; set before done is closed
}

// reply is one message received.
type reply struct {
	subject string
	status  string // "503" and the like, from the header line; "" for a plain message
	data    []byte
}

var errWireClosed = errors.New("connection to the embedded server closed")

// dialWire connects to srv and subscribes to its own inbox.
func dialWire(srv *server.Server, inbox string) (*wire, error) {
	conn, err := srv.InProcessConn()
	if err != nil {
		return nil, fmt.Errorf("connect to the embedded server: %w", err)
	}
	w := &wire{conn: conn, inbox: inbox, replies: make(chan reply, 16), done: make(chan struct{})}
	r := bufio.NewReaderSize(conn, maxControlLine+512)
	if err := w.handshake(r); err != nil {
		return nil, errors.Join(fmt.Errorf("connect to the embedded server: %w", err), conn.Close())
	}
	go w.read(r)
	return w, nil
}

func (w *wire) handshake(r *bufio.Reader) error {
	if err := w.conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return err
	}
	line, err := r.ReadSlice('\n')
	if err != nil {
		return err
	}
	if !bytes.HasPrefix(line, []byte("INFO ")) {
		return fmt.Errorf("unexpected greeting %q", line)
	}
	hello := `CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true,"protocol":1,"lang":"go","name":"rialto-log"}` +
		"\r\nSUB " + w.inbox + ".* 1\r\nPING\r\n"
	if _, err := w.conn.Write([]byte(hello)); err != nil {
		return err
	}
	for {
		line, err := r.ReadSlice('\n')
		switch {
		case err != nil:
			return err
		case bytes.HasPrefix(line, []byte("PONG")):
			return w.conn.SetDeadline(time.Time{})
		case bytes.HasPrefix(line, []byte("-ERR")):
			return fmt.Errorf("refused: %s", bytes.TrimSpace(line))
		}
	}
}

// write sends frames that were built with appendPub.
func (w *wire) write(p []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, err := w.conn.Write(p)
	return err
}

// close ends the connection and waits for the reader.
func (w *wire) close() error {
	err := w.conn.Close()
	<-w.done
	return err
}

// read runs until the connection ends.
func (w *wire) read(r *bufio.Reader) {
	defer close(w.done)
	for {
		if err := w.readOne(r); err != nil {
			if w.err == nil {
				w.err = err
			}
			if cerr := w.conn.Close(); cerr != nil {
				w.err = errors.Join(w.err, cerr)
			}
			return
		}
	}
}

func (w *wire) readOne(r *bufio.Reader) error {
	line, err := r.ReadSlice('\n')
	if err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrClosedPipe) {
			return errWireClosed
		}
		return err
	}
	switch {
	case bytes.HasPrefix(line, []byte("MSG ")):
		return w.readMessage(r, line[4:], false)
	case bytes.HasPrefix(line, []byte("HMSG ")):
		return w.readMessage(r, line[5:], true)
	case bytes.HasPrefix(line, []byte("PING")):
		// The server closes a connection that does not answer.
		return w.write([]byte("PONG\r\n"))
	case bytes.HasPrefix(line, []byte("-ERR")):
		// Everything the server calls an error here ends the connection (payload or control line too long).
		return fmt.Errorf("embedded server: %s", bytes.TrimSpace(line[4:]))
	}
	return nil // PONG, +OK, INFO
}

// readMessage reads "<subject> <sid> [reply] [header bytes] <bytes>" and what follows.
func (w *wire) readMessage(r *bufio.Reader, args []byte, headers bool) error {
	f := bytes.Fields(args)
	if len(f) < 3 {
		return fmt.Errorf("embedded server: bad message line %q", args)
	}
	total, err := strconv.Atoi(string(f[len(f)-1]))
	if err != nil || total < 0 || total > maxPayloadLimit {
		return fmt.Errorf("embedded server: bad message line %q", args)
	}
	hdr := 0
	if headers {
		if hdr, err = strconv.Atoi(string(f[len(f)-2])); err != nil || hdr < 0 || hdr > total {
			return fmt.Errorf("embedded server: bad message line %q", args)
		}
	}
	rep := reply{subject: string(f[0])}
	body := make([]byte, total+2)
	if _, err := io.ReadFull(r, body); err != nil {
		return err
	}
	if hdr > 0 {
		rep.status = statusOf(body[:hdr])
	}
	rep.data = body[hdr:total]
	w.replies <- rep
	return nil
}

// statusOf returns the status of a header block such as "NATS/1.0 503\r\n\r\n"; "" when it has none.
func statusOf(h []byte) string {
	line, _, _ := bytes.Cut(h, []byte("\r\n"))
	_, status, _ := bytes.Cut(line, []byte(" "))
	status, _, _ = bytes.Cut(status, []byte(" "))
	return string(status)
}

const (
	headerLine   = "NATS/1.0\r\n"
	expectHeader = "Nats-Expected-Last-Sequence: "
)

// appendPub appends the frame that publishes a message. header is a whole header block or empty. expect, when not
// negative, is added to the header as the last sequence that the stream must have.
func appendPub(dst []byte, subject, replyTo string, header, data []byte, expect int64) []byte {
	if len(header) == 0 && expect < 0 {
		dst = append(dst, "PUB "...)
		dst = appendSubjects(dst, subject, replyTo)
		dst = strconv.AppendInt(dst, int64(len(data)), 10)
		dst = append(dst, "\r\n"...)
		dst = append(dst, data...)
		return append(dst, "\r\n"...)
	}
	hlen := len(header)
	if hlen == 0 {
		hlen = len(headerLine) + 2
	}
	if expect >= 0 {
		hlen += expectSize(expect)
	}
	dst = append(dst, "HPUB "...)
	dst = appendSubjects(dst, subject, replyTo)
	dst = strconv.AppendInt(dst, int64(hlen), 10)
	dst = append(dst, ' ')
	dst = strconv.AppendInt(dst, int64(hlen+len(data)), 10)
	dst = append(dst, "\r\n"...)
	dst = appendExpect(dst, header, expect)
	dst = append(dst, data...)
	return append(dst, "\r\n"...)
}

func appendSubjects(dst []byte, subject, replyTo string) []byte {
	dst = append(dst, subject...)
	dst = append(dst, ' ')
	if replyTo != "" {
		dst = append(dst, replyTo...)
		dst = append(dst, ' ')
	}
	return dst
}

// expectSize is what the header line with the expected sequence takes.
func expectSize(expect int64) int {
	var num [20]byte
	return len(expectHeader) + len(strconv.AppendInt(num[:0], expect, 10)) + len("\r\n")
}

// appendExpect appends the header block with the expected sequence as its last line.
func appendExpect(dst, header []byte, expect int64) []byte {
	if len(header) == 0 {
		dst = append(dst, headerLine...)
	} else {
		dst = append(dst, header[:len(header)-2]...)
	}
	if expect >= 0 {
		dst = append(dst, expectHeader...)
		dst = strconv.AppendInt(dst, expect, 10)
		dst = append(dst, "\r\n"...)
	}
	return append(dst, "\r\n"...)
}

// stripExpect is the inverse of appendExpect: it returns the header as it was given, nil when there was none.
func stripExpect(header []byte) []byte {
	if i := bytes.LastIndex(header, []byte("\r\n"+expectHeader)); i >= 0 {
		if rest := header[i+2:]; bytes.Count(rest, []byte("\r\n")) == 2 {
			if i+2 == len(headerLine) {
				return nil
			}
			return append(header[:i+2:i+2], "\r\n"...)
		}
	}
	return header
}
