// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"bytes"
	"encoding/binary"
	"errors"

	"github.com/cockroachdb/pebble/v2"
)

// Trim forgets events below seq, which the stream no longer holds, and the rules that only they have met, as far as
// JOURNEY, which begins at record, has forgotten them too. The mark in force at seq stays, and what is pending.
func (j *Journal) Trim(bus string, seq, record uint64) error {
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
	for _, letter := range []byte("isz") {
		prefix := key(letter, bus)
		errs = append(errs, b.DeleteRange(prefix, u32(bytes.Clone(prefix), uint32(seq>>bucketBits)), nil))
	}
	m, err := j.InForce(bus, seq)
	if err != nil {
		return err
	}
	below('m', m.First)
	errs = append(errs, j.trimMinted(b, bus, seq), j.dropRules(b, bus, m.First, record), j.forgetDrops(b, bus, seq))
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return b.Commit(pebble.NoSync)
}

// dropRules deletes the documents that no mark from seq on names. One that JOURNEY still holds stays: its mark may be on
// its way.
func (j *Journal) dropRules(b *pebble.Batch, bus string, seq, record uint64) error {
	marks, err := j.marks(bus, seq, ^uint64(0))
	if err != nil {
		return err
	}
	needed := make(map[string]bool)
	for _, m := range marks {
		for _, r := range m.Rules {
			needed[string(ruleKey(bus, r.Name, r.Revision))] = true
		}
	}
	return j.scan(key('u', bus), nil, func(k, v []byte) (bool, error) {
		if len(v) < 8 || binary.BigEndian.Uint64(v) < record && !needed[string(k)] {
			return true, b.Delete(k, nil)
		}
		return true, nil
	})
}

// ForgetHours deletes the account of the hours below hour, but for those from the first on in which something is pending: how
// that ends is counted there.
func (j *Journal) ForgetHours(bus string, hour uint32) error {
	old, err := j.hasHoursBelow(bus, hour)
	if err != nil || !old {
		return err
	}
	if err := j.EachPending(bus, func(p Pending) (bool, error) {
		hour = min(hour, p.Hour)
		return true, nil
	}); err != nil {
		return err
	}
	if err := j.eachCounts(bus, func(at uint32, _ RoutePair, c Counts) error {
		if c.Ranged > 0 {
			hour = min(hour, at)
		}
		return nil
	}); err != nil {
		return err
	}
	b := j.db.NewBatch()
	defer b.Close()
	var errs []error
	for _, letter := range []byte("alo") {
		prefix := key(letter, bus)
		errs = append(errs, b.DeleteRange(prefix, u32(bytes.Clone(prefix), hour), nil))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return b.Commit(pebble.NoSync)
}

// hasHoursBelow reports whether there is an account of an hour below hour.
func (j *Journal) hasHoursBelow(bus string, hour uint32) (found bool, err error) {
	for _, letter := range []byte("alo") {
		prefix := key(letter, bus)
		if err = j.scan(prefix, nil, func(k, _ []byte) (bool, error) {
			found = found || binary.BigEndian.Uint32(k[len(prefix):]) < hour
			return false, nil
		}); found || err != nil {
			break
		}
	}
	return found, err
}

// Forget deletes all that the views know of a bus but its dead letters, so that they can be fed from the beginning.
func (j *Journal) Forget(bus string) error {
	defer j.forgetFeed(bus)
	b := j.db.NewBatch()
	defer b.Close()
	err := j.EachPending(bus, func(p Pending) (bool, error) {
		if p.State != Parked {
			return true, nil
		}
		return true, b.Delete(parkedKey(bus, p), nil)
	})
	errs := []error{err, j.scan([]byte{'v'}, nil, func(k, _ []byte) (bool, error) {
		if string(k[9:]) != bus {
			return true, nil
		}
		return true, b.Delete(bytes.Clone(k), nil)
	})}
	waiting, err := j.forgetBacklogs(b, bus)
	errs = append(errs, err)
	for _, letter := range []byte("wfisrjpmuaebloyzt") {
		prefix := key(letter, bus)
		errs = append(errs, b.DeleteRange(prefix, after(prefix), nil))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := b.Commit(pebble.NoSync); err != nil {
		return err
	}
	for target, was := range waiting {
		j.WaitingFor(target).add(was, waits{})
	}
	return nil
}

// OldestNeeded returns the lowest JOURNEY sequence that a redriven delivery rests on, and the lowest event position whose
// event is needed by what is pending, ranges included; 0 where nothing is. A delivery that was redriven from a dead letter has a copy of its
// event, and does not need it in the bus.
func (j *Journal) OldestNeeded(bus string) (record, seq uint64, err error) {
	err = j.EachPending(bus, func(p Pending) (bool, error) {
		if r := p.Redrive; r != nil {
			record = lower(record, r.Record)
			if r.Dead != 0 || r.Edited != 0 {
				return true, nil
			}
		}
		seq = lower(seq, p.Seq)
		return true, nil
	})
	if err != nil {
		return 0, 0, err
	}
	err = j.eachRange(bus, func(_ string, r Range) error {
		seq = lower(seq, r.Next)
		return nil
	})
	return record, seq, err
}

// DropTrimmedDead forgets dead letters below seq of DEAD.
func (j *Journal) DropTrimmedDead(seq uint64) error {
	return j.db.DeleteRange([]byte{'x'}, u64([]byte{'x'}, seq), pebble.NoSync)
}
