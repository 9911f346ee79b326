// SPDX-License-Identifier: Apache-2.0

package eventlog_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
)

// lastBlock returns the path of the newest block of a stream.
func lastBlock(tb testing.TB, dir, stream string) string {
	tb.Helper()
	files, err := filepath.Glob(filepath.Join(eventlog.BlockDir(dir, stream), "*.blk"))
	if err != nil || len(files) == 0 {
		tb.Fatal("no blocks", err)
	}
	number := func(path string) int {
		n, err := strconv.Atoi(strings.TrimSuffix(filepath.Base(path), ".blk"))
		if err != nil {
			tb.Fatal(err)
		}
		return n
	}
	sort.Slice(files, func(i, j int) bool { return number(files[i]) < number(files[j]) })
	return files[len(files)-1]
}

// copyDir copies a data directory as a kill -9 would leave it.
func copyDir(tb testing.TB, from string) string {
	tb.Helper()
	to := tb.TempDir()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		tb.Fatal(err)
	}
	return to
}

func cut(n int64) func(testing.TB, string) {
	return func(tb testing.TB, path string) {
		st, err := os.Stat(path)
		if err != nil {
			tb.Fatal(err)
		}
		if n < 0 {
			n = st.Size() / 2
		}
		if err := os.Truncate(path, st.Size()-n); err != nil {
			tb.Fatal(err)
		}
	}
}

func flip(tb testing.TB, path string) {
	p, err := os.ReadFile(path)
	if err != nil {
		tb.Fatal(err)
	}
	p[len(p)/2] ^= 4
	if err := os.WriteFile(path, p, 0o600); err != nil {
		tb.Fatal(err)
	}
}

// After damage the start succeeds, says what is lost, and no sequence is given to another event.
func TestDamagedTail(t *testing.T) {
	const n = 600
	for _, c := range []struct {
		name  string
		harm  func(testing.TB, string)
		least int // sequences that must be lost
	}{
		{"nothing", func(testing.TB, string) {}, 0},
		{"cut by 100 bytes", cut(100), 1},
		{"cut in half", cut(-1), n / 3},
		{"emptied", func(tb testing.TB, path string) { cut(0)(tb, path); must(tb, os.Truncate(path, 0)) }, n},
		{"removed", func(tb testing.TB, path string) { must(tb, os.Remove(path)) }, n},
		{"bit flipped", flip, 1},
		{"zeros appended", func(tb testing.TB, path string) {
			f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
			must(tb, err)
			_, err = f.Write(make([]byte, 4096))
			must(tb, err)
			must(tb, f.Close())
		}, 0},
		{"index.db removed", func(tb testing.TB, path string) {
			if err := os.Remove(filepath.Join(filepath.Dir(path), "index.db")); err != nil && !errors.Is(err, os.ErrNotExist) {
				tb.Fatal(err)
			}
		}, 0},
	} {
		for _, clean := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/clean=%v", c.name, clean), func(t *testing.T) {
				dir := t.TempDir()
				l := open(t, eventlog.Options{Dir: dir, Durability: eventlog.OS})
				b := openBus(t, l, "default")
				appendAll(t, b, records(1, n)...)
				if clean {
					closeLog(t, l)
				} else {
					live := dir
					dir = copyDir(t, live)
					closeLog(t, l)
				}
				c.harm(t, lastBlock(t, dir, "EV_default"))
				for start := range 2 { // the second start finds nothing new
					checkDamaged(t, dir, n, c.least, start)
				}
			})
		}
	}
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

