// SPDX-License-Identifier: Apache-2.0

package targets_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/targets"
)

// echo is a kind with a little of everything in its schema.
func echo() targets.Kind {
	return targets.Kind{
		Name: "echo",
		ConfigSchema: []byte(`{
			"$schema": "https://json-schema.org/draft/2020-12/schema",
			"type": "object",
			"required": ["to"],
			"additionalProperties": false,
			"properties": {
				"to": {"type": "string", "minLength": 1, "maxLength": 8, "pattern": "^[a-z]*$"},
				"mode": {"enum": ["loud", "quiet"]},
				"times": {"type": "integer", "minimum": 1, "maximum": 3},
				"list": {"type": "array", "minItems": 1, "maxItems": 2, "uniqueItems": true, "items": {"type": "string"}},
				"key": {"oneOf": [{"type": "string"}, {"$ref": "#/$defs/key"}]}
			},
			"$defs": {"key": {"type": "object", "required": ["ref"], "additionalProperties": false, "properties": {"ref": {"type": "string"}}}}
		}`),
		Check: func(cfg json.RawMessage) error {
			if strings.Contains(string(cfg), `"nobody"`) {
				return fault.Invalidf("/to", "is nobody")
			}
			return nil
		},
		New: func(json.RawMessage, targets.Env) (targets.Target, error) { return nil, errors.New("out of order") },
	}
}

func catalog() *targets.Catalog { return targets.NewCatalog(echo()) }

