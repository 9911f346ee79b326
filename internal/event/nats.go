// SPDX-License-Identifier: Apache-2.0

package event

import (
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// The headers that hold what a CloudEvent has no attribute for.
const (
	headerReceived   = "Rialto-Received"   // nanoseconds since 1970
	headerMinted     = "Rialto-Minted"     // 1: the bridge chose the id
	headerTypes      = "Rialto-Types"      // extensions that are no strings: e1=i,e4=b (int32, bool)
	headerData       = "Rialto-Data"       // "empty": there is data, and it has no bytes
	headerMQTT       = "Rialto-Mqtt"       // <version> <qos> <retain 0|1>
	headerTopic      = "Rialto-Topic"      // MQTT topic, only where it is not the subject
	headerClient     = "Rialto-Client"     // MQTT client id
	headerPrincipal  = "Rialto-Principal"  // who published over MQTT
	headerProperties = "Rialto-Properties" // base64 of the raw MQTT 5 properties
	headerHops       = "Rialto-Hops"       // <instance>/<stream>:<sequence> of each hop, separated by blanks
	headerLink       = "Rialto-Link"       // of the link that brought it
	headerSparkplug  = "Rialto-Sparkplug"  // base64 of what a Sparkplug B payload leaves to its birth; may be empty
)

const natsVersion = "NATS/1.0\r\n"

// AppendNATS appends the header block under which the record is stored: "NATS/1.0", the attributes as ce-* headers with
// percent-encoded values (NATS binding 1.0.3, section 3.1, binary mode, so that any client with a CloudEvents binding
// can read them), Rialto-* headers for the rest, and an empty line. The payload that belongs to it is r.Event.Data. It
// allocates only to grow dst. The event must be valid.
func AppendNATS(dst []byte, r *Record) []byte {
	e := &r.Event
	dst = append(dst, natsVersion+"ce-specversion: 1.0\r\n"...)
	dst = appendHeader(dst, "ce-id", e.ID)
	dst = appendHeader(dst, "ce-source", e.Source)
	dst = appendHeader(dst, "ce-type", e.Type)
	if e.Subject != "" {
		dst = appendHeader(dst, "ce-subject", e.Subject)
	}
	if e.DataContentType != "" {
		dst = appendHeader(dst, "ce-datacontenttype", e.DataContentType)
	}
	if e.DataSchema != "" {
		dst = appendHeader(dst, "ce-dataschema", e.DataSchema)
	}
	if !e.Time.IsZero() {
		dst = append(dst, "ce-time: "...)
		dst = append(appendTime(dst, e.Time), '\r', '\n')
	}
	dst = appendExtensions(dst, e.Extensions)
	if !r.Received.IsZero() {
		dst = append(dst, headerReceived+": "...)
		dst = append(strconv.AppendInt(dst, r.Received.UnixNano(), 10), '\r', '\n')
	}
	if r.Minted {
		dst = append(dst, headerMinted+": 1\r\n"...)
	}
	if e.Data != nil && len(e.Data) == 0 {
		dst = append(dst, headerData+": empty\r\n"...)
	}
	if r.MQTT != nil {
		dst = appendOrigin(dst, r.MQTT, e.Subject)
	}
	if len(r.Hops) > 0 {
		dst = appendHops(dst, r.Hops)
	}
	if r.Link != "" {
		dst = appendHeader(dst, headerLink, r.Link)
	}
	return append(dst, '\r', '\n')
}

func appendHops(dst []byte, hops []Hop) []byte {
	dst = append(dst, headerHops+":"...)
	for i := range hops {
		h := &hops[i]
		dst = append(append(append(dst, ' '), h.Instance...), '/')
		dst = append(append(dst, h.Position.Stream...), ':')
		dst = strconv.AppendUint(dst, h.Position.Seq, 10)
	}
	return append(dst, '\r', '\n')
}

// parseHops is the inverse of appendHops.
func parseHops(s string) ([]Hop, error) {
	hops := make([]Hop, 0, strings.Count(s, " ")+1)
	for word := range strings.SplitSeq(s, " ") {
		instance, place, ok := strings.Cut(word, "/")
		at, err := ParsePosition(place)
		if !ok || err != nil || !IsInstance(instance) || !isStream(at.Stream) || len(hops) == MaxHops {
			return nil, errHeader
		}
		hops = append(hops, Hop{instance, at})
	}
	return hops, nil
}

// IsInstance reports whether s can be the name of a bridge in a Hop.
func IsInstance(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return len(s) > 0 && len(s) <= 32
}

// isStream reports whether s can be the name of a stream: letters, digits, _ and -.
func isStream(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '_' && c != '-' {
			return false
		}
	}
	return len(s) > 0 && len(s) <= 128
}

func appendHeader(dst []byte, name, value string) []byte {
	dst = append(dst, name...)
	dst = append(dst, ':', ' ')
	dst = appendPercent(dst, value)
	return append(dst, '\r', '\n')
}

