// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/internal/fault"
)

// Decision is what became of a prepared event.
type Decision struct {
	State    string `json:"state"` // committed | rolledback
	ID       string `json:"id"`
	Position string `json:"position,omitempty"` // where it is, if it was committed
}

// Decide commits a prepared event or rolls it back, and blocks until that is durable. It may be asked again: the answer is the
// same, for as long as a committed event is in the log. bus is "", or the bus the event must be of.
//
// Errors are *fault.Error: NotFound (commit of what is not prepared: it was rolled back, or never was), Conflict (roll-back of
// what was committed), those of Ingest.
func (b *Bridge) Decide(ctx context.Context, bus, token string, commit bool) (Decision, error) {
	of, source, id, err := readToken(token)
	if err != nil {
		return Decision{}, err
	}
	if bus != "" && bus != of {
		return Decision{}, errNotPrepared
	}
	s, key := b.aside, keyOf(true, of, source, id)
	d, err := s.decide(ctx, func() *kept { return s.all[key] }, commit)
	if d == nil && err == nil {
		d, err = s.decided(ctx, of, source, id, commit)
	}
	if err != nil {
		return Decision{}, err
	}
	return *d, nil
}

var (
	errNotPrepared = fault.New(fault.NotFound, "no such event is prepared: it was rolled back, or never was")
	errCommitted   = fault.New(fault.Conflict, "the event was committed and cannot be rolled back")
)

// decide ends a kept event that is prepared. It returns nil if there is none. What it has begun it ends, also if ctx is done.
func (s *aside) decide(ctx context.Context, find func() *kept, commit bool) (*Decision, error) {
	k, err := s.take(ctx, find)
	if k == nil {
		return nil, err
	}
	rec, story, err := s.read(s.b.hard, k)
	if err != nil {
		s.failed(k, err)
		return nil, err
	}
	pos, there, err := s.settled(k, rec, story)
	if !commit && busGone(err) {
		err = nil
	}
	switch {
	case err != nil:
		s.failed(k, err)
		return nil, err
	case !there && !commit:
		if err := s.end(endRolledBack, k); err != nil {
			s.failed(k, err)
			return nil, err
		}
		return &Decision{State: endRolledBack, ID: rec.Event.ID}, nil
	case !there:
		if pos, err = s.commit(k, rec, story); err != nil {
			s.failed(k, err)
			return nil, err
		}
	}
	if err := s.end(endCommitted, k); err != nil {
		s.failed(k, err) // it is stored, and that is found later
	}
	if !commit {
		return nil, errCommitted
	}
	return &Decision{State: endCommitted, ID: rec.Event.ID, Position: pos.String()}, nil
}

// settled looks whether an event that is in doubt is stored. NotFound says that its bus is gone; see busGone.
func (s *aside) settled(k *kept, rec *event.Record, story keptStory) (event.Position, bool, error) {
	if !k.doubt {
		return event.Position{}, false, nil
	}
	p, err := s.b.path(story.to())
	if err != nil {
		return event.Position{}, false, err
	}
	pos, there, err := s.stored(s.b.hard, p, &rec.Event, story)
	if err == nil && !there {
		k.doubt = false
	}
	return pos, there, err
}

// busGone reports whether settled has found no bus. What was stored on it is gone with it, so for all but a commit the event is
// not there, and can end.
func busGone(err error) bool { return err != nil && fault.KindOf(err) == fault.NotFound }

func (s *aside) commit(k *kept, rec *event.Record, story keptStory) (event.Position, error) {
	pos, done, err := s.store(k, rec, story)
	if err != nil || done == nil {
		return pos, err
	}
	r := s.await(done)
	return r.Pos, r.Err
}

// decided says what became of a prepared event that is not kept any more. The log knows which were committed; a roll-back of
// what nobody knows has nothing to do.
func (s *aside) decided(ctx context.Context, bus, source, id string, commit bool) (*Decision, error) {
	paths, err := s.b.pathsOf(bus)
	if err != nil {
		return nil, err
	}
	for _, p := range paths {
		var at *event.Position
		err := p.byID(ctx, id, func(e eventlog.Entry) bool {
			if _, prepared := attributeOf(&e.Record.Event, PreparedAttribute); prepared && e.Record.Event.Source == source {
				pos := p.position(e.Seq)
				at = &pos
			}
			return at == nil
		})
		switch {
		case err != nil:
			return nil, err
		case at != nil && commit:
			return &Decision{State: endCommitted, ID: id, Position: at.String()}, nil
		case at != nil:
			return nil, errCommitted
		}
	}
	if commit {
		return nil, errNotPrepared
	}
	return &Decision{State: endRolledBack, ID: id}, nil
}

// pursue sees to a prepared event whose producer is silent. The place for a question comes first, so that however many wait for
// one, their messages are not read over and over.
func (s *aside) pursue(k *kept) {
	select {
	case s.asking <- struct{}{}:
	default:
		s.later(k, askTimeout)
		return
	}
	if !s.see(k) {
		<-s.asking
	}
}

