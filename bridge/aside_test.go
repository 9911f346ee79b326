// SPDX-License-Identifier: Apache-2.0

package bridge_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rialto-bridge/rialto/bridge"
	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/internal/fault"
)

func later(id string) *event.Record {
	return &event.Record{Event: event.Event{ID: id, Source: "/test", Type: "later", Data: []byte("{}")}}
}

// keep keeps events for later.
func (f *fixture) keep(q bridge.AsideRequest, ids ...string) []bridge.Kept {
	f.t.Helper()
	recs := make([]*event.Record, len(ids))
	for i, id := range ids {
		recs[i] = later(id)
	}
	out, err := f.SetAside(context.Background(), "default", recs, q)
	f.must(err)
	return out
}

// log reads the bus; the ids of the type, in order.
func (f *fixture) logged(typ string) (ids []string) {
	f.t.Helper()
	log, err := f.Bus("default")
	f.must(err)
	var entries []eventlog.Entry
	for from := uint64(1); from <= log.Committed(); {
		var next uint64
		entries, next, err = log.Read(context.Background(), from, 1000, entries[:0])
		f.must(err)
		for _, e := range entries {
			if e.Record.Event.Type == typ {
				ids = append(ids, e.Record.Event.ID)
			}
		}
		if next <= from {
			break
		}
		from = next
	}
	return ids
}

// awaitLogged waits until the bus has these events of type later, in any order.
func (f *fixture) awaitLogged(want ...string) {
	f.t.Helper()
	slices.Sort(want)
	f.eventually(func() (string, bool) {
		got := f.logged("later")
		slices.Sort(got)
		return cmp.Diff(want, got), slices.Equal(want, got)
	})
}

// waiting lists what is kept, page by page.
func (f *fixture) waiting(prepared bool) (ids []string) {
	f.t.Helper()
	for cursor := ""; ; {
		page, err := f.Kept(context.Background(), bridge.KeptQuery{Prepared: prepared, Bus: "default", Limit: 7, Cursor: cursor})
		f.must(err)
		for _, k := range page.Items {
			if k.Event != nil {
				f.t.Errorf("a list holds the event %s", k.ID)
			}
			ids = append(ids, k.ID)
		}
		if cursor = page.NextCursor; cursor == "" {
			slices.Sort(ids)
			return ids
		}
	}
}

func (f *fixture) awaitWaiting(prepared bool, want ...string) {
	f.t.Helper()
	f.eventually(func() (string, bool) {
		got := f.waiting(prepared)
		return cmp.Diff(want, got), slices.Equal(want, got)
	})
}

func wantKind(t *testing.T, err error, want fault.Kind, text string) {
	t.Helper()
	if fault.KindOf(err) != want || !strings.Contains(fmt.Sprint(err), text) {
		t.Errorf("error %v (%s), want %s with %q", err, fault.KindOf(err), want, text)
	}
}

func TestScheduledEventIsStoredWhenItIsDue(t *testing.T) {
	f := newFixture(t)
	c := f.useClock()
	f.start()
	defer func() { f.stop(time.Second) }()
	at := c.Now().Add(1500 * time.Millisecond)
	kept := f.keep(bridge.AsideRequest{At: at}, "a", "b")
	f.keep(bridge.AsideRequest{At: at.Add(time.Hour)}, "c")
	f.keep(bridge.AsideRequest{At: at.Add(-time.Hour)}, "past")
	if !kept[0].At.Equal(at) || kept[0].ID != "a" {
		t.Errorf("answer %+v", kept)
	}
	f.awaitLogged("past")
	c.pass(time.Second)
	f.WakeAside()
	f.awaitWaiting(false, "a", "b", "c")
	f.awaitLogged("past")
	c.pass(time.Second)
	f.WakeAside()
	f.awaitLogged("past", "a", "b")
	f.awaitWaiting(false, "c")
	found, err := f.Event(t.Context(), "default", "a", "")
	f.must(err)
	if diff := cmp.Diff([]event.Attribute{{Name: bridge.ScheduledAttribute, Value: at.Format(time.RFC3339Nano)}}, found.Event.Extensions); diff != "" {
		t.Errorf("its mark (-want +got):\n%s", diff)
	}
	if !found.Received.Equal(c.Now()) {
		t.Errorf("received %s, want when it was stored", found.Received)
	}
}

