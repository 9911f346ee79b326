// SPDX-License-Identifier: Apache-2.0

package region

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/nats-io/nats.go"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/internal/fault"
)

// inletBridge is a bridge as far as an Inlets knows one, on a directory that outlives it.
type inletBridge struct {
	tb     testing.TB
	dir    string
	log    *eventlog.Log
	bus    *eventlog.Bus
	nc     *nats.Conn
	inlets *Inlets
	server *httptest.Server

	refuse atomic.Pointer[func(*event.Record) error] // what Publish says first; nil = nothing
}

func newInletBridge(tb testing.TB) *inletBridge {
	f := &inletBridge{tb: tb, dir: tb.TempDir()}
	f.start()
	tb.Cleanup(f.stop)
	return f
}

func (f *inletBridge) start() {
	f.tb.Helper()
	var err error
	if f.log, err = eventlog.Open(context.Background(), eventlog.Options{Dir: f.dir, Durability: eventlog.OS, Reserve: 1 << 20}); err != nil {
		f.tb.Fatal(err)
	}
	if f.bus, err = f.log.Bus(context.Background(), eventlog.BusConfig{Name: "in", DedupWindow: -1}); err != nil { // what inlets know themselves
		f.tb.Fatal(err)
	}
	if f.nc, err = f.log.Connect(); err != nil {
		f.tb.Fatal(err)
	}
	if f.inlets, err = OpenInlets(context.Background(), InletOptions{Instance: "far", Log: f, Conn: f.nc}); err != nil {
		f.tb.Fatal(err)
	}
	f.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		err := f.inlets.Serve(w, r, r.PathValue("bus"), r.Header.Get("X-Key"), func() error { return nil })
		var told *fault.Error
		if errors.As(err, &told) {
			http.Error(w, told.Message, map[fault.Kind]int{fault.NotFound: 404, fault.Invalid: 400, fault.Conflict: 409, fault.Forbidden: 403, fault.Unavailable: 503}[told.Kind])
		}
	}))
	mux := http.NewServeMux()
	mux.Handle("GET /v1/buses/{bus}/link", f.server.Config.Handler)
	f.server.Config.Handler = mux
}

// stop ends it as a process that is asked to.
func (f *inletBridge) stop() {
	if f.log == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := f.inlets.Close(ctx); err != nil {
		f.tb.Error(err)
	}
	f.end(ctx)
}

// crash ends it without what only a stop writes down.
func (f *inletBridge) crash() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	f.inlets.cancel(errStopping)
	f.inlets.wg.Wait()
	f.end(ctx)
}

func (f *inletBridge) end(ctx context.Context) {
	f.server.CloseClientConnections()
	f.server.Close()
	f.nc.Close()
	if err := f.log.Close(ctx); err != nil {
		f.tb.Error(err)
	}
	f.log = nil
}

func (f *inletBridge) Bus(name string) (*eventlog.Bus, error) {
	if name != "in" {
		return nil, fault.New(fault.NotFound, "no bus %q", name)
	}
	return f.bus, nil
}

func (f *inletBridge) Publish(ctx context.Context, _ string, rec *event.Record, done func(eventlog.Receipt)) error {
	if refuse := f.refuse.Load(); refuse != nil {
		if err := (*refuse)(rec); err != nil {
			return err
		}
	}
	rec.Received = time.Now()
	return f.bus.Append(ctx, rec, done)
}

// stored returns the sequences of the sender of what is in the log, in its order.
func (f *inletBridge) stored() (seqs []uint64) {
	f.tb.Helper()
	for from := uint64(1); from <= f.bus.Committed(); {
		entries, next, err := f.bus.Read(context.Background(), from, 1000, nil)
		if err != nil {
			f.tb.Fatal(err)
		}
		for _, e := range entries {
			hops := e.Record.Hops
			seqs = append(seqs, hops[len(hops)-1].Position.Seq)
			if want := fmt.Sprint(seqs[len(seqs)-1]); e.Record.Event.ID != want || string(e.Record.Event.Data) != "data of "+want {
				f.tb.Fatalf("event %s of position %s", e.Record.Event.ID, want)
			}
		}
		from = next
	}
	return seqs
}

// scripted is a sender that says what a test wants.
type scripted struct {
	tb      testing.TB
	ws      *websocket.Conn
	welcome Welcome
}

func sent(seq uint64) Forwarded {
	id := fmt.Sprint(seq)
	return Forwarded{Seq: seq, Record: &event.Record{Minted: true, Event: event.Event{ID: id, Source: "/s", Type: "t", Data: []byte("data of " + id)}}}
}