func checkDamaged(t *testing.T, dir string, n, least, start int) {
	t.Helper()
	l := open(t, eventlog.Options{Dir: dir, Durability: eventlog.OS})
	defer closeLog(t, l)
	b := openBus(t, l, "default")
	lost := map[uint64]bool{}
	for _, r := range b.Lost() {
		for s := r.From; s <= r.To; s++ {
			lost[s] = true
		}
	}
	if start == 0 && len(lost) < least || least == 0 && len(lost) > 0 {
		t.Errorf("start %d: %d sequences reported lost: %v, least %d", start, len(lost), b.Lost(), least)
	}
	if got := b.Committed(); got < uint64(n) {
		t.Fatalf("Committed() = %d, want at least %d", got, n)
	}
	there := readAll(t, b)
	gone := 0
	for seq := uint64(1); seq <= uint64(n); seq++ {
		id, ok := there[seq]
		if !ok || seq%50 == 0 {
			if _, err := b.Get(t.Context(), seq); (err == nil) != ok || err != nil && !errors.Is(err, eventlog.ErrGap) && !errors.Is(err, eventlog.ErrGone) {
				t.Fatalf("Get(%d) = %v, but Read finds it: %v", seq, err, ok)
			}
		}
		switch {
		case ok && id != fmt.Sprintf("id-%d", seq):
			t.Fatalf("%s stands at %d: the position points at another event", id, seq)
		case ok && lost[seq]:
			t.Fatalf("%d is there, but reported lost", seq)
		case !ok:
			gone++
			if start == 0 && !lost[seq] {
				t.Fatalf("%d is gone, but not among the lost %v", seq, b.Lost())
			}
		}
	}
	if gone < least {
		t.Errorf("%d events are gone, want at least %d", gone, least)
	}
	r := appendAll(t, b, record(10_000+start))[0]
	if r.Err != nil || r.Pos.Seq <= uint64(n) {
		t.Fatalf("append after damage = %+v, want a sequence above %d", r, n)
	}
	got := readAll(t, b)
	if len(got) != n-gone+1+start {
		t.Errorf("read %d events, want %d", len(got), n-gone+1+start)
	}
}

// readAll returns the ids of all events by sequence.
func readAll(tb testing.TB, b *eventlog.Bus) map[uint64]string {
	tb.Helper()
	out := map[uint64]string{}
	for next := uint64(1); next <= b.Committed(); {
		var got []eventlog.Entry
		var err error
		got, next, err = b.Read(tb.Context(), next, 1000, nil)
		must(tb, err)
		for _, e := range got {
			out[e.Seq] = e.Record.Event.ID
		}
	}
	return out
}

func TestBitFlipInAnOldBlock(t *testing.T) {
	dir := t.TempDir()
	l := open(t, eventlog.Options{Dir: dir, Durability: eventlog.OS})
	s := openStream(t, l, "DEAD")
	appendRaw(t, s, 200, 100_000) // three blocks
	flip(t, filepath.Join(eventlog.BlockDir(dir, "DEAD"), "1.blk"))
	var got []eventlog.Raw
	for from := uint64(1); ; {
		n := len(got)
		var err error
		if got, err = s.Read(t.Context(), eventlog.ReadOptions{From: from}, got); err != nil {
			t.Fatal(err)
		}
		if len(got) == n {
			break
		}
		from = got[len(got)-1].Seq + 1
	}
	if len(got) != 199 || got[len(got)-1].Seq != 200 {
		t.Errorf("read %d messages up to %d past one that is damaged", len(got), got[len(got)-1].Seq)
	}
	gaps := 0
	for seq := uint64(1); seq <= 200; seq++ {
		if _, err := s.Get(t.Context(), seq); errors.Is(err, eventlog.ErrGap) {
			gaps++
		} else if err != nil {
			t.Errorf("Get(%d) = %v", seq, err)
		}
	}
	if gaps != 1 {
		t.Errorf("%d gaps, want 1", gaps)
	}
	// A start after a crash cuts the block off at the damage. What that takes away is reported.
	dir = copyDir(t, dir)
	l = open(t, eventlog.Options{Dir: dir, Durability: eventlog.OS})
	s = openStream(t, l, "DEAD")
	lost := s.Lost()
	if len(lost) != 1 || lost[0].From < 30 || lost[0].To > 90 {
		t.Errorf("Lost() = %v, want one range in the first block", lost)
	}
	if _, err := s.Get(t.Context(), lost[0].To); !errors.Is(err, eventlog.ErrGap) || s.Committed() != 200 {
		t.Errorf("Get(%d) = %v, committed %d", lost[0].To, err, s.Committed())
	}
}

