// SPDX-License-Identifier: Apache-2.0

package event

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/binary"
	"strconv"
	"time"
	"unicode/utf8"
)

// DefaultMQTTType is the type of a publish that is no CloudEvent, unless a topic mapping says otherwise.
const DefaultMQTTType = "io.rialto.mqtt.publish"

// MQTTMessage is what an MQTT PUBLISH and a CloudEvent have to do with each other. The properties are MQTT 5 only.
type MQTTMessage struct {
	Topic          string
	Payload        []byte
	Version, QoS   byte // 4 is MQTT 3.1.1, 5 is MQTT 5
	Retain         bool
	ContentType    string      // "" = absent
	PayloadUTF8    bool        // payload format indicator 1
	UserProperties [][2]string // in the order of the packet, repeats included
	Raw            []byte      // the properties as the packet has them, without their length
}

// MQTTDefaults is what a publish gets that is no CloudEvent.
type MQTTDefaults struct {
	Source string    // MQTTSource of the connection
	Type   string    // "" is DefaultMQTTType
	Time   time.Time // when it arrived

	Subject    string      // "" is the topic
	Extensions []Attribute // sorted by name; the event's own from then on
}

// MQTTSource is the source of what a client publishes: mqtt://<gateway>/<client id>. Client ids are opaque, so
// everything in them but unreserved characters is percent-coded, as in a gateway that is no host[:port]. It costs an
// allocation, so a connection asks for it once.
func MQTTSource(gateway, client string) string {
	b := []byte("mqtt://")
	if isAuthority(gateway) {
		b = append(b, gateway...)
	} else {
		b = appendSegment(b, gateway)
	}
	return string(appendSegment(append(b, '/'), client))
}

// appendSegment appends s with everything but unreserved characters (RFC 3986 section 2.3) percent-coded.
func appendSegment(dst []byte, s string) []byte {
	for i := 0; i < len(s); i++ {
		if c := s[i]; class[c]&uriUnreserved != 0 {
			dst = append(dst, c)
		} else {
			dst = append(dst, '%', upperHex[c>>4], upperHex[c&15])
		}
	}
	return dst
}

// FromMQTT reads an event from a publish (MQTT binding 1.0.2) and validates it. It copies the payload and keeps the
// strings of m; an empty payload is no data. There are three cases:
//
//   - MQTT 5 with Content Type application/cloudevents+json is structured. It has to be a good event.
//   - MQTT 5 with the four required attributes among its user properties is binary. It has to be a good event. User
//     properties whose names are no attribute names, and data, are not the event's; every extension is a string; Content
//     Type wins over a user property datacontenttype.
//   - In MQTT 3.1.1 structured is all there is and nothing announces it, so a payload that is a good event is one.
//
// All else is a plain publish, which becomes an event whose source, type, time and extensions come from d and whose subject
// is d's or the topic; what a CloudEvents string may not hold is percent-coded in type, subject and extensions. Its datacontenttype is the Content Type where
// that is a media type, else application/json when the payload is JSON, else text/plain when the sender has said that it
// is UTF-8. minted is true and ID is empty, because the caller has the id to choose.
//
// The error is an *Error. A plain publish is refused for its size alone.
func FromMQTT(m MQTTMessage, d MQTTDefaults, lim Limits) (e Event, minted bool, err error) {
	lim = lim.withDefaults()
	var f *Error
	switch {
	case m.Version < 5:
		var ok bool
		if e, ok = m.implied(lim); !ok {
			e, minted, f = m.plain(d, &lim)
		}
	case isFormat(m.ContentType, StructuredType):
		e, err = ParseJSON(m.Payload, lim)
		if err != nil {
			return Event{}, false, err
		}
	case m.isBinaryEvent():
		e, f = m.binary(&lim)
	default:
		e, minted, f = m.plain(d, &lim)
	}
	if f == nil {
		f = m.sizeFault(&e, &lim)
	}
	if f != nil {
		return Event{}, false, f
	}
	return e, minted, nil
}

// implied reads a payload of MQTT 3.1.1 as an event, if it is one.
func (m *MQTTMessage) implied(lim Limits) (Event, bool) {
	if !bytes.Contains(m.Payload, []byte(`"specversion"`)) {
		return Event{}, false
	}
	e, err := ParseJSON(m.Payload, lim)
	return e, err == nil
}

