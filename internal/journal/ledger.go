// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"slices"

	"github.com/cockroachdb/pebble/v2"
)

// Counts are deliveries by how they stand.
type Counts struct {
	Owed      uint64 `json:"owed"`
	Delivered uint64 `json:"delivered"`
	Dead      uint64 `json:"dead"`
	Expired   uint64 `json:"expired"`
	Cancelled uint64 `json:"cancelled"`
	Discarded uint64 `json:"discarded"`
	Ranged    uint64 `json:"ranged,omitempty"` // pending in a range
}

// Open returns how many are owed and have not ended.
func (c Counts) Open() int64 {
	return int64(c.Owed) - int64(c.Delivered+c.Dead+c.Expired+c.Cancelled+c.Discarded)
}

// ended returns where deliveries that ended in a state are counted; nil for a state that is no end.
func (c *Counts) ended(s State) *uint64 {
	switch s {
	case Delivered:
		return &c.Delivered
	case Dead:
		return &c.Dead
	case Expired:
		return &c.Expired
	case Cancelled:
		return &c.Cancelled
	case Discarded:
		return &c.Discarded
	}
	return nil
}

func (c Counts) encode() []byte {
	var b []byte
	for _, v := range []uint64{c.Owed, c.Delivered, c.Dead, c.Expired, c.Cancelled, c.Discarded, c.Ranged} {
		b = binary.AppendUvarint(b, v)
	}
	return b
}

func (c *Counts) decode(b []byte) error {
	d := decoder{b: b}
	*c = Counts{d.uint(), d.uint(), d.uint(), d.uint(), d.uint(), d.uint(), d.uint()}
	return d.err
}

// Add adds o to c.
func (c *Counts) Add(o Counts) {
	c.Owed += o.Owed
	c.Delivered += o.Delivered
	c.Dead += o.Dead
	c.Expired += o.Expired
	c.Cancelled += o.Cancelled
	c.Discarded += o.Discarded
	c.Ranged += o.Ranged
}

// EventCounts are the events of an hour.
type EventCounts struct {
	Accepted  uint64 // counted while reading the event stream
	Matched   uint64 // counted while reading JOURNEY, as all others
	Unmatched uint64
	Lost      uint64
}

// HourCounts is the ledger of one hour of a bus, as far as the views have read.
type HourCounts struct {
	Hour       uint32 // hours since 1970, of the events' arrival
	Events     EventCounts
	Deliveries map[RoutePair]Counts
}

// RoutePair is what the ledger counts deliveries by.
type RoutePair struct{ Rule, Target string }

// Standing is how pending deliveries of an hour, rule and target stand.
type Standing struct {
	Live   uint64
	Parked uint64
	Ranged uint64
	Lost   uint64 // neither parked, nor in a range, nor above the floor: nobody will ever make them
}

// Ledger is the account of a bus as of one moment.
type Ledger struct {
	Hours   []HourCounts // in order; hours without an entry are left out
	Pending map[uint32]map[RoutePair]Standing
	// NotRouted are the events behind RoutedTo, by hour. It is known only if Indexed >= RoutedTo.
	NotRouted         map[uint32]uint64
	Indexed, RoutedTo uint64
	Floor             uint64
}

// Ledger returns the hours from..to, all read at one moment.
func (j *Journal) Ledger(bus string, from, to uint32) (Ledger, error) {
	s := view{j.db.NewSnapshot()}
	defer s.r.(*pebble.Snapshot).Close()
	l := Ledger{Pending: make(map[uint32]map[RoutePair]Standing), NotRouted: make(map[uint32]uint64)}
	var err error
	for _, n := range []struct {
		to *uint64
		k  []byte
	}{{&l.Indexed, key('w', bus, 'E')}, {&l.RoutedTo, key('w', bus, 'R')}, {&l.Floor, key('f', bus)}} {
		if *n.to, err = s.number(n.k); err != nil {
			return l, err
		}
	}
	if l.Hours, err = s.hours(bus, from, to); err != nil {
		return l, err
	}
	if err := l.ranged(s, bus); err != nil {
		return l, err
	}
	err = s.eachIndexed(bus, l.RoutedTo+1, l.Indexed, func(hour uint32, n uint64) error {
		if hour >= from && hour <= to {
			l.NotRouted[hour] += n
		}
		return nil
	})
	if err != nil {
		return l, err
	}
	return l, s.eachPending(key('p', bus), nil, bus, func(p Pending) (bool, error) {
		if p.Hour < from || p.Hour > to {
			return true, nil
		}
		l.stands(p.Hour, RoutePair{p.Route.Rule, p.Route.Target}, func(st *Standing) {
			switch {
			case p.State == Parked:
				st.Parked++
			case p.Seq <= l.Floor:
				st.Lost++
			default:
				st.Live++
			}
		})
		return true, nil
	})
}

// ranged brings in what is pending in ranges. What is counted so without a range is lost: damage took its record.
func (l *Ledger) ranged(s view, bus string) error {
	open := make(map[string]bool)
	err := s.eachRange(bus, func(target string, _ Range) error {
		open[target] = true
		return nil
	})
	for _, h := range l.Hours {
		for pair, c := range h.Deliveries {
			if c.Ranged == 0 {
				continue
			}
			l.stands(h.Hour, pair, func(st *Standing) {
				if open[pair.Target] {
					st.Ranged = c.Ranged
				} else {
					st.Lost += c.Ranged
				}
			})
		}
	}
	return err
}

// stands changes how the pending deliveries of an hour, rule and target stand.
func (l *Ledger) stands(hour uint32, pair RoutePair, change func(*Standing)) {
	if l.Pending[hour] == nil {
		l.Pending[hour] = make(map[RoutePair]Standing)
	}
	st := l.Pending[hour][pair]
	change(&st)
	l.Pending[hour][pair] = st
}

func (s view) hours(bus string, from, to uint32) ([]HourCounts, error) {
	byHour := make(map[uint32]*HourCounts)
	each := func(letter byte, fn func(h *HourCounts, rest, v []byte) error) error {
		prefix := key(letter, bus)
		return s.scan(prefix, u32(bytes.Clone(prefix), from), func(k, v []byte) (bool, error) {
			hour := binary.BigEndian.Uint32(k[len(prefix):])
			if hour > to {
				return false, nil
			}
			if byHour[hour] == nil {
				byHour[hour] = &HourCounts{Hour: hour, Deliveries: make(map[RoutePair]Counts)}
			}
			return true, fn(byHour[hour], k[len(prefix)+4:], v)
		})
	}
	err := errors.Join(
		each('a', func(h *HourCounts, _, v []byte) error {
			h.Events.Accepted = binary.BigEndian.Uint64(v)
			return nil
		}),
		each('l', func(h *HourCounts, _, v []byte) error {
			d := decoder{b: v}
			h.Events.Matched, h.Events.Unmatched, h.Events.Lost = d.uint(), d.uint(), d.uint()
			return d.err
		}),
		each('o', func(h *HourCounts, rest, v []byte) error {
			rule, target, _ := bytes.Cut(rest, []byte{0})
			var c Counts
			err := c.decode(v)
			h.Deliveries[RoutePair{string(rule), string(target)}] = c
			return err
		}))
	out := make([]HourCounts, 0, len(byHour))
	for _, h := range byHour {
		out = append(out, *h)
	}
	slices.SortFunc(out, func(a, b HourCounts) int { return cmp.Compare(a.Hour, b.Hour) })
	return out, err
}
