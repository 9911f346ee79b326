// SPDX-License-Identifier: Apache-2.0

package api_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rialto-bridge/rialto/internal/store"
	"github.com/rialto-bridge/rialto/web/api"
)

// told returns the next n messages that say something, as "event name".
func (s *subscriber) told(n int) []string {
	s.t.Helper()
	var out []string
	for len(out) < n {
		m, ok := s.next()
		if !ok {
			s.t.Fatalf("the stream ended after %v", out)
		}
		if m.data == "" {
			continue
		}
		var doc struct {
			Name     string
			Revision uint64
		}
		if err := json.Unmarshal([]byte(m.data), &doc); err != nil || m.id != strconv.FormatUint(doc.Revision, 10) {
			s.t.Fatalf("message %+v: %v", m, err)
		}
		out = append(out, strings.TrimSpace(m.event+" "+doc.Name))
	}
	return out
}

func wantTold(t *testing.T, s *subscriber, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, s.told(len(want))); diff != "" {
		t.Errorf("told (-want +got)\n%s", diff)
	}
}

func targetOf(name, team string) string {
	return `{"kind":"Target","name":"` + name + `","labels":{"team":"` + team + `"},"config":{"url":"u"}}`
}

func TestWatchDefinitions(t *testing.T) {
	s := start(t)
	s.apply("", set("", targetOf("a", "x"), targetOf("b", "y")))
	w := s.follow("/v1/targets?watch=true")
	wantTold(t, w, "put a", "put b", "synced")
	s.do("PUT", "/v1/targets/a", `{"config":{"url":"<u>\n"}}`).want(t, http.StatusOK)
	s.do("PUT", "/v1/buses/other", `{}`).want(t, http.StatusCreated) // is not asked for
	s.do("DELETE", "/v1/targets/b", "").want(t, http.StatusNoContent)
	wantTold(t, w, "put a", "delete b")
	w.resp.Body.Close()

	// Who comes back with the last id is told what was missed, deletions too, and goes on.
	s.do("PUT", "/v1/targets/c", targetOf("c", "x")).want(t, http.StatusCreated)
	s.do("DELETE", "/v1/targets/a", "").want(t, http.StatusNoContent)
	wantTold(t, s.follow("/v1/targets?watch=true&since="+w.lastID), "put c", "delete a", "synced")
	w = s.follow("/v1/targets?watch=true", "Last-Event-ID", w.lastID)
	wantTold(t, w, "put c", "delete a", "synced")
	wantTold(t, s.follow("/v1/targets?watch=true", "Last-Event-ID", w.lastID), "synced")

	// A list by labels: what leaves it is told as deleted.
	x := s.follow("/v1/targets?watch=true&labels=team%3Dx")
	wantTold(t, x, "put c", "synced")
	s.do("PUT", "/v1/targets/c", targetOf("c", "y")).want(t, http.StatusOK)
	wantTold(t, x, "delete c") // of changes that come together the last may be told alone
	s.do("PUT", "/v1/targets/c", targetOf("c", "x")).want(t, http.StatusOK)
	wantTold(t, x, "put c")

	// Rules are those of one bus.
	rules := s.follow("/v1/buses/default/rules?watch=true")
	wantTold(t, rules, "synced")
	s.apply("", set("", target, warmBus, warmRule, rule))
	wantTold(t, rules, "put too-warm")
	s.do("DELETE", "/v1/buses/warm/rules/too-warm", "").want(t, http.StatusNoContent)
	s.do("DELETE", "/v1/buses/default/rules/too-warm", "").want(t, http.StatusNoContent)
	wantTold(t, rules, "delete too-warm")
}

