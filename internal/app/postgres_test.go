// SPDX-License-Identifier: Apache-2.0

package app_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/internal/app"
	"github.com/rialto-bridge/rialto/internal/store"
	"github.com/rialto-bridge/rialto/internal/store/postgres"
	"github.com/rialto-bridge/rialto/internal/store/postgres/pgtest"
)

// databases are on one server, for tests that do not stop it.
var databases pgtest.Shared

// onPostgres are options whose definitions are in a database.
func onPostgres(dir, dsn string) app.Options {
	o := options(dir)
	o.Postgres = dsn
	return o
}

// Postgres goes and comes back while events flow: every event is taken and delivered, definitions cannot be written and
// the answer says when to come back, and all of it heals by itself.
func TestPostgresAway(t *testing.T) {
	pg := pgtest.Start(t)
	s, _ := start(t, onPostgres(t.TempDir(), pg.Database(t)))
	sink := newSink(t, nil)
	s.target("sink", sink.URL, `{}`)
	s.rule("default", "all", `{"type":["reading"]}`, "sink")

	stop := make(chan struct{})
	var mu sync.Mutex
	var sent []string
	var load sync.WaitGroup
	for p := range 2 {
		load.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				id := fmt.Sprintf("p%d-%d", p, i)
				if status := s.publish("default", id, "reading", id); status != http.StatusAccepted {
					t.Errorf("publish: %d", status)
					return
				}
				mu.Lock()
				sent = append(sent, id)
				mu.Unlock()
			}
		})
	}
	published := func(more int) {
		t.Helper()
		mu.Lock()
		have := len(sent)
		mu.Unlock()
		eventually(t, 20*time.Second, func() (string, bool) {
			mu.Lock()
			defer mu.Unlock()
			return "no events are taken", len(sent) >= have+more
		})
	}
	put := func() (int, string, http.Header) {
		req, err := http.NewRequest("PUT", s.url+"/v1/targets/other", strings.NewReader(fmt.Sprintf(`{"type":"webhook","config":{"url":"http://127.0.0.1:9/%d"}}`, time.Now().UnixNano())))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+s.key)
		req.Header.Set("Content-Type", "application/json")
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b := make([]byte, 1000)
		n, _ := resp.Body.Read(b)
		return resp.StatusCode, string(b[:n]), resp.Header
	}
	published(20)
	for range 2 {
		pg.Stop(t)
		status, body, header := put()
		if after, err := strconv.Atoi(header.Get("Retry-After")); status != http.StatusServiceUnavailable || err != nil || after < 1 {
			t.Errorf("a write while Postgres is away: %d %s, Retry-After %q", status, body, header.Get("Retry-After"))
		}
		published(50)
		eventually(t, 20*time.Second, func() (string, bool) {
			status, body := s.call("GET", "/readyz?verbose", "")
			return fmt.Sprintf("readyz: %d %s", status, body), status == http.StatusOK && strings.Contains(body, "definitions: the store does not answer, changes wait")
		})
		pg.Start(t)
		eventually(t, 20*time.Second, func() (string, bool) {
			status, body, _ := put()
			return fmt.Sprintf("a write when Postgres is back: %d %s", status, body), status == http.StatusOK || status == http.StatusCreated
		})
		eventually(t, 20*time.Second, func() (string, bool) {
			status, body := s.call("GET", "/readyz?verbose", "")
			return fmt.Sprintf("readyz: %d %s", status, body), status == http.StatusOK && !strings.Contains(body, "does not answer")
		})
	}
	published(20)
	close(stop)
	load.Wait()
	eventually(t, 30*time.Second, func() (string, bool) {
		missing := sink.missing(sent)
		return fmt.Sprintf("%d of %d events were not delivered", len(missing), len(sent)), len(missing) == 0
	})
	s.settled("default", 30*time.Second)
}

// A bridge that starts while Postgres is away works by its last snapshot, and takes up what it has missed once Postgres
// is back.
func TestPostgresAwayAtTheStart(t *testing.T) {
	pg := pgtest.Start(t)
	dir, dsn := t.TempDir(), pg.Database(t)
	sink := newSink(t, nil)
	first, a := start(t, onPostgres(dir, dsn))
	first.target("sink", sink.URL, `{}`)
	first.rule("default", "all", `{"type":["reading"]}`, "sink")
	if err := a.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	// Meanwhile somebody else takes the rule away and makes another.
	other, err := postgres.Open(t.Context(), postgres.Options{DSN: dsn})
	if err != nil {
		t.Fatal(err)
	}
	_, err = other.Apply(t.Context(), []store.Write{{Key: store.Key{Kind: "Rule", Scope: "default", Name: "all"}, Delete: true},
		{Key: store.Key{Kind: "Rule", Scope: "default", Name: "late"}, Raw: []byte(`{"kind":"Rule","name":"late","bus":"default","pattern":{"type":["late"]},"targets":[{"target":"sink"}]}`)}})
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	pg.Stop(t)

	s, _ := start(t, onPostgres(dir, dsn))
	if status := s.publish("default", "e1", "reading", "by the snapshot"); status != http.StatusAccepted {
		t.Fatalf("publish: %d", status)
	}
	eventually(t, 20*time.Second, func() (string, bool) {
		return "not delivered by the snapshot", len(sink.missing([]string{"by the snapshot"})) == 0
	})
	pg.Start(t)
	n := 0
	eventually(t, 20*time.Second, func() (string, bool) {
		n++
		s.publish("default", fmt.Sprint("late-", n), "late", "by the store")
		return "the rule that was made meanwhile is not in force", len(sink.missing([]string{"by the store"})) == 0
	})
	if status := s.publish("default", "e2", "reading", "by nothing"); status != http.StatusAccepted {
		t.Fatalf("publish: %d", status)
	}
	s.settled("default", 20*time.Second)
	if len(sink.missing([]string{"by nothing"})) == 0 {
		t.Error("a rule that was deleted meanwhile is in force")
	}
}

