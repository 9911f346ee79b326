// SPDX-License-Identifier: Apache-2.0

package sparkplug

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"
)

// AppendJSON appends a payload that was published to a topic as a JSON object; names are what Names made of it. Its members:
// message, group, node and device of the topic; timestamp, seq, uuid and body (base64) of the payload; and the metrics:
//
//   - metrics, an object by name. Where a payload has several values of one metric, the last that is not historical stands
//     there, or the last if all are;
//   - earlier, a list of the others in their order, each with its name;
//   - unresolved, a list of metrics whose name is not known, each with its alias.
//
// A metric has value, type, timestamp (milliseconds since 1970), and where they are there alias, isHistorical, isTransient
// and isNull (true), metadata and properties. The error says why there is nothing to append; it holds nothing of the payload
// but the name of a metric.
func AppendJSON(dst []byte, t Topic, data, names []byte) ([]byte, error) {
	p, err := parsePayload(data)
	if err == nil {
		err = p.complete(names)
	}
	if err != nil {
		return dst, err
	}
	e := encoder{b: append(dst, `{"message":`...), most: len(dst) + MaxJSON, metrics: len(p.metrics)}
	e.text(t.Message)
	e.member("group")
	e.text(t.Group)
	e.member("node")
	e.text(t.Node)
	if t.Device != "" {
		e.member("device")
		e.text(t.Device)
	}
	if p.hasTimestamp {
		e.member("timestamp")
		e.unsigned(p.timestamp)
	}
	if p.hasSeq {
		e.member("seq")
		e.unsigned(p.seq)
	}
	if p.uuid != "" {
		e.member("uuid")
		e.text(p.uuid)
	}
	if p.body != nil {
		e.member("body")
		e.binary(p.body)
	}
	e.b = append(e.b, ',')
	if err := e.all(p.metrics, 0); err != nil {
		return dst, err
	}
	if e.b = append(e.b, '}'); len(e.b) > e.most {
		return dst, errJSON
	}
	return e.b, nil
}

// encoder makes JSON of the parts of a payload.
type encoder struct {
	b       []byte
	most    int // of b
	metrics int // of the payload, so far
}

func (e *encoder) full() error {
	if len(e.b) > e.most {
		return errJSON
	}
	return nil
}

// member begins another member of an object.
func (e *encoder) member(name string) {
	e.b = append(e.b, ',')
	e.name(name)
}

func (e *encoder) name(name string) {
	e.text(name)
	e.b = append(e.b, ':')
}

func (e *encoder) text(s string) {
	if isPlain(s) {
		e.b = append(append(append(e.b, '"'), s...), '"')
		return
	}
	quoted, err := json.Marshal(s)
	if err != nil {
		panic(err) // a string has no way to fail
	}
	e.b = append(e.b, quoted...)
}

// isPlain reports whether nothing in s needs an escape.
func isPlain(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}

func (e *encoder) unsigned(n uint64) { e.b = strconv.AppendUint(e.b, n, 10) }

func (e *encoder) binary(b []byte) {
	e.b = append(e.b, '"')
	e.b = append(base64.StdEncoding.AppendEncode(e.b, b), '"')
}

// list writes n elements with commas between them.
func (e *encoder) list(n int, element func(i int) error) error {
	e.b = append(e.b, '[')
	for i := range n {
		if i > 0 {
			e.b = append(e.b, ',')
		}
		if err := element(i); err != nil {
			return err
		}
		if err := e.full(); err != nil {
			return err
		}
	}
	e.b = append(e.b, ']')
	return nil
}

// all writes the members metrics, earlier and unresolved.
func (e *encoder) all(metrics []metric, depth int) error {
	current := make(map[string]int, len(metrics)) // which value of a name stands in metrics
	for i := range metrics {
		m := &metrics[i]
		if !m.named {
			continue
		}
		if at, ok := current[string(m.name)]; !ok || !m.historical || metrics[at].historical {
			current[string(m.name)] = i
		}
	}
	var earlier, unresolved []int
	e.b = append(e.b, `"metrics":{`...)
	first := true
	for i := range metrics {
		m := &metrics[i]
		switch {
		case !m.named:
			unresolved = append(unresolved, i)
			continue
		case current[string(m.name)] != i:
			earlier = append(earlier, i)
			continue
		}
		if !first {
			e.b = append(e.b, ',')
		}
		first = false
		e.name(string(m.name))
		e.b = append(e.b, '{')
		if err := e.metric(m, depth); err != nil {
			return err
		}
	}
	e.b = append(e.b, '}')
	if err := e.others("earlier", metrics, earlier, depth); err != nil {
		return err
	}
	return e.others("unresolved", metrics, unresolved, depth)
}

// others writes a list of metrics, if there are any.
func (e *encoder) others(member string, metrics []metric, places []int, depth int) error {
	if len(places) == 0 {
		return nil
	}
	e.member(member)
	return e.list(len(places), func(i int) error {
		m := &metrics[places[i]]
		e.b = append(e.b, '{')
		if m.named {
			e.name("name")
			e.text(string(m.name))
			e.b = append(e.b, ',')
		}
		return e.metric(m, depth)
	})
}

// metric writes the members of a metric, and the end of its object.
func (e *encoder) metric(m *metric, depth int) error {
	if err := e.full(); err != nil {
		return err
	}
	from := len(e.b)
	if m.null {
		e.b = append(e.b, `,"value":null,"isNull":true`...)
	} else if m.value.kind != noValue {
		e.member("value")
		if err := e.value(m.value, m.datatype, depth); err != nil {
			return fmt.Errorf("metric %q: %w", m.name, err)
		}
	}
	if m.datatype != 0 {
		e.member("type")
		e.text(typeName(m.datatype))
	}
	if m.hasTimestamp {
		e.member("timestamp")
		e.unsigned(m.timestamp)
	}
	if m.hasAlias {
		e.member("alias")
		e.unsigned(m.alias)
	}
	if m.historical {
		e.b = append(e.b, `,"isHistorical":true`...)
	}
	if m.transient {
		e.b = append(e.b, `,"isTransient":true`...)
	}
	if m.hasMetadata {
		e.member("metadata")
		if err := e.metadata(m.metadata); err != nil {
			return err
		}
	}
	if m.hasProperties {
		e.member("properties")
		if err := e.propertySet(m.properties, depth); err != nil {
			return err
		}
	}
	e.close(from, '}')
	return nil
}

// metadata writes the message MetaData.
func (e *encoder) metadata(b []byte) error {
	e.b = append(e.b, '{')
	from := len(e.b)
	err := each(b, func(f field) error {
		switch {
		case f.is(1, protowire.VarintType):
			e.member("isMultiPart")
			e.b = strconv.AppendBool(e.b, f.n != 0)
		case f.is(3, protowire.VarintType):
			e.member("size")
			e.unsigned(f.n)
		case f.is(4, protowire.VarintType):
			e.member("seq")
			e.unsigned(f.n)
		case f.typ == protowire.BytesType && metadataTexts[f.num] != "":
			e.member(metadataTexts[f.num])
			e.text(string(f.b))
		}
		return e.full()
	})
	e.close(from, '}')
	return err
}

var metadataTexts = map[protowire.Number]string{2: "contentType", 5: "fileName", 6: "fileType", 7: "md5", 8: "description"}

// close ends an object or list whose members, from an offset on, have a comma before each.
func (e *encoder) close(from int, end byte) {
	if len(e.b) > from {
		e.b = append(e.b[:from], e.b[from+1:]...)
	}
	e.b = append(e.b, end)
}
