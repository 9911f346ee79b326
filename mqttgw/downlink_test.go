// SPDX-License-Identifier: Apache-2.0

package mqttgw_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/mqttgw"
)

// downOn opens the stream DOWN of a log.
func downOn(t testing.TB, log *eventlog.Log, o mqttgw.DownlinkOptions) *mqttgw.Downlink {
	t.Helper()
	stream, err := log.Stream(t.Context(), eventlog.StreamConfig{Name: mqttgw.DownlinkStream, Subjects: mqttgw.DownlinkSubjects()})
	if err != nil {
		t.Fatal(err)
	}
	subjects, err := stream.TopicSubjects(t.Context(), mqttgw.DownlinkPrefix)
	if err != nil {
		t.Fatal(err)
	}
	o.Log, o.Subjects, o.Logger = stream, subjects.Of, quiet()
	return mqttgw.NewDownlink(o)
}

func openLog(t testing.TB, dir string, reserve int64) *eventlog.Log {
	t.Helper()
	log, err := eventlog.Open(t.Context(), eventlog.Options{Dir: dir, Durability: eventlog.OS, Reserve: reserve})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeLog(t, log) })
	return log
}

func closeLog(t testing.TB, log *eventlog.Log) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := log.Close(ctx); err != nil {
		t.Error(err)
	}
}

func downMessage(n int) *event.Record {
	return &event.Record{Event: event.Event{ID: fmt.Sprint(n), Source: "s", Type: "t", Data: fmt.Appendf(nil, "%d", n)},
		Received: time.Unix(1_800_000_000, 0), Minted: true, MQTT: &event.Origin{Topic: fmt.Sprintf("a/%d/c/d/e", n), QoS: 1, Version: 5}}
}

// What is published without a device is read in order, from memory and from the log, and commands are left out.
func TestDownlinkTail(t *testing.T) {
	dir := t.TempDir()
	log := openLog(t, dir, 1<<20)
	d := downOn(t, log, mqttgw.DownlinkOptions{})
	const messages = 100
	stored := make(chan error, 2*messages)
	for n := range messages {
		if err := d.Publish(t.Context(), downMessage(n), func(err error) { stored <- err }); err != nil {
			t.Fatal(err)
		}
		if err := mqttgw.PublishTo(d, "box 17", downMessage(n), func(err error) { stored <- err }); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 * messages {
		if err := <-stored; err != nil {
			t.Fatal(err)
		}
	}
	check := func(d *mqttgw.Downlink) {
		t.Helper()
		if err := d.Wait(t.Context(), 2*messages-1); err != nil || d.First() != 1 || d.Committed() != 2*messages {
			t.Fatalf("first %d, committed %d, %v", d.First(), d.Committed(), err)
		}
		var all []eventlog.Entry
		for from := uint64(1); from <= d.Committed(); {
			var err error
			if all, from, _, err = d.Scan(t.Context(), eventlog.ScanOptions{From: from, Max: 7}, all); err != nil {
				t.Fatal(err)
			}
		}
		if len(all) != messages {
			t.Fatalf("%d messages, want %d", len(all), messages)
		}
		for n, e := range all {
			if want := downMessage(n); e.Seq != uint64(2*n+1) || e.Record.MQTT.Topic != want.MQTT.Topic || string(e.Record.Event.Data) != string(want.Event.Data) {
				t.Fatalf("message %d is %+v", n, e)
			}
		}
	}
	if d.Hot() != 1 {
		t.Errorf("read from memory from %d on, want 1", d.Hot())
	}
	check(d)
	closeLog(t, log)
	d = downOn(t, openLog(t, dir, 1<<20), mqttgw.DownlinkOptions{})
	if d.Hot() != 2*messages+1 {
		t.Errorf("read from memory from %d on after a start, want %d", d.Hot(), 2*messages+1)
	}
	check(d)
}

// Messages to devices come from outside: a full disk refuses them, like events.
func TestDownlinkFull(t *testing.T) {
	d := downOn(t, openLog(t, t.TempDir(), 1<<60), mqttgw.DownlinkOptions{})
	if err := d.Publish(t.Context(), downMessage(1), func(error) {}); fault.KindOf(err) != fault.Full {
		t.Errorf("error %v, want %s", err, fault.Full)
	}
}