// A data directory that goes from one store of definitions to another sees no revision twice, and its key is good in both.
func TestPostgresRevisionsGoOn(t *testing.T) {
	dir := t.TempDir()
	empty := options(dir)
	moved := onPostgres(dir, databases.Empty(t))
	last := uint64(0)
	for i, o := range []app.Options{empty, moved, empty, moved} {
		s, a := start(t, o)
		var doc struct{ Revision uint64 }
		for n := range 3 {
			body := s.must("PUT", "/v1/targets/t", fmt.Sprintf(`{"type":"webhook","config":{"url":"http://127.0.0.1:9/%d/%d"}}`, i, n))
			if err := json.Unmarshal([]byte(body), &doc); err != nil {
				t.Fatal(err)
			}
			if doc.Revision <= last {
				t.Fatalf("start %d: revision %d after %d", i, doc.Revision, last)
			}
			last = doc.Revision
		}
		if err := a.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
}

// Two bridges start at once with one new database; one of them has the first key, and it is good at both. What is
// written at one is in force at the other within a second.
func TestGatePostgresTwoBridges(t *testing.T) {
	dsn := databases.Empty(t)
	var bridges [2]*server
	var wg sync.WaitGroup
	for i := range bridges {
		wg.Go(func() { bridges[i], _ = start(t, onPostgres(t.TempDir(), dsn)) })
	}
	wg.Wait()
	a, b := bridges[0], bridges[1]
	if a == nil || b == nil {
		t.Fatal("a bridge has not started")
	}
	key := a.key + b.key
	if a.key != "" && b.key != "" || key == "" {
		t.Fatalf("the first start of two bridges made %q and %q", a.key, b.key)
	}
	a.key, b.key = key, key
	sink := newSink(t, nil)
	a.target("sink", sink.URL, `{}`)
	var waits []time.Duration
	for i := range 20 {
		name := fmt.Sprint("r", i)
		a.rule("default", name, fmt.Sprintf(`{"type":[%q]}`, name), "sink")
		written := time.Now()
		eventually(t, 10*time.Second, func() (string, bool) {
			status, body := b.call("POST", "/v1/rules:explain", fmt.Sprintf(`{"rule":%q,"event":{"specversion":"1.0","id":"1","source":"/s","type":%q}}`, name, name))
			return fmt.Sprintf("explain: %d %s", status, body), status == http.StatusOK
		})
		waits = append(waits, time.Since(written))
	}
	slices.Sort(waits)
	t.Logf("written at one bridge, in force at the other: median %v, longest %v", waits[len(waits)/2], waits[len(waits)-1])
	if longest := waits[len(waits)-1]; longest > time.Second {
		t.Errorf("a rule was in force at the other bridge after %v", longest)
	}
	if status := b.publish("default", "e1", "r7", "at the other"); status != http.StatusAccepted {
		t.Fatalf("publish: %d", status)
	}
	eventually(t, 20*time.Second, func() (string, bool) { return "not delivered", len(sink.missing([]string{"at the other"})) == 0 })
}

// With 10,000 definitions a page of a list takes less than 5 ms in the median.
func TestGatePostgresLists(t *testing.T) {
	dsn := databases.Empty(t)
	s, _ := start(t, onPostgres(t.TempDir(), dsn))
	db, err := postgres.Open(t.Context(), postgres.Options{DSN: dsn})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	const devices = 10_000
	for i := 0; i < devices; i += store.MaxWrites {
		set := make([]store.Write, store.MaxWrites)
		for j := range set {
			name := fmt.Sprintf("box-%05d", i+j)
			set[j] = store.Write{Key: store.Key{Kind: "Device", Name: name},
				Raw: fmt.Appendf(nil, `{"kind":"Device","name":%q,"description":%q,"labels":{"tenth":"%d"}}`, name, strings.Repeat("d", 300), (i+j)%10)}
		}
		if _, err := db.Apply(t.Context(), set); err != nil {
			t.Fatal(err)
		}
	}
	median := func(query string) time.Duration {
		t.Helper()
		var took []time.Duration
		cursor, items := "", 0
		for cursor != "end" {
			start := time.Now()
			body := s.must("GET", "/v1/devices?limit=100"+query+cursor, "")
			took = append(took, time.Since(start))
			items += strings.Count(body, `"kind":"Device"`)
			_, next, more := strings.Cut(body, `"nextCursor":"`)
			if cursor = "end"; more {
				cursor = "&cursor=" + next[:strings.IndexByte(next, '"')]
			}
		}
		if want := devices / max(1, 10*strings.Count(query, "labels")); items != want {
			t.Errorf("the pages of %q have %d devices, not %d", query, items, want)
		}
		slices.Sort(took)
		return took[len(took)/2]
	}
	for _, query := range []string{"", "&labels=tenth%3D7"} {
		// The best of some rounds: during the first one the bridge has 10,000 definitions to put in force, too.
		p50 := min(median(query), median(query), median(query))
		t.Logf("a page of 100 of 10,000 definitions%s: median %v", query, p50)
		if p50 > 5*time.Millisecond {
			t.Errorf("a page takes %v", p50)
		}
	}
}
