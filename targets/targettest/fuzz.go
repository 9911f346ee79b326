// SPDX-License-Identifier: Apache-2.0

package targettest

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/targets"
)

// Robot is a kind under test that makes messages of events and reads what became of them in the body of the answer.
type Robot struct {
	Kind    targets.Kind
	Config  func(url string) string
	Accepts string                  // an answer that accepts
	Check   func(body []byte) error // says what is wrong with a message, whatever the event was
}

// FuzzRobot tries events, and answers, that nobody would think of: each message is one that the platform takes, and each answer
// is success or a *targets.Error that can be shown.
func FuzzRobot(f *testing.F, r Robot) {
	f.Add("com.acme.warm", "<!here> <@all> <at id=all></at> [x](https://evil.example)\n# x", `{"a":"<@U1> `+"```"+`"}`, "application/json", r.Accepts)
	f.Add("t", "", "\x00\xff", "image/png", `{"ok":false,"error":"x","errcode":-1,"errmsg":"\u0000\u001b[2J","code":1e3}`)
	f.Add("t", "é", "```\n.", "text/plain", `[{"errcode":`)
	var body []byte
	answer := ""
	far := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		var err error
		if body, err = io.ReadAll(req.Body); err != nil {
			body = nil
		}
		io.WriteString(w, answer)
	}))
	f.Cleanup(far.Close)
	to := Make(f, r.Kind, r.Config(far.URL), Env(f))
	f.Fuzz(func(t *testing.T, kind, subject, data, mime, says string) {
		d := Delivery()
		d.Event = &event.Event{ID: "1", Source: "/s", Type: kind, Subject: subject, DataContentType: mime, Data: []byte(data)}
		body, answer = nil, says
		res, err := to.Deliver(t.Context(), d)
		if wrong := r.Check(body); wrong != nil {
			t.Fatalf("%v: %s", wrong, body)
		}
		var te *targets.Error
		switch {
		case err == nil && res.Head != "" || says == r.Accepts && err != nil:
			t.Fatalf("%q gives %+v, %v", says, res, err)
		case err != nil && (!errors.As(err, &te) || !presentable(err.Error()) || len(err.Error()) > 512 || !presentable(strings.ReplaceAll(res.Head, "\n", ""))):
			t.Fatalf("%q gives %q, %q", says, err, res.Head)
		}
	})
}
