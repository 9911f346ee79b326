// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// CommandViewOptions say where the view of commands is.
type CommandViewOptions struct {
	Dir    string
	FS     vfs.FS       // nil = the disk
	Logger *slog.Logger // nil = slog.Default
}

// CommandView says of each command in DOWN how far it has come. It is made of DOWN alone, in the order of DOWN, with the
// position in the same batch: when it is deleted, it is made again. It has no log of its own; what a crash takes from it
// is read again.
//
// One goroutine may write; everything else is safe for concurrent use, and fails after Close.
type CommandView struct {
	db        *pebble.DB
	position  atomic.Uint64 // up to which DOWN is in it
	announced atomic.Uint64 // up to which events have told of it

	mu     sync.Mutex
	closed bool           // guarded by mu
	reads  sync.WaitGroup // begun with mu held while it is not closed
}

// Keys of the view.
const (
	keyCommands  = 'c' // device 00 complement of the sequence -> command: the newest of a device comes first
	keyCommandID = 'i' // device 00 id -> sequence
	keySequence  = 's' // sequence -> device
	keyOpen      = 'o' // sequence -> device, of those that are not final
	keyTally     = 'j' // broadcast -> how many of its commands are in each state
	keyApplied   = 'p' // -> position
	keyTold      = 'e' // -> announced
)

// OpenCommandView opens the view, or makes an empty one.
func OpenCommandView(o CommandViewOptions) (*CommandView, error) {
	if o.FS == nil {
		o.FS = vfs.Default
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	const buffer = 4 << 20
	cache := pebble.NewCache(2*buffer + 4<<20) // Pebble takes its buffers out of it
	defer cache.Unref()
	db, err := pebble.Open(o.Dir, &pebble.Options{Cache: cache, FS: o.FS, FormatMajorVersion: pebble.FormatNewest, DisableWAL: true,
		Logger: pebbleLog{o.Logger.With("component", "mqtt"), "commands"}, MaxOpenFiles: 200, MemTableSize: buffer, MemTableStopWritesThreshold: 4})
	if err != nil {
		return nil, fmt.Errorf("open commands: %w", err)
	}
	v := &CommandView{db: db}
	for key, to := range map[byte]*atomic.Uint64{keyApplied: &v.position, keyTold: &v.announced} {
		n, _, err := v.number([]byte{key})
		if err != nil {
			return nil, errors.Join(fmt.Errorf("open commands: %w", err), db.Close())
		}
		to.Store(n)
	}
	return v, nil
}

// Close waits for who reads, and writes out what is in memory. Nobody may write any more.
func (v *CommandView) Close() error {
	v.mu.Lock()
	v.closed = true
	v.mu.Unlock()
	v.reads.Wait()
	return errors.Join(v.flush(), v.db.Close())
}

// read begins a reading, which ends with v.reads.Done.
func (v *CommandView) read() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed {
		return errStopping
	}
	v.reads.Add(1)
	return nil
}

// flush makes everything durable that is in the view.
func (v *CommandView) flush() error {
	if err := v.db.Flush(); err != nil {
		return fmt.Errorf("write commands: %w", err)
	}
	return nil
}

func sequenceKey(prefix byte, seq uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte{prefix}, seq)
}

func deviceKey(prefix byte, device string) []byte {
	return append(append([]byte{prefix}, device...), 0)
}

func commandKey(device string, seq uint64) []byte {
	return binary.BigEndian.AppendUint64(deviceKey(keyCommands, device), ^seq)
}

func idKey(device, id string) []byte { return append(deviceKey(keyCommandID, device), id...) }

func (v *CommandView) value(r pebble.Reader, key []byte) ([]byte, bool, error) {
	if err := v.read(); err != nil {
		return nil, false, err
	}
	defer v.reads.Done()
	b, closer, err := r.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("read commands: %w", err)
	}
	b = append([]byte{}, b...)
	return b, true, closer.Close()
}

func (v *CommandView) number(key []byte) (uint64, bool, error) {
	b, ok, err := v.value(v.db, key)
	if err == nil && ok && len(b) != 8 {
		err = errChanges
	}
	if err != nil || !ok {
		return 0, false, err
	}
	return binary.BigEndian.Uint64(b), true, nil
}

func (v *CommandView) command(r pebble.Reader, device string, seq uint64) (s storedCommand, ok bool, err error) {
	b, ok, err := v.value(r, commandKey(device, seq))
	if err != nil || !ok {
		return s, false, err
	}
	s, err = decodeCommand(b)
	return s, err == nil, err
}

