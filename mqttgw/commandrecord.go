// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"encoding/binary"
	"errors"
	"math"
	"time"
)

// commandState is how far a command has come, as it is written in DOWN and in the view.
type commandState byte

const (
	commandQueued       commandState = iota // it waits for its device
	commandSent                             // its acknowledgement is awaited
	commandDone                             // sent with QoS 0: there is no more to come
	commandAcknowledged                     // by PUBACK or PUBREC
	commandRefused                          // by the device, or it cannot be sent to it
	commandExpired
	commandCancelled
	commandTold   // no state: events have told of everything up to the sequence
	commandStates // how many there are
)

// The statuses of commands.
const (
	StatusQueued       = "queued"
	StatusSent         = "sent"
	StatusAcknowledged = "acknowledged"
	StatusRefused      = "refused"
	StatusExpired      = "expired"
	StatusCancelled    = "cancelled"
)

// CommandStatuses are all statuses, in the order of a command's life.
func CommandStatuses() []string {
	return []string{StatusQueued, StatusSent, StatusAcknowledged, StatusRefused, StatusExpired, StatusCancelled}
}

var statusNames = [commandStates]string{StatusQueued, StatusSent, StatusSent, StatusAcknowledged, StatusRefused, StatusExpired, StatusCancelled, ""}

func (s commandState) String() string { return statusNames[s] }

// final reports whether nothing more can become of a command.
func (s commandState) final() bool { return s >= commandDone }

// change is what became of a command. A message of changes in DOWN is a format byte and changes: the state, the command's sequence, the
// time, and the reason.
type change struct {
	state  commandState
	seq    uint64 // of the command
	at     time.Time
	reason string // "" = the state says it
}

const changesFormat = 1

var errChanges = errors.New("record of commands is damaged")

func (c *change) append(b []byte) []byte {
	b = binary.AppendUvarint(append(b, byte(c.state)), c.seq)
	return appendString(appendTime(b, c.at), c.reason)
}

// decodeChanges reads a message of changes and calls yield with each.
func decodeChanges(msg []byte, yield func(change)) error {
	c := recordCursor{b: msg}
	if c.byte() != changesFormat {
		return errChanges
	}
	for len(c.b) > 0 {
		ch := change{state: commandState(c.byte()), seq: c.number(maxCheckpoint), at: c.time(), reason: c.text()}
		if c.bad || ch.state >= commandStates || ch.seq == 0 {
			return errChanges
		}
		yield(ch)
	}
	return nil
}

// storedCommand is a command as the view has it: where it is and how far it has come. Its payload stands in DOWN.
type storedCommand struct {
	seq                   uint64
	id, device, principal string // the principal is "" if it does not matter
	topic                 string
	correlation, by, job  string
	qos                   byte
	state                 commandState
	reason                string
	created, expires      time.Time
	changed               time.Time
}

func (s *storedCommand) append(b []byte) []byte {
	b = binary.AppendUvarint(b, s.seq)
	for _, text := range [...]string{s.id, s.device, s.principal, s.topic, s.correlation, s.by, s.job, s.reason} {
		b = appendString(b, text)
	}
	b = append(b, s.qos, byte(s.state))
	for _, t := range [...]time.Time{s.created, s.expires, s.changed} {
		b = appendTime(b, t)
	}
	return b
}

// decodeCommand reads what append wrote; nothing of b is kept.
func decodeCommand(b []byte) (s storedCommand, err error) {
	c := recordCursor{b: b}
	s.seq = c.number(math.MaxInt64)
	for _, text := range [...]*string{&s.id, &s.device, &s.principal, &s.topic, &s.correlation, &s.by, &s.job, &s.reason} {
		*text = c.text()
	}
	s.qos, s.state = c.byte(), commandState(c.byte())
	for _, t := range [...]*time.Time{&s.created, &s.expires, &s.changed} {
		*t = c.time()
	}
	if c.bad || len(c.b) > 0 || s.seq == 0 || s.qos > 2 || s.state >= commandStates {
		return storedCommand{}, errChanges
	}
	return s, nil
}
