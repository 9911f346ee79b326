// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"context"
	"hash/maphash"
	"net/url"
	"slices"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/internal/fault"
)

// KeptQuery selects what is kept aside.
type KeptQuery struct {
	Prepared bool   // prepared events; otherwise scheduled ones
	Bus      string // "" = of all buses
	Limit    int    // 1 to 1000; 0 = 100
	Cursor   string // of the page before
}

// KeptPage is a page of what is kept aside.
type KeptPage struct {
	Items      []Kept
	NextCursor string
}

// Kept lists what is kept aside, without the events, in the order in which it was written to the disk. One that is written again
// while a list is read may come twice.
func (b *Bridge) Kept(ctx context.Context, q KeptQuery) (KeptPage, error) {
	limit, err := limitOf(q.Limit)
	if err != nil {
		return KeptPage{}, err
	}
	after, err := cursorOf(q.Cursor)
	if err != nil {
		return KeptPage{}, err
	}
	s := b.aside
	seqs := s.seqs(func(k *kept) bool {
		return k.prepared == q.Prepared && k.seq > after && (q.Bus == "" || k.bus.Value() == q.Bus)
	})
	page := KeptPage{Items: []Kept{}}
	if len(seqs) > limit {
		seqs = seqs[:limit]
		page.NextCursor = strconv.FormatUint(seqs[limit-1], 10)
	}
	err = s.stream.Each(ctx, seqs, func(raw eventlog.Raw) error {
		rec, story, err := readKept(raw)
		if err == nil {
			k := s.describe(story, rec)
			k.Event = nil // a page of large events would not fit into memory
			page.Items = append(page.Items, k)
		}
		return err
	})
	return page, err
}

// seqs returns the places of what is wanted in ASIDE, in order.
func (s *aside) seqs(want func(*kept) bool) []uint64 {
	s.mu.Lock()
	var out []uint64
	for _, k := range s.all {
		if k.seq > 0 && want(k) {
			out = append(out, k.seq)
		}
	}
	s.mu.Unlock()
	slices.Sort(out)
	return out
}

func (s *aside) describe(story keptStory, rec *event.Record) Kept {
	ev := &rec.Event
	out := Kept{ID: ev.ID, Bus: story.Bus, Source: ev.Source, Type: ev.Type, Subject: ev.Subject, KeptAt: story.KeptAt, Event: ev}
	if !story.Prepared {
		out.At = &story.At
		return out
	}
	end := story.KeptAt.Add(s.o.MaxAge)
	out.Token, out.Expires, out.CheckBack = tokenOf(story.Bus, ev.Source, ev.ID), &end, serverOf(story.CheckBack)
	if story.CheckBack != "" {
		out.CheckAfter = story.CheckAfter.String()
	}
	return out
}

// serverOf is scheme and host of a URL, the rest of which may hold a secret.
func serverOf(raw string) string {
	u, err := url.Parse(raw)
	if err != nil || raw == "" {
		return ""
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host}).String()
}

// Scheduled returns a scheduled event by its id. bus and source choose, if several have it; "" is any. With both, the answer
// takes no longer the more is kept. The error is NotFound if there is none (any more), Conflict if there are several.
func (b *Bridge) Scheduled(ctx context.Context, bus, id, source string) (Kept, error) {
	_, out, err := b.aside.scheduled(ctx, bus, id, source)
	return out, err
}

// Prepared returns a prepared event by its token. bus is "", or the bus it must be of.
func (b *Bridge) Prepared(ctx context.Context, bus, token string) (Kept, error) {
	of, source, id, err := readToken(token)
	if err != nil {
		return Kept{}, err
	}
	s := b.aside
	k := s.committed(keyOf(true, of, source, id))
	if k == nil || bus != "" && bus != of {
		return Kept{}, fault.New(fault.NotFound, "no such event is prepared: it was decided about, or never was")
	}
	rec, story, err := s.read(ctx, k)
	if err != nil {
		return Kept{}, err
	}
	return s.describe(story, rec), nil
}

// committed returns what is kept under a key; nil if nothing is, or not yet.
func (s *aside) committed(key keptKey) *kept {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k := s.all[key]; k != nil && k.seq > 0 {
		return k
	}
	return nil
}

