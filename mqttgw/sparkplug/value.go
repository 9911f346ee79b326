// SPDX-License-Identifier: Apache-2.0

package sparkplug

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"
)

// The data types (Sparkplug 3.0, section 6.4.16), by their numbers.
const (
	typeInt8 = iota + 1
	typeInt16
	typeInt32
	typeInt64
	typeUInt8
	typeUInt16
	typeUInt32
	typeUInt64
	typeFloat
	typeDouble
	typeBoolean
	typeString
	typeDateTime
	typeText
	typeUUID
	typeDataSet
	typeBytes
	typeFile
	typeTemplate
	typePropertySet
	typePropertySetList
	typeInt8Array
	typeInt16Array
	typeInt32Array
	typeInt64Array
	typeUInt8Array
	typeUInt16Array
	typeUInt32Array
	typeUInt64Array
	typeFloatArray
	typeDoubleArray
	typeBooleanArray
	typeStringArray
	typeDateTimeArray
)

var typeNames = [...]string{"Unknown", "Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64", "Float", "Double", "Boolean", "String",
	"DateTime", "Text", "UUID", "DataSet", "Bytes", "File", "Template", "PropertySet", "PropertySetList", "Int8Array", "Int16Array", "Int32Array", "Int64Array",
	"UInt8Array", "UInt16Array", "UInt32Array", "UInt64Array", "FloatArray", "DoubleArray", "BooleanArray", "StringArray", "DateTimeArray"}

// typeName is a type's name, or its number for one that the specification does not have.
func typeName(t uint32) string {
	if int64(t) < int64(len(typeNames)) {
		return typeNames[t]
	}
	return strconv.FormatUint(uint64(t), 10)
}

// value writes a value as its type says. What a type cannot say of it, because it is unknown or another one, is as it is on
// the wire: integers have no sign there.
func (e *encoder) value(v value, datatype uint32, depth int) error {
	switch v.kind {
	case wireInt, wireLong:
		e.integer(v, datatype)
	case wireFloat:
		e.float(float64(math.Float32frombits(uint32(v.n))), 32) //nolint:gosec // 32 bits on the wire
	case wireDouble:
		e.float(math.Float64frombits(v.n), 64)
	case wireBoolean:
		e.b = strconv.AppendBool(e.b, v.n != 0)
	case wireString:
		e.text(string(v.b))
	case wireBytes:
		if datatype >= typeInt8Array && datatype <= typeDateTimeArray {
			return e.array(v.b, datatype)
		}
		e.binary(v.b)
	case wireDataSet:
		return e.dataSet(v.b, depth+1)
	case wireTemplate:
		return e.template(v.b, depth+1)
	case wirePropertySet:
		return e.propertySet(v.b, depth+1)
	case wirePropertySets:
		return e.propertySets(v.b, depth+1)
	default: // an extension has a meaning for those who made it only
		e.b = append(e.b, "null"...)
	}
	return e.full()
}

// integer writes an integer. Negative ones of up to 32 bits come in their own width or in 32 bits.
func (e *encoder) integer(v value, datatype uint32) {
	signed := func(n int64) { e.b = strconv.AppendInt(e.b, n, 10) }
	switch datatype { //nolint:gosec // the conversions take the bits that the type has
	case typeInt8:
		signed(int64(int8(v.n)))
	case typeInt16:
		signed(int64(int16(v.n)))
	case typeInt32:
		signed(int64(int32(v.n)))
	case typeInt64:
		if v.kind == wireInt {
			signed(int64(int32(v.n)))
			return
		}
		signed(int64(v.n))
	case typeUInt8:
		e.unsigned(uint64(uint8(v.n)))
	case typeUInt16:
		e.unsigned(uint64(uint16(v.n)))
	case typeUInt32:
		e.unsigned(uint64(uint32(v.n)))
	case typeBoolean:
		e.b = strconv.AppendBool(e.b, v.n != 0)
	default:
		e.unsigned(v.n)
	}
}

// float writes a number; what JSON has no number for is a string.
func (e *encoder) float(f float64, bits int) {
	switch {
	case math.IsNaN(f):
		e.b = append(e.b, `"NaN"`...)
	case math.IsInf(f, 1):
		e.b = append(e.b, `"Infinity"`...)
	case math.IsInf(f, -1):
		e.b = append(e.b, `"-Infinity"`...)
	default:
		e.b = strconv.AppendFloat(e.b, f, 'g', -1, bits)
	}
}

// widths are the bytes of an element of the arrays of numbers.
var widths = map[uint32]int{typeInt8Array: 1, typeInt16Array: 2, typeInt32Array: 4, typeInt64Array: 8, typeUInt8Array: 1, typeUInt16Array: 2, typeUInt32Array: 4,
	typeUInt64Array: 8, typeFloatArray: 4, typeDoubleArray: 8, typeDateTimeArray: 8}

