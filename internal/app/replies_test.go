// SPDX-License-Identifier: Apache-2.0

package app_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// stored waits until a bus has events of a type, and returns them.
func (s *server) stored(bus, typ string, want int) []json.RawMessage {
	s.t.Helper()
	var page struct{ Items []json.RawMessage }
	eventually(s.t, 10*time.Second, func() (string, bool) {
		answer := s.must("GET", "/v1/buses/"+bus+"/events?type="+typ, "")
		page.Items = nil
		if err := json.Unmarshal([]byte(answer), &page); err != nil {
			s.t.Fatal(err)
		}
		return answer, len(page.Items) >= want
	})
	if len(page.Items) != want {
		s.t.Errorf("bus %s has %d events of type %s, want %d: %s", bus, len(page.Items), typ, want, page.Items)
	}
	return page.Items
}

// A function that is called by HTTP replies; called again for the same delivery, whatever id it gives, its reply is stored once.
func TestFunctionOverHTTP(t *testing.T) {
	s, _ := start(t, options(t.TempDir()))
	var calls atomic.Int64
	fn := newSink(t, func(w http.ResponseWriter, r *http.Request, _ []byte) {
		h := w.Header()
		for name, value := range map[string]string{"ce-specversion": "1.0", "ce-id": fmt.Sprint("random-", calls.Add(1)), "ce-source": "/fn", "ce-type": "resized",
			"ce-rialtohops": r.Header.Get("ce-rialtohops"), "Content-Type": "application/json"} {
			h.Set(name, value)
		}
		io.WriteString(w, `{"ok":true}`)
	})
	if status, answer := s.call("PUT", "/v1/targets/fn", `{"type":"function","config":{"runtime":"http","url":"`+fn.URL+`","replyBus":"nowhere"}}`); status != http.StatusBadRequest || !strings.Contains(answer, `"/config/replyBus"`) {
		t.Errorf("a bus that is not there: %d %s", status, answer)
	}
	s.must("PUT", "/v1/targets/fn", `{"type":"function","config":{"runtime":"http","url":"`+fn.URL+`","replyBus":"devices"}}`)
	s.rule("default", "resize", `{"type":["uploaded"]}`, "fn")
	if status := s.publish("default", "1", "uploaded", `{}`); status != http.StatusAccepted {
		t.Fatal(status)
	}
	s.settled("default", 10*time.Second)
	first := s.stored("devices", "resized", 1)
	for _, want := range []string{`"causationid":"1"`, `"rialtohops":1`, `"source":"/fn"`, `"data":{"ok":true}`, `-0"`} {
		if !strings.Contains(string(first[0]), want) {
			t.Errorf("%s is not in %s", want, first[0])
		}
	}
	s.must("POST", "/v1/buses/default/events/1:redrive", `{"rule":"resize","target":"fn","delivered":true}`)
	eventually(t, 10*time.Second, func() (string, bool) { return fmt.Sprint(calls.Load(), " calls"), calls.Load() == 2 })
	s.settled("default", 10*time.Second)
	s.stored("devices", "resized", 1)
}

// A function whose replies come back to it ends after eight.
func TestFunctionOverHTTPLoop(t *testing.T) {
	s, _ := start(t, options(t.TempDir()))
	fn := newSink(t, func(w http.ResponseWriter, _ *http.Request, body []byte) {
		w.Header().Set("Content-Type", "application/cloudevents+json")
		w.Write(body) // the same event, with its id
	})
	s.must("PUT", "/v1/targets/echo", `{"type":"function","config":{"runtime":"http","url":"`+fn.URL+`","mode":"structured"}}`)
	s.rule("default", "echo", `{"type":["echo"]}`, "echo")
	s.publish("default", "1", "echo", `{}`)
	eventually(t, 20*time.Second, func() (string, bool) {
		letters := s.must("GET", "/v1/deadletters", "")
		return letters, strings.Contains(letters, "is there a loop?") && strings.Contains(letters, `"reason":"function"`)
	})
	s.settled("default", 10*time.Second)
	s.stored("default", "echo", 9)
}