func TestLostMetadataIsRefused(t *testing.T) {
	for _, c := range []struct {
		name, want string
		harm       func(tb testing.TB, stream string)
	}{
		{"meta.inf truncated", "meta.inf", func(tb testing.TB, stream string) { must(tb, os.Truncate(filepath.Join(stream, "meta.inf"), 20)) }},
		{"meta.inf empty", "meta.inf", func(tb testing.TB, stream string) { must(tb, os.Truncate(filepath.Join(stream, "meta.inf"), 0)) }},
		{"meta.sum missing", "meta.inf", func(tb testing.TB, stream string) { must(tb, os.Remove(filepath.Join(stream, "meta.sum"))) }},
		{"directory missing", "the stream is gone", func(tb testing.TB, stream string) { must(tb, os.RemoveAll(stream)) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			l := open(t, eventlog.Options{Dir: dir})
			appendAll(t, openBus(t, l, "default"), records(1, 10)...)
			closeLog(t, l)
			c.harm(t, filepath.Dir(eventlog.BlockDir(dir, "EV_default")))
			l = open(t, eventlog.Options{Dir: dir})
			_, err := l.Bus(t.Context(), eventlog.BusConfig{Name: "default"})
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "EV_default") {
				t.Errorf("Bus = %v, want an error about %q", err, c.want)
			}
			openBus(t, l, "other") // the rest works
		})
	}
}

// A crash while a stream is being made leaves a directory without data, which is made anew.
func TestCrashWhileAStreamIsMade(t *testing.T) {
	dir := t.TempDir()
	closeLog(t, open(t, eventlog.Options{Dir: dir}))
	msgs := eventlog.BlockDir(dir, "EV_default")
	must(t, os.MkdirAll(msgs, 0o700))
	must(t, os.WriteFile(filepath.Join(msgs, "1.blk"), nil, 0o600))
	must(t, os.WriteFile(filepath.Join(filepath.Dir(msgs), "meta.inf"), []byte(`{"name":`), 0o600))
	for n := range 2 {
		l := open(t, eventlog.Options{Dir: dir})
		b := openBus(t, l, "default")
		if r := appendAll(t, b, record(n))[0]; r.Err != nil || r.Pos != pos(uint64(n+1)) {
			t.Errorf("append = %+v", r)
		}
		closeLog(t, l)
	}
}

func TestDataDirectory(t *testing.T) {
	dir := t.TempDir()
	l := open(t, eventlog.Options{Dir: dir})
	if _, err := eventlog.Open(t.Context(), eventlog.Options{Dir: dir}); err == nil || !strings.Contains(err.Error(), dir) || !strings.Contains(err.Error(), "in use") {
		t.Errorf("second Open = %v, want an error that names %s", err, dir)
	}
	openBus(t, l, "default")
	closeLog(t, l)
	format := filepath.Join(dir, "format")
	for content, want := range map[string]string{"rialto data 2\n": "use the version that wrote it", "x": "damaged"} {
		must(t, os.WriteFile(format, []byte(content), 0o600))
		if _, err := eventlog.Open(t.Context(), eventlog.Options{Dir: dir}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Open with format %q = %v, want %q", content, err, want)
		}
	}
	must(t, os.Remove(format))
	if _, err := eventlog.Open(t.Context(), eventlog.Options{Dir: dir}); err == nil || !strings.Contains(err.Error(), "no file") {
		t.Errorf("Open without format = %v", err)
	}
	if _, err := eventlog.Open(t.Context(), eventlog.Options{Durability: "none", MaxData: -1, Reserve: -1}); err == nil {
		t.Error("Open with bad options = nil")
	}
}

