// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/paho"

	"github.com/rialto-bridge/rialto/internal/app"
)

// Commands from the command line, on a real bridge and with a real client.
func TestDeviceCommands(t *testing.T) {
	a, err := app.Start(t.Context(), app.Options{Data: t.TempDir(), Listen: "127.0.0.1:0", MQTT: "127.0.0.1:0", MQTTAnonymous: true, Reserve: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := a.Close(ctx); err != nil {
			t.Error(err)
		}
	}()
	env := map[string]string{"RIALTO_URL": "http://" + a.HTTPAddr(), "RIALTO_KEY": a.AdminKey()}
	call := func(want int, in string, args ...string) string {
		t.Helper()
		r := rialtoIn(t, env, in, append([]string{"devices"}, args...)...)
		if r.code != want {
			t.Fatalf("rialto devices %s: exit %d, want %d\n%s%s", strings.Join(args, " "), r.code, want, r.out, r.err)
		}
		return r.out
	}
	if out := call(exitOK, "", "command", "box", "--id", "c1", "--payload", "a", "--expiry", "1h"); out != "command c1 for box is queued\n" {
		t.Errorf("command: %s", out)
	}
	call(exitFailed, "", "command", "box", "--id", "c1", "--payload", "a", "--wait", "1ms")
	call(exitConflict, "", "command", "box", "--id", "c1", "--payload", "b")
	call(exitOK, "b\xff", "command", "box", "--id", "c2", "--file", "-")
	if out := call(exitOK, "", "commands", "box"); !strings.Contains(out, "c1") || !strings.Contains(out, "queued") {
		t.Errorf("commands:\n%s", out)
	}
	if out := call(exitOK, "", "commands", "cancel", "box", "c1"); out != "command c1 is cancelled\n" {
		t.Errorf("cancel: %s", out)
	}
	call(exitNotFound, "", "commands", "cancel", "box", "c9")
	call(exitUsage, "", "command", "box", "--payload", "a", "--file", "x")
	call(exitUsage, "", "command")

	nc, err := net.Dial("tcp", a.MQTTAddr())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	got := make(chan string, 8)
	c := paho.NewClient(paho.ClientConfig{Conn: nc, OnPublishReceived: []func(paho.PublishReceived) (bool, error){
		func(p paho.PublishReceived) (bool, error) {
			got <- string(p.Packet.Payload)
			return true, nil
		}}})
	if _, err := c.Connect(t.Context(), &paho.Connect{ClientID: "box", CleanStart: true, KeepAlive: 30}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Subscribe(t.Context(), &paho.Subscribe{Subscriptions: []paho.SubscribeOptions{{Topic: "devices/box/#", QoS: 1}}}); err != nil {
		t.Fatal(err)
	}
	if p := <-got; p != "b\xff" {
		t.Errorf("payload %q", p)
	}
	if out := call(exitOK, "", "command", "box", "--payload", "now", "--wait", "20s"); !strings.HasSuffix(out, " is acknowledged\n") {
		t.Errorf("wait: %s", out)
	}
	<-got
	if out := call(exitOK, "", "broadcast", "--online", "--payload", "all", "--dry-run"); out != "it would be for 1 device\n" {
		t.Errorf("dry run: %s", out)
	}
	call(exitUsage, "", "broadcast", "--labels", "x", "--payload", "all")
	call(exitFailed, "", "broadcast", "--payload", "all")
	if out := call(exitOK, "", "broadcast", "--online", "--payload", "all"); !strings.Contains(out, "broadcast-") {
		t.Errorf("broadcast: %s", out)
	}
	if p := <-got; p != "all" {
		t.Errorf("payload %q", p)
	}
	id := strings.Fields(strings.Split(call(exitOK, "", "broadcast", "list"), "\n")[1])[0]
	call(exitOK, "", "broadcast", "get", id)
	call(exitNotFound, "", "broadcast", "pause", "broadcast-99999")
}
