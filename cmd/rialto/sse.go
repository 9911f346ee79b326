// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

const maxStreamLine = 16 << 20 // bytes: an event of 8 MiB in base64, and some

// streamMessage is one message of a server-sent event stream (HTML Living Standard, section 9.2).
type streamMessage struct {
	ID    string // of the last id line so far, also of an earlier message
	Event string // "message" when the stream names none
	Data  string // "" when the message only brings an id
}

// streamReader reads a server-sent event stream.
type streamReader struct {
	scan  *bufio.Scanner
	id    string
	Retry time.Duration // what the server asked for; 0 when it did not
}

func newStreamReader(r io.Reader) *streamReader {
	scan := bufio.NewScanner(r)
	scan.Buffer(make([]byte, 64<<10), maxStreamLine)
	return &streamReader{scan: scan}
}

// Next blocks until there is a message, or an id that comes without one. At the end of the stream it returns io.EOF; an
// unfinished message is dropped, as the standard says.
func (s *streamReader) Next() (streamMessage, error) {
	m := streamMessage{Event: "message"}
	var data []string
	for id := s.id; s.scan.Scan(); {
		line := s.scan.Text()
		if line == "" {
			if data == nil && id == s.id {
				m.Event = "message"
				continue
			}
			s.id = id
			m.ID, m.Data = id, strings.Join(data, "\n")
			return m, nil
		}
		field, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch field {
		case "data":
			data = append(data, value)
		case "event":
			m.Event = value
		case "id":
			if !strings.Contains(value, "\x00") {
				id = value
			}
		case "retry":
			if ms, err := strconv.Atoi(value); err == nil && ms >= 0 {
				s.Retry = time.Duration(ms) * time.Millisecond
			}
		}
	}
	if err := s.scan.Err(); err != nil {
		if errors.Is(err, bufio.ErrTooLong) {
			return m, fmt.Errorf("a line of the stream is longer than %d MiB", maxStreamLine>>20)
		}
		return m, err
	}
	return m, io.EOF
}
