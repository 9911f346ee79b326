// SPDX-License-Identifier: Apache-2.0

package app

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/secret"
	"github.com/rialto-bridge/rialto/internal/store"
	"github.com/rialto-bridge/rialto/web/api"
)

// vault is what is secret in definitions: it seals it for the store, and knows the Secrets in force. It is safe for concurrent use.
type vault struct {
	keys    *secret.Keyring
	outside secret.Resolver // of variables and files

	mu     sync.RWMutex // guards values
	values map[string]string
}

// sealedKinds are the kinds of definition with something sealed in them.
var sealedKinds = []string{kindSecret, kindTarget, kindSource, kindRegion}

// secretMembers are the members of a kind's documents that may hold secrets.
func secretMembers(kind string) []string {
	if kind == kindRegion {
		return []string{"key", "tls"}
	}
	return []string{"config"}
}

// secretKeyFile is in the data directory.
const secretKeyFile = "secret.key"

// openVault takes the keys that it is given, and those in the data directory, which are made at the first start of who was given
// none.
func (a *App) openVault(context.Context) error {
	given, err := a.givenKeys()
	if err != nil {
		return err
	}
	kept, err := a.keptKeys(given == nil)
	if err != nil {
		return fmt.Errorf("%s: %w", filepath.Join(a.o.Data, secretKeyFile), err)
	}
	own := []string{a.o.Data}
	if a.o.SecretKeyFile != "" {
		own = append(own, a.o.SecretKeyFile)
	}
	a.vault = &vault{keys: kept, outside: secret.Resolver{Own: own}, values: make(map[string]string)}
	if given != nil {
		a.vault.keys = given.Join(kept)
	}
	return nil
}

// givenKeys returns the keys of the options; nil if there are none.
func (a *App) givenKeys() (*secret.Keyring, error) {
	text, from := a.o.SecretKey, "secret-key"
	if a.o.SecretKeyFile != "" {
		b, err := os.ReadFile(a.o.SecretKeyFile)
		if err != nil {
			return nil, fmt.Errorf("secret-key-file: %w", err)
		}
		text, from = string(b), "secret-key-file"
	} else if text == "" {
		return nil, nil
	}
	keys, err := secret.ParseKeys(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", from, err)
	}
	return keys, nil
}

// keptKeys returns the keys in the data directory; if there are none, nil, or one that it makes. What that seals must not outlive
// it, so it is on disk, and in its directory, before it is used.
func (a *App) keptKeys(needed bool) (*secret.Keyring, error) {
	file := filepath.Join(a.o.Data, secretKeyFile)
	b, err := os.ReadFile(file)
	switch {
	case err == nil:
		return secret.ParseKeys(string(b))
	case !errors.Is(err, os.ErrNotExist):
		return nil, err
	case !needed:
		return nil, nil
	}
	text := secret.NewKey()
	if err := writeFile(file, []byte(text+"\n")); err != nil {
		return nil, err
	}
	dir, err := os.Open(a.o.Data)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(dir.Sync(), dir.Close()); err != nil {
		return nil, err
	}
	return secret.ParseKeys(text)
}

// resolve returns what a reference refers to.
func (v *vault) resolve(ref string) (string, error) {
	if !secret.IsName(ref) {
		return v.outside.Resolve(ref)
	}
	v.mu.RLock()
	defer v.mu.RUnlock()
	if s, ok := v.values[ref]; ok {
		return s, nil
	}
	return "", fmt.Errorf("secret %s: there is none of this name that can be opened", ref)
}

