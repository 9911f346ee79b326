// SPDX-License-Identifier: Apache-2.0

package secret_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rialto-bridge/rialto/internal/secret"
)

func keyring(t testing.TB, keys ...string) *secret.Keyring {
	t.Helper()
	k, err := secret.ParseKeys(strings.Join(keys, "\n"))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestSealAndOpen(t *testing.T) {
	old, fresh := secret.NewKey(), secret.NewKey()
	before, after := keyring(t, old), keyring(t, fresh, old)
	sealed := before.Seal("Secret/a", hidden)
	if strings.Contains(sealed, hidden) || sealed != before.Seal("Secret/a", hidden) {
		t.Errorf("sealed as %s, and then %s", sealed, before.Seal("Secret/a", hidden))
	}
	for _, other := range []string{before.Seal("Secret/b", hidden), before.Seal("Secret/a", hidden+"x"), after.Seal("Secret/a", hidden)} {
		if _, rest, _ := strings.Cut(other, "."); strings.HasSuffix(sealed, rest[len("01234567."):][:16]) || other == sealed {
			t.Errorf("%s is like %s", other, sealed)
		}
	}
	for name, c := range map[string]struct {
		keys    *secret.Keyring
		context string
		sealed  string
		want    error
	}{
		"the same":             {before, "Secret/a", sealed, nil},
		"after a rotation":     {after, "Secret/a", sealed, nil},
		"a joined keyring":     {keyring(t, fresh).Join(before), "Secret/a", sealed, nil},
		"without its key":      {keyring(t, fresh), "Secret/a", sealed, secret.ErrNoKey},
		"in another place":     {before, "Secret/b", sealed, errors.New("")},
		"changed":              {before, "Secret/a", sealed[:len(sealed)-2] + "AA", errors.New("")},
		"cut off":              {before, "Secret/a", sealed[:20], errors.New("")},
		"of an unknown form":   {before, "Secret/a", "v2" + sealed[2:], errors.New("")},
		"not sealed":           {before, "Secret/a", hidden, errors.New("")},
		"with nothing in it":   {before, "Secret/a", sealed[:12], errors.New("")},
		"with a key and no id": {before, "Secret/a", "v1..AAAA", errors.New("")},
	} {
		got, err := c.keys.Open(c.context, c.sealed)
		switch {
		case c.want == nil && (err != nil || got != hidden):
			t.Errorf("%s: %q, %v", name, got, err)
		case c.want != nil && (err == nil || strings.Contains(err.Error(), hidden)):
			t.Errorf("%s: %q, %v", name, got, err)
		case errors.Is(c.want, secret.ErrNoKey) && !errors.Is(err, secret.ErrNoKey):
			t.Errorf("%s: %v, want ErrNoKey", name, err)
		}
	}
}

func TestParseKeys(t *testing.T) {
	for _, text := range []string{"", " \n", "AAAA", "not base64 at all!", secret.NewKey() + "\nx"} {
		if k, err := secret.ParseKeys(text); err == nil {
			t.Errorf("ParseKeys(%q) = %v", text, k)
		}
	}
	a, b := secret.NewKey(), secret.NewKey()
	if a == b {
		t.Error("two keys are the same")
	}
	for _, text := range []string{a + "\n" + b + "\n", a + "," + b, " " + a + "\r\n" + b} {
		k := keyring(t, text)
		for _, one := range []string{a, b} {
			if got, err := k.Open("x", keyring(t, one).Seal("x", hidden)); got != hidden {
				t.Errorf("ParseKeys(%q): %v", text, err)
			}
		}
	}
}

func TestFingerprint(t *testing.T) {
	k := keyring(t, secret.NewKey())
	one := k.Fingerprint("Secret/a", hidden)
	if len(one) != 16 || one != k.Fingerprint("Secret/a", hidden) || one == k.Fingerprint("Secret/b", hidden) || one == k.Fingerprint("Secret/a", "other") ||
		one == keyring(t, secret.NewKey()).Fingerprint("Secret/a", hidden) {
		t.Errorf("fingerprint %s", one)
	}
}

// A document is sealed, shown and opened again.
func TestDocumentsAreSealed(t *testing.T) {
	const doc = `{"a":[{"value":"hunter2","until":"x"},{"ref":"b"}],"n":12345678901234567890,"s":{"value":"s3<>"},"t":{"value":"not","unit":"C"}}`
	k := keyring(t, secret.NewKey())
	sealed, err := k.SealDocument("Target/a", json.RawMessage(doc))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(sealed), "hunter2") || strings.Contains(string(sealed), "s3<>") || !strings.Contains(string(sealed), `"value":"not"`) {
		t.Errorf("sealed as %s", sealed)
	}
	again, err := k.SealDocument("Target/a", json.RawMessage(doc))
	if err != nil || string(again) != string(sealed) {
		t.Errorf("sealed as %s, and then %s, %v", sealed, again, err)
	}
	open, err := k.OpenDocument("Target/a", sealed)
	if err != nil || !sameJSON(t, open, json.RawMessage(doc)) {
		t.Errorf("opens as %s, %v", open, err)
	}
	if plain, err := k.OpenDocument("Target/a", json.RawMessage(doc)); err != nil || string(plain) != doc {
		t.Errorf("what is not sealed opens as %s, %v", plain, err)
	}
	const shown = `{"a":[{"until":"x","value":"[redacted]"},{"ref":"b"}],"n":12345678901234567890,"s":{"value":"[redacted]"},"t":{"unit":"C","value":"not"}}`
	if got := secret.Redact(sealed); string(got) != shown {
		t.Errorf("shown as %s", got)
	}
	back, err := secret.Restore(secret.Redact(sealed), open)
	if err != nil || !sameJSON(t, back, json.RawMessage(doc)) {
		t.Errorf("restored as %s, %v", back, err)
	}
	if _, err := k.OpenDocument("Target/b", sealed); err == nil || !strings.Contains(err.Error(), "/a/0") || !strings.Contains(err.Error(), "/s") {
		t.Errorf("opens elsewhere: %v", err)
	}
}

