// SPDX-License-Identifier: Apache-2.0

package webhook_test

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/secret"
	"github.com/rialto-bridge/rialto/sources"
	"github.com/rialto-bridge/rialto/sources/sourcetest"
	"github.com/rialto-bridge/rialto/sources/webhook"
)

func senderOf(name string) sender {
	return senders[slices.IndexFunc(senders, func(s sender) bool { return s.name == name })]
}

// The questions that products ask before they send are answered, and are no events.
func TestQuestionsAreAnswered(t *testing.T) {
	for _, c := range []struct{ name, body, want string }{
		{"slack", `{"token":"x","challenge":"3eZbrw1aBm2rZgRNFdxV2595E9CY3gmdALWMmHkvFXO7tYXAYM8P","type":"url_verification"}`, "3eZbrw1aBm2rZgRNFdxV2595E9CY3gmdALWMmHkvFXO7tYXAYM8P"},
		{"feishu", `{"challenge":"ajls384kdjx98XX","token":"` + feishuToken + `","type":"url_verification"}`, `{"challenge":"ajls384kdjx98XX"}`},
	} {
		s := senderOf(c.name)
		w := newWorld(t, s.config, nil)
		status, answer := w.send(t, s.sign(t, w.url, []byte(c.body), nil, time.Now()))
		if status != http.StatusOK || answer != c.want {
			t.Errorf("%s: answered %d %s, want %s", c.name, status, answer, c.want)
		}
		if n := len(w.log.Events()); n != 0 {
			t.Errorf("%s: %d events are stored", c.name, n)
		}
	}
}

// Feishu does not sign its question; it is encrypted, and has the token.
func TestFeishuChallengeIsNotSigned(t *testing.T) {
	s := senderOf("feishu")
	w := newWorld(t, s.config, nil)
	for token, want := range map[string]int{feishuToken: http.StatusOK, "another": http.StatusForbidden} {
		r := s.sign(t, w.url, []byte(`{"challenge":"c","token":"`+token+`","type":"url_verification"}`), nil, time.Now())
		r.Header.Del("X-Lark-Signature")
		if status, _ := w.send(t, r); status != want {
			t.Errorf("token %q: answered %d, want %d", token, status, want)
		}
	}
	r := s.sign(t, w.url, []byte(`{"header":{"event_id":"1","token":"`+feishuToken+`"}}`), nil, time.Now())
	r.Header.Del("X-Lark-Signature")
	if status, _ := w.send(t, r); status != http.StatusForbidden {
		t.Errorf("an event without a signature is answered %d", status)
	}
}

// DingTalk wants its answer encrypted and signed, to a question as to an event.
func TestDingTalkReadsTheAnswer(t *testing.T) {
	s := senderOf("dingtalk")
	w := newWorld(t, s.config, nil)
	for i, body := range []string{`{"EventType":"check_url"}`, `{"EventType":"user_add_org","EventId":"1","CorpId":"c"}`} {
		status, answer := w.send(t, s.sign(t, w.url, []byte(body), nil, time.Now()))
		var a struct {
			Signature string `json:"msg_signature"`
			TimeStamp string `json:"timeStamp"`
			Nonce     string `json:"nonce"`
			Encrypt   string `json:"encrypt"`
		}
		if err := json.Unmarshal([]byte(answer), &a); err != nil || status != http.StatusOK {
			t.Fatalf("answered %d %s: %v", status, answer, err)
		}
		if a.Signature != dingSign(dingToken, a.TimeStamp, a.Nonce, a.Encrypt) {
			t.Error("the answer is not signed")
		}
		if text := openDing(t, a.Encrypt); text != "success"+dingOwner {
			t.Errorf("the answer says %q", text)
		}
		if n := len(w.log.Events()); n != i {
			t.Errorf("%d events are stored after %s", n, body)
		}
	}
}

// openDing decrypts as DingTalk does: what follows the length.
func openDing(t *testing.T, sealed string) string {
	t.Helper()
	key, err := base64.StdEncoding.DecodeString(dingAESKey + "=")
	if err != nil {
		t.Fatal(err)
	}
	b, err := base64.StdEncoding.DecodeString(sealed)
	if err != nil || len(b)%16 != 0 {
		t.Fatalf("%v, %d bytes", err, len(b))
	}
	c, err := aes.NewCipher(key)
	if err != nil {
		t.Fatal(err)
	}
	cipher.NewCBCDecrypter(c, key[:16]).CryptBlocks(b, b)
	b = b[:len(b)-int(b[len(b)-1])]
	if n := binary.BigEndian.Uint32(b[16:20]); n != uint32(len("success")) {
		t.Errorf("the length is %d", n)
	}
	return string(b[20:])
}