func TestScheduledEventIsKeptOnce(t *testing.T) {
	f := newFixture(t)
	c := f.useClock()
	f.start()
	defer func() { f.stop(time.Second) }()
	at := c.Now().Add(time.Hour)
	f.keep(bridge.AsideRequest{At: at}, "a")
	again := f.keep(bridge.AsideRequest{At: at.Add(time.Hour)}, "a", "b")
	if !again[0].Duplicate || !again[0].At.Equal(at) || again[1].Duplicate {
		t.Errorf("again: %+v", again)
	}
	c.pass(3 * time.Hour)
	f.WakeAside()
	f.awaitLogged("a", "b")
}

func TestCancelScheduledEvent(t *testing.T) {
	f := newFixture(t)
	c := f.useClock()
	f.start()
	f.keep(bridge.AsideRequest{At: c.Now().Add(time.Hour)}, "a", "b", "c")
	other := later("a")
	other.Event.Source = "/other"
	_, err := f.SetAside(t.Context(), "default", []*event.Record{other}, bridge.AsideRequest{At: c.Now().Add(time.Hour)})
	f.must(err)
	wantKind(t, f.Cancel(t.Context(), "default", "a", ""), fault.Conflict, "several")
	wantKind(t, f.Cancel(t.Context(), "devices", "b", ""), fault.NotFound, "")
	wantKind(t, f.Cancel(t.Context(), "default", "x", "/test"), fault.NotFound, "")
	f.must(f.Cancel(t.Context(), "default", "a", "/other"))
	f.must(f.Cancel(t.Context(), "", "b", ""))
	wantKind(t, f.Cancel(t.Context(), "", "b", ""), fault.NotFound, "")
	k, err := f.Scheduled(t.Context(), "", "a", "")
	f.must(err)
	if k.Source != "/test" || string(k.Event.Data) != "{}" {
		t.Errorf("what is left is %+v", k)
	}
	f.stop(time.Second)
	f.start() // what is cancelled stays so
	defer func() { f.stop(time.Second) }()
	c.pass(2 * time.Hour)
	f.WakeAside()
	f.awaitLogged("a", "c")
	f.awaitWaiting(false)
	wantKind(t, f.Cancel(t.Context(), "", "a", ""), fault.NotFound, "stored")
}

func TestCapsOfWhatIsKept(t *testing.T) {
	f := newFixture(t)
	f.opts.Aside = bridge.AsideOptions{MaxEvents: 3, MaxBytes: 4000}
	c := f.useClock()
	f.start()
	defer func() { f.stop(time.Second) }()
	q := bridge.AsideRequest{At: c.Now().Add(time.Hour)}
	f.keep(q, "a", "b", "c")
	_, err := f.SetAside(t.Context(), "default", []*event.Record{later("d")}, q)
	wantKind(t, err, fault.Full, "3 events are kept for later")
	f.keep(q, "c") // what is there takes no room
	f.must(f.Cancel(t.Context(), "", "c", ""))
	big := later("d")
	big.Event.Data = make([]byte, 4000)
	_, err = f.SetAside(t.Context(), "default", []*event.Record{big}, q)
	wantKind(t, err, fault.Full, "may have 4000")
	f.keep(q, "d")
	_, err = f.SetAside(t.Context(), "nobus", []*event.Record{later("e")}, q)
	wantKind(t, err, fault.NotFound, "nobus")
}

const withoutDedup = `{"kind":"Bus","name":"default","dedupWindow":"0s"}`

