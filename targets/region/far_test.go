// SPDX-License-Identifier: Apache-2.0

package region

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/rialto-bridge/rialto/internal/event"
)

// far is the other side of links: as simple as can be, and as bad as a test wants it.
type far struct {
	tb  testing.TB
	srv *httptest.Server

	mu       sync.Mutex
	instance string
	key      string
	status   int    // of an answer instead of a WebSocket; 0 = none
	body     string // goes with status
	protocol string // the subprotocol that is spoken
	closes   websocket.StatusCode
	refuse   func(*event.Record) bool
	before   func(n int, b Batch) action // what to do with batch n of a connection; nil = take
	arrived  func(b Batch, bytes int)    // called with mu held
	conns    map[*websocket.Conn]context.CancelFunc
	count    int // of connections that were made

	known    map[farKey]*farState
	log      []farRecord
	has      map[string]bool // last hops
	overlaps []string        // what was sent twice over one connection
}

type action int

const (
	take     action = iota
	cutAway         // cut before anything is done
	takeOnly        // done, and cut instead of an ack
	takeHalf        // half of it is stored, and cut
)

type farKey struct{ instance, link string }

type farState struct {
	epoch         string
	done, durable Progress
	last          LastSeen
}

type farRecord struct {
	hop  event.Hop
	lane Lane
	conn int
	rec  *event.Record
	at   time.Time
}

func newFar(tb testing.TB) *far {
	f := &far{tb: tb, instance: "far", key: "secret", protocol: Protocol, known: map[farKey]*farState{}, has: map[string]bool{},
		conns: map[*websocket.Conn]context.CancelFunc{}}
	f.srv = httptest.NewUnstartedServer(f)
	return f
}

// start serves until the test ends.
func (f *far) start() *far {
	f.srv.Start()
	f.tb.Cleanup(f.stop)
	return f
}

func (f *far) stop() {
	f.cut()
	f.srv.Close()
}

// set changes what the far side is like.
func (f *far) set(fn func(f *far)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fn(f)
}

// cut ends all connections without a word.
func (f *far) cut() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, cancel := range f.conns {
		cancel()
	}
}

// ServeHTTP is the inlet.
func (f *far) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	status, body, protocol, closes := f.status, f.body, f.protocol, f.closes
	if status == 0 && r.Header.Get("Authorization") != "Bearer "+f.key {
		status, body = http.StatusUnauthorized, `{"title":"Unauthorized","detail":"the key is not known"}`
	}
	f.mu.Unlock()
	if status != 0 {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(status)
		fmt.Fprint(w, body)
		return
	}
	ws, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{protocol}, CompressionMode: websocket.CompressionDisabled})
	if err != nil {
		return
	}
	defer ws.CloseNow() //nolint:errcheck // it is over
	if closes != 0 {
		ws.Close(closes, "for the test") //nolint:errcheck // the near side sees it
		return
	}
	ws.SetReadLimit(maxFrame)
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	q := r.URL.Query()
	f.mu.Lock()
	f.conns[ws] = cancel
	f.count++
	conn := f.count
	st := f.stateOf(farKey{q.Get("instance"), q.Get("link")}, q.Get("epoch"))
	welcome, _ := json.Marshal(Welcome{Instance: f.instance, Done: st.done.clone(), Last: st.last})
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		delete(f.conns, ws)
		f.mu.Unlock()
	}()
	if ws.Write(ctx, websocket.MessageText, welcome) != nil {
		return
	}
	var sent Progress
	for n := 0; ; n++ {
		_, msg, err := ws.Read(ctx)
		if err != nil {
			return
		}
		b, err := parseBatch(msg, event.Limits{MaxData: 8 << 20})
		if err != nil {
			f.tb.Errorf("batch: %v", err)
			return
		}
		ack, ok, code := f.take(q.Get("instance"), q.Get("stream"), q.Get("link"), q.Get("epoch"), conn, n, b, len(msg), &sent)
		if code != 0 {
			ws.Close(code, "for the test") //nolint:errcheck // the near side sees it
			return
		}
		if !ok {
			return
		}
		text, _ := json.Marshal(ack)
		if ws.Write(ctx, websocket.MessageText, text) != nil {
			return
		}
	}
}

