// SPDX-License-Identifier: Apache-2.0

package webhook_test

import (
	"bytes"
	"crypto"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"hash"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/sources"
)

// The secrets of the tests.
const (
	secretText  = "It's a Secret to Everybody"
	whsec       = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	dingToken   = "a-token"
	dingAESKey  = "abcdefghijklmnopqrstuvwxyz0123456789ABCDEFG"
	dingOwner   = "suite4xxxxxxxxxxxxxxx"
	feishuKey   = "an encrypt key"
	feishuToken = "a verification token"
	snsTopic    = "arn:aws:sns:us-east-1:123456789012:orders"
	alibabaCert = "https://cn-hangzhou-eventbridge.oss-accelerate.aliyuncs.com/x509_public_certificate.pem"
	snsCert     = "https://sns.us-east-1.amazonaws.com/SimpleNotificationService-0123456789.pem"
)

// sender is a product as the tests play it.
type sender struct {
	name   string
	config func(base string) string
	timed  bool
	// enclosed and bodyOnly are as sourcetest.Hook has them.
	enclosed, bodyOnly bool
	// sign makes a request with a body, as the product signs it. header holds what it says besides.
	sign func(t testing.TB, address string, body []byte, header http.Header, at time.Time) *http.Request
	// payload is a body that says i.
	payload func(i int, at time.Time) ([]byte, http.Header)
}

func fixed(config string) func(string) string { return func(string) string { return config } }

func post(t testing.TB, address string, body []byte, header http.Header, more ...string) *http.Request {
	r, err := http.NewRequest(http.MethodPost, address, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	for name, v := range header {
		r.Header[name] = v
	}
	for i := 0; i+1 < len(more); i += 2 {
		r.Header.Set(more[i], more[i+1])
	}
	return r
}

func sum(h func() hash.Hash, key string, parts ...string) []byte {
	mac := hmac.New(h, []byte(key))
	io.WriteString(mac, strings.Join(parts, ""))
	return mac.Sum(nil)
}

func headers(kv ...string) http.Header {
	h := http.Header{}
	for i := 0; i+1 < len(kv); i += 2 {
		h.Set(kv[i], kv[i+1])
	}
	return h
}

func unix(at time.Time) string { return strconv.FormatInt(at.Unix(), 10) }

// numbered is a payload of one form.
func numbered(format string) func(int, time.Time) ([]byte, http.Header) {
	return func(i int, _ time.Time) ([]byte, http.Header) { return fmt.Appendf(nil, format, i), nil }
}

// rsaKey signs for those who use RSA.
var rsaKey = sync.OnceValue(func() *rsa.PrivateKey {
	k, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err)
	}
	return k
})

// vault answers for the hosts where certificates are kept, and notes what was asked.
type vault struct {
	mu    sync.Mutex // guards asked
	asked []string
}

func (v *vault) RoundTrip(r *http.Request) (*http.Response, error) {
	v.mu.Lock()
	v.asked = append(v.asked, r.URL.String())
	v.mu.Unlock()
	der, err := x509.MarshalPKIXPublicKey(&rsaKey().PublicKey)
	if err != nil {
		return nil, err
	}
	b := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	return &http.Response{StatusCode: 200, Header: http.Header{}, Body: io.NopCloser(bytes.NewReader(b)), Request: r}, nil
}

// edit has sources fetch from the vault.
func (v *vault) edit(o *sources.Options) {
	env := o.Env
	o.Env = func(d *sources.Definition) sources.Env {
		e := env(d)
		e.HTTP = &http.Client{Transport: v}
		return e
	}
}

func signRSA(t testing.TB, hash crypto.Hash, text string) string {
	h := hash.New()
	io.WriteString(h, text)
	sig, err := rsa.SignPKCS1v15(rand.Reader, rsaKey(), hash, h.Sum(nil))
	if err != nil {
		t.Fatal(err)
	}
	return base64.StdEncoding.EncodeToString(sig)
}

// encrypt is AES-CBC with PKCS #7.
func encrypt(t testing.TB, key, iv, text []byte, block int) []byte {
	c, err := aes.NewCipher(key)
	if err != nil {
		t.Fatal(err)
	}
	pad := block - len(text)%block
	out := append(bytes.Clone(text), bytes.Repeat([]byte{byte(pad)}, pad)...)
	cipher.NewCBCEncrypter(c, iv).CryptBlocks(out, out)
	return out
}

