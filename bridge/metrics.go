// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rialto-bridge/rialto/internal/journal"
	"github.com/rialto-bridge/rialto/targets"
)

// metrics are the bridge's numbers. Labels are names of buses and targets, which operators make, and closed sets.
type metrics struct {
	accepted    *prometheus.CounterVec
	refused     *prometheus.CounterVec
	duplicates  *prometheus.CounterVec
	events      *prometheus.CounterVec
	outcomes    *prometheus.CounterVec
	attempts    *prometheus.CounterVec
	duration    *prometheus.HistogramVec
	dead        *prometheus.CounterVec
	difference  *prometheus.GaugeVec
	matchErrors prometheus.Counter
	expressions *prometheus.CounterVec
	trimmed     *prometheus.CounterVec
	schemas     *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer, b *Bridge) *metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "rialto_" + name, Help: help}, labels)
	}
	m := &metrics{
		accepted:   counter("events_accepted_total", "Events stored, by bus.", "bus"),
		refused:    counter("events_refused_total", "Events that could not be stored, by bus and kind of failure; overflow and reserve are those that the overflow policy of the bus refused.", "bus", "kind"),
		duplicates: counter("events_duplicate_total", "Events whose source and id were stored before, within the dedup window.", "bus"),
		events:     counter("events_routed_total", "Events routed, by bus and whether a rule matched.", "bus", "matched"),
		outcomes:   counter("deliveries_total", "Changes of state of deliveries, by target and state.", "target", "state"),
		attempts:   counter("attempts_total", "Attempts made, by target and result (ok, or why it failed).", "target", "result"),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "rialto_attempt_duration_seconds",
			Help:    "How long attempts took, by target.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60}}, []string{"target"}),
		dead: counter("dead_letters_total", "Dead letters written, by reason.", "reason"),
		difference: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "rialto_ledger_difference",
			Help: "What the ledger cannot account for, by bus. Anything but 0 is a bug."}, []string{"bus"}),
		matchErrors: prometheus.NewCounter(prometheus.CounterOpts{Name: "rialto_match_errors_total",
			Help: "Events that could not be matched against the rules."}),
		expressions: counter("rule_expression_errors_total",
			"Evaluations of a when or sql that failed, by bus. The rule then does not match.", "bus"),
		trimmed: counter("events_trimmed_total", "Events removed by retention, by bus.", "bus"),
		schemas: counter("schema_checks_total", "Events whose schema was asked for, by bus, and whether they fit: "+
			"fits, violates, none (no schema), failed (could not be checked).", "bus", "result"),
	}
	for _, r := range targets.Reasons() {
		m.dead.WithLabelValues(string(r))
	}
	if reg == nil {
		return m
	}
	reg.MustRegister(m.accepted, m.refused, m.duplicates, m.events, m.outcomes, m.attempts, m.duration, m.dead,
		m.difference, m.matchErrors, m.expressions, m.trimmed, m.schemas, lag{b})
	return m
}

// busCounters are the counters of one bus, looked up once.
type busCounters struct {
	accepted, duplicates, matched, unmatched, expressions prometheus.Counter

	fits, violates, noSchema, unchecked prometheus.Counter
}

func (m *metrics) bus(name string) busCounters {
	return busCounters{accepted: m.accepted.WithLabelValues(name), duplicates: m.duplicates.WithLabelValues(name),
		matched: m.events.WithLabelValues(name, "true"), unmatched: m.events.WithLabelValues(name, "false"),
		expressions: m.expressions.WithLabelValues(name),
		fits:        m.schemas.WithLabelValues(name, "fits"), violates: m.schemas.WithLabelValues(name, "violates"),
		noSchema: m.schemas.WithLabelValues(name, "none"), unchecked: m.schemas.WithLabelValues(name, "failed")}
}

func (c busCounters) routed(deliveries int) {
	if deliveries == 0 {
		c.unmatched.Inc()
	} else {
		c.matched.Inc()
	}
}

