// SPDX-License-Identifier: Apache-2.0

package schema

import (
	"fmt"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// protoFindings compares what is written in the binary encoding. Names of fields count in strict only, since only JSON
// shows them; services are nobody's data.
func protoFindings(w, r *protoSchema, p Policy) []Finding {
	c := &protoChecker{strict: p == Strict, seen: map[[2]protoreflect.FullName]bool{}}
	if w.file.Package() != r.file.Package() {
		c.fail("P9", string(w.file.Package()), string(r.file.Package()), "the package changes, and with it the name of every type")
		return c.out
	}
	c.messages(w.file.Messages(), r.file.Messages())
	c.enums(w.file.Enums(), r.file.Enums())
	return c.out
}

type protoChecker struct {
	strict bool
	seen   map[[2]protoreflect.FullName]bool
	out    []Finding
}

func (c *protoChecker) fail(rule, writer, reader, format string, args ...any) {
	c.out = append(c.out, Finding{Outcome: Incompatible, Rule: rule, Writer: writer, Reader: reader, Reason: fmt.Sprintf(format, args...)})
}

// messages is rule P1: a type of the writer is there for the reader.
func (c *protoChecker) messages(w, r protoreflect.MessageDescriptors) {
	for i := range w.Len() {
		m := w.Get(i)
		if m.IsMapEntry() {
			continue
		}
		n := r.ByName(m.Name())
		if n == nil {
			c.fail("P1", string(m.FullName()), "", "the reader has no message %s", m.FullName())
			continue
		}
		c.message(m, n)
		c.messages(m.Messages(), n.Messages())
		c.enums(m.Enums(), n.Enums())
	}
}

func (c *protoChecker) enums(w, r protoreflect.EnumDescriptors) {
	for i := range w.Len() {
		e := w.Get(i)
		if f := r.ByName(e.Name()); f == nil {
			c.fail("P1", string(e.FullName()), "", "the reader has no enum %s", e.FullName())
		} else {
			c.enum(e, f)
		}
	}
}

// message compares two messages, each pair once.
func (c *protoChecker) message(w, r protoreflect.MessageDescriptor) {
	pair := [2]protoreflect.FullName{w.FullName(), r.FullName()}
	if c.seen[pair] {
		return
	}
	c.seen[pair] = true
	for i := range w.Fields().Len() {
		f := w.Fields().Get(i)
		if g := r.Fields().ByNumber(f.Number()); g != nil {
			c.field(f, g)
		} else if c.strict && !r.ReservedRanges().Has(f.Number()) {
			c.fail("P7", string(f.FullName()), string(r.FullName()), "the reader has no field %d and does not reserve the number", f.Number())
		}
	}
	c.readerFields(w, r)
	c.oneofs(w, r)
}

// readerFields is rules P6 and P7.
func (c *protoChecker) readerFields(w, r protoreflect.MessageDescriptor) {
	for i := range r.Fields().Len() {
		g := r.Fields().Get(i)
		f := w.Fields().ByNumber(g.Number())
		if g.Cardinality() == protoreflect.Required && (f == nil || f.Cardinality() != protoreflect.Required) {
			c.fail("P6", string(w.FullName()), string(g.FullName()), "the reader requires field %d, which the writer may leave out", g.Number())
		}
		if f == nil && w.ReservedRanges().Has(g.Number()) {
			c.fail("P7", string(w.FullName()), string(g.FullName()), "the reader uses the number %d, which the writer has reserved", g.Number())
		}
	}
}

// field is rules P2, P3 and P4.
func (c *protoChecker) field(w, r protoreflect.FieldDescriptor) {
	at, to := string(w.FullName()), string(r.FullName())
	switch {
	case w.IsMap() != r.IsMap():
		c.fail("P4", at, to, "field %d changes between map and not", w.Number())
		return
	case w.IsList() && !r.IsList():
		c.fail("P4", at, to, "field %d is repeated, and the reader takes one value", w.Number())
		return
	case !w.IsList() && r.IsList() && w.Kind() != protoreflect.MessageKind && c.strict:
		c.fail("P4", at, to, "field %d becomes repeated", w.Number())
	}
	if c.strict && w.JSONName() != r.JSONName() {
		c.fail("P3", at, to, "field %d changes its name in JSON", w.Number())
	}
	if w.IsMap() {
		c.value(w.MapKey(), r.MapKey())
		c.value(w.MapValue(), r.MapValue())
		return
	}
	c.value(w, r)
}

// value is rule P2: what is written can be read as what the reader expects, without loss.
func (c *protoChecker) value(w, r protoreflect.FieldDescriptor) {
	at, to := string(w.FullName()), string(r.FullName())
	if !readsAs(w.Kind(), r.Kind()) {
		c.fail("P2", at, to, "field %d changes from %s to %s", w.Number(), w.Kind(), r.Kind())
		return
	}
	switch w.Kind() {
	case protoreflect.MessageKind, protoreflect.GroupKind:
		if w.Message().FullName() != r.Message().FullName() && c.strict {
			c.fail("P2", at, to, "field %d changes from message %s to %s", w.Number(), w.Message().FullName(), r.Message().FullName())
			return
		}
		c.message(w.Message(), r.Message())
	case protoreflect.EnumKind:
		if r.Kind() == protoreflect.EnumKind {
			c.enum(w.Enum(), r.Enum())
		}
	}
}

// readsAs reports whether every value of a kind is the same value of another.
func readsAs(w, r protoreflect.Kind) bool {
	if w == r {
		return true
	}
	switch w {
	case protoreflect.BoolKind:
		return r == protoreflect.Int32Kind || r == protoreflect.Int64Kind || r == protoreflect.Uint32Kind || r == protoreflect.Uint64Kind
	case protoreflect.EnumKind:
		return r == protoreflect.Int32Kind || r == protoreflect.Int64Kind
	case protoreflect.Int32Kind:
		return r == protoreflect.Int64Kind
	case protoreflect.Uint32Kind:
		return r == protoreflect.Uint64Kind || r == protoreflect.Int64Kind
	case protoreflect.Sint32Kind:
		return r == protoreflect.Sint64Kind
	case protoreflect.StringKind:
		return r == protoreflect.BytesKind
	}
	return false
}

// oneofs is rule P5: fields that could be set together stay so.
func (c *protoChecker) oneofs(w, r protoreflect.MessageDescriptor) {
	for i := range r.Oneofs().Len() {
		o := r.Oneofs().Get(i)
		if o.IsSynthetic() {
			continue
		}
		var first protoreflect.FieldDescriptor
		for j := range o.Fields().Len() {
			f := w.Fields().ByNumber(o.Fields().Get(j).Number())
			if f == nil {
				continue
			}
			if first != nil && (first.ContainingOneof() == nil || first.ContainingOneof() != f.ContainingOneof()) {
				c.fail("P5", string(f.FullName()), string(o.FullName()), "fields %d and %d may be set together, and the reader keeps one", first.Number(), f.Number())
			}
			first = f
		}
	}
}

// enum is rule P8: values of the writer are values of the reader. An open enum keeps those that it does not know.
func (c *protoChecker) enum(w, r protoreflect.EnumDescriptor) {
	pair := [2]protoreflect.FullName{w.FullName(), r.FullName()}
	if c.seen[pair] {
		return
	}
	c.seen[pair] = true
	for i := range w.Values().Len() {
		v := w.Values().Get(i)
		x := r.Values().ByNumber(v.Number())
		switch {
		case x == nil && (r.IsClosed() || c.strict):
			c.fail("P8", string(v.FullName()), string(r.FullName()), "the reader has no value %d", v.Number())
		case x != nil && x.Name() != v.Name() && c.strict && !hasName(r, v):
			c.fail("P8", string(v.FullName()), string(x.FullName()), "value %d changes its name", v.Number())
		}
	}
}

// hasName reports whether an enum has a value's name for the same number: aliases have several.
func hasName(r protoreflect.EnumDescriptor, v protoreflect.EnumValueDescriptor) bool {
	x := r.Values().ByName(v.Name())
	return x != nil && x.Number() == v.Number()
}
