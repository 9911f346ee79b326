// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rialto-bridge/rialto/internal/app"
)

// saas is one run of the demo: a bridge, two products that send webhooks to it, and the office that it sends to.
type saas struct {
	o       demoOptions
	dir     string
	app     *app.App
	http    *http.Client
	client  *client
	vendors *vendors
	office  *office
	began   time.Time

	mu  sync.Mutex // guards out
	out io.Writer
}

// saas plays the demo until it is over or ctx is done, and returns an error if the account does not add up.
func (c *cli) saas(ctx context.Context, o demoOptions) error {
	return c.perform(ctx, &saas{o: o, out: c.out, began: time.Now()})
}

// say prints a line of the story.
func (d *saas) say(who, format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	fmt.Fprintf(d.out, "%5.1fs  %-8s %s\n", time.Since(d.began).Seconds(), who, fmt.Sprintf(format, args...))
}

func (d *saas) open(ctx context.Context, c *cli) error {
	a, dir, notes, err := startDemo(ctx, c, &d.o, "saas")
	d.app, d.dir = a, dir
	if err != nil {
		return err
	}
	d.http = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 4, IdleConnTimeout: time.Minute}}
	d.client = &client{base: &url.URL{Scheme: "http", Host: a.HTTPAddr()}, key: a.AdminKey(), http: d.http}
	d.vendors = &vendors{base: "http://" + a.HTTPAddr(), http: d.http, owed: map[string]map[string]bool{crm: {}, finance: {}}}
	if d.vendors.githubSecret, err = randomText(); err != nil {
		return err
	}
	if d.vendors.stripeSecret, err = randomText(); err != nil {
		return err
	}
	d.vendors.stripeSecret = "whsec_" + d.vendors.stripeSecret
	if d.office, err = newOffice(); err != nil {
		return fmt.Errorf("webhook receiver: %w", err)
	}
	d.office.down.Store(true)
	for _, note := range notes {
		d.say("note", "%s", note)
	}
	d.say("bridge", "http://%s, hooks at /hooks/github and /hooks/stripe", a.HTTPAddr())
	return d.define(ctx)
}

// define writes the targets, the rules and the sources through the API, as every user would.
func (d *saas) define(ctx context.Context) error {
	hooks := "http://" + d.office.ln.Addr().String()
	secretOf := func(s string) map[string]any { return map[string]any{"value": s} }
	for _, doc := range []struct {
		path string
		body map[string]any
	}{
		{"targets/" + crm, map[string]any{"type": "webhook", "config": map[string]any{"url": hooks + "/" + crm},
			"delivery": map[string]any{"timeout": "5s", "breaker": map[string]any{"enabled": false},
				"retry": map[string]any{"schedule": []string{"500ms"}, "maxAttempts": 2}}}},
		{"targets/" + finance, map[string]any{"type": "webhook", "config": map[string]any{"url": hooks + "/" + finance}}},
		{"buses/default/rules/issues", map[string]any{"pattern": map[string]any{"type": []any{map[string]any{"prefix": "com.github.issues."}},
			"data": map[string]any{"sender": map[string]any{"login": []any{map[string]any{"anything-but": robot}}}}}, "targets": []any{map[string]any{"target": crm}}}},
		{"buses/default/rules/large-payments", map[string]any{"pattern": map[string]any{"type": []any{"com.stripe.charge.succeeded"},
			"data": map[string]any{"data": map[string]any{"object": map[string]any{"amount": []any{map[string]any{"numeric": []any{">=", largeAmount}}}}}}},
			"targets": []any{map[string]any{"target": finance}}}},
		{"sources/github", map[string]any{"type": "webhook", "config": map[string]any{"provider": "github", "secret": secretOf(d.vendors.githubSecret)}}},
		{"sources/stripe", map[string]any{"type": "webhook", "config": map[string]any{"provider": "stripe", "secret": secretOf(d.vendors.stripeSecret)}}},
	} {
		if _, err := d.client.do(ctx, request{Method: http.MethodPut, Path: "/v1/" + doc.path, Body: compact(doc.body), Header: http.Header{"Content-Type": {"application/json"}}}); err != nil {
			return fmt.Errorf("define %s: %w", doc.path, err)
		}
	}
	d.say("rules", "issues: type prefix com.github.issues., sender anything-but %s -> %s", robot, crm)
	d.say("rules", "large-payments: amount numeric >= %d -> %s", largeAmount, finance)
	return nil
}

