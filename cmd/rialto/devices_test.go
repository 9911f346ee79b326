// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/paho"

	"github.com/rialto-bridge/rialto/internal/app"
)

// The whole life of a device, from its definition to its end, on a real bridge.
func TestDevices(t *testing.T) {
	a, err := app.Start(t.Context(), app.Options{Data: t.TempDir(), Listen: "127.0.0.1:0", MQTT: "127.0.0.1:0", Reserve: 1 << 20})
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
	call := func(want int, args ...string) string {
		t.Helper()
		r := rialtoIn(t, env, "", args...)
		if r.code != want {
			t.Fatalf("rialto %s: exit %d, want %d\n%s%s", strings.Join(args, " "), r.code, want, r.out, r.err)
		}
		return r.out
	}
	file := t.TempDir() + "/devices.yaml"
	writeFile(t, file, `kind: DevicePolicy
name: boxes
access: {publish: ["box/${clientid}/#"]}
---
kind: Device
name: box-17
password: {value: a long one}
policy: boxes
---
kind: TopicMapping
name: boxes
filter: box/+/#
type: com.example.box
`)
	call(exitOK, "apply", "-f", file)

	ended := make(chan struct{}, 1)
	connect := func() (*paho.Client, error) {
		nc, err := net.Dial("tcp", a.MQTTAddr())
		if err != nil {
			t.Fatal(err)
		}
		c := paho.NewClient(paho.ClientConfig{Conn: nc, OnServerDisconnect: func(*paho.Disconnect) { ended <- struct{}{} }})
		_, err = c.Connect(t.Context(), &paho.Connect{ClientID: "box-17", CleanStart: true, KeepAlive: 30, UsernameFlag: true, Username: "box-17",
			PasswordFlag: true, Password: []byte("a long one")})
		return c, err
	}
	c, err := connect()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Publish(t.Context(), &paho.Publish{Topic: "box/box-17/t", QoS: 1, Payload: []byte("1")}); err != nil {
		t.Error(err)
	}
	if r, err := c.Publish(t.Context(), &paho.Publish{Topic: "box/box-18/t", QoS: 1, Payload: []byte("1")}); err == nil || r.ReasonCode != 0x87 {
		t.Errorf("publish where it may not: %+v, %v", r, err)
	}
	if out := call(exitOK, "devices", "--online"); !strings.Contains(out, "box-17") || !strings.Contains(out, "online") {
		t.Errorf("devices:\n%s", out)
	}
	if out := call(exitOK, "devices", "get", "box-17"); !strings.Contains(out, "online: true") || strings.Contains(out, "argon2id") {
		t.Errorf("devices get:\n%s", out)
	}
	if out := call(exitOK, "get", "devices"); !strings.Contains(out, "online") {
		t.Errorf("get devices:\n%s", out)
	}
	if out := call(exitOK, "search", "--bus", "devices", "--type", "com.example.box"); !strings.Contains(out, "com.example.box") {
		t.Errorf("search:\n%s", out)
	}
	if out := call(exitOK, "devices", "disconnect", "box-17"); out != "1 connection ended\n" {
		t.Errorf("disconnect: %s", out)
	}
	<-ended
	if _, err := connect(); err != nil {
		t.Fatal(err)
	}
	if out := call(exitOK, "devices", "block", "box-17"); out != "box-17 is blocked\n" {
		t.Errorf("block: %s", out)
	}
	<-ended
	if _, err := connect(); err == nil {
		t.Error("a blocked device is let in")
	}
	if out := call(exitOK, "devices"); !strings.Contains(out, "offline: administrative") {
		t.Errorf("devices:\n%s", out)
	}
	if out := call(exitOK, "get", "devices"); !strings.Contains(out, "blocked") {
		t.Errorf("get devices:\n%s", out)
	}
	call(exitOK, "devices", "unblock", "box-17")
	if _, err := connect(); err != nil {
		t.Error(err)
	}
	if out := call(exitOK, "devices", "disconnect", "--principal", "box-17", "--client-id", "box-17"); out != "1 connection ended\n" {
		t.Errorf("disconnect: %s", out)
	}
	<-ended
	call(exitNotFound, "devices", "disconnect", "nobody")
	call(exitNotFound, "devices", "block", "nobody")
	call(exitUsage, "devices", "disconnect")
	call(exitUsage, "devices", "disconnect", "box-17", "--principal", "x")
	call(exitConflict, "delete", "devicepolicy", "boxes")
}

// What is known of a client that is away is printed, and nothing that is not.
func TestWriteClients(t *testing.T) {
	now := time.Date(2027, 3, 1, 12, 0, 0, 0, time.UTC)
	items := []json.RawMessage{
		json.RawMessage(`{"clientId":"on","principal":"p","online":true,"protocol":"5","address":"192.0.2.1","inFlight":1,"queued":2,"lastSeen":"2027-03-01T11:59:00Z"}`),
		json.RawMessage(`{"clientId":"kept","principal":"p","online":false,"protocol":"3.1.1","subscriptions":["a","b"],"inFlight":1,"behind":true}`),
		json.RawMessage(`{"clientId":"gone","principal":"","online":false,"reason":"client","lastSeen":"0001-01-01T00:00:00Z"}`),
	}
	var out strings.Builder
	if err := writeClients(&out, items, now); err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(out.String()) {
		got = append(got, strings.Join(strings.Fields(line), " "))
	}
	want := []string{
		"CLIENT ID PRINCIPAL DEVICE STATE ADDRESS MQTT FILTERS QUEUED LAST SEEN",
		"on p - online 192.0.2.1 5 0 3 1m ago",
		"kept p - offline - 3.1.1 2 1+ -",
		"gone - - offline: client - - - - -",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
