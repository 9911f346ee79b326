// SPDX-License-Identifier: Apache-2.0

// Package secret keeps credentials out of documents, logs and answers.
//
// In a document a secret is {"ref": "NAME"}, which names a Secret, {"ref": "env:NAME"}, {"ref": "file:/path"} or {"value": "..."}.
// A reference is resolved where the secret is used; a value stands in the document itself, is sealed in the store by a Keyring,
// and is taken out by Redact before anyone is shown it.
// In memory a secret is a Value, which prints as [redacted] wherever it is printed, logged or marshalled. The package
// holds no state and is safe for concurrent use.
package secret

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"slices"
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
		return errors.New(`a secret is {"ref": "NAME"}, {"ref": "env:NAME"}, {"ref": "file:/path"} or {"value": "..."}`)
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
	case !ok && IsName(ref):
	case !ok || scheme != "env" && scheme != "file":
		return errors.New("a reference is the name of a Secret, env:NAME or file:/path")
	case scheme == "env" && !isVariable(name):
		return errors.New("the name of a variable has A-Z, a-z, 0-9 and _, and no digit first")
	case scheme == "env" && strings.HasPrefix(name, ownVariables):
		return errors.New("variables that begin with " + ownVariables + " are the bridge's own")
	case scheme == "file" && (!filepath.IsAbs(name) || strings.ContainsRune(name, 0)):
		return errors.New("the path of a file reference is absolute")
	}
	return nil
}

// CheckOutside is CheckRef where Secrets cannot be named: only variables and files can.
func CheckOutside(ref string) error {
	if !strings.Contains(ref, ":") {
		return errors.New("must be env:NAME or file:/path")
	}
	return CheckRef(ref)
}

// IsName reports whether a reference names a Secret.
func IsName(s string) bool {
	for i := range len(s) {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && (c != '-' || i == 0 || i == len(s)-1) {
			return false
		}
	}
	return s != "" && len(s) <= 63
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

// Resolver looks up variables and files for those who may write definitions, which are not those who run the bridge. What is
// the bridge's own it keeps from them: variables that begin with RIALTO_, the files in Own, and, since variables stand there,
// too, those in /proc. All else that the process can read it gives out.
type Resolver struct {
	Own []string // files, and directories with all that is in them; by whatever path or link somebody comes to them
}

// ownVariables is what the names of the bridge's own settings begin with.
const ownVariables = "RIALTO_"

// Resolve returns what env:NAME or file:/path refers to; the names of Secrets it does not know. One newline at the end of a file is cut off. It refuses what is
// empty, longer than MaxSize, not a regular file, or the bridge's own; the error names the reference and says why, without content.
func (r Resolver) Resolve(ref string) (string, error) {
	if err := CheckRef(ref); err != nil {
		return "", fmt.Errorf("secret %q: %w", ref, err)
	}
	scheme, name, named := strings.Cut(ref, ":")
	if !named {
		return "", fmt.Errorf("secret %s: is the name of a Secret, which is not known here", ref)
	}
	var s string
	var err error
	if scheme == "env" {
		s = os.Getenv(name)
	} else {
		s, err = r.readFile(name)
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

// Open opens a regular file that is not the bridge's own, to be read. It does not block, though a path may name a pipe. The error
// does not repeat the path.
func (r Resolver) Open(path string) (*os.File, error) {
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil, cause(err)
	}
	if err := r.notOwn(path); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, cause(err)
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = errors.New("is not a regular file")
	}
	if err != nil {
		return nil, errors.Join(cause(err), f.Close())
	}
	return f, nil
}

// notOwn refuses a path without symlinks that is, or is in, what is the bridge's own. Files are compared and not names, which
// differ where a directory is mounted twice or case does not count.
func (r Resolver) notOwn(path string) error {
	var own []os.FileInfo
	for _, name := range append([]string{"/proc"}, r.Own...) {
		st, err := os.Stat(name)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return cause(err)
		}
		if err == nil {
			own = append(own, st)
		}
	}
	for {
		st, err := os.Stat(path)
		if err != nil {
			return cause(err)
		}
		if slices.ContainsFunc(own, func(o os.FileInfo) bool { return os.SameFile(o, st) }) {
			return errors.New("is the bridge's own, which no definition may use")
		}
		up := filepath.Dir(path)
		if up == path {
			return nil
		}
		path = up
	}
}

