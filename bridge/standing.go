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
	if f.stepped && f.verdict == failing && !s.disabled() { // since when it fails is a time of another clock
		*s = standing{}
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

// standings keeps them in the stream LANES, which is small: one message says how a target stands from then on, and what its
// owner is to be told of that. What is said of good standing is only there to end what was said before.
type standings struct {
	stream    *eventlog.Stream
	slack     int           // standingsSlack
	compacted uint64        // end of the stream when it was last written again; only compact looks
	writing   chan struct{} // held by who appends: one at a time, so that the last message is the newest

	mu    sync.Mutex // guards known and what is in it
	known map[string]*known
}

// known is what is known of a target. The zero value need not be kept.
type known struct {
	standing        // as LANES has it
	untold   []news // events about it that bus default has not stored, oldest first; what goes from the front goes with writing held
	written  int    // how many of these LANES has, the first; changed with writing held
	telling  bool   // there is a goroutine that publishes them
}

type standingMessage struct {
	Target string `json:"target"`
	standing
	Untold []news `json:"untold,omitempty"`
}

// news is an event about a target. It keeps its id, by which the bus drops what it is told again after a crash.
type news struct {
	ID   string     `json:"id"`
	Type string     `json:"type"`
	Data targetNews `json:"data"`
}

// targetNews is the data of an event about a target.
type targetNews struct {
	Target string `json:"target"`
	standing
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
	s := &standings{stream: stream, slack: standingsSlack, writing: make(chan struct{}, 1), known: make(map[string]*known)}
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
			s.with(m.Target, func(k *known) { k.standing, k.untold, k.written = m.standing, m.Untold, len(m.Untold) })
		}
	}
	return s, nil
}

// with calls fn with what is known of a target, with mu held.
func (s *standings) with(target string, fn func(*known)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.known[target]
	if k == nil {
		k = &known{}
		s.known[target] = k
	}
	fn(k)
	if k.standing == (standing{}) && len(k.untold) == 0 && !k.telling {
		delete(s.known, target)
	}
}

func (s *standings) of(target string) (st standing) {
	s.with(target, func(k *known) { st = k.standing })
	return st
}

// targets returns the names of those of which something is known, sorted.
func (s *standings) targets() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.known))
}

// message is what LANES says of a target.
func (s *standings) message(target string) standingMessage {
	m := standingMessage{Target: target}
	s.with(target, func(k *known) { m.standing, m.Untold = k.standing, slices.Clone(k.untold[:k.written]) })
	return m
}

// save writes down what now returns, how the target stands and how many events about it are untold then, unless that was
// written last. It blocks until it is committed.
func (s *standings) save(ctx context.Context, target string, now func() (standing, int)) error {
	release, err := s.write(ctx)
	if err != nil {
		return err
	}
	defer release()
	st, n := now()
	m, same := standingMessage{Target: target, standing: st}, false
	s.with(target, func(k *known) { m.Untold, same = slices.Clone(k.untold[:n]), k.standing == st && k.written == n })
	if same {
		return nil
	}
	if err := s.append(ctx, m); err != nil {
		return err
	}
	s.with(target, func(k *known) { k.standing, k.written = st, n })
	return nil
}

