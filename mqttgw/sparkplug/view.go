// SPDX-License-Identifier: Apache-2.0

package sparkplug

import "github.com/rialto-bridge/rialto/internal/event"

// ErrorAttribute is the extension in which View says why it could not make JSON of a payload.
const ErrorAttribute = "sparkplugerror"

// View is the record as rules, targets and readers see it. Where Origin.Sparkplug is set its data is JSON (AppendJSON) instead
// of the payload, and it has no dataschema, which was one of the payload. A payload that cannot be decoded stays as it is, and
// ErrorAttribute says why. Any other record is returned as it is. The original is never changed.
func View(r *event.Record) *event.Record {
	if r.MQTT == nil || r.MQTT.Sparkplug == nil {
		return r
	}
	out, origin := *r, *r.MQTT
	names := origin.Sparkplug
	origin.Sparkplug = nil
	out.MQTT = &origin
	t, ok := ParseTopic(origin.Topic)
	if !ok {
		return &out
	}
	data, err := AppendJSON(make([]byte, 0, 256+4*len(r.Event.Data)), t, r.Event.Data, names)
	if err != nil {
		out.Event.Extensions = withError(r.Event.Extensions, err)
		return &out
	}
	out.Event.Data, out.Event.DataContentType, out.Event.DataSchema = data, "application/json", ""
	return &out
}

// maxError bounds the text of ErrorAttribute.
const maxError = 256

// withError adds the attribute at its place; one of that name that was published gives way.
func withError(x []event.Attribute, err error) []event.Attribute {
	text := []rune(err.Error())
	why := event.Attribute{Name: ErrorAttribute, Value: string(text[:min(len(text), maxError)])}
	out := make([]event.Attribute, 0, len(x)+1)
	for _, a := range x {
		if a.Name < ErrorAttribute {
			out = append(out, a)
		}
	}
	out = append(out, why)
	for _, a := range x {
		if a.Name > ErrorAttribute {
			out = append(out, a)
		}
	}
	return out
}
