// SPDX-License-Identifier: Apache-2.0

package wasm

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
)

// An instance can be set back to what it was if nothing of it has changed but what the host can write: its memory and
// its mutable globals. The rest of an instance that can change is its tables and which segments were dropped. So whether
// a module can be set back is a question of which instructions it has (WebAssembly core specification 2.0, chapter 5,
// whose numbers are used here). The host can write a global only if it is exported; so a module is compiled with its
// mutable globals exported under names of ours, which changes nothing for it, since a module does not see exports.

// A program is also given more occasions to be stopped than the compiler gives it: see readCode.

// The sections that matter here (5.5.2).
const (
	sectionCustom   = 0
	sectionType     = 1
	sectionImport   = 2
	sectionFunction = 3
	sectionTable    = 4
	sectionMemory   = 5
	sectionGlobal   = 6
	sectionExport   = 7
	sectionElement  = 9
	sectionCode     = 10
	sectionData     = 11
)

// Limits of a module beside those of its function.
const (
	// MaxCode is how many bytes a module may have.
	MaxCode = 16 << 20
	// maxTable is how many entries a table may have; the memory limit does not count them.
	maxTable = 1 << 20
	// maxGlobals is how many mutable globals are set back.
	maxGlobals = 1024
)

const pageSize = 64 << 10

var header = []byte("\x00asm\x01\x00\x00\x00")

// section is a section of a module; body is what follows its size.
type section struct {
	id   byte
	body []byte
}

// binaryModule is a module taken apart as far as this package needs it. It is not validated: the compiler does that.
type binaryModule struct {
	sections []section
	pages    uint32   // of its memory, at first
	globals  []uint32 // the mutable ones
	locals   uint64   // of all functions
	// resettable says that writing memory and globals again sets an instance back.
	resettable bool
}

// globalName is the name of ours that a global is exported under. No compiler gives such names.
func globalName(i uint32) string { return fmt.Sprintf("\x00rialto.global.%d", i) }

var errMalformed = errors.New("is not a WebAssembly module: it breaks off or is damaged")

// parseModule takes a module apart. The error is for people.
func parseModule(code []byte) (*binaryModule, error) {
	rest, ok := bytes.CutPrefix(code, header)
	if !ok {
		return nil, errors.New(`is not a WebAssembly module of version 1, which begins with the bytes 00 61 73 6d 01 00 00 00`)
	}
	m := &binaryModule{resettable: true}
	r := &reader{b: rest}
	for len(r.b) > 0 && !r.bad {
		s := section{id: r.byte()}
		s.body = r.take(r.u32())
		if s.id == sectionCustom { // such as notes for debuggers, which would not be true any more
			continue
		}
		m.sections = append(m.sections, s)
		in := &reader{b: s.body}
		var err error
		switch s.id {
		case sectionImport:
			err = checkImports(in)
		case sectionTable:
			err = checkTables(in)
		case sectionGlobal:
			m.readGlobals(in)
		case sectionMemory:
			m.readMemory(in)
		case sectionCode:
			var code []byte
			if code, err = m.readCode(in); err == nil {
				m.sections[len(m.sections)-1].body = code
			}
		default:
			err = in.readVectors(s.id)
		}
		if err != nil {
			return nil, err
		}
		if in.bad {
			return nil, errMalformed
		}
	}
	if r.bad {
		return nil, errMalformed
	}
	return m, nil
}

// checkImports refuses what no host gives: memories, tables and globals. Functions are looked at when they are compiled.
func checkImports(r *reader) error {
	for range r.u32() {
		module, name := r.take(r.u32()), r.take(r.u32())
		kind := r.byte()
		if r.bad {
			return nil
		}
		if kind != 0 {
			return fmt.Errorf("imports %s from %s, which is not a function", presentable(string(name)), presentable(string(module)))
		}
		r.u32()
	}
	return nil
}

// readMemory notes how large the memory is at first.
func (m *binaryModule) readMemory(r *reader) {
	if r.u32() == 1 {
		m.pages, _, _ = r.limits()
	}
}

func checkTables(r *reader) error {
	total := uint64(0)
	for range r.u32() {
		if r.bad {
			return nil
		}
		if r.byte() == 0x40 { // with an initial value: not of this version
			r.bad = true
			return nil
		}
		low, _, _ := r.limits()
		if total += uint64(low); total > maxTable {
			return fmt.Errorf("has tables of more than %d entries", maxTable)
		}
	}
	return nil
}

// readGlobals notes the mutable globals.
func (m *binaryModule) readGlobals(r *reader) {
	for i := range r.u32() {
		if r.bad {
			return
		}
		valueType, mutable := r.byte(), r.byte() == 1
		r.expression()
		if !mutable {
			continue
		}
		if len(m.globals) == maxGlobals || valueType < 0x7c || valueType > 0x7f { // not a number of 32 or 64 bits
			m.resettable = false
			continue
		}
		m.globals = append(m.globals, i)
	}
}

// check is an empty loop (block type without a value). The compiler lets code look whether its time is up at the head of
// each loop, and nowhere else.
var check = []byte{0x03, 0x40, 0x0b}

