// SPDX-License-Identifier: Apache-2.0

package mqttgw_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/mqttgw"
	"github.com/rialto-bridge/rialto/mqttgw/packet"
)

// diskBus is a memoryBus that keeps only the first bytes of payloads, and reads them anew each time, as from a disk: what is kept of
// them in memory is kept by the gateway.
type diskBus struct {
	*memoryBus
	size int // of all payloads
}

const diskBusKeeps = 8

func (b *diskBus) Publish(ctx context.Context, bus string, rec *event.Record, done func(error)) error {
	small, origin := *rec, *rec.MQTT // which may be a part of what holds the payload
	small.MQTT = &origin
	small.Event.Data = bytes.Clone(rec.Event.Data[:diskBusKeeps])
	return b.memoryBus.Publish(ctx, bus, &small, done)
}

func (b *diskBus) Scan(ctx context.Context, o eventlog.ScanOptions, dst []eventlog.Entry) ([]eventlog.Entry, uint64, int, error) {
	old := len(dst)
	dst, next, looked, err := b.memoryBus.Scan(ctx, o, dst)
	for i := old; i < len(dst); i++ {
		rec := *dst[i].Record
		rec.Event.Data = append(make([]byte, 0, b.size), rec.Event.Data...)[:b.size]
		dst[i].Record = &rec
	}
	return dst, next, looked, err
}

// heap is what is in use after a collection.
func heap() int {
	runtime.GC()
	runtime.GC() // what was pooled goes with the second
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// While two subscribers do not read, 32 MiB are published: they cost their share of memory and no more, QoS 0 is dropped and counted, QoS 1
// comes in order when it is read at last, and another subscriber gets everything meanwhile.
func TestSlowReadersCostNoMemory(t *testing.T) {
	const size, messages, outbound, most = 64 << 10, 512, 512 << 10, 4 << 20
	reg := prometheus.NewPedanticRegistry()
	s := start(t, func(o *mqttgw.Options) {
		bus := &diskBus{o.Publisher.(*memoryBus), size}
		o.Publisher, o.Tail, o.Registerer = bus, bus, reg
		o.Limits.MaxOutbound, o.Limits.WriteTimeout = outbound, 10*time.Minute
	})
	var stalled [2]*client
	for qos := range stalled {
		stalled[qos] = s.connect(packet.V5, fmt.Sprint("stalled", qos))
		stalled[qos].subscribe(byte(qos), "t")
	}
	other, p := s.connect(packet.V5, "other"), s.connect(packet.V311, "p")
	other.subscribe(1, "t")
	payload := make([]byte, size)
	send := func(k int) {
		t.Helper()
		binary.BigEndian.PutUint64(payload, uint64(k))
		p.publish("t", string(payload))
		if m := other.message(); binary.BigEndian.Uint64(m.Payload) != uint64(k) || len(m.Payload) != size {
			t.Fatalf("the other got %d of %d bytes, want %d of %d", binary.BigEndian.Uint64(m.Payload), len(m.Payload), k, size)
		}
	}
	send(0)
	before := heap()
	for k := 1; k < messages; k++ {
		send(k)
	}
	if grown := heap() - before; grown > most {
		t.Errorf("the heap has grown by %d bytes while %d were published, want %d at most", grown, size*messages, most)
	}
	dropped := int(metric(t, reg, "rialto_mqtt_dropped_total", "slow"))
	if dropped < messages/2 {
		t.Errorf("%d of %d QoS 0 messages are dropped, want most", dropped, messages)
	}
	for range messages - dropped {
		stalled[0].message()
	}
	stalled[0].nothing()
	for k := range messages {
		if m := stalled[1].message(); binary.BigEndian.Uint64(m.Payload) != uint64(k) {
			t.Fatalf("got %d, want %d", binary.BigEndian.Uint64(m.Payload), k)
		}
	}
	stalled[1].nothing()
}

// A limit of 0 is the default, which is a number like any other: whatever it is, QoS 1 messages beyond wait, and none is dropped.
func TestNoQueueLimitIsNone(t *testing.T) {
	const messages = 600
	for _, c := range []struct {
		limits mqttgw.Limits
		flying int // at once
	}{{mqttgw.Limits{}, 256}, {mqttgw.Limits{MaxInFlight: 1, MaxWaiting: 1, MaxOutbound: 1024, ReceiveMaximum: 1, MaxPending: 1}, 1}} {
		reg := prometheus.NewPedanticRegistry()
		s := start(t, func(o *mqttgw.Options) { o.Limits, o.Registerer = c.limits, reg })
		sub, p := s.connect(packet.V5, "sub"), s.connect(packet.V5, "p")
		sub.subscribe(1, "t")
		for k := range messages {
			p.publish("t", fmt.Sprint(k))
		}
		var got []string
		var open []uint16
		for range c.flying {
			m := recv[*packet.Publish](sub)
			got, open = append(got, string(m.Payload)), append(open, m.PacketID)
		}
		sub.nothing() // as many as are allowed are in flight
		for _, id := range open {
			sub.send(&packet.Ack{Kind: packet.TypePuback, PacketID: id})
		}
		for len(got) < messages {
			got = append(got, string(sub.message().Payload))
		}
		sub.nothing()
		if !slices.Equal(got, numbers(messages)) {
			t.Errorf("%+v: %d messages came in the order %v", c.limits, len(got), got)
		}
		for _, why := range []string{"slow", "gone", "expired", "too-large", "not-allowed"} {
			if n := metric(t, reg, "rialto_mqtt_dropped_total", why); n > 0 {
				t.Errorf("%+v: %v dropped as %s", c.limits, n, why)
			}
		}
	}
	_, err := mqttgw.New(mqttgw.Options{Publisher: newMemoryBus(), Tail: newMemoryBus(), Anonymous: true, Limits: mqttgw.Limits{MaxInFlight: -1, MaxOutbound: 1, MaxWaiting: -5}})
	for _, want := range []string{"mqtt-max-in-flight is -1, and must be 1 to 4096", "mqtt-max-outbound is 1, and must be 1KiB to 1GiB", "MaxWaiting is -5, and must be 1 to 1048576"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New: %v, want %q", err, want)
		}
	}
}

