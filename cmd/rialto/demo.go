// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/rialto-bridge/rialto/internal/app"
	"github.com/rialto-bridge/rialto/internal/egress"
)

const (
	maxBoxes   = 1000
	fleetUser  = "fleet"
	settleTime = 10 * time.Second // longest wait for what is under way at the end
	closeTime  = 10 * time.Second
)

// demoOptions are what the flags of demo say.
type demoOptions struct {
	length time.Duration // 0 = until Ctrl-C
	boxes  int

	http, mqtt string // where to listen; "" = the default ports when they are free
	program    string // rialto, where a demo runs it beside itself; "" = this one
}

func newDemo(c *cli) *cobra.Command {
	o := demoOptions{}
	cmd := &cobra.Command{
		Use:   "demo [NAME]",
		Short: "Show the whole bridge at work, and account for it at the end",
		Long: `Run a whole bridge in this process, with its data in a temporary directory, and simulated users
around it who know it by its listeners only.

cold-chain: fifty refrigerated boxes publish a reading each second over MQTT (half 3.1.1, half 5), and
a shop sends orders as CloudEvents over HTTP. Three rules pick the boxes that are too warm, the doors
that are open, and the orders, and send each to a webhook, one of which fails for a while.

saas: GitHub and Stripe send signed webhooks. Two rules pick issues that people open and large payments; the
CRM behind one of them is out of order for a while, so that deliveries die and are redriven at the end. One
request has a wrong signature and is refused.

edge: a plant with fifty tags, ten readings a second each, at a bridge at the edge; only alarms and averages go up
to a bridge in the cloud. The line between them is cut, the edge is killed, and both come back: what is fresh goes
first, and nothing is missing or there twice.

Ctrl-C, or --for, ends it: the boxes stop, everything owed is settled, and the account is printed. It
has to add up from both ends, or the exit code is 1. Without a name, demo lists what there is.`,
		Example: `  rialto demo cold-chain
  rialto demo cold-chain --for 15s --boxes 200
  rialto demo saas --for 15s
  rialto demo edge --for 40s`,
		Args: arguments(0, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) == 0:
				return writeTable(c.out, []string{"DEMO", "SHOWS"}, [][]string{
					{"cold-chain", "refrigerated boxes over MQTT, orders over HTTP, three rules, three webhooks"},
					{"saas", "webhooks of GitHub and Stripe, two rules, a CRM that fails, dead letters, a redrive"},
					{"edge", "a plant, an edge and a cloud; the line is cut, the edge is killed, and it adds up"}})
			case args[0] != "cold-chain" && args[0] != "saas" && args[0] != "edge":
				return usagef("there is no demo %q; rialto demo lists them", args[0])
			case o.length < 0 || o.length > 0 && o.length < time.Second:
				return usagef("--for is at least 1s, not %s", o.length)
			case o.boxes < 1 || o.boxes > maxBoxes:
				return usagef("--boxes is 1 to %d, not %d", maxBoxes, o.boxes)
			}
			switch args[0] {
			case "saas":
				return c.saas(cmd.Context(), o)
			case "edge":
				return c.edgeStory(cmd.Context(), o)
			}
			return c.coldChain(cmd.Context(), o)
		},
	}
	cmd.Flags().DurationVar(&o.length, "for", 0, "end by itself after this time, such as 15s (default: at Ctrl-C)")
	cmd.Flags().IntVar(&o.boxes, "boxes", 50, "how many refrigerated boxes")
	return cmd
}

// coldChain is one run of the demo: a bridge, and everybody around it.
type coldChain struct {
	o        demoOptions
	run      string // marks what is ours in the log
	dir      string
	app      *app.App
	http     *http.Client
	client   *client
	receiver *receiver
	books    *books
	story    *story
	fleet    *fleet
	shop     *shop
	notes    chan note

	stopFollowing context.CancelFunc
	following     sync.WaitGroup
}

// coldChain plays the demo until it is over or ctx is done, and returns an error if the account does not add up.
func (c *cli) coldChain(ctx context.Context, o demoOptions) error {
	return c.perform(ctx, &coldChain{o: o, notes: make(chan note, 4), stopFollowing: func() {}})
}

// demonstration is a demo between its opening and its account.
type demonstration interface {
	open(ctx context.Context, c *cli) error
	play(ctx context.Context) error   // until it is over or ctx is done
	settle(ctx context.Context) error // an error if the account does not add up
	close(ctx context.Context) error  // also after an open that failed
}

// perform plays a demo from beginning to end.
func (c *cli) perform(ctx context.Context, d demonstration) (err error) {
	defer func() {
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTime)
		defer cancel()
		err = errors.Join(err, d.close(stop))
	}()
	if err := d.open(ctx, c); err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("stopped before it began: %w", context.Cause(ctx))
		}
		return err
	}
	if err := d.play(ctx); err != nil {
		return err
	}
	return d.settle(context.WithoutCancel(ctx))
}

