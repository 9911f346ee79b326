// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"encoding/binary"
	"iter"
)

// PropertyID identifies an MQTT 5 property (section 2.2.2.2).
type PropertyID byte

// The properties.
const (
	PayloadFormat           PropertyID = 0x01 // byte
	MessageExpiry           PropertyID = 0x02 // four bytes
	ContentType             PropertyID = 0x03 // text
	ResponseTopic           PropertyID = 0x08 // text
	CorrelationData         PropertyID = 0x09 // binary
	SubscriptionID          PropertyID = 0x0B // variable byte integer
	SessionExpiry           PropertyID = 0x11 // four bytes
	AssignedClientID        PropertyID = 0x12 // text
	ServerKeepAlive         PropertyID = 0x13 // two bytes
	AuthenticationMethod    PropertyID = 0x15 // text
	AuthenticationData      PropertyID = 0x16 // binary
	RequestProblemInfo      PropertyID = 0x17 // byte
	WillDelay               PropertyID = 0x18 // four bytes
	RequestResponseInfo     PropertyID = 0x19 // byte
	ResponseInfo            PropertyID = 0x1A // text
	ServerReference         PropertyID = 0x1C // text
	ReasonString            PropertyID = 0x1F // text
	ReceiveMaximum          PropertyID = 0x21 // two bytes
	TopicAliasMaximum       PropertyID = 0x22 // two bytes
	TopicAlias              PropertyID = 0x23 // two bytes
	MaximumQoS              PropertyID = 0x24 // byte
	RetainAvailable         PropertyID = 0x25 // byte
	UserProperty            PropertyID = 0x26 // pair of texts
	MaximumPacketSize       PropertyID = 0x27 // four bytes
	WildcardAvailable       PropertyID = 0x28 // byte
	SubscriptionIDAvailable PropertyID = 0x29 // byte
	SharedAvailable         PropertyID = 0x2A // byte
)

type kind byte

const (
	unknown kind = iota
	oneByte
	twoBytes
	fourBytes
	varint
	binaryData
	text
	pair
)

// where a property may stand: a bit for each packet type; will properties use the unused bit 0.
const inWill = 1 << 0

func in(types ...Type) (bits uint16) {
	for _, t := range types {
		bits |= 1 << t
	}
	return bits
}

type property struct {
	kind    kind
	where   uint16
	flag    bool // 0 and 1 only
	nonZero bool
}

var anyAck = in(TypePuback, TypePubrec, TypePubrel, TypePubcomp, TypeSuback, TypeUnsuback)

var properties = [...]property{
	PayloadFormat:        {kind: oneByte, where: in(TypePublish) | inWill, flag: true},
	MessageExpiry:        {kind: fourBytes, where: in(TypePublish) | inWill},
	ContentType:          {kind: text, where: in(TypePublish) | inWill},
	ResponseTopic:        {kind: text, where: in(TypePublish) | inWill},
	CorrelationData:      {kind: binaryData, where: in(TypePublish) | inWill},
	SubscriptionID:       {kind: varint, where: in(TypePublish, TypeSubscribe), nonZero: true},
	SessionExpiry:        {kind: fourBytes, where: in(TypeConnect, TypeConnack, TypeDisconnect)},
	AssignedClientID:     {kind: text, where: in(TypeConnack)},
	ServerKeepAlive:      {kind: twoBytes, where: in(TypeConnack)},
	AuthenticationMethod: {kind: text, where: in(TypeConnect, TypeConnack, TypeAuth)},
	AuthenticationData:   {kind: binaryData, where: in(TypeConnect, TypeConnack, TypeAuth)},
	RequestProblemInfo:   {kind: oneByte, where: in(TypeConnect), flag: true},
	WillDelay:            {kind: fourBytes, where: inWill},
	RequestResponseInfo:  {kind: oneByte, where: in(TypeConnect), flag: true},
	ResponseInfo:         {kind: text, where: in(TypeConnack)},
	ServerReference:      {kind: text, where: in(TypeConnack, TypeDisconnect)},
	ReasonString:         {kind: text, where: in(TypeConnack, TypeDisconnect, TypeAuth) | anyAck},
	ReceiveMaximum:       {kind: twoBytes, where: in(TypeConnect, TypeConnack), nonZero: true},
	TopicAliasMaximum:    {kind: twoBytes, where: in(TypeConnect, TypeConnack)},
	TopicAlias:           {kind: twoBytes, where: in(TypePublish), nonZero: true},
	MaximumQoS:           {kind: oneByte, where: in(TypeConnack), flag: true},
	RetainAvailable:      {kind: oneByte, where: in(TypeConnack), flag: true},
	UserProperty: {kind: pair, where: in(TypeConnect, TypeConnack, TypePublish, TypeSubscribe, TypeUnsubscribe,
		TypeDisconnect, TypeAuth) | anyAck | inWill},
	MaximumPacketSize:       {kind: fourBytes, where: in(TypeConnect, TypeConnack), nonZero: true},
	WildcardAvailable:       {kind: oneByte, where: in(TypeConnack), flag: true},
	SubscriptionIDAvailable: {kind: oneByte, where: in(TypeConnack), flag: true},
	SharedAvailable:         {kind: oneByte, where: in(TypeConnack), flag: true},
}

