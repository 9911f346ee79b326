// SPDX-License-Identifier: Apache-2.0

package app_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/mqttgw/packet"
)

// broker is an MQTT server in a process of its own.
type broker struct {
	addr string
	pid  int
}

// cost is what something took of a broker.
type cost struct {
	cpu, took time.Duration
	rss       float64 // growth in MB
}

// during measures what a broker does while fn runs.
func (br broker) during(tb testing.TB, fn func()) cost {
	tb.Helper()
	rss, cpu, began := residentMB(tb, br.pid), cpuOf(tb, br.pid), time.Now()
	fn()
	return cost{cpuOf(tb, br.pid) - cpu, time.Since(began), residentMB(tb, br.pid) - rss}
}

// pipe is a client of MQTT 3.1.1 that costs next to nothing: it writes and reads packets and keeps no account.
type pipe struct {
	net.Conn
	in *packet.Reader
}

const loadTimeout = 3 * time.Minute // for a load as a whole

// dialMQTT connects a client. A session that is kept has clean false.
func dialMQTT(addr, id string, clean bool) (*pipe, error) {
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	p := &pipe{Conn: nc, in: packet.NewReader(nc)}
	if err := nc.SetDeadline(time.Now().Add(loadTimeout)); err != nil {
		return nil, errors.Join(err, nc.Close())
	}
	if err = p.send(&packet.Connect{Version: packet.V311, CleanStart: clean, ClientID: []byte(id)}); err == nil {
		err = p.expect(packet.TypeConnack, nil)
	}
	if err != nil {
		return nil, errors.Join(err, nc.Close())
	}
	return p, nil
}

func (p *pipe) send(q packet.Packet) error {
	_, err := p.Write(q.Append(nil, packet.V311))
	return err
}

// expect reads up to a packet of a type and hands what comes before it to other.
func (p *pipe) expect(t packet.Type, other func(first byte, body []byte) error) error {
	for {
		first, body, err := p.in.Next(1 << 20)
		switch {
		case err != nil:
			return err
		case packet.TypeOf(first) == t:
			if t == packet.TypeConnack && body[1] != 0 {
				return fmt.Errorf("CONNACK %d", body[1])
			}
			return nil
		case other == nil:
			return fmt.Errorf("%v, want %v", packet.TypeOf(first), t)
		}
		if err := other(first, body); err != nil {
			return err
		}
	}
}

func (p *pipe) subscribe(filter string, qos byte) error {
	err := p.send(&packet.Subscribe{PacketID: 1, Filters: []packet.Subscription{{Filter: []byte(filter), QoS: qos}}})
	if err != nil {
		return err
	}
	return p.expect(packet.TypeSuback, nil)
}

// leave ends the connection as a client does that means to.
func (p *pipe) leave() error {
	return errors.Join(p.send(&packet.Disconnect{Kind: packet.TypeDisconnect}), p.Close())
}

// receive takes n messages and acknowledges those with QoS 1. It writes when there is nothing more to read.
func (p *pipe) receive(n int, got func()) error {
	var acks []byte
	for range n {
		if !p.in.Ready(1<<20) && len(acks) > 0 {
			if _, err := p.Write(acks); err != nil {
				return err
			}
			acks = acks[:0]
		}
		first, body, err := p.in.Next(1 << 20)
		if err != nil {
			return err
		}
		var pub packet.Publish
		if err := pub.Decode(first, body, packet.V311); err != nil {
			return err
		}
		if pub.QoS == 1 {
			acks = (&packet.Ack{Kind: packet.TypePuback, PacketID: pub.PacketID}).Append(acks, packet.V311)
		}
		got()
	}
	if len(acks) > 0 {
		_, err := p.Write(acks)
		return err
	}
	return nil
}

