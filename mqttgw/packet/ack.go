// SPDX-License-Identifier: Apache-2.0

package packet

// Ack is PUBACK, PUBREC, PUBREL or PUBCOMP (sections 3.4 to 3.7). 3.1.1 has neither code nor properties.
type Ack struct {
	Kind       Type
	PacketID   uint16
	Code       Reason
	Properties Properties
}

// Type is the kind.
func (p *Ack) Type() Type { return p.Kind }

func ackFlags(t Type) byte {
	if t == TypePubrel {
		return 2
	}
	return 0
}

// Decode decodes one of the four; it allocates nothing.
func (p *Ack) Decode(first byte, body []byte, v Version) error {
	*p = Ack{Kind: TypeOf(first)}
	if err := needFlags(first, ackFlags(p.Kind)); err != nil {
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
		if err := takeOutcome(&c, p.Kind, &p.Code, &p.Properties); err != nil {
			return err
		}
	}
	return c.end()
}

// Append encodes p, without code and properties when they say nothing.
func (p *Ack) Append(dst []byte, v Version) []byte {
	if v != V5 || p.Code == Success && len(p.Properties) == 0 {
		return append(dst, byte(p.Kind)<<4|ackFlags(p.Kind), 2, byte(p.PacketID>>8), byte(p.PacketID))
	}
	start := len(dst)
	dst = append(begin(dst), byte(p.PacketID>>8), byte(p.PacketID))
	return finish(appendOutcome(dst, p.Code, p.Properties), start, byte(p.Kind)<<4|ackFlags(p.Kind))
}

// takeOutcome takes the code and properties that may be left out at the end of a packet, both or the properties only.
func takeOutcome(c *cursor, t Type, code *Reason, ps *Properties) error {
	if len(c.b) == 0 {
		return nil
	}
	*code = Reason(c.byte())
	if err := checkReason(t, *code); err != nil {
		return err
	}
	if len(c.b) == 0 {
		return nil
	}
	var err error
	*ps, err = c.properties(t)
	return err
}

func appendOutcome(dst []byte, code Reason, ps Properties) []byte {
	dst = append(dst, byte(code))
	if len(ps) > 0 {
		dst = appendProperties(dst, ps)
	}
	return dst
}

// Disconnect is DISCONNECT (section 3.14) or AUTH (section 3.15), which have the same form.
type Disconnect struct {
	Kind       Type // TypeDisconnect or TypeAuth
	Code       Reason
	Properties Properties
}

// Type is the kind.
func (p *Disconnect) Type() Type { return p.Kind }

// Decode decodes a DISCONNECT or AUTH. 3.1.1 has an empty DISCONNECT and no AUTH.
func (p *Disconnect) Decode(first byte, body []byte, v Version) error {
	*p = Disconnect{Kind: TypeOf(first)}
	if err := needFlags(first, 0); err != nil {
		return err
	}
	c := cursor{b: body}
	if v != V5 {
		if p.Kind == TypeAuth {
			return malformed("AUTH in version 3.1.1")
		}
		return c.end()
	}
	if err := takeOutcome(&c, p.Kind, &p.Code, &p.Properties); err != nil {
		return err
	}
	if _, ok := p.Properties.Find(AuthenticationMethod); !ok && p.Kind == TypeAuth {
		return violation("AUTH without a method")
	}
	return c.end()
}

// Append encodes p.
func (p *Disconnect) Append(dst []byte, v Version) []byte {
	first := byte(p.Kind) << 4
	if v != V5 || p.Code == Success && len(p.Properties) == 0 {
		return append(dst, first, 0)
	}
	start := len(dst)
	return finish(appendOutcome(begin(dst), p.Code, p.Properties), start, first)
}

// Ping is PINGREQ or PINGRESP (sections 3.12, 3.13).
type Ping struct{ Kind Type }

// Type is the kind.
func (p *Ping) Type() Type { return p.Kind }

// Decode decodes a PINGREQ or PINGRESP.
func (p *Ping) Decode(first byte, body []byte, _ Version) error {
	*p = Ping{Kind: TypeOf(first)}
	if err := needFlags(first, 0); err != nil {
		return err
	}
	c := cursor{b: body}
	return c.end()
}

// Append encodes p.
func (p *Ping) Append(dst []byte, _ Version) []byte { return append(dst, byte(p.Kind)<<4, 0) }
