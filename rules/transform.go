// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
)

// MaxOutput is the most bytes of data that a transform may produce.
const MaxOutput = 1 << 20

// The content types of what a transform produces.
const (
	jsonType = "application/json"
	textType = "text/plain; charset=utf-8"
)

// Transform makes the data of what is delivered out of an event: one of path, constant, template and function. It is immutable
// and safe for concurrent use. A nil *Transform is the transform original, which changes nothing.
type Transform struct {
	path     *path
	constant []byte
	template *template
	function *functionCall
	mime     string // of the result
}

// RenderContext is what a transform may use beside the event. For the same event and context the result is the same,
// byte for byte.
type RenderContext struct {
	Rule, Bus string
	Received  time.Time // when the bridge accepted the event
	// Function runs the functions that transforms name. nil = none can be run.
	Function CallFunction
}

// transformFields are the kinds of transform; paths goes with template, and code with function.
var transformFields = []string{"original", "path", "constant", "template", "function", "paths", "code"}

// ParseTransform compiles a transform, given as JSON as it stands in a rule; nil without an error is original. The
// error is a *fault.Error of kind Invalid. json is copied.
func ParseTransform(json []byte) (*Transform, error) {
	src := slices.Clone(json)
	var doc document
	root, err := doc.parse(src)
	if err != nil {
		return nil, fault.Invalidf("", "%s", err)
	}
	return parseTransform(&doc, src, root)
}

// parseTransform compiles the transform that is node i of doc, which was parsed from src.
func parseTransform(doc *document, src []byte, i int32) (*Transform, error) {
	n := &doc.nodes[i]
	if n.kind == kindString && string(n.text) == "original" {
		return nil, nil
	}
	if n.kind != kindObject {
		return nil, fault.Invalidf("", `must be "original" or an object with one of path, constant, template and function, this is %s`, n.kind)
	}
	p := ruleParser{doc: doc, src: src}
	fields := map[string]int32{}
	doc.children(i, func(_ int, j int32) {
		name := string(doc.nodes[j].key)
		if _, twice := fields[name]; twice {
			p.complain(pointerTo(name), "stands twice")
		}
		if !slices.Contains(transformFields, name) {
			p.unknown(name, pointerTo(name), transformFields, nil)
		}
		fields[name] = j
	})
	_, paths := fields["paths"]
	_, template := fields["template"]
	_, code := fields["code"]
	_, function := fields["function"]
	switch {
	case len(p.details) > 0:
		return nil, fault.Collect(p.details)
	case paths && !template:
		return nil, fault.Invalidf("/paths", "goes with a template, which is missing")
	case code && !function:
		return nil, fault.Invalidf("/code", "goes with a function, which is missing")
	case len(fields) != 1 && !((paths || code) && len(fields) == 2):
		return nil, fault.Invalidf("", "must have exactly one of original, path, constant, template and function")
	}
	return p.transform(fields)
}

func (p *ruleParser) transform(fields map[string]int32) (*Transform, error) {
	if i, ok := fields["original"]; ok {
		if p.doc.nodes[i].kind != kindTrue {
			return nil, fault.Invalidf("/original", "must be true")
		}
		return nil, nil
	}
	if i, ok := fields["path"]; ok {
		n := &p.doc.nodes[i]
		if n.kind != kindString {
			return nil, fault.Invalidf("/path", "must be a JSONPath such as $.data, this is %s", n.kind)
		}
		path, err := parsePath(string(n.text))
		if err != nil {
			return nil, fault.Invalidf("/path", "%s", err)
		}
		return &Transform{path: path, mime: jsonType}, nil
	}
	if i, ok := fields["constant"]; ok {
		if n := &p.doc.nodes[i]; n.kind == kindString {
			return &Transform{constant: n.text, mime: textType}, nil
		}
		return &Transform{constant: p.raw(i), mime: jsonType}, nil
	}
	if _, ok := fields["function"]; ok {
		return p.function(fields)
	}
	var paths map[string]*path
	if i, ok := fields["paths"]; ok {
		var err error
		if paths, err = p.paths(i); err != nil {
			return nil, err
		}
	}
	return p.template(fields["template"], paths)
}

// Limits of the paths of a template in the AWS form.
const (
	MaxPaths    = 100
	maxPathName = 256
)

