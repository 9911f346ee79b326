// SPDX-License-Identifier: Apache-2.0

package mqttgw_test

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/mqttgw"
	"github.com/rialto-bridge/rialto/mqttgw/packet"
)

// fleet is a station with devices box-00 to box-19, of which the even ones are in the north, and a blocked one.
func fleet(t testing.TB, with ...setup) *station {
	dir := mqttgw.NewDirectory()
	for n := range 20 {
		site := [2]string{"north", "south"}[n%2]
		dev, err := mqttgw.ParseDevice(fmt.Appendf(nil, `{"name":"box-%02d","labels":{"site":%q},"blocked":%v}`, n, site, n == 4))
		if err != nil {
			t.Fatal(err)
		}
		dir.Set(dev.Name, dev)
	}
	jobs := &memoryLog{}
	return newStation(t, append([]setup{func(o *mqttgw.Options) { o.Directory, o.Broadcasts = dir, jobs }}, with...)...)
}

func (st *station) broadcast(spec mqttgw.BroadcastSpec) mqttgw.Broadcast {
	st.t.Helper()
	b, err := st.now.gateway.Broadcast(st.t.Context(), spec)
	if err != nil {
		st.t.Fatal(err)
	}
	return b
}

// state waits until a broadcast is in a state.
func (st *station) state(id, want string) (b mqttgw.Broadcast) {
	st.t.Helper()
	eventually(st.t, "broadcast is "+want, func() bool {
		var err error
		if b, err = st.now.gateway.BroadcastByID(st.t.Context(), id); err != nil {
			st.t.Fatal(err)
		}
		return b.State == want
	})
	return b
}

// What keeps a broadcast from going on and is not for everybody to see stands in the log, once.
func TestBroadcastWaitsForAnErrorThatIsLogged(t *testing.T) {
	var log strings.Builder
	jobs := &memoryLog{}
	st := newStationOn(t, &station{}, &memoryLog{}, func(o *mqttgw.Options) {
		o.Broadcasts, o.Logger = jobs, slog.New(slog.NewTextHandler(&log, nil))
	})
	st.now.connect(packet.V5, "c")
	st.down.set(func() { st.down.fail = errors.New("the disk is on fire") })
	b := st.broadcast(mqttgw.BroadcastSpec{Select: mqttgw.Selection{Devices: []string{"box"}}})
	eventually(t, "it waits", func() bool {
		now, err := st.now.gateway.BroadcastByID(t.Context(), b.ID)
		return err == nil && now.Waiting != "" && !strings.Contains(now.Waiting, "fire")
	})
	st.down.set(func() { st.down.fail = nil })
	st.state(b.ID, mqttgw.BroadcastDone)
	st.now.stop()
	if strings.Count(log.String(), "the disk is on fire") != 1 {
		t.Errorf("the log says %s", log.String())
	}
}

func TestBroadcastSelects(t *testing.T) {
	st := fleet(t)
	st.now.connect(packet.V5, "box-03")
	st.now.connect(packet.V5, "guest-1")
	for _, c := range []struct {
		sel  mqttgw.Selection
		want int
	}{
		{mqttgw.Selection{All: true}, 21},
		{mqttgw.Selection{Labels: map[string]string{"site": "north"}}, 10},
		{mqttgw.Selection{Labels: map[string]string{"site": "north"}, ClientID: "box-1*"}, 5},
		{mqttgw.Selection{ClientID: "*-1"}, 1},
		{mqttgw.Selection{Online: true}, 1}, // box-03 has a Device of another principal: nobody is it
		{mqttgw.Selection{Devices: []string{"a", "b", "a"}}, 2},
		{mqttgw.Selection{Devices: []string{"a", "guest-1"}, Online: true}, 1},
	} {
		if n, err := st.now.gateway.PlanBroadcast(t.Context(), mqttgw.BroadcastSpec{Select: c.sel}); err != nil || n != c.want {
			t.Errorf("%+v selects %d, %v, want %d", c.sel, n, err, c.want)
		}
	}
	for _, spec := range []mqttgw.BroadcastSpec{
		{},
		{Select: mqttgw.Selection{All: true, Online: true}},
		{Select: mqttgw.Selection{All: true}, Rate: -1},
		{Select: mqttgw.Selection{All: true}, Batch: 5000},
		{Select: mqttgw.Selection{All: true}, Command: mqttgw.CommandSpec{Topic: "a/#"}},
		{Select: mqttgw.Selection{Devices: []string{"a"}, ClientID: "b"}},
	} {
		if _, err := st.now.gateway.PlanBroadcast(t.Context(), spec); fault.KindOf(err) != fault.Invalid {
			t.Errorf("%+v: %v", spec, err)
		}
	}
}

