// SPDX-License-Identifier: Apache-2.0

package app_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/rialto-bridge/rialto/internal/eventlog"
)

// wire is a network between two bridges: it can be cut, also in the middle of what it carries.
type wire struct {
	ln net.Listener
	to atomic.Pointer[string]

	mu    sync.Mutex // guards below
	cut   bool
	after int64 // bytes until it cuts what is on it; 0 = never
	cuts  int
	conns map[net.Conn]bool
}

func newWire(t testing.TB, to string) *wire {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{ln: ln, conns: map[net.Conn]bool{}}
	w.lead(to)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { w.carry(c) })
		}
	})
	t.Cleanup(func() {
		ln.Close()
		w.setCut(true)
		wg.Wait()
	})
	return w
}

func (w *wire) url() string      { return "http://" + w.ln.Addr().String() }
func (w *wire) lead(url string)  { to := strings.TrimPrefix(url, "http://"); w.to.Store(&to) }
func (w *wire) leave(c net.Conn) { w.mu.Lock(); defer w.mu.Unlock(); delete(w.conns, c); c.Close() }

func (w *wire) enter(c net.Conn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cut {
		return false
	}
	w.conns[c] = true
	return true
}

// setCut cuts the wire, or brings it back.
func (w *wire) setCut(cut bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = cut
	if cut {
		w.breakAll()
	}
}

// cutAfter cuts what is on the wire once so many bytes have passed.
func (w *wire) cutAfter(n int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.after = n
}

func (w *wire) cutSoFar() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.cuts
}

// breakAll is called with mu held.
func (w *wire) breakAll() {
	for c := range w.conns {
		c.Close()
	}
}

// passes counts bytes, and returns how many of them still get through.
func (w *wire) passes(n int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.after == 0 {
		return n
	}
	if w.after -= int64(n); w.after > 0 {
		return n
	}
	n += int(w.after)
	w.after = 0
	w.cuts++
	return -n
}

func (w *wire) carry(near net.Conn) {
	defer w.leave(near)
	if !w.enter(near) {
		return
	}
	far, err := net.Dial("tcp", *w.to.Load())
	if err != nil {
		return
	}
	defer w.leave(far)
	if !w.enter(far) {
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		io.Copy(near, far)
		near.Close()
	}()
	buf := make([]byte, 16<<10)
	for {
		n, err := near.Read(buf)
		if through := w.passes(n); through < 0 { // here it is cut
			far.Write(buf[:-through])
			break
		} else if _, werr := far.Write(buf[:through]); werr != nil || err != nil {
			break
		}
	}
	near.Close()
	far.Close()
	<-done
}

// key makes a key on a bridge and returns its secret.
func (s *server) newKey(name string, scopes ...string) string {
	s.t.Helper()
	body, err := json.Marshal(map[string]any{"name": name, "scopes": scopes})
	if err != nil {
		s.t.Fatal(err)
	}
	var made struct{ Secret string }
	if err := json.Unmarshal([]byte(s.must("POST", "/v1/keys", string(body))), &made); err != nil || made.Secret == "" {
		s.t.Fatalf("no key: %v", err)
	}
	return made.Secret
}

// link defines a region and a link; extra goes into the link's document.
func (s *server) link(name, url, key, extra string) {
	s.t.Helper()
	s.must("PUT", "/v1/regions/"+name, fmt.Sprintf(`{"url":%q,"key":{"value":%q}}`, url, key))
	s.must("PUT", "/v1/links/"+name, fmt.Sprintf(`{"region":%q%s}`, name, extra))
}

// linkStatus is what a link says of itself.
type linkStatus struct {
	State string
	Error *struct{ Message string }
	Lag   struct {
		Events  uint64
		Seconds float64
	}
}

func (s *server) linkStatus(name string) linkStatus {
	s.t.Helper()
	var doc struct{ Status linkStatus }
	if err := json.Unmarshal([]byte(s.must("GET", "/v1/links/"+name, "")), &doc); err != nil {
		s.t.Fatal(err)
	}
	return doc.Status
}

// batch publishes events in one request and reports whether they are stored.
func (s *server) batch(bus string, events [][]byte) bool {
	status, _ := s.call("POST", "/v1/buses/"+bus+"/events", "["+string(bytes.Join(events, []byte(",")))+"]", "Content-Type", "application/cloudevents-batch+json")
	return status == http.StatusAccepted
}