func appendExtensions(dst []byte, x []Attribute) []byte {
	typed := false
	for i := range x {
		dst = append(dst, "ce-"...)
		dst = append(dst, x[i].Name...)
		dst = append(dst, ':', ' ')
		switch v := x[i].Value.(type) {
		case string:
			dst = appendPercent(dst, v)
		case int32:
			typed = true
			dst = strconv.AppendInt(dst, int64(v), 10)
		case bool:
			typed = true
			dst = strconv.AppendBool(dst, v)
		default:
			panic(fmt.Sprintf("event: extension %s has a %T", x[i].Name, v))
		}
		dst = append(dst, '\r', '\n')
	}
	if !typed {
		return dst
	}
	dst = append(dst, headerTypes+": "...)
	sep := ""
	for i := range x {
		mark := ""
		switch x[i].Value.(type) {
		case int32:
			mark = "=i"
		case bool:
			mark = "=b"
		default:
			continue
		}
		dst = append(dst, sep...)
		dst = append(dst, x[i].Name...)
		dst = append(dst, mark...)
		sep = ","
	}
	return append(dst, '\r', '\n')
}

func appendOrigin(dst []byte, o *Origin, subject string) []byte {
	dst = append(dst, headerMQTT+": "...)
	dst = strconv.AppendUint(dst, uint64(o.Version), 10)
	dst = append(dst, ' ')
	dst = strconv.AppendUint(dst, uint64(o.QoS), 10)
	retain := byte('0')
	if o.Retain {
		retain = '1'
	}
	dst = append(dst, ' ', retain, '\r', '\n')
	if o.Topic != subject {
		dst = appendHeader(dst, headerTopic, o.Topic)
	}
	if o.Client != "" {
		dst = appendHeader(dst, headerClient, o.Client)
	}
	if o.Principal != "" {
		dst = appendHeader(dst, headerPrincipal, o.Principal)
	}
	if o.Properties != nil {
		dst = append(dst, headerProperties+": "...)
		dst = append(base64.StdEncoding.AppendEncode(dst, o.Properties), '\r', '\n')
	}
	if o.Sparkplug != nil {
		dst = append(dst, headerSparkplug+": "...)
		dst = append(base64.StdEncoding.AppendEncode(dst, o.Sparkplug), '\r', '\n')
	}
	return dst
}

// headerBound is at least headerLen and cheaper.
func (e *Event) headerBound() int {
	n := len(e.ID) + len(e.Source) + len(e.Type) + len(e.Subject) + len(e.DataContentType) + len(e.DataSchema)
	for i := range e.Extensions {
		n += 2*len(e.Extensions[i].Name) + 16
		if v, ok := e.Extensions[i].Value.(string); ok {
			n += len(v)
		}
	}
	return 3*n + 512
}

// headerLen is the length of what AppendNATS makes of the attributes, give or take the fixed headers.
func (e *Event) headerLen() int {
	n := 512 + percentLen(e.ID) + percentLen(e.Source) + percentLen(e.Type) + percentLen(e.Subject) +
		percentLen(e.DataContentType) + percentLen(e.DataSchema)
	for i := range e.Extensions {
		n += 2*len(e.Extensions[i].Name) + 24
		if v, ok := e.Extensions[i].Value.(string); ok {
			n += percentLen(v)
		}
	}
	return n
}

var errHeader = errors.New("not a header block of a stored event")

// FromNATS is the inverse of AppendNATS. It copies what it keeps, so header and data may be reused. Headers that it does
// not know are passed over, so that the log may add its own. It checks that the block is whole and does not repeat
// Validate: what is stored was valid when it was appended.
func FromNATS(header, data []byte) (*Record, error) {
	block, ok := strings.CutPrefix(string(header), natsVersion)
	if !ok {
		return nil, errHeader
	}
	d := natsDecoder{rec: &Record{}}
	for {
		end := strings.IndexByte(block, '\n')
		if end < 1 || block[end-1] != '\r' {
			return nil, errHeader
		}
		line := block[:end-1]
		block = block[end+1:]
		if line == "" {
			break
		}
		colon := strings.IndexByte(line, ':')
		if colon < 0 || colon+1 == len(line) || line[colon+1] != ' ' {
			return nil, errHeader
		}
		if err := d.header(line[:colon], line[colon+2:]); err != nil {
			return nil, err
		}
	}
	if block != "" {
		return nil, errHeader
	}
	if err := d.finish(); err != nil {
		return nil, err
	}
	e := &d.rec.Event
	switch {
	case len(data) > 0:
		e.Data = append(make([]byte, 0, len(data)), data...)
	case d.empty:
		e.Data = []byte{}
	}
	return d.rec, nil
}

