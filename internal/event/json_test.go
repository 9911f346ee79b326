// SPDX-License-Identifier: Apache-2.0

package event_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rialto-bridge/rialto/internal/event"
)

const head = `"specversion":"1.0","id":"1","source":"/s","type":"t"`

func minimal(change func(*event.Event)) event.Event {
	e := event.Event{ID: "1", Source: "/s", Type: "t"}
	change(&e)
	return e
}

func TestParseJSON(t *testing.T) {
	for name, tt := range map[string]struct {
		in   string
		want event.Event
	}{
		"minimal": {`{` + head + `}`, minimal(func(*event.Event) {})},
		"mark":    {"\ufeff {" + head + "}\r\n", minimal(func(*event.Event) {})},
		"null and b64": {`{` + head + `,"data_base64":null,"data":[]}`, minimal(func(e *event.Event) {
			e.DataContentType, e.Data = "application/json", []byte("[]")
		})},
		"data as written": {`{"data" : {"a" : [1.10 , "\ud800"], "a":{}} ,` + head + `}`, minimal(func(e *event.Event) {
			e.DataContentType, e.Data = "application/json", []byte(`{"a" : [1.10 , "\ud800"], "a":{}}`)
		})},
		"null text": {`{` + head + `,"datacontenttype":"text/plain","data":null}`, minimal(func(e *event.Event) {
			e.DataContentType = "text/plain"
		})},
		"empty text": {`{` + head + `,"datacontenttype":"text/plain","data":""}`, minimal(func(e *event.Event) {
			e.DataContentType, e.Data = "text/plain", []byte{}
		})},
		"all escapes": {`{` + head + `,"datacontenttype":"text/plain","data":"\"\\\/\b\f\n\r\t\u0000\uD83D\uDE00"}`, minimal(func(e *event.Event) {
			e.DataContentType, e.Data = "text/plain", []byte("\"\\/\b\f\n\r\t\x00\U0001F600")
		})},
		"escaped base64": {`{` + head + `,"data_base64":"\/\/\u002f\/"}`, minimal(func(e *event.Event) {
			e.Data = []byte{0xff, 0xff, 0xff}
		})},
		"extensions": {`{"z":"","b":true,"a":-2147483648,"n":null,"c":-0,"1":2147483647,` + head + `}`, minimal(func(e *event.Event) {
			e.Extensions = []event.Attribute{{Name: "1", Value: int32(math.MaxInt32)}, {Name: "a", Value: int32(math.MinInt32)},
				{Name: "b", Value: true}, {Name: "c", Value: int32(0)}, {Name: "z", Value: ""}}
		})},
		"Azure's type for plain JSON": {`{` + head + `,"datacontenttype":"application/cloudevents+json; charset=utf-8","data":{"a":1}}`,
			minimal(func(e *event.Event) {
				e.DataContentType, e.Data = "application/cloudevents+json; charset=utf-8", []byte(`{"a":1}`)
			})},
	} {
		t.Run(name, func(t *testing.T) {
			in := []byte(tt.in)
			got, err := event.ParseJSON(in, event.Limits{})
			if err != nil {
				t.Fatal(err)
			}
			clear(in)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("ParseJSON(%s) (-want +got):\n%s", tt.in, diff)
			}
			checkRoundTrips(t, got)
		})
	}
}

