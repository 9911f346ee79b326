// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"context"
	"errors"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/rules"
	"github.com/rialto-bridge/rialto/targets"
)

// Functions runs functions for transforms.
type Functions interface {
	// Transform has a function make the data of an event, by the version with the digest code; "" = the one in force. It is
	// the same for the same delivery. The error is a *targets.Error, which is permanent if trying again cannot help.
	Transform(ctx context.Context, name, code, delivery string, ev *event.Event) (data []byte, contentType string, err error)
}

// functions runs functions for one attempt of a delivery, within the time that it may take.
func (p *path) functions(delivery string, within time.Duration) rules.CallFunction {
	if p.b.o.Functions == nil {
		return nil
	}
	return func(name, code string, ev *event.Event) ([]byte, string, error) {
		ctx, cancel := context.WithTimeout(p.hard, within)
		defer cancel()
		return p.b.o.Functions.Transform(ctx, name, code, delivery, ev)
	}
}

// transformError is the failure of an attempt whose transform could not be rendered: for good, unless a function says
// otherwise.
func transformError(err error) *targets.Error {
	e := &targets.Error{Reason: targets.ReasonTransform, Permanent: true, Err: err}
	var te *targets.Error
	if errors.As(err, &te) {
		e.Permanent = te.Permanent
	}
	return e
}
