// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"strings"
	"testing"

	"github.com/rialto-bridge/rialto/mqttgw/packet"
)

func TestCovers(t *testing.T) {
	for _, tt := range []struct {
		wide, narrow string
		want         bool
	}{
		{"a/b", "a/b", true},
		{"a/b", "a/c", false},
		{"a/b", "a", false},
		{"a", "a/b", false},
		{"#", "#", true},
		{"#", "+/x/#", true},
		{"#", "a", true},
		{"#", "$SYS/x", false},
		{"+/x", "$SYS/x", false},
		{"$SYS/#", "$SYS/x", true},
		{"a/#", "a", true},
		{"a/#", "a/#", true},
		{"a/#", "a/+/b", true},
		{"a/#", "#", false},
		{"a/#", "+", false},
		{"a/+", "a/#", false},
		{"a/+", "a/+", true},
		{"a/+", "a/b", true},
		{"a/+", "a/b/c", false},
		{"+/b", "+/b", true},
		{"a/b", "a/+", false},
		{"a/+/c", "a/b/+", false},
		{"dev/1/#", "#", false},
	} {
		if got := covers(tt.wide, tt.narrow); got != tt.want {
			t.Errorf("covers(%q, %q) = %v, want %v", tt.wide, tt.narrow, got, tt.want)
		}
	}
}

// FuzzCovers: what a filter covers never matches a topic that it does not match itself.
func FuzzCovers(f *testing.F) {
	for _, s := range [][3]string{{"a/#", "a/+", "a/b"}, {"+/x", "$a/x", "$a/x"}, {"#", "+/#", "a"}, {"a/+/c", "a/b/#", "a/b/c"}} {
		f.Add(s[0], s[1], s[2])
	}
	f.Fuzz(func(t *testing.T, wide, narrow, topic string) {
		if !packet.ValidFilter(wide) || !packet.ValidFilter(narrow) || !packet.ValidTopic([]byte(topic)) {
			return
		}
		if covers(wide, narrow) && matches(narrow, topic) && !matches(wide, topic) {
			t.Fatalf("%q covers %q, which matches %q, and does not match it itself", wide, narrow, topic)
		}
		if !covers(narrow, narrow) && !strings.HasPrefix(narrow, "+/#") {
			t.Fatalf("%q does not cover itself", narrow)
		}
	})
}

// FuzzAccessTemplate: a template reads back as it was written, and whatever it is filled in with, the filter has the levels
// and the wildcards of the template and no others.
func FuzzAccessTemplate(f *testing.F) {
	f.Add("dev/${clientid}/#", "box-17", "p", "x")
	f.Add("a/${principal}-${attr.site}/+", "+", "#", "a/b")
	f.Add("${attr.x", "", "", "")
	f.Add("$SYS/$x/${clientid}", "$share", "p", "\x00")
	f.Fuzz(func(t *testing.T, text, clientID, principal, site string) {
		tpl, err := parseTemplate(text)
		if err != nil {
			return
		}
		if tpl.String() != text {
			t.Fatalf("%q is read as %q", text, tpl)
		}
		if tpl.checkFilter() != nil {
			return
		}
		who := &subject{principal: principal, clientID: clientID, attributes: map[string]string{"site": site}}
		filter, err := tpl.filter(who)
		if err != nil {
			return
		}
		if strings.Count(filter, "/") != strings.Count(text, "/") || strings.Count(filter, "+")+strings.Count(filter, "#") != strings.Count(text, "+")+strings.Count(text, "#") {
			t.Fatalf("%q for %+v is %q", text, who, filter)
		}
		if strings.HasPrefix(filter, "$") && !strings.HasPrefix(text, "$") || strings.HasPrefix(filter, "$") && strings.HasPrefix(text, "${") {
			t.Fatalf("%q for %+v is %q", text, who, filter)
		}
	})
}

func TestClientIDTemplates(t *testing.T) {
	who := &subject{principal: "a*b", clientID: "", attributes: map[string]string{"n": "7"}}
	for _, tt := range []struct {
		template, id string
		want         bool
	}{
		{"x", "x", true},
		{"x*", "xyz", true},
		{"*", "", true},
		{"${principal}", "a*b", true},
		{"${principal}", "axb", false}, // a star in a value is a star
		{"${principal}-*", "a*b-1", true},
		{"*-${attr.n}", "dev-7", true},
		{"*-${attr.n}", "dev-8", false},
		{"${attr.none}*", "dev-7", false}, // a value that is not there widens nothing
		{"${attr.none}-7", "-7", false},
		{"ab*b", "ab", false},
	} {
		tpl, err := parseTemplate(tt.template)
		if err != nil {
			t.Fatal(err)
		}
		if got := tpl.matchesClientID(tt.id, who); got != tt.want {
			t.Errorf("%q for %q = %v, want %v", tt.template, tt.id, got, tt.want)
		}
	}
}

