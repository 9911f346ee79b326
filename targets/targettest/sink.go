// SPDX-License-Identifier: Apache-2.0

package targettest

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/targets"
	"github.com/rialto-bridge/rialto/targets/outbound"
)

// Env returns an environment that reaches this host and knows no secrets. A test changes what it needs.
func Env(t testing.TB) targets.Env {
	t.Helper()
	clients := func(cfg *tls.Config) *http.Client {
		c := outbound.Client(Guard(), outbound.Options{TLS: cfg})
		t.Cleanup(c.CloseIdleConnections)
		return c
	}
	return targets.Env{
		HTTP: clients(nil), TLS: clients, Dial: Guard().DialContext, Logger: slog.New(slog.DiscardHandler), Now: time.Now,
		Secrets: func(ref string) (string, error) { return "", fmt.Errorf("secret %s: is not set", ref) },
	}
}

// Make makes a target of a config, which must be valid.
func Make(t testing.TB, k targets.Kind, config string, env targets.Env) targets.Target {
	t.Helper()
	kinds := targets.NewCatalog(k)
	d, err := targets.ParseDefinition([]byte(`{"name": "ops", "type": "`+k.Name+`", "config": `+config+`}`), kinds)
	if err != nil {
		t.Fatal(err)
	}
	target, err := kinds.New(d, env)
	if err != nil {
		t.Fatal(err)
	}
	return target
}

// Complaints returns what is said of a config that must be refused, a line for each complaint: its pointer and its words.
func Complaints(t testing.TB, k targets.Kind, config string) string {
	t.Helper()
	_, err := targets.ParseDefinition([]byte(`{"name": "ops", "type": "`+k.Name+`", "config": `+config+`}`), targets.NewCatalog(k))
	var fe *fault.Error
	if !errors.As(err, &fe) {
		t.Errorf("%s is not refused: %v", config, err)
		return ""
	}
	var all []string
	for _, d := range fe.Details {
		all = append(all, d.Pointer+": "+d.Detail)
	}
	return strings.Join(all, "\n")
}

// Sink is a far side that keeps the last request, and answers as it is told. It is for one request at a time.
type Sink struct {
	*httptest.Server
	Status int         // of answers
	Answer string      // their body
	Reply  http.Header // their header

	Path   string // of the last request, with its query
	Header http.Header
	Body   []byte
}

// NewSink returns a Sink that answers 200 and a text.
func NewSink(t testing.TB, answer string) *Sink {
	s := &Sink{Status: http.StatusOK, Answer: answer, Reply: http.Header{}}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.Path, s.Header = r.URL.RequestURI(), r.Header
		var err error
		if s.Body, err = io.ReadAll(r.Body); err != nil {
			t.Error(err)
		}
		for name, v := range s.Reply {
			w.Header()[name] = v
		}
		w.WriteHeader(s.Status)
		io.WriteString(w, s.Answer)
	}))
	t.Cleanup(s.Close)
	return s
}

// Verdict is how an attempt went: "ok", or the reason with its text, "for good" if it is permanent, and the rest that is asked
// for.
func Verdict(err error) string {
	if err == nil {
		return "ok"
	}
	var te *targets.Error
	if !errors.As(err, &te) {
		return fmt.Sprintf("%T: %v", err, err)
	}
	s := string(te.Reason)
	if te.Permanent {
		s += " for good"
	}
	if te.RetryAfter > 0 {
		s += " after " + te.RetryAfter.String()
	}
	return s + ": " + fmt.Sprint(te.Err)
}

// Reads is what a target of a config looks at in events: for each place that looks its pointer and the path.
func Reads(t testing.TB, k targets.Kind, config string) (all []string) {
	t.Helper()
	r, ok := Make(t, k, config, Env(t)).(targets.Reading)
	if !ok {
		t.Errorf("%s is no targets.Reading", k.Name)
		return nil
	}
	for _, read := range r.Reads() {
		all = append(all, read.Pointer+" "+read.Path.String())
	}
	return all
}