func dingSign(parts ...string) string {
	slices.Sort(parts)
	s := sha1.Sum([]byte(strings.Join(parts, "")))
	return hex.EncodeToString(s[:])
}

func signDing(t testing.TB, address string, body []byte, header http.Header, at time.Time) *http.Request {
	key, err := base64.StdEncoding.DecodeString(dingAESKey + "=")
	if err != nil {
		t.Fatal(err)
	}
	text := binary.BigEndian.AppendUint32([]byte("0123456789abcdef"), uint32(len(body)))
	text = append(append(text, body...), dingOwner...)
	sealed := base64.StdEncoding.EncodeToString(encrypt(t, key, key[:16], text, 32))
	ts := strconv.FormatInt(at.UnixMilli(), 10)
	q := url.Values{"timestamp": {ts}, "nonce": {"n1"}, "msg_signature": {dingSign(dingToken, ts, "n1", sealed)}}
	out, err := json.Marshal(map[string]string{"encrypt": sealed})
	if err != nil {
		t.Fatal(err)
	}
	return post(t, address+"?"+q.Encode(), out, header)
}

func signFeishu(t testing.TB, address string, body []byte, header http.Header, at time.Time) *http.Request {
	key, iv := sha256.Sum256([]byte(feishuKey)), []byte("fedcba9876543210")
	out, err := json.Marshal(map[string]string{"encrypt": base64.StdEncoding.EncodeToString(append(iv, encrypt(t, key[:], iv, body, 16)...))})
	if err != nil {
		t.Fatal(err)
	}
	s := sha256.Sum256([]byte(unix(at) + "n1" + feishuKey + string(out)))
	return post(t, address, out, header, "X-Lark-Request-Timestamp", unix(at), "X-Lark-Request-Nonce", "n1", "X-Lark-Signature", hex.EncodeToString(s[:]))
}

// signSNS puts a signature into the message: it stands in the body itself.
func signSNS(t testing.TB, address string, body []byte, header http.Header, at time.Time) *http.Request {
	var m map[string]string
	if err := json.Unmarshal(body, &m); err != nil {
		t.Fatal(err)
	}
	if m["Timestamp"] == "" {
		m["Timestamp"] = at.UTC().Format("2006-01-02T15:04:05.000Z")
	}
	m["SignatureVersion"], m["SigningCertURL"] = "2", snsCert
	fields := []string{"Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type"}
	if m["Type"] != "Notification" {
		fields = []string{"Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type"}
	}
	var text strings.Builder
	for _, f := range fields {
		if v, ok := m[f]; ok {
			text.WriteString(f + "\n" + v + "\n")
		}
	}
	m["Signature"] = signRSA(t, crypto.SHA256, text.String())
	out, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return post(t, address, out, header, "Content-Type", "text/plain; charset=UTF-8")
}

func signAlibaba(t testing.TB, address string, body []byte, header http.Header, at time.Time) *http.Request {
	return signAlibabaBy(t, alibabaCert, address, body, header, at)
}

// signAlibabaBy is signAlibaba with a certificate that is at another place.
func signAlibabaBy(t testing.TB, certificate, address string, body []byte, header http.Header, at time.Time) *http.Request {
	r := post(t, address, body, header, "x-eventbridge-signature-timestamp", strconv.FormatInt(at.UnixMilli(), 10), "x-eventbridge-hash-method", "SHA256",
		"x-eventbridge-signature-version", "1.0", "x-eventbridge-signature-url", certificate, "x-eventbridge-signature-token", secretText)
	text := address + "\n"
	for _, name := range []string{"x-eventbridge-signature-timestamp", "x-eventbridge-hash-method", "x-eventbridge-signature-version", "x-eventbridge-signature-url", "x-eventbridge-signature-token"} {
		text += name + ": " + r.Header.Get(name) + "\n"
	}
	r.Header.Set("x-eventbridge-signature-v2", signRSA(t, crypto.SHA256, text+string(body)))
	return r
}