// see does what there is to do about a prepared event: it was committed before a crash, it is too old, or its producer is to be
// asked. Then it returns true, and the question gives back its place.
func (s *aside) see(k *kept) (asks bool) {
	rec, story, err := s.read(s.b.hard, k)
	if isGone(err) {
		s.lose(k)
		return false
	}
	var there bool
	if err == nil {
		_, there, err = s.settled(k, rec, story)
		if busGone(err) && k.tries >= aFewTries {
			err = nil
		}
	}
	if err == nil && there {
		err = s.end(endCommitted, k)
	}
	if err != nil {
		s.failed(k, err)
		return false
	}
	if there {
		return false
	}
	now := s.b.o.Now()
	switch first, end := s.firstTime(story), story.KeptAt.Add(s.o.MaxAge); {
	case now.Before(first):
		s.later(k, first.Sub(now))
	case !now.Before(end) && s.b.o.Log.ClockStepped(): // whoever decides has not had the time yet, as far as anybody knows
		s.later(k, clockAgain)
	case !now.Before(end):
		if err := s.expire(k, rec, story); err != nil {
			s.failed(k, err)
		}
	case story.CheckBack == "" || s.o.HTTP == nil:
		s.later(k, end.Sub(now))
	default:
		s.ask(k, rec, story)
		return true
	}
	return false
}

// clockAgain is when a prepared event is looked at again that is too old by a clock which has just been set.
const clockAgain = time.Minute

// preparedExpired is the type of the event about a prepared event that nobody decided about, on bus default.
const preparedExpired = "io.rialto.prepared.expired"

// expire rolls a prepared event back that nobody has decided about, and tells of it. The telling comes first: after a crash in
// between it comes again, as the same event.
func (s *aside) expire(k *kept, rec *event.Record, story keptStory) error {
	ev := &rec.Event
	data, err := json.Marshal(map[string]any{"bus": story.Bus, "id": ev.ID, "source": ev.Source, "type": ev.Type,
		"preparedAt": story.KeptAt, "checkBack": story.CheckBack != ""})
	if err != nil {
		return err
	}
	_, err = s.b.Ingest(s.b.hard, "default", []*event.Record{{Event: event.Event{ID: fmt.Sprintf("expired-%x-%d", k.key, story.KeptAt.UnixNano()),
		Source: "rialto/prepared", Type: preparedExpired, Subject: story.Bus, DataContentType: "application/json", Data: data}}})
	if err != nil {
		return err
	}
	if err := s.end(endExpired, k); err != nil {
		return err
	}
	s.b.log.Warn("a prepared event was rolled back because nobody decided", "bus", story.Bus, "eventId", ev.ID, "eventType", ev.Type)
	return nil
}

const (
	// maxAsking is how many producers are asked at a time, and askTimeout how long one may take to answer.
	maxAsking  = 16
	askTimeout = 15 * time.Second
	// askMost is how long it is between two questions in the end, unless the producer wants it longer.
	askMost   = 10 * time.Minute
	maxAnswer = 4 << 10 // bytes of an answer
)

// ask asks the producer of a prepared event in a goroutine that the bridge waits for, and gives back the place that the caller
// has. Meanwhile anybody may decide.
func (s *aside) ask(k *kept, rec *event.Record, story keptStory) {
	s.mu.Lock()
	s.release(k)
	s.mu.Unlock()
	s.b.wg.Add(1) // run has not returned yet, and Close waits for it
	go func() {
		defer s.b.wg.Done()
		defer func() { <-s.asking }()
		state, err := s.question(s.b.ctx, &rec.Event, story)
		if err != nil {
			s.b.log.Warn("the producer of a prepared event does not say what becomes of it", "bus", story.Bus, "eventId", rec.Event.ID, "err", err)
		}
		find := func() *kept { return s.current(k) }
		if state == answerCommit || state == answerRollback {
			if _, err := s.decide(s.b.ctx, find, state == answerCommit); err != nil && !errors.Is(err, errCommitted) && s.b.ctx.Err() == nil {
				s.b.log.Warn("what a producer decided about a prepared event cannot be done at the moment", "bus", story.Bus, "eventId", rec.Event.ID, "err", err)
			}
			return
		}
		if mine, _ := s.take(s.b.ctx, find); mine != nil {
			wait := min(story.CheckAfter<<min(k.tries, 10), max(story.CheckAfter, askMost))
			k.tries++
			s.later(k, min(wait, max(0, story.KeptAt.Add(s.o.MaxAge).Sub(s.b.o.Now()))))
		}
	}()
}

// What a producer may answer.
const (
	answerCommit   = "commit"
	answerRollback = "rollback"
	answerUnknown  = "unknown"
)

// question asks a producer once.
func (s *aside) question(ctx context.Context, ev *event.Event, story keptStory) (state string, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, askTimeout, errors.New("no answer in time"))
	defer cancel()
	body, err := json.Marshal(map[string]any{"id": ev.ID, "source": ev.Source, "type": ev.Type, "bus": story.Bus,
		"token": tokenOf(story.Bus, ev.Source, ev.ID), "preparedAt": story.KeptAt})
	if err != nil {
		return "", err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, story.CheckBack, bytes.NewReader(body))
	if err != nil {
		return "", errors.New("the URL cannot be asked")
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := s.o.HTTP.Do(req)
	if err != nil {
		var told *url.Error // the URL may hold a secret
		if errors.As(err, &told) {
			err = told.Err
		}
		return "", err
	}
	defer resp.Body.Close() //nolint:errcheck // read only
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil:
		return "", err
	case resp.StatusCode != http.StatusOK:
		return "", fmt.Errorf("status %d", resp.StatusCode)
	}
	return readAnswer(answer)
}

// readAnswer reads {"state":"commit"|"rollback"|"unknown"}.
func readAnswer(b []byte) (string, error) {
	var a struct {
		State string `json:"state"`
	}
	if len(b) > maxAnswer {
		return "", fmt.Errorf("the answer has more than %d bytes", maxAnswer)
	}
	if err := json.Unmarshal(b, &a); err != nil || !slices.Contains([]string{answerCommit, answerRollback, answerUnknown}, a.State) {
		return "", errors.New(`the answer is not {"state": "commit", "rollback" or "unknown"}`)
	}
	return a.State, nil
}
