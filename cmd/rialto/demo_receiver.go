// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// receiver is the far side of the webhooks: an HTTP server on the loopback interface with an endpoint for each wire. It
// takes only what is signed (Standard Webhooks 1.0.0) and reports what it took by event id. Close ends it.
type receiver struct {
	key     []byte
	down    atomic.Pointer[string] // the endpoint that answers 503; nil = none
	refused atomic.Int64           // requests without a good signature
	took    func(endpoint, eventID string)

	ln     net.Listener
	server *http.Server
	served chan error
}

const (
	maxHookBody    = 2 << 20         // bytes
	signatureGrace = 5 * time.Minute // how far a timestamp may be off, as the specification advises
)

// newReceiver starts a receiver on a free port. took is called for each event that it accepts, from many goroutines.
func newReceiver(took func(endpoint, eventID string)) (*receiver, error) {
	r := &receiver{key: make([]byte, 32), took: took, served: make(chan error, 1)}
	if _, err := rand.Read(r.key); err != nil {
		return nil, err
	}
	var err error
	if r.ln, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	for _, w := range wires {
		mux.HandleFunc("POST /"+w.endpoint, func(rw http.ResponseWriter, req *http.Request) { r.receive(w.endpoint, rw, req) })
	}
	r.server = &http.Server{Handler: mux, ReadTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second, MaxHeaderBytes: 64 << 10}
	go func() { r.served <- r.server.Serve(r.ln) }()
	return r, nil
}

// Close waits for what is under way, at most until ctx is done.
func (r *receiver) Close(ctx context.Context) error {
	err := r.server.Shutdown(ctx)
	if served := <-r.served; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return err
}

func (r *receiver) url() string    { return "http://" + r.ln.Addr().String() }
func (r *receiver) secret() string { return "whsec_" + base64.StdEncoding.EncodeToString(r.key) }

// fail lets an endpoint answer 503 until mend is called.
func (r *receiver) fail(endpoint string) { r.down.Store(&endpoint) }
func (r *receiver) mend()                { r.down.Store(nil) }

func (r *receiver) receive(endpoint string, w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, maxHookBody))
	if err != nil {
		http.Error(w, "cannot read the body", http.StatusBadRequest)
		return
	}
	if err := r.verify(req.Header, body, time.Now()); err != nil {
		r.refused.Add(1)
		http.Error(w, err.Error(), http.StatusUnauthorized)
		return
	}
	if down := r.down.Load(); down != nil && *down == endpoint {
		http.Error(w, "out of order", http.StatusServiceUnavailable)
		return
	}
	id, err := receivedID(req.Header, body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	r.took(endpoint, id)
	w.WriteHeader(http.StatusOK)
}

// verify checks a Standard Webhooks signature, independently of the code that made it.
func (r *receiver) verify(h http.Header, body []byte, now time.Time) error {
	id, stamp := h.Get("webhook-id"), h.Get("webhook-timestamp")
	seconds, err := strconv.ParseInt(stamp, 10, 64)
	if id == "" || err != nil || now.Sub(time.Unix(seconds, 0)).Abs() > signatureGrace {
		return errors.New("webhook-id or webhook-timestamp is missing or wrong")
	}
	mac := hmac.New(sha256.New, r.key)
	fmt.Fprintf(mac, "%s.%s.%s", id, stamp, body)
	want := mac.Sum(nil)
	for signature := range strings.FieldsSeq(h.Get("webhook-signature")) {
		b64, ok := strings.CutPrefix(signature, "v1,")
		got, err := base64.StdEncoding.DecodeString(b64)
		if ok && err == nil && hmac.Equal(got, want) {
			return nil
		}
	}
	return errors.New("webhook-signature does not fit")
}

// receivedID is the id of the event in a request, in binary or structured mode.
func receivedID(h http.Header, body []byte) (string, error) {
	if id := h.Get("ce-id"); id != "" {
		return url.PathUnescape(id)
	}
	var e struct{ ID string }
	if err := json.Unmarshal(body, &e); err != nil || e.ID == "" {
		return "", errors.New("this is no CloudEvent")
	}
	return e.ID, nil
}