func (f *inletBridge) dial(query string) (*scripted, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	query, key, _ := strings.Cut(query, "&key=")
	url := strings.Replace(f.server.URL, "http", "ws", 1) + "/v1/buses/in/link?" + query
	ws, resp, err := websocket.Dial(ctx, url, &websocket.DialOptions{Subprotocols: []string{Protocol}, HTTPHeader: http.Header{"X-Key": {key}}})
	if err != nil {
		if resp != nil {
			return nil, fmt.Errorf("%d: %w", resp.StatusCode, err)
		}
		return nil, err
	}
	n := &scripted{tb: f.tb, ws: ws}
	_, msg, err := ws.Read(ctx)
	if err == nil {
		err = json.Unmarshal(msg, &n.welcome)
	}
	return n, err
}

const life = "instance=near&link=up&epoch=e1&stream=EV_out"

func (f *inletBridge) connect(query string) *scripted {
	f.tb.Helper()
	n, err := f.dial(query)
	if err != nil {
		f.tb.Fatal(err)
	}
	f.tb.Cleanup(func() { _ = n.ws.CloseNow() })
	return n
}

func (n *scripted) send(l Lane, from, to uint64, events ...Forwarded) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return n.ws.Write(ctx, websocket.MessageBinary, encode(l, from, to, events))
}

func (n *scripted) ack() (a Ack, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_, msg, err := n.ws.Read(ctx)
	if err == nil {
		err = json.Unmarshal(msg, &a)
	}
	return a, err
}

// exchange sends a batch and demands an answer.
func (n *scripted) exchange(want Ack, l Lane, from, to uint64, events ...Forwarded) {
	n.tb.Helper()
	if err := n.send(l, from, to, events...); err != nil {
		n.tb.Fatal(err)
	}
	want.Lane, want.From, want.To = l, from, to
	if got, err := n.ack(); err != nil || got != want {
		n.tb.Fatalf("ack = %+v, %v, want %+v", got, err, want)
	}
}

func equal(tb testing.TB, got []uint64, want ...uint64) {
	tb.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		tb.Errorf("stored %v, want %v", got, want)
	}
}

func TestInletStoresOnce(t *testing.T) {
	f := newInletBridge(t)
	n := f.connect(life)
	if n.welcome.Instance != "far" || n.welcome.Done.Main != nil {
		t.Errorf("welcome = %+v", n.welcome)
	}
	n.exchange(Ack{Stored: 2}, Main, 1, 10, sent(3), sent(7))
	n.exchange(Ack{Stored: 1}, Urgent, 1, 20, sent(5))
	n.exchange(Ack{}, Main, 11, 15)
	n.exchange(Ack{Known: 1, Stored: 1}, Main, 7, 30, sent(7), sent(20))
	n.exchange(Ack{Stored: 1}, Main, 41, 50, sent(45))
	for restart := range 3 {
		again := f.connect(life)
		if got := again.welcome.Done; fmt.Sprint(got.Main) != "[{1 30} {41 50}]" || fmt.Sprint(got.Urgent) != "[{1 20}]" {
			t.Errorf("after %d restarts, done = %v", restart, got)
		}
		again.exchange(Ack{Known: 2}, Main, 1, 10, sent(3), sent(7))
		_ = again.ws.CloseNow()
		f.stop()
		f.start()
	}
	equal(t, f.stored(), 3, 7, 5, 20, 45)
	other := f.connect(strings.Replace(life, "e1", "e2", 1))
	if other.welcome.Done.Main != nil {
		t.Errorf("another life of the link knows %v", other.welcome.Done)
	}
	other.exchange(Ack{Stored: 1}, Main, 60, 60, sent(60))
	if back := f.connect(life); fmt.Sprint(back.welcome.Done.Main) != "[{1 30} {41 50}]" {
		t.Errorf("a life that was restored knows %v", back.welcome.Done)
	}
	status := f.inlets.Status("in")
	if len(status) != 1 || !status[0].Connected || status[0].Through != 50 || status[0].Gaps != 1 {
		t.Errorf("status = %+v", status)
	}
}