// sizeFault refuses what would not fit the log together with the topic and the properties.
func (m *MQTTMessage) sizeFault(e *Event, lim *Limits) *Error {
	n := base64.StdEncoding.EncodedLen(len(m.Raw))
	if m.Topic != e.Subject {
		n += percentLen(m.Topic)
	}
	if e.headerBound()+n > lim.MaxHeader && e.headerLen()+n > lim.MaxHeader {
		return &Error{Index: -1, Reason: "topic, attributes and properties together, encoded, " + tooLong(lim.MaxHeader), TooLarge: true}
	}
	return nil
}

// isBinaryEvent reports whether all required attributes are there.
func (m *MQTTMessage) isBinaryEvent() bool {
	var version, id, source, kind bool
	for i := range m.UserProperties {
		switch m.UserProperties[i][0] {
		case "specversion":
			version = true
		case "id":
			id = true
		case "source":
			source = true
		case "type":
			kind = true
		}
	}
	return version && id && source && kind
}

func (m *MQTTMessage) binary(lim *Limits) (Event, *Error) {
	var e Event
	var seen uint
	for i := range m.UserProperties {
		name, value := m.UserProperties[i][0], m.UserProperties[i][1]
		if f := e.property(name, value, &seen, lim); f != nil {
			return Event{}, f
		}
	}
	if m.ContentType != "" {
		e.DataContentType = m.ContentType
	}
	if len(m.Payload) > 0 {
		e.Data = bytes.Clone(m.Payload)
	}
	if f := e.fault(lim); f != nil {
		return Event{}, f
	}
	return e, nil
}

// property reads one user property. seen has the bits of the core attributes that have been there.
func (e *Event) property(name, value string, seen *uint, lim *Limits) *Error {
	var field *string
	var bit uint
	switch name {
	case "specversion":
		bit = seenSpecVersion
	case "time":
		bit = seenTime
	case "id":
		bit, field = seenID, &e.ID
	case "source":
		bit, field = seenSource, &e.Source
	case "type":
		bit, field = seenType, &e.Type
	case "subject":
		bit, field = seenSubject, &e.Subject
	case "datacontenttype":
		bit, field = seenDataContentType, &e.DataContentType
	case "dataschema":
		bit, field = seenDataSchema, &e.DataSchema
	default:
		return e.extraProperty(name, value, lim)
	}
	if *seen&bit != 0 {
		return refuse(name, isRepeated)
	}
	*seen |= bit
	switch {
	case value == "":
		return refuse(name, "must not be empty")
	case name == "specversion" && value != "1.0":
		return unsupportedVersion()
	case name == "time":
		t, reason := parseTime(value)
		if reason != "" {
			return refuse(name, reason)
		}
		e.Time = t
	case field != nil:
		*field = value
	}
	return nil
}

// extraProperty reads a user property that is an extension, or passes over it.
func (e *Event) extraProperty(name, value string, lim *Limits) *Error {
	if !isName(name) || name == "data" {
		return nil
	}
	if r := extensionNameFault(name, lim.MaxName); r != "" {
		return refuseName(name, r)
	}
	if len(e.Extensions) >= lim.MaxExtensions {
		return refuse("", "at most "+strconv.Itoa(lim.MaxExtensions)+" extensions are allowed")
	}
	var ok bool
	if e.Extensions, ok = addExtension(e.Extensions, name, value); !ok {
		return refuse(name, isRepeated)
	}
	return nil
}

func (m *MQTTMessage) plain(d MQTTDefaults, lim *Limits) (Event, bool, *Error) {
	e := Event{
		ID:              "-", // stands in for the id to come
		Source:          d.Source,
		Type:            plainText(d.Type),
		Subject:         plainText(cmp.Or(d.Subject, m.Topic)),
		DataContentType: m.plainType(lim),
		Time:            d.Time,
	}
	if e.Type == "" {
		e.Type = DefaultMQTTType
	}
	e.Extensions = d.Extensions
	for i := range e.Extensions {
		if s, ok := e.Extensions[i].Value.(string); ok {
			e.Extensions[i].Value = plainText(s)
		}
	}
	if len(m.Payload) > 0 {
		e.Data = bytes.Clone(m.Payload)
	}
	if f := e.fault(lim); f != nil {
		return Event{}, false, f
	}
	e.ID = ""
	return e, true, nil
}

// plainType is the datacontenttype of a publish that is no CloudEvent.
func (m *MQTTMessage) plainType(lim *Limits) string {
	switch {
	case m.ContentType != "" && len(m.ContentType) <= lim.MaxAttribute && isMediaType(m.ContentType):
		return m.ContentType
	case isValidJSON(m.Payload):
		return "application/json"
	case m.PayloadUTF8 && len(m.Payload) > 0 && utf8.Valid(m.Payload):
		return "text/plain; charset=utf-8"
	}
	return ""
}

