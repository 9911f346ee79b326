// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
)

// vendors are GitHub and Stripe as the demo plays them. They know the bridge by the URLs of its hooks and the secrets.
type vendors struct {
	base                       string
	githubSecret, stripeSecret string
	http                       *http.Client

	mu      sync.Mutex                 // guards below
	stored  int                        // answered with 2xx
	owed    map[string]map[string]bool // ids by endpoint, by the demo's own reading of the rules
	trouble error
}

const (
	crm     = "crm"
	finance = "finance"

	robot       = "dependabot[bot]"
	largeAmount = 10000 // cents
	vendorPace  = 150 * time.Millisecond
)

// delivery is a request of a vendor, and the endpoint that it is owed to; "" for none.
type delivery struct {
	hook, id, endpoint string
	body               []byte
	header             http.Header
}

func mac(secret string, parts ...[]byte) string {
	h := hmac.New(sha256.New, []byte(secret))
	for _, p := range parts {
		h.Write(p)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// github makes what GitHub sends: mostly issues, half of them by a robot, and pushes.
func (v *vendors) github(n int) delivery {
	d := delivery{hook: "github", id: event.NewID(), header: http.Header{}}
	sender := []string{"octocat", robot}[rand.IntN(2)]
	repository := map[string]any{"full_name": "acme/shop", "url": "https://api.github.com/repos/acme/shop"}
	if rand.IntN(4) == 0 {
		d.header.Set("X-GitHub-Event", "push")
		d.body = compact(map[string]any{"ref": "refs/heads/main", "after": hex.EncodeToString([]byte(d.id))[:40], "repository": repository, "sender": map[string]any{"login": sender}})
	} else {
		action := []string{"opened", "closed", "labeled"}[rand.IntN(3)]
		d.header.Set("X-GitHub-Event", "issues")
		d.body = compact(map[string]any{"action": action, "issue": map[string]any{"number": n, "title": fmt.Sprint("Found a bug, number ", n), "updated_at": time.Now().UTC().Format(time.RFC3339)},
			"repository": repository, "sender": map[string]any{"login": sender}})
		if sender != robot {
			d.endpoint = crm
		}
	}
	d.header.Set("X-GitHub-Delivery", d.id)
	d.header.Set("X-Hub-Signature-256", "sha256="+mac(v.githubSecret, d.body))
	return d
}

// stripe makes what Stripe sends: charges of all sizes.
func (v *vendors) stripe(n int) delivery {
	d := delivery{hook: "stripe", id: "evt_" + event.NewID(), header: http.Header{}}
	amount := 500 + rand.IntN(3*largeAmount)
	d.body = compact(map[string]any{"id": d.id, "object": "event", "type": "charge.succeeded", "created": time.Now().Unix(), "livemode": false,
		"data": map[string]any{"object": map[string]any{"id": fmt.Sprint("ch_", n), "object": "charge", "amount": amount, "currency": "eur", "paid": true}}})
	if amount >= largeAmount {
		d.endpoint = finance
	}
	stamp := strconv.FormatInt(time.Now().Unix(), 10)
	d.header.Set("Stripe-Signature", "t="+stamp+",v1="+mac(v.stripeSecret, []byte(stamp+"."), d.body))
	return d
}

func compact(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // maps of text and numbers always marshal
	}
	return b
}

// send sends a delivery and returns the status.
func (v *vendors) send(ctx context.Context, d delivery) (int, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, requestTimeout, errors.New("no answer in time"))
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, v.base+"/hooks/"+d.hook, bytes.NewReader(d.body))
	if err != nil {
		return 0, err
	}
	req.Header = d.header.Clone()
	req.Header.Set("Content-Type", "application/json")
	resp, err := v.http.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close() // only read
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return 0, err
	}
	return resp.StatusCode, nil
}

// drive sends deliveries, one after the other, until ctx is done.
func (v *vendors) drive(ctx context.Context, next func(n int) delivery) {
	for n := 1; wait(ctx, vendorPace); n++ {
		d := next(n)
		status, err := v.send(context.WithoutCancel(ctx), d)
		v.mu.Lock()
		switch {
		case err == nil && status < 300:
			v.stored++
			if d.endpoint != "" {
				v.owed[d.endpoint][d.id] = true
			}
		case v.trouble == nil:
			v.trouble = fmt.Errorf("%s got %d for a good request: %w", d.hook, status, errors.Join(err))
		}
		v.mu.Unlock()
	}
}

// office is where the webhooks of the bridge arrive.
type office struct {
	ln     net.Listener
	server *http.Server
	served chan error
	down   atomic.Bool // crm answers 503

	mu    sync.Mutex                 // guards below
	saw   map[string]map[string]bool // ids by endpoint
	tries int                        // that were answered with 503
}

func newOffice() (*office, error) {
	o := &office{served: make(chan error, 1), saw: map[string]map[string]bool{crm: {}, finance: {}}}
	var err error
	if o.ln, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	for endpoint := range o.saw {
		mux.HandleFunc("POST /"+endpoint, func(w http.ResponseWriter, r *http.Request) { o.receive(endpoint, w, r) })
	}
	o.server = &http.Server{Handler: mux, ReadTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second}
	go func() { o.served <- o.server.Serve(o.ln) }()
	return o, nil
}

func (o *office) receive(endpoint string, w http.ResponseWriter, r *http.Request) {
	if _, err := io.Copy(io.Discard, http.MaxBytesReader(w, r.Body, maxHookBody)); err != nil {
		http.Error(w, "cannot read the body", http.StatusBadRequest)
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if endpoint == crm && o.down.Load() {
		o.tries++
		http.Error(w, "the database is migrating", http.StatusServiceUnavailable)
		return
	}
	id, err := receivedID(r.Header, nil)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	o.saw[endpoint][id] = true
}

// Close waits for what is under way, at most until ctx is done.
func (o *office) Close(ctx context.Context) error {
	err := o.server.Shutdown(ctx)
	if served := <-o.served; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return err
}
