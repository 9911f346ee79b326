// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// at is the time of day in tests.
var at = time.Date(2026, 11, 29, 20, 15, 0, 0, time.UTC)

// keyFile is where the key of a server is that was started here.
const keyFile = "rialto-data/admin.key"

// result is what one command line did.
type result struct {
	code     int
	out, err string
}

// rialto runs one command line against a server, with stdin.
func rialto(t *testing.T, server *httptest.Server, stdin string, args ...string) result {
	t.Helper()
	env := map[string]string{"RIALTO_KEY": "secret-key"}
	if server != nil {
		env["RIALTO_URL"] = server.URL
	}
	return rialtoIn(t, env, stdin, args...)
}

func rialtoIn(t *testing.T, env map[string]string, stdin string, args ...string) result {
	t.Helper()
	var out, errOut bytes.Buffer
	code := run(t.Context(), &cli{
		in:     strings.NewReader(stdin),
		out:    &out,
		err:    &errOut,
		getenv: func(name string) string { return env[name] },
		http:   &http.Client{},
		now:    func() time.Time { return at },
	}, args)
	return result{code, out.String(), errOut.String()}
}

// serve starts a server with these handlers, each behind "METHOD /path".
func serve(t *testing.T, handlers map[string]http.HandlerFunc) *httptest.Server {
	t.Helper()
	mux := http.NewServeMux()
	for pattern, h := range handlers {
		mux.HandleFunc(pattern, h)
	}
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s
}

// says answers with a status and a body.
func says(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		media := "application/json"
		if status >= 400 {
			media = "application/problem+json"
		}
		w.Header().Set("Content-Type", media)
		w.WriteHeader(status)
		w.Write([]byte(body))
	}
}

func TestExitCodes(t *testing.T) {
	for _, c := range []struct {
		name   string
		status int
		body   string
		want   int
		says   string
	}{
		{"found", 200, `{"kind":"Target","name":"a"}`, exitOK, ""},
		{"not found", 404, `{"title":"not found","detail":"no target a"}`, exitNotFound, "no target a (404)"},
		{"no key", 401, `{"title":"unauthorized"}`, exitAuth, "--key or RIALTO_KEY"},
		{"not allowed", 403, `{"title":"forbidden"}`, exitAuth, "forbidden (403)"},
		{"conflict", 409, `{}`, exitConflict, "Conflict (409)"},
		{"changed", 412, `{}`, exitConflict, ""},
		{"invalid", 400, `{"detail":"invalid","errors":[{"pointer":"/config/url","detail":"is no URL"}]}`, exitFailed, "/config/url: is no URL"},
		{"internal", 500, `{"title":"internal","requestId":"r-17"}`, exitFailed, "request r-17"},
		{"away", 503, `{"title":"unavailable"}`, exitUnreachable, "unavailable (503)"},
		{"garbled", 500, `{"title":`, exitFailed, "unreadable answer (500)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := serve(t, map[string]http.HandlerFunc{"GET /v1/targets/a": says(c.status, c.body)})
			got := rialto(t, s, "", "get", "target", "a")
			if got.code != c.want || !strings.Contains(got.err, c.says) {
				t.Errorf("exit %d, stderr %q; want exit %d and %q", got.code, got.err, c.want, c.says)
			}
			if c.want != exitOK && got.out != "" {
				t.Errorf("stdout of a failure: %q", got.out)
			}
		})
	}
}

func TestUnreachable(t *testing.T) {
	s := httptest.NewServer(http.NotFoundHandler())
	s.Close()
	got := rialto(t, s, "", "get", "rules")
	if got.code != exitUnreachable || !strings.Contains(got.err, "connection refused") || strings.Count(got.err, "\n") != 1 {
		t.Errorf("exit %d, stderr %q; want exit 7 and one line", got.code, got.err)
	}
}

