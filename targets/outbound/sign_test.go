// SPDX-License-Identifier: Apache-2.0

package outbound_test

import (
	"encoding/base64"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/rialto-bridge/rialto/targets/outbound"
)

// The published vector of Standard Webhooks 1.0.0.
const (
	vectorSecret    = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	vectorID        = "msg_p5jXN8AQM9LWM0D4loKWxJek"
	vectorTimestamp = 1614265330
	vectorBody      = `{"test": 2432232314}`
	vectorSignature = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
)

func secretOf(n int) string {
	return "whsec_" + base64.StdEncoding.EncodeToString([]byte(strings.Repeat("k", n)))
}

func TestSignVector(t *testing.T) {
	s, err := outbound.NewSigner(vectorSecret)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 { // a state that has been used before must sign the same
		if got := s.Sign(vectorID, vectorTimestamp, []byte(vectorBody)); got != vectorSignature {
			t.Errorf("Sign = %s, want %s", got, vectorSignature)
		}
	}
}

func TestSignWithSeveralSecrets(t *testing.T) {
	old, err := outbound.NewSigner(secretOf(64))
	if err != nil {
		t.Fatal(err)
	}
	both, err := outbound.NewSigner(vectorSecret, secretOf(64))
	if err != nil {
		t.Fatal(err)
	}
	want := vectorSignature + " " + old.Sign(vectorID, vectorTimestamp, []byte(vectorBody))
	if got := both.Sign(vectorID, vectorTimestamp, []byte(vectorBody)); got != want {
		t.Errorf("Sign = %s, want %s", got, want)
	}
}

func TestSignConcurrently(t *testing.T) {
	s, err := outbound.NewSigner(vectorSecret)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 200 {
				s.Sign("other", 1, []byte("other"))
				if got := s.Sign(vectorID, vectorTimestamp, []byte(vectorBody)); got != vectorSignature {
					t.Errorf("Sign = %s, want %s", got, vectorSignature)
					return
				}
			}
		})
	}
	wg.Wait()
}

func TestSecretsThatAreRefused(t *testing.T) {
	for _, text := range []string{
		"", "whsec_", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsk_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
		"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaS", "whsec_MfKQ9r8GKYqrTwjU\nPD8ILPZIo2LaLaSw", "whsec_!fKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
		secretOf(23), secretOf(65), secretOf(64) + " ",
	} {
		err := outbound.CheckSecret(text)
		if err == nil {
			t.Errorf("CheckSecret(%q) accepts it", text)
		} else if len(text) > 10 && strings.Contains(err.Error(), text) {
			t.Errorf("CheckSecret repeats the secret: %v", err)
		}
	}
	for n := 24; n <= 64; n++ {
		if err := outbound.CheckSecret(secretOf(n)); err != nil {
			t.Errorf("CheckSecret of %d bytes: %v", n, err)
		}
	}
	if _, err := outbound.NewSigner(); err == nil {
		t.Error("NewSigner signs with nothing")
	}
	if _, err := outbound.NewSigner(vectorSecret, "x"); err == nil {
		t.Error("NewSigner accepts a bad second secret")
	}
}

func BenchmarkSign(b *testing.B) {
	for _, size := range []int{256, 1 << 10, 16 << 10} {
		b.Run(fmt.Sprintf("%dB", size), func(b *testing.B) {
			s, err := outbound.NewSigner(vectorSecret)
			if err != nil {
				b.Fatal(err)
			}
			body := make([]byte, size)
			b.ReportAllocs()
			for b.Loop() {
				s.Sign(vectorID, vectorTimestamp, body)
			}
		})
	}
}

func ExampleSigner_Sign() {
	s, err := outbound.NewSigner("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	if err != nil {
		panic(err)
	}
	fmt.Println(s.Sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, []byte(`{"test": 2432232314}`)))
	// Output: v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=
}
