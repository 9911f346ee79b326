// SPDX-License-Identifier: Apache-2.0

package eventlog

import (
	"bufio"
	"bytes"
	"net"
	"os"
	"path/filepath"
	"testing"
)

// block with three messages, written by the server.
func blockSeed(f *testing.F) []byte {
	f.Helper()
	l, err := Open(f.Context(), Options{Dir: f.TempDir(), Durability: OS, Reserve: 1})
	if err != nil {
		f.Fatal(err)
	}
	s, err := l.Stream(f.Context(), StreamConfig{Name: "S", Subjects: []string{"s.>"}})
	if err != nil {
		f.Fatal(err)
	}
	for _, m := range []Message{
		{Subject: "s.a", Data: []byte("one")},
		{Subject: "s.b", Header: []byte("NATS/1.0\r\nA: b\r\n\r\n"), Data: []byte("two")},
		{Subject: "s.c", Header: []byte("NATS/1.0\r\n\r\n")},
	} {
		if err := s.Append(f.Context(), m, func(Result) {}); err != nil {
			f.Fatal(err)
		}
	}
	if err := l.Close(f.Context()); err != nil {
		f.Fatal(err)
	}
	p, err := os.ReadFile(filepath.Join(BlockDir(l.opts.Dir, "S"), "1.blk"))
	if err != nil {
		f.Fatal(err)
	}
	return p
}

// Whatever a block has become, reading it ends, sequences rise, and what is returned is what was written.
func FuzzBlock(f *testing.F) {
	seed := blockSeed(f)
	f.Add(seed, uint64(1), uint64(3))
	f.Add(seed[:len(seed)-3], uint64(1), uint64(9))
	f.Add(append(bytes.Clone(seed), make([]byte, 100)...), uint64(2), uint64(1<<60))
	f.Add([]byte{}, uint64(0), uint64(5))
	for _, i := range []int{0, 3, 4, 11, 20, 40, len(seed) / 2, len(seed) - 1} {
		p := bytes.Clone(seed)
		p[i] ^= 0x40
		f.Add(p, uint64(1), uint64(3))
	}
	short := bytes.Clone(seed) // a header that ends too early: the sum does not cover its length
	short[bytes.LastIndex(short, []byte("s.c"))+len("s.c")] = 12
	f.Add(short, uint64(1), uint64(3))
	written := map[uint64]string{1: "s.a||one", 2: "s.b|NATS/1.0\r\nA: b\r\n\r\n|two", 3: "s.c||"}
	f.Fuzz(func(t *testing.T, p []byte, from, to uint64) {
		from, to = from&sequenceMask, to&(sequenceMask-1)
		b := &blocks{dir: t.TempDir(), name: "S", damage: func(uint32, int64, error) {}}
		if err := os.WriteFile(b.path(1), p, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := b.refresh(); err != nil {
			t.Fatal(err)
		}
		look := func(seq uint64, r *record) {
			got := string(r.subject) + "|" + string(stripExpect(r.header)) + "|" + string(r.data)
			if r.seq < from || r.seq > to || written[r.seq] != got {
				t.Errorf("record %d between %d and %d: %q", r.seq, from, to, got)
			}
		}
		last := uint64(0)
		next, err := b.scan(from, to, func(r *record) bool {
			if look(r.seq, r); r.seq <= last {
				t.Errorf("%d after %d", r.seq, last)
			}
			last = r.seq
			return true
		})
		if err != nil || next <= to && from <= to {
			t.Errorf("scan ended at %d of %d: %v", next, to, err)
		}
		last = sequenceMask
		if _, err := b.scanBack(to, from, nil, func(r *record) bool {
			if look(r.seq, r); r.seq >= last {
				t.Errorf("%d after %d", r.seq, last)
			}
			last = r.seq
			return true
		}); err != nil {
			t.Error(err)
		}
	})
}

// What the server could send does not hurt: the reader ends with an error or with the input.
func FuzzWire(f *testing.F) {
	for _, s := range []string{
		"MSG _INBOX.a 1 5\r\nhello\r\n", "HMSG _INBOX.a 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\n", "PING\r\n", "PONG\r\n+OK\r\n", "-ERR 'x'\r\n",
		"MSG a 1 r 99999999999\r\n", "MSG a 1 -1\r\n", "HMSG a 1 9 3\r\nabc\r\n", "INFO {}\r\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		w := &wire{conn: discard{}, replies: make(chan reply, len(p)+1)}
		r := bufio.NewReaderSize(bytes.NewReader(p), maxControlLine)
		for w.readOne(r) == nil {
			for len(w.replies) > 0 {
				if rep := <-w.replies; len(rep.data) > len(p) {
					t.Fatal("reply is longer than the input")
				} else if a, err := parseAck(rep); err == nil && a.Error == nil && a.err() == nil {
					t.Error("an acknowledgement without an error has none")
				}
			}
		}
	})
}

func FuzzMark(f *testing.F) {
	m, err := openMark(filepath.Join(f.TempDir(), "m"))
	if err != nil {
		f.Fatal(err)
	}
	for seq := range uint64(3) {
		if err := m.write(seq+1, recordKey("s", nil, nil)); err != nil {
			f.Fatal(err)
		}
	}
	p, err := os.ReadFile(m.file.Name())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(p, 5)
	f.Add(p, 530)
	f.Add(p[:100], 0)
	f.Fuzz(func(t *testing.T, p []byte, flip int) {
		path := filepath.Join(t.TempDir(), "m")
		if len(p) > 0 && flip >= 0 {
			p[flip%len(p)] ^= 1
		}
		if err := os.WriteFile(path, p, 0o600); err != nil {
			t.Fatal(err)
		}
		m, err := openMark(path)
		if err != nil {
			t.Fatal(err)
		}
		before := m.at
		if err := m.write(before.seq+1, recordKey("x", nil, nil)); err != nil {
			t.Fatal(err)
		}
		if err := m.close(false); err != nil {
			t.Fatal(err)
		}
		if at, err := readMark(path); err != nil || at.seq != before.seq+1 {
			t.Errorf("after a write at %d the mark is %d, %v", before.seq+1, at.seq, err)
		}
	})
}

// discard is a connection that takes everything.
type discard struct{ net.Conn }

func (discard) Write(p []byte) (int, error) { return len(p), nil }
