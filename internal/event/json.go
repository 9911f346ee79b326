// SPDX-License-Identifier: Apache-2.0

package event

import (
	"bytes"
	"encoding/base64"
	"strconv"
	"unicode/utf8"
)

// The media types of the JSON format.
const (
	StructuredType = "application/cloudevents+json"
	BatchType      = "application/cloudevents-batch+json"
)

// ParseJSON reads one event in the CloudEvents JSON format (1.0.2) and validates it. Data of a JSON type is kept as it
// is written, without the blanks around it; a string of another type is unescaped, and data_base64 is decoded. Data
// without a datacontenttype is application/json, as section 3.1.2 asks. A byte order mark in front is passed over. The
// error is an *Error. Nothing of b is kept.
func ParseJSON(b []byte, lim Limits) (Event, error) {
	lim = lim.withDefaults()
	p := parser{lim: &lim}
	p.b, p.i = b, bomLen(b)
	e, f := p.event()
	if f == nil {
		f = p.end()
	}
	if f != nil {
		return Event{}, f
	}
	return e, nil
}

// ParseJSONBatch reads the CloudEvents JSON batch format. Either all events are good or none is returned: the error is
// an *Error whose Index is the event at fault, or -1. An empty batch is legal.
func ParseJSONBatch(b []byte, lim Limits) ([]Event, error) {
	lim = lim.withDefaults()
	p := parser{lim: &lim}
	p.b, p.i = b, bomLen(b)
	events, f := p.batch()
	if f != nil {
		return nil, f
	}
	return events, nil
}

func bomLen(b []byte) int {
	if bytes.HasPrefix(b, []byte("\ufeff")) {
		return len("\ufeff")
	}
	return 0
}

// parser reads envelopes.
type parser struct {
	Scanner
	lim *Limits
}

// bad makes the error for what is not JSON.
func (p *parser) bad(fault string) *Error {
	return refuse("", "not valid JSON at byte "+strconv.Itoa(p.i)+": "+fault)
}

func (p *parser) end() *Error {
	if p.space(); p.i < len(p.b) {
		return p.bad("nothing may follow")
	}
	return nil
}

func (p *parser) batch() ([]Event, *Error) {
	if p.Next() != '[' {
		if p.i >= len(p.b) {
			return nil, p.bad(endOfInput)
		}
		return nil, refuse("", "must be a JSON array of events")
	}
	p.i++
	events := []Event{}
	if p.Next() == ']' {
		p.i++
		return events, p.end()
	}
	for {
		if len(events) == p.lim.MaxBatchEvents {
			return nil, &Error{Index: -1, Reason: "a batch holds at most " + strconv.Itoa(p.lim.MaxBatchEvents) + " events", TooLarge: true}
		}
		e, f := p.event()
		if f != nil {
			f.Index = len(events)
			return nil, f
		}
		events = append(events, e)
		switch p.Next() {
		case ',':
			p.i++
		case ']':
			p.i++
			return events, p.end()
		default:
			return nil, p.bad(p.unexpected("',' or the end of the array was expected"))
		}
	}
}

// envelope is what has been read of one event.
type envelope struct {
	Event
	seen    uint     // bits of the members below
	nulls   []string // extensions that are null, which still may occur only once
	data    []byte   // the raw value of data
	encoded []byte   // the raw inside of the string data_base64
	escaped bool     // encoded has escapes
}

const (
	seenSpecVersion = 1 << iota
	seenID
	seenSource
	seenType
	seenSubject
	seenTime
	seenDataContentType
	seenDataSchema
	seenData
	seenDataBase64
	hasVersion // specversion was there and not null
)

func (p *parser) event() (Event, *Error) {
	if p.Next() != '{' {
		if p.i >= len(p.b) {
			return Event{}, p.bad(endOfInput)
		}
		return Event{}, refuse("", "must be a JSON object")
	}
	p.i++
	var v envelope
	if p.Next() == '}' {
		p.i++
		return v.finish(p.lim)
	}
	for {
		if f := p.member(&v); f != nil {
			return Event{}, f
		}
		switch p.Next() {
		case ',':
			p.i++
		case '}':
			p.i++
			return v.finish(p.lim)
		default:
			return Event{}, p.bad(p.unexpected("',' or '}' was expected"))
		}
	}
}

