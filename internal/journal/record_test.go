// SPDX-License-Identifier: Apache-2.0

package journal_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rialto-bridge/rialto/internal/journal"
)

var base = time.Date(2026, 3, 1, 10, 20, 30, 456e6, time.UTC)

// everything is one record of each sort, and some twice, so that distances are used.
func everything(e *journal.Encoder) []any {
	warm := journal.Route{Rule: "too-warm", Revision: 7, Target: "ops-webhook"}
	log := journal.Route{Rule: "all", Revision: 1 << 40, Target: "archive"}
	records := []any{
		journal.Routed{Seq: 100, Check: 0xdeadbeef, Hour: 493_000, Routes: []journal.Route{warm, log}},
		journal.Routed{Seq: 101, Check: 1, Hour: 493_000},
		journal.Routed{Seq: 99, Check: 2, Hour: 492_999, Routes: []journal.Route{log}},
		[2]uint64{200, 300},
		journal.Outcome{Seq: 100, Route: warm, State: journal.Delivered, Attempt: 1, At: base, Duration: 1234 * time.Microsecond, Status: 204,
			Exchange: journal.Exchange{Remote: "192.0.2.7:443", Reused: true, FirstByte: 1200 * time.Microsecond}},
		journal.Outcome{Seq: 101, Route: log, State: journal.Parked, Attempt: 2, At: base.Add(time.Second), Duration: time.Second, Status: 503,
			Reason: "status", Detail: "status 503", Due: base.Add(31 * time.Second),
			Exchange: journal.Exchange{Remote: "192.0.2.7:443", DNS: time.Millisecond, Connect: 2 * time.Millisecond, TLS: 3 * time.Millisecond,
				FirstByte: time.Second, Head: "HTTP/1.1 503 Service Unavailable\n\ndown"}},
		journal.Outcome{Seq: 102, Route: log, State: journal.Parked, Attempt: 2, At: base, Due: base,
			Exchange: journal.Exchange{DNS: time.Minute, Head: "HTTP/1.1 503 Service Unavailable\n\ndown"}},
		journal.Outcome{Seq: 99, Route: log, State: journal.Dead, Attempt: 10, At: base.Add(-time.Hour), Reason: "timeout", DeadSeq: 4},
		journal.Outcome{Seq: 99, Route: warm, State: journal.Cancelled, At: base, Reason: "rule_deleted"},
		journal.Pending{Seq: 5, Route: warm, Check: 9, Hour: 3, State: journal.Parked, Attempts: 3, Due: base, First: base.Add(-time.Minute)},
		journal.Pending{Seq: 6, Route: log, Check: 9, Hour: 3, State: journal.Live},
		journal.Mark{First: 77, Ruleset: 12, Part: 1, Rules: []journal.RuleRef{{Name: "too-warm", Revision: 7}, {Name: "all", Revision: 1 << 40}}},
		journal.RuleDoc{Name: "too-warm", Revision: 7, Raw: []byte(`{"name":"too-warm"}`)},
		uint64(98),
		journal.Redrive{Seq: 99, Route: log, Check: 2, Hour: 492_999, Was: journal.Dead, From: "ops-webhook", Dead: 4, Edited: 12, Job: 11,
			At: base, Due: base.Add(time.Second), By: "ci"},
		journal.Redrive{Seq: 101, Route: warm, Was: journal.Cancelled, At: base.Add(time.Hour), Due: base},
		journal.Discard{Seq: 100, Route: warm, Hour: 493_000, Dead: 5, Job: 12, At: base, By: "ci", Why: "of no use any more"},
		journal.Routed{Seq: 301, Check: 5, Hour: 493_001, Routes: []journal.Route{log}, Ranged: []journal.Route{warm, log}},
		journal.Routed{Seq: 302, Check: 6, Hour: 493_001, Ranged: []journal.Route{warm}},
		journal.Taking{Target: "ops-webhook", To: 303, At: base.Add(time.Hour), Deliveries: []journal.Taken{
			{Seq: 301, Route: warm, Check: 5, Hour: 493_001}, {Seq: 302, Route: warm, Check: 6, Hour: 493_002}}},
		journal.Taking{Target: "archive", To: 400, At: base},
		journal.Taking{Target: "archive", To: 410, At: base, Deliveries: []journal.Taken{{Seq: 401, Route: log, Key: 1 << 60}, {Seq: 402, Route: log}}},
		journal.Outcome{Seq: 402, Route: log, State: journal.Parked, At: base, Reason: "order", Due: base, Key: 77},
		journal.Drop{Rule: "too-warm"},
		journal.Drop{Target: "archive"},
		journal.Buried{Seq: 1 << 40, Listed: []byte("as the views list it")},
	}
	for _, r := range records {
		add(e, r)
	}
	return records
}

