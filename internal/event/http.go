// SPDX-License-Identifier: Apache-2.0

package event

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Mode is how an event travels over HTTP (HTTP binding 1.0.2 section 1.3).
type Mode uint8

// The modes.
const (
	Binary     Mode = iota // attributes in headers, data in the body
	Structured             // one event in the body, in an event format
	Batch                  // many events in the body
)

// String returns the name of the mode in lower case.
func (m Mode) String() string {
	switch m {
	case Structured:
		return "structured"
	case Batch:
		return "batch"
	}
	return "binary"
}

// ModeOf returns the mode that a Content-Type announces (section 3).
func ModeOf(contentType string) Mode {
	// The two prefixes overlap, so the longer comes first.
	switch s := strings.TrimLeft(contentType, " "); {
	case hasPrefixFold(s, "application/cloudevents-batch"):
		return Batch
	case hasPrefixFold(s, "application/cloudevents"):
		return Structured
	}
	return Binary
}

func hasPrefixFold(s, prefix string) bool {
	return len(s) >= len(prefix) && strings.EqualFold(s[:len(prefix)], prefix)
}

// isFormat reports whether a media type is the one given, whatever its case and parameters.
func isFormat(contentType, format string) bool {
	t, _, _ := strings.Cut(contentType, ";")
	return strings.EqualFold(strings.TrimSpace(t), format)
}

// FromHTTP reads the events of a request or response, in whatever mode its Content-Type says, and validates them. In
// binary mode it is FromHTTPBinary and body is given away. The error is an *Error: Unsupported for an event format that
// is not JSON and for any Content-Encoding.
func FromHTTP(h http.Header, body []byte, lim Limits) (Mode, []Event, error) {
	var contentType string
	if v := h["Content-Type"]; len(v) > 0 {
		contentType = v[0]
	}
	mode := ModeOf(contentType)
	if mode == Binary {
		e, err := FromHTTPBinary(h, body, lim)
		if err != nil {
			return mode, nil, err
		}
		return mode, []Event{e}, nil
	}
	format := StructuredType
	if mode == Batch {
		format = BatchType
	}
	if len(h["Content-Type"]) > 1 || !isFormat(contentType, format) {
		return mode, nil, &Error{Index: -1, Reason: "the event format is not understood; use " + format, Unsupported: true}
	}
	if f := encodingFault(h); f != nil {
		return mode, nil, f
	}
	if mode == Batch {
		events, err := ParseJSONBatch(body, lim)
		return mode, events, err
	}
	e, err := ParseJSON(body, lim)
	if err != nil {
		return mode, nil, err
	}
	return mode, []Event{e}, nil
}

func encodingFault(h http.Header) *Error {
	for _, v := range h["Content-Encoding"] {
		if v != "" && !strings.EqualFold(v, "identity") {
			return &Error{Index: -1, Reason: "content encodings are not understood; send the data as it is", Unsupported: true}
		}
	}
	return nil
}

// FromHTTPBinary reads an event in binary mode and validates it. Header values are unquoted and percent-decoded once
// (section 3.1.3.2); a percent sign or a quote that is malformed is refused, because either way of reading it would be a
// guess. Every extension is a string. The body is not copied: Data is body, and the caller gives it away. An empty body
// is no data.
func FromHTTPBinary(h http.Header, body []byte, lim Limits) (Event, error) {
	lim = lim.withDefaults()
	d := headerDecoder{lim: &lim}
	for name, values := range h {
		if len(name) < 3 || name[0]|0x20 != 'c' || name[1]|0x20 != 'e' || name[2] != '-' {
			continue
		}
		if f := d.header(name[3:], values); f != nil {
			d.keep(f)
		}
	}
	if f := d.finish(h); f != nil {
		return Event{}, f
	}
	if len(body) > 0 {
		d.Data = body
	}
	if f := d.fault(&lim); f != nil {
		return Event{}, f
	}
	return d.Event, nil
}

