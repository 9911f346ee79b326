// SPDX-License-Identifier: Apache-2.0

package email

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"net"
	"net/mail"
	"regexp"
	"slices"
	"strings"

	"github.com/rialto-bridge/rialto/rules"
	"github.com/rialto-bridge/rialto/targets"
	"github.com/rialto-bridge/rialto/targets/notice"
	"github.com/rialto-bridge/rialto/targets/outbound"
)

// How connections are encrypted.
const (
	securityStartTLS = "starttls"
	securityTLS      = "tls"
	securityNone     = "none"
)

// How the bridge shows the server who it is.
const (
	authPlain   = "plain"
	authLogin   = "login"
	authCRAMMD5 = "cram-md5"
	authXOAuth2 = "xoauth2"
)

// Limits.
const (
	maxRecipients  = 100
	defaultMaxSize = 10 << 20
)

// config is the config of a target, in the form that config.schema.json describes.
type config struct {
	Host     string      `json:"host"`
	Port     uint16      `json:"port"`
	Security string      `json:"security"`
	TLS      *tlsConfig  `json:"tls"`
	Auth     *authConfig `json:"auth"`
	Helo     string      `json:"helo"`
	From     string      `json:"from"`
	To       []string    `json:"to"`
	Cc       []string    `json:"cc"`
	Bcc      []string    `json:"bcc"`
	ReplyTo  string      `json:"replyTo"`
	Subject  string      `json:"subject"`
	Text     string      `json:"text"`
	HTML     string      `json:"html"`
	Attach   bool        `json:"attachEvent"`
	MaxSize  int         `json:"maxSize"`
}

// tlsConfig is what differs from TLS 1.2 or later with the certificates of the system.
type tlsConfig struct {
	CA                 json.RawMessage `json:"ca"`
	ServerName         string          `json:"serverName"`
	MinVersion         string          `json:"minVersion"`
	InsecureSkipVerify bool            `json:"insecureSkipVerify"`
}

type authConfig struct {
	Type     string          `json:"type"`
	Username string          `json:"username"`
	Password json.RawMessage `json:"password"`
	Token    json.RawMessage `json:"token"`
}

// settings is a config that has been read.
type settings struct {
	host, address string // address is host and port
	security      string
	tls           tlsConfig
	auth          *authConfig // nil = none
	helo          string
	from          *mail.Address
	to, cc, bcc   []address
	replyTo       *address
	subject       *rules.Text // nil = the default
	text, html    *rules.Text // nil = none; neither is the default text
	attach        bool
	maxSize       int
	slots         []targets.SecretSlot
}

// address is a place for an address in a mail. Values of the event may fill it.
type address struct {
	pointer string
	text    *rules.Text
}

// defaultPorts are where servers listen.
var defaultPorts = map[string]uint16{securityStartTLS: 587, securityTLS: 465, securityNone: 25}

func parse(raw json.RawMessage, checkHost func(string, uint16) error) (*settings, error) {
	var c config
	f := &notice.Form{}
	if json.Unmarshal(raw, &c) != nil {
		f.Complain("", "is not a config of an email target")
		return nil, f.Err()
	}
	s := &settings{host: c.Host, security: cmp.Or(c.Security, securityStartTLS), helo: c.Helo, attach: c.Attach, maxSize: cmp.Or(c.MaxSize, defaultMaxSize)}
	port := cmp.Or(c.Port, defaultPorts[s.security])
	s.address = net.JoinHostPort(c.Host, fmt.Sprint(port))
	if checkHost != nil {
		if err := checkHost(c.Host, port); err != nil {
			f.Complain("/host", "%v", err)
		}
	}
	s.readTLS(f, c.TLS)
	s.readAuth(f, c.Auth)
	s.readAddresses(f, &c)
	s.subject = f.Text("/subject", c.Subject, notice.Line)
	s.text = f.Text("/text", c.Text, notice.Block)
	s.html = f.Text("/html", c.HTML, func(value string) string { return html.EscapeString(notice.Block(value)) })
	s.slots = f.Slots
	return s, f.Err()
}

func (s *settings) readTLS(f *notice.Form, c *tlsConfig) {
	if c == nil {
		return
	}
	s.tls = *c
	if s.security == securityNone {
		f.Complain("/tls", "is for connections that are encrypted, and security is none")
	}
	f.Secret("/tls/ca", c.CA, outbound.CheckCertificates)
	if c.InsecureSkipVerify && (len(c.CA) > 0 || c.ServerName != "") {
		f.Complain("/tls/insecureSkipVerify", "leaves nothing for ca and serverName to check")
	}
}