func TestRawMessagesRoundTrip(t *testing.T) {
	dir := t.TempDir()
	l := open(t, eventlog.Options{Dir: dir, MaxData: 8 << 20, Durability: eventlog.OS})
	s := openStream(t, l, "DEAD")
	big := make([]byte, 8<<20)
	for i := range big {
		big[i] = byte(i * 7)
	}
	want := []eventlog.Raw{
		{Subject: "t.DEAD.a"},
		{Subject: "t.DEAD.b", Data: []byte("x")},
		{Subject: "t.DEAD.c", Header: []byte("NATS/1.0\r\nA: b\r\n\r\n")},
		{Subject: "t.DEAD.d", Header: []byte("NATS/1.0\r\nA: b\r\nC: \r\n\r\n"), Data: []byte("y\r\nNats-Expected-Last-Sequence: 4\r\n\r\n")},
		{Subject: "t.DEAD.e", Header: []byte("NATS/1.0\r\nA: b\r\n\r\n"), Data: big},
		{Subject: "t.DEAD.f", Data: big},
	}
	for round := range 2 { // each alone, then all in one batch
		var waiting []chan eventlog.Result
		for _, w := range want {
			ch := make(chan eventlog.Result, 1)
			must(t, s.Append(t.Context(), eventlog.Message{Subject: w.Subject, Header: w.Header, Data: w.Data}, func(r eventlog.Result) { ch <- r }))
			if waiting = append(waiting, ch); round == 0 {
				must(t, (<-ch).Err)
				ch <- eventlog.Result{}
			}
		}
		for _, ch := range waiting {
			must(t, (<-ch).Err)
		}
	}
	check := func(s *eventlog.Stream) {
		t.Helper()
		for seq := uint64(1); seq <= uint64(2*len(want)); seq++ {
			got, err := s.Get(t.Context(), seq)
			if err != nil {
				t.Fatal(err)
			}
			w := want[(seq-1)%uint64(len(want))]
			if got.Seq != seq || got.Subject != w.Subject || string(got.Header) != string(w.Header) || string(got.Data) != string(w.Data) || got.Stored.IsZero() {
				t.Errorf("Get(%d) = %s %q %d bytes, want %s %q %d bytes", seq, got.Subject, got.Header, len(got.Data), w.Subject, w.Header, len(w.Data))
			}
		}
		got, err := s.Read(t.Context(), eventlog.ReadOptions{Filter: "t.*.b"}, nil)
		if err != nil || len(got) != 2 {
			t.Errorf("Read with a filter = %d messages, %v, want 2", len(got), err)
		}
	}
	check(s)
	closeLog(t, l)
	check(openStream(t, open(t, eventlog.Options{Dir: dir, MaxData: 8 << 20}), "DEAD"))
}

// The blocks are where and how this package thinks: what the server returns is what is read from them. A new version
// of the server that changes the layout fails here.
func TestBlockLayout(t *testing.T) {
	l := open(t, eventlog.Options{Dir: t.TempDir(), Durability: eventlog.OS})
	b := openBus(t, l, "default")
	s := openStream(t, l, "DEAD")
	rec := record(1)
	rec.MQTT = &event.Origin{Topic: "fleet//box", Client: "c", QoS: 1, Version: 5}
	appendAll(t, b, record(0), rec)
	appendRaw(t, s, 170, 100_000)
	if first, second := filepath.Join(eventlog.BlockDir(l.Dir(), "DEAD"), "1.blk"), lastBlock(t, l.Dir(), "DEAD"); first == second {
		t.Errorf("17 MB stand in one block %s", first)
	}
	nc, err := l.ConnectEvents()
	must(t, err)
	defer nc.Close()
	js, err := nc.JetStream()
	must(t, err)
	for _, seq := range []uint64{1, 2} {
		msg, err := js.GetMsg("EV_default", seq)
		must(t, err)
		e, err := b.Get(t.Context(), seq)
		must(t, err)
		if diff := cmp.Diff(string(e.Record.Event.Data), string(msg.Data)); diff != "" || msg.Header.Get("ce-id") != e.Record.Event.ID {
			t.Errorf("message %d: %v\n%s", seq, msg.Header, diff)
		}
	}
	if msg, err := js.GetMsg("EV_default", 2); err != nil || msg.Subject != "ev.default.com/acme/reading.m.fleet.%.box" {
		t.Errorf("subject %s, %v", msg.Subject, err)
	}
	for _, seq := range []uint64{1, 80, 90, 170} {
		msg, err := js.GetMsg("DEAD", seq)
		must(t, err)
		raw, err := s.Get(t.Context(), seq)
		must(t, err)
		if string(msg.Data) != string(raw.Data) || msg.Subject != raw.Subject || !msg.Time.Equal(raw.Stored) {
			t.Errorf("message %d differs", seq)
		}
	}
}
