// SPDX-License-Identifier: Apache-2.0

package region

import (
	"bytes"
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/secret"
	"github.com/rialto-bridge/rialto/rules"
)

// DefaultBus is the bus of a link that does not name one.
const DefaultBus = "default"

// maxDocument is the most bytes of a definition.
const maxDocument = 256 << 10

// Limits of a region's bandwidth, in bytes a second.
const (
	minBandwidth = 1 << 10
	maxBandwidth = 10 << 30
)

// Region is a parsed Region document. It is immutable and safe to share.
type Region struct {
	Name        string
	Description string
	Labels      map[string]string
	URL         *url.URL // without a slash at the end
	Key         secret.Source
	TLS         TLS
	Bandwidth   int64 // bytes a second; 0 = no limit
	Paused      bool
	Raw         []byte // the document as it was given

	// Revision is that of the document: whoever loads it sets it before the definition is shared.
	Revision uint64
}

// TLS is what differs from TLS 1.2 or later with the certificates of the system. All may be zero.
type TLS struct {
	CA, Certificate, Key secret.Source // PEM
	ServerName           string
}

// Orderings of a link.
const (
	OrderNone = "none" // what is fresh goes before what has waited
	OrderLog  = "log"  // strictly in the order of the log
)

// Link is a parsed Link document. It is immutable and safe to share.
type Link struct {
	Name        string
	Description string
	Labels      map[string]string
	Region      string
	Bus, To     string      // the bus here, and the one there
	Rule        *rules.Rule // the pattern, the when and the transform, of a rule with the link's name
	Urgent      string      // the pattern as JSON without blanks; "" = none
	Ordering    string
	Start       string // as ParseStart reads it
	Paused      bool
	Raw         []byte // the document as it was given

	// Revision is that of the document: whoever loads it sets it before the definition is shared.
	Revision uint64
}

// Start is where a link begins in its log.
type Start struct {
	Earliest bool
	Time     time.Time // zero and not Earliest: the end of the log
}

// ParseStart reads latest, earliest or an RFC 3339 time; "" is latest.
func ParseStart(s string) (Start, bool) {
	switch s {
	case "", "latest":
		return Start{}, true
	case "earliest":
		return Start{Earliest: true}, true
	}
	t, err := time.Parse(time.RFC3339Nano, s)
	return Start{Time: t}, err == nil && !t.IsZero()
}

const badStart = "is not latest, earliest or a time such as 2027-01-02T03:04:05Z"

// ParseRegion reads a Region document as a user writes it and checks it whole. The error is a *fault.Error of kind Invalid
// that holds every complaint found, with JSON pointers into doc, and never a value. Server-owned fields (revision, createdAt,
// updatedAt, status) are ignored.
func ParseRegion(doc []byte) (*Region, error) {
	if err := checkDocument(doc); err != nil {
		return nil, err
	}
	details := regionForm().Complaints("", doc)
	var form struct {
		Name        string            `json:"name"`
		Description string            `json:"description"`
		Labels      map[string]string `json:"labels"`
		URL         string            `json:"url"`
		Key         json.RawMessage   `json:"key"`
		TLS         *struct {
			CA, Certificate, Key json.RawMessage
			ServerName           string
		} `json:"tls"`
		Bandwidth json.RawMessage `json:"bandwidth"`
		Paused    bool            `json:"paused"`
	}
	if err := readForm(doc, &form, details); err != nil {
		return nil, err
	}
	r := &Region{Name: form.Name, Description: form.Description, Labels: form.Labels, Paused: form.Paused, Raw: bytes.Clone(doc)}
	p := complaints{details: details}
	r.URL = p.url(form.URL)
	r.Key = p.secret("/key", form.Key)
	if v := r.Key; v.Ref() == "" && !v.IsZero() && !isHeaderValue(reveal(v)) {
		p.complain("/key", "is not a key: it has characters that no header takes")
	}
	if form.Bandwidth != nil {
		n, ok := parseSize(form.Bandwidth)
		if !ok || n < minBandwidth || n > maxBandwidth {
			p.complain("/bandwidth", "is not a size from 1KiB to 10GiB, such as 1MiB: bytes a second")
		}
		r.Bandwidth = n
	}
	if t := form.TLS; t != nil {
		r.TLS = TLS{CA: p.secret("/tls/ca", t.CA), Certificate: p.secret("/tls/certificate", t.Certificate), Key: p.secret("/tls/key", t.Key), ServerName: t.ServerName}
		p.tls(r)
	}
	if err := p.collect(); err != nil {
		return nil, err
	}
	return r, nil
}

