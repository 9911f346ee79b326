// SPDX-License-Identifier: Apache-2.0

package email_test

import (
	"crypto/hmac"
	"crypto/md5"
	"crypto/tls"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"mime"
	"net/mail"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/targets"
	"github.com/rialto-bridge/rialto/targets/email"
	"github.com/rialto-bridge/rialto/targets/targettest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func kind() targets.Kind { return email.Kind(targettest.Guard().CheckHost) }

func TestEmailIsATarget(t *testing.T) {
	targettest.RunDialled(t, targettest.Dialled{
		Kind: kind(),
		Config: func(host, port string) string {
			return `{"host": "` + host + `", "port": ` + port + `, "security": "none", "from": "a@example.com", "to": ["b@example.com"]}`
		},
		Serve: (&server{}).serve,
	})
}

// quoted is a text as JSON.
func quoted(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// target makes a target that sends to a server, in the clear unless the config says otherwise.
func (s *server) target(t testing.TB, config string) targets.Target {
	t.Helper()
	if !strings.Contains(config, `"security"`) {
		config += `, "security": "none"`
	}
	if !strings.Contains(config, `"to"`) {
		config += `, "to": ["b@example.com"]`
	}
	if !strings.Contains(config, `"host"`) {
		config += `, "host": "127.0.0.1"`
	}
	return targettest.Make(t, kind(), `{"from": "Rialto <a@example.com>", "port": `+s.Port()+config+`}`, targettest.Env(t))
}

func deliver(t testing.TB, to targets.Target, e *event.Event) string {
	t.Helper()
	d := targettest.Delivery()
	if e != nil {
		d.Event = e
	}
	res, err := to.Deliver(t.Context(), d)
	if err == nil && res.Status != 250 {
		t.Errorf("%+v", res)
	}
	return targettest.Verdict(err)
}

func hostile() *event.Event {
	return &event.Event{ID: "1", Source: "/s", Type: "com.acme.warm", Subject: "x\r\nBcc: evil@example.com\r\n\r\n<b> é", DataContentType: "application/json",
		Time: time.Date(2027, 3, 1, 12, 0, 0, 0, time.UTC), Data: []byte(`{"t":9.5,"html":"<img src=x onerror=\"a()\"> & '","mail":"c@example.com","two":"c@example.com, evil@example.com","name":"Eve\" <evil@example.com>, \"","dot":"\n.\nQUIT\n"}`)}
}

func TestDefaultMail(t *testing.T) {
	s := newServer(t, nil)
	if got := deliver(t, s.target(t, ``), hostile()); got != "ok" {
		t.Fatal(got)
	}
	m := s.last(t)
	if m.from != "FROM:<a@example.com>" || !slices.Equal(m.to, []string{"TO:<b@example.com>"}) || !slices.Equal(m.helo, []string{"example.com"}) ||
		!slices.Equal(m.commands, []string{"EHLO", "MAIL", "RCPT", "DATA", "QUIT"}) {
		t.Errorf("%+v", m)
	}
	names, header := headerOf(t, m.data)
	slices.Sort(names)
	want := []string{"Auto-Submitted", "Content-Transfer-Encoding", "Content-Type", "Date", "From", "MIME-Version", "Message-ID", "Subject", "To", "X-Auto-Response-Suppress"}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Error(diff)
	}
	for name, want := range map[string]string{"Auto-Submitted": "auto-generated", "From": `"Rialto" <a@example.com>`, "To": "<b@example.com>", "Message-Id": "<dlv_0123456789abcdef@example.com>",
		"Content-Type": "text/plain; charset=UTF-8"} {
		if got := header.Get(name); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
	if subject, err := new(mime.WordDecoder).DecodeHeader(header.Get("Subject")); err != nil || subject != "com.acme.warm: x Bcc: evil@example.com <b> é" {
		t.Errorf("subject %q, %v", subject, err)
	}
	if at, err := mail.ParseDate(header.Get("Date")); err != nil || time.Since(at) > time.Minute {
		t.Errorf("date %v, %v", at, err)
	}
}

// The Message-ID is that of the delivery on every attempt.
func TestMessageID(t *testing.T) {
	s := newServer(t, nil)
	to := s.target(t, ``)
	var ids []string
	for _, d := range []targets.Delivery{{ID: "dlv_1", Attempt: 1}, {ID: "dlv_1", Attempt: 2}, {ID: "dlv_2"}, {ID: `a"b>`}} {
		d.Event = targettest.Event()
		if _, err := to.Deliver(t.Context(), d); err != nil {
			t.Fatal(err)
		}
		_, header := headerOf(t, s.last(t).data)
		ids = append(ids, header.Get("Message-Id"))
	}
	if diff := cmp.Diff([]string{"<dlv_1@example.com>", "<dlv_1@example.com>", "<dlv_2@example.com>", "<a=22b=3e@example.com>"}, ids); diff != "" {
		t.Error(diff)
	}
}

func TestRecipients(t *testing.T) {
	s := newServer(t, nil)
	to := s.target(t, `, "to": ["Ops <b@example.com>", "${data.mail}"], "cc": ["\"${data.name}\" <d@example.com>", "B@EXAMPLE.com"], "bcc": ["Hidden <e@example.com>"], "replyTo": "${data.mail}"`)
	if got := deliver(t, to, hostile()); got != "ok" {
		t.Fatal(got)
	}
	m := s.last(t)
	if !slices.Equal(m.to, []string{"TO:<b@example.com>", "TO:<c@example.com>", "TO:<d@example.com>", "TO:<e@example.com>"}) {
		t.Errorf("recipients %q", m.to)
	}
	_, header := headerOf(t, m.data)
	for name, want := range map[string]string{"To": `"Ops" <b@example.com>, <c@example.com>`, "Cc": `"Eve evil@example.com" <d@example.com>, <B@EXAMPLE.com>`, "Reply-To": "<c@example.com>", "Bcc": ""} {
		if got := header.Get(name); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
	for config, want := range map[string]string{
		`, "to": ["${data.two}"]`:                         "to/0",
		`, "to": ["b@example.com"], "cc": ["${data.no}"]`: "cc/0",
		`, "replyTo": "${data.name}"`:                     "replyTo",
		`, "bcc": ["${subject}@example.com"]`:             "bcc/0",
	} {
		if got := deliver(t, s.target(t, config), hostile()); !strings.HasPrefix(got, "transform for good: "+want+": what the event fills in is not an address") {
			t.Errorf("%s: %s", config, got)
		}
	}
	if n := s.Connections.Load(); n != 1 {
		t.Errorf("%d connections", n)
	}
}

// A server that takes a mail only in part takes none of it, and what it refuses for good decides.
func TestReplies(t *testing.T) {
	for name, c := range map[string]struct {
		replies map[string]string
		want    string
		status  int
	}{
		"busy":                   {map[string]string{"GREETING": "421 4.3.2 too busy\r\n"}, "status: 421 4.3.2 too busy", 421},
		"not for us":             {map[string]string{"GREETING": "554 5.7.1 go away\r\n"}, "status for good: 554 5.7.1 go away", 554},
		"no EHLO":                {map[string]string{"EHLO": "502 no\r\n"}, "ok", 250},
		"no HELO either":         {map[string]string{"EHLO": "502 no\r\n", "HELO": "550 5.7.1 not you\r\n"}, "status for good: 502 no", 502},
		"sender refused":         {map[string]string{"MAIL": "550 5.1.8 who?\r\n"}, "status for good: 550 5.1.8 who?", 550},
		"login wanted":           {map[string]string{"MAIL": "530 5.7.0 log in\r\n"}, "auth for good: 530 5.7.0 log in", 530},
		"greylisted":             {map[string]string{"RCPT": "451 4.7.1 come back\r\n"}, "status: 451 4.7.1 come back", 451},
		"mailbox gone":           {map[string]string{"RCPT TO:<c": "550-5.1.1 no such\r\n550 5.1.1 user\r\n"}, "status for good: 550 5.1.1 no such 5.1.1 user", 550},
		"one later, one never":   {map[string]string{"RCPT TO:<b": "450 4.2.1 later\r\n", "RCPT TO:<c": "550 5.1.1 never\r\n"}, "status for good: 550 5.1.1 never", 550},
		"one never, one later":   {map[string]string{"RCPT TO:<b": "550 5.1.1 never\r\n", "RCPT TO:<c": "450 4.2.1 later\r\n"}, "status for good: 550 5.1.1 never", 550},
		"leaves at a recipient":  {map[string]string{"RCPT TO:<b": "421 4.3.2 bye\r\n"}, "status: 421 4.3.2 bye", 421},
		"forwarded":              {map[string]string{"RCPT": "251 2.1.5 elsewhere\r\n"}, "ok", 250},
		"no data":                {map[string]string{"DATA": "451 4.3.0 disk\r\n"}, "status: 451 4.3.0 disk", 451},
		"spam":                   {map[string]string{".": "554 5.7.1 spam\r\n"}, "status for good: 554 5.7.1 spam", 554},
		"full":                   {map[string]string{".": "452 4.3.1 full\r\n"}, "status: 452 4.3.1 full", 452},
		"too large":              {map[string]string{".": "552 5.3.4 too large\r\n"}, "too_large for good: 552 5.3.4 too large", 552},
		"gone before its answer": {map[string]string{".": ""}, "reset: EOF", 0},
		"out of turn":            {map[string]string{"DATA": "250 ok\r\n"}, "protocol: the server answers out of turn: 250 ok", 0},
		"no reply":               {map[string]string{"MAIL": "what?\r\n"}, "protocol: the answer is not one of SMTP", 0},
		"hostile words":          {map[string]string{"MAIL": "550 \x1b[2J\x00<b>\xff\r\n"}, "status for good: 550 [2J <b>", 550},
		"gone at QUIT":           {map[string]string{"QUIT": ""}, "ok", 250},
		"refuses QUIT":           {map[string]string{"QUIT": "500 what?\r\n"}, "ok", 250},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t, func(s *server) { s.replies = c.replies })
			res, err := s.target(t, `, "to": ["b@example.com", "c@example.com"]`).Deliver(t.Context(), targettest.Delivery())
			if got := targettest.Verdict(err); !strings.HasPrefix(got, c.want) || res.Status != c.status || c.want == "ok" && res.Head != "" {
				t.Errorf("%s, %+v; want %s", got, res, c.want)
			}
			if c.status >= 400 && !strings.HasPrefix(res.Head, fmt.Sprint(c.status, " ")) || strings.ContainsAny(res.Head, "\x00\x1b\r") {
				t.Errorf("head %q", res.Head)
			}
			if data := s.last(t).data; data != "" && strings.HasPrefix(c.want, "status") && c.replies["."] == "" {
				t.Errorf("part of them got %q", data)
			}
		})
	}
}

