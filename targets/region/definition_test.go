// SPDX-License-Identifier: Apache-2.0

package region

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/rialto-bridge/rialto/internal/fault"
)

func TestParseRegion(t *testing.T) {
	r, err := ParseRegion([]byte(`{"kind":"Region","name":"eu","description":"d","labels":{"a":"b"},"url":"https://eu.example.com:8443/rialto/","key":{"ref":"eu-key"},
		"tls":{"ca":{"ref":"file:/ca.pem"},"serverName":"eu"},"bandwidth":"1.5MiB","paused":true,"revision":7,"status":{},"createdAt":"x","updatedAt":"y"}`))
	if err != nil {
		t.Fatal(err)
	}
	if r.Name != "eu" || r.URL.String() != "https://eu.example.com:8443/rialto" || r.Key.Ref() != "eu-key" || r.TLS.CA.Ref() != "file:/ca.pem" || r.TLS.ServerName != "eu" ||
		r.Bandwidth != 3<<19 || !r.Paused || r.Labels["a"] != "b" || r.Description != "d" {
		t.Errorf("%+v", r)
	}
	for _, url := range []string{"http://127.0.0.1:8080", "http://localhost", "http://[::1]:80", "http://10.1.2.3:1", "http://a.localhost/x", "https://[2001:db8::1]"} {
		if _, err := ParseRegion([]byte(`{"name":"eu","url":"` + url + `","key":{"value":"k"}}`)); err != nil {
			t.Errorf("%s: %v", url, err)
		}
	}
	to := target{region: r, instance: "one", link: "l", epoch: "e", bus: "b", stream: "EV_a"}
	if got := to.url(); got != "https://eu.example.com:8443/rialto/v1/buses/b/link?epoch=e&instance=one&link=l&stream=EV_a" {
		t.Errorf("the inlet is at %s", got)
	}
}

func TestParseRegionNamesTheField(t *testing.T) {
	with := func(fields string) string {
		return `{"name":"eu","url":"https://eu.example.com","key":{"value":"k"},` + fields + `}`
	}
	for doc, pointers := range map[string]string{
		`{}`:                                      "/key /name /url",
		`[]`:                                      "",
		`{"name":`:                                "/name",
		`{} {}`:                                   "",
		`{"name":"eu","name":"eu"}`:               "/name",
		with(`"kind":"Link"`):                     "/kind",
		with(`"more":1`):                          "/more",
		with(`"bandwidth":"1B"`):                  "/bandwidth",
		with(`"bandwidth":"11GiB"`):               "/bandwidth",
		with(`"bandwidth":"fast"`):                "/bandwidth",
		with(`"bandwidth":true`):                  "/bandwidth",
		with(`"bandwidth":1e400`):                 "/bandwidth",
		with(`"tls":{"x":1}`):                     "/tls/x",
		with(`"tls":{"ca":{}}`):                   "/tls/ca",
		with(`"tls":{"ca":"pem"}`):                "/tls/ca",
		with(`"tls":{"key":{"ref":"k"}}`):         "/tls/certificate",
		with(`"tls":{"certificate":{"ref":"k"}}`): "/tls/key",
		with(`"tls":{"ca":{"value":"hunter2"}}`):  "/tls/ca",
		with(`"tls":{"key":{"value":"hunter2"},"certificate":{"value":"hunter2"}}`):         "/tls/certificate",
		`{"name":"eu","url":"http://eu.example.com","key":{"value":"k"}}`:                   "/url",
		`{"name":"eu","url":"http://8.8.8.8","key":{"value":"k"}}`:                          "/url",
		`{"name":"eu","url":"ftp://eu.example.com","key":{"value":"k"}}`:                    "/url",
		`{"name":"eu","url":"https://u:hunter2@eu.example.com","key":{"value":"k"}}`:        "/url",
		`{"name":"eu","url":"https://eu.example.com?a=hunter2","key":{"value":"k"}}`:        "/url",
		`{"name":"eu","url":"https://eu.example.com#a","key":{"value":"k"}}`:                "/url",
		`{"name":"eu","url":"https://eu.example.com:0","key":{"value":"k"}}`:                "/url",
		`{"name":"eu","url":"https://","key":{"value":"k"}}`:                                "/url",
		`{"name":"eu","url":"https://eu.example.com","key":"hunter2"}`:                      "/key",
		`{"name":"eu","url":"https://eu.example.com","key":{"value":"hunter2 with blank"}}`: "/key",
		`{"name":"eu","url":"https://eu.example.com","key":{"ref":"Not A Name"}}`:           "/key",
		`{"name":"eu","url":"http://10.0.0.1","key":{"value":"k"},"tls":{}}`:                "/tls",
	} {
		_, err := ParseRegion([]byte(doc))
		if got := pointersOf(t, err); got != pointers {
			t.Errorf("%s: complaints at %q, want %q: %v", doc, got, pointers, err)
		}
		if err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", doc, err)
		}
	}
}

// pointersOf lists where the complaints of an error are.
func pointersOf(t *testing.T, err error) string {
	t.Helper()
	var f *fault.Error
	if !errors.As(err, &f) || f.Kind != fault.Invalid || len(f.Details) == 0 {
		t.Errorf("%v is not of kind Invalid", err)
		return "none"
	}
	var all []string
	for _, d := range f.Details {
		all = append(all, d.Pointer)
	}
	slices.Sort(all)
	return strings.Join(slices.Compact(all), " ")
}

