// SPDX-License-Identifier: Apache-2.0

package targets

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/secret"
)

// secretsAge is how long resolved secrets are used before their references are looked at again, so that a secret that was
// changed is taken up without a restart.
const secretsAge = time.Minute

// SecretSlot is a secret of a config.
type SecretSlot struct {
	Pointer string // in the config
	Source  secret.Source
	// Check says what is wrong with the secret, and repeats nothing of it.
	Check func(text string) error
}

// ReadSecret reads a secret of a config, and checks it if it stands there by value. details say what is wrong with it.
func ReadSecret(pointer string, raw json.RawMessage, check func(text string) error) (s SecretSlot, details []fault.Detail) {
	s = SecretSlot{Pointer: pointer, Check: check}
	if err := s.Source.UnmarshalJSON(raw); err != nil {
		return s, []fault.Detail{{Pointer: pointer, Detail: err.Error()}}
	}
	if s.Source.Ref() != "" {
		return s, nil
	}
	v, err := s.Source.Resolve(nil)
	if err == nil {
		err = check(v.Reveal())
	}
	if err != nil {
		details = []fault.Detail{{Pointer: pointer, Detail: err.Error()}}
	}
	return s, details
}

// RefuseSecrets complains of what in a part of a config that takes any JSON, and no secrets, would be taken for one wherever
// definitions are sealed and shown. pointer is that of the part.
func RefuseSecrets(pointer string, part json.RawMessage) (details []fault.Detail) {
	for _, at := range secret.Lookalikes(part) {
		details = append(details, fault.Detail{Pointer: pointer + at, Detail: LooksLikeSecret})
	}
	return details
}

// LooksLikeSecret is what is said of an object that is none and would be taken for a secret.
const LooksLikeSecret = `looks like a secret: an object with nothing but ref, value or sealed is sealed and hidden; there is no secret here, so give it another member, or write it another way`

// SecretSet is the secrets of one target. It is safe for concurrent use.
type SecretSet struct {
	slots  []SecretSlot
	env    Env
	fixed  bool // none is a reference, so that nothing has to be looked at again
	latest atomic.Pointer[resolved]
}

// resolved is what secrets resolved to.
type resolved struct {
	values map[string]string // by pointer
	at     time.Time
}

// NewSecretSet returns the secrets that slots describe.
func NewSecretSet(env Env, slots ...SecretSlot) *SecretSet {
	return &SecretSet{slots: slots, env: env, fixed: !slices.ContainsFunc(slots, func(s SecretSlot) bool { return s.Source.Ref() != "" })}
}

// Values returns the secrets by their pointers; the map is not to be changed. While a reference cannot be resolved, or what
// it resolves to is refused by its Check, what all of them were before is used; if they never were anything, there is an
// error, which names the reference.
func (s *SecretSet) Values() (map[string]string, error) {
	now := s.env.Now()
	old := s.latest.Load()
	if old != nil && (s.fixed || now.Sub(old.at) < secretsAge) {
		return old.values, nil
	}
	values, err := s.resolve()
	if err != nil {
		if old == nil {
			return nil, err
		}
		s.env.Logger.Warn("secret not readable, the last one stays in use", slog.Any("err", err))
		values = old.values
	}
	s.latest.Store(&resolved{values, now})
	return values, nil
}

// Doubt has the references looked at again the next time if err is that of an attempt whose far side has not taken who we say that
// we are: a secret that was changed meanwhile is then used at once.
func (s *SecretSet) Doubt(err error) {
	var e *Error
	if !errors.As(err, &e) || e.Reason != ReasonAuth && e.Status != http.StatusUnauthorized && e.Status != http.StatusForbidden {
		return
	}
	if old := s.latest.Load(); old != nil {
		s.latest.CompareAndSwap(old, &resolved{values: old.values})
	}
}

func (s *SecretSet) resolve() (map[string]string, error) {
	values := make(map[string]string, len(s.slots))
	for _, slot := range s.slots {
		v, err := slot.Source.Resolve(s.env.Secrets)
		if err != nil {
			return nil, err
		}
		if err := slot.Check(v.Reveal()); err != nil {
			return nil, fmt.Errorf("%s: secret %s: %w", slot.Pointer, slot.Source, err)
		}
		values[slot.Pointer] = v.Reveal()
	}
	return values, nil
}