// A crash leaves in the log what no state speaks of.
func TestInletFindsWhatACrashLeft(t *testing.T) {
	f := newInletBridge(t)
	n := f.connect(life)
	for seq := uint64(1); seq <= 300; seq++ {
		n.exchange(Ack{Stored: 1}, Main, seq, seq, sent(seq))
	}
	f.crash()
	f.start()
	n = f.connect(life)
	for seq := uint64(1); seq <= 300; seq++ {
		n.exchange(Ack{Known: 1}, Main, seq, seq, sent(seq))
	}
	n.exchange(Ack{Stored: 1}, Main, 301, 301, sent(301))
	if got := len(f.stored()); got != 301 {
		t.Errorf("%d are stored, want 301", got)
	}
	in := f.inlets.all()[0]
	in.mu.Lock()
	defer in.mu.Unlock()
	if beside := in.epochs[len(in.epochs)-1].Beside; len(beside.Main)+len(beside.Urgent) > 0 {
		t.Errorf("%v are kept beside what is done", beside)
	}
}

func TestInletRefusesEvents(t *testing.T) {
	f := newInletBridge(t)
	n := f.connect(life)
	looped, tired := sent(2), sent(3)
	looped.Record.Hops = []event.Hop{{Instance: "far", Position: event.Position{Stream: "EV_x", Seq: 1}}}
	for i := range event.MaxHops {
		tired.Record.Hops = append(tired.Record.Hops, event.Hop{Instance: "x" + fmt.Sprint(i), Position: event.Position{Stream: "EV_x", Seq: 1}})
	}
	n.exchange(Ack{Stored: 2, Refused: 2, Why: "the event has been here: a loop"}, Main, 1, 4, sent(1), looped, tired, sent(4))
	unfit := func(rec *event.Record) error {
		if rec.Event.ID == "6" {
			return &fault.Error{Kind: fault.Unfit, Message: "the event does not fit its schema", Details: []fault.Detail{{Pointer: "/data/n", Detail: "must be a number"}}}
		}
		return nil
	}
	f.refuse.Store(&unfit)
	for seq, mend := range map[uint64]func(*event.Record){ // what another bridge takes, and this one does not
		100: func(r *event.Record) { r.Event.Data = make([]byte, 2<<20) },
		101: func(r *event.Record) { r.Event.Type = strings.Repeat("t", 2000) },
		102: func(r *event.Record) { r.MQTT = &event.Origin{Topic: "a/#", Version: 5} },
		103: func(r *event.Record) { r.MQTT = &event.Origin{Topic: "a", Version: 5, QoS: 3} },
		104: func(r *event.Record) {
			r.MQTT = &event.Origin{Topic: "a", Version: 5, Properties: []byte{0x26, 0, 9, 'x'}}
		},
		105: func(r *event.Record) { r.MQTT = &event.Origin{Topic: "a", Version: 5, Properties: []byte{0x23, 0, 1}} },
	} {
		bad := sent(seq)
		mend(bad.Record)
		if err := n.send(Main, seq, seq, bad); err != nil {
			t.Fatal(err)
		}
		if a, err := n.ack(); err != nil || a.Refused != 1 || a.Why == "" {
			t.Errorf("event %d: %+v, %v, want it refused", seq, a, err)
		}
	}
	good := sent(106)
	good.Record.MQTT = &event.Origin{Topic: "a/b", Version: 5, QoS: 1, Properties: []byte{0x26, 0, 1, 'a', 0, 1, 'b'}}
	n.exchange(Ack{Stored: 1}, Main, 106, 106, good)
	n.exchange(Ack{Stored: 2, Refused: 1, Why: "the event does not fit its schema: /data/n must be a number"}, Main, 5, 7, sent(5), sent(6), sent(7))
	equal(t, f.stored(), 1, 4, 106, 5, 7)
}

// What ends a connection is said, and what was stored by then is known by the next one.
func TestInletSaysWhyItEnds(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		code websocket.StatusCode
	}{
		"full":    {fault.New(fault.Full, "the disk is full"), CloseFull},
		"no bus":  {fault.New(fault.NotFound, "no bus in"), CloseNoBus},
		"trouble": {&fault.Error{Kind: fault.Unavailable, Message: "not now"}, CloseTrouble},
	} {
		t.Run(name, func(t *testing.T) {
			f := newInletBridge(t)
			n := f.connect(life)
			fail := func(rec *event.Record) error {
				if rec.Event.ID == "3" {
					return c.err
				}
				return nil
			}
			f.refuse.Store(&fail)
			if err := n.send(Main, 1, 4, sent(1), sent(2), sent(3), sent(4)); err != nil {
				t.Fatal(err)
			}
			if a, err := n.ack(); websocket.CloseStatus(err) != c.code {
				t.Fatalf("ack = %+v, %v, want a close with %d", a, err, c.code)
			}
			f.refuse.Store(nil)
			f.connect(life).exchange(Ack{Known: 2, Stored: 2}, Main, 1, 4, sent(1), sent(2), sent(3), sent(4))
			equal(t, f.stored(), 1, 2, 3, 4)
		})
	}
}

