// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"encoding/base64"
	"fmt"
	"testing"

	"golang.org/x/crypto/argon2"
)

// The size of the key is an input of argon2id: hashes of other programs come with keys of 16, 24, 32 or 64 bytes.
func TestBroughtHashOfAnySizeIsAccepted(t *testing.T) {
	salt := []byte("0123456789abcdef")
	for _, size := range []uint32{16, 24, 32, 64} {
		text := fmt.Sprintf("$argon2id$v=19$m=64,t=1,p=1$%s$%s", base64.RawStdEncoding.EncodeToString(salt),
			base64.RawStdEncoding.EncodeToString(argon2.IDKey([]byte("open sesame"), salt, 1, 64, 1, size)))
		dev, err := ParseDevice([]byte(`{"name":"box","password":{"hash":"` + text + `"}}`))
		if err != nil {
			t.Fatal(err)
		}
		if !dev.hash.accepts([]byte("open sesame")) || dev.hash.accepts([]byte("open sesamE")) {
			t.Errorf("a key of %d bytes: the right password is refused, or a wrong one accepted", size)
		}
	}
}
