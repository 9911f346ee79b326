// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"encoding/json"

	"github.com/rialto-bridge/rialto/internal/egress"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/secret"
	"github.com/rialto-bridge/rialto/internal/store"
	"github.com/rialto-bridge/rialto/internal/store/memory"
	"github.com/rialto-bridge/rialto/rules"
	"github.com/rialto-bridge/rialto/schema"
	"github.com/rialto-bridge/rialto/targets/function"
	"github.com/rialto-bridge/rialto/web/api"
)

// CheckDefinitions says what is wrong with definitions, and what is doubtful about them, without a server: they are held
// against a bridge that has nothing but the buses that always exist. Pointers are /documents/<n>/.... What depends on where
// a bridge runs is not looked at: whether an address may be called, what references to secrets stand for.
func CheckDefinitions(ctx context.Context, documents []json.RawMessage) (wrong, doubts []fault.Detail, err error) {
	s, schemas := memory.New(nil), memory.NewSchemas()
	defer s.Close()
	defer schemas.Close()
	for _, bus := range builtinBuses {
		if _, err := s.Put(ctx, store.Key{Kind: kindBus, Name: bus}, builtinBus(bus), store.Condition{}); err != nil {
			return nil, nil, err
		}
	}
	everywhere, err := egress.ParseAllow("0.0.0.0/0,::/0")
	if err != nil {
		return nil, nil, err
	}
	catalog := TargetKinds(egress.New(egress.Options{Allow: everywhere}), nil)
	lint := func(_ context.Context, doc []byte, _ bool) []rules.Warning {
		r, err := rules.ParseRule(doc)
		if err != nil {
			return nil // it was checked before
		}
		return rules.Lint(r)
	}
	keys, err := secret.ParseKeys(secret.NewKey()) // of this call
	if err != nil {
		return nil, nil, err
	}
	v := &vault{keys: keys}
	functions := functionKind(nil)
	functions.Normalize = func(_ context.Context, doc, _ []byte) ([]byte, error) { return checked(doc, function.ParseDefinition) } // only a server knows the code
	functions.Status = nil
	kinds := append(definitionKinds(catalog, nil, nil, v, lint), v.keepsSecrets(sourceKind(SourceKinds(), nil)), functions, v.keepsSecrets(regionKind(nil)), linkKind(nil))
	return api.NewChanges(s, kinds, schema.NewRegistry(schema.RegistryOptions{Store: schemas})).Check(ctx, documents)
}