// A crash came after an event was stored, and before that was written to ASIDE. It is not stored again, and not because its id
// is known. One that has only the same id is another.
func TestEventThatWasStoredBeforeACrashIsNotStoredAgain(t *testing.T) {
	f := newFixture(t)
	f.busDoc = withoutDedup
	c := f.useClock()
	f.start()
	at := c.Now().Add(time.Hour)
	f.keep(bridge.AsideRequest{At: at}, "fires", "cancelled", "other")
	tokens := f.keep(bridge.AsideRequest{Prepare: true}, "commits", "rolls back", "silent")
	mark := func(id, name string, at time.Time) *event.Record {
		rec := later(id)
		rec.Event.Extensions = []event.Attribute{{Name: name, Value: at.Format(time.RFC3339Nano)}}
		return rec
	}
	_, err := f.Ingest(t.Context(), "default", []*event.Record{mark("fires", bridge.ScheduledAttribute, at), mark("cancelled", bridge.ScheduledAttribute, at),
		mark("other", bridge.ScheduledAttribute, at.Add(1)), mark("commits", bridge.PreparedAttribute, c.Now()), mark("rolls back", bridge.PreparedAttribute, c.Now()),
		mark("silent", bridge.PreparedAttribute, c.Now())})
	f.must(err)
	f.stop(time.Second)
	f.start()
	defer func() { f.stop(time.Second) }()
	wantKind(t, f.Cancel(t.Context(), "", "cancelled", ""), fault.NotFound, "stored")
	d, err := f.Decide(t.Context(), "", tokens[0].Token, true)
	f.must(err)
	if d.State != "committed" || d.Position != "EV_default:4" {
		t.Errorf("commit again: %+v", d)
	}
	_, err = f.Decide(t.Context(), "", tokens[1].Token, false)
	wantKind(t, err, fault.Conflict, "committed")
	f.eventually(func() (string, bool) { // "silent" is found by itself, once the bus is open
		c.pass(time.Second)
		f.WakeAside()
		got := f.waiting(true)
		return fmt.Sprint(got), len(got) == 0
	})
	c.pass(2 * time.Hour)
	f.WakeAside()
	f.awaitWaiting(false)
	f.awaitLogged("fires", "cancelled", "other", "other", "commits", "rolls back", "silent")
}

func TestPreparedEvent(t *testing.T) {
	f := newFixture(t)
	c := f.useClock()
	f.start()
	defer func() { f.stop(time.Second) }()
	kept := f.keep(bridge.AsideRequest{Prepare: true}, "a", "b", "c")
	f.awaitWaiting(true, "a", "b", "c")
	f.awaitWaiting(false)
	f.awaitLogged()
	k, err := f.Prepared(t.Context(), "default", kept[0].Token)
	f.must(err)
	if k.ID != "a" || !k.Expires.Equal(c.Now().Add(24*time.Hour)) {
		t.Errorf("prepared: %+v", k)
	}
	var first bridge.Decision
	for i := range 3 {
		d, err := f.Decide(t.Context(), "default", kept[0].Token, true)
		f.must(err)
		if i == 0 {
			first = d
		}
		if d != first || d.State != "committed" || d.Position != "EV_default:1" {
			t.Errorf("commit %d: %+v", i, d)
		}
		d, err = f.Decide(t.Context(), "", kept[1].Token, false)
		f.must(err)
		if d.State != "rolledback" || d.ID != "b" {
			t.Errorf("roll-back %d: %+v", i, d)
		}
	}
	_, err = f.Decide(t.Context(), "", kept[0].Token, false)
	wantKind(t, err, fault.Conflict, "committed")
	_, err = f.Decide(t.Context(), "", kept[1].Token, true)
	wantKind(t, err, fault.NotFound, "rolled back")
	_, err = f.Decide(t.Context(), "devices", kept[2].Token, true)
	wantKind(t, err, fault.NotFound, "")
	_, err = f.Decide(t.Context(), "", "nonsense!", true)
	wantKind(t, err, fault.NotFound, "token")
	f.awaitLogged("a")
	f.awaitWaiting(true, "c")
}

