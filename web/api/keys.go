// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/store"
)

const (
	kindKey      = "Key"
	secretPrefix = "rialto_" // so that scanners for leaked secrets know one
	maxScopes    = 64
)

// keyDoc is a Key document. Hash is the server's: it is stored and never shown.
type keyDoc struct {
	Kind        string            `json:"kind"`
	Name        string            `json:"name"`
	Description string            `json:"description,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	Scopes      []string          `json:"scopes"`
	ExpiresAt   *time.Time        `json:"expiresAt,omitempty"`
	Hash        string            `json:"hash,omitempty"` // SHA-256 of the secret, hexadecimal

	// The secret before, while it is good beside the new one. The server's, and shown as status only.
	PreviousHash  string     `json:"previousHash,omitempty"`
	PreviousUntil *time.Time `json:"previousUntil,omitempty"`
}

// NewKey makes a key: the secret, to be shown once, and the document to be stored under store.Key{Kind: "Key", Name: name}.
// Such a key does not expire. The error is a *fault.Error for a scope that is none.
func NewKey(name string, scopes ...string) (secret string, doc []byte, err error) {
	secret = newSecret()
	doc, err = KeyOf(secret, name, scopes...)
	if err != nil {
		return "", nil, err
	}
	return secret, doc, nil
}

// KeyOf is the document of a key whose secret NewKey has made before.
func KeyOf(secret, name string, scopes ...string) (doc []byte, err error) {
	k := keyDoc{Kind: kindKey, Name: name, Scopes: scopes, Hash: HashKey(secret)}
	if err := k.check(); err != nil {
		return nil, err
	}
	return json.Marshal(k)
}

// HashKey is what is stored of a key's secret: its SHA-256 in hexadecimal. A secret is 256 random bits, so nothing
// slower is needed.
func HashKey(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(sum[:])
}

func newSecret() string {
	var b [32]byte
	rand.Read(b[:]) // never fails
	return secretPrefix + base64.RawURLEncoding.EncodeToString(b[:])
}

// grant is what a key may do.
type grant struct {
	name     string
	revision uint64
	hash     [sha256.Size]byte
	scopes   []scope
	expires  time.Time // zero = never
	gone     bool      // deleted here, and the feed does not know yet
	token    bool      // it is of a signed token, not of a key
	previous *grant    // the same by the secret before; nil = that has ended

	lastUsed *atomic.Int64 // Unix time in seconds, shared by all states of a key; nil for tokens
}

// used notes that a key was good for a request. It writes once a second at most, since all requests share the place.
func (g *grant) used(now time.Time) {
	if s := now.Unix(); g.lastUsed != nil && g.lastUsed.Load() != s {
		g.lastUsed.Store(s)
	}
}

// keyStatus is what is shown beside a key.
type keyStatus struct {
	LastUsedAt    *time.Time `json:"lastUsedAt,omitempty"`    // by this process, since it started
	PreviousUntil *time.Time `json:"previousUntil,omitempty"` // until when the secret before the last rotation is good
}

// status returns what is known of a key; nil if nothing is.
func (k *Keys) status(name string) any {
	k.mu.Lock()
	defer k.mu.Unlock()
	g := k.byName[name]
	if g == nil || g.gone {
		return nil
	}
	var s keyStatus
	if at := g.lastUsed.Load(); at != 0 {
		t := time.Unix(at, 0).UTC()
		s.LastUsedAt = &t
	}
	if g.previous != nil {
		s.PreviousUntil = &g.previous.expires
	}
	if s == (keyStatus{}) {
		return nil
	}
	return s
}

// Keys is the directory of keys that requests are checked against: kept in memory, fed from the store's changes. Safe
// for concurrent use; lookups take no lock.
type Keys struct {
	mu     sync.Mutex // guards byName
	byName map[string]*grant
	byHash atomic.Pointer[map[[sha256.Size]byte]*grant]
}

// NewKeys returns an empty directory.
func NewKeys() *Keys {
	k := &Keys{byName: map[string]*grant{}}
	k.byHash.Store(&map[[sha256.Size]byte]*grant{})
	return k
}

// Set takes in a Key document as it is stored. One that is older than what is known of the key is ignored. An error
// means that the document is damaged; the key is then good for nothing.
func (k *Keys) Set(d store.Document) error {
	g, err := parseGrant(d)
	k.mu.Lock()
	defer k.mu.Unlock()
	old := k.byName[d.Name]
	if old != nil && old.revision >= d.Revision {
		return err
	}
	if err == nil && old != nil && old.lastUsed != nil {
		g.share(old.lastUsed)
	}
	if err != nil {
		delete(k.byName, d.Name)
	} else {
		k.byName[d.Name] = g
	}
	k.publish()
	return err
}

// Remove forgets a key.
func (k *Keys) Remove(name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.byName, name)
	k.publish()
}

// revoke ends a key at once, ahead of the feed, which may still bring states up to revision.
func (k *Keys) revoke(name string, revision uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.byName[name] = &grant{name: name, revision: revision, gone: true}
	k.publish()
}

// publish makes byName visible to lookups. The caller holds mu.
func (k *Keys) publish() {
	m := make(map[[sha256.Size]byte]*grant, len(k.byName))
	for g := range maps.Values(k.byName) {
		if !g.gone {
			if g.previous != nil {
				m[g.previous.hash] = g.previous
			}
			m[g.hash] = g
		}
	}
	k.byHash.Store(&m)
}

// lookup returns the grant of a secret, or nil. What takes time depends on the hash of what was sent, which nobody can
// steer towards a stored one.
func (k *Keys) lookup(secret string) *grant {
	sum := sha256.Sum256([]byte(secret))
	g := (*k.byHash.Load())[sum]
	if g == nil || subtle.ConstantTimeCompare(g.hash[:], sum[:]) != 1 {
		return nil
	}
	return g
}

func parseGrant(d store.Document) (*grant, error) {
	var doc keyDoc
	if err := json.Unmarshal(d.Raw, &doc); err != nil {
		return nil, err
	}
	g := &grant{name: d.Name, revision: d.Revision}
	var err error
	if g.hash, err = parseHash(doc.Hash); err != nil {
		return nil, err
	}
	for _, s := range doc.Scopes {
		sc, why := parseScope(s)
		if why != "" {
			return nil, errors.New("key has a scope that is none: " + why)
		}
		g.scopes = append(g.scopes, sc)
	}
	if doc.ExpiresAt != nil {
		g.expires = *doc.ExpiresAt
	}
	if doc.PreviousHash != "" && doc.PreviousUntil != nil {
		before := *g
		if before.hash, err = parseHash(doc.PreviousHash); err != nil {
			return nil, err
		}
		if before.expires.IsZero() || doc.PreviousUntil.Before(before.expires) {
			before.expires = *doc.PreviousUntil
		}
		g.previous = &before
	}
	g.share(new(atomic.Int64))
	return g, nil
}

// share makes a place the one where the use of both secrets is noted.
func (g *grant) share(place *atomic.Int64) {
	g.lastUsed = place
	if g.previous != nil {
		g.previous.lastUsed = place
	}
}

func parseHash(text string) ([sha256.Size]byte, error) {
	sum, err := hex.DecodeString(text)
	if err != nil || len(sum) != sha256.Size {
		return [sha256.Size]byte{}, errors.New("key has no hash")
	}
	return [sha256.Size]byte(sum), nil
}

// check says what is wrong with a key.
func (k *keyDoc) check() error {
	var faults []fault.Detail
	switch {
	case len(k.Scopes) == 0:
		faults = append(faults, fault.Detail{Pointer: "/scopes", Detail: "must list at least one right, such as events:write:default"})
	case len(k.Scopes) > maxScopes:
		faults = append(faults, fault.Detail{Pointer: "/scopes", Detail: "must list at most " + strconv.Itoa(maxScopes) + " rights"})
	default:
		for i, s := range k.Scopes {
			if _, why := parseScope(s); why != "" {
				faults = append(faults, fault.Detail{Pointer: "/scopes/" + strconv.Itoa(i), Detail: why})
			}
		}
	}
	return fault.Collect(faults)
}

// parseKey reads a Key document as users write it.
func parseKey(doc []byte) (*keyDoc, error) {
	var in struct {
		keyDoc
		ExpiresAt     *string         `json:"expiresAt"`
		Hash          json.RawMessage `json:"hash"`
		PreviousHash  json.RawMessage `json:"previousHash"`
		PreviousUntil json.RawMessage `json:"previousUntil"`
	}
	if err := decodeStrict(doc, &in); err != nil {
		return nil, err
	}
	if in.PreviousHash != nil || in.PreviousUntil != nil {
		return nil, fault.Invalidf("", "previousHash and previousUntil are not for users to write; POST /v1/keys/{name}:rotate?grace= sets them")
	}
	if in.Hash != nil {
		return nil, fault.Invalidf("/hash", "is not for users to write; POST /v1/keys makes a secret")
	}
	k := in.keyDoc
	if in.ExpiresAt != nil {
		t, err := time.Parse(time.RFC3339, *in.ExpiresAt)
		if err != nil {
			return nil, fault.Invalidf("/expiresAt", "must be a time like 2027-06-01T00:00:00Z")
		}
		t = t.UTC()
		k.ExpiresAt = &t
	}
	return &k, k.check()
}

// makeKey gives a Key document as users write it a secret.
func makeKey(doc []byte) (k *keyDoc, secret string, err error) {
	if k, err = parseKey(doc); err != nil {
		return nil, "", err
	}
	secret = newSecret()
	k.Hash = HashKey(secret)
	return k, secret, nil
}

// keyKind is the kind of the documents that this package owns.
func keyKind(keys *Keys) *Kind {
	return &Kind{
		Name: kindKey, Plural: "keys", Area: areaAdmin, Lasting: true, Schema: keySchema,
		Doc: "Keys for this API. A key's secret is answered once, by POST /v1/keys or POST /v1/keys/{name}:rotate.",
		Normalize: func(_ context.Context, doc, old []byte) ([]byte, error) {
			k, err := parseKey(doc)
			if err != nil {
				return nil, err
			}
			if old == nil {
				return nil, fault.New(fault.NotFound, "key %s does not exist; POST /v1/keys makes one and answers its secret", k.Name)
			}
			var was keyDoc
			if err := json.Unmarshal(old, &was); err != nil {
				return nil, err
			}
			k.Hash, k.PreviousHash, k.PreviousUntil = was.Hash, was.PreviousHash, was.PreviousUntil
			return marshalDoc(k)
		},
		Status: func(name string, _ bool) any { return keys.status(name) },
		Redact: redactKey,
	}
}

func marshalDoc(v any) ([]byte, error) {
	var b bytes.Buffer
	err := encodeJSON(&b, v)
	return b.Bytes(), err
}

func redactKey(doc []byte) []byte {
	out, err := withoutMembers(doc, "hash", "previousHash", "previousUntil")
	if err != nil {
		return []byte("{}") // rather nothing than a hash
	}
	return out
}

const keySchemaText = `{
 "type": "object", "required": ["scopes"],
 "properties": {
  "kind": {"const": "Key"}, "name": {"type": "string"}, "description": {"type": "string"},
  "labels": {"type": "object", "additionalProperties": {"type": "string"}},
  "scopes": {"type": "array", "minItems": 1, "maxItems": 64, "items": {"type": "string",
   "pattern": "^(events|definitions|devices|queues|admin):(read|write|\\*)(:[a-z0-9-]+)?$"},
   "description": "Rights, <events|definitions|devices|queues|admin>:<read|write|*>[:<bus>]. admin stands for all areas."},
  "expiresAt": {"type": "string", "format": "date-time"}
 }}`

var keySchema = []byte(keySchemaText)

type keyIn struct {
	DryRun  bool   `query:"dryRun" doc:"check, answer what would be stored, and store nothing"`
	Content string `header:"Content-Type" hidden:"true"`
	RawBody []byte `contentType:"application/json"`
}

type rotateIn struct {
	Grace string `query:"grace" doc:"how long the old secret is good beside the new one, such as 1h; 0s to 720h" default:"0s"`
}

// maxGrace is how long the old secret of a rotated key may be good.
const maxGrace = 30 * 24 * time.Hour

// addKeyRoutes adds what keys have beside the routes of every kind.
func (a *API) addKeyRoutes() {
	k := a.kind(kindKey)
	control(a, huma.Operation{
		OperationID: "create-key", Method: "POST", Path: "/v1/keys", Tags: []string{"keys"}, Summary: "Make a key",
		Description: "The answer is the Key document with its secret, which is shown this once.",
		RequestBody: documentBody(k), Responses: documentResponses(k, http.StatusCreated),
		DefaultStatus: http.StatusCreated,
	}, need{area: areaAdmin, access: accessWrite}, a.createKey)
	control(a, huma.Operation{
		OperationID: "rotate-key", Method: "POST", Path: "/v1/keys/{name}:rotate", Tags: []string{"keys"},
		Summary: "Give a key a new secret", Parameters: []*huma.Param{nameParam(k)},
		Description: "The old secret is good for nothing from then on, or for as long as grace says; of two rotations within it, only the last one before counts. The answer has the new one, which is shown this once.",
		Responses:   documentResponses(k, http.StatusOK),
	}, need{area: areaAdmin, access: accessWrite}, a.rotateKey)
}

func (a *API) createKey(ctx context.Context, in *keyIn) (*documentOut, error) {
	k := a.kind(kindKey)
	if err := checkContentType(in.Content); err != nil {
		return nil, err
	}
	raw, err := prepareDoc(k, in.RawBody, "", "")
	if err != nil {
		return nil, err
	}
	key, secret, err := makeKey(raw)
	if err != nil {
		return nil, err
	}
	if raw, err = marshalDoc(key); err != nil {
		return nil, err
	}
	sk := store.Key{Kind: kindKey, Name: key.Name}
	if in.DryRun {
		if _, err := a.o.Store.Get(ctx, sk); fault.KindOf(err) != fault.NotFound {
			if err == nil {
				err = fault.New(fault.Conflict, "%s exists already", sk)
			}
			return nil, err
		}
		return a.documentOut(k, store.Document{Key: sk, Raw: raw}, http.StatusCreated, aside{})
	}
	d, err := a.o.Store.Put(ctx, sk, raw, store.Condition{Absent: true})
	if err != nil {
		return nil, err
	}
	return a.showSecret(k, d, http.StatusCreated, secret)
}

func (a *API) rotateKey(ctx context.Context, in *rotateIn) (*documentOut, error) {
	grace, err := time.ParseDuration(in.Grace)
	if err != nil || grace < 0 || grace > maxGrace {
		return nil, fault.Invalidf("/grace", "must be a duration from 0s to %s, such as 1h", maxGrace)
	}
	k := a.kind(kindKey)
	sk := store.Key{Kind: kindKey, Name: pathParam(requestOf(ctx), "name")}
	for range maxTries {
		d, err := a.o.Store.Get(ctx, sk)
		if err != nil {
			return nil, err
		}
		var key keyDoc
		if err := json.Unmarshal(d.Raw, &key); err != nil {
			return nil, err
		}
		secret := newSecret()
		key.PreviousHash, key.PreviousUntil = "", nil
		if grace > 0 {
			until := a.o.Now().Add(grace).UTC().Truncate(time.Second)
			key.PreviousHash, key.PreviousUntil = key.Hash, &until
		}
		key.Hash = HashKey(secret)
		raw, err := marshalDoc(key)
		if err != nil {
			return nil, err
		}
		d, err = a.o.Store.Put(ctx, sk, raw, store.Condition{Revision: d.Revision})
		if fault.KindOf(err) == fault.Conflict {
			continue
		}
		if err != nil {
			return nil, err
		}
		return a.showSecret(k, d, http.StatusOK, secret)
	}
	return nil, fault.New(fault.Conflict, "%s is being changed by others all the time", sk)
}

// showSecret puts a key in force and answers it with its secret.
func (a *API) showSecret(k *Kind, d store.Document, status int, secret string) (*documentOut, error) {
	if err := a.o.Keys.Set(d); err != nil {
		return nil, err
	}
	out, err := a.documentOut(k, d, status, aside{secret: secret})
	if err == nil {
		out.CacheControl = "no-store"
	}
	return out, err
}

// keyChanged keeps the directory in step with what was written here, so that it holds as soon as it is answered.
func (a *API) keyChanged(d store.Document, deleted bool) error {
	if deleted {
		a.o.Keys.revoke(d.Name, d.Revision)
		return nil
	}
	return a.o.Keys.Set(d)
}

func isJSONType(contentType string) bool {
	t, _, _ := strings.Cut(contentType, ";")
	return strings.EqualFold(strings.TrimSpace(t), "application/json")
}
