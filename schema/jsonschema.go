// SPDX-License-Identifier: Apache-2.0

package schema

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/rialto-bridge/rialto/internal/fault"
)

// Limits of a JSON Schema, beside those of JSON.
const (
	maxEnum    = 1000
	maxPattern = 1000 // bytes; patterns are RE2, whose matching is linear
)

// jsonSchema is a compiled JSON Schema.
type jsonSchema struct {
	root    *jsonschema.Schema
	dynamic bool // uses $dynamicRef or $recursiveRef: what it means depends on who refers to it
	// deepest is how deep a document may be nested, 0 = no limit: of a schema that recurs in several branches each level of
	// a document multiplies the work.
	deepest int
	quick   *part // nil if there is none
}

// dialects are the drafts by the URL in $schema, without scheme and empty fragment.
var dialects = map[string]string{
	"json-schema.org/draft-04/schema":      "draft-04",
	"json-schema.org/draft-06/schema":      "draft-06",
	"json-schema.org/draft-07/schema":      "draft-07",
	"json-schema.org/draft/2019-09/schema": "2019-09",
	"json-schema.org/draft/2020-12/schema": "2020-12",
}

func dialectOf(doc any) (string, error) {
	object, ok := doc.(map[string]any)
	if !ok {
		if _, ok := doc.(bool); !ok {
			return "", fault.Invalidf("", "a JSON Schema is an object, true or false")
		}
		return "2020-12", nil
	}
	v, ok := object["$schema"]
	if !ok {
		return "2020-12", nil
	}
	s, _ := v.(string)
	bare := strings.TrimSuffix(strings.TrimPrefix(strings.TrimPrefix(s, "http://"), "https://"), "#")
	if d := dialects[bare]; d != "" {
		return d, nil
	}
	return "", fault.Invalidf("/$schema", "must be the URL of draft-04, draft-06, draft-07, 2019-09 or 2020-12, such as https://json-schema.org/draft/2020-12/schema")
}

// baseURL is where a text stands while it is compiled: a reference to /v1/schemas/... leads to a version.
const baseURL = "rialto:///v1/schemas/-/-/versions/0"

func urlOf(r Ref) string {
	return fmt.Sprintf("rialto:///v1/schemas/%s/%s/versions/%d", r.Group, r.Schema, r.Version)
}

var versionPath = regexp.MustCompile(`/v1/schemas/([^/]+)/([^/]+)/versions/([1-9][0-9]{0,8})$`)

// ParseVersionURL reads the URL of a version, such as http://host/v1/schemas/shop/Order/versions/3, or its path.
func ParseVersionURL(s string) (Ref, bool) {
	m := versionPath.FindStringSubmatch(s)
	if m == nil {
		return Ref{}, false
	}
	number, err := strconv.Atoi(m[3])
	r := Ref{Name{m[1], m[2]}, number}
	return r, err == nil && r.Name.Check() == nil
}

func (c *Compiled) compileJSON(ctx context.Context, text string, from Source) ([]byte, error) {
	doc, err := decodeJSON([]byte(text), schemaLimits)
	if err != nil {
		return nil, err
	}
	if c.Dialect, err = dialectOf(doc); err != nil {
		return nil, err
	}
	if err := checkKeywords(doc); err != nil {
		return nil, err
	}
	l := &jsonLoader{fetcher: newFetcher(ctx, from, JSONSchema), meant: map[string]Ref{}}
	if err := l.mean(baseOf(doc, baseURL), c.References); err != nil {
		return nil, err
	}
	k := jsonschema.NewCompiler()
	k.UseLoader(l)
	k.AssertFormat()
	if err := k.AddResource(baseURL, doc); err != nil {
		return nil, compileFault(doc, err)
	}
	root, err := k.Compile(baseURL)
	if err != nil {
		return nil, compileFault(doc, err)
	}
	if c.json, err = measure(root); err != nil {
		return nil, err
	}
	c.References = append(c.References, l.found...)
	return canonicalJSON(doc)
}