// A client has the mailbox of its Device and that of its client id; a broadcast puts one command into one of them.
func TestBroadcastReachesAClientOnce(t *testing.T) {
	d := defined(t, `{"name":"box-17","password":{"value":"x"},"labels":{"site":"north"}}`)
	st := newStation(t, with(d), func(o *mqttgw.Options) { o.Broadcasts, o.Anonymous = &memoryLog{}, true })
	c := st.now.connect(packet.V5, "serial-9", credentials("box-17", "x"))
	c.subscribe(1, "cmd/#")
	guest := st.now.connect(packet.V5, "serial-10")
	guest.subscribe(1, "cmd/#")
	for _, tt := range []struct {
		sel   mqttgw.Selection
		guest bool
	}{
		{mqttgw.Selection{All: true}, true},
		{mqttgw.Selection{Online: true}, true},
		{mqttgw.Selection{ClientID: "*"}, true},
		{mqttgw.Selection{ClientID: "serial-9"}, false},
		{mqttgw.Selection{ClientID: "box-17"}, false},
		{mqttgw.Selection{Labels: map[string]string{"site": "north"}}, false},
		{mqttgw.Selection{Labels: map[string]string{"site": "north"}, ClientID: "serial-*"}, false},
		{mqttgw.Selection{Labels: map[string]string{"site": "north"}, ClientID: "box-*", Online: true}, false},
		{mqttgw.Selection{Devices: []string{"box-17", "serial-9", "serial-10", "box-17"}}, true},
		{mqttgw.Selection{Devices: []string{"serial-9", "box-17"}, Online: true}, false},
	} {
		b := st.broadcast(mqttgw.BroadcastSpec{Select: tt.sel, Rate: 1000, Command: mqttgw.CommandSpec{Topic: "cmd/${device}", QoS: 1}})
		st.state(b.ID, mqttgw.BroadcastDone)
		if m := c.message(); string(m.Topic) != "cmd/box-17" {
			t.Errorf("%+v: %s", tt.sel, m.Topic)
		}
		c.nothing()
		if tt.guest {
			if m := guest.message(); string(m.Topic) != "cmd/serial-10" {
				t.Errorf("%+v: %s", tt.sel, m.Topic)
			}
		}
		guest.nothing()
	}
}

// A broadcast reaches every device once, whatever happens to the process meanwhile.
func TestBroadcastSurvives(t *testing.T) {
	st := fleet(t)
	b := st.broadcast(mqttgw.BroadcastSpec{Select: mqttgw.Selection{All: true}, Rate: 40, Batch: 3, Why: "w",
		Command: mqttgw.CommandSpec{Topic: "cmd/${device}", Payload: []byte("x"), QoS: 1, By: "me"}})
	if b.Total != 20 {
		t.Errorf("%+v", b)
	}
	for range 3 {
		eventually(t, "the first command is stored", func() bool {
			_, err := st.now.gateway.Command(t.Context(), "box-00", b.ID)
			return err == nil
		})
		st.kill()
	}
	if _, err := st.now.gateway.SetBroadcast(t.Context(), b.ID, mqttgw.BroadcastPaused, "me"); err != nil {
		t.Fatal(err)
	}
	st.restart()
	if got := st.state(b.ID, mqttgw.BroadcastPaused); got.Sent >= 20 {
		t.Errorf("%+v", got)
	}
	if _, err := st.now.gateway.SetBroadcast(t.Context(), b.ID, mqttgw.BroadcastRunning, "me"); err != nil {
		t.Fatal(err)
	}
	got := st.state(b.ID, mqttgw.BroadcastDone)
	if got.Sent != 19 || got.Skipped != 1 || got.Skip != "device box-04 is blocked" || !maps.Equal(got.Statuses, map[string]int{mqttgw.StatusQueued: 19}) {
		t.Errorf("%+v", got)
	}
	for n := range 20 {
		device := fmt.Sprintf("box-%02d", n)
		page, err := st.now.gateway.Commands(t.Context(), device, "", "", 10)
		if err != nil || n != 4 && (len(page.Items) != 1 || page.Items[0].Topic != "cmd/"+device || page.Items[0].By != "me") {
			t.Errorf("%s has %+v, %v", device, page.Items, err)
		}
	}
	if _, err := st.now.gateway.SetBroadcast(t.Context(), b.ID, mqttgw.BroadcastCancelled, "me"); fault.KindOf(err) != fault.Conflict {
		t.Errorf("cancel one that is done: %v", err)
	}
}