// The mail was taken: a server that never says goodbye changes nothing of that, and delays little.
func TestServerHangsAtTheEnd(t *testing.T) {
	s := newServer(t, func(s *server) { s.replies["QUIT"] = "hang" })
	start := time.Now()
	if got := deliver(t, s.target(t, ``), nil); got != "ok" || time.Since(start) > 4*time.Second {
		t.Errorf("%s after %v", got, time.Since(start))
	}
}

func TestTLS(t *testing.T) {
	ca, other := newAuthority(t), newAuthority(t)
	cert, _, _ := ca.sign(t, "localhost", "mail.example.test")
	for name, c := range map[string]struct {
		config   string // beside host localhost
		implicit bool
		noTLS    bool
		want     string
		sni      string
	}{
		"starttls":                  {`, "security": "starttls", "tls": {"ca": {"value": %q}}`, false, false, "ok", "localhost"},
		"tls":                       {`, "security": "tls", "tls": {"ca": {"value": %q}, "minVersion": "1.3"}`, true, false, "ok", "localhost"},
		"another name":              {`, "host": "127.0.0.1", "security": "starttls", "tls": {"ca": {"value": %q}, "serverName": "mail.example.test"}`, false, false, "ok", "mail.example.test"},
		"a name it is not for":      {`, "host": "127.0.0.1", "security": "starttls", "tls": {"ca": {"value": %q}}`, false, false, "tls:", ""},
		"tls, a name it is not for": {`, "security": "tls", "tls": {"ca": {"value": %q}, "serverName": "x.example"}`, true, false, "tls:", "x.example"},
		"another CA":                {`, "security": "starttls", "tls": {"ca": {"value": ` + quoted(other.pem) + `}}`, false, false, "tls:", "localhost"},
		"the system's CAs":          {`, "security": "tls"`, true, false, "tls:", "localhost"},
		"verified by nobody":        {`, "security": "starttls", "tls": {"insecureSkipVerify": true}`, false, false, "ok", "localhost"},
		"not offered":               {`, "security": "starttls", "auth": {"type": "plain", "username": "u", "password": {"value": "hunter22"}}`, false, true, "tls: tls: the server does not offer STARTTLS", ""},
		"no TLS at all":             {`, "security": "tls"`, false, true, "tls:", ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t, func(s *server) {
				s.implicit, s.extensions = c.implicit, []string{"AUTH PLAIN"}
				if !c.noTLS {
					s.cert = cert
				}
			})
			c.config = strings.Replace(c.config, "%q", quoted(ca.pem), 1)
			if !strings.Contains(c.config, `"host"`) {
				c.config += `, "host": "localhost"`
			}
			got := deliver(t, s.target(t, c.config), nil)
			m := s.last(t)
			s.mu.Lock()
			defer s.mu.Unlock()
			if !strings.HasPrefix(got, c.want) || strings.Contains(got, "for good") {
				t.Errorf("%s, want %s", got, c.want)
			}
			if c.want == "ok" && (m.sni != c.sni || m.version < tls.VersionTLS12 || m.data == "") || c.want != "ok" && (m.data != "" || m.from != "" || m.auth != nil) {
				t.Errorf("%+v", m)
			}
			if c.want == "ok" && !c.implicit && !slices.Equal(m.commands, []string{"EHLO", "STARTTLS", "EHLO", "MAIL", "RCPT", "DATA", "QUIT"}) {
				t.Errorf("commands %q", m.commands)
			}
		})
	}
}

