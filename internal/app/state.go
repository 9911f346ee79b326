// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"encoding/json"

	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/store"
	"github.com/rialto-bridge/rialto/internal/store/kv"
)

// statesBucket holds what targets keep over restarts.
const statesBucket = "targets"

// openStates opens it.
func (a *App) openStates(ctx context.Context) error {
	nc, err := a.log.Connect()
	if err != nil {
		return err
	}
	a.undo("connection of the targets", func(context.Context) error { nc.Close(); return nil })
	if a.states, err = kv.Open(ctx, nc, kv.Options{Bucket: statesBucket, Logger: a.o.Logger}); err != nil {
		return err
	}
	a.undo("states of the targets", func(context.Context) error { return a.states.Close() })
	return nil
}

// targetState is what one target keeps. It implements targets.State.
type targetState struct {
	store store.Store
	name  string
}

func (s targetState) key() store.Key { return store.Key{Kind: kindTarget, Name: s.name} }

// Load returns what was saved last; nil if nothing was.
func (s targetState) Load(ctx context.Context) ([]byte, error) {
	d, err := s.store.Get(ctx, s.key())
	if err != nil && fault.KindOf(err) == fault.NotFound {
		return nil, nil
	}
	var saved []byte
	if err == nil {
		err = json.Unmarshal(d.Raw, &saved)
	}
	return saved, err
}

// Save keeps b, over what was saved before.
func (s targetState) Save(ctx context.Context, b []byte) error {
	raw, err := json.Marshal(b)
	if err == nil {
		_, err = s.store.Put(ctx, s.key(), raw, store.Condition{})
	}
	return err
}

// drop forgets what was saved.
func (s targetState) drop(ctx context.Context) error {
	err := s.store.Delete(ctx, s.key(), store.Condition{})
	if err != nil && fault.KindOf(err) == fault.NotFound {
		return nil
	}
	return err
}