// drillEvent is an event of n that no other is like.
func drillEvent(rnd *rand.Rand, n int) []byte {
	pad := make([]byte, 20+rnd.IntN(200))
	for i := range pad {
		pad[i] = 'a' + byte(rnd.IntN(26))
	}
	return fmt.Appendf(nil, `{"specversion":"1.0","id":"e%d","source":"/drill/%d","type":"drill.%d","subject":"ü %d","time":"2026-11-30T10:00:00.%09dZ","ext":%d,"flag":%t,"data":{"n":%d,"pad":%q}}`,
		n, n%17, n%5, n, n, n, n%2 == 0, n, pad)
}

// busEvents reads a whole bus as everybody can: the events as they are shown, in the order of the log.
func (s *server) busEvents(bus string, want int) []string {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "GET", s.url+"/v1/stream?topics=events:"+bus+"&from=EV_"+bus+":1", nil)
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+s.key)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	var out []string
	lines := bufio.NewReaderSize(resp.Body, 1<<20)
	for len(out) < want {
		line, err := lines.ReadString('\n')
		if err != nil {
			s.t.Fatalf("%d of %d events of %s: %v", len(out), want, bus, err)
		}
		data, ok := strings.CutPrefix(line, "data: ")
		if !ok {
			continue
		}
		var e struct{ Event json.RawMessage }
		if err := json.Unmarshal([]byte(data), &e); err != nil {
			s.t.Fatal(err)
		}
		out = append(out, string(e.Event))
	}
	return out
}

// storedOn is how many events a bus has taken.
func (s *server) storedOn(bus string) uint64 {
	s.t.Helper()
	var account struct {
		Buses []struct{ Events struct{ Accepted uint64 } }
	}
	if err := json.Unmarshal([]byte(s.must("GET", "/v1/ledger?bus="+bus, "")), &account); err != nil {
		s.t.Fatal(err)
	}
	return account.Buses[0].Events.Accepted
}

// linkAccount is a link's part of the ledger.
type linkAccount struct {
	Link       string
	Main       map[string]uint64
	Pending    uint64
	Difference int64
}

func (s *server) linkAccount(bus, link string) linkAccount {
	s.t.Helper()
	var account struct{ Links []linkAccount }
	if err := json.Unmarshal([]byte(s.must("GET", "/v1/ledger?bus="+bus, "")), &account); err != nil {
		s.t.Fatal(err)
	}
	for _, l := range account.Links {
		if l.Link == link {
			return l
		}
	}
	s.t.Fatalf("the ledger has no link %s", link)
	return linkAccount{}
}

// forwarded waits until a link has nothing more to do.
func (s *server) forwarded(link string, within time.Duration) {
	s.t.Helper()
	eventually(s.t, within, func() (string, bool) {
		st := s.linkStatus(link)
		return fmt.Sprintf("link %s: %+v", link, st), st.State == "running" && st.Lag.Events == 0
	})
}