// jsonLoader gives the compiler the versions that references lead to, and nothing else: no file, no network.
type jsonLoader struct {
	*fetcher
	meant map[string]Ref // by absolute URL
	found []Reference    // versions that a text names by their URL
}

// mean notes what the references of a text at base stand for.
func (l *jsonLoader) mean(base string, refs []Reference) error {
	for i, r := range refs {
		abs, err := resolveURL(base, r.Name)
		if err != nil {
			return fault.Invalidf(fmt.Sprintf("/references/%d/name", i), "is no URL reference")
		}
		if was, ok := l.meant[abs]; ok && was != r.Ref() {
			return fault.New(fault.Invalid, "reference %q means two versions, %s and %s", r.Name, was, r.Ref())
		}
		l.meant[abs] = r.Ref()
	}
	return nil
}

// Load is jsonschema.URLLoader.
func (l *jsonLoader) Load(u string) (any, error) {
	r, ok := l.meant[u]
	if !ok {
		if !strings.HasPrefix(u, "rialto:///") {
			return nil, fault.New(fault.Invalid, "is not among the references; nothing is read from files or the network")
		}
		if r, ok = ParseVersionURL(strings.TrimPrefix(u, "rialto://")); !ok {
			return nil, fault.New(fault.Invalid, "is not among the references and no path like /v1/schemas/GROUP/SCHEMA/versions/1")
		}
		l.found = append(l.found, Reference{Name: strings.TrimPrefix(u, "rialto://"), Group: r.Group, Schema: r.Schema, Version: r.Version})
	}
	v, err := l.fetch(r)
	if err != nil {
		return nil, err
	}
	doc, err := decodeJSON([]byte(v.Text), schemaLimits)
	if err != nil {
		return nil, err
	}
	if err := l.mean(baseOf(doc, urlOf(r)), v.References); err != nil {
		return nil, err
	}
	return doc, nil
}

// baseOf is the URL against which a text's references are read: its $id, if it has one.
func baseOf(doc any, at string) string {
	object, _ := doc.(map[string]any)
	for _, name := range []string{"$id", "id"} {
		if id, ok := object[name].(string); ok {
			if abs, err := resolveURL(at, id); err == nil {
				return abs
			}
		}
	}
	return at
}

func resolveURL(base, ref string) (string, error) {
	b, err := url.Parse(base)
	if err != nil {
		return "", err
	}
	r, err := url.Parse(ref)
	if err != nil {
		return "", err
	}
	abs := b.ResolveReference(r)
	if !r.IsAbs() && b.Opaque != "" {
		abs.Opaque = b.Opaque
	}
	abs.Fragment, abs.RawFragment = "", ""
	return abs.String(), nil
}

// checkKeywords refuses what would cost too much, wherever it stands.
func checkKeywords(doc any) error {
	var bad []fault.Detail
	visit(doc, "", func(at, name string, v any) {
		switch v := v.(type) {
		case string:
			if name == "pattern" && len(v) > maxPattern {
				bad = append(bad, fault.Detail{Pointer: at, Detail: fmt.Sprintf("has at most %d bytes", maxPattern)})
			}
		case []any:
			if name == "enum" && len(v) > maxEnum {
				bad = append(bad, fault.Detail{Pointer: at, Detail: fmt.Sprintf("has at most %d values", maxEnum)})
			}
		case map[string]any:
			for p := range v {
				if name == "patternProperties" && len(p) > maxPattern {
					bad = append(bad, fault.Detail{Pointer: at, Detail: fmt.Sprintf("has patterns of at most %d bytes", maxPattern)})
				}
			}
		}
	})
	return fault.Collect(sorted(bad))
}

// sorted puts complaints in order and keeps the first few.
func sorted(bad []fault.Detail) []fault.Detail {
	slices.SortFunc(bad, func(a, b fault.Detail) int {
		return strings.Compare(a.Pointer+"\x00"+a.Detail, b.Pointer+"\x00"+b.Detail)
	})
	bad = slices.Compact(bad)
	return bad[:min(len(bad), maxComplaints)]
}

