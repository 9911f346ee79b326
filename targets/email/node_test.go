// SPDX-License-Identifier: Apache-2.0

package email_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/targets/targettest"
)

const mailPackages = `{"private":true,"dependencies":{"smtp-server":"3.21.6"}}`

// mailScript is a server that is not ours. It prints its port, and then each mail as it was sent.
const mailScript = `
const { SMTPServer } = require('smtp-server');
const input = JSON.parse(process.env.MAIL_INPUT);
const say = what => console.log(JSON.stringify(what));
const server = new SMTPServer({
  key: input.key, cert: input.cert, authMethods: ['PLAIN', 'LOGIN', 'CRAM-MD5', 'XOAUTH2'], size: 1000000,
  onAuth(auth, session, done) {
    const good = auth.method === 'XOAUTH2' ? auth.accessToken === input.password
      : auth.method === 'CRAM-MD5' ? auth.validatePassword(input.password) : auth.password === input.password;
    if (auth.username !== 'rialto' || !good) return done(new Error('no'));
    session.method = auth.method;
    done(null, { user: auth.username });
  },
  onRcptTo(address, session, done) {
    if (address.address.startsWith('gone')) { const e = new Error('no such user'); e.responseCode = 550; return done(e); }
    done();
  },
  onData(stream, session, done) {
    const parts = [];
    stream.on('data', part => parts.push(part)).on('end', () => {
      say({ secure: session.secure, method: session.method, from: session.envelope.mailFrom.address, to: session.envelope.rcptTo.map(r => r.address),
        mail: Buffer.concat(parts).toString('base64') });
      done();
    });
  },
});
server.on('error', () => {});
server.listen(0, '127.0.0.1', () => say({ port: server.server.address().port }));
process.stdin.on('end', () => server.close(() => process.exit(0))).resume();
`

// mailParser is a parser that is not ours either. It reads a mail and prints what is in it.
const mailParser = `
import email, email.policy, json, sys
m = email.message_from_bytes(sys.stdin.buffer.read(), policy=email.policy.default)
def body(kind):
    part = m.get_body((kind,))
    return part.get_content() if part else ""
def text(part):
    content = part.get_content()
    return content.decode() if isinstance(content, bytes) else content
print(json.dumps({
    "defects": [str(d) for p in m.walk() for d in p.defects],
    "header": sorted(m.keys()), "values": {k: str(m[k]) for k in m.keys()},
    "text": body("plain"), "html": body("html"),
    "attachments": [{"name": a.get_filename(), "type": a.get_content_type(), "text": text(a)} for a in m.iter_attachments()],
}))
`

// received is what the server has got, and what the parser has read in it.
type received struct {
	Port         int
	Secure       bool
	Method, From string
	To           []string
	Mail         []byte
}

type parsed struct {
	Defects     []string
	Header      []string
	Values      map[string]string
	Text, HTML  string
	Attachments []struct{ Name, Type, Text string }
}

func parse(t *testing.T, mail []byte) (p parsed) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "python3", "-c", mailParser)
	cmd.Stdin = bytes.NewReader(mail)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("python3: %v of %s", err, mail)
	}
	if err := json.Unmarshal(out, &p); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return p
}

// mailServer starts the server and returns what reads from it, once for its port, and then for each mail.
func mailServer(t *testing.T, input map[string]string) func() received {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{"package.json": mailPackages, "server.js": mailScript} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	npm := exec.CommandContext(t.Context(), "npm", "install", "--no-audit", "--no-fund", "--prefer-offline", "--loglevel=error")
	npm.Dir = dir
	if out, err := npm.CombinedOutput(); err != nil {
		t.Fatalf("npm: %v\n%s", err, out)
	}
	in, err := json.Marshal(input)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("node", "server.js")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "MAIL_INPUT="+string(in))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stdin.Close()
		io.Copy(io.Discard, stdout)
		if err := cmd.Wait(); err != nil {
			t.Errorf("the server ends with %v\n%s", err, stderr.Bytes())
		}
	})
	lines := bufio.NewScanner(stdout)
	lines.Buffer(nil, 4<<20)
	return func() (p received) {
		t.Helper()
		if !lines.Scan() {
			t.Fatalf("the server has ended: %v\n%s", lines.Err(), stderr.Bytes())
		}
		if err := json.Unmarshal(lines.Bytes(), &p); err != nil {
			t.Fatalf("%v: %s", err, lines.Bytes())
		}
		return p
	}
}

