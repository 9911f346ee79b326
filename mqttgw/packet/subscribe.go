// SPDX-License-Identifier: Apache-2.0

package packet

import (
	"bytes"
	"encoding/binary"
)

// Subscribe is SUBSCRIBE (section 3.8). A filter may be malformed as a filter, which is answered in the SUBACK: ask
// ValidFilter.
type Subscribe struct {
	PacketID   uint16
	Properties Properties
	Filters    []Subscription // at least one
}

// Subscription is one filter with its options. In 3.1.1 only the QoS exists.
type Subscription struct {
	Filter            []byte // a view
	QoS               byte
	NoLocal           bool
	RetainAsPublished bool
	RetainHandling    byte // 0, 1 or 2
}

// Type is TypeSubscribe.
func (*Subscribe) Type() Type { return TypeSubscribe }

// Decode decodes a SUBSCRIBE.
func (p *Subscribe) Decode(first byte, body []byte, v Version) error {
	*p = Subscribe{}
	c, ps, err := takeRequest(first, body, v, TypeSubscribe, &p.PacketID)
	if err != nil {
		return err
	}
	p.Properties = ps
	for len(c.b) > 0 {
		s := Subscription{Filter: c.text()}
		options := c.byte()
		if c.bad {
			break
		}
		if err := s.takeOptions(options, v); err != nil {
			return err
		}
		p.Filters = append(p.Filters, s)
	}
	if err := c.end(); err != nil {
		return err
	}
	if len(p.Filters) == 0 {
		return violation("no filter")
	}
	return nil
}

func (s *Subscription) takeOptions(options byte, v Version) error {
	reserved := byte(0xC0)
	if v != V5 {
		reserved = 0xFC
	}
	if options&reserved != 0 {
		return malformed("reserved subscription options")
	}
	s.QoS = options & 3
	s.NoLocal, s.RetainAsPublished, s.RetainHandling = options&4 != 0, options&8 != 0, options>>4&3
	if s.QoS == 3 {
		if v == V5 {
			return violation("QoS 3")
		}
		return malformed("QoS 3")
	}
	if s.RetainHandling == 3 {
		return violation("retain handling 3")
	}
	if s.NoLocal && bytes.HasPrefix(s.Filter, []byte("$share/")) {
		return violation("no local on a shared subscription")
	}
	return nil
}

// Append encodes p.
func (p *Subscribe) Append(dst []byte, v Version) []byte {
	start := len(dst)
	dst = appendRequest(dst, p.PacketID, p.Properties, v)
	for _, s := range p.Filters {
		options := s.QoS
		if v == V5 {
			options |= s.RetainHandling << 4
			if s.NoLocal {
				options |= 4
			}
			if s.RetainAsPublished {
				options |= 8
			}
		}
		dst = append(appendText(dst, s.Filter), options)
	}
	return finish(dst, start, byte(TypeSubscribe)<<4|2)
}

// Unsubscribe is UNSUBSCRIBE (section 3.10).
type Unsubscribe struct {
	PacketID   uint16
	Properties Properties
	Filters    [][]byte // at least one
}

// Type is TypeUnsubscribe.
func (*Unsubscribe) Type() Type { return TypeUnsubscribe }

// Decode decodes an UNSUBSCRIBE.
func (p *Unsubscribe) Decode(first byte, body []byte, v Version) error {
	*p = Unsubscribe{}
	c, ps, err := takeRequest(first, body, v, TypeUnsubscribe, &p.PacketID)
	if err != nil {
		return err
	}
	p.Properties = ps
	for len(c.b) > 0 {
		p.Filters = append(p.Filters, c.text())
	}
	if err := c.end(); err != nil {
		return err
	}
	if len(p.Filters) == 0 {
		return violation("no filter")
	}
	return nil
}

// Append encodes p.
func (p *Unsubscribe) Append(dst []byte, v Version) []byte {
	start := len(dst)
	dst = appendRequest(dst, p.PacketID, p.Properties, v)
	for _, f := range p.Filters {
		dst = appendText(dst, f)
	}
	return finish(dst, start, byte(TypeUnsubscribe)<<4|2)
}

func takeRequest(first byte, body []byte, v Version, t Type, id *uint16) (cursor, Properties, error) {
	if err := needFlags(first, 2); err != nil {
		return cursor{}, nil, err
	}
	c := cursor{b: body}
	*id = c.uint16()
	if c.bad {
		return c, nil, c.end()
	}
	if err := needID(*id); err != nil {
		return c, nil, err
	}
	if v != V5 {
		return c, nil, nil
	}
	ps, err := c.properties(t)
	return c, ps, err
}

func appendRequest(dst []byte, id uint16, ps Properties, v Version) []byte {
	dst = binary.BigEndian.AppendUint16(begin(dst), id)
	if v == V5 {
		dst = appendProperties(dst, ps)
	}
	return dst
}

// Suback is SUBACK (section 3.9) or UNSUBACK (section 3.11): one code for each filter, in order. UNSUBACK of 3.1.1 has
// none.
type Suback struct {
	Kind       Type // TypeSuback or TypeUnsuback
	PacketID   uint16
	Properties Properties
	Codes      []Reason
}

// Type is the kind.
func (p *Suback) Type() Type { return p.Kind }

// Decode decodes a SUBACK or UNSUBACK.
func (p *Suback) Decode(first byte, body []byte, v Version) error {
	*p = Suback{Kind: TypeOf(first)}
	if err := needFlags(first, 0); err != nil {
		return err
	}
	c := cursor{b: body}
	p.PacketID = c.uint16()
	if c.bad {
		return c.end()
	}
	if err := needID(p.PacketID); err != nil {
		return err
	}
	if v == V5 {
		var err error
		if p.Properties, err = c.properties(p.Kind); err != nil {
			return err
		}
	} else if p.Kind == TypeUnsuback {
		return c.end()
	}
	if len(c.b) == 0 {
		return malformed("no code")
	}
	for len(c.b) > 0 {
		code := Reason(c.byte())
		if v != V5 {
			if code > 2 && code != UnspecifiedError {
				return malformed("return code")
			}
		} else if err := checkReason(p.Kind, code); err != nil {
			return err
		}
		p.Codes = append(p.Codes, code)
	}
	return c.end()
}

// Append encodes p. For 3.1.1 every failure code becomes 0x80.
func (p *Suback) Append(dst []byte, v Version) []byte {
	start := len(dst)
	dst = appendRequest(dst, p.PacketID, p.Properties, v)
	if v == V5 || p.Kind == TypeSuback {
		for _, code := range p.Codes {
			if v != V5 && code.Failed() {
				code = UnspecifiedError
			}
			dst = append(dst, byte(code))
		}
	}
	return finish(dst, start, byte(p.Kind)<<4)
}
