// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"
)

const (
	plantTags = 50
	plantScan = 100 * time.Millisecond
)

// plant is a controller with tags that it reads ten times a second, and what computes their averages beside it. It sends a
// scan until the edge has acknowledged it, as one batch.
type plant struct {
	name    string // marks what is ours
	edge    func() *client
	average time.Duration
	hot     int // of as many readings one is above

	values [plantTags]float64 // belong to the goroutine of run
	sums   [plantTags]float64
	scans  int

	mu       sync.Mutex // guards below
	accepted int        // events that were acknowledged
	up       []string   // ids of those that have to go up
	trouble  error
}

func newPlant(name string, edge func() *client, average time.Duration) *plant {
	p := &plant{name: name, edge: edge, average: average, hot: 400}
	for i := range p.values {
		p.values[i] = 60 + 20*rand.Float64()
	}
	return p
}

// plantEvent is an event as the plant sends it.
type plantEvent struct {
	SpecVersion string          `json:"specversion"`
	ID          string          `json:"id"`
	Source      string          `json:"source"`
	Type        string          `json:"type"`
	Subject     string          `json:"subject"`
	Time        time.Time       `json:"time"`
	ContentType string          `json:"datacontenttype"`
	Data        json.RawMessage `json:"data"`

	up bool
}

func (p *plant) event(kind string, tag int, id string, value float64, up bool) plantEvent {
	return plantEvent{SpecVersion: "1.0", ID: id, Source: "/plant/" + p.name, Type: kind, Subject: fmt.Sprintf("tag-%02d", tag), Time: time.Now().UTC(),
		ContentType: "application/json", Data: compact(map[string]any{"value": math.Round(value*100) / 100}), up: up}
}

// run scans the tags until ctx is done.
func (p *plant) run(ctx context.Context) {
	tick := time.NewTicker(plantScan)
	defer tick.Stop()
	perAverage := max(int(p.average/plantScan), 1)
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		p.send(ctx, p.scan(perAverage))
	}
}

// scan reads all tags, and computes averages when it is time.
func (p *plant) scan(perAverage int) (events []plantEvent) {
	p.scans++
	for tag := range p.values {
		v := p.values[tag] + rand.NormFloat64()*1.5
		if rand.IntN(p.hot) == 0 {
			v = alarmAbove + 1 + 5*rand.Float64() // something hot goes by
		}
		p.values[tag] = math.Max(40, math.Min(84, p.values[tag]+rand.NormFloat64()*0.3))
		v = math.Round(v*100) / 100
		p.sums[tag] += v
		events = append(events, p.event(plantReading, tag, fmt.Sprintf("%s-%02d-%d", p.name, tag, p.scans), v, v > alarmAbove))
		if p.scans%perAverage == 0 {
			events = append(events, p.event(plantAverage, tag, fmt.Sprintf("%s-%02d-avg-%d", p.name, tag, p.scans), p.sums[tag]/float64(perAverage), true))
			p.sums[tag] = 0
		}
	}
	return events
}

// raise sends an alarm of its own, and says when it was acknowledged.
func (p *plant) raise(ctx context.Context) (id string, at time.Time, err error) {
	id = p.name + "-fresh"
	if !p.send(ctx, []plantEvent{p.event(plantReading, 0, id, 99.9, true)}) {
		return "", at, context.Cause(ctx)
	}
	return id, time.Now(), nil
}

// send repeats a batch until it is acknowledged, also when ctx ends meanwhile: the edge may have it. It reports whether it was.
func (p *plant) send(ctx context.Context, events []plantEvent) bool {
	body, err := json.Marshal(events)
	if err != nil {
		p.fail(err)
		return false
	}
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), startWithin)
	defer cancel()
	for {
		_, err := p.edge().do(limit, request{Method: http.MethodPost, Path: "/v1/buses/" + plantBus + "/events", Body: body,
			Header: http.Header{"Content-Type": {"application/cloudevents-batch+json"}}})
		if err == nil {
			break
		}
		if !wait(limit, plantScan) {
			p.fail(fmt.Errorf("the edge does not take a scan: %w", err))
			return false
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.accepted += len(events)
	for _, e := range events {
		if e.up {
			p.up = append(p.up, e.ID)
		}
	}
	return true
}

func (p *plant) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.trouble == nil {
		p.trouble = err
	}
}

func (p *plant) failed() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.trouble
}

// owed returns the ids of what has to be in the cloud.
func (p *plant) owed() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.up...)
}

func (p *plant) stored() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.accepted
}

// cloudLog is what was read in the cloud. Safe for concurrent use.
type cloudLog struct {
	mu       sync.Mutex // guards all below
	times    map[string]int
	arrivals map[string]time.Time
}

func (l *cloudLog) enter(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.times[id]++; l.times[id] == 1 {
		l.arrivals[id] = time.Now()
	}
}

func (l *cloudLog) arrival(id string) (time.Time, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at, ok := l.arrivals[id]
	return at, ok
}

func (l *cloudLog) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.times)
}

// missing returns which of the ids are not there.
func (l *cloudLog) missing(owed []string) (ids []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range owed {
		if l.times[id] == 0 {
			ids = append(ids, id)
		}
	}
	return ids
}

// repeats is how many events are there more than once.
func (l *cloudLog) repeats() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, times := range l.times {
		if times > 1 {
			n++
		}
	}
	return n
}

// foreign is how many are there that are not owed.
func (l *cloudLog) foreign(owed []string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	ours := make(map[string]bool, len(owed))
	for _, id := range owed {
		ours[id] = true
	}
	n := 0
	for id := range l.times {
		if !ours[id] {
			n++
		}
	}
	return n
}
