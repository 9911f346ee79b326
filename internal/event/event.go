// SPDX-License-Identifier: Apache-2.0

// Package event is the CloudEvents 1.0.2 envelope of the bridge and its encodings: HTTP (binary, structured, batch),
// the JSON format, NATS headers, and MQTT both ways.
//
// An Event is immutable once it has been handed on: the log, the router, the lanes and the MQTT tail share one value.
// Data is the payload as it was received and is never parsed unless someone asks. Decoders refuse what the
// specification refuses and name the attribute; they copy what they keep, so a caller may reuse its buffer (the one
// exception is the body in HTTP binary mode, which becomes Data as it is). Encoders expect a valid event, as the
// decoders and Validate leave it.
//
// Attributes keep the types that the encoding can tell apart: in the JSON format an extension is a string, an int32 or
// a bool; in HTTP headers and MQTT user properties every value is text, so every extension read from them is a string.
// The log keeps the types.
//
// The package uses the standard library only, starts no goroutine and holds no state but the last time that NewID has
// given out. All functions may be called from any goroutine.
package event

import (
	"crypto/sha256"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Event is a CloudEvent 1.0. The zero value of an optional attribute means that it is absent.
type Event struct {
	ID, Source, Type, Subject, DataContentType, DataSchema string
	Time                                                   time.Time   // zero = absent
	Extensions                                             []Attribute // few; sorted by name, each name once
	Data                                                   []byte      // nil = absent, which is not the same as empty; the payload as received
}

// Attribute is an extension attribute. Value is a string, an int32 or a bool, as patterns and JSON see it.
type Attribute struct {
	Name  string
	Value any
}

// Extension returns the value of an extension and whether it is there.
func (e *Event) Extension(name string) (any, bool) {
	for i := range e.Extensions {
		if e.Extensions[i].Name == name {
			return e.Extensions[i].Value, true
		}
	}
	return nil, false
}

// Expiry returns the time in the extension expirytime; ok is false if there is none, or nothing that can be read as one.
func (e *Event) Expiry() (at time.Time, ok bool) {
	v, _ := e.Extension("expirytime")
	s, isText := v.(string)
	if !isText {
		return at, false
	}
	at, why := parseTime(s)
	return at, why == ""
}

// Record is an event together with what the bridge knows of its arrival. It is what a bus stores. Immutable once
// appended.
type Record struct {
	Event    Event
	Received time.Time // when the bridge accepted it; set by bridge.Ingest, stored with nanoseconds
	Minted   bool      // the bridge chose the id, so it is not deduplicated
	MQTT     *Origin   // non-nil for an event that was published over MQTT
	Hops     []Hop     // where the event stood before, for one that came over links; the first is where it was accepted
	Link     string    // the link that brought it, in words of package region
}

// Hop is a place in the log of another bridge from which an event was forwarded.
type Hop struct {
	Instance string // of the bridge: 1 to 32 of a-z and 0-9
	Position Position
}

// String returns <instance>/<stream>:<sequence>.
func (h Hop) String() string { return h.Instance + "/" + h.Position.String() }

// MarshalText is String.
func (h Hop) MarshalText() ([]byte, error) { return []byte(h.String()), nil }

// MaxHops is how many bridges an event may pass.
const MaxHops = 16

// Passed reports whether the event has been in a bridge before.
func (r *Record) Passed(instance string) bool {
	for i := range r.Hops {
		if r.Hops[i].Instance == instance {
			return true
		}
	}
	return false
}

// Stood returns the sequence at which the event stood in a stream of another bridge; 0 if it did not.
func (r *Record) Stood(instance, stream string) uint64 {
	for i := range r.Hops {
		if r.Hops[i].Instance == instance && r.Hops[i].Position.Stream == stream {
			return r.Hops[i].Position.Seq
		}
	}
	return 0
}

// DedupKey returns what the record is recognised by when it is sent again; the zero Key if it is not. For an event of another
// bridge that is the place where that accepted it, whatever way it came; else source and id, if they were the producer's.
func (r *Record) DedupKey() Key {
	switch {
	case len(r.Hops) > 0:
		return r.Hops[0].key(&r.Event)
	case r.Minted:
		return Key{}
	}
	return r.Event.Key()
}

// key is what an event is recognised by that stood at the hop; it cannot be that of another one: a source holds no NUL. The event
// is in it because a log that was restored from a backup gives its positions again.
func (h Hop) key(e *Event) Key {
	own := e.Key()
	sum := sha256.Sum256([]byte("\x00hop\x00" + h.String() + "\x00" + string(own[:])))
	return Key(sum[:16])
}

// Origin is how an event was published over MQTT, kept so that it can be passed on to subscribers without loss.
type Origin struct {
	Topic      string // byte-exact
	Client     string // client id of the publisher, for No Local
	Principal  string // who published; "" for anonymous
	QoS        byte   // 0, 1, 2
	Retain     bool
	Version    byte   // 4 or 5
	Levels     byte   // of the topic that stand in the subject in the log, at most; 0 = the log's default; not stored
	Properties []byte // raw MQTT 5 properties worth passing on (payload format, expiry, content type, response topic, correlation data, user properties in order), without their length; nil for 3.1.1

	// Sparkplug is what the payload leaves to the birth of its edge node or device; non-nil, also if that is nothing, for
	// a payload that rules and readers see decoded. See package sparkplug.
	Sparkplug []byte
}

// Position is where an event is in the log.
type Position struct {
	Stream string // such as EV_default
	Seq    uint64 // 1 is the first
}

// String returns <stream>:<sequence>.
func (p Position) String() string { return p.Stream + ":" + strconv.FormatUint(p.Seq, 10) }

// IsZero reports whether p is no position.
func (p Position) IsZero() bool { return p.Seq == 0 }

// MarshalText is String.
func (p Position) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText is ParsePosition.
func (p *Position) UnmarshalText(b []byte) (err error) {
	*p, err = ParsePosition(string(b))
	return err
}

// ParsePosition reads what String wrote.
func ParsePosition(s string) (Position, error) {
	i := strings.LastIndexByte(s, ':')
	if i <= 0 {
		return Position{}, fmt.Errorf("position %q is not <stream>:<sequence>", s)
	}
	n, err := strconv.ParseUint(s[i+1:], 10, 64)
	if err != nil || n == 0 {
		return Position{}, fmt.Errorf("position %q is not <stream>:<sequence>", s)
	}
	return Position{Stream: s[:i], Seq: n}, nil
}

// Key is the identity of an event, a hash of source and id (CloudEvents 1.0.2 section 3.1: source + id is unique for
// each distinct event). It is stored beside positions, so that a position can be checked on read.
type Key [16]byte

// Key returns the identity of the event.
func (e *Event) Key() Key {
	var buf [256]byte
	b := append(buf[:0], e.Source...)
	b = append(b, 0)
	b = append(b, e.ID...)
	sum := sha256.Sum256(b)
	return Key(sum[:16])
}

// Error is why an event was refused. Its text names the attribute and what is allowed, and never repeats a value.
type Error struct {
	Attribute   string // attribute at fault, in lower case as sent; "data", "data_base64"; "" when the whole is wrong
	Index       int    // position in a batch; -1 outside a batch
	Reason      string // what is wrong and what is allowed
	Unsupported bool   // the media type, encoding or spec version is not understood (HTTP 415)
	TooLarge    bool   // the event or the batch is over a size limit (HTTP 413)
}

// Error returns the reason, with the attribute in front.
func (e *Error) Error() string {
	s := e.Reason
	if e.Attribute != "" {
		s = e.Attribute + ": " + s
	}
	if e.Index >= 0 {
		s = "event " + strconv.Itoa(e.Index) + ": " + s
	}
	return s
}

// Pointer is where the fault is, as a JSON pointer: /<attribute>, /<index>/<attribute> in a batch, "" for the whole.
func (e *Error) Pointer() string {
	var p string
	if e.Index >= 0 {
		p = "/" + strconv.Itoa(e.Index)
	}
	if e.Attribute != "" {
		p += "/" + strings.ReplaceAll(strings.ReplaceAll(e.Attribute, "~", "~0"), "/", "~1")
	}
	return p
}