// What is lost because retention was faster is counted, logged and told by an event, each with who has missed what.
func TestGoneMessagesAreTold(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	var log bytes.Buffer
	s := start(t, func(o *mqttgw.Options) {
		o.Limits.MaxInFlight, o.Limits.MaxWaiting, o.Registerer, o.Logger = 1, 1, reg, slog.New(slog.NewTextHandler(&log, nil))
	})
	c := s.connect(packet.V5, "c")
	c.subscribe(1, "t")
	p, other := s.connect(packet.V5, "p"), s.connect(packet.V5, "other")
	other.subscribe(1, "t")
	for k := range 10 {
		p.publish("t", fmt.Sprint(k))
		other.message() // so it has been offered to c as well
	}
	first := recv[*packet.Publish](c)
	s.bus.set(func() { s.bus.trimmed = 9 }) // all but the last
	c.send(&packet.Ack{Kind: packet.TypePuback, PacketID: first.PacketID})
	for m := c.message(); string(m.Payload) != "9"; m = c.message() {
	}
	var gaps int
	for _, rec := range s.bus.records() {
		if rec.Event.Type == mqttgw.EventGap && rec.Event.Subject == "c" {
			gaps++
		}
	}
	gone := int(metric(t, reg, "rialto_mqtt_dropped_total", "gone"))
	for _, cl := range []*client{c, p, other} {
		cl.Close()
	}
	s.stop() // the log is written to no more
	lines := strings.Count(log.String(), `msg="messages left the log before a subscriber got them" component=mqtt subscriber=c bus=devices from=`)
	if gone == 0 || gaps != gone || lines != gone {
		t.Errorf("%d counted, %d events, %d lines, want as many of each: %s", gone, gaps, lines, log.String())
	}
}
