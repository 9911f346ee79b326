// SPDX-License-Identifier: Apache-2.0

package app_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	mqtt5 "github.com/eclipse/paho.golang/paho"
)

// smallDisk mounts a tmpfs of size bytes and returns its folder.
func smallDisk(t *testing.T, size int64) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", size)); err != nil {
		t.Fatalf("this test needs a small disk of its own; run it as root, so that it can mount a tmpfs: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Errorf("unmount: %v", err)
		}
	})
	return dir
}

// TestDiskFullIsSaidAndHeals fills a small disk: producers are refused in time, over HTTP and MQTT, while delivery and
// reading go on; when there is space again everything works without a restart, and nothing was lost.
func TestDiskFullIsSaidAndHeals(t *testing.T) {
	disk := smallDisk(t, 128<<20)
	ballast := filepath.Join(disk, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 48<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	o := options(filepath.Join(disk, "data"))
	o.Reserve = 32 << 20
	s, _ := start(t, o)
	sink := newSink(t, nil)
	s.target("sink", sink.URL, `{"concurrency":8}`)
	s.rule("default", "all", `{"type":["reading"]}`, "sink")
	nc, err := net.Dial("tcp", s.mqtt)
	if err != nil {
		t.Fatal(err)
	}
	device := mqtt5.NewClient(mqtt5.ClientConfig{Conn: nc})
	if _, err := device.Connect(context.Background(), &mqtt5.Connect{ClientID: "box", CleanStart: true, KeepAlive: 60}); err != nil {
		t.Fatal(err)
	}
	defer device.Disconnect(&mqtt5.Disconnect{}) //nolint:errcheck // the test is over
	mqttPublish := func() byte {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		res, err := device.Publish(ctx, &mqtt5.Publish{Topic: "t", QoS: 1, Payload: []byte("x")})
		if res == nil {
			t.Fatalf("MQTT publish: %v", err)
		}
		return res.ReasonCode
	}
	if code := mqttPublish(); code >= 0x80 {
		t.Fatalf("MQTT publish before the disk is full: reason 0x%02x", code)
	}

	var accepted []string
	fill := func() int {
		pad := strings.Repeat("x", 60<<10)
		for i := 0; i < 5000; i++ {
			id := fmt.Sprintf("e%d", len(accepted))
			body := fmt.Sprintf(`{"id":%q,"pad":%q}`, id, pad)
			switch status := s.publish("default", id, "reading", body); status {
			case http.StatusAccepted:
				accepted = append(accepted, body)
			default:
				return status
			}
		}
		return 0
	}
	if status := fill(); status != http.StatusInsufficientStorage {
		t.Fatalf("the producer got %d after %d events, want 507", status, len(accepted))
	}
	if code := mqttPublish(); code != 0x97 {
		t.Errorf("MQTT publish on a full disk: reason 0x%02x, want 0x97", code)
	}
	status, body := s.call("POST", "/v1/buses/default/events", "{}", "ce-specversion", "1.0", "ce-id", "no", "ce-source", "/t", "ce-type", "reading")
	if status != http.StatusInsufficientStorage || !strings.Contains(body, "urn:rialto:problem:full") {
		t.Errorf("answer %d %s", status, body)
	}
	var st syscall.Statfs_t
	if err := syscall.Statfs(disk, &st); err != nil {
		t.Fatal(err)
	}
	t.Logf("refused after %d events with %d MiB free", len(accepted), int64(st.Bavail)*st.Bsize>>20)
	// Delivery, its records, the views and reading go on in the reserve.
	eventually(t, time.Minute, func() (string, bool) {
		missing := sink.missing(accepted)
		return fmt.Sprintf("%d of %d not delivered", len(missing), len(accepted)), len(missing) == 0
	})
	s.settled("default", 20*time.Second)
	if s.event("default", "e0") == nil || s.event("default", fmt.Sprintf("e%d", len(accepted)-1)) == nil {
		t.Error("events cannot be read on a full disk")
	}

	before := len(accepted)
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	eventually(t, 20*time.Second, func() (string, bool) {
		status := s.publish("default", fmt.Sprint("again", time.Now().UnixNano()), "other", "{}")
		return fmt.Sprintf("with space again the producer gets %d", status), status == http.StatusAccepted
	})
	if code := mqttPublish(); code >= 0x80 {
		t.Errorf("MQTT publish with space again: reason 0x%02x", code)
	}
	if status := fill(); status != http.StatusInsufficientStorage || len(accepted) == before {
		t.Errorf("filled again: status %d after %d more", status, len(accepted)-before)
	}
	eventually(t, time.Minute, func() (string, bool) {
		missing := sink.missing(accepted)
		return fmt.Sprintf("%d of %d not delivered", len(missing), len(accepted)), len(missing) == 0
	})
	s.settled("default", 20*time.Second)
}
