// SPDX-License-Identifier: Apache-2.0

package region

import "github.com/rialto-bridge/rialto/internal/eventlog"

// Account is what became of the sequences of a link's bus, since the link began in its epoch.
type Account struct {
	Link   string `json:"link,omitempty"`
	Region string `json:"region,omitempty"`
	Bus    string `json:"bus,omitempty"`
	To     string `json:"to,omitempty"`
	Epoch  string `json:"epoch,omitempty"`

	Main    LaneAccount  `json:"main"`
	Urgent  *LaneAccount `json:"urgent,omitempty"` // nil: there never was an urgent pattern
	Pending uint64       `json:"pending"`          // sequences of the log that are not covered
	// Lost counts sequences that the other side once had, has lost (it was restored from a backup), and that are no longer
	// here to be sent again. They were counted by what became of them at first.
	Lost uint64 `json:"lost,omitempty"`
	// Difference is what does not add up, covered less the sum of what became of it; other than 0 it is a bug.
	Difference int64 `json:"difference"`
}

// LaneAccount is the part of an Account that one lane has.
type LaneAccount struct {
	From    uint64 `json:"from"`    // the first sequence that the lane has to do with
	Covered uint64 `json:"covered"` // sequences from there on that need no more work

	Forwarded uint64 `json:"forwarded"` // stored there
	Known     uint64 `json:"known"`     // were there already
	Filtered  uint64 `json:"filtered"`  // the pattern does not take them
	Looped    uint64 `json:"looped"`    // have been there before they came here
	Refused   uint64 `json:"refused"`   // can never be stored there
	Failed    uint64 `json:"failed"`    // could not be transformed
	Dropped   uint64 `json:"dropped"`   // retention took them
	Gaps      uint64 `json:"gaps"`      // no event stands there
	Urgent    uint64 `json:"urgent"`    // of main: are of the urgent lane
	Others    uint64 `json:"others"`    // of urgent: are not of the urgent lane
}

// account is the account that a state makes.
func (s *state) account(name string) Account {
	a := Account{Link: name, Region: s.Region, Bus: s.Bus, To: s.To, Epoch: s.Epoch, Lost: s.Lost, Main: s.lane(Main)}
	a.Difference = int64(a.Main.Covered - s.Main.sum()) //nolint:gosec // small, and of either sign
	if s.Urgent > 0 {
		l := s.lane(Urgent)
		a.Urgent = &l
		a.Difference += int64(l.Covered - s.Fast.sum()) //nolint:gosec // as well
	}
	return a
}

func (s *state) lane(l Lane) LaneAccount {
	t := s.of(l)
	return LaneAccount{From: s.start(l), Covered: s.Done.Of(l).Count(), Forwarded: t.Forwarded, Known: t.Known, Filtered: t.Filtered, Looped: t.Looped,
		Refused: t.Refused, Failed: t.Failed, Dropped: t.Dropped, Gaps: t.Gaps, Urgent: t.Urgent, Others: t.Others}
}

// waiting says how much of a log is not done, and where the first of that stands; 0 if all is.
func (s *state) waiting(bus *eventlog.Bus) (pending, oldest uint64) {
	committed := bus.Committed()
	for l := range lanes {
		n, at := s.pending(l, committed)
		pending = max(pending, n)
		if n > 0 && (oldest == 0 || at < oldest) {
			oldest = at
		}
	}
	return pending, oldest
}

// pending counts the sequences up to committed that a lane has not done, and says where the first of them stands.
func (s *state) pending(l Lane, committed uint64) (n, first uint64) {
	from := s.start(l)
	if from == 0 || from > committed {
		return 0, 0
	}
	for from <= committed {
		r, more := s.Done.Of(l).Missing(from, committed)
		if !more {
			break
		}
		from = r.To + 1
		for at := r.From; at <= r.To; {
			end := r.To
			if l == Urgent { // what nothing is urgent in waits for nobody
				if quiet := s.quietTo(at); quiet >= r.To {
					break
				} else if quiet >= at {
					at = quiet + 1
				}
				end = min(end, s.segmentEnd(at))
			}
			if first == 0 {
				first = at
			}
			n += end - at + 1
			at = end + 1
		}
	}
	return n, first
}
