// SPDX-License-Identifier: Apache-2.0

// Package secret keeps credentials out of documents, logs and answers.
//
// In a document a secret is {"ref": "env:NAME"}, {"ref": "file:/path"} or {"value": "..."}. A reference is resolved
// where the secret is used; a value stands in the document itself and is taken out by Redact before anyone is shown it.
// In memory a secret is a Value, which prints as [redacted] wherever it is printed, logged or marshalled. The package
// holds no state and is safe for concurrent use.
package secret

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// Redacted is what is shown in the place of a secret.
const Redacted = "[redacted]"

// MaxSize is the longest secret in bytes, whatever it comes from.
const MaxSize = 64 << 10

// Value is a secret in memory. Only Reveal returns it. It stands behind a pointer, because fmt prints the unexported
// fields of whatever holds a Value without asking it.
type Value struct{ text *string }

// NewValue returns s as a secret.
func NewValue(s string) Value { return Value{&s} }

// Reveal returns the secret itself; "" for the zero Value.
func (v Value) Reveal() string {
	if v.text == nil {
		return ""
	}
	return *v.text
}

// IsZero reports whether there is no secret.
func (v Value) IsZero() bool { return v.Reveal() == "" }

// String returns Redacted.
func (Value) String() string { return Redacted }

// Format prints Redacted for every verb.
func (Value) Format(f fmt.State, _ rune) { io.WriteString(f, Redacted) } // as fmt does

// MarshalText returns Redacted.
func (Value) MarshalText() ([]byte, error) { return []byte(Redacted), nil }

// LogValue returns Redacted.
func (Value) LogValue() slog.Value { return slog.StringValue(Redacted) }

// Source is a secret as it stands in a document: a reference or a value, never both.
type Source struct {
	ref   string
	value Value
}

// Ref returns the reference; "" when the source is a value.
func (s Source) Ref() string { return s.ref }

// IsZero reports whether the document named no secret.
func (s Source) IsZero() bool { return s.ref == "" && s.value.IsZero() }

// String names the source without giving anything away: the reference, or Redacted.
func (s Source) String() string {
	if s.ref != "" {
		return s.ref
	}
	return Redacted
}