// The name of a member may be written with escapes.
func TestEscapedNamesAreSealed(t *testing.T) {
	k := keyring(t, secret.NewKey())
	sealed, err := k.SealDocument("Target/a", json.RawMessage(`{"token":{"\u0076al\u0075e":"hunter2"}}`))
	if err != nil || strings.Contains(string(sealed), "hunter2") {
		t.Errorf("sealed as %s, %v", sealed, err)
	}
	if open, err := k.OpenDocument("Target/a", sealed); err != nil || !sameJSON(t, open, json.RawMessage(`{"token":{"value":"hunter2"}}`)) {
		t.Errorf("opens as %s, %v", open, err)
	}
}

func TestReferences(t *testing.T) {
	got := secret.References(json.RawMessage(`{"a/b":{"ref":"one"},"l":[{"ref":"two","until":"x"},{"ref":"env:A"},{"ref":"three","more":1}],"x":{"y":{"ref":"four"}}}`))
	want := []secret.Reference{{Name: "one", Pointer: "/a~1b/ref"}, {Name: "two", Pointer: "/l/0/ref"}, {Name: "four", Pointer: "/x/y/ref"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestLookalikes(t *testing.T) {
	doc := json.RawMessage(`{"a/b":[{"ref":"one"},{"value":"x","until":1}],"b":{"sealed":""},"c":{"value":1},"d":{"ref":"x","more":1},"e":{"value":{"sealed":"y"}}}`)
	if diff := cmp.Diff([]string{"/a~1b/0", "/a~1b/1", "/b", "/e/value"}, secret.Lookalikes(doc)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"/b", "/e/value"}, secret.Sealed(doc)); diff != "" {
		t.Error(diff)
	}
	for text, want := range map[string]bool{`{"ref":"x"}`: true, `{"value":"","until":""}`: true, `{"sealed":"x"}`: true, `{"a":{"ref":"x"}}`: false, `"ref"`: false, `{}`: false, `{`: false, `{"ref":"x","value":"x"}`: false} {
		if got := secret.LooksLike(json.RawMessage(text)); got != want {
			t.Errorf("%s: %t", text, got)
		}
	}
}

func FuzzOpen(f *testing.F) {
	k := keyring(f, secret.NewKey())
	f.Add(k.Seal("c", "text"), "text")
	f.Add("v1..", "")
	f.Fuzz(func(t *testing.T, sealed, text string) {
		if _, err := k.Open("c", sealed); err == nil && sealed != k.Seal("c", "text") && !strings.HasPrefix(sealed, "v1.") {
			t.Fatalf("%q opens", sealed)
		}
		if got, err := k.Open("c", k.Seal("c", text)); err != nil || got != text {
			t.Fatalf("%q opens as %q, %v", text, got, err)
		}
	})
}
