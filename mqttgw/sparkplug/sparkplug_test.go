// SPDX-License-Identifier: Apache-2.0

package sparkplug_test

import (
	"encoding/json"
	"fmt"
	"math"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/mqttgw/sparkplug"
)

// message is a protobuf message that is being made.
type message []byte

func (m message) num(n protowire.Number, v uint64) message {
	return protowire.AppendVarint(protowire.AppendTag(m, n, protowire.VarintType), v)
}

func (m message) text(n protowire.Number, s string) message {
	return protowire.AppendString(protowire.AppendTag(m, n, protowire.BytesType), s)
}

func (m message) sub(n protowire.Number, s message) message { return m.text(n, string(s)) }

func (m message) float(n protowire.Number, f float32) message {
	return protowire.AppendFixed32(protowire.AppendTag(m, n, protowire.Fixed32Type), math.Float32bits(f))
}

func (m message) double(n protowire.Number, f float64) message {
	return protowire.AppendFixed64(protowire.AppendTag(m, n, protowire.Fixed64Type), math.Float64bits(f))
}

// payload is a Payload with a time, a sequence number and metrics.
func payload(metrics ...message) message {
	m := message(nil).num(1, 1486144502122)
	for _, x := range metrics {
		m = m.sub(2, x)
	}
	return m.num(3, 7)
}

// metric is a Metric with a name, unless that is empty, and a type, unless that is 0.
func metric(name string, datatype uint64) (m message) {
	if name != "" {
		m = m.text(1, name)
	}
	if datatype != 0 {
		m = m.num(4, datatype)
	}
	return m
}

// encode is AppendJSON, checked to be JSON.
func encode(t testing.TB, topic string, data, names []byte) (string, error) {
	t.Helper()
	tp, ok := sparkplug.ParseTopic(topic)
	if !ok {
		t.Fatalf("%s is no topic", topic)
	}
	b, err := sparkplug.AppendJSON([]byte("x"), tp, data, names)
	if err != nil {
		if string(b) != "x" {
			t.Errorf("%q is appended with an error", b)
		}
		return "", err
	}
	if !json.Valid(b[1:]) {
		t.Fatalf("not JSON: %s", b[1:])
	}
	return string(b[1:]), nil
}

func TestParseTopic(t *testing.T) {
	for topic, want := range map[string]sparkplug.Topic{
		"spBv1.0/g/NBIRTH/n":     {Group: "g", Message: "NBIRTH", Node: "n"},
		"spBv1.0/g/NDEATH/n":     {Group: "g", Message: "NDEATH", Node: "n"},
		"spBv1.0/g/NDATA/n":      {Group: "g", Message: "NDATA", Node: "n"},
		"spBv1.0/g/NCMD/n":       {Group: "g", Message: "NCMD", Node: "n"},
		"spBv1.0/g h/DBIRTH/n/d": {Group: "g h", Message: "DBIRTH", Node: "n", Device: "d"},
		"spBv1.0/g/DDEATH/n/d":   {Group: "g", Message: "DDEATH", Node: "n", Device: "d"},
		"spBv1.0/g/DDATA/n/d":    {Group: "g", Message: "DDATA", Node: "n", Device: "d"},
		"spBv1.0/g/DCMD/n/d":     {Group: "g", Message: "DCMD", Node: "n", Device: "d"},
	} {
		if got, ok := sparkplug.ParseTopic(topic); !ok || got != want {
			t.Errorf("%s: %+v %v, want %+v", topic, got, ok, want)
		}
	}
	for _, topic := range []string{"", "spBv1.0", "spBv1.0/STATE/host", "spBv1.0/g/NDATA", "spBv1.0/g/NDATA/n/d", "spBv1.0/g/DDATA/n", "spBv1.0/g/DDATA/n/",
		"spBv1.0/g/DDATA/n/d/e", "spBv1.0//NDATA/n", "spBv1.0/g/NDATA/", "spBv1.0/g/ndata/n", "spAv1.0/g/NDATA/n", "x/spBv1.0/g/NDATA/n"} {
		if got, ok := sparkplug.ParseTopic(topic); ok {
			t.Errorf("%s: %+v, want none", topic, got)
		}
	}
	n, _ := sparkplug.ParseTopic("spBv1.0/g/NDATA/n")
	d, _ := sparkplug.ParseTopic("spBv1.0/g/DCMD/n/d")
	if n.Certificate() != "$sparkplug/certificates/spBv1.0/g/NBIRTH/n" || d.Certificate() != "$sparkplug/certificates/spBv1.0/g/DBIRTH/n/d" {
		t.Errorf("%s, %s", n.Certificate(), d.Certificate())
	}
}