// UnmarshalJSON reads {"ref": "..."} or {"value": "..."}. It is strict, and its errors repeat nothing of the document.
func (s *Source) UnmarshalJSON(b []byte) error {
	var form struct {
		Ref   *string `json:"ref"`
		Value *string `json:"value"`
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if dec.Decode(&form) != nil || (form.Ref == nil) == (form.Value == nil) {
		return errors.New(`a secret is {"ref": "env:NAME"}, {"ref": "file:/path"} or {"value": "..."}`)
	}
	if form.Ref != nil {
		if err := CheckRef(*form.Ref); err != nil {
			return err
		}
		*s = Source{ref: *form.Ref}
		return nil
	}
	switch v := *form.Value; {
	case v == "":
		return errors.New("a secret is not empty")
	case v == Redacted:
		return errors.New("this is the placeholder of a secret that is not shown; give the secret itself")
	case len(v) > MaxSize:
		return fmt.Errorf("a secret has at most %d bytes", MaxSize)
	default:
		*s = Source{value: NewValue(v)}
		return nil
	}
}

// Resolve returns the secret: the value itself, or what resolve says of the reference.
func (s Source) Resolve(resolve func(ref string) (string, error)) (Value, error) {
	if s.ref == "" {
		return s.value, nil
	}
	text, err := resolve(s.ref)
	if err != nil {
		return Value{}, err
	}
	return NewValue(text), nil
}

// CheckRef says whether a reference is well-formed. It opens nothing.
func CheckRef(ref string) error {
	scheme, name, ok := strings.Cut(ref, ":")
	switch {
	case !ok || scheme != "env" && scheme != "file":
		return errors.New("a reference is env:NAME or file:/path")
	case scheme == "env" && !isVariable(name):
		return errors.New("the name of a variable has A-Z, a-z, 0-9 and _, and no digit first")
	case scheme == "file" && (!filepath.IsAbs(name) || strings.ContainsRune(name, 0)):
		return errors.New("the path of a file reference is absolute")
	}
	return nil
}

func isVariable(s string) bool {
	for i := range len(s) {
		c := s[i]
		letter := c == '_' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != ""
}

// Resolve returns what env:NAME or file:/path refers to. One newline at the end of a file is cut off. It refuses what is
// empty, longer than MaxSize, or not a regular file; the error names the reference and says why, without content.
func Resolve(ref string) (string, error) {
	if err := CheckRef(ref); err != nil {
		return "", fmt.Errorf("secret %q: %w", ref, err)
	}
	scheme, name, _ := strings.Cut(ref, ":")
	var s string
	var err error
	if scheme == "env" {
		s = os.Getenv(name)
	} else {
		s, err = readFile(name)
	}
	switch {
	case err != nil:
		return "", fmt.Errorf("secret %s: %w", ref, err)
	case s == "":
		return "", fmt.Errorf("secret %s: is not set", ref)
	case len(s) > MaxSize:
		return "", fmt.Errorf("secret %s: is longer than %d bytes", ref, MaxSize)
	}
	return s, nil
}

// readFile reads a regular file. It opens without blocking, because a path may name a pipe.
func readFile(path string) (string, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return "", cause(err)
	}
	defer f.Close() // only read
	st, err := f.Stat()
	if err != nil {
		return "", cause(err)
	}
	if !st.Mode().IsRegular() {
		return "", errors.New("is not a regular file")
	}
	b, err := io.ReadAll(io.LimitReader(f, MaxSize+3))
	if err != nil {
		return "", cause(err)
	}
	s := strings.TrimSuffix(string(b), "\n")
	return strings.TrimSuffix(s, "\r"), nil
}

// cause drops the path from an error, because the reference says it already.
func cause(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}

// Redact returns doc with every secret that stands in it by value replaced by the placeholder: an object whose only
// member, beside "until", is "value" with a string. References stay, they give nothing away. Apply it to documents, or parts of them, in
// which that form means a secret. doc must be JSON; what is not comes back as null, so that nothing leaks.
func Redact(doc json.RawMessage) json.RawMessage {
	out, err := edit(doc, nil)
	if err != nil {
		return json.RawMessage("null")
	}
	return out
}

// Restore is the way back: where doc holds a placeholder, it takes the secret that stored holds at the same place, so
// that a document that was read can be written again. A placeholder that stands for nothing stays, and is then refused
// by Source.
func Restore(doc, stored json.RawMessage) (json.RawMessage, error) {
	old, err := decode(stored)
	if err != nil {
		return nil, fmt.Errorf("stored document: %w", err)
	}
	return edit(doc, func(path []any) (string, bool) {
		at := old
		for _, step := range path {
			at = child(at, step)
		}
		s, ok := at.(string)
		return s, ok
	})
}

func child(v, step any) any {
	switch step := step.(type) {
	case string:
		m, _ := v.(map[string]any)
		return m[step]
	case int:
		if l, _ := v.([]any); step < len(l) {
			return l[step]
		}
	}
	return nil
}

// edit rewrites the secrets in a document; with restore nil it hides them. Text without a secret comes back as it is.
func edit(doc json.RawMessage, restore func(path []any) (string, bool)) (json.RawMessage, error) {
	v, err := decode(doc)
	if err != nil {
		return nil, err
	}
	if !walk(v, nil, restore) {
		return doc, nil
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimRight(b.Bytes(), "\n"), nil
}

func decode(doc json.RawMessage) (any, error) {
	dec := json.NewDecoder(bytes.NewReader(doc))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return nil, errors.New("is not JSON")
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("is not one JSON value")
	}
	return v, nil
}

// walk edits v in place and reports whether it changed something.
func walk(v any, path []any, restore func(path []any) (string, bool)) bool {
	changed := false
	switch v := v.(type) {
	case []any:
		for i := range v {
			changed = walk(v[i], append(path, i), restore) || changed
		}
	case map[string]any:
		if s, ok := secretIn(v); ok {
			return editOne(v, s, append(path, "value"), restore)
		}
		for name := range v {
			changed = walk(v[name], append(path, name), restore) || changed
		}
	}
	return changed
}

// secretIn returns the secret that an object holds by value: it has the member value, and no other but until.
func secretIn(v map[string]any) (string, bool) {
	s, ok := v["value"].(string)
	for name := range v {
		ok = ok && (name == "value" || name == "until")
	}
	return s, ok
}

func editOne(v map[string]any, s string, path []any, restore func(path []any) (string, bool)) bool {
	if restore == nil {
		v["value"] = Redacted
		return s != Redacted
	}
	if s != Redacted {
		return false
	}
	old, ok := restore(path)
	if ok {
		v["value"] = old
	}
	return ok
}