// member reads one member of the envelope.
func (p *parser) member(v *envelope) *Error {
	if p.Next() != '"' {
		return p.bad(p.unexpected("a member name was expected"))
	}
	raw, escaped, fault := p.Text()
	if fault != "" {
		return p.bad(fault)
	}
	var buf [64]byte
	if escaped {
		var ok bool
		if raw, ok = Unescape(buf[:0], raw); !ok {
			return refuse("", "a member name holds half a surrogate pair")
		}
	}
	if fault := p.Expect(':'); fault != "" {
		return p.bad(fault)
	}
	p.space()
	switch string(raw) {
	case "specversion":
		return p.specVersion(v)
	case "id":
		return p.attribute(v, seenID, "id", &v.ID)
	case "source":
		return p.attribute(v, seenSource, "source", &v.Source)
	case "type":
		return p.attribute(v, seenType, "type", &v.Type)
	case "subject":
		return p.attribute(v, seenSubject, "subject", &v.Subject)
	case "datacontenttype":
		return p.attribute(v, seenDataContentType, "datacontenttype", &v.DataContentType)
	case "dataschema":
		return p.attribute(v, seenDataSchema, "dataschema", &v.DataSchema)
	case "time":
		return p.time(v)
	case "data":
		return p.data(v)
	case "data_base64":
		return p.dataBase64(v)
	}
	return p.extension(v, raw)
}

func (v *envelope) once(bit uint, name string) *Error {
	if v.seen&bit != 0 {
		return refuse(name, isRepeated)
	}
	v.seen |= bit
	return nil
}

// string reads the value of an attribute that has to be a string. Null is absent.
func (p *parser) string(name string) (value string, present bool, f *Error) {
	switch p.Next() {
	case 'n':
		if fault := p.Literal("null"); fault != "" {
			return "", false, p.bad(fault)
		}
		return "", false, nil
	case '"':
		raw, escaped, fault := p.Text()
		if fault != "" {
			return "", false, p.bad(fault)
		}
		if escaped {
			var buf [256]byte
			var ok bool
			if raw, ok = Unescape(buf[:0], raw); !ok {
				return "", false, refuse(name, "must not hold half a surrogate pair")
			}
		}
		return string(raw), true, nil
	}
	if fault := p.value(p.lim.MaxDepth); fault != "" {
		return "", false, p.bad(fault)
	}
	return "", false, refuse(name, "must be a string")
}

func (p *parser) attribute(v *envelope, bit uint, name string, field *string) *Error {
	if f := v.once(bit, name); f != nil {
		return f
	}
	value, present, f := p.string(name)
	if f != nil {
		return f
	}
	if present && value == "" {
		if bit&(seenID|seenSource|seenType) != 0 {
			return refuse(name, isMissing)
		}
		return refuse(name, isEmpty)
	}
	*field = value
	return nil
}

func (p *parser) specVersion(v *envelope) *Error {
	if f := v.once(seenSpecVersion, "specversion"); f != nil {
		return f
	}
	value, present, f := p.string("specversion")
	if f != nil || !present {
		return f
	}
	if value != "1.0" {
		return unsupportedVersion()
	}
	v.seen |= hasVersion
	return nil
}

func unsupportedVersion() *Error {
	return &Error{Attribute: "specversion", Index: -1, Reason: badVersion, Unsupported: true}
}

func (p *parser) time(v *envelope) *Error {
	if f := v.once(seenTime, "time"); f != nil {
		return f
	}
	value, present, f := p.string("time")
	if f != nil || !present {
		return f
	}
	t, reason := parseTime(value)
	if reason != "" {
		return refuse("time", reason)
	}
	v.Time = t
	return nil
}

func (p *parser) data(v *envelope) *Error {
	if f := v.once(seenData, "data"); f != nil {
		return f
	}
	start := p.i
	if fault := p.value(p.lim.MaxDepth); fault != "" {
		f := p.bad(fault)
		f.Attribute = "data"
		return f
	}
	v.data = p.b[start:p.i]
	return nil
}

