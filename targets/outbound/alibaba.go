// SPDX-License-Identifier: Apache-2.0

package outbound

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"
)

const alibabaAlgorithm = "ACS3-HMAC-SHA256"

// AlibabaSigner signs messages for services of Alibaba Cloud (signature version 3). It is safe for concurrent use.
type AlibabaSigner struct {
	AccessKeyID, AccessKeySecret string
	SecurityToken                string // of temporary credentials; "" = none
}

// Sign adds Authorization and the headers X-Acs-Date, X-Acs-Signature-Nonce, X-Acs-Content-Sha256 and, with a token,
// X-Acs-Security-Token. It covers the method, the URL, the body, Content-Type and all X-Acs- headers, so it comes last. Which
// action of which version is meant the headers X-Acs-Action and X-Acs-Version say, if the service wants them.
func (s *AlibabaSigner) Sign(_ context.Context, m *Message, now time.Time) error {
	sum := sha256.Sum256(m.Body)
	body := hex.EncodeToString(sum[:])
	nonce := make([]byte, 16)
	if _, err := rand.Read(nonce); err != nil {
		return err
	}
	m.Header["X-Acs-Date"] = []string{now.UTC().Format("2006-01-02T15:04:05Z")}
	m.Header["X-Acs-Signature-Nonce"] = []string{hex.EncodeToString(nonce)}
	m.Header["X-Acs-Content-Sha256"] = []string{body}
	if s.SecurityToken != "" {
		m.Header["X-Acs-Security-Token"] = []string{s.SecurityToken}
	}
	headers, signed := alibabaHeaders(m)
	request := strings.Join([]string{m.Method, alibabaPath(m.URL), alibabaQuery(m.URL.Query()), headers, signed, body}, "\n")
	digest := sha256.Sum256([]byte(request))
	mac := hmac.New(sha256.New, []byte(s.AccessKeySecret))
	fmt.Fprintf(mac, "%s\n%x", alibabaAlgorithm, digest)
	m.Header["Authorization"] = []string{fmt.Sprintf("%s Credential=%s,SignedHeaders=%s,Signature=%x", alibabaAlgorithm, s.AccessKeyID, signed, mac.Sum(nil))}
	return nil
}

// alibabaHeaders are the headers that are signed, and their names.
func alibabaHeaders(m *Message) (headers, names string) {
	fields := map[string]string{"host": m.URL.Host}
	for name, values := range m.Header {
		if name = strings.ToLower(name); name != "content-type" && !strings.HasPrefix(name, "x-acs-") {
			continue
		}
		trimmed := make([]string, len(values))
		for i, v := range values {
			trimmed[i] = strings.TrimSpace(v)
		}
		slices.Sort(trimmed)
		fields[name] = strings.Join(trimmed, ",")
	}
	sorted := make([]string, 0, len(fields))
	for name := range fields {
		sorted = append(sorted, name)
	}
	slices.Sort(sorted)
	var b strings.Builder
	for _, name := range sorted {
		b.WriteString(name + ":" + fields[name] + "\n")
	}
	return b.String(), strings.Join(sorted, ";")
}

// alibabaEncode encodes as RFC 3986 has it.
func alibabaEncode(s string) string { return strings.ReplaceAll(url.QueryEscape(s), "+", "%20") }

// alibabaPath is a path in the form that is signed.
func alibabaPath(u *url.URL) string {
	if u.Path == "" {
		return "/"
	}
	segments := strings.Split(u.EscapedPath(), "/")
	for i, s := range segments {
		if plain, err := url.PathUnescape(s); err == nil { // else it is signed as it is sent
			segments[i] = alibabaEncode(plain)
		}
	}
	return strings.Join(segments, "/")
}

// alibabaQuery is a query in the form that is signed: sorted, and encoded as RFC 3986 has it.
func alibabaQuery(query url.Values) string {
	names := make([]string, 0, len(query))
	for name := range query {
		names = append(names, name)
	}
	slices.Sort(names)
	var pairs []string
	for _, name := range names {
		for _, value := range query[name] {
			pairs = append(pairs, alibabaEncode(name)+"="+alibabaEncode(value))
		}
	}
	return strings.Join(pairs, "&")
}
