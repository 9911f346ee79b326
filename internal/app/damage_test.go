// SPDX-License-Identifier: Apache-2.0

package app_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/internal/app"
)

// TestDamagedLastBlock damages the end of the events' log between two runs: the start says what is gone, the places of
// what is gone stay empty, every other event is found under its own position, and the account adds up.
func TestDamagedLastBlock(t *testing.T) {
	for _, c := range []struct {
		name   string
		views  bool // are kept
		damage func([]byte) []byte
	}{
		{"truncated", true, func(b []byte) []byte { return b[:len(b)-100] }},
		{"half of it", true, func(b []byte) []byte { return b[:len(b)/2] }},
		{"bit flipped", true, func(b []byte) []byte { b[len(b)/2] ^= 0x10; return b }},
		{"truncated, views deleted", false, func(b []byte) []byte { return b[:len(b)-100] }},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			sink := newSink(t, nil)
			var said logged
			run := func(use func(s *server)) {
				o := options(dir)
				o.Logger = slog.New(slog.NewTextHandler(&said, &slog.HandlerOptions{Level: slog.LevelWarn}))
				a, err := app.Start(context.Background(), o)
				if err != nil {
					t.Fatal(err)
				}
				use(&server{t: t, url: "http://" + a.HTTPAddr(), mqtt: a.MQTTAddr(), key: a.AdminKey()})
				if err := a.Close(context.Background()); err != nil {
					t.Fatal(err)
				}
			}
			const n = 40
			at := map[string]string{} // position -> id, for ever
			publish := func(s *server, id string) {
				body := s.must("POST", "/v1/buses/default/events", fmt.Sprintf(`{"id":%q}`, id), "ce-specversion", "1.0", "ce-id", id, "ce-source", "/test", "ce-type", "reading")
				var ans struct {
					Accepted []struct{ ID, Position string }
				}
				if err := json.Unmarshal([]byte(body), &ans); err != nil {
					t.Fatal(err)
				}
				if other, ok := at[ans.Accepted[0].Position]; ok {
					t.Errorf("position %s of %s is given to %s", ans.Accepted[0].Position, other, id)
				}
				at[ans.Accepted[0].Position] = id
			}
			run(func(s *server) {
				s.target("sink", sink.URL, `{}`)
				s.rule("default", "all", `{"type":["reading"]}`, "sink")
				for i := range n {
					publish(s, fmt.Sprint("e", i))
				}
				s.settled("default", 20*time.Second)
			})

			blocks, err := filepath.Glob(filepath.Join(dir, "events", "jetstream", "$G", "streams", "EV_default", "msgs", "*.blk"))
			if err != nil || len(blocks) == 0 {
				t.Fatalf("blocks %v, %v", blocks, err)
			}
			slices.Sort(blocks)
			last := blocks[len(blocks)-1]
			b, err := os.ReadFile(last)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(last, c.damage(b), 0o600); err != nil {
				t.Fatal(err)
			}
			if !c.views {
				if err := os.RemoveAll(filepath.Join(dir, "views")); err != nil {
					t.Fatal(err)
				}
			}

			run(func(s *server) {
				gone := 0
				for i := range n {
					id := fmt.Sprint("e", i)
					raw := s.event("default", id)
					if raw == nil {
						gone++
						continue
					}
					checkStory(t, raw, id, at)
				}
				if gone == 0 {
					t.Error("nothing is gone: the damage did no harm")
				}
				if !strings.Contains(said.String(), "stream=EV_default") && !strings.Contains(said.String(), "bus=default") {
					t.Errorf("the log does not say what is gone:\n%s", said.String())
				}
				t.Logf("%d of %d gone", gone, n)
				for i := range n {
					publish(s, fmt.Sprint("new", i))
				}
				s.settled("default", 20*time.Second)
				for i := range n {
					raw := s.event("default", fmt.Sprint("new", i))
					if raw == nil {
						t.Fatalf("new event %d is not there", i)
					}
					checkStory(t, raw, fmt.Sprint("new", i), at)
				}
			})
		})
	}
}

// checkStory looks whether an event that was read back is the one that was asked for, stands where it was put, and was
// delivered.
func checkStory(t *testing.T, raw json.RawMessage, id string, at map[string]string) {
	t.Helper()
	var story struct {
		Event    struct{ ID string }
		Position string
		Journey  struct {
			Deliveries []struct {
				State    string
				Attempts []struct{ OK bool }
			}
		}
	}
	if err := json.Unmarshal(raw, &story); err != nil {
		t.Fatal(err)
	}
	if story.Event.ID != id || at[story.Position] != id {
		t.Errorf("event %s came back as %s at %s, where %s was put", id, story.Event.ID, story.Position, at[story.Position])
	}
	if d := story.Journey.Deliveries; len(d) != 1 || d[0].State != "delivered" || len(d[0].Attempts) != 1 {
		t.Errorf("journey of %s: %s", id, raw)
	}
}

// logged is a log that is read while it is written.
type logged struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