func add(e *journal.Encoder, r any) {
	switch r := r.(type) {
	case journal.Routed:
		e.Routed(r)
	case [2]uint64:
		e.Skipped(r[0], r[1])
	case journal.Outcome:
		e.Outcome(r)
	case journal.Pending:
		e.Pending(r)
	case journal.Mark:
		e.Mark(r)
	case journal.RuleDoc:
		e.RuleDoc(r)
	case uint64:
		e.Floor(r)
	case journal.Redrive:
		e.Redrive(r)
	case journal.Discard:
		e.Discard(r)
	case journal.Taking:
		e.Taking(r)
	case journal.Drop:
		e.Drop(r)
	case journal.Buried:
		e.Buried(r)
	}
}

func decode(b []byte) (out []any, err error) {
	keep := func(r any) error {
		switch v := r.(type) {
		case journal.Routed:
			v.Routes = append([]journal.Route(nil), v.Routes...)
			v.Ranged = append([]journal.Route(nil), v.Ranged...)
			r = v
		case journal.Taking:
			v.Deliveries = append([]journal.Taken(nil), v.Deliveries...)
			r = v
		case journal.Mark:
			v.Rules = append([]journal.RuleRef(nil), v.Rules...)
			r = v
		case journal.RuleDoc:
			v.Raw = append([]byte(nil), v.Raw...)
			r = v
		case journal.Buried:
			v.Listed = append([]byte(nil), v.Listed...)
			r = v
		}
		out = append(out, r)
		return nil
	}
	err = journal.Decode(b, journal.Visitor{
		Routed:  func(r journal.Routed) error { return keep(r) },
		Skipped: func(from, to uint64) error { return keep([2]uint64{from, to}) },
		Outcome: func(o journal.Outcome) error { return keep(o) },
		Pending: func(p journal.Pending) error { return keep(p) },
		Mark:    func(m journal.Mark) error { return keep(m) },
		RuleDoc: func(d journal.RuleDoc) error { return keep(d) },
		Floor:   func(seq uint64) error { return keep(seq) },
		Redrive: func(r journal.Redrive) error { return keep(r) },
		Discard: func(d journal.Discard) error { return keep(d) },
		Taking:  func(t journal.Taking) error { return keep(t) },
		Drop:    func(d journal.Drop) error { return keep(d) },
		Buried:  func(b journal.Buried) error { return keep(b) },
	})
	return out, err
}

func TestEveryRecordSurvives(t *testing.T) {
	var e journal.Encoder
	for range 2 { // the encoder is used again
		want := everything(&e)
		if e.Records() != len(want) {
			t.Errorf("Records() = %d, want %d", e.Records(), len(want))
		}
		got, err := decode(e.Take())
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("decoded records differ (-want +got):\n%s", d)
		}
	}
}

func TestMessagesStaySmall(t *testing.T) {
	var e journal.Encoder
	for i := range 1000 {
		e.Routed(journal.Routed{Seq: uint64(1_000_000 + i), Check: journal.Check(i), Hour: 493_000})
	}
	if per := len(e.Take()) / 1000; per > 9 {
		t.Errorf("an unmatched event costs %d bytes, want at most 9", per)
	}
	route := journal.Route{Rule: "too-warm", Revision: 7, Target: "ops-webhook"}
	for i := range 1000 {
		at := base.Add(time.Duration(i) * 7 * time.Millisecond)
		e.Outcome(journal.Outcome{Seq: uint64(1_000_000 + i), Route: route, State: journal.Parked, At: at, Reason: "status",
			Detail: "status 503", Due: at.Add(5 * time.Second), Attempt: 1, Status: 503})
	}
	if per := len(e.Take()) / 1000; per > 48 {
		t.Errorf("a parked delivery costs %d bytes, want at most 48", per)
	}
	for i := range 1000 {
		at := base.Add(time.Duration(i) * 7 * time.Millisecond)
		e.Outcome(journal.Outcome{Seq: uint64(1_000_000 + i), Route: route, State: journal.Delivered, At: at, Duration: 12 * time.Millisecond,
			Attempt: 1, Status: 204, Exchange: journal.Exchange{Remote: "192.0.2.7:443", Reused: true, FirstByte: 12 * time.Millisecond}})
	}
	if per := len(e.Take()) / 1000; per > 20 {
		t.Errorf("a delivered one costs %d bytes, want at most 20", per)
	}
}