// An event goes to another bus once, as its rule transforms it, and comes back to none.
func TestBusTarget(t *testing.T) {
	s, _ := start(t, options(t.TempDir()))
	if status, answer := s.call("PUT", "/v1/targets/far", `{"type":"bus","config":{"bus":"nowhere"}}`); status != http.StatusBadRequest || !strings.Contains(answer, `"/config/bus"`) {
		t.Errorf("a bus that is not there: %d %s", status, answer)
	}
	s.schema("Order", needsN, "order")
	s.must("PUT", "/v1/buses/far", `{"schemaPolicy":"reject"}`)
	s.must("PUT", "/v1/targets/far", `{"type":"bus","config":{"bus":"far"}}`)
	s.must("PUT", "/v1/targets/near", `{"type":"bus","config":{"bus":"default"}}`)
	s.must("PUT", "/v1/buses/default/rules/out", `{"kind":"Rule","name":"out","bus":"default","pattern":{"type":["order"]},"targets":[{"target":"far","transform":{"template":{"n":"${data.count}"}}}]}`)
	s.rule("far", "back", `{"type":["order"]}`, "near")
	if status, answer := s.call("DELETE", "/v1/buses/far", ""); status != http.StatusConflict || !strings.Contains(answer, "target far") {
		t.Errorf("a bus that a target names is deleted: %d %s", status, answer)
	}
	s.publish("default", "1", "order", `{"count":7}`)
	s.publish("default", "2", "order", `{"count":"many"}`)
	s.settled("default", 10*time.Second)
	s.settled("far", 10*time.Second)
	there := s.stored("far", "order", 1)
	for _, want := range []string{`"id":"1"`, `"source":"/test"`, `"rialtohops":1`, `"data":{"n":7}`} {
		if !strings.Contains(string(there[0]), want) {
			t.Errorf("%s is not in %s", want, there[0])
		}
	}
	s.stored("default", "order", 2) // it came back, and was there
	letters := s.must("GET", "/v1/deadletters", "")
	if strings.Count(letters, `"target":"far"`) != 1 || !strings.Contains(letters, "bus far: ") || !strings.Contains(letters, "/data/n") {
		t.Errorf("what the other bus refuses: %s", letters)
	}
	s.must("PUT", "/v1/buses/default/rules/own", `{"kind":"Rule","name":"own","bus":"default","pattern":{"type":["order"]},"targets":[{"target":"near"}]}`)
	s.publish("default", "3", "order", `{"count":8}`)
	eventually(t, 10*time.Second, func() (string, bool) {
		letters := s.must("GET", "/v1/deadletters", "")
		return letters, strings.Contains(letters, "the event is on the bus default: to be sent there again would be a loop")
	})
}

// Buses that send to each other, and forget at once what they had, end after eight.
func TestBusTargetLoop(t *testing.T) {
	s, _ := start(t, options(t.TempDir()))
	for bus, other := range map[string]string{"default": "devices", "devices": "default"} {
		s.must("PUT", "/v1/buses/"+bus, `{"dedupWindow":"0s"}`)
		s.must("PUT", "/v1/targets/to-"+bus, `{"type":"bus","config":{"bus":"`+bus+`"}}`)
		s.rule(other, "round", `{"type":["round"]}`, "to-"+bus)
	}
	s.publish("default", "1", "round", `{}`)
	eventually(t, 20*time.Second, func() (string, bool) {
		letters := s.must("GET", "/v1/deadletters", "")
		return letters, strings.Contains(letters, "is there a loop?")
	})
	s.settled("default", 10*time.Second)
	s.settled("devices", 10*time.Second)
	s.stored("default", "round", 5)
	s.stored("devices", "round", 4)
}

// An event for later is in the log when its time has come, by the clock of the machine.
func TestGateDelayOnTheRealClock(t *testing.T) {
	s, _ := start(t, options(t.TempDir()))
	const delay = 2 * time.Second
	sent := time.Now()
	answer := s.must("POST", "/v1/buses/default/events?delay=2s", `{"specversion":"1.0","id":"later","source":"/test","type":"reminder"}`, "Content-Type", "application/cloudevents+json")
	var kept struct{ Scheduled []struct{ At time.Time } }
	if err := json.Unmarshal([]byte(answer), &kept); err != nil || len(kept.Scheduled) != 1 || kept.Scheduled[0].At.Sub(sent.Add(delay)).Abs() > 500*time.Millisecond {
		t.Fatalf("kept as %s, %v", answer, err)
	}
	eventually(t, 10*time.Second, func() (string, bool) {
		status, answer := s.call("GET", "/v1/buses/default/events/later", "")
		return answer, status == http.StatusOK
	})
	if late := time.Since(kept.Scheduled[0].At); late < -time.Second || late > time.Second {
		t.Errorf("it was in the log %v after its time", late)
	}
}