// headerDecoder collects the ce- headers of one event.
type headerDecoder struct {
	Event
	lim     *Limits
	count   int
	version bool
	worst   *Error
}

// keep keeps the fault whose attribute sorts first, so that the answer does not depend on the order of a map.
func (d *headerDecoder) keep(f *Error) {
	if d.worst == nil || f.Attribute < d.worst.Attribute {
		d.worst = f
	}
}

// header reads one header, whose name comes without ce-, in any case.
func (d *headerDecoder) header(name string, values []string) *Error {
	d.count++
	var field *string
	switch name {
	case "Id", "id":
		name, field = "id", &d.ID
	case "Source", "source":
		name, field = "source", &d.Source
	case "Type", "type":
		name, field = "type", &d.Type
	case "Subject", "subject":
		name, field = "subject", &d.Subject
	case "Dataschema", "dataschema":
		name, field = "dataschema", &d.DataSchema
	case "Specversion":
		name = "specversion"
	case "Time":
		name = "time"
	default:
		return d.other(name, values)
	}
	value, f := oneValue(name, values)
	if f != nil {
		return f
	}
	switch {
	case name == "specversion":
		return d.specVersion(value)
	case name == "time":
		return d.time(value)
	case *field != "":
		return refuse(name, isRepeated)
	case value == "" && (name == "subject" || name == "dataschema"):
		return refuse(name, isEmpty)
	}
	*field = value
	return nil
}

// other reads a header that is an extension, or a core attribute in unusual case.
func (d *headerDecoder) other(header string, values []string) *Error {
	var buf [64]byte
	lower := buf[:0]
	for i := 0; i < len(header); i++ {
		c := header[i]
		if 'A' <= c && c <= 'Z' {
			c |= 0x20
		}
		lower = append(lower, c)
	}
	name := knownName(lower)
	switch name {
	case "datacontenttype":
		return refuse(name, "must not be a ce- header; Content-Type is its place")
	case "specversion", "time", "id", "source", "type", "subject", "dataschema":
		return d.header(strings.ToUpper(name[:1])+name[1:], values)
	}
	if r := extensionNameFault(name, d.lim.MaxName); r != "" {
		return refuseName(name, r)
	}
	value, f := oneValue(name, values)
	if f != nil {
		return f
	}
	if len(d.Extensions) >= d.lim.MaxExtensions {
		return refuse("", "at most "+strconv.Itoa(d.lim.MaxExtensions)+" extensions are allowed")
	}
	if d.Extensions == nil {
		d.Extensions = make([]Attribute, 0, 4)
	}
	var ok bool
	if d.Extensions, ok = addExtension(d.Extensions, name, value); !ok {
		return refuse(name, isRepeated)
	}
	return nil
}

func (d *headerDecoder) specVersion(value string) *Error {
	switch {
	case d.version:
		return refuse("specversion", isRepeated)
	case value == "":
		return refuse("specversion", isMissing)
	case value != "1.0":
		return unsupportedVersion()
	}
	d.version = true
	return nil
}

func (d *headerDecoder) time(value string) *Error {
	if !d.Time.IsZero() {
		return refuse("time", isRepeated)
	}
	t, reason := parseTime(value)
	if reason != "" {
		return refuse("time", reason)
	}
	d.Time = t
	return nil
}

// finish reads the other headers and says what is wrong with all of them.
func (d *headerDecoder) finish(h http.Header) *Error {
	if f := encodingFault(h); f != nil {
		return f
	}
	if d.count == 0 {
		return refuse("", "no CloudEvents attributes: send ce-id, ce-source, ce-type and ce-specversion as headers, or the event as "+StructuredType)
	}
	switch v := h["Content-Type"]; len(v) {
	case 0:
	case 1:
		d.DataContentType = v[0]
	default:
		d.keep(refuse("datacontenttype", isRepeated))
	}
	if d.worst == nil && !d.version {
		return refuse("specversion", isMissing)
	}
	return d.worst
}