// How far a broadcast is is written down every few seconds, maybe for weeks: without its devices and what they are sent.
func TestBroadcastsThatGoOnWriteLittle(t *testing.T) {
	jobs := &memoryLog{}
	dir := mqttgw.NewDirectory()
	st := newStation(t, func(o *mqttgw.Options) { o.Directory, o.Broadcasts = dir, jobs })
	payload := strings.Repeat("x", 100<<10)
	b := st.broadcast(mqttgw.BroadcastSpec{Select: mqttgw.Selection{Devices: []string{"a", "b"}}, Rate: 1, Batch: 1, Why: "w", Command: mqttgw.CommandSpec{Payload: []byte(payload), QoS: 1}})
	eventually(t, "one has got it", func() bool {
		got, err := st.now.gateway.BroadcastByID(t.Context(), b.ID)
		return err == nil && got.Sent == 1
	})
	for _, state := range []string{mqttgw.BroadcastPaused, mqttgw.BroadcastRunning, mqttgw.BroadcastPaused} {
		if _, err := st.now.gateway.SetBroadcast(t.Context(), b.ID, state, "me"); err != nil {
			t.Fatal(err)
		}
	}
	st.restart()
	if got := st.state(b.ID, mqttgw.BroadcastPaused); got.Sent != 1 || got.Total != 2 || got.Why != "w" {
		t.Errorf("after a restart %+v", got)
	}
	if _, err := st.now.gateway.SetBroadcast(t.Context(), b.ID, mqttgw.BroadcastRunning, "me"); err != nil {
		t.Fatal(err)
	}
	c := st.now.connect(packet.V5, "b")
	c.subscribe(1, "#")
	if m := c.message(); string(m.Payload) != payload {
		t.Errorf("got %d bytes", len(m.Payload))
	}
	st.state(b.ID, mqttgw.BroadcastDone)
	st.now.stop()
	whole := 0
	for _, m := range jobs.msgs {
		if len(m.Data) > 1<<10 {
			whole++
		}
	}
	if whole != 1 || len(jobs.msgs) < 5 {
		t.Errorf("%d of %d messages are large", whole, len(jobs.msgs))
	}
}

// What is in the way of all makes it wait, what is in the way of one leaves that one out.
func TestBroadcastWaits(t *testing.T) {
	st := fleet(t, func(o *mqttgw.Options) { o.Limits.MaxDeviceCommands, o.Limits.MaxCommands = 1, 12 })
	first := st.send(mqttgw.CommandSpec{Device: "box-00"})
	b := st.broadcast(mqttgw.BroadcastSpec{Select: mqttgw.Selection{All: true}, Rate: 10_000})
	var got mqttgw.Broadcast
	eventually(t, "the broadcast waits", func() bool {
		var err error
		if got, err = st.now.gateway.BroadcastByID(st.t.Context(), b.ID); err != nil {
			t.Fatal(err)
		}
		return got.Waiting != ""
	})
	if got.Skip == "" || got.Sent > 11 || got.State != mqttgw.BroadcastRunning {
		t.Errorf("%+v", got)
	}
	if _, err := st.now.gateway.SetBroadcast(t.Context(), b.ID, mqttgw.BroadcastCancelled, "me"); err != nil {
		t.Fatal(err)
	}
	all, err := st.now.gateway.Broadcasts(t.Context())
	if err != nil || !slices.ContainsFunc(all, func(x mqttgw.Broadcast) bool { return x.ID == b.ID && x.State == mqttgw.BroadcastCancelled }) {
		t.Errorf("%+v, %v", all, err)
	}
	if _, err := st.now.gateway.CancelCommand(t.Context(), "box-00", first.ID, ""); err != nil {
		t.Error(err)
	}
}