func TestParseJSONRefuses(t *testing.T) {
	for in, attribute := range map[string]string{
		``:                                  "",
		`  `:                                "",
		`nul`:                               "",
		`{`:                                 "",
		`{}`:                                "specversion",
		`{` + head + `,}`:                   "",
		`{` + head + `,"e"}`:                "",
		`{` + head + `,"e":}`:               "",
		`{` + head + `,"e":tru}`:            "",
		`{` + head + `,"e":truex}`:          "",
		`{` + head + `,"e":-}`:              "",
		`{` + head + `,"e":1.}`:             "",
		`{` + head + `,"e":1e}`:             "",
		`{` + head + `,"e":00}`:             "",
		`{` + head + `,"e":"\u12g4"}`:       "",
		`{` + head + `,"e":"\u12`:           "",
		`{` + head + `,"e":"\`:              "",
		`{` + head + `,"e":"\ud800"}`:       "e",
		`{` + head + `,"e":"\ud800\u0041"}`: "e",
		`{` + head + `,"e":"\udc00\ud800"}`: "e",
		`{` + head + `,"e":null,"e":"x"}`:   "e",
		`{` + head + `,"e":"x","e":null}`:   "e",
		`{` + head + `,"e":null,"e":null}`:  "e",
		`{` + head + `,"\ud800":1}`:         "",
		`{` + head + `,"data":1,"data":1}`:  "data",
		`{` + head + `,"data":null,"data_base64":""}`:                                         "data_base64",
		`{` + head + `,"data_base64":"","data_base64":""}`:                                    "data_base64",
		`{` + head + `,"data":[1,}`:                                                           "data",
		`{` + head + `,"data":[1 2]}`:                                                         "data",
		`{` + head + `,"data":{"a" 1}}`:                                                       "data",
		`{` + head + `,"data":{1:1}}`:                                                         "data",
		`{` + head + `,"data":[}`:                                                             "data",
		`{` + head + `,"data":{]}`:                                                            "data",
		`{` + head + `,"data":[1}`:                                                            "data",
		`{` + head + `,"data":'x'}`:                                                           "data",
		`{` + head + `,"datacontenttype":"text/plain","data":1}`:                              "data",
		`{` + head + `,"datacontenttype":"text/plain","data":{}}`:                             "data",
		`{` + head + `,"datacontenttype":"text/plain","data":"\ud800"}`:                       "data",
		`{` + head + `,"datacontenttype":"text","data":"x"}`:                                  "datacontenttype",
		`{` + head + `,"datacontenttype":"","data":"x"}`:                                      "datacontenttype",
		`{` + head + `,"datacontenttype":"a/b c","data":"x"}`:                                 "datacontenttype",
		`{` + head + `,"datacontenttype":"a/b;\u00e9","data":"x"}`:                            "datacontenttype",
		`{` + head + `,"dataschema":""}`:                                                      "dataschema",
		`{` + head + `,"time":""}`:                                                            "time",
		`{` + head + `,"time":1}`:                                                             "time",
		`{` + head + `,"time":null,"time":null}`:                                              "time",
		`{"specversion":"1.0","specversion":"1.0"}`:                                           "specversion",
		`{"specversion":null}`:                                                                "specversion",
		`{` + head + `,"EXT":1}`:                                                              "ext",
		`{` + head + `,"a\nb":1}`:                                                             "a?b",
		strings.Repeat("[", 100000):                                                           "",
		`{` + head + `,"data":` + strings.Repeat("[", 1001) + strings.Repeat("]", 1001) + `}`: "data",
	} {
		_, err := event.ParseJSON([]byte(in), event.Limits{})
		if err == nil {
			t.Errorf("ParseJSON(%.100s) was accepted", in)
			continue
		}
		if f := fault(t, err); f.Attribute != attribute || f.Index != -1 {
			t.Errorf("ParseJSON(%.100s): refused (%v) at %q, want %q", in, f, f.Attribute, attribute)
		}
	}
}

func TestParseJSONRefusesEveryCut(t *testing.T) {
	e := records["all attributes"].Event
	e.Extensions = records["types of extensions"].Event.Extensions
	doc := event.AppendJSON(nil, &e)
	for n := range doc {
		if _, err := event.ParseJSON(doc[:n], event.Limits{}); err == nil {
			t.Errorf("the first %d of %d bytes were accepted", n, len(doc))
		}
	}
}

func TestParseJSONDepth(t *testing.T) {
	nest := func(n int) []byte {
		return []byte(`{` + head + `,"data":` + strings.Repeat(`[{"a":`, n/2) + "1" + strings.Repeat("}]", n/2) + `}`)
	}
	e, err := event.ParseJSON(nest(1000), event.Limits{})
	if err != nil {
		t.Fatalf("1000 levels: %v", err)
	}
	checkRoundTrips(t, e)
	if _, err := event.ParseJSON(nest(1002), event.Limits{}); err == nil {
		t.Error("1002 levels were accepted")
	}
	if _, err := event.ParseJSON(nest(12), event.Limits{MaxDepth: 10}); err == nil {
		t.Error("12 levels were accepted under a limit of 10")
	}
	// Deeper data in binary mode is opaque; the JSON format then carries it as bytes.
	deep := strings.Repeat("[", 2000) + strings.Repeat("]", 2000)
	checkRoundTrips(t, minimal(func(e *event.Event) { e.DataContentType, e.Data = "application/json", []byte(deep) }))
}

// TestScannerAgreesWithTheStandardLibrary holds the scanner against encoding/json, which is lenient in UTF-8 alone.
func TestScannerAgreesWithTheStandardLibrary(t *testing.T) {
	for _, v := range []string{`0`, `-0`, `01`, `1.0`, `.5`, `1e5`, `1E+05`, `1e+`, `+1`, `--1`, `0x1`, `Infinity`, `true`, `True`, `null`,
		`[]`, `[ ]`, `[,]`, `[1,]`, `{}`, `{ }`, `{"a":1,}`, `{"a":1,"a":2}`, `{a:1}`, `""`, `"\q"`, `"\u00zz"`, "\"\t\"", "\"\x7f\"",
		`"1234567"`, `"12345678"`, `"1234567\n"`, `"12345678\n9"`, "\"1234567\x1f\"", `"é1234567é"`, `[[],{},[[{"a":[{}]}]]]`, `[1]2`, "[1]\v"} {
		doc := `{` + head + `,"data":` + v + `}`
		_, err := event.ParseJSON([]byte(doc), event.Limits{})
		if good := json.Valid([]byte(doc)); good != (err == nil) {
			t.Errorf("data %s: ParseJSON says %v, encoding/json valid %v", v, err, good)
		}
	}
}

func TestParseJSONBatch(t *testing.T) {
	one := `{` + head + `}`
	for in, want := range map[string]int{`[]`: 0, ` [ ] `: 0, `[` + one + `]`: 1, "\ufeff[" + one + " , " + one + "]": 2} {
		got, err := event.ParseJSONBatch([]byte(in), event.Limits{})
		if err != nil || got == nil || len(got) != want {
			t.Errorf("ParseJSONBatch(%s) = %d events, %v; want %d", in, len(got), err, want)
		}
	}
	for in, index := range map[string]int{``: -1, `{}`: -1, `[`: 0, `[1]`: 0, `[` + one + `,]`: 1, `[` + one + one + `]`: -1,
		`[` + one: -1, `[` + one + `]]`: -1, `[` + one + `,` + one + `,{}]`: 2} {
		got, err := event.ParseJSONBatch([]byte(in), event.Limits{})
		if err == nil || got != nil {
			t.Errorf("ParseJSONBatch(%s) = %d events, %v", in, len(got), err)
			continue
		}
		if f := fault(t, err); f.Index != index {
			t.Errorf("ParseJSONBatch(%s): %v, want index %d", in, f, index)
		}
	}
	_, err := event.ParseJSONBatch([]byte("["+strings.Repeat(one+",", 1000)+one+"]"), event.Limits{})
	if f := fault(t, err); !f.TooLarge {
		t.Errorf("1001 events: %+v", f)
	}
}

func TestParseJSONLimits(t *testing.T) {
	var doc strings.Builder
	doc.WriteString(`{` + head)
	for i := range 129 {
		fmt.Fprintf(&doc, `,"e%d":null`, i)
	}
	if _, err := event.ParseJSON([]byte(doc.String()+"}"), event.Limits{}); err == nil {
		t.Error("129 extensions that are null were accepted")
	}
	_, err := event.ParseJSON([]byte(`{`+head+`,"data":"`+strings.Repeat("x", 1<<20)+`"}`), event.Limits{})
	if f := fault(t, err); !f.TooLarge {
		t.Errorf("more than 1 MiB of data: %+v", f)
	}
}

func TestAppendJSON(t *testing.T) {
	e := records["all attributes"].Event
	e.Extensions = []event.Attribute{{Name: "a", Value: int32(-5)}, {Name: "b", Value: true}, {Name: "c", Value: "\u2028\"\\\n"}}
	const want = `{"specversion":"1.0","id":"a/b?c#d%é ..","source":"https://example.com/a%20b?c=d#e","type":"com.exämple.t",` +
		`"subject":" 100% \"q\" 😀 ","time":"2018-04-05T17:31:00.123456789+05:30","datacontenttype":"text/plain; charset=\"utf-8\"",` +
		`"dataschema":"https://example.com/s/1#x","a":-5,"b":true,"c":"` + "\u2028" + `\"\\\n","data":"Zürich"}`
	if got := string(event.AppendJSON([]byte("x"), &e)); got != "x"+want {
		t.Errorf("AppendJSON = %s\nwant       x%s", got, want)
	}
	e.Subject = "broken \xff\xe2\x82"
	if got := event.AppendJSON(nil, &e); !bytes.Contains(got, []byte("broken \ufffd\ufffd")) {
		t.Errorf("AppendJSON of broken UTF-8 = %q", got)
	}
	e.Time = time.Date(1890, 1, 1, 0, 0, 0, 0, time.FixedZone("LMT", 3208))
	if got := event.AppendJSON(nil, &e); !bytes.Contains(got, []byte(`"1889-12-31T23:06:32Z"`)) {
		t.Errorf("an offset with seconds does not become UTC: %s", got)
	}
}

func TestIsJSON(t *testing.T) {
	for in, want := range map[string]bool{"application/json": true, "text/JSON ; x=y": true, " application/vnd.a+Json": true,
		"application/jsonl": false, "json": false, "": false, "application/x-json": false, "application/+json": true} {
		if got := event.IsJSON(in); got != want {
			t.Errorf("IsJSON(%q) = %v, want %v", in, got, want)
		}
	}
}

func FuzzParseJSON(f *testing.F) {
	for _, p := range probes(f) {
		if _, body := p.request(f); strings.Contains(p.Headers[0][1], "cloudevents") {
			f.Add(body)
		}
	}
	for _, r := range records {
		f.Add(event.AppendJSON(nil, &r.Event))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		in := bytes.Clone(b)
		e, err := event.ParseJSON(b, event.Limits{})
		if !bytes.Equal(in, b) {
			t.Fatal("the input was changed")
		}
		if err != nil {
			fault(t, err)
			return
		}
		if !json.Valid(bytes.TrimPrefix(b, []byte("\ufeff"))) {
			t.Fatalf("accepted what is no JSON: %q", b)
		}
		checkRoundTrips(t, e)
	})
}

func BenchmarkParseJSON(b *testing.B) {
	e := reading()
	doc := event.AppendJSON(nil, &e)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := event.ParseJSON(doc, event.Limits{}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkAppendJSON(b *testing.B) {
	e := reading()
	buf := event.AppendJSON(nil, &e)
	b.ReportAllocs()
	for b.Loop() {
		buf = event.AppendJSON(buf[:0], &e)
	}
}

func ExampleParseJSON() {
	e, err := event.ParseJSON([]byte(`{"specversion":"1.0","id":"42","source":"/boxes/17","type":"com.example.reading","priority":3,"data":{"celsius":9.10}}`), event.Limits{})
	fmt.Println(err)
	fmt.Println(e.Extensions[0].Name, e.Extensions[0].Value, e.DataContentType, string(e.Data))

	_, err = event.ParseJSON([]byte(`{"specversion":"1.0","id":"42","source":"not a uri","type":"t"}`), event.Limits{})
	fmt.Println(err)
	// Output:
	// <nil>
	// priority 3 application/json {"celsius":9.10}
	// source: must be a URI reference (RFC 3986); other characters are percent-encoded
}

func ExampleAppendJSON() {
	e := event.Event{ID: "42", Source: "/boxes/17", Type: "com.example.photo", DataContentType: "image/png", Data: []byte("\x89PNG")}
	fmt.Printf("%s\n", event.AppendJSON(nil, &e))
	// Output:
	// {"specversion":"1.0","id":"42","source":"/boxes/17","type":"com.example.photo","datacontenttype":"image/png","data_base64":"iVBORw=="}
}