// Every type, with the encodings that clients use for it.
func TestValues(t *testing.T) {
	for _, tt := range []struct {
		name     string
		datatype uint64
		value    message
		want     string
	}{
		{"Int8", 1, message(nil).num(10, 0xe9), `-23`},
		{"Int8 in 32 bits", 1, message(nil).num(10, 0xffffffe9), `-23`},
		{"Int16", 2, message(nil).num(10, 0xffff8ad0), `-30000`},
		{"Int32", 3, message(nil).num(10, 0xfffc1940), `-255680`},
		{"Int64", 4, message(nil).num(11, math.MaxUint64), `-1`},
		{"Int64 in an int", 4, message(nil).num(10, 0xffffffff), `-1`},
		{"UInt8", 5, message(nil).num(10, 250), `250`},
		{"UInt16", 6, message(nil).num(10, 65000), `65000`},
		{"UInt32", 7, message(nil).num(11, 4294967290), `4294967290`},
		{"UInt64", 8, message(nil).num(11, 16444743074749521625), `16444743074749521625`},
		{"Float", 9, message(nil).float(12, 1.23), `1.23`},
		{"Float that is no number", 9, message(nil).float(12, float32(math.NaN())), `"NaN"`},
		{"Double", 10, message(nil).double(13, 12.345678901234567), `12.345678901234567`},
		{"Double without end", 10, message(nil).double(13, math.Inf(-1)), `"-Infinity"`},
		{"Double, large", 10, message(nil).double(13, 1e300), `1e+300`},
		{"Boolean", 11, message(nil).num(14, 1), `true`},
		{"String", 12, message(nil).text(15, "a\"<\xff"), `"a\"\u003c\ufffd"`},
		{"DateTime", 13, message(nil).num(11, 1486144502122), `1486144502122`},
		{"Bytes", 17, message(nil).text(16, "\x00\xff"), `"AP8="`},
		{"an unknown integer", 0, message(nil).num(10, 0xffffffff), `4294967295`},
		{"a type of the future", 99, message(nil).num(10, 3), `3`},
		{"another type than it says", 10, message(nil).text(15, "x"), `"x"`},
		{"an extension", 12, message(nil).text(19, "x"), `null`},
		{"Int8Array", 22, message(nil).text(16, "\xe9\x7b"), `[-23,123]`},
		{"Int16Array", 23, message(nil).text(16, "\xd0\x8a\x30\x75"), `[-30000,30000]`},
		{"Int32Array", 24, message(nil).text(16, "\xff\xff\xff\xff"), `[-1]`},
		{"Int64Array", 25, message(nil).text(16, "\xff\xff\xff\xff\xff\xff\xff\xff"), `[-1]`},
		{"UInt8Array", 26, message(nil).text(16, "\x17\xfa"), `[23,250]`},
		{"UInt16Array", 27, message(nil).text(16, "\xff\xff"), `[65535]`},
		{"UInt32Array", 28, message(nil).text(16, "\xff\xff\xff\xff"), `[4294967295]`},
		{"UInt64Array", 29, message(nil).text(16, "\x01\x00\x00\x00\x00\x00\x00\x80"), `[9223372036854775809]`},
		{"FloatArray", 30, message(nil).text(16, "\x00\x00\x80\x3f"), `[1]`},
		{"DoubleArray", 31, message(nil).text(16, "\x00\x00\x00\x00\x00\x00\xf0\x3f"), `[1]`},
		{"BooleanArray", 32, message(nil).text(16, "\x0c\x00\x00\x00\x34\xd0"), `[false,false,true,true,false,true,false,false,true,true,false,true]`},
		{"StringArray", 33, message(nil).text(16, "ABC\x00\x00hello\x00"), `["ABC","","hello"]`},
		{"DateTimeArray", 34, message(nil).text(16, "\xc7\xd0\x90\x75\x24\x01\x00\x00"), `[1256102875335]`},
		{"an empty array", 23, message(nil).text(16, ""), `[]`},
		{"DataSet", 16, message(nil).sub(17, message(nil).num(1, 2).text(2, "a").text(2, "b").num(3, 1).num(3, 12).
			sub(4, message(nil).sub(1, message(nil).num(1, 0xff)).sub(1, message(nil).text(6, "x"))).
			sub(4, message(nil).sub(1, message(nil).num(1, 5)).sub(1, nil))),
			`{"columns":["a","b"],"types":["Int8","String"],"rows":[[-1,"x"],[5,null]]}`},
		{"DataSet with packed types", 16, message(nil).sub(17, message(nil).text(2, "a").text(3, "\x0b").sub(4, message(nil).sub(1, message(nil).num(5, 1)))),
			`{"columns":["a"],"types":["Boolean"],"rows":[[true]]}`},
		{"Template", 19, message(nil).sub(18, message(nil).text(1, "v1").sub(2, append(metric("rpm", 3), message(nil).num(10, 0xffffffff)...)).
			sub(3, message(nil).text(1, "p").num(2, 2).num(3, 0xffff)).text(4, "motor").num(5, 0)),
			`{"version":"v1","reference":"motor","isDefinition":false,"parameters":{"p":-1},"metrics":{"rpm":{"value":-1,"type":"Int32"}}}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := encode(t, "spBv1.0/g/NDATA/n", payload(append(metric("m", tt.datatype), tt.value...)), nil)
			if err != nil {
				t.Fatal(err)
			}
			_, got, _ = strings.Cut(got, `"m":{"value":`)
			if !strings.HasPrefix(got, tt.want+"}") && !strings.HasPrefix(got, tt.want+`,"type"`) {
				t.Errorf("value %s, want %s", got, tt.want)
			}
		})
	}
}

func TestWholePayload(t *testing.T) {
	properties := message(nil).text(1, "unit").sub(2, message(nil).num(1, 12).text(8, "C")).
		text(1, "low").sub(2, message(nil).num(1, 1).num(3, 0xff)).
		text(1, "none").sub(2, message(nil).num(1, 12).num(2, 1)).
		text(1, "more").sub(2, message(nil).num(1, 20).sub(9, message(nil).text(1, "k").sub(2, message(nil).num(7, 1)))).
		text(1, "list").sub(2, message(nil).num(1, 21).sub(10, message(nil).sub(1, message(nil).text(1, "k").sub(2, message(nil).float(5, .5))).sub(1, nil)))
	data := payload(
		metric("Inlet/Temp", 9).num(2, 1).num(3, 100).float(12, 21.5).sub(9, properties),
		metric("Level", 3).num(3, 1).num(5, 1).num(10, 1),
		metric("Level", 3).num(3, 3).num(10, 3),
		metric("Level", 3).num(3, 2).num(5, 1).num(10, 2),
		metric("Door", 11).num(6, 1).num(7, 1),
		metric("File", 18).sub(8, message(nil).num(1, 1).text(2, "text/plain").num(3, 9).num(4, 2).text(5, "a.txt").text(6, "txt").text(7, "0f").text(8, "d")).text(16, "x"),
		metric("", 3).num(2, 99).num(10, 0xffffffff),
		metric("Nothing", 3),
	).text(4, "u-1").text(5, "\x01").text(77, "unknown")
	got, err := encode(t, "spBv1.0/g/DDATA/n/d", data, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"message":"DDATA","group":"g","node":"n","device":"d","timestamp":1486144502122,"seq":7,"uuid":"u-1","body":"AQ==","metrics":{` +
		`"Inlet/Temp":{"value":21.5,"type":"Float","timestamp":100,"alias":1,"properties":{"unit":"C","low":-1,"none":null,"more":{"k":true},"list":[{"k":0.5},{}]}},` +
		`"Level":{"value":3,"type":"Int32","timestamp":3},` +
		`"Door":{"value":null,"isNull":true,"type":"Boolean","isTransient":true},` +
		`"File":{"value":"eA==","type":"File","metadata":{"isMultiPart":true,"contentType":"text/plain","size":9,"seq":2,"fileName":"a.txt","fileType":"txt","md5":"0f","description":"d"}},` +
		`"Nothing":{"type":"Int32"}},` +
		`"earlier":[{"name":"Level","value":1,"type":"Int32","timestamp":1,"isHistorical":true},{"name":"Level","value":2,"type":"Int32","timestamp":2,"isHistorical":true}],` +
		`"unresolved":[{"value":-1,"type":"Int32","alias":99}]}`
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("JSON (-want +got):\n%s", d)
	}
	if got, err := encode(t, "spBv1.0/g/NDEATH/n", nil, nil); err != nil || got != `{"message":"NDEATH","group":"g","node":"n","metrics":{}}` {
		t.Errorf("an empty payload is %s, %v", got, err)
	}
}

// What data leaves out, the birth has.
func TestNames(t *testing.T) {
	birth, err := sparkplug.ReadBirth(payload(metric("Temp", 9).num(2, 0), metric("Level", 3).num(2, 7), metric("Door", 11), metric("Level", 1).num(2, 8)))
	if err != nil {
		t.Fatal(err)
	}
	long, err := sparkplug.ReadBirth(payload(metric(strings.Repeat("Temp", 100), 9)))
	if err != nil || birth.Size() < 3*40 || birth.Size() > 300 || long.Size() < 440 {
		t.Errorf("births of three short names and one long one take %d and %d bytes, %v", birth.Size(), long.Size(), err)
	}
	data := payload(message(nil).num(2, 0).float(12, 1), message(nil).num(2, 8).num(10, 0xff), metric("Door", 0).num(14, 1), message(nil).num(2, 7).num(10, 0xff),
		metric("New", 0).num(10, 1), message(nil).num(2, 8).num(4, 5).num(5, 1).num(10, 0xff))
	names, err := birth.Names(data, 1000)
	if err != nil {
		t.Fatal(err)
	}
	got, err := encode(t, "spBv1.0/g/NDATA/n", data, names)
	if err != nil {
		t.Fatal(err)
	}
	_, got, _ = strings.Cut(got, `"metrics":`)
	want := `{"Temp":{"value":1,"type":"Float","alias":0},"Level":{"value":-1,"type":"Int8","alias":8},"Door":{"value":true,"type":"Boolean"},"New":{"value":1}},` +
		`"earlier":[{"name":"Level","value":255,"type":"UInt8","alias":8,"isHistorical":true}],"unresolved":[{"value":255,"alias":7}]}`
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("metrics (-want +got):\n%s", d)
	}
	for most := range len(names) { // what has no room is unresolved, and nothing is lost
		short, err := birth.Names(data, most)
		if err != nil || len(short) > most || short == nil {
			t.Fatalf("%d bytes for %d, %v", len(short), most, err)
		}
		got, err := encode(t, "spBv1.0/g/NDATA/n", data, short)
		if err != nil || strings.Count(got, `"value"`) != 6 {
			t.Errorf("with %d bytes: %s, %v", most, got, err)
		}
	}
	if none, err := new(sparkplug.Births).Names(data, 1000); none == nil || len(none) != 0 || err != nil {
		t.Errorf("no birth has names %x, %v", none, err)
	}
}

func TestRefused(t *testing.T) {
	nest := func(n int, wrap func(message) message) (m message) {
		for range n {
			m = wrap(m)
		}
		return m
	}
	templates := func(m message) message { return message(nil).sub(2, metric("t", 19).sub(18, m)) }
	sets := func(m message) message { return message(nil).text(1, "k").sub(2, message(nil).sub(9, m)) }
	var many message
	for range sparkplug.MaxMetrics + 1 {
		many = many.sub(2, nil)
	}
	for name, tt := range map[string]struct {
		data message
		want string // "" = it is not refused
	}{
		"no protobuf":                {message("\xff"), "no protobuf message"},
		"a metric that ends":         {payload(message("\x0a\x05a")), "no protobuf message"},
		"a long name":                {payload(metric(strings.Repeat("n", sparkplug.MaxName+1), 1)), "name has more than"},
		"the longest name":           {payload(metric(strings.Repeat("n", sparkplug.MaxName), 1)), ""},
		"many metrics":               {many, "more than 20000 metrics"},
		"many metrics in a template": {payload(metric("t", 19).sub(18, many)), "more than 20000 metrics"},
		"templates":                  {payload(metric("t", 19).sub(18, nest(sparkplug.MaxDepth-1, templates))), ""},
		"deep templates":             {payload(metric("t", 19).sub(18, nest(sparkplug.MaxDepth, templates))), "nested deeper"},
		"property sets":              {payload(metric("p", 1).sub(9, nest(sparkplug.MaxDepth, sets))), ""},
		"deep property sets":         {payload(metric("p", 1).sub(9, nest(sparkplug.MaxDepth+1, sets))), "nested deeper"},
		"keys without values":        {payload(metric("p", 1).sub(9, message(nil).text(1, "k"))), "1 keys and 0 values"},
		"half an element":            {payload(metric("a", 23).text(16, "abc")), `metric "a": Int16Array of 3 bytes`},
		"missing bits":               {payload(metric("a", 32).text(16, "\x09\x00\x00\x00\x01")), "as many bits"},
		"an open string":             {payload(metric("a", 33).text(16, "abc")), "end with a zero"},
		"much JSON":                  {payload(metric("a", 26).text(16, strings.Repeat("\xff", sparkplug.MaxJSON/3))), "bytes of JSON"},
		"a long string":              {payload(metric("a", 12).text(15, strings.Repeat("\x01", sparkplug.MaxJSON/3))), "bytes of JSON"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := encode(t, "spBv1.0/g/NDATA/n", tt.data, nil)
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
		})
	}
	for _, names := range []string{"\xff", "\x01\x00\x00", "\x00\x00\x05ab", "\x00\x00"} {
		if _, err := encode(t, "spBv1.0/g/NDATA/n", payload(metric("m", 1)), []byte(names)); err == nil {
			t.Errorf("names %q are taken", names)
		}
	}
}

