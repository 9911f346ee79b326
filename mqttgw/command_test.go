// SPDX-License-Identifier: Apache-2.0

package mqttgw_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/mqttgw"
	"github.com/rialto-bridge/rialto/mqttgw/packet"
)

// station is a world with commands: DOWN is a real stream, which outlives the gateways that are served one after the other.
type station struct {
	*world
	log  *eventlog.Log
	disk *vfs.MemFS // of the view
	view *mqttgw.CommandView

	killed bool // the next gateway finds what a kill leaves
}

// kill is that of the world. What was given to DOWN is in it.
func (st *station) kill() {
	st.killed = true
	st.world.kill()
}

func newStation(t testing.TB, with ...setup) *station {
	return newStationOn(t, &station{log: openLog(t, t.TempDir(), 1<<20)}, nil, with...)
}

// newMemoryStation is a station whose DOWN is in memory: a kill takes what is not committed.
func newMemoryStation(t testing.TB) *station { return newStationOn(t, &station{}, &memoryLog{}) }

func newStationOn(t testing.TB, st *station, down *memoryLog, with ...setup) *station {
	st.disk = vfs.NewCrashableMem()
	st.world = newWorldOn(t, down, append([]setup{func(o *mqttgw.Options) {
		before := st.disk.CrashClone(vfs.CrashCloneCfg{})
		st.closeView() // the gateway that had it has stopped
		if st.killed { // what was not written out is lost
			st.disk, st.killed = before, false
		}
		view, err := mqttgw.OpenCommandView(mqttgw.CommandViewOptions{Dir: "commands", FS: st.disk, Logger: quiet()})
		if err != nil {
			t.Fatal(err)
		}
		st.view = view
		if o.Commands = view; down == nil {
			o.Down = downOn(t, st.log, mqttgw.DownlinkOptions{})
		}
	}}, with...)...)
	t.Cleanup(func() {
		st.now.stop()
		st.closeView()
	})
	return st
}

func (st *station) closeView() {
	if st.view == nil {
		return
	}
	if err := st.view.Close(); err != nil {
		st.t.Error(err)
	}
	st.view = nil
}

// forget deletes the view before the next gateway.
func (st *station) forget() {
	st.now.stop()
	st.closeView()
	st.disk = vfs.NewCrashableMem()
}

func (st *station) send(spec mqttgw.CommandSpec) mqttgw.Command {
	st.t.Helper()
	c, err := st.now.gateway.SendCommand(st.t.Context(), spec)
	if err != nil {
		st.t.Fatalf("send %+v: %v", spec, err)
	}
	return c
}

// status waits until a command has a status, and returns it.
func (st *station) status(device, id, want string) mqttgw.Command {
	st.t.Helper()
	var c mqttgw.Command
	eventually(st.t, fmt.Sprintf("command %s is %s", id, want), func() bool {
		var err error
		if c, err = st.now.gateway.Command(st.t.Context(), device, id); err != nil {
			st.t.Fatal(err)
		}
		return c.Status == want
	})
	return c
}

// complete goes through the rest of QoS 2.
func (c *client) complete(p *packet.Publish) {
	c.t.Helper()
	if p.QoS == 2 {
		c.send(&packet.Ack{Kind: packet.TypePubrec, PacketID: p.PacketID})
		c.ack(packet.TypePubrel, p.PacketID, packet.Success)
		c.send(&packet.Ack{Kind: packet.TypePubcomp, PacketID: p.PacketID})
	}
}

func kept(p *packet.Connect) {
	p.CleanStart = false
	if p.Version == packet.V5 {
		p.Properties = p.Properties.AppendInt(packet.SessionExpiry, 3600)
	}
}