// drillSize is how many events the drill sends: 100 000 in its long form.
func drillSize(t *testing.T, short int) int {
	if v := os.Getenv("RIALTO_REGION_EVENTS"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	return short
}

// TestKillRegions forwards a bus to another bridge while the line is cut at any byte and both sides are killed. In the end the
// far bus is the near one: each event once, byte for byte, in order.
func TestKillRegions(t *testing.T) {
	for _, ordering := range []string{"log", "none"} {
		t.Run(ordering, func(t *testing.T) { drill(t, ordering, drillSize(t, 12_000)) })
	}
}

func drill(t *testing.T, ordering string, events int) {
	rnd := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 2))
	nearDir, farDir := t.TempDir(), t.TempDir()
	near, nearCmd := spawn(t, nearDir)
	far, farCmd := spawn(t, farDir)
	far.must("PUT", "/v1/buses/there", `{}`)
	near.must("PUT", "/v1/buses/here", `{"dedupWindow":"10m"}`)
	w := newWire(t, far.url)
	near.link("up", w.url(), far.newKey("near", "events:write:there"), fmt.Sprintf(`,"bus":"here","to":"there","start":"earliest","ordering":%q`, ordering))
	near.must("PUT", "/v1/regions/up", fmt.Sprintf(`{"url":%q,"key":%s,"bandwidth":"1MiB"}`, w.url(), keyOf(t, near, "up")))

	var at atomic.Pointer[server]
	at.Store(near)
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		source := rand.New(rand.NewPCG(3, 4))
		for n := 0; n < events; n += 100 {
			var batch [][]byte
			for i := range 100 {
				batch = append(batch, drillEvent(source, n+i))
			}
			for !at.Load().batch("here", batch) { // the same again, until it is stored
				<-time.After(20 * time.Millisecond)
			}
		}
	}()
	kill := func(cmd *exec.Cmd) {
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		cmd.Wait() // killed: the error is known
	}
	w.cutAfter(1 + rnd.Int64N(40_000))
	for round := range 6 {
		<-time.After(time.Duration(100+rnd.IntN(500)) * time.Millisecond)
		switch round % 3 {
		case 0:
			kill(farCmd)
			far, farCmd = spawn(t, farDir)
			w.lead(far.url)
		case 1:
			kill(nearCmd)
			near, nearCmd = spawn(t, nearDir)
			at.Store(near)
		default:
			w.setCut(true)
			<-time.After(time.Duration(rnd.IntN(300)) * time.Millisecond)
			w.setCut(false)
		}
		w.cutAfter(1 + rnd.Int64N(60_000))
	}
	<-sent
	near.must("PUT", "/v1/regions/up", fmt.Sprintf(`{"url":%q,"key":%s}`, w.url(), keyOf(t, near, "up")))
	near.forwarded("up", 90*time.Second)
	if got := far.storedOn("there"); got != uint64(events) {
		t.Errorf("%d events are there, want %d", got, events)
	}
	here, there := near.busEvents("here", events), far.busEvents("there", events)
	if ordering == "none" { // each run is in order, and a cut begins a new one
		compareSets(t, here, there)
	} else {
		for i := range here {
			if here[i] != there[i] {
				t.Fatalf("event %d:\nhere  %s\nthere %s", i, here[i], there[i])
			}
		}
	}
	a := near.linkAccount("here", "up")
	if a.Difference != 0 || a.Pending != 0 || a.Main["forwarded"]+a.Main["known"] != uint64(events) || a.Main["dropped"] != 0 {
		t.Errorf("account = %+v", a)
	}
	t.Logf("%d events, the line cut %d times at a byte, both sides killed twice; account %v", events, w.cutSoFar(), a.Main)
}

func compareSets(t *testing.T, here, there []string) {
	t.Helper()
	seen := map[string]int{}
	for _, e := range there {
		seen[e]++
	}
	for _, e := range here {
		if seen[e] != 1 {
			t.Fatalf("%d times there: %s", seen[e], e)
		}
	}
}

// keyOf is the key of a region as it is shown, which keeps the one that is stored.
func keyOf(t *testing.T, s *server, region string) string {
	t.Helper()
	var doc struct{ Key json.RawMessage }
	if err := json.Unmarshal([]byte(s.must("GET", "/v1/regions/"+region, "")), &doc); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(doc.Key), "rialto_") || !strings.Contains(string(doc.Key), "value") {
		t.Fatalf("the key is shown as %s", doc.Key)
	}
	return string(doc.Key)
}

