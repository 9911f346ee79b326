// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/expr-lang/expr"

	"github.com/rialto-bridge/rialto/internal/fault"
)

// MaxTemplate is the largest template, in bytes of JSON text.
const MaxTemplate = 32 << 10

// template is a parsed template: literal text and placeholders in turn. Where a placeholder stands decides how its
// value is written, so a value can never break what is around it. ${...} and the AWS form <...> compile to this.
type template struct {
	fragments []fragment
}

// fragment is literal text, or a placeholder when reference is set.
type fragment struct {
	literal   []byte
	reference *reference
	context   context
	escape    Escape // of a Text; nil = the value as it is
}

// context is where a placeholder stands.
type context uint8

const (
	inText   context = iota // strings bare, other values as JSON, nothing for what is absent
	inString                // inside a JSON string: as in text, escaped
	inValue                 // where a JSON value stands: JSON, null for what is absent
)

// reference is what a placeholder stands for: a path, an expression, a variable, or, in a Text, a secret by its name.
type reference struct {
	path       *path
	expression *Expression
	variable   variable
	secret     string
}

type variable uint8

const (
	varRule variable = iota + 1
	varBus
	varReceived
	varEvent
	varAttributes
	varRuleURN
)

// variables are the predefined names of ${...}. They begin with a name and a dot, which no attribute's path can.
var variables = map[string]variable{
	"rialto.rule": varRule, "rialto.bus": varBus, "rialto.received": varReceived, "rialto.event": varEvent,
}

// awsVariables are the predefined names of the AWS form.
var awsVariables = map[string]variable{
	"aws.events.rule-arn": varRuleURN, "aws.events.rule-name": varRule,
	"aws.events.event.ingestion-time": varReceived, "aws.events.event": varAttributes, "aws.events.event.json": varEvent,
}

// template compiles the template that is node i. With paths it is in the AWS form.
func (p *ruleParser) template(i int32, paths map[string]*path) (*Transform, error) {
	n := &p.doc.nodes[i]
	if size := len(p.raw(i)); size > MaxTemplate {
		return nil, fault.Invalidf("/template", "the template has %d bytes; at most %d are allowed", size, MaxTemplate)
	}
	c := compiler{doc: p.doc, src: p.src, parse: parseReference, scan: scanDollar}
	if paths != nil {
		c.parse, c.scan = awsReference(paths), scanAngle
	}
	var err error
	mime := jsonType
	if n.kind == kindString {
		mime, err = c.text(string(n.text), paths != nil)
		if err != nil {
			err = fault.Invalidf("/template", "%s", err)
		}
	} else {
		err = fault.At("/template", c.value(i, ""))
	}
	if err != nil {
		return nil, err
	}
	return &Transform{template: &template{fragments: c.fragments}, mime: mime}, nil
}

// compiler turns a template into fragments.
type compiler struct {
	doc       *document
	src       []byte
	parse     func(name string) (*reference, error)
	scan      scanner
	inString  func(pointer string) // called when the string at a pointer is compiled; nil = nobody asks
	fragments []fragment
}

// piece is a part of a string: literal text, or the inside of a placeholder.
type piece struct {
	text        string
	placeholder bool
}

// scanner splits a string into pieces.
type scanner func(s string) ([]piece, error)

// literal appends literal text.
func (c *compiler) literal(s string) {
	if k := len(c.fragments) - 1; k >= 0 && c.fragments[k].reference == nil {
		c.fragments[k].literal = append(c.fragments[k].literal, s...)
		return
	}
	c.fragments = append(c.fragments, fragment{literal: []byte(s)})
}

func (c *compiler) placeholder(name string, where context) error {
	reference, err := c.parse(name)
	if err != nil {
		return err
	}
	c.fragments = append(c.fragments, fragment{reference: reference, context: where})
	return nil
}

