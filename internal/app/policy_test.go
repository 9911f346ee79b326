// SPDX-License-Identifier: Apache-2.0

package app_test

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	mqtt5 "github.com/eclipse/paho.golang/paho"
)

// schema registers a text and binds a type of events to it.
func (s *server) schema(name, text string, types ...string) {
	s.t.Helper()
	s.must("POST", "/v1/schemas/shop/"+name+"/versions", `{"schema":`+text+`}`)
	for _, typ := range types {
		s.must("PUT", "/v1/schemas/shop/"+name+"/types/"+typ, "")
	}
}

const needsN = `{"type":"object","required":["n"],"properties":{"n":{"type":"integer"}}}`

// An event that does not fit is refused with pointers, or stored in quarantine with its reasons, however it comes.
func TestSchemaPolicies(t *testing.T) {
	s, _ := start(t, options(t.TempDir()))
	s.schema("Order", needsN, "order")
	s.must("PUT", "/v1/buses/default", `{"schemaPolicy":"reject"}`)
	binary := []string{"ce-specversion", "1.0", "ce-id", "a", "ce-source", "/test", "ce-type", "order"}
	const events = "/v1/buses/default/events"
	for _, c := range []struct {
		name, body string
		header     []string
		status     int
		want       []string
	}{
		{"binary", `{"n":"s3cret"}`, binary, 422, []string{`urn:rialto:problem:unfit`, `"pointer":"/data/n"`}},
		{"binary that fits", `{"n":1}`, binary, 202, []string{"EV_default:1"}},
		{"structured", `{"specversion":"1.0","id":"b","source":"/test","type":"order","data":{"m":1}}`,
			[]string{"Content-Type", "application/cloudevents+json"}, 422, []string{`"pointer":"/data"`, `lacks \"n\"`}},
		{"batch", `[{"specversion":"1.0","id":"c","source":"/test","type":"order","data":{"n":1}},{"specversion":"1.0","id":"d","source":"/test","type":"order","data":{"n":"x"}}]`,
			[]string{"Content-Type", "application/cloudevents-batch+json"}, 422, []string{`"pointer":"/1/data/n"`}},
		{"a version of another schema", `{"n":1}`, append(binary, "ce-dataschema", s.url+"/v1/schemas/shop/Other/versions/1"), 422, []string{`"pointer":"/dataschema"`}},
		{"a version that is not there", `{"n":1}`, append(binary, "ce-dataschema", s.url+"/v1/schemas/shop/Order/versions/9"), 422, []string{`"pointer":"/dataschema"`}},
	} {
		status, answer := s.call("POST", events, c.body, c.header...)
		if status != c.status || strings.Contains(answer, "s3cret") {
			t.Errorf("%s: %d %s", c.name, status, answer)
		}
		for _, want := range c.want {
			if !strings.Contains(answer, want) {
				t.Errorf("%s: %s does not say %s", c.name, answer, want)
			}
		}
	}
	if status, _ := s.call("GET", events+"/c", ""); status != 404 {
		t.Errorf("a part of the batch was stored: %d", status)
	}

	s.must("PUT", "/v1/buses/default", `{"schemaPolicy":"quarantine","quarantineBus":"unfit"}`)
	status, answer := s.call("POST", events, `{"n":"x"}`, binary...)
	if status != 202 || !strings.Contains(answer, "EV_unfit:1") {
		t.Fatalf("quarantine: %d %s", status, answer)
	}
	stored := s.must("GET", "/v1/buses/unfit/events/a", "")
	for _, want := range []string{`"schemaviolation":"/data/n must be integer, and is string"`, `"quarantinedfrom":"default"`} {
		if !strings.Contains(stored, want) {
			t.Errorf("%s does not say %s", stored, want)
		}
	}
	s.settled("unfit", 20*time.Second)
	s.settled("default", 20*time.Second)
}

// A sender can do nothing about an event that the bus refuses, and comes again for ever if he is told so: the event is replaced by
// one that says why.
func TestSchemaPolicyOfSources(t *testing.T) {
	s, _ := start(t, options(t.TempDir()))
	s.schema("Order", needsN, "order")
	s.must("PUT", "/v1/buses/default", `{"schemaPolicy":"reject"}`)
	s.must("PUT", "/v1/sources/shop", `{"type":"webhook","config":{"provider":"generic","bearer":{"value":"a-token"},"event":{"id":"$.id","type":"order"}}}`)
	for _, body := range []string{`{"id":1,"n":1}`, `{"id":2,"n":"s3cret"}`} {
		if status, answer := s.call("POST", "/hooks/shop", body, "Authorization", "Bearer a-token"); status != 204 {
			t.Errorf("%s is answered %d %s", body, status, answer)
		}
	}
	found := s.must("GET", "/v1/buses/default/events?type=io.rialto.source.refused", "")
	if !strings.Contains(found, "/data/n: must be integer") || strings.Contains(found, "s3cret") {
		t.Errorf("%s", found)
	}
	if s.event("default", "1") == nil || s.event("default", "2") != nil {
		t.Error("stored is not what fits")
	}
	if doc := s.must("GET", "/v1/sources/shop", ""); !strings.Contains(doc, `"stored":2`) || !strings.Contains(doc, `"refused":1`) {
		t.Errorf("%s", doc)
	}
}

