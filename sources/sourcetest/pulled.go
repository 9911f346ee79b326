// SPDX-License-Identifier: Apache-2.0

package sourcetest

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/sources"
)

// Upstream is what a pulled source fetches from, as the suite drives it. It keeps what was not acknowledged, and sends it
// again.
type Upstream interface {
	// Config is the config of a source that fetches from it.
	Config() string
	// Put makes a message available and blocks until the upstream has it.
	Put(t testing.TB, data []byte)
	// Restart goes away with all connections and comes back, at the same place and with what was not acknowledged.
	Restart(t testing.TB)
	// Cut breaks all connections.
	Cut(t testing.TB)
	// Unacknowledged is how many messages would be sent again.
	Unacknowledged(t testing.TB) int
}

// Pulled is a kind under test.
type Pulled struct {
	Kind sources.Kind
	New  func(t *testing.T) Upstream
	// StableIDs says that a message that is sent again has the id that it had, so that it is stored once.
	StableIDs bool
	Largest   int // payload that the upstream takes; 0 = 1 MiB
}

// RunPulled runs the suite of pulled sources.
func RunPulled(t *testing.T, p Pulled) {
	t.Run("Definition", p.definition)
	t.Run("Everything", p.everything)
	t.Run("AcknowledgedAfterTheCommit", p.acknowledgedAfterTheCommit)
	t.Run("FailingLog", p.failingLog)
	t.Run("RestartsAndCuts", p.restartsAndCuts)
	t.Run("Poison", func(t *testing.T) { p.poison(t, &event.Error{Attribute: "data", Index: -1, Reason: "is poison"}) })
	t.Run("Misfit", func(t *testing.T) { p.poison(t, fault.New(fault.Unfit, "it is poison")) })
	t.Run("SlowLog", p.slowLog)
	t.Run("TwoNodes", p.twoNodes)
}

// pull is a source that runs.
type pull struct {
	up  Upstream
	log *Log
	s   *sources.Supervisor
}

func (p Pulled) start(t *testing.T) *pull {
	t.Helper()
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { checkLeaks(t, before) })
	w := &pull{up: p.New(t), log: NewLog()}
	w.s, _ = Node(t, "one", State(t), w.log, nil, p.Kind)
	Define(t, w.s, p.document(w.up), p.Kind)
	w.running(t)
	return w
}

func checkLeaks(t *testing.T, before goleak.Option) {
	if err := goleak.Find(before,
		goleak.IgnoreAnyFunction("github.com/nats-io/nats-server/v2/server/ats.init.0.func1"),
		goleak.IgnoreAnyFunction("github.com/nats-io/nats-server/v2/server/pse.periodic"),
		goleak.IgnoreAnyFunction("github.com/nats-io/nats-server/v2/server.(*fileStore).cleanupOldMeta")); err != nil && !t.Failed() {
		t.Errorf("goroutines are left: %v", err)
	}
}

func (p Pulled) document(up Upstream) string {
	return fmt.Sprintf(`{"kind":"Source","name":"s","type":%q,"config":%s}`, p.Kind.Name, up.Config())
}

func (w *pull) running(t *testing.T) {
	t.Helper()
	Await(t, "the source runs", nil, func() bool {
		st, ok := w.s.Status("s")
		return ok && st.State == sources.Running
	})
}

// has reports whether every one of want is the data of a committed event.
func (w *pull) has(want [][]byte) bool {
	have := map[string]bool{}
	for _, ev := range w.log.Events() {
		have[string(ev.Data)] = true
	}
	for _, data := range want {
		if !have[string(data)] {
			return false
		}
	}
	return true
}

// settled waits until everything has arrived and is acknowledged, and checks that nothing came that nobody sent.
func (w *pull) settled(t *testing.T, p Pulled, want [][]byte) {
	t.Helper()
	w.log.Await(t, fmt.Sprintf("%d events arrive", len(want)), func() bool { return w.has(want) })
	Await(t, "everything is acknowledged", nil, func() bool { return w.up.Unacknowledged(t) == 0 })
	sent := map[string]bool{}
	for _, data := range want {
		sent[string(data)] = true
	}
	for _, ev := range w.log.Events() {
		if !sent[string(ev.Data)] {
			t.Errorf("an event with %d bytes arrived that nobody sent", len(ev.Data))
		}
		if err := ev.Validate(event.Limits{MaxData: MaxData}); err != nil {
			t.Error(err)
		}
	}
	if got := len(w.log.Events()); p.StableIDs && got != len(want) {
		t.Errorf("%d events are stored, want %d", got, len(want))
	}
}

func message(name string, i int) []byte { return fmt.Appendf(nil, `{"suite":%q,"n":%d}`, name, i) }

func (p Pulled) definition(t *testing.T) {
	kinds := sources.NewCatalog(p.Kind)
	if _, err := sources.ParseDefinition([]byte(p.document(p.New(t))), kinds); err != nil {
		t.Error(err)
	}
	_, err := sources.ParseDefinition(fmt.Appendf(nil, `{"kind":"Source","name":"s","type":%q,"config":{"nobody knows this":1}}`, p.Kind.Name), kinds)
	if err == nil || !strings.Contains(err.Error(), "/config/nobody knows this") {
		t.Errorf("an unknown field gives %v", err)
	}
}

