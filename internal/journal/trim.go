// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"bytes"
	"errors"

	"github.com/cockroachdb/pebble/v2"
)

// Trim forgets events below seq, which the stream no longer holds. The mark in force at seq stays, and what is pending.
func (j *Journal) Trim(bus string, seq uint64) error {
	b := j.db.NewBatch()
	defer b.Close()
	var errs []error
	below := func(letter byte, seq uint64) {
		prefix := key(letter, bus)
		errs = append(errs, b.DeleteRange(prefix, u64(bytes.Clone(prefix), seq), nil))
	}
	for _, letter := range []byte("rje") {
		below(letter, seq)
	}
	for _, letter := range []byte("is") {
		prefix := key(letter, bus)
		errs = append(errs, b.DeleteRange(prefix, u32(bytes.Clone(prefix), uint32(seq>>bucketBits)), nil))
	}
	m, err := j.InForce(bus, seq)
	if err != nil {
		return err
	}
	below('m', m.First)
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return b.Commit(pebble.NoSync)
}

// OldestNeeded returns the lowest JOURNEY sequence that a pending delivery rests on, and the lowest event position that
// is pending; 0 where nothing is.
func (j *Journal) OldestNeeded(bus string) (record, seq uint64, err error) {
	err = j.EachPending(bus, func(p Pending) (bool, error) {
		if seq == 0 {
			seq = p.Seq
		}
		if record == 0 || p.Record < record {
			record = p.Record
		}
		return true, nil
	})
	return record, seq, err
}

// DropTrimmedDead forgets dead letters below seq of DEAD.
func (j *Journal) DropTrimmedDead(seq uint64) error {
	return j.db.DeleteRange([]byte{'x'}, u64([]byte{'x'}, seq), pebble.NoSync)
}
