// SPDX-License-Identifier: Apache-2.0

package event

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"sync/atomic"
	"time"
)

// IDTime is the time in an id that NewID has made, in milliseconds since 1970; ok is false for what is no UUID version 7.
func IDTime(id string) (ms uint64, ok bool) {
	if len(id) != 36 || id[8] != '-' || id[13] != '-' || id[14] != '7' {
		return 0, false
	}
	var b [6]byte
	if _, err := hex.Decode(b[:4], []byte(id[:8])); err != nil {
		return 0, false
	}
	if _, err := hex.Decode(b[4:], []byte(id[9:13])); err != nil {
		return 0, false
	}
	return uint64(binary.BigEndian.Uint32(b[:4]))<<16 | uint64(binary.BigEndian.Uint16(b[4:])), true
}

// lastID is the time of the newest id, in 4096ths of a millisecond since 1970.
var lastID atomic.Uint64

// NewID returns a new UUID version 7 (RFC 9562 section 5.7) as lower-case text. The twelve bits after the milliseconds
// are a fraction of the millisecond (section 6.2, method 3), moved on by one where two ids would share it, so that ids
// of one process sort in the order of the calls, whatever the wall clock does. The other 62 bits are random.
func NewID() string {
	now := time.Now()
	ms := now.UnixMilli()
	tick := uint64(ms)<<12 | uint64(now.Sub(time.UnixMilli(ms)).Nanoseconds())<<12/uint64(time.Millisecond)
	for {
		last := lastID.Load()
		tick = max(tick, last+1)
		if lastID.CompareAndSwap(last, tick) {
			break
		}
	}
	var id [16]byte
	binary.BigEndian.PutUint64(id[:8], tick>>12<<16|0x7000|tick&0xfff)
	rand.Read(id[8:]) // never fails: it ends the program when the system has no randomness
	id[8] = id[8]&0x3f | 0x80
	var text [36]byte
	hex.Encode(text[0:8], id[0:4])
	hex.Encode(text[9:13], id[4:6])
	hex.Encode(text[14:18], id[6:8])
	hex.Encode(text[19:23], id[8:10])
	hex.Encode(text[24:36], id[10:16])
	text[8], text[13], text[18], text[23] = '-', '-', '-', '-'
	return string(text[:])
}
