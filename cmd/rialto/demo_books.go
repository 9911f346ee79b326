// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// books is the account of a demo from outside the bridge: what was acknowledged, what is in the log, what is owed by
// that, and what arrived. It decides by itself, and not by asking the bridge, which events a rule must pick. Safe for
// concurrent use.
type books struct {
	client *client

	mu         sync.Mutex        // guards all below
	accepted   *pairs            // what producers were told is stored, against the log
	readings   int               // acknowledged to boxes
	orders     int               // acknowledged to the shop
	uncertain  int               // sent, and no answer came: they may be stored
	inLog      map[string]int    // events in the log, by bus
	comings    int               // of them, events about boxes that connect, subscribe and leave
	deliveries map[string]*pairs // by endpoint: what the log says is owed, against what arrived
	trouble    error             // why the log cannot be read
}

func newBooks(cl *client) *books {
	b := &books{client: cl, accepted: newPairs(), inLog: make(map[string]int), deliveries: make(map[string]*pairs)}
	for _, w := range wires {
		b.deliveries[w.endpoint] = newPairs()
	}
	return b
}

// readingKey and orderKey name what a producer sent, as it can be read from the event in the log.
func readingKey(run, box string, n int) string { return fmt.Sprintf("reading %s/%s/%d", run, box, n) }
func orderKey(run, id string) string           { return "order " + run + "/" + id }

func (b *books) readingStored(key string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.readings++
	b.accepted.add(key, promised)
}

func (b *books) orderStored(key string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.orders++
	b.accepted.add(key, promised)
}

// unanswered counts something that was sent and that nobody acknowledged.
func (b *books) unanswered() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.uncertain++
}

func (b *books) arrived(endpoint, eventID string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p := b.deliveries[endpoint]; p != nil {
		p.add(eventID, found)
	}
}

// acknowledged returns how many readings were acknowledged so far.
func (b *books) acknowledged() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.readings
}

// reading is the data of a box's publish.
type reading struct {
	Run         string  `json:"run"`
	Box         string  `json:"box"`
	N           int     `json:"n"`
	Temperature float64 `json:"temperature"`
	Setpoint    float64 `json:"setpoint"`
	Humidity    int     `json:"humidity"`
	Door        string  `json:"door"`
}

// enter puts an event of the log into the books.
func (b *books) enter(run, bus string, e eventHead) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.inLog[bus]++
	if strings.HasPrefix(e.Type, "io.rialto.device.") {
		b.comings++
	}
	switch r, isReading := readingOf(e); {
	case isReading && r.Run == run:
		b.accepted.add(readingKey(run, r.Box, r.N), found)
	case e.Source == shopSource(run):
		b.accepted.add(orderKey(run, e.ID), found)
	}
	for _, w := range wires {
		if w.bus == bus && w.picks(e) {
			b.deliveries[w.endpoint].add(e.ID, promised)
		}
	}
}

// readingOf returns the reading in an event, if it is one of a box.
func readingOf(e eventHead) (reading, bool) {
	var r reading
	if e.Type != readingType || json.Unmarshal(e.Data, &r) != nil {
		return r, false
	}
	return r, r.Run != "" && r.Box != ""
}

// follow reads the log of a bus from its first event on, as everybody can, until ctx is done; each gets every event
// after it was entered.
func (b *books) follow(ctx context.Context, run, bus string, each func(bus string, e eventHead)) {
	var last string
	for ctx.Err() == nil {
		_, err := b.client.follow(ctx, tailing{buses: []string{bus}, from: "EV_" + bus + ":1"}, &last, func(_ streamed, e eventHead) error {
			b.enter(run, bus, e)
			each(bus, e)
			return nil
		})
		if ctx.Err() != nil {
			return
		}
		b.mu.Lock()
		b.trouble = err
		b.mu.Unlock()
		wait(ctx, firstPause)
	}
}

// ledgers asks the bridge for its own account of its buses.
func (b *books) ledgers(ctx context.Context) ([]account, error) {
	var answer struct {
		Buses []account `json:"buses"`
	}
	if err := b.client.get(ctx, "/v1/ledger", nil, &answer); err != nil {
		return nil, err
	}
	var ours []account
	for _, bus := range demoBuses {
		i := slices.IndexFunc(answer.Buses, func(a account) bool { return a.Bus == bus })
		if i < 0 {
			return nil, fmt.Errorf("it has no bus %s", bus)
		}
		ours = append(ours, answer.Buses[i])
	}
	return ours, nil
}

// statement is the account at the end, from both ends.
type statement struct {
	ledgers     []account
	text        string
	differences []string
}

// settled reports whether nothing is under way any more: all is routed, delivered, and seen by us.
func (s statement) settled() bool { return len(s.differences) == 0 }

// close makes the statement. It may be called again and again until all is settled.
func (b *books) close(ctx context.Context) statement {
	ledgers, err := b.ledgers(ctx)
	b.mu.Lock()
	defer b.mu.Unlock()
	s := statement{ledgers: ledgers}
	differ := func(format string, args ...any) { s.differences = append(s.differences, fmt.Sprintf(format, args...)) }
	if err != nil {
		differ("the ledger cannot be read: %v", err)
		return s
	}
	b.compareLog(ledgers, differ)
	owed, arrived := b.compareDeliveries(ledgers, differ)
	s.text = b.paragraph(ledgers, owed, arrived)
	return s
}

