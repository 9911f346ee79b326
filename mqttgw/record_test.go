// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/mqttgw/packet"
)

// someRecords has one record of each kind with everything set, and a bare session.
func someRecords() []*record {
	at := time.UnixMilli(1_800_000_000_123).UTC()
	there := momentState{{"devices", 77}, {"fleet", 0}}
	p := progress{online: true, armed: true, deadline: at, due: at.Add(time.Second), streams: []streamState{{feed: "devices", lags: true, from: 7, exact: 3, ahead: []span{{8, 9}, {11, 1 << 40}}}, {feed: "fleet", from: 1 << 40}},
		flying: []flightState{{feed: "devices", seq: 9, id: 1}, {feed: "devices", seq: 10, id: 2}, {seq: 1 << 50, id: 65535, stage: stageReleased, topic: "a/b", group: "$share/g/t"}},
		scans:  []scanState{{"a/#", "a/b", there}, {"b/#", "", there}}}
	return []*record{
		{kind: recordSession, epoch: 1 << 63, fence: 5, state: sessionState{key: sessionKey{"p", "c\x00é"}, version: 5, expiry: never, uses: 12, open: []uint64{11, 9},
			subs: []subState{{"a/+", 2 | optNoLocal | optRetain | optLatest, 9, there}, {"b", 1, 0, there}, {"$share/g/t", 1, 0, nil}}, received: []receivedState{{7, 11}},
			will: &incoming{topic: "w", payload: []byte("x"), qos: 2, retain: true, props: packet.Properties(nil).AppendUser("k", "v"),
				by: &identity{via: viaToken, principal: "p", device: "d", policy: "o", attributes: map[string]string{"truck": "7", "a": ""}}},
			delay: 30, progress: p}},
		{kind: recordSession, state: sessionState{will: &incoming{topic: "w", payload: []byte{}}}},
		{kind: recordSession, state: sessionState{}},
		{kind: recordProgress, epoch: 2, fence: 1, state: sessionState{progress: p}},
		{kind: recordReceived, epoch: 2, id: 7, uses: 8},
		{kind: recordReleased, epoch: 2, id: 7},
		{kind: recordFlight, epoch: 2, flight: p.flying[1]},
		{kind: recordEnd, epoch: 2},
		{kind: recordGroup, group: groupState{"$share/g/t", []shareState{{streamState{feed: "devices", from: 4}, []uint64{1, 2, 300}}, {streamState{feed: "fleet", lags: true}, nil}}}},
		{kind: recordCut, cut: cutState{there, 1 << 63}},
		{kind: recordGroupEnd, group: groupState{filter: "$share/g/t"}},
	}
}

// checkpoint42 is a checkpoint in two feeds.
var checkpoint42 = momentState{{"devices", 42}, {"fleet", 1 << 40}}

func encodeRecords(checkpoint momentState, all []*record) []byte {
	b := beginRecords(nil, checkpoint)
	for _, r := range all {
		b = r.append(b)
	}
	return b
}

var recordOptions = cmp.Options{cmp.AllowUnexported(record{}, sessionState{}, progress{}, streamState{}, subState{}, receivedState{}, flightState{}, scanState{},
	groupState{}, shareState{}, markState{}, cutState{}, span{}, incoming{}, identity{}, sessionKey{}), cmpopts.EquateEmpty()}

func TestRecordsComeBack(t *testing.T) {
	want := someRecords()
	var got []*record
	checkpoint, err := decodeRecords(encodeRecords(checkpoint42, want), func(r *record) { got = append(got, r) })
	if err != nil || !slices.Equal(checkpoint, checkpoint42) {
		t.Fatalf("checkpoint %v, %v", checkpoint, err)
	}
	if d := cmp.Diff(want, got, recordOptions...); d != "" {
		t.Error(d)
	}
}