func someRights(t testing.TB) *rights {
	t.Helper()
	p, err := ParsePolicy([]byte(`{"name":"p","access":{"publish":["fleet/+/box/${clientid}/#","ack/${clientid}"],"subscribe":["cmd/${clientid}/#"],
		"retain":["fleet/+/box/${clientid}/state"],"will":["fleet/+/box/${clientid}/lost"]}}`))
	if err != nil {
		t.Fatal(err)
	}
	r, err := p.access.grant(&subject{principal: "b", clientID: "b1"})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestRights(t *testing.T) {
	r := someRights(t)
	for what, pair := range map[string][2]bool{
		"publish":               {r.mayPublish("fleet/7/box/b1/t", false), true},
		"publish elsewhere":     {r.mayPublish("fleet/7/box/b2/t", false), false},
		"retain":                {r.mayPublish("fleet/7/box/b1/state", true), true},
		"retain elsewhere":      {r.mayPublish("fleet/7/box/b1/t", true), false},
		"will":                  {r.mayWill("fleet/7/box/b1/lost", false), true},
		"will elsewhere":        {r.mayWill("fleet/7/box/b1/t", false), false},
		"retained will":         {r.mayWill("fleet/7/box/b1/lost", true), false},
		"subscribe":             {r.maySubscribe("cmd/b1/+"), true},
		"subscribe to more":     {r.maySubscribe("cmd/#"), false},
		"shared":                {r.maySubscribe("$share/g/cmd/b1/x"), true},
		"shared elsewhere":      {r.maySubscribe("$share/cmd/b1/x"), false},
		"receive":               {r.mayReceive("cmd/b1/a/b"), true},
		"receive elsewhere":     {r.mayReceive("cmd/b2/a"), false},
		"everything":            {(*rights)(nil).mayPublish("x", true), true},
		"nothing":               {(&rights{}).mayPublish("x", false), false},
		"nothing is subscribed": {(&rights{}).maySubscribe("x"), false},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%s: %v, want %v", what, pair[0], pair[1])
		}
	}
}

// Exceptions win over every list, and do not narrow what a wider filter may be subscribed to.
func TestExceptions(t *testing.T) {
	p, err := ParsePolicy([]byte(`{"name":"p","access":{"publish":["#"],"subscribe":["#"],"receive":["#"],"retain":["#"],"will":["#"],
		"publishExcept":["keys/#"],"subscribeExcept":["keys/+/secret","own/${clientid}"]}}`))
	if err != nil {
		t.Fatal(err)
	}
	r, err := p.access.grant(&subject{clientID: "c1"})
	if err != nil {
		t.Fatal(err)
	}
	for what, pair := range map[string][2]bool{
		"publish":             {r.mayPublish("a/b", true), true},
		"publish excepted":    {r.mayPublish("keys/1", false), false},
		"will excepted":       {r.mayWill("keys", false), false},
		"all":                 {r.maySubscribe("#"), true},
		"keys":                {r.maySubscribe("keys/#"), true},
		"excepted":            {r.maySubscribe("keys/1/secret"), false},
		"excepted filter":     {r.maySubscribe("keys/+/secret"), false},
		"excepted and shared": {r.maySubscribe("$share/g/keys/1/secret"), false},
		"filled in":           {r.maySubscribe("own/c1"), false},
		"of another":          {r.maySubscribe("own/c2"), true},
		"receive":             {r.mayReceive("keys/1"), true},
		"receive excepted":    {r.mayReceive("keys/1/secret"), false},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%s: %v, want %v", what, pair[0], pair[1])
		}
	}
	if _, err := p.access.grant(&subject{clientID: "+"}); err == nil {
		t.Error("a client id that would widen an exception is let in")
	}
}

func TestGateRightsAllocateNothing(t *testing.T) {
	r := someRights(t)
	if n := testing.AllocsPerRun(1000, func() {
		r.mayPublish("fleet/7/box/b1/t", true)
		r.mayReceive("cmd/b1/a/b")
		r.maySubscribe("$share/g/cmd/b1/#")
		r.mayWill("fleet/7/box/b1/lost", false)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkMayReceive(b *testing.B) {
	r := someRights(b)
	b.ReportAllocs()
	for b.Loop() {
		if !r.mayReceive("cmd/b1/a/b") {
			b.Fatal("not allowed")
		}
	}
}