func hexSHA256(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

// A payload for another owner is not ours, though key and signature are good.
func TestDingTalkOwner(t *testing.T) {
	s := senderOf("dingtalk")
	w := newWorld(t, fixed(strings.Replace(s.config(""), dingOwner, "somebody-else", 1)), nil)
	if status, _ := w.send(t, s.sign(t, w.url, []byte(`{"EventType":"x","EventId":"1"}`), nil, time.Now())); status != http.StatusForbidden {
		t.Errorf("answered %d", status)
	}
}

// SNS: a subscription is confirmed, at Amazon's address and for a topic of ours only; certificates come from Amazon only.
func TestSNSConfirmsItsOwnTopicsOnly(t *testing.T) {
	s := senderOf("aws-sns")
	const confirm = "https://sns.us-east-1.amazonaws.com/?Action=ConfirmSubscription&TopicArn=x&Token=y"
	message := func(topic, subscribe string) []byte {
		return fmt.Appendf(nil, `{"Type":"SubscriptionConfirmation","MessageId":"m1","Token":"y","TopicArn":%q,"Message":"...","SubscribeURL":%q}`, topic, subscribe)
	}
	for _, c := range []struct {
		name      string
		body      []byte
		edit      func(m map[string]string)
		want      int
		confirmed bool
	}{
		{name: "ours", body: message(snsTopic, confirm), want: 200, confirmed: true},
		{name: "another topic", body: message(strings.Replace(snsTopic, "orders", "others", 1), confirm), want: 403},
		{name: "an address elsewhere", body: message(snsTopic, "https://sns.us-east-1.amazonaws.com.evil.example/"), want: 403},
		{name: "an address with a user", body: message(snsTopic, "https://sns.us-east-1.amazonaws.com@evil.example/"), want: 403},
		{name: "http", body: message(snsTopic, "http://sns.us-east-1.amazonaws.com/"), want: 403},
		{name: "a certificate elsewhere", body: message(snsTopic, confirm), want: 403, edit: func(m map[string]string) {
			m["SigningCertURL"] = "https://evil.example/SimpleNotificationService-1.pem"
		}},
		{name: "a certificate that is none", body: message(snsTopic, confirm), want: 403, edit: func(m map[string]string) { m["SigningCertURL"] = "https://sns.us-east-1.amazonaws.com/?x" }},
		// An answer of the API of SNS may hold what its caller has written somewhere before.
		{name: "an answer of the API", body: message(snsTopic, confirm), want: 403, edit: func(m map[string]string) {
			m["SigningCertURL"] = "https://sns.us-east-1.amazonaws.com/?Action=GetEndpointAttributes&X=.pem"
		}},
		{name: "an answer of the API at the path of a certificate", body: message(snsTopic, confirm), want: 403, edit: func(m map[string]string) {
			m["SigningCertURL"] = snsCert + "?Action=GetEndpointAttributes&X=.pem"
		}},
		{name: "another version of signatures", body: message(snsTopic, confirm), want: 403, edit: func(m map[string]string) { m["SignatureVersion"] = "3" }},
		{name: "without a signature", body: message(snsTopic, confirm), want: 403, edit: func(m map[string]string) { delete(m, "Signature") }},
		{name: "raw", body: message(snsTopic, confirm), want: 403, edit: func(m map[string]string) { delete(m, "Type") }},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := &vault{}
			w := newWorld(t, s.config, v.edit)
			r := s.sign(t, w.url, c.body, nil, time.Now())
			if c.edit != nil {
				b, err := io.ReadAll(r.Body)
				if err != nil {
					t.Fatal(err)
				}
				var m map[string]string
				if err := json.Unmarshal(b, &m); err != nil {
					t.Fatal(err)
				}
				c.edit(m)
				if b, err = json.Marshal(m); err != nil {
					t.Fatal(err)
				}
				r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(b)), int64(len(b))
			}
			if status, answer := w.send(t, r); status != c.want {
				t.Errorf("answered %d %s, want %d", status, answer, c.want)
			}
			if got := slices.Contains(v.asked, confirm); got != c.confirmed {
				t.Errorf("asked %v", v.asked)
			}
			for _, asked := range v.asked {
				if u, err := url.Parse(asked); err != nil || u.Host != "sns.us-east-1.amazonaws.com" {
					t.Errorf("asked %s", asked)
				}
			}
		})
	}
}

// Alibaba Cloud: the certificate is theirs, the token ours, the time near.
func TestAlibabaHeaders(t *testing.T) {
	s := senderOf("alibaba-eventbridge")
	v := &vault{}
	w := newWorld(t, s.config, v.edit)
	body, _ := s.payload(1, time.Now())
	for name, value := range map[string]string{"x-eventbridge-signature-token": "another", "x-eventbridge-signature-url": "https://evil.example/a.pem",
		"x-eventbridge-hash-method": "MD5", "x-eventbridge-signature-version": "2.0", "x-eventbridge-signature-v2": "AAAA", "x-eventbridge-signature-timestamp": "yesterday"} {
		r := s.sign(t, w.url, body, nil, time.Now())
		r.Header.Set(name, value)
		if status, answer := w.send(t, r); status != http.StatusForbidden {
			t.Errorf("%s: answered %d %s", name, status, answer)
		}
	}
	if slices.ContainsFunc(v.asked, func(u string) bool { return u != alibabaCert }) {
		t.Errorf("asked %v", v.asked)
	}
}

