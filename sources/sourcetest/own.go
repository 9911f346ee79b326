// SPDX-License-Identifier: Apache-2.0

package sourcetest

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/sources"
)

// Own is a pulled source under test that makes its events by itself: there is no upstream into which messages could be put.
type Own struct {
	Kind sources.Kind
	// Config is that of a source which makes an event about every second, and those that were due while it did not run, too.
	Config string
	// Follows says that nothing is missing between two events that are stored one after the other.
	Follows func(a, b *event.Event) bool
}

// RunOwn runs the suite of sources that make their events by themselves.
func RunOwn(t *testing.T, o Own) {
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() { checkLeaks(t, before) })
	for name, run := range map[string]func(*testing.T){"Definition": o.definition, "FailingLogAndPause": o.failingLogAndPause, "LostAnswers": o.lostAnswers,
		"Poison": o.poison, "TwoNodes": o.twoNodes} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // they wait for the clock, most of the time
			run(t)
		})
	}
}

// own is a source that runs.
type own struct {
	Own
	t     *testing.T
	log   *Log
	state func(name string) (s *sources.Supervisor, stop func()) // another node
	s     *sources.Supervisor
	stop  func()
	from  int // the first event after a pause: it follows none
}

func (o Own) start(t *testing.T) *own {
	t.Helper()
	w := &own{Own: o, t: t, log: NewLog()}
	state := State(t)
	w.state = func(name string) (*sources.Supervisor, func()) {
		s, stop := Node(t, name, state, w.log, nil, o.Kind)
		Define(t, s, o.document(false), o.Kind)
		return s, stop
	}
	w.s, w.stop = w.state("a")
	w.more(1)
	return w
}

func (o Own) document(paused bool) string {
	return fmt.Sprintf(`{"name":"s","type":%q,"paused":%t,"config":%s}`, o.Kind.Name, paused, o.Config)
}

// more waits for n more events, and checks that they are valid, each there once, and none missing.
func (w *own) more(n int) {
	w.t.Helper()
	had := len(w.log.Events())
	w.log.Await(w.t, fmt.Sprintf("%d more events", n), func() bool { return len(w.log.Events()) >= had+n })
	w.check()
}

func (w *own) check() {
	w.t.Helper()
	evs := w.log.Events()
	for i := range evs {
		if err := evs[i].Validate(event.Limits{MaxData: MaxData}); err != nil {
			w.t.Error(err)
		}
		if i > 0 && i != w.from && !w.Follows(&evs[i-1], &evs[i]) {
			w.t.Errorf("after the event %s comes %s", evs[i-1].ID, evs[i].ID)
		}
	}
}

// await waits for a state of the source.
func (w *own) await(s *sources.Supervisor, what string, ok func(sources.Status) bool) {
	w.t.Helper()
	Await(w.t, what, nil, func() bool {
		st, there := s.Status("s")
		return there && ok(st)
	})
}

func (o Own) definition(t *testing.T) {
	kinds := sources.NewCatalog(o.Kind)
	if _, err := sources.ParseDefinition([]byte(o.document(false)), kinds); err != nil {
		t.Error(err)
	}
	doc := fmt.Appendf(nil, `{"name":"s","type":%q,"config":{"nobody knows this":1}}`, o.Kind.Name)
	if _, err := sources.ParseDefinition(doc, kinds); fault.KindOf(err) != fault.Invalid {
		t.Errorf("an unknown field gives %v", err)
	}
}