// maxComplaints is how many complaints one answer lists.
const maxComplaints = 20

// visit calls fn for every member and item of a document with its pointer and name.
func visit(v any, at string, fn func(at, name string, v any)) {
	switch v := v.(type) {
	case map[string]any:
		for name, m := range v {
			p := at + fault.Pointer(name)
			fn(p, name, m)
			visit(m, p, fn)
		}
	case []any:
		for i, m := range v {
			p := at + "/" + strconv.Itoa(i)
			fn(p, "", m)
			visit(m, p, fn)
		}
	}
}

// compileFault says what the compiler did not like, and where.
func compileFault(doc any, err error) error {
	var (
		invalid *jsonschema.SchemaValidationError
		regex   *jsonschema.InvalidRegexError
		load    *jsonschema.LoadURLError
		pointer *jsonschema.JSONPointerNotFoundError
		anchor  *jsonschema.AnchorNotFoundError
		told    *fault.Error
	)
	switch {
	case errors.As(err, &invalid):
		var v *jsonschema.ValidationError
		if errors.As(invalid.Err, &v) {
			return elsewhere(invalid.URL, fault.Collect(sorted(complaints(v))))
		}
	case errors.As(err, &regex):
		detail := "is no regular expression of RE2: " + strings.TrimPrefix(regex.Err.Error(), "error parsing regexp: ")
		return elsewhere(regex.URL, fault.Invalidf(fragmentOf(regex.URL), "%s", detail))
	case errors.As(err, &load):
		why := "cannot be found"
		if errors.As(load.Err, &told) {
			if k := fault.KindOf(told); k != fault.Invalid && k != fault.NotFound {
				return told
			}
			why = told.Message
			if len(told.Details) > 0 {
				why = told.Error()
			}
		}
		return fault.Invalidf(whereRef(doc, load.URL), "%s %s", clip(load.URL), why)
	case errors.As(err, &pointer):
		return fault.Invalidf(whereRef(doc, pointer.URL), "leads nowhere: %s", clip(pointer.URL))
	case errors.As(err, &anchor):
		return fault.Invalidf(whereRef(doc, anchor.Reference), "leads nowhere: %s", clip(anchor.Reference))
	}
	return &fault.Error{Kind: fault.Invalid, Message: "invalid", Err: err,
		Details: []fault.Detail{{Detail: "is no JSON Schema: " + strings.ReplaceAll(clip(err.Error()), baseURL, "")}}}
}

// elsewhere says that a complaint is about a text that is referred to, if it is.
func elsewhere(at string, err error) error {
	if strings.HasPrefix(at, baseURL) {
		return err
	}
	return fault.Invalidf("", "in %s: %s", clip(at), err)
}

func fragmentOf(u string) string {
	_, f, _ := strings.Cut(u, "#")
	if p, err := url.PathUnescape(f); err == nil {
		return p
	}
	return f
}

func clip(s string) string {
	s = strings.TrimPrefix(s, baseURL)
	if len(s) > 200 {
		return strings.ToValidUTF8(s[:200], "") + "…"
	}
	return s
}

// whereRef finds the reference that led to a URL; "" if it is hidden.
func whereRef(doc any, u string) string {
	base, found := baseOf(doc, baseURL), ""
	bare, _, _ := strings.Cut(u, "#")
	visit(doc, "", func(at, name string, v any) {
		s, ok := v.(string)
		if !ok || !slices.Contains([]string{"$ref", "$dynamicRef", "$recursiveRef", "$schema"}, name) {
			return
		}
		abs, err := resolveURL(base, s)
		if err != nil || abs != bare || abs == base && !strings.HasSuffix(u, fragmentOf(s)) {
			return
		}
		if found == "" || at < found {
			found = at
		}
	})
	return found
}
