// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// How often each kind of line is told at most, so that a person can follow.
const (
	readingsPace = 2 * time.Second
	warmPace     = 1800 * time.Millisecond
	doorsPace    = 2500 * time.Millisecond
	ordersPace   = 4 * time.Second
	outagePace   = 1200 * time.Millisecond
	troublePace  = time.Second

	storyWidth = 96 // of the lines that are wrapped
)

// story prints what happens, one line for each interesting thing. Safe for concurrent use.
type story struct {
	run   string
	out   io.Writer
	paint palette
	hint  sync.Once // how to look closer is told once

	mu    sync.Mutex           // guards all below
	began time.Time            // zero before the first line with a time
	last  map[string]time.Time // when a kind of line was told last
	err   error                // the first failure to print
}

func newStory(run string, out io.Writer, paint palette) *story {
	return &story{run: run, out: out, paint: paint, last: make(map[string]time.Time)}
}

// begin starts the clock on the left.
func (s *story) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.began = time.Now()
}

// due reports whether a kind of line may be told now.
func (s *story) due(kind string, pace time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Since(s.last[kind]) >= pace
}

// say prints a line with its time, unless one of its kind was printed less than pace ago.
func (s *story) say(kind string, pace time.Duration, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if now.Sub(s.last[kind]) < pace {
		return
	}
	s.last[kind] = now
	stamp := fmt.Sprintf("%6.1f s", now.Sub(s.began).Seconds())
	s.write(s.paint.dim(stamp) + "  " + text + "\n")
}

// print prints text as it is.
func (s *story) print(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.write(text)
}

// write prints; mu is held.
func (s *story) write(text string) {
	if _, err := io.WriteString(s.out, text); err != nil && s.err == nil {
		s.err = err
	}
}

// failed returns why nothing more could be printed, if that happened.
func (s *story) failed() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// addresses are where everything listens.
type addresses struct {
	http, mqtt, hooks, keyFile string
	user, password             string
	notes                      []string // about listeners that are not where one expects them
}

