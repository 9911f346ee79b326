// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"crypto"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/rialto-bridge/rialto/internal/fault"
)

// eventbridge is Alibaba Cloud EventBridge with an HTTP target,
// https://www.alibabacloud.com/help/en/eventbridge/user-guide/signature-algorithm.
var eventbridge = &provider{
	name: "alibaba-eventbridge", title: "Alibaba Cloud EventBridge", fields: []string{"publicUrl", "token"}, within: 4 * time.Second, status: http.StatusOK,
	doc: "An HTTP or HTTPS event target with the URL of the hook and a token; `publicUrl` is the base of that URL, since it is part of what is signed. " +
		"The token tells your rules from those of other customers: the key that signs is everybody's. Events are CloudEvents and stay as they are; the target sends complete events.",
	open: func(h *hook) (receiver, error) {
		a := &alibaba{h: h, token: &secrets{sources: h.s.Token}, certs: newCertificates(h.env)}
		return a.receive, nil
	},
}

// alibabaHost is where the certificates are.
var alibabaHost = regexp.MustCompile(`^[a-z0-9-]+-eventbridge\.oss-accelerate\.aliyuncs\.com$`)

// alibabaTolerance is what the vendor asks for.
const alibabaTolerance = time.Minute

type alibaba struct {
	h     *hook
	token *secrets
	certs *certificates
}

func (a *alibaba) receive(ctx context.Context, r *request) (taken, error) {
	if err := a.prove(ctx, r); err != nil {
		return taken{}, err
	}
	r.Request = r.Clone(ctx)
	r.Header.Set("Content-Type", "application/cloudevents+json") // EventBridge says application/json
	return a.h.cloudEvents(r)
}

// alibabaHeaders are signed, in this order.
var alibabaHeaders = []string{"x-eventbridge-signature-timestamp", "x-eventbridge-hash-method", "x-eventbridge-signature-version",
	"x-eventbridge-signature-url", "x-eventbridge-signature-token"}

func (a *alibaba) prove(ctx context.Context, r *request) error {
	header, err := r.header("X-Eventbridge-Signature-V2")
	if err != nil {
		return err
	}
	sig, err := base64.StdEncoding.DecodeString(header)
	if err != nil {
		return errSignature
	}
	at, ok := parseWhen(r.Header.Get("X-Eventbridge-Signature-Timestamp"))
	if d := r.now.Sub(at); !ok || d > alibabaTolerance || d < -alibabaTolerance {
		return fault.New(fault.Forbidden, "the timestamp is more than %s away", alibabaTolerance)
	}
	certURL := r.Header.Get("X-Eventbridge-Signature-Url")
	u, err := url.Parse(certURL)
	if err != nil || u.Scheme != "https" || u.User != nil || !alibabaHost.MatchString(u.Host) {
		return fault.New(fault.Forbidden, "the URL of the certificate is not Alibaba Cloud's")
	}
	tokens, err := a.token.get(a.h.env)
	if err != nil {
		return err
	}
	if !equalAny(tokens, r.Header.Get("X-Eventbridge-Signature-Token")) {
		return errToken
	}
	if m := r.Header.Get("X-Eventbridge-Hash-Method"); m != "SHA256" && m != "SHA-256" {
		return fault.New(fault.Forbidden, "the hash method is not SHA256")
	}
	if err := r.read(); err != nil {
		return err
	}
	key, err := a.certs.get(ctx, certURL)
	if err != nil {
		return err
	}
	var signed strings.Builder
	signed.WriteString(a.h.s.PublicURL + r.URL.RequestURI() + "\n")
	for _, name := range alibabaHeaders {
		if v := r.Header.Get(name); v != "" {
			signed.WriteString(name + ": " + v + "\n")
		}
	}
	signed.Write(r.body)
	sum := sha256.Sum256([]byte(signed.String()))
	if rsa.VerifyPKCS1v15(key, crypto.SHA256, sum[:], sig) != nil {
		return errSignature
	}
	return nil
}
