// SPDX-License-Identifier: Apache-2.0

package region

import "github.com/prometheus/client_golang/prometheus"

// Reasons why an event was dropped.
const (
	droppedRetention = "retention" // the log was trimmed before the event was forwarded
	droppedRefused   = "refused"   // it can never be stored there
	droppedFailed    = "failed"    // it could not be transformed
)

// metrics counts by link. The number of links is that of the definitions.
type metrics struct {
	forwarded, bytes, dropped *prometheus.CounterVec
	lagEvents, lagSeconds     *prometheus.GaugeVec
	connected                 *prometheus.GaugeVec
}

type linkMetrics struct {
	forwarded, bytes                 prometheus.Counter
	retention, refused, failed       prometheus.Counter
	lagEvents, lagSeconds, connected prometheus.Gauge
}

func newMetrics(r prometheus.Registerer) *metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "rialto_link_" + name, Help: help}, append([]string{"link"}, labels...))
	}
	gauge := func(name, help string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "rialto_link_" + name, Help: help}, []string{"link"})
	}
	m := &metrics{
		forwarded:  counter("forwarded_total", "Events that were stored in the other region."),
		bytes:      counter("bytes_total", "Bytes on the wire, both ways."),
		dropped:    counter("dropped_total", "Events that will not be forwarded: retention (the log was trimmed first), refused (by the other region), failed (transform).", "reason"),
		lagEvents:  gauge("lag_events", "Sequences of the log that are not done."),
		lagSeconds: gauge("lag_seconds", "Age of the oldest event that is not done."),
		connected:  gauge("connected", "1 while the link has a connection."),
	}
	if r != nil {
		r.MustRegister(m.forwarded, m.bytes, m.dropped, m.lagEvents, m.lagSeconds, m.connected)
	}
	return m
}

func (m *metrics) link(name string) linkMetrics {
	return linkMetrics{forwarded: m.forwarded.WithLabelValues(name), bytes: m.bytes.WithLabelValues(name),
		retention: m.dropped.WithLabelValues(name, droppedRetention), refused: m.dropped.WithLabelValues(name, droppedRefused),
		failed: m.dropped.WithLabelValues(name, droppedFailed), lagEvents: m.lagEvents.WithLabelValues(name),
		lagSeconds: m.lagSeconds.WithLabelValues(name), connected: m.connected.WithLabelValues(name)}
}

func (m *metrics) forget(name string) {
	for _, v := range []interface{ DeletePartialMatch(prometheus.Labels) int }{m.forwarded, m.bytes, m.dropped, m.lagEvents, m.lagSeconds, m.connected} {
		v.DeletePartialMatch(prometheus.Labels{"link": name})
	}
}