// failingLogAndPause has the log take nothing, and then answer late: the position stays before what is not committed, and what was
// due meanwhile comes afterwards. Then it has the source paused: what was due meanwhile does not come, but what is due afterwards.
func (o Own) failingLogAndPause(t *testing.T) {
	w := o.start(t)
	w.log.Fail(errors.New("the log has no room"))
	w.await(w.s, "the status says why", func(st sources.Status) bool {
		return st.LastError != nil && st.LastError.Message == "the log has no room"
	})
	had := len(w.log.Events())
	at, _ := w.s.Status("s")
	w.log.Fail(nil)
	release := w.log.Hold()
	defer release()
	asked := w.log.Asked()
	w.log.Await(t, "an event is on its way", func() bool { return w.log.Asked() > asked })
	if st, _ := w.s.Status("s"); st.Position != at.Position || len(w.log.Events()) != had {
		t.Errorf("the position is %s and not %s before the commit", st.Position, at.Position)
	}
	release()
	w.more(1)
	Define(t, w.s, o.document(true), o.Kind)
	w.await(w.s, "it is paused", func(st sources.Status) bool { return st.State == sources.Paused })
	had, asked = len(w.log.Events()), w.log.Asked()
	w.from = had
	paused := time.Now()
	Await(t, "something would be due", nil, func() bool { return time.Since(paused) > time.Second })
	resumed := time.Now()
	Define(t, w.s, o.document(false), o.Kind)
	w.more(1)
	if at := w.log.Events()[had].Time; at.Before(resumed.Truncate(time.Second)) {
		t.Errorf("an event of %s is stored, which was due in the pause that ended at %s", at, resumed)
	}
	if n := w.log.Asked() - asked; n < len(w.log.Events())-had {
		t.Errorf("%d events were stored, and %d handed over", len(w.log.Events())-had, n)
	}
	st, _ := w.s.Status("s")
	if st.Node != "a" || st.Stored == 0 || st.LastEvent == nil {
		t.Errorf("status %+v", st)
	}
}

// lostAnswers has events stored and not noted, and their ids forgotten by the deduplication.
func (o Own) lostAnswers(t *testing.T) {
	w := o.start(t)
	for range 2 {
		had := len(w.log.Events())
		w.log.LoseAnswers(errors.New("nobody knows"))
		w.log.Await(t, "an event that nobody hears of", func() bool { return len(w.log.Events()) > had })
		w.log.LoseAnswers(nil)
		w.more(1)
	}
}

// poison is events that can never be stored. They must not hold up those behind, nor vanish; and what stands for them is there once.
func (o Own) poison(t *testing.T) {
	w := o.start(t)
	for _, why := range []error{&event.Error{Attribute: "data", Index: -1, Reason: "is poison"}, fault.New(fault.Unfit, "it is poison")} {
		had := len(w.log.Events())
		w.log.Refuse(func(ev *event.Event) error {
			if ev.Type == sources.RefusedType {
				return nil
			}
			return why
		})
		w.log.LoseAnswers(errors.New("nobody knows")) // of the first that stands for one: it is looked for as well
		w.log.Await(t, "an event stands for the poison", func() bool { return len(w.log.Events()) > had })
		w.log.LoseAnswers(nil)
		w.log.Await(t, "another one does", func() bool { return len(w.log.Events()) > had+1 })
		w.log.Refuse(nil)
	}
	n := len(w.log.Events())
	w.log.Await(t, "those behind arrive", func() bool { return len(w.log.Events()) > n })
	ids := map[string]bool{}
	for _, ev := range w.log.Events() {
		if ids[ev.ID] {
			t.Errorf("%s %s is there twice", ev.Type, ev.ID)
		}
		ids[ev.ID] = true
	}
	if st, _ := w.s.Status("s"); st.Refused < 4 {
		t.Errorf("status %+v does not count the refusals", st)
	}
}

// twoNodes has one node take over from the other.
func (o Own) twoNodes(t *testing.T) {
	w := o.start(t)
	b, _ := w.state("b")
	w.await(b, "b waits for a", func(st sources.Status) bool { return st.State == sources.Standby && st.Node == "a" })
	w.more(1)
	w.stop()
	w.await(b, "b has the source", func(st sources.Status) bool { return st.State == sources.Running && st.Node == "b" })
	w.more(2)
	if repeats := w.log.Asked() - len(w.log.Events()); repeats > 1 { // what was under way when the node stopped may come again
		t.Errorf("%d events were handed over again", repeats)
	}
}
