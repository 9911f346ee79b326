// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bytes"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rialto-bridge/rialto/bridge"
	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/targets/region"
)

// getEvent answers a stored event with its journey, or a part of that.
func (a *API) getEvent(w *reply, r *http.Request) error {
	q, err := readQuery(r, "source", "limit", "cursor")
	if err != nil {
		return err
	}
	e := bridge.EventQuery{Bus: w.bus, ID: pathParam(r, "id"), Source: q.text("source"), Limit: q.limit(), Cursor: q.text("cursor")}
	if err := q.err(); err != nil {
		return err
	}
	if e.ID == "" {
		return errNoRoute
	}
	found, err := a.o.Bridge.EventPage(r.Context(), e)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	if err := writeFound(&b, found); err != nil {
		return err
	}
	return w.send(http.StatusOK, contentJSON, b.Bytes())
}

// states are what a search can ask for.
var states = []string{bridge.StatePending, bridge.StateUnmatched, bridge.StateDelivered, bridge.StateDead, bridge.StateExpired, bridge.StateCancelled}

// searchEvents answers a list of events, newest first.
func (a *API) searchEvents(w *reply, r *http.Request) error {
	q, part, err := readList(r, "type", "source", "subject", "status", "target", "outcome")
	if err != nil {
		return err
	}
	s := bridge.SearchQuery{Type: q.text("type"), Source: q.text("source"), Subject: q.text("subject"), Status: q.text("status"),
		Target: q.text("target"), Outcome: q.text("outcome"), From: part.from, To: part.to, Limit: part.limit, Cursor: part.cursor}
	if s.Status != "" && !slices.Contains(states, s.Status) {
		q.fault("status", "must be one of "+strings.Join(states, ", "))
	}
	switch {
	case s.Outcome != "" && !slices.Contains(bridge.Outcomes, s.Outcome):
		q.fault("outcome", "must be one of "+strings.Join(bridge.Outcomes, ", "))
	case s.Outcome != "" && s.Target == "":
		q.fault("outcome", "goes with target: whose deliveries stand so")
	}
	if err := q.err(); err != nil {
		return err
	}
	page, err := a.o.Bridge.Search(r.Context(), w.bus, s)
	if err != nil {
		return err
	}
	return sendPage(w, page.Items, writeFound, page.NextCursor)
}

// sendPage sends a part of a list.
func sendPage[T any](w *reply, items []T, write func(*bytes.Buffer, *T) error, next string) error {
	var b bytes.Buffer
	b.WriteString(`{"items":[`)
	for i := range items {
		if i > 0 {
			b.WriteByte(',')
		}
		if err := write(&b, &items[i]); err != nil {
			return err
		}
	}
	b.WriteByte(']')
	if next != "" {
		b.WriteString(`,"nextCursor":`)
		b.Write(appendJSONString(nil, next))
	}
	b.WriteByte('}')
	return w.send(http.StatusOK, contentJSON, b.Bytes())
}

// origin is how an MQTT publish is shown.
type origin struct {
	Topic     string `json:"topic"`
	Client    string `json:"client"`
	Principal string `json:"principal,omitempty"`
	QoS       byte   `json:"qos"`
	Retain    bool   `json:"retain,omitempty"`
}

// writeFound writes an event with what is known of it.
func writeFound(b *bytes.Buffer, f *bridge.Found) error {
	writeEvent(b, f.Event, f.Position, f.Received)
	if f.State != "" {
		b.WriteString(`,"status":` + strconv.Quote(f.State))
	}
	if f.Origin != nil {
		b.WriteString(`,"origin":`)
		o := origin{f.Origin.Topic, f.Origin.Client, f.Origin.Principal, f.Origin.QoS, f.Origin.Retain}
		if err := encodeJSON(b, o); err != nil {
			return err
		}
	}
	if len(f.Hops) > 0 {
		b.WriteString(`,"hops":`)
		if err := encodeJSON(b, f.Hops); err != nil {
			return err
		}
	}
	if len(f.Others) > 0 {
		b.WriteString(`,"others":`)
		if err := encodeJSON(b, f.Others); err != nil {
			return err
		}
	}
	if f.Journey != nil {
		b.WriteString(`,"journey":`)
		if err := encodeJSON(b, f.Journey); err != nil {
			return err
		}
	}
	b.WriteByte('}')
	return nil
}

// writeEvent writes {"event","position","received" without the closing brace.
func writeEvent(b *bytes.Buffer, e *event.Event, pos event.Position, received time.Time) {
	b.WriteString(`{"event":`)
	b.Write(event.AppendJSON(b.AvailableBuffer(), e))
	b.WriteString(`,"position":"` + pos.String() + `","received":"`)
	b.Write(received.UTC().AppendFormat(b.AvailableBuffer(), time.RFC3339Nano))
	b.WriteByte('"')
}

// getLedger answers the account of one bus, or of all.
func (a *API) getLedger(w *reply, r *http.Request) error {
	q, err := readQuery(r, "bus", "from", "to")
	if err != nil {
		return err
	}
	from, to := q.time("from"), q.time("to")
	if err := q.err(); err != nil {
		return err
	}
	buses := a.o.Bridge.Buses()
	if bus := q.text("bus"); bus != "" {
		buses = []string{bus}
	}
	account := ledgerDoc{Balanced: true, Buses: []bridge.Ledger{}, Links: []region.Account{}}
	for _, bus := range buses {
		l, err := a.o.Bridge.Ledger(r.Context(), bridge.LedgerQuery{Bus: bus, From: from, To: to})
		if err != nil {
			return err
		}
		account.Balanced = account.Balanced && l.Balanced
		account.Buses = append(account.Buses, l)
		if a.o.Links == nil {
			continue
		}
		for _, link := range a.o.Links.Accounts(bus) {
			account.Balanced = account.Balanced && link.Difference == 0
			account.Links = append(account.Links, link)
		}
	}
	var b bytes.Buffer
	if err := encodeJSON(&b, account); err != nil {
		return err
	}
	return w.send(http.StatusOK, contentJSON, b.Bytes())
}

type ledgerDoc struct {
	Balanced bool            `json:"balanced"`
	Buses    []bridge.Ledger `json:"buses"`
	// Links are those that read these buses, over all times.
	Links []region.Account `json:"links"`
}