func TestParseLink(t *testing.T) {
	l, err := ParseLink([]byte(`{"kind":"Link","name":"up","region":"eu","pattern":{"type":["a"]},"when":"data.n > 1","transform":{"path":"$.data"},
		"urgent": {"type": [ "b" ]},"start":"2027-01-02T03:04:05Z","labels":{"a":"b"},"description":"d","status":{}}`))
	if err != nil {
		t.Fatal(err)
	}
	if l.Name != "up" || l.Region != "eu" || l.Bus != "default" || l.To != "default" || l.Ordering != OrderNone || l.Urgent != `{"type":["b"]}` || l.Paused ||
		l.Rule.When == nil || l.Rule.Targets[0].Transform == nil || l.Labels["a"] != "b" || l.Description != "d" {
		t.Errorf("%+v", l)
	}
	if l, err = ParseLink([]byte(`{"name":"up","region":"eu","bus":"a","pattern":{"type":["a"]},"ordering":"log","paused":true}`)); err != nil || l.To != "a" || l.Ordering != OrderLog || !l.Paused {
		t.Errorf("%+v, %v", l, err)
	}
	if l, err = ParseLink([]byte(`{"name":"up","region":"eu","bus":"a","to":"b","pattern":{"type":["a"]},"transform":"original"}`)); err != nil || l.To != "b" || l.Bus != "a" {
		t.Errorf("%+v, %v", l, err)
	}
}

func TestParseLinkNamesTheField(t *testing.T) {
	with := func(fields string) string {
		return `{"name":"up","region":"eu","pattern":{"type":["a"]},` + fields + `}`
	}
	for doc, pointers := range map[string]string{
		`{}`: "/name /region",
		`{"name":"up","region":"eu","pattern":{}}`:                          "/pattern",
		`{"name":"up","region":"eu","pattern":{"type":["a"],"type":["b"]}}`: "/pattern/type",
		`{"name":"up","region":"eu","pattern":{"type":"a"}}`:                "/pattern/type",
		`{"name":"up","region":"eu","pattern":{"detail":{"a":["b"]}}}`:      "/pattern/detail/a",
		`{"name":"up","region":"eu","pattern":{"type":[{"prefixx":"b"}]}}`:  "/pattern/type/0/prefixx",
		with(`"when":"data.n >"`):                                           "/when",
		with(`"when":5`):                                                    "/when",
		with(`"transform":{"x":1}`):                                         "/transform/x",
		with(`"transform":{"path":"$["}`):                                   "/transform/path",
		with(`"urgent":{"type":"a"}`):                                       "/urgent/type",
		with(`"urgent":{}`):                                                 "/urgent",
		with(`"urgent":{"type":["a"]},"ordering":"log"`):                    "/urgent",
		with(`"ordering":"key"`):                                            "/ordering",
		with(`"start":"yesterday"`):                                         "/start",
		with(`"bus":"A"`):                                                   "/bus",
		with(`"to":"-"`):                                                    "/to",
		with(`"paused":"yes"`):                                              "/paused",
		with(`"kind":"Region"`):                                             "/kind",
		with(`"sql":"a = 1"`):                                               "/sql",
		with(`"start":5`):                                                   "/start",
	} {
		_, err := ParseLink([]byte(doc))
		if got := pointersOf(t, err); got != pointers {
			t.Errorf("%s: complaints at %q, want %q: %v", doc, got, pointers, err)
		}
	}
}

// What the schemas say is JSON, and documents that are read fit them.
func TestSchemasAreJSON(t *testing.T) {
	for name, s := range map[string]string{"region": RegionSchema, "link": LinkSchema, "link status": LinkStatusSchema, "region status": RegionStatusSchema} {
		if !json.Valid([]byte(s)) {
			t.Errorf("the schema of %s is not JSON", name)
		}
		mustForm(s)
	}
	status, err := json.Marshal(LinkStatus{State: Running, Region: "eu", Error: &LinkError{}, Account: &Account{Urgent: &LaneAccount{}}})
	if err != nil {
		t.Fatal(err)
	}
	if details := mustForm(LinkStatusSchema).Complaints("", status); len(details) > 0 {
		t.Errorf("a status does not fit its schema: %v", details)
	}
	if status, err = json.Marshal(RegionStatus{State: Idle}); err != nil {
		t.Fatal(err)
	}
	if details := mustForm(RegionStatusSchema).Complaints("", status); len(details) > 0 {
		t.Errorf("a status does not fit its schema: %v", details)
	}
}

func FuzzDefinition(f *testing.F) {
	f.Add([]byte(`{"name":"eu","url":"https://eu.example.com","key":{"value":"k"},"bandwidth":"1MiB","tls":{"ca":{"ref":"a"}}}`))
	f.Add([]byte(`{"name":"up","region":"eu","pattern":{"type":["a"]},"urgent":{"type":["b"]},"when":"true","transform":{"path":"$.data"},"start":"earliest"}`))
	f.Fuzz(func(t *testing.T, doc []byte) {
		if r, err := ParseRegion(doc); err == nil {
			if r.URL == nil || r.Name == "" || r.Key.IsZero() || r.Bandwidth != 0 && (r.Bandwidth < minBandwidth || r.Bandwidth > maxBandwidth) {
				t.Errorf("%s is read as %+v", doc, r)
			}
			to := target{region: r, bus: "b"}
			_ = to.url()
		}
		l, err := ParseLink(doc)
		if err != nil {
			return
		}
		st := &state{Start: 1}
		if l.Rule == nil || l.Name == "" || !st.adopt(l.Urgent, 1) {
			t.Fatalf("%s is read as %+v", doc, l)
		}
		if _, err := newMatcher(l, st.Segments, nil, nil); err != nil {
			t.Errorf("%s is read, and cannot be run: %v", doc, err)
		}
	})
}
