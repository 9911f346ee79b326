// SPDX-License-Identifier: Apache-2.0

package webhook_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
	"github.com/yaronf/httpsign"

	"github.com/rialto-bridge/rialto/targets/targettest"
)

// taken is a request as a receiver has it.
type taken struct {
	request *http.Request
	body    []byte
}

// receiver keeps what it is sent and answers 202, or what answer says.
func receiver(t *testing.T, answer func(w http.ResponseWriter, r *http.Request)) (*httptest.Server, *[]taken) {
	var mu sync.Mutex // guards all while requests come together
	var all []taken
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		mu.Lock()
		all = append(all, taken{r, body})
		mu.Unlock()
		if answer != nil {
			answer(w, r)
			return
		}
		w.WriteHeader(http.StatusAccepted)
	}))
	t.Cleanup(srv.Close)
	return srv, &all
}

// quoted is a text as JSON.
func quoted(t testing.TB, s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func pemOf(t *testing.T, key any) string {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
}

// An independent implementation of RFC 9421 verifies what is signed, and not what was changed on its way.
func TestMessageSignaturesVerify(t *testing.T) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	curve, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	shared := bytes.Repeat([]byte("k"), 64)
	fields := httpsign.Headers("@method", "@target-uri", "content-digest", "content-type", "webhook-id", "ce-id", "ce-source", "ce-type", "ce-subject", "ce-partitionkey")
	for name, c := range map[string]struct {
		algorithm, key string
		verifier       func(*httpsign.VerifyConfig) (*httpsign.Verifier, error)
	}{
		"ed25519": {"ed25519", "whsk_" + base64.StdEncoding.EncodeToString(private), func(v *httpsign.VerifyConfig) (*httpsign.Verifier, error) {
			return httpsign.NewEd25519Verifier(public, v, fields)
		}},
		"ed25519, PEM": {"ed25519", pemOf(t, private), func(v *httpsign.VerifyConfig) (*httpsign.Verifier, error) {
			return httpsign.NewEd25519Verifier(public, v, fields)
		}},
		"hmac": {"hmac-sha256", "whsec_" + base64.StdEncoding.EncodeToString(shared), func(v *httpsign.VerifyConfig) (*httpsign.Verifier, error) {
			return httpsign.NewHMACSHA256Verifier(shared, v, fields)
		}},
		"ecdsa": {"ecdsa-p256-sha256", pemOf(t, curve), func(v *httpsign.VerifyConfig) (*httpsign.Verifier, error) {
			return httpsign.NewP256Verifier(curve.PublicKey, v, fields)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			srv, got := receiver(t, nil)
			now := time.Now()
			w := target(t, fmt.Sprintf(`{"url": "%s/hook?a=b%%20c", "signature": {"algorithm": "%s", "keyId": "key-1", "key": {"value": %s}}}`, srv.URL, c.algorithm, quoted(t, c.key)), env(t, &now, nil))
			deliver(t, w, targettest.Delivery())
			r := (*got)[0]
			verify := func() error {
				verifier, err := c.verifier(httpsign.NewVerifyConfig().SetKeyID("key-1").SetAllowedAlgs([]string{c.algorithm}).SetVerifyCreated(true))
				if err != nil {
					t.Fatal(err)
				}
				return httpsign.VerifyRequest("sig1", *verifier, r.request)
			}
			if err := verify(); err != nil {
				t.Fatalf("%v\n%v", err, r.request.Header)
			}
			body := io.NopCloser(bytes.NewReader(r.body))
			if err := httpsign.ValidateContentDigestHeader(r.request.Header["Content-Digest"], &body, []string{httpsign.DigestSha256}); err != nil {
				t.Error(err)
			}
			for _, name := range []string{"Ce-Type", "Webhook-Id", "Content-Type", "Content-Digest"} {
				was := r.request.Header.Get(name)
				r.request.Header.Set(name, was+"x")
				if verify() == nil {
					t.Errorf("%s can be changed", name)
				}
				r.request.Header.Set(name, was)
			}
		})
	}
}

