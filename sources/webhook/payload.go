// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
)

// payload is a JSON object that a sender sent.
type payload map[string]any

// parsePayload reads a JSON object. The error is the answer to the sender.
func parsePayload(raw []byte) (payload, error) {
	var p payload
	if err := decodeJSON(raw, &p); err != nil || p == nil {
		return nil, fault.New(fault.Invalid, "the body is not a JSON object")
	}
	return p, nil
}

// decodeJSON reads a JSON text that is one value and nothing else, with numbers as they are written.
func decodeJSON(raw []byte, v any) error {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	if err := dec.Decode(v); err != nil {
		return err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something stands behind the value")
	}
	return nil
}

// at follows names into nested objects; nil if there is nothing.
func (p payload) at(path ...string) any {
	var v any = map[string]any(p)
	for _, name := range path {
		m, _ := v.(map[string]any)
		v = m[name]
	}
	return v
}

// text is a scalar at a path such as repository.url, as text; "" if there is none.
func (p payload) text(path string) string {
	if path == "" {
		return ""
	}
	return scalar(p.at(strings.Split(path, ".")...))
}

// first is the first of some paths at which there is something.
func (p payload) first(paths ...string) string {
	for _, path := range paths {
		if s := p.text(path); s != "" {
			return s
		}
	}
	return ""
}

func scalar(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case json.Number:
		return v.String()
	case bool:
		return strconv.FormatBool(v)
	}
	return ""
}

// when is the time at the first of some paths that has one; zero if there is none.
func (p payload) when(paths ...string) time.Time {
	for _, path := range paths {
		if t, ok := parseWhen(p.text(path)); ok {
			return t
		}
	}
	return time.Time{}
}

// parseWhen reads the ways in which products write times: RFC 3339 and its kin, or seconds or milliseconds since 1970.
func parseWhen(s string) (time.Time, bool) {
	if s == "" {
		return time.Time{}, false
	}
	for _, layout := range []string{time.RFC3339, "2006-01-02 15:04:05 MST", "2006-01-02 15:04:05 -0700", time.RFC1123Z} {
		if t, err := time.Parse(layout, s); err == nil {
			return t.UTC(), inRange(t)
		}
	}
	whole, frac, _ := strings.Cut(s, ".")
	n, err := strconv.ParseInt(whole, 10, 64)
	if err != nil || n < 0 || n > 1<<50 {
		return time.Time{}, false
	}
	if n >= 1e11 { // seconds reach that in the year 5138
		t := time.UnixMilli(n).UTC()
		return t, inRange(t)
	}
	nanos := int64(0)
	if frac != "" && len(frac) <= 9 {
		nanos, _ = strconv.ParseInt(frac+strings.Repeat("0", 9-len(frac)), 10, 64) // what is no number is no fraction
	}
	t := time.Unix(n, max(0, nanos)).UTC()
	return t, inRange(t)
}

func inRange(t time.Time) bool { return t.Year() >= 1 && t.Year() <= 9999 }

// without is a JSON object that was parsed, without the member at a path, as often as it is there. All else stays as it is written.
func without(object []byte, path ...string) []byte {
	dec := json.NewDecoder(bytes.NewReader(object))
	if _, err := dec.Token(); err != nil {
		return object // it was parsed
	}
	first := dec.InputOffset()
	end, some := first, false // of what was read, and whether anything of it is kept
	kept := bytes.NewBuffer(append(make([]byte, 0, len(object)), object[:first]...))
	for dec.More() {
		from := end // with a comma, if another is before it
		name, err := dec.Token()
		var value json.RawMessage
		if err != nil || dec.Decode(&value) != nil {
			return object
		}
		end = dec.InputOffset()
		at := end - int64(len(value))
		if name == path[0] {
			if len(path) == 1 {
				continue
			}
			if value[0] == '{' {
				value = without(value, path[1:]...)
			}
		}
		if !some && from != first {
			from += int64(bytes.IndexByte(object[from:], ',')) + 1
		}
		some = true
		kept.Write(object[from:at])
		kept.Write(value)
	}
	kept.Write(object[end:])
	return kept.Bytes()
}

// digest is an id for what has none.
func digest(parts ...[]byte) string {
	h := sha256.New()
	for _, p := range parts {
		h.Write(p)
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// Longest attributes, as event.Limits has them.
const (
	maxAttribute = 1 << 10
	maxText      = 8 << 10
)

// plain is s without what an attribute must not hold, cut to size.
func plain(s string, most int) string {
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == utf8.RuneError || r&0xfffe == 0xfffe || r >= 0xfdd0 && r <= 0xfdef {
			return -1
		}
		return r
	}, s)
	if len(s) <= most {
		return s
	}
	for most > 0 && !utf8.RuneStart(s[most]) {
		most--
	}
	return s[:most]
}

// typeName makes an event type of parts; empty ones are left out.
func typeName(parts ...string) string {
	var kept []string
	for _, p := range parts {
		if p = plain(p, maxAttribute); p != "" {
			kept = append(kept, p)
		}
	}
	return plain(strings.Join(kept, "."), maxAttribute)
}

// reference makes s a URI reference: what is none becomes one that says the same.
func reference(s string) string {
	s = plain(s, maxAttribute)
	probe := event.Event{ID: "1", Source: s, Type: "t"}
	if s == "" || probe.Validate(event.Limits{}) == nil {
		return s
	}
	return strings.ReplaceAll(url.PathEscape(plain(s, maxAttribute/3)), ":", "%3A") // three bytes for one
}

// jsonEvent is an event with a JSON payload; what is empty is left out, and a time that is missing is that of arrival.
func (r *request) jsonEvent(id, source, typ, subject string, at time.Time, data []byte) event.Event {
	if at.IsZero() {
		at = r.now
	}
	if id = plain(id, maxAttribute); id == "" {
		id = digest(data)
	}
	if source = reference(source); source == "" {
		source = r.URL.Path
	}
	return event.Event{ID: id, Source: source, Type: typ, Subject: plain(subject, maxText), Time: at.UTC(),
		DataContentType: "application/json", Data: data}
}

// formObject makes a JSON object of the fields of a form: text, or a list of texts where a field occurs more than once.
func formObject(form url.Values) ([]byte, error) {
	object := make(map[string]any, len(form))
	for name, values := range form {
		object[name] = values
		if len(values) == 1 {
			object[name] = values[0]
		}
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(object); err != nil {
		return nil, err
	}
	return bytes.TrimRight(b.Bytes(), "\n"), nil
}

// form reads the fields of a form.
func (r *request) form() (url.Values, error) {
	form, err := url.ParseQuery(string(r.body))
	if err != nil {
		return nil, fault.New(fault.Invalid, "the body is not a form")
	}
	return form, nil
}
