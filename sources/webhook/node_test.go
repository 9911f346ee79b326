// SPDX-License-Identifier: Apache-2.0

package webhook_test

import (
	"bytes"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// nodePackages are libraries that only npm has: Amazon's validator of SNS messages, one of DingTalk's callbacks, and Twilio's, which
// knows shared keys.
const nodePackages = `{"private":true,"dependencies":{"sns-validator":"0.3.5","dingtalk-encrypt":"1.2.3","twilio":"6.3.1"}}`

// nodeOracle reads one request a line and says whether the library takes it. The certificate of SNS comes from the test, in place
// of the download from Amazon.
const nodeOracle = `
const https = require('https'), { PassThrough } = require('stream');
const input = JSON.parse(require('fs').readFileSync(0, 'utf8'));
https.get = (url, cb) => {
  const res = new PassThrough();
  res.statusCode = url === input.certURL ? 200 : 404;
  cb(res);
  res.end(input.cert);
  return { on() { return this; } };
};
const Validator = require('sns-validator'), Ding = require('dingtalk-encrypt'), twilio = require('twilio/lib/webhooks/webhooks');
const take = {
  'aws-sns': r => new Promise(done => {
    try { new Validator().validate(r.body, err => done(!err)); } catch (e) { done(false); }
  }),
  dingtalk: async r => {
    try {
      const q = new URL(r.url).searchParams;
      new Ding(input.token, input.aesKey, input.owner).getDecryptMsg(q.get('msg_signature'), q.get('timestamp'), q.get('nonce'), JSON.parse(r.body).encrypt);
      return true;
    } catch (e) { return false; }
  },
  twilio: async r => {
    const settings = r.header[twilio.SIGNATURE_SETTINGS_HEADER];
    return twilio.validateRequest(input.secret, r.header[twilio.SIGNATURE_HEADER], r.url, Object.fromEntries(new URLSearchParams(r.body)),
      twilio.getSignatureAlgorithm(settings));
  },
};
(async () => {
  const out = { taken: [] };
  for (const r of input.requests) out.taken.push(await take[r.name](r));
  console.log(JSON.stringify(out));
})();
`

type nodeRequest struct {
	Name   string            `json:"name"`
	URL    string            `json:"url"`
	Header map[string]string `json:"header"`
	Body   string            `json:"body"`

	good bool
}

// As TestOurSendersAreWhatTheOfficialLibrariesTake, with libraries of Node.
func TestNodeLibrariesAgree(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"package.json": nodePackages, "oracle.js": nodeOracle} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	node(t, dir, nil, "npm", "install", "--no-audit", "--no-fund", "--prefer-offline", "--loglevel=error")

	der, err := x509.MarshalPKIXPublicKey(&rsaKey().PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	signedIn := map[string]string{"aws-sns": `"Message":"`, "dingtalk": `"encrypt":"`, "twilio": `MessageSid=`}
	var requests []nodeRequest
	for _, name := range []string{"aws-sns", "dingtalk", "twilio"} {
		s := senders[slices.IndexFunc(senders, func(s sender) bool { return s.name == name })]
		w := newWorld(t, s.config, new(vault).edit)
		for i := range 20 {
			payload, header := s.payload(i, time.Now())
			if name == "twilio" && i%4 > 0 { // else the account's token signs
				header = sharedKey([]string{"HMAC_SHA1", "HMAC_SHA256", "HMAC_SHA256"}[i%4-1])
			}
			r := s.sign(t, w.url, payload, header, time.Now())
			body, err := io.ReadAll(r.Body)
			if err != nil {
				t.Fatal(err)
			}
			for _, good := range []bool{true, false} {
				if !good { // in the value of what is signed, so that it stays JSON
					body[bytes.Index(body, []byte(signedIn[name]))+len(signedIn[name])] ^= 1
				}
				ours := r.Clone(t.Context())
				ours.Body, ours.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
				if status, answer := w.send(t, ours); status < 300 != good {
					t.Errorf("%s, signed well %v: we answer %d %s", name, good, status, answer)
				}
				said := map[string]string{}
				for _, h := range []string{"X-Twilio-Signature", "X-Twilio-Webhooks-Signature-Settings"} {
					if v := r.Header.Get(h); v != "" {
						said[h] = v
					}
				}
				requests = append(requests, nodeRequest{name, r.URL.String(), said, string(body), good})
			}
		}
	}
	in, err := json.Marshal(map[string]any{"certURL": snsCert, "cert": string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})), "requests": requests,
		"secret": secretText, "token": dingToken, "aesKey": dingAESKey, "owner": dingOwner})
	if err != nil {
		t.Fatal(err)
	}
	var out struct{ Taken []bool }
	if err := json.Unmarshal(node(t, dir, in, "node", "oracle.js"), &out); err != nil {
		t.Fatal(err)
	}
	for i, r := range requests {
		if out.Taken[i] != r.good {
			t.Errorf("%s: the library takes %s: %v, want %v", r.Name, r.Body, out.Taken[i], r.good)
		}
	}
}

func node(t *testing.T, dir string, in []byte, name string, args ...string) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir, cmd.Stdin = dir, bytes.NewReader(in)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, stderr.Bytes())
	}
	return out
}
