// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/internal/fault"
)

// standing is what a restart must not forget of a target: that it is disabled, or since when it has done nothing but
// fail. The zero value says that it is in good standing. It holds for one revision of the target's definition.
type standing struct {
	Revision     uint64    `json:"revision,omitempty"`
	FailingSince time.Time `json:"failingSince,omitzero"` // when the first attempt began that failed after the last success
	First        string    `json:"first,omitempty"`       // position of the event it was a failure of
	Again        time.Time `json:"again,omitzero"`        // first failure of another event after it
	DisabledAt   time.Time `json:"disabledAt,omitzero"`
	Reason       string    `json:"reason,omitempty"` // a targets.Reason
	Status       int       `json:"status,omitempty"`
}

func (s standing) disabled() bool { return !s.DisabledAt.IsZero() }

const (
	// A target is disabled that has done nothing but fail for disableAfter, if more than one event says so, and others
	// than the first have for disableSpread: not for one event that nobody could deliver, nor at once when the next one
	// fails after a long silence.
	disableAfter  = 5 * 24 * time.Hour
	disableSpread = 12 * time.Hour
	// failingNoted is how old a failure is that is written down: a target that fails now and then costs nothing.
	failingNoted = time.Hour
)

// note brings in what an attempt found.
func (s *standing) note(f finding, revision uint64, now time.Time) {
	now = now.UTC().Round(0) // as it is read again
	began := f.began.UTC().Round(0)
	if fails := f.disable || f.verdict == failing; fails && began.Before(s.FailingSince) { // it began before, and ended after
		s.FailingSince = began
	}
	switch {
	case s.disabled():
	case f.delivered:
		*s = standing{}
	case f.disable:
		since := s.FailingSince
		if since.IsZero() {
			since = began
		}
		*s = standing{Revision: revision, FailingSince: since, DisabledAt: now, Reason: f.reason, Status: f.status}
	case f.verdict != failing:
	case s.FailingSince.IsZero():
		*s = standing{Revision: revision, FailingSince: began, First: f.event}
	case s.Again.IsZero():
		if f.event != s.First {
			s.Again = now
		}
	case now.Sub(s.FailingSince) >= disableAfter && now.Sub(s.Again) >= disableSpread:
		s.DisabledAt, s.Reason, s.Status = now, f.reason, f.status
	}
}

// notable is s as it is written down.
func (s standing) notable(now time.Time) standing {
	if !s.disabled() && now.Sub(s.FailingSince) < failingNoted {
		return standing{}
	}
	return s
}

// standings keeps them in the stream LANES, which is small: one message says how a target stands from then on, and what
// is said of good standing is only there to end what was said before.
type standings struct {
	stream    *eventlog.Stream
	slack     int           // standingsSlack
	compacted uint64        // end of the stream when it was last written again; only compact looks
	writing   chan struct{} // held by who appends: one at a time, so that the last message is the newest

	mu      sync.Mutex // guards current
	current map[string]standing
}

type standingMessage struct {
	Target string `json:"target"`
	standing
}

// targetNews is the data of an event about a target.
type targetNews struct {
	standingMessage
	Last *lastAttempt `json:"lastAttempt,omitempty"`
}

// lastAttempt is what the owner is told of the attempt that has disabled a target.
type lastAttempt struct {
	Bus      string    `json:"bus"`
	Rule     string    `json:"rule"`
	Event    string    `json:"eventId"`
	Source   string    `json:"source"`
	Type     string    `json:"eventType"`
	Position string    `json:"position"`
	Attempt  int       `json:"attempt"`
	At       time.Time `json:"at"`
	Status   int       `json:"status,omitempty"`
	Reason   string    `json:"reason"`
	Detail   string    `json:"detail,omitempty"`
	Response string    `json:"response,omitempty"` // its start, without control characters
}

// openStandings reads what is known of targets. It blocks until the stream is open and read.
func openStandings(ctx context.Context, log *eventlog.Log) (*standings, error) {
	stream, err := log.Stream(ctx, eventlog.StreamConfig{Name: "LANES", Subjects: []string{"lanes"}})
	if err != nil {
		return nil, err
	}
	s := &standings{stream: stream, slack: standingsSlack, writing: make(chan struct{}, 1), current: make(map[string]standing)}
	s.compacted = max(stream.First(), 1) - 1
	var buf []eventlog.Raw
	for from := stream.First(); from <= stream.Committed(); {
		buf, err = stream.Read(ctx, eventlog.ReadOptions{From: from, Max: 256}, buf[:0])
		if err != nil || len(buf) == 0 {
			return s, err
		}
		for _, raw := range buf {
			from = raw.Seq + 1
			if raw.Gap() {
				continue
			}
			var m standingMessage
			if err := json.Unmarshal(raw.Data, &m); err != nil {
				return nil, fmt.Errorf("message %d of LANES: %w", raw.Seq, err)
			}
			s.set(m.Target, m.standing)
		}
	}
	return s, nil
}

func (s *standings) set(target string, st standing) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if st == (standing{}) {
		delete(s.current, target)
		return
	}
	s.current[target] = st
}

func (s *standings) of(target string) standing {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current[target]
}

func (s *standings) all() map[string]standing {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.current)
}