// A certificate for Alibaba Cloud is one from the bucket of a region, and buckets are anybody's.
func TestAlibabaCertificateIsOfARegion(t *testing.T) {
	s := senderOf("alibaba-eventbridge")
	const at = ".oss-accelerate.aliyuncs.com/x509_public_certificate.pem"
	all := func(base string) string { return s.config(base) }
	two := func(base string) string {
		return strings.Replace(s.config(base), "{", `{"regions":["cn-hangzhou","xx-new-9"],`, 1)
	}
	for _, c := range []struct {
		config func(string) string
		url    string
		want   int
	}{
		{all, "https://cn-hangzhou-eventbridge" + at, 200},
		{all, "https://cn-shanghai-finance-1-eventbridge" + at, 200},
		{all, "https://evil-eventbridge" + at, 403},
		{all, "https://evil-cn-hangzhou-eventbridge" + at, 403},
		{all, "https://xx-new-9-eventbridge" + at, 403},
		{all, "https://-eventbridge" + at, 403},
		{all, "https://eventbridge" + at, 403},
		{all, "https://cn-hangzhou" + at, 403},
		{all, "https://cn-hangzhou-eventbridge.oss-accelerate.aliyuncs.com.evil.example/a.pem", 403},
		{all, "https://cn-hangzhou-eventbridge.oss-accelerate.aliyuncs.com:8443/a.pem", 403},
		{all, "https://evil.example\\@cn-hangzhou-eventbridge" + at, 403},
		{all, "https://a@cn-hangzhou-eventbridge" + at, 403},
		{all, "http://cn-hangzhou-eventbridge" + at, 403},
		{all, "//cn-hangzhou-eventbridge" + at, 403},
		{two, "https://cn-hangzhou-eventbridge" + at, 200},
		{two, "https://xx-new-9-eventbridge" + at, 200},
		{two, "https://cn-beijing-eventbridge" + at, 403},
	} {
		v := &vault{}
		w := newWorld(t, c.config, v.edit)
		body, _ := s.payload(1, time.Now())
		r := signAlibabaBy(t, c.url, w.url, body, nil, time.Now())
		if status, answer := w.send(t, r); status != c.want {
			t.Errorf("%s: answered %d %s, want %d", c.url, status, answer, c.want)
		}
		if asked := len(v.asked) > 0; asked != (c.want == 200) {
			t.Errorf("%s: asked %v", c.url, v.asked)
		}
	}
}

// GitLab with a secret token instead of a signature.
func TestGitLabToken(t *testing.T) {
	w := newWorld(t, fixed(`{"provider":"gitlab","secret":[{"value":"old"},{"value":"new"}]}`), nil)
	for token, want := range map[string]int{"old": 200, "new": 200, "": 403, "newer": 403} {
		r := post(t, w.url, []byte(`{"object_kind":"push","n":"`+token+`"}`), nil, "X-Gitlab-Token", token)
		if status, _ := w.send(t, r); status != want {
			t.Errorf("token %q: answered %d, want %d", token, status, want)
		}
	}
}

// Twilio signs a body that is not a form by its hash in the URL.
func TestTwilioJSON(t *testing.T) {
	s := senderOf("twilio")
	w := newWorld(t, s.config, nil)
	body := []byte(`{"AccountSid":"AC1","ConversationSid":"CH1","EventType":"onMessageAdded"}`)
	for _, c := range []struct {
		sum  string
		want int
	}{{hexSHA256(body), 204}, {hexSHA256([]byte("x")), 403}, {"", 403}} {
		address := w.url + "?bodySHA256=" + c.sum
		r := post(t, address, body, nil, "X-Twilio-Signature", base64.StdEncoding.EncodeToString(sum(sha1.New, secretText, address)))
		if status, answer := w.send(t, r); status != c.want {
			t.Errorf("hash %q: answered %d %s, want %d", c.sum, status, answer, c.want)
		}
	}
}