// A command waits for a device that is away, has no session yet, or has not subscribed yet.
func TestCommandWaits(t *testing.T) {
	versions(t, func(t *testing.T, v packet.Version) {
		st := newStation(t)
		for qos := range byte(3) {
			device := fmt.Sprintf("box-%d", qos)
			first := st.send(mqttgw.CommandSpec{Device: device, Payload: []byte("open"), QoS: qos, Correlation: "c1", ContentType: "text/plain", Expiry: time.Hour})
			if first.Status != mqttgw.StatusQueued || first.Topic != "devices/"+device+"/commands" || first.Position.Stream != "DOWN" {
				t.Fatalf("%+v", first)
			}
			c := st.now.connect(v, device)
			c.nothing() // it has not subscribed
			other := st.now.connect(v, "other"+device)
			other.subscribe(2, "devices/#")
			other.nothing()
			c.send(&packet.Subscribe{PacketID: 1, Filters: []packet.Subscription{{Filter: []byte("devices/+/commands"), QoS: 2}}})
			recv[*packet.Suback](c)
			second := st.send(mqttgw.CommandSpec{Device: device, Payload: []byte("close"), QoS: qos})
			var got []*packet.Publish
			for range 2 {
				got = append(got, c.message())
			}
			for i, want := range []string{"open", "close"} {
				p := got[i]
				if string(p.Payload) != want || p.QoS != qos || p.Dup || p.Retain || string(p.Topic) != first.Topic {
					t.Fatalf("message %+v, want %s", p, want)
				}
				if v == packet.V5 && i == 0 {
					if n := p.Properties.Int(packet.MessageExpiry, 0); n < 3590 || n > 3600 || string(p.Properties.Bytes(packet.CorrelationData)) != "c1" ||
						string(p.Properties.Bytes(packet.ContentType)) != "text/plain" {
						t.Errorf("properties %x", []byte(p.Properties))
					}
				}
				c.complete(p)
			}
			want := mqttgw.StatusAcknowledged
			if qos == 0 {
				want = mqttgw.StatusSent
			}
			for _, id := range []string{first.ID, second.ID} {
				if got := st.status(device, id, want); !got.Final || !got.CreatedAt.Before(got.ExpiresAt) {
					t.Errorf("%+v", got)
				}
			}
			other.nothing()
			page, err := st.now.gateway.Commands(t.Context(), device, want, "", 10)
			if err != nil || len(page.Items) != 2 || page.Items[0].ID != second.ID {
				t.Errorf("%+v, %v", page, err)
			}
		}
	})
}

// What a device has not acknowledged when its connection is lost comes again with the same id, in the same order, also
// after the process was killed; nothing is told before it is written.
func TestCommandResend(t *testing.T) {
	for qos := byte(1); qos <= 2; qos++ {
		for _, killed := range []string{"no", "yes", "and the view was lost"} {
			t.Run(fmt.Sprintf("QoS %d, killed: %s", qos, killed), func(t *testing.T) {
				st := newStation(t)
				c := st.now.connect(packet.V5, "box", kept)
				c.subscribe(2, "#")
				var ids []string
				for n := range 3 {
					ids = append(ids, st.send(mqttgw.CommandSpec{Device: "box", Topic: "t", Payload: fmt.Append(nil, n), QoS: qos, ID: fmt.Sprint("n", n)}).ID)
				}
				packets := map[string]uint16{}
				for range ids {
					p := recv[*packet.Publish](c)
					packets[string(p.Payload)] = p.PacketID
				}
				for _, id := range ids {
					st.status("box", id, mqttgw.StatusSent)
				}
				awaitProgress(t, st.world)
				c.Close()
				if killed != "no" {
					if killed != "yes" {
						st.forget()
					}
					st.kill()
				}
				c = st.now.connect(packet.V5, "box", kept)
				var again []*packet.Publish
				for range ids {
					again = append(again, recv[*packet.Publish](c))
				}
				for n, p := range again {
					if string(p.Payload) != fmt.Sprint(n) || !p.Dup || p.PacketID != packets[string(p.Payload)] {
						t.Fatalf("message %d is %+v", n, p)
					}
					if qos == 1 {
						c.send(&packet.Ack{Kind: packet.TypePuback, PacketID: p.PacketID})
					}
					c.complete(p)
				}
				for _, id := range ids {
					st.status("box", id, mqttgw.StatusAcknowledged)
				}
				c.nothing() // the last PUBCOMP is taken
				st.restart()
				c = st.now.connect(packet.V5, "box", kept)
				c.nothing()
				for _, id := range ids {
					st.status("box", id, mqttgw.StatusAcknowledged)
				}
			})
		}
	}
}

