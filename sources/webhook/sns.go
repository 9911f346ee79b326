// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"crypto"
	"crypto/rsa"
	_ "crypto/sha1"
	_ "crypto/sha256"
	"encoding/base64"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
)

// sns is Amazon SNS over HTTPS, https://docs.aws.amazon.com/sns/latest/dg/sns-verify-signature-of-message.html.
var sns = &provider{
	name: "aws-sns", title: "Amazon SNS", fields: []string{"topics"}, within: 14 * time.Second, age: snsAge, status: http.StatusOK,
	doc: "Subscribe the URL of the hook to a topic, protocol HTTPS, without raw message delivery (which is not signed). `topics` lists the ARNs: " +
		"everybody's topics are signed by the same Amazon. The subscription is confirmed by itself. `type` is `com.amazonaws.sns.Notification` and so on, `source` " +
		"the subscription's ARN, `subject` the message's.",
	open: func(h *hook) (receiver, error) {
		s := &snsReceiver{h: h, certs: newCertificates(h.env)}
		return s.receive, nil
	},
}

// snsHost is where Amazon keeps the certificates, and what a subscription is confirmed at.
var snsHost = regexp.MustCompile(`^sns\.[a-z0-9-]+\.amazonaws\.com(\.cn)?$`)

// snsCertificate is the name of a certificate there. At other paths the same host answers calls of its API, and some of those
// answers hold text that anybody has chosen, a certificate of his own for one.
var snsCertificate = regexp.MustCompile(`^/SimpleNotificationService-[0-9A-Za-z]+\.pem$`)

type snsReceiver struct {
	h     *hook
	certs *certificates
}

func (s *snsReceiver) receive(ctx context.Context, r *request) (taken, error) {
	if err := r.read(); err != nil {
		return taken{}, err
	}
	p, err := parsePayload(r.body)
	if err != nil {
		return taken{}, err
	}
	kind := p.text("Type")
	if err := s.prove(ctx, kind, p); err != nil {
		return taken{}, err
	}
	topic := p.text("TopicArn")
	if !slices.Contains(s.h.s.Topics, topic) {
		return taken{}, fault.New(fault.Forbidden, "the topic is not one of this source")
	}
	source := topic
	if arn := r.Header.Get("X-Amz-Sns-Subscription-Arn"); strings.HasPrefix(arn, topic+":") && kind != "SubscriptionConfirmation" { // the header is not signed
		source = arn
	}
	if kind == "SubscriptionConfirmation" {
		if err := s.confirm(ctx, p.text("SubscribeURL")); err != nil {
			return taken{}, err
		}
	}
	ev := r.jsonEvent(p.text("MessageId"), source, typeName("com.amazonaws.sns", kind), p.text("Subject"), p.when("Timestamp"), r.body)
	return taken{events: []event.Event{ev}}, nil
}

// confirm calls the URL that makes a subscription one.
func (s *snsReceiver) confirm(ctx context.Context, address string) error {
	if !isSNS(address) {
		return fault.New(fault.Forbidden, "the URL of the subscription is not Amazon's")
	}
	if _, err := fetch(ctx, s.h.env.HTTP, address); err != nil {
		return &fault.Error{Kind: fault.Unavailable, Message: "the subscription cannot be confirmed now", RetryAfter: time.Second, Err: err}
	}
	s.h.env.Logger.Info("subscription confirmed")
	return nil
}

func isSNS(address string) bool {
	u, err := url.Parse(address)
	return err == nil && u.Scheme == "https" && u.User == nil && snsHost.MatchString(u.Host)
}

func isSNSCertificate(address string) bool {
	u, err := url.Parse(address)
	return isSNS(address) && err == nil && snsCertificate.MatchString(u.EscapedPath()) && u.RawQuery == "" && !u.ForceQuery && u.Fragment == ""
}

// snsFields are what is signed, by type, in order; what is not there is left out.
var snsFields = map[string][]string{
	"Notification":             {"Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type"},
	"SubscriptionConfirmation": {"Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type"},
	"UnsubscribeConfirmation":  {"Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type"},
}

// snsHashes are the versions of signatures. Importing the packages makes the hashes available.
var snsHashes = map[string]crypto.Hash{"1": crypto.SHA1, "2": crypto.SHA256}

// prove checks the signature with the certificate that the message names, which must be at Amazon's.
func (s *snsReceiver) prove(ctx context.Context, kind string, p payload) error {
	fields, ok := snsFields[kind]
	if !ok {
		return fault.New(fault.Forbidden, "this is no message of SNS, or it is not signed")
	}
	certURL := p.first("SigningCertURL", "SigningCertUrl")
	if !isSNSCertificate(certURL) {
		return fault.New(fault.Forbidden, "the URL of the certificate is not Amazon's")
	}
	sig, err := base64.StdEncoding.DecodeString(p.text("Signature"))
	if err != nil || len(sig) == 0 {
		return errSignature
	}
	hash, ok := snsHashes[p.text("SignatureVersion")]
	if !ok {
		return fault.New(fault.Forbidden, "the version of the signature is not 1 or 2")
	}
	if !s.h.isFresh(p.when("Timestamp")) {
		return fault.New(fault.Forbidden, "the message is too old")
	}
	key, err := s.certs.get(ctx, certURL)
	if err != nil {
		return err
	}
	var signed strings.Builder
	for _, name := range fields {
		if v, ok := p[name]; ok {
			signed.WriteString(name + "\n" + scalar(v) + "\n")
		}
	}
	h := hash.New()
	h.Write([]byte(signed.String()))
	if rsa.VerifyPKCS1v15(key, hash, h.Sum(nil), sig) != nil {
		return errSignature
	}
	return nil
}

// snsAge is how old a message may be: SNS tries again for up to 23 days, by default for an hour, with the time of the first.
const snsAge = 24 * time.Hour

func (h *hook) isFresh(at time.Time) bool {
	d := h.env.Now().Sub(at)
	return d <= snsAge && d >= -h.s.tolerance
}