func (p *parser) dataBase64(v *envelope) *Error {
	if f := v.once(seenDataBase64, "data_base64"); f != nil {
		return f
	}
	var fault string
	switch p.Next() {
	case 'n':
		fault = p.Literal("null")
	case '"':
		v.encoded, v.escaped, fault = p.Text()
	default:
		if fault = p.value(p.lim.MaxDepth); fault == "" {
			return refuse("data_base64", "must be a string")
		}
	}
	if fault != "" {
		return p.bad(fault)
	}
	return nil
}

// extension reads the value of any other member.
func (p *parser) extension(v *envelope, raw []byte) *Error {
	name := knownName(raw)
	if r := extensionNameFault(name, p.lim.MaxName); r != "" {
		return refuseName(name, r)
	}
	var value any
	var fault string
	switch c := p.Next(); {
	case c == '"':
		text, _, f := p.string(name)
		if f != nil {
			return f
		}
		value = text
	case c == 't':
		value, fault = true, p.Literal("true")
	case c == 'f':
		value, fault = false, p.Literal("false")
	case c == '-' || '0' <= c && c <= '9':
		const whole = "must be a whole number from -2147483648 to 2147483647"
		start := p.i
		var integer bool
		if _, integer, fault = p.Number(); fault == "" {
			n, err := strconv.ParseInt(string(p.b[start:p.i]), 10, 32)
			if !integer || err != nil {
				return refuse(name, whole)
			}
			value = int32(n)
		}
	case c == 'n':
		fault = p.Literal("null")
	default:
		if fault = p.value(p.lim.MaxDepth); fault == "" {
			return refuse(name, "must be a string, a whole number or a boolean")
		}
	}
	if fault != "" {
		return p.bad(fault)
	}
	return v.add(name, value, p.lim.MaxExtensions)
}

func (v *envelope) add(name string, value any, most int) *Error {
	if len(v.Extensions)+len(v.nulls) >= most {
		return refuse("", "at most "+strconv.Itoa(most)+" extensions are allowed")
	}
	for _, n := range v.nulls {
		if n == name {
			return refuse(name, isRepeated)
		}
	}
	if value == nil {
		if _, there := v.Extension(name); there {
			return refuse(name, isRepeated)
		}
		v.nulls = append(v.nulls, name)
		return nil
	}
	if v.Extensions == nil {
		v.Extensions = make([]Attribute, 0, 4)
	}
	var ok bool
	if v.Extensions, ok = addExtension(v.Extensions, name, value); !ok {
		return refuse(name, isRepeated)
	}
	return nil
}

// finish decides what data is, now that all members are known, and validates the event.
func (v *envelope) finish(lim *Limits) (Event, *Error) {
	if v.seen&hasVersion == 0 {
		return Event{}, refuse("specversion", isMissing)
	}
	var f *Error
	switch {
	case v.data != nil && v.encoded != nil:
		f = refuse("data_base64", "excludes data; only one of them may be there")
	case v.encoded != nil:
		f = v.decodeBase64()
	case v.data != nil:
		f = v.decodeData()
	}
	if f == nil {
		f = v.fault(lim)
	}
	if f != nil {
		return Event{}, f
	}
	return v.Event, nil
}

func (v *envelope) decodeData() *Error {
	if v.DataContentType == "" {
		v.DataContentType = "application/json"
	}
	if IsJSON(v.DataContentType) {
		v.Data = bytes.Clone(v.data)
		return nil
	}
	switch v.data[0] {
	case 'n': // a value of no JSON type cannot be null, so it is absent
		return nil
	case '"':
		var ok bool
		v.Data, ok = Unescape(make([]byte, 0, len(v.data)-2), v.data[1:len(v.data)-1])
		if !ok {
			return refuse("data", "must not hold half a surrogate pair")
		}
		return nil
	}
	return refuse("data", "must be a string, because datacontenttype is not JSON")
}

func (v *envelope) decodeBase64() *Error {
	const bad = "must be base64 (RFC 4648 section 4) with padding and without line breaks"
	raw := v.encoded
	if v.escaped {
		var ok bool
		if raw, ok = Unescape(make([]byte, 0, len(raw)), raw); !ok {
			return refuse("data_base64", bad)
		}
	}
	// The decoder passes over line breaks. They can only have come from escapes.
	if v.escaped && bytes.ContainsAny(raw, "\r\n") {
		return refuse("data_base64", bad)
	}
	data := make([]byte, base64.StdEncoding.DecodedLen(len(raw)))
	n, err := base64.StdEncoding.Decode(data, raw)
	if err != nil {
		return refuse("data_base64", bad)
	}
	v.Data = data[:n]
	return nil
}

