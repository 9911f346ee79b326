// SPDX-License-Identifier: Apache-2.0

package http

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/theory/jsonpath"

	"github.com/rialto-bridge/rialto/targets"
	"github.com/rialto-bridge/rialto/targets/outbound"
)

// answerConfig says what an answer must say.
type answerConfig struct {
	Path      string          `json:"path"`
	Equals    json.RawMessage `json:"equals"`
	Permanent json.RawMessage `json:"permanent"`
}

// answer looks at what an answer says.
type answer struct {
	path              *jsonpath.Path
	source            string
	equals, permanent []any
}

// maxAnswer is how much of an answer is read, in bytes.
const maxAnswer = 64 << 10

func (r *reader) readAnswer(c *answerConfig) {
	r.terms.MaxBody = maxAnswer
	p, err := jsonpath.Parse(c.Path)
	switch {
	case err != nil:
		r.Complain("/answer/path", "not a JSONPath: %s", strings.TrimPrefix(err.Error(), "jsonpath: "))
	case p.Query().Singular() == nil:
		r.Complain("/answer/path", "may lead to more than one value; write one such as $.code or $.result[0].status")
	}
	r.answer = &answer{path: p, source: c.Path, equals: valuesOf(c.Equals), permanent: valuesOf(c.Permanent)}
	for _, v := range r.answer.permanent {
		if slices.Contains(r.answer.equals, v) {
			r.Complain("/answer/permanent", "has a value that stands in equals, too")
		}
	}
}

// valuesOf reads a scalar or a list of them. The schema has checked that it is one.
func valuesOf(raw json.RawMessage) []any {
	var v any
	if len(raw) == 0 || json.Unmarshal(raw, &v) != nil {
		return nil
	}
	if list, ok := v.([]any); ok {
		return list
	}
	return []any{v}
}

// judge returns nil for an answer that accepts. What it says otherwise may be different the next time, unless the config knows
// better.
func (a *answer) judge(ans *outbound.Answer) *targets.Error {
	refused := func(reason targets.Reason, err error) *targets.Error { return &targets.Error{Reason: reason, Err: err} }
	if ans.Cut {
		return refused(targets.ReasonProtocol, fmt.Errorf("the answer is longer than %d bytes, which is too long to look for %s in", maxAnswer, a.source))
	}
	var doc any
	if json.Unmarshal(bytes.TrimPrefix(ans.Body, []byte("\ufeff")), &doc) != nil {
		return refused(targets.ReasonProtocol, errors.New("the answer is not JSON, and should say at "+a.source+" whether it accepts"))
	}
	found := a.path.Select(doc)
	if len(found) == 0 {
		return refused(targets.ReasonProtocol, errors.New("the answer has nothing at "+a.source+", where it should say whether it accepts"))
	}
	switch found[0].(type) {
	case map[string]any, []any: // which equal nothing, and cannot be compared
		return refused(targets.ReasonStatus, errors.New("the answer has an object or a list at "+a.source))
	}
	if slices.Contains(a.equals, found[0]) {
		return nil
	}
	text, err := json.Marshal(found[0])
	if err != nil {
		text = []byte("something else")
	}
	e := refused(targets.ReasonStatus, errors.New("the answer says "+a.source+" = "+ans.Clean(text, maxQuoted)))
	e.Permanent = slices.Contains(a.permanent, found[0])
	return e
}

// maxQuoted is how much of a value an error repeats, in bytes.
const maxQuoted = 100
