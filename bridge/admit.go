// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/schema"
)

// What a bus does with an event that does not fit its schema.
const (
	PolicyOff        = "off"        // nobody looks
	PolicyWarn       = "warn"       // it is stored with a mark, and counted
	PolicyQuarantine = "quarantine" // it is stored on another bus, with a mark
	PolicyReject     = "reject"     // it is refused
)

var policies = []string{PolicyOff, PolicyWarn, PolicyQuarantine, PolicyReject}

const defaultQuarantineBus = "quarantine"

// Extension attributes that mark an event which does not fit.
const (
	ViolationAttribute  = "schemaviolation" // why
	QuarantineAttribute = "quarantinedfrom" // the bus it was sent to
	maxViolation        = 1024              // bytes of the reasons
)

// Schemas says whether events fit their schemas: see schema.Registry.
type Schemas interface {
	// Validate returns an Invalid error with pointers for an event that does not fit.
	Validate(ev *event.Event) (schema.Result, error)
	// Ready is closed once it knows the schemas there are.
	Ready() <-chan struct{}
}

// Discoverer is told of events that were routed. It must not block, and must not change the event.
type Discoverer interface {
	Observe(bus string, ev *event.Event)
}

// admit applies the schema policy of a bus to an event, and returns the path that takes it. The record may get a mark.
func (b *Bridge) admit(p *path, rec *event.Record) (*path, error) {
	doc := p.doc.Load()
	if doc.SchemaPolicy == PolicyOff || b.o.Schemas == nil {
		return p, nil
	}
	return b.enforce(p, doc, rec)
}

// admitAll is admit for events that came together: if one is refused, all are. The paths are nil if all are p.
func (b *Bridge) admitAll(p *path, recs []*event.Record) ([]*path, error) {
	doc := p.doc.Load()
	if doc.SchemaPolicy == PolicyOff || b.o.Schemas == nil {
		return nil, nil
	}
	paths := make([]*path, len(recs))
	var misfits []fault.Detail
	for i, rec := range recs {
		var err error
		paths[i], err = b.enforce(p, doc, rec)
		var told *fault.Error
		switch {
		case errors.As(err, &told) && told.Kind == fault.Unfit:
			for _, d := range told.Details {
				misfits = append(misfits, fault.Detail{Pointer: "/" + strconv.Itoa(i) + d.Pointer, Detail: d.Detail})
			}
		case err != nil:
			return nil, err
		}
	}
	if len(misfits) > 0 {
		const most = 100
		return nil, &fault.Error{Kind: fault.Unfit, Message: "events do not fit their schemas, and none of the batch was stored",
			Details: misfits[:min(len(misfits), most)]}
	}
	return paths, nil
}

// enforce checks one event and does what the policy says.
func (b *Bridge) enforce(p *path, doc *BusDoc, rec *event.Record) (*path, error) {
	warns := doc.SchemaPolicy == PolicyWarn
	if warns && doc.SchemaSample < 1 && p.looked.Add(1)%uint64(1/doc.SchemaSample+0.5) != 0 {
		return p, nil
	}
	err := b.validate(p, rec)
	misfit := fault.KindOf(err) == fault.Unfit
	switch {
	case err == nil || !misfit && warns:
		return p, nil
	case !misfit || doc.SchemaPolicy == PolicyReject:
		p.refused(fault.KindOf(err).String())
		return nil, err
	}
	mark(&rec.Event, ViolationAttribute, reasons(err))
	if warns {
		return p, nil
	}
	return b.divert(p, doc.QuarantineBus, rec)
}

// validate checks an event and counts what was found. The error is Unfit when it does not fit its schema.
func (b *Bridge) validate(p *path, rec *event.Record) error {
	select {
	case <-b.o.Schemas.Ready():
	default:
		p.counters.unchecked.Inc()
		return &fault.Error{Kind: fault.Unavailable, Message: "the schemas are not known yet", RetryAfter: time.Second}
	}
	found, err := b.o.Schemas.Validate(&b.o.View(rec).Event)
	var told *fault.Error
	switch {
	case err == nil && found.Schema.Version == 0:
		p.counters.noSchema.Inc()
	case err == nil:
		p.counters.fits.Inc()
	case errors.As(err, &told) && told.Kind == fault.Invalid:
		p.counters.violates.Inc()
		return &fault.Error{Kind: fault.Unfit, Message: "the event does not fit its schema", Details: told.Details, Err: err}
	default:
		p.counters.unchecked.Inc()
	}
	return err
}

// divert marks an event and returns the path of the quarantine. The policy of that bus is not applied.
func (b *Bridge) divert(p *path, to string, rec *event.Record) (*path, error) {
	q, err := b.path(to)
	if err != nil {
		p.refused(fault.Unavailable.String())
		return nil, &fault.Error{Kind: fault.Unavailable, Message: "the event does not fit its schema, and there is no bus " + strconv.Quote(to) + " for such", Err: err}
	}
	mark(&rec.Event, QuarantineAttribute, p.name)
	if rec.MQTT != nil && rec.MQTT.QoS == 2 {
		rec.Minted = false // the gateway does not look for it on this bus after a crash: deduplication has to know the id
	}
	return q, nil
}

// mark sets an extension attribute. The slice of an event may be shared, and is not changed.
func mark(ev *event.Event, name, value string) {
	at, there := slices.BinarySearchFunc(ev.Extensions, name, func(a event.Attribute, name string) int { return strings.Compare(a.Name, name) })
	next := slices.Clone(ev.Extensions)
	if there {
		next[at].Value = value
	} else {
		next = slices.Insert(next, at, event.Attribute{Name: name, Value: value})
	}
	ev.Extensions = next
}

// reasons is what is wrong with an event, as the value of an attribute: it names members, and no values.
func reasons(err error) string {
	var told *fault.Error
	if !errors.As(err, &told) {
		return ""
	}
	var b strings.Builder
	for _, d := range told.Details {
		if b.Len() > 0 {
			b.WriteString("; ")
		}
		b.WriteString(d.Pointer + " " + d.Detail)
		if b.Len() > maxViolation {
			break
		}
	}
	out := strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, b.String())
	if len(out) > maxViolation {
		out = strings.ToValidUTF8(out[:maxViolation-len("...")], "") + "..."
	}
	return out
}