// Many decide at the same time about the same event. One of them does it, and all get the answer that fits.
func TestDecisionsRace(t *testing.T) {
	f := newFixture(t)
	f.busDoc = withoutDedup
	f.start()
	defer func() { f.stop(time.Second) }()
	for round := range 20 {
		kept := f.keep(bridge.AsideRequest{Prepare: true}, fmt.Sprint(round))
		answers := make(chan string, 8)
		for i := range cap(answers) {
			go func() {
				d, err := f.Decide(context.Background(), "", kept[0].Token, i%2 == 0)
				answers <- fmt.Sprintf("%v %s %s", i%2 == 0, d.State, fault.KindOf(err))
			}()
		}
		seen := map[string]bool{}
		for range cap(answers) {
			seen[<-answers] = true
		}
		committed := seen["true committed internal"] && len(seen) == 2 && seen["false  conflict"]
		rolledBack := seen["false rolledback internal"] && len(seen) == 2 && seen["true  not-found"]
		if committed == rolledBack {
			t.Errorf("answers %v", seen)
		}
		if n := len(slices.DeleteFunc(f.logged("later"), func(id string) bool { return id != fmt.Sprint(round) })); committed != (n == 1) || n > 1 {
			t.Errorf("committed %v, and stored %d times", committed, n)
		}
	}
}

// producer answers questions about prepared events.
func producer(t *testing.T, answer func(n int64, body string) string) (string, *atomic.Int64) {
	var asked atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		_, _ = io.WriteString(w, answer(asked.Add(1), string(body)))
	}))
	t.Cleanup(server.Close)
	return server.URL, &asked
}

func TestSilentProducerIsAsked(t *testing.T) {
	f := newFixture(t)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	f.opts.Aside = bridge.AsideOptions{HTTP: client}
	c := f.useClock()
	f.start()
	defer func() { f.stop(time.Second) }()
	url, asked := producer(t, func(n int64, body string) string {
		switch {
		case n == 1:
			return `{"state":"unknown"}`
		case n == 2:
			return `nonsense`
		case strings.Contains(body, `"id":"commits"`):
			return `{"state":"commit"}`
		}
		return `{"state":"rollback"}`
	})
	f.keep(bridge.AsideRequest{Prepare: true, CheckBack: url, CheckAfter: 10 * time.Second}, "commits")
	f.awaitWaiting(true, "commits")
	if n := asked.Load(); n != 0 {
		t.Errorf("asked %d times before it was time", n)
	}
	f.eventually(func() (string, bool) { // each question a while after the one before
		c.pass(10 * time.Second)
		f.WakeAside()
		return fmt.Sprintf("asked %d times", asked.Load()), len(f.waiting(true)) == 0
	})
	f.awaitLogged("commits")
	f.keep(bridge.AsideRequest{Prepare: true, CheckBack: url, CheckAfter: time.Second}, "rolls back")
	c.pass(2 * time.Second)
	f.WakeAside()
	f.awaitWaiting(true)
	f.awaitLogged("commits")
	if n := asked.Load(); n != 4 {
		t.Errorf("asked %d times, want 4", n)
	}
}

// Nobody decides, and the producer does not know: the event is rolled back when its time is over, and an event tells of it.
func TestPreparedEventExpires(t *testing.T) {
	f := newFixture(t)
	url, _ := producer(t, func(int64, string) string { return `{"state":"unknown"}` })
	f.opts.Aside = bridge.AsideOptions{HTTP: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, MaxAge: time.Hour}
	c := f.useClock()
	f.start()
	defer func() { f.stop(time.Second) }()
	asked := f.keep(bridge.AsideRequest{Prepare: true, CheckBack: url + "/check?key=secret"}, "asked")[0]
	if k, err := f.Prepared(t.Context(), "", asked.Token); err != nil || k.CheckBack != url {
		t.Errorf("checkBack is shown as %s, %v", k.CheckBack, err)
	}
	f.keep(bridge.AsideRequest{Prepare: true}, "silent")
	f.eventually(func() (string, bool) {
		c.pass(5 * time.Minute)
		f.WakeAside()
		return fmt.Sprint(f.waiting(true)), len(f.waiting(true)) == 0
	})
	f.awaitLogged()
	if got := f.logged("io.rialto.prepared.expired"); len(got) != 2 {
		t.Errorf("told of %v", got)
	}
}