// What a server says before TLS counts for nothing after it.
func TestNothingIsCarriedIntoTLS(t *testing.T) {
	ca := newAuthority(t)
	cert, _, _ := ca.sign(t, "localhost")
	s := newServer(t, func(s *server) {
		s.cert = cert
		s.replies["STARTTLS"] = "220 go on\r\n250-evil\r\n250 AUTH PLAIN\r\n"
	})
	got := deliver(t, s.target(t, `, "host": "localhost", "security": "starttls", "tls": {"ca": {"value": `+quoted(ca.pem)+`}}, "auth": {"type": "plain", "username": "u", "password": {"value": "hunter22"}}`), nil)
	if m := s.last(t); got == "ok" || m.auth != nil {
		t.Errorf("%s, %+v", got, m)
	}
}

func TestAuth(t *testing.T) {
	ca := newAuthority(t)
	cert, _, _ := ca.sign(t, "localhost")
	const password = "pass word é-5f1c0b7a"
	cram := func(challenge string) string {
		m := hmac.New(md5.New, []byte(password))
		m.Write([]byte(challenge))
		return "rialto " + hex.EncodeToString(m.Sum(nil))
	}
	send := func(s *server, kind, member string) (string, targets.Result) {
		to := s.target(t, `, "host": "localhost", "security": "tls", "tls": {"ca": {"value": `+quoted(ca.pem)+`}}, "auth": {"type": "`+kind+`", "username": "rialto", "`+member+`": {"value": `+quoted(password)+`}}`)
		res, err := to.Deliver(t.Context(), targettest.Delivery())
		return targettest.Verdict(err), res
	}
	for _, c := range []struct {
		kind, member string
		want         []string
	}{
		{"plain", "password", []string{"\x00rialto\x00" + password}},
		{"login", "password", []string{"rialto", password}},
		{"cram-md5", "password", []string{cram("<1.2@mail.example>")}},
		{"xoauth2", "token", []string{"user=rialto\x01auth=Bearer " + password + "\x01\x01"}},
	} {
		s := newServer(t, func(s *server) {
			s.cert, s.implicit, s.extensions = cert, true, []string{"AUTH plain LOGIN CRAM-MD5 XOAUTH2"}
		})
		got, _ := send(s, c.kind, c.member)
		if m := s.last(t); got != "ok" || m.mechanism != strings.ToUpper(c.kind) || !slices.Equal(m.auth, c.want) {
			t.Errorf("%s: %s, %s %q", c.kind, got, m.mechanism, m.auth)
		}
		none := newServer(t, func(s *server) { s.cert, s.implicit, s.extensions = cert, true, []string{"AUTH NTLM XPLAIN"} })
		if got, _ := send(none, c.kind, c.member); got != "auth: the server does not offer this type of authentication" || none.last(t).auth != nil {
			t.Errorf("%s, not offered: %s", c.kind, got)
		}
		refuses := newServer(t, func(s *server) {
			s.cert, s.implicit, s.extensions = cert, true, []string{"AUTH PLAIN LOGIN CRAM-MD5 XOAUTH2"}
			s.replies["AUTH"] = "535-5.7.8 not " + password + "\r\n535 5.7.8 nor " + base64.StdEncoding.EncodeToString([]byte(password)) + " " + base64.StdEncoding.EncodeToString([]byte(c.want[0])) + "\r\n"
		})
		got, res := send(refuses, c.kind, c.member)
		if !strings.HasPrefix(got, "auth for good: 535 5.7.8 not [redacted]") || res.Status != 535 {
			t.Errorf("%s, refused: %s", c.kind, got)
		}
		hidden := []string{password, base64.StdEncoding.EncodeToString([]byte(password))}
		if c.kind == "plain" || c.kind == "xoauth2" { // else the first answer is a name, or proves the password without holding it
			hidden = append(hidden, base64.StdEncoding.EncodeToString([]byte(c.want[0])))
		}
		for _, h := range hidden {
			if told := got + res.Head; strings.Contains(told, h) {
				t.Errorf("%s: %s is told: %s", c.kind, h, told)
			}
		}
	}
	later := newServer(t, func(s *server) {
		s.cert, s.implicit, s.extensions = cert, true, []string{"AUTH PLAIN"}
		s.replies["AUTH"] = "454 4.7.0 try later\r\n"
	})
	if got, _ := send(later, "plain", "password"); got != "auth: 454 4.7.0 try later" {
		t.Errorf("for a while: %s", got)
	}
}