// oneValue decodes the value of a header that may occur once.
func oneValue(name string, values []string) (string, *Error) {
	if len(values) != 1 {
		return "", refuse(name, isRepeated)
	}
	v := values[0]
	if v != "" && v[0] == '"' {
		var ok bool
		if v, ok = unquote(v); !ok {
			return "", refuse(name, "must close the quoted string that it opens; a quote of its own is sent as %22")
		}
	}
	v, ok := percentDecode(v)
	if !ok {
		return "", refuse(name, "must have two hexadecimal digits after a percent sign; a percent sign of its own is sent as %25")
	}
	return v, nil
}

// unquote undoes an RFC 7230 quoted-string.
func unquote(s string) (string, bool) {
	if len(s) < 2 || s[len(s)-1] != '"' {
		return "", false
	}
	s = s[1 : len(s)-1]
	if strings.IndexByte(s, '"') < 0 && strings.IndexByte(s, '\\') < 0 {
		return s, true
	}
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '"':
			return "", false
		case '\\':
			if i++; i == len(s) {
				return "", false
			}
		}
		b = append(b, s[i])
	}
	return string(b), true
}

// ToHTTPBinary puts the event into h in binary mode and returns the body, which is e.Data and not a copy. Values are
// percent-encoded as section 3.1.3.2 says. Content-Type becomes datacontenttype, or is taken out when there is none.
// Headers that are not the event's stay; ce- headers of another event must not be there. An event whose datacontenttype
// is a CloudEvents media type itself would be taken for what it is not, so it goes in structured mode.
func ToHTTPBinary(h http.Header, e *Event) []byte { return toHTTPBinary(h, e, percentEncode) }

// ToHTTPBinaryRaw is ToHTTPBinary for receivers that do not decode: a value that a header can hold as it is, printable ASCII
// without blanks at its ends, is not encoded. The binding does not allow that; who decodes reads a percent sign wrongly.
func ToHTTPBinaryRaw(h http.Header, e *Event) []byte {
	return toHTTPBinary(h, e, func(s string) string {
		for i := range len(s) {
			if s[i] < ' ' || s[i] > '~' {
				return percentEncode(s)
			}
		}
		if s != "" && (s[0] == ' ' || s[len(s)-1] == ' ') {
			return percentEncode(s)
		}
		return s
	})
}

func toHTTPBinary(h http.Header, e *Event, encode func(string) string) []byte {
	if ModeOf(e.DataContentType) != Binary {
		h["Content-Type"] = []string{StructuredType}
		return AppendJSON(nil, e)
	}
	const most = 8 // headers of a whole event without extensions
	values := make([]string, 0, most+len(e.Extensions))
	set := func(name, value string) {
		values = append(values, value)
		n := len(values)
		h[name] = values[n-1 : n : n]
	}
	set("Ce-Specversion", "1.0")
	set("Ce-Id", encode(e.ID))
	set("Ce-Source", encode(e.Source))
	set("Ce-Type", encode(e.Type))
	if e.Subject != "" {
		set("Ce-Subject", encode(e.Subject))
	}
	if !e.Time.IsZero() {
		var buf [len(time.RFC3339Nano)]byte
		set("Ce-Time", string(appendTime(buf[:0], e.Time)))
	}
	if e.DataSchema != "" {
		set("Ce-Dataschema", encode(e.DataSchema))
	}
	for i := range e.Extensions {
		x := &e.Extensions[i]
		set(headerName(x.Name), encode(x.Canonical()))
	}
	delete(h, "Content-Type")
	if e.DataContentType != "" {
		set("Content-Type", e.DataContentType)
	}
	return e.Data
}

// headerName is the canonical form of ce-<name>, as http.Header wants it.
func headerName(name string) string {
	c := name[0]
	if 'a' <= c && c <= 'z' {
		c &^= 0x20
	}
	return "Ce-" + string(c) + name[1:]
}
