// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rialto-bridge/rialto/bridge"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/store"
	"github.com/rialto-bridge/rialto/rules"
)

// maxDocument is the most bytes of a definition.
const maxDocument = 256 << 10

// serverOwned are the members that the server answers and ignores on write.
var serverOwned = []string{"revision", "createdAt", "updatedAt", "status"}

// member is one member of a document, its value as written.
type member struct {
	name  string
	value json.RawMessage
}

// members splits a JSON object, in order. The error is Invalid: not JSON, not an object, or a name twice.
func members(doc []byte) ([]member, error) {
	dec := json.NewDecoder(bytes.NewReader(doc))
	tok, err := dec.Token()
	if err != nil {
		return nil, syntaxFault(err)
	}
	if tok != json.Delim('{') {
		return nil, fault.Invalidf("", "must be a JSON object")
	}
	var out []member
	seen := map[string]bool{}
	for dec.More() {
		tok, err := dec.Token()
		if err != nil {
			return nil, syntaxFault(err)
		}
		m := member{name: tok.(string)} // where a name stands, the decoder gives nothing else
		if seen[m.name] {
			return nil, fault.Invalidf(fault.Pointer(m.name), "is there twice")
		}
		seen[m.name] = true
		if err := dec.Decode(&m.value); err != nil {
			return nil, syntaxFault(err)
		}
		out = append(out, m)
	}
	if _, err := dec.Token(); err != nil {
		return nil, syntaxFault(err)
	}
	return out, atEnd(dec)
}

// atEnd refuses what follows a document.
func atEnd(dec *json.Decoder) error {
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return fault.Invalidf("", "something follows the document")
	}
	return nil
}

