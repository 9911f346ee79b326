// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// replaced are functions of the expression language whose own form has a random order, or a result or a cost without bounds.
var replaced = map[string]func(params ...any) (any, error){
	"keys":    sortedKeys,
	"values":  sortedValues,
	"replace": boundedReplace,
	"repeat":  boundedRepeat,
	"join":    boundedJoin,
	"uniq":    linearUniq,
	"flatten": linearFlatten,
}

// maxBuilt is the longest text that one function may make, in bytes.
const maxBuilt = 1 << 20

func object(name string, params []any) (map[string]any, error) {
	if len(params) == 1 {
		if m, ok := params[0].(map[string]any); ok {
			return m, nil
		}
	}
	return nil, fmt.Errorf("%s takes one object", name)
}

// sortedKeys returns the names of an object's members in the order of their bytes.
func sortedKeys(params ...any) (any, error) {
	m, err := object("keys", params)
	if err != nil {
		return nil, err
	}
	keys := []any{}
	for _, key := range slices.Sorted(maps.Keys(m)) {
		keys = append(keys, key)
	}
	return keys, nil
}

// sortedValues returns the values of an object in the order of their names.
func sortedValues(params ...any) (any, error) {
	m, err := object("values", params)
	if err != nil {
		return nil, err
	}
	values := []any{}
	for _, key := range slices.Sorted(maps.Keys(m)) {
		values = append(values, m[key])
	}
	return values, nil
}

// boundedReplace replaces all occurrences, or the first n.
func boundedReplace(params ...any) (any, error) {
	if len(params) != 3 && len(params) != 4 {
		return nil, fmt.Errorf("replace takes a text, what to replace, with what, and perhaps how often")
	}
	var texts [3]string
	for i := range texts {
		s, ok := params[i].(string)
		if !ok {
			return nil, fmt.Errorf("replace takes texts, this is %s", kindOfNative(params[i]))
		}
		texts[i] = s
	}
	n := -1
	if len(params) == 4 {
		var ok bool
		if n, ok = params[3].(int); !ok {
			return nil, fmt.Errorf("how often to replace is %s", kindOfNative(params[3]))
		}
	}
	count := strings.Count(texts[0], texts[1])
	if n >= 0 {
		count = min(count, n)
	}
	if len(texts[0])+count*max(0, len(texts[2])-len(texts[1])) > maxBuilt {
		return nil, errText
	}
	return strings.Replace(texts[0], texts[1], texts[2], n), nil
}

func boundedRepeat(params ...any) (any, error) {
	if len(params) == 2 {
		s, isText := params[0].(string)
		n, isInt := params[1].(int)
		switch {
		case !isText || !isInt || n < 0:
		case n > maxBuilt || len(s)*n > maxBuilt:
			return nil, errText
		default:
			return strings.Repeat(s, n), nil
		}
	}
	return nil, fmt.Errorf("repeat takes a text and how often")
}

// boundedJoin joins a list of texts.
func boundedJoin(params ...any) (any, error) {
	if len(params) != 1 && len(params) != 2 {
		return nil, fmt.Errorf("join takes a list of texts, and perhaps what to write between them")
	}
	glue := ""
	if len(params) == 2 {
		var ok bool
		if glue, ok = params[1].(string); !ok {
			return nil, fmt.Errorf("join writes a text between texts, this is %s", kindOfNative(params[1]))
		}
	}
	list := reflect.ValueOf(params[0])
	if list.Kind() != reflect.Slice {
		return nil, fmt.Errorf("join takes a list of texts, this is %s", kindOfNative(params[0]))
	}
	var b strings.Builder
	for i := range list.Len() {
		s, ok := list.Index(i).Interface().(string)
		switch {
		case !ok:
			return nil, fmt.Errorf("join takes texts; element %d is %s", i, kindOfNative(list.Index(i).Interface()))
		case i > 0:
			b.WriteString(glue)
		}
		if b.WriteString(s); b.Len() > maxBuilt {
			return nil, errText
		}
	}
	return b.String(), nil
}

// linearUniq returns the elements of a list without those that are equal to one before. The language's own compares each with all
// of them.
func linearUniq(params ...any) (any, error) {
	if len(params) != 1 {
		return nil, fmt.Errorf("uniq takes one list")
	}
	list := reflect.ValueOf(params[0])
	if list.Kind() != reflect.Slice {
		return nil, fmt.Errorf("uniq takes a list, this is %s", kindOfNative(params[0]))
	}
	seen, out := map[string]bool{}, []any{}
	var key []byte
	for i := range list.Len() {
		v := list.Index(i).Interface()
		if key = appendIdentity(key[:0], v); !seen[string(key)] {
			seen[string(key)] = true
			out = append(out, v)
		}
	}
	return out, nil
}

// linearFlatten returns the elements of a list and of all lists in it. The language's own copies what is inside once for each level.
func linearFlatten(params ...any) (any, error) {
	if len(params) != 1 {
		return nil, fmt.Errorf("flatten takes one list")
	}
	list := reflect.ValueOf(params[0])
	if list.Kind() != reflect.Slice {
		return nil, fmt.Errorf("flatten takes a list, this is %s", kindOfNative(params[0]))
	}
	out, err := appendFlat([]any{}, list)
	if err != nil {
		return nil, err
	}
	return out, nil
}

func appendFlat(dst []any, list reflect.Value) (_ []any, err error) {
	for i := range list.Len() {
		v := list.Index(i).Interface()
		if inner := reflect.ValueOf(v); inner.Kind() == reflect.Slice {
			if dst, err = appendFlat(dst, inner); err != nil {
				return nil, err
			}
			continue
		}
		if dst = append(dst, v); len(dst) > maxMemoryUnits {
			return nil, errList
		}
	}
	return dst, nil
}

// appendIdentity appends what is the same for values that are equal, and for no others. Numbers are equal by their value.
func appendIdentity(dst []byte, v any) []byte {
	switch v := v.(type) {
	case nil:
		return append(dst, "null"...)
	case string:
		return appendString(dst, v)
	case float64:
		if v == math.Trunc(v) && math.Abs(v) < 1<<63 {
			return strconv.AppendInt(dst, int64(v), 10)
		}
		return strconv.AppendFloat(dst, v, 'g', -1, 64)
	case time.Time:
		return v.UTC().AppendFormat(append(dst, "time "...), time.RFC3339Nano)
	case map[string]any:
		dst = append(dst, '{')
		for _, name := range slices.Sorted(maps.Keys(v)) {
			dst = append(appendIdentity(append(appendString(dst, name), ':'), v[name]), ',')
		}
		return append(dst, '}')
	}
	switch list := reflect.ValueOf(v); {
	case list.Kind() == reflect.Slice:
		dst = append(dst, '[')
		for i := range list.Len() {
			dst = append(appendIdentity(dst, list.Index(i).Interface()), ',')
		}
		return append(dst, ']')
	case list.Kind() == reflect.Int64 && list.Type() == reflect.TypeFor[time.Duration]():
		return fmt.Append(append(dst, "duration "...), v)
	default: // whole numbers, true and false
		return fmt.Append(dst, v)
	}
}
