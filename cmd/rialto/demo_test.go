// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/rules"
)

// TestDemoColdChain plays the whole demo, small and short: it ends well, its account adds up in print, and the backlog
// of the outage was seen to drain.
func TestDemoColdChain(t *testing.T) {
	goroutines := goleak.IgnoreCurrent()
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	var out, errOut bytes.Buffer
	c := &cli{in: strings.NewReader(""), out: &out, err: &errOut, getenv: func(string) string { return "" }, http: &http.Client{}, now: time.Now}
	err := c.coldChain(t.Context(), demoOptions{length: 5 * time.Second, boxes: 10, http: "127.0.0.1:0", mqtt: "127.0.0.1:0"})
	text := out.String()
	if code := exitCode(err); code != exitOK || errOut.Len() > 0 {
		t.Fatalf("exit %d (%v), stderr:\n%s\nstdout:\n%s", code, err, errOut.String(), text)
	}
	for _, want := range []string{
		`(?m)^  HTTP   http://127\.0\.0\.1:\d+$`,
		`(?m)^  MQTT   127\.0\.0\.1:\d+$`,
		`curl -H "Authorization: Bearer \$RIALTO_KEY" 'http://127\.0\.0\.1:\d+/v1/ledger\?bus=devices'`,
		`mosquitto_pub -h 127\.0\.0\.1 -p \d+ `,
		`\d+ readings per second from 10 boxes, \d+ stored`,
		`door of box \d/\d opened`,
		`box \d/\d at \d+\.\d C -> rule too-warm -> ops-webhook 200 in \d`,
		`order \d+ over \d+\.\d\d EUR -> rule orders -> archive 200 in \d`,
		`see how: \S+ journey [0-9a-f-]{36}`,
		`maintenance answers 503: \d+ deliver(y|ies) parked`,
		`maintenance is back: [1-9]\d* parked`,
		`maintenance is back: 0 parked, drained in \d`,
		`It adds up\.\n$`,
	} {
		if !regexp.MustCompile(want).MatchString(text) {
			t.Errorf("the demo did not print %s", want)
		}
	}
	checkStatement(t, text)
	for _, line := range strings.Split(strings.NewReplacer(ownName(), "rialto", dir, "/tmp").Replace(text), "\n") {
		if n := len([]rune(line)); n > 100 {
			t.Errorf("a line of %d characters: %s", n, line)
		}
	}
	if strings.Contains(text, "\x1b") {
		t.Error("colour without a terminal")
	}
	if err := goleak.Find(goroutines); err != nil {
		t.Error(err)
	}
	if left, err := filepath.Glob(filepath.Join(dir, "*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	if t.Failed() {
		t.Log(text)
	}
}

// checkStatement computes the sums of the printed account again.
func checkStatement(t *testing.T, text string) {
	t.Helper()
	_, text, ok := strings.Cut(text, "\nThe boxes got ")
	if !ok {
		t.Fatal("there is no account")
	}
	text = strings.Join(strings.Fields(text), " ")
	numbers := func(pattern string) []int {
		m := regexp.MustCompile(pattern).FindStringSubmatch(text)
		if m == nil {
			t.Fatalf("the account does not say %s: %s", pattern, text)
		}
		var out []int
		for _, s := range m[1:] {
			n, err := strconv.Atoi(s)
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, n)
		}
		return out
	}
	log := numbers(`^(\d+) readings acknowledged, and the shop got 202 for (\d+) events?\. The log holds (\d+) events: (\d+) \+ (\d+) \+ (\d+) about boxes that come and go, lost (\d+)\.`)
	if log[0] != log[3] || log[1] != log[4] || log[0]+log[1]+log[5] != log[2] || log[6] != 0 || log[0] == 0 || log[1] == 0 {
		t.Errorf("log: %v", log)
	}
	accepted := 0
	for _, bus := range demoBuses {
		n := numbers(`Bus ` + bus + `: (\d+) accepted = (\d+) matched \+ (\d+) unmatched\.`)
		if n[0] != n[1]+n[2] {
			t.Errorf("bus %s: %v", bus, n)
		}
		accepted += n[0]
	}
	if accepted != log[2] {
		t.Errorf("the buses have %d events, the log %d", accepted, log[2])
	}
	owed := numbers(`Owed to webhooks (\d+) = (\d+) delivered \+ (\d+) dead \+ (\d+) pending; the receiver saw (\d+) by event id, lost (\d+)\.`)
	if owed[0] == 0 || owed[0] != owed[1] || owed[4] != owed[1] || owed[2]+owed[3]+owed[5] != 0 {
		t.Errorf("deliveries: %v", owed)
	}
}