// Over MQTT 5 a refused message is told so by its reason code, and the connection goes on.
func TestSchemaPolicyOverMQTT(t *testing.T) {
	s, _ := start(t, options(t.TempDir()))
	s.schema("Publish", needsN, "io.rialto.mqtt.publish")
	s.must("PUT", "/v1/buses/devices", `{"schemaPolicy":"reject"}`)
	conn, err := net.Dial("tcp", s.mqtt)
	if err != nil {
		t.Fatal(err)
	}
	c := mqtt5.NewClient(mqtt5.ClientConfig{Conn: conn})
	ctx := context.Background()
	if _, err := c.Connect(ctx, &mqtt5.Connect{ClientID: "box", KeepAlive: 30, CleanStart: true}); err != nil {
		t.Fatal(err)
	}
	defer c.Disconnect(&mqtt5.Disconnect{})
	for _, m := range []struct {
		qos     byte
		payload string
		code    byte
	}{{1, `{"n":1}`, 0}, {1, `{"n":"x"}`, 0x99}, {2, `{"m":1}`, 0x99}, {1, `not JSON`, 0x99}, {2, `{"n":2}`, 0}} {
		answer, err := c.Publish(ctx, &mqtt5.Publish{Topic: "box/1", QoS: m.qos, Payload: []byte(m.payload)})
		if answer == nil {
			t.Fatalf("%s: %v", m.payload, err)
		}
		if answer.ReasonCode != m.code && !(m.code == 0 && answer.ReasonCode == 0x10) { // 0x10: nobody has subscribed
			t.Errorf("%s with QoS %d: reason code %#x, want %#x", m.payload, m.qos, answer.ReasonCode, m.code)
		}
	}
	stored := s.must("GET", "/v1/buses/devices/events?type=io.rialto.mqtt.publish", "")
	if n := strings.Count(stored, `"type":"io.rialto.mqtt.publish"`); n != 2 {
		t.Errorf("%d events are stored, want 2: %s", n, stored)
	}
}

// A bus that discovers makes schemas of what it sees; they are not enforced until somebody says so.
func TestSchemaDiscovery(t *testing.T) {
	o := options(t.TempDir())
	o.SchemaQuiet = 50 * time.Millisecond
	s, _ := start(t, o)
	s.must("PUT", "/v1/buses/default", `{"schemaPolicy":"reject","schemaDiscovery":true}`)
	s.publish("default", "1", "com.example.order", `{"total":12.5}`)
	var found string
	eventually(t, 20*time.Second, func() (string, bool) {
		status, answer := s.call("GET", "/v1/schemas/discovered/com.example.order/versions/1", "")
		found = answer
		return answer, status == 200
	})
	if !strings.Contains(found, `"state":"discovered"`) || !strings.Contains(found, `\"total\": {`) {
		t.Errorf("the version: %s", found)
	}
	if status := s.publish("default", "2", "com.example.order", `{"total":"much"}`); status != 202 {
		t.Errorf("a discovered version is enforced: %d", status)
	}
	s.must("PUT", "/v1/schemas/discovered/com.example.order/versions/1/state", `{"state":"active"}`)
	if status := s.publish("default", "3", "com.example.order", `{"total":"much"}`); status != 422 {
		t.Errorf("the active version is not enforced: %d", status)
	}
}

func TestSchemaExampleAndBindings(t *testing.T) {
	s, _ := start(t, options(t.TempDir()))
	s.schema("Order", orderSchemaText, "order")
	s.must("PUT", "/v1/buses/default", `{"schemaPolicy":"reject"}`)
	example := s.must("GET", "/v1/schemas/shop/Order/versions/latest/example", "")
	if status := s.publish("default", "1", "order", example); status != 202 {
		t.Errorf("the example is not valid: %d %s", status, example)
	}
	for lang, want := range map[string]string{"go": "type Order struct {", "ts": "export interface Order {", "python": "class Order:", "java": "public record Order("} {
		if code := s.must("GET", "/v1/schemas/shop/Order/versions/1/bindings/"+lang, ""); !strings.Contains(code, want) {
			t.Errorf("%s: %s", lang, code)
		}
	}
	if status, answer := s.call("GET", "/v1/schemas/shop/Order/versions/1/bindings/cobol", ""); status != 400 || !strings.Contains(answer, "python") {
		t.Errorf("another language: %d %s", status, answer)
	}
	if status, _ := s.call("GET", "/v1/schemas/shop/Order/versions/2/example", ""); status != 404 {
		t.Errorf("a version that is not there: %d", status)
	}
}