func TestInletRefusesNonsense(t *testing.T) {
	f := newInletBridge(t)
	for _, msg := range []string{"", "x", "\x00\x01"} {
		n := f.connect(life)
		if err := n.ws.Write(t.Context(), websocket.MessageBinary, []byte(msg)); err != nil {
			t.Fatal(err)
		}
		if _, err := n.ack(); websocket.CloseStatus(err) != CloseProtocol {
			t.Errorf("%q ends with %v", msg, err)
		}
	}
	for query, status := range map[string]string{
		"": "400", "instance=far&link=up&epoch=e&stream=EV_out": "409", "instance=A&link=up&epoch=e&stream=EV_out": "400",
		"instance=a&link=-&epoch=e&stream=EV_out": "400", "instance=a&link=up&epoch=&stream=EV_out": "400", "instance=a&link=up&epoch=e&stream=out": "400",
	} {
		if _, err := f.dial(query); err == nil || !strings.HasPrefix(err.Error(), status) {
			t.Errorf("%s: %v, want %s", query, err, status)
		}
	}
	resp, err := http.Get(f.server.URL + "/v1/buses/in/link?" + life)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close() //nolint:errcheck // read only
	if resp.StatusCode != 400 {
		t.Errorf("a plain GET is answered with %d", resp.StatusCode)
	}
}

// A link is the key's that first forwarded as it, until it is forgotten.
func TestInletBelongsToAKey(t *testing.T) {
	f := newInletBridge(t)
	n := f.connect(life + "&key=mine")
	n.exchange(Ack{Stored: 1}, Main, 1, 1, sent(1))
	if _, err := f.dial(life + "&key=other"); err == nil || !strings.HasPrefix(err.Error(), "403") {
		t.Errorf("another key: %v", err)
	}
	if err := f.inlets.Forget(t.Context(), "in", "near", "up"); fault.KindOf(err) != fault.Conflict {
		t.Errorf("forget while it is connected: %v", err)
	}
	_ = n.ws.Close(websocket.StatusNormalClosure, "")
	f.stop()
	f.start()
	if _, err := f.dial(life + "&key=other"); err == nil || !strings.HasPrefix(err.Error(), "403") {
		t.Errorf("another key after a restart: %v", err)
	}
	if err := f.inlets.Forget(t.Context(), "in", "near", "up"); err != nil {
		t.Fatal(err)
	}
	if err := f.inlets.Forget(t.Context(), "in", "near", "up"); fault.KindOf(err) != fault.NotFound {
		t.Errorf("forget again: %v", err)
	}
	if again := f.connect(life + "&key=other"); again.welcome.Done.Main != nil {
		t.Errorf("a link that was forgotten knows %v", again.welcome.Done)
	}
}

// A sender cannot make a state that no start can read.
func TestInletBoundsItsState(t *testing.T) {
	f := newInletBridge(t)
	n := f.connect(life)
	for seq := uint64(2); ; seq += 2 {
		if n.send(Main, seq, seq) != nil {
			break
		}
		if _, err := n.ack(); err != nil {
			if websocket.CloseStatus(err) != CloseProtocol || seq < 2*maxRuns {
				t.Errorf("ended after %d runs: %v", seq/2, err)
			}
			break
		}
		if seq > 4*maxRuns {
			t.Fatalf("%d runs are taken", seq/2)
		}
	}
	f.stop()
	f.start()
	if got := f.connect(life).welcome.Done.Main; len(got) == 0 || len(got) > maxRuns+2 {
		t.Errorf("%d runs after a restart", len(got))
	}
}

// What the far side has seen last says whose log it was.
func TestInletSaysWhatItHasSeen(t *testing.T) {
	f := newInletBridge(t)
	n := f.connect(life)
	if n.welcome.Last.Main != nil || n.welcome.Last.Urgent != nil {
		t.Errorf("a new link was seen: %+v", n.welcome.Last)
	}
	n.exchange(Ack{Stored: 2}, Main, 1, 10, sent(3), sent(7))
	n.exchange(Ack{Stored: 1}, Urgent, 1, 20, sent(5))
	_ = n.ws.Close(websocket.StatusNormalClosure, "")
	f.stop()
	f.start()
	last := f.connect(life).welcome.Last
	key := sent(7).Record.Event.Key()
	if last.Main == nil || last.Main.Seq != 7 || !bytes.Equal(last.Main.Key, key[:]) || last.Urgent == nil || last.Urgent.Seq != 5 {
		t.Errorf("last seen: %+v %+v", last.Main, last.Urgent)
	}
}