// A target that fails with a large page each time costs the page once in a message, and ones that differ have a bound.
func TestHeadsHaveABound(t *testing.T) {
	var e journal.Encoder
	same := strings.Repeat("x", 16<<10)
	for i := range 1000 {
		head := same
		if i%2 == 0 {
			head = fmt.Sprint(i, same)
		}
		e.Outcome(journal.Outcome{Seq: uint64(i), State: journal.Parked, At: base, Due: base, Exchange: journal.Exchange{Head: head}})
	}
	b := e.Take()
	if max := 32<<10 + 500*(512+16) + 1000*16; len(b) > max {
		t.Errorf("%d bytes, want at most %d", len(b), max)
	}
	got, err := decode(b)
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range got {
		head := r.(journal.Outcome).Exchange.Head
		if i%2 == 1 && head != same || i%2 == 0 && i > 0 && (len(head) != 512 || !strings.HasPrefix(head, fmt.Sprint(i))) {
			t.Fatalf("head %d has %d bytes", i, len(head))
		}
	}
}

func TestDetailIsCutBetweenCharacters(t *testing.T) {
	var e journal.Encoder
	e.Outcome(journal.Outcome{Seq: 1, State: journal.Dead, At: base, Detail: strings.Repeat("é", 1000)})
	got, err := decode(e.Take())
	if err != nil {
		t.Fatal(err)
	}
	if d := got[0].(journal.Outcome).Detail; len(d) != 256 || strings.Trim(d, "é") != "" {
		t.Errorf("detail has %d bytes and ends in %q", len(d), d[len(d)-4:])
	}
}

func TestBrokenMessagesAreRefused(t *testing.T) {
	var e journal.Encoder
	everything(&e)
	whole := e.Take()
	for n := range whole {
		if _, err := decode(whole[:n]); err != nil && !errors.Is(err, journal.ErrFormat) {
			t.Fatalf("cut to %d bytes: %v, want ErrFormat or nothing", n, err)
		}
	}
	for name, b := range map[string][]byte{"empty": nil, "version": {9}, "kind": {2, '?'}, "route": {2, 'R', 2, 0, 0, 0, 1, 0, 1, 5},
		"old version": {1, 'F', 1}, "text": {2, 't', 0}} {
		if _, err := decode(b); !errors.Is(err, journal.ErrFormat) {
			t.Errorf("%s: %v, want ErrFormat", name, err)
		}
	}
}

func FuzzDecode(f *testing.F) {
	var e journal.Encoder
	everything(&e)
	f.Add(e.Take())
	e.Floor(1)
	f.Add(e.Take())
	f.Fuzz(func(t *testing.T, b []byte) {
		first, err := decode(b)
		if err != nil {
			if !errors.Is(err, journal.ErrFormat) {
				t.Fatalf("error %v is not ErrFormat", err)
			}
			return
		}
		// What was read can be written and read again.
		var e journal.Encoder
		for _, r := range first {
			switch r := r.(type) {
			case journal.Outcome:
				if len(r.Detail) > 256 || len(r.Exchange.Head) > 512 {
					return
				}
			case journal.Redrive:
				if len(r.By) > 256 {
					return
				}
			case journal.Discard:
				if len(r.By) > 256 || len(r.Why) > 256 {
					return
				}
			}
			add(&e, r)
		}
		if len(first) == 0 {
			return
		}
		again, err := decode(e.Take())
		if err != nil {
			t.Fatalf("written again: %v", err)
		}
		if d := cmp.Diff(first, again); d != "" {
			t.Fatalf("written again, it differs:\n%s", d)
		}
	})
}