// Of a Device in a list, the client ids count as the Device; and conditions hold for a Device by its client ids too.
func TestBroadcastKnowsClientIDsOfDevices(t *testing.T) {
	north := map[string]string{"site": "north"}
	d := defined(t, `{"name":"box-1","password":{"value":"x"},"labels":{"site":"north"},"clientIds":["serial-1","spare-*"]}`,
		`{"name":"box-2","password":{"value":"x"},"labels":{"site":"south"},"clientIds":["serial-2","both"]}`,
		`{"name":"box-3","password":{"value":"x"},"labels":{"site":"north"},"clientIds":["both"]}`,
		`{"name":"serial-4","password":{"value":"x"}}`, `{"name":"box-4","password":{"value":"x"},"clientIds":["serial-4"]}`)
	st := newStation(t, with(d), func(o *mqttgw.Options) { o.Broadcasts, o.Anonymous = &memoryLog{}, true })
	st.now.connect(packet.V5, "spare-7", credentials("box-1", "x"))
	st.now.connect(packet.V5, "guest-1")
	st.now.connect(packet.V5, "serial-2")
	for _, c := range []struct {
		sel  mqttgw.Selection
		want []string
	}{
		{mqttgw.Selection{Devices: []string{"serial-1", "box-1"}}, []string{"box-1"}}, // was never connected
		{mqttgw.Selection{Devices: []string{"spare-7", "box-1"}}, []string{"box-1"}},  // by a pattern, and connected
		{mqttgw.Selection{Devices: []string{"spare-8", "box-1"}}, []string{"box-1", "spare-8"}},
		{mqttgw.Selection{Devices: []string{"serial-1", "spare-7"}}, []string{"serial-1", "spare-7"}},
		{mqttgw.Selection{Devices: []string{"serial-2", "box-2"}}, []string{"box-2", "serial-2"}}, // a guest has the client id too
		{mqttgw.Selection{Devices: []string{"both", "box-2"}}, []string{"both", "box-2"}},
		{mqttgw.Selection{Devices: []string{"both", "box-2", "box-3"}}, []string{"box-2", "box-3"}},
		{mqttgw.Selection{Devices: []string{"serial-4", "box-4"}}, []string{"box-4", "serial-4"}}, // the name of a Device is that Device's
		{mqttgw.Selection{Labels: north, ClientID: "serial-*"}, []string{"box-1"}},
		{mqttgw.Selection{Labels: north, ClientID: "spare-7"}, []string{"box-1"}},
		{mqttgw.Selection{Labels: north, ClientID: "spare-*"}, []string{"box-1"}},
		{mqttgw.Selection{Labels: north, ClientID: "spare-8"}, nil},
		{mqttgw.Selection{Labels: north, ClientID: "box-?"}, nil},
		{mqttgw.Selection{Labels: north, ClientID: "guest-*"}, nil},
		{mqttgw.Selection{Labels: map[string]string{"site": "south"}, ClientID: "*-2"}, []string{"box-2"}},
		{mqttgw.Selection{ClientID: "both"}, []string{"box-2", "box-3"}},
		{mqttgw.Selection{ClientID: "guest-*"}, []string{"guest-1"}},
	} {
		b := st.broadcast(mqttgw.BroadcastSpec{Select: c.sel, Rate: 1000})
		st.state(b.ID, mqttgw.BroadcastDone)
		var got []string
		for _, device := range []string{"both", "box-1", "box-2", "box-3", "box-4", "guest-1", "serial-1", "serial-2", "serial-4", "spare-7", "spare-8"} {
			if _, err := st.now.gateway.Command(t.Context(), device, b.ID); err == nil {
				got = append(got, device)
			}
		}
		if !slices.Equal(got, c.want) || b.Total != len(c.want) {
			t.Errorf("%+v is for %q, %d in all, want %q", c.sel, got, b.Total, c.want)
		}
	}
}
