// SPDX-License-Identifier: Apache-2.0

package app_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/internal/app"
	"github.com/rialto-bridge/rialto/internal/secret"
)

// authSink is a far side that keeps what Authorization was.
func authSink(t *testing.T) (*sink, func() string) {
	var mu sync.Mutex
	last := ""
	s := newSink(t, func(_ http.ResponseWriter, r *http.Request, _ []byte) {
		mu.Lock()
		defer mu.Unlock()
		last = r.Header.Get("Authorization")
	})
	return s, func() string {
		mu.Lock()
		defer mu.Unlock()
		return last
	}
}

// sendsWith publishes an event and waits until a delivery came with this Authorization.
func (s *server) sendsWith(t *testing.T, last func() string, id, want string) {
	t.Helper()
	if status := s.publish("default", id, "reading", `{}`); status != http.StatusAccepted {
		t.Fatalf("publish: %d", status)
	}
	eventually(t, 10*time.Second, func() (string, bool) { return fmt.Sprintf("it was sent with %q", last()), last() == want })
}

// inFiles lists the files below a directory that hold a text.
func inFiles(t *testing.T, dir, text string) (files []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		if bytes.Contains(b, []byte(text)) {
			files = append(files, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// Nobody gets a bridge to send its own secrets to him: a key that may write definitions may not do all that they open.
func TestOwnSecretsStay(t *testing.T) {
	dir, beside := t.TempDir(), t.TempDir()
	seal, ops := filepath.Join(beside, "seal"), filepath.Join(beside, "ops")
	if err := errors.Join(os.WriteFile(seal, []byte(secret.NewKey()), 0o600), os.WriteFile(ops, []byte("tkn"), 0o600)); err != nil {
		t.Fatal(err)
	}
	o := options(dir)
	o.SecretKeyFile = seal
	s, _ := start(t, o)
	if status, body := s.call("PUT", "/v1/targets/far", `{"type":"webhook","config":{"url":"https://example.com","headers":{"Authorization":{"ref":"env:RIALTO_KEY"}}}}`); status != http.StatusBadRequest ||
		!strings.Contains(body, `"pointer":"/config/headers/Authorization"`) || !strings.Contains(body, "the bridge's own") {
		t.Errorf("a variable of the bridge: %d %s", status, body)
	}
	far, last := authSink(t)
	s.target("far", far.URL, `{}`)
	s.rule("default", "all", `{"type":["reading"]}`, "far")
	with := func(file string) {
		s.must("PUT", "/v1/targets/far", fmt.Sprintf(`{"type":"webhook","config":{"url":%q,"headers":{"Authorization":{"ref":"file:%s"}}},"delivery":{"retry":{"maxAttempts":1}}}`, far.URL, file))
	}
	for i, file := range []string{filepath.Join(dir, "admin.key"), seal} {
		with(file)
		if status := s.publish("default", fmt.Sprint(i), "reading", `{}`); status != http.StatusAccepted {
			t.Fatalf("publish: %d", status)
		}
		eventually(t, 10*time.Second, func() (string, bool) {
			dead := s.must("GET", "/v1/deadletters?bus=default", "")
			return dead, strings.Contains(dead, "secret file:"+file+": is the bridge's own")
		})
	}
	if last() != "" {
		t.Errorf("the bridge sent %q", last())
	}
	with(ops)
	s.sendsWith(t, last, "good", "tkn")
}

// A Secret is written and never read; who refers to it gets it, and what it is changed to.
func TestSecretsAreWrittenAndUsed(t *testing.T) {
	const first, second, inline = "first-6f1c0b7a", "second-9d4e21cc", "inline-77aa31f0"
	far, last := authSink(t)
	dir := t.TempDir()
	s, a := start(t, options(dir))
	target := fmt.Sprintf(`{"type":"webhook","config":{"url":%q,"auth":{"type":"bearer","token":{"ref":"ops-token"}},"headers":{"X-Key":{"value":%q}}}}`, far.URL, inline)

	if status, answer := s.call("PUT", "/v1/targets/ops", target); status != http.StatusBadRequest || !strings.Contains(answer, `"/config/auth/token/ref"`) {
		t.Errorf("a target with a Secret that is not there: %d %s", status, answer)
	}
	written := s.must("PUT", "/v1/secrets/ops-token", fmt.Sprintf(`{"value":%q,"labels":{"team":"ops"}}`, first))
	s.must("PUT", "/v1/targets/ops", target)
	s.rule("default", "all", `{"type":["reading"]}`, "ops")
	s.sendsWith(t, last, "1", "Bearer "+first)

	var doc struct {
		Kind, Name, Fingerprint string
		Revision                uint64
		CreatedAt, UpdatedAt    time.Time
	}
	read := s.must("GET", "/v1/secrets/ops-token", "")
	if err := json.Unmarshal([]byte(read), &doc); err != nil || doc.Kind != "Secret" || doc.Name != "ops-token" || len(doc.Fingerprint) != 16 || doc.CreatedAt.IsZero() || doc.UpdatedAt.IsZero() {
		t.Errorf("it reads as %s, %v", read, err)
	}
	for _, answer := range []string{written, read, s.must("GET", "/v1/secrets", ""), s.must("GET", "/v1/targets/ops", ""), s.must("GET", "/v1/audit", "")} {
		if strings.Contains(answer, first) || strings.Contains(answer, inline) || strings.Contains(answer, "sealed") {
			t.Errorf("shown as %s", answer)
		}
	}
	if again := s.must("PUT", "/v1/secrets/ops-token", read); again != read { // what was read can be written, and changes nothing
		t.Errorf("written again it is %s, was %s", again, read)
	}
	if again := s.must("PUT", "/v1/secrets/ops-token", fmt.Sprintf(`{"value":%q,"labels":{"team":"ops"}}`, first)); again != read {
		t.Errorf("written again it is %s, was %s", again, read)
	}
	shown := s.must("GET", "/v1/targets/ops", "")
	revision := func(doc string) string {
		_, rest, _ := strings.Cut(doc, `"revision":`)
		n, _, _ := strings.Cut(rest, ",")
		return n
	}
	if again := s.must("PUT", "/v1/targets/ops", shown); revision(again) != revision(shown) {
		t.Errorf("a target written again is %s, was %s", again, shown)
	}
	if changed := s.must("PUT", "/v1/secrets/ops-token", fmt.Sprintf(`{"value":%q}`, second)); strings.Contains(changed, doc.Fingerprint) {
		t.Errorf("the fingerprint stays: %s", changed)
	}
	s.sendsWith(t, last, "2", "Bearer "+second)
	hook := func(token string) int {
		status, _ := s.call("POST", "/hooks/orders", `{"id":"1"}`, "Authorization", "Bearer "+token)
		return status
	}
	s.must("PUT", "/v1/sources/orders", `{"type":"webhook","config":{"provider":"generic","bearer":{"ref":"ops-token"},"event":{"id":"$.id","type":"order"}}}`)
	if ok, old := hook(second), hook(first); ok != http.StatusNoContent || old != http.StatusUnauthorized {
		t.Errorf("a source answers %d, and %d to the old secret", ok, old)
	}
	s.must("PUT", "/v1/secrets/ops-token", `{"value":"third-0a1b2c3d"}`)
	eventually(t, 10*time.Second, func() (string, bool) {
		return "the new secret is refused", hook("third-0a1b2c3d") == http.StatusNoContent
	})

	if status, answer := s.call("DELETE", "/v1/secrets/ops-token", ""); status != http.StatusConflict || !strings.Contains(answer, "target ops") {
		t.Errorf("a Secret in use is deleted: %d %s", status, answer)
	}
	for body, want := range map[string]string{`{}`: "/value", `{"value":""}`: "/value", `{"value":7}`: "/value", `{"value":"a","sealed":"v1.a.b"}`: "/sealed", `{"value":"[redacted]"}`: "/value"} {
		if status, answer := s.call("PUT", "/v1/secrets/other", body); status != http.StatusBadRequest || !strings.Contains(answer, `"`+want+`"`) {
			t.Errorf("%s: %d %s", body, status, answer)
		}
	}
	if status, answer := s.call("PUT", "/v1/targets/forged", fmt.Sprintf(`{"type":"webhook","config":{"url":%q,"headers":{"X-Key":{"sealed":"v1.a.b"}}}}`, far.URL)); status != http.StatusBadRequest {
		t.Errorf("what is sealed can be written: %d %s", status, answer)
	}
	for kind, config := range map[string]string{
		"http": `"url":"` + far.URL + `","body":{"form":{"sealed":"x"}}`, "feishu": `"url":{"ref":"ops-token"},"card":{"a":{"sealed":"x"}}`,
		"function": `"runtime":"http","url":"` + far.URL + `","headers":{"sealed":"x"}`,
	} {
		if status, answer := s.call("PUT", "/v1/targets/forged", `{"type":"`+kind+`","config":{`+config+`}}`); status != http.StatusBadRequest || !strings.Contains(answer, "sealed") {
			t.Errorf("%s takes what is sealed: %d %s", kind, status, answer)
		}
	}
	stop(t, a)
	for _, text := range []string{first, second, inline} {
		if files := inFiles(t, dir, text); len(files) > 0 {
			t.Errorf("%s stands in %v", text, files)
		}
	}
	if st, err := os.Stat(filepath.Join(dir, "secret.key")); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("secret.key: %v, %v", st, err)
	}
}

func stop(t *testing.T, a *app.App) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := a.Close(ctx); err != nil {
		t.Fatal(err)
	}
}

// Another key seals what the one before has sealed anew, and then that one is not needed. Without any of them nothing is sent, and the
// status says so.
func TestKeysOfSecretsRotate(t *testing.T) {
	far, last := authSink(t)
	dir := t.TempDir()
	s, a := start(t, options(dir))
	s.must("PUT", "/v1/secrets/ops-token", `{"value":"named-1"}`)
	s.must("PUT", "/v1/targets/named", fmt.Sprintf(`{"type":"webhook","config":{"url":%q,"auth":{"type":"bearer","token":{"ref":"ops-token"}}}}`, far.URL))
	s.must("PUT", "/v1/targets/inline", fmt.Sprintf(`{"type":"webhook","config":{"url":%q,"auth":{"type":"bearer","token":{"value":"inline-1"}}}}`, far.URL))
	s.rule("default", "named", `{"type":["reading"],"data":{"to":["named"]}}`, "named")
	s.rule("default", "inline", `{"type":["reading"],"data":{"to":["inline"]}}`, "inline")
	stop(t, a)
	send := func(s *server, id string) {
		t.Helper()
		for _, to := range []string{"named", "inline"} {
			if status := s.publish("default", id+to, "reading", fmt.Sprintf(`{"to":%q}`, to)); status != http.StatusAccepted {
				t.Fatalf("publish: %d", status)
			}
			eventually(t, 10*time.Second, func() (string, bool) { return "it was sent with " + last(), last() == "Bearer "+to+"-1" })
		}
	}
	o := options(dir)
	o.SecretKey = secret.NewKey()
	var log syncBuffer
	o.Logger = slog.New(slog.NewTextHandler(&log, nil))
	s, a = start(t, o)
	eventually(t, 10*time.Second, func() (string, bool) { return log.String(), strings.Contains(log.String(), "sealed anew") })
	send(s, "1")
	stop(t, a)

	if err := os.Remove(filepath.Join(dir, "secret.key")); err != nil {
		t.Fatal(err)
	}
	o.SecretKeyFile = filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(o.SecretKeyFile, []byte(secret.NewKey()+"\n"+o.SecretKey+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	o.SecretKey = ""
	s, a = start(t, o)
	send(s, "2")
	stop(t, a)

	o.SecretKeyFile, o.SecretKey = "", secret.NewKey()
	s, _ = start(t, o)
	for _, to := range []string{"named", "inline"} {
		if status := s.publish("default", "3"+to, "reading", fmt.Sprintf(`{"to":%q}`, to)); status != http.StatusAccepted {
			t.Fatalf("publish: %d", status)
		}
	}
	for to, want := range map[string]string{"named": `secret ops-token: there is none of this name that can be opened`, "inline": `its definition cannot be used`} {
		eventually(t, 10*time.Second, func() (string, bool) {
			told := s.must("GET", "/v1/targets/"+to, "") + s.must("GET", "/v1/buses/default/events/3"+to, "")
			return told, strings.Contains(told, want)
		})
	}
	if log := log.String(); !strings.Contains(log, "is sealed with a key that this bridge does not have") {
		t.Errorf("the log does not say it: %s", log)
	}
	s.must("PUT", "/v1/targets/inline", fmt.Sprintf(`{"type":"webhook","config":{"url":%q,"auth":{"type":"bearer","token":{"value":"inline-1"}}}}`, far.URL))
	s.must("PUT", "/v1/secrets/ops-token", `{"value":"named-1"}`)
	send(s, "4")
}

// A key that cannot be used ends the start: nothing may be sealed with another one instead.
func TestKeysOfSecretsThatAreRefused(t *testing.T) {
	file := func(text string) string {
		name := filepath.Join(t.TempDir(), "keys")
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	for name, c := range map[string]struct {
		given app.Options
		kept  string
		want  string
	}{
		"a variable that is none": {app.Options{SecretKey: "hunter2"}, "", "secret-key: key 1 is not the base64 of 32 bytes"},
		"a file that is none":     {app.Options{SecretKeyFile: file(secret.NewKey() + "\nhunter2")}, "", "secret-key-file: key 2 is not"},
		"an empty file":           {app.Options{SecretKeyFile: file("")}, "", "secret-key-file: there is no key"},
		"no file":                 {app.Options{SecretKeyFile: "/nowhere/keys"}, "", "secret-key-file: open /nowhere/keys"},
		"both":                    {app.Options{SecretKeyFile: file(""), SecretKey: secret.NewKey()}, "", "exclude each other"},
		"its own is damaged":      {app.Options{}, "hunter2", "secret.key: key 1 is not"},
		"its own is empty":        {app.Options{}, "\n", "secret.key: there is no key"},
	} {
		o := options(t.TempDir())
		o.SecretKey, o.SecretKeyFile = c.given.SecretKey, c.given.SecretKeyFile
		if c.kept != "" {
			if err := os.WriteFile(filepath.Join(o.Data, "secret.key"), []byte(c.kept), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		a, err := app.Start(t.Context(), o)
		if err == nil {
			stop(t, a)
		}
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
	}
}

// syncBuffer is a log.
type syncBuffer struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// What was stored before secrets were sealed is sealed by the next start.
func TestPlainSecretsAreSealed(t *testing.T) {
	const plain = "plain-5f1c0b7a3d"
	far, last := authSink(t)
	dir := t.TempDir()
	tr, err := app.OpenTransfer(t.Context(), dir, "", true, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	doc := fmt.Sprintf(`{"kind":"Target","name":"ops","type":"webhook","config":{"url":%q,"auth":{"type":"bearer","token":{"value":%q}}}}`, far.URL, plain)
	lines := `{"format":"rialto definitions 1"}` + "\n" + `{"store":"definitions","kind":"Target","name":"ops","document":` + doc + "}\n" + `{"count":1}` + "\n"
	if _, err := tr.Import(t.Context(), strings.NewReader(lines), false); err != nil {
		t.Fatal(err)
	}
	if err := tr.Close(); err != nil {
		t.Fatal(err)
	}
	if len(inFiles(t, dir, plain)) == 0 {
		t.Fatal("what is not sealed is not found either")
	}
	o := options(dir)
	var log syncBuffer
	o.Logger = slog.New(slog.NewTextHandler(&log, nil))
	s, a := start(t, o)
	eventually(t, 10*time.Second, func() (string, bool) { return log.String(), strings.Contains(log.String(), "sealed anew") })
	s.rule("default", "all", `{"type":["reading"]}`, "ops")
	s.sendsWith(t, last, "1", "Bearer "+plain)
	stop(t, a)
	if exported := export(t, dir); strings.Contains(exported, plain) || !strings.Contains(exported, `"sealed":"v1.`) {
		t.Errorf("exported as %s", exported)
	}
}

func export(t *testing.T, dir string) string {
	t.Helper()
	tr, err := app.OpenTransfer(t.Context(), dir, "", false, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := tr.Close(); err != nil {
			t.Error(err)
		}
	}()
	var b bytes.Buffer
	if _, err := tr.Export(t.Context(), &b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// echo refuses in the way that the path says, and repeats all it was sent.
func echo(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	var all strings.Builder
	for name, values := range r.Header {
		fmt.Fprintf(&all, "%s: %s; ", name, values)
		_, behind, _ := strings.Cut(values[0], " ")
		fmt.Fprintf(&all, "%s; ", behind)
	}
	all.Write(body)
	all.WriteString(" " + r.URL.RequestURI())
	w.Header().Set("X-Echo", all.String())
	first, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/") // presets put more behind it
	switch "/" + first {
	case "/redirect":
		w.Header().Set("Location", "/"+strings.ReplaceAll(all.String(), " ", "-"))
		w.WriteHeader(http.StatusFound)
	case "/breaks":
		w.Header().Set("Content-Length", "100000")
		w.WriteHeader(http.StatusOK)
	case "/closes":
		panic(http.ErrAbortHandler)
	case "/fails": // as functions and gateways say it, with a status of success
		w.Header().Set("X-Amz-Function-Error", "Unhandled "+all.String())
		w.Header().Set("X-Fc-Error-Type", all.String())
		w.Header().Set("Content-Type", "application/cloudevents+json")
		answer, err := json.Marshal(map[string]string{"code": all.String(), "errorType": all.String(), "errorMessage": all.String()})
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		w.Write(answer)
		return
	case "/gone":
		w.WriteHeader(http.StatusGone)
	case "/issuer-refuses":
		w.WriteHeader(http.StatusBadRequest)
		form := all.String()
		fmt.Fprintf(w, `{"error":"invalid_client","error_description":%q}`, form)
		return
	case "/issuer":
		fmt.Fprintf(w, `{"access_token":%q,"token_type":"bearer"}`, leakedToken)
		return
	default:
		w.WriteHeader(http.StatusUnauthorized)
	}
	fmt.Fprint(w, all.String())
}

const leakedToken = "access-token-c2a1b1e7"

// secureEcho is echo over TLS, which wants a certificate of whoever calls; clientTLS is what a target says of it, and keyLine a part of
// the key.
func secureEcho(t *testing.T) (url, clientTLS, keyLine string) {
	t.Helper()
	dir := t.TempDir()
	ca := newCA(t, dir, "an authority")
	own := issue(t, dir, "far", ca, &x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	caller := issue(t, dir, "caller", ca, &x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	srv := httptest.NewUnstartedServer(http.HandlerFunc(echo))
	srv.TLS = &tls.Config{Certificates: []tls.Certificate{own.pair()}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: ca.pool()}
	srv.StartTLS()
	t.Cleanup(srv.Close)
	values := map[string]map[string]string{}
	for name, file := range map[string]string{"ca": ca.certFile, "certificate": caller.certFile, "key": caller.keyFile} {
		pem, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		values[name] = map[string]string{"value": string(pem)}
	}
	out, err := json.Marshal(values)
	if err != nil {
		t.Fatal(err)
	}
	return srv.URL, string(out), strings.Split(values["key"]["value"], "\n")[1]
}

// No secret gets out, however the far side fails and whatever it repeats: not by the API, the journey, dead letters, the log, metrics, an
// export or any file.
func TestSecretsDoNotLeak(t *testing.T) {
	far := httptest.NewServer(http.HandlerFunc(echo))
	defer far.Close()
	b64 := func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
	const password, secretKey, client = "pass word-1a2b3c4d", "aws-secret-3c4d5e6f7a8b", "client-secret-5e6f7a8b"
	hmacKey, pairKey := "whsec_"+b64(strings.Repeat("hmac-secret-", 3)), "whsk_"+b64("ed25519-seed-of-32-bytes-1234567")
	hidden := map[string]string{
		"bearer": "bearer-token-0a1b2c3d", "password": password, "basic": b64("rialto:" + password), "apiKey": "api-key-2b3c4d5e", "header": "header-value-6f7a8b9c",
		"hmac": strings.TrimPrefix(hmacKey, "whsec_"), "pair": strings.TrimPrefix(pairKey, "whsk_"), "aws": secretKey, "session": "aws-session-7a8b9c0d", "client": client,
		"token": leakedToken, "named": "named-secret-8b9c0d1e", "template": "template+secret/9c0d1e2f", "template in a form": url.QueryEscape("template+secret/9c0d1e2f"),
		"acs": "acs-secret-0d1e2f3a", "sts": "sts-token-1e2f3a4b",
	}
	auths := map[string]string{
		"bearer": fmt.Sprintf(`{"type":"bearer","token":{"value":%q}}`, hidden["bearer"]),
		"named":  `{"type":"bearer","token":{"ref":"named"}}`,
		"basic":  fmt.Sprintf(`{"type":"basic","username":"rialto","password":{"value":%q}}`, password),
		"key":    fmt.Sprintf(`{"type":"apiKey","header":"X-Api","key":{"value":%q}}`, hidden["apiKey"]),
		"aws":    fmt.Sprintf(`{"type":"awsSigV4","region":"eu-central-1","service":"lambda","accessKeyId":{"value":"AKIDEXAMPLE"},"secretAccessKey":{"value":%q},"sessionToken":{"value":%q}}`, secretKey, hidden["session"]),
		"oauth":  fmt.Sprintf(`{"type":"oauth2","tokenUrl":"%s/issuer","clientId":"rialto","clientSecret":{"value":%q}}`, far.URL, client),
		"issuer": fmt.Sprintf(`{"type":"oauth2","clientAuth":"body","tokenUrl":"%s/issuer-refuses","clientId":"rialto","clientSecret":{"value":%q}}`, far.URL, client),
	}
	secure, clientTLS, keyLine := secureEcho(t)
	hidden["tls key"] = keyLine
	dir := t.TempDir()
	o := options(dir)
	var log syncBuffer
	o.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	s, a := start(t, o)
	answers := []string{s.must("PUT", "/v1/secrets/named", fmt.Sprintf(`{"value":%q}`, hidden["named"]))}
	owed := 0
	for auth, config := range auths {
		for _, path := range []string{"refuse", "redirect", "breaks", "closes", "gone"} {
			name := auth + "-" + path
			answers = append(answers, s.must("PUT", "/v1/targets/"+name, fmt.Sprintf(`{"type":"webhook","delivery":{"retry":{"schedule":[]}},"config":{"url":"%s/%s","auth":%s,
				"secret":[{"value":%q},{"value":%q}],"signature":{"algorithm":"hmac-sha256","keyId":"a","key":{"value":%q}},"headers":{"X-Secret":{"value":%q}}}}`,
				far.URL, path, config, hmacKey, pairKey, hmacKey, hidden["header"])))
			s.rule("default", name, `{"type":["reading"]}`, name)
			owed++
		}
	}
	alibaba := fmt.Sprintf(`{"type":"alibabaACS3","accessKeyId":{"value":"LTAIEXAMPLE"},"secretAccessKey":{"value":%q},"sessionToken":{"value":%q}}`, hidden["acs"], hidden["sts"])
	for name, config := range map[string]string{
		"http": fmt.Sprintf(`{"type":"http","config":{"url":"%s/PATH?key=${secret.k}","secrets":{"k":{"value":%q}},"auth":%s,"body":{"form":{"key":"${secret.k}"}},
			"headers":{"X-Text":"key ${secret.k}","X-Secret":{"value":%q}},"answer":{"path":"$.code","equals":0}}`, far.URL, hidden["template"], alibaba, hidden["header"]),
		"http-json": fmt.Sprintf(`{"type":"http","config":{"url":"%s/PATH/${secret.k}","method":"PUT","secrets":{"k":{"value":%q}},"auth":%s,"body":{"json":{"key":"${secret.k}"}},
			"answer":{"path":"$.code","equals":0}}`, far.URL, hidden["template"], auths["oauth"]),
		"lambda":   fmt.Sprintf(`{"type":"function","config":{"runtime":"http","preset":"aws-lambda","function":"f","url":"%s/PATH","auth":%s}`, far.URL, auths["aws"]),
		"fc":       fmt.Sprintf(`{"type":"function","config":{"runtime":"http","preset":"alibaba-fc","function":"f","url":"%s/PATH","auth":%s}`, far.URL, alibaba),
		"openfaas": fmt.Sprintf(`{"type":"function","config":{"runtime":"http","preset":"openfaas","function":"f","url":"%s/PATH","auth":%s}`, far.URL, auths["basic"]),
		"knative":  fmt.Sprintf(`{"type":"function","config":{"runtime":"http","preset":"knative","url":"%s/PATH","auth":%s}`, far.URL, auths["named"]),
		"tls":      fmt.Sprintf(`{"type":"webhook","config":{"url":"%s/PATH","tls":%s}`, secure, clientTLS),
		"http-tls": fmt.Sprintf(`{"type":"http","config":{"url":"%s/PATH","tls":%s}`, secure, clientTLS),
	} {
		for _, path := range []string{"refuse", "redirect", "breaks", "fails", "gone"} {
			full := name + "-" + path
			answers = append(answers, s.must("PUT", "/v1/targets/"+full, strings.Replace(config, "PATH", path, 1)+`,"delivery":{"retry":{"schedule":[]}}}`))
			s.rule("default", full, `{"type":["reading"]}`, full)
		}
	}
	if status, answer := s.call("PUT", "/v1/targets/bad", fmt.Sprintf(`{"type":"webhook","config":{"url":%q,"auth":{"type":"bearer","token":{"value":"%s\n"}}}}`, far.URL, hidden["bearer"])); status != http.StatusBadRequest {
		t.Errorf("%d %s", status, answer)
	} else {
		answers = append(answers, answer)
	}
	s.publishedAndHidden(t, a, dir, &log, answers, hidden, func(all string) bool {
		return strings.Count(all, `"status":401`) >= owed/5-2 && strings.Contains(all, "[redacted]") && strings.Contains(all, "invalid_client") && strings.Contains(all, "X-Echo") &&
			strings.Contains(all, "the answer says $.code = ") && strings.Contains(all, "the function has failed (Unhandled") && strings.Contains(all, "says that it is an event, and is none") &&
			!strings.Contains(all, `"reason":"tls"`) && !strings.Contains(all, `"reason":"transform"`)
	}, "/v1/targets/bearer-gone", "/v1/deadletters?limit=100&target=http-fails", "/v1/targets/tls-gone")
}

// publishedAndHidden publishes an event, stops the bridge when all its deliveries are settled, and fails the test if anything that the bridge says, or has
// on disk, holds what is to be hidden. made says of all that the bridge has said whether the deliveries were made;
// more is read beside what everybody reads.
func (s *server) publishedAndHidden(t *testing.T, a *app.App, dir string, log *syncBuffer, answers []string, hidden map[string]string, made func(all string) bool, more ...string) {
	t.Helper()
	if status := s.publish("default", "1", "reading", `{}`); status != http.StatusAccepted {
		t.Fatalf("publish: %d", status)
	}
	s.settled("default", 20*time.Second)
	for _, path := range append([]string{"/v1/targets", "/v1/secrets", "/v1/audit", "/v1/deadletters?limit=100", "/v1/buses/default/events/1", "/v1/buses/default/events?limit=100", "/metrics"}, more...) {
		answers = append(answers, s.must("GET", path, ""))
	}
	stop(t, a)
	answers = append(answers, log.String(), export(t, dir))
	all := strings.Join(answers, "\n")
	if !made(all) {
		t.Errorf("the deliveries were not made: %.2000s", all)
	}
	for name, text := range hidden {
		if i := strings.Index(all, text); i >= 0 {
			t.Errorf("%s is told: %s", name, all[max(i-300, 0):min(i+100, len(all))])
		}
		if files := inFiles(t, dir, text); len(files) > 0 {
			t.Errorf("%s stands in %v", name, files)
		}
	}
}