// TestRegionsRing links three bridges in both directions: an event gets to each once, whatever way it takes, and no further.
func TestRegionsRing(t *testing.T) {
	const each = 40
	var all []*server
	for range 3 {
		s, _ := start(t, options(t.TempDir()))
		s.must("PUT", "/v1/buses/ring", `{}`)
		all = append(all, s)
	}
	for i, s := range all {
		for step := 1; step <= 2; step++ {
			to := all[(i+step)%3]
			s.link(fmt.Sprintf("to-%d", (i+step)%3), to.url, to.newKey(fmt.Sprintf("from-%d", i), "events:write:ring"), `,"bus":"ring","start":"earliest"`)
		}
	}
	for i, s := range all {
		for n := range each {
			if status := s.publish("ring", fmt.Sprintf("%d-%d", i, n), "t", "x"); status != http.StatusAccepted {
				t.Fatalf("publish: %d", status)
			}
		}
	}
	for i, s := range all {
		for step := 1; step <= 2; step++ {
			s.forwarded(fmt.Sprintf("to-%d", (i+step)%3), 20*time.Second)
		}
	}
	for _, s := range all {
		eventually(t, 20*time.Second, func() (string, bool) {
			n := s.storedOn("ring")
			return fmt.Sprintf("%d events, want %d", n, 3*each), n >= 3*each
		})
	}
	for i, s := range all { // what came in from one neighbour was offered to the other, and was there already or had been there
		for step := 1; step <= 2; step++ {
			s.forwarded(fmt.Sprintf("to-%d", (i+step)%3), 20*time.Second)
		}
		if n := s.storedOn("ring"); n != 3*each {
			t.Errorf("bridge %d has %d events, want %d", i, n, 3*each)
		}
	}
	var event struct{ Hops []string }
	for _, id := range []string{"1-0", "2-0"} {
		if err := json.Unmarshal(all[0].event("ring", id), &event); err != nil || len(event.Hops) == 0 {
			t.Errorf("event %s says it has hops %v (%v)", id, event.Hops, err)
		}
	}
}

// TestRegionsSayWhatIsWrong breaks a link in the ways a user would, looks what it says, and mends it.
func TestRegionsSayWhatIsWrong(t *testing.T) {
	near, _ := start(t, options(t.TempDir()))
	far, _ := start(t, options(t.TempDir()))
	near.must("PUT", "/v1/buses/up", `{}`)
	good := far.newKey("near", "events:write:up")
	says := func(want string) {
		t.Helper()
		eventually(t, 10*time.Second, func() (string, bool) {
			st := near.linkStatus("up")
			return fmt.Sprintf("the link says %+v %+v, want %s", st, st.Error, want), st.State != "running" && st.Error != nil && strings.Contains(st.Error.Message, want)
		})
	}
	near.publish("up", "1", "t", "x")
	near.link("up", far.url, "rialto_wrong", `,"bus":"up","start":"earliest"`)
	says("key")
	near.link("up", far.url, good, `,"bus":"up","start":"earliest"`)
	says(`no bus "up"`)
	far.must("PUT", "/v1/buses/up", `{}`)
	near.forwarded("up", 15*time.Second)
	near.must("POST", "/v1/links/up:pause", "")
	near.publish("up", "2", "t", "x")
	eventually(t, 10*time.Second, func() (string, bool) {
		st := near.linkStatus("up")
		return fmt.Sprintf("paused, it says %+v", st), st.State == "paused"
	})
	near.must("POST", "/v1/links/up:resume", "")
	near.forwarded("up", 15*time.Second)
	if n := far.storedOn("up"); n != 2 {
		t.Errorf("%d events are there, want 2", n)
	}
	far.must("DELETE", "/v1/keys/near", "")
	near.must("POST", "/v1/links/up:pause", "")
	near.must("POST", "/v1/links/up:resume", "")
	says("key")
	if status, body := near.call("DELETE", "/v1/regions/up", ""); status != http.StatusConflict {
		t.Errorf("a region that a link names is deleted: %d %s", status, body)
	}
	for _, doc := range []string{`{"region":"up","bus":"none"}`, `{"region":"gone"}`, `{"region":"up","ordering":"log","urgent":{"type":["a"]}}`, `{"region":"up","pattern":{}}`} {
		if status, body := near.call("PUT", "/v1/links/bad", doc); status < 400 || status > 499 || !strings.Contains(body, "pointer") {
			t.Errorf("%s is answered %d %s", doc, status, body)
		}
	}
}

