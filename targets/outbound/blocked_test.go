// SPDX-License-Identifier: Apache-2.0

package outbound_test

import (
	"bufio"
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/internal/egress"
	"github.com/rialto-bridge/rialto/targets"
	"github.com/rialto-bridge/rialto/targets/outbound"
)

// TestBlockedAttemptsSaySo puts what has to be refused past the check of its definition, as when the list was shorter
// after a restart: no attempt gets an answer, each says why, and those that had an address say what would allow it.
func TestBlockedAttemptsSaySo(t *testing.T) {
	f, err := os.Open("../../internal/egress/testdata/egress_targets.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	noNames := &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		return nil, errors.New("there is no name server")
	}}
	c := client(t, egress.New(egress.Options{Resolver: noNames}), nil)
	blocked := 0
	sc := bufio.NewScanner(f)
	for sc.Scan() {
		line, ok := strings.CutPrefix(sc.Text(), "refuse ")
		if !ok {
			continue
		}
		raw, _, _ := strings.Cut(line, " # ")
		u, err := url.Parse(raw)
		if err != nil || u.Host == "" {
			continue // no target can be made of it
		}
		res, err := outbound.Exchange(within(t, 5*time.Second), c, outbound.Message{Method: http.MethodPost, URL: u, Header: http.Header{}, Body: []byte("x")}, time.Now)
		if err == nil || res.Status != 0 || res.Head != "" || res.Remote != "" {
			t.Errorf("%s: %+v, %v", raw, res, err)
		}
		switch reason := targets.ReasonOf(err); reason {
		case targets.ReasonBlockedAddress:
			blocked++
			if text := err.Error(); !strings.Contains(text, " is not allowed (") || !strings.HasSuffix(text, " allows it (config key egress-allow)") || !strings.Contains(text, "--egress-allow ") {
				t.Errorf("%s: %s", raw, text)
			}
		case targets.ReasonDNS, targets.ReasonProtocol: // no address came of it
		default:
			if !strings.Contains(err.Error(), "invalid port") { // which dials nothing either
				t.Errorf("%s: %s, %v", raw, reason, err)
			}
		}
	}
	if err := sc.Err(); err != nil || blocked < 60 {
		t.Errorf("%d of the list were blocked, %v", blocked, err)
	}
}

// An attempt that was blocked is one like any other: it is tried again, because a name can get another address, and it
// ends when the policy says so.
func TestBlockedAddressIsNotRetriedForEver(t *testing.T) {
	c := client(t, egress.New(egress.Options{}), nil)
	_, err := post(t, within(t, 5*time.Second), c, "http://10.0.0.7:8443/")
	if err == nil || err.Reason != targets.ReasonBlockedAddress || err.Permanent || err.RetryAfter != 0 {
		t.Fatalf("post = %#v, want a retryable blocked_address", err)
	}
	policy, now := targets.DefaultRetryPolicy(), time.Unix(1e9, 0)
	for n := 1; n <= policy.MaxAttempts; n++ {
		d := targets.Next(policy, n, err, now, now, func() float64 { return 0.5 })
		if d.Dead() != (n == policy.MaxAttempts) {
			t.Fatalf("after attempt %d of %d: %+v", n, policy.MaxAttempts, d)
		}
	}
}

// The text has room for the longest address.
func TestBlockedTextIsWhole(t *testing.T) {
	c := client(t, egress.New(egress.Options{}), nil)
	for _, addr := range []string{"fd12:3456:789a:bcde:f012:3456:789a:bcde", "2001:1:789a:bcde:f012:3456:789a:bcde"} {
		ap := netip.AddrPortFrom(netip.MustParseAddr(addr), 65535)
		_, err := post(t, within(t, 5*time.Second), c, "https://"+ap.String()+"/")
		if err == nil || !strings.HasSuffix(err.Error(), "--egress-allow "+ap.String()+" allows it (config key egress-allow)") {
			t.Errorf("post to %s = %v", addr, err)
		}
	}
}