// What Twilio sends without a token is known again by all that it says: one message has several events of a status, and a repeat
// is none.
func TestTwilioWithoutToken(t *testing.T) {
	s := senderOf("twilio")
	w := newWorld(t, s.config, nil)
	for i, c := range []struct {
		query, body string
		stored      int
	}{
		{"", "AccountSid=AC1&MessageSid=SM1&MessageStatus=undelivered&ErrorCode=30003", 1},
		{"", "AccountSid=AC1&MessageSid=SM1&MessageStatus=undelivered&ErrorCode=30003", 1},
		{"", "MessageSid=SM1&AccountSid=AC1&ErrorCode=30003&MessageStatus=undelivered", 1}, // Twilio signs them sorted
		{"", "AccountSid=AC1&MessageSid=SM1&MessageStatus=undelivered&ErrorCode=30005", 2},
		{"", "AccountSid=AC1&MessageSid=SM1&MessageStatus=undelivered", 3},
		{"?leg=2", "AccountSid=AC1&MessageSid=SM1&MessageStatus=undelivered", 4},
		{"?leg=2", "AccountSid=AC1&MessageSid=SM1&MessageStatus=undelivered", 4},
		{"", "AccountSid=AC1&CallSid=CA1&CallStatus=in-progress&Digits=1", 5},
		{"", "AccountSid=AC1&CallSid=CA1&CallStatus=in-progress&Digits=2", 6},
	} {
		if status, answer := w.send(t, s.sign(t, w.url+c.query, []byte(c.body), nil, time.Now())); status != 204 {
			t.Errorf("%d: answered %d %s", i, status, answer)
		}
		if n := len(w.log.Events()); n != c.stored {
			t.Errorf("%d: %d events are stored, want %d", i, n, c.stored)
		}
	}
}

// Twilio signs with a shared key where a webhook rule says so, and then says how.
func TestTwilioSharedKey(t *testing.T) {
	s := senderOf("twilio")
	w := newWorld(t, func(base string) string {
		return `{"provider":"twilio","secret":[{"value":"an auth token"},{"value":"` + secretText + `"}],"publicUrl":"` + base + `"}`
	}, nil)
	for i, c := range []struct {
		name, signed, said string // the algorithms
		want               int
	}{
		{"SHA-256", "HMAC_SHA256", "HMAC_SHA256", 204},
		{"SHA-1", "HMAC_SHA1", "HMAC_SHA1", 204},
		{"nothing is said", "HMAC_SHA1", "", 204},
		{"SHA-256, and nothing is said", "HMAC_SHA256", "", 403},
		{"SHA-256, and another is said", "HMAC_SHA256", "HMAC_SHA1", 403},
		{"SHA-1, and another is said", "HMAC_SHA1", "HMAC_SHA256", 403},
		{"one that nobody knows", "HMAC_SHA256", "HMAC_MD5", 403},
	} {
		body, _ := s.payload(i, time.Now())
		r := s.sign(t, w.url, body, sharedKey(c.signed), time.Now())
		if r.Header.Del("X-Twilio-Webhooks-Signature-Settings"); c.said != "" {
			r.Header.Set("X-Twilio-Webhooks-Signature-Settings", "algorithm="+strings.ToLower(c.said)+" , key=k")
		}
		if status, answer := w.send(t, r); status != c.want {
			t.Errorf("%s: answered %d %s, want %d", c.name, status, answer, c.want)
		}
	}
	body, address := []byte(`{"AccountSid":"AC1","ConversationSid":"CH1"}`), ""
	address = w.url + "?bodySHA256=" + hexSHA256(body)
	r := post(t, address, body, sharedKey("HMAC_SHA256"), "X-Twilio-Signature", base64.StdEncoding.EncodeToString(sum(sha256.New, secretText, address)))
	if status, answer := w.send(t, r); status != 204 {
		t.Errorf("a body that is no form is answered %d %s", status, answer)
	}
}

// What proves a sender of the generic provider; all of it must be good.
func TestGenericProofs(t *testing.T) {
	basic := func(user, password string) []string {
		return []string{"Authorization", "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password))}
	}
	for _, c := range []struct {
		name, config string
		header       []string
		want         int
	}{
		{"basic", `"basic":{"username":"u","password":{"value":"p"}}`, basic("u", "p"), 204},
		{"basic, another password", `"basic":{"username":"u","password":{"value":"p"}}`, basic("u", "q"), 401},
		{"basic, another user", `"basic":{"username":"u","password":{"value":"p"}}`, basic("v", "p"), 401},
		{"basic, none", `"basic":{"username":"u","password":{"value":"p"}}`, nil, 401},
		{"bearer", `"bearer":[{"value":"a"},{"value":"b"}]`, []string{"Authorization", "Bearer b"}, 204},
		{"bearer, another", `"bearer":{"value":"a"}`, []string{"Authorization", "Bearer b"}, 401},
		{"bearer, none", `"bearer":{"value":"a"}`, nil, 401},
		{"address", `"allowFrom":["10.0.0.0/8","127.0.0.0/8"]`, nil, 204},
		{"address, as IPv6 has it", `"allowFrom":["::ffff:127.0.0.0/104"]`, nil, 204},
		{"address, another", `"allowFrom":["192.0.2.7"]`, nil, 403},
		{"address, another, as IPv6 has it", `"allowFrom":["::ffff:192.0.2.0/120"]`, nil, 403},
		{"address and bearer", `"allowFrom":["127.0.0.1"],"bearer":{"value":"a"}`, nil, 401},
		{"certificate without TLS", `"clientCertificate":{"names":["sender"]}`, nil, 403},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, fixed(`{"provider":"generic",`+c.config+`}`), nil)
			if status, answer := w.send(t, post(t, w.url, []byte(`{"a":1}`), nil, c.header...)); status != c.want {
				t.Errorf("answered %d %s, want %d", status, answer, c.want)
			}
			if n := len(w.log.Events()); (n == 1) != (c.want < 300) {
				t.Errorf("%d events are stored", n)
			}
		})
	}
}

