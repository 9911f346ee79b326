// SPDX-License-Identifier: Apache-2.0

package outbound

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/rialto-bridge/rialto/internal/fault"
)

// The types of auth.
const (
	AuthBearer  = "bearer"
	AuthBasic   = "basic"
	AuthAPIKey  = "apiKey"
	AuthOAuth2  = "oauth2"
	AuthAWS     = "awsSigV4"
	AuthAlibaba = "alibabaACS3"
)

// AuthConfig says how the bridge shows who it is.
type AuthConfig struct {
	Type            string            `json:"type"`
	Token           json.RawMessage   `json:"token"`
	Username        string            `json:"username"`
	Password        json.RawMessage   `json:"password"`
	Header          string            `json:"header"`
	Key             json.RawMessage   `json:"key"`
	TokenURL        string            `json:"tokenUrl"`
	ClientID        string            `json:"clientId"`
	ClientSecret    json.RawMessage   `json:"clientSecret"`
	ClientAuth      string            `json:"clientAuth"`
	Scope           string            `json:"scope"`
	Parameters      map[string]string `json:"parameters"`
	Region          string            `json:"region"`
	Service         string            `json:"service"`
	AccessKeyID     json.RawMessage   `json:"accessKeyId"`
	SecretAccessKey json.RawMessage   `json:"secretAccessKey"`
	SessionToken    json.RawMessage   `json:"sessionToken"`
}

// authFields says which members a type needs and which it may have.
var authFields = map[string]struct{ needs, may []string }{
	AuthBearer:  {needs: []string{"token"}},
	AuthBasic:   {needs: []string{"username", "password"}},
	AuthAPIKey:  {needs: []string{"header", "key"}},
	AuthOAuth2:  {needs: []string{"tokenUrl", "clientId", "clientSecret"}, may: []string{"clientAuth", "scope", "parameters"}},
	AuthAWS:     {needs: []string{"region", "service", "accessKeyId", "secretAccessKey"}, may: []string{"sessionToken"}},
	AuthAlibaba: {needs: []string{"accessKeyId", "secretAccessKey"}, may: []string{"sessionToken"}},
}

// secrets are the members that are secrets, and what they must be.
func (a *AuthConfig) secrets() map[string]struct {
	raw   json.RawMessage
	check func(string) error
} {
	return map[string]struct {
		raw   json.RawMessage
		check func(string) error
	}{
		"token": {a.Token, checkBearer}, "password": {a.Password, CheckText}, "key": {a.Key, checkFieldValue}, "clientSecret": {a.ClientSecret, CheckText},
		"accessKeyId": {a.AccessKeyID, checkBearer}, "secretAccessKey": {a.SecretAccessKey, CheckText}, "sessionToken": {a.SessionToken, checkBearer},
	}
}

// given is the members that are there.
func (a *AuthConfig) given() map[string]bool {
	given := map[string]bool{"username": a.Username != "", "header": a.Header != "", "tokenUrl": a.TokenURL != "", "clientId": a.ClientID != "",
		"clientAuth": a.ClientAuth != "", "scope": a.Scope != "", "parameters": a.Parameters != nil, "region": a.Region != "", "service": a.Service != ""}
	for name, s := range a.secrets() {
		given[name] = s.raw != nil
	}
	return given
}

// Auth reads how the bridge shows who it is; nil = it does not.
func (r *Reader) Auth(c *AuthConfig) {
	if c == nil {
		return
	}
	r.auth = c
	fields, secrets := authFields[c.Type], c.secrets()
	for name, given := range c.given() {
		at := "/auth" + fault.Pointer(name)
		switch needed := slices.Contains(fields.needs, name); {
		case needed && !given:
			r.Complain(at, "is missing, and auth of type %s needs it", c.Type)
		case given && !needed && !slices.Contains(fields.may, name):
			r.Complain(at, "is not for auth of type %s", c.Type)
		case given && secrets[name].raw != nil:
			r.Secret(at, secrets[name].raw, secrets[name].check)
		}
	}
	switch {
	case strings.Contains(c.Username, ":"):
		r.Complain("/auth/username", "has a colon, which ends the name of a user")
	case CheckText(c.Username) != nil:
		r.Complain("/auth/username", "has control characters")
	case c.Header != "" && (!isToken(c.Header) || reserved(c.Header, "")):
		r.Complain("/auth/header", "is not a header that can be given")
	}
	r.refuseSecret("/auth/parameters", c.Parameters)
	for name := range c.Parameters {
		switch name {
		case "", "grant_type", "client_id", "client_secret", "scope", "client_assertion", "client_assertion_type":
			r.Complain("/auth/parameters"+fault.Pointer(name), "is set by the bridge, or holds a secret, and cannot be given")
		}
	}
}

// authHeader is the header that auth sets, in canonical form; "" if there is none.
func (a *Access) authHeader() string {
	switch {
	case a.auth == nil:
		return ""
	case a.auth.Type == AuthAPIKey:
		return http.CanonicalHeaderKey(a.auth.Header)
	}
	return "Authorization"
}

// tokenForm is what a token is asked for with.
func (a *AuthConfig) tokenForm() url.Values {
	form := url.Values{}
	if a.Scope != "" {
		form.Set("scope", a.Scope)
	}
	for name, value := range a.Parameters {
		form.Set(name, value)
	}
	return form
}

// fill puts what auth sends into c.
func (a *AuthConfig) fill(c *shown, values map[string]string) {
	switch a.Type {
	case AuthBearer:
		c.header["Authorization"] = []string{"Bearer " + values["/auth/token"]}
	case AuthBasic:
		basic := Basic(a.Username, values["/auth/password"])
		c.header["Authorization"] = []string{basic}
		c.hide(strings.TrimPrefix(basic, "Basic "))
	case AuthAPIKey:
		c.header[http.CanonicalHeaderKey(a.Header)] = []string{values["/auth/key"]}
	case AuthOAuth2:
		c.clientSecret = values["/auth/clientSecret"]
	case AuthAlibaba:
		c.sign = (&AlibabaSigner{AccessKeyID: values["/auth/accessKeyId"], AccessKeySecret: values["/auth/secretAccessKey"],
			SecurityToken: values["/auth/sessionToken"]}).Sign
	case AuthAWS:
		c.sign = (&AWSSigner{Region: a.Region, Service: a.Service, AccessKeyID: values["/auth/accessKeyId"],
			SecretAccessKey: values["/auth/secretAccessKey"], SessionToken: values["/auth/sessionToken"]}).Sign
	}
}

// checkBearer wants printable ASCII without blanks.
func checkBearer(s string) error {
	if !isFieldValue(s) || strings.ContainsAny(s, " \t") {
		return errors.New("is not printable ASCII without blanks, of at most 4096 bytes")
	}
	return nil
}

// CheckText says why a text cannot be a secret that is sent: it has control characters, or is too long; nil if it can.
func CheckText(s string) error {
	if len(s) > 4096 || strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return errors.New("has control characters, or more than 4096 bytes")
	}
	return nil
}