// Properties are the encoded properties of a packet without their length, in their order. Decoding a packet validates
// them, so the methods that read may assume them well formed; on other bytes they find nothing. nil is no properties.
// The Append methods work as append does.
type Properties []byte

// Property is one property. The field that fits its type is set.
type Property struct {
	ID    PropertyID
	Int   uint32 // byte, two bytes, four bytes, variable byte integer
	Bytes []byte // binary or text; the name of a user property
	Value []byte // the value of a user property
	Raw   []byte // the whole property, identifier included
}

// next takes the first property off.
func (c *cursor) property() (p Property, k kind) {
	before := c.b
	p.ID = PropertyID(c.byte())
	if int(p.ID) < len(properties) {
		k = properties[p.ID].kind
	}
	switch k {
	case oneByte:
		p.Int = uint32(c.byte())
	case twoBytes:
		p.Int = uint32(c.uint16())
	case fourBytes:
		p.Int = c.uint32()
	case varint:
		p.Int = uint32(c.varint())
	case binaryData:
		p.Bytes = c.binary()
	case text:
		p.Bytes = c.text()
	case pair:
		p.Bytes, p.Value = c.text(), c.text()
	default:
		c.fail()
	}
	if !c.bad {
		p.Raw = before[: len(before)-len(c.b) : len(before)-len(c.b)]
	}
	return p, k
}

// All iterates over the properties in their order.
func (ps Properties) All() iter.Seq[Property] {
	return func(yield func(Property) bool) {
		c := cursor{b: ps}
		for len(c.b) > 0 {
			p, _ := c.property()
			if c.bad || !yield(p) {
				return
			}
		}
	}
}

// Find returns the first property with the identifier.
func (ps Properties) Find(id PropertyID) (Property, bool) {
	c := cursor{b: ps}
	for len(c.b) > 0 {
		p, _ := c.property()
		if c.bad {
			break
		}
		if p.ID == id {
			return p, true
		}
	}
	return Property{}, false
}

// Int returns the value of a numeric property, or absent when it is not there.
func (ps Properties) Int(id PropertyID, absent uint32) uint32 {
	if p, ok := ps.Find(id); ok {
		return p.Int
	}
	return absent
}

// Bytes returns the value of a binary or text property; nil when it is not there.
func (ps Properties) Bytes(id PropertyID) []byte {
	p, _ := ps.Find(id)
	return p.Bytes
}

// AppendInt appends a numeric property in the width that its identifier has.
func (ps Properties) AppendInt(id PropertyID, v uint32) Properties {
	ps = append(ps, byte(id))
	switch properties[id].kind {
	case oneByte:
		return append(ps, byte(v))
	case twoBytes:
		return binary.BigEndian.AppendUint16(ps, uint16(v))
	case fourBytes:
		return binary.BigEndian.AppendUint32(ps, v)
	case varint:
		return appendVarint(ps, int(v))
	}
	panic("packet: not a numeric property")
}

// AppendString appends a text or binary property.
func (ps Properties) AppendString(id PropertyID, s string) Properties {
	if k := properties[id].kind; k != text && k != binaryData {
		panic("packet: not a text property")
	}
	return appendText(append(ps, byte(id)), s)
}

// AppendUser appends a user property.
func (ps Properties) AppendUser(name, value string) Properties {
	return appendText(appendText(append(ps, byte(UserProperty)), name), value)
}

// check validates the properties of a packet type; t 0 stands for will properties. It is section 2.2.2 of MQTT 5.0 and
// the value ranges of each property.
func (ps Properties) check(t Type) error {
	var seen uint64
	c := cursor{b: ps}
	for len(c.b) > 0 {
		p, k := c.property()
		if k == unknown {
			return malformed("unknown property")
		}
		if c.bad {
			return malformed("property ends too early, or is not UTF-8")
		}
		def := &properties[p.ID]
		if def.where&(1<<t) == 0 {
			return malformed("property that the packet type does not have")
		}
		repeats := p.ID == UserProperty || p.ID == SubscriptionID && t == TypePublish
		if seen&(1<<p.ID) != 0 && !repeats {
			return violation("property twice")
		}
		seen |= 1 << p.ID
		if def.flag && p.Int > 1 {
			return violation("property value other than 0 and 1")
		}
		if def.nonZero && p.Int == 0 {
			if p.ID == TopicAlias {
				return &Error{Code: TopicAliasInvalid, Detail: "topic alias 0"}
			}
			return violation("property value 0")
		}
		if p.ID == ResponseTopic && (len(p.Bytes) == 0 || bytes.ContainsAny(p.Bytes, "+#")) {
			return violation("response topic is not a topic name")
		}
	}
	if seen&(1<<AuthenticationData) != 0 && seen&(1<<AuthenticationMethod) == 0 {
		return violation("authentication data without a method")
	}
	return nil
}

// properties takes a property length and the properties, and checks them.
func (c *cursor) properties(t Type) (Properties, error) {
	n := c.varint()
	raw := c.take(n)
	if c.bad {
		return nil, malformed("properties end too early")
	}
	if n == 0 {
		return nil, nil
	}
	ps := Properties(raw)
	return ps, ps.check(t)
}

func appendProperties(dst []byte, ps Properties) []byte {
	return append(appendVarint(dst, len(ps)), ps...)
}
