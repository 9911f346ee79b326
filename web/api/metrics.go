// SPDX-License-Identifier: Apache-2.0

package api

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are what the API counts. Labels are bound: routes by their pattern, statuses by their class.
type metrics struct {
	requests  *prometheus.CounterVec
	duration  *prometheus.HistogramVec
	problems  map[string]prometheus.Counter // by the slugs of problemKinds
	inFlight  prometheus.Gauge
	streams   prometheus.Gauge
	held      prometheus.Counter
	unmatched routeMetrics // of requests that no route is for
}

// routeMetrics are the series of one route, looked up once.
type routeMetrics struct {
	byClass  [6]prometheus.Counter // by the first digit of the status; 0 = no answer
	duration prometheus.Observer
}

var statusClasses = [6]string{"none", "1xx", "2xx", "3xx", "4xx", "5xx"}

// newMetrics registers the metrics; with no registerer they count for nobody.
func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "rialto_http_requests_total",
			Help: "Requests answered, by route, method and class of status."}, []string{"route", "method", "status"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "rialto_http_request_duration_seconds",
			Help:    "Time from the header of a request to the end of its answer; without streams, and without answers that were held back.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10}}, []string{"route", "method"}),
		problems: make(map[string]prometheus.Counter, len(problemKinds)),
		inFlight: prometheus.NewGauge(prometheus.GaugeOpts{Name: "rialto_http_requests_in_flight",
			Help: "Requests being answered, streams among them."}),
		streams: prometheus.NewGauge(prometheus.GaugeOpts{Name: "rialto_http_streams", Help: "Streams of server-sent events that are open."}),
		held: prometheus.NewCounter(prometheus.CounterOpts{Name: "rialto_hook_refusals_held_total",
			Help: "Refused hooks whose answer was held back for a second, since there were many of them."}),
	}
	problems := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "rialto_http_problems_total",
		Help: "Requests answered with a problem, by its type."}, []string{"problem"})
	for _, k := range problemKinds {
		m.problems[k.slug] = problems.WithLabelValues(k.slug)
	}
	m.unmatched = m.route("none", "other")
	if reg != nil {
		reg.MustRegister(m.requests, m.duration, problems, m.inFlight, m.streams, m.held)
	}
	return m
}

func (m *metrics) route(method, pattern string) routeMetrics {
	var rm routeMetrics
	for i, class := range statusClasses {
		rm.byClass[i] = m.requests.WithLabelValues(pattern, method, class)
	}
	rm.duration = m.duration.WithLabelValues(pattern, method)
	return rm
}

func (rm *routeMetrics) observe(status int, took time.Duration, long bool) {
	class := status / 100
	if class < 0 || class >= len(rm.byClass) {
		class = 0
	}
	rm.byClass[class].Inc()
	if !long {
		rm.duration.Observe(took.Seconds())
	}
}