func TestParseDefinition(t *testing.T) {
	got, err := targets.ParseDefinition([]byte(`{
		"kind": "Target", "name": "ops-1", "type": "echo", "description": "For the night shift",
		"labels": {"team": "cold-chain"},
		"config": {"to": "ops"},
		"delivery": {"concurrency": 16, "timeout": "5s", "retry": {"maxAttempts": 4, "maxAge": "2h", "schedule": [0, "1m30s"]}},
		"revision": 7, "createdAt": "2027-01-01T00:00:00Z", "updatedAt": "x", "status": {}
	}`), catalog())
	if err != nil {
		t.Fatal(err)
	}
	want := &targets.Definition{
		Name: "ops-1", Type: "echo", Description: "For the night shift", Labels: map[string]string{"team": "cold-chain"},
		Config: json.RawMessage(`{"to": "ops"}`),
		Delivery: targets.DeliveryPolicy{Concurrency: 16, Timeout: 5 * time.Second, Retry: targets.RetryPolicy{
			MaxAttempts: 4, MaxAge: 2 * time.Hour, Schedule: []time.Duration{0, 90 * time.Second},
		}, Breaker: targets.DefaultBreakerPolicy(), Status: targets.StatusPolicy{Disable: []int{410}}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestParseDefinitionRetry(t *testing.T) {
	for _, c := range []struct {
		retry    string
		attempts int
		waits    int
	}{
		{`{}`, 10, 9},
		{`{"maxAttempts": 3}`, 3, 9},
		{`{"maxAttempts": 12}`, 12, 9},
		{`{"schedule": []}`, 1, 0},
		{`{"schedule": [], "maxAttempts": 1}`, 1, 0},
		{`{"schedule": ["1s", "2s"]}`, 3, 2},
		{`{"schedule": null}`, 10, 9},
	} {
		d, err := targets.ParseDefinition([]byte(`{"name":"a","type":"echo","config":{"to":"b"},"delivery":{"retry":`+c.retry+`}}`), catalog())
		if err != nil {
			t.Errorf("retry %s: %v", c.retry, err)
			continue
		}
		if r := d.Delivery.Retry; r.MaxAttempts != c.attempts || len(r.Schedule) != c.waits {
			t.Errorf("retry %s: %d attempts, %d waits, want %d and %d", c.retry, r.MaxAttempts, len(r.Schedule), c.attempts, c.waits)
		}
	}
	d, err := targets.ParseDefinition([]byte(`{"name":"a","type":"echo","config":{"to":"b"}}`), catalog())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(targets.DefaultDeliveryPolicy(), d.Delivery); diff != "" {
		t.Errorf("a document without delivery (-want +got):\n%s", diff)
	}
}

func TestParseDefinitionDelivery(t *testing.T) {
	second, minute := time.Second, time.Minute
	for _, c := range []struct {
		delivery string
		change   func(*targets.DeliveryPolicy)
	}{
		{`{}`, func(*targets.DeliveryPolicy) {}},
		{`{"rateLimit":{"perSecond":2.5}}`, func(p *targets.DeliveryPolicy) { p.Rate = targets.RateLimit{PerSecond: 2.5, Burst: 3} }},
		{`{"rateLimit":{"perSecond":0.01}}`, func(p *targets.DeliveryPolicy) { p.Rate = targets.RateLimit{PerSecond: 0.01, Burst: 1} }},
		{`{"rateLimit":{"perSecond":50,"burst":1}}`, func(p *targets.DeliveryPolicy) { p.Rate = targets.RateLimit{PerSecond: 50, Burst: 1} }},
		{`{"breaker":{"enabled":false}}`, func(p *targets.DeliveryPolicy) { p.Breaker = targets.BreakerPolicy{} }},
		{`{"breaker":{"window":"1m","minAttempts":3,"failurePercent":50,"open":"1s","maxOpen":"1m"}}`, func(p *targets.DeliveryPolicy) {
			p.Breaker = targets.BreakerPolicy{Window: minute, MinAttempts: 3, FailurePercent: 50, Open: second, MaxOpen: minute}
		}},
		{`{"breaker":{"open":"30m"}}`, func(p *targets.DeliveryPolicy) { p.Breaker.Open, p.Breaker.MaxOpen = 30*minute, 30*minute }},
		{`{"retry":{"exponential":{}}}`, func(p *targets.DeliveryPolicy) {
			p.Retry.Schedule = nil
			p.Retry.Exponential = &targets.Exponential{Initial: 5 * second, Factor: 2, Max: 12 * time.Hour, Jitter: 0.2}
		}},
		{`{"retry":{"schedule":null,"maxAttempts":5,"exponential":{"initial":"1s","factor":1.5,"max":"1m","jitter":0}}}`, func(p *targets.DeliveryPolicy) {
			p.Retry = targets.RetryPolicy{MaxAttempts: 5, Exponential: &targets.Exponential{Initial: second, Factor: 1.5, Max: minute}}
		}},
		{`{"status":{"permanent":[401,500],"retry":[422],"disable":[404]}}`, func(p *targets.DeliveryPolicy) {
			p.Status = targets.StatusPolicy{Permanent: []int{401, 500}, Retry: []int{422}, Disable: []int{404}}
		}},
		{`{"status":{"permanent":[410]}}`, func(p *targets.DeliveryPolicy) {
			p.Status = targets.StatusPolicy{Permanent: []int{410}, Disable: []int{}}
		}},
		{`{"status":{"disable":[]}}`, func(p *targets.DeliveryPolicy) { p.Status.Disable = []int{} }},
	} {
		d, err := targets.ParseDefinition([]byte(`{"name":"a","type":"echo","paused":true,"config":{"to":"b"},"delivery":`+c.delivery+`}`), catalog())
		if err != nil {
			t.Errorf("%s: %v", c.delivery, err)
			continue
		}
		want := targets.DefaultDeliveryPolicy()
		c.change(&want)
		if diff := cmp.Diff(want, d.Delivery); diff != "" || !d.Paused {
			t.Errorf("%s: paused %v (-want +got):\n%s", c.delivery, d.Paused, diff)
		}
	}
}

func TestParseDefinitionRefusesDelivery(t *testing.T) {
	for _, c := range []struct{ delivery, pointers string }{
		{`{"rateLimit":5}`, "/rateLimit"},
		{`{"rateLimit":{"burst":2}}`, "/rateLimit/perSecond"},
		{`{"rateLimit":{"perSecond":0,"burst":0,"perMinute":1}}`, "/rateLimit/burst /rateLimit/perMinute /rateLimit/perSecond"},
		{`{"rateLimit":{"perSecond":1e6}}`, "/rateLimit/perSecond"},
		{`{"rateLimit":{"perSecond":"5"}}`, "/rateLimit/perSecond"},
		{`{"rateLimit":{"perSecond":1000,"burst":9}}`, "/rateLimit/burst"},
		{`{"breaker":false}`, "/breaker"},
		{`{"breaker":{"enabled":"no","window":"2h","minAttempts":0,"failurePercent":101,"open":"0s","maxOpen":"2h","close":1}}`,
			"/breaker/close /breaker/enabled /breaker/failurePercent /breaker/maxOpen /breaker/minAttempts /breaker/open /breaker/window"},
		{`{"breaker":{"open":"10s","maxOpen":"5s"}}`, "/breaker/maxOpen"},
		{`{"retry":{"schedule":["1s"],"exponential":{}}}`, "/retry/exponential"},
		{`{"retry":{"exponential":[]}}`, "/retry/exponential"},
		{`{"retry":{"exponential":{"initial":"0s","factor":0.5,"max":"200h","jitter":1.1,"base":2}}}`,
			"/retry/exponential/base /retry/exponential/factor /retry/exponential/initial /retry/exponential/jitter /retry/exponential/max"},
		{`{"retry":{"exponential":{"initial":"10s","max":"5s"}}}`, "/retry/exponential/max"},
		{`{"status":{"permanent":400,"retry":[302,"5xx",600],"disable":[503,429,404],"success":[1]}}`,
			"/status/disable/0 /status/disable/1 /status/permanent /status/retry/0 /status/retry/1 /status/retry/2 /status/success"},
		{`{"status":{"permanent":[404,404],"retry":[404]}}`, "/status/permanent/1 /status/retry/0"},
	} {
		_, err := targets.ParseDefinition([]byte(`{"name":"a","type":"echo","config":{"to":"b"},"delivery":`+c.delivery+`}`), catalog())
		var fe *fault.Error
		if !errors.As(err, &fe) {
			t.Errorf("%s: error %v, want an invalid one", c.delivery, err)
			continue
		}
		var got []string
		for _, d := range fe.Details {
			got = append(got, strings.TrimPrefix(d.Pointer, "/delivery"))
		}
		if diff := cmp.Diff(c.pointers, strings.Join(got, " ")); diff != "" {
			t.Errorf("%s: pointers (-want +got):\n%s\n%v", c.delivery, diff, err)
		}
	}
}

// secretText stands in refused documents at places where a secret could stand; no error may repeat it.
const secretText = "hunter2-hunter2"

func TestParseDefinitionRefuses(t *testing.T) {
	for _, c := range []struct {
		name, doc string
		pointers  string // of the complaints, in order
	}{
		{"nothing", ``, ""},
		{"not JSON", `{"name": `, "/name"},
		{"text after it", `{"name":"a","type":"echo","config":{"to":"b"}} x`, ""},
		{"two documents", `{"name":"a","type":"echo","config":{"to":"b"}}{}`, ""},
		{"a list", `[]`, ""},
		{"null", `null`, ""},
		{"a name twice", `{"name":"a","type":"echo","config":{"to":"b","to":"c"}}`, "/config/to"},
		{"not UTF-8", "{\"name\":\"a\xff\"}", ""},
		{"too deep", `{"name":"a","type":"echo","config":{"to":` + strings.Repeat("[", 100) + strings.Repeat("]", 100) + `}}`,
			"/config/to" + strings.Repeat("/0", 63)},
		{"too long", `{"description":"` + strings.Repeat("x", 300<<10) + `"}`, ""},
		{"empty", `{}`, "/name /type"},
		{"another kind of document", `{"kind":"Rule","name":"a","type":"echo","config":{"to":"b"}}`, "/kind"},
		{"bad name", `{"name":"Ops","type":"echo","config":{"to":"b"}}`, "/name"},
		{"name ends in -", `{"name":"ops-","type":"echo","config":{"to":"b"}}`, "/name"},
		{"name too long", `{"name":"` + strings.Repeat("a", 64) + `","type":"echo","config":{"to":"b"}}`, "/name"},
		{"name with a newline", `{"name":"a\n","type":"echo","config":{"to":"b"}}`, "/name"},
		{"name not text", `{"name":1,"type":"echo","config":{"to":"b"}}`, "/name"},
		{"unknown type", `{"name":"a","type":"fax","config":{}}`, "/type"},
		{"unknown fields", `{"name":"a","type":"echo","config":{"to":"b"},"colour":1,"a/b~c":2}`, "/a~1b~0c /colour"},
		{"labels", `{"name":"a","type":"echo","config":{"to":"b"},"labels":{"a":1,"":"x","b\u0007":"y"}}`, "/labels /labels/a /labels/b\a"},
		{"delivery", `{"name":"a","type":"echo","config":{"to":"b"},"delivery":{"concurrency":0,"timeout":"61s","speed":1}}`,
			"/delivery/concurrency /delivery/speed /delivery/timeout"},
		{"delivery is a list", `{"name":"a","type":"echo","config":{"to":"b"},"delivery":[]}`, "/delivery"},
		{"too much at once", `{"name":"a","type":"echo","config":{"to":"b"},"delivery":{"concurrency":257}}`, "/delivery/concurrency"},
		{"half an attempt", `{"name":"a","type":"echo","config":{"to":"b"},"delivery":{"retry":{"maxAttempts":1.5}}}`, "/delivery/retry/maxAttempts"},
		{"waits", `{"name":"a","type":"echo","config":{"to":"b"},"delivery":{"retry":{"schedule":["1s","-1s","200h",5,"soon"]}}}`,
			"/delivery/retry/schedule/1 /delivery/retry/schedule/2 /delivery/retry/schedule/3 /delivery/retry/schedule/4"},
		{"attempts without waits", `{"name":"a","type":"echo","config":{"to":"b"},"delivery":{"retry":{"maxAttempts":3,"schedule":[]}}}`,
			"/delivery/retry/maxAttempts"},
		{"no config", `{"name":"a","type":"echo"}`, "/config/to"},
		{"config is text", `{"name":"a","type":"echo","config":"` + secretText + `"}`, "/config"},
		{"config fields", `{"name":"a","type":"echo","config":{"tow":"` + secretText + `"}}`, "/config/to /config/tow"},
		{"config pattern", `{"name":"a","type":"echo","config":{"to":"HUNTER"}}`, "/config/to"},
		{"config length", `{"name":"a","type":"echo","config":{"to":"` + secretText + `"}}`, "/config/to /config/to"},
		{"config empty", `{"name":"a","type":"echo","config":{"to":""}}`, "/config/to"},
		{"config enum", `{"name":"a","type":"echo","config":{"to":"b","mode":"` + secretText + `"}}`, "/config/mode"},
		{"config number", `{"name":"a","type":"echo","config":{"to":"b","times":4}}`, "/config/times"},
		{"config small number", `{"name":"a","type":"echo","config":{"to":"b","times":0}}`, "/config/times"},
		{"config list", `{"name":"a","type":"echo","config":{"to":"b","list":["x","x"]}}`, "/config/list"},
		{"config long list", `{"name":"a","type":"echo","config":{"to":"b","list":["x","y",3]}}`, "/config/list /config/list/2"},
		{"config empty list", `{"name":"a","type":"echo","config":{"to":"b","list":[]}}`, "/config/list"},
		{"the alternative that was meant", `{"name":"a","type":"echo","config":{"to":"b","key":{"rfe":"` + secretText + `"}}}`,
			"/config/key/ref /config/key/rfe"},
		{"no alternative", `{"name":"a","type":"echo","config":{"to":"b","key":7}}`, "/config/key"},
		{"the kind's own check", `{"name":"a","type":"echo","config":{"to":"nobody"}}`, "/config/to"},
		{"everything at once", `{"name":"A","type":"echo","config":{"to":"b","mode":"x"},"delivery":{"timeout":"1ms"}}`,
			"/config/mode /delivery/timeout /name"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := targets.ParseDefinition([]byte(c.doc), catalog())
			var fe *fault.Error
			if !errors.As(err, &fe) || fe.Kind != fault.Invalid {
				t.Fatalf("error %v, want an invalid one", err)
			}
			var got []string
			for _, d := range fe.Details {
				got = append(got, d.Pointer)
				if d.Detail == "" || strings.Contains(d.Detail, "does not fit the schema") {
					t.Errorf("%s: detail %q says little", d.Pointer, d.Detail)
				}
			}
			if diff := cmp.Diff(c.pointers, strings.Join(got, " ")); diff != "" {
				t.Errorf("pointers (-want +got):\n%s\n%v", diff, err)
			}
			if strings.Contains(err.Error(), secretText) {
				t.Errorf("the error repeats a value: %v", err)
			}
		})
	}
}

func TestLoadDefinitionLeavesTheCheckOut(t *testing.T) {
	doc := []byte(`{"name":"a","type":"echo","config":{"to":"nobody"}}`)
	if _, err := targets.ParseDefinition(doc, catalog()); err == nil {
		t.Error("ParseDefinition accepted what Check refuses")
	}
	if _, err := targets.LoadDefinition(doc, catalog()); err != nil {
		t.Errorf("LoadDefinition: %v", err)
	}
	if _, err := targets.LoadDefinition([]byte(`{"name":"a","type":"echo","config":{"to":1}}`), catalog()); err == nil {
		t.Error("LoadDefinition accepted what the schema refuses")
	}
}

func TestCatalog(t *testing.T) {
	other := echo()
	other.Name = "alpha"
	c := targets.NewCatalog(echo(), other)
	if diff := cmp.Diff([]string{"alpha", "echo"}, c.Names()); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
	if k, ok := c.Lookup("echo"); !ok || k.Name != "echo" {
		t.Errorf("Lookup(echo) = %v, %v", k.Name, ok)
	}
	if _, ok := c.Lookup("fax"); ok {
		t.Error("Lookup(fax) found something")
	}
	if _, err := c.New(&targets.Definition{Name: "a", Type: "echo"}, targets.Env{}); err == nil || err.Error() != "target a: out of order" {
		t.Errorf("New = %v", err)
	}
	if _, err := c.New(&targets.Definition{Name: "a", Type: "fax"}, targets.Env{}); err == nil {
		t.Error("New made a target of an unknown kind")
	}
}

func TestCatalogPanicsOnErrorsOfTheProgram(t *testing.T) {
	away := echo()
	away.ConfigSchema = []byte(`{"$ref": "http://127.0.0.1:1/schema.json"}`)
	file := echo()
	file.ConfigSchema = []byte(`{"$ref": "file:///etc/hostname"}`)
	broken := echo()
	broken.ConfigSchema = []byte(`{"type": 7}`)
	for name, kinds := range map[string][]targets.Kind{
		"a name twice": {echo(), echo()}, "a schema elsewhere": {away}, "a schema in a file": {file}, "no schema": {broken}, "no name": {{}},
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			targets.NewCatalog(kinds...)
		}()
	}
}

func FuzzParseDefinition(f *testing.F) {
	for _, s := range []string{
		`{"name":"a","type":"echo","config":{"to":"b"}}`,
		`{"kind":"Target","name":"a","type":"echo","labels":{"a":"b"},"config":{"to":"b","key":{"ref":"x"}},"delivery":{"retry":{"schedule":[0,"1s"]}}}`,
		`{"name":"a","type":"echo","config":{"to":"b"},"delivery":{"rateLimit":{"perSecond":2},"breaker":{"open":"1s"},"retry":{"exponential":{"factor":3}},"status":{"disable":[404]}}}`,
		`{"name":"a","type":"echo","delivery":{"timeout":"1e9h"}}`, `{"name":`, `[]`, `{"a":{"a":1,"a":2}}`,
	} {
		f.Add([]byte(s))
	}
	kinds := catalog()
	f.Fuzz(func(t *testing.T, doc []byte) {
		d, err := targets.ParseDefinition(doc, kinds)
		if err != nil {
			if fault.KindOf(err) != fault.Invalid {
				t.Fatalf("%q: %v is not of kind invalid", doc, err)
			}
			return
		}
		p := d.Delivery
		if r := p.Retry; r.Exponential != nil || len(r.Schedule) > 0 {
			for attempt := 1; attempt < r.MaxAttempts; attempt++ {
				if d := targets.Next(r, attempt, errors.New("x"), noon, noon, middle); d.End == "" && d.At.Before(noon) {
					t.Fatalf("%q: attempt %d is due in the past: %+v", doc, attempt, d)
				}
			}
		}
		if d.Name == "" || p.Concurrency < 1 || p.Timeout < time.Second || p.Retry.MaxAttempts < 1 || !json.Valid(d.Config) || !json.Valid(doc) {
			t.Fatalf("%q became %+v", doc, d)
		}
	})
}

func TestOrdering(t *testing.T) {
	kinds := targets.NewCatalog(targets.Kind{Name: "test", ConfigSchema: []byte(`{}`)})
	parse := func(delivery string) (*targets.Definition, error) {
		return targets.ParseDefinition(fmt.Appendf(nil, `{"name":"t","type":"test","delivery":%s}`, delivery), kinds)
	}
	for delivery, pointer := range map[string]string{
		`{"ordering":"strict"}`:                    "/delivery/ordering",
		`{"ordering":1}`:                           "/delivery/ordering",
		`{"orderBy":"subject"}`:                    "/delivery/orderBy",
		`{"ordering":"none","onFailure":"skip"}`:   "/delivery/onFailure",
		`{"ordering":"key","onFailure":"wait"}`:    "/delivery/onFailure",
		`{"ordering":"key","orderBy":"data."}`:     "/delivery/orderBy",
		`{"ordering":"key","orderBy":"nothing()"}`: "/delivery/orderBy",
	} {
		_, err := parse(delivery)
		var fe *fault.Error
		if !errors.As(err, &fe) || fe.Kind != fault.Invalid || len(fe.Details) != 1 || fe.Details[0].Pointer != pointer {
			t.Errorf("%s: %v, want a complaint at %s", delivery, err, pointer)
		}
	}
	if d, err := parse(`{"ordering":"none"}`); err != nil || d.Delivery.Ordering != nil {
		t.Errorf("none: %+v, %v", d, err)
	}
	whole := &event.Event{Source: "/s", Subject: "u", Extensions: []event.Attribute{{Name: "partitionkey", Value: "p"}}, DataContentType: "application/json", Data: []byte(`{"id":"p"}`)}
	bare := &event.Event{Source: "/s"}
	key := func(by string, ev *event.Event) uint64 {
		t.Helper()
		d, err := parse(fmt.Sprintf(`{"ordering":"key","orderBy":%q}`, by))
		if err != nil {
			t.Fatal(err)
		}
		return d.Delivery.Ordering.Key("default", ev)
	}
	if p := key("", whole); p == 0 || p != key("partitionkey", whole) || p != key("data.id", whole) || p == key("subject", whole) {
		t.Errorf("keys of an event that has everything: %d", p)
	}
	if key("", bare) != key("source", bare) || key("subject", bare) != 0 || key("partitionkey", bare) != 0 || key("data.id", bare) != 0 {
		t.Error("keys of an event that has only a source")
	}
	o := targets.Ordering{By: "source"}
	if o.Key("default", bare) == o.Key("devices", bare) {
		t.Error("two buses share a key")
	}
}

func TestRateLimitsWithinEachOther(t *testing.T) {
	none, slow, bursts := targets.RateLimit{}, targets.RateLimit{PerSecond: 1, Burst: 3}, targets.RateLimit{PerSecond: 0.2, Burst: 60}
	both := targets.RateLimit{PerSecond: 0.2, Burst: 3}
	for _, c := range []struct{ a, b, want targets.RateLimit }{{none, none, none}, {none, slow, slow}, {slow, none, slow}, {slow, bursts, both}, {bursts, slow, both}} {
		if got := c.a.Within(c.b); got != c.want {
			t.Errorf("%+v within %+v: %+v, want %+v", c.a, c.b, got, c.want)
		}
	}
}

// Whatever is wrong with a document, what it says of order holds.
func TestHeldDefinition(t *testing.T) {
	d := targets.HeldDefinition("ops", []byte(`{"kind":"Target","name":"ops","type":"unknown","config":{"$sealed":"x"},"delivery":{"ordering":"key","concurrency":-1}}`))
	if d.Name != "ops" || d.Delivery.Ordering == nil {
		t.Errorf("definition %+v", d)
	}
	if d := targets.HeldDefinition("ops", []byte("{")); d.Name != "ops" || d.Delivery.Ordering != nil {
		t.Errorf("definition of what is no document %+v", d)
	}
}