// A device that is connected gets a command while it is being committed, and may answer it, and return, before that. Who
// sends it hears of it after the commit, and it is there once.
func TestCommandBeforeItsCommit(t *testing.T) {
	for qos := byte(1); qos <= 2; qos++ {
		t.Run(fmt.Sprintf("QoS %d", qos), func(t *testing.T) {
			st := newMemoryStation(t)
			c := st.now.connect(packet.V5, "box", kept)
			c.subscribe(2, "#")
			st.world.down.set(func() { st.world.down.hold = true })
			type answer struct {
				mqttgw.Command
				error
			}
			answers := make(chan answer, 2)
			send := func() {
				cmd, err := st.now.gateway.SendCommand(t.Context(), mqttgw.CommandSpec{Device: "box", ID: "x", Topic: "t", Payload: []byte("open"), QoS: qos})
				answers <- answer{cmd, err}
			}
			go send()
			p := recv[*packet.Publish](c)
			awaitProgress(t, st.world)
			c.Close()
			c = st.now.connect(packet.V5, "box", kept)
			again := recv[*packet.Publish](c)
			if again.PacketID != p.PacketID || !again.Dup || string(again.Payload) != "open" {
				t.Fatalf("%+v, want %+v again", again, p)
			}
			if qos == 1 {
				c.send(&packet.Ack{Kind: packet.TypePuback, PacketID: p.PacketID})
			} else {
				c.send(&packet.Ack{Kind: packet.TypePubrec, PacketID: p.PacketID})
			}
			c.nothing()
			go send()
			if len(answers) > 0 {
				t.Fatalf("%+v before the commit", <-answers)
			}
			st.world.down.release()
			if qos == 2 {
				c.ack(packet.TypePubrel, p.PacketID, packet.Success)
				c.send(&packet.Ack{Kind: packet.TypePubcomp, PacketID: p.PacketID})
			}
			first, second := <-answers, <-answers
			if first.error != nil || second.error != nil || first.Position != second.Position || first.Duplicate == second.Duplicate {
				t.Errorf("%+v and %+v, want one twice", first, second)
			}
			if got := st.status("box", "x", mqttgw.StatusAcknowledged); got.Position.Seq != 1 {
				t.Errorf("%+v", got)
			}
			c.nothing()
		})
	}
}

// A command whose PUBREC is written down while its device is back, and before it is its turn to be sent again, is released
// and not sent.
func TestCommandReleasedBeforeItIsResent(t *testing.T) {
	st := newMemoryStation(t)
	window := func(n uint16) func(*packet.Connect) {
		return func(p *packet.Connect) {
			kept(p)
			p.Properties = p.Properties.AppendInt(packet.ReceiveMaximum, uint32(n))
		}
	}
	c := st.now.connect(packet.V5, "box", window(10))
	c.subscribe(2, "#")
	ids := map[string]uint16{}
	for _, text := range []string{"x", "y"} {
		st.send(mqttgw.CommandSpec{Device: "box", ID: text, Topic: "t", Payload: []byte(text), QoS: 2})
		ids[text] = recv[*packet.Publish](c).PacketID
	}
	st.status("box", "y", mqttgw.StatusSent)
	st.world.down.set(func() { st.world.down.hold = true })
	c.send(&packet.Ack{Kind: packet.TypePubrec, PacketID: ids["y"]})
	c.nothing()
	c.Close()
	c = st.now.connect(packet.V5, "box", window(1))
	if p := recv[*packet.Publish](c); p.PacketID != ids["x"] || !p.Dup {
		t.Fatalf("%+v, want x again", p)
	}
	st.world.down.release()
	c.ack(packet.TypePubrel, ids["y"], packet.Success)
	c.send(&packet.Ack{Kind: packet.TypePubrec, PacketID: ids["x"]})
	c.ack(packet.TypePubrel, ids["x"], packet.Success)
	c.send(&packet.Ack{Kind: packet.TypePubcomp, PacketID: ids["x"]})
	c.nothing()
	c.send(&packet.Ack{Kind: packet.TypePubcomp, PacketID: ids["y"]})
	c.nothing()
	for text := range ids {
		st.status("box", text, mqttgw.StatusAcknowledged)
	}
}

// A loss of power takes a command that its device has got before the commit. Its sequence is not given to another one, so
// that what the session has in flight is never taken for that.
func TestCommandLostWithPower(t *testing.T) {
	st := newMemoryStation(t)
	c := st.now.connect(packet.V5, "box", kept)
	c.subscribe(2, "#")
	st.world.down.set(func() { st.world.down.hold = true })
	lost := make(chan error, 1)
	go func() {
		_, err := st.now.gateway.SendCommand(context.Background(), mqttgw.CommandSpec{Device: "box", Topic: "t", Payload: []byte("lost"), QoS: 2})
		lost <- err
	}()
	p := recv[*packet.Publish](c)
	awaitProgress(t, st.world)
	st.kill()
	<-lost // of the process that was killed
	c = st.now.connect(packet.V5, "box", kept)
	c.ack(packet.TypePubrel, p.PacketID, packet.Success) // the device may know the packet id, and lets go of it
	c.send(&packet.Ack{Kind: packet.TypePubcomp, PacketID: p.PacketID})
	next := st.send(mqttgw.CommandSpec{Device: "box", Topic: "t", Payload: []byte("next"), QoS: 2})
	if next.Position.Seq != 2 {
		t.Errorf("%+v, want sequence 2", next)
	}
	got := recv[*packet.Publish](c)
	if string(got.Payload) != "next" || got.Dup {
		t.Errorf("%+v after %+v, want the next command", got, p)
	}
	c.complete(got)
	st.status("box", next.ID, mqttgw.StatusAcknowledged)
	c.nothing()
}

