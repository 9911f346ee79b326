// SPDX-License-Identifier: Apache-2.0

package dingtalk

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"net/url"
	"strconv"
	"time"
)

// signed returns the URL of a robot with the time and a signature of it, which DingTalk takes for an hour.
func signed(u *url.URL, now time.Time, key string) *url.URL {
	timestamp := strconv.FormatInt(now.UnixMilli(), 10)
	mac := hmac.New(sha256.New, []byte(key))
	mac.Write([]byte(timestamp + "\n" + key))
	out := *u
	if out.RawQuery != "" {
		out.RawQuery += "&"
	}
	out.RawQuery += "timestamp=" + timestamp + "&sign=" + url.QueryEscape(base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	return &out
}