// What is kept for a bus that is gone can be cancelled and rolled back, and expires, also if it may have been stored there.
func TestBusIsGone(t *testing.T) {
	f := newFixture(t)
	f.opts.Aside = bridge.AsideOptions{MaxAge: time.Hour}
	c := f.useClock()
	f.start()
	defer func() { f.stop(time.Second) }()
	doc, err := bridge.ParseBus([]byte(`{"name":"other"}`))
	f.must(err)
	f.must(f.SetBus(t.Context(), doc))
	_, err = f.SetAside(t.Context(), "other", []*event.Record{later("cancelled")}, bridge.AsideRequest{At: c.Now().Add(time.Second)})
	f.must(err)
	kept, err := f.SetAside(t.Context(), "other", []*event.Record{later("rolled back"), later("expires")}, bridge.AsideRequest{Prepare: true})
	f.must(err)
	f.must(f.RemoveBus("other"))
	for _, k := range kept { // whose outcome is in doubt then
		_, err := f.Decide(t.Context(), "", k.Token, true)
		wantKind(t, err, fault.NotFound, "no bus")
	}
	c.pass(2 * time.Second)
	f.WakeAside()
	f.must(f.Cancel(t.Context(), "other", "cancelled", "/test"))
	d, err := f.Decide(t.Context(), "", kept[0].Token, false)
	if f.must(err); d.State != "rolledback" {
		t.Errorf("decided: %+v", d)
	}
	f.eventually(func() (string, bool) {
		c.pass(10 * time.Minute)
		f.WakeAside()
		page, err := f.Kept(t.Context(), bridge.KeptQuery{Prepared: true})
		f.must(err)
		return fmt.Sprintf("%+v", page.Items), len(page.Items) == 0
	})
	if told := f.logged("io.rialto.prepared.expired"); len(told) != 1 {
		t.Errorf("told of %v", told)
	}
}

func TestURLThatMayNotBeAsked(t *testing.T) {
	f := newFixture(t)
	f.opts.Aside.CheckURL = func(string) error { return fmt.Errorf("is not public") }
	f.start()
	defer func() { f.stop(time.Second) }()
	_, err := f.SetAside(t.Context(), "default", []*event.Record{later("a")}, bridge.AsideRequest{Prepare: true, CheckBack: "http://10.0.0.1/"})
	wantKind(t, err, fault.Invalid, "/checkBack: is not public")
}

// What has ended goes from the disk, what is kept stays, and is known after a restart.
func TestAsideIsWrittenAgain(t *testing.T) {
	f := newFixture(t)
	c := f.useClock()
	f.start()
	q := bridge.AsideRequest{At: c.Now().Add(time.Hour)}
	f.keep(q, "first")
	for i := range 40 {
		big := later(fmt.Sprint("big", i))
		big.Event.Data = make([]byte, 1<<20)
		_, err := f.SetAside(t.Context(), "default", []*event.Record{big}, q)
		f.must(err)
		f.must(f.Cancel(t.Context(), "default", big.Event.ID, "/test"))
	}
	f.keep(q, "last")
	token := f.keep(bridge.AsideRequest{Prepare: true}, "prepared")[0].Token
	if first, err := f.CompactAside(t.Context(), 1<<30); err != nil || first != 1 {
		t.Errorf("it begins at %d, %v, before it is worth it", first, err)
	}
	if first, err := f.CompactAside(t.Context(), 1<<20); err != nil || first < 20 {
		t.Errorf("it begins at %d, %v", first, err)
	}
	f.awaitWaiting(false, "first", "last")
	f.stop(time.Second)
	f.start()
	defer func() { f.stop(time.Second) }()
	f.awaitWaiting(false, "first", "last")
	_, err := f.Decide(t.Context(), "", token, true)
	f.must(err)
	c.pass(2 * time.Hour)
	f.WakeAside()
	f.awaitLogged("first", "last", "prepared")
}

