// SPDX-License-Identifier: Apache-2.0

package eventlog

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/rialto-bridge/rialto/internal/fault"
)

// pubAck is the server's answer to the last message of a batch.
type pubAck struct {
	Stream string `json:"stream"`
	Seq    uint64 `json:"seq"`
	Error  *struct {
		ErrCode     int    `json:"err_code"`
		Description string `json:"description"`
	} `json:"error"`
}

// Codes of the JetStream API.
const (
	codeWrongLast  = 10071
	codeNoStorage1 = 10023 // insufficient resources
	codeNoStorage2 = 10047 // storage resources exceeded
)

func (a *pubAck) err() error {
	if a.Error == nil {
		return fmt.Errorf("acknowledged up to sequence %d", a.Seq)
	}
	return fmt.Errorf("server refused: %s (%d)", a.Error.Description, a.Error.ErrCode)
}

// parseAck reads {"stream":"X","seq":N}, the common form, by hand.
func parseAck(r reply) (pubAck, error) {
	if r.status != "" {
		return pubAck{}, fmt.Errorf("server answered with status %s", r.status)
	}
	if i := bytes.Index(r.data, []byte(`"seq":`)); i >= 0 && !bytes.Contains(r.data, []byte(`"error"`)) {
		num := bytes.TrimLeft(r.data[i+len(`"seq":`):], " ")
		end := 0
		for end < len(num) && num[end] >= '0' && num[end] <= '9' {
			end++
		}
		if n, err := strconv.ParseUint(string(num[:end]), 10, 64); err == nil {
			return pubAck{Seq: n}, nil
		}
	}
	var a pubAck
	if err := json.Unmarshal(r.data, &a); err != nil {
		return pubAck{}, fmt.Errorf("acknowledgement: %w", err)
	}
	return a, nil
}

// fence returns the server's last sequence after everything that was sent before has been handled: it asks for a
// store at an impossible sequence, which is refused in the order of the stream, and the refusal says the last one.
func (s *Stream) fence() (uint64, error) {
	frame := appendPub(nil, s.gap, s.wire.inbox+".f", nil, nil, math.MaxInt64)
	rep, err := s.request(frame)
	for ; err == nil; rep, err = s.nextReply() {
		ack, perr := parseAck(rep)
		switch {
		case perr != nil:
			return 0, perr
		case rep.subject != s.wire.inbox+".f":
			continue // the answer that was waited for before
		case ack.Error == nil || ack.Error.ErrCode != codeWrongLast:
			return 0, ack.err()
		}
		_, num, _ := bytes.Cut([]byte(ack.Error.Description), []byte("wrong last sequence: "))
		last, perr := strconv.ParseUint(string(num), 10, 64)
		if perr != nil {
			return 0, fmt.Errorf("last sequence: %w", perr)
		}
		return last, nil
	}
	return 0, err
}

// nextReply waits for one more reply.
func (s *Stream) nextReply() (reply, error) {
	t := time.NewTimer(s.log.opts.ackTimeout)
	defer t.Stop()
	select {
	case r := <-s.wire.replies:
		return r, nil
	case <-s.wire.done:
		return reply{}, s.wire.err
	case <-t.C:
		return reply{}, errNoAnswer
	}
}

// resolve finds out which messages of b were stored after an answer that was not the expected one, or none: it reads
// the tail back. What was stored is committed like any other; the rest ends with an error. A server that did not answer
// in time closes the log: it could not write.
func (s *Stream) resolve(b *batch, cause error) {
	s.logger.Warn("batch was not acknowledged as a whole", "messages", b.sent, "err", cause)
	last, err := s.settle()
	if err == nil && errors.Is(cause, errNoAnswer) {
		err = errNoAnswer
	}
	if err != nil {
		s.refuse(b, s.log.fail(fmt.Errorf("stream %s: %w", s.name, errors.Join(cause, err))))
		return
	}
	refusal := fault.New(fault.Unavailable, "the event was not stored, try again")
	refusal.RetryAfter, refusal.Err = time.Second, cause
	stored, err := s.match(b, last)
	if err != nil {
		s.refuse(b, s.log.fail(fmt.Errorf("stream %s: read the tail back: %w", s.name, err)))
		return
	}
	b.sent, b.bytes = 0, 0
	for i := range b.items {
		it := &b.items[i]
		if it.subject == "" {
			continue
		}
		if it.seq = stored[i]; it.seq == 0 {
			it.err = refusal
			continue
		}
		b.sent++
		b.bytes += int64(it.size)
	}
	s.last = last
}

// settle returns the server's last sequence when nothing is on its way any more.
func (s *Stream) settle() (uint64, error) {
	select {
	case <-s.wire.done:
		// What the dead connection had sent was queued before it ended; a fence on a new one comes after it.
		if err := s.dial(); err != nil {
			return 0, err
		}
	default:
	}
	return s.fence()
}

// match looks for the items of b, in their order, among the records after s.last, and returns the sequence of each.
func (s *Stream) match(b *batch, last uint64) ([]uint64, error) {
	stored := make([]uint64, len(b.items))
	if last <= s.last {
		return stored, nil
	}
	if err := s.blocks.refresh(); err != nil {
		return nil, err
	}
	i := 0
	_, err := s.blocks.scan(s.last+1, last, func(r *record) bool {
		for j := i; j < len(b.items); j++ {
			it := &b.items[j]
			if it.subject != "" && string(r.subject) == it.subject && bytes.Equal(stripExpect(r.header), it.header) && bytes.Equal(r.data, it.data) {
				stored[j] = r.seq
				i = j + 1
				break
			}
		}
		return i < len(b.items)
	})
	return stored, err
}
