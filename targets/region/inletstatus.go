// SPDX-License-Identifier: Apache-2.0

package region

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
)

// InletStatus is where a link of another bridge stands here.
type InletStatus struct {
	Instance  string    `json:"instance"` // of the sender
	Link      string    `json:"link"`
	Stream    string    `json:"stream"` // that it reads
	Bus       string    `json:"bus"`
	Key       string    `json:"key,omitempty"` // by which it forwards
	Connected bool      `json:"connected"`
	Through   uint64    `json:"through"`            // the highest sequence of the sender's stream that is done
	Gaps      int       `json:"gaps"`               // runs before that which are not done yet
	Stored    uint64    `json:"stored"`             // events, since the process began
	Known     uint64    `json:"known"`              // that were there already
	Refused   uint64    `json:"refused"`            // that can never be stored
	LastAt    time.Time `json:"lastAt,omitzero"`    // when an event came
	InFlight  int       `json:"inFlight,omitempty"` // batches
}

// Status lists the links that have ever forwarded to a bus, by instance and name.
func (x *Inlets) Status(bus string) []InletStatus {
	out := []InletStatus{}
	for _, in := range x.all() {
		if in.bus == bus {
			out = append(out, in.status())
		}
	}
	slices.SortFunc(out, func(a, b InletStatus) int {
		return cmp.Or(cmp.Compare(a.Instance, b.Instance), cmp.Compare(a.Link, b.Link))
	})
	return out
}

func (in *inlet) status() InletStatus {
	in.mu.Lock()
	defer in.mu.Unlock()
	s := InletStatus{Instance: in.instance, Link: in.link, Stream: in.stream, Bus: in.bus, Key: in.by, Connected: in.current != nil,
		Stored: in.counts.stored, Known: in.counts.known, Refused: in.counts.refused, LastAt: in.lastAt, InFlight: in.inFlight}
	if n := len(in.epochs); n > 0 {
		if main := in.epochs[n-1].Done.Main; len(main) > 0 {
			s.Through, s.Gaps = main[len(main)-1].To, len(main)-1
		}
	}
	return s
}

// Translated is where a consumer of the events of another bridge goes on here.
type Translated struct {
	// Next is the first position here of an event that stands behind the given place there; zero if none was found.
	Next event.Position `json:"next,omitzero"`
	// Scanned up to this position, both included; to be asked again from behind it, if Next is zero and Done is not.
	Scanned event.Position `json:"scanned"`
	Done    bool           `json:"done"` // all that is here was looked at, or Next was found
}

// translateBudget is how many events one question looks at.
const translateBudget = 500_000

// Translate finds where a consumer goes on that has handled all events of a bus of another bridge up to a position there: the
// first event here, from a sequence on, that stood there behind it. Events that stood there before may follow, where a link
// forwards what is fresh first. It reads the log, 500 000 events at most.
func (x *Inlets) Translate(ctx context.Context, bus string, there event.Hop, from uint64) (Translated, error) {
	log, err := x.o.Log.Bus(bus)
	if err != nil {
		return Translated{}, err
	}
	from = max(from, log.First(), 1)
	at := func(seq uint64) event.Position { return event.Position{Stream: log.StreamName(), Seq: seq} }
	end := min(log.Committed(), from+translateBudget-1)
	var buf []eventlog.Entry
	for from <= end {
		var next uint64
		if buf, next, err = log.Read(ctx, from, 1024, buf[:0]); err != nil {
			return Translated{}, err
		}
		for _, e := range buf {
			if e.Record.Stood(there.Instance, there.Position.Stream) > there.Position.Seq {
				return Translated{Next: at(e.Seq), Scanned: at(e.Seq), Done: true}, nil
			}
		}
		if next == from {
			break
		}
		from = next
	}
	return Translated{Scanned: at(from - 1), Done: from > log.Committed()}, nil
}

// inletMetrics are what Inlets counts.
type inletMetrics struct {
	connected              prometheus.Gauge
	stored, known, refused prometheus.Counter
	bytes                  prometheus.Counter
}

func newInletMetrics(r prometheus.Registerer) *inletMetrics {
	events := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "rialto_inlet_events_total",
		Help: "Events that links of other regions have brought, by what became of them."}, []string{"outcome"})
	m := &inletMetrics{
		connected: prometheus.NewGauge(prometheus.GaugeOpts{Name: "rialto_inlet_connections", Help: "Links of other regions that are connected."}),
		bytes:     prometheus.NewCounter(prometheus.CounterOpts{Name: "rialto_inlet_bytes_total", Help: "Bytes of batches from links of other regions, compressed."}),
		stored:    events.WithLabelValues("stored"), known: events.WithLabelValues("known"), refused: events.WithLabelValues("refused"),
	}
	if r != nil {
		r.MustRegister(events, m.connected, m.bytes)
	}
	return m
}

func (m *inletMetrics) count(a Ack) {
	m.stored.Add(float64(a.Stored))
	m.known.Add(float64(a.Known))
	m.refused.Add(float64(a.Refused))
}
