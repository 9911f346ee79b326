// SPDX-License-Identifier: Apache-2.0

package webhook_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/targets/targettest"
)

// The receiver of docs/webhooks.md, word for word.

// verify says whether a request came from someone who knows the secret, and is not an old one sent again.
func verify(secret string, h http.Header, body []byte, now time.Time) error {
	key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(secret, "whsec_"))
	if err != nil {
		return err
	}
	seconds, err := strconv.ParseInt(h.Get("webhook-timestamp"), 10, 64)
	if err != nil || now.Sub(time.Unix(seconds, 0)).Abs() > 5*time.Minute {
		return errors.New("webhook-timestamp is missing or too far away")
	}
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(h.Get("webhook-id") + "." + h.Get("webhook-timestamp") + "."))
	mac.Write(body)
	want := []byte("v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	for _, got := range strings.Fields(h.Get("webhook-signature")) {
		if hmac.Equal([]byte(got), want) {
			return nil
		}
	}
	return errors.New("no signature fits")
}

// end of the receiver

func TestReceiverOfTheDocs(t *testing.T) {
	const begin, end = "\n// verify says", "\n// end of the receiver"
	source, err := os.ReadFile("receiver_test.go")
	if err != nil {
		t.Fatal(err)
	}
	_, code, _ := strings.Cut(string(source), begin)
	code, _, ok := strings.Cut(code, end)
	if !ok {
		t.Fatal("the receiver is not in this file")
	}
	docs, err := os.ReadFile("../../docs/webhooks.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(docs), strings.TrimSpace(begin+code)) {
		t.Error("docs/webhooks.md does not show the receiver that is tested here")
	}
}

func TestReceiverVerifiesWhatWeSend(t *testing.T) {
	now := time.Now()
	var got error
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			got = err
			return
		}
		got = verify(secretB, r.Header, body, now)
		if verify(secretA, r.Header, body, now) == nil || verify(secretB, r.Header, append(body, ' '), now) == nil ||
			verify(secretB, r.Header, body, now.Add(time.Hour)) == nil {
			got = errors.New("the receiver verifies anything")
		}
	}))
	defer srv.Close()
	w := target(t, `{"url": "`+srv.URL+`", "secret": {"value": "`+secretB+`"}}`, env(t, &now, nil))
	if _, err := w.Deliver(t.Context(), targettest.Delivery()); err != nil || got != nil {
		t.Errorf("Deliver: %v, verify: %v", err, got)
	}
}