// TestRegionsKeepTheirSecrets looks for the key of a region in everything that is shown.
func TestRegionsKeepTheirSecrets(t *testing.T) {
	dir := t.TempDir()
	s, _ := start(t, options(dir))
	const secret = "rialto_a-very-secret-key"
	s.link("up", "http://127.0.0.1:1", secret, "")
	for _, path := range []string{"/v1/regions", "/v1/regions/up", "/v1/links/up", "/v1/audit"} {
		if strings.Contains(s.must("GET", path, ""), secret) {
			t.Errorf("%s shows the key", path)
		}
	}
	err := filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err != nil || info.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		if bytes.Contains(b, []byte(secret)) {
			t.Errorf("%s holds the key in clear", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestRegionsForgetDeletedLinks starts on a directory that has the position of a link that is not defined, as one has that was deleted
// while the bridge was down. A link of that name is a new one.
func TestRegionsForgetDeletedLinks(t *testing.T) {
	dir := t.TempDir()
	l, err := eventlog.Open(t.Context(), eventlog.Options{Dir: dir, Reserve: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	nc, err := l.Connect()
	if err != nil {
		t.Fatal(err)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	kv, err := js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: "links", History: 1, Storage: jetstream.FileStorage})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kv.Create(t.Context(), "up", []byte(`{"epoch":"old","bus":"default","region":"up","to":"default","start":1,"done":{},"acked":{},"main":{},"urgent":{},"last":{}}`)); err != nil {
		t.Fatal(err)
	}
	nc.Close()
	if err := l.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	s, _ := start(t, options(dir))
	for n := range 3 {
		if status := s.publish("default", fmt.Sprint(n), "reading", "x"); status != http.StatusAccepted {
			t.Fatalf("publish: %d", status)
		}
	}
	s.link("up", "http://127.0.0.1:1", "secret", "")
	eventually(t, 10*time.Second, func() (string, bool) {
		var doc struct {
			Status struct {
				Account struct{ Main struct{ From uint64 } }
			}
		}
		err := json.Unmarshal([]byte(s.must("GET", "/v1/links/up", "")), &doc)
		return fmt.Sprintf("status %+v %v", doc, err), doc.Status.Account.Main.From > 3
	})
}

// TestRegionsDropWhatRetentionTakes lets a bus of limited size overtake a link whose line is down: the ledger says how many events that
// the link would have forwarded are gone, to the event, and all others arrive.
func TestRegionsDropWhatRetentionTakes(t *testing.T) {
	near, _ := start(t, options(t.TempDir()))
	far, _ := start(t, options(t.TempDir()))
	far.must("PUT", "/v1/buses/up", `{}`)
	near.must("PUT", "/v1/buses/up", `{"retention":{"maxBytes":"64MiB"},"dedupWindow":"0s"}`)
	w := newWire(t, far.url)
	w.setCut(true)
	near.link("up", w.url(), far.newKey("near", "events:write:up"), `,"bus":"up","start":"earliest","pattern":{"type":["alarm"]}`)
	pad := strings.Repeat("x", 500_000)
	const events = 240 // 120 MB
	for n := range events {
		typ := "reading"
		if n%3 == 0 {
			typ = "alarm"
		}
		if status := near.publish("up", fmt.Sprint(n), typ, pad); status != http.StatusAccepted {
			t.Fatalf("publish: %d", status)
		}
	}
	near.settled("up", time.Minute)
	var gone uint64
	eventually(t, 20*time.Second, func() (string, bool) {
		var doc struct {
			Status struct {
				Bytes int64
				First struct{ Position string }
			}
		}
		if err := json.Unmarshal([]byte(near.must("GET", "/v1/buses/up", "")), &doc); err != nil {
			t.Fatal(err)
		}
		first, err := strconv.ParseUint(strings.TrimPrefix(doc.Status.First.Position, "EV_up:"), 10, 64)
		gone = first - 1
		return fmt.Sprintf("bus %+v %v", doc, err), err == nil && first > 1 && doc.Status.Bytes <= 72<<20
	})
	alarms := (gone + 2) / 3 // of the first gone events, those with n%3 == 0
	a := near.linkAccount("up", "up")
	if a.Main["dropped"] != alarms || a.Difference != 0 {
		t.Errorf("%d events are gone, %d of them alarms; the account says %+v", gone, alarms, a)
	}
	w.setCut(false)
	near.forwarded("up", time.Minute)
	if got, want := far.storedOn("up"), uint64(events/3)-alarms; got != want {
		t.Errorf("%d alarms are there, want %d", got, want)
	}
	a = near.linkAccount("up", "up")
	if a.Difference != 0 || a.Main["forwarded"]+a.Main["known"]+a.Main["dropped"] != events/3 {
		t.Errorf("in the end the account says %+v", a)
	}
	if answer := near.must("GET", "/v1/buses/up/events?type=io.rialto.link.dropped", ""); !strings.Contains(answer, "io.rialto.link.dropped") {
		t.Errorf("nobody was told: %s", answer)
	}
}
