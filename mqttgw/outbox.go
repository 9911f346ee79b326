// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"errors"
	"net"
	"os"
	"runtime/debug"
	"sync"
	"time"

	"github.com/rialto-bridge/rialto/mqttgw/packet"
)

// outbox is what is to be written. Small packets are copied into one chunk; a large payload is a reference to the bytes
// that all its receivers share. What is urgent is written first, and between any two packets of the rest.
type outbox struct {
	urgent  []byte  // whole packets
	queue   []piece // before chunk
	chunk   []byte  // ends with a packet
	size    int     // bytes in all of them, and those that are being written
	writing bool    // a writer exists
	again   bool    // it is to look once more before it ends
	broken  bool    // a write failed; nothing is written any more

	renew time.Time // when the write deadline has to be moved; the writer's
}

// piece is a part of what is to be written.
type piece struct {
	b   []byte
	end bool // a packet ends with it
}

const (
	sharedFrom = 4 << 10  // payloads from this size on are not copied
	chunkSize  = 1 << 10  // of new chunks
	pooledTo   = 16 << 10 // larger chunks are not kept
	writeSize  = 64 << 10 // bytes of one write, which has to end within WriteTimeout
)

// chunks holds *[]byte of chunkSize to pooledTo.
var chunks = sync.Pool{New: func() any { b := make([]byte, 0, chunkSize); return &b }}

// grow makes sure that there is a chunk for another packet, which is not longer than one write.
func (o *outbox) grow() {
	if len(o.chunk) >= writeSize {
		o.queue = append(o.queue, piece{o.chunk, true})
		o.chunk = nil
	}
	if o.chunk == nil {
		o.chunk = newChunk()
	}
}

func newChunk() []byte { return (*chunks.Get().(*[]byte))[:0] }

// share queues bytes that are not to be changed any more, the end of a packet.
func (o *outbox) share(b []byte) {
	o.queue = append(o.queue, piece{o.chunk, false}, piece{b, true})
	o.chunk = nil
}

// take removes everything but what is urgent.
func (o *outbox) take() (queue []piece, chunk []byte) {
	queue, chunk = o.queue, o.chunk
	o.queue, o.chunk = nil, nil
	return queue, chunk
}

// takeUrgent removes what is urgent; nil if there is nothing.
func (o *outbox) takeUrgent() []byte {
	b := o.urgent
	o.urgent = nil
	return b
}

// full reports whether no more is to be queued for a lane.
func (c *conn) full(l lane) bool {
	if l == laneDown {
		return len(c.out.urgent) >= c.g.limits.MaxOutbound
	}
	return c.out.size >= c.g.limits.MaxOutbound
}

func recycle(chunk []byte) {
	if cap(chunk) >= chunkSize && cap(chunk) <= pooledTo {
		chunks.Put(&chunk)
	}
}

// startWriter starts a writer, or has the one that is there look once more. mu is held.
func (c *conn) startWriter() {
	if c.out.writing {
		c.out.again = true
		return
	}
	c.out.writing = true
	go c.write()
}

// write is the writer. It ends when nothing is left to write and nothing to catch up with; finish waits for it.
func (c *conn) write() {
	defer func() {
		if r := recover(); r != nil {
			c.g.metrics.panics.Inc()
			c.g.log.Error("writer ended by a programming error", "clientId", c.key.clientID, "err", r, "stack", string(debug.Stack()))
			c.mu.Lock()
			c.out.broken, c.out.writing = true, false
			c.wake()
			c.mu.Unlock()
			c.end(packet.UnspecifiedError)
		}
	}()
	for {
		queue, chunk, more := c.nextWrite()
		if !more {
			return
		}
		for _, p := range queue {
			c.writeOut(p.b)
			if p.end {
				c.hurry()
			}
		}
		c.writeOut(chunk)
		recycle(chunk)
	}
}

// hurry writes what has become urgent while a batch is written. It is called between two packets.
func (c *conn) hurry() {
	for {
		c.lock()
		if c.ordersDue() {
			c.unlock()
			c.sendOrders()
			c.lock()
		}
		for c.urgentDue() {
			c.unlock()
			c.readUrgent()
			c.lock()
		}
		b := c.out.takeUrgent()
		c.unlock()
		if b == nil {
			return
		}
		c.writeOut(b)
		recycle(b)
	}
}

// writeOut writes bytes that were taken out of the outbox, or drops them when the connection is broken.
func (c *conn) writeOut(b []byte) {
	c.mu.Lock()
	broken := c.out.broken
	c.mu.Unlock()
	var err error
	if !broken {
		err = c.writeAll(b)
	}
	c.mu.Lock()
	c.out.size -= len(b)
	if err != nil {
		c.out.broken = true
		c.stalled = c.why == nil && errors.Is(err, os.ErrDeadlineExceeded)
		if c.stalled { // first, because the reader cannot tell whose deadline has passed
			c.endLocked(packet.UnspecifiedError)
		}
		c.interrupt()
	}
	c.wake()
	c.mu.Unlock()
	if err != nil && !errors.Is(err, net.ErrClosed) {
		c.g.log.Debug("write", "clientId", c.key.clientID, "err", err)
	}
}

// nextWrite takes what is to be written. When there is nothing it has the session catch up first; more is false when
// there is nothing of that either: then the writer has ended.
func (c *conn) nextWrite() (queue []piece, chunk []byte, more bool) {
	stuck := false
	for {
		c.lock()
		if c.ordersDue() { // before what else waits to be written, which may never end
			c.unlock()
			c.sendOrders()
			c.lock()
		}
		if chunk = c.out.takeUrgent(); chunk == nil {
			queue, chunk = c.out.take()
		}
		if queue != nil || chunk != nil {
			c.unlock()
			return queue, chunk, true
		}
		if !c.busyWith(!stuck || c.out.again) {
			c.out.writing = false
			c.wake()
			c.unlock()
			return nil, nil, false
		}
		c.out.again = false
		c.unlock()
		stuck = c.catchUp()
	}
}

// lock takes the session's lock, if there is a session, and mu.
func (c *conn) lock() {
	if c.session != nil {
		c.session.mu.Lock()
	}
	c.mu.Lock()
}

func (c *conn) unlock() {
	c.mu.Unlock()
	if c.session != nil {
		c.session.mu.Unlock()
	}
}

// writeAll writes b. Each piece has WriteTimeout to get out.
func (c *conn) writeAll(b []byte) error {
	for len(b) > 0 {
		piece := b[:min(len(b), writeSize)]
		if now := time.Now(); now.After(c.out.renew) {
			if err := c.nc.SetWriteDeadline(now.Add(2 * c.g.limits.WriteTimeout)); err != nil {
				return err
			}
			c.out.renew = now.Add(c.g.limits.WriteTimeout)
		}
		if _, err := c.nc.Write(piece); err != nil {
			return err
		}
		b = b[len(piece):]
	}
	return nil
}