// ParseLink reads a Link document as ParseRegion does a Region. It does not look whether the region and the bus are there.
func ParseLink(doc []byte) (*Link, error) {
	if err := checkDocument(doc); err != nil {
		return nil, err
	}
	details := linkForm().Complaints("", doc)
	var form struct {
		Name        string            `json:"name"`
		Description string            `json:"description"`
		Labels      map[string]string `json:"labels"`
		Region      string            `json:"region"`
		Bus         string            `json:"bus"`
		To          string            `json:"to"`
		Pattern     json.RawMessage   `json:"pattern"`
		When        json.RawMessage   `json:"when"`
		Transform   json.RawMessage   `json:"transform"`
		Urgent      json.RawMessage   `json:"urgent"`
		Ordering    string            `json:"ordering"`
		Start       string            `json:"start"`
		Paused      bool              `json:"paused"`
	}
	if err := readForm(doc, &form, details); err != nil {
		return nil, err
	}
	l := &Link{Name: form.Name, Description: form.Description, Labels: form.Labels, Region: form.Region, Bus: cmp.Or(form.Bus, DefaultBus),
		Ordering: cmp.Or(form.Ordering, OrderNone), Start: form.Start, Paused: form.Paused, Raw: bytes.Clone(doc)}
	l.To = cmp.Or(form.To, l.Bus)
	p := complaints{details: details}
	if _, ok := ParseStart(l.Start); !ok && !p.has("/start") {
		p.complain("/start", badStart)
	}
	if form.Pattern == nil {
		form.Pattern = json.RawMessage(everyEvent)
	}
	if !p.has("/pattern") && !p.has("/when") && !p.has("/transform") {
		l.Rule = p.rule(form.Pattern, form.When, form.Transform, "/pattern")
	}
	if form.Urgent != nil && !p.has("/urgent") {
		p.rule(form.Urgent, nil, nil, "/urgent")
		var b bytes.Buffer
		if json.Compact(&b, form.Urgent) == nil { // it was read before
			l.Urgent = b.String()
		}
		if l.Ordering == OrderLog {
			p.complain("/urgent", "goes before the others, which ordering: log does not allow")
		}
	}
	if err := p.collect(); err != nil {
		return nil, err
	}
	return l, nil
}

// everyEvent is the pattern of a link that has none.
const everyEvent = `{"source":[{"exists":true}]}`

// readForm reads a document into its Go form. What has the wrong type the schema has complained of.
func readForm(doc []byte, form any, details []fault.Detail) error {
	var wrong *json.UnmarshalTypeError
	if err := json.Unmarshal(doc, form); err != nil && (!errors.As(err, &wrong) || len(details) == 0) {
		return fault.Invalidf("", "is not a definition")
	}
	return nil
}

// complaints gathers what is wrong with a document.
type complaints struct{ details []fault.Detail }

func (p *complaints) complain(pointer, detail string) {
	p.details = append(p.details, fault.Detail{Pointer: pointer, Detail: detail})
}

// has reports whether there is a complaint at a pointer or below it.
func (p *complaints) has(pointer string) bool {
	for _, d := range p.details {
		if d.Pointer == pointer || strings.HasPrefix(d.Pointer, pointer+"/") {
			return true
		}
	}
	return false
}

func (p *complaints) collect() error { return fault.Collect(p.details) }

// url reads the URL of a region.
func (p *complaints) url(raw string) *url.URL {
	if raw == "" || p.has("/url") {
		return nil
	}
	u, err := url.Parse(raw)
	switch {
	case err != nil || u.Opaque != "" || u.Host == "" || u.Hostname() == "":
		p.complain("/url", "is not a URL such as https://eu.example.com")
		return nil
	case u.Scheme != "https" && u.Scheme != "http":
		p.complain("/url", "does not begin with https:// or http://")
	case u.Scheme == "http" && !isNear(u.Hostname()):
		p.complain("/url", "begins with http://, which is for this host and private addresses; elsewhere the key would be read by others")
	case u.User != nil:
		p.complain("/url", "has a user name or a password; the key stands under key")
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		p.complain("/url", "has a query or a fragment")
	case u.Port() != "" && !isPort(u.Port()):
		p.complain("/url", "has no port from 1 to 65535")
	}
	u.Path = strings.TrimRight(u.Path, "/")
	u.RawPath = strings.TrimRight(u.RawPath, "/")
	return u
}

func isPort(s string) bool {
	n, err := strconv.ParseUint(s, 10, 16)
	return err == nil && n > 0
}

// isNear reports whether a host is this one or has a private address. What may be connected to is for the dialer to say.
func isNear(host string) bool {
	if host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return true
	}
	addr, err := netip.ParseAddr(host)
	addr = addr.Unmap()
	return err == nil && (addr.IsLoopback() || addr.IsPrivate() || addr.IsLinkLocalUnicast())
}

// secret reads a secret; raw may be nil.
func (p *complaints) secret(pointer string, raw json.RawMessage) (s secret.Source) {
	if raw == nil || p.has(pointer) {
		return s
	}
	if err := json.Unmarshal(raw, &s); err != nil {
		p.complain(pointer, err.Error()) // it repeats nothing
	}
	return s
}

// reveal returns a secret that stands in the document; "" for one that is referred to.
func reveal(s secret.Source) string {
	if s.Ref() != "" {
		return ""
	}
	v, err := s.Resolve(nil)
	if err != nil {
		return ""
	}
	return v.Reveal()
}

func isHeaderValue(s string) bool {
	for i := range len(s) {
		if s[i] < 0x21 || s[i] > 0x7e {
			return false
		}
	}
	return true
}

