// SPDX-License-Identifier: Apache-2.0

package packet

import "encoding/binary"

// Publish is PUBLISH (section 3.3). Decoding it allocates nothing when the caller keeps the struct.
type Publish struct {
	Dup        bool
	QoS        byte
	Retain     bool
	Topic      []byte // empty only in version 5 and with a topic alias
	PacketID   uint16 // 0 for QoS 0
	Properties Properties
	Payload    []byte
}

// Type is TypePublish.
func (*Publish) Type() Type { return TypePublish }

// The flags of the first byte.
const (
	flagDup           = 0x08
	flagPublishRetain = 0x01
)

// Decode decodes a PUBLISH; its slices are views into body.
func (p *Publish) Decode(first byte, body []byte, v Version) error {
	p.Dup, p.QoS, p.Retain = first&flagDup != 0, first>>1&3, first&flagPublishRetain != 0
	p.PacketID, p.Properties = 0, nil
	if p.QoS == 3 {
		return malformed("QoS 3")
	}
	if p.QoS == 0 && p.Dup {
		return malformed("DUP with QoS 0")
	}
	c := cursor{b: body}
	p.Topic = c.text()
	if p.QoS > 0 {
		p.PacketID = c.uint16()
	}
	if c.bad {
		return c.end()
	}
	if p.QoS > 0 {
		if err := needID(p.PacketID); err != nil {
			return err
		}
	}
	if v == V5 {
		var err error
		if p.Properties, err = c.properties(TypePublish); err != nil {
			return err
		}
	}
	if len(p.Topic) == 0 {
		if _, aliased := p.Properties.Find(TopicAlias); !aliased {
			return violation("no topic")
		}
	} else if !ValidTopic(p.Topic) {
		return &Error{Code: TopicNameInvalid, Detail: "topic name with a wildcard"}
	}
	p.Payload = c.b
	return nil
}

// Append encodes p.
func (p *Publish) Append(dst []byte, v Version) []byte {
	n := 2 + len(p.Topic) + len(p.Payload)
	if p.QoS > 0 {
		n += 2
	}
	if v == V5 {
		n += varintSize(len(p.Properties)) + len(p.Properties)
	}
	first := byte(TypePublish)<<4 | p.QoS<<1
	if p.Dup {
		first |= flagDup
	}
	if p.Retain {
		first |= flagPublishRetain
	}
	dst = appendText(appendVarint(append(dst, first), n), p.Topic)
	if p.QoS > 0 {
		dst = binary.BigEndian.AppendUint16(dst, p.PacketID)
	}
	if v == V5 {
		dst = appendProperties(dst, p.Properties)
	}
	return append(dst, p.Payload...)
}

// Frame is a PUBLISH encoded once for many receivers of one version and QoS. A receiver's packet is Append's result
// followed by the payload. Immutable.
type Frame struct {
	topic      []byte // with its length
	properties []byte // without their length
	payload    int
	v          Version
	qos        byte
}

// Head is what differs between the receivers of a Frame.
type Head struct {
	Dup, Retain bool
	ID          uint16     // 0 for QoS 0
	Alias       uint16     // version 5: the topic's alias; 0 = none
	Known       bool       // the receiver knows the alias: the topic is left out
	IDs         Properties // version 5: subscription identifiers, encoded
}

// NewFrame prepares a message. Properties and topic are kept, not copied.
func NewFrame(v Version, qos byte, topic string, ps Properties, payload int) *Frame {
	f := &Frame{topic: appendText(make([]byte, 0, 2+len(topic)), topic), payload: payload, v: v, qos: qos}
	if v == V5 {
		f.properties = ps
	}
	return f
}

// Size is the length of the whole packet.
func (f *Frame) Size(h *Head) int {
	n := f.remaining(h)
	return 1 + varintSize(n) + n
}

const aliasSize = 3

// extra is the size of the properties with those of the receiver.
func (f *Frame) extra(h *Head) int {
	n := len(f.properties) + len(h.IDs)
	if h.Alias > 0 {
		n += aliasSize
	}
	return n
}

func (f *Frame) remaining(h *Head) int {
	n := len(f.topic) + f.payload
	if h.Known {
		n = 2 + f.payload
	}
	if f.qos > 0 {
		n += 2
	}
	if f.v == V5 {
		k := f.extra(h)
		n += varintSize(k) + k
	}
	return n
}

// Append appends everything before the payload.
func (f *Frame) Append(dst []byte, h *Head) []byte {
	first := byte(TypePublish)<<4 | f.qos<<1
	if h.Retain {
		first |= flagPublishRetain
	}
	if h.Dup {
		first |= flagDup
	}
	dst = appendVarint(append(dst, first), f.remaining(h))
	if h.Known {
		dst = append(dst, 0, 0)
	} else {
		dst = append(dst, f.topic...)
	}
	if f.qos > 0 {
		dst = binary.BigEndian.AppendUint16(dst, h.ID)
	}
	if f.v == V5 {
		dst = appendVarint(dst, f.extra(h))
		if h.Alias > 0 {
			dst = append(dst, byte(TopicAlias), byte(h.Alias>>8), byte(h.Alias))
		}
		dst = append(append(dst, h.IDs...), f.properties...)
	}
	return dst
}
