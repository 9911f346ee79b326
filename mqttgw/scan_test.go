// SPDX-License-Identifier: Apache-2.0

package mqttgw_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/mqttgw"
	"github.com/rialto-bridge/rialto/mqttgw/packet"
)

// coldBus is a memoryBus that counts what is read.
type coldBus struct {
	*memoryBus
	reads atomic.Int64                  // entries
	gate  atomic.Pointer[chan struct{}] // reads wait for it
}

func (b *coldBus) Scan(ctx context.Context, o eventlog.ScanOptions, dst []eventlog.Entry) ([]eventlog.Entry, uint64, int, error) {
	if gate := b.gate.Load(); gate != nil {
		<-*gate
	}
	before := len(dst)
	dst, next, looked, err := b.memoryBus.Scan(ctx, o, dst)
	b.reads.Add(int64(len(dst) - before))
	return dst, next, looked, err
}

// Many devices that return far behind are served by a few readings of the log, not by one each; a device with more than
// its window takes gets all of it too, and one that does not acknowledge holds nobody up.
func TestManyReturn(t *testing.T) {
	const devices, each = 200, 10
	bus := &coldBus{memoryBus: newMemoryBus()}
	bus.cold = true
	log := &memoryLog{}
	s := start(t, func(o *mqttgw.Options) {
		o.Publisher, o.Tail, o.Sessions, o.Limits.MaxInFlight, o.Limits.MaxWaiting = bus, bus, log, 30, 1
	})
	id := func(k int) string { return fmt.Sprintf("dev%03d", k) }
	for k := range devices {
		c := s.resume(packet.V5, id(k), false)
		c.subscribe(1, id(k)+"/#")
		c.leave()
	}
	p := s.connect(packet.V5, "p")
	total := 0
	for n := range each {
		for k := range devices {
			p.publish(id(k)+"/cmd", fmt.Sprint(n))
			total++
			if k == 7 { // far more than its window
				for i := range 20 {
					p.publish(id(k)+"/cmd", fmt.Sprint(n, ".", i))
					total++
				}
			}
		}
	}
	bus.reads.Store(0)
	gate := make(chan struct{})
	bus.gate.Store(&gate)
	var wg sync.WaitGroup
	errs := make(chan string, devices)
	for k := range devices {
		c := s.resume(packet.V5, id(k), true)
		if k == 3 { // does not even read
			continue
		}
		wg.Go(func() {
			want := numbers(each)
			if k == 7 {
				want = nil
				for n := range each {
					want = append(want, fmt.Sprint(n))
					for i := range 20 {
						want = append(want, fmt.Sprint(n, ".", i))
					}
				}
			}
			var got []string
			for range want {
				m, ok := c.next().(*packet.Publish)
				if !ok {
					errs <- id(k) + ": the connection ended"
					return
				}
				got = append(got, string(m.Payload))
				c.raw((&packet.Ack{Kind: packet.TypePuback, PacketID: m.PacketID}).Append(nil, packet.V5))
			}
			if !slices.Equal(got, want) {
				errs <- fmt.Sprintf("%s got %v", id(k), got)
			}
		})
	}
	close(gate)
	wg.Wait()
	close(errs)
	for e := range errs {
		t.Error(e)
	}
	readings := float64(bus.reads.Load()) / float64(total)
	t.Logf("%d devices read the log %.1f times", devices, readings)
	if readings > devices/4 {
		t.Errorf("%d devices read the log %.1f times", devices, readings)
	}
	// Live again.
	p.publish(id(9)+"/cmd", "live")
}

// Riders that come and go, with subscriptions that many share, get everything once and in order.
func TestRidersComeAndGo(t *testing.T) {
	bus := &coldBus{memoryBus: newMemoryBus()}
	bus.cold = true
	s := start(t, func(o *mqttgw.Options) {
		o.Publisher, o.Tail, o.Sessions, o.Limits.MaxInFlight, o.Limits.MaxWaiting = bus, bus, &memoryLog{}, 5, 1
	})
	const devices, messages = 30, 100
	for k := range devices {
		c := s.resume(packet.V311, fmt.Sprint("c", k), false)
		c.subscribe(2, "all/#", "all/+") // two that match
		c.leave()
	}
	p := s.connect(packet.V5, "p")
	for n := range messages {
		p.publish2("all/x", fmt.Sprint(n))
	}
	var wg sync.WaitGroup
	for k := range devices {
		wg.Go(func() {
			var got []string
			seen := map[uint16]bool{}
			cut := 0
			for c := s.resume(packet.V311, fmt.Sprint("c", k), true); len(got) < messages; {
				switch m := c.next().(type) {
				case *packet.Publish:
					if !seen[m.PacketID] {
						seen[m.PacketID] = true
						got = append(got, string(m.Payload))
					}
					if len(got)%17 == k%17 && len(got) > cut { // comes back in the middle
						cut = len(got)
						c.Close()
						c = s.resume(packet.V311, fmt.Sprint("c", k), true)
						continue
					}
					c.send(&packet.Ack{Kind: packet.TypePubrec, PacketID: m.PacketID})
				case *packet.Ack:
					delete(seen, m.PacketID)
					c.send(&packet.Ack{Kind: packet.TypePubcomp, PacketID: m.PacketID})
				default:
					t.Errorf("c%d got %T", k, m)
					return
				}
			}
			if !slices.Equal(got, numbers(messages)) {
				t.Errorf("c%d got %v", k, got)
			}
		})
	}
	wg.Wait()
}