// A later version's kind of record is passed over; damage is an error and never half a record.
func TestRecordsOfAnotherTime(t *testing.T) {
	b := beginRecords(nil, checkpoint42)
	b = appendRecord(b, 'Z', func(b []byte) []byte { return append(b, "whatever"...) })
	b = (&record{kind: recordReleased, epoch: 2, id: 7}).append(b)
	n := 0
	if _, err := decodeRecords(b, func(*record) { n++ }); err != nil || n != 1 {
		t.Errorf("%d records, %v", n, err)
	}
	whole := encodeRecords(checkpoint42, someRecords()[:1])
	for n := range whole {
		if _, err := decodeRecords(whole[:n], func(*record) { t.Errorf("a record from %d of %d bytes", n, len(whole)) }); err == nil && n > len(beginRecords(nil, checkpoint42)) {
			t.Errorf("%d of %d bytes: no error", n, len(whole))
		}
	}
}

func FuzzRecords(f *testing.F) {
	f.Add(encodeRecords(checkpoint42, someRecords()))
	for _, r := range someRecords() {
		f.Add(encodeRecords(nil, []*record{r}))
	}
	f.Add([]byte{})
	f.Add([]byte{recordFormat, 0, 'S', 0xff, 0xff, 0xff, 0xff, 0x7f})
	f.Fuzz(func(t *testing.T, msg []byte) {
		var all []*record
		checkpoint, err := decodeRecords(msg, func(r *record) { all = append(all, r) })
		if err != nil {
			return
		}
		again := encodeRecords(checkpoint, all)
		var back []*record
		if _, err := decodeRecords(again, func(r *record) { back = append(back, r) }); err != nil {
			t.Fatalf("what was decoded does not come back: %v", err)
		}
		if !bytes.Equal(again, encodeRecords(checkpoint, back)) {
			t.Error("what comes back is something else")
		}
		// Whatever it says, it can be taken in.
		l := &loaded{sessions: map[uint64]*sessionState{}, fences: map[uint64]uint64{}, byKey: map[sessionKey]uint64{}, groups: map[string]*groupState{}}
		for _, r := range all {
			l.apply(r)
		}
	})
}

func FuzzRetained(f *testing.F) {
	rec := &event.Record{Minted: true, Event: event.Event{ID: "i", Source: "s", Type: "t", Data: []byte("x")}, MQTT: &event.Origin{Topic: "a", Retain: true, Version: 5}}
	f.Add(appendRetained(nil, retainedEntry{"fleet", eventlog.Entry{Seq: 7, Record: rec}}))
	f.Add([]byte{1})
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := decodeRetained(b)
		if err != nil {
			return
		}
		back, err := decodeRetained(appendRetained(nil, e))
		if err != nil {
			t.Fatalf("what was decoded does not come back: %v", err)
		}
		if back.feed != e.feed || back.Seq != e.Seq || !bytes.Equal(back.Record.Event.Data, e.Record.Event.Data) {
			t.Errorf("%+v came back as %+v", e, back)
		}
	})
}

func FuzzExactID(f *testing.F) {
	f.Add(exactID(1<<63, 7, 9))
	f.Add("0-0-0")
	f.Fuzz(func(t *testing.T, s string) {
		epoch, id, use, ok := parseExactID(s)
		if ok && exactID(epoch, id, use) != s {
			t.Errorf("%q has two forms", s)
		}
	})
}

// Records that a node writes after it has lost a session count for nothing.
func TestOlderClaimsAreFenced(t *testing.T) {
	l := &loaded{sessions: map[uint64]*sessionState{}, fences: map[uint64]uint64{}, byKey: map[sessionKey]uint64{}, groups: map[string]*groupState{}}
	k := sessionKey{"p", "c"}
	apply := func(r *record) { r.epoch = 9; l.apply(r) }
	apply(&record{kind: recordSession, fence: 1, state: sessionState{key: k, expiry: 10}})
	apply(&record{kind: recordSession, fence: 2, state: sessionState{key: k, expiry: 20}})
	apply(&record{kind: recordReceived, fence: 1, id: 1, uses: 1})
	apply(&record{kind: recordSession, fence: 1, state: sessionState{key: k, expiry: 30}})
	apply(&record{kind: recordEnd, fence: 1})
	if s := l.sessions[9]; s == nil || s.expiry != 20 || len(s.received) != 0 {
		t.Errorf("session %+v, want that of claim 2", s)
	}
	apply(&record{kind: recordEnd, fence: 2})
	if len(l.sessions)+len(l.byKey) != 0 {
		t.Error("the session is still there")
	}
}
