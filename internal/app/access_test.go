// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/internal/store"
	"github.com/rialto-bridge/rialto/mqttgw"
	"github.com/rialto-bridge/rialto/mqttgw/packet"
)

// nowhere is a bus that takes everything and has nothing.
type nowhere struct{}

func (nowhere) Publish(_ context.Context, _ string, _ *event.Record, done func(error)) error {
	done(nil)
	return nil
}

func (nowhere) First() uint64     { return 1 }
func (nowhere) Committed() uint64 { return 0 }
func (nowhere) Hot() uint64       { return 1 }

func (nowhere) Wait(ctx context.Context, _ uint64) error {
	<-ctx.Done()
	return ctx.Err()
}

func (nowhere) Scan(_ context.Context, o eventlog.ScanOptions, dst []eventlog.Entry) ([]eventlog.Entry, uint64, int, error) {
	return dst, o.From, 0, nil
}

// A policy that cannot be read, such as one of a later version, allows nothing, also if it is the one for all that have no other.
func TestPolicyThatCannotBeReadAllowsNothing(t *testing.T) {
	k := store.Key{Kind: kindPolicy, Name: mqttgw.DefaultPolicy}
	d := &definitions{devices: mqttgw.NewDirectory(), log: slog.New(slog.DiscardHandler), current: map[store.Key]store.Document{}}
	g, err := mqttgw.New(mqttgw.Options{Publisher: nowhere{}, Tail: nowhere{}, Directory: d.devices, Anonymous: true, Logger: d.log})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- g.Serve(ctx, ln) }()
	defer func() {
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()
	for _, tt := range []struct {
		doc  string
		want packet.Reason
	}{
		{`{"kind":"DevicePolicy","name":"default","access":{"publish":["t"]}}`, packet.Success},
		{`{"kind":"DevicePolicy","name":"default","access":{"publish":["t"],"unheardOf":[]}}`, packet.NotAuthorized},
		{``, packet.Success},
	} {
		if delete(d.current, k); tt.doc != "" {
			d.current[k] = store.Document{Key: k, Raw: []byte(tt.doc)}
		}
		d.applyAccess([]store.Key{k})
		nc, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if err := nc.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
			t.Fatal(err)
		}
		raw := (&packet.Connect{Version: packet.V5, CleanStart: true, ClientID: []byte("c")}).Append(nil, packet.V5)
		raw = (&packet.Publish{Topic: []byte("t"), QoS: 1, PacketID: 1}).Append(raw, packet.V5)
		if _, err := nc.Write(raw); err != nil {
			t.Fatal(err)
		}
		in := packet.NewReader(nc)
		if _, _, err := in.Next(1 << 10); err != nil { // CONNACK
			t.Fatal(err)
		}
		first, body, err := in.Next(1 << 10)
		if err != nil {
			t.Fatal(err)
		}
		var ack packet.Ack
		if err := ack.Decode(first, body, packet.V5); err != nil || ack.Code != tt.want {
			t.Errorf("%s: PUBACK %v, %v, want %v", tt.doc, ack.Code, err, tt.want)
		}
		if err := nc.Close(); err != nil {
			t.Error(err)
		}
	}
}
