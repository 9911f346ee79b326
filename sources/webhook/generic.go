// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/theory/jsonpath"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
)

// generic is for everybody else.
var generic = &provider{
	name: "generic", title: "Any other sender",
	optional: []string{"secret", "signature", "basic", "bearer", "clientCertificate", "event", "publicUrl"}, within: 14 * time.Second, status: http.StatusNoContent,
	doc: "Say how the sender proves itself, by one or several of `signature` (with `secret`), `basic`, `bearer`, `clientCertificate` and `allowFrom`: all of " +
		"them must be good. Say in `event` where the attributes come from. The payload may be of any type; a form becomes a JSON object. " +
		"A body that is a CloudEvent in structured mode is taken as that event.",
	check: checkGeneric,
	open:  openGeneric,
}

// proof looks at one thing by which a sender proves itself. The last one reads the body.
type proof func(r *request) error

type genericReceiver struct {
	h      *hook
	proofs []proof
	values map[string]value // of the attributes
}

func openGeneric(h *hook) (receiver, error) {
	g := &genericReceiver{h: h, values: map[string]value{}}
	c := &h.s
	if c.Basic != nil {
		passwords := &secrets{sources: c.Basic.Password}
		g.proofs = append(g.proofs, func(r *request) error { return h.proveBasic(r, c.Basic.Username, passwords) })
	}
	if len(c.Bearer) > 0 {
		tokens := &secrets{sources: c.Bearer}
		g.proofs = append(g.proofs, func(r *request) error { return h.proveBearer(r, tokens) })
	}
	if c.Cert != nil {
		g.proofs = append(g.proofs, func(r *request) error { return proveCertificate(r, c.Cert.Names) })
	}
	if c.Signature != nil {
		s, err := c.Signature.scheme(c.PublicURL)
		if err != nil {
			return nil, err
		}
		g.proofs = append(g.proofs, func(r *request) error { return s.verify(h, r) })
	} else {
		g.proofs = append(g.proofs, func(r *request) error {
			r.known = true
			return r.read()
		})
	}
	for name, text := range c.Event.all() {
		v, err := parseValue(text)
		if err != nil {
			return nil, err
		}
		g.values[name] = v
	}
	return g.receive, nil
}

func (m mapping) all() map[string]string {
	return map[string]string{"id": m.ID, "source": m.Source, "type": m.Type, "subject": m.Subject, "time": m.Time}
}

func checkGeneric(c *config) error {
	var details []fault.Detail
	if c.Signature == nil && c.Basic == nil && len(c.Bearer) == 0 && c.Cert == nil && len(c.AllowFrom) == 0 {
		details = append(details, fault.Detail{Detail: "says nothing by which a sender proves itself: signature, basic, bearer, clientCertificate or allowFrom"})
	}
	if (c.Signature == nil) != (len(c.Secret) == 0) {
		details = append(details, fault.Detail{Pointer: "/secret", Detail: "goes with signature, and signature with secret"})
	}
	if c.Basic != nil && len(c.Bearer) > 0 {
		details = append(details, fault.Detail{Pointer: "/bearer", Detail: "does not go with basic: both are the header Authorization"})
	}
	if c.Signature != nil {
		if _, err := c.Signature.scheme(c.PublicURL); err != nil {
			details = append(details, detailsOf(fault.At("/signature", err))...)
		}
	}
	for name, text := range c.Event.all() {
		if _, err := parseValue(text); err != nil {
			details = append(details, fault.Detail{Pointer: "/event/" + name, Detail: err.Error()})
		}
	}
	slices.SortFunc(details, func(a, b fault.Detail) int { return cmp.Compare(a.Pointer, b.Pointer) })
	return fault.Collect(details)
}

func (g *genericReceiver) receive(_ context.Context, r *request) (taken, error) {
	for _, p := range g.proofs {
		if err := p(r); err != nil {
			return taken{}, err
		}
	}
	if event.ModeOf(r.Header.Get("Content-Type")) == event.Structured {
		return g.h.cloudEvents(r)
	}
	data, kind := r.body, r.Header.Get("Content-Type")
	if isForm(r.Request) {
		form, err := r.form()
		if err != nil {
			return taken{}, err
		}
		if data, err = formObject(form); err != nil {
			return taken{}, err
		}
		kind = "application/json"
	}
	probe := event.Event{ID: "1", Source: "/", Type: "t", DataContentType: plain(kind, maxAttribute)}
	if kind = probe.DataContentType; probe.Validate(event.Limits{}) != nil { // it is no media type, and says nothing
		kind = ""
	}
	var doc any
	if event.IsJSON(kind) || kind == "" {
		if decodeJSON(data, &doc) != nil {
			if kind != "" {
				return taken{}, fault.New(fault.Invalid, "the body is not JSON")
			}
		} else {
			kind = "application/json"
		}
	}
	text := func(name string) string { return g.values[name].of(r, doc) }
	at, _ := parseWhen(text("time"))
	id := text("id")
	if plain(id, maxAttribute) == "" {
		id = digest([]byte(r.stamp), data)
	}
	ev := r.jsonEvent(id, cmp.Or(text("source"), g.h.source()), typeName(cmp.Or(text("type"), hookType)), text("subject"), at, data)
	ev.DataContentType = kind
	return taken{events: []event.Event{ev}}, nil
}

// value is where an attribute comes from.
type value struct {
	path   *jsonpath.Path
	header string
	text   string
}