// longestOutage is how long the CRM is out of order when the demo has no end.
const longestOutage = 6 * time.Second

// play lets everybody act until ctx is done, the time is over or the bridge has failed. It returns when all have stopped.
func (d *saas) play(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	outage := longestOutage
	var over <-chan time.Time
	if d.o.length > 0 {
		outage = min(outage, d.o.length*2/5)
		timer := time.NewTimer(d.o.length)
		defer timer.Stop()
		over = timer.C
	}
	var told error
	var all sync.WaitGroup
	all.Go(func() { d.vendors.drive(ctx, d.vendors.github) })
	all.Go(func() { d.vendors.drive(ctx, d.vendors.stripe) })
	all.Go(func() { told = d.story(ctx, outage) })
	var err error
	select {
	case <-ctx.Done():
	case <-over:
	case err = <-d.app.Failed():
	}
	d.say("end", "GitHub and Stripe stop; what is owed is settled")
	cancel()
	all.Wait()
	d.vendors.mu.Lock()
	defer d.vendors.mu.Unlock()
	return errors.Join(err, told, d.vendors.trouble)
}

// story is what happens beside the traffic: somebody forges a request, and the CRM is out of order for a while.
func (d *saas) story(ctx context.Context, outage time.Duration) error {
	d.say(crm, "answers 503: its database is migrating")
	if err := d.forge(ctx); err != nil {
		return err
	}
	for wait(ctx, outage) {
		a, err := d.ledger(context.WithoutCancel(ctx))
		if err != nil {
			return err
		}
		if deadOf(a) > 0 {
			d.mend()
			return nil
		}
		outage = 200 * time.Millisecond // until somebody has noticed
	}
	return nil
}

// mend brings the CRM back, if it is not there yet.
func (d *saas) mend() {
	if d.office.down.CompareAndSwap(true, false) {
		d.say(crm, "is back")
	}
}

// forge sends a request of GitHub's with another secret. It has to be refused, and nothing of it stored.
func (d *saas) forge(ctx context.Context) error {
	forger := &vendors{githubSecret: "a guess"}
	forged := forger.github(0)
	status, err := d.vendors.send(context.WithoutCancel(ctx), forged)
	if err != nil {
		return err
	}
	_, err = d.client.story(context.WithoutCancel(ctx), "default", forged.id)
	if status != http.StatusForbidden || exitCode(err) != exitNotFound {
		return fmt.Errorf("a forged request was answered %d, and looking for it gives %w", status, errors.Join(err))
	}
	d.say("forger", "a request of GitHub's with a wrong signature: 403, and it is not in the log")
	return nil
}

// settle waits until nothing is under way, redrives the dead letters, and prints the account.
func (d *saas) settle(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 2*settleTime, errors.New("it does not settle"))
	defer cancel()
	before, err := d.quiet(ctx, func(account) bool { return true })
	if err != nil {
		return err
	}
	dead := deadOf(before)
	d.say("bridge", "%s of %d for the %s: it said 503 to %s", plural(dead, "dead letter", "dead letters"), len(d.vendors.owed[crm]), crm, count(d.office.refusals(), "attempt"))
	d.mend()
	if dead > 0 {
		body := []byte(`{"filter":{"target":"` + crm + `"}}`)
		if _, err := d.client.do(ctx, request{Method: http.MethodPost, Path: "/v1/deadletters:redrive", Body: body, Header: http.Header{"Content-Type": {"application/json"}}}); err != nil {
			return fmt.Errorf("redrive: %w", err)
		}
		d.say("bridge", "rialto deadletters redrive --target %s", crm)
	}
	after, err := d.quiet(ctx, func(account) bool { return len(d.missing()) == 0 })
	if err != nil {
		return err
	}
	return d.account(after, dead)
}

func deadOf(a account) int {
	n := uint64(0)
	for _, l := range a.Deliveries {
		n += l.Dead
	}
	return int(n)
}

func (o *office) refusals() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.tries
}