func TestView(t *testing.T) {
	stored := func(topic string, names []byte, data string) *event.Record {
		return &event.Record{Event: event.Event{ID: "1", Type: "t", DataContentType: "application/x-protobuf", DataSchema: "urn:x", Data: []byte(data),
			Extensions: []event.Attribute{{Name: "line", Value: "a"}, {Name: sparkplug.ErrorAttribute, Value: "claimed"}, {Name: "zone", Value: true}}},
			MQTT: &event.Origin{Topic: topic, Sparkplug: names}}
	}
	topic, good := "spBv1.0/g/NDATA/n", string(payload(metric("m", 11).num(14, 1)))
	for _, r := range []*event.Record{{Event: event.Event{ID: "1"}}, stored(topic, nil, good)} {
		if sparkplug.View(r) != r {
			t.Errorf("%+v is not as it was", r)
		}
	}
	r := stored(topic, []byte{}, good)
	v := sparkplug.View(r)
	if v.Event.DataContentType != "application/json" || v.Event.DataSchema != "" || v.MQTT.Sparkplug != nil || v.MQTT.Topic != topic || v.Event.ID != "1" ||
		!strings.Contains(string(v.Event.Data), `"m":{"value":true,"type":"Boolean"}`) {
		t.Errorf("%+v %s", v, v.Event.Data)
	}
	if d := cmp.Diff(stored(topic, []byte{}, good), r); d != "" {
		t.Errorf("the original was changed: %s", d)
	}
	if again := sparkplug.View(v); again != v {
		t.Error("a view is viewed")
	}
	v = sparkplug.View(stored(topic, []byte{}, "\xff"))
	want := stored(topic, nil, "\xff").Event
	want.Extensions[1].Value = "it is no protobuf message"
	if d := cmp.Diff(want, v.Event); d != "" {
		t.Errorf("what cannot be decoded (-want +got):\n%s", d)
	}
}

