// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	plantBus     = "plant" // at both sites
	plantReading = "com.example.plant.reading"
	plantAverage = "com.example.plant.average"
	alarmAbove   = 90.0
	edgeLink     = "alarms-up"
)

// edgeDemo is one run of the demo: a bridge at the edge, one in the cloud, each in a process of its own, a line between them
// that is cut, and a plant beside the first.
type edgeDemo struct {
	o       demoOptions
	program string // rialto
	dir     string
	http    *http.Client
	began   time.Time

	cloud       *site
	cloudClient *client
	cloudKey    string
	line        *line
	edgeAt      atomic.Pointer[client] // where the edge listens now
	edge        *site
	plant       *plant
	seen        *cloudLog

	stopReading context.CancelFunc
	reading     sync.WaitGroup

	mu  sync.Mutex // guards out
	out io.Writer
}

// edgeStory plays the demo until it is over or ctx is done, and returns an error if the account does not add up.
func (c *cli) edgeStory(ctx context.Context, o demoOptions) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	if o.program != "" {
		program = o.program
	}
	return c.perform(ctx, &edgeDemo{o: o, program: program, out: c.out, began: time.Now(), stopReading: func() {}})
}

// say prints a line of the story.
func (d *edgeDemo) say(who, format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	fmt.Fprintf(d.out, "%5.1fs  %-6s %s\n", time.Since(d.began).Seconds(), who, fmt.Sprintf(format, args...))
}

func (d *edgeDemo) open(ctx context.Context, _ *cli) (err error) {
	if d.dir, err = os.MkdirTemp("", "rialto-edge-"); err != nil {
		return err
	}
	d.http = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 4, IdleConnTimeout: time.Minute}}
	d.cloud, err = startSite(ctx, d.program, "--data", filepath.Join(d.dir, "cloud"), "--listen", "127.0.0.1:0", "--mqtt", "off")
	if err != nil {
		return err
	}
	if d.line, err = newLine(d.cloud.http); err != nil {
		return err
	}
	if d.cloudClient, err = d.clientOf("cloud", d.cloud); err != nil {
		return err
	}
	if err := d.cloudClient.put(ctx, "buses/"+plantBus, map[string]any{}); err != nil {
		return err
	}
	if d.cloudKey, err = d.cloudClient.makeKey(ctx, "edge-7", "events:write:"+plantBus); err != nil {
		return err
	}
	if err := d.startEdge(ctx); err != nil {
		return err
	}
	if err := d.define(ctx); err != nil {
		return err
	}
	run, err := randomText()
	if err != nil {
		return err
	}
	d.plant = newPlant(run, d.edgeAt.Load, d.averageEvery())
	d.seen = &cloudLog{times: make(map[string]int), arrivals: make(map[string]time.Time)}
	d.follow(context.WithoutCancel(ctx))
	d.say("cloud", "http://%s, bus %s", d.cloud.http, plantBus)
	d.say("edge", "http://%s, --profile edge; link %s: readings above %g and averages, alarms first", d.edge.http, edgeLink, alarmAbove)
	return nil
}

// clientOf speaks to a site with the key that its first start made.
func (d *edgeDemo) clientOf(name string, s *site) (*client, error) {
	key, err := os.ReadFile(filepath.Join(d.dir, name, "admin.key"))
	if err != nil {
		return nil, err
	}
	return &client{base: &url.URL{Scheme: "http", Host: s.http}, key: strings.TrimSpace(string(key)), http: d.http}, nil
}

// startEdge starts the edge, again where it was if it was there before.
func (d *edgeDemo) startEdge(ctx context.Context) error {
	listen := "127.0.0.1:0"
	if d.edge != nil {
		listen = d.edge.http
	}
	s, err := startSite(ctx, d.program, "--data", filepath.Join(d.dir, "edge"), "--listen", listen, "--mqtt", "off", "--profile", "edge",
		"--egress-allow", "127.0.0.0/8")
	if err != nil {
		return err
	}
	d.edge = s
	cl, err := d.clientOf("edge", s)
	if err != nil {
		return err
	}
	d.edgeAt.Store(cl)
	return nil
}