func TestSizes(t *testing.T) {
	s := newServer(t, func(s *server) { s.extensions = []string{"SIZE 20000", "8BITMIME", "SMTPUTF8"} })
	if got := deliver(t, s.target(t, ``), nil); got != "ok" || s.last(t).from != "FROM:<a@example.com> BODY=8BITMIME" {
		t.Errorf("%s, %s", got, s.last(t).from)
	}
	large := &event.Event{ID: "1", Source: "/s", Type: "t", DataContentType: "text/plain", Data: []byte(strings.Repeat("é\n", 20_000))}
	if got := deliver(t, s.target(t, ``), large); !strings.HasPrefix(got, "too_large for good: a mail of ") || !strings.HasSuffix(got, "the server takes 20000") || s.last(t).data != "" {
		t.Errorf("larger than the server takes: %s", got)
	}
	all := newServer(t, func(s *server) { s.extensions = []string{"SIZE 0"} })
	if got := deliver(t, all.target(t, ``), large); got != "ok" {
		t.Errorf("no limit: %s", got)
	}
	if got := deliver(t, all.target(t, `, "attachEvent": true, "maxSize": 65536`), large); !strings.HasPrefix(got, "too_large for good") || !strings.HasSuffix(got, "maxSize is 65536") {
		t.Errorf("larger than maxSize: %s", got)
	}
	huge := &event.Event{ID: "1", Source: "/s", Type: "t", Subject: strings.Repeat("é", 100_000), DataContentType: "text/plain", Data: []byte(strings.Repeat("x", 2<<20))}
	if got := deliver(t, all.target(t, ``), huge); got != "ok" || len(all.last(t).data) > 300<<10 {
		t.Errorf("%s, %d bytes of a default text", got, len(all.last(t).data))
	}
	for line := range strings.SplitSeq(all.last(t).data, "\n") {
		if len(line) > 998 {
			t.Fatalf("a line of %d bytes", len(line))
		}
	}
}

