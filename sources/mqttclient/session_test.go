// SPDX-License-Identifier: Apache-2.0

package mqttclient_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/google/go-cmp/cmp"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/sources"
	"github.com/rialto-bridge/rialto/sources/mqttclient"
)

// subscriptions is a position that is kept nowhere.
type subscriptions struct{}

func (subscriptions) Load(context.Context) (string, error) { return "", nil }

func (subscriptions) Save(context.Context, string) error { return nil }

// connect makes a source whose broker answers what it gets: with nil, not at all. It is for a bubble. ended is closed when the source has
// closed the connection.
func connect(t *testing.T, answer func(p packets.Packet) []packets.Packet) (src sources.Source, ended <-chan struct{}) {
	t.Helper()
	near, far := net.Pipe()
	src, err := mqttclient.Kind().New(json.RawMessage(`{"url":"mqtt://b","topics":["a"]}`), sources.Env{Name: "s", MaxData: 1 << 20, Position: subscriptions{},
		Dial:   func(context.Context, string, string) (net.Conn, error) { return near, nil },
		Logger: slog.New(slog.DiscardHandler), Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			got, err := packets.ReadPacket(far)
			if err != nil {
				return
			}
			for _, p := range answer(got.Content) {
				if _, err := p.WriteTo(far); err != nil {
					return
				}
			}
		}
	}()
	return src, done
}

// A broker that has kept messages of QoS 0 for a session sends them as soon as it is resumed, before it answers the subscription, and no
// receive maximum bounds them. They are taken, and the answer behind them is read.
func TestMessagesBeforeTheSubscription(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const kept = 1000
		src, ended := connect(t, func(p packets.Packet) (out []packets.Packet) {
			switch p := p.(type) {
			case *packets.Connect:
				return []packets.Packet{&packets.Connack{SessionPresent: true, Properties: &packets.Properties{}}}
			case *packets.Subscribe:
				for range kept {
					out = append(out, &packets.Publish{Topic: "a", Properties: &packets.Properties{}})
				}
				return append(out, &packets.Suback{PacketID: p.PacketID, Reasons: []byte{1}, Properties: &packets.Properties{}}, out[0])
			}
			return nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		stored := 0
		err := src.Run(ctx, func(_ context.Context, evs ...event.Event) error {
			if stored += len(evs); stored == kept+1 {
				cancel()
			}
			return nil
		})
		if !errors.Is(err, context.Canceled) || stored != kept+1 {
			t.Errorf("%d messages are stored, want %d; it ended with %v", stored, kept+1, err)
		}
		<-ended
	})
}

// A source that is told to stop acknowledges what is stored: it would come again, as another event. A commit that is under way has a while
// to end, and no longer.
func TestWhatIsStoredIsAcknowledgedBeforeTheEnd(t *testing.T) {
	for _, c := range []struct {
		name   string
		commit time.Duration
		want   []string
	}{
		{"stored", 0, []string{"PUBACK", "DISCONNECT"}},
		{"under way", time.Second, []string{"PUBACK", "DISCONNECT"}},
		{"stuck", time.Hour, []string{"DISCONNECT"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var got []string
				src, ended := connect(t, func(p packets.Packet) []packets.Packet {
					switch p := p.(type) {
					case *packets.Connect:
						return []packets.Packet{&packets.Connack{Properties: &packets.Properties{}}}
					case *packets.Subscribe:
						return []packets.Packet{&packets.Suback{PacketID: p.PacketID, Reasons: []byte{1}, Properties: &packets.Properties{}},
							&packets.Publish{Topic: "a", QoS: 1, PacketID: 7, Properties: &packets.Properties{}}}
					case *packets.Puback:
						got = append(got, "PUBACK")
					case *packets.Disconnect:
						got = append(got, "DISCONNECT")
					}
					return nil
				})
				ctx, cancel := context.WithCancel(t.Context())
				began := time.Now()
				err := src.Run(ctx, func(ctx context.Context, _ ...event.Event) error {
					cancel()
					select {
					case <-time.After(c.commit):
						return nil
					case <-ctx.Done():
						return context.Cause(ctx)
					}
				})
				<-ended
				if diff := cmp.Diff(c.want, got); diff != "" || !errors.Is(err, context.Canceled) {
					t.Errorf("it ended with %v; (-want +got):\n%s", err, diff)
				}
				if took := time.Since(began); took > 3*time.Second {
					t.Errorf("it ended after %s", took)
				}
			})
		})
	}
}

// A message that cannot be an event is handed over as one that is refused: what is left of it is not taken for an event without a topic.
func TestTooLongATopicIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src, ended := connect(t, func(p packets.Packet) []packets.Packet {
			switch p := p.(type) {
			case *packets.Connect:
				return []packets.Packet{&packets.Connack{Properties: &packets.Properties{}}}
			case *packets.Subscribe:
				return []packets.Packet{&packets.Suback{PacketID: p.PacketID, Reasons: []byte{1}, Properties: &packets.Properties{}},
					&packets.Publish{Topic: strings.Repeat("x", 60<<10), Payload: []byte("1"), Properties: &packets.Properties{}}}
			}
			return nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		err := src.Run(ctx, func(_ context.Context, evs ...event.Event) error {
			if err := evs[0].Validate(event.Limits{}); err == nil {
				t.Errorf("%q with subject %.10q is stored", evs[0].Data, evs[0].Subject)
			}
			cancel()
			return nil
		})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("it ended with %v", err)
		}
		<-ended
	})
}