// natsDecoder collects the headers of one record.
type natsDecoder struct {
	rec     *Record
	version bool
	empty   bool
	topic   bool   // there was a topic header
	origin  Origin // becomes rec.MQTT if mqtt
	mqtt    bool
	types   string
}

func (d *natsDecoder) header(name, value string) error {
	var err error
	if attribute, ok := strings.CutPrefix(name, "ce-"); ok {
		return d.attribute(attribute, value)
	}
	switch name {
	case headerReceived:
		var n int64
		if n, err = strconv.ParseInt(value, 10, 64); err == nil {
			d.rec.Received = time.Unix(0, n).UTC()
		}
	case headerMinted:
		d.rec.Minted = value == "1"
	case headerTypes:
		d.types = value
	case headerData:
		d.empty = value == "empty"
	case headerMQTT:
		d.mqtt = true
		err = d.origin.parse(value)
	case headerTopic:
		d.topic = true
		d.origin.Topic, err = decodeStored(value)
	case headerClient:
		d.origin.Client, err = decodeStored(value)
	case headerPrincipal:
		d.origin.Principal, err = decodeStored(value)
	case headerProperties:
		d.origin.Properties, err = base64.StdEncoding.DecodeString(value)
	case headerHops:
		d.rec.Hops, err = parseHops(value)
	case headerLink:
		d.rec.Link, err = decodeStored(value)
	case headerSparkplug:
		d.origin.Sparkplug, err = base64.StdEncoding.DecodeString(value)
	}
	if err != nil {
		return fmt.Errorf("header %s: %w", name, errHeader)
	}
	return nil
}

func (d *natsDecoder) attribute(name, value string) error {
	value, err := decodeStored(value)
	if err != nil {
		return fmt.Errorf("header ce-%s: %w", name, err)
	}
	e := &d.rec.Event
	var field *string
	switch name {
	case "specversion":
		if d.version || value != "1.0" {
			return refuse(name, badVersion)
		}
		d.version = true
		return nil
	case "time":
		if !e.Time.IsZero() {
			return refuse(name, isRepeated)
		}
		t, reason := parseTime(value)
		if reason != "" {
			return refuse(name, reason)
		}
		e.Time = t
		return nil
	case "id":
		field = &e.ID
	case "source":
		field = &e.Source
	case "type":
		field = &e.Type
	case "subject":
		field = &e.Subject
	case "datacontenttype":
		field = &e.DataContentType
	case "dataschema":
		field = &e.DataSchema
	default:
		if !isName(name) || name == "data" {
			return refuseName(name, badName)
		}
		if e.Extensions == nil {
			e.Extensions = make([]Attribute, 0, 4)
		}
		var ok bool
		if e.Extensions, ok = addExtension(e.Extensions, name, value); !ok {
			return refuse(name, isRepeated)
		}
		return nil
	}
	if *field != "" {
		return refuse(name, isRepeated)
	}
	if value == "" {
		return refuse(name, isEmpty)
	}
	*field = value
	return nil
}

// finish checks what is required and puts together what came in several headers.
func (d *natsDecoder) finish() error {
	e := &d.rec.Event
	switch {
	case !d.version:
		return refuse("specversion", isMissing)
	case e.ID == "":
		return refuse("id", isMissing)
	case e.Source == "":
		return refuse("source", isMissing)
	case e.Type == "":
		return refuse("type", isMissing)
	}
	if d.mqtt {
		if !d.topic {
			d.origin.Topic = e.Subject
		}
		o := d.origin
		d.rec.MQTT = &o
	}
	for d.types != "" {
		var mark string
		mark, d.types, _ = strings.Cut(d.types, ",")
		name, kind, _ := strings.Cut(mark, "=")
		if !retype(e.Extensions, name, kind) {
			return fmt.Errorf("header %s: %w", headerTypes, errHeader)
		}
	}
	return nil
}

// retype turns the stored text of an extension into the value that it had.
func retype(x []Attribute, name, kind string) bool {
	for i := range x {
		text, ok := x[i].Value.(string)
		if x[i].Name != name || !ok {
			continue
		}
		switch kind {
		case "i":
			n, err := strconv.ParseInt(text, 10, 32)
			x[i].Value = int32(n)
			return err == nil
		case "b":
			x[i].Value = text == "true"
			return text == "true" || text == "false"
		}
		return false
	}
	return false
}

// parse reads <version> <qos> <retain>.
func (o *Origin) parse(s string) error {
	if len(s) != 5 || s[1] != ' ' || s[3] != ' ' || digits(s[0:1]) < 0 || digits(s[2:3]) < 0 || s[4] != '0' && s[4] != '1' {
		return errHeader
	}
	o.Version, o.QoS, o.Retain = s[0]-'0', s[2]-'0', s[4] == '1'
	return nil
}

func decodeStored(s string) (string, error) {
	v, ok := percentDecode(s)
	if !ok {
		return "", errHeader
	}
	return v, nil
}
