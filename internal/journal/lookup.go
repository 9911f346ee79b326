// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"
)

// lookup finds pending deliveries by their names, in the views as they are when it is first used. For many that stand near each other
// it costs a quarter of as many reads from the database, each of which begins by finding its way through the files. The zero lookup
// with a view is ready; who uses it closes it.
type lookup struct {
	view
	it         *pebble.Iterator
	key, limit []byte // scratch
}

// pending returns one pending delivery; ok is false if it is settled for good or unknown.
func (l *lookup) pending(bus string, seq uint64, r Route) (p Pending, ok bool, err error) {
	if l.it == nil {
		if l.it, err = l.r.NewIter(&pebble.IterOptions{LowerBound: []byte{'p'}, UpperBound: []byte{'p' + 1}}); err != nil {
			return p, false, fmt.Errorf("read views: %w", err)
		}
	}
	l.key = appendPendingKey(l.key[:0], bus, seq, r.Rule, r.Target)
	l.limit = append(append(l.limit[:0], l.key...), 0)
	if l.it.SeekGEWithLimit(l.key, l.limit) != pebble.IterValid || !bytes.Equal(l.it.Key(), l.key) {
		if err := l.it.Error(); err != nil {
			return p, false, fmt.Errorf("read views: %w", err)
		}
		return p, false, nil
	}
	p = Pending{Seq: seq, Route: Route{Rule: r.Rule, Target: r.Target}}
	return p, true, errors.Join(p.decode(l.it.Value()), l.it.Error())
}

func (l *lookup) close() error {
	if l.it == nil {
		return nil
	}
	return l.it.Close()
}