// write waits until nobody else writes to LANES, and keeps others from it until release is called.
func (s *standings) write(ctx context.Context) (release func(), err error) {
	select {
	case s.writing <- struct{}{}:
		return func() { <-s.writing }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// append is called with writing held.
func (s *standings) append(ctx context.Context, m standingMessage) error {
	data, err := json.Marshal(m)
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
	if s.stream.Committed()-s.compacted < uint64(2*len(s.targets())+s.slack) {
		return nil
	}
	release, err := s.write(ctx)
	if err != nil {
		return err
	}
	defer release()
	from := s.stream.Committed() + 1
	for _, target := range s.targets() {
		if err := s.append(ctx, s.message(target)); err != nil {
			return err
		}
	}
	s.compacted = s.stream.Committed()
	_, err = s.stream.Trim(ctx, eventlog.TrimPolicy{MaxBytes: 1, Protect: from})
	return err
}

// maxUntold is how many events about a target may be untold: all of them go into one message.
const maxUntold = 100

// announce has an event told with what is saved next, and reports whether there is room for it. It does not block.
func (s *standings) announce(typ string, data targetNews) (ok bool) {
	s.with(data.Target, func(k *known) {
		if ok = len(k.untold) < maxUntold; ok {
			k.untold = append(k.untold, news{event.NewID(), typ, data})
		}
	})
	return ok
}

// untold is how many events about a target have still to be told.
func (s *standings) untold(target string) (n int) {
	s.with(target, func(k *known) { n = len(k.untold) })
	return n
}

// begin reports whether something is written down about a target that nobody publishes: then the caller does.
func (s *standings) begin(target string) (ok bool) {
	s.with(target, func(k *known) {
		ok = k.written > 0 && !k.telling
		k.telling = k.telling || ok
	})
	return ok
}

// next returns the first event that has to be told about a target. If there is none, the caller does not publish any more.
func (s *standings) next(target string) (n news, ok bool) {
	s.with(target, func(k *known) {
		if k.telling = k.written > 0; k.telling {
			n, ok = k.untold[0], true
		}
	})
	return n, ok
}

// told writes down that what next returned is told. It blocks until that is committed.
func (s *standings) told(ctx context.Context, target string) error {
	release, err := s.write(ctx)
	if err != nil {
		return err
	}
	defer release()
	m := s.message(target)
	m.Untold = m.Untold[1:]
	if err := s.append(ctx, m); err != nil {
		return err
	}
	s.with(target, func(k *known) { k.untold, k.written = k.untold[1:], k.written-1 })
	return nil
}

// standingChanged writes down how a target stands, and what is to be told of that, and has it told. It blocks until it is written
// down: from then on it will be told, whatever happens.
func (l *lane) standingChanged() error {
	b := l.b
	err := b.standings.save(b.hard, l.name, func() (st standing, untold int) {
		l.mu.Lock()
		defer l.mu.Unlock()
		if !l.removed {
			st = l.gate.stands(b.o.Now())
		}
		return st, b.standings.untold(l.name)
	})
	if err == nil {
		b.announce(l.name)
		return nil
	}
	if b.hard.Err() != nil {
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

// announce has a goroutine publish what is written down about a target and not told, if there is something.
func (b *Bridge) announce(target string) {
	b.mu.RLock() // Close waits for what was added before it
	defer b.mu.RUnlock()
	if b.closed || !b.standings.begin(target) {
		return // after Close the next start tells it
	}
	b.wg.Add(1)
	go b.announceAll(target)
}

// announceAll is the goroutine that publishes what is untold about a target, in order, until that is done or the bridge stops. An
// event is written down until it is stored: after a crash in between it is published again, with the id that it has.
func (b *Bridge) announceAll(target string) {
	defer b.wg.Done()
	var said time.Time
	stored := "" // the id of what is stored and still written down
	for try := 1; ; try++ {
		n, ok := b.standings.next(target)
		if !ok {
			return
		}
		var err error
		if n.ID != stored {
			err = b.publishNews(n)
		}
		if err == nil {
			stored = n.ID
			err = b.standings.told(b.hard, target)
		}
		if err == nil {
			try = 0
			continue
		}
		wait := b.announceEvery
		if try > announceTries {
			wait *= announceTries
			if now := b.o.Now(); now.Sub(said) >= sayAgain {
				said = now
				b.log.Error("event about a target was not published, trying again", "targetId", target, "eventType", n.Type, "err", err)
			}
		}
		if !pause(b.ctx, wait) {
			return
		}
	}
}

func (b *Bridge) publishNews(n news) error {
	data, err := json.Marshal(n.Data)
	if err != nil {
		return err
	}
	_, err = b.Ingest(b.hard, "default", []*event.Record{{Event: event.Event{ID: n.ID, Source: "rialto/targets", Type: n.Type, Subject: n.Data.Target,
		DataContentType: "application/json", Data: data}}})
	return err
}