// orderSchemaText is the schema of an order of fifteen fields on two levels.
const orderSchemaText = `{"$schema":"https://json-schema.org/draft/2020-12/schema","type":"object",
"required":["orderId","placedAt","status","currency","total","customer","lines"],"properties":{
"orderId":{"type":"string","format":"uuid"},"placedAt":{"type":"string","format":"date-time"},"status":{"enum":["open","paid","sent"]},
"currency":{"type":"string","pattern":"^[A-Z]{3}$"},"total":{"type":"number","minimum":0},"coupon":{"type":["string","null"]},"express":{"type":"boolean"},
"note":{"type":"string","maxLength":200},"customer":{"$ref":"#/$defs/customer"},
"lines":{"type":"array","minItems":1,"items":{"type":"object","required":["sku","quantity"],"properties":{"sku":{"type":"string"},"quantity":{"type":"integer","minimum":1},"price":{"type":"number"}}}}},
"$defs":{"customer":{"type":"object","required":["id"],"properties":{"id":{"type":"string"},"email":{"type":"string","format":"email"},"country":{"type":"string"}}}}}`

const orderText = `{"orderId":"0192f7a0-5b1c-7def-8000-0123456789ab","placedAt":"2026-11-29T08:30:00Z","status":"paid","currency":"EUR","total":129.9,` +
	`"coupon":null,"express":false,"note":"leave it at the door","customer":{"id":"c-1042","email":"ada@example.com","country":"DE"},` +
	`"lines":[{"sku":"A-1","quantity":2,"price":49.95},{"sku":"B-7","quantity":1,"price":30}]}`

// BenchmarkSchemaPolicy takes events of fifteen fields and a thousand registered types in over HTTP, under each policy in
// turn. The figures are shares of what the same takes with the policy off.
func BenchmarkSchemaPolicy(b *testing.B) {
	const conns, turns, types = 256, 6, 1000
	s, cmd := spawn(b, b.TempDir())
	for i := range types {
		s.schema(fmt.Sprint("s", i), orderSchemaText, fmt.Sprint("order", i))
	}
	policies := []struct{ bus, doc string }{{"off", `{"schemaPolicy":"off"}`}, {"reject", `{"schemaPolicy":"reject"}`}, {"warn", `{"schemaPolicy":"warn","schemaSample":0.1}`}}
	addr := strings.TrimPrefix(s.url, "http://")
	n := max(b.N, 4000)
	send := func(bus, run string) (rate, cpu float64) {
		before := cpuOf(b, cmd.Process.Pid)
		took := load(b, addr, conns, n, 202, orderRequest(bus, addr, s.key, run, types))
		return float64(n) / took.Seconds(), float64((cpuOf(b, cmd.Process.Pid) - before).Microseconds()) / float64(n)
	}
	for _, p := range policies {
		s.must("PUT", "/v1/buses/"+p.bus, p.doc)
		send(p.bus, "warm")
	}
	rates, cpus := map[string][]float64{}, map[string][]float64{}
	b.ResetTimer()
	for turn := range turns {
		for i := range policies { // each is the first as often as the others
			p := policies[(turn+i)%len(policies)]
			rate, cpu := send(p.bus, fmt.Sprint(turn))
			rates[p.bus], cpus[p.bus] = append(rates[p.bus], rate), append(cpus[p.bus], cpu)
		}
	}
	for _, p := range policies {
		var shares []float64
		for i, r := range rates[p.bus] {
			shares = append(shares, 100*r/rates["off"][i])
		}
		b.ReportMetric(medianOf(shares), "%-"+p.bus)
		b.ReportMetric(medianOf(cpus[p.bus]), "cpu-us-"+p.bus)
	}
	b.ReportMetric(medianOf(rates["off"]), "events/s-off")
	b.ReportMetric(0, "ns/op")
}

// orderRequest is an order as a binary CloudEvent, of one type after the other.
func orderRequest(bus, host, key, run string, types int) func(dst []byte, i int) []byte {
	head := fmt.Sprintf("POST /v1/buses/%s/events HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\n"+
		"Content-Length: %d\r\nce-specversion: 1.0\r\nce-source: /bench/%s\r\nce-time: 2026-03-01T10:20:30Z\r\nce-type: order", bus, host, key, len(orderText), run)
	return func(dst []byte, i int) []byte {
		dst = append(dst, head...)
		dst = strconv.AppendInt(dst, int64(i%types), 10)
		dst = append(dst, "\r\nce-id: "...)
		dst = strconv.AppendInt(dst, int64(i), 10)
		dst = append(dst, "\r\n\r\n"...)
		return append(dst, orderText...)
	}
}