// AppendJSON appends the event in the CloudEvents JSON format. Data of a JSON type is embedded as it is, when it is
// valid JSON; text in UTF-8 becomes a string; everything else, data without a datacontenttype among it, becomes
// data_base64. JSON data keeps its own line breaks, so the result may have several lines.
func AppendJSON(dst []byte, e *Event) []byte {
	dst = append(dst, `{"specversion":"1.0"`...)
	dst = appendMember(dst, "id", e.ID)
	dst = appendMember(dst, "source", e.Source)
	dst = appendMember(dst, "type", e.Type)
	if e.Subject != "" {
		dst = appendMember(dst, "subject", e.Subject)
	}
	if !e.Time.IsZero() {
		dst = append(dst, `,"time":"`...)
		dst = append(appendTime(dst, e.Time), '"')
	}
	if e.DataContentType != "" {
		dst = appendMember(dst, "datacontenttype", e.DataContentType)
	}
	if e.DataSchema != "" {
		dst = appendMember(dst, "dataschema", e.DataSchema)
	}
	for i := range e.Extensions {
		x := &e.Extensions[i]
		switch x.Value.(type) {
		case string:
			dst = appendMember(dst, x.Name, x.Canonical())
		default:
			dst = append(dst, `,"`...)
			dst = append(dst, x.Name...)
			dst = append(dst, `":`...)
			dst = append(dst, x.Canonical()...)
		}
	}
	if e.Data != nil {
		dst = appendData(dst, e)
	}
	return append(dst, '}')
}

func appendMember(dst []byte, name, value string) []byte {
	dst = append(dst, `,"`...)
	dst = append(dst, name...)
	dst = append(dst, `":`...)
	return appendString(dst, value)
}

func appendData(dst []byte, e *Event) []byte {
	switch {
	case IsJSON(e.DataContentType):
		if b := bytes.Trim(e.Data, " \t\r\n"); isValidJSON(b) {
			return append(append(dst, `,"data":`...), b...)
		}
	case isText(e.DataContentType) && utf8.Valid(e.Data):
		return appendString(append(dst, `,"data":`...), e.Data)
	}
	dst = append(dst, `,"data_base64":"`...)
	return append(base64.StdEncoding.AppendEncode(dst, e.Data), '"')
}

// appendString appends s as a JSON string. Bytes that are not UTF-8 become U+FFFD.
func appendString[S string | []byte](dst []byte, s S) []byte {
	dst = append(dst, '"')
	for i := 0; i < len(s); {
		n := i
		for n < len(s) && s[n] >= 0x20 && s[n] < utf8.RuneSelf && s[n] != '"' && s[n] != '\\' {
			n++
		}
		dst = append(dst, s[i:n]...)
		if i = n; i == len(s) {
			break
		}
		switch c := s[i]; {
		case c == '"' || c == '\\':
			dst = append(dst, '\\', c)
		case c == '\n':
			dst = append(dst, '\\', 'n')
		case c == '\r':
			dst = append(dst, '\\', 'r')
		case c == '\t':
			dst = append(dst, '\\', 't')
		case c < 0x20:
			dst = append(dst, '\\', 'u', '0', '0', upperHex[c>>4], upperHex[c&15])
		default:
			r, size := utf8.DecodeRuneInString(string(s[i:min(i+utf8.UTFMax, len(s))]))
			dst = utf8.AppendRune(dst, r)
			i += size - 1
		}
		i++
	}
	return append(dst, '"')
}

// knownName returns name as a string, without allocation for the extensions that are met most.
func knownName(name []byte) string {
	switch string(name) {
	case "traceparent":
		return "traceparent"
	case "tracestate":
		return "tracestate"
	case "partitionkey":
		return "partitionkey"
	case "sequence":
		return "sequence"
	case "correlationid":
		return "correlationid"
	case "causationid":
		return "causationid"
	case "recordedtime":
		return "recordedtime"
	case "expirytime":
		return "expirytime"
	case "dataref":
		return "dataref"
	}
	return string(name)
}