// value compiles a template that is itself JSON. A string that is one placeholder and nothing else becomes the value
// with its type; in any other string a placeholder is part of the text.
func (c *compiler) value(i int32, pointer string) error {
	n := &c.doc.nodes[i]
	switch n.kind {
	case kindString:
		return c.string(string(n.text), pointer)
	case kindArray, kindObject:
		return c.container(i, pointer)
	}
	c.literal(string(c.src[n.start:n.end]))
	return nil
}

func (c *compiler) container(i int32, pointer string) error {
	object := c.doc.nodes[i].kind == kindObject
	brackets := "[]"
	if object {
		brackets = "{}"
	}
	c.literal(brackets[:1])
	var err error
	seen := map[string]bool{}
	c.doc.children(i, func(k int, j int32) {
		if err != nil {
			return
		}
		if k > 0 {
			c.literal(",")
		}
		at := pointer + pointerAt(k)
		if object {
			key := string(c.doc.nodes[j].key)
			at = pointer + pointerTo(key)
			if seen[key] {
				err = fault.Invalidf(at, "stands twice")
				return
			}
			seen[key] = true
			if err = c.key(key, at); err != nil {
				return
			}
		}
		err = c.value(j, at)
	})
	c.literal(brackets[1:])
	return err
}

func (c *compiler) key(key, pointer string) error {
	pieces, err := c.scan(key)
	if err != nil {
		return fault.Invalidf(pointer, "%s", err)
	}
	for _, piece := range pieces {
		if piece.placeholder {
			return fault.Invalidf(pointer, "%s", errKey)
		}
		key = piece.text
	}
	c.literal(string(append(appendString(nil, key), ':')))
	return nil
}

func (c *compiler) string(s, pointer string) error {
	pieces, err := c.scan(s)
	if err == nil && len(pieces) == 1 && pieces[0].placeholder {
		err = c.placeholder(pieces[0].text, inValue)
	} else if err == nil {
		err = c.quoted(pieces)
	}
	if err != nil {
		return fault.Invalidf(pointer, "%s", err)
	}
	if c.inString != nil {
		c.inString(pointer)
	}
	return nil
}

func (c *compiler) quoted(pieces []piece) error {
	c.literal(`"`)
	for _, piece := range pieces {
		if !piece.placeholder {
			c.literal(string(appendEscaped(nil, piece.text)))
		} else if err := c.placeholder(piece.text, inString); err != nil {
			return err
		}
	}
	c.literal(`"`)
	return nil
}

// text compiles a template that is a string: JSON if it begins like JSON and is, with its placeholders filled in; else
// text. In the AWS form what begins like JSON must be it.
func (c *compiler) text(s string, aws bool) (mime string, err error) {
	pieces, err := c.scan(s)
	if err != nil {
		return "", err
	}
	switch begin := strings.TrimLeft(s, " \t\r\n"); {
	case begin == "":
	case begin[0] == '{', begin[0] == '[', aws && begin[0] == '"', aws && pieces[0].placeholder, aws && len(pieces) > 1 && isSpace([]byte(pieces[0].text)):
		err = c.jsonText(pieces)
		if err == nil {
			return jsonType, nil
		}
		object := begin[0] == '{' && strings.HasPrefix(strings.TrimLeft(begin[1:], " \t\r\n"), `"`)
		if aws || object || errors.As(err, new(placeholderError)) {
			return "", err
		}
	}
	c.fragments = nil
	for _, piece := range pieces {
		if !piece.placeholder {
			c.literal(piece.text)
		} else if err := c.placeholder(piece.text, inText); err != nil {
			return "", err
		}
	}
	return textType, nil
}

// placeholderError is an error of a placeholder, which stays one however the template is read.
type placeholderError struct{ error }

// errors of templates.
var (
	errKey    = placeholderError{errors.New("a placeholder cannot be the name of a member, nor a part of it")}
	errEscape = errors.New("a placeholder stands behind a backslash")
)

