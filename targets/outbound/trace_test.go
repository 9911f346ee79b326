// SPDX-License-Identifier: Apache-2.0

package outbound_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/rialto-bridge/rialto/internal/egress"
	"github.com/rialto-bridge/rialto/targets"
	"github.com/rialto-bridge/rialto/targets/outbound"
)

func TestExchangeTimesAConnectionOnce(t *testing.T) {
	srv := serve(t, func(w http.ResponseWriter, _ *http.Request) { <-time.After(20 * time.Millisecond) })
	c := client(t, loopback(), nil)
	for i := range 3 {
		start := time.Now()
		res, err := post(t, within(t, 5*time.Second), c, srv.URL)
		took := time.Since(start)
		switch {
		case err != nil || res.Remote != srv.Listener.Addr().String():
			t.Fatalf("%+v, %v", res, err)
		case res.FirstByte < 20*time.Millisecond || res.FirstByte > took:
			t.Errorf("the first byte came after %v of %v", res.FirstByte, took)
		case i == 0 && (res.Reused || res.Connect <= 0 || res.Connect > res.FirstByte):
			t.Errorf("first exchange: %+v", res.Exchange)
		case i > 0 && (!res.Reused || res.Connect != 0):
			t.Errorf("exchange %d: %+v, want the connection of the first", i+1, res.Exchange)
		case res.DNS != 0 || res.TLS != 0:
			t.Errorf("%+v without a name or TLS", res.Exchange)
		}
	}
}

// What is under way when an attempt ends is what took the time.
func TestExchangeSaysHowFarItGot(t *testing.T) {
	silent := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}}
	l, err := net.Listen("tcp", "127.0.0.1:0") // takes connections and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	hangs := serve(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	const limit = 50 * time.Millisecond
	for _, c := range []struct {
		name, url, remote string
		guard             *egress.Guard
		part              func(targets.Exchange) time.Duration // what took the time; nil: none of them
	}{
		{"no name server answers", "http://slow.example/", "", egress.New(egress.Options{Resolver: silent}),
			func(x targets.Exchange) time.Duration { return x.DNS }},
		{"no handshake", "https://" + l.Addr().String(), l.Addr().String(), loopback(),
			func(x targets.Exchange) time.Duration { return x.TLS }},
		{"no answer", hangs.URL, hangs.Listener.Addr().String(), loopback(), nil},
	} {
		res, err := post(t, within(t, limit), client(t, c.guard, nil), c.url)
		if err == nil || err.Reason != targets.ReasonTimeout || res.Remote != c.remote || res.FirstByte != 0 || res.Reused {
			t.Errorf("%s: %+v, %v", c.name, res, err)
		}
		sum := res.DNS + res.Connect + res.TLS
		if part := time.Duration(0); c.part == nil && sum > limit || c.part != nil {
			if c.part != nil {
				part = c.part(res.Exchange)
			}
			if part < limit/2 || sum-part > part {
				t.Errorf("%s: %+v", c.name, res.Exchange)
			}
		}
	}
}

func TestExchangeNeverTellsOfABlockedAddress(t *testing.T) {
	srv := serve(t, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "inner secret", 500) })
	// Both addresses of the name are refused.
	both := egress.New(egress.Options{Resolver: answers("192.0.2.1", "127.0.0.1")})
	for name, guard := range map[string]*egress.Guard{"an address": egress.New(egress.Options{}), "a name": both} {
		url := srv.URL
		if name == "a name" {
			url = "http://inner.example:" + srv.URL[strings.LastIndexByte(srv.URL, ':')+1:]
		}
		res, err := post(t, within(t, 5*time.Second), client(t, guard, nil), url)
		if err == nil || err.Reason != targets.ReasonBlockedAddress || res.Head != "" || res.Remote != "" || res.Status != 0 {
			t.Errorf("%s: %+v, %v", name, res, err)
		}
	}
}

