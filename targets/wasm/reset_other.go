// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package wasm

import (
	"bytes"
	"context"
	"iter"
)

// arena stands for the memory of one instance, which is of the usual kind on this system.
type arena struct{}

func withArena(ctx context.Context, _ int) (context.Context, *arena, error) {
	return ctx, &arena{}, nil
}

// Free gives nothing back: the garbage collector does.
func (a *arena) Free() {}

type sharing struct{}

func newSnapshot(memory []byte) (*snapshot, error) {
	return &snapshot{memory: bytes.Clone(memory)}, nil
}

func (s *snapshot) close() {}

// adopt makes a memory what the snapshot is.
func (a *arena) adopt(view []byte, s *snapshot) error {
	copy(view, s.memory)
	return nil
}

// written gives all pages: this system does not say which.
func (a *arena) written(view []byte) iter.Seq[int] { return everyPage(view) }
