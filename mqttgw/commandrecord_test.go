// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"bytes"
	"reflect"
	"testing"
	"time"
)

var changeCases = []change{
	{state: commandQueued, seq: 1, reason: reasonRestarted},
	{state: commandSent, seq: 2, at: time.UnixMilli(1_800_000_000_000).UTC()},
	{state: commandRefused, seq: 1 << 40, at: time.UnixMilli(1).UTC(), reason: "reason code 0x87"},
	{state: commandTold, seq: 7},
}

func TestChanges(t *testing.T) {
	msg := []byte{changesFormat}
	for _, c := range changeCases {
		msg = c.append(msg)
	}
	var got []change
	if err := decodeChanges(msg, func(c change) { got = append(got, c) }); err != nil || !reflect.DeepEqual(got, changeCases) {
		t.Errorf("%+v, %v, want %+v", got, err, changeCases)
	}
	for _, bad := range [][]byte{nil, {9}, {changesFormat, byte(commandStates), 1, 0, 0}, {changesFormat, 0, 0, 0, 0}, msg[:len(msg)-1]} {
		if err := decodeChanges(bad, func(change) {}); err == nil {
			t.Errorf("%x is taken", bad)
		}
	}
}

// FuzzChanges: what can be read is written the same way.
func FuzzChanges(f *testing.F) {
	for _, c := range changeCases {
		f.Add(c.append([]byte{changesFormat}))
	}
	f.Fuzz(func(t *testing.T, msg []byte) {
		out := []byte{changesFormat}
		if decodeChanges(msg, func(c change) { out = c.append(out) }) != nil {
			return
		}
		again := []byte{changesFormat}
		if err := decodeChanges(out, func(c change) { again = c.append(again) }); err != nil || !bytes.Equal(out, again) {
			t.Errorf("%x, %x, %v", out, again, err)
		}
	})
}

var commandCases = []storedCommand{
	{seq: 1, id: "a", device: "box", topic: "t"},
	{seq: 1 << 50, id: "b", device: "b/ü", principal: "p", topic: "a/b", correlation: "c", by: "k", job: "broadcast-1", qos: 2, state: commandAcknowledged, reason: "r",
		created: time.UnixMilli(5).UTC(), expires: time.UnixMilli(6).UTC(), changed: time.UnixMilli(7).UTC()},
}

func TestStoredCommand(t *testing.T) {
	for _, c := range commandCases {
		b := c.append(nil)
		if got, err := decodeCommand(b); err != nil || got != c {
			t.Errorf("%+v, %v, want %+v", got, err, c)
		}
		for n := range len(b) {
			if _, err := decodeCommand(b[:n]); err == nil {
				t.Errorf("%d bytes of %d are taken", n, len(b))
			}
		}
	}
}

// FuzzStoredCommand: what can be read is written the same way.
func FuzzStoredCommand(f *testing.F) {
	for _, c := range commandCases {
		f.Add(c.append(nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := decodeCommand(b)
		if err != nil {
			return
		}
		if again, err := decodeCommand(c.append(nil)); err != nil || again != c {
			t.Errorf("%+v, %+v, %v", c, again, err)
		}
	})
}