// array writes an array (section 6.4.16): numbers in little endian, booleans behind their count in bits from the highest on,
// strings that end with a zero.
func (e *encoder) array(b []byte, datatype uint32) error {
	switch datatype {
	case typeBooleanArray:
		if len(b) < 4 || uint64(binary.LittleEndian.Uint32(b)) > 8*uint64(len(b)-4) {
			return fmt.Errorf("a BooleanArray of %d bytes has not as many bits as it says", len(b))
		}
		return e.list(int(binary.LittleEndian.Uint32(b)), func(i int) error {
			e.b = strconv.AppendBool(e.b, b[4+i/8]>>(7-i%8)&1 == 1)
			return nil
		})
	case typeStringArray:
		if len(b) > 0 && b[len(b)-1] != 0 {
			return fmt.Errorf("a StringArray of %d bytes does not end with a zero", len(b))
		}
		return e.list(bytes.Count(b, []byte{0}), func(int) error {
			var s []byte
			s, b, _ = bytes.Cut(b, []byte{0})
			e.text(string(s))
			return nil
		})
	}
	width := widths[datatype]
	if len(b)%width != 0 {
		return fmt.Errorf("%s of %d bytes, which is no multiple of %d", typeName(datatype), len(b), width)
	}
	return e.list(len(b)/width, func(i int) error {
		e.element(b[i*width:][:width], datatype)
		return nil
	})
}

func (e *encoder) element(b []byte, datatype uint32) {
	var wide [8]byte
	copy(wide[:], b)
	n := binary.LittleEndian.Uint64(wide[:])
	switch datatype {
	case typeFloatArray:
		e.float(float64(math.Float32frombits(uint32(n))), 32) //nolint:gosec // 32 bits
	case typeDoubleArray:
		e.float(math.Float64frombits(n), 64)
	case typeDateTimeArray:
		e.unsigned(n)
	default: // the arrays of integers have the order of the integers
		e.integer(value{kind: wireLong, n: n}, datatype-typeInt8Array+typeInt8)
	}
}

// dataSet writes the message DataSet: columns, types, and rows of as many values.
func (e *encoder) dataSet(b []byte, depth int) error {
	if depth > MaxDepth {
		return errDepth
	}
	var columns []string
	var types []uint32
	var rows [][]byte
	err := each(b, func(f field) error {
		switch {
		case f.is(2, protowire.BytesType):
			if columns = append(columns, string(f.b)); len(f.b) > MaxName {
				return errName
			}
		case f.is(3, protowire.VarintType):
			types = append(types, uint32(f.n)) //nolint:gosec // as protobuf reads a uint32
		case f.is(3, protowire.BytesType): // packed
			for packed := f.b; len(packed) > 0; {
				v, n := protowire.ConsumeVarint(packed)
				if n < 0 {
					return errWire
				}
				types, packed = append(types, uint32(v)), packed[n:] //nolint:gosec // as above
			}
		case f.is(4, protowire.BytesType):
			rows = append(rows, f.b)
		}
		return nil
	})
	if err != nil {
		return err
	}
	e.b = append(e.b, `{"columns":`...)
	if err := e.list(len(columns), func(i int) error { e.text(columns[i]); return nil }); err != nil {
		return err
	}
	e.member("types")
	if err := e.list(len(types), func(i int) error { e.text(typeName(types[i])); return nil }); err != nil {
		return err
	}
	e.member("rows")
	if err := e.list(len(rows), func(i int) error { return e.row(rows[i], types) }); err != nil {
		return err
	}
	e.b = append(e.b, '}')
	return nil
}

func (e *encoder) row(b []byte, types []uint32) error {
	e.b = append(e.b, '[')
	from, column := len(e.b), 0
	err := each(b, func(f field) error {
		if !f.is(1, protowire.BytesType) {
			return nil
		}
		v, err := parseValue(f.b, 1)
		if err != nil {
			return err
		}
		datatype := uint32(0)
		if column < len(types) {
			datatype = types[column]
		}
		column++
		e.b = append(e.b, ',')
		return e.scalar(v, datatype)
	})
	e.close(from, ']')
	return err
}

// parseValue reads a message that is a oneof whose int_value has the number first.
func parseValue(b []byte, first protowire.Number) (v value, err error) {
	err = each(b, func(f field) error {
		v.take(f, first)
		return nil
	})
	return v, err
}

// scalar writes a value, or null if there is none.
func (e *encoder) scalar(v value, datatype uint32) error {
	if v.kind == noValue {
		e.b = append(e.b, "null"...)
		return e.full()
	}
	return e.value(v, datatype, 0)
}

