// SPDX-License-Identifier: Apache-2.0

package sourcetest_test

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/sources"
	"github.com/rialto-bridge/rialto/sources/sourcetest"
)

// list is an upstream that numbers its messages, as a log does. A source reads it from its position.
type list struct {
	mu       sync.Mutex // guards below
	messages [][]byte
	read     int           // the next message as the reader's position has it
	cut      chan struct{} // closed when connections break
	news     chan struct{}
	starts   []sources.Start // of every run that had no position
}

func newList() *list { return &list{cut: make(chan struct{}), news: make(chan struct{})} }

func (l *list) Config() string { return `{"batch": 16}` }

func (l *list) Put(_ testing.TB, data []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.messages = append(l.messages, data)
	close(l.news)
	l.news = make(chan struct{})
}

func (l *list) Restart(t testing.TB) { l.Cut(t) }

func (l *list) Cut(testing.TB) {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.cut)
	l.cut = make(chan struct{})
}

func (l *list) Unacknowledged(testing.TB) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.messages) - l.read
}

// next returns up to n messages from a place on, or waits.
func (l *list) next(ctx context.Context, from, n int, cut <-chan struct{}) ([][]byte, error) {
	for {
		l.mu.Lock()
		if from < len(l.messages) {
			defer l.mu.Unlock()
			return l.messages[from:min(from+n, len(l.messages))], nil
		}
		news := l.news
		l.mu.Unlock()
		select {
		case <-news:
		case <-cut:
			return nil, errors.New("the connection broke")
		case <-ctx.Done():
			return nil, nil
		}
	}
}

// kind is the kind of source that reads the list.
func (l *list) kind() sources.Kind {
	return sources.Kind{Name: "list", Starts: true, Doc: "Reads a list.",
		ConfigSchema: []byte(`{"type":"object","additionalProperties":false,"properties":{"batch":{"type":"integer","minimum":1}}}`),
		New: func(cfg json.RawMessage, env sources.Env) (sources.Source, error) {
			r := &reader{list: l, env: env}
			return r, json.Unmarshal(cfg, &r.config)
		}}
}

type reader struct {
	list   *list
	env    sources.Env
	config struct{ Batch int }
}

func (r *reader) Run(ctx context.Context, emit sources.Emit) error {
	at, err := r.env.Position.Load(ctx)
	if err != nil {
		return err
	}
	r.list.mu.Lock()
	cut := r.list.cut
	from := 0
	if at == "" {
		r.list.starts = append(r.list.starts, r.env.Start)
	}
	r.list.mu.Unlock()
	if at != "" {
		if from, err = strconv.Atoi(at); err != nil {
			return err
		}
	}
	for {
		messages, err := r.list.next(ctx, from, r.config.Batch, cut)
		if err != nil || ctx.Err() != nil {
			return err
		}
		evs := make([]event.Event, len(messages))
		for i, m := range messages {
			evs[i] = event.Event{ID: strconv.Itoa(from + i), Source: "/list", Type: "item", Data: m, Time: time.Unix(1, 0)}
		}
		if err := emit(ctx, evs...); err != nil {
			return err
		}
		from += len(messages)
		if err := r.env.Position.Save(ctx, strconv.Itoa(from)); err != nil {
			return err
		}
		r.list.mu.Lock()
		r.list.read = max(r.list.read, from)
		r.env.Lag(int64(len(r.list.messages) - from))
		r.list.mu.Unlock()
	}
}

// The suite itself, on the simplest upstream there is.
func TestPulled(t *testing.T) {
	// Every case has a list of its own, and the kind reads the one that was made last.
	var kind sources.Kind
	current := &struct{ *list }{newList()}
	kind = current.kind()
	kind.New = func(cfg json.RawMessage, env sources.Env) (sources.Source, error) {
		return current.list.kind().New(cfg, env)
	}
	sourcetest.RunPulled(t, sourcetest.Pulled{Kind: kind, StableIDs: true, New: func(*testing.T) sourcetest.Upstream {
		current.list = newList()
		return current.list
	}})
}