// compareLog holds what was acknowledged, the log and the ledger against each other. Called with mu held.
func (b *books) compareLog(ledgers []account, differ func(string, ...any)) {
	if missing := b.accepted.lonely(promised); len(missing) > 0 {
		differ("%d acknowledged and not in the log: %s", len(missing), some(missing))
	}
	if extra := b.accepted.lonely(found); len(extra) > b.uncertain {
		differ("%d in the log and never acknowledged, where %d had no answer: %s", len(extra), b.uncertain, some(extra))
	}
	if b.accepted.repeats > 0 {
		differ("%d stored or acknowledged twice", b.accepted.repeats)
	}
	for _, a := range ledgers {
		e := a.Events
		if !a.Balanced {
			differ("the ledger of %s differs by %d", a.Bus, a.Difference)
		}
		if uint64(b.inLog[a.Bus]) != e.Accepted {
			differ("the ledger of %s has %d events accepted, its log %d", a.Bus, e.Accepted, b.inLog[a.Bus])
		}
		if e.NotYetRouted > 0 {
			differ("%d events of %s are not routed yet", e.NotYetRouted, a.Bus)
		}
		if e.Lost > 0 {
			differ("%d events of %s are lost", e.Lost, a.Bus)
		}
	}
	if len(b.inLog) < len(ledgers) && b.trouble != nil {
		differ("the log could not be followed: %v", b.trouble)
	}
}

// totals of the deliveries of our own rules.
type totals struct{ owed, delivered, dead, otherwise, pending uint64 }

// compareDeliveries holds what the log says is owed, the ledger and the receiver against each other. Called with mu
// held. It returns the ledger's totals and how many events the receiver saw.
func (b *books) compareDeliveries(ledgers []account, differ func(string, ...any)) (t totals, arrived int) {
	for _, w := range wires {
		p := b.deliveries[w.endpoint]
		var l totals
		for _, a := range ledgers {
			for _, d := range a.Deliveries {
				if a.Bus == w.bus && d.Rule == w.rule && d.Target == w.endpoint {
					l = totals{d.Owed, d.Delivered, d.Dead, d.Expired + d.Cancelled + d.Discarded, d.Pending}
				}
			}
		}
		route := w.rule + " -> " + w.endpoint
		owed, saw := p.count(promised), p.count(found)
		if uint64(owed) != l.owed {
			differ("%s: the log owes %d deliveries, the ledger says %d", route, owed, l.owed)
		}
		if uint64(saw) != l.delivered {
			differ("%s: the ledger has %d delivered, the receiver saw %d", route, l.delivered, saw)
		}
		if l.pending > 0 {
			differ("%s: %d still pending", route, l.pending)
		}
		missing := p.lonely(promised)
		if ended := l.dead + l.otherwise; uint64(len(missing)) != ended {
			differ("%s: %d did not arrive, where %d ended without: %s", route, len(missing), ended, some(missing))
		}
		if stray := p.lonely(found); len(stray) > 0 {
			differ("%s: %d arrived that nobody owed: %s", route, len(stray), some(stray))
		}
		t.owed += l.owed
		t.delivered += l.delivered
		t.dead += l.dead
		t.otherwise += l.otherwise
		t.pending += l.pending
		arrived += saw
	}
	return t, arrived
}

// paragraph is the account in words. Called with mu held.
func (b *books) paragraph(ledgers []account, t totals, arrived int) string {
	var out strings.Builder
	stored := 0
	for _, n := range b.inLog {
		stored += n
	}
	fmt.Fprintf(&out, "The boxes got %d readings acknowledged, and the shop got 202 for %s. The log holds %s: ", b.readings,
		count(b.orders, "event"), count(stored, "event"))
	unanswered := len(b.accepted.lonely(found))
	fmt.Fprintf(&out, "%d + %d", b.readings, b.orders)
	if unanswered > 0 {
		fmt.Fprintf(&out, " + %d whose acknowledgement did not arrive", unanswered)
	}
	if b.comings > 0 {
		fmt.Fprintf(&out, " + %d about boxes that come and go", b.comings)
	}
	missing := len(b.accepted.lonely(promised))
	if others := stored + missing - b.readings - b.orders - unanswered - b.comings; others > 0 {
		fmt.Fprintf(&out, " + %d from others", others)
	}
	fmt.Fprintf(&out, ", lost %d. ", missing)
	for _, a := range ledgers {
		fmt.Fprintf(&out, "Bus %s: %d accepted = %d matched + %d unmatched. ", a.Bus, a.Events.Accepted, a.Events.Matched, a.Events.Unmatched)
	}
	fmt.Fprintf(&out, "Owed to webhooks %d = %d delivered + %d dead + %d pending", t.owed, t.delivered, t.dead, t.pending)
	if t.otherwise > 0 {
		fmt.Fprintf(&out, " + %d ended otherwise", t.otherwise)
	}
	lost, again := 0, 0
	for _, p := range b.deliveries {
		lost += len(p.lonely(promised))
		again += p.repeats
	}
	fmt.Fprintf(&out, "; the receiver saw %d by event id", arrived)
	if again > 0 {
		fmt.Fprintf(&out, " (%d more than once)", again)
	}
	fmt.Fprintf(&out, ", lost %d.", max(0, lost-int(t.dead+t.otherwise)))
	return out.String()
}

// some names the first few of keys.
func some(keys []string) string {
	const few = 3
	if len(keys) <= few {
		return strings.Join(keys, ", ")
	}
	return strings.Join(keys[:few], ", ") + ", ..."
}

// parked returns how many deliveries to an endpoint are parked, by the ledger.
func (b *books) parked(ctx context.Context, endpoint string) (int, error) {
	ledgers, err := b.ledgers(ctx)
	n := 0
	for _, a := range ledgers {
		for _, d := range a.Deliveries {
			if d.Target == endpoint {
				n += int(d.Parked)
			}
		}
	}
	return n, err
}