// TestDemoEndsWhenAsked interrupts a demo that has no end.
func TestDemoEndsWhenAsked(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	ctx, interrupt := context.WithCancel(t.Context())
	r, w := io.Pipe()
	c := &cli{out: w, err: os.Stderr, getenv: func(string) string { return "" }, http: &http.Client{}, now: time.Now}
	ended := make(chan error, 1)
	go func() {
		err := c.coldChain(ctx, demoOptions{boxes: 2, http: "127.0.0.1:0", mqtt: "127.0.0.1:0"})
		w.CloseWithError(io.EOF)
		ended <- err
	}()
	seen := &strings.Builder{}
	buf := make([]byte, 4096)
	for {
		n, err := r.Read(buf)
		seen.Write(buf[:n])
		if err != nil {
			break
		}
		if strings.Contains(seen.String(), "opened") {
			interrupt()
		}
	}
	interrupt()
	if err := <-ended; err != nil || !strings.Contains(seen.String(), "It adds up.") {
		t.Errorf("ended with %v after:\n%s", err, seen)
	}
}

func TestDemoUsage(t *testing.T) {
	for _, c := range []struct {
		line string
		code int
		says string
	}{
		{"demo", exitOK, "cold-chain"},
		{"demo warm-chain", exitUsage, "no demo"},
		{"demo cold-chain --for 10ms", exitUsage, "--for"},
		{"demo cold-chain --boxes 0", exitUsage, "--boxes"},
		{"demo cold-chain extra", exitUsage, "fewer arguments"},
	} {
		got := rialtoIn(t, nil, "", strings.Fields(c.line)...)
		if got.code != c.code || !strings.Contains(got.out+got.err, c.says) {
			t.Errorf("%s: exit %d, %q; want exit %d and %q", c.line, got.code, got.out+got.err, c.code, c.says)
		}
	}
}

// TestDemoWires holds the patterns of the demo against their second form in Go.
func TestDemoWires(t *testing.T) {
	data := []string{`{"temperature":8}`, `{"temperature":8.1}`, `{"temperature":[1,9]}`, `{"temperature":"9"}`, `{"door":"open"}`,
		`{"door":["shut","open"],"temperature":12}`, `{"door":true}`, `[]`, `"open"`, `17`, ``, `{`}
	for _, w := range wires {
		doc, err := json.Marshal(map[string]any{"kind": "Rule", "name": w.rule, "bus": w.bus, "pattern": w.pattern,
			"targets": []any{map[string]any{"target": w.endpoint}}})
		if err != nil {
			t.Fatal(err)
		}
		rule, err := rules.ParseRule(doc)
		if err != nil {
			t.Fatalf("%s: %v", w.rule, err)
		}
		index, err := rules.Compile([]*rules.Rule{rule})
		if err != nil {
			t.Fatal(err)
		}
		for _, kind := range []string{readingType, orderType, "com.acme.other"} {
			for _, d := range data {
				ev := &event.Event{ID: "1", Source: "s", Type: kind, DataContentType: "application/json", Data: []byte(d)}
				matches, err := index.Match(ev, new(rules.Scratch), nil)
				if err != nil {
					t.Fatal(err)
				}
				if got, want := w.picks(eventHead{Type: kind, Data: json.RawMessage(d)}), len(matches) > 0; got != want {
					t.Errorf("%s, %s %s: the demo says %v, the bridge %v", w.rule, kind, d, got, want)
				}
			}
		}
	}
}