func join(ms []member) ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, m := range ms {
		if i > 0 {
			b.WriteByte(',')
		}
		if err := encodeJSON(&b, m.name); err != nil {
			return nil, err
		}
		b.WriteByte(':')
		b.Write(m.value)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// withoutMembers returns an object without some members.
func withoutMembers(doc []byte, names ...string) ([]byte, error) {
	ms, err := members(doc)
	if err != nil {
		return nil, err
	}
	return join(slices.DeleteFunc(ms, func(m member) bool { return slices.Contains(names, m.name) }))
}

// prepareDoc turns what a user wrote into the document that is checked: without what the server owns, with kind, name
// and bus, which must agree with the path where they are written in both. name "" takes the document's.
func prepareDoc(k *Kind, doc []byte, bus, name string) ([]byte, error) {
	ms, err := members(doc)
	if err != nil {
		return nil, err
	}
	var faults []fault.Detail
	head := []member{{name: "kind"}, {name: "name"}}
	want := []string{k.Name, name}
	if k.Scoped {
		head, want = append(head, member{name: "bus"}), append(want, bus)
	}
	for i := range head {
		h := &head[i]
		for _, m := range ms {
			if m.name == h.name {
				h.value = m.value
			}
		}
		if h.value == nil {
			if want[i] == "" {
				faults = append(faults, fault.Detail{Pointer: "/" + h.name, Detail: "is missing"})
				continue
			}
			h.value = []byte(strconv.Quote(want[i]))
			continue
		}
		var s string
		if json.Unmarshal(h.value, &s) != nil {
			faults = append(faults, fault.Detail{Pointer: "/" + h.name, Detail: "must be a string"})
			continue
		}
		switch {
		case want[i] != "" && s != want[i]:
			where := "as the path says"
			if h.name == "kind" {
				where = "at this path"
			}
			faults = append(faults, fault.Detail{Pointer: "/" + h.name, Detail: "must be " + want[i] + ", " + where})
		case want[i] == "":
			if why := bridge.CheckName(s); why != "" {
				faults = append(faults, fault.Detail{Pointer: "/" + h.name, Detail: why})
			}
		}
	}
	if err := checkLabels(ms); err != nil {
		faults = append(faults, err...)
	}
	if len(faults) > 0 {
		return nil, fault.Collect(faults)
	}
	rest := slices.DeleteFunc(ms, func(m member) bool {
		return slices.Contains(serverOwned, m.name) || slices.ContainsFunc(head, func(h member) bool { return h.name == m.name })
	})
	out, err := join(append(head, rest...))
	if err != nil {
		return nil, err
	}
	return store.Compact(out)
}

// Limits of labels.
const (
	maxLabels     = 64
	maxLabelBytes = 256
)

// checkLabels says what is wrong with the labels of any kind of document.
func checkLabels(ms []member) []fault.Detail {
	i := slices.IndexFunc(ms, func(m member) bool { return m.name == "labels" })
	if i < 0 {
		return nil
	}
	var labels map[string]string
	if json.Unmarshal(ms[i].value, &labels) != nil {
		return []fault.Detail{{Pointer: "/labels", Detail: "must be an object of strings"}}
	}
	if len(labels) > maxLabels {
		return []fault.Detail{{Pointer: "/labels", Detail: "holds at most " + strconv.Itoa(maxLabels) + " labels"}}
	}
	var faults []fault.Detail
	for k, v := range labels {
		if k == "" || len(k) > maxLabelBytes || len(v) > maxLabelBytes || strings.ContainsAny(k, "=,") || strings.Contains(v, ",") {
			faults = append(faults, fault.Detail{Pointer: "/labels" + fault.Pointer(k),
				Detail: "a label's name and value have at most " + strconv.Itoa(maxLabelBytes) + " bytes and no comma, a name is not empty and has no ="})
		}
	}
	slices.SortFunc(faults, func(a, b fault.Detail) int { return strings.Compare(a.Pointer, b.Pointer) })
	return faults
}

// aside is what an answer says of a document and what is not stored with it.
type aside struct {
	secret   string          // of a key that was made
	warnings []rules.Warning // about what was written
	brief    bool            // it is one of many
}

// statusDoc is the member status of an answer to a write that raised doubts.
type statusDoc struct {
	Warnings []rules.Warning `json:"warnings"`
}

// statusOf is the member status of an answer: warnings about what was written, or what the process knows of the thing.
func (k *Kind) statusOf(d store.Document, more aside) any {
	switch {
	case len(more.warnings) > 0:
		return statusDoc{more.warnings}
	case k.Status != nil && d.Revision != 0:
		return k.Status(d.Name, more.brief)
	}
	return nil
}

// showDoc is a document as it is answered: what is stored, less what is secret, and what the server owns.
func (k *Kind) showDoc(d store.Document, more aside) ([]byte, error) {
	var b bytes.Buffer
	err := k.writeDoc(&b, d, more)
	return b.Bytes(), err
}

// writeDoc is showDoc to the end of a buffer.
func (k *Kind) writeDoc(b *bytes.Buffer, d store.Document, more aside) error {
	raw := []byte(d.Raw)
	if k.Redact != nil {
		raw = k.Redact(raw)
	}
	raw = bytes.TrimSpace(raw)
	if len(raw) < 2 || raw[len(raw)-1] != '}' {
		return errors.New("stored definition " + d.Key.String() + " is no object")
	}
	b.Grow(len(raw) + 160)
	b.Write(raw[:len(raw)-1])
	first := len(bytes.TrimSpace(raw[1:len(raw)-1])) == 0
	name := func(name string) {
		if !first {
			b.WriteByte(',')
		}
		first = false
		b.WriteByte('"')
		b.WriteString(name)
		b.WriteString(`":`)
	}
	moment := func(t time.Time) {
		b.Write(append(t.AppendFormat(append(b.AvailableBuffer(), '"'), time.RFC3339Nano), '"'))
	}
	var errs []error
	if more.secret != "" {
		name("secret")
		errs = append(errs, encodeJSON(b, more.secret))
	}
	if d.Revision != 0 {
		name("revision")
		b.Write(strconv.AppendUint(b.AvailableBuffer(), d.Revision, 10))
	}
	if !d.CreatedAt.IsZero() {
		name("createdAt")
		moment(d.CreatedAt)
		name("updatedAt")
		moment(d.UpdatedAt)
	}
	if status := k.statusOf(d, more); status != nil {
		name("status")
		errs = append(errs, encodeJSON(b, status))
	}
	b.WriteByte('}')
	return errors.Join(errs...)
}

// decodeStrict reads a whole document into v and refuses members that v does not have.
func decodeStrict(doc []byte, v any) error {
	dec := json.NewDecoder(bytes.NewReader(doc))
	dec.DisallowUnknownFields()
	err := dec.Decode(v)
	var wrongType *json.UnmarshalTypeError
	switch {
	case err == nil:
		return atEnd(dec)
	case errors.As(err, &wrongType):
		return fault.Invalidf(fieldPointer(wrongType.Field), "must be %s", jsonTypeName(wrongType.Type.Kind().String()))
	}
	if name, ok := strings.CutPrefix(err.Error(), `json: unknown field "`); ok {
		return fault.Invalidf(fault.Pointer(strings.TrimSuffix(name, `"`)), "is not known here")
	}
	return syntaxFault(err)
}

func fieldPointer(field string) string {
	var b strings.Builder
	for part := range strings.SplitSeq(field, ".") {
		if part != "" && part != "keyDoc" {
			b.WriteString(fault.Pointer(part))
		}
	}
	return b.String()
}

func jsonTypeName(kind string) string {
	switch kind {
	case "string":
		return "a string"
	case "slice":
		return "a list"
	case "map", "struct":
		return "an object"
	case "bool":
		return "true or false"
	}
	return "a number"
}

// syntaxFault says that a document is not JSON, and where, without showing it.
func syntaxFault(err error) error {
	var s *json.SyntaxError
	if errors.As(err, &s) {
		return fault.Invalidf("", "not a JSON document: wrong at byte %d", s.Offset)
	}
	return fault.Invalidf("", "not a JSON document")
}
