// SPDX-License-Identifier: Apache-2.0

package app_test

import (
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/mqttgw/packet"
)

// exactClient is an MQTT 5 client with a session, as the specification wants one: what it has sent with QoS 2 it sends
// again until it is completed, and what it has received with QoS 2 it takes once.
type exactClient struct {
	id string

	mu       sync.Mutex
	next     int             // number of the message under way; guarded by mu
	stage    packet.Type     // what it was sent as: PUBLISH or PUBREL; guarded by mu
	received map[uint16]bool // guarded by mu
	ready    bool            // is subscribed; guarded by mu
	got      map[string]int  // guarded by mu
}

// run is one connection, until it breaks.
func (c *exactClient) run(addr string, publish bool) error {
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	defer nc.Close()
	send := func(p packet.Packet) {
		nc.Write(p.Append(nil, packet.V5)) //nolint:errcheck // noticed when reading
	}
	send(&packet.Connect{Version: packet.V5, ClientID: []byte(c.id), Properties: packet.Properties(nil).AppendInt(packet.SessionExpiry, 3600)})
	in := packet.NewReader(nc)
	for first := true; ; first = false {
		b, body, err := in.Next(1 << 20)
		if err != nil {
			return err
		}
		p, err := packet.Decode(b, slices.Clone(body), packet.V5)
		if err != nil {
			return err
		}
		c.mu.Lock()
		switch p := p.(type) {
		case *packet.Connack:
			if p.Code != 0 || !first {
				c.mu.Unlock()
				return fmt.Errorf("CONNACK %v", p.Code)
			}
			if !p.SessionPresent {
				c.received = map[uint16]bool{}
			}
			if publish {
				c.send(send, true)
			} else {
				send(&packet.Subscribe{PacketID: 1, Filters: []packet.Subscription{{Filter: []byte("exact/#"), QoS: 2, RetainHandling: 2}}})
			}
		case *packet.Suback:
			c.ready = true
		case *packet.Publish:
			if !c.received[p.PacketID] {
				c.received[p.PacketID] = true
				c.got[string(p.Payload)]++
			}
			send(&packet.Ack{Kind: packet.TypePubrec, PacketID: p.PacketID})
		case *packet.Ack:
			switch p.Kind {
			case packet.TypePubrel:
				delete(c.received, p.PacketID)
				send(&packet.Ack{Kind: packet.TypePubcomp, PacketID: p.PacketID})
			case packet.TypePubrec:
				c.stage = packet.TypePubrel
				c.send(send, false)
			case packet.TypePubcomp:
				c.next, c.stage = c.next+1, packet.TypePublish
				c.send(send, false)
			}
		}
		c.mu.Unlock()
	}
}

// send sends what is under way. mu is held.
func (c *exactClient) send(send func(packet.Packet), again bool) {
	id := uint16(1 + c.next%7)
	if c.stage == packet.TypePubrel {
		send(&packet.Ack{Kind: packet.TypePubrel, PacketID: id})
		return
	}
	send(&packet.Publish{Topic: []byte("exact/t"), QoS: 2, PacketID: id, Dup: again, Payload: fmt.Append(nil, c.next)})
}

func (c *exactClient) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.next
}

func (c *exactClient) times(n int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.got[fmt.Sprint(n)]
}

// TestKillKeepsSessions publishes and subscribes with QoS 2 while the process is killed at random moments: each message
// that was completed arrives once.
func TestKillKeepsSessions(t *testing.T) {
	const rounds = 8
	dir := t.TempDir()
	pub, sub := &exactClient{id: "pub", stage: packet.TypePublish}, &exactClient{id: "sub", got: map[string]int{}}
	for round := range rounds {
		s, cmd := spawn(t, dir)
		if round == 0 { // the subscription comes first
			subscribed := make(chan struct{})
			go func() {
				defer close(subscribed)
				sub.run(s.mqtt, false) //nolint:errcheck // ends with the process
			}()
			eventually(t, 10*time.Second, func() (string, bool) {
				sub.mu.Lock()
				defer sub.mu.Unlock()
				return "the subscriber is not subscribed", sub.ready
			})
			defer func() { <-subscribed }()
		}
		var wg sync.WaitGroup
		wg.Go(func() { pub.run(s.mqtt, true) }) //nolint:errcheck // ends with the process
		if round > 0 {
			wg.Go(func() { sub.run(s.mqtt, false) }) //nolint:errcheck // ends with the process
		}
		timer := time.NewTimer(time.Duration(200+rand.IntN(1500)) * time.Millisecond)
		<-timer.C
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		wg.Wait()
		cmd.Wait() // killed: the error is known
	}
	s, cmd := spawn(t, dir)
	var wg sync.WaitGroup
	wg.Go(func() { sub.run(s.mqtt, false) }) //nolint:errcheck // ends with the process
	done := pub.count()
	eventually(t, 30*time.Second, func() (string, bool) {
		for n := range done {
			if sub.times(n) == 0 {
				return fmt.Sprintf("message %d of %d did not arrive", n, done), false
			}
		}
		return "", true
	})
	for n := range done + 1 { // the last may have come too
		if times := sub.times(n); times > 1 {
			t.Errorf("message %d came %d times", n, times)
		}
	}
	if done < rounds {
		t.Errorf("%d messages in %d lives", done, rounds)
	}
	t.Logf("%d messages in %d lives", done, rounds)
	if err := cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	wg.Wait()
	cmd.Wait() // killed: the error is known
}
