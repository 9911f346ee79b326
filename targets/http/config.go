// SPDX-License-Identifier: Apache-2.0

package http

import (
	"encoding/json"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/rules"
	"github.com/rialto-bridge/rialto/targets/outbound"
)

// config is the config of a target, in the form that config.schema.json describes.
type config struct {
	outbound.AccessConfig
	Method         string                     `json:"method"`
	URL            string                     `json:"url"`
	Body           json.RawMessage            `json:"body"`
	ContentType    string                     `json:"contentType"`
	Secrets        map[string]json.RawMessage `json:"secrets"`
	IdempotencyKey bool                       `json:"idempotencyKey"`
	Success        []int                      `json:"success"`
	Answer         *answerConfig              `json:"answer"`
}

// settings is a config that has been read.
type settings struct {
	method      string
	url         *rules.Text
	headers     []header
	body        body
	contentType string
	secrets     []string // their names
	idempotent  bool
	static      bool // nothing of the request but the event itself is of the event
	terms       outbound.Terms
	answer      *answer // nil = nobody looks
}

// header is a header that is a template.
type header struct {
	name    string
	pointer string
	text    *rules.Text
}

// reader reads a config.
type reader struct {
	settings
	outbound.Reader
}

func parse(raw json.RawMessage) *reader {
	r := new(reader)
	var c config
	if err := json.Unmarshal(raw, &c); err != nil {
		r.Complain("", "is not a config of an http target")
		return r
	}
	r.method, r.idempotent, r.terms.Success = c.Method, c.IdempotencyKey, c.Success
	if r.method == "" {
		r.method = http.MethodPost
	}
	r.secrets = slices.Sorted(maps.Keys(c.Secrets))
	for _, name := range r.secrets {
		if !secretName.MatchString(name) {
			r.Complain(secretPointer(name), "is not a name: letters, digits and _, with a letter first")
		}
		r.Secret(secretPointer(name), c.Secrets[name], outbound.CheckText)
	}
	r.url = r.text("/url", c.URL, rules.FormURL)
	r.Read(c.AccessConfig, c.URL, r.header)
	r.readBody(&c)
	if i := slices.IndexFunc(c.Success, func(n int) bool { return n >= 300 && n <= 399 }); i >= 0 {
		r.Complain("/success", "has a redirect (3xx): those are never followed, and never success")
	}
	if c.Answer != nil {
		r.readAnswer(c.Answer)
	}
	r.static = r.url != nil && r.url.Static() && !slices.ContainsFunc(r.headers, func(h header) bool { return !h.text.Static() }) && r.body.static()
	return r
}

var secretName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_]{0,62}$`)

func secretPointer(name string) string { return "/secrets" + fault.Pointer(name) }

// text reads a template; nil if it is wrong, which is complained of.
func (r *reader) text(pointer, s string, form rules.Form) *rules.Text {
	t, err := rules.ParseText(s, form, r.secrets)
	if err != nil {
		r.Complain(pointer, "%v", err)
	}
	return t
}

// header takes headers with placeholders.
func (r *reader) header(name, text string) (taken bool, err error) {
	if !strings.Contains(text, "${") {
		return false, nil
	}
	t, err := rules.ParseText(text, rules.FormPlain, r.secrets)
	if err == nil {
		r.headers = append(r.headers, header{name, "/config/headers" + fault.Pointer(name), t})
	}
	return true, err
}
