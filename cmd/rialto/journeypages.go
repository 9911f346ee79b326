// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strconv"
)

// journeyPage is the most records that a page of a journey has.
const journeyPage = 1000

// olderRecords follows the pages of a journey and returns the event with all that they tell, of at most so many records (0 = all).
// The first page, which it is given, says how the deliveries stand.
func (cl *client) olderRecords(ctx context.Context, bus, id string, first json.RawMessage, records int) (json.RawMessage, error) {
	whole, err := readJourneyPart(first)
	if err != nil || whole.next == "" || records > 0 && records <= journeyPage {
		return first, err
	}
	var event struct{ Source string }
	if err := json.Unmarshal(whole.event["event"], &event); err != nil {
		return nil, err
	}
	query := url.Values{"source": {event.Source}}
	for left := records - journeyPage; whole.next != "" && (records == 0 || left > 0); left -= journeyPage {
		query.Set("cursor", whole.next)
		if records > 0 {
			query.Set("limit", strconv.Itoa(min(left, journeyPage)))
		}
		a, err := cl.do(ctx, request{Method: "GET", Path: eventPath(bus, id), Query: query})
		if err != nil {
			return nil, err
		}
		page, err := readJourneyPart(a.Body)
		if err != nil {
			return nil, err
		}
		if err := whole.putBefore(page); err != nil {
			return nil, err
		}
	}
	return whole.write()
}

// members are those of a JSON object, as they were sent: what this program does not know of is not lost.
type members map[string]json.RawMessage

// journeyPart is an event with a part of its journey.
type journeyPart struct {
	event      members // with its journey
	journey    members
	deliveries []members
	next       string // cursor of the part before it
	responses  int    // that are left out
}

func readJourneyPart(raw json.RawMessage) (p journeyPart, err error) {
	read := func(raw json.RawMessage, to any) {
		if err == nil && raw != nil {
			err = json.Unmarshal(raw, to)
		}
	}
	read(raw, &p.event)
	read(p.event["journey"], &p.journey)
	read(p.journey["deliveries"], &p.deliveries)
	read(p.journey["nextCursor"], &p.next)
	read(p.journey["responsesMore"], &p.responses)
	if err != nil {
		err = fmt.Errorf("unreadable answer: %w", err)
	}
	return p, err
}

// putBefore puts what an older part tells before what p tells. How the deliveries stand is as p says.
func (p *journeyPart) putBefore(older journeyPart) error {
	for _, d := range older.deliveries {
		i := slices.IndexFunc(p.deliveries, func(x members) bool {
			return bytes.Equal(x["rule"], d["rule"]) && bytes.Equal(x["target"], d["target"])
		})
		if i < 0 {
			p.deliveries = append(p.deliveries, d)
			continue
		}
		for _, name := range []string{"attempts", "redrives"} {
			if err := p.deliveries[i].prepend(name, d[name]); err != nil {
				return err
			}
		}
		if own := p.deliveries[i]; own["discarded"] == nil {
			own.set("discarded", d["discarded"])
		}
	}
	p.next = older.next
	p.responses += older.responses
	for _, name := range []string{"nextCursor", "recordsMore"} {
		p.journey.set(name, older.journey[name])
	}
	if p.responses > 0 {
		p.journey["responsesMore"] = json.RawMessage(strconv.Itoa(p.responses))
	}
	return nil
}

// write returns the event with its journey.
func (p *journeyPart) write() (raw json.RawMessage, err error) {
	if p.journey["deliveries"], err = json.Marshal(p.deliveries); err != nil {
		return nil, err
	}
	if p.event["journey"], err = json.Marshal(p.journey); err != nil {
		return nil, err
	}
	return json.Marshal(p.event)
}

// set sets a member, or takes it out if there is no value.
func (m members) set(name string, v json.RawMessage) {
	if m[name] = v; v == nil {
		delete(m, name)
	}
}

// prepend puts the items of a list before those of a member that is one.
func (m members) prepend(name string, list json.RawMessage) error {
	var items, own []json.RawMessage
	if list == nil {
		return nil
	}
	if err := json.Unmarshal(list, &items); err != nil {
		return fmt.Errorf("unreadable answer: %w", err)
	}
	if m[name] != nil {
		if err := json.Unmarshal(m[name], &own); err != nil {
			return fmt.Errorf("unreadable answer: %w", err)
		}
	}
	raw, err := json.Marshal(append(items, own...))
	m[name] = raw
	return err
}