// readCode notes what code does that cannot be set back, refuses what no limit would hold back, and returns the section
// with checks where time can pass without a loop: where a function that calls others begins, since calls can branch
// without end, and before operations on memory that may be as long as it.
func (m *binaryModule) readCode(r *reader) ([]byte, error) {
	n := r.u32()
	out := binary.AppendUvarint(make([]byte, 0, len(r.b)+len(r.b)/8), uint64(n))
	for range n {
		body := r.take(r.u32())
		checks, err := m.readBody(&reader{b: body})
		if err != nil || r.bad {
			return nil, cmp.Or(err, errMalformed)
		}
		out = binary.AppendUvarint(out, uint64(len(body)+len(checks)*len(check)))
		from := 0
		for _, at := range checks {
			out = append(append(out, body[from:at]...), check...)
			from = at
		}
		out = append(out, body[from:]...)
	}
	return out, nil
}

// readBody returns the offsets in a function's body where a check belongs.
func (m *binaryModule) readBody(body *reader) (checks []int, err error) {
	size := len(body.b)
	if err := m.readLocals(body); err != nil {
		return nil, err
	}
	first := size - len(body.b)
	calls, looped, branched := false, false, false
	for len(body.b) > 0 && !body.bad {
		at := size - len(body.b)
		e := body.instruction()
		switch {
		case e.growsTable:
			return nil, errors.New("has the instruction table.grow, which functions may not use")
		case e.long:
			checks = append(checks, at)
		}
		calls = calls || e.call
		looped = looped || e.loop && !branched // whoever enters the function comes to this loop, and its check
		branched = branched || e.branch
		m.resettable = m.resettable && !e.lasting
	}
	if body.bad {
		return nil, errors.New("has code that breaks off, or instructions beyond WebAssembly 2.0")
	}
	if calls && !looped {
		checks = append([]int{first}, checks...)
	}
	return checks, nil
}

// encode puts the module together again, with a maximum for its memory, and with its mutable globals exported if it is
// resettable.
func (m *binaryModule) encode(maxPages uint32) []byte {
	out := bytes.Clone(header)
	exported := len(m.globals) == 0 || !m.resettable
	for _, s := range m.sections {
		if !exported && s.id > sectionExport { // there are no exports; the order is fixed
			out, exported = appendSection(out, sectionExport, m.exports(nil)), true
		}
		switch {
		case s.id == sectionMemory:
			s.body = clampMemory(s.body, maxPages)
		case s.id == sectionExport && !exported:
			s.body, exported = m.exports(s.body), true
		}
		out = appendSection(out, s.id, s.body)
	}
	return out
}

func appendSection(dst []byte, id byte, body []byte) []byte {
	dst = binary.AppendUvarint(append(dst, id), uint64(len(body)))
	return append(dst, body...)
}

// exports is an export section with the mutable globals added.
func (m *binaryModule) exports(body []byte) []byte {
	r := &reader{b: body}
	n := uint32(0)
	if body != nil {
		n = r.u32()
	}
	out := binary.AppendUvarint(nil, uint64(n)+uint64(len(m.globals)))
	out = append(out, r.b...)
	for _, index := range m.globals {
		name := globalName(index)
		out = binary.AppendUvarint(out, uint64(len(name)))
		out = append(append(out, name...), 3)
		out = binary.AppendUvarint(out, uint64(index))
	}
	return out
}

// clampMemory lowers the maximum of a memory: a module that would take more is told no when it does, not refused.
func clampMemory(body []byte, maxPages uint32) []byte {
	r := &reader{b: body}
	if n := r.u32(); n != 1 || r.bad {
		return body // none, or more than the compiler takes
	}
	low, high, bounded := r.limits()
	if r.bad || bounded && high <= maxPages || low > maxPages {
		return body
	}
	out := []byte{1, 1}
	out = binary.AppendUvarint(out, uint64(low))
	return binary.AppendUvarint(out, uint64(maxPages))
}

// reader reads the binary format. After a read beyond the end it is bad, and returns zeros.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) take(n uint32) []byte {
	if r.bad || uint64(n) > uint64(len(r.b)) {
		r.bad = true
		return nil
	}
	b := r.b[:n]
	r.b = r.b[n:]
	return b
}

func (r *reader) byte() byte {
	if b := r.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *reader) u32() uint32 {
	v, n := binary.Uvarint(r.b[:min(len(r.b), 5)])
	if r.bad || n <= 0 || v > 1<<32-1 {
		r.bad = true
		return 0
	}
	r.b = r.b[n:]
	return uint32(v)
}

// skipInt skips a signed number of at most n bytes.
func (r *reader) skipInt(n int) {
	for range n {
		if r.byte() < 0x80 {
			return
		}
	}
	r.bad = true
}

// limits are those of a table or a memory; high counts only if bounded.
func (r *reader) limits() (low, high uint32, bounded bool) {
	switch r.byte() {
	case 0:
		return r.u32(), 0, false
	case 1:
		low = r.u32()
		return low, r.u32(), true
	}
	r.bad = true // shared, or of 64 bits
	return 0, 0, false
}
