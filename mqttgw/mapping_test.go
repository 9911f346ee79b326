// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/mqttgw/packet"
)

func mapping(t testing.TB, doc string) *TopicMapping {
	t.Helper()
	m, err := ParseTopicMapping([]byte(doc))
	if err != nil {
		t.Fatalf("%s: %v", doc, err)
	}
	return m
}

func TestParseTopicMapping(t *testing.T) {
	for _, tt := range []struct {
		name, doc string
		want      []string
	}{
		{"whole", `{"kind":"TopicMapping","name":"fleet","filter":"fleet/+/box/+/#","bus":"devices","type":"com.acme.{3}","subject":"truck/{1}/box/{2}",
			"extensions":{"truck":"{1}","client":"{clientid}-{principal}-{topic}"},"subjectLevels":3,"lane":"up","labels":{"a":"b"},"description":"x"}`, nil},
		{"least", `{"name":"m","filter":"#"}`, nil},
		{"empty", `{}`, []string{"/name", "/filter"}},
		{"filters", `{"name":"m","filter":"a+/b"}`, []string{"/filter"}},
		{"server's", `{"name":"m","filter":"$SYS/#"}`, []string{"/filter"}},
		{"shared", `{"name":"m","filter":"$share/g/x"}`, []string{"/filter"}},
		{"wildcards that are not there", `{"name":"m","filter":"a/+/b","type":"{2}","subject":"{0}","extensions":{"x":"{01}"}}`, []string{"/type", "/subject", "/extensions/x"}},
		{"braces", `{"name":"m","filter":"a","type":"x}","subject":"{","extensions":{"x":"{what}"}}`, []string{"/type", "/subject", "/extensions/x"}},
		{"extension names", `{"name":"m","filter":"a","extensions":{"Big":"x","id":"x","a/b":"x","empty":"","averyveryveryverylongname":"x"}}`,
			[]string{"/extensions/Big", "/extensions/a~1b", "/extensions/averyveryveryverylongname", "/extensions/empty", "/extensions/id"}},
		{"bus, levels and lane", `{"name":"m","filter":"a","bus":"B","subjectLevels":9,"lane":"sideways"}`, []string{"/bus", "/subjectLevels", "/lane"}},
		{"lane down", `{"name":"m","filter":"a","lane":"down","type":"t","subject":"{topic}"}`, nil},
		{"lane down and what belongs to a bus", `{"name":"m","filter":"a","lane":"down","bus":"b","subjectLevels":3}`, []string{"/bus", "/subjectLevels"}},
		{"one device", `{"name":"m","filter":"cmd/+/#","lane":"down","device":"box-{1}"}`, nil},
		{"one device, and lane up", `{"name":"m","filter":"cmd/+/#","device":"{1}"}`, []string{"/device"}},
		{"one device, with bad templates", `{"name":"m","filter":"cmd/+/#","lane":"down","device":"{3}"}`, []string{"/device"}},
		{"one device and what a command has", `{"name":"m","filter":"cmd/+","lane":"down","device":"{1}","type":"t","subject":"s","extensions":{"x":"y"}}`,
			[]string{"/type", "/subject", "/extensions"}},
		{"Sparkplug", `{"name":"m","filter":"spBv1.0/#","decode":"sparkplug","type":"com.acme.{topic}"}`, nil},
		{"Sparkplug to devices", `{"name":"m","filter":"spBv1.0/#","decode":"sparkplug","lane":"down"}`, []string{"/decode"}},
		{"another decoder", `{"name":"m","filter":"spBv1.0/#","decode":"Sparkplug"}`, []string{"/decode"}},
		{"unknown field", `{"name":"m","filter":"a","typ":"x"}`, []string{"/typ"}},
		{"control character", `{"name":"m","filter":"a","type":"a\u0001"}`, []string{"/type"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := ParseTopicMapping([]byte(tt.doc))
			var got []string
			var fe *fault.Error
			if errors.As(err, &fe) {
				for _, d := range fe.Details {
					got = append(got, d.Pointer)
				}
			} else if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Errorf("pointers (-want +got):\n%s", d)
			}
		})
	}
}

func TestMostSpecificMappingWins(t *testing.T) {
	var all []*TopicMapping
	for i, filter := range []string{"#", "+/#", "a/#", "a/+/c", "a/b/#", "a/b/c", "a/+/+", "+/b/c", "a/b/c", "+/+/d/e"} {
		all = append(all, mapping(t, fmt.Sprintf(`{"name":"m%d","filter":%q}`, i, filter)))
	}
	root := indexMappings(all)
	for topic, want := range map[string]string{
		"x": "m1", "x/y": "m1", "a": "m2", "a/x": "m2", "a/x/y": "m6", "a/x/c": "m3", "a/b": "m4", "a/b/x": "m4", "a/b/c": "m5",
		"a/b/c/d": "m4", "z/b/c": "m7", "z/b/d": "m1", "z/b/d/e": "m9", "a/x/d/e": "m2",
	} {
		if got := root.find(topic); got == nil || got.Name != want {
			t.Errorf("%s: %v, want %s", topic, got, want)
		}
	}
	if m := (&mappingNode{}).find("a/b"); m != nil {
		t.Errorf("found %v in nothing", m)
	}
	// The same whatever the order in which they come.
	slices.Reverse(all)
	if got := indexMappings(all).find("a/b/c"); got.Name != "m5" {
		t.Errorf("found %s, want m5", got.Name)
	}
}

