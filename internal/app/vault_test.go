// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"errors"
	"testing"

	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/secret"
	"github.com/rialto-bridge/rialto/internal/store"
	"github.com/rialto-bridge/rialto/web/api"
)

// While the key changes, another bridge may seal a Secret with a key that this one does not have. Its value stays in force.
func TestVaultKeepsTheValueItCanOpen(t *testing.T) {
	sealed := func(v *vault) *store.Document {
		doc, err := v.normalize([]byte(`{"kind":"Secret","name":"ops","value":"hunter2"}`), nil)
		if err != nil {
			t.Fatal(err)
		}
		return &store.Document{Raw: doc}
	}
	open := func() *vault {
		keys, err := secret.ParseKeys(secret.NewKey())
		if err != nil {
			t.Fatal(err)
		}
		return &vault{keys: keys, values: make(map[string]string)}
	}
	v := open()
	if err := v.set("ops", sealed(v)); err != nil {
		t.Fatal(err)
	}
	if err := v.set("ops", sealed(open())); !errors.Is(err, secret.ErrNoKey) {
		t.Errorf("a secret under another's key: %v", err)
	}
	if got, err := v.resolve("ops"); err != nil || got != "hunter2" {
		t.Errorf("resolve = %q, %v", got, err)
	}
	if err := v.set("ops", &store.Document{Raw: []byte(`{"sealed":"nonsense"}`)}); err == nil {
		t.Error("a secret that is damaged is taken")
	}
	if got, err := v.resolve("ops"); err == nil {
		t.Errorf("of a damaged secret %q is in force", got)
	}
	if err := errors.Join(v.set("ops", sealed(v)), v.set("ops", nil)); err != nil {
		t.Fatal(err)
	}
	if got, err := v.resolve("ops"); err == nil {
		t.Errorf("of a secret that was removed %q is in force", got)
	}
}

// Nobody but the bridge seals secrets: what somebody else writes in that form is refused wherever it stands, and before the kind sees it.
func TestSealedSecretsAreNotTaken(t *testing.T) {
	keys, err := secret.ParseKeys(secret.NewKey())
	if err != nil {
		t.Fatal(err)
	}
	v := &vault{keys: keys, values: make(map[string]string)}
	for kind, c := range map[string]struct{ doc, pointer string }{
		kindTarget: {`{"name":"a","config":{"any":[{"form":{"sealed":"x"}}]}}`, "/config/any/0/form"},
		kindSource: {`{"name":"a","config":{"sealed":"v1.a.b","until":"x"}}`, "/config"},
		kindRegion: {`{"name":"a","key":{"ref":"k"},"tls":{"a/b":{"sealed":""}}}`, "/tls/a~1b"},
	} {
		took := false
		k := v.keepsSecrets(api.Kind{Name: kind, Normalize: func(_ context.Context, doc, _ []byte) ([]byte, error) {
			took = true
			return doc, nil
		}})
		for _, old := range [][]byte{nil, []byte(`{"name":"a","config":{"sealed":"x"}}`)} {
			_, err := k.Normalize(t.Context(), []byte(c.doc), old)
			var fe *fault.Error
			if !errors.As(err, &fe) || fe.Kind != fault.Invalid || len(fe.Details) != 1 || fe.Details[0].Pointer != c.pointer || took {
				t.Errorf("%s: %v", kind, err)
			}
		}
	}
}