func signTwilio(t testing.TB, address string, body []byte, header http.Header, _ time.Time) *http.Request {
	form, err := url.ParseQuery(string(body))
	if err != nil {
		t.Fatal(err)
	}
	text := address
	names := make([]string, 0, len(form))
	for name := range form {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		text += name + form.Get(name)
	}
	h := sha1.New
	if strings.HasSuffix(header.Get("X-Twilio-Webhooks-Signature-Settings"), "=HMAC_SHA256") {
		h = sha256.New
	}
	return post(t, address, body, header, "Content-Type", "application/x-www-form-urlencoded; charset=UTF-8",
		"X-Twilio-Signature", base64.StdEncoding.EncodeToString(sum(h, secretText, text)))
}

// sharedKey is what Twilio says when a shared key signs.
func sharedKey(algorithm string) http.Header {
	return headers("X-Twilio-Webhooks-Signature-Settings", "key=webhooks_sharedkey_01,algorithm="+algorithm)
}

func signStandard(t testing.TB, address string, body []byte, header http.Header, at time.Time) *http.Request {
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(whsec, "whsec_"))
	if err != nil {
		t.Fatal(err)
	}
	id := header.Get("Webhook-Id")
	if id == "" {
		id = "msg_" + hex.EncodeToString(sum(sha256.New, "id", string(body))[:8])
	}
	return post(t, address, body, header, "webhook-id", id, "webhook-timestamp", unix(at),
		"webhook-signature", "v1,"+base64.StdEncoding.EncodeToString(sum(sha256.New, string(key), id, ".", unix(at), ".", string(body))))
}

