// SPDX-License-Identifier: Apache-2.0

package wasm

import "fmt"

// The compiler makes room for as many things as a module says that there are, before it looks whether they are there: a module
// of twenty bytes can end the process. So what says how many follow is held against what does follow, here, in all sections. A
// form that is not of the core specification 2.0 (5.3 and 5.5) is refused, because the compiler might read it in another way.

// Limits of what a module declares.
const (
	// maxLocals is how many locals a function may have, of which thousands take a few bytes; browsers have the same limit.
	maxLocals = 50_000
	// maxAllLocals is how many those of all functions may be. They take eight bytes each while a module is compiled.
	maxAllLocals = 8 << 20
	// maxParameters is how many parameters, and how many results, a function may have, as in browsers. The compiler takes a time
	// that grows with their square, in which nothing stops it and no other module is compiled.
	maxParameters = 1000
)

// isValueType reports whether a byte is a type of values: a number, a vector or a reference.
func isValueType(b byte) bool { return b >= 0x7b && b <= 0x7f || isReference(b) }

func isReference(b byte) bool { return b == 0x70 || b == 0x6f }

// vector reads a number, and one thing after the other as often.
func (r *reader) vector(one func()) {
	for range r.u32() {
		if r.bad {
			return
		}
		one()
	}
}

// want makes r bad unless what was read is right.
func (r *reader) want(right bool) { r.bad = r.bad || !right }

// readVectors reads the sections that are of no other interest.
func (r *reader) readVectors(section byte) (err error) {
	switch section {
	case sectionType:
		err = r.types()
	case sectionFunction:
		r.vector(func() { r.u32() })
	case sectionExport:
		r.vector(func() {
			r.take(r.u32())
			r.byte()
			r.u32()
		})
	case sectionElement:
		r.vector(r.element)
	case sectionData:
		r.vector(r.data)
	default:
		return nil
	}
	r.want(len(r.b) == 0)
	return err
}

// types reads the types of functions (5.3.6).
func (r *reader) types() (err error) {
	values := func() {
		n := 0
		r.vector(func() {
			n++
			r.want(isValueType(r.byte()))
		})
		if n > maxParameters {
			err = fmt.Errorf("has a function with more than %d parameters or results", maxParameters)
		}
	}
	r.vector(func() {
		r.want(r.byte() == 0x60)
		values()
		values()
	})
	return err
}

// element reads a segment of a table (5.5.12).
func (r *reader) element() {
	form := r.u32()
	r.want(form <= 7)
	passive, expressions := form&1 != 0, form&4 != 0
	if !passive {
		if form&2 != 0 {
			r.u32()
		}
		r.expression()
	}
	if form&3 != 0 {
		b := r.byte()
		r.want(expressions && isReference(b) || !expressions && b == 0)
	}
	if expressions {
		r.vector(r.expression)
	} else {
		r.vector(func() { r.u32() })
	}
}

// data reads a segment of a memory (5.5.14).
func (r *reader) data() {
	form := r.u32()
	r.want(form <= 2)
	if form == 2 {
		r.u32()
	}
	if form != 1 {
		r.expression()
	}
	r.take(r.u32())
}

// expression reads instructions up to the end.
func (r *reader) expression() {
	for !r.bad {
		if len(r.b) > 0 && r.b[0] == 0x0b { // end
			r.byte()
			return
		}
		r.instruction()
	}
}

// readLocals reads the declarations of a function's locals.
func (m *binaryModule) readLocals(r *reader) error {
	count := uint64(0)
	r.vector(func() {
		count += uint64(r.u32())
		r.want(isValueType(r.byte()))
	})
	m.locals += count
	switch {
	case r.bad:
		return nil
	case count > maxLocals:
		return fmt.Errorf("has a function with more than %d locals", maxLocals)
	case m.locals > maxAllLocals:
		return fmt.Errorf("has functions with more than %d locals altogether", maxAllLocals)
	}
	return nil
}