func TestWatchRefuses(t *testing.T) {
	s := start(t, func(o *api.Options) { o.MaxStreams = 1 })
	wantProblem(t, s.do("GET", "/v1/targets?watch=true&since=x", ""), 400, "invalid", "/since")
	wantProblem(t, s.do("GET", "/v1/targets?since=7", ""), 400, "invalid", "/since")
	wantProblem(t, s.do("GET", "/v1/targets?watch=true&labels=x", ""), 400, "invalid", "/labels")
	wantProblem(t, s.do("GET", "/v1/targets?watch=true", "", "Last-Event-ID", "-1"), 400, "invalid", "/Last-Event-ID")
	wantProblem(t, s.do("GET", "/v1/buses/none/rules?watch=true", ""), 404, "not-found")
	p := wantProblem(t, s.do("GET", "/v1/targets?watch=true&since=999999", ""), 410, "gone")
	if !strings.Contains(p.Detail, "without since") {
		t.Errorf("detail %q does not say what to do", p.Detail)
	}
	s.do("HEAD", "/v1/targets?watch=true", "").want(t, http.StatusOK)
	w := s.follow("/v1/targets?watch=true")
	wantTold(t, w, "synced")
	a := s.do("GET", "/v1/targets?watch=true", "")
	wantProblem(t, a, 503, "unavailable")
	if a.header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
	other := *s
	other.key = s.addKey("k", "definitions:read:default")
	wantProblem(t, other.do("GET", "/v1/targets?watch=true", ""), 403, "forbidden")

	// The end of the server is the end of the stream, and says so.
	s.api.Close()
	for m, ok := w.next(); ok; m, ok = w.next() {
		if m.event == "put" {
			t.Errorf("after the end: %+v", m)
		}
	}
}

// A quiet stream is kept alive, and its id goes on with what others have changed.
func TestWatchHeartbeat(t *testing.T) {
	s := start(t, func(o *api.Options) { o.Heartbeat = 5 * time.Millisecond })
	w := s.follow("/v1/targets?watch=true")
	wantTold(t, w, "synced")
	d := s.put(store.Key{Kind: "Bus", Name: "other"}, `{"kind":"Bus","name":"other"}`)
	for w.lastID != strconv.FormatUint(d.Revision, 10) {
		if m, ok := w.next(); !ok || m.data != "" {
			t.Fatalf("message %+v, %v", m, ok)
		}
	}
	for m, _ := w.next(); m.comment != "alive"; m, _ = w.next() {
		if m.data != "" {
			t.Fatalf("message %+v", m)
		}
	}
}

// However many changes there are, and however often a watcher comes back, it ends with the state that there is.
func TestWatchMissesNoFinalState(t *testing.T) {
	s := start(t)
	const writers, rounds, names = 4, 120, 12
	var wg sync.WaitGroup
	for i := range writers {
		wg.Go(func() {
			for j := range rounds {
				k := store.Key{Kind: "Target", Name: fmt.Sprint("t", (i*7+j)%names)}
				if j%3 == 2 {
					_ = s.store.Delete(t.Context(), k, store.Condition{}) // which may be there or not
					continue
				}
				if _, err := s.store.Put(t.Context(), k, fmt.Appendf(nil, `{"kind":"Target","name":%q,"n":%d}`, k.Name, i*rounds+j), store.Condition{}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	state, last := map[string]string{}, ""
	read := func(until string) {
		header := []string{}
		if last != "" {
			header = []string{"Last-Event-ID", last}
		}
		w := s.follow("/v1/targets?watch=true", header...)
		defer w.resp.Body.Close()
		for n := 0; until != "" || n < 40; n++ {
			m, ok := w.next()
			if !ok {
				t.Fatal("the stream ended")
			}
			var doc struct {
				Name string
				N    int
			}
			if m.data != "" {
				if err := json.Unmarshal([]byte(m.data), &doc); err != nil {
					t.Fatal(err)
				}
			}
			switch m.event {
			case "put":
				state[doc.Name] = fmt.Sprint(doc.N)
			case "delete":
				delete(state, doc.Name)
			}
			last = w.lastID
			if until != "" && doc.Name == until {
				return
			}
			if m.event == "synced" && until == "" {
				return
			}
		}
	}
	for range 20 {
		read("")
	}
	wg.Wait()
	s.put(store.Key{Kind: "Target", Name: "end"}, `{"kind":"Target","name":"end"}`)
	read("end")
	delete(state, "end")
	page, err := s.store.List(t.Context(), store.Query{Kind: "Target"})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{}
	for _, d := range page.Items {
		var doc struct {
			Name string
			N    int
		}
		if err := json.Unmarshal(d.Raw, &doc); err != nil {
			t.Fatal(err)
		}
		if doc.Name != "end" {
			want[doc.Name] = fmt.Sprint(doc.N)
		}
	}
	if diff := cmp.Diff(want, state); diff != "" {
		t.Errorf("the watcher's state (-there +watched)\n%s", diff)
	}
}