// define writes the bus, the region and the link through the API, as every user would.
func (d *edgeDemo) define(ctx context.Context) error {
	above := map[string]any{"value": []any{map[string]any{"numeric": []any{">", alarmAbove}}}}
	alarms := map[string]any{"type": []any{plantReading}, "data": above}
	for _, doc := range []struct {
		path string
		body map[string]any
	}{
		{"buses/" + plantBus, map[string]any{}},
		{"regions/cloud", map[string]any{"url": "http://" + d.line.ln.Addr().String(), "key": map[string]any{"value": d.cloudKey}}},
		{"links/" + edgeLink, map[string]any{"region": "cloud", "bus": plantBus, "urgent": alarms,
			"pattern": map[string]any{"$or": []any{map[string]any{"type": []any{plantAverage}}, alarms}}}},
	} {
		if err := d.edgeAt.Load().put(ctx, doc.path, doc.body); err != nil {
			return err
		}
	}
	return nil
}

// put writes a definition.
func (cl *client) put(ctx context.Context, path string, body map[string]any) error {
	_, err := cl.do(ctx, request{Method: http.MethodPut, Path: "/v1/" + path, Body: compact(body), Header: http.Header{"Content-Type": {"application/json"}}})
	if err != nil {
		return fmt.Errorf("define %s: %w", path, err)
	}
	return nil
}

// makeKey makes a key and returns its secret.
func (cl *client) makeKey(ctx context.Context, name, scope string) (string, error) {
	a, err := cl.do(ctx, request{Method: http.MethodPost, Path: "/v1/keys", Header: http.Header{"Content-Type": {"application/json"}},
		Body: compact(map[string]any{"name": name, "scopes": []string{scope}})})
	if err != nil {
		return "", fmt.Errorf("make key %s: %w", name, err)
	}
	var made struct {
		Secret string `json:"secret"`
	}
	err = json.Unmarshal(a.Body, &made)
	return made.Secret, err
}

// follow reads the cloud's log until close.
func (d *edgeDemo) follow(ctx context.Context) {
	ctx, d.stopReading = context.WithCancel(ctx)
	d.reading.Go(func() {
		var last string
		for ctx.Err() == nil {
			_, err := d.cloudClient.follow(ctx, tailing{buses: []string{plantBus}, from: "EV_" + plantBus + ":1"}, &last, func(_ streamed, e eventHead) error {
				d.seen.enter(e.ID)
				return nil
			})
			if ctx.Err() == nil && err != nil {
				d.say("cloud", "its log is read again: %v", err)
			}
			wait(ctx, firstPause)
		}
	})
}

// length is how long the plant runs; without an end it is as long as a round of the story takes.
func (d *edgeDemo) length() time.Duration {
	if d.o.length > 0 {
		return d.o.length
	}
	return 40 * time.Second
}

// averageEvery is a minute of the plant, which is shorter in a short run.
func (d *edgeDemo) averageEvery() time.Duration { return min(time.Minute, d.length()/8) }

// play runs the plant, cuts the line, kills the edge, and brings both back, until ctx is done or the time is over.
func (d *edgeDemo) play(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var all sync.WaitGroup
	all.Go(func() { d.plant.run(ctx) })
	d.say("plant", "%d tags, %d readings a second; an average of each tag every %s", plantTags, plantTags*int(time.Second/plantScan), d.averageEvery())
	err := d.story(ctx, d.length())
	d.say("plant", "stops; what is owed goes up")
	cancel()
	all.Wait()
	return errors.Join(err, d.plant.failed())
}

