// SPDX-License-Identifier: Apache-2.0

package outbound

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/url"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sigv4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
)

// AWSSigner signs messages for services of AWS (Signature Version 4). It is safe for concurrent use.
type AWSSigner struct {
	Region, Service              string // such as eu-central-1 and lambda
	AccessKeyID, SecretAccessKey string
	SessionToken                 string // of temporary credentials; "" = none
}

// Sign adds Authorization, X-Amz-Date and, with a session token, X-Amz-Security-Token. All headers of the message are covered,
// so it comes last. The message has a URL of its own afterwards, with the query in the form that is signed; see SignedURL.
func (s *AWSSigner) Sign(ctx context.Context, m *Message, now time.Time) error {
	sum := sha256.Sum256(m.Body)
	u := *m.URL // the signer changes it, and it is shared
	m.URL = &u
	req := &http.Request{Method: m.Method, URL: m.URL, Host: m.URL.Host, Header: m.Header, ContentLength: int64(len(m.Body))}
	creds := aws.Credentials{AccessKeyID: s.AccessKeyID, SecretAccessKey: s.SecretAccessKey, SessionToken: s.SessionToken}
	return sigv4.NewSigner().SignHTTP(ctx, creds, req, hex.EncodeToString(sum[:]), s.Service, s.Region, now)
}

// SignedURL is a URL with its query in the form that AWSSigner sends, for who signs the URL before.
func SignedURL(u *url.URL) (*url.URL, error) {
	m := Message{Method: http.MethodGet, URL: u, Header: http.Header{}}
	err := new(AWSSigner).Sign(context.Background(), &m, time.Time{})
	return m.URL, err
}
