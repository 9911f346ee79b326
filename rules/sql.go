// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/antlr/antlr4/runtime/Go/antlr"
	cesql "github.com/cloudevents/sdk-go/sql/v2"
	"github.com/cloudevents/sdk-go/sql/v2/gen"
	"github.com/cloudevents/sdk-go/sql/v2/parser"
	cloudevents "github.com/cloudevents/sdk-go/v2/event"
	cetypes "github.com/cloudevents/sdk-go/v2/types"

	"github.com/rialto-bridge/rialto/internal/event"
)

// Query is a compiled CESQL expression (CloudEvents SQL Expression Language 1.0), which looks at attributes only. It is
// immutable and safe for concurrent use.
type Query struct {
	source     string
	expression cesql.Expression
}

// String returns the text of the query.
func (q *Query) String() string { return q.source }

// ParseSQL compiles the sql of a rule.
func ParseSQL(source string) (*Query, error) {
	if strings.TrimSpace(source) == "" {
		return nil, errors.New("the query is empty; write a condition such as subject LIKE 'truck/%'")
	}
	if len(source) > MaxExpression {
		return nil, fmt.Errorf("the query has %d bytes; at most %d are allowed", len(source), MaxExpression)
	}
	if depth := nesting(source); depth > maxSQLDepth {
		return nil, fmt.Errorf("the query is nested deeper than %d", maxSQLDepth)
	}
	if err := checkTokens(source); err != nil {
		return nil, err
	}
	expression, err := parseSQL(source)
	if err != nil {
		return nil, err
	}
	return &Query{source, expression}, nil
}

// maxSQLDepth bounds parentheses, which the parser recurses for.
const maxSQLDepth = 50

func nesting(source string) int {
	depth, deepest := 0, 0
	for _, c := range []byte(source) {
		switch c {
		case '(':
			depth++
			deepest = max(deepest, depth)
		case ')':
			depth--
		}
	}
	return deepest
}

// checkTokens refuses what is no token. The module writes such things to standard error and goes on without them.
func checkTokens(source string) error {
	lexer := gen.NewCESQLParserLexer(parser.NewCaseChangingStream(antlr.NewInputStream(source), true))
	lexer.RemoveErrorListeners()
	var found tokenErrors
	lexer.AddErrorListener(&found)
	for lexer.NextToken().GetTokenType() != antlr.TokenEOF {
		if len(found.columns) > 0 {
			return fmt.Errorf("not CESQL at column %d", found.columns[0]+1)
		}
	}
	if len(found.columns) > 0 {
		return fmt.Errorf("not CESQL at column %d", found.columns[0]+1)
	}
	return nil
}

type tokenErrors struct {
	antlr.DefaultErrorListener
	columns []int
}

// SyntaxError is called by the lexer.
func (e *tokenErrors) SyntaxError(_ antlr.Recognizer, _ any, _, column int, _ string, _ antlr.RecognitionException) {
	e.columns = append(e.columns, column)
}

// parseSQL calls the module, which panics on some texts that are no queries.
func parseSQL(source string) (expression cesql.Expression, err error) {
	defer func() {
		if r := recover(); r != nil {
			expression, err = nil, errors.New("not CESQL")
		}
	}()
	expression, err = parser.Parse(source)
	if err != nil {
		return nil, fmt.Errorf("not CESQL: %s", shorten(strings.Join(strings.Fields(err.Error()), " "), 300))
	}
	if expression == nil {
		return nil, errors.New("not CESQL")
	}
	return expression, nil
}

// evaluate returns the result of the query on an event: an int32, a bool or a string.
func (q *Query) evaluate(ev *event.Event) (result any, err error) {
	defer func() {
		if r := recover(); r != nil {
			result, err = nil, fmt.Errorf("it cannot be evaluated: %v", r)
		}
	}()
	result, err = q.expression.Evaluate(forSQL(ev))
	if err != nil {
		return nil, errors.New(shorten(strings.Join(strings.Fields(err.Error()), " "), 300))
	}
	return result, nil
}

// holds reports whether the query results in true. A result that is not true or false is an error.
func (q *Query) holds(ev *event.Event) (bool, error) {
	result, err := q.evaluate(ev)
	if err != nil {
		return false, err
	}
	if holds, ok := result.(bool); ok {
		return holds, nil
	}
	return false, fmt.Errorf("it results in %v, not in true or false", shorten(fmt.Sprint(result), 80))
}

// forSQL is the event as the module wants it, without its data. URIs are kept as they are written.
func forSQL(ev *event.Event) cloudevents.Event {
	c := &cloudevents.EventContextV1{ID: ev.ID, Type: ev.Type, Source: cetypes.URIRef{URL: url.URL{Opaque: ev.Source}}}
	if ev.Subject != "" {
		c.Subject = &ev.Subject
	}
	if ev.DataContentType != "" {
		c.DataContentType = &ev.DataContentType
	}
	if ev.DataSchema != "" {
		c.DataSchema = &cetypes.URI{URL: url.URL{Opaque: ev.DataSchema}}
	}
	if !ev.Time.IsZero() {
		c.Time = &cetypes.Timestamp{Time: ev.Time}
	}
	if len(ev.Extensions) > 0 {
		c.Extensions = make(map[string]any, len(ev.Extensions))
		for _, a := range ev.Extensions {
			if !slices.Contains(attributeNames, a.Name) {
				c.Extensions[a.Name] = a.Value
			}
		}
	}
	return cloudevents.Event{Context: c}
}

// attributesOf lists the names in a query that are not those of functions, each once.
func attributesOf(source string) []string {
	lexer := gen.NewCESQLParserLexer(parser.NewCaseChangingStream(antlr.NewInputStream(source), true))
	lexer.RemoveErrorListeners()
	var names []string
	last := ""
	for {
		t := lexer.NextToken()
		kind := t.GetTokenType()
		if last != "" && kind != gen.CESQLParserLexerLR_BRACKET && !slices.Contains(names, last) {
			names = append(names, last)
		}
		switch kind {
		case antlr.TokenEOF:
			return names
		case gen.CESQLParserLexerIDENTIFIER, gen.CESQLParserLexerIDENTIFIER_WITH_NUMBER:
			last = t.GetText()
		default:
			last = ""
		}
	}
}
