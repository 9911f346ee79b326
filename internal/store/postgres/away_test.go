// SPDX-License-Identifier: Apache-2.0

package postgres_test

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/store"
	"github.com/rialto-bridge/rialto/internal/store/postgres"
	"github.com/rialto-bridge/rialto/internal/store/postgres/pgtest"
)

const patience = 30 * time.Second

// eventually tries until it works.
func eventually(t *testing.T, what string, try func() error) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(patience)
	for {
		err := try()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("%s: %v", what, err)
		}
	}
}

// A store whose server goes and comes back under load: writes are made or refused as unavailable, none that was
// made is lost, and watchers of another process end with the same state.
func TestAway(t *testing.T) {
	srv := pgtest.Start(t)
	o := postgres.Options{DSN: srv.Database(t)}
	s, other := open(t, o), open(t, o)

	var mu sync.Mutex
	seen := map[store.Key]store.Document{}
	watching, stopWatching := context.WithCancel(t.Context())
	var watcher sync.WaitGroup
	watcher.Go(func() {
		err := other.Watch(watching, func(c store.Change) error {
			mu.Lock()
			defer mu.Unlock()
			seen[c.Key] = c.Document
			return nil
		})
		if watching.Err() == nil {
			t.Errorf("Watch ended by itself: %v", err)
		}
	})
	defer watcher.Wait()
	defer stopWatching()

	const writers = 4
	done := make(chan struct{})
	var load sync.WaitGroup
	var refused, made [writers]int
	for w := range writers {
		load.Go(func() {
			k := store.Key{Kind: "Target", Name: fmt.Sprint("w", w)}
			for i := 0; ; i++ {
				select {
				case <-done:
					return
				default:
				}
				_, err := s.Put(t.Context(), k, json.RawMessage(fmt.Sprint(i)), store.Condition{})
				switch fault.KindOf(err) {
				case fault.Unavailable:
					refused[w]++
				default:
					if err != nil {
						t.Errorf("Put while the server comes and goes: %v", err)
						return
					}
					made[w]++
				}
			}
		})
	}
	work := func() error {
		_, err := s.Put(t.Context(), store.Key{Kind: "Bus", Name: "probe"}, fmt.Append(nil, time.Now().UnixNano()), store.Condition{})
		return err
	}
	for range 2 {
		eventually(t, "work before the stop", work)
		srv.Stop(t)
		for what, call := range map[string]func() error{
			"Get":   func() error { _, err := s.Get(t.Context(), store.Key{Kind: "Bus", Name: "probe"}); return err },
			"Put":   work,
			"List":  func() error { _, err := s.List(t.Context(), store.Query{Kind: "Bus"}); return err },
			"Audit": func() error { _, err := s.Audit(t.Context(), store.AuditQuery{}); return err },
		} {
			start := time.Now()
			if err := call(); fault.KindOf(err) != fault.Unavailable {
				t.Errorf("%s without a server = %v, want unavailable", what, err)
			}
			if took := time.Since(start); took > 10*time.Second {
				t.Errorf("%s without a server took %v", what, took)
			}
		}
		eventually(t, "the feed says so", func() error {
			if s.Broken() == nil || other.Broken() == nil {
				return fmt.Errorf("%v, %v", s.Broken(), other.Broken())
			}
			return nil
		})
		srv.Start(t)
		eventually(t, "work after the start", work)
		eventually(t, "the feed is back", func() error {
			if s.Broken() != nil {
				return s.Broken()
			}
			return other.Broken()
		})
	}
	close(done)
	load.Wait()
	for w := range writers {
		if made[w] == 0 || refused[w] == 0 {
			t.Errorf("writer %d: %d writes made, %d refused", w, made[w], refused[w])
		}
		k := store.Key{Kind: "Target", Name: fmt.Sprint("w", w)}
		d, err := s.Get(t.Context(), k)
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, "the watcher of the other process", func() error {
			mu.Lock()
			defer mu.Unlock()
			if got := seen[k]; string(got.Raw) != string(d.Raw) || got.Revision != d.Revision {
				return fmt.Errorf("has %s at %d, and there is %s at %d", got.Raw, got.Revision, d.Raw, d.Revision)
			}
			return nil
		})
	}
}

// A store that is opened while its server is away is of use once the server is there.
func TestOpenedWhileAway(t *testing.T) {
	srv := pgtest.Start(t)
	dsn := srv.Database(t)
	srv.Stop(t)
	s := open(t, postgres.Options{DSN: dsn})
	k := store.Key{Kind: "Bus", Name: "b"}
	_, err := s.Get(t.Context(), k)
	if fault.KindOf(err) != fault.Unavailable || s.Broken() == nil {
		t.Errorf("Get = %v, Broken = %v", err, s.Broken())
	}
	srv.Start(t)
	eventually(t, "a write", func() error {
		_, err := s.Put(t.Context(), k, json.RawMessage(`{}`), store.Condition{})
		return err
	})
	if p, err := s.List(t.Context(), store.Query{Kind: "Bus"}); err != nil || len(p.Items) != 1 {
		t.Errorf("List = %v, %v", p, err)
	}
}

func TestOpenRefuses(t *testing.T) {
	for what, dsn := range map[string]string{
		"a DSN that is none":      "postgres://user:hunter2@host:port/db",
		"an unknown setting":      "host=db.example.com sslmode=perhaps password=hunter2",
		"a database that is none": shared.Database(t) + "_none",
		"a user that is none":     shared.Database(t) + " user=nobody",
	} {
		s, err := postgres.Open(t.Context(), postgres.Options{DSN: dsn})
		if err == nil {
			t.Errorf("Open with %s worked", what)
			s.Close()
		} else if text := err.Error(); fault.KindOf(err) != fault.Internal || contains(text, "hunter2") {
			t.Errorf("Open with %s: %s", what, text)
		}
	}
}
