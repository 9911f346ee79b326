// SPDX-License-Identifier: Apache-2.0

package api

import (
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// need is the right that a route asks for.
type need struct {
	open         bool // none
	self         bool // none that we know: who serves it looks at the credentials himself
	area, access string
	bus          func(w *reply, r *http.Request) string // which bus it is about; nil = none or all
}

func onBus(area, access string) need {
	return need{area: area, access: access, bus: func(w *reply, _ *http.Request) string { return w.bus }}
}

func onQueryBus(area, access string) need {
	return need{area: area, access: access, bus: func(_ *reply, r *http.Request) string { return r.URL.Query().Get("bus") }}
}

// authorize finds out whose request it is, and whether it may be. A key that is sent must be good, even where none is
// needed.
func (a *API) authorize(w *reply, r *http.Request, n need) error {
	if n.self || n.open && r.Header["Authorization"] == nil {
		return nil
	}
	who, err := a.identify(w, r)
	if err != nil || n.open {
		return err
	}
	bus := ""
	if n.bus != nil {
		bus = n.bus(w, r)
	}
	return who.permit(n.area, n.access, bus)
}

// caller is who sent a request. nil is somebody anonymous who may do everything.
type caller struct{ *grant }

func (c caller) permit(area, access, bus string) error {
	if c.grant == nil {
		return nil
	}
	for _, s := range c.scopes {
		if s.allows(area, access, bus) {
			return nil
		}
	}
	right := area + ":" + access
	if bus != "" {
		right += ":" + bus
	}
	what := "key"
	if c.token {
		what = "token"
	}
	return &httpError{kind: problemForbidden, detail: "the " + what + " lacks the right " + right}
}

// identify looks up the key or the token of a request.
func (a *API) identify(w *reply, r *http.Request) (caller, error) {
	var sent string
	switch v := r.Header["Authorization"]; {
	case len(v) == 0:
		if a.o.Anonymous {
			return caller{}, nil
		}
		return caller{}, unauthorized("send a key: Authorization: Bearer <key>", "", "")
	case len(v) > 1:
		return caller{}, unauthorized("send one key", "invalid_request", "")
	default:
		sent = v[0]
	}
	scheme, secret, _ := strings.Cut(sent, " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return caller{}, unauthorized("keys are sent as Authorization: Bearer <key>", "invalid_request", "")
	}
	secret = strings.TrimSpace(secret)
	g := a.o.Keys.lookup(secret)
	if g == nil {
		var err error
		if g, err = a.o.Providers.lookup(r.Context(), secret, a.o.Now()); err != nil {
			return caller{}, tokenFault(err)
		}
	}
	w.key = g.name
	if !g.expires.IsZero() && !a.o.Now().Before(g.expires) {
		return caller{}, unauthorized("the key has expired", "invalid_token", "")
	}
	g.used(a.o.Now())
	w.who = caller{g}
	return w.who, nil
}

// unauthorized asks for a key. The code and the description are those of RFC 6750, section 3; "" for none.
func unauthorized(detail, code, description string) error {
	challenge := `Bearer realm="rialto"`
	if code != "" {
		challenge += `, error="` + code + `"`
	}
	if description != "" {
		challenge += `, error_description="` + description + `"`
	}
	return &httpError{kind: problemUnauthorized, detail: detail, header: http.Header{"Www-Authenticate": {challenge}}}
}

// loopbackHost reports whether a Host header names this machine. A web page that points a name of its own at 127.0.0.1
// has its name here, so it cannot use what anonymous users may do.
func loopbackHost(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if strings.EqualFold(host, "localhost") || host == "" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}