// A server and a parser that are not ours take what is sent, and read in it what was meant.
func TestAnotherServerReadsWhatWasMeant(t *testing.T) {
	const password = "pass word-5f1c0b7a"
	ca := newAuthority(t)
	_, key, cert := ca.sign(t, "localhost")
	next := mailServer(t, map[string]string{"key": key, "cert": cert, "password": password})
	port := next().Port
	config := func(auth, more string) string {
		member := "password"
		if auth == "xoauth2" {
			member = "token"
		}
		return fmt.Sprintf(`{"host": "localhost", "port": %d, "tls": {"ca": {"value": %s}}, "auth": {"type": %q, "username": "rialto", %q: {"value": %s}}, "from": "Rialto ü <a@example.com>"%s}`,
			port, quoted(ca.pem), auth, member, quoted(password), more)
	}
	const content = `, "to": ["Öps <b@example.com>", "${data.mail}"], "cc": ["d@example.com"], "bcc": ["e@example.com"], "replyTo": "f@example.com", "subject": "Zu warm: ${subject}",
		"text": "${data.t} °C\n.\n${data.dot}", "html": "<p title=\"${data.html}\">${data.html} é</p>", "attachEvent": true`
	var mail []byte
	for _, auth := range []string{"plain", "login", "cram-md5", "xoauth2"} {
		d := targettest.Delivery()
		d.Event = hostile()
		res, err := targettest.Make(t, kind(), config(auth, content), targettest.Env(t)).Deliver(t.Context(), d)
		if err != nil {
			t.Fatalf("%s: %v, %+v", auth, err, res)
		}
		got := next()
		if diff := cmp.Diff(received{Secure: true, Method: strings.ToUpper(auth), From: "a@example.com", To: []string{"b@example.com", "c@example.com", "d@example.com", "e@example.com"}, Mail: got.Mail}, got); diff != "" {
			t.Errorf("%s: %s", auth, diff)
		}
		mail = got.Mail
	}
	got := parse(t, mail)
	if len(got.Attachments) != 1 {
		t.Fatalf("%+v", got)
	}
	attachment := got.Attachments[0]
	var attached struct {
		Subject string
		Data    json.RawMessage
	}
	if err := json.Unmarshal([]byte(attachment.Text), &attached); err != nil || attached.Subject != hostile().Subject || string(attached.Data) != string(hostile().Data) ||
		attachment.Name != "event.json" || attachment.Type != "application/cloudevents+json" {
		t.Errorf("attached %+v, %v", attachment, err)
	}
	want := parsed{Defects: []string{}, Attachments: got.Attachments, Text: "9.5 °C\n.\n\n.\nQUIT",
		HTML:   `<p title="&lt;img src=x onerror=&#34;a()&#34;&gt; &amp; &#39;">&lt;img src=x onerror=&#34;a()&#34;&gt; &amp; &#39; é</p>`,
		Header: []string{"Auto-Submitted", "Cc", "Content-Type", "Date", "From", "MIME-Version", "Message-ID", "Reply-To", "Subject", "To", "X-Auto-Response-Suppress"},
		Values: map[string]string{"Auto-Submitted": "auto-generated", "Cc": "d@example.com", "Content-Type": got.Values["Content-Type"], "Date": got.Values["Date"], "From": "Rialto ü <a@example.com>",
			"MIME-Version": "1.0", "Message-ID": "<dlv_0123456789abcdef@example.com>", "Reply-To": "f@example.com", "Subject": "Zu warm: x Bcc: evil@example.com <b> é",
			"To": "Öps <b@example.com>, c@example.com", "X-Auto-Response-Suppress": "All"}}
	got.Text, got.HTML = strings.TrimSpace(strings.ReplaceAll(got.Text, "\r\n", "\n")), strings.TrimSpace(got.HTML)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	refused := targettest.Make(t, kind(), config("plain", `, "to": ["b@example.com", "gone@example.com"]`), targettest.Env(t))
	if _, err := refused.Deliver(t.Context(), targettest.Delivery()); targettest.Verdict(err) != "status for good: 550 no such user" {
		t.Errorf("a recipient that is gone: %v", err)
	}
	wrong := targettest.Make(t, kind(), strings.Replace(config("plain", `, "to": ["b@example.com"]`), password, "wrong-5f1c0b7a", 1), targettest.Env(t))
	if _, err := wrong.Deliver(t.Context(), targettest.Delivery()); !strings.HasPrefix(targettest.Verdict(err), "auth for good: 535") {
		t.Errorf("a wrong password: %v", err)
	}
	large := targettest.Delivery()
	large.Event = &event.Event{ID: "1", Source: "/s", Type: "t", DataContentType: "application/json", Data: []byte(`"` + strings.Repeat("x", 900_000) + `"`)}
	if _, err := targettest.Make(t, kind(), config("plain", `, "to": ["b@example.com"], "attachEvent": true`), targettest.Env(t)).Deliver(t.Context(), large); !strings.HasPrefix(targettest.Verdict(err), "too_large for good") {
		t.Errorf("a large event: %v", err)
	}
}
