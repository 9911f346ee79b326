// SPDX-License-Identifier: Apache-2.0

package app_test

import (
	"bufio"
	"crypto/tls"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// repeats is an SMTP server that refuses with all that it was told.
func repeats(conn net.Conn) {
	defer conn.Close()
	in := bufio.NewReader(conn)
	questions := []string{} // of AUTH LOGIN, that are not asked yet
	said, reply := "", "220 here\r\n"
	for {
		if _, err := io.WriteString(conn, reply); err != nil {
			return
		}
		line, err := in.ReadString('\n')
		if err != nil {
			return
		}
		line = strings.TrimSpace(line)
		said += line + " "
		if b, err := base64.StdEncoding.DecodeString(line[strings.LastIndexByte(line, ' ')+1:]); err == nil {
			said += strings.NewReplacer("\x00", " ", "\x01", " ").Replace(string(b)) + " "
		}
		if line == "AUTH LOGIN" {
			questions = []string{"Username:", "Password:"}
		}
		switch {
		case strings.HasPrefix(line, "EHLO"):
			reply = "250-here\r\n250 AUTH PLAIN LOGIN XOAUTH2\r\n"
		case len(questions) > 0:
			reply = "334 " + base64.StdEncoding.EncodeToString([]byte(questions[0])) + "\r\n"
			questions = questions[1:]
		default:
			reply = "535-5.7.8 " + said + "\r\n535 5.7.8 no\r\n"
		}
	}
}

// As TestSecretsDoNotLeak, for the targets that write to people: the URLs of their hooks are secrets, and what they sign and log in with.
func TestSecretsOfMessagesDoNotLeak(t *testing.T) {
	far := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Header.Set("X-Path", r.URL.RequestURI())
		for name, values := range r.URL.Query() {
			r.Header.Set("X-Query-"+name, values[0])
		}
		if strings.Contains(r.URL.Path, "in-words") { // as the platforms refuse
			w.Header().Set("X-Echo", r.URL.RequestURI())
			fmt.Fprintf(w, `{"errcode":40035,"errmsg":"%[1]s %[2]s","code":9499,"msg":"%[1]s %[2]s","ok":false,"error":%[1]q}`, r.URL.RequestURI(), r.Header.Get("Authorization"))
			return
		}
		echo(w, r)
	}))
	defer far.Close()
	withTLS := httptest.NewTLSServer(http.NotFoundHandler())
	defer withTLS.Close()
	ca := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: withTLS.Certificate().Raw}))
	mail, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: withTLS.TLS.Certificates})
	if err != nil {
		t.Fatal(err)
	}
	defer mail.Close()
	go func() {
		for {
			conn, err := mail.Accept()
			if err != nil {
				return
			}
			go repeats(conn)
		}
	}()

	hidden := map[string]string{
		"slack hook": "slackhook0a1b2c3d4e5f", "slack token": "xoxb-1b2c3d4e5f", "dingtalk token": "dingtoken2c3d4e5f", "dingtalk secret": "SEC3d4e5f6a7b", "feishu hook": "4e5f6a7b-feishu-hook-0000",
		"feishu secret": "feishusecret5f6a7b", "wecom key": "wecomkey-6a7b8c9d", "plain": "mail-password-1a2b3c", "login": "mail-rialto-3c4d5e", "xoauth2": "mail-token-5e6f7a",
	}
	dir := t.TempDir()
	o := options(dir)
	var log syncBuffer
	o.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	s, a := start(t, o)
	answers := []string{s.must("PUT", "/v1/secrets/feishu", fmt.Sprintf(`{"value":%q}`, hidden["feishu secret"]))}
	configs := map[string]string{}
	for _, path := range []string{"refuse", "redirect", "breaks", "in-words"} {
		base := far.URL + "/" + path
		if path == "in-words" {
			base += "/"
		}
		configs["slack-"+path] = fmt.Sprintf(`{"url":{"value":"%s?x=%s"}}`, base, hidden["slack hook"])
		configs["slack-bot-"+path] = fmt.Sprintf(`{"token":{"value":%q},"channel":"c","apiUrl":%q}`, hidden["slack token"], base)
		configs["dingtalk-"+path] = fmt.Sprintf(`{"url":{"value":"%s?access_token=%s"},"secret":{"value":%q}}`, base, hidden["dingtalk token"], hidden["dingtalk secret"])
		configs["feishu-"+path] = fmt.Sprintf(`{"url":{"value":"%s?y=%s"},"secret":{"ref":"feishu"}}`, base, hidden["feishu hook"])
		configs["wecom-"+path] = fmt.Sprintf(`{"url":{"value":"%s?key=%s"}}`, base, hidden["wecom key"])
	}
	configs["slack-path"] = fmt.Sprintf(`{"url":{"value":"%s/in-words/services/%s"}}`, far.URL, hidden["slack hook"])
	configs["feishu-path"] = fmt.Sprintf(`{"url":{"value":"%s/in-words/hook/%s"},"secret":{"ref":"feishu"}}`, far.URL, hidden["feishu hook"])
	_, port, err := net.SplitHostPort(mail.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	for auth, member := range map[string]string{"plain": "password", "login": "password", "xoauth2": "token"} {
		configs["email-"+auth] = fmt.Sprintf(`{"host":"127.0.0.1","port":%s,"security":"tls","tls":{"ca":{"value":%q}},"auth":{"type":%q,"username":"rialto",%q:{"value":%q}},"from":"a@example.com","to":["b@example.com"]}`,
			port, ca, auth, member, hidden[auth])
	}
	for name, config := range configs {
		kind, _, _ := strings.Cut(name, "-")
		answers = append(answers, s.must("PUT", "/v1/targets/"+name, fmt.Sprintf(`{"type":%q,"delivery":{"retry":{"schedule":[]}},"config":%s}`, kind, config)))
		s.rule("default", name, `{"type":["reading"]}`, name)
	}
	s.publishedAndHidden(t, a, dir, &log, answers, hidden, func(all string) bool {
		return strings.Count(all, "DingTalk says 40035") > 0 && strings.Count(all, "535 5.7.8") > 2 && strings.Count(all, "Feishu says 9499") > 1 && strings.Contains(all, "X-Echo") && strings.Contains(all, "[redacted]")
	})
}