// A connection that nobody knows to be dead does not keep the next one out.
func TestInletNewerConnectionTakesOver(t *testing.T) {
	f := newInletBridge(t)
	old := f.connect(life)
	old.exchange(Ack{Stored: 1}, Main, 1, 1, sent(1))
	if n := f.connect(life); fmt.Sprint(n.welcome.Done.Main) != "[{1 1}]" {
		t.Errorf("done = %v", n.welcome.Done)
	}
	if _, err := old.ack(); websocket.CloseStatus(err) != CloseReplaced {
		t.Errorf("the old connection ends with %v", err)
	}
}

// Connections are cut and the far side dies at any moment: all is stored once, and in order within a lane.
func TestInletProperty(t *testing.T) {
	rnd := rand.New(rand.NewPCG(7, 9))
	f := newInletBridge(t)
	const last = 3000
	next := map[Lane]uint64{Main: 1, Urgent: 1}
	lane := func(seq uint64) Lane { return Lane(seq % 3 / 2) }
	for next[Main] <= last || next[Urgent] <= last {
		n, err := f.dial(life)
		if err != nil {
			t.Fatal(err)
		}
		for l := range next { // a crash may have taken what was acknowledged from the state, and not from the log
			if gap, ok := n.welcome.Done.Of(l).Missing(1, last); ok {
				next[l] = min(next[l], gap.From)
			}
		}
		cursor := map[Lane]uint64{Main: next[Main], Urgent: next[Urgent]}
		var reader sync.WaitGroup
		var mu sync.Mutex
		reader.Go(func() {
			for {
				a, err := n.ack()
				if err != nil {
					return
				}
				mu.Lock()
				next[a.Lane] = a.To + 1
				mu.Unlock()
			}
		})
		for range rnd.IntN(30) {
			l := Lane(rnd.IntN(2))
			from, to := cursor[l], min(cursor[l]+uint64(rnd.IntN(60)), last)
			if from > to {
				continue
			}
			var events []Forwarded
			for seq := from; seq <= to; seq++ {
				if lane(seq) == l {
					events = append(events, sent(seq))
				}
			}
			if n.send(l, from, to, events...) != nil {
				break
			}
			cursor[l] = to + 1
		}
		switch rnd.IntN(4) {
		case 0:
			_ = n.ws.CloseNow()
		case 1:
			f.crash()
			f.start()
		case 2:
			f.stop()
			f.start()
		default:
			_ = n.ws.Close(websocket.StatusNormalClosure, "")
		}
		_ = n.ws.CloseNow()
		reader.Wait()
	}
	times := map[uint64]int{}
	highest := map[Lane]uint64{}
	for _, seq := range f.stored() {
		if times[seq]++; times[seq] > 1 {
			t.Fatalf("%d is stored twice", seq)
		}
		if seq < highest[lane(seq)] {
			t.Fatalf("%d comes after %d", seq, highest[lane(seq)])
		}
		highest[lane(seq)] = seq
	}
	if len(times) != last {
		t.Errorf("%d of %d are stored", len(times), last)
	}
}

func TestTranslate(t *testing.T) {
	f := newInletBridge(t)
	n := f.connect(life)
	n.exchange(Ack{Stored: 3}, Main, 1, 30, sent(10), sent(20), sent(30))
	there := func(seq uint64) event.Hop {
		return event.Hop{Instance: "near", Position: event.Position{Stream: "EV_out", Seq: seq}}
	}
	for seq, want := range map[uint64]string{1: "EV_in:1", 10: "EV_in:2", 25: "EV_in:3", 30: ":0"} {
		got, err := f.inlets.Translate(t.Context(), "in", there(seq), 0)
		if err != nil || got.Next.String() != want || !got.Done {
			t.Errorf("Translate(%d) = %+v, %v, want %s", seq, got, err, want)
		}
	}
	if got, err := f.inlets.Translate(t.Context(), "in", event.Hop{Instance: "other", Position: event.Position{Stream: "EV_out", Seq: 1}}, 0); err != nil || !got.Next.IsZero() || got.Scanned.Seq != 3 {
		t.Errorf("Translate of another bridge = %+v, %v", got, err)
	}
	if _, err := f.inlets.Translate(t.Context(), "gone", there(1), 0); fault.KindOf(err) != fault.NotFound {
		t.Errorf("Translate on no bus = %v", err)
	}
}
