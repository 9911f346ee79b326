// SPDX-License-Identifier: Apache-2.0

package rules_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/rules"
)

var noon = time.Date(2026, 11, 30, 12, 0, 0, 500_000_000, time.UTC)

// order is what the transforms of these tests are given.
func order() *event.Event {
	return &event.Event{
		ID: "1", Source: "/shop", Type: "com.acme.order", Subject: `say "hi"`, DataContentType: "application/json",
		DataSchema: "https://acme.example/order", Time: noon,
		Extensions: []event.Attribute{{Name: "attempt", Value: int32(3)}, {Name: "test", Value: true}},
		Data: []byte(`{"id":"A-1","total":12.50,"paid":true,"coupon":null,"note":"two\nlines \"quoted\" \u003c",` +
			`"items":[{"sku":"x","n":1},{"sku":"y","n":2}],"ship":{"city":"Venezia"},"big":12345678901234567890.10,"a-b":"dash","z":{"b":1,"a":2}}`),
	}
}

var orderContext = rules.RenderContext{Rule: "to-ops", Bus: "shop", Received: noon.Add(time.Second)}

const (
	asJSON = "application/json"
	asText = "text/plain; charset=utf-8"
)

func TestTransform(t *testing.T) {
	for _, tt := range []struct{ name, transform, contentType, want string }{
		{"path", `{"path":"$.data.total"}`, asJSON, `12.50`},
		{"path to a string", `{"path":"$.type"}`, asJSON, `"com.acme.order"`},
		{"path to the whole", `{"path":"$.data.ship"}`, asJSON, `{"city":"Venezia"}`},
		{"path keeps the order of members", `{"path":"$.data.z"}`, asJSON, `{"b":1,"a":2}`},
		{"path keeps digits", `{"path":"$.data.big"}`, asJSON, `12345678901234567890.10`},
		{"path from the end", `{"path":"$.data.items[-1].sku"}`, asJSON, `"y"`},
		{"path to an extension", `{"path":"$.attempt"}`, asJSON, `3`},
		{"path to many", `{"path":"$.data.items[*].sku"}`, asJSON, `["x","y"]`},
		{"path to none of many", `{"path":"$.data.items[*].nothing"}`, asJSON, `[]`},
		{"path over members", `{"path":"$.data.z.*"}`, asJSON, `[1,2]`},
		{"path down", `{"path":"$..sku"}`, asJSON, `["x","y"]`},
		{"path with a slice", `{"path":"$.data.items[::-1].n"}`, asJSON, `[2,1]`},
		{"path with a slice from the start", `{"path":"$.data.items[:1].n"}`, asJSON, `[1]`},
		{"path with quotes", `{"path":"$.data['a..$b\\'','a-b']"}`, asJSON, `["dash"]`},
		{"path from the root down", `{"path":"$..['city']"}`, asJSON, `["Venezia"]`},
		{"path to all attributes and more", `{"path":"$['type','attempt']"}`, asJSON, `["com.acme.order",3]`},
		{"path with a filter", `{"path":"$.data.items[?@.n > 1].sku"}`, asJSON, `["y"]`},
		{"path with a search", `{"path":"$.data.items[?search(@.sku, '^x')].n"}`, asJSON, `[1]`},

		{"constant text", `{"constant":"ping"}`, asText, `ping`},
		{"constant object", `{"constant":{"a":[1,2.0]}}`, asJSON, `{"a":[1,2.0]}`},
		{"constant null", `{"constant":null}`, asJSON, `null`},
		{"constant is no template", `{"constant":"${subject}"}`, asText, `${subject}`},

		{"text", `{"template":"Order ${data.id}: ${data.total} EUR to ${data.ship.city}"}`, asText, `Order A-1: 12.50 EUR to Venezia`},
		{"text with strings bare", `{"template":"${subject}|${data.note}"}`, asText, "say \"hi\"|two\nlines \"quoted\" <"},
		{"text with other values", `{"template":"${data.paid} ${data.coupon} ${data.items} ${attempt} ${test}"}`, asText, `true null [{"sku":"x","n":1},{"sku":"y","n":2}] 3 true`},
		{"text with what is absent", `{"template":"[${data.nothing}][${dataschema2}]"}`, asText, `[][]`},
		{"text with a literal", `{"template":"$${data.id} $5 ${ data.id }"}`, asText, `${data.id} $5 A-1`},
		{"text with variables", `{"template":"${rialto.rule} ${rialto.bus} ${rialto.received} ${time}"}`, asText, `to-ops shop 2026-11-30T12:00:01.5Z 2026-11-30T12:00:00.5Z`},
		{"text with indexes", `{"template":"${data.items[1].sku}${data.items[-2].sku}${data.a-b}"}`, asText, `yxdash`},
		{"text with a JSONPath", `{"template":"${$.data.items[*].n} ${$.data['a-b']} ${$.data['}']}"}`, asText, `[1,2] dash `},
		{"text in brackets", `{"template":"[INFO] ${data.id}"}`, asText, `[INFO] A-1`},
		{"text in braces", `{"template":"{${data.id}}"}`, asText, `{A-1}`},

		{"json", `{"template":{"text":"Order ${data.id}","total":"${data.total}","paid":"${data.paid}","items":"${data.items}"}}`, asJSON,
			`{"text":"Order A-1","total":12.50,"paid":true,"items":[{"sku":"x","n":1},{"sku":"y","n":2}]}`},
		{"json escapes", `{"template":{"a":"${subject}","b":"<${subject}>","c":"${data.note}","d":"- ${data.note}"}}`, asJSON,
			`{"a":"say \"hi\"","b":"<say \"hi\">","c":"two\nlines \"quoted\" <","d":"- two\nlines \"quoted\" <"}`},
		{"json with what is absent", `{"template":{"a":"${data.nothing}","b":"x${data.nothing}"}}`, asJSON, `{"a":null,"b":"x"}`},
		{"json with an object in a string", `{"template":["ship: ${data.ship}"]}`, asJSON, `["ship: {\"city\":\"Venezia\"}"]`},
		{"json with other values", `{"template":[1,true,null,{"$${a}":"$${b}"},"$5"]}`, asJSON, `[1,true,null,{"${a}":"${b}"},"$5"]`},
		{"json as text", `{"template":"{\"id\": ${data.id}, \"s\": \"${data.id}/${data.total}\", \"n\": [${data.total}, ${data.nothing}]}"}`, asJSON,
			`{"id": "A-1", "s": "A-1/12.50", "n": [12.50, null]}`},

		{"expression", `{"template":"${data.total * 2} ${len(data.items)} ${upper(subject)} ${data.paid ? 'yes' : 'no'}"}`, asText, `25 2 SAY "HI" yes`},
		{"expression as a value", `{"template":{"n":"${data.total - 0.5}","s":"${data.id + '!'}","b":"${data.total > 12}","none":"${data.nothing}","null":"${data?.nothing?.x}"}}`, asJSON,
			`{"n":12,"s":"A-1!","b":true,"none":null,"null":null}`},
		{"expression in a string", `{"template":{"a":"- ${subject + '\"'} -","o":"<${ {'b': 1, 'a': '<'} }>"}}`, asJSON, `{"a":"- say \"hi\"\" -","o":"<{\"a\":\"<\",\"b\":1}>"}`},
		{"expression that makes a list", `{"template":{"skus":"${map(data.items, {.sku})}","big":"${filter(data.items, .n > 1)}"}}`, asJSON, `{"skus":["x","y"],"big":[{"n":2,"sku":"y"}]}`},
		{"expression with braces and quotes", `{"template":"${ {'}': data.id}['}'] } ${` + "`}`" + `}"}`, asText, `A-1 }`},
		{"expression of time", `{"template":"${time.Year()} ${time} ${ (time) } ${time - time}"}`, asText, `2026 2026-11-30T12:00:00.5Z 2026-11-30T12:00:00.5Z 0s`},
		{"expression in JSON text", `{"template":"{\"n\": ${data.items[0].n + 1}, \"s\": \"${data.items[0].n + 1}\"}"}`, asJSON, `{"n": 2, "s": "2"}`},
		{"expression by index", `{"template":"${data.items[0].sku} ${data.items[len(data.items) - 1].sku} ${data['a-b']}"}`, asText, `x y dash`},
		{"a dash without spaces is part of a name", `{"template":"${data.a-b}"}`, asText, `dash`},

		{"aws", `{"paths":{"id":"$.data.id","total":"$.data.total","ship":"$.data.ship"},"template":"{\"order\": <id>, \"cost\": <total>, \"to\": <ship>, \"s\": \"<id> at <total>\"}"}`, asJSON,
			`{"order": "A-1", "cost": 12.50, "to": {"city":"Venezia"}, "s": "A-1 at 12.50"}`},
		{"aws string", `{"paths":{"id":"$.data.id","note":"$.data.note"},"template":"\"<id>: <note>\""}`, asJSON, `"A-1: two\nlines \"quoted\" <"`},
		{"aws object in a string", `{"paths":{"ship":"$.data.ship"},"template":"\"to <ship>\""}`, asJSON, `"to {\"city\":\"Venezia\"}"`},
		{"aws list", `{"paths":{"skus":"$.data.items[*].sku"},"template":"{\"skus\": <skus>}"}`, asJSON, `{"skus": ["x","y"]}`},
		{"aws missing", `{"paths":{"no":"$.data.nothing"},"template":"{\"v\": <no>, \"s\": \"<no>\"}"}`, asJSON, `{"v": null, "s": ""}`},
		{"aws alone", `{"paths":{"ship":"$.data.ship"},"template":" <ship> "}`, asJSON, ` {"city":"Venezia"} `},
		{"aws text", `{"paths":{"id":"$.data.id"},"template":"order <id> is < 5 and <!>"}`, asText, `order A-1 is < 5 and <!>`},
		{"aws object", `{"paths":{"id":"$.data.id"},"template":{"id":"<id>","s":"no. <id>"}}`, asJSON, `{"id":"A-1","s":"no. A-1"}`},
		{"aws variables", `{"paths":{},"template":"{\"r\": <aws.events.rule-name>, \"a\": \"<aws.events.rule-arn>\", \"t\": <aws.events.event.ingestion-time>}"}`, asJSON,
			`{"r": "to-ops", "a": "urn:rialto:rule:shop:to-ops", "t": "2026-11-30T12:00:01.5Z"}`},
		{"aws event without payload", `{"paths":{},"template":"{\"e\": <aws.events.event>}"}`, asJSON,
			`{"e": {"specversion":"1.0","id":"1","source":"/shop","type":"com.acme.order","subject":"say \"hi\"","time":"2026-11-30T12:00:00.5Z","datacontenttype":"application/json","dataschema":"https://acme.example/order","attempt":3,"test":true}}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tr, err := rules.ParseTransform([]byte(tt.transform))
			if err != nil {
				t.Fatal(err)
			}
			ev := order()
			for range 3 {
				out, err := tr.Apply(ev, orderContext)
				if err != nil {
					t.Fatal(err)
				}
				if string(out.Data) != tt.want || out.DataContentType != tt.contentType {
					t.Errorf("Apply = %s (%s), want %s (%s)", out.Data, out.DataContentType, tt.want, tt.contentType)
				}
				if tt.contentType == asJSON && !json.Valid(out.Data) {
					t.Errorf("Apply = %s, which is not JSON", out.Data)
				}
			}
		})
	}
}

// TestQuoting goes through what facts are recorded of AWS: which context quotes which value how. Where AWS drops the
// event, or writes what is no JSON, the row says what is done instead.
func TestQuoting(t *testing.T) {
	const paths = `{"s":"$.data.id","quoted":"$.subject","o":"$.data.ship","l":"$.data.items[*].sku","b":"$.data.paid","n":"$.data.total","z":"$.data.coupon","no":"$.data.nothing"}`
	for _, tt := range []struct{ name, template, want string }{
		{"JSON: a bare string is quoted", `{"v": <s>}`, `{"v": "A-1"}`},
		{"JSON: and escaped", `{"v": <quoted>}`, `{"v": "say \"hi\""}`},
		{"JSON: a bare object is as it is", `{"v": <o>}`, `{"v": {"city":"Venezia"}}`},
		{"JSON: a bare list is as it is", `{"v": <l>}`, `{"v": ["x","y"]}`},
		{"JSON: a bare boolean is as it is", `{"v": <b>}`, `{"v": true}`},
		{"JSON: a bare number keeps its digits", `{"v": <n>}`, `{"v": 12.50}`},
		{"JSON: a bare null is as it is", `{"v": <z>}`, `{"v": null}`},
		{"JSON: a string in quotes is spliced", `{"v": "<s>"}`, `{"v": "A-1"}`},
		{"JSON: with text around it", `{"v": "no. <s>!"}`, `{"v": "no. A-1!"}`},
		{"JSON: with quotes in it, escaped", `{"v": "<quoted>"}`, `{"v": "say \"hi\""}`},
		{"JSON: several in one string", `{"v": "<s>/<n>/<b>"}`, `{"v": "A-1/12.50/true"}`},
		{"JSON: an object in quotes is escaped, where AWS drops the event", `{"v": "<o>"}`, `{"v": "{\"city\":\"Venezia\"}"}`},
		{"JSON: with text before it, too", `{"v": "a/<o>"}`, `{"v": "a/{\"city\":\"Venezia\"}"}`},
		{"JSON: a list in quotes is escaped, where AWS drops the event", `{"v": "<l>"}`, `{"v": "[\"x\",\"y\"]"}`},
		{"JSON: nothing as a value is null, where AWS writes an empty string", `{"v": <no>}`, `{"v": null}`},
		{"JSON: nothing inside text is nothing", `{"v": "[<no>]"}`, `{"v": "[]"}`},
		{"string: stays a JSON string", `"order <s>"`, `"order A-1"`},
		{"string: an object is escaped, where AWS takes its quotes away", `"to <o>"`, `"to {\"city\":\"Venezia\"}"`},
		{"string: a list is escaped, where AWS takes its quotes away", `"all <l>"`, `"all [\"x\",\"y\"]"`},
		{"string: a boolean is its name", `"paid: <b>"`, `"paid: true"`},
		{"string: nothing is nothing", `"[<no>]"`, `"[]"`},
		{"text: strings are bare", `order <s> of <quoted>`, `order A-1 of say "hi"`},
		{"text: a < that begins no name is a <", `1 < 2 <s>`, `1 < 2 A-1`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			template, err := json.Marshal(tt.template)
			if err != nil {
				t.Fatal(err)
			}
			tr, err := rules.ParseTransform([]byte(`{"paths":` + paths + `,"template":` + string(template) + `}`))
			if err != nil {
				t.Fatal(err)
			}
			out, err := tr.Apply(order(), orderContext)
			if err != nil || string(out.Data) != tt.want {
				t.Errorf("Apply = %s, %v; want %s", out.Data, err, tt.want)
			}
		})
	}
}

func TestTransformKeepsTheRest(t *testing.T) {
	tr, err := rules.ParseTransform([]byte(`{"constant":{}}`))
	if err != nil {
		t.Fatal(err)
	}
	ev := order()
	out, err := tr.Apply(ev, orderContext)
	if err != nil {
		t.Fatal(err)
	}
	if out.ID != ev.ID || out.Subject != ev.Subject || len(out.Extensions) != 2 || out.DataSchema != "" {
		t.Errorf("Apply = %+v, want the attributes of the event and no dataschema", out)
	}
	if string(ev.Data) == "{}" || ev.DataSchema == "" {
		t.Error("Apply has changed the event it was given")
	}
}

func TestOriginal(t *testing.T) {
	for _, doc := range []string{`"original"`, `{"original":true}`} {
		tr, err := rules.ParseTransform([]byte(doc))
		if err != nil || tr != nil {
			t.Fatalf("ParseTransform(%s) = %v, %v; want nil", doc, tr, err)
		}
		ev := order()
		if out, err := tr.Apply(ev, orderContext); err != nil || out != ev {
			t.Errorf("Apply = %v, %v; want the event itself", out, err)
		}
	}
}

func TestTransformOfOtherData(t *testing.T) {
	for _, tt := range []struct{ name, contentType, data, template, want string }{
		{"text", "text/plain", "hello \"you\"", `{"template":{"said":"${data}"}}`, `{"said":"hello \"you\""}`},
		{"binary", "application/octet-stream", "\x00\xff", `{"template":{"d":"${data}","b":"${data_base64}"}}`, `{"d":null,"b":"AP8="}`},
		{"not what it says", "application/json", "{oops", `{"template":{"d":"${data.x}"}}`, `{"d":null}`},
		{"no type, JSON", "", ` {"x":1}`, `{"template":{"d":"${data.x}"}}`, `{"d":1}`},
		{"no type, not JSON", "", `oops`, `{"template":{"d":"${data}","b":"${data_base64}"}}`, `{"d":null,"b":"b29wcw=="}`},
		{"a bare value", "application/json", `41`, `{"template":"n is ${data}"}`, `n is 41`},
		{"repeated names", "application/json", `{"x":1,"x":2}`, `{"template":"${data.x}"}`, `2`},
		{"as deep as data may be", "application/json", strings.Repeat("[", 1000) + strings.Repeat("]", 1000), `{"template":"${type}"}`, "t"},
		{"half a pair", "application/json", `{"x":"\ud800"}`, `{"template":{"x":"${data.x}"}}`, "{\"x\":\"\ufffd\"}"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tr, err := rules.ParseTransform([]byte(tt.template))
			if err != nil {
				t.Fatal(err)
			}
			out, err := tr.Apply(&event.Event{ID: "1", Source: "/s", Type: "t", DataContentType: tt.contentType, Data: []byte(tt.data)}, rules.RenderContext{})
			if err != nil || string(out.Data) != tt.want {
				t.Errorf("Apply = %s, %v; want %s", out.Data, err, tt.want)
			}
		})
	}
}

func TestTransformRefused(t *testing.T) {
	for _, tt := range []struct{ name, transform, pointer, detail string }{
		{"number", `5`, "", "this is a number"},
		{"other word", `"orginal"`, "", "must be"},
		{"empty", `{}`, "", "exactly one"},
		{"two", `{"path":"$.data","constant":1}`, "", "exactly one"},
		{"unknown", `{"templat":"x"}`, "/templat", "did you mean template?"},
		{"twice", `{"constant":1,"constant":2}`, "/constant", "twice"},
		{"original false", `{"original":false}`, "/original", "must be true"},
		{"paths alone", `{"paths":{"a":"$.data"}}`, "/paths", "template"},
		{"path not a string", `{"path":["$"]}`, "/path", "must be a JSONPath"},
		{"path malformed", `{"path":"data.x"}`, "/path", "not a JSONPath"},
		{"path unclosed", `{"path":"$.data["}`, "/path", "not a JSONPath"},
		{"path of AWS", `{"path":"$.detail.x"}`, "/path", "payload is under data"},
		{"path of AWS type", `{"path":"$['detail-type']"}`, "/path", "attribute type"},
		{"path below an attribute", `{"path":"$.subject.x"}`, "/path", "one value"},
		{"path upper case", `{"path":"$.Data.x"}`, "/path", "cannot be an attribute"},
		{"path that multiplies", `{"path":"$[*,*,*,*][*,*,*,*][*,*,*,*][*,*,*,*]"}`, "/path", "multiply"},
		{"path that descends twice", `{"path":"$..a..b"}`, "/path", "descendant"},
		{"path that is absolute in a filter", `{"path":"$.data[?@.x == $.data.y]"}`, "/path", "use @"},
		{"path too long", `{"path":"$.data.` + strings.Repeat("x", 1100) + `"}`, "/path", "1024"},
		{"unclosed", `{"template":"a ${data.x"}`, "/template", "not closed"},
		{"unclosed in JSON", `{"template":{"a":{"b":["${data.x"]}}}`, "/template/a/b/0", "not closed"},
		{"empty placeholder", `{"template":"a ${}"}`, "/template", "empty"},
		{"no expression", `{"template":{"a":"${data.a -}"}}`, "/template/a", "no path, such as data.items[0].name or the JSONPath $.data['name'], and no expression: unexpected token EOF"},
		{"expression on an attribute", `{"template":"${subjct.x + 1}"}`, "/template", "holds no others"},
		{"expression of the clock", `{"template":"${now()}"}`, "/template", "the same event must give the same result"},
		{"expression as a name", `{"template":{"${1 + 1}":1}}`, "/template/${1 + 1}", "name of a member"},
		{"path step without end", `{"template":"${data.a[}"}`, "/template", "no path"},
		{"a dot at the end", `{"template":"${data.}"}`, "/template", "no path"},
		{"unknown variable", `{"template":"${rialto.rul}"}`, "/template", "rialto.rule"},
		{"attribute that cannot be", `{"template":"${Subject}"}`, "/template", "cannot be an attribute"},
		{"below an attribute", `{"template":{"x":"${subject.x}"}}`, "/template/x", "one value"},
		{"bad JSONPath", `{"template":"${$.data[}"}`, "/template", "not a JSONPath"},
		{"name", `{"template":{"a":{"${data.k}":1}}}`, "/template/a/${data.k}", "name of a member"},
		{"name twice", `{"template":{"a":1,"a":2}}`, "/template/a", "twice"},
		{"text that should be JSON", `{"template":"{\"a\": ${data.x"}`, "/template", "not closed"},
		{"text that is not JSON", `{"template":"{\"a\": ${data.x},}"}`, "/template", "not valid JSON"},
		{"name in text", `{"template":"{\"a${data.x}\" : 1}"}`, "/template", "name of a member"},
		{"value as a name in text", `{"template":"{\"b\":1, ${data.x} : 1}"}`, "/template", "name of a member"},
		{"behind a backslash", `{"template":"{\"a\": \"\\${data.x}\"}"}`, "/template", "backslash"},
		{"inside an escape", `{"template":"{\"a\": \"\\u00${data.x}41\"}"}`, "/template", "not valid JSON"},
		{"two values", `{"template":"{\"a\": ${data.x}${data.y}}"}`, "/template", "not valid JSON"},
		{"aws unknown", `{"paths":{"name":"$.data.x"},"template":"\"<nme>\""}`, "/template", "did you mean <name>?"},
		{"aws unknown in text", `{"paths":{},"template":"<b>bold"}`, "/template", "<b> is not in paths"},
		{"aws not JSON", `{"paths":{"a":"$.data.x"},"template":"[<a>, oops]"}`, "/template", "not valid JSON"},
		{"aws lines", `{"paths":{"a":"$.data.x"},"template":"\"one <a>\"\n\"two\""}`, "/template", `write one string with \n`},
		{"aws name", `{"paths":{"a b":"$.data.x"},"template":"x"}`, "/paths/a b", "letters, digits"},
		{"aws reserved name", `{"paths":{"AWS.x":"$.data.x"},"template":"x"}`, "/paths/AWS.x", "begin with aws"},
		{"aws path", `{"paths":{"a":"$.detail.x"},"template":"x"}`, "/paths/a", "payload is under data"},
		{"aws path not a string", `{"paths":{"a":1},"template":"x"}`, "/paths/a", "JSONPath"},
		{"aws paths not an object", `{"paths":[],"template":"x"}`, "/paths", "this is an array"},
		{"too long", `{"template":"` + strings.Repeat("x", rules.MaxTemplate) + `"}`, "/template", "at most 32768"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := rules.ParseTransform([]byte(tt.transform))
			checkRefused(t, err, tt.pointer, tt.detail)
		})
	}
}

// checkRefused wants an Invalid error with a detail at pointer that says detail.
func checkRefused(t *testing.T, err error, pointer, detail string) {
	t.Helper()
	var f *fault.Error
	if !errors.As(err, &f) || f.Kind != fault.Invalid {
		t.Fatalf("error = %v, want it refused", err)
	}
	for _, d := range f.Details {
		if d.Pointer == pointer && strings.Contains(d.Detail, detail) {
			return
		}
	}
	t.Errorf("error = %v, want %q at %q", err, detail, pointer)
}

func TestTransformFails(t *testing.T) {
	big := order()
	big.Data = []byte(`{"x":"` + strings.Repeat("y", 600_000) + `"}`)
	for _, tt := range []struct {
		name, transform string
		ev              *event.Event
		want            string
	}{
		{"path to nothing", `{"path":"$.data.nothing"}`, order(), "transform: the path $.data.nothing selects nothing in this event"},
		{"template too large", `{"template":"${data.x}${data.x}"}`, big, "transform: the result would have more than 1048576 bytes"},
		{"expression fails", `{"template":"${data.id - 1}"}`, order(), "transform: ${data.id - 1}: invalid operation: string - int (line 1, column 9)"},
		{"expression is no JSON", `{"template":{"x":"${data.paid ? 1 / 0 : 1}"}}`, order(), "transform: ${data.paid ? 1 / 0 : 1} results in what is no JSON value, such as a division by zero"},
		{"list too large", `{"path":"$.data['x','x']"}`, big, "transform: the result would have more than 1048576 bytes"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tr, err := rules.ParseTransform([]byte(tt.transform))
			if err != nil {
				t.Fatal(err)
			}
			out, err := tr.Apply(tt.ev, orderContext)
			if err == nil || err.Error() != tt.want {
				t.Errorf("Apply = %v, %v; want %s", out, err, tt.want)
			}
		})
	}
}