// jsonText compiles text that is JSON but for its placeholders. The text is kept as it is. What is written for a
// placeholder is a whole value, or characters inside a string, so if the text is JSON with a value and a character in
// their places, it is JSON with any.
func (c *compiler) jsonText(pieces []piece) error {
	c.fragments = nil
	var probe []byte
	var quoted, escaped, filled bool // inside a string; behind a backslash; the string, or value, has a placeholder
	for _, piece := range pieces {
		if piece.placeholder {
			where := inValue
			stand := "null"
			if quoted {
				where, stand = inString, "-"
			}
			if escaped {
				return errEscape
			}
			if err := c.placeholder(piece.text, where); err != nil {
				return placeholderError{err}
			}
			probe = append(probe, stand...)
			filled = true
			continue
		}
		for i := range len(piece.text) {
			switch b := piece.text[i]; {
			case escaped:
				escaped = false
			case quoted && b == '\\':
				escaped = true
			case b == '"':
				quoted = !quoted
				filled = filled && !quoted
			case quoted:
			case b == ':' && filled:
				return errKey
			case b != ' ' && b != '\n' && b != '\t' && b != '\r':
				filled = false
			}
		}
		c.literal(piece.text)
		probe = append(probe, piece.text...)
	}
	var doc document
	if _, err := doc.parse(probe); err != nil {
		if several(probe) {
			return errors.New(`several strings one behind the other are not JSON; write one string with \n in it`)
		}
		return fmt.Errorf("with its placeholders filled in, the template is %w", err)
	}
	return nil
}

// several reports whether b is a number of JSON strings, each on its own line.
func several(b []byte) bool {
	lines := bytes.Split(bytes.TrimSpace(b), []byte("\n"))
	for _, line := range lines {
		var doc document
		if i, err := doc.parse(line); err != nil || doc.nodes[i].kind != kindString {
			return false
		}
	}
	return len(lines) > 1
}

// scanDollar finds ${...}. $${ is a literal ${. A brace inside quotes does not end a placeholder.
func scanDollar(s string) ([]piece, error) {
	var pieces []piece
	literal := ""
	for {
		i := strings.Index(s, "${")
		if i < 0 {
			break
		}
		if i > 0 && s[i-1] == '$' {
			literal += s[:i-1] + "${"
			s = s[i+2:]
			continue
		}
		literal += s[:i]
		end := closingBrace(s[i+2:])
		if end < 0 {
			return nil, errors.New("a ${ is not closed by }; write $${ for one that is meant as text")
		}
		if literal != "" {
			pieces = append(pieces, piece{text: literal})
			literal = ""
		}
		pieces = append(pieces, piece{text: strings.TrimSpace(s[i+2 : i+2+end]), placeholder: true})
		s = s[i+2+end+1:]
	}
	if literal += s; literal != "" {
		pieces = append(pieces, piece{text: literal})
	}
	return pieces, nil
}

// closingBrace returns where the brace is that closes one before s, -1 if there is none. Braces in quotes, and pairs of
// them, as expressions have, are passed over.
func closingBrace(s string) int {
	var quote byte
	depth := 0
	for i := 0; i < len(s); i++ {
		switch b := s[i]; {
		case quote != 0 && quote != '`' && b == '\\':
			i++
		case quote != 0:
			if b == quote {
				quote = 0
			}
		case b == '\'' || b == '"' || b == '`':
			quote = b
		case b == '{':
			depth++
		case b == '}' && depth == 0:
			return i
		case b == '}':
			depth--
		}
	}
	return -1
}

