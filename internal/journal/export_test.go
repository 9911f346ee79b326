// SPDX-License-Identifier: Apache-2.0

package journal

// Each calls fn for every key of the views.
func (j *Journal) Each(fn func(k, v []byte)) error {
	it, err := j.db.NewIter(nil)
	if err != nil {
		return err
	}
	defer it.Close()
	for ok := it.First(); ok; ok = it.Next() {
		fn(it.Key(), it.Value())
	}
	return it.Error()
}

// MergeChanges merges changes of a set, oldest first, in the two orders in which Pebble does, a part first.
func MergeChanges(newer bool, split int, changes ...[]byte) ([]byte, error) {
	merge := func(changes [][]byte, whole bool) ([]byte, error) {
		first := changes[0]
		if !newer {
			first = changes[len(changes)-1]
		}
		m, err := merger.Merge(nil, first)
		if err != nil {
			return nil, err
		}
		for i := 1; i < len(changes); i++ {
			if newer {
				err = m.MergeNewer(changes[i])
			} else {
				err = m.MergeOlder(changes[len(changes)-1-i])
			}
			if err != nil {
				return nil, err
			}
		}
		b, _, err := m.Finish(whole)
		return b, err
	}
	part, err := merge(changes[split:], false)
	if err != nil {
		return nil, err
	}
	return merge(append(append([][]byte{}, changes[:split]...), part), true)
}

// AppendChange writes a change of a set.
var AppendChange = appendChange
