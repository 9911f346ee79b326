// SPDX-License-Identifier: Apache-2.0

package app_test

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// TestSchemasAgree writes documents through the API and validates what it answers, and what it refuses, against the
// schemas in /openapi.json.
func TestSchemasAgree(t *testing.T) {
	s, _ := start(t, options(t.TempDir()))
	var spec struct {
		Components struct{ Schemas map[string]json.RawMessage }
	}
	if err := json.Unmarshal([]byte(s.must("GET", "/openapi.json", "")), &spec); err != nil {
		t.Fatal(err)
	}
	valid := func(kind, doc string) error {
		c := jsonschema.NewCompiler()
		v, err := jsonschema.UnmarshalJSON(bytes.NewReader(spec.Components.Schemas[kind]))
		if err != nil {
			t.Fatal(err)
		}
		if err := c.AddResource("mem:"+kind, v); err != nil {
			t.Fatal(err)
		}
		sch, err := c.Compile("mem:" + kind)
		if err != nil {
			t.Fatalf("%s: %v", kind, err)
		}
		inst, err := jsonschema.UnmarshalJSON(bytes.NewReader([]byte(doc)))
		if err != nil {
			t.Fatal(err)
		}
		return sch.Validate(inst)
	}
	for _, c := range []struct {
		kind, path, doc string
		ok              bool
	}{
		{"Bus", "/v1/buses/orders", `{"kind":"Bus","name":"orders","labels":{"a":"b"},"description":"x","retention":{"maxAge":"24h","maxBytes":"20GiB"},"dedupWindow":"5m","schemaPolicy":"off"}`, true},
		{"Bus", "/v1/buses/orders", `{"name":"orders","nonsense":1}`, false},
		{"Bus", "/v1/buses/orders", `{"name":"orders","retention":{"maxBytes":"1GiB","overflow":"newest"}}`, true},
		{"Bus", "/v1/buses/orders", `{"name":"orders","retention":{"maxBytes":"1GiB","overflow":"priority","priority":{"type":["alarm"]},"reserve":"30%"}}`, true},
		{"Bus", "/v1/buses/orders", `{"name":"orders","retention":{"maxBytes":"1GiB","overflow":"refuse"}}`, false},
		{"Bus", "/v1/buses/orders", `{"name":"orders","retention":{"maxBytes":"1GiB","overflow":"priority","priority":{"type":["alarm"]},"reserve":"95%"}}`, false},
		{"Bus", "/v1/buses/orders", `{"name":"orders","schemaPolicy":"warn","schemaSample":0.1,"schemaDiscovery":true}`, true},
		{"Bus", "/v1/buses/orders", `{"name":"orders","schemaPolicy":"quarantine","quarantineBus":"unfit"}`, true},
		{"Bus", "/v1/buses/orders", `{"name":"orders","schemaPolicy":"strict"}`, false},
		{"Bus", "/v1/buses/orders", `{"name":"orders","schemaSample":0}`, false},
		{"Bus", "/v1/buses/orders", `{"name":"orders","quarantineBus":"A"}`, false},
		{"Bus", "/v1/buses/orders", `{"name":"orders","schemaDiscovery":1}`, false},
		{"Target", "/v1/targets/ops", `{"name":"ops","type":"http","config":{"url":"http://127.0.0.1:9/${subject}","method":"PUT","secrets":{"k":{"ref":"env:X"}},"headers":{"x-a":"${id}","x-b":{"value":"s"}},
			"body":{"json":{"a":["${data}",1]}},"success":[200,409],"answer":{"path":"$.code","equals":[0,"ok",null],"permanent":7},"auth":{"type":"bearer","token":{"ref":"env:X"}}}}`, true},
		{"Target", "/v1/targets/ops", `{"name":"ops","type":"http","config":{"url":"http://127.0.0.1:9/","body":{"form":{"a":1}}}}`, false},
		{"Target", "/v1/targets/fn", `{"name":"fn","type":"function","config":{"runtime":"http","preset":"openfaas","url":"http://127.0.0.1:9/","function":"f","invocation":"async","maxHops":3,"replyIds":"own","maxReply":"64KiB"}}`, true},
		{"Target", "/v1/targets/fn", `{"name":"fn","type":"function","config":{"runtime":"http","preset":"heroku","url":"http://127.0.0.1:9/"}}`, false},
		{"Target", "/v1/targets/far", `{"name":"far","type":"bus","config":{"bus":"default","maxHops":2}}`, true},
		{"Target", "/v1/targets/far", `{"name":"far","type":"bus","config":{"bus":"default","maxHops":0}}`, false},
		{"Target", "/v1/targets/ops", `{"kind":"Target","name":"ops","type":"webhook","config":{"url":"http://127.0.0.1:9/","mode":"structured","secret":{"ref":"env:X"},"headers":{"x-a":"b"}},
			"delivery":{"concurrency":4,"timeout":"5s","retry":{"maxAttempts":3,"maxAge":"1h","schedule":[0,"2s"]}}}`, true},
		{"Target", "/v1/targets/ops", `{"kind":"Target","name":"ops","type":"webhook","paused":true,"config":{"url":"http://127.0.0.1:9/"},
			"delivery":{"rateLimit":{"perSecond":0.5,"burst":3},"breaker":{"enabled":true,"window":"1m","minAttempts":5,"failurePercent":50,"open":"5s","maxOpen":"1m"},
			"retry":{"maxAttempts":3,"exponential":{"initial":"1s","factor":1.5,"max":"1h","jitter":0.1}},"status":{"permanent":[401],"retry":[422],"disable":[410,404]}}}`, true},
		{"Target", "/v1/targets/ops", `{"name":"ops","type":"pigeon","config":{}}`, false},
		{"Target", "/v1/targets/ops", `{"name":"ops","type":"webhook","config":{"uri":"http://127.0.0.1:9/"}}`, false},
		{"Target", "/v1/targets/ops", `{"name":"ops","type":"webhook","config":{"url":"http://127.0.0.1:9/"},"delivery":{"concurrency":0}}`, false},
		{"Target", "/v1/targets/ops", webhook(`"rateLimit":{"burst":3}`), false},
		{"Target", "/v1/targets/ops", webhook(`"rateLimit":{"perSecond":0}`), false},
		{"Target", "/v1/targets/ops", webhook(`"breaker":{"failurePercent":101}`), false},
		{"Target", "/v1/targets/ops", webhook(`"breaker":"off"`), false},
		{"Target", "/v1/targets/ops", webhook(`"retry":{"schedule":["1s"],"exponential":{}}`), false},
		{"Target", "/v1/targets/ops", webhook(`"retry":{"schedule":[5]}`), false},
		{"Target", "/v1/targets/ops", webhook(`"retry":{"exponential":{"factor":0.5}}`), false},
		{"Target", "/v1/targets/ops", webhook(`"status":{"retry":[302]}`), false},
		{"Target", "/v1/targets/ops", webhook(`"status":{"disable":[503]}`), false},
		{"Target", "/v1/targets/ops", `{"name":"ops","type":"webhook","paused":"yes","config":{"url":"http://127.0.0.1:9/"}}`, false},
		{"Rule", "/v1/buses/default/rules/warm", `{"kind":"Rule","name":"warm","bus":"default","description":"x","labels":{},"disabled":true,"pattern":{"type":["a"]},"targets":[{"target":"ops","transform":{"constant":"x"}}]}`, true},
		{"Rule", "/v1/buses/default/rules/warm", `{"name":"warm","pattern":{"type":["a"]},"when":"data.t > data.limit","sql":"source LIKE '/a/%'","targets":[{"target":"ops"}]}`, true},
		{"Rule", "/v1/buses/default/rules/warm", `{"name":"warm","pattern":{"type":["a"]},"when":7,"targets":[{"target":"ops"}]}`, false},
		{"Rule", "/v1/buses/default/rules/warm", `{"name":"warm","pattern":{"type":["a"]},"when":"","targets":[{"target":"ops"}]}`, false},
		{"Rule", "/v1/buses/default/rules/warm", `{"name":"warm","pattern":{"type":["a"]},"sql":"","targets":[{"target":"ops"}]}`, false},
		{"Rule", "/v1/buses/default/rules/warm", `{"name":"warm","pattern":{"type":["a"]}}`, false},
		{"Rule", "/v1/buses/default/rules/warm", `{"name":"warm","pattern":{},"targets":[{"target":"ops"}]}`, false},
		{"Device", "/v1/devices/box", `{"kind":"Device","name":"box","principal":"p","clientIds":["box-*"],"labels":{},"password":{"value":"secret enough"}}`, true},
		{"DevicePolicy", "/v1/devicepolicies/boxes", `{"kind":"DevicePolicy","name":"boxes","description":"x","labels":{},"access":{"connect":["${principal}-*"],"publish":["a/${clientid}/#"],
			"subscribe":[],"receive":["#"],"retain":["a/${attr.site}"],"will":["x"]},"publishRate":{"perSecond":0.5,"burst":3}}`, true},
		{"DevicePolicy", "/v1/devicepolicies/boxes", `{"name":"boxes"}`, false},
		{"DevicePolicy", "/v1/devicepolicies/boxes", `{"name":"boxes","access":{"publish":[""]}}`, false},
		{"DevicePolicy", "/v1/devicepolicies/boxes", `{"name":"boxes","access":{"write":["x"]}}`, false},
		{"DevicePolicy", "/v1/devicepolicies/boxes", `{"name":"boxes","publishRate":{"perSecond":0}}`, false},
		{"TokenIssuer", "/v1/tokenissuers/iam", `{"kind":"TokenIssuer","name":"iam","issuer":"https://iam","audience":["a"],"algorithms":["ES256"],"keys":{"jwksFile":"/x"},
			"principalClaim":"device","clientIdClaim":"cid","attributeClaims":{"site":"site"},"policy":"boxes"}`, true},
		{"TokenIssuer", "/v1/tokenissuers/iam", `{"name":"iam","issuer":"https://iam","audience":["a"],"algorithms":["HS256"],"keys":{"secret":{"ref":"env:X"}}}`, true},
		{"TokenIssuer", "/v1/tokenissuers/iam", `{"name":"iam","issuer":"https://iam","audience":["a"],"algorithms":["ES256"],"keys":{"discovery":true},"clockSkew":"1m"}`, true},
		{"TokenIssuer", "/v1/tokenissuers/iam", `{"name":"iam","issuer":"https://iam","audience":["a"],"algorithms":["ES256"],"keys":{"jwksUrl":"https://iam/keys"}}`, true},
		{"TokenIssuer", "/v1/tokenissuers/iam", `{"name":"iam","issuer":"https://iam","audience":["a"],"algorithms":["ES256"],"keys":{"discovery":false}}`, false},
		{"TokenIssuer", "/v1/tokenissuers/iam", `{"name":"iam","issuer":"https://iam","audience":[],"algorithms":["none"],"keys":{}}`, false},
		{"TokenIssuer", "/v1/tokenissuers/iam", `{"name":"iam","issuer":"https://iam","audience":["a"],"algorithms":["ES256"],"keys":{"pem":"x"}}`, false},
		{"TopicMapping", "/v1/topicmappings/fleet", `{"kind":"TopicMapping","name":"fleet","filter":"fleet/+/#","bus":"default","type":"t.{1}","subject":"{2}","extensions":{"truck":"{1}"},"subjectLevels":3,"lane":"up"}`, true},
		{"TopicMapping", "/v1/topicmappings/fleet", `{"name":"fleet"}`, false},
		{"TopicMapping", "/v1/topicmappings/fleet", `{"name":"fleet","filter":"$SYS/x"}`, false},
		{"TopicMapping", "/v1/topicmappings/fleet", `{"name":"fleet","filter":"x","lane":"down","type":"t"}`, true},
		{"TopicMapping", "/v1/topicmappings/fleet", `{"name":"fleet","filter":"x","lane":"down","bus":"default"}`, false},
		{"TopicMapping", "/v1/topicmappings/fleet", `{"name":"fleet","filter":"x","lane":"sideways"}`, false},
		{"TopicMapping", "/v1/topicmappings/fleet", `{"name":"fleet","filter":"cmd/+/#","lane":"down","device":"{1}"}`, true},
		{"TopicMapping", "/v1/topicmappings/fleet", `{"name":"fleet","filter":"cmd/+/#","device":"{1}"}`, false},
		{"TopicMapping", "/v1/topicmappings/fleet", `{"name":"fleet","filter":"cmd/+/#","lane":"down","device":"{1}","type":"t"}`, false},
		{"TopicMapping", "/v1/topicmappings/fleet", `{"name":"fleet","filter":"spBv1.0/#","decode":"sparkplug"}`, true},
		{"TopicMapping", "/v1/topicmappings/fleet", `{"name":"fleet","filter":"spBv1.0/#","decode":"sparkplug","lane":"down"}`, false},
		{"TopicMapping", "/v1/topicmappings/fleet", `{"name":"fleet","filter":"spBv1.0/#","decode":"protobuf"}`, false},
		{"TopicMapping", "/v1/topicmappings/fleet", `{"name":"fleet","filter":"x","extensions":{"Big":"x"}}`, false},
		{"Device", "/v1/devices/box", `{"name":"box","attributes":{"site":"turin"},"policy":"boxes","access":{"publish":["x"]},"publishRate":{"perSecond":5},"blocked":true}`, true},
		{"Device", "/v1/devices/box", `{"name":"box","blocked":"yes"}`, false},
		{"Device", "/v1/devices/box", `{"name":"box","password":{}}`, false},
		{"Device", "/v1/devices/box", `{"name":"box","password":{"value":"a","ref":"env:X"}}`, false},
	} {
		status, answer := s.call("PUT", c.path, c.doc)
		if taken := status == 200 || status == 201; taken != c.ok {
			t.Errorf("PUT %s: %d %s", c.doc, status, answer)
			continue
		}
		if err := valid(c.kind, c.doc); (err == nil) != c.ok {
			t.Errorf("schema of %s on %s: %v", c.kind, c.doc, err)
		}
		if c.ok {
			if err := valid(c.kind, answer); err != nil {
				t.Errorf("schema of %s on the answer %s: %v", c.kind, answer, err)
			}
		}
	}
}

// webhook is a target with a delivery policy.
func webhook(delivery string) string {
	return `{"name":"ops","type":"webhook","config":{"url":"http://127.0.0.1:9/"},"delivery":{` + delivery + `}}`
}
