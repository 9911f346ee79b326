// SPDX-License-Identifier: Apache-2.0

package mqttclient

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
)

// budget is how many bytes of messages a connection may hold that are not done with. The receive maximum says nothing of bytes, and
// does not bind a broker for QoS 0; so what is beyond the budget is not read, and waits in the broker. Safe for concurrent use.
type budget struct {
	most int64

	mu    sync.Mutex // guards below
	used  int64
	sizes []int64       // of the messages that are held, in their order
	freed chan struct{} // closed and replaced when there is more room
}

func newBudget(most int64) *budget { return &budget{most: most, freed: make(chan struct{})} }

// take makes room for a message. It blocks while there is none, unless nothing else is held.
func (b *budget) take(ctx context.Context, size int64) error {
	for {
		b.mu.Lock()
		if b.used == 0 || b.used+size <= b.most {
			b.used += size
			b.sizes = append(b.sizes, size)
			b.mu.Unlock()
			return nil
		}
		freed := b.freed
		b.mu.Unlock()
		select {
		case <-freed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// done gives back the room of the n messages that are held longest.
func (b *budget) done(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, size := range b.sizes[:n] {
		b.used -= size
	}
	b.sizes = append(b.sizes[:0], b.sizes[n:]...)
	close(b.freed)
	b.freed = make(chan struct{})
}

// gate is a connection whose reader stops before the first message until it is opened, and before one for which there is no room; it
// fails at a packet that is larger than the broker was told to send. One goroutine may read at a time.
type gate struct {
	net.Conn
	ctx    context.Context // of the connection: net.Conn.Read has none
	room   *budget
	opened chan struct{}
	r      *bufio.Reader
	left   int64 // bytes of the packet that were not read
}

func newGate(ctx context.Context, nc net.Conn, room *budget) *gate {
	return &gate{Conn: nc, ctx: ctx, room: room, opened: make(chan struct{}), r: bufio.NewReader(nc)}
}

// open lets messages pass. It is called once, when the client is ready for them: one that comes before that is forgotten by it, and can
// be acknowledged no more.
func (g *gate) open() { close(g.opened) }

// Read is net.Conn.Read.
func (g *gate) Read(p []byte) (int, error) {
	if g.left == 0 {
		if err := g.next(); err != nil {
			return 0, err
		}
	}
	n, err := g.r.Read(p[:min(int64(len(p)), g.left)])
	g.left -= int64(n)
	return n, err
}

// next waits for a packet, and for room if it is a message.
func (g *gate) next() error {
	size, publish, err := packetSize(g.r.Peek)
	switch {
	case err != nil:
		return err
	case size > maxPacket:
		return fmt.Errorf("the broker sends a packet of %d bytes, and was told to send at most %d", size, maxPacket)
	case publish:
		select {
		case <-g.opened:
		case <-g.ctx.Done():
			return context.Cause(g.ctx)
		}
		if err := g.room.take(g.ctx, size); err != nil {
			return err
		}
	}
	g.left = size
	return nil
}

// packetSize reads the fixed header of a packet (MQTT 5 section 2.1), without taking it.
func packetSize(peek func(int) ([]byte, error)) (size int64, publish bool, err error) {
	for n := 2; n <= 5; n++ {
		head, err := peek(n)
		if err != nil {
			return 0, false, err
		}
		b := head[n-1]
		size |= int64(b&0x7f) << (7 * (n - 2))
		if b < 0x80 {
			const typePublish = 3
			return size + int64(n), head[0]>>4 == typePublish, nil
		}
	}
	return 0, false, errors.New("the broker sends a packet without a length")
}