func (s *settings) readAuth(f *notice.Form, c *authConfig) {
	if c == nil {
		return
	}
	s.auth = c
	if s.security == securityNone {
		f.Complain("/auth", "would send a password that everybody on the way can read: security is none")
	}
	password, token := f.Secret("/auth/password", c.Password, checkPassword), f.Secret("/auth/token", c.Token, checkPassword)
	switch {
	case c.Type == authXOAuth2 && !token:
		f.Complain("/auth/token", "is missing: it goes with type %s", c.Type)
	case c.Type == authXOAuth2 && password:
		f.Complain("/auth/password", "does not go with type %s, which has a token", c.Type)
	case c.Type != authXOAuth2 && !password:
		f.Complain("/auth/password", "is missing: it goes with type %s", c.Type)
	case c.Type != authXOAuth2 && token:
		f.Complain("/auth/token", "goes with type %s", authXOAuth2)
	}
}

// checkPassword refuses what would be something else in the exchange of a mechanism.
func checkPassword(text string) error {
	if len(text) > 8192 || strings.ContainsAny(text, "\x00\x01\r\n") {
		return errors.New("has line breaks or other control characters, or more than 8192 bytes")
	}
	return nil
}

// secret is what the server is shown.
func (s *settings) secret(secrets map[string]string) string {
	return cmp.Or(secrets["/auth/token"], secrets["/auth/password"])
}

// hidden is what nobody is shown when a server repeats it, longer texts before those they hold.
func (s *settings) hidden(secrets map[string]string) []string {
	secret := s.secret(secrets)
	if secret == "" {
		return nil
	}
	hidden := []string{secret}
	for _, said := range []string{secret, "\x00" + s.auth.Username + "\x00" + secret, "user=" + s.auth.Username + "\x01auth=Bearer " + secret + "\x01\x01"} {
		hidden = append(hidden, base64.StdEncoding.EncodeToString([]byte(said)))
	}
	hidden = slices.DeleteFunc(hidden, func(h string) bool { return len(h) < minHidden })
	slices.SortFunc(hidden, func(a, b string) int { return len(b) - len(a) })
	return hidden
}

const minHidden = 4 // a shorter text would be found where it does not stand

func (s *settings) readAddresses(f *notice.Form, c *config) {
	from, err := parseAddress(c.From)
	if err != nil {
		f.Complain("/from", "%v", err)
		from = &mail.Address{}
	}
	s.from = from
	if s.helo == "" {
		_, s.helo, _ = strings.Cut(from.Address, "@")
	}
	for _, list := range []struct {
		name  string
		texts []string
		to    *[]address
	}{{"to", c.To, &s.to}, {"cc", c.Cc, &s.cc}, {"bcc", c.Bcc, &s.bcc}} {
		for i, text := range list.texts {
			*list.to = append(*list.to, readAddress(f, fmt.Sprintf("/%s/%d", list.name, i), text))
		}
	}
	if n := len(s.to) + len(s.cc) + len(s.bcc); n > maxRecipients {
		f.Complain("/to", "has, with cc and bcc, %d recipients; at most %d are allowed", n, maxRecipients)
	}
	if c.ReplyTo != "" {
		replyTo := readAddress(f, "/replyTo", c.ReplyTo)
		s.replyTo = &replyTo
	}
}

// readAddress reads a place for an address. One without values of the event must be an address.
func readAddress(f *notice.Form, pointer, text string) address {
	a := address{pointer: pointer, text: f.Text(pointer, text, addressValue)}
	if !strings.Contains(text, "${") {
		if _, err := parseAddress(text); err != nil {
			f.Complain(pointer, "%v", err)
		}
	}
	return a
}

// addressValue keeps a value from being more than a part of a name or of an address.
func addressValue(value string) string {
	return notice.Line(strings.Map(func(r rune) rune {
		if strings.ContainsRune(`"<>(),:;\[]`, r) {
			return ' '
		}
		return r
	}, value))
}

var (
	errAddress = errors.New("is not an address such as ops@example.com or Ops <ops@example.com>, in ASCII but for the name")
	// mailbox is an address as SMTP takes it without quotes and extensions.
	mailbox = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(\\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*@[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*$")
)

// parseAddress reads an address. The error repeats nothing of it.
func parseAddress(text string) (*mail.Address, error) {
	a, err := mail.ParseAddress(text)
	if err != nil || len(a.Address) > 254 || strings.IndexByte(a.Address, '@') > 64 || !mailbox.MatchString(a.Address) || len(a.Name) > 256 {
		return nil, errAddress
	}
	a.Name = notice.Line(a.Name)
	return a, nil
}

// tlsFor is what a connection is encrypted with.
func (s *settings) tlsFor(secrets map[string]string) *tls.Config {
	cfg := &tls.Config{ServerName: cmp.Or(s.tls.ServerName, s.host), MinVersion: tls.VersionTLS12, InsecureSkipVerify: s.tls.InsecureSkipVerify}
	if s.tls.MinVersion == "1.3" {
		cfg.MinVersion = tls.VersionTLS13
	}
	if ca := secrets["/tls/ca"]; ca != "" {
		cfg.RootCAs = x509.NewCertPool()
		cfg.RootCAs.AppendCertsFromPEM([]byte(ca)) // checked
	}
	return cfg
}