// awaitProgress waits until the session log is quiet: what is in flight is written down.
func awaitProgress(t testing.TB, w *world) {
	t.Helper()
	size := func() int {
		w.log.mu.Lock()
		defer w.log.mu.Unlock()
		return len(w.log.msgs)
	}
	n, since := -1, time.Now()
	eventually(t, "progress is written", func() bool {
		if now := size(); now != n {
			n, since = now, time.Now()
		}
		return time.Since(since) > 100*time.Millisecond
	})
}

// A command that a session has in flight when it ends waits again, at its old place.
func TestCommandSessionEnds(t *testing.T) {
	st := newStation(t)
	a := st.send(mqttgw.CommandSpec{Device: "box", Payload: []byte("a"), QoS: 1})
	b := st.send(mqttgw.CommandSpec{Device: "box", Payload: []byte("b"), QoS: 1})
	c := st.now.connect(packet.V5, "box", func(p *packet.Connect) { p.Properties = p.Properties.AppendInt(packet.ReceiveMaximum, 1) })
	c.subscribe(1, "devices/#")
	if p := recv[*packet.Publish](c); string(p.Payload) != "a" {
		t.Fatalf("%+v", p)
	}
	st.status("box", a.ID, mqttgw.StatusSent)
	c.Close()
	if got := st.status("box", a.ID, mqttgw.StatusQueued); got.Reason != "session-ended" || got.Final {
		t.Errorf("%+v", got)
	}
	c = st.now.connect(packet.V5, "box")
	c.subscribe(1, "devices/#")
	for _, want := range []string{"a", "b"} {
		if p := c.message(); string(p.Payload) != want || p.Dup {
			t.Errorf("%+v, want %s", p, want)
		}
	}
	st.status("box", b.ID, mqttgw.StatusAcknowledged)
}

// What a client of a device leaves unanswered another one of the device gets, which is connected.
func TestCommandOfASessionThatEndsIsAnothers(t *testing.T) {
	dir := mqttgw.NewDirectory()
	dir.Set("box", device(t, `{"name":"box","password":{"value":"pw"},"clientIds":["box-*"]}`))
	st := newStation(t, func(o *mqttgw.Options) { o.Directory = dir })
	a := st.now.connect(packet.V5, "box-a", credentials("box", "pw"))
	a.subscribe(1, "devices/#")
	cmd := st.send(mqttgw.CommandSpec{Device: "box", QoS: 1})
	recv[*packet.Publish](a)
	b := st.now.connect(packet.V5, "box-b", credentials("box", "pw"))
	b.subscribe(1, "devices/#")
	b.nothing()
	a.Close()
	b.message()
	st.status("box", cmd.ID, mqttgw.StatusAcknowledged)
}

func TestCommandRefused(t *testing.T) {
	reg := prometheus.NewRegistry()
	st := newStation(t, func(o *mqttgw.Options) { o.Registerer = reg })
	c := st.now.connect(packet.V5, "box", func(p *packet.Connect) { p.Properties = p.Properties.AppendInt(packet.MaximumPacketSize, 100) })
	c.subscribe(2, "devices/#")
	large := st.send(mqttgw.CommandSpec{Device: "box", Payload: make([]byte, 200), QoS: 1})
	if got := st.status("box", large.ID, mqttgw.StatusRefused); got.Reason != "too-large" || !got.Final {
		t.Errorf("%+v", got)
	}
	for qos, kind := range map[byte]packet.Type{1: packet.TypePuback, 2: packet.TypePubrec} {
		cmd := st.send(mqttgw.CommandSpec{Device: "box", Payload: []byte("x"), QoS: qos})
		p := recv[*packet.Publish](c)
		c.send(&packet.Ack{Kind: kind, PacketID: p.PacketID, Code: packet.NotAuthorized})
		if got := st.status("box", cmd.ID, mqttgw.StatusRefused); got.Reason != "reason code 0x87" {
			t.Errorf("QoS %d: %+v", qos, got)
		}
	}
	c.nothing()
	if n := metric(t, reg, "rialto_mqtt_commands_total", mqttgw.StatusRefused); n != 3 {
		t.Errorf("%v refused, want 3", n)
	}
	if n := metric(t, reg, "rialto_mqtt_commands_waiting"); n != 0 {
		t.Errorf("%v wait, want none", n)
	}
}