// senders are all products. Those of generic are below.
var senders = []sender{
	{name: "github", config: fixed(`{"provider":"github","secret":{"value":"` + secretText + `"}}`),
		sign: func(t testing.TB, a string, body []byte, h http.Header, _ time.Time) *http.Request {
			return post(t, a, body, h, "X-Hub-Signature-256", "sha256="+hex.EncodeToString(sum(sha256.New, secretText, string(body))))
		},
		payload: func(i int, _ time.Time) ([]byte, http.Header) {
			return fmt.Appendf(nil, `{"action":"opened","issue":{"number":%d},"repository":{"url":"https://api.github.com/repos/a/b"}}`, i),
				headers("X-GitHub-Event", "issues", "X-GitHub-Delivery", fmt.Sprint("guid-", i))
		}},
	{name: "gitlab", config: fixed(`{"provider":"gitlab","secret":{"value":"` + whsec + `"}}`), timed: true, sign: signStandard,
		payload: numbered(`{"object_kind":"push","checkout_sha":"%d","project":{"web_url":"https://gitlab.com/a/b"}}`)},
	{name: "stripe", config: fixed(`{"provider":"stripe","secret":{"value":"` + whsec + `"}}`), timed: true,
		sign: func(t testing.TB, a string, body []byte, h http.Header, at time.Time) *http.Request {
			return post(t, a, body, h, "Stripe-Signature", "t="+unix(at)+",v1="+hex.EncodeToString(sum(sha256.New, whsec, unix(at), ".", string(body)))+",v0=00")
		},
		payload: numbered(`{"id":"evt_%d","object":"event","type":"invoice.paid","created":1700000000,"data":{"object":{"id":"in_1"}}}`)},
	{name: "slack", config: fixed(`{"provider":"slack","secret":{"value":"` + secretText + `"}}`), timed: true,
		sign: func(t testing.TB, a string, body []byte, h http.Header, at time.Time) *http.Request {
			return post(t, a, body, h, "X-Slack-Request-Timestamp", unix(at), "X-Slack-Signature",
				"v0="+hex.EncodeToString(sum(sha256.New, secretText, "v0:", unix(at), ":", string(body))))
		},
		payload: numbered(`{"type":"event_callback","team_id":"T1","api_app_id":"A1","event_id":"Ev%d","event_time":1700000000,"event":{"type":"app_mention","channel":"C1"}}`)},
	{name: "shopify", config: fixed(`{"provider":"shopify","secret":{"value":"` + secretText + `"}}`),
		sign: func(t testing.TB, a string, body []byte, h http.Header, _ time.Time) *http.Request {
			return post(t, a, body, h, "X-Shopify-Hmac-SHA256", base64.StdEncoding.EncodeToString(sum(sha256.New, secretText, string(body))))
		},
		payload: func(i int, _ time.Time) ([]byte, http.Header) {
			return fmt.Appendf(nil, `{"id":%d}`, i), headers("X-Shopify-Topic", "orders/create", "X-Shopify-Shop-Domain", "a.myshopify.com", "X-Shopify-Webhook-Id", fmt.Sprint("w", i))
		}},
	{name: "pagerduty", config: fixed(`{"provider":"pagerduty","secret":{"value":"` + secretText + `"}}`),
		sign: func(t testing.TB, a string, body []byte, h http.Header, _ time.Time) *http.Request {
			return post(t, a, body, h, "X-PagerDuty-Signature", "v1=00ff,v1="+hex.EncodeToString(sum(sha256.New, secretText, string(body))))
		},
		payload: numbered(`{"event":{"id":"01%d","event_type":"incident.triggered","occurred_at":"2027-01-02T03:04:05.678Z","data":{"id":"P1"}}}`)},
	{name: "twilio", config: func(base string) string {
		return `{"provider":"twilio","secret":{"value":"` + secretText + `"},"publicUrl":"` + base + `"}`
	}, sign: signTwilio, payload: numbered(`AccountSid=AC1&MessageSid=SM%d&MessageStatus=delivered&To=%%2B15558675310`)},
	{name: "dingtalk", config: fixed(`{"provider":"dingtalk","token":{"value":"` + dingToken + `"},"aesKey":{"value":"` + dingAESKey + `"},"ownerKey":"` + dingOwner + `"}`),
		timed: true, enclosed: true, sign: signDing, payload: numbered(`{"EventType":"user_add_org","CorpId":"ding1","EventId":"e%d"}`)},
	{name: "feishu", config: fixed(`{"provider":"feishu","aesKey":{"value":"` + feishuKey + `"},"token":{"value":"` + feishuToken + `"}}`), timed: true, sign: signFeishu,
		payload: numbered(`{"schema":"2.0","header":{"event_id":"f%d","event_type":"im.message.receive_v1","create_time":"1700000000000","token":"` + feishuToken + `","app_id":"cli_1","tenant_key":"t1"},"event":{}}`)},
	{name: "aws-sns", config: fixed(`{"provider":"aws-sns","topics":["` + snsTopic + `"]}`), enclosed: true, bodyOnly: true, sign: signSNS,
		payload: numbered(`{"Type":"Notification","MessageId":"m%d","TopicArn":"` + snsTopic + `","Message":"hello"}`)},
	{name: "standard", config: fixed(`{"provider":"standard","secret":{"value":"` + whsec + `"}}`), timed: true, sign: signStandard,
		payload: numbered(`{"type":"invoice.paid","timestamp":"2027-01-02T03:04:05Z","data":{"n":%d}}`)},
	{name: "alibaba-eventbridge", config: func(base string) string {
		return `{"provider":"alibaba-eventbridge","token":{"value":"` + secretText + `"},"publicUrl":"` + base + `"}`
	}, timed: true, sign: signAlibaba, payload: numbered(`{"specversion":"1.0","id":"a%d","source":"acs.oss","type":"oss:ObjectCreated:PutObject","datacontenttype":"application/json","data":{}}`)},
	{name: "generic", config: fixed(`{"provider":"generic","secret":{"value":"` + secretText + `"},"signature":{"header":"X-Sig","hash":"sha512","encoding":"base64","prefix":"v1=","separator":",","signed":"${timestamp}.${method}.${body}","timestampHeader":"X-Time"},
		"event":{"id":"$.id","type":"com.acme.order","subject":"header:X-Shop"}}`), timed: true,
		sign: func(t testing.TB, a string, body []byte, h http.Header, at time.Time) *http.Request {
			return post(t, a, body, h, "X-Time", unix(at), "X-Sig", "v1=AAAA, v1="+base64.StdEncoding.EncodeToString(sum(crypto.SHA512.New, secretText, unix(at), ".POST.", string(body))))
		}, payload: numbered(`{"id":%d}`)},
}
