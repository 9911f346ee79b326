// SPDX-License-Identifier: Apache-2.0

package outbound_test

import (
	"net/http"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/targets/outbound"
)

// The URL of a message is shared by all that are under way: signing leaves it as it is. Run with the race detector.
func TestAWSSignerLeavesTheURL(t *testing.T) {
	const given, signed = "https://example.com/f?b=2+3&a=z&a=%C3%A4&c", "a=%C3%A4&a=z&b=2%203&c="
	u, err := url.Parse(given)
	if err != nil {
		t.Fatal(err)
	}
	s := &outbound.AWSSigner{Region: "eu-central-1", Service: "lambda", AccessKeyID: "AKIDEXAMPLE", SecretAccessKey: "secret"}
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			m := outbound.Message{Method: http.MethodPost, URL: u, Header: http.Header{}}
			if err := s.Sign(t.Context(), &m, time.Unix(0, 0)); err != nil || m.URL.RawQuery != signed {
				t.Errorf("the query is %s, %v", m.URL.RawQuery, err)
			}
		})
	}
	wg.Wait()
	if u.String() != given {
		t.Errorf("the URL has become %s", u)
	}
	once, err := outbound.SignedURL(u)
	if err != nil || once.RawQuery != signed {
		t.Fatalf("the query is %s, %v", once.RawQuery, err)
	}
	if twice, err := outbound.SignedURL(once); err != nil || *twice != *once {
		t.Errorf("%s becomes %s, %v", once, twice, err)
	}
}
