// SPDX-License-Identifier: Apache-2.0

package wasm

// effect is what an instruction does, beside changing values, memory and globals.
type effect struct {
	loop       bool // it is the head of a loop
	branch     bool // what follows it may be left out, or come after something else
	call       bool // it calls a function
	long       bool // it works on as much memory as its operands say
	lasting    bool // it changes a table or drops a segment
	growsTable bool // it makes a table larger
}

// instruction skips an instruction with its operands. One that it does not know makes r bad; it knows those of the core
// specification 2.0 (5.4).
func (r *reader) instruction() effect {
	switch op := r.byte(); {
	case op == 0x26: // table.set
		r.u32()
		return effect{lasting: true}
	case op == 0x10: // call
		r.u32()
		return effect{call: true, branch: true}
	case op == 0x11: // call_indirect
		r.u32()
		r.u32()
		return effect{call: true, branch: true}
	case op == 0x02: // block
		r.skipInt(5)
	case op == 0x03: // loop
		r.skipInt(5)
		return effect{loop: true}
	case op == 0x04: // if
		r.skipInt(5)
		return effect{branch: true}
	case op == 0x05, op == 0x0f: // else, return
		return effect{branch: true}
	case op == 0x0c, op == 0x0d: // br, br_if
		r.u32()
		return effect{branch: true}
	case op == 0x0e: // br_table
		for n := r.u32(); n > 0 && !r.bad; n-- {
			r.u32()
		}
		r.u32()
		return effect{branch: true}
	case op >= 0x20 && op <= 0x25, op == 0xd2: // variables, table.get, ref.func
		r.u32()
	case op >= 0x28 && op <= 0x3e: // loads and stores
		r.u32()
		r.u32()
	case op == 0x1c: // select with types
		r.take(r.u32())
	case op == 0x3f, op == 0x40: // memory.size, memory.grow
		r.byte()
	case op == 0xd0: // ref.null
		r.want(isReference(r.byte()))
	case op == 0x41: // i32.const
		r.skipInt(5)
	case op == 0x42: // i64.const
		r.skipInt(10)
	case op == 0x43: // f32.const
		r.take(4)
	case op == 0x44: // f64.const
		r.take(8)
	case op == 0xfc:
		return r.bulk(r.u32())
	case op == 0xfd:
		r.simd(r.u32())
	case op <= 0x01, op == 0x0b, op == 0x1a, op == 0x1b, op >= 0x45 && op <= 0xc4, op == 0xd1:
	default:
		r.bad = true
	}
	return effect{}
}

// bulk skips the operands of an instruction with the prefix fc.
func (r *reader) bulk(op uint32) effect {
	switch {
	case op <= 7: // truncations that saturate
		return effect{}
	case op == 8: // memory.init: it reads a segment, and writes memory
		r.u32()
		r.byte()
		return effect{long: true}
	case op == 9, op == 13: // data.drop, elem.drop
		r.u32()
		return effect{lasting: true}
	case op == 10: // memory.copy
		r.take(2)
		return effect{long: true}
	case op == 11: // memory.fill
		r.byte()
		return effect{long: true}
	case op == 12, op == 14: // table.init, table.copy
		r.u32()
		r.u32()
		return effect{lasting: true, long: true}
	case op == 15: // table.grow
		r.u32()
		return effect{growsTable: true}
	case op == 16: // table.size
		r.u32()
		return effect{}
	case op == 17: // table.fill
		r.u32()
		return effect{lasting: true, long: true}
	}
	r.bad = true
	return effect{}
}

// simd skips the operands of an instruction with the prefix fd.
func (r *reader) simd(op uint32) {
	switch {
	case op <= 11, op == 92, op == 93: // loads and stores
		r.u32()
		r.u32()
	case op == 12, op == 13: // v128.const, i8x16.shuffle
		r.take(16)
	case op >= 21 && op <= 34: // lanes
		r.byte()
	case op >= 84 && op <= 91: // loads and stores of a lane
		r.u32()
		r.u32()
		r.byte()
	case op > 255:
		r.bad = true
	}
}