// set puts a Secret in force; nil takes it out. One that is sealed with a key that this bridge does not have yet leaves the value
// that is in force: another that shares the store may be sealing everything anew.
func (v *vault) set(name string, doc *store.Document) error {
	var value string
	var err error
	if doc != nil {
		value, err = v.valueOf(name, doc.Raw)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	switch {
	case doc != nil && err == nil:
		v.values[name] = value
	case !errors.Is(err, secret.ErrNoKey):
		delete(v.values, name)
	}
	return err
}

// secretDoc is what a Secret has beside what all documents have.
type secretDoc struct {
	Sealed string `json:"sealed"`
}

func (v *vault) valueOf(name string, doc []byte) (string, error) {
	var d secretDoc
	if err := json.Unmarshal(doc, &d); err != nil {
		return "", err
	}
	return v.keys.Open(kindSecret+"/"+name, d.Sealed)
}

// open returns a stored document with its secrets.
func (v *vault) open(k store.Key, doc []byte) ([]byte, error) {
	return onSecrets(k.Kind, doc, func(_ string, part json.RawMessage) (json.RawMessage, error) {
		return v.keys.OpenDocument(k.String(), part)
	})
}

func (v *vault) seal(k store.Key, doc []byte) ([]byte, error) {
	return onSecrets(k.Kind, doc, func(_ string, part json.RawMessage) (json.RawMessage, error) {
		return v.keys.SealDocument(k.String(), part)
	})
}

// onSecrets returns doc with the members that may hold secrets edited, and all else as it is.
func onSecrets(kind string, doc []byte, edit func(member string, part json.RawMessage) (json.RawMessage, error)) ([]byte, error) {
	members := secretMembers(kind)
	dec := json.NewDecoder(bytes.NewReader(doc))
	if _, err := dec.Token(); err != nil {
		return nil, err
	}
	var out []byte
	done := int64(0) // of doc
	for dec.More() {
		name, err := dec.Token()
		if err != nil {
			return nil, err
		}
		var part json.RawMessage
		if err := dec.Decode(&part); err != nil {
			return nil, err
		}
		member, ok := name.(string)
		if !ok || !slices.Contains(members, member) {
			continue
		}
		end := dec.InputOffset()
		edited, err := edit(member, part)
		if err != nil {
			return nil, err
		}
		out = slices.Concat(out, doc[done:end-int64(len(part))], edited)
		done = end
	}
	return append(out, doc[done:]...), nil
}

// keepsSecrets makes a kind whose documents may hold secrets one that seals them, and never shows them.
func (v *vault) keepsSecrets(k api.Kind) api.Kind {
	check, refs := k.Normalize, k.Refs
	k.Normalize = func(ctx context.Context, doc, old []byte) ([]byte, error) {
		if err := noneSealed(k.Name, doc); err != nil {
			return nil, err
		}
		key := store.Key{Kind: k.Name, Name: nameOf(doc)}
		if old != nil {
			open, err := v.open(key, old)
			if err != nil {
				open = old // its secrets are lost: who writes it anew has to give them
			}
			doc, err = onSecrets(k.Name, doc, func(member string, part json.RawMessage) (json.RawMessage, error) {
				return secret.Restore(part, memberOf(open, member))
			})
			if err != nil {
				return nil, err
			}
		}
		doc, err := check(ctx, doc, old)
		if err != nil {
			return nil, err
		}
		return v.seal(key, doc)
	}
	k.Redact = func(doc []byte) []byte {
		out, err := onSecrets(k.Name, doc, func(_ string, part json.RawMessage) (json.RawMessage, error) { return secret.Redact(part), nil })
		if err != nil {
			return []byte("null") // what cannot be read is not shown
		}
		return out
	}
	k.Refs = func(doc []byte) []api.Ref {
		var all []api.Ref
		if refs != nil {
			all = refs(doc)
		}
		return append(all, secretRefs(k.Name, doc)...)
	}
	return k
}

// noneSealed refuses a document, as somebody writes it, with secrets that are sealed: nobody but the bridge seals any, and what it
// cannot open again would keep the definition from being used.
func noneSealed(kind string, doc []byte) error {
	var details []fault.Detail
	for _, member := range secretMembers(kind) {
		for _, at := range secret.Sealed(memberOf(doc, member)) {
			details = append(details, fault.Detail{Pointer: "/" + member + at, Detail: `is in the form of a secret that is sealed, which is only for the store; a secret is {"ref": "NAME"} or {"value": "..."}`})
		}
	}
	return fault.Collect(details)
}

// secretRefs lists the Secrets that a document refers to.
func secretRefs(kind string, doc []byte) (all []api.Ref) {
	for _, member := range secretMembers(kind) {
		for _, r := range secret.References(memberOf(doc, member)) {
			all = append(all, api.Ref{Kind: kindSecret, Name: r.Name, Pointer: "/" + member + r.Pointer})
		}
	}
	return all
}

func memberOf(doc []byte, member string) json.RawMessage {
	var d map[string]json.RawMessage
	if json.Unmarshal(doc, &d) != nil || d[member] == nil {
		return json.RawMessage("{}")
	}
	return d[member]
}

func nameOf(doc []byte) string {
	var d struct {
		Name string `json:"name"`
	}
	if json.Unmarshal(doc, &d) != nil {
		return "" // it is checked elsewhere
	}
	return d.Name
}

// secretKind is the kind of definition.
func (v *vault) secretKind() api.Kind {
	return api.Kind{
		Name: kindSecret, Plural: "secrets", Lasting: true, Schema: []byte(secretSchema),
		Doc:       "A secret is a text that targets and sources refer to by its name. It is sealed in the store, and never shown.",
		Normalize: func(_ context.Context, doc, old []byte) ([]byte, error) { return v.normalize(doc, old) },
		Redact: func(doc []byte) []byte {
			var members map[string]json.RawMessage
			if json.Unmarshal(doc, &members) != nil {
				return []byte("null")
			}
			delete(members, "sealed")
			out, err := json.Marshal(members)
			if err != nil {
				return []byte("null")
			}
			return out
		},
	}
}

// normalize makes of a Secret as it is written the one that is stored. Without a value the one that is stored stays.
func (v *vault) normalize(doc, old []byte) ([]byte, error) {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(doc, &members); err != nil {
		return nil, fault.Invalidf("", "is not an object")
	}
	var details []fault.Detail
	for name := range members {
		switch name {
		case "kind", "name", "labels", "description", "value", "fingerprint":
		default:
			details = append(details, fault.Detail{Pointer: fault.Pointer(name), Detail: "is not a known field"})
		}
	}
	var description string
	if raw := members["description"]; raw != nil && (json.Unmarshal(raw, &description) != nil || len(description) > 4096) {
		details = append(details, fault.Detail{Pointer: "/description", Detail: "is not a text of at most 4096 bytes"})
	}
	value, why := v.newValue(nameOf(doc), members["value"], old)
	if why != "" {
		details = append(details, fault.Detail{Pointer: "/value", Detail: why})
	}
	if err := fault.Collect(details); err != nil {
		return nil, err
	}
	delete(members, "value")
	return v.sealSecret(nameOf(doc), members, value)
}

// newValue is the value that a Secret has when it is written; why says what is wrong with it.
func (v *vault) newValue(name string, raw json.RawMessage, old []byte) (value, why string) {
	switch {
	case raw != nil && json.Unmarshal(raw, &value) != nil, raw != nil && (value == "" || len(value) > secret.MaxSize):
		return "", fmt.Sprintf("is not a text of 1 to %d bytes", secret.MaxSize)
	case value != "" && value != secret.Redacted:
		return value, ""
	case old == nil:
		return "", "is missing"
	}
	value, err := v.valueOf(name, old)
	if err != nil {
		return "", "is missing, and the one that is stored cannot be opened"
	}
	return value, ""
}

func (v *vault) sealSecret(name string, members map[string]json.RawMessage, value string) ([]byte, error) {
	context := kindSecret + "/" + name
	for member, text := range map[string]string{"sealed": v.keys.Seal(context, value), "fingerprint": v.keys.Fingerprint(context, value)} {
		var err error
		if members[member], err = json.Marshal(text); err != nil {
			return nil, err
		}
	}
	return json.Marshal(members)
}

// reseal returns a stored document as it is sealed with the first key.
func (v *vault) reseal(d store.Document) ([]byte, error) {
	if d.Kind != kindSecret {
		open, err := v.open(d.Key, d.Raw)
		if err != nil {
			return nil, err
		}
		return v.seal(d.Key, open)
	}
	value, err := v.valueOf(d.Name, d.Raw)
	if err != nil {
		return nil, err
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(d.Raw, &members); err != nil {
		return nil, err
	}
	return v.sealSecret(d.Name, members, value)
}

// resealAll seals what is sealed with an older key, or not at all, with the first one. A document that is written meanwhile is sealed
// by that; what cannot be done is logged, and left to the next start.
func (v *vault) resealAll(ctx context.Context, s store.Store, log *slog.Logger) {
	ctx = store.WithAuthor(ctx, store.Author{Name: "(seal)"})
	count := 0
	for _, kind := range sealedKinds {
		q := store.Query{Kind: kind, Limit: 1000}
		for {
			page, err := s.List(ctx, q)
			if err != nil {
				log.Warn("secrets are not sealed anew", "err", err)
				return
			}
			for _, d := range page.Items {
				done, err := v.resealOne(ctx, s, d)
				if err != nil && fault.KindOf(err) != fault.Conflict {
					log.Warn("a secret is not sealed anew", "kind", d.Kind, "name", d.Name, "err", err)
				}
				if done {
					count++
				}
			}
			if q.After = page.Cursor; q.After == "" {
				break
			}
		}
	}
	if count > 0 {
		log.Info("secrets are sealed anew", "count", count)
	}
}

func (v *vault) resealOne(ctx context.Context, s store.Store, d store.Document) (done bool, err error) {
	raw, err := v.reseal(d)
	if err != nil {
		return false, err
	}
	if raw, err = store.Compact(raw); err != nil || bytes.Equal(raw, d.Raw) {
		return false, err
	}
	_, err = s.Put(ctx, d.Key, raw, store.Condition{Revision: d.Revision})
	return err == nil, err
}

// secretSchema describes a Secret as it is written and read.
const secretSchema = `{
  "type": "object",
  "description": "A text that others refer to by its name.",
  "additionalProperties": false,
  "properties": {
    "kind": {"const": "Secret"},
    "name": {"type": "string", "pattern": "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"},
    "description": {"type": "string", "maxLength": 4096},
    "labels": {"type": "object", "additionalProperties": {"type": "string"}},
    "value": {"type": "string", "minLength": 1, "maxLength": 65536, "writeOnly": true, "description": "The secret itself. Without it the one that is stored stays."},
    "fingerprint": {"type": "string", "readOnly": true, "description": "Changes with the value, and tells nothing else of it."}
  }
}`