// tls checks the certificates that stand in the document by value.
func (p *complaints) tls(r *Region) {
	t := &r.TLS
	if r.URL != nil && r.URL.Scheme == "http" {
		p.complain("/tls", "is for a URL that begins with https://")
	}
	for pointer, s := range map[string]secret.Source{"/tls/ca": t.CA, "/tls/certificate": t.Certificate} {
		if pem := reveal(s); pem != "" && !x509.NewCertPool().AppendCertsFromPEM([]byte(pem)) {
			p.complain(pointer, "holds no certificate in PEM")
		}
	}
	switch cert, key := reveal(t.Certificate), reveal(t.Key); {
	case !t.Key.IsZero() && t.Certificate.IsZero():
		p.complain("/tls/certificate", "is missing: it goes with key")
	case t.Key.IsZero() && !t.Certificate.IsZero():
		p.complain("/tls/key", "is missing: it goes with certificate")
	case cert != "" && key != "" && !p.has("/tls/certificate"):
		if _, err := tls.X509KeyPair([]byte(cert), []byte(key)); err != nil {
			p.complain("/tls/key", "is not the key, in PEM, of the certificate") // other words might repeat something
		}
	}
}

// rule compiles a pattern and what goes with it as a rule, so that language and limits are those of rules; at is where the
// pattern stands.
func (p *complaints) rule(pattern, when, transform json.RawMessage, at string) *rules.Rule {
	r, err := parseRule(pattern, when, transform)
	var f *fault.Error
	switch {
	case err == nil:
		return r
	case !errors.As(err, &f) || len(f.Details) == 0:
		p.complain(at, err.Error())
	default:
		for _, d := range f.Details {
			if rest, ok := strings.CutPrefix(d.Pointer, "/targets/0"); ok {
				d.Pointer = rest
			} else if rest, ok := strings.CutPrefix(d.Pointer, "/pattern"); ok {
				d.Pointer = at + rest
			}
			p.details = append(p.details, d)
		}
	}
	return nil
}

// parseRule makes a rule of its parts; when and transform may be nil.
func parseRule(pattern, when, transform json.RawMessage) (*rules.Rule, error) {
	var b bytes.Buffer
	b.WriteString(`{"name":"link","pattern":`)
	b.Write(pattern)
	if when != nil {
		b.WriteString(`,"when":`)
		b.Write(when)
	}
	b.WriteString(`,"targets":[{"target":"region"`)
	if transform != nil {
		b.WriteString(`,"transform":`)
		b.Write(transform)
	}
	b.WriteString(`}]}`)
	return rules.ParseRule(b.Bytes())
}

var sizeUnits = []struct {
	suffix string
	factor float64
}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"B", 1}, {"", 1}}

// parseSize reads a number of bytes: 1048576, "1048576", "1MiB", "1.5 MB".
func parseSize(raw json.RawMessage) (int64, bool) {
	s := string(raw)
	if strings.HasPrefix(s, `"`) && json.Unmarshal(raw, &s) != nil {
		return 0, false
	}
	for _, u := range sizeUnits {
		if num, ok := strings.CutSuffix(s, u.suffix); ok {
			f, err := strconv.ParseFloat(strings.TrimSpace(num), 64)
			if err != nil || !(f >= 0 && f*u.factor <= 1<<62) {
				return 0, false
			}
			return int64(f * u.factor), true
		}
	}
	return 0, false
}

// checkDocument refuses what a decoder would silently accept: a name that occurs twice, and text after the value.
func checkDocument(doc []byte) error {
	if len(doc) > maxDocument {
		return fault.Invalidf("", "the document is longer than %d bytes", maxDocument)
	}
	dec := json.NewDecoder(bytes.NewReader(doc))
	dec.UseNumber()
	if err := checkValue(dec, ""); err != nil {
		return err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return fault.Invalidf("", "there is text after the document")
	}
	return nil
}

// checkValue reads one value and everything in it. The decoder bounds how deep that goes.
func checkValue(dec *json.Decoder, pointer string) error {
	tok, err := dec.Token()
	if err != nil {
		return fault.Invalidf(pointer, "is not JSON")
	}
	delim, ok := tok.(json.Delim)
	if !ok {
		return nil
	}
	seen := map[string]bool{}
	for i := 0; dec.More(); i++ {
		at := pointer + "/" + strconv.Itoa(i)
		if delim == '{' {
			tok, err := dec.Token()
			if err != nil {
				return fault.Invalidf(pointer, "is not JSON")
			}
			name, _ := tok.(string) // inside an object, between values, a token is a name
			at = pointer + fault.Pointer(name)
			if seen[name] {
				return fault.Invalidf(at, "occurs more than once")
			}
			seen[name] = true
		}
		if strings.Count(at, "/") > 64 {
			return fault.Invalidf(at, "is nested too deep")
		}
		if err := checkValue(dec, at); err != nil {
			return err
		}
	}
	if _, err := dec.Token(); err != nil { // the closing bracket
		return fault.Invalidf(pointer, "is not JSON")
	}
	return nil
}
