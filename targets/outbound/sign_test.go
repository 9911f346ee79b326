// SPDX-License-Identifier: Apache-2.0

package outbound_test

import (
	"encoding/base64"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

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
	s, err := outbound.NewSigner(outbound.Key{Text: vectorSecret})
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
	old, err := outbound.NewSigner(outbound.Key{Text: secretOf(64)})
	if err != nil {
		t.Fatal(err)
	}
	both, err := outbound.NewSigner(outbound.Key{Text: vectorSecret}, outbound.Key{Text: secretOf(64)})
	if err != nil {
		t.Fatal(err)
	}
	want := vectorSignature + " " + old.Sign(vectorID, vectorTimestamp, []byte(vectorBody))
	if got := both.Sign(vectorID, vectorTimestamp, []byte(vectorBody)); got != want {
		t.Errorf("Sign = %s, want %s", got, want)
	}
}

func TestSignConcurrently(t *testing.T) {
	s, err := outbound.NewSigner(outbound.Key{Text: vectorSecret})
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
		err := outbound.CheckKey(text)
		if err == nil {
			t.Errorf("CheckKey(%q) accepts it", text)
		} else if len(text) > 10 && strings.Contains(err.Error(), text) {
			t.Errorf("CheckKey repeats the secret: %v", err)
		}
	}
	for n := 24; n <= 64; n++ {
		if err := outbound.CheckKey(secretOf(n)); err != nil {
			t.Errorf("CheckKey of %d bytes: %v", n, err)
		}
	}
	if _, err := outbound.NewSigner(); err == nil {
		t.Error("NewSigner signs with nothing")
	}
	if _, err := outbound.NewSigner(outbound.Key{Text: vectorSecret}, outbound.Key{Text: "x"}); err == nil {
		t.Error("NewSigner accepts a bad second secret")
	}
}

func BenchmarkSign(b *testing.B) {
	for _, size := range []int{256, 1 << 10, 16 << 10} {
		b.Run(fmt.Sprintf("%dB", size), func(b *testing.B) {
			s, err := outbound.NewSigner(outbound.Key{Text: vectorSecret})
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
	s, err := outbound.NewSigner(outbound.Key{Text: "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"})
	if err != nil {
		panic(err)
	}
	fmt.Println(s.Sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, []byte(`{"test": 2432232314}`)))
	// Output: v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=
}

// The vector of v1a that an independent implementation made of the published one; the key is its ed25519 private key.
const (
	vectorPrivate    = "whsk_6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvg=="
	vectorSignatureA = "v1a,hnO3f9T8Ytu9HwrXslvumlUpqtNVqkhqw/enGzPCXe5BdqzCInXqYXFymVJaA7AZdpXwVLPo3mNl8EM+m7TBAg=="
)

func TestSignWithAPrivateKey(t *testing.T) {
	both, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(vectorPrivate, "whsk_"))
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{vectorPrivate, "whsk_" + base64.StdEncoding.EncodeToString(both[:32])} {
		s, err := outbound.NewSigner(outbound.Key{Text: text}, outbound.Key{Text: vectorSecret})
		if err != nil {
			t.Fatal(err)
		}
		if got := s.Sign(vectorID, vectorTimestamp, []byte(vectorBody)); got != vectorSignatureA+" "+vectorSignature {
			t.Errorf("Sign = %s", got)
		}
	}
	both[63] ^= 1
	for _, text := range []string{"whsk_", "whsk_x", "whsk_" + base64.StdEncoding.EncodeToString(both[:31]), "whsk_" + base64.StdEncoding.EncodeToString(both)} {
		if err := outbound.CheckKey(text); err == nil {
			t.Errorf("CheckKey(%q) accepts it", text)
		}
	}
}

func TestAKeySignsUntilItEnds(t *testing.T) {
	s, err := outbound.NewSigner(outbound.Key{Text: secretOf(32)}, outbound.Key{Text: vectorSecret, Until: time.Unix(vectorTimestamp+1, 0)})
	if err != nil {
		t.Fatal(err)
	}
	if got := s.Sign(vectorID, vectorTimestamp, []byte(vectorBody)); !strings.HasSuffix(got, " "+vectorSignature) {
		t.Errorf("Sign = %s, want two signatures", got)
	}
	if got := s.Sign(vectorID, vectorTimestamp+1, []byte(vectorBody)); strings.Contains(got, " ") || got == "" {
		t.Errorf("Sign = %s, want one signature", got)
	}
}

func FuzzCheckKey(f *testing.F) {
	for _, s := range []string{vectorSecret, vectorPrivate, "whsec_", "whsk_AA==", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		err := outbound.CheckKey(text)
		s, err2 := outbound.NewSigner(outbound.Key{Text: text})
		if (err == nil) != (err2 == nil) {
			t.Fatalf("CheckKey: %v, NewSigner: %v", err, err2)
		}
		if err == nil && s.Sign("a", 1, nil) == "" {
			t.Fatal("no signature")
		}
	})
}
