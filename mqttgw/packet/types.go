// SPDX-License-Identifier: Apache-2.0

package packet

import "strconv"

// Version is the protocol level of a connection, as sent in CONNECT.
type Version byte

// The protocol levels that are spoken.
const (
	V311 Version = 4
	V5   Version = 5
)

// Type is the packet type, the high half of the first byte (MQTT 5.0 section 2.1.2).
type Type byte

// The packet types.
const (
	TypeConnect Type = iota + 1
	TypeConnack
	TypePublish
	TypePuback
	TypePubrec
	TypePubrel
	TypePubcomp
	TypeSubscribe
	TypeSuback
	TypeUnsubscribe
	TypeUnsuback
	TypePingreq
	TypePingresp
	TypeDisconnect
	TypeAuth
)

var typeNames = [...]string{"RESERVED", "CONNECT", "CONNACK", "PUBLISH", "PUBACK", "PUBREC", "PUBREL", "PUBCOMP", "SUBSCRIBE",
	"SUBACK", "UNSUBSCRIBE", "UNSUBACK", "PINGREQ", "PINGRESP", "DISCONNECT", "AUTH"}

// TypeOf returns the type in the first byte of a packet.
func TypeOf(first byte) Type { return Type(first >> 4) }

// String returns the name as the specification writes it.
func (t Type) String() string { return typeNames[t&15] }

// Reason is an MQTT 5 reason code (section 2.4), in SUBACK also the granted QoS of either version.
type Reason byte

// The reason codes. 0x00 is also normal disconnection and granted QoS 0.
const (
	Success                   Reason = 0x00
	GrantedQoS1               Reason = 0x01
	GrantedQoS2               Reason = 0x02
	DisconnectWithWill        Reason = 0x04
	NoMatchingSubscribers     Reason = 0x10
	NoSubscriptionExisted     Reason = 0x11
	ContinueAuthentication    Reason = 0x18
	ReAuthenticate            Reason = 0x19
	UnspecifiedError          Reason = 0x80
	MalformedPacket           Reason = 0x81
	ProtocolError             Reason = 0x82
	ImplementationError       Reason = 0x83
	UnsupportedVersion        Reason = 0x84
	ClientIDInvalid           Reason = 0x85
	BadUserOrPassword         Reason = 0x86
	NotAuthorized             Reason = 0x87
	ServerUnavailable         Reason = 0x88
	ServerBusy                Reason = 0x89
	Banned                    Reason = 0x8A
	ServerShuttingDown        Reason = 0x8B
	BadAuthenticationMethod   Reason = 0x8C
	KeepAliveTimeout          Reason = 0x8D
	SessionTakenOver          Reason = 0x8E
	TopicFilterInvalid        Reason = 0x8F
	TopicNameInvalid          Reason = 0x90
	PacketIDInUse             Reason = 0x91
	PacketIDNotFound          Reason = 0x92
	ReceiveMaximumExceeded    Reason = 0x93
	TopicAliasInvalid         Reason = 0x94
	PacketTooLarge            Reason = 0x95
	MessageRateTooHigh        Reason = 0x96
	QuotaExceeded             Reason = 0x97
	AdministrativeAction      Reason = 0x98
	PayloadFormatInvalid      Reason = 0x99
	RetainNotSupported        Reason = 0x9A
	QoSNotSupported           Reason = 0x9B
	UseAnotherServer          Reason = 0x9C
	ServerMoved               Reason = 0x9D
	SharedNotSupported        Reason = 0x9E
	ConnectionRateExceeded    Reason = 0x9F
	MaximumConnectTime        Reason = 0xA0
	SubscriptionIDUnsupported Reason = 0xA1
	WildcardUnsupported       Reason = 0xA2
)

// Failed reports whether the code is a failure.
func (r Reason) Failed() bool { return r >= 0x80 }

// String returns the code as 0xNN.
func (r Reason) String() string {
	const digits = "0123456789ABCDEF"
	return string([]byte{'0', 'x', digits[r>>4], digits[r&15]})
}

// reasonsOf holds the codes that a packet type may carry, by type (MQTT 5.0 section 2.4, table 2-6).
var reasonsOf = [16][]Reason{
	TypeConnack: {0x00, 0x80, 0x81, 0x82, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8A, 0x8C, 0x90, 0x95, 0x97, 0x99, 0x9A, 0x9B,
		0x9C, 0x9D, 0x9F},
	TypePuback:   {0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99},
	TypePubrec:   {0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99},
	TypePubrel:   {0x00, 0x92},
	TypePubcomp:  {0x00, 0x92},
	TypeSuback:   {0x00, 0x01, 0x02, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2},
	TypeUnsuback: {0x00, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91},
	TypeDisconnect: {0x00, 0x04, 0x80, 0x81, 0x82, 0x83, 0x87, 0x89, 0x8B, 0x8D, 0x8E, 0x8F, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97,
		0x98, 0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9E, 0x9F, 0xA0, 0xA1, 0xA2},
	TypeAuth: {0x00, 0x18, 0x19},
}

func checkReason(t Type, r Reason) error {
	for _, known := range reasonsOf[t] {
		if r == known {
			return nil
		}
	}
	return malformed("reason code that the packet type does not have")
}

// Error is why a packet was refused.
type Error struct {
	Code   Reason // what an MQTT 5 peer is told: MalformedPacket, ProtocolError, or a more exact one
	Detail string // constant text, repeats nothing of the packet
	Level  byte   // the protocol level asked for, with UnsupportedVersion
}

// Error returns the detail with the code.
func (e *Error) Error() string {
	s := "mqtt packet: " + e.Detail + " (" + e.Code.String() + ")"
	if e.Code == UnsupportedVersion {
		s += ", protocol level " + strconv.Itoa(int(e.Level))
	}
	return s
}

func malformed(detail string) error { return &Error{Code: MalformedPacket, Detail: detail} }
func violation(detail string) error { return &Error{Code: ProtocolError, Detail: detail} }

// Packet is any control packet.
type Packet interface {
	// Type is the packet's type.
	Type() Type
	// Append appends the whole encoded packet for a protocol version to dst.
	Append(dst []byte, v Version) []byte
}

// Decode decodes the packet with the given first byte and body (what follows the remaining length). For CONNECT the
// version is in the packet and v is not looked at. Byte slices in the result are views into body. AUTH exists in
// version 5 only. The error is an *Error.
func Decode(first byte, body []byte, v Version) (Packet, error) {
	switch t := TypeOf(first); t {
	case TypeConnect:
		return decoded(&Connect{}, first, body, v)
	case TypeConnack:
		return decoded(&Connack{}, first, body, v)
	case TypePublish:
		return decoded(&Publish{}, first, body, v)
	case TypePuback, TypePubrec, TypePubrel, TypePubcomp:
		return decoded(&Ack{}, first, body, v)
	case TypeSubscribe:
		return decoded(&Subscribe{}, first, body, v)
	case TypeUnsubscribe:
		return decoded(&Unsubscribe{}, first, body, v)
	case TypeSuback, TypeUnsuback:
		return decoded(&Suback{}, first, body, v)
	case TypePingreq, TypePingresp:
		return decoded(&Ping{}, first, body, v)
	case TypeDisconnect, TypeAuth:
		return decoded(&Disconnect{}, first, body, v)
	default:
		return nil, malformed("packet type 0")
	}
}

type decoder interface {
	Packet
	Decode(first byte, body []byte, v Version) error
}

func decoded[P decoder](p P, first byte, body []byte, v Version) (Packet, error) {
	if err := p.Decode(first, body, v); err != nil {
		return nil, err
	}
	return p, nil
}