func TestDemoReceiver(t *testing.T) {
	var took []string
	r, err := newReceiver(func(endpoint, id string) { took = append(took, endpoint+" "+id) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	now := strconv.FormatInt(time.Now().Unix(), 10)
	sign := func(id, stamp, body string) string {
		mac := hmac.New(sha256.New, r.key)
		fmt.Fprintf(mac, "%s.%s.%s", id, stamp, body)
		return "v1,b3RoZXI= v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
	}
	for _, c := range []struct {
		name, path, body, id, stamp, signature, ceID string
		down                                         string
		want                                         int
	}{
		{"binary", "/" + opsWebhook, "{}", "m", now, sign("m", now, "{}"), "a%2Fb", "", 200},
		{"structured", "/" + archive, `{"id":"17"}`, "m", now, sign("m", now, `{"id":"17"}`), "", "", 200},
		{"another body", "/" + opsWebhook, "[]", "m", now, sign("m", now, "{}"), "x", "", 401},
		{"another id", "/" + opsWebhook, "{}", "n", now, sign("m", now, "{}"), "x", "", 401},
		{"unsigned", "/" + opsWebhook, "{}", "m", now, "", "x", "", 401},
		{"old", "/" + opsWebhook, "{}", "m", "1000", sign("m", "1000", "{}"), "x", "", 401},
		{"no event", "/" + archive, `{}`, "m", now, sign("m", now, `{}`), "", "", 400},
		{"out of order", "/" + maintenance, `{}`, "m", now, sign("m", now, `{}`), "x", maintenance, 503},
		{"others go on", "/" + opsWebhook, `{}`, "m", now, sign("m", now, `{}`), "x", maintenance, 200},
		{"nowhere", "/nowhere", `{}`, "m", now, sign("m", now, `{}`), "x", "", 404},
	} {
		r.mend()
		if c.down != "" {
			r.fail(c.down)
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.url()+c.path, strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header = http.Header{"Webhook-Id": {c.id}, "Webhook-Timestamp": {c.stamp}, "Webhook-Signature": {c.signature}}
		if c.ceID != "" {
			req.Header.Set("ce-id", c.ceID)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != c.want {
			t.Errorf("%s: %d, want %d", c.name, resp.StatusCode, c.want)
		}
	}
	if diff := cmp.Diff([]string{opsWebhook + " a/b", archive + " 17", opsWebhook + " x"}, took); diff != "" {
		t.Errorf("taken (-want +got):\n%s", diff)
	}
}

// TestDemoBooksDiffer shows that the account does not add up when something is missing on either side.
func TestDemoBooksDiffer(t *testing.T) {
	const run = "r1"
	order := func(id string) eventHead { return eventHead{ID: id, Source: shopSource(run), Type: orderType} }
	ledger := `{"bus":"default","balanced":true,"events":{"accepted":1,"matched":1},
		"deliveries":[{"rule":"orders","target":"archive","owed":1,"delivered":1}]}`
	for _, c := range []struct {
		name   string
		act    func(b *books)
		ledger string
		want   string // "" = settled
	}{
		{"all is well", func(*books) {}, ledger, ""},
		{"acknowledged and not in the log", func(b *books) { b.orderStored(orderKey(run, "2")) }, ledger, "acknowledged and not in the log"},
		{"stored twice", func(b *books) { b.enter(run, "default", order("1")) }, ledger, "stored or acknowledged twice"},
		{"stored without an answer", func(b *books) {
			b.unanswered()
			b.enter(run, "default", eventHead{ID: "2", Source: shopSource(run), Type: "x"})
		}, strings.Replace(ledger, `"accepted":1`, `"accepted":2`, 1), ""},
		{"stored and never sent", func(b *books) {
			b.enter(run, "default", eventHead{ID: "2", Source: shopSource(run), Type: "x"})
		}, strings.Replace(ledger, `"accepted":1`, `"accepted":2`, 1), "never acknowledged"},
		{"arrived twice", func(b *books) { b.arrived(archive, "1") }, ledger, ""},
		{"arrived and not owed", func(b *books) { b.arrived(archive, "9") }, ledger, "nobody owed"},
		{"a dead letter", func(b *books) {
			b.orderStored(orderKey(run, "2"))
			b.enter(run, "default", order("2"))
		}, `{"bus":"default","balanced":true,"events":{"accepted":2,"matched":2},
			"deliveries":[{"rule":"orders","target":"archive","owed":2,"delivered":1,"dead":1}]}`, ""},
		{"owed and said to be delivered", func(b *books) {
			b.orderStored(orderKey(run, "2"))
			b.enter(run, "default", order("2"))
		}, `{"bus":"default","balanced":true,"events":{"accepted":2,"matched":2},
			"deliveries":[{"rule":"orders","target":"archive","owed":2,"delivered":2}]}`, "the receiver saw 1"},
		{"unbalanced", func(*books) {}, strings.Replace(ledger, `"balanced":true`, `"balanced":false,"difference":3`, 1), "differs by 3"},
		{"pending", func(*books) {}, strings.Replace(ledger, `"delivered":1`, `"delivered":1,"pending":1`, 1), "still pending"},
		{"lost", func(*books) {}, strings.Replace(ledger, `"matched":1`, `"matched":1,"lost":1`, 1), "are lost"},
		{"not routed", func(*books) {}, strings.Replace(ledger, `"matched":1`, `"notYetRouted":1`, 1), "not routed yet"},
		{"the ledger is away", func(*books) {}, `{`, "cannot be read"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := serve(t, map[string]http.HandlerFunc{"GET /v1/ledger": says(200,
				`{"buses":[{"bus":"devices","balanced":true,"events":{}},`+c.ledger+`]}`)})
			cl, err := (&cli{url: s.URL, key: "k", http: s.Client()}).client()
			if err != nil {
				t.Fatal(err)
			}
			b := newBooks(cl)
			b.enter(run, "default", order("1"))
			b.orderStored(orderKey(run, "1"))
			b.arrived(archive, "1")
			c.act(b)
			st := b.close(t.Context())
			if got := strings.Join(st.differences, "\n"); (c.want == "") != st.settled() || !strings.Contains(got, c.want) {
				t.Errorf("differences: %q; want %q", got, c.want)
			}
		})
	}
}

func TestDemoPairs(t *testing.T) {
	p := newPairs()
	for i := range 2*rememberSettled + 10 {
		p.add(strconv.Itoa(i), side(i%2))
		p.add(strconv.Itoa(i), side(1-i%2))
	}
	p.add("a", promised)
	p.add("b", found)
	p.add("b", found)
	p.add(strconv.Itoa(2*rememberSettled), promised) // still remembered: a repeat
	if diff := cmp.Diff([]string{"a"}, p.lonely(promised)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"b"}, p.lonely(found)); diff != "" {
		t.Error(diff)
	}
	if p.both != 2*rememberSettled+10 || p.repeats != 2 || len(p.settled) != rememberSettled || len(p.order) != rememberSettled {
		t.Errorf("%d matched, %d repeats, %d remembered", p.both, p.repeats, len(p.settled))
	}
}