func TestClientCertificates(t *testing.T) {
	w := newWorld(t, fixed(`{"provider":"generic","clientCertificate":{"names":["urn:dev:7","sender.example"]}}`), nil)
	dev, err := url.Parse("urn:dev:7")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		state *tls.ConnectionState
		want  error
	}{
		{"by DNS name", verified(&x509.Certificate{DNSNames: []string{"sender.example"}}), nil},
		{"by URI", verified(&x509.Certificate{URIs: []*url.URL{dev}}), nil},
		{"by common name", verified(&x509.Certificate{Subject: pkix.Name{CommonName: "sender.example"}}), nil},
		{"another", verified(&x509.Certificate{DNSNames: []string{"evil.example"}}), errors.New("")},
		{"not verified", &tls.ConnectionState{PeerCertificates: []*x509.Certificate{{DNSNames: []string{"sender.example"}}}}, errors.New("")},
	} {
		r := httptest.NewRequest(http.MethodPost, "/hooks/s", strings.NewReader(`{"name":"`+c.name+`"}`))
		r.TLS = c.state
		if err := w.s.ServeHook("s", httptest.NewRecorder(), r); (err == nil) != (c.want == nil) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func verified(c *x509.Certificate) *tls.ConnectionState {
	return &tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{c}}}
}