// FuzzPayload: whatever is published, it is JSON within the limits or an error, the same each time, and what a birth has
// cannot make an error of what was none.
func FuzzPayload(f *testing.F) {
	birth := payload(metric("Temp", 9).num(2, 0), metric("Level", 3).num(2, 7), metric("Door", 11))
	f.Add([]byte(birth), []byte(payload(message(nil).num(2, 7).num(10, 1), metric("Door", 0).num(14, 1))), 100)
	f.Add([]byte(birth), []byte(payload(metric("t", 19).sub(18, message(nil).sub(2, metric("x", 16).sub(17, message(nil).text(2, "c").num(3, 1).sub(4, message(nil).sub(1, message(nil).num(1, 1)))))))), 5)
	f.Add([]byte{}, []byte(payload(metric("a", 32).text(16, "\x09\x00\x00\x00\x01\x80"), metric("b", 33).text(16, "a\x00"), metric("c", 9).float(12, float32(math.NaN())))), 0)
	f.Add([]byte{0xff}, []byte(payload(metric("p", 1).sub(9, message(nil).text(1, "k").sub(2, message(nil).sub(10, message(nil).sub(1, nil)))).sub(8, message(nil).num(1, 1)))), 9)
	f.Fuzz(func(t *testing.T, born, data []byte, most int) {
		b, err := sparkplug.ReadBirth(born)
		if err != nil {
			b = &sparkplug.Births{}
		}
		names, nerr := b.Names(data, most)
		bare, berr := encode(t, "spBv1.0/g/NDATA/n", data, nil)
		full, ferr := encode(t, "spBv1.0/g/NDATA/n", data, names)
		if nerr != nil && berr == nil || len(names) > max(most, 0) {
			t.Fatalf("names %q with %v, without %v", names, nerr, berr)
		}
		if len(full) > sparkplug.MaxJSON || len(bare) > sparkplug.MaxJSON {
			t.Fatalf("%d and %d bytes", len(bare), len(full))
		}
		if again, _ := encode(t, "spBv1.0/g/NDATA/n", data, names); again != full {
			t.Fatalf("%s, then %s", full, again)
		}
		if berr == nil && ferr == nil {
			var a, c map[string]any
			if json.Unmarshal([]byte(bare), &a) != nil || json.Unmarshal([]byte(full), &c) != nil || values(a) != values(c) {
				t.Fatalf("%d values, with names %d: %s, %s", values(a), values(c), bare, full)
			}
		}
	})
}

