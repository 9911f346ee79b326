// SPDX-License-Identifier: Apache-2.0

package sparkplug

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
)

// payload is the message Payload.
type payload struct {
	timestamp, seq       uint64
	hasTimestamp, hasSeq bool
	uuid                 string
	body                 []byte
	metrics              []metric
}

// metric is the message Metric. Texts and bytes are views into the payload.
type metric struct {
	name                          []byte
	alias, timestamp              uint64
	datatype                      uint32 // 0 = not said
	named, hasAlias, hasTimestamp bool
	historical, transient, null   bool
	metadata, properties          []byte
	hasMetadata, hasProperties    bool
	value                         value
}

// value is one of the alternatives of a oneof, whatever it is called there.
type value struct {
	kind wireKind
	n    uint64
	b    []byte
}

type wireKind byte

const (
	noValue wireKind = iota
	wireInt
	wireLong
	wireFloat
	wireDouble
	wireBoolean
	wireString
	wireBytes
	wireDataSet
	wireTemplate
	wirePropertySet
	wirePropertySets
	wireExtension
)

var (
	errDepth = fmt.Errorf("templates or property sets are nested deeper than %d", MaxDepth)
	errName  = fmt.Errorf("a name has more than %d bytes", MaxName)
	errMany  = fmt.Errorf("it has more than %d metrics", MaxMetrics)
	errJSON  = fmt.Errorf("it would make more than %d bytes of JSON", MaxJSON)
	errWire  = errors.New("it is no protobuf message")
)

// field is a field of a message on the wire. n is the value of a number, b that of everything with a length.
type field struct {
	num protowire.Number
	typ protowire.Type
	n   uint64
	b   []byte
}

// is reports whether it is a field; one of another wire type is an unknown one.
func (f field) is(num protowire.Number, typ protowire.Type) bool {
	return f.num == num && f.typ == typ
}

// each calls fn for the fields of a message, in their order. Groups are passed over.
func each(b []byte, fn func(f field) error) error {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return errWire
		}
		b = b[n:]
		f := field{num: num, typ: typ}
		switch typ {
		case protowire.VarintType:
			f.n, n = protowire.ConsumeVarint(b)
		case protowire.Fixed32Type:
			var v uint32
			v, n = protowire.ConsumeFixed32(b)
			f.n = uint64(v)
		case protowire.Fixed64Type:
			f.n, n = protowire.ConsumeFixed64(b)
		case protowire.BytesType:
			f.b, n = protowire.ConsumeBytes(b)
		default:
			n = protowire.ConsumeFieldValue(num, typ, b)
		}
		if n < 0 {
			return errWire
		}
		b = b[n:]
		if typ == protowire.StartGroupType {
			continue
		}
		if err := fn(f); err != nil {
			return err
		}
	}
	return nil
}

// take reads one of the scalar alternatives of a oneof whose first one, int_value, has the number first. They have the same
// order in each message: int, long, float, double, boolean, string.
func (v *value) take(f field, first protowire.Number) bool {
	var typ protowire.Type
	kind := wireInt + wireKind(f.num-first)
	switch {
	case f.num < first || f.num > first+5:
		return false
	case kind == wireFloat:
		typ = protowire.Fixed32Type
	case kind == wireDouble:
		typ = protowire.Fixed64Type
	case kind == wireString:
		typ = protowire.BytesType
	default:
		typ = protowire.VarintType
	}
	if f.typ != typ {
		return false
	}
	*v = value{kind, f.n, f.b}
	return true
}

// parsePayload reads a payload with its metrics, but not what is inside of them.
func parsePayload(b []byte) (p payload, err error) {
	err = each(b, func(f field) error {
		switch {
		case f.is(1, protowire.VarintType):
			p.timestamp, p.hasTimestamp = f.n, true
		case f.is(2, protowire.BytesType):
			if len(p.metrics) == MaxMetrics {
				return errMany
			}
			m, err := parseMetric(f.b)
			p.metrics = append(p.metrics, m)
			return err
		case f.is(3, protowire.VarintType):
			p.seq, p.hasSeq = f.n, true
		case f.is(4, protowire.BytesType):
			p.uuid = string(f.b)
		case f.is(5, protowire.BytesType):
			p.body = f.b
		}
		return nil
	})
	return p, err
}

func parseMetric(b []byte) (m metric, err error) {
	err = each(b, func(f field) error {
		switch {
		case f.is(1, protowire.BytesType):
			m.name, m.named = f.b, true
		case f.is(2, protowire.VarintType):
			m.alias, m.hasAlias = f.n, true
		case f.is(3, protowire.VarintType):
			m.timestamp, m.hasTimestamp = f.n, true
		case f.is(4, protowire.VarintType):
			m.datatype = uint32(f.n) //nolint:gosec // as protobuf reads a uint32
		case f.is(5, protowire.VarintType):
			m.historical = f.n != 0
		case f.is(6, protowire.VarintType):
			m.transient = f.n != 0
		case f.is(7, protowire.VarintType):
			m.null = f.n != 0
		case f.is(8, protowire.BytesType):
			m.metadata, m.hasMetadata = f.b, true
		case f.is(9, protowire.BytesType):
			m.properties, m.hasProperties = f.b, true
		case m.value.take(f, 10):
		case f.typ == protowire.BytesType && f.num >= 16 && f.num <= 19:
			m.value = value{kind: [...]wireKind{wireBytes, wireDataSet, wireTemplate, wireExtension}[f.num-16], b: f.b}
		}
		return nil
	})
	if len(m.name) > MaxName {
		err = errName
	}
	return m, err
}
