// SPDX-License-Identifier: Apache-2.0

package outbound_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	acs "github.com/alibabacloud-go/openapi-util/service"
	"github.com/alibabacloud-go/tea/tea"

	"github.com/rialto-bridge/rialto/targets/outbound"
)

// What is signed for Alibaba Cloud is what the vendor's own library signs for the same request.
func TestAlibabaSigner(t *testing.T) {
	for _, c := range []struct{ path, query, body, token string }{
		{"/2023-03-30/functions/resize/invocations", "", `{"specversion":"1.0"}`, ""},
		{"/2023-03-30/functions/größe*~ 1/invocations", "qualifier=PROD", "", "sts-1"},
		{"", "b=2+3&a=z*~&c=%2Fä&empty=", "x", ""},
	} {
		u := &url.URL{Scheme: "https", Host: "123.cn-hangzhou.fc.aliyuncs.com", Path: c.path, RawQuery: c.query}
		m := outbound.Message{Method: http.MethodPost, URL: u, Body: []byte(c.body), Header: http.Header{
			"Content-Type": {"application/json"}, "X-Acs-Action": {" InvokeFunction "}, "X-Acs-Version": {"2023-03-30"}, "X-Fc-Invocation-Type": {"Sync"}}}
		now := time.Date(2027, 3, 1, 12, 0, 0, 5, time.FixedZone("", 3600))
		s := &outbound.AlibabaSigner{AccessKeyID: "LTAI-1", AccessKeySecret: "secret-1", SecurityToken: c.token}
		if err := s.Sign(t.Context(), &m, now); err != nil {
			t.Fatal(err)
		}
		headers := map[string]*string{"host": tea.String(u.Host)}
		for name, values := range m.Header {
			if name != "Authorization" {
				headers[strings.ToLower(name)] = tea.String(values[0])
			}
		}
		query := map[string]*string{}
		for name, values := range u.Query() {
			query[name] = tea.String(values[0])
		}
		algorithm := tea.String("ACS3-HMAC-SHA256")
		digest := acs.HexEncode(acs.Hash([]byte(c.body), algorithm))
		path := tea.String("")
		if c.path != "" {
			path = acs.GetEncodePath(tea.String(c.path))
		}
		want := acs.GetAuthorization(&tea.Request{Method: tea.String("POST"), Pathname: path, Query: query, Headers: headers},
			algorithm, digest, tea.String("LTAI-1"), tea.String("secret-1"))
		if got := m.Header.Get("Authorization"); got != *want {
			t.Errorf("%s?%s:\n%s, want\n%s", c.path, c.query, got, *want)
		}
		if m.Header.Get("X-Acs-Date") != "2027-03-01T11:00:00Z" || m.Header.Get("X-Acs-Content-Sha256") != *digest || m.Header.Get("X-Acs-Security-Token") != c.token {
			t.Errorf("the headers are %v", m.Header)
		}
	}
}

// No signature is like another, so that none can be sent again as a new request.
func TestAlibabaSignerTakesNewNonces(t *testing.T) {
	seen := map[string]bool{}
	for range 100 {
		m := outbound.Message{Method: http.MethodPost, URL: &url.URL{Host: "h"}, Header: http.Header{}}
		if err := new(outbound.AlibabaSigner).Sign(t.Context(), &m, time.Unix(0, 0)); err != nil {
			t.Fatal(err)
		}
		if nonce := m.Header.Get("X-Acs-Signature-Nonce"); len(nonce) != 32 || seen[nonce] {
			t.Fatalf("nonce %s", nonce)
		} else {
			seen[nonce] = true
		}
	}
}
