// SPDX-License-Identifier: Apache-2.0

package schema

import (
	"errors"
	"fmt"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"

	"github.com/rialto-bridge/rialto/internal/fault"
)

// Validate checks a document that Decode has read against a JSON Schema: nil, or an Invalid error with a pointer into
// the document for each complaint, twenty at most. What the document holds is not repeated, names of members apart.
// Avro and Protobuf documents are not JSON: Validate refuses with Unsupported.
func (c *Compiled) Validate(doc any) error {
	if c.json == nil {
		return fault.New(fault.Unsupported, "%s schemas do not validate JSON documents", c.Format)
	}
	if d := c.json.deepest; d > 0 && depthOf(doc) > d {
		return fault.Invalidf("", "is nested deeper than the %d levels to which this schema can be checked", d)
	}
	err := c.json.root.Validate(doc)
	if err == nil {
		return nil
	}
	var v *jsonschema.ValidationError
	if !errors.As(err, &v) {
		return &fault.Error{Kind: fault.Invalid, Message: "invalid", Err: err}
	}
	return &fault.Error{Kind: fault.Invalid, Message: "does not fit its schema", Details: sorted(complaints(v))}
}

// ValidateJSON is Decode and Validate. It costs much less than these where the document is valid and the schema has none but
// the usual keywords.
func (c *Compiled) ValidateJSON(doc []byte) error {
	if c.json != nil && c.json.quick != nil && c.json.quick.fits(doc) {
		return nil
	}
	v, err := Decode(doc)
	if err != nil {
		return err
	}
	return c.Validate(v)
}

// complaints lists the leaves of an error. Of a union whose branches all failed only that is said.
func complaints(v *jsonschema.ValidationError) []fault.Detail {
	if detail := complaint(v.ErrorKind); detail != "" {
		at := ""
		for _, p := range v.InstanceLocation {
			at += fault.Pointer(p)
		}
		return []fault.Detail{{Pointer: at, Detail: detail}}
	}
	var out []fault.Detail
	for _, cause := range v.Causes {
		if len(out) > 10*maxComplaints {
			break
		}
		out = append(out, complaints(cause)...)
	}
	return out
}

// complaint says what is wrong and what is allowed; "" where the causes say it better.
func complaint(k jsonschema.ErrorKind) string {
	switch k := k.(type) {
	case *kind.Type:
		return "must be " + strings.Join(k.Want, " or ") + ", and is " + k.Got
	case *kind.Enum:
		return "must be one of the values of the enum"
	case *kind.Const:
		return "must be the value of the const"
	case *kind.Format:
		if k.Want == "regex" {
			return "must be a regular expression as RE2 has them: without look-around and back references"
		}
		return "must be in the format " + k.Want
	case *kind.Required:
		return "lacks " + quoted(k.Missing)
	case *kind.Dependency:
		return fmt.Sprintf("has %q and lacks %s", k.Prop, quoted(k.Missing))
	case *kind.DependentRequired:
		return fmt.Sprintf("has %q and lacks %s", k.Prop, quoted(k.Missing))
	case *kind.AdditionalProperties:
		return "has members that are not allowed: " + quoted(k.Properties)
	case *kind.AdditionalItems:
		return fmt.Sprintf("has %d items too many", k.Count)
	case *kind.MinProperties:
		return fmt.Sprintf("must have at least %d members", k.Want)
	case *kind.MaxProperties:
		return fmt.Sprintf("must have at most %d members", k.Want)
	case *kind.MinItems:
		return fmt.Sprintf("must have at least %d items", k.Want)
	case *kind.MaxItems:
		return fmt.Sprintf("must have at most %d items", k.Want)
	case *kind.MinLength:
		return fmt.Sprintf("must have at least %d characters", k.Want)
	case *kind.MaxLength:
		return fmt.Sprintf("must have at most %d characters", k.Want)
	}
	return rarer(k)
}

// rarer is complaint for what is less common.
func rarer(k jsonschema.ErrorKind) string {
	switch k := k.(type) {
	case *kind.Pattern:
		return "must match " + k.Want
	case *kind.Minimum:
		return "must be at least " + k.Want.RatString()
	case *kind.Maximum:
		return "must be at most " + k.Want.RatString()
	case *kind.ExclusiveMinimum:
		return "must be more than " + k.Want.RatString()
	case *kind.ExclusiveMaximum:
		return "must be less than " + k.Want.RatString()
	case *kind.MultipleOf:
		return "must be a multiple of " + k.Want.RatString()
	case *kind.UniqueItems:
		return fmt.Sprintf("has equal items, %d and %d", k.Duplicates[0], k.Duplicates[1])
	case *kind.Contains:
		return "must have an item that the schema asks for"
	case *kind.MinContains:
		return fmt.Sprintf("must have at least %d items that the schema asks for", k.Want)
	case *kind.MaxContains:
		return fmt.Sprintf("must have at most %d items that the schema asks for", k.Want)
	case *kind.FalseSchema:
		return "is not allowed here"
	case *kind.Not:
		return "is what the schema excludes"
	case *kind.AnyOf:
		return "fits none of the schemas of anyOf"
	case *kind.OneOf:
		if len(k.Subschemas) == 0 {
			return "fits none of the schemas of oneOf"
		}
		return fmt.Sprintf("fits two schemas of oneOf, %d and %d", k.Subschemas[0], k.Subschemas[1])
	case *kind.PropertyNames:
		return fmt.Sprintf("has the member %q, whose name is not allowed", k.Property)
	case *kind.RefCycle:
		return "cannot be checked: the schema refers to itself"
	case *kind.InvalidJsonValue:
		return "is no JSON value"
	}
	return ""
}

func quoted(names []string) string {
	var b strings.Builder
	for i, n := range names {
		if i == 10 {
			return fmt.Sprintf("%s and %d more", b.String(), len(names)-i)
		}
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%q", clip(n))
	}
	return b.String()
}
