// SPDX-License-Identifier: Apache-2.0

package targets

import (
	"encoding/binary"
	"hash/fnv"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/rules"
)

// Ordering says that events with the same key are delivered in the order in which they were stored, one at a time.
type Ordering struct {
	By    string // partitionkey, subject, source, or an expression; "" = the first of these three that an event has
	Block bool   // what fails for good keeps its key waiting; otherwise it is a dead letter, and the next has its turn

	expression *rules.Expression // of By, if it is one
}

// Key returns a number for the key of an event on a bus; 0 if it has none, and no order.
func (o *Ordering) Key(bus string, ev *event.Event) uint64 {
	key := o.text(ev)
	if key == "" {
		return 0
	}
	h := fnv.New64a()
	h.Write(binary.AppendUvarint(nil, uint64(len(bus)))) // no error: it is a hash
	h.Write([]byte(bus))
	h.Write([]byte(key))
	return max(h.Sum64(), 1)
}

func (o *Ordering) text(ev *event.Event) string {
	switch o.By {
	case "partitionkey":
		return partitionKey(ev)
	case "subject":
		return ev.Subject
	case "source":
		return ev.Source
	case "":
		if key := partitionKey(ev); key != "" {
			return key
		}
		if ev.Subject != "" {
			return ev.Subject
		}
		return ev.Source
	}
	return o.expression.Key(ev)
}

// Reads lists what the key of an event is made of. Pointers are into the target's definition.
func (o *Ordering) Reads() []rules.Read {
	const at = "/delivery/orderBy"
	names := []string{o.By}
	switch {
	case o.expression != nil:
		return o.expression.Reads(at)
	case o.By == "":
		names = []string{"partitionkey", "subject", "source"}
	}
	var out []rules.Read
	for _, name := range names {
		out = append(out, rules.Read{Path: event.Path{{Name: name}}, Pointer: at})
	}
	return out
}

func partitionKey(ev *event.Event) string {
	v, _ := ev.Extension("partitionkey")
	s, _ := v.(string)
	return s
}

// ordering reads what delivery says of order.
func (o *object) ordering(to **Ordering) {
	mode := o.text("ordering", 0, 63)
	by := o.text("orderBy", 0, rules.MaxExpression)
	onFailure := o.text("onFailure", 0, 63)
	switch mode {
	case "", "none":
		for name, given := range map[string]string{"orderBy": by, "onFailure": onFailure} {
			if given != "" {
				o.complain(name, "is for ordering: key")
			}
		}
		return
	case "key":
	default:
		o.complain("ordering", "is neither none nor key")
		return
	}
	ordering := &Ordering{By: by}
	switch onFailure {
	case "", "skip":
	case "block":
		ordering.Block = true
	default:
		o.complain("onFailure", "is neither block nor skip")
	}
	switch by {
	case "", "partitionkey", "subject", "source":
	default:
		var err error
		if ordering.expression, err = rules.ParseKey(by); err != nil {
			o.complain("orderBy", "is none of partitionkey, subject, source, and no expression: %v", err)
		}
	}
	*to = ordering
}