// values counts the metrics of a decoded payload.
func values(m map[string]any) int {
	metrics, _ := m["metrics"].(map[string]any)
	earlier, _ := m["earlier"].([]any)
	unresolved, _ := m["unresolved"].([]any)
	return len(metrics) + len(earlier) + len(unresolved)
}

// FuzzNames: names that are damaged in the log are an error or leave a payload readable.
func FuzzNames(f *testing.F) {
	data := payload(message(nil).num(2, 7).num(10, 1), metric("Door", 0).num(14, 1))
	f.Add([]byte("\x00\x03\x02ab\x01\x0b\x00"))
	f.Fuzz(func(t *testing.T, names []byte) {
		_, _ = encode(t, "spBv1.0/g/NDATA/n", data, names) //nolint:errcheck // that it is JSON is checked
	})
}

func BenchmarkView(b *testing.B) {
	var born, data []message
	for i := range 20 {
		born = append(born, metric(fmt.Sprintf("Line 1/Motor %d/Speed", i), 9).num(2, uint64(i)))
		data = append(data, message(nil).num(2, uint64(i)).num(3, 1486144502122).float(12, float32(i)))
	}
	birth, err := sparkplug.ReadBirth(payload(born...))
	if err != nil {
		b.Fatal(err)
	}
	raw := payload(data...)
	names, err := birth.Names(raw, 1<<16)
	if err != nil {
		b.Fatal(err)
	}
	r := &event.Record{Event: event.Event{Data: raw}, MQTT: &event.Origin{Topic: "spBv1.0/g/NDATA/n", Sparkplug: names}}
	b.ReportAllocs()
	for b.Loop() {
		sparkplug.View(r)
	}
}

// BenchmarkBirths is what a birth costs while it is kept.
func BenchmarkBirths(b *testing.B) {
	var born []message
	for i := range 200 {
		born = append(born, metric(fmt.Sprintf("Line 1/Motor %d/Bearing/Temperature", i), 9).num(2, uint64(i)))
	}
	raw := payload(born...)
	kept := make([]*sparkplug.Births, 0, b.N)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for b.Loop() {
		d, err := sparkplug.ReadBirth(raw)
		if err != nil {
			b.Fatal(err)
		}
		kept = append(kept, d)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/float64(len(kept)*len(born)), "B/metric")
	runtime.KeepAlive(kept)
}