func TestUsage(t *testing.T) {
	for _, line := range []string{
		"frobnicate",
		"get",
		"get gizmos",
		"get rules a b",
		"get rules --no-such-flag",
		"get rules -o xml",
		"get rules --url ftp://example.com",
		"apply",
		"apply stray -f x",
		"delete rule",
		"delete rule a -f x",
		"publish",
		"publish --type t --mode carrier-pigeon",
		"publish --type t --rate fast",
		"publish --type t --count 0",
		"publish --type t --ext Name=x",
		"publish --type t --source %zz",
		"journey",
		"explain",
		"explain id",
		"explain --rule a",
		"explain --rule - --event -",
		"explain --event root_test.go --source /a",
		"test",
		"test --watch -",
		"test --watch a -",
		"deadletters --from yesterday",
		"deadletters bury",
		"deadletters get",
		"deadletters discard DEAD:1",
		"deadletters redrive --rate fast",
		"deadletters jobs stop redrive-1",
		"deadletters jobs pause",
		"deliveries",
		"deliveries redrive --target ops",
		"deliveries redrive --outcome dead",
		"deliveries redrive DEAD:1 --target ops --outcome dead",
		"redrive",
		"enable",
		"pause target",
		"pause rule a",
		"resume all ops",
		"reset target ops",
		"version now",
	} {
		got := rialtoIn(t, nil, "", strings.Fields(line)...)
		if got.code != exitUsage || got.out != "" || !strings.HasPrefix(got.err, "rialto: ") {
			t.Errorf("rialto %s: exit %d, stdout %q, stderr %q; want exit 2 and a complaint", line, got.code, got.out, got.err)
		}
	}
}

func TestHelpIsNoError(t *testing.T) {
	for _, line := range []string{"", "--help", "publish --help", "completion bash"} {
		if got := rialtoIn(t, nil, "", strings.Fields(line)...); got.code != exitOK || got.out == "" || got.err != "" {
			t.Errorf("rialto %s: exit %d, stderr %q", line, got.code, got.err)
		}
	}
}

func TestKey(t *testing.T) {
	var key string
	s := serve(t, map[string]http.HandlerFunc{"GET /v1/targets": func(w http.ResponseWriter, r *http.Request) {
		key = r.Header.Get("Authorization")
		says(200, `{"items":[]}`)(w, r)
	}})
	t.Chdir(t.TempDir())
	for _, c := range []struct {
		name string
		env  map[string]string
		file string
		args []string
		want string
	}{
		{"none", nil, "", nil, ""},
		{"file", nil, "from-file\n", nil, "Bearer from-file"},
		{"variable over file", map[string]string{"RIALTO_KEY": "from-env"}, "from-file", nil, "Bearer from-env"},
		{"other data directory", map[string]string{"RIALTO_DATA": "elsewhere"}, "from-file", nil, "Bearer from-elsewhere"},
		{"flag over all", map[string]string{"RIALTO_KEY": "from-env"}, "from-file", []string{"--key", "from-flag"}, "Bearer from-flag"},
	} {
		t.Run(c.name, func(t *testing.T) {
			writeFile(t, keyFile, c.file)
			writeFile(t, "elsewhere/admin.key", "from-elsewhere\n")
			got := rialtoIn(t, c.env, "", append([]string{"get", "targets", "--url", s.URL}, c.args...)...)
			if got.code != exitOK || key != c.want {
				t.Errorf("exit %d %s, key %q; want %q", got.code, got.err, key, c.want)
			}
		})
	}
}

// The key of the server beside us goes to no other machine.
func TestKeyFileStaysHere(t *testing.T) {
	t.Chdir(t.TempDir())
	writeFile(t, keyFile, "from-file")
	for address, want := range map[string]string{
		"http://127.0.0.1:8080":      "from-file",
		"https://localhost":          "from-file",
		"http://[::1]:8080":          "from-file",
		"https://bridge.example.com": "",
		"http://127.0.0.1.evil.test": "",
		"http://10.0.0.1:8080":       "",
	} {
		c := &cli{url: address, getenv: func(string) string { return "" }}
		cl, err := c.client()
		if err != nil || cl.key != want {
			t.Errorf("client(%s) has key %q, %v; want %q", address, cl.key, err, want)
		}
	}
}

func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	blocked := serve(t, map[string]http.HandlerFunc{"GET /v1/targets/a": func(_ http.ResponseWriter, r *http.Request) {
		cancel()
		<-r.Context().Done()
	}})
	var errOut bytes.Buffer
	code := run(ctx, &cli{in: strings.NewReader(""), out: &bytes.Buffer{}, err: &errOut, http: &http.Client{}, now: time.Now,
		getenv: func(string) string { return "" }}, []string{"get", "target", "a", "--url", blocked.URL})
	if code != exitFailed {
		t.Errorf("exit %d, stderr %q; want 1", code, errOut.String())
	}
}