// FuzzMappings: what is found for a topic matches it, nothing is found only if nothing matches, and no other filter that
// matches says more at the first level in which they differ.
func FuzzMappings(f *testing.F) {
	f.Add("a/+/c\na/b/#\n#\n+/b/c", "a/b/c")
	f.Add("a/#\n+", "a")
	f.Add("+/+\na/b/c", "a/b")
	f.Fuzz(func(t *testing.T, filters, topic string) {
		if !packet.ValidTopic([]byte(topic)) || strings.HasPrefix(topic, "$") || len(filters) > 200 {
			return
		}
		var all []*TopicMapping
		for i, filter := range strings.Split(filters, "\n") {
			if packet.ValidFilter(filter) && !strings.HasPrefix(filter, "$") {
				all = append(all, &TopicMapping{Name: fmt.Sprintf("m%04d", i), Filter: filter})
			}
		}
		got := indexMappings(all).find(topic)
		for _, m := range all {
			switch {
			case !matches(m.Filter, topic):
				if got == m {
					t.Fatalf("%q is found for %q", m.Filter, topic)
				}
			case got == nil:
				t.Fatalf("nothing is found for %q, and %q matches", topic, m.Filter)
			case saysMore(m.Filter, got.Filter):
				t.Fatalf("%q is found for %q, and %q says more", got.Filter, topic, m.Filter)
			}
		}
		if got == nil {
			return
		}
		c := captures(nil, got.Filter, topic)
		if n := strings.Count(got.Filter, "+") + strings.Count(got.Filter, "#"); len(c) != n {
			t.Fatalf("%d captures of %q in %q, want %d", len(c), got.Filter, topic, n)
		}
	})
}

// saysMore compares two filters level by level.
func saysMore(a, b string) bool {
	rank := map[string]int{"+": 1, "#": 2}
	as, bs := strings.Split(a, "/"), strings.Split(b, "/")
	for i := range min(len(as), len(bs)) {
		if x, y := rank[as[i]], rank[bs[i]]; x != y {
			return x < y
		}
	}
	return len(as) < len(bs) && bs[len(as)] == "#" // a before a/#
}

// FuzzMapped: a template reads back as it was written.
func FuzzMapped(f *testing.F) {
	f.Add("com.acme.{1}.{topic}", 2)
	f.Add("{clientid}{principal}", 0)
	f.Add("{1}}", 1)
	f.Fuzz(func(t *testing.T, text string, wildcards int) {
		m, err := parseMapped(text, wildcards%64)
		if err != nil {
			return
		}
		if m.String() != text {
			t.Fatalf("%q is read as %q", text, m)
		}
		m.render("a/b", sessionKey{"p", "c"}, make([]string, 64))
	})
}

func TestMappingMakesTheEvent(t *testing.T) {
	m := mapping(t, `{"name":"m","filter":"fleet/+/box/+/#","type":"com.acme.{3}","subject":"truck/{1}/box/{2}",
		"extensions":{"truck":"{1}","who":"{principal}/{clientid}","rest":"{3}","odd":"{2}"}}`)
	d := event.MQTTDefaults{Source: "mqtt://gw/c"}
	topic := "fleet/7/box//a/b"
	m.apply(&d, topic, sessionKey{"p", "c"})
	ev, minted, err := event.FromMQTT(event.MQTTMessage{Topic: topic, Version: 5, Payload: []byte(`{"t":1}`)}, d, event.Limits{})
	if err != nil || !minted {
		t.Fatal(err, minted)
	}
	want := event.Event{Source: "mqtt://gw/c", Type: "com.acme.a/b", Subject: "truck/7/box/", DataContentType: "application/json", Data: []byte(`{"t":1}`),
		Extensions: []event.Attribute{{Name: "rest", Value: "a/b"}, {Name: "truck", Value: "7"}, {Name: "who", Value: "p/c"}}}
	if d := cmp.Diff(want, ev); d != "" {
		t.Errorf("event (-want +got):\n%s", d)
	}
}

func BenchmarkMapping(b *testing.B) {
	var all []*TopicMapping
	for i := range 1000 {
		all = append(all, mapping(b, fmt.Sprintf(`{"name":"m%d","filter":"fleet/%d/box/+/telemetry","type":"com.acme.telemetry","subject":"truck/%d/box/{1}"}`, i, i, i)))
	}
	root := indexMappings(all)
	b.ReportAllocs()
	for b.Loop() {
		m := root.find("fleet/777/box/17/telemetry")
		var d event.MQTTDefaults
		m.apply(&d, "fleet/777/box/17/telemetry", sessionKey{})
	}
}