// A file that holds a secret may change under way.
func TestSecretIsReadAgain(t *testing.T) {
	file := filepath.Join(t.TempDir(), "secret")
	write := func(s string) {
		if err := os.WriteFile(file, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(secretText)
	var ahead atomic.Int64 // of the clock
	now := func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	s := senderOf("github")
	w := newWorld(t, fixed(`{"provider":"github","secret":{"ref":"file:`+file+`"}}`), func(o *sources.Options) {
		env := o.Env
		o.Env = func(d *sources.Definition) sources.Env {
			e := env(d)
			e.Secrets = secret.Resolver{}.Resolve
			return e
		}
		o.Now = now
	})
	send := func(i, want int) {
		t.Helper()
		body, header := s.payload(i, now())
		if status, answer := w.send(t, s.sign(t, w.url, body, header, now())); status != want {
			t.Errorf("answered %d %s, want %d", status, answer, want)
		}
	}
	send(1, 200)
	write("another")
	send(2, 200) // it is not read for every request
	ahead.Add(int64(time.Minute))
	send(3, 403)
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	ahead.Add(int64(time.Minute))
	send(4, 503) // ours to mend: the sender tries again
}

// What the schema and Check have against a config, with pointers.
func TestConfigs(t *testing.T) {
	kinds := sources.NewCatalog(webhook.Kind())
	for _, c := range []struct{ config, want string }{
		{`{}`, "/config/provider: is missing"},
		{`{"provider":"nobody"}`, "/config/provider: is not one of: github, "},
		{`{"provider":"github"}`, "/config/secret: is missing"},
		{`{"provider":"github","secret":"plain"}`, "/config/secret: is not of type object"},
		{`{"provider":"github","secret":{"ref":"vault:x"}}`, "a reference is the name of a Secret, env:NAME or file:/path"},
		{`{"provider":"github","secret":{"value":"a"},"token":{"value":"b"}}`, "/config/token: does not go with the other fields here"},
		{`{"provider":"github","secret":{"value":"a"},"tolerance":"1d"}`, "/config/tolerance: is not a duration"},
		{`{"provider":"github","secret":{"value":"a"},"allowFrom":["x"]}`, "/config/allowFrom/0: is not an address"},
		{`{"provider":"twilio","secret":{"value":"a"}}`, "/config/publicUrl: is missing"},
		{`{"provider":"twilio","secret":{"value":"a"},"publicUrl":"ftp://x"}`, "/config/publicUrl: is not an http or https URL"},
		{`{"provider":"dingtalk","token":{"value":"a"},"aesKey":{"value":"short"},"ownerKey":"k"}`, "/config/aesKey: is 43 characters"},
		{`{"provider":"feishu"}`, "/config/aesKey: is missing, and so is token"},
		{`{"provider":"aws-sns","topics":["orders"]}`, "/config/topics/0: does not match"},
		{`{"provider":"generic"}`, "/config: says nothing by which a sender proves itself"},
		{`{"provider":"generic","signature":{"header":"X"}}`, "/config/secret: goes with signature"},
		{`{"provider":"generic","secret":{"value":"a"},"signature":{"header":"X","signed":"${timestamp}"}}`, "/config/signature/signed: lacks ${body}"},
		{`{"provider":"generic","secret":{"value":"a"},"signature":{"header":"X","signed":"${timestamp}${body}"}}`, "/config/signature/timestampHeader: goes with"},
		{`{"provider":"generic","secret":{"value":"a"},"signature":{"header":"X","signed":"${url}${body}"}}`, "/config/signature/signed: ${url} needs publicUrl"},
		{`{"provider":"generic","secret":{"value":"a"},"signature":{"header":"X","signed":"${body}${no}"}}`, "/config/signature/signed: has a placeholder other than"},
		{`{"provider":"generic","bearer":{"value":"a"},"event":{"id":"$.["}}`, "/config/event/id: is not a JSONPath"},
		{`{"provider":"generic","bearer":{"value":"a"},"event":{"type":"header:a b"}}`, "/config/event/type: header: is followed by"},
	} {
		_, err := sources.ParseDefinition(fmt.Appendf(nil, `{"name":"s","type":"webhook","config":%s}`, c.config), kinds)
		if fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", c.config, err, c.want)
		}
	}
	for _, s := range senders {
		if _, err := sources.ParseDefinition(fmt.Appendf(nil, `{"name":"s","type":"webhook","config":%s}`, s.config("https://hooks.example.com")), kinds); err != nil {
			t.Errorf("%s: %v", s.name, err)
		}
	}
}

// Whatever is sent to any provider: nothing is stored that nobody has signed, and nothing breaks.
func FuzzUnsignedRequests(f *testing.F) {
	for i, s := range senders {
		body, _ := s.payload(1, time.Now())
		f.Add(i, body, "X-Hub-Signature-256", "sha256=00", "timestamp=1&nonce=2&signature=3", "application/json")
	}
	f.Add(3, []byte("payload=%7B%7D"), "Stripe-Signature", "t=1,v1=00,v1=", "", "application/x-www-form-urlencoded")
	var hooks []sources.HookHandler
	for _, s := range senders {
		src, err := webhook.Kind().New(json.RawMessage(s.config("https://hooks.example.com")), sources.Env{Name: "s", Now: time.Now, MaxData: 1 << 16,
			HTTP: &http.Client{Transport: &vault{}}, Secrets: secret.Resolver{}.Resolve})
		if err != nil {
			f.Fatal(err)
		}
		hooks = append(hooks, src.(sources.HookHandler))
	}
	f.Fuzz(func(t *testing.T, i int, body []byte, name, value, query, contentType string) {
		r := httptest.NewRequest(http.MethodPost, "/hooks/s", bytes.NewReader(body))
		r.URL.RawQuery = query
		r.Header.Set("Content-Type", contentType)
		r.Header[http.CanonicalHeaderKey(name)] = []string{value}
		err := hooks[uint(i)%uint(len(hooks))].ServeHook(httptest.NewRecorder(), r, func(_ context.Context, evs ...event.Event) error {
			t.Errorf("stored %d events", len(evs))
			return nil
		})
		switch fault.KindOf(err) {
		case fault.Forbidden, fault.Invalid, fault.TooLarge, fault.Unsupported:
		default:
			t.Errorf("answered with %v", err)
		}
	})
}

// Whatever a signed payload holds, what it becomes is a valid event.
func FuzzSignedPayloads(f *testing.F) {
	for i, s := range senders {
		body, _ := s.payload(1, time.Now())
		f.Add(i, body, "issues", "x/y")
	}
	f.Add(0, []byte(`{"action":"\u0000\n\ud800","issue":{"number":[1]},"repository":{"url":"not a url \u20ac"}}`), "a b\x01", "\xff")
	f.Add(10, []byte(`{"type":"`+strings.Repeat("x", 3000)+`","timestamp":"99999999999999"}`), "", "")
	f.Add(3, []byte(`{"event":{"type":"t","channel":"\uffff"},"event_time":-1,"team_id":"%%%"}`), "", "")
	hooks := map[int]sources.HookHandler{}
	for i, s := range senders {
		src, err := webhook.Kind().New(json.RawMessage(s.config("http://example.com")), sources.Env{Name: "s", Now: time.Now, MaxData: 1 << 16,
			HTTP: &http.Client{Transport: &vault{}}, Secrets: secret.Resolver{}.Resolve, Known: func(int) {}})
		if err != nil {
			f.Fatal(err)
		}
		hooks[i] = src.(sources.HookHandler)
	}
	f.Fuzz(func(t *testing.T, i int, body []byte, one, two string) {
		n := int(uint(i) % uint(len(senders)))
		s := senders[n]
		if s.name == "aws-sns" && !json.Valid(body) || s.name == "twilio" {
			return // the tests can sign texts and forms that they can read
		}
		if s.name == "aws-sns" {
			var m map[string]string
			if json.Unmarshal(body, &m) != nil || m == nil {
				return
			}
		}
		signed := s.sign(t, "http://example.com/hooks/s", body, nil, time.Now())
		b, err := io.ReadAll(signed.Body)
		if err != nil {
			t.Fatal(err)
		}
		r := httptest.NewRequest(http.MethodPost, signed.URL.RequestURI(), bytes.NewReader(b))
		r.Header = signed.Header
		for name, v := range map[string]string{"X-Github-Event": one, "X-Github-Delivery": two, "X-Shopify-Topic": one, "X-Shopify-Shop-Domain": two, "X-Shop": one} {
			r.Header[name] = []string{v}
		}
		err = hooks[n].ServeHook(httptest.NewRecorder(), r, func(_ context.Context, evs ...event.Event) error {
			for _, ev := range evs {
				if err := ev.Validate(event.Limits{MaxData: 1 << 18}); err != nil {
					t.Errorf("%s: %v", s.name, err)
				}
			}
			return nil
		})
		if k := fault.KindOf(err); err != nil && k != fault.Invalid && k != fault.Forbidden && k != fault.TooLarge && k != fault.Unsupported {
			t.Errorf("%s: answered with %v", s.name, err)
		}
	})
}

// Without an id, equal bodies are one event, which is counted each time; unless they are signed with different times.
func TestEqualBodies(t *testing.T) {
	for name, c := range map[string]struct {
		config        string
		stored, again int
	}{
		"no timestamp":       {`{"provider":"generic","bearer":{"value":"b"}}`, 1, 3},
		"a signed timestamp": {`{"provider":"generic","secret":{"value":"` + secretText + `"},"signature":{"header":"X-Sig","signed":"${timestamp}.${body}","timestampHeader":"X-Ts"}}`, 2, 2},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, func(string) string { return c.config }, nil)
			now := time.Now()
			for _, at := range []time.Time{now, now, now.Add(-time.Minute), now.Add(-time.Minute)} {
				r, err := http.NewRequest(http.MethodPost, w.url, strings.NewReader(`{"beat":true}`))
				if err != nil {
					t.Fatal(err)
				}
				mac := hmac.New(sha256.New, []byte(secretText))
				mac.Write([]byte(unix(at) + `.{"beat":true}`))
				r.Header = http.Header{"Authorization": {"Bearer b"}, "Content-Type": {"application/json"}, "X-Ts": {unix(at)}, "X-Sig": {hex.EncodeToString(mac.Sum(nil))}}
				if status, answer := w.send(t, r); status > 299 {
					t.Errorf("answered %d %s", status, answer)
				}
			}
			if st, _ := w.s.Status("s"); len(w.log.Events()) != c.stored || st.Duplicate != uint64(c.again) {
				t.Errorf("%d events are stored, and the status is %+v", len(w.log.Events()), st)
			}
		})
	}
}

