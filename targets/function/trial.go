// SPDX-License-Identifier: Apache-2.0

package function

import (
	"context"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/rules"
	"github.com/rialto-bridge/rialto/targets/wasm"
)

// Trial returns what runs functions for a test, as Transform does, until ctx is done. Each runs on one instance that is the
// trial's own and has no state, so that a test neither keeps deliveries waiting nor changes what the next event meets. call is
// not safe for concurrent use. end, which the caller calls after the last call, gives back what the trial holds.
func (l *Library) Trial(ctx context.Context, delivery string) (call rules.CallFunction, end func()) {
	t := trial{l: l, made: make(map[string]*wasm.Function)}
	call = func(name, code string, ev *event.Event) ([]byte, string, error) {
		f, err := t.function(ctx, name, code)
		if err != nil {
			return nil, "", notHad(ctx, err)
		}
		r, err := f.Call(ctx, callOf(delivery, ev))
		return dataOf(name, code, r, err)
	}
	return call, t.close
}

// trial is the functions of one test.
type trial struct {
	l    *Library
	made map[string]*wasm.Function // by name and version, as they were asked for
}

func (t trial) function(ctx context.Context, name, digest string) (*wasm.Function, error) {
	key := name + " " + digest
	if f := t.made[key]; f != nil {
		return f, nil
	}
	if err := t.l.had(ctx, name, digest); err != nil {
		return nil, err
	}
	t.l.mu.Lock()
	d := t.l.functions[name]
	t.l.mu.Unlock()
	if d == nil {
		return nil, noFunction(name)
	}
	if digest == "" {
		digest = d.Definition.Code
	}
	spec := t.l.spec(d, digest)
	spec.Trial, spec.Settings.Stateful, spec.Settings.Instances = true, false, 1
	t.made[key] = t.l.o.Runtime.Function(spec)
	return t.made[key], nil
}

func (t trial) close() {
	for _, f := range t.made {
		f.Close()
	}
}