func TestWarnings(t *testing.T) {
	s := newServer(t, nil)
	for config, want := range map[string]string{``: "/config/security", `, "security": "tls", "tls": {"insecureSkipVerify": true}`: "/config/tls/insecureSkipVerify", `, "security": "tls"`: ""} {
		var got []string
		for _, w := range s.target(t, config).(targets.Warner).Warnings() {
			got = append(got, w.Pointer)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %v", config, got)
		}
	}
}

func TestReads(t *testing.T) {
	want := []string{
		"/config/to/1 /data/owner",
		"/config/replyTo /data/reply",
		"/config/subject /data/s",
		"/config/html /data/h",
	}
	if diff := cmp.Diff(want, targettest.Reads(t, kind(), `{"host": "smtp.example.com", "from": "a@example.com", "to": ["b@example.com", "${data.owner}"], "replyTo": "${data.reply}", "subject": "${data.s}", "html": "${data.h}"}`)); diff != "" {
		t.Error(diff)
	}
}

func TestRefusedConfigs(t *testing.T) {
	const base = `{"host": "smtp.example.com", "from": "a@example.com", "to": ["b@example.com"]`
	for config, want := range map[string]string{
		`{}`: "/config/from",
		`{"host": "10.0.0.1", "from": "a@example.com", "to": ["b@example.com"]}`:                        "/config/host: address 10.0.0.1 is not allowed (private network); --egress-allow 10.0.0.1:587",
		`{"host": "10.0.0.1", "security": "tls", "from": "a@example.com", "to": ["b@example.com"]}`:     "--egress-allow 10.0.0.1:465",
		`{"host": "smtp.example.com", "from": "nobody", "to": ["b@example.com"]}`:                       "/config/from: is not an address",
		`{"host": "smtp.example.com", "from": "ü@example.com", "to": ["b@example.com"]}`:                "/config/from: is not an address",
		`{"host": "smtp.example.com", "from": "a@example.com", "to": ["b@example.com, c@example.com"]}`: "/config/to/0: is not an address",
		`{"host": "smtp.example.com", "from": "a@example.com", "to": []}`:                               "/config/to",
		base + `, "cc": ["x${a"]}`: "/config/cc/0: a ${ is not closed",
		base + `, "cc": [` + strings.TrimSuffix(strings.Repeat(`"c@example.com",`, 100), ",") + `]}`: "/config/to: has, with cc and bcc, 101 recipients",
		base + `, "subject": "${now()}"}`: "/config/subject",
		base + `, "helo": "a b"}`:         "/config/helo",
		base + `, "security": "none", "auth": {"type": "plain", "username": "u", "password": {"ref": "p"}}}`:    "/config/auth: would send a password",
		base + `, "security": "none", "tls": {"minVersion": "1.3"}}`:                                            "/config/tls: is for connections",
		base + `, "auth": {"type": "plain", "username": "u"}}`:                                                  "/config/auth/password: is missing",
		base + `, "auth": {"type": "xoauth2", "username": "u", "password": {"ref": "p"}}}`:                      "/config/auth/token: is missing",
		base + `, "auth": {"type": "login", "username": "u", "password": {"ref": "p"}, "token": {"ref": "p"}}}`: "/config/auth/token: goes with",
		base + `, "auth": {"type": "plain", "username": "u", "password": {"value": "a\u0000b"}}}`:               "/config/auth/password: has line breaks",
		base + `, "auth": {"type": "plain", "username": "u\r\n", "password": {"ref": "p"}}}`:                    "/config/auth/username",
		base + `, "tls": {"ca": {"value": "x"}}}`:                                                               "/config/tls/ca: holds no certificate",
		base + `, "tls": {"serverName": "x", "insecureSkipVerify": true}}`:                                      "/config/tls/insecureSkipVerify: leaves nothing",
	} {
		if got := targettest.Complaints(t, kind(), config); !strings.Contains(got, want) {
			t.Errorf("%s: %s, want %s", config, got, want)
		}
	}
}