// What was committed is known when the definition has changed, and over a pause as well: a secret is changed while senders try again. On
// another bus it is not there.
func TestIDsAreKnownOverAChange(t *testing.T) {
	s := senderOf("stripe")
	const base = `{"name":"s","type":"webhook","config":{"provider":"stripe","secret":[{"value":"` + whsec + `"},{"value":"new"}],"tolerance":"10m"}`
	w := newWorld(t, s.config, nil)
	send := func(what string, asked int) {
		t.Helper()
		body, header := s.payload(1, time.Now())
		if status, answer := w.send(t, s.sign(t, w.url, body, header, time.Now())); status != http.StatusOK {
			t.Errorf("%s: answered %d %s", what, status, answer)
		}
		if n := w.log.Asked(); n != asked {
			t.Errorf("%s: %d events were handed over, want %d", what, n, asked)
		}
	}
	send("at first", 1)
	sourcetest.Define(t, w.s, base+`}`, webhook.Kind())
	send("with another secret", 1)
	sourcetest.Define(t, w.s, base+`,"paused":true}`, webhook.Kind())
	sourcetest.Define(t, w.s, base+`,"description":"it goes on"}`, webhook.Kind())
	send("after a pause", 1)
	sourcetest.Define(t, w.s, base+`,"bus":"other"}`, webhook.Kind())
	send("on another bus", 2)
}

// Senders that say of their payload what is no media type have proved themselves all the same: the payload is what counts.
func TestOddContentTypes(t *testing.T) {
	for _, c := range []struct{ contentType, body, want string }{
		{"json", `{"a":1}`, "application/json"},
		{"text", "hello", ""},
		{"text/plain/x", "hello", ""},
		{"application/json;", `{"a":2}`, "application/json"},
		{"text/csv; charset=utf-8", "a,b", "text/csv; charset=utf-8"},
	} {
		w := newWorld(t, fixed(`{"provider":"generic","bearer":{"value":"t"}}`), nil)
		r := post(t, w.url, []byte(c.body), nil, "Authorization", "Bearer t", "Content-Type", c.contentType)
		if status, answer := w.send(t, r); status != http.StatusNoContent {
			t.Errorf("%s: answered %d %s", c.contentType, status, answer)
		}
		if evs := w.log.Events(); len(evs) != 1 || string(evs[0].Data) != c.body || evs[0].DataContentType != c.want {
			t.Errorf("%s: stored %+v", c.contentType, evs)
		}
	}
}

