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
	"slices"
	"strings"
	"time"

	"github.com/rialto-bridge/rialto/internal/fault"
)

// eventbridge is Alibaba Cloud EventBridge with an HTTP target,
// https://www.alibabacloud.com/help/en/eventbridge/user-guide/signature-algorithm.
var eventbridge = &provider{
	name: "alibaba-eventbridge", title: "Alibaba Cloud EventBridge", fields: []string{"publicUrl", "token"}, optional: []string{"regions"},
	within: 4 * time.Second, status: http.StatusOK,
	doc: "An HTTP or HTTPS event target with the URL of the hook and a token; `publicUrl` is the base of that URL, since it is part of what is signed. " +
		"The token tells your rules from those of other customers: the key that signs is everybody's. Its certificate is taken from where " +
		"EventBridge of a region has it and from nowhere else; `regions` says of which, beyond or less than those that are known here. Events are CloudEvents and stay as they are; the target sends complete events.",
	open: func(h *hook) (receiver, error) {
		a := &alibaba{h: h, token: &secrets{sources: h.s.Token}, certs: newCertificates(h.env), regions: h.s.Regions}
		if len(a.regions) == 0 {
			a.regions = alibabaRegions
		}
		return a.receive, nil
	},
}

// alibabaHost follows the region in the name of the host where its certificates are. That is a bucket, and buckets are given to
// whoever comes first: only the names of regions where there is EventBridge are sure to be Alibaba Cloud's own.
const alibabaHost = "-eventbridge.oss-accelerate.aliyuncs.com"

// alibabaRegions are those regions, https://help.aliyun.com/document_detail/609691.htm.
var alibabaRegions = []string{"cn-hangzhou", "cn-shanghai", "cn-qingdao", "cn-beijing", "cn-zhangjiakou", "cn-huhehaote", "cn-wulanchabu",
	"cn-shenzhen", "cn-heyuan", "cn-guangzhou", "cn-chengdu", "cn-hongkong", "ap-northeast-1", "ap-northeast-2", "ap-southeast-1",
	"ap-southeast-3", "ap-southeast-5", "ap-southeast-6", "ap-southeast-7", "ap-south-1", "eu-central-1", "eu-west-1", "us-west-1",
	"us-east-1", "cn-shanghai-finance-1"}

// alibabaTolerance is what the vendor asks for.
const alibabaTolerance = time.Minute

type alibaba struct {
	h       *hook
	token   *secrets
	certs   *certificates
	regions []string
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
	if !a.official(certURL) {
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

// official reports whether a URL is where EventBridge has a certificate.
func (a *alibaba) official(certURL string) bool {
	u, err := url.Parse(certURL)
	if err != nil || u.Scheme != "https" || u.User != nil {
		return false
	}
	region, ok := strings.CutSuffix(u.Host, alibabaHost)
	return ok && slices.Contains(a.regions, region)
}
