// SPDX-License-Identifier: Apache-2.0

package app

import (
	"errors"
	"testing"

	"github.com/rialto-bridge/rialto/internal/secret"
	"github.com/rialto-bridge/rialto/internal/store"
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