// publish sends n messages, at most window of them without PUBACK, and waits until the last one is taken.
func (p *pipe) publish(n, window int, qos byte, topic func(i int) string, payload []byte) error {
	room := make(chan struct{}, window)
	failed := make(chan error, 1)
	acknowledged := func() error {
		for range n {
			if err := p.expect(packet.TypePuback, nil); err != nil {
				return err
			}
			<-room
		}
		return nil
	}
	if qos == 1 {
		go func() { failed <- acknowledged() }()
	}
	var out []byte
	for i := range n {
		pub := packet.Publish{Topic: []byte(topic(i)), QoS: qos, Payload: payload}
		if qos == 1 {
			pub.PacketID = uint16(i%60000) + 1
			select {
			case room <- struct{}{}:
			default: // what has gathered is to get out before anything is waited for
				if _, err := p.Write(out); err != nil {
					return err
				}
				out = out[:0]
				select {
				case room <- struct{}{}:
				case err := <-failed:
					return err
				}
			}
		}
		if out = pub.Append(out, packet.V311); len(out) >= 8<<10 {
			if _, err := p.Write(out); err != nil {
				return err
			}
			out = out[:0]
		}
	}
	if _, err := p.Write(out); err != nil {
		return err
	}
	if qos == 1 {
		return <-failed
	}
	if err := p.send(&packet.Ping{Kind: packet.TypePingreq}); err != nil { // answered behind them
		return err
	}
	return p.expect(packet.TypePingresp, nil)
}

// each runs fn for 0..n-1, some of them at a time, and reports the first error.
func each(tb testing.TB, n, atOnce int, fn func(i int) error) {
	tb.Helper()
	var next atomic.Int64
	var failed atomic.Pointer[error]
	var wg sync.WaitGroup
	for range min(n, atOnce) {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n && failed.Load() == nil; i = int(next.Add(1)) - 1 {
				if err := fn(i); err != nil {
					failed.CompareAndSwap(nil, &err)
				}
			}
		})
	}
	wg.Wait()
	if err := failed.Load(); err != nil {
		tb.Fatal(*err)
	}
}

// connectAll connects n clients; leaveAll is theirs.
func (br broker) connectAll(tb testing.TB, n int, prefix string, filter func(i int) string, qos byte) []*pipe {
	tb.Helper()
	all := make([]*pipe, n)
	each(tb, n, 64, func(i int) (err error) {
		if all[i], err = dialMQTT(br.addr, fmt.Sprint(prefix, i), true); err == nil && filter != nil {
			err = all[i].subscribe(filter(i), qos)
		}
		return err
	})
	return all
}

func leaveAll(tb testing.TB, all []*pipe) {
	tb.Helper()
	each(tb, len(all), 64, func(i int) error { return all[i].leave() })
}

// idle is the memory of n connections with a subscription each, in KB for one.
func (br broker) idle(tb testing.TB, n int) float64 {
	before := residentMB(tb, br.pid)
	all := br.connectAll(tb, n, "idle-", func(i int) string { return fmt.Sprintf("idle/%d/cmd", i) }, 1)
	// The lowest of what it is in the seconds after: a process that comes to rest gives memory back.
	lowest := residentMB(tb, br.pid)
	until := time.Now().Add(10 * time.Second)
	eventually(tb, 20*time.Second, func() (string, bool) {
		lowest = min(lowest, residentMB(tb, br.pid))
		return "", time.Now().After(until)
	})
	leaveAll(tb, all)
	return (lowest - before) * 1000 / float64(n)
}

// published is the cost of n messages of 256 bytes from 20 clients, 100 of each on the way.
func (br broker) published(tb testing.TB, n int, qos byte, topic func(client, i int) string) cost {
	const clients, window = 20, 100
	all := br.connectAll(tb, clients, "pub-", nil, 0)
	defer leaveAll(tb, all)
	payload := make([]byte, 256)
	return br.during(tb, func() {
		each(tb, clients, clients, func(k int) error {
			return all[k].publish(n/clients, window, qos, func(i int) string { return topic(k, i) }, payload)
		})
	})
}