// apply takes in what DOWN says from the view's position on, and the position next-1.
func (v *CommandView) apply(entries []downEntry, next uint64, damaged func(seq uint64, err error)) error {
	b := v.db.NewIndexedBatch()
	defer b.Close() //nolint:errcheck // of a batch that is committed or given up
	for _, e := range entries {
		var err error
		switch {
		case e.changes != nil:
			if derr := decodeChanges(e.changes, func(c change) { err = errors.Join(err, v.applyChange(b, c)) }); derr != nil {
				damaged(e.seq, derr)
			}
		case e.rec != nil && e.device != "":
			err = v.applyCommand(b, commandOf(e))
		}
		if err != nil {
			return fmt.Errorf("write commands: %w", err)
		}
	}
	if err := b.Set([]byte{keyApplied}, binary.BigEndian.AppendUint64(nil, next-1), nil); err != nil {
		return fmt.Errorf("write commands: %w", err)
	}
	if err := b.Commit(pebble.NoSync); err != nil {
		return fmt.Errorf("write commands: %w", err)
	}
	v.position.Store(next - 1)
	return nil
}

func (v *CommandView) applyCommand(b *pebble.Batch, s storedCommand) error {
	return errors.Join(v.count(b, s.job, commandStates, commandQueued), b.Set(commandKey(s.device, s.seq), s.append(nil), nil),
		b.Set(idKey(s.device, s.id), binary.BigEndian.AppendUint64(nil, s.seq), nil),
		b.Set(sequenceKey(keySequence, s.seq), []byte(s.device), nil), b.Set(sequenceKey(keyOpen, s.seq), []byte(s.device), nil))
}

// applyChange changes the state of a command; nothing changes a final one.
func (v *CommandView) applyChange(b *pebble.Batch, c change) error {
	if c.state == commandTold {
		if c.seq > v.announced.Load() { // the view is being made again
			v.announced.Store(c.seq)
			return b.Set([]byte{keyTold}, binary.BigEndian.AppendUint64(nil, c.seq), nil)
		}
		return nil
	}
	device, ok, err := v.value(b, sequenceKey(keySequence, c.seq))
	if err != nil || !ok {
		return err // trimmed
	}
	s, ok, err := v.command(b, string(device), c.seq)
	if err != nil || !ok || s.state.final() {
		return err
	}
	if err := v.count(b, s.job, s.state, c.state); err != nil {
		return err
	}
	s.state, s.changed, s.reason = c.state, c.at, c.reason
	if c.state.final() {
		err = b.Delete(sequenceKey(keyOpen, c.seq), nil)
	}
	return errors.Join(err, b.Set(commandKey(s.device, s.seq), s.append(nil), nil))
}

// count moves a command of a broadcast from one state to another; commandStates is none.
func (v *CommandView) count(b *pebble.Batch, job string, from, to commandState) error {
	if job == "" {
		return nil
	}
	n, err := v.tally(b, job)
	if err != nil {
		return err
	}
	if from < commandStates {
		n[from]--
	}
	n[to]++
	value := make([]byte, 0, 8*len(n))
	for _, x := range n {
		value = binary.BigEndian.AppendUint64(value, x)
	}
	return b.Set(append([]byte{keyTally}, job...), value, nil)
}

// tally returns how many commands of a broadcast are in each state.
func (v *CommandView) tally(r pebble.Reader, job string) (n [commandStates]uint64, err error) {
	b, ok, err := v.value(r, append([]byte{keyTally}, job...))
	if err == nil && ok && len(b) != 8*len(n) {
		err = errChanges
	}
	if err != nil || !ok {
		return n, err
	}
	for i := range n {
		n[i] = binary.BigEndian.Uint64(b[8*i:])
	}
	return n, nil
}

// forget drops what is counted of a broadcast.
func (v *CommandView) forget(job string) error {
	if err := v.db.Delete(append([]byte{keyTally}, job...), pebble.NoSync); err != nil {
		return fmt.Errorf("write commands: %w", err)
	}
	return nil
}

// tell says that events have told of everything up to a position.
func (v *CommandView) tell(position uint64) error {
	if err := v.db.Set([]byte{keyTold}, binary.BigEndian.AppendUint64(nil, position), pebble.NoSync); err != nil {
		return fmt.Errorf("write commands: %w", err)
	}
	v.announced.Store(position)
	return nil
}