// A list of keys signs with each that has not ended, which the receivers of several libraries verify.
func TestKeysInRotation(t *testing.T) {
	const private = "whsk_6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvg=="
	srv, got := receiver(t, nil)
	end := time.Now().Add(time.Hour).UTC()
	now := end.Add(-time.Second)
	w := target(t, fmt.Sprintf(`{"url": "%s", "secret": [{"value": "%s"}, {"value": "%s", "until": "%s"}, {"ref": "env:PAIR"}]}`, srv.URL, secretA, secretB, end.Format(time.RFC3339Nano)),
		env(t, &now, map[string]string{"env:PAIR": private}))
	verifies := func(secret string) bool {
		r := (*got)[len(*got)-1]
		wh, err := standardwebhooks.NewWebhook(secret)
		if err != nil {
			t.Fatal(err)
		}
		return wh.VerifyIgnoringTimestamp(r.body, r.request.Header) == nil
	}
	deliver(t, w, targettest.Delivery())
	if !verifies(secretA) || !verifies(secretB) {
		t.Error("not signed with both secrets")
	}
	now = end
	deliver(t, w, targettest.Delivery())
	if !verifies(secretA) || verifies(secretB) {
		t.Error("the old secret does not end")
	}
	r := (*got)[1]
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(private, "whsk_"))
	if err != nil {
		t.Fatal(err)
	}
	_, sig, _ := strings.Cut(r.request.Header.Get("Webhook-Signature"), "v1a,")
	raw, err := base64.StdEncoding.DecodeString(sig)
	if err != nil {
		t.Fatal(err)
	}
	signed := r.request.Header.Get("Webhook-Id") + "." + r.request.Header.Get("Webhook-Timestamp") + "." + string(r.body)
	if !ed25519.Verify(ed25519.PrivateKey(key).Public().(ed25519.PublicKey), []byte(signed), raw) {
		t.Error("the v1a signature does not verify")
	}
}

const verifyPackages = `{"private":true,"dependencies":{"standardwebhooks":"1.1.1","svix":"1.99.1"}}`

// verifyScript says which of the requests the libraries take.
const verifyScript = `
const input = JSON.parse(require('fs').readFileSync(0, 'utf8'));
const kinds = { standardwebhooks: require('standardwebhooks').Webhook, svix: require('svix').Webhook };
const out = {};
for (const [name, Webhook] of Object.entries(kinds)) {
  out[name] = input.map(r => { try { new Webhook(r.secret).verify(r.body, r.headers); return true; } catch (e) { return false; } });
}
console.log(JSON.stringify(out));
`

// The libraries of npm take what is signed in rotation, and nothing else.
func TestNodeLibrariesVerify(t *testing.T) {
	srv, got := receiver(t, nil)
	now := time.Now()
	w := target(t, fmt.Sprintf(`{"url": "%s", "mode": "structured", "secret": [{"value": "%s"}, {"value": "%s"}]}`, srv.URL, secretA, secretB), env(t, &now, nil))
	deliver(t, w, targettest.Delivery())
	r := (*got)[0]
	headers := map[string]string{}
	for _, name := range []string{"webhook-id", "webhook-timestamp", "webhook-signature"} {
		headers[name] = r.request.Header.Get(name)
	}
	type request struct {
		Secret  string            `json:"secret"`
		Body    string            `json:"body"`
		Headers map[string]string `json:"headers"`
	}
	other := "whsec_" + base64.StdEncoding.EncodeToString(bytes.Repeat([]byte("x"), 32))
	requests := []request{{secretA, string(r.body), headers}, {secretB, string(r.body), headers}, {other, string(r.body), headers}, {secretA, string(r.body) + " ", headers}}
	in, err := json.Marshal(requests)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, text := range map[string]string{"package.json": verifyPackages, "verify.js": verifyScript} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	node(t, dir, nil, "npm", "install", "--no-audit", "--no-fund", "--prefer-offline", "--loglevel=error")
	var out map[string][]bool
	if err := json.Unmarshal(node(t, dir, in, "node", "verify.js"), &out); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"standardwebhooks", "svix"} {
		if fmt.Sprint(out[name]) != "[true true false false]" {
			t.Errorf("%s takes %v, want both secrets and nothing else", name, out[name])
		}
	}
}

func node(t *testing.T, dir string, in []byte, name string, args ...string) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir, cmd.Stdin = dir, bytes.NewReader(in)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, stderr.Bytes())
	}
	return out
}

// Values of printable ASCII go as they are, where that is asked for.
func TestRawHeaders(t *testing.T) {
	srv, got := receiver(t, nil)
	now := time.Now()
	w := target(t, fmt.Sprintf(`{"url": "%s", "headerCoding": "raw"}`, srv.URL), env(t, &now, nil))
	d := targettest.Delivery()
	e := *d.Event
	e.ID, e.Subject, e.Type = `100% "sure" of it`, " at its ends ", "Euro €"
	d.Event = &e
	deliver(t, w, d)
	for name, want := range map[string]string{"Ce-Id": `100% "sure" of it`, "Ce-Subject": "%20at%20its%20ends%20", "Ce-Type": "Euro%20%E2%82%AC", "Ce-Partitionkey": "box 17"} {
		if is := (*got)[0].request.Header.Get(name); is != want {
			t.Errorf("%s: %q, want %q", name, is, want)
		}
	}
}