// readFile reads a file that may be opened.
func (r Resolver) readFile(path string) (string, error) {
	f, err := r.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close() // only read
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

// Redact returns doc with every secret that stands in it, by value or sealed, replaced by the placeholder: an object whose only
// member, beside "until", is "value" or "sealed" with a string. References stay, they give nothing away. Apply it to documents, or
// parts of them, in which that form means a secret. doc must be JSON; what is not comes back as null, so that nothing leaks.
func Redact(doc json.RawMessage) json.RawMessage {
	v, err := decode(doc)
	if err != nil {
		return json.RawMessage("null")
	}
	changed := false
	each(v, nil, func(_ []any, o map[string]any) bool {
		s, plain := secretIn(o, "value")
		_, sealed := secretIn(o, "sealed")
		if !plain && !sealed {
			return false
		}
		changed = changed || s != Redacted
		delete(o, "sealed")
		o["value"] = Redacted
		return true
	})
	if !changed {
		return doc
	}
	out, err := encode(v)
	if err != nil {
		return json.RawMessage("null")
	}
	return out
}

// Restore is the way back: where doc holds a placeholder, it takes the secret that stored, which is open, holds at the same place,
// so that a document that was read can be written again. In a list of which elements were added or taken out no place is the
// same. A placeholder that stands for nothing stays, and is then refused by Source.
func Restore(doc, stored json.RawMessage) (json.RawMessage, error) {
	old, err := decode(stored)
	if err != nil {
		return nil, fmt.Errorf("stored document: %w", err)
	}
	v, err := decode(doc)
	if err != nil {
		return nil, err
	}
	changed := false
	each(v, nil, func(path []any, o map[string]any) bool {
		s, ok := secretIn(o, "value")
		if !ok {
			return false
		}
		at, in := old, v
		for _, step := range path {
			if !sameLength(at, in) {
				return true
			}
			at, in = child(at, step), child(in, step)
		}
		if was, there := child(at, "value").(string); there && s == Redacted {
			o["value"] = was
			changed = true
		}
		return true
	})
	if !changed {
		return doc, nil
	}
	return encode(v)
}

// sameLength reports whether two values are not lists of different lengths.
func sameLength(a, b any) bool {
	x, _ := a.([]any)
	y, _ := b.([]any)
	return len(x) == len(y)
}

// Reference is where a document names a Secret.
type Reference struct {
	Name    string
	Pointer string // JSON pointer
}

// References lists the Secrets that a document, or a part of one, names: an object whose only member, beside "until", is "ref". What
// refers to variables and files is not among them.
func References(doc json.RawMessage) []Reference {
	v, err := decode(doc)
	if err != nil {
		return nil
	}
	var all []Reference
	each(v, nil, func(path []any, o map[string]any) bool {
		ref, ok := secretIn(o, "ref")
		if ok && IsName(ref) {
			all = append(all, Reference{Name: ref, Pointer: pointerOf(path) + "/ref"})
		}
		return ok
	})
	slices.SortFunc(all, func(a, b Reference) int { return strings.Compare(a.Pointer, b.Pointer) })
	return all
}

// Forms returns a secret in the forms in which a far side may repeat it, each once: as it is, and as it stands in a URL, a form, XML and
// JSON, of which some write &, < and >, and others /, with a backslash.
func Forms(text string) []string {
	var x bytes.Buffer
	_ = xml.EscapeText(&x, []byte(text)) // a Buffer takes all
	forms := []string{text, url.QueryEscape(text), url.PathEscape(text), x.String(), strings.ReplaceAll(x.String(), "&#34;", "&quot;")}
	for _, s := range []string{inJSON(text, true), inJSON(text, false)} {
		forms = append(forms, s, strings.ReplaceAll(s, "/", `\/`))
	}
	slices.Sort(forms)
	return slices.Compact(forms)
}

// inJSON is a text as it stands between the quotes of a JSON string, with or without what HTML could take for its own.
func inJSON(text string, html bool) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(html)
	if e.Encode(text) != nil {
		return text
	}
	quoted := strings.TrimSuffix(b.String(), "\n")
	return quoted[1 : len(quoted)-1]
}

// Lookalikes lists, as JSON pointers in order, the objects in a part of a document that count as secrets wherever documents are
// sealed, shown and restored: those whose only member, beside "until", is "ref", "value" or "sealed" with a text. Where a part takes
// any JSON they must be refused when it is written, because nothing else tells them from secrets. What is no JSON has none.
func Lookalikes(doc json.RawMessage) []string { return withOnly(doc, "ref", "value", "sealed") }

// LooksLike reports whether a JSON value is, as a whole, one that Lookalikes lists.
func LooksLike(doc json.RawMessage) bool { return slices.Contains(Lookalikes(doc), "") }

// Sealed lists, as JSON pointers in order, the secrets in a document that are sealed. In one that somebody writes there are none: only
// what is stored has them.
func Sealed(doc json.RawMessage) []string { return withOnly(doc, "sealed") }

// withOnly lists the objects that hold a text as one of the members and nothing else.
func withOnly(doc json.RawMessage, members ...string) []string {
	v, err := decode(doc)
	if err != nil {
		return nil
	}
	var all []string
	each(v, nil, func(path []any, o map[string]any) bool {
		found := slices.ContainsFunc(members, func(m string) bool {
			_, ok := secretIn(o, m)
			return ok
		})
		if found {
			all = append(all, pointerOf(path))
		}
		return found
	})
	slices.Sort(all)
	return all
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

// each calls fn for every object in v, which may change it, and goes on into those for which fn is false. The path is reused.
func each(v any, path []any, fn func(path []any, o map[string]any) bool) {
	switch v := v.(type) {
	case []any:
		for i := range v {
			each(v[i], append(path, i), fn)
		}
	case map[string]any:
		if fn(path, v) {
			return
		}
		for name := range v {
			each(v[name], append(path, name), fn)
		}
	}
}

// secretIn returns the text that an object holds as the given member, if it has no other but until.
func secretIn(o map[string]any, member string) (string, bool) {
	s, ok := o[member].(string)
	for name := range o {
		ok = ok && (name == member || name == "until")
	}
	return s, ok
}

func pointerOf(path []any) string {
	var b strings.Builder
	for _, step := range path {
		b.WriteString("/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(fmt.Sprint(step)))
	}
	return b.String()
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

func encode(v any) (json.RawMessage, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimRight(b.Bytes(), "\n"), nil
}
