// SPDX-License-Identifier: Apache-2.0

package wasm

import (
	"bytes"
	"os"
)

// snapshot is what an instance was before its first event. Instances of a program begin alike, so one is for all.
type snapshot struct {
	memory  []byte
	globals []uint64
	shared  sharing // how instances share it
}

// systemPage is the unit in which memory is set back.
var systemPage = os.Getpagesize()

// reset makes an arena's memory, which view is, what it was: it writes again the pages that have been written and differ.
func (a *arena) reset(view []byte, s *snapshot) {
	for at := range a.written(view) {
		end := min(at+systemPage, len(view))
		if !bytes.Equal(view[at:end], s.memory[at:end]) {
			copy(view[at:end], s.memory[at:end])
		}
	}
}

// everyPage gives the offset of each page of a memory.
func everyPage(view []byte) func(yield func(int) bool) {
	return func(yield func(int) bool) {
		for at := 0; at < len(view); at += systemPage {
			if !yield(at) {
				return
			}
		}
	}
}