func (m *metrics) outcome(t *task, o journal.Outcome) {
	m.outcomes.WithLabelValues(t.route.Target, o.State.String()).Inc()
	if o.Attempt > 0 {
		result := o.Reason
		if o.State == journal.Delivered {
			result = "ok"
		}
		m.attempts.WithLabelValues(t.route.Target, result).Inc()
		m.duration.WithLabelValues(t.route.Target).Observe(o.Duration.Seconds())
	}
	if t.lane.isRemoved() { // maybe after its series were forgotten
		m.forgetTarget(t.route.Target)
	}
}

// forgetTarget ends the series of a target that was deleted.
func (m *metrics) forgetTarget(name string) {
	of := prometheus.Labels{"target": name}
	m.outcomes.DeletePartialMatch(of)
	m.attempts.DeletePartialMatch(of)
	m.duration.DeletePartialMatch(of)
}

// forgetBus ends the series of a bus that was removed.
func (m *metrics) forgetBus(name string) {
	of := prometheus.Labels{"bus": name}
	for _, c := range []*prometheus.CounterVec{m.accepted, m.refused, m.duplicates, m.events, m.expressions, m.trimmed, m.schemas} {
		c.DeletePartialMatch(of)
	}
	m.difference.DeletePartialMatch(of)
}

// lag collects gauges that are read when asked.
type lag struct{ b *Bridge }

var (
	lagDesc   = prometheus.NewDesc("rialto_unsettled_events", "Events that are routed and not settled, by bus.", []string{"bus"}, nil)
	stateDesc = prometheus.NewDesc("rialto_target_state", "1, with where the target stands: "+strings.Join(TargetStates(), ", ")+".", []string{"target", "state"}, nil)
	diskDesc  = prometheus.NewDesc("rialto_parked_deliveries", "Deliveries waiting on disk, by target, and whether in a range or each with a record.", []string{"target", "ranged"}, nil)
	blockDesc = prometheus.NewDesc("rialto_target_blocked_keys", "Keys of a target that keeps order which wait because their first delivery has failed.", []string{"target"}, nil)
	lenDesc   = prometheus.NewDesc("rialto_live_deliveries", "Deliveries waiting in memory or under way, by target.", []string{"target"}, nil)
)

// Describe implements prometheus.Collector.
func (l lag) Describe(ch chan<- *prometheus.Desc) {
	ch <- lagDesc
	ch <- lenDesc
	ch <- diskDesc
	ch <- blockDesc
	ch <- stateDesc
}

// Collect implements prometheus.Collector.
func (l lag) Collect(ch chan<- prometheus.Metric) {
	for _, p := range l.b.allPaths() {
		_, open := p.track.state()
		ch <- prometheus.MustNewConstMetric(lagDesc, prometheus.GaugeValue, float64(open), p.name)
	}
	for _, ln := range l.b.allLanes() {
		ln.mu.Lock()
		n := len(ln.busy)
		state, _, _ := ln.state()
		ordered, blocked := ln.ordering.Load() != nil, ln.blocked()
		ln.mu.Unlock()
		ch <- prometheus.MustNewConstMetric(lenDesc, prometheus.GaugeValue, float64(n), ln.name)
		ch <- prometheus.MustNewConstMetric(diskDesc, prometheus.GaugeValue, float64(ln.waiting.Parked()), ln.name, "false")
		ch <- prometheus.MustNewConstMetric(diskDesc, prometheus.GaugeValue, float64(ln.waiting.Ranged()), ln.name, "true")
		if ordered || blocked > 0 {
			ch <- prometheus.MustNewConstMetric(blockDesc, prometheus.GaugeValue, float64(blocked), ln.name)
		}
		ch <- prometheus.MustNewConstMetric(stateDesc, prometheus.GaugeValue, 1, ln.name, state)
	}
}
