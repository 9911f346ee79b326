// SPDX-License-Identifier: Apache-2.0

package packet

import "encoding/binary"

// Connect is CONNECT (MQTT 5.0 section 3.1).
type Connect struct {
	Version    Version
	CleanStart bool // Clean Session in 3.1.1
	KeepAlive  uint16
	Properties Properties
	ClientID   []byte
	Will       *Will // nil = none
	Username   []byte
	Password   []byte
	HasUser    bool
	HasPass    bool
}

// Will is the message that a server publishes when the connection ends without a normal DISCONNECT.
type Will struct {
	QoS        byte
	Retain     bool
	Properties Properties
	Topic      []byte
	Payload    []byte
}

// The connect flags (section 3.1.2.3).
const (
	flagClean    = 0x02
	flagWill     = 0x04
	flagWillQoS  = 0x18
	flagRetain   = 0x20
	flagPassword = 0x40
	flagUser     = 0x80
)

// Type is TypeConnect.
func (*Connect) Type() Type { return TypeConnect }

// Decode decodes a CONNECT; all byte slices are views into body. A protocol name or level that is not spoken gives
// UnsupportedVersion with the level. v is not looked at.
func (p *Connect) Decode(first byte, body []byte, _ Version) error {
	*p = Connect{}
	if err := needFlags(first, 0); err != nil {
		return err
	}
	c := cursor{b: body}
	name, level := c.binary(), c.byte()
	if c.bad {
		return c.end()
	}
	if string(name) != "MQTT" && string(name) != "MQIsdp" {
		return &Error{Code: UnsupportedVersion, Detail: "protocol name"}
	}
	p.Version = Version(level)
	if string(name) != "MQTT" || p.Version != V311 && p.Version != V5 {
		return &Error{Code: UnsupportedVersion, Detail: "protocol version", Level: level}
	}
	flags := c.byte()
	if err := p.takeFlags(flags); err != nil {
		return err
	}
	p.KeepAlive = c.uint16()
	if p.Version == V5 {
		var err error
		if p.Properties, err = c.properties(TypeConnect); err != nil {
			return err
		}
	}
	p.ClientID = c.text()
	if p.Will != nil {
		if err := p.Will.take(&c, p.Version); err != nil {
			return err
		}
	}
	if p.HasUser {
		p.Username = c.text()
	}
	if p.HasPass {
		p.Password = c.binary()
	}
	return c.end()
}

func (p *Connect) takeFlags(flags byte) error {
	if flags&1 != 0 {
		return malformed("reserved connect flag")
	}
	p.CleanStart = flags&flagClean != 0
	p.HasUser, p.HasPass = flags&flagUser != 0, flags&flagPassword != 0
	if p.HasPass && !p.HasUser && p.Version == V311 {
		return malformed("password without user name")
	}
	switch {
	case flags&flagWill != 0:
		p.Will = &Will{QoS: flags & flagWillQoS >> 3, Retain: flags&flagRetain != 0}
		if p.Will.QoS > 2 {
			return malformed("will QoS 3")
		}
	case flags&(flagWillQoS|flagRetain) != 0:
		return malformed("will flags without a will")
	}
	return nil
}

func (w *Will) take(c *cursor, v Version) (err error) {
	if v == V5 {
		if w.Properties, err = c.properties(0); err != nil {
			return err
		}
	}
	w.Topic = c.text()
	w.Payload = c.binary()
	if !c.bad && !ValidTopic(w.Topic) {
		return &Error{Code: TopicNameInvalid, Detail: "will topic"}
	}
	return nil
}

// Append encodes p for its own version; v is not looked at.
func (p *Connect) Append(dst []byte, _ Version) []byte {
	start := len(dst)
	dst = appendText(begin(dst), "MQTT")
	var flags byte
	if p.CleanStart {
		flags |= flagClean
	}
	if p.Will != nil {
		flags |= flagWill | p.Will.QoS<<3
		if p.Will.Retain {
			flags |= flagRetain
		}
	}
	if p.HasUser {
		flags |= flagUser
	}
	if p.HasPass {
		flags |= flagPassword
	}
	dst = append(dst, byte(p.Version), flags)
	dst = binary.BigEndian.AppendUint16(dst, p.KeepAlive)
	if p.Version == V5 {
		dst = appendProperties(dst, p.Properties)
	}
	dst = appendText(dst, p.ClientID)
	if w := p.Will; w != nil {
		if p.Version == V5 {
			dst = appendProperties(dst, w.Properties)
		}
		dst = appendText(appendText(dst, w.Topic), w.Payload)
	}
	if p.HasUser {
		dst = appendText(dst, p.Username)
	}
	if p.HasPass {
		dst = appendText(dst, p.Password)
	}
	return finish(dst, start, byte(TypeConnect)<<4)
}

// Connack is CONNACK (section 3.2). For 3.1.1 the code is a return code of that version, 0 to 5.
type Connack struct {
	SessionPresent bool
	Code           Reason
	Properties     Properties
}

// Type is TypeConnack.
func (*Connack) Type() Type { return TypeConnack }

// Decode decodes a CONNACK.
func (p *Connack) Decode(first byte, body []byte, v Version) error {
	*p = Connack{}
	if err := needFlags(first, 0); err != nil {
		return err
	}
	c := cursor{b: body}
	flags := c.byte()
	p.SessionPresent, p.Code = flags&1 != 0, Reason(c.byte())
	if c.bad {
		return c.end()
	}
	if flags > 1 || p.SessionPresent && p.Code != Success {
		return malformed("acknowledge flags")
	}
	if v != V5 {
		if p.Code > 5 {
			return malformed("return code above 5")
		}
		return c.end()
	}
	if err := checkReason(TypeConnack, p.Code); err != nil {
		return err
	}
	var err error
	if p.Properties, err = c.properties(TypeConnack); err != nil {
		return err
	}
	return c.end()
}

// Append encodes p.
func (p *Connack) Append(dst []byte, v Version) []byte {
	start := len(dst)
	dst = begin(dst)
	var flags byte
	if p.SessionPresent {
		flags = 1
	}
	dst = append(dst, flags, byte(p.Code))
	if v == V5 {
		dst = appendProperties(dst, p.Properties)
	}
	return finish(dst, start, byte(TypeConnack)<<4)
}