// open starts the bridge and the receiver, defines what is to be, and begins to read along.
func (d *coldChain) open(ctx context.Context, c *cli) (err error) {
	if d.run, err = randomText(); err != nil {
		return err
	}
	password, err := randomText()
	if err != nil {
		return err
	}
	d.story = newStory(d.run, c.out, palette(c.colour))
	var notes []string
	d.app, d.dir, notes, err = startDemo(ctx, c, &d.o, "cold-chain")
	if err != nil {
		return err
	}
	d.http = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 4, IdleConnTimeout: time.Minute}}
	d.client = &client{base: &url.URL{Scheme: "http", Host: d.app.HTTPAddr()}, key: d.app.AdminKey(), http: d.http}
	d.books = newBooks(d.client)
	if d.receiver, err = newReceiver(d.books.arrived); err != nil {
		return fmt.Errorf("webhook receiver: %w", err)
	}
	if d.shop, err = newShop(d.run, d.client, d.books, d.story); err != nil {
		return err
	}
	d.fleet = newFleet(d.o.boxes, d.run, credentials{d.app.MQTTAddr(), fleetUser, password}, d.books, d.story)
	d.follow(context.WithoutCancel(ctx))
	if err := define(ctx, d.client, d.receiver.url(), d.receiver.secret(), fleetUser, password); err != nil {
		return err
	}
	if err := inForce(ctx, d.client, d.shop); err != nil {
		return err
	}
	d.story.header(d.o, addresses{http: d.app.HTTPAddr(), mqtt: d.app.MQTTAddr(), hooks: d.receiver.url(),
		keyFile: filepath.Join(d.dir, "admin.key"), user: fleetUser, password: password, notes: notes})
	return nil
}

// startDemo starts the whole server, with its data in a directory of its own, which is there also beside an error. The notes
// say which listeners are not on their default port.
func startDemo(ctx context.Context, c *cli, do *demoOptions, name string) (a *app.App, dir string, notes []string, err error) {
	if dir, err = os.MkdirTemp("", "rialto-"+name+"-"); err != nil {
		return nil, "", nil, err
	}
	o := app.Options{Data: dir, Listen: do.http, MQTT: do.mqtt, Version: version,
		EgressAllow: []egress.Entry{{Prefix: netip.MustParsePrefix("127.0.0.0/8")}},
		Logger:      slog.New(slog.NewTextHandler(c.err, &slog.HandlerOptions{Level: slog.LevelError}))}
	for _, l := range []struct {
		name, preferred string
		addr            *string
	}{{"HTTP", "127.0.0.1:8080", &o.Listen}, {"MQTT", "127.0.0.1:1883", &o.MQTT}} {
		if *l.addr != "" {
			continue
		}
		*l.addr = l.preferred
		if !free(l.preferred) {
			*l.addr = "127.0.0.1:0"
			notes = append(notes, fmt.Sprintf("%s is in use, so %s listens on a free port", l.preferred, l.name))
		}
	}
	a, err = app.Start(ctx, o)
	return a, dir, notes, err
}

// free reports whether an address can be listened on.
func free(addr string) bool {
	ln, err := net.Listen("tcp", addr)
	return err == nil && ln.Close() == nil
}

func randomText() (string, error) {
	b := make([]byte, 8)
	_, err := rand.Read(b)
	return hex.EncodeToString(b), err
}

// follow reads the log of both buses until close.
func (d *coldChain) follow(ctx context.Context) {
	ctx, d.stopFollowing = context.WithCancel(ctx)
	for _, bus := range demoBuses {
		d.following.Go(func() {
			d.books.follow(ctx, d.run, bus, func(bus string, e eventHead) {
				n, ok := d.story.noteworthy(bus, e)
				if !ok {
					return
				}
				select {
				case d.notes <- n:
				default: // there is enough to tell
				}
			})
		})
	}
}

// play lets everybody act until ctx is done, the time is over or the bridge has failed. It returns when all have stopped.
func (d *coldChain) play(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	d.story.begin()
	var all sync.WaitGroup
	all.Go(func() { d.fleet.drive(ctx) })
	all.Go(func() { d.shop.trade(ctx) })
	all.Go(func() { d.outages(ctx, outageFor(d.o.length)) })
	all.Go(func() { d.story.readings(ctx, d.fleet) })
	all.Go(func() { d.narrate(ctx) })

	var over <-chan time.Time
	if d.o.length > 0 {
		timer := time.NewTimer(d.o.length)
		defer timer.Stop()
		over = timer.C
	}
	var err error
	select {
	case <-ctx.Done():
	case <-over:
	case err = <-d.app.Failed():
	}
	d.story.say("end", 0, "the boxes and the shop stop; what is owed is settled")
	cancel()
	all.Wait()
	return errors.Join(err, d.story.failed())
}

// narrate tells of the events that were noted.
func (d *coldChain) narrate(ctx context.Context) {
	for {
		select {
		case n := <-d.notes:
			if err := d.story.tell(ctx, d.client, n); err != nil {
				d.story.trouble("journey", err)
			}
		case <-ctx.Done():
			return
		}
	}
}

// settle waits until nothing is under way, and prints the account. It is an error if that does not add up.
func (d *coldChain) settle(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, settleTime)
	defer cancel()
	st := d.books.close(ctx)
	for !st.settled() && wait(ctx, 100*time.Millisecond) {
		if next := d.books.close(ctx); ctx.Err() == nil {
			st = next
		}
	}
	d.story.account(st)
	if !st.settled() {
		return fmt.Errorf("the account does not add up: %s", plural(len(st.differences), "difference", "differences"))
	}
	return d.story.failed()
}

// close stops everything that open started and removes the data.
func (d *coldChain) close(ctx context.Context) error {
	var errs []error
	d.stopFollowing()
	d.following.Wait()
	if d.app != nil {
		errs = append(errs, d.app.Close(ctx))
	}
	if d.receiver != nil {
		errs = append(errs, d.receiver.Close(ctx))
	}
	if d.http != nil {
		d.http.CloseIdleConnections()
	}
	if d.dir != "" {
		errs = append(errs, os.RemoveAll(d.dir))
	}
	return errors.Join(errs...)
}

// wait blocks for d, or until ctx is done, and reports whether it waited.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