// A random life against a model: events are scheduled, prepared, cancelled, committed and rolled back; time passes; the bridge
// is restarted. Each event is stored as often as the model says: once, or never.
func TestAsideProperty(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	f := newFixture(t)
	f.busDoc = withoutDedup
	c := f.useClock()
	f.start()
	defer func() { f.stop(time.Second) }()
	due := map[string]time.Time{} // scheduled
	tokens := map[string]string{} // prepared
	var stored []string
	n := 0
	for range 150 {
		switch rnd.IntN(7) {
		case 0, 1:
			n++
			id := fmt.Sprint("s", n)
			due[id] = c.Now().Add(time.Duration(rnd.IntN(3600)) * time.Second)
			f.keep(bridge.AsideRequest{At: due[id]}, id)
		case 2:
			n++
			id := fmt.Sprint("p", n)
			tokens[id] = f.keep(bridge.AsideRequest{Prepare: true}, id)[0].Token
		case 3:
			for id, at := range due {
				err := f.Cancel(t.Context(), "", id, "")
				switch {
				case err == nil:
					delete(due, id)
				case fault.KindOf(err) != fault.NotFound || at.After(c.Now()):
					t.Fatalf("cancel %s, due at %s: %v", id, at, err)
				}
				break
			}
		case 4:
			for id, token := range tokens {
				commit := rnd.IntN(2) == 0
				_, err := f.Decide(t.Context(), "default", token, commit)
				f.must(err)
				if commit {
					stored = append(stored, id)
				}
				delete(tokens, id)
				break
			}
		case 5:
			c.pass(time.Duration(rnd.IntN(900)) * time.Second)
			f.WakeAside()
		case 6:
			if rnd.IntN(4) == 0 {
				f.stop(time.Second)
				f.start()
			}
		}
	}
	var open []string
	now := c.Now()
	for id, at := range due {
		switch {
		case !at.After(now):
			stored = append(stored, id)
		case at.After(now.Add(time.Minute)):
			open = append(open, id)
		default: // would become due while we wait
			f.must(f.Cancel(t.Context(), "", id, ""))
		}
	}
	slices.Sort(open)
	slices.Sort(stored)
	f.WakeAside()
	f.eventually(func() (string, bool) {
		c.pass(10 * time.Millisecond) // a bus opens a moment after the start: what was due before is tried again, by this clock
		got := f.logged("later")
		slices.Sort(got)
		return cmp.Diff(stored, got), slices.Equal(stored, got)
	})
	f.awaitWaiting(false, open...)
	f.awaitWaiting(true, sortedKeys(tokens)...)
}

func sortedKeys[V any](m map[string]V) (keys []string) {
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// Whatever stands in ASIDE is refused, or what is kept is counted right.
func FuzzAside(f *testing.F) {
	header := event.AppendNATS(nil, later("a"))
	header = append(header[:len(header)-2], `Rialto-Aside: {"bus":"default","keptAt":"2027-03-01T12:00:00Z","at":"2027-03-01T13:00:00Z"}`+"\r\n\r\n"...)
	f.Add("aside.keep", header, []byte("{}"))
	f.Add("aside.end", []byte(nil), []byte(`{"how":"fired","keys":["AAAAAAAAAAAAAAAAAAAAAA=="],"seqs":[1]}`))
	f.Add("aside.end", []byte(nil), []byte(`{"keys":["AA=="],"seqs":[]}`))
	f.Fuzz(func(t *testing.T, subject string, header, data []byte) {
		m := eventlog.Raw{Seq: 2, Subject: subject, Header: header, Data: data}
		kept, size, err := bridge.ReplayAside(eventlog.Raw{Seq: 1, Subject: "aside.keep", Header: bytes.Clone(header), Data: data}, m)
		if kept > 1 || kept == 0 && size != 0 || kept == 1 && size != int64(len(header)+len(data)) {
			t.Errorf("%d kept, %d bytes, %v", kept, size, err)
		}
	})
}

func FuzzToken(f *testing.F) {
	f.Add(bridge.TokenOf("default", "/test", "a"))
	f.Add("AAAA")
	f.Fuzz(func(t *testing.T, token string) {
		bus, source, id, err := bridge.ReadToken(token)
		if err == nil && bridge.TokenOf(bus, source, id) != token && !strings.ContainsAny(token, "\r\n") {
			t.Errorf("token %q is of %q %q %q", token, bus, source, id)
		}
	})
}

func FuzzCheckBackAnswer(f *testing.F) {
	f.Add([]byte(`{"state":"commit"}`))
	f.Add([]byte(`{"state":"maybe"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		state, err := bridge.ReadAnswer(b)
		if (err == nil) != slices.Contains([]string{"commit", "rollback", "unknown"}, state) {
			t.Errorf("%q is read as %q, %v", b, state, err)
		}
	})
}
