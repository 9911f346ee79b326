// SPDX-License-Identifier: Apache-2.0

package api

import (
	"net/http"
	"strings"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/rialto-bridge/rialto/bridge"
)

var contentText = []string{"text/plain; charset=utf-8"}

// livez says that the process answers.
func (a *API) livez(w *reply, r *http.Request) error {
	if _, err := noQuery(r); err != nil {
		return err
	}
	return w.send(http.StatusOK, contentText, []byte("ok\n"))
}

// advisory reports whether a check is something to look at, but no reason to send requests elsewhere.
func advisory(c bridge.Check) bool { return strings.HasPrefix(c.Name, "ledger/") }

// readyz says whether the bridge does all its work, and with ?verbose what it does and what not.
func (a *API) readyz(w *reply, r *http.Request) error {
	q, err := readQuery(r, "verbose")
	if err != nil {
		return err
	}
	verbose := q.flag("verbose")
	if err := q.err(); err != nil {
		return err
	}
	ready := true
	var b strings.Builder
	for _, c := range append(a.o.Bridge.Checks(), a.o.Checks()...) {
		if c.OK && !verbose {
			continue
		}
		mark := "[+] "
		if !c.OK {
			mark = "[-] "
			ready = ready && advisory(c)
		}
		b.WriteString(mark + c.Name)
		if c.Detail != "" {
			b.WriteString(": " + c.Detail)
		}
		b.WriteByte('\n')
	}
	status := http.StatusOK
	if !ready {
		status = http.StatusServiceUnavailable
		b.WriteString("not ready\n")
	} else {
		b.WriteString("ready\n")
	}
	w.Header()["Cache-Control"] = noStore
	return w.send(status, contentText, []byte(b.String()))
}

// showMetrics answers what the process counts, in the format of Prometheus.
func (a *API) showMetrics() handler {
	h := promhttp.HandlerFor(a.o.Gatherer, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError})
	return func(w *reply, r *http.Request) error {
		h.ServeHTTP(w, r)
		return nil
	}
}
