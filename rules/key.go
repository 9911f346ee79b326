// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"strconv"

	"github.com/expr-lang/expr"

	"github.com/rialto-bridge/rialto/internal/event"
)

// ParseKey compiles an expression that says which events belong together: those with the same result.
func ParseKey(source string) (*Expression, error) { return compileExpression(source, expr.AsAny()) }

// Key evaluates e and returns what it results in as text. It is "" where e fails, or results in something else than a text,
// a number or a boolean: such an event belongs to no other.
func (e *Expression) Key(ev *event.Event) string {
	var n evaluation
	v, err := n.run(e, ev)
	if err != nil {
		return ""
	}
	switch v := v.(type) {
	case string:
		return v
	case bool:
		return strconv.FormatBool(v)
	case int:
		return strconv.Itoa(v)
	case int32:
		return strconv.Itoa(int(v))
	case int64:
		return strconv.FormatInt(v, 10)
	case float64:
		return strconv.FormatFloat(v, 'g', -1, 64)
	}
	return ""
}