func (s *aside) scheduled(ctx context.Context, bus, id, source string) (*kept, Kept, error) {
	var candidates []*kept
	if bus != "" && source != "" {
		if k := s.committed(keyOf(false, bus, source, id)); k != nil {
			candidates = append(candidates, k)
		}
	} else {
		hash := maphash.String(s.seed, id)
		candidates = s.list(func(k *kept) bool {
			return !k.prepared && k.seq > 0 && k.id == hash && (bus == "" || k.bus.Value() == bus)
		})
	}
	var found *kept
	var out Kept
	for _, k := range candidates {
		rec, story, err := s.read(ctx, k)
		switch {
		case err != nil:
			return nil, out, err
		case rec.Event.ID != id || source != "" && rec.Event.Source != source:
		case found != nil:
			return nil, out, fault.New(fault.Conflict, "several scheduled events have this id: bus and source say which")
		default:
			found, out = k, s.describe(story, rec)
		}
	}
	if found == nil {
		return nil, out, errNotScheduled
	}
	return found, out, nil
}

var errNotScheduled = fault.New(fault.NotFound, "no event with this id is scheduled: it was stored or cancelled, or never was")

// Cancel forgets a scheduled event, which is named as for Scheduled, and blocks until that is durable: it will not be stored.
// The error is NotFound if it was stored before.
func (b *Bridge) Cancel(ctx context.Context, bus, id, source string) error {
	s := b.aside
	k, _, err := s.scheduled(ctx, bus, id, source)
	if err != nil {
		return err
	}
	mine, err := s.take(ctx, func() *kept { return s.current(k) })
	switch {
	case err != nil:
		return err
	case mine == nil:
		return errNotScheduled
	}
	how, err := s.cancel(ctx, k)
	if err == nil {
		err = s.end(how, k)
	}
	switch {
	case err != nil:
		s.failed(k, err)
		return err
	case how != endCancelled:
		return errNotScheduled
	}
	return nil
}

// cancel says how a scheduled event ends that is to be cancelled: if it is in doubt it may have been stored.
func (s *aside) cancel(ctx context.Context, k *kept) (how string, err error) {
	rec, story, err := s.read(ctx, k)
	if err != nil {
		return "", err
	}
	if _, there, err := s.settled(k, rec, story); err != nil && !busGone(err) || there {
		return endFired, err
	}
	return endCancelled, nil
}

// asideMetrics are the numbers of what is kept aside.
type asideMetrics struct {
	s     *aside
	ended *prometheus.CounterVec
	late  prometheus.Counter
}

var (
	keptDesc      = prometheus.NewDesc("rialto_aside_events", "Events kept for later, by kind: scheduled, prepared.", []string{"kind"}, nil)
	keptBytesDesc = prometheus.NewDesc("rialto_aside_bytes", "Bytes of events kept for later.", nil, nil)
)

func kindName(prepared bool) string { return [...]string{"scheduled", "prepared"}[kindIndex(prepared)] }

func newAsideMetrics(reg prometheus.Registerer, s *aside) *asideMetrics {
	m := &asideMetrics{s: s,
		ended: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "rialto_aside_ended_total",
			Help: "Events that were kept for later and are not any more, by kind and how that ended: fired, cancelled, committed, rolledback, expired, lost."}, []string{"kind", "how"}),
		late: prometheus.NewCounter(prometheus.CounterOpts{Name: "rialto_scheduled_late_total",
			Help: "Scheduled events that were stored more than " + lateAfter.String() + " after they were due."})}
	for _, how := range []string{endFired, endCancelled, endLost} {
		m.ended.WithLabelValues(kindName(false), how)
	}
	for _, how := range []string{endCommitted, endRolledBack, endExpired, endLost} {
		m.ended.WithLabelValues(kindName(true), how)
	}
	if reg != nil {
		reg.MustRegister(m.ended, m.late, m)
	}
	return m
}

// Describe implements prometheus.Collector.
func (m *asideMetrics) Describe(ch chan<- *prometheus.Desc) {
	ch <- keptDesc
	ch <- keptBytesDesc
}

// Collect implements prometheus.Collector.
func (m *asideMetrics) Collect(ch chan<- prometheus.Metric) {
	m.s.mu.Lock()
	counts, bytes := m.s.counts, m.s.bytes
	m.s.mu.Unlock()
	for i, n := range counts {
		ch <- prometheus.MustNewConstMetric(keptDesc, prometheus.GaugeValue, float64(n), kindName(i == 1))
	}
	ch <- prometheus.MustNewConstMetric(keptBytesDesc, prometheus.GaugeValue, float64(bytes))
}
