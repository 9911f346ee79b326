// SPDX-License-Identifier: Apache-2.0

package app_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	mqtt5 "github.com/eclipse/paho.golang/paho"
)

// A bus that keeps what is owed refuses producers with words of its own, over HTTP and MQTT, shows it, and takes events again when its
// target is back; none of those that it took is lost.
func TestAFullBusIsSaidAndHeals(t *testing.T) {
	sink := newSink(t, nil)
	s, _ := start(t, options(t.TempDir()))
	s.must("PUT", "/v1/buses/devices", `{"retention":{"maxBytes":"32MiB","overflow":"newest"}}`)
	target := func(paused bool) {
		s.must("PUT", "/v1/targets/sink", fmt.Sprintf(`{"type":"webhook","paused":%t,"config":{"url":%q}}`, paused, sink.URL))
	}
	target(true)
	s.rule("devices", "all", `{"type":["reading"]}`, "sink")
	nc, err := net.Dial("tcp", s.mqtt)
	if err != nil {
		t.Fatal(err)
	}
	device := mqtt5.NewClient(mqtt5.ClientConfig{Conn: nc})
	if _, err := device.Connect(context.Background(), &mqtt5.Connect{ClientID: "box", CleanStart: true, KeepAlive: 60}); err != nil {
		t.Fatal(err)
	}
	defer device.Disconnect(&mqtt5.Disconnect{}) //nolint:errcheck // the test is over
	pad := strings.Repeat("x", 1<<20-100)
	taken, status := 0, 0
	for ; taken < 40; taken++ {
		if status = s.publish("devices", fmt.Sprint("e", taken), "reading", fmt.Sprintf(`{"id":%d,"pad":%q}`, taken, pad)); status != http.StatusAccepted {
			break
		}
	}
	if status != http.StatusInsufficientStorage || taken < 30 {
		t.Fatalf("%d events, then %d", taken, status)
	}
	_, body := s.call("POST", "/v1/buses/devices/events", `{"pad":"`+pad+`"}`, "ce-specversion", "1.0", "ce-id", "no", "ce-source", "/t", "ce-type", "reading", "Content-Type", "application/json")
	if !strings.Contains(body, "urn:rialto:problem:full") || !strings.Contains(body, `bus \"devices\" is full`) || !strings.Contains(body, "32MiB") || !strings.Contains(body, "newest") {
		t.Errorf("answer %s", body)
	}
	codes := map[byte]int{} // what is left takes a few small ones
	for range 20 {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		res, _ := device.Publish(ctx, &mqtt5.Publish{Topic: "t", QoS: 1, Payload: []byte(pad[:200<<10])})
		cancel()
		if res == nil {
			t.Fatal("no PUBACK")
		}
		codes[res.ReasonCode]++
	}
	if codes[0x97] < 10 {
		t.Errorf("reasons %v", codes)
	}
	if doc := s.must("GET", "/v1/buses/devices", ""); !strings.Contains(doc, `"state":"full"`) || !strings.Contains(doc, `"overflow":`) {
		t.Errorf("bus %s", doc)
	}
	target(false)
	eventually(t, time.Minute, func() (string, bool) {
		doc := s.must("GET", "/v1/buses/devices", "")
		return doc, strings.Contains(doc, `"state":"room"`)
	})
	if status := s.publish("devices", "again", "reading", `{"id":"again"}`); status != http.StatusAccepted {
		t.Errorf("with room again: %d", status)
	}
	l := s.settled("devices", time.Minute)
	for _, d := range l.Deliveries {
		if d.Delivered != uint64(taken)+1 || d.Dead+d.Expired+d.Cancelled > 0 {
			t.Errorf("%d were taken: %+v", taken+1, d)
		}
	}
}
