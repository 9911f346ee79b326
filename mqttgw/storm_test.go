// SPDX-License-Identifier: Apache-2.0

package mqttgw_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rialto-bridge/rialto/mqttgw"
	"github.com/rialto-bridge/rialto/mqttgw/packet"
)

// errRefused is what a device gets that is closed without an answer.
var errRefused = errors.New("closed without CONNACK")

// comeBack is one attempt of a device to connect to its kept session.
func (s *server) comeBack(id string) (net.Conn, *packet.Connack, error) {
	nc, err := s.dial()
	if err != nil {
		return nil, nil, err
	}
	p := packet.Connect{Version: packet.V5, ClientID: []byte(id), Properties: packet.Properties(nil).AppendInt(packet.SessionExpiry, 3600)}
	nc.Write(p.Append(nil, packet.V5)) //nolint:errcheck // noticed when reading
	first, body, err := packet.NewReader(nc).Next(1 << 10)
	if err == nil {
		var answer packet.Packet
		answer, err = packet.Decode(first, slices.Clone(body), packet.V5)
		if ack, ok := answer.(*packet.Connack); ok && ack.Code == packet.Success {
			return nc, ack, nil
		}
		err = errors.Join(err, fmt.Errorf("answered by %+v", answer))
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrClosedPipe) {
		err = errRefused
	}
	return nil, nil, errors.Join(err, nc.Close())
}

// After a restart all devices of a fleet come back at the same moment, from one address. They are let in at the pace that is set, each to
// its session; those beyond what an address may are closed at once and come again; a device that is connected is served at once
// throughout; and all is over when the rates say.
func TestFleetComesBackAfterARestart(t *testing.T) {
	const (
		devices = 3000
		pace    = 300 // a second, and 600 at once
		mine    = 60  // of an address, and 1200 at once
		retry   = time.Second
	)
	synctest.Test(t, func(t *testing.T) {
		log, bus := &memoryLog{}, newMemoryBus()
		on := func(o *mqttgw.Options) { o.Publisher, o.Tail, o.Sessions = bus, bus, log }
		first := startPipes(t, on, func(o *mqttgw.Options) { o.Limits.MaxConnectRate, o.Limits.MaxConnectRatePerIP = 1e6, 1e6 })
		for k := range devices {
			nc, _, err := first.comeBack(strconv.Itoa(k))
			if err != nil {
				t.Fatal(err)
			}
			nc.Close()
		}
		first.stop()

		reg := prometheus.NewPedanticRegistry()
		s := startPipes(t, on, func(o *mqttgw.Options) {
			o.Limits.MaxConnectRate, o.Limits.MaxConnectRatePerIP, o.Registerer = pace, mine, reg
		})
		served := s.connect(packet.V5, "served")
		begin := time.Now()
		var mu sync.Mutex
		var back []time.Duration // when each was let in
		var conns []net.Conn
		var lost, slow, refused int
		var storm sync.WaitGroup
		for k := range devices {
			storm.Go(func() {
				for {
					nc, ack, err := s.comeBack(strconv.Itoa(k))
					mu.Lock()
					if errors.Is(err, errRefused) {
						refused++
						mu.Unlock()
						time.Sleep(retry) // of the bubble
						continue
					}
					if err != nil {
						t.Errorf("device %d: %v", k, err)
					} else {
						back, conns = append(back, time.Since(begin)), append(conns, nc)
						if !ack.SessionPresent {
							lost++
						}
					}
					mu.Unlock()
					return
				}
			})
		}
		over := make(chan struct{})
		go func() { storm.Wait(); close(over) }()
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		published := 0
		for done := false; !done; {
			select {
			case <-over:
				done = true
			case <-tick.C:
				at := time.Now()
				served.publish("t", "x")
				if published++; time.Since(at) > 0 {
					slow++
				}
			}
		}
		took := time.Since(begin)
		slices.Sort(back)
		for _, moment := range []time.Duration{0, time.Second, 3 * time.Second, 10 * time.Second} {
			in, _ := slices.BinarySearch(back, moment+1)
			if most := min(2*pace+pace*int(moment/time.Second), 20*mine+mine*int(moment/time.Second)); in > most {
				t.Errorf("after %s %d are in, want %d at most", moment, in, most)
			}
		}
		// What the address may at once, the others at its rate, and one retry more.
		least, most := time.Duration(devices-20*mine)*time.Second/mine, time.Duration(devices-20*mine)*time.Second/mine+10*retry
		if took < least-time.Second || took > most {
			t.Errorf("it took %s, want %s to %s", took, least, most)
		}
		if len(back) != devices || lost > 0 {
			t.Errorf("%d of %d are back, %d without their session", len(back), devices, lost)
		}
		if slow > 0 || published < int(took/(100*time.Millisecond))-1 {
			t.Errorf("of %d messages of a device that is connected %d had to wait", published, slow)
		}
		if n := int(metric(t, reg, "rialto_mqtt_refused_total", "rate-of-address")); n != refused || n == 0 {
			t.Errorf("%d are counted as refused, %d were", n, refused)
		}
		for _, nc := range conns {
			nc.Close()
		}
		served.Close()
		s.stop()
	})
}