// Whatever an event holds, a mail has the headers and the recipients that its config gives it, and ends where it ends.
func FuzzMail(f *testing.F) {
	f.Add("t", "x\r\nBcc: evil@example.com\r\n\r\nbody", `{"a":"<b>\n.\r\nMAIL FROM:<x>"}`, "application/json", "Eve\" <evil@example.com>")
	f.Add("", "\x00\xff", "\r\n.\r\n", "text/plain", "é")
	s := newServer(f, nil)
	to := s.target(f, `, "to": ["\"${id}\" <b@example.com>"], "subject": "${subject}", "text": "${subject} ${data}", "html": "<p title=\"${subject}\">${data}</p>", "attachEvent": true`)
	f.Fuzz(func(t *testing.T, kind, subject, data, mime, id string) {
		d := targettest.Delivery()
		d.Event = &event.Event{ID: id, Source: "/s", Type: kind, Subject: subject, DataContentType: mime, Data: []byte(data)}
		if got := targettest.Verdict(func() error { _, err := to.Deliver(t.Context(), d); return err }()); got != "ok" {
			if strings.HasPrefix(got, "transform for good: to/0") { // a name that is too long
				return
			}
			t.Fatal(got)
		}
		m := s.last(t)
		if !slices.Equal(m.commands, []string{"EHLO", "MAIL", "RCPT", "DATA", "QUIT"}) || !slices.Equal(m.to, []string{"TO:<b@example.com>"}) {
			t.Fatalf("%+v", m)
		}
		names, header := headerOf(t, m.data)
		slices.Sort(names)
		if diff := cmp.Diff([]string{"Auto-Submitted", "Content-Type", "Date", "From", "MIME-Version", "Message-ID", "Subject", "To", "X-Auto-Response-Suppress"}, names); diff != "" {
			t.Fatal(diff)
		}
		if list, err := mail.ParseAddressList(header.Get("To")); err != nil || len(list) != 1 || list[0].Address != "b@example.com" {
			t.Fatalf("To: %s, %v", header.Get("To"), err)
		}
	})
}