// plainText is a topic, or what was made of it, with what no CloudEvents string may hold percent-coded.
func plainText(topic string) string {
	if textFault(topic, len(topic)) == "" {
		return topic
	}
	b := make([]byte, 0, len(topic)+16)
	for i := 0; i < len(topic); {
		_, n := utf8.DecodeRuneInString(topic[i:])
		if part := topic[i : i+n]; textFault(part, n) == "" {
			b = append(b, part...)
		} else {
			for _, c := range []byte(part) {
				b = append(b, '%', upperHex[c>>4], upperHex[c&15])
			}
		}
		i += n
	}
	return string(b)
}

// The MQTT 5 properties that an event becomes (MQTT 5 section 3.3.2.3).
const (
	propertyPayloadFormat = 0x01
	propertyContentType   = 0x03
	propertyUser          = 0x26
)

// ToMQTT makes the payload and the properties of a publish (MQTT binding 1.0.2). For MQTT 5 the event is in binary mode:
// attributes are user properties, in canonical text, and datacontenttype is the Content Type. For MQTT 3.1.1, which has
// no place for attributes, it is the data alone, because that is what devices expect. If structured, it is the whole
// event in the JSON format in both; so is an event whose datacontenttype is a CloudEvents media type itself, because in
// binary mode it would be taken for what it is not. Raw has the same properties encoded; topic, QoS and retain are the caller's to set.
// The payload may be e.Data itself. The error is an *Error, for an attribute longer than the 65,535 bytes of an MQTT
// string.
func ToMQTT(e *Event, version byte, structured bool) (MQTTMessage, error) {
	m := MQTTMessage{Version: version, Payload: e.Data}
	switch {
	case structured || version >= 5 && ModeOf(e.DataContentType) != Binary:
		m.Payload = AppendJSON(nil, e)
		if version >= 5 {
			m.ContentType, m.PayloadUTF8 = StructuredType, true
		}
	case version >= 5:
		m.ContentType = e.DataContentType
		m.PayloadUTF8 = len(e.Data) > 0 && (IsJSON(e.DataContentType) || isText(e.DataContentType)) && utf8.Valid(e.Data)
		m.UserProperties = e.userProperties()
	}
	if version < 5 {
		return m, nil
	}
	if f := m.encodeProperties(); f != nil {
		return MQTTMessage{}, f
	}
	return m, nil
}

func (e *Event) userProperties() [][2]string {
	p := make([][2]string, 0, 7+len(e.Extensions))
	p = append(p, [2]string{"specversion", "1.0"}, [2]string{"id", e.ID}, [2]string{"source", e.Source}, [2]string{"type", e.Type})
	if e.Subject != "" {
		p = append(p, [2]string{"subject", e.Subject})
	}
	if !e.Time.IsZero() {
		p = append(p, [2]string{"time", string(appendTime(nil, e.Time))})
	}
	if e.DataSchema != "" {
		p = append(p, [2]string{"dataschema", e.DataSchema})
	}
	for i := range e.Extensions {
		p = append(p, [2]string{e.Extensions[i].Name, e.Extensions[i].Canonical()})
	}
	return p
}

// encodeProperties fills Raw.
func (m *MQTTMessage) encodeProperties() *Error {
	const longest = 65535
	n := 2 + 3 + len(m.ContentType)
	for i := range m.UserProperties {
		n += 5 + len(m.UserProperties[i][0]) + len(m.UserProperties[i][1])
	}
	b := make([]byte, 0, n)
	if m.PayloadUTF8 {
		b = append(b, propertyPayloadFormat, 1)
	}
	if m.ContentType != "" {
		if len(m.ContentType) > longest {
			return refuse("datacontenttype", tooLong(longest))
		}
		b = appendMQTTString(append(b, propertyContentType), m.ContentType)
	}
	for i := range m.UserProperties {
		name, value := m.UserProperties[i][0], m.UserProperties[i][1]
		if len(name) > longest || len(value) > longest {
			return refuseName(name, tooLong(longest))
		}
		b = appendMQTTString(append(b, propertyUser), name)
		b = appendMQTTString(b, value)
	}
	m.Raw = b
	return nil
}

func appendMQTTString(dst []byte, s string) []byte {
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(s)))
	return append(dst, s...)
}
