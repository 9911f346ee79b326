// SPDX-License-Identifier: Apache-2.0

package mqttclient

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
)

// publish is a packet of QoS 0 with n bytes behind its fixed header.
func publish(n int) []byte {
	return append(binary.AppendUvarint([]byte{3 << 4}, uint64(n)), bytes.Repeat([]byte{'x'}, n)...)
}

// stream is a connection that has only something to read.
type stream struct {
	net.Conn
	io.Reader
}

func (s stream) Read(p []byte) (int, error) { return s.Reader.Read(p) }

// openGate is a gate that lets messages pass.
func openGate(ctx context.Context, nc net.Conn, room *budget) *gate {
	g := newGate(ctx, nc, room)
	g.open()
	return g
}

// A broker sends what a session has as soon as it has accepted the connection, which may be before the client is ready: a message that
// comes then could never be acknowledged.
func TestMessagesWaitForTheClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, message := []byte{2 << 4, 0}, publish(10)
		g := newGate(t.Context(), stream{Reader: bytes.NewReader(append(bytes.Clone(first), message...))}, newBudget(1000))
		var got []byte
		ended := make(chan error, 1)
		go func() {
			var err error
			for err == nil {
				var n int
				buf := make([]byte, 64)
				n, err = g.Read(buf)
				got = append(got, buf[:n]...)
			}
			ended <- err
		}()
		synctest.Wait()
		if !bytes.Equal(got, first) {
			t.Errorf("%x is read before the client is ready, want %x", got, first)
		}
		g.open()
		if err := <-ended; !errors.Is(err, io.EOF) || len(got) != len(first)+len(message) {
			t.Errorf("%d bytes are read, want %d; it ended with %v", len(got), len(first)+len(message), err)
		}
	})
	ctx, cancel := context.WithCancelCause(t.Context())
	broke := errors.New("the connection broke")
	cancel(broke)
	if _, err := newGate(ctx, stream{Reader: bytes.NewReader(publish(10))}, newBudget(15)).Read(make([]byte, 1)); !errors.Is(err, broke) {
		t.Errorf("read ended with %v", err)
	}
}

func TestPacketsBeyondTheBudgetAreNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ping := []byte{13 << 4, 0}
		first, second, third := publish(600), publish(300), publish(5000)
		sent := bytes.Join([][]byte{ping, first, second, third, ping}, nil)
		room := newBudget(1000)
		g := openGate(t.Context(), stream{Reader: iotest.OneByteReader(bytes.NewReader(sent))}, room)
		got := make([]byte, 0, len(sent))
		ended := make(chan error, 1)
		go func() {
			buf := make([]byte, 64)
			for {
				n, err := g.Read(buf)
				got = append(got, buf[:n]...)
				if err != nil {
					ended <- err
					return
				}
			}
		}()
		synctest.Wait()
		if want := len(ping) + len(first) + len(second); len(got) != want {
			t.Errorf("%d bytes are read, want %d", len(got), want)
		}
		room.done(1)
		synctest.Wait()
		if want := len(ping) + len(first) + len(second); len(got) != want {
			t.Errorf("%d bytes are read while something is held, want %d", len(got), want)
		}
		room.done(1) // the third is larger than the budget, and may be held alone
		if err := <-ended; !errors.Is(err, io.EOF) || !bytes.Equal(got, sent) {
			t.Errorf("read %d bytes of %d, %v", len(got), len(sent), err)
		}
		if room.used != int64(len(third)) {
			t.Errorf("%d bytes are held, want %d", room.used, len(third))
		}
	})
}

func TestWaitForRoomEndsWithTheConnection(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	g := openGate(ctx, stream{Reader: bytes.NewReader(append(publish(10), publish(10)...))}, newBudget(15))
	if _, err := io.ReadFull(g, make([]byte, 12)); err != nil {
		t.Fatal(err)
	}
	broke := errors.New("the connection broke")
	cancel(broke)
	if _, err := g.Read(make([]byte, 1)); !errors.Is(err, broke) {
		t.Errorf("read ended with %v", err)
	}
}

// A broker that does not heed what it was told is not believed.
func TestPacketsThatAreTooLargeEndTheConnection(t *testing.T) {
	for _, head := range [][]byte{{3 << 4, 0xff, 0xff, 0xff, 0x7f}, {9 << 4, 0x80, 0x80, 0x80, 0x08}, {3 << 4, 0xff, 0xff, 0xff, 0xff, 1}} {
		_, err := openGate(t.Context(), stream{Reader: bytes.NewReader(head)}, newBudget(1<<40)).Read(make([]byte, 1))
		if err == nil || !strings.HasPrefix(err.Error(), "the broker sends a packet") {
			t.Errorf("%x: %v", head, err)
		}
	}
}

// What the broker sends as the head of a packet is bounded, whatever it is; a gate hands on what came and nothing else.
func FuzzGate(f *testing.F) {
	f.Add([]byte{13 << 4, 0})
	f.Add(publish(300))
	f.Add([]byte{3 << 4, 0xff, 0xff, 0xff, 0x7f})
	f.Add([]byte{3 << 4, 0xff, 0xff, 0xff, 0xff, 1})
	f.Fuzz(func(t *testing.T, sent []byte) {
		room := newBudget(1 << 40)
		got, err := io.ReadAll(openGate(t.Context(), stream{Reader: iotest.OneByteReader(bytes.NewReader(sent))}, room))
		if !bytes.HasPrefix(sent, got) {
			t.Errorf("read %x of %x", got, sent)
		}
		switch {
		case err == nil && len(got) < len(sent) && len(sent)-len(got) > 5:
			t.Errorf("%d bytes are left out", len(sent)-len(got))
		case err != nil && !errors.Is(err, io.EOF) && !strings.HasPrefix(err.Error(), "the broker sends a packet"):
			t.Error(err)
		}
	})
}
