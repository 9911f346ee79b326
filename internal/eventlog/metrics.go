// SPDX-License-Identifier: Apache-2.0

package eventlog

import "github.com/prometheus/client_golang/prometheus"

// metrics are the rialto_log_* series.
type metrics struct {
	registerer prometheus.Registerer

	appended *prometheus.CounterVec // by stream
	batch    prometheus.Histogram
	fsync    prometheus.Histogram
	refused  *prometheus.CounterVec // by reason
	dups     *prometheus.CounterVec // by stream
	diskFree prometheus.Gauge
	failed   prometheus.Gauge
	damaged  prometheus.Counter
	lost     prometheus.Counter
}

// newMetrics registers the metrics with r; nil registers none.
func newMetrics(r prometheus.Registerer) *metrics {
	m := &metrics{
		registerer: r,
		appended: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "rialto_log_appended_total",
			Help: "Messages committed."}, []string{"stream"}),
		batch: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "rialto_log_append_batch_size",
			Help: "Messages in one commit.", Buckets: prometheus.ExponentialBuckets(1, 4, 7)}),
		fsync: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "rialto_log_fsync_seconds",
			Help: "Time to make one commit durable.", Buckets: prometheus.ExponentialBuckets(50e-6, 4, 9)}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "rialto_log_refused_total",
			Help: "Times that appends were refused."}, []string{"reason"}),
		dups: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "rialto_log_duplicates_total",
			Help: "Events that were in the dedup window already."}, []string{"stream"}),
		diskFree: prometheus.NewGauge(prometheus.GaugeOpts{Name: "rialto_log_disk_free_bytes",
			Help: "Free space of the disk under the data directory."}),
		failed: prometheus.NewGauge(prometheus.GaugeOpts{Name: "rialto_log_failed",
			Help: "1 when the log takes no appends until a restart."}),
		damaged: prometheus.NewCounter(prometheus.CounterOpts{Name: "rialto_log_damaged_reads_total",
			Help: "Reads that met a damaged block."}),
		lost: prometheus.NewCounter(prometheus.CounterOpts{Name: "rialto_log_lost_total",
			Help: "Committed sequences found lost at start."}),
	}
	for _, reason := range []string{"disk", "store"} {
		m.refused.WithLabelValues(reason)
	}
	if r != nil {
		r.MustRegister(m.appended, m.batch, m.fsync, m.refused, m.dups, m.diskFree, m.failed, m.damaged, m.lost)
	}
	return m
}

// stream makes the series of a stream.
func (m *metrics) stream(s *Stream) {
	m.appended.WithLabelValues(s.name)
	if s.dedup != nil {
		m.dups.WithLabelValues(s.name)
	}
	if m.registerer == nil {
		return
	}
	g := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "rialto_log_bytes", Help: "Bytes of a stream on disk.",
		ConstLabels: prometheus.Labels{"stream": s.name}}, func() float64 { return float64(s.bytes.Load()) })
	m.registerer.MustRegister(g)
}
