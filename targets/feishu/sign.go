// SPDX-License-Identifier: Apache-2.0

package feishu

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
)

// sign is the signature of a time in seconds, which Feishu takes for an hour: what is signed is the key, and nothing is what
// it is signed over.
func sign(timestamp, key string) string {
	return base64.StdEncoding.EncodeToString(hmac.New(sha256.New, []byte(timestamp+"\n"+key)).Sum(nil))
}