func TestCommandExpires(t *testing.T) {
	st := newStation(t)
	waits := st.send(mqttgw.CommandSpec{Device: "box", Payload: []byte("x"), QoS: 1, Expiry: time.Second})
	c := st.now.connect(packet.V5, "away", kept)
	c.subscribe(1, "#")
	flies := st.send(mqttgw.CommandSpec{Device: "away", Payload: []byte("x"), QoS: 1, Expiry: time.Second})
	recv[*packet.Publish](c)
	c.Close()
	if got := st.status("box", waits.ID, mqttgw.StatusExpired); got.Reason != "" || !got.Final {
		t.Errorf("%+v", got)
	}
	if got := st.status("away", flies.ID, mqttgw.StatusExpired); got.Reason != "unacknowledged" || !got.Final {
		t.Errorf("%+v", got)
	}
	st.now.connect(packet.V5, "away", kept).nothing()
	c = st.now.connect(packet.V5, "box")
	c.subscribe(1, "#")
	c.nothing()
}

func TestCommandCancel(t *testing.T) {
	st := newStation(t)
	cmd := st.send(mqttgw.CommandSpec{Device: "box", Payload: []byte("x"), QoS: 1})
	for range 2 { // the second time it is cancelled already
		got, err := st.now.gateway.CancelCommand(t.Context(), "box", cmd.ID, "me")
		if err != nil || got.Status != mqttgw.StatusCancelled || got.Reason != "cancelled by me" {
			t.Fatalf("%+v, %v", got, err)
		}
	}
	c := st.now.connect(packet.V5, "box")
	c.subscribe(1, "#")
	c.nothing()
	cmd = st.send(mqttgw.CommandSpec{Device: "box", Payload: []byte("x"), QoS: 1})
	recv[*packet.Publish](c)
	if _, err := st.now.gateway.CancelCommand(t.Context(), "box", cmd.ID, "me"); fault.KindOf(err) != fault.Conflict {
		t.Errorf("cancel what was sent: %v", err)
	}
	if _, err := st.now.gateway.CancelCommand(t.Context(), "box", "no-such", "me"); fault.KindOf(err) != fault.NotFound {
		t.Errorf("cancel what is not there: %v", err)
	}
}

// The id of a command makes it one, whenever and however often it is sent.
func TestCommandOnce(t *testing.T) {
	st := newStation(t)
	spec := mqttgw.CommandSpec{Device: "box", ID: "job-1.7", Payload: []byte("x"), QoS: 1}
	const senders = 8
	answers := make(chan mqttgw.Command, senders)
	for range senders {
		go func() {
			c, err := st.now.gateway.SendCommand(t.Context(), spec)
			if err != nil {
				t.Error(err)
			}
			answers <- c
		}()
	}
	duplicates := 0
	for range senders {
		if c := <-answers; c.Position.Seq != 1 || c.ID != spec.ID {
			t.Errorf("%+v", c)
		} else if c.Duplicate {
			duplicates++
		}
	}
	if duplicates != senders-1 {
		t.Errorf("%d duplicates of %d", duplicates, senders)
	}
	c := st.now.connect(packet.V5, "box")
	c.subscribe(1, "#")
	c.message()
	st.status("box", spec.ID, mqttgw.StatusAcknowledged)
	st.restart()
	if got := st.send(spec); !got.Duplicate || got.Status != mqttgw.StatusAcknowledged {
		t.Errorf("%+v", got)
	}
	spec.Payload = []byte("another")
	if _, err := st.now.gateway.SendCommand(t.Context(), spec); fault.KindOf(err) != fault.Conflict {
		t.Errorf("another command with the id: %v", err)
	}
	spec.Device = "box-2"
	if got := st.send(spec); got.Duplicate {
		t.Errorf("the id is another device's: %+v", got)
	}
}

func TestCommandCaps(t *testing.T) {
	st := newStation(t, func(o *mqttgw.Options) { o.Limits.MaxDeviceCommands, o.Limits.MaxCommands = 2, 3 })
	send := func(device string) error {
		_, err := st.now.gateway.SendCommand(t.Context(), mqttgw.CommandSpec{Device: device})
		return err
	}
	for _, c := range []struct {
		device string
		ok     bool
	}{{"a", true}, {"a", true}, {"a", false}, {"b", true}, {"b", false}, {"c", false}} {
		err := send(c.device)
		if c.ok && err != nil || !c.ok && fault.KindOf(err) != fault.RateLimited {
			t.Errorf("command for %s: %v", c.device, err)
		}
	}
	st.restart()
	if err := send("c"); fault.KindOf(err) != fault.RateLimited {
		t.Errorf("after a start: %v", err)
	}
}

