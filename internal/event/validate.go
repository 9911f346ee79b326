// SPDX-License-Identifier: Apache-2.0

package event

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

const (
	isEmpty    = "must not be empty; leave it out instead"
	isMissing  = "is required and must not be empty"
	isRepeated = "must occur once"
	badUTF8    = "must be valid UTF-8"
	badControl = "must not contain control characters"
	badNonchar = "must not contain Unicode noncharacters"
	badURI     = "must be a URI reference (RFC 3986); other characters are percent-encoded"
	badName    = "is no attribute name; names are one or more of a-z and 0-9"
	badVersion = "must be 1.0"
)

// refuse makes the error for an attribute outside a batch.
func refuse(attribute, reason string) *Error {
	return &Error{Attribute: attribute, Index: -1, Reason: reason}
}

// refuseName makes the error for an attribute whose name is not under our control: it is put in lower case and cut, and
// what is not printable ASCII is replaced, so that an error stays one short line.
func refuseName(name, reason string) *Error {
	const longest = 64
	b := make([]byte, 0, longest)
	for i := 0; i < len(name) && i < longest; i++ {
		switch c := name[i]; {
		case 'A' <= c && c <= 'Z':
			b = append(b, c|0x20)
		case c <= ' ' || c >= 0x7f:
			b = append(b, '?')
		default:
			b = append(b, c)
		}
	}
	return refuse(string(b), reason)
}

func tooLong(limit int) string {
	return "must be at most " + strconv.Itoa(limit) + " bytes"
}

// Validate checks the event against CloudEvents 1.0.2 section 3 and against lim. The error is an *Error that names the
// attribute. Decoders call it; whoever builds an event by hand calls it before handing the event on.
func (e *Event) Validate(lim Limits) error {
	lim = lim.withDefaults()
	if f := e.fault(&lim); f != nil {
		return f
	}
	return nil
}

// fault is Validate on limits with defaults filled in.
func (e *Event) fault(lim *Limits) *Error {
	if r := requiredFault(e.ID, lim.MaxAttribute); r != "" {
		return refuse("id", r)
	}
	if r := requiredFault(e.Source, lim.MaxAttribute); r != "" {
		return refuse("source", r)
	}
	if r := uriFault(e.Source, false); r != "" {
		return refuse("source", r)
	}
	if r := requiredFault(e.Type, lim.MaxAttribute); r != "" {
		return refuse("type", r)
	}
	if r := textFault(e.Subject, lim.MaxText); r != "" {
		return refuse("subject", r)
	}
	if e.DataContentType != "" {
		if len(e.DataContentType) > lim.MaxAttribute {
			return refuse("datacontenttype", tooLong(lim.MaxAttribute))
		}
		if !isMediaType(e.DataContentType) {
			return refuse("datacontenttype", "must be a media type such as application/json (RFC 2046)")
		}
	}
	if e.DataSchema != "" {
		if len(e.DataSchema) > lim.MaxText {
			return refuse("dataschema", tooLong(lim.MaxText))
		}
		if r := uriFault(e.DataSchema, true); r != "" {
			return refuse("dataschema", r)
		}
	}
	if y := e.Time.Year(); y < 0 || y > 9999 {
		return refuse("time", "must be in the years 0 to 9999")
	}
	if f := e.extensionFault(lim); f != nil {
		return f
	}
	if len(e.Data) > lim.MaxData {
		return &Error{Attribute: "data", Index: -1, Reason: tooLong(lim.MaxData), TooLarge: true}
	}
	if e.headerBound() > lim.MaxHeader && e.headerLen() > lim.MaxHeader {
		return &Error{Index: -1, Reason: "all attributes together, percent-encoded, " + tooLong(lim.MaxHeader), TooLarge: true}
	}
	return nil
}

func (e *Event) extensionFault(lim *Limits) *Error {
	if len(e.Extensions) > lim.MaxExtensions {
		return refuse("", "at most "+strconv.Itoa(lim.MaxExtensions)+" extensions are allowed")
	}
	for i := range e.Extensions {
		x := &e.Extensions[i]
		if r := extensionNameFault(x.Name, lim.MaxName); r != "" {
			return refuseName(x.Name, r)
		}
		if i > 0 && e.Extensions[i-1].Name >= x.Name {
			return refuse(x.Name, "extensions must be sorted by name and occur once")
		}
		switch v := x.Value.(type) {
		case string:
			if r := textFault(v, lim.MaxExtension); r != "" {
				return refuse(x.Name, r)
			}
		case int32, bool:
		default:
			return refuse(x.Name, fmt.Sprintf("must be a string, an int32 or a bool, not %T", v))
		}
	}
	return nil
}

// Canonical returns the canonical string of an extension's value (CloudEvents 1.0.2 section 2.4): the string itself, a
// decimal number, true or false. It panics for any other type, because Validate refuses those.
func (a Attribute) Canonical() string {
	switch v := a.Value.(type) {
	case string:
		return v
	case int32:
		return strconv.Itoa(int(v))
	case bool:
		return strconv.FormatBool(v)
	}
	panic(fmt.Sprintf("event: extension %s has a %T", a.Name, a.Value))
}

// isCoreName reports whether name is an attribute of the specification, which no extension may be called.
func isCoreName(name string) bool {
	switch name {
	case "specversion", "id", "source", "type", "subject", "time", "datacontenttype", "dataschema":
		return true
	}
	return false
}