func (p Pulled) everything(t *testing.T) {
	w := p.start(t)
	var want [][]byte
	for i := range 200 {
		want = append(want, message("everything", i))
		w.up.Put(t, want[i])
	}
	big := bytes.Repeat([]byte{'x'}, cmp.Or(p.Largest, 1<<20))
	rand.Shuffle(1000, func(i, j int) { big[i] = byte('a' + j%26) })
	want = append(want, big)
	w.up.Put(t, big)
	w.settled(t, p, want)
	st, _ := w.s.Status("s")
	if st.State != sources.Running || st.Node != "one" || st.Stored < uint64(len(want)) || st.Rate <= 0 || st.LastEvent == nil || st.LastError != nil {
		t.Errorf("status %+v", st)
	}
}

func (p Pulled) acknowledgedAfterTheCommit(t *testing.T) {
	w := p.start(t)
	release := w.log.Hold()
	defer release()
	want := [][]byte{message("held", 0)}
	w.up.Put(t, want[0])
	w.log.Await(t, "the event is on its way", func() bool { return w.log.Asked() > 0 })
	if n := w.up.Unacknowledged(t); n != 1 {
		t.Errorf("%d messages are unacknowledged before the commit, want 1", n)
	}
	release()
	w.settled(t, p, want)
}

func (p Pulled) failingLog(t *testing.T) {
	w := p.start(t)
	w.log.Fail(errors.New("the log has no room"))
	want := [][]byte{message("failing", 0), message("failing", 1)}
	for _, data := range want {
		w.up.Put(t, data)
	}
	w.log.Await(t, "the event was tried again", func() bool { return w.log.Asked() > 3 })
	Await(t, "the status says why", nil, func() bool {
		st, _ := w.s.Status("s")
		return st.LastError != nil && strings.Contains(st.LastError.Message, "no room")
	})
	if n := w.up.Unacknowledged(t); n != len(want) {
		t.Errorf("%d messages are unacknowledged, want %d", n, len(want))
	}
	w.log.Fail(nil)
	w.settled(t, p, want)
}

func (p Pulled) restartsAndCuts(t *testing.T) {
	w := p.start(t)
	var want [][]byte
	for i := range 60 {
		want = append(want, message("cuts", i))
		w.up.Put(t, want[i])
		switch {
		case i%20 == 7:
			w.up.Cut(t)
		case i%20 == 15:
			w.up.Restart(t)
		}
	}
	w.settled(t, p, want)
}

// poison is a message that can never be stored. It must not hold up those behind it, nor vanish.
func (p Pulled) poison(t *testing.T, why error) {
	w := p.start(t)
	w.log.Refuse(func(ev *event.Event) error {
		if bytes.HasPrefix(ev.Data, []byte("poison")) {
			return why
		}
		return nil
	})
	release := w.log.Hold() // those behind the first come together
	defer release()
	w.up.Put(t, message("poison", 0))
	w.log.Await(t, "an event is on its way", func() bool { return w.log.Asked() > 0 })
	w.up.Put(t, []byte("poison"))
	w.up.Put(t, message("poison", 1))
	release()
	w.log.Await(t, "those around the poison arrive", func() bool { return w.has([][]byte{message("poison", 0), message("poison", 1)}) })
	Await(t, "everything is acknowledged", nil, func() bool { return w.up.Unacknowledged(t) == 0 })
	w.log.Await(t, "an event stands for the poison", func() bool {
		for _, ev := range w.log.Events() {
			if ev.Type == sources.RefusedType && bytes.Contains(ev.Data, []byte("is poison")) {
				return true
			}
		}
		return false
	})
	if st, _ := w.s.Status("s"); st.Refused == 0 {
		t.Errorf("status %+v counts no refusal", st)
	}
}

// slowLog has the log stand still while many messages wait: the source may take only so many into memory.
func (p Pulled) slowLog(t *testing.T) {
	w := p.start(t)
	release := w.log.Hold()
	defer release()
	var want [][]byte
	for i := range 3000 {
		want = append(want, message("slow", i))
		w.up.Put(t, want[i])
	}
	w.log.Await(t, "an event is on its way", func() bool { return w.log.Asked() > 0 })
	if n := w.log.Asked(); n > 1000 {
		t.Errorf("%d events were handed over at once", n)
	}
	release()
	w.settled(t, p, want)
}

// twoNodes has one node take over from the other.
func (p Pulled) twoNodes(t *testing.T) {
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { checkLeaks(t, before) })
	up, log, state := p.New(t), NewLog(), State(t)
	a, stopA := Node(t, "a", state, log, nil, p.Kind)
	Define(t, a, p.document(up), p.Kind)
	w := &pull{up, log, a}
	w.running(t)
	b, _ := Node(t, "b", state, log, nil, p.Kind)
	Define(t, b, p.document(up), p.Kind)
	Await(t, "b waits for a", nil, func() bool {
		st, _ := b.Status("s")
		return st.State == sources.Standby && st.Node == "a"
	})
	want := [][]byte{message("nodes", 0), message("nodes", 1)}
	up.Put(t, want[0])
	w.settled(t, p, want[:1])
	stopA()
	w.s = b
	w.running(t)
	up.Put(t, want[1])
	w.settled(t, p, want)
}