// A command that is sent again is the same one, also when its device can have no more.
func TestCommandOnceWhenThereIsNoRoom(t *testing.T) {
	st := newStation(t, func(o *mqttgw.Options) { o.Limits.MaxDeviceCommands = 1 })
	first := mqttgw.CommandSpec{Device: "box", ID: "first"}
	st.send(first)
	if _, err := st.now.gateway.CancelCommand(t.Context(), "box", "first", ""); err != nil {
		t.Fatal(err)
	}
	st.send(mqttgw.CommandSpec{Device: "box", ID: "second"})
	if got := st.send(first); !got.Duplicate || got.Status != mqttgw.StatusCancelled {
		t.Errorf("%+v, want the one that was cancelled", got)
	}
	if _, err := st.now.gateway.SendCommand(t.Context(), mqttgw.CommandSpec{Device: "box", ID: "third"}); fault.KindOf(err) != fault.RateLimited {
		t.Errorf("third: %v", err)
	}
}

// Whoever asks for commands when the gateway has stopped and the view is closed, as targets do that still deliver, is refused.
func TestCommandsAfterTheStop(t *testing.T) {
	st := newStation(t)
	sent := st.send(mqttgw.CommandSpec{Device: "box", ID: "1"})
	g := st.now.gateway
	st.now.stop()
	st.closeView()
	for range 20 {
		_, again := g.SendCommand(t.Context(), mqttgw.CommandSpec{Device: "box", ID: "1"})
		_, one := g.Command(t.Context(), "box", sent.ID)
		_, list := g.Commands(t.Context(), "box", "", "", 10)
		_, cancelled := g.CancelCommand(t.Context(), "box", sent.ID, "")
		for name, err := range map[string]error{"send": again, "one": one, "list": list, "cancel": cancelled} {
			if fault.KindOf(err) != fault.Unavailable {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

func TestCommandInvalid(t *testing.T) {
	st := newStation(t)
	for pointer, spec := range map[string]mqttgw.CommandSpec{
		"/device":         {},
		"/id":             {Device: "a", ID: "a b"},
		"/topic":          {Device: "a+b"},
		"/qos":            {Device: "a", QoS: 3},
		"/expiry":         {Device: "a", Expiry: time.Millisecond},
		"/contentType":    {Device: "a", ContentType: "a\x00"},
		"/responseTopic":  {Device: "a", ResponseTopic: "a/#"},
		"/correlation":    {Device: "a", Correlation: strings.Repeat("x", 2000)},
		"/userProperties": {Device: "a", UserProperties: [][2]string{{"a", strings.Repeat("x", 20_000)}}},
	} {
		_, err := st.now.gateway.SendCommand(t.Context(), spec)
		if fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), pointer+":") {
			t.Errorf("%s: %v", pointer, err)
		}
	}
	if _, err := st.now.gateway.SendCommand(t.Context(), mqttgw.CommandSpec{Device: "a", Payload: make([]byte, 2<<20)}); fault.KindOf(err) != fault.TooLarge {
		t.Errorf("2 MiB: %v", err)
	}
}

// A Device's name is the address of its client, whatever its client id is, and of nobody else who has the name as client id.
func TestCommandDevice(t *testing.T) {
	dir := mqttgw.NewDirectory()
	for _, doc := range []string{
		`{"name":"box","principal":"p","password":{"value":"pw"},"clientIds":["x-17"],"access":{"subscribe":["cmd/${clientid}/#"]}}`,
		`{"name":"mallory","password":{"value":"pw"}}`,
		`{"name":"bad","password":{"value":"pw"},"blocked":true}`,
	} {
		dev, err := mqttgw.ParseDevice([]byte(doc))
		if err != nil {
			t.Fatal(err)
		}
		dir.Set(dev.Name, dev)
	}
	st := newStation(t, func(o *mqttgw.Options) { o.Directory, o.Anonymous = dir, false })
	thief := st.now.connect(packet.V5, "box", credentials("mallory", "pw"))
	thief.subscribe(1, "#")
	cmd := st.send(mqttgw.CommandSpec{Device: "box", Topic: "cmd/x-17/open", QoS: 1})
	if cmd.Principal != "p" {
		t.Errorf("%+v", cmd)
	}
	thief.nothing()
	c := st.now.connect(packet.V5, "x-17", credentials("p", "pw"))
	c.subscribe(1, "cmd/x-17/#")
	c.message()
	st.status("box", cmd.ID, mqttgw.StatusAcknowledged)
	thief.nothing()
	for kind, spec := range map[fault.Kind]mqttgw.CommandSpec{
		fault.Invalid:  {Device: "box", Topic: "cmd/x-18/open"},
		fault.Conflict: {Device: "bad"},
	} {
		if _, err := st.now.gateway.SendCommand(t.Context(), spec); fault.KindOf(err) != kind {
			t.Errorf("%+v: %v, want %s", spec, err, kind)
		}
	}
	// More rights are a reason to look again.
	wide, err := mqttgw.ParseDevice([]byte(`{"name":"mallory","password":{"value":"pw"},"access":{"subscribe":["#"],"receive":["a"]}}`))
	if err != nil {
		t.Fatal(err)
	}
	dir.Set("mallory", wide)
	dir.Enforce()
	waiting := st.send(mqttgw.CommandSpec{Device: "mallory", Topic: "a", QoS: 1})
	if p := thief.message(); string(p.Topic) != "a" {
		t.Errorf("%+v", p)
	}
	st.status("mallory", waiting.ID, mqttgw.StatusAcknowledged)
}

// A device with several client ids gets what any of them may, also if one is its name.
func TestCommandForADeviceWithSeveralClientIDs(t *testing.T) {
	for _, ids := range []string{"", `,"clientIds":["box","box-*"]`} {
		d := defined(t, `{"name":"box","password":{"value":"pw"}`+ids+`,"access":{"subscribe":["cmd/${clientid}/#","all/#"]}}`,
			`{"name":"other","password":{"value":"pw"}`+ids+`,"access":{"subscribe":["all/#"]}}`)
		st := newStation(t, with(d))
		cmd := st.send(mqttgw.CommandSpec{Device: "box", Topic: "cmd/box-b/open", QoS: 1})
		c := st.now.connect(packet.V5, "box-b", credentials("box", "pw"))
		c.subscribe(1, "cmd/box-b/#")
		c.message()
		st.status("box", cmd.ID, mqttgw.StatusAcknowledged)
		if _, err := st.now.gateway.SendCommand(t.Context(), mqttgw.CommandSpec{Device: "other", Topic: "cmd/box-b/open"}); fault.KindOf(err) != fault.Invalid {
			t.Errorf("a command that no client id may receive: %v", err)
		}
	}
}

// Of two Devices of one principal a client is the one whose password it has shown, and gets the commands of no other.
func TestCommandForOneOfTwoPasswords(t *testing.T) {
	st := newStation(t, with(defined(t, `{"name":"one","principal":"p","password":{"value":"1"}}`, `{"name":"two","principal":"p","password":{"value":"2"}}`)))
	c := st.now.connect(packet.V5, "c", credentials("p", "2"))
	c.subscribe(1, "#")
	st.send(mqttgw.CommandSpec{Device: "one", QoS: 1, Payload: []byte("for one")})
	cmd := st.send(mqttgw.CommandSpec{Device: "two", QoS: 1, Payload: []byte("for two")})
	if m := c.message(); string(m.Payload) != "for two" {
		t.Errorf("got a command %q", m.Payload)
	}
	st.status("two", cmd.ID, mqttgw.StatusAcknowledged)
	c.nothing()
}

// A command is not refused for the rights that its device would have if it came another way.
func TestCommandForADeviceWithAToken(t *testing.T) {
	key := newTokenKey(t, "")
	d := defined(t, issuer(t, map[string]string{"pem": key.pem(t)}, `,"policy":"fleet"`), `{"name":"box-17","labels":{"site":"turin"}}`,
		`{"kind":"DevicePolicy","name":"fleet","access":{"subscribe":["devices/${principal}/#"]}}`, `{"kind":"DevicePolicy","name":"default","access":{}}`)
	st := newStation(t, with(d))
	cmd := st.send(mqttgw.CommandSpec{Device: "box-17", QoS: 1})
	c := st.now.connect(packet.V5, "c", credentials("u", key.token(t, nil)))
	c.subscribe(1, "devices/box-17/commands")
	c.message()
	st.status("box-17", cmd.ID, mqttgw.StatusAcknowledged)
}

// A client that shows a token with more rights gets the commands that waited for them.
func TestCommandAfterAnotherToken(t *testing.T) {
	key := newTokenKey(t, "")
	st := newStation(t, with(defined(t, issuer(t, map[string]string{"pem": key.pem(t)}, `,"attributeClaims":{"site":"site"},"policy":"site"`),
		`{"kind":"DevicePolicy","name":"site","access":{"subscribe":["#"],"receive":["${attr.site}/#"]}}`)))
	c := st.now.connect(packet.V5, "c", enhanced(key.token(t, nil)))
	c.subscribe(1, "#")
	cmd := st.send(mqttgw.CommandSpec{Device: "c", Topic: "genoa/open", QoS: 1})
	c.nothing()
	c.send(auth(packet.ReAuthenticate, "JWT", key.token(t, map[string]any{"site": "genoa"})))
	for range 2 { // in either order
		switch p := c.next().(type) {
		case *packet.Disconnect: // AUTH
		case *packet.Publish:
			c.send(&packet.Ack{Kind: packet.TypePuback, PacketID: p.PacketID})
		default:
			t.Fatalf("%T %+v", p, p)
		}
	}
	st.status("c", cmd.ID, mqttgw.StatusAcknowledged)
}

// What becomes of a command is an event, with an id that is the same when it is told again.
func TestCommandEvents(t *testing.T) {
	st := newStation(t)
	c := st.now.connect(packet.V5, "box 1")
	c.subscribe(1, "#")
	cmd := st.send(mqttgw.CommandSpec{Device: "box 1", Topic: "t", QoS: 1, Correlation: "job 7"})
	c.message()
	st.status("box 1", cmd.ID, mqttgw.StatusAcknowledged)
	events := func() (types, ids []string) {
		for _, rec := range st.bus.records() {
			if !strings.HasPrefix(rec.Event.Type, "io.rialto.command.") {
				continue
			}
			var d mqttgw.CommandData
			if err := json.Unmarshal(rec.Event.Data, &d); err != nil {
				t.Fatal(err)
			}
			if d.ID != cmd.ID || d.Device != "box 1" || d.Topic != "t" || d.Correlation != "job 7" || "io.rialto.command."+d.Status != rec.Event.Type ||
				rec.Event.Subject != "box%201" || d.Position != "DOWN:1" {
				t.Errorf("%+v %+v", rec.Event, d)
			}
			types, ids = append(types, d.Status), append(ids, rec.Event.ID)
		}
		return types, ids
	}
	want := []string{mqttgw.StatusSent, mqttgw.StatusAcknowledged}
	eventually(t, "events", func() bool { types, _ := events(); return len(types) >= 2 })
	types, ids := events()
	if !slices.Equal(types, want) || ids[0] == ids[1] {
		t.Fatalf("%v %v", types, ids)
	}
	st.forget()
	st.restart()
	eventually(t, "the events again", func() bool { types, _ := events(); return len(types) >= 4 })
	if types, again := events(); !slices.Equal(types[2:], want) || !slices.Equal(again[2:], ids) {
		t.Errorf("told again: %v %v, want %v", types, again, ids)
	}
}

// silentBus refuses events about commands.
type silentBus struct {
	mqttgw.Publisher
	refused chan struct{} // closed by the first
	once    sync.Once
}

func (b *silentBus) Publish(ctx context.Context, bus string, rec *event.Record, done func(error)) error {
	if strings.HasPrefix(rec.Event.Type, "io.rialto.command.") {
		b.once.Do(func() { close(b.refused) })
		return fault.New(fault.Full, "the bus is full")
	}
	return b.Publisher.Publish(ctx, bus, rec, done)
}

// While no event could be told yet, what becomes of commands is written down all the same, and can be read.
func TestCommandEventsThatCannotBeTold(t *testing.T) {
	var log strings.Builder
	refused := make(chan struct{})
	st := newStation(t, func(o *mqttgw.Options) {
		o.Publisher, o.Logger = &silentBus{Publisher: o.Publisher, refused: refused}, slog.New(slog.NewTextHandler(&log, nil))
	})
	c := st.now.connect(packet.V5, "box")
	c.subscribe(1, "#")
	cmd := st.send(mqttgw.CommandSpec{Device: "box", QoS: 1})
	c.message()
	st.status("box", cmd.ID, mqttgw.StatusAcknowledged)
	st.forget() // nothing is known of what was told, and everything is found at once
	refused = make(chan struct{})
	st.restart()
	<-refused
	if marked := st.now.gateway.MarkTold(); marked {
		t.Error("it is written that nothing was told")
	}
	other := st.send(mqttgw.CommandSpec{Device: "other"})
	if _, err := st.now.gateway.CancelCommand(t.Context(), "other", other.ID, ""); err != nil {
		t.Error(err)
	}
	st.now.stop()
	if strings.Contains(log.String(), "passed over") {
		t.Errorf("changes cannot be read: %s", log.String())
	}
}

// Pages of commands are whole and in order.
func TestCommandPages(t *testing.T) {
	st := newStation(t)
	var want []string
	for n := range 25 {
		want = append(want, st.send(mqttgw.CommandSpec{Device: "box", ID: fmt.Sprint("c", n)}).ID)
		st.send(mqttgw.CommandSpec{Device: "box2"})
	}
	slices.Reverse(want)
	var got []string
	for cursor := ""; ; {
		page, err := st.now.gateway.Commands(t.Context(), "box", "", cursor, 10)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range page.Items {
			got = append(got, c.ID)
		}
		if cursor = page.NextCursor; cursor == "" {
			break
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if page, err := st.now.gateway.Commands(t.Context(), "box", mqttgw.StatusSent, "", 10); err != nil || len(page.Items) > 0 {
		t.Errorf("%+v, %v", page, err)
	}
	if _, err := st.now.gateway.Commands(t.Context(), "box", "", "x", 10); fault.KindOf(err) != fault.Invalid {
		t.Errorf("a bad cursor: %v", err)
	}
}
