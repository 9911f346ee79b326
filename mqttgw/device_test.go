// SPDX-License-Identifier: Apache-2.0

package mqttgw_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/mqttgw"
)

const (
	goodHash   = "$argon2id$v=19$m=8192,t=2,p=1$AAAAAAAAAAAAAAAAAAAAAA$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
	goodBcrypt = "$2b$04$abcdefghijklmnopqrstuu5Gqgqvn8Jbm.aSGQGZvJmSvAmeJm.6i"
)

func TestParseDevice(t *testing.T) {
	tests := []struct {
		name, doc string
		want      []string // pointers; nil = accepted
	}{
		{"value", `{"kind":"Device","name":"box-17","principal":"box-17","password":{"value":"x"}}`, nil},
		{"hash", `{"name":"b","password":{"hash":"` + goodHash + `"},"labels":{"a":"b"},"description":"d","clientIds":["b-*","c"]}`, nil},
		{"env", `{"name":"b","password":{"ref":"env:A_B1"}}`, nil},
		{"file", `{"name":"b","password":{"ref":"file:/etc/secret"}}`, nil},
		{"not JSON", `{`, []string{""}},
		{"not an object", `[]`, []string{""}},
		{"two values", `{"name":"b","password":{"value":"x"}} {}`, []string{""}},
		{"unknown field", `{"name":"b","pasword":{}}`, []string{"/pasword"}},
		{"wrong type", `{"name":7}`, []string{"/name"}},
		{"wrong nested type", `{"name":"b","password":{"value":7}}`, []string{"/password/value"}},
		{"all wrong", `{"kind":"Rule","name":"B","principal":"","clientIds":["a",""]}`, []string{"/kind", "/name", "/principal", "/clientIds/1"}},
		{"no secret", `{"name":"b","password":{}}`, []string{"/password"}},
		{"two secrets", `{"name":"b","password":{"value":"x","ref":"env:A"}}`, []string{"/password"}},
		{"empty value", `{"name":"b","password":{"value":""}}`, []string{"/password/value"}},
		{"secret resource", `{"name":"b","password":{"ref":"box-17"}}`, []string{"/password/ref"}},
		{"relative file", `{"name":"b","password":{"ref":"file:etc/x"}}`, []string{"/password/ref"}},
		{"bad environment name", `{"name":"b","password":{"ref":"env:A=B"}}`, []string{"/password/ref"}},
		{"bcrypt", `{"name":"b","password":{"hash":"` + goodBcrypt + `"}}`, nil},
		{"short bcrypt", `{"name":"b","password":{"hash":"$2a$10$x"}}`, []string{"/password/hash"}},
		{"bcrypt of too much work", `{"name":"b","password":{"hash":"` + strings.Replace(goodBcrypt, "$04$", "$13$", 1) + `"}}`, []string{"/password/hash"}},
		{"argon2i", `{"name":"b","password":{"hash":"` + strings.Replace(goodHash, "argon2id", "argon2i", 1) + `"}}`, []string{"/password/hash"}},
		{"hash of too much memory", `{"name":"b","password":{"hash":"` + strings.Replace(goodHash, "8192", "99999999", 1) + `"}}`, []string{"/password/hash"}},
		{"hash of too many passes", `{"name":"b","password":{"hash":"` + strings.Replace(goodHash, "t=2", "t=17", 1) + `"}}`, []string{"/password/hash"}},
		{"hash of no lanes", `{"name":"b","password":{"hash":"` + strings.Replace(goodHash, "p=1", "p=0", 1) + `"}}`, []string{"/password/hash"}},
		{"no credentials", `{"name":"b","attributes":{"site":"turin"},"policy":"boxes","blocked":true,"publishRate":{"perSecond":0.5}}`, nil},
		{"bad attribute, policy and rate", `{"name":"b","attributes":{"1":"x"},"policy":"B","publishRate":{"perSecond":0}}`,
			[]string{"/attributes/1", "/policy", "/publishRate/perSecond"}},
		{"access", `{"name":"b","access":{"publish":["a/${clientid}/#","$SYS/x"],"connect":["${principal}-*"]}}`, nil},
		{"bad access", `{"name":"b","access":{"publish":["a#","${x}","${clientid"],"connect":["${clientid}"],"subscribe":["$share/g/x",""]}}`,
			[]string{"/access/connect/0", "/access/publish/0", "/access/publish/1", "/access/publish/2", "/access/subscribe/0", "/access/subscribe/1"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := mqttgw.ParseDevice([]byte(tt.doc))
			_, err2 := mqttgw.NormalizeDevice([]byte(tt.doc), nil)
			if (err == nil) != (err2 == nil) {
				t.Errorf("ParseDevice says %v, NormalizeDevice %v", err, err2)
			}
			if tt.want == nil {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			var fe *fault.Error
			if !errors.As(err, &fe) || fe.Kind != fault.Invalid {
				t.Fatalf("error %v, want Invalid", err)
			}
			var got []string
			for _, d := range fe.Details {
				got = append(got, d.Pointer)
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Errorf("pointers (-want +got):\n%s", d)
			}
		})
	}
}

func TestNormalizedDeviceHoldsNoPassword(t *testing.T) {
	const doc = `{"kind":"Device","name":"b","principal":"p","labels":{"a":"b"},"password":{"value":"very secret"},"clientIds":["x"]}`
	one, err := mqttgw.NormalizeDevice([]byte(doc), nil)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(one), "secret") || !strings.Contains(string(one), `"hash":"$argon2id$v=19$`) {
		t.Errorf("normalized: %s", one)
	}
	two, err := mqttgw.NormalizeDevice([]byte(doc), nil)
	if err != nil || string(one) == string(two) {
		t.Errorf("the same salt twice, error %v", err)
	}
	again, err := mqttgw.NormalizeDevice(one, nil)
	if err != nil || string(again) != string(one) {
		t.Errorf("normalizing again: %s, %v, want no change", again, err)
	}
	if same, err := mqttgw.NormalizeDevice([]byte(doc), one); err != nil || string(same) != string(one) {
		t.Errorf("the same password over its hash: %s, %v, want no change", same, err)
	}
	other, err := mqttgw.NormalizeDevice([]byte(strings.Replace(doc, "very", "most", 1)), one)
	if err != nil || string(other) == string(one) {
		t.Errorf("another password over a hash: %s, %v", other, err)
	}
	if _, err := mqttgw.ParseDevice([]byte(`{"name":"b","password":{"value":"very secret"},"x":1}`)); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("error %v repeats the secret, or there is none", err)
	}
}

func FuzzParseDevice(f *testing.F) {
	f.Add(`{"kind":"Device","name":"b","principal":"p","password":{"value":"x"},"clientIds":["*"]}`)
	f.Add(`{"name":"b","password":{"hash":"` + goodHash + `"}}`)
	f.Add(`{"name":"b","password":{"ref":"env:A"}}`)
	f.Fuzz(func(t *testing.T, doc string) {
		d, err := mqttgw.ParseDevice([]byte(doc))
		if err != nil {
			if fault.KindOf(err) != fault.Invalid {
				t.Fatalf("error %v is not Invalid", err)
			}
			return
		}
		if d.Name == "" || d.Principal == "" {
			t.Fatalf("accepted without name or principal: %+v", d)
		}
	})
}