// story is what happens in one run.
func (d *edgeDemo) story(ctx context.Context, length time.Duration) error {
	if !wait(ctx, length/4) {
		return nil
	}
	d.line.setCut(true)
	d.say("line", "is cut")
	defer d.line.setCut(false)
	if !wait(ctx, length/4) {
		return nil
	}
	d.say("edge", "SIGKILL")
	if err := d.edge.kill(); err != nil {
		return fmt.Errorf("kill the edge: %w", err)
	}
	if !wait(ctx, length/20) {
		return d.startEdge(context.WithoutCancel(ctx))
	}
	if err := d.startEdge(context.WithoutCancel(ctx)); err != nil {
		return err
	}
	d.say("edge", "is back, with all that it had acknowledged")
	if !wait(ctx, length/10) {
		return nil
	}
	waiting := len(d.plant.owed()) - d.seen.count()
	d.line.setCut(false)
	d.say("line", "is back; %d alarms and averages wait", waiting)
	if err := d.fresh(ctx); err != nil || ctx.Err() != nil {
		return err
	}
	if d.o.length == 0 {
		d.say("demo", "Ctrl-C ends it")
		<-ctx.Done()
		return nil
	}
	wait(ctx, length/4)
	return nil
}

// freshWithin is how long an alarm may take that is raised when the line is back.
const freshWithin = time.Second

// fresh raises an alarm and says how long it takes to the cloud, beside what waits.
func (d *edgeDemo) fresh(ctx context.Context) error {
	id, at, err := d.plant.raise(ctx)
	if err != nil {
		return err
	}
	for wait(ctx, 5*time.Millisecond) {
		arrived, ok := d.seen.arrival(id)
		switch {
		case ok:
			d.say("cloud", "a fresh alarm is there after %d ms", arrived.Sub(at).Milliseconds())
			return nil
		case time.Since(at) > freshWithin:
			return fmt.Errorf("a fresh alarm is not there after %s", freshWithin)
		}
	}
	return nil
}

// settle waits until everything owed has arrived, and prints the account. It is an error if that does not add up.
func (d *edgeDemo) settle(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 3*settleTime, errors.New("it does not settle"))
	defer cancel()
	owed := d.plant.owed()
	for len(d.seen.missing(owed)) > 0 && wait(ctx, 100*time.Millisecond) {
	}
	var ledger struct {
		Links []linkAccount `json:"links"`
	}
	for { // what is passed over is told now and then
		if err := d.edgeAt.Load().get(ctx, "/v1/ledger", url.Values{"bus": {plantBus}}, &ledger); err != nil {
			return err
		}
		if len(ledger.Links) == 1 && ledger.Links[0].Pending == 0 || !wait(ctx, 100*time.Millisecond) {
			break
		}
	}
	if err := writeLinkAccounts(d.out, ledger.Links); err != nil {
		return err
	}
	missing, repeats, foreign := d.seen.missing(owed), d.seen.repeats(), d.seen.foreign(owed)
	fmt.Fprintf(d.out, "\n%d readings and averages were acknowledged at the edge, %d of them alarms or averages.\nIn the cloud: %d by event id, %d missing, %d twice, %d that nobody sent. The line carried %d KiB up.\n",
		d.plant.stored(), len(owed), d.seen.count(), len(missing), repeats, foreign, d.line.passed()>>10)
	if len(missing) > 0 || repeats > 0 || foreign > 0 {
		return fmt.Errorf("the account does not add up: missing %s", some(missing))
	}
	if n := len(ledger.Links); n != 1 {
		return fmt.Errorf("the edge has the accounts of %d links, want one", n)
	}
	if l := ledger.Links[0]; l.Difference != 0 || l.Pending != 0 {
		return fmt.Errorf("the account of link %s differs by %d, and %d are pending", l.Link, l.Difference, l.Pending)
	}
	fmt.Fprintln(d.out, "It adds up.")
	return nil
}

// close stops everything that open started and removes the data.
func (d *edgeDemo) close(ctx context.Context) error {
	var errs []error
	d.stopReading()
	d.reading.Wait()
	for _, s := range []*site{d.edge, d.cloud} {
		if s != nil {
			errs = append(errs, s.stop(ctx))
		}
	}
	if d.line != nil {
		errs = append(errs, d.line.close())
	}
	if d.http != nil {
		d.http.CloseIdleConnections()
	}
	if d.dir != "" {
		errs = append(errs, os.RemoveAll(d.dir))
	}
	return errors.Join(errs...)
}