// quiet waits until nothing is pending and also ok says so, and returns the ledger then. When the time is over it returns what
// there is: the account says what is wrong with it.
func (d *saas) quiet(ctx context.Context, ok func(account) bool) (account, error) {
	for {
		a, err := d.ledger(context.WithoutCancel(ctx))
		if err != nil {
			return a, err
		}
		pending := a.Events.NotYetRouted
		for _, l := range a.Deliveries {
			pending += l.Pending
		}
		if pending == 0 && ok(a) || !wait(ctx, 50*time.Millisecond) {
			return a, nil
		}
	}
}

// ledger is the account of the bus that everything is on.
func (d *saas) ledger(ctx context.Context) (account, error) {
	var answer struct {
		Buses []account `json:"buses"`
	}
	err := d.client.get(ctx, "/v1/ledger", url.Values{"bus": {"default"}}, &answer)
	if err == nil && len(answer.Buses) != 1 {
		err = errors.New("the ledger has no bus default")
	}
	if err != nil {
		return account{}, err
	}
	return answer.Buses[0], nil
}

// missing lists what is owed and has not arrived.
func (d *saas) missing() (out []string) {
	d.vendors.mu.Lock()
	defer d.vendors.mu.Unlock()
	d.office.mu.Lock()
	defer d.office.mu.Unlock()
	for endpoint, ids := range d.vendors.owed {
		for id := range ids {
			if !d.office.saw[endpoint][id] {
				out = append(out, endpoint+" "+id)
			}
		}
	}
	slices.Sort(out)
	return out
}

// strays lists what arrived and was not owed.
func (d *saas) strays() (out []string) {
	d.vendors.mu.Lock()
	defer d.vendors.mu.Unlock()
	d.office.mu.Lock()
	defer d.office.mu.Unlock()
	for endpoint, ids := range d.office.saw {
		for id := range ids {
			if !d.vendors.owed[endpoint][id] {
				out = append(out, endpoint+" "+id)
			}
		}
	}
	slices.Sort(out)
	return out
}

// account holds both ends against each other. It is an error if they differ.
func (d *saas) account(a account, redriven int) error {
	var differences []string
	differ := func(format string, args ...any) { differences = append(differences, fmt.Sprintf(format, args...)) }
	owed, pending := len(d.vendors.owed[crm])+len(d.vendors.owed[finance]), uint64(0)
	for _, l := range a.Deliveries {
		pending += l.Pending
	}
	if !a.Balanced || pending > 0 || a.Events.NotYetRouted > 0 || a.Events.Lost > 0 {
		differ("the ledger differs by %d, %d pending, %d not routed, %d lost", a.Difference, pending, a.Events.NotYetRouted, a.Events.Lost)
	}
	if a.Events.Accepted != uint64(d.vendors.stored) {
		differ("GitHub and Stripe got 2xx for %d, the log has %d", d.vendors.stored, a.Events.Accepted)
	}
	if a.Events.Matched != uint64(owed) {
		differ("%d are owed by the demo's own reading, and %d matched", owed, a.Events.Matched)
	}
	if m := d.missing(); len(m) > 0 {
		differ("%d have not arrived: %s", len(m), some(m))
	}
	if s := d.strays(); len(s) > 0 {
		differ("%d arrived that nobody owed: %s", len(s), some(s))
	}
	fmt.Fprintf(d.out, "\nGitHub and Stripe got 2xx for %s. Bus default: %d accepted = %d matched + %d unmatched. Of %d owed to the %s and %s, all but %d arrived; %d of them died first and were redriven.\n",
		count(d.vendors.stored, "request"), a.Events.Accepted, a.Events.Matched, a.Events.Unmatched, owed, crm, finance, len(d.missing()), redriven)
	if len(differences) > 0 {
		fmt.Fprintf(d.out, "%s\n", strings.Join(differences, "\n"))
		return fmt.Errorf("the account does not add up: %s", plural(len(differences), "difference", "differences"))
	}
	_, err := fmt.Fprintln(d.out, "It adds up.")
	return err
}

// close stops everything that open started and removes the data.
func (d *saas) close(ctx context.Context) error {
	var errs []error
	if d.app != nil {
		errs = append(errs, d.app.Close(ctx))
	}
	if d.office != nil {
		errs = append(errs, d.office.Close(ctx))
	}
	if d.http != nil {
		d.http.CloseIdleConnections()
	}
	if d.dir != "" {
		errs = append(errs, os.RemoveAll(d.dir))
	}
	return errors.Join(errs...)
}