func extensionNameFault(name string, longest int) string {
	if !isName(name) {
		return badName
	}
	if name == "data" || isCoreName(name) {
		return "is reserved and no extension"
	}
	if len(name) > longest {
		return "has too long a name; at most " + strconv.Itoa(longest) + " bytes are allowed"
	}
	return ""
}

func isName(s string) bool {
	for i := 0; i < len(s); i++ {
		if c := s[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return s != ""
}

// addExtension puts an attribute in its place. It is false when the name is there already.
func addExtension(x []Attribute, name string, value any) ([]Attribute, bool) {
	i := len(x)
	for i > 0 && x[i-1].Name > name {
		i--
	}
	if i > 0 && x[i-1].Name == name {
		return x, false
	}
	x = append(x, Attribute{})
	copy(x[i+1:], x[i:])
	x[i] = Attribute{name, value}
	return x, true
}

func requiredFault(s string, limit int) string {
	if s == "" {
		return isMissing
	}
	return textFault(s, limit)
}

// textFault says what keeps s from being a CloudEvents string (section 2.4).
func textFault(s string, limit int) string {
	if len(s) > limit {
		return tooLong(limit)
	}
	for i := 0; i < len(s); {
		c := s[i]
		if c < utf8.RuneSelf {
			if c < 0x20 || c == 0x7f {
				return badControl
			}
			i++
			continue
		}
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			return badUTF8
		case r <= 0x9f:
			return badControl
		case isNonchar(r):
			return badNonchar
		}
		i += n
	}
	return ""
}

func isNonchar(r rune) bool {
	return r&0xfffe == 0xfffe || 0xfdd0 <= r && r <= 0xfdef
}

// What a byte may be in a URI (RFC 3986 appendix A); the percent sign is looked at apart.
const (
	uriScheme     = 1 << iota // ALPHA DIGIT + - .
	uriName                   // unreserved, sub-delims
	uriUser                   // uriName and :
	uriPath                   // pchar and /
	uriQuery                  // pchar, / and ?
	uriDigit                  // 0-9
	uriAddress                // what stands between brackets
	uriUnreserved             // what needs no percent-coding anywhere
	mediaToken                // a token of a media type
	mediaParams               // what may follow a media type
)

var class = func() (t [256]uint16) {
	set := func(bits uint16, chars string) {
		for i := 0; i < len(chars); i++ {
			t[chars[i]] |= bits
		}
	}
	const digit = "0123456789"
	const alnum = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ" + digit
	set(uriDigit, digit)
	set(uriScheme, alnum+"+-.")
	set(uriName|uriUser|uriPath|uriQuery|uriAddress, alnum+"-._~!$&'()*+,;=")
	set(uriUser|uriAddress, ":")
	set(uriPath|uriQuery, ":@/")
	set(uriUnreserved, alnum+"-._~")
	set(uriQuery, "?")
	set(mediaToken, alnum+"!#$%&'*+-.^_`|~")
	for c := ' '; c < 0x7f; c++ {
		t[c] |= mediaParams
	}
	return t
}()

// uriFault says what keeps s from being a URI reference (RFC 3986 section 4.1) or, if absolute, a URI with a scheme. A
// fragment is allowed in both: schemas are often named by one.
func uriFault(s string, absolute bool) string {
	i := strings.IndexAny(s, ":/?#")
	if i >= 0 && s[i] == ':' {
		if !all(s[:i], uriScheme) || i == 0 || s[0]|0x20 < 'a' || s[0]|0x20 > 'z' {
			return badURI
		}
		s = s[i+1:]
	} else if absolute {
		return "must be an absolute URI (RFC 3986)"
	}
	s, fragment, _ := strings.Cut(s, "#")
	s, query, _ := strings.Cut(s, "?")
	path := s
	if rest, ok := strings.CutPrefix(s, "//"); ok {
		end := strings.IndexByte(rest, '/')
		if end < 0 {
			end = len(rest)
		}
		if !isAuthority(rest[:end]) {
			return badURI
		}
		path = rest[end:]
	}
	if !encoded(path, uriPath) || !encoded(query, uriQuery) || !encoded(fragment, uriQuery) {
		return badURI
	}
	return ""
}

// isAuthority reports whether s is [userinfo@]host[:port].
func isAuthority(s string) bool {
	if user, host, ok := strings.Cut(s, "@"); ok {
		if !encoded(user, uriUser) {
			return false
		}
		s = host
	}
	if strings.HasPrefix(s, "[") {
		address, port, ok := strings.Cut(s[1:], "]")
		return ok && address != "" && all(address, uriAddress) &&
			(port == "" || port[0] == ':' && all(port[1:], uriDigit))
	}
	host, port, _ := strings.Cut(s, ":")
	return encoded(host, uriName) && all(port, uriDigit)
}

// all reports whether every byte of s is of a class.
func all(s string, bits uint16) bool {
	for i := 0; i < len(s); i++ {
		if class[s[i]]&bits == 0 {
			return false
		}
	}
	return true
}

// encoded reports whether every byte of s is of a class or a well-formed percent-encoding.
func encoded(s string, bits uint16) bool {
	for i := 0; i < len(s); i++ {
		if class[s[i]]&bits != 0 {
			continue
		}
		if s[i] != '%' || i+2 >= len(s) || unhex(s[i+1]) < 0 || unhex(s[i+2]) < 0 {
			return false
		}
		i += 2
	}
	return true
}