// A message of SNS is good for a day, and as long it is known.
func TestSNSMessagesAreKnownWhileTheyAreGood(t *testing.T) {
	var ahead atomic.Int64 // of the clock
	s, v := senderOf("aws-sns"), &vault{}
	w := newWorld(t, s.config, func(o *sources.Options) {
		v.edit(o)
		o.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	})
	body, header := s.payload(1, time.Now())
	first := time.Now()
	for _, after := range []time.Duration{0, 2 * time.Hour, 23 * time.Hour} {
		ahead.Store(int64(after))
		if status, answer := w.send(t, s.sign(t, w.url, body, header, first)); status != http.StatusOK {
			t.Errorf("after %s: answered %d %s", after, status, answer)
		}
		if n := w.log.Asked(); n != 1 {
			t.Errorf("after %s: %d events were handed over", after, n)
		}
	}
}

// A CloudEvent that is none is the sender's to mend: it is answered so, and nothing is wrong with the source.
func TestCloudEventsThatAreNone(t *testing.T) {
	w := newWorld(t, fixed(`{"provider":"generic","bearer":{"value":"t"}}`), nil)
	for body, want := range map[string]string{
		`{"specversion":"1.0","source":"/a","type":"t"}`:          "id: ",
		`{"specversion":"9.9","id":"1","source":"/a","type":"t"}`: "specversion: ",
		`not JSON`: "",
	} {
		r := post(t, w.url, []byte(body), nil, "Authorization", "Bearer t", "Content-Type", "application/cloudevents+json")
		if status, answer := w.send(t, r); status/100 != 4 || !strings.Contains(answer, want) {
			t.Errorf("%s: answered %d %s", body, status, answer)
		}
	}
	if st, _ := w.s.Status("s"); st.LastError != nil {
		t.Errorf("the status says %+v", st.LastError)
	}
}

// Of a body that is too large an event tells if the head of the request proves who sends it; if nothing can, it is counted and shown.
func TestTooLarge(t *testing.T) {
	signed := `{"provider":"generic","bearer":{"value":"b"},"secret":{"value":"x"},"signature":{"header":"X-Sig"}}`
	for _, c := range []struct {
		name, config, token string
		announced           bool
		status              int
		stored, refused     int
	}{
		{"a bearer", `{"provider":"generic","bearer":{"value":"b"}}`, "b", true, 413, 1, 2},
		{"a bearer, and no length", `{"provider":"generic","bearer":{"value":"b"}}`, "b", false, 413, 1, 2},
		{"another bearer", `{"provider":"generic","bearer":{"value":"b"}}`, "c", true, 403, 0, 0},
		{"a token of GitLab", `{"provider":"gitlab","secret":{"value":"b"}}`, "b", true, 413, 1, 2},
		{"a bearer beside a signature", signed, "b", true, 413, 0, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, func(string) string { return c.config }, nil)
			w.cl = &http.Client{Transport: &http.Transport{ExpectContinueTimeout: sourcetest.Patience}} // the server need not take what it refuses
			t.Cleanup(w.cl.CloseIdleConnections)
			for range 2 {
				var body io.Reader = bytes.NewReader(make([]byte, sourcetest.MaxData+1))
				if !c.announced {
					body = io.MultiReader(body)
				}
				r, err := http.NewRequest(http.MethodPost, w.url, body)
				if err != nil {
					t.Fatal(err)
				}
				r.Header = http.Header{"Authorization": {"Bearer " + c.token}, "X-Gitlab-Token": {c.token}, "X-Sig": {"00"}, "Expect": {"100-continue"}}
				if status, answer := w.send(t, r); status != c.status && !(c.status == 403 && status == 401) {
					t.Errorf("answered %d %s", status, answer)
				}
			}
			evs := w.log.Events()
			if st, _ := w.s.Status("s"); len(evs) != c.stored || st.Refused != uint64(c.refused) || (st.LastError != nil) != (c.refused > 0) {
				t.Errorf("stored %+v, status %+v", evs, st)
			}
			want := fmt.Sprintf(`{"source":"s","reason":"the body is larger than %d bytes","bytes":%d}`, sourcetest.MaxData, sourcetest.MaxData+1)
			if len(evs) > 0 && (evs[0].Type != sources.RefusedType || string(evs[0].Data) != want) {
				t.Errorf("stored %s %s, want %s", evs[0].Type, evs[0].Data, want)
			}
		})
	}
}
