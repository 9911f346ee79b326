// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
)

// Route is a rule, at a revision, and one of its targets: one obligation an event can bring about.
type Route struct {
	Rule     string
	Revision uint64
	Target   string
}

// Check is four bytes of an event's Key, kept beside positions: a reused sequence is noticed by it.
type Check uint32

// CheckOf returns the check of a key.
func CheckOf(k event.Key) Check { return Check(binary.BigEndian.Uint32(k[:4])) }

// State is where a delivery stands.
type State byte

// The states. Live is the only one without a record of its own: it begins with Routed.
const (
	Live      State = 'l' // routed, not settled yet
	Parked    State = 'p' // waits on disk until it is due
	Delivered State = 'd'
	Dead      State = 'x' // ended without success; a copy is in DEAD
	Cancelled State = 'c' // its rule or target was deleted, or its event is gone
	Expired   State = 'e' // the event's expirytime came first
	Discarded State = 'w' // it was dead, and somebody has written it off or sent it to another target
)

var stateNames = map[State]string{Live: "live", Parked: "parked", Delivered: "delivered", Dead: "dead", Cancelled: "cancelled",
	Expired: "expired", Discarded: "discarded"}

// String returns the word users see.
func (s State) String() string { return stateNames[s] }

// MarshalText is String.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads what String wrote.
func (s *State) UnmarshalText(b []byte) error {
	for v, name := range stateNames {
		if name == string(b) {
			*s = v
			return nil
		}
	}
	return fmt.Errorf("no delivery state %q", b)
}

// Terminal reports whether nothing further happens in the state unless somebody asks for it.
func (s State) Terminal() bool { return s != Live && s != Parked }

// Routed says that an event has been matched and what it owes.
type Routed struct {
	Seq    uint64
	Check  Check
	Hour   uint32 // of the event's arrival, hours since 1970
	Routes []Route
	Ranged []Route // owed as well, and not live: see Range
}

// HourOf returns the hour of a time as used in records and the ledger; 0 for a time before those are counted.
func HourOf(t time.Time) uint32 { return uint32(max(t.Unix(), 0) / 3600) }

// Outcome says what became of a delivery: an attempt's result, or a change of state without an attempt.
type Outcome struct {
	Seq      uint64
	Route    Route
	State    State
	Attempt  int           // number of the attempt that led here; 0 = none was made
	At       time.Time     // when the attempt began, or when the state changed; milliseconds are kept
	Duration time.Duration // of the attempt; microseconds are kept
	Status   int           // answer of the far side; 0 = none
	Reason   string        // why it failed, a targets.Reason or a word of the bridge's; "" for Delivered
	Detail   string        // for people, at most maxDetail bytes
	Due      time.Time     // Parked: when it is tried again; milliseconds are kept
	DeadSeq  uint64        // Dead: its place in DEAD
	Key      uint64        // Parked: what it is in order with, 0 = nothing
	Exchange Exchange      // how the attempt went on the wire
}

// Exchange is how an attempt went on the wire, as far as it is known: targets.Exchange. Microseconds are kept.
type Exchange struct {
	Remote            string
	Reused            bool
	DNS, Connect, TLS time.Duration
	FirstByte         time.Duration
	Head              string // at most maxHead bytes; not kept of what was delivered
}

// Pending is a delivery that is not settled for good, as the views keep it. As a record it is one that found no place in
// its event's Routed record, which follows: an event may owe more than one message can say.
type Pending struct {
	Seq      uint64
	Route    Route
	Check    Check
	Hour     uint32
	State    State     // Live or Parked
	Attempts int       // attempts made so far
	Due      time.Time // Parked
	First    time.Time // start of the first attempt; zero if there was none
	Record   uint64    // sequence of the JOURNEY message that says so; not part of the record itself
	Redrive  *Redriven // nil unless it was redriven; not part of the record either
	Key      uint64    // Parked: as in its Outcome; not part of the record either
}

// Buried is a dead letter as the views list it, written down once more because JOURNEY is about to forget how it died.
type Buried struct {
	Seq    uint64 // in DEAD
	Listed []byte // what the views have of it
}

// RuleRef names a rule at a revision.
type RuleRef struct {
	Name     string
	Revision uint64
}

// Mark says which rules are in force from a position on.
type Mark struct {
	First   uint64 // first sequence routed by them
	Ruleset uint64 // revision of the set
	Part    int    // a large set is spread over several marks, numbered from 0
	Rules   []RuleRef
}

// RuleDoc is a rule's document at a revision.
type RuleDoc struct {
	Name     string
	Revision uint64
	Raw      []byte
}

const (
	formatVersion = 2
	maxDetail     = 256
	maxHead       = 16 << 10
	// headRoom is how many bytes of heads a message holds: targets that fail in many ways at once do not fill the disk
	// with it. One that has no room any more is cut to shortHead. Equal ones are there once.
	headRoom  = 32 << 10
	shortHead = 512

	kindRoute   = 'r' // defines the next route index of this message
	kindText    = 't' // defines the next text index, from 1: an address, or a head
	kindRouted  = 'R'
	kindRanged  = 'N' // as kindRouted, with what is ranged behind
	kindSkipped = 'S' // sequences without an event
	kindOutcome = 'O'
	kindKeyed   = 'K' // an outcome with a key before
	kindPending = 'P'
	kindMark    = 'M'
	kindRuleDoc = 'D'
	kindFloor   = 'F'
	kindBuried  = 'B'
)