// scanAngle finds <name>. A < that begins no name is text.
func scanAngle(s string) ([]piece, error) {
	var pieces []piece
	literal := ""
	for {
		i := strings.IndexByte(s, '<')
		if i < 0 {
			break
		}
		end := strings.IndexByte(s[i:], '>')
		if end < 0 || !isPlaceholder(s[i+1:i+end]) {
			literal += s[:i+1]
			s = s[i+1:]
			continue
		}
		if literal += s[:i]; literal != "" {
			pieces = append(pieces, piece{text: literal})
			literal = ""
		}
		pieces = append(pieces, piece{text: s[i+1 : i+end], placeholder: true})
		s = s[i+end+1:]
	}
	if literal += s; literal != "" {
		pieces = append(pieces, piece{text: literal})
	}
	return pieces, nil
}

// isPlaceholder reports whether s can stand between < and >.
func isPlaceholder(s string) bool {
	for _, r := range s {
		if (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '_' && r != '-' && r != '.' {
			return false
		}
	}
	return s != ""
}

// awsReference resolves the names of a template in the AWS form.
func awsReference(paths map[string]*path) func(string) (*reference, error) {
	return func(name string) (*reference, error) {
		if v, ok := awsVariables[name]; ok {
			return &reference{variable: v}, nil
		}
		if p, ok := paths[name]; ok {
			return &reference{path: p}, nil
		}
		var known []string
		for name := range paths {
			known = append(known, name)
		}
		for name := range awsVariables {
			known = append(known, name)
		}
		slices.Sort(known)
		if word := nearest(name, known); word != "" {
			return nil, fmt.Errorf("<%s> is not in paths; did you mean <%s>?", shorten(name, 60), word)
		}
		return nil, fmt.Errorf("<%s> is not in paths", shorten(name, 60))
	}
}

// parseReference reads the inside of ${...}: a variable, an attribute, a path below data, a JSONPath, or an expression.
func parseReference(s string) (*reference, error) {
	if v, ok := variables[s]; ok {
		return &reference{variable: v}, nil
	}
	switch {
	case s == "":
		return nil, errors.New("${} is empty; write an attribute or a path, such as ${subject} or ${data.temperature}")
	case strings.HasPrefix(s, "rialto."):
		return nil, fmt.Errorf("there is no ${%s}; there are ${rialto.rule}, ${rialto.bus}, ${rialto.received} and ${rialto.event}", shorten(s, 60))
	case s[0] != '$':
		translated, ok := translate(s)
		if !ok {
			return parseComputed(s)
		}
		s = translated
	}
	p, err := parsePath(s)
	if err != nil {
		return nil, err
	}
	return &reference{path: p}, nil
}

// parseComputed reads what is no path.
func parseComputed(s string) (*reference, error) {
	e, err := compileExpression(s, expr.AsAny())
	if err != nil {
		return nil, fmt.Errorf("${%s} is no path, such as data.items[0].name or the JSONPath $.data['name'], and no expression: %w", shorten(s, 60), err)
	}
	return &reference{expression: e}, nil
}

// translate turns data.items[0].name into a JSONPath. A name may hold a dash, so that a difference needs spaces.
func translate(s string) (string, bool) {
	var b strings.Builder
	b.WriteByte('$')
	for _, step := range strings.Split(s, ".") {
		name, index, indexed := strings.Cut(step, "[")
		if name == "" || indexed && index == "" || strings.ContainsAny(name, " \t\r\n$@?*+/%=<>!&|()[]{}\"'\\,:;`^#~") {
			return "", false
		}
		b.WriteString("[" + string(appendString(nil, name)) + "]")
		for index != "" {
			number, rest, ok := strings.Cut(index, "]")
			n, err := strconv.Atoi(number)
			if !ok || err != nil || rest != "" && (rest[0] != '[' || rest == "[") {
				return "", false
			}
			b.WriteString("[" + strconv.Itoa(n) + "]")
			index = strings.TrimPrefix(rest, "[")
		}
	}
	return b.String(), !isNumberLike(s)
}

// isNumberLike tells 1.5, which is a number, from a path.
func isNumberLike(s string) bool { return '0' <= s[0] && s[0] <= '9' || s[0] == '-' }