// save writes down what now returns, unless that was written last. It blocks until it is committed.
func (s *standings) save(ctx context.Context, target string, now func() standing) error {
	select {
	case s.writing <- struct{}{}:
		defer func() { <-s.writing }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	st := now()
	if st == s.of(target) {
		return nil
	}
	if err := s.append(ctx, target, st); err != nil {
		return err
	}
	s.set(target, st)
	return nil
}

// append is called with writing held.
func (s *standings) append(ctx context.Context, target string, st standing) error {
	data, err := json.Marshal(standingMessage{target, st})
	if err != nil {
		return err
	}
	done := make(chan eventlog.Result, 1)
	if err := s.stream.Append(ctx, eventlog.Message{Subject: "lanes", Data: data}, func(r eventlog.Result) { done <- r }); err != nil {
		return err
	}
	select {
	case r := <-done:
		return r.Err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// standingsSlack is how many messages may be written to LANES, beside two for each target that it speaks of, before it is
// written again. What it holds does not count: the last blocks of a stream are never removed.
const standingsSlack = 10_000

// compact writes again what still holds, when much was written to LANES since it last did so, and removes what was before.
func (s *standings) compact(ctx context.Context, now time.Time) error {
	if s.stream.Committed()-s.compacted < uint64(2*len(s.all())+s.slack) {
		return nil
	}
	select {
	case s.writing <- struct{}{}:
		defer func() { <-s.writing }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	from := s.stream.Committed() + 1
	current := s.all()
	for _, target := range slices.Sorted(maps.Keys(current)) {
		if err := s.append(ctx, target, current[target]); err != nil {
			return err
		}
	}
	s.compacted = s.stream.Committed()
	_, err := s.stream.Trim(ctx, eventlog.TrimPolicy{MaxBytes: 1, Protect: from})
	return err
}

// standingChanged writes down how a target stands, after n, if there is something to tell, was published. It blocks until that is
// done. The event comes first: after a crash in between it comes again. But where it cannot be published for some time, the state is
// written down all the same, and the event is tried on.
func (l *lane) standingChanged(n *news) error {
	b := l.b
	if n != nil {
		enough := time.NewTimer(announceTries * b.announceEvery)
		defer enough.Stop()
		select {
		case err := <-n.told:
			if err != nil {
				return err
			}
		case <-enough.C:
		}
	}
	err := b.standings.save(b.hard, l.name, func() standing {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.removed {
			return standing{}
		}
		return l.gate.stands(b.o.Now())
	})
	if err == nil || b.hard.Err() != nil {
		return err
	}
	b.log.Error("how a target stands is not written down", "targetId", l.name, "err", err)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.gate.noted = &standing{Reason: "unknown"} // the next attempt tries again
	return err
}

var errStopping = fault.New(fault.Unavailable, "the bridge is stopping")

// Types of the events about targets, on bus default.
const (
	targetDisabled = "io.rialto.target.disabled"
	targetEnabled  = "io.rialto.target.enabled"
)

// announceEvery is the time between tries of an event about a target, and announceTries how many go before the time is so much longer:
// at a start, bus default opens after the targets.
const (
	announceTries = 30
	announceEvery = time.Second
)

// news is an event about a target on its way.
type news struct {
	typ  string
	data targetNews
	told chan error // gets one value: nil when it is published, errStopping when it is given up
}

// announce has an event about the target published, after those before it. Called with mu held.
func (l *lane) announce(typ string, data targetNews) *news {
	n := &news{typ: typ, data: data, told: make(chan error, 1)}
	l.untold = append(l.untold, n)
	if len(l.untold) == 1 {
		l.b.wg.Add(1)
		go l.announceAll()
	}
	return n
}

// announceAll is the goroutine that publishes what is untold of a target, until that is done or the bridge stops.
func (l *lane) announceAll() {
	defer l.b.wg.Done()
	var said time.Time
	for try := 1; ; try++ {
		l.mu.Lock()
		n := l.untold[0]
		l.mu.Unlock()
		err := l.b.publishNews(n)
		if err != nil {
			wait := l.b.announceEvery
			if try > announceTries {
				wait *= announceTries
				if now := l.b.o.Now(); now.Sub(said) >= sayAgain {
					said = now
					l.b.log.Error("event about a target was not published, trying again", "targetId", l.name, "eventType", n.typ, "err", err)
				}
			}
			if pause(l.b.ctx, wait) {
				continue
			}
			err = errStopping
		}
		try = 0
		if l.announced(err) {
			return
		}
	}
}

// announced takes out the first of what is untold, or all when the bridge is stopping, and reports whether nothing is left.
func (l *lane) announced(err error) (done bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.untold) > 0 {
		l.untold[0].told <- err
		l.untold = l.untold[1:]
		if err == nil {
			break
		}
	}
	return len(l.untold) == 0
}

func (b *Bridge) publishNews(n *news) error {
	data, err := json.Marshal(n.data)
	if err != nil {
		return err
	}
	_, err = b.Ingest(b.hard, "default", []*event.Record{{Event: event.Event{Source: "rialto/targets", Type: n.typ, Subject: n.data.Target,
		DataContentType: "application/json", Data: data}}})
	return err
}