// find returns the command of a device with an id.
func (v *CommandView) find(device, id string) (s storedCommand, ok bool, err error) {
	seq, ok, err := v.number(idKey(device, id))
	if err != nil || !ok {
		return s, false, err
	}
	return v.command(v.db, device, seq)
}

// at returns the command at a sequence.
func (v *CommandView) at(seq uint64) (s storedCommand, ok bool, err error) {
	device, ok, err := v.value(v.db, sequenceKey(keySequence, seq))
	if err != nil || !ok {
		return s, false, err
	}
	return v.command(v.db, string(device), seq)
}

// each calls fn with the keys and values below a prefix, from a key on, until it returns false.
func (v *CommandView) each(from, prefix []byte, fn func(key, value []byte) (bool, error)) (err error) {
	if err := v.read(); err != nil {
		return err
	}
	defer v.reads.Done()
	upper := append(append([]byte{}, prefix[:len(prefix)-1]...), prefix[len(prefix)-1]+1) // prefixes end below FF
	it, err := v.db.NewIter(&pebble.IterOptions{LowerBound: from, UpperBound: upper})
	if err != nil {
		return fmt.Errorf("read commands: %w", err)
	}
	defer func() { err = errors.Join(err, it.Close()) }()
	for ok := it.First(); ok; ok = it.Next() {
		b, err := it.ValueAndErr()
		if err != nil {
			return fmt.Errorf("read commands: %w", err)
		}
		if more, err := fn(it.Key(), b); err != nil || !more {
			return err
		}
	}
	return it.Error()
}

// eachOpen calls fn with the commands that are not final, in the order of DOWN.
func (v *CommandView) eachOpen(fn func(storedCommand)) error {
	return v.each([]byte{keyOpen}, []byte{keyOpen}, func(key, device []byte) (bool, error) {
		s, ok, err := v.command(v.db, string(device), binary.BigEndian.Uint64(key[1:]))
		if ok {
			fn(s)
		}
		return true, err
	})
}

// oldest is the lowest sequence of a command that is not final; ok is false if there is none.
func (v *CommandView) oldest() (seq uint64, ok bool, err error) {
	err = v.each([]byte{keyOpen}, []byte{keyOpen}, func(key, _ []byte) (bool, error) {
		seq, ok = binary.BigEndian.Uint64(key[1:]), true
		return false, nil
	})
	return seq, ok, err
}

// listBudget is how many commands a list looks at before it leaves the rest to the next page.
const listBudget = 10_000

// list returns the commands of a device below a sequence (0 = all), newest first, at most so many, and only those of a
// status if one is given. next is where the next page begins; 0 = there is none.
func (v *CommandView) list(device, status string, below uint64, most int) (found []storedCommand, next uint64, err error) {
	prefix := deviceKey(keyCommands, device)
	from := prefix
	if below > 0 {
		from = commandKey(device, below-1)
	}
	looked, last := 0, uint64(0)
	err = v.each(from, prefix, func(_, value []byte) (bool, error) {
		if looked++; looked > listBudget || len(found) >= most {
			next = last
			return false, nil
		}
		s, err := decodeCommand(value)
		if err != nil {
			return false, err
		}
		last = s.seq
		if status == "" || s.state.String() == status {
			found = append(found, s)
		}
		return true, nil
	})
	return found, next, err
}

// trim forgets the commands below a sequence.
func (v *CommandView) trim(first uint64) error {
	b := v.db.NewBatch()
	defer b.Close() //nolint:errcheck // of a batch that is committed or given up
	err := v.each([]byte{keySequence}, []byte{keySequence}, func(key, device []byte) (bool, error) {
		seq := binary.BigEndian.Uint64(key[1:])
		if seq >= first {
			return false, nil
		}
		s, ok, err := v.command(v.db, string(device), seq)
		if err != nil {
			return false, err
		}
		if ok {
			if at, _, err := v.number(idKey(s.device, s.id)); err == nil && at == seq {
				err = b.Delete(idKey(s.device, s.id), nil)
				if err != nil {
					return false, err
				}
			}
		}
		return true, errors.Join(b.Delete(commandKey(string(device), seq), nil), b.Delete(key, nil), b.Delete(sequenceKey(keyOpen, seq), nil))
	})
	if err != nil {
		return err
	}
	if err := b.Commit(pebble.NoSync); err != nil {
		return fmt.Errorf("trim commands: %w", err)
	}
	return nil
}