// template writes the message Template: version, reference, definition, parameters by name, and its metrics as AppendJSON
// does. Their names are their own: aliases inside of templates are not resolved.
func (e *encoder) template(b []byte, depth int) error {
	if depth > MaxDepth {
		return errDepth
	}
	var metrics []metric
	var parameters [][]byte
	e.b = append(e.b, '{')
	from := len(e.b)
	err := each(b, func(f field) error {
		switch {
		case f.is(1, protowire.BytesType):
			e.member("version")
			e.text(string(f.b))
		case f.is(2, protowire.BytesType):
			if e.metrics++; e.metrics > MaxMetrics {
				return errMany
			}
			m, err := parseMetric(f.b)
			metrics = append(metrics, m)
			return err
		case f.is(3, protowire.BytesType):
			parameters = append(parameters, f.b)
		case f.is(4, protowire.BytesType):
			e.member("reference")
			e.text(string(f.b))
		case f.is(5, protowire.VarintType):
			e.member("isDefinition")
			e.b = strconv.AppendBool(e.b, f.n != 0)
		}
		return e.full()
	})
	if err != nil {
		return err
	}
	if len(parameters) > 0 {
		e.member("parameters")
		if err := e.parameters(parameters); err != nil {
			return err
		}
	}
	e.b = append(e.b, ',')
	if err := e.all(metrics, depth); err != nil {
		return err
	}
	e.close(from, '}')
	return nil
}

// parameters writes messages Parameter as an object of values by name; of two with one name the last one counts.
func (e *encoder) parameters(list [][]byte) error {
	return e.object(len(list), func(i int) (string, func() error, error) {
		name, datatype := "", uint32(0)
		var v value
		err := each(list[i], func(f field) error {
			switch {
			case f.is(1, protowire.BytesType):
				name = string(f.b)
			case f.is(2, protowire.VarintType):
				datatype = uint32(f.n) //nolint:gosec // as protobuf reads a uint32
			default:
				v.take(f, 3)
			}
			return nil
		})
		return name, func() error { return e.scalar(v, datatype) }, err
	})
}

// propertySet writes the message PropertySet as an object of values by key.
func (e *encoder) propertySet(b []byte, depth int) error {
	if depth > MaxDepth {
		return errDepth
	}
	var keys []string
	var values [][]byte
	err := each(b, func(f field) error {
		switch {
		case f.is(1, protowire.BytesType):
			keys = append(keys, string(f.b))
		case f.is(2, protowire.BytesType):
			values = append(values, f.b)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if len(keys) != len(values) {
		return fmt.Errorf("a property set has %d keys and %d values", len(keys), len(values))
	}
	return e.object(len(keys), func(i int) (string, func() error, error) {
		v, datatype, err := parseProperty(values[i])
		return keys[i], func() error {
			if v.kind == wirePropertySet || v.kind == wirePropertySets {
				return e.value(v, datatype, depth)
			}
			return e.scalar(v, datatype)
		}, err
	})
}

// parseProperty reads the message PropertyValue.
func parseProperty(b []byte) (v value, datatype uint32, err error) {
	null := false
	err = each(b, func(f field) error {
		switch {
		case f.is(1, protowire.VarintType):
			datatype = uint32(f.n) //nolint:gosec // as protobuf reads a uint32
		case f.is(2, protowire.VarintType):
			null = f.n != 0
		case v.take(f, 3):
		case f.is(9, protowire.BytesType):
			v = value{kind: wirePropertySet, b: f.b}
		case f.is(10, protowire.BytesType):
			v = value{kind: wirePropertySets, b: f.b}
		}
		return nil
	})
	if null {
		v = value{}
	}
	return v, datatype, err
}

// propertySets writes the message PropertySetList as a list.
func (e *encoder) propertySets(b []byte, depth int) error {
	e.b = append(e.b, '[')
	from := len(e.b)
	err := each(b, func(f field) error {
		if !f.is(1, protowire.BytesType) {
			return nil
		}
		e.b = append(e.b, ',')
		return e.propertySet(f.b, depth)
	})
	e.close(from, ']')
	return err
}

// object writes members; part returns the name of each, and what writes its value. Of two with one name the last one counts.
func (e *encoder) object(n int, part func(i int) (name string, write func() error, err error)) error {
	last := make(map[string]int, n)
	names, writes := make([]string, n), make([]func() error, n)
	for i := range n {
		var err error
		if names[i], writes[i], err = part(i); err != nil {
			return err
		}
		if len(names[i]) > MaxName {
			return errName
		}
		last[names[i]] = i
	}
	e.b = append(e.b, '{')
	from := len(e.b)
	for i, name := range names {
		if last[name] != i {
			continue
		}
		e.member(name)
		if err := writes[i](); err != nil {
			return err
		}
	}
	e.close(from, '}')
	return nil
}
