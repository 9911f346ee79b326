// SPDX-License-Identifier: Apache-2.0

package wasm_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/targets"
	"github.com/rialto-bridge/rialto/targets/wasm"
)

var results = []struct{ in, want string }{
	{``, "nothing"},
	{` {} `, "nothing"},
	{`{"data":{"a":1}}`, `application/json {"a":1}`},
	{`{"data":null}`, `application/json null`},
	{`{"data":"a\n","datacontenttype":"text/plain"}`, "text/plain a\n"},
	{`{"data":"a","datacontenttype":"application/vnd.x+json"}`, `application/vnd.x+json "a"`},
	{`{"data_base64":"AQI="}`, "application/octet-stream \x01\x02"},
	{`{"event":{"type":"a"}}`, `events a`},
	{`{"events":[{"type":"a","id":"1","source":"/s"},{"type":"b","data":[1]}]}`, `events a b`},
	{`{"events":[]}`, "nothing"},
	{`{"error":"no\u0000","retry":true}`, "refusal no true"},
	{`{"error":""}`, "refusal  false"},
	{`[]`, "error: not a JSON object"},
	{`{"data":1}{}`, "error: more than one JSON value"},
	{`{"data":1,"event":{"type":"a"}}`, "error: more than one of"},
	{`{"dta":1}`, `error: unknown member "dta"`},
	{`{"retry":true}`, "error: retry without error"},
	{`{"datacontenttype":"text/plain"}`, "error: datacontenttype without data"},
	{`{"data":1,"datacontenttype":"text/plain"}`, "error: must be a string"},
	{`{"data":1,"datacontenttype":"a\r\nb"}`, "error: "},
	{`{"error":1}`, "error: error of the result has the wrong type"},
	{`{"event":1}`, "error: event 0 of the result is not an object"},
	{`{"event":{"source":"/s"}}`, "error: type"},
	{`{"event":{"type":"a","Bad-Name":1}}`, "error: event 0"},
	{`{"events":[` + strings.Repeat(`{"type":"a"},`, wasm.MaxEvents) + `{"type":"a"}]}`, "error: at most 100"},
}

// brief is a result in a line.
func brief(r wasm.Result, err error) string {
	var refusal *wasm.Refusal
	switch {
	case errors.As(err, &refusal):
		return "refusal " + refusal.Message + " " + map[bool]string{true: "true", false: "false"}[refusal.Retry]
	case err != nil:
		return "error: " + err.Error()
	case r.Events != nil:
		s := "events"
		for _, ev := range r.Events {
			s += " " + ev.Type
		}
		return s
	case r.Data != nil:
		return r.DataContentType + " " + string(r.Data)
	}
	return "nothing"
}

func TestParseResult(t *testing.T) {
	for _, c := range results {
		got := brief(wasm.ParseResult([]byte(c.in), event.Limits{}))
		if want, isError := strings.CutPrefix(c.want, "error: "); got != c.want && !(isError && strings.HasPrefix(got, "error: ") && strings.Contains(got, want)) {
			t.Errorf("%s is %s, want %s", c.in, got, c.want)
		}
	}
}

// FuzzParseResult: what is taken is valid, and what is said of the rest can be shown.
func FuzzParseResult(f *testing.F) {
	for _, c := range results {
		f.Add([]byte(c.in))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := wasm.ParseResult(b, event.Limits{})
		if err != nil {
			if s := err.Error(); !utf8.ValidString(s) || strings.ContainsFunc(s, unicode.IsControl) || len(s) > 2048 {
				t.Errorf("error %q", s)
			}
			return
		}
		if r.Data != nil && (r.DataContentType == "" || r.Events != nil) || len(r.Events) > wasm.MaxEvents {
			t.Errorf("%s: %+v", b, r)
		}
		for _, ev := range r.Events {
			if ev.ID == "" {
				ev.ID = "1"
			}
			if ev.Source == "" {
				ev.Source = "/s"
			}
			if err := ev.Validate(event.Limits{}); err != nil {
				t.Errorf("%s: %v", b, err)
			}
		}
	})
}

// FuzzModule: code that anybody may have made is refused, or runs and is stopped in time.
func FuzzModule(f *testing.F) {
	f.Add(shout(f))
	f.Add(wat(f, behaving(`(call $fill) (global.set $half (f64.const 1)) (i64.const 0)`)))
	f.Add(wat(f, `(module (memory (export "memory") 1) (func (export "_start")))`))
	f.Fuzz(func(t *testing.T, code []byte) {
		rt := wasm.New(wasm.Options{})
		defer rt.Close()
		s := settings()
		s.Timeout, s.Memory = 20*time.Millisecond, 1<<20
		_, err := rt.Check(t.Context(), code, digest(code), s)
		if err != nil {
			var fe *fault.Error
			if !errors.As(err, &fe) || fe.Kind != fault.Invalid {
				t.Errorf("an error that is not about the code: %v", err)
			}
			return
		}
		fn := rt.Function(wasm.Spec{Name: "f", Digest: digest(code), Settings: s, Code: func(context.Context) ([]byte, error) { return code, nil }})
		for range 2 {
			var te *targets.Error
			if _, err := fn.Call(t.Context(), wasm.Call{Event: oneKiB}); err != nil && !errors.As(err, &te) {
				t.Errorf("%v is no *targets.Error", err)
			}
		}
	})
}