func parseValue(s string) (value, error) {
	if name, ok := strings.CutPrefix(s, "header:"); ok {
		if !headerName.MatchString(name) {
			return value{}, fmt.Errorf("header: is followed by the name of a header")
		}
		return value{header: name}, nil
	}
	if !strings.HasPrefix(s, "$") {
		return value{text: s}, nil
	}
	p, err := jsonpath.Parse(s)
	if err != nil {
		return value{}, fmt.Errorf("is not a JSONPath")
	}
	return value{path: p}, nil
}

var headerName = regexp.MustCompile(`^[A-Za-z0-9-]{1,128}$`)

// of is the first scalar that the value finds; "" if there is none.
func (v value) of(r *request, doc any) string {
	switch {
	case v.header != "":
		return r.Header.Get(v.header)
	case v.path == nil:
		return v.text
	}
	for _, found := range v.path.Select(doc) {
		switch found := found.(type) {
		case string:
			return found
		case json.Number, bool:
			return scalar(found)
		}
	}
	return ""
}

// scheme is a signature as a config describes it. The error is a *fault.Error with pointers into it.
func (o *ownScheme) scheme(publicURL string) (*scheme, error) {
	s := &scheme{header: o.Header, hash: hashes[cmp.Or(o.Hash, "sha256")], base64: o.Encoding == "base64", prefix: o.Prefix, list: o.Separator}
	parts, err := parseSigned(cmp.Or(o.Signed, "${body}"), publicURL)
	if err != nil {
		return nil, err
	}
	timed := slices.ContainsFunc(parts, func(p part) bool { return p.timestamp })
	if timed != (o.TimestampHeader != "") {
		return nil, fault.Invalidf("/timestampHeader", "goes with ${timestamp} in signed")
	}
	if timed {
		s.stamped = func(r *request, _ string) (string, error) { return r.header(o.TimestampHeader) }
	}
	s.signed = func(r *request, ts string) [][]byte {
		out := make([][]byte, len(parts))
		for i, p := range parts {
			out[i] = p.of(r, ts)
		}
		return out
	}
	return s, nil
}

// part is a piece of what is signed.
type part struct {
	timestamp bool
	of        func(r *request, ts string) []byte
}

var placeholder = regexp.MustCompile(`\$\{([^}]*)\}`)

// parseSigned reads a text with placeholders. The body must be in it: else a signature would be good for any.
func parseSigned(text, publicURL string) ([]part, error) {
	var parts []part
	literal := func(s string) {
		if s != "" {
			parts = append(parts, part{of: func(*request, string) []byte { return []byte(s) }})
		}
	}
	end, hasBody := 0, false
	for _, m := range placeholder.FindAllStringSubmatchIndex(text, -1) {
		literal(text[end:m[0]])
		end = m[1]
		name := text[m[2]:m[3]]
		header, isHeader := strings.CutPrefix(name, "header:")
		switch {
		case name == "body":
			hasBody = true
			parts = append(parts, part{of: func(r *request, _ string) []byte { return r.body }})
		case name == "timestamp":
			parts = append(parts, part{timestamp: true, of: func(_ *request, ts string) []byte { return []byte(ts) }})
		case name == "method":
			parts = append(parts, part{of: func(r *request, _ string) []byte { return []byte(r.Method) }})
		case name == "url" && publicURL != "":
			parts = append(parts, part{of: func(r *request, _ string) []byte { return []byte(publicURL + r.URL.RequestURI()) }})
		case name == "url":
			return nil, fault.Invalidf("/signed", "${url} needs publicUrl")
		case isHeader && headerName.MatchString(header):
			parts = append(parts, part{of: func(r *request, _ string) []byte { return []byte(r.Header.Get(header)) }})
		default:
			return nil, fault.Invalidf("/signed", "has a placeholder other than ${body}, ${timestamp}, ${url}, ${method} and ${header:Name}")
		}
	}
	literal(text[end:])
	if !hasBody {
		return nil, fault.Invalidf("/signed", "lacks ${body}: the signature would be good for any body")
	}
	return parts, nil
}

var (
	errBasic  = fault.New(fault.Unauthorized, "user name and password do not match")
	errBearer = fault.New(fault.Unauthorized, "the token does not match")
)

func (h *hook) proveBasic(r *request, user string, passwords *secrets) error {
	u, p, ok := r.BasicAuth()
	list, err := passwords.get(h.env)
	if err != nil {
		return err
	}
	sameUser := equalAny([]string{user}, u)
	samePassword := equalAny(list, p)
	if !ok || !sameUser || !samePassword {
		return errBasic
	}
	return nil
}

func (h *hook) proveBearer(r *request, tokens *secrets) error {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	list, err := tokens.get(h.env)
	if err != nil {
		return err
	}
	if !equalAny(list, strings.TrimSpace(token)) || !strings.EqualFold(scheme, "Bearer") {
		return errBearer
	}
	return nil
}

// proveCertificate checks that the TLS connection has a client certificate that was verified and is for one of some names.
func proveCertificate(r *request, names []string) error {
	if cert := verifiedCertificate(r.TLS); cert != nil {
		has := append([]string{cert.Subject.CommonName}, cert.DNSNames...)
		for _, u := range cert.URIs {
			has = append(has, u.String())
		}
		if slices.ContainsFunc(names, func(n string) bool { return n != "" && slices.Contains(has, n) }) {
			return nil
		}
	}
	return fault.New(fault.Forbidden, "a client certificate of an allowed name is needed")
}

func verifiedCertificate(state *tls.ConnectionState) *x509.Certificate {
	if state == nil || len(state.VerifiedChains) == 0 || len(state.VerifiedChains[0]) == 0 {
		return nil
	}
	return state.VerifiedChains[0][0]
}