// header says what there is, and gives a line to try for each listener.
func (s *story) header(o demoOptions, a addresses) {
	var b strings.Builder
	line := func(name, text string) {
		b.WriteString("  " + s.paint.dim(fmt.Sprintf("%-6s", name)) + " " + text + "\n")
	}
	fmt.Fprintf(&b, "%s: %s (half MQTT 3.1.1, half MQTT 5), a shop, three webhooks\n\n",
		s.paint.bold("rialto demo cold-chain"), plural(o.boxes, "box", "boxes"))
	for _, note := range a.notes {
		line("", s.paint.wait(note))
	}
	base := "http://" + a.http
	line("key", "export RIALTO_KEY=$(cat "+a.keyFile+")")
	if base != defaultURL {
		line("", "export RIALTO_URL="+base)
	}
	line("HTTP", s.paint.bold(base))
	line("", `curl -H "Authorization: Bearer $RIALTO_KEY" '`+base+`/v1/ledger?bus=devices'`)
	line("", ownName()+" tail --bus devices")
	line("MQTT", s.paint.bold(a.mqtt))
	line("", fmt.Sprintf(`mosquitto_pub %s -u %s -P %s -i box-99 -q 1 \`, a.mosquitto(), a.user, a.password))
	line("", `    -t fleet/99/box/1/telemetry -m '{"box": "99/1", "temperature": 9.5}'`)
	line("hooks", s.paint.bold(a.hooks))
	line("", "curl -i -d '{}' "+a.hooks+"/"+opsWebhook+"   (401: not signed)")
	var rules []string
	for _, w := range wires {
		rules = append(rules, w.rule+" -> "+w.endpoint)
	}
	line("rules", strings.Join(rules, ", "))
	ends := "Ctrl-C ends it, and prints the account."
	if o.length > 0 {
		ends = fmt.Sprintf("It ends after %s, or at Ctrl-C, and prints the account.", o.length)
	}
	b.WriteString("\n" + ends + "\n\n")
	s.print(b.String())
}

// mosquitto is how Mosquitto's clients are told where the MQTT listener is.
func (a addresses) mosquitto() string {
	host, port, err := net.SplitHostPort(a.mqtt)
	switch {
	case err != nil:
		return "-h " + a.mqtt
	case port == "1883":
		return "-h " + host
	}
	return "-h " + host + " -p " + port
}

// ownName is how this program can be called by the reader of the screen.
func ownName() string {
	if _, err := exec.LookPath("rialto"); err == nil {
		return "rialto"
	}
	return os.Args[0]
}

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

func (s *story) door(box string) {
	s.say("door", doorsPace, "door of box "+box+" opened")
}

// trouble says that a part of the simulation could not do its work; it will try again.
func (s *story) trouble(who string, err error) {
	s.say("trouble", troublePace, s.paint.bad(shorten(clean(fmt.Sprintf("%s: %v", who, err)), storyWidth-10)))
}

// readings tells how many readings a second are acknowledged, until ctx is done.
func (s *story) readings(ctx context.Context, f *fleet) {
	before, then := f.books.acknowledged(), time.Now()
	for wait(ctx, readingsPace) {
		now, acked := time.Now(), f.books.acknowledged()
		perSecond := float64(acked-before) / now.Sub(then).Seconds()
		before, then = acked, now
		s.say("readings", 0, s.paint.dim(fmt.Sprintf("%.0f readings per second from %s, %d stored", perSecond,
			plural(int(f.connected.Load()), "box", "boxes"), acked)))
	}
}

// note is an event that is worth a line.
type note struct {
	bus, id, rule string
	kind          string
	pace          time.Duration
	text          string
}

// noteworthy returns the note for an event of the log, if it is one of ours and its kind of line is due.
func (s *story) noteworthy(bus string, e eventHead) (note, bool) {
	n := note{bus: bus, id: e.ID}
	r, isReading := readingOf(e)
	switch {
	case isReading && r.Run == s.run && r.Temperature > tooWarm:
		n.rule, n.kind, n.pace = "too-warm", "warm", warmPace
		n.text = "box " + r.Box + " at " + s.paint.bold(fmt.Sprintf("%.1f C", r.Temperature))
	case e.Source == shopSource(s.run) && e.Type == orderType:
		var order struct {
			Order int     `json:"order"`
			Total float64 `json:"total"`
		}
		if json.Unmarshal(e.Data, &order) != nil {
			return n, false
		}
		n.rule, n.kind, n.pace = "orders", "order", ordersPace
		n.text = fmt.Sprintf("order %d over %.2f EUR", order.Order, order.Total)
	default:
		return n, false
	}
	return n, s.due(n.kind, n.pace)
}

// tell prints what happened to a noted event, as soon as the bridge's journey of it says so.
func (s *story) tell(ctx context.Context, cl *client, n note) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	for pause := 10 * time.Millisecond; wait(ctx, pause); pause = min(2*pause, 200*time.Millisecond) {
		j, err := cl.story(ctx, n.bus, n.id)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		for _, d := range j.Journey.Deliveries {
			if d.Rule == n.rule && len(d.Attempts) > 0 {
				s.say(n.kind, n.pace, n.text+" -> rule "+d.Rule+" -> "+s.result(d))
				if n.kind == "warm" {
					s.hint.Do(func() { s.say("hint", 0, s.paint.dim("see how: "+ownName()+" journey "+n.id)) })
				}
				return nil
			}
		}
	}
	return nil
}

// result is the last attempt of a delivery in a few words.
func (s *story) result(d deliveryStory) string {
	a := d.Attempts[len(d.Attempts)-1]
	outcome := clean(a.Reason)
	if a.Status != 0 {
		outcome = fmt.Sprint(a.Status)
	}
	if a.OK {
		outcome = s.paint.good(outcome)
	} else {
		outcome = s.paint.bad(outcome)
	}
	text := clean(d.Target) + " " + outcome + " in " + milliseconds(a.DurationMS)
	if d.State != "delivered" {
		text += ", " + clean(d.State)
	}
	return text
}

// account prints the statement at the end.
func (s *story) account(st statement) {
	var b strings.Builder
	b.WriteByte('\n')
	text := st.text
	if text != "" && st.settled() {
		text += " It adds up."
	}
	for _, l := range wrap(text, storyWidth) {
		b.WriteString(l + "\n")
	}
	for _, d := range st.differences {
		for i, l := range wrap("differs: "+clean(d), storyWidth-2) {
			if i > 0 {
				l = "  " + l
			}
			b.WriteString(s.paint.bad(l) + "\n")
		}
	}
	s.print(b.String())
}
