// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"errors"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

// MaxURL is the longest URL in bytes that CheckURL accepts.
const MaxURL = 2048

// CheckURL says why a URL can be no target, in words for whoever wrote it; nil when it can be one as far as that can be
// said without asking a name server. It accepts one plain spelling only: what two parsers might read differently is
// refused. The error repeats nothing of the URL but an address.
func (g *Guard) CheckURL(raw string) error {
	if err := checkText(raw); err != nil {
		return err
	}
	u, err := url.Parse(raw)
	if err != nil {
		return errors.New("is not a URL") // the parser's words would repeat it
	}
	if err := checkParts(u); err != nil {
		return err
	}
	return g.checkHost(u.Hostname(), portOf(u), strings.HasPrefix(u.Host, "["))
}

// CheckHost is CheckURL for a host, a name or an address without brackets, and a port of which no URL is made.
func (g *Guard) CheckHost(host string, port uint16) error {
	switch {
	case host == "":
		return errors.New("is empty")
	case len(host) > 253 || strings.ContainsFunc(host, func(r rune) bool { return r <= ' ' || r > '~' }):
		return errors.New("is not a host name in ASCII; write an international name in its xn-- form")
	}
	return g.checkHost(host, port, strings.Contains(host, ":"))
}

// checkText looks at what must be right before any parser is asked.
func checkText(raw string) error {
	if len(raw) > MaxURL {
		return errors.New("is longer than 2048 bytes")
	}
	rest, ok := strings.CutPrefix(raw, "https://")
	if !ok {
		rest, ok = strings.CutPrefix(raw, "http://")
	}
	if !ok {
		return errors.New("does not start with http:// or https://")
	}
	for i := range len(raw) {
		if raw[i] <= ' ' || raw[i] == 0x7f || raw[i] == '\\' {
			return errors.New("has a blank, a control character or a backslash; write it percent-encoded")
		}
	}
	host, _, _ := strings.Cut(rest, "/")
	host, _, _ = strings.Cut(host, "?")
	for i := range len(host) {
		switch c := host[i]; {
		case c == '#':
			return errors.New("has a fragment (#...), which is never sent")
		case c == '@':
			return errors.New("has credentials in front of the host; give them in a header")
		case c == '%':
			return errors.New("has a percent sign in the host")
		case c >= 0x80:
			return errors.New("has a host that is not ASCII; write an international name in its xn-- form")
		}
	}
	if host == "" || host[0] == ':' {
		return errors.New("has no host")
	}
	if strings.Contains(raw, "#") {
		return errors.New("has a fragment (#...), which is never sent")
	}
	return nil
}

func checkParts(u *url.URL) error {
	if u.User != nil || u.Opaque != "" || u.Fragment != "" || u.Hostname() == "" {
		return errors.New("is not a plain URL: scheme, host, port, path, query")
	}
	port := u.Port()
	if port == "" {
		if strings.HasSuffix(u.Host, ":") {
			return errors.New("has a colon and no port")
		}
		return nil
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 || port[0] == '0' {
		return errors.New("has no valid port: 1 to 65535")
	}
	return nil
}

// portOf returns the port of a URL that checkParts has let through.
func portOf(u *url.URL) uint16 {
	if n, err := strconv.ParseUint(u.Port(), 10, 16); err == nil {
		return uint16(n)
	}
	if u.Scheme == "https" {
		return 443
	}
	return 80
}

func (g *Guard) checkHost(host string, port uint16, bracketed bool) error {
	if bracketed {
		addr, err := netip.ParseAddr(host)
		if err != nil || !addr.Is6() || addr.Zone() != "" {
			return errors.New("has no valid IPv6 address in brackets")
		}
		return g.Check(netip.AddrPortFrom(addr, port))
	}
	name := strings.ToLower(strings.TrimSuffix(host, "."))
	if addr, err := netip.ParseAddr(name); err == nil {
		if name != host {
			return errors.New("has a full stop behind the address")
		}
		return g.Check(netip.AddrPortFrom(addr, port))
	}
	if looksNumeric(name) {
		return errors.New("has an address in an unusual form; write four decimal numbers")
	}
	if !isName(name) {
		return errors.New("has a host that is not a name")
	}
	if isLocal(name) {
		return g.checkLocal(port)
	}
	if isMetadata(name) {
		return errors.New("names a metadata service")
	}
	return nil
}

// looksNumeric reports whether something may take name for an IPv4 address: its last label is a number in any base
// (WHATWG URL standard, "ends in a number").
func looksNumeric(name string) bool {
	last := name[strings.LastIndexByte(name, '.')+1:]
	if hex, ok := strings.CutPrefix(last, "0x"); ok {
		return strings.Trim(hex, "0123456789abcdef") == ""
	}
	return strings.Trim(last, "0123456789") == ""
}

// isName reports whether name is a host name (RFC 1123), with underscores as they occur in practice.
func isName(name string) bool {
	if len(name) > 253 {
		return false
	}
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
		if strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
			return false
		}
	}
	return true
}

func isLocal(name string) bool {
	switch name {
	case "localhost", "localhost.localdomain", "localhost6", "localhost6.localdomain6", "ip6-localhost", "ip6-loopback":
		return true
	}
	return strings.HasSuffix(name, ".localhost")
}

// checkLocal allows the names of this host when one of its addresses is allowed.
func (g *Guard) checkLocal(port uint16) error {
	err := g.Check(netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), port))
	if err != nil && g.Check(netip.AddrPortFrom(netip.IPv6Loopback(), port)) == nil {
		return nil
	}
	return err
}

func isMetadata(name string) bool {
	switch name {
	case "metadata", "metadata.google.internal", "metadata.goog", "instance-data", "instance-data.ec2.internal",
		"metadata.tencentyun.com", "metadata.platformequinix.com":
		return true
	}
	return false
}
