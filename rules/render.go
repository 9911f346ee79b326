// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
)

// render fills the template in.
func (t *template) render(ev *event.Event, rc RenderContext) ([]byte, error) {
	v, err := newView(ev, rc)
	if err != nil {
		return nil, err
	}
	dst := make([]byte, 0, 256)
	for _, s := range t.fragments {
		if s.reference == nil {
			dst = append(dst, s.literal...)
		} else if dst, err = v.appendReference(dst, s.reference, s.context); err != nil {
			return nil, err
		}
		if len(dst) > MaxOutput {
			return nil, errOutput
		}
	}
	return dst, nil
}

// appendReference appends what a placeholder stands for, as its context wants it.
func (v *view) appendReference(dst []byte, r *reference, where context) ([]byte, error) {
	if r.path != nil && !r.path.definite {
		list, err := v.appendPath(nil, r.path)
		if err != nil {
			return nil, err
		}
		return appendValue(dst, where, kindArray, nil, list), nil
	}
	if r.expression != nil {
		return v.appendComputed(dst, r.expression, where)
	}
	if r.path != nil {
		nodes := r.path.selectFrom(v)
		if len(nodes) == 0 {
			return appendAbsent(dst, where), nil
		}
		n := &v.doc.nodes[nodes[0]]
		return appendValue(dst, where, n.kind, n.text, v.raw(nodes[0])), nil
	}
	if r.secret != "" {
		return appendValue(dst, where, kindString, []byte(v.secrets[r.secret]), nil), nil
	}
	switch r.variable {
	case varEvent:
		return appendValue(dst, where, kindObject, nil, v.form), nil
	case varAttributes:
		return appendValue(dst, where, kindObject, nil, v.attributes()), nil
	case varReceived:
		if v.context.Received.IsZero() {
			return appendAbsent(dst, where), nil
		}
		return appendValue(dst, where, kindString, appendTime(nil, v.context.Received.UTC()), nil), nil
	case varRule:
		return appendValue(dst, where, kindString, []byte(v.context.Rule), nil), nil
	case varBus:
		return appendValue(dst, where, kindString, []byte(v.context.Bus), nil), nil
	}
	return appendValue(dst, where, kindString, []byte("urn:rialto:rule:"+v.context.Bus+":"+v.context.Rule), nil), nil
}

// appendComputed appends what an expression results in.
func (v *view) appendComputed(dst []byte, e *Expression, where context) ([]byte, error) {
	result, err := v.evaluation.run(e, v.event)
	if err != nil {
		return nil, fmt.Errorf("${%s}: %w", shorten(e.source, 80), err)
	}
	switch x := result.(type) {
	case nil:
		return appendAbsent(dst, where), nil
	case string:
		return appendValue(dst, where, kindString, []byte(x), nil), nil
	case time.Time:
		if x.IsZero() {
			return appendAbsent(dst, where), nil
		}
		return appendValue(dst, where, kindString, appendTime(nil, x), nil), nil
	case time.Duration:
		return appendValue(dst, where, kindString, []byte(x.String()), nil), nil
	}
	var b bytes.Buffer
	encoder := json.NewEncoder(&b) // which sorts the names of maps
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(result); err != nil {
		return nil, fmt.Errorf("${%s} results in what is no JSON value, such as a division by zero", shorten(e.source, 80))
	}
	return appendValue(dst, where, kindObject, nil, bytes.TrimRight(b.Bytes(), "\n")), nil
}

// attributes is the JSON form without the payload.
func (v *view) attributes() []byte {
	dst := []byte{'{'}
	v.doc.children(0, func(_ int, i int32) {
		key := string(v.doc.nodes[i].key)
		if key == dataName || key == "data_base64" {
			return
		}
		if len(dst) > 1 {
			dst = append(dst, ',')
		}
		dst = append(append(appendString(dst, key), ':'), v.raw(i)...)
	})
	return append(dst, '}')
}

func appendAbsent(dst []byte, where context) []byte {
	if where == inValue {
		return append(dst, "null"...)
	}
	return dst
}

// appendValue appends a value: a string is given as its decoded text, everything else as its JSON.
func appendValue(dst []byte, where context, k kind, decoded, raw []byte) []byte {
	switch {
	case where == inValue && k == kindString:
		return appendString(dst, decoded)
	case where == inValue:
		return append(dst, raw...)
	case k == kindString:
		raw = decoded
	}
	if where == inString {
		return appendEscaped(dst, raw)
	}
	return appendIn(dst, raw, where)
}