func (p *ruleParser) paths(i int32) (map[string]*path, error) {
	if k := p.doc.nodes[i].kind; k != kindObject {
		return nil, fault.Invalidf("/paths", "must be an object of names and JSONPaths, this is %s", k)
	}
	paths := map[string]*path{}
	inner := ruleParser{doc: p.doc, src: p.src}
	p.doc.children(i, func(_ int, j int32) {
		n := &p.doc.nodes[j]
		name := string(n.key)
		at := "/paths" + pointerTo(name)
		if _, twice := paths[name]; twice {
			inner.complain(at, "stands twice")
			return
		}
		paths[name] = nil
		if !isPlaceholder(name) || len(name) > maxPathName || strings.Contains(name, ".") || strings.HasPrefix(strings.ToLower(name), "aws") {
			inner.complain(at, "a name has 1 to %d letters, digits, _ and -, and does not begin with aws", maxPathName)
		}
		if n.kind != kindString {
			inner.complain(at, "must be a JSONPath such as $.data.id, this is %s", n.kind)
			return
		}
		compiled, err := parsePath(string(n.text))
		if err != nil {
			inner.complain(at, "%s", err)
			return
		}
		paths[name] = compiled
	})
	if len(paths) > MaxPaths {
		inner.complain("/paths", "there are %d paths; at most %d are allowed", len(paths), MaxPaths)
	}
	return paths, fault.Collect(inner.details)
}

// Apply returns the event to deliver. For a nil Transform that is ev itself; else a copy with new data and
// datacontenttype, and without the dataschema, which described the old data. The error says why nothing could be
// rendered and holds nothing of the event.
func (t *Transform) Apply(ev *event.Event, rc RenderContext) (*event.Event, error) {
	if t == nil {
		return ev, nil
	}
	data, mime, err := t.render(ev, rc)
	if err != nil {
		return nil, fmt.Errorf("transform: %w", err)
	}
	if len(data) > MaxOutput {
		return nil, fmt.Errorf("transform: %w", errOutput)
	}
	out := *ev
	out.Data, out.DataContentType, out.DataSchema = data, mime, ""
	return &out, nil
}

// errOutput is a result that grows too large.
var errOutput = fmt.Errorf("the result would have more than %d bytes", MaxOutput)

// render returns the new data and its content type.
func (t *Transform) render(ev *event.Event, rc RenderContext) (data []byte, mime string, err error) {
	switch {
	case t.function != nil:
		return t.function.call(ev, rc)
	case t.path != nil:
		v, err := newView(ev, rc)
		if err != nil {
			return nil, "", err
		}
		data, err = v.appendPath(make([]byte, 0, 256), t.path)
		return data, t.mime, err
	case t.template != nil:
		data, err = t.template.render(ev, rc)
		return data, t.mime, err
	}
	return t.constant, t.mime, nil
}

// view is an event in its JSON form, taken apart.
type view struct {
	context RenderContext
	event   *event.Event
	form    []byte
	doc     document
	values  []any             // one for each node, for filters; made on demand
	secrets map[string]string // of a Text

	evaluation evaluation
}

func newView(ev *event.Event, rc RenderContext) (*view, error) {
	v := &view{context: rc, event: ev, form: JSONForm(ev)}
	v.doc = document{outer: 1, nodes: make([]node, 0, min(16+len(v.form)/16, keepNodes))}
	if _, err := v.doc.parse(v.form); err != nil {
		return nil, fmt.Errorf("the event's JSON form is %w", err)
	}
	return v, nil
}

// JSONForm is the event in the JSON format. Data without a content type stands there as JSON if it is that, just as
// patterns see it.
func JSONForm(ev *event.Event) []byte {
	form := make([]byte, 0, len(ev.Data)+512)
	if ev.DataContentType == "" && ev.Data != nil {
		var doc document
		if _, err := doc.parse(ev.Data); err == nil {
			head := *ev
			head.Data = nil
			form = event.AppendJSON(form, &head)
			form = append(form[:len(form)-1], `,"data":`...)
			return append(append(form, ev.Data...), '}')
		}
	}
	return event.AppendJSON(form, ev)
}

// raw is the JSON text of node i.
func (v *view) raw(i int32) []byte { return v.form[v.doc.nodes[i].start:v.doc.nodes[i].end] }

// appendPath appends what p selects as JSON: a list, or the value of a definite path, which must select one.
func (v *view) appendPath(dst []byte, p *path) ([]byte, error) {
	nodes := p.selectFrom(v)
	switch {
	case p.definite && len(nodes) == 0:
		return nil, fmt.Errorf("the path %s selects nothing in this event", p.source)
	case p.definite:
		return append(dst, v.raw(nodes[0])...), nil
	}
	dst = append(dst, '[')
	for k, i := range nodes {
		if k > 0 {
			dst = append(dst, ',')
		}
		if dst = append(dst, v.raw(i)...); len(dst) > MaxOutput {
			return nil, errOutput
		}
	}
	return append(dst, ']'), nil
}