// fanned is the cost of n messages of 256 bytes to all of many subscribers. The publisher is at most window messages ahead
// of them on average.
func (br broker) fanned(tb testing.TB, n, subscribers int, qos byte) cost {
	const window = 50
	all := br.connectAll(tb, subscribers, "sub-", func(int) string { return "fan/all" }, qos)
	pub := br.connectAll(tb, 1, "fan-", nil, 0)[0]
	defer leaveAll(tb, append(all, pub))
	var got atomic.Int64
	payload := make([]byte, 256)
	return br.during(tb, func() {
		var receivers sync.WaitGroup
		for _, p := range all {
			receivers.Go(func() {
				if err := p.receive(n, func() { got.Add(1) }); err != nil {
					tb.Errorf("after %d messages to all: %v", got.Load(), err)
				}
			})
		}
		for sent := 0; sent < n; sent += window {
			eventually(tb, time.Minute, func() (string, bool) {
				return "subscribers get nothing", got.Load() >= int64((sent-window)*subscribers)
			})
			if err := pub.publish(min(window, n-sent), window, qos, func(int) string { return "fan/all" }, payload); err != nil {
				tb.Fatal(err)
			}
		}
		receivers.Wait()
	})
}

// offline lets kept sessions miss n messages of a size. stored is the cost while they are away, delivered that of their
// return.
func (br broker) offline(tb testing.TB, sessions, n, size int) (stored, delivered cost) {
	visit := func(i int) (*pipe, error) { return dialMQTT(br.addr, fmt.Sprint("off-", i), false) }
	each(tb, sessions, 32, func(i int) error {
		p, err := visit(i)
		if err != nil {
			return err
		}
		return errors.Join(p.subscribe("offline/all", 1), p.leave())
	})
	pubs := br.connectAll(tb, 1, "offpub-", nil, 0)
	defer leaveAll(tb, pubs)
	payload := make([]byte, size)
	stored = br.during(tb, func() {
		if err := pubs[0].publish(n, 50, 1, func(int) string { return "offline/all" }, payload); err != nil {
			tb.Fatal(err)
		}
	})
	delivered = br.during(tb, func() {
		each(tb, sessions, 64, func(i int) error {
			p, err := visit(i)
			if err != nil {
				return err
			}
			defer p.Close()
			return p.receive(n, func() {})
		})
	})
	return stored, delivered
}

// returning lets devices miss messages of their own, and come back all together: the cost until every one has its own.
func (br broker) returning(tb testing.TB, devices, messages int) cost {
	visit := func(i int) (*pipe, error) { return dialMQTT(br.addr, fmt.Sprint("dev-", i), false) }
	topic := func(i int) string { return fmt.Sprintf("dev/%d/cmd", i) }
	each(tb, devices, 64, func(i int) error {
		p, err := visit(i)
		if err != nil {
			return err
		}
		return errors.Join(p.subscribe(topic(i), 1), p.leave())
	})
	pubs := br.connectAll(tb, 10, "retpub-", nil, 0)
	defer leaveAll(tb, pubs)
	each(tb, len(pubs), len(pubs), func(k int) error {
		mine := devices / len(pubs)
		return pubs[k].publish(mine*messages, 100, 1, func(i int) string { return topic(k*mine + i%mine) }, make([]byte, 64))
	})
	connecting := make(chan struct{}, 512) // more of one address before their CONNECT are refused
	return br.during(tb, func() {
		each(tb, devices, devices, func(i int) error {
			connecting <- struct{}{}
			p, err := visit(i)
			<-connecting
			if err != nil {
				return err
			}
			defer p.Close()
			return p.receive(messages, func() {})
		})
	})
}

// numbered is the i-th of many topics, of four levels.
func numbered(i int) string {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], uint32(i))
	return fmt.Sprintf("plant/%d/line-%d/sensor-%x", i%10, i/10%1000, b)
}
