// SPDX-License-Identifier: Apache-2.0

package sources

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics counts by source. The number of sources is that of the definitions.
type metrics struct {
	events   *prometheus.CounterVec
	restarts *prometheus.CounterVec
	hooks    *prometheus.CounterVec
}

type sourceMetrics struct {
	stored, duplicates, refused, restarts prometheus.Counter
	answered                              *answers
}

// answers counts requests for a hook by result. A series is there once there is something to count, and then looked up no more.
type answers struct {
	vec  *prometheus.CounterVec
	seen sync.Map // prometheus.Counter by result
}

func (a *answers) inc(result string) {
	c, ok := a.seen.Load(result)
	if !ok {
		c, _ = a.seen.LoadOrStore(result, a.vec.WithLabelValues(result))
	}
	c.(prometheus.Counter).Inc()
}

func newMetrics(r prometheus.Registerer) *metrics {
	m := &metrics{
		events: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "rialto_source_events_total",
			Help: "Events that sources have taken in: stored, duplicate (known already), refused (can never be stored)."}, []string{"source", "result"}),
		restarts: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "rialto_source_failures_total",
			Help: "How often a source ended and had to be run again."}, []string{"source"}),
		hooks: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "rialto_hook_requests_total",
			Help: "Requests for hooks by how they were answered: ok, or the slug of the problem; forbidden and unauthorized were not proved."}, []string{"source", "result"}),
	}
	if r != nil {
		r.MustRegister(m.events, m.restarts, m.hooks)
	}
	return m
}

func (m *metrics) source(name string) sourceMetrics {
	return sourceMetrics{stored: m.events.WithLabelValues(name, "stored"), duplicates: m.events.WithLabelValues(name, "duplicate"),
		refused: m.events.WithLabelValues(name, "refused"), restarts: m.restarts.WithLabelValues(name),
		answered: &answers{vec: m.hooks.MustCurryWith(prometheus.Labels{"source": name})}}
}

func (m *metrics) forget(name string) {
	m.events.DeletePartialMatch(prometheus.Labels{"source": name})
	m.restarts.DeleteLabelValues(name)
	m.hooks.DeletePartialMatch(prometheus.Labels{"source": name})
}