// answers is a resolver that has these addresses for every name: it is asked over pipes and speaks just enough DNS.
func answers(addrs ...string) *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		ours, theirs := net.Pipe()
		go func() {
			defer ours.Close()
			for {
				var size [2]byte
				if _, err := io.ReadFull(ours, size[:]); err != nil {
					return
				}
				query := make([]byte, int(size[0])<<8|int(size[1]))
				if _, err := io.ReadFull(ours, query); err != nil {
					return
				}
				reply := append([]byte{}, query[:12]...)
				question := query[12 : 12+strings.IndexByte(string(query[12:]), 0)+5]
				reply[2], reply[3] = 0x81, 0x80 // an answer, with recursion
				reply[8], reply[9], reply[10], reply[11] = 0, 0, 0, 0
				reply = append(reply, question...)
				if question[len(question)-3] == 1 { // type A
					reply[7] = byte(len(addrs))
					for _, a := range addrs {
						ip := netip.MustParseAddr(a).As4()
						reply = append(reply, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4)
						reply = append(reply, ip[:]...)
					}
				}
				if _, err := ours.Write(append([]byte{byte(len(reply) >> 8), byte(len(reply))}, reply...)); err != nil {
					return
				}
			}
		}()
		return theirs, nil
	}}
}

func TestHeadsAreSanitised(t *testing.T) {
	body := strings.Repeat("long ", 10_000)
	srv := serve(t, func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		for name, value := range map[string]string{"Set-Cookie": "sid=hunter2", "Authorization": "Bearer hunter2", "X-Api-Key": "hunter2",
			"X-Auth-Token": "hunter2", "X-Csrf": "hunter2", "Webhook-Signature": "v1,hunter2", "Location": "https://me:hunter2@example.com/a?k=hunter2#hunter2",
			"Retry-After": "7", "X-Bad": "a\tb\xff", "Content-Type": "text/plain; charset=utf-8", "Date": "Mon, 01 Mar 2027 12:00:00 GMT", "X-Large": strings.Repeat("y", 10_000)} {
			h[name] = []string{value}
		}
		w.WriteHeader(http.StatusServiceUnavailable)
		io.WriteString(w, "down\r\n\tfor \x1b[31mmaintenance\x00 "+body)
	})
	res, err := post(t, within(t, 5*time.Second), client(t, loopback(), nil), srv.URL)
	if err == nil {
		t.Fatal("succeeded")
	}
	want := `HTTP/1.1 503 Service Unavailable
Authorization: [redacted]
Content-Type: text/plain; charset=utf-8
Date: Mon, 01 Mar 2027 12:00:00 GMT
Location: https://example.com/a
Retry-After: 7
Set-Cookie: [redacted]
Webhook-Signature: [redacted]
X-Api-Key: [redacted]
X-Auth-Token: [redacted]
X-Bad: a b` + "\ufffd" + `
X-Csrf: [redacted]
X-Large: ` + strings.Repeat("y", 1024) + `

down for [31mmaintenance long long`
	if !strings.HasPrefix(res.Head, want) {
		t.Errorf("head begins %q, want %q", res.Head[:min(len(res.Head), len(want)+100)], want)
	}
	if len(res.Head) > targets.MaxHead || len(res.Head) < targets.MaxHead-100 || strings.Contains(res.Head, "hunter2") {
		t.Errorf("head of %d bytes", len(res.Head))
	}
}

func FuzzHead(f *testing.F) {
	f.Add("503 Service Unavailable", "X-A", "b\x1b", []byte("<html>\r\n\x00"))
	f.Add("", "Location", "http://u:p@h/?q#f", []byte("\xff\xfe\u202e"))
	f.Fuzz(func(t *testing.T, status, name, value string, body []byte) {
		resp := &http.Response{Proto: "HTTP/1.1", Status: status, Header: http.Header{name: {value, value}, "Set-Cookie": {value}}}
		head := outbound.HeadOf(resp, body, nil)
		if !sound(head) || len(head) > targets.MaxHead || strings.Count(head, "\n") > 5 {
			t.Fatalf("head %q", head)
		}
		if !strings.Contains(head, "\nSet-Cookie: [redacted]\n") {
			t.Fatalf("head %q tells a cookie", head)
		}
	})
}

// sound reports whether a head has no characters that do something.
func sound(head string) bool {
	return utf8.ValidString(head) && !strings.ContainsFunc(head, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) })
}