// stateOf returns what is known of a link; that of another epoch is forgotten.
func (f *far) stateOf(k farKey, epoch string) *farState {
	st := f.known[k]
	if st == nil || st.epoch != epoch {
		st = &farState{epoch: epoch}
		f.known[k] = st
	}
	return st
}

// see notes an event that is stored.
func (st *farState) see(l Lane, e Seen) {
	last := &st.last.Main
	if l == Urgent {
		last = &st.last.Urgent
	}
	if *last == nil || (*last).Seq < e.Seq {
		*last = &e
	}
}

func (f *far) take(instance, stream, link, epoch string, conn, n int, b Batch, bytes int, sent *Progress) (Ack, bool, websocket.StatusCode) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closes != 0 {
		return Ack{}, false, f.closes
	}
	if over := sent.Of(b.Lane).Both(Ranges{{b.From, b.To}}); len(over) > 0 {
		f.overlaps = append(f.overlaps, fmt.Sprintf("connection %d lane %d: %d..%d once more", conn, b.Lane, b.From, b.To))
	}
	*sent.Of(b.Lane) = sent.Of(b.Lane).Add(b.From, b.To)
	do := take
	if f.before != nil {
		do = f.before(n, b)
	}
	if do == cutAway {
		return Ack{}, false, 0
	}
	st := f.stateOf(farKey{instance, link}, epoch)
	done := st.done.Of(b.Lane)
	a := Ack{Lane: b.Lane, From: b.From, To: b.To}
	for i, e := range b.Events {
		if do == takeHalf && i >= len(b.Events)/2 {
			return Ack{}, false, 0
		}
		hop := event.Hop{Instance: instance, Position: event.Position{Stream: stream, Seq: e.Seq}}
		switch at := hop.Instance + hop.Position.String(); {
		case done.Has(e.Seq) || f.has[at]:
			a.Known++
		case e.Record.Passed(f.instance) || f.refuse != nil && f.refuse(e.Record):
			a.Refused++
			a.Why = "not here"
		default:
			a.Stored++
			f.has[at] = true
			key := e.Record.Event.Key()
			st.see(b.Lane, Seen{e.Seq, key[:]})
			f.log = append(f.log, farRecord{hop, b.Lane, conn, e.Record, time.Now()})
		}
	}
	*done = done.Add(b.From, b.To)
	if f.arrived != nil {
		f.arrived(b, bytes)
	}
	return a, do == take, 0
}

// restart forgets what was not written down; the log is there.
func (f *far) restart() {
	f.cut()
	f.set(func(f *far) {
		for _, st := range f.known {
			st.done = st.durable.clone()
		}
	})
}

// checkpoint writes down what is done.
func (f *far) checkpoint() {
	f.set(func(f *far) {
		for _, st := range f.known {
			st.durable = st.done.clone()
		}
	})
}

// backup returns a function that has the far side be as it is now, log and all.
func (f *far) backup() func() {
	f.mu.Lock()
	defer f.mu.Unlock()
	known, n := map[farKey]farState{}, len(f.log)
	for k, st := range f.known {
		known[k] = farState{st.epoch, st.done.clone(), st.durable.clone(), st.last}
	}
	return func() {
		f.cut()
		f.set(func(f *far) {
			f.known = map[farKey]*farState{}
			for k, st := range known {
				f.known[k] = &farState{st.epoch, st.done.clone(), st.durable.clone(), st.last}
			}
			for _, r := range f.log[n:] {
				delete(f.has, r.hop.Instance+r.hop.Position.String())
			}
			f.log = f.log[:n:n]
		})
	}
}

// records returns the log.
func (f *far) records() []farRecord {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.log[:len(f.log):len(f.log)]
}
