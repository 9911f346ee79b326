// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"net/url"
	"time"

	ceclient "github.com/cloudevents/sdk-go/v2/client"
	cloudevents "github.com/cloudevents/sdk-go/v2/event"
	"github.com/cloudevents/sdk-go/v2/protocol"
	cehttp "github.com/cloudevents/sdk-go/v2/protocol/http"

	"github.com/rialto-bridge/rialto/internal/event"
)

// shop is an application that sends CloudEvents with the official SDK. It knows the bridge by its address and key only.
type shop struct {
	run    string
	books  *books
	story  *story
	buses  map[string]ceclient.Client
	source string
}

// orderPace is the time between two events of the shop.
const orderPace = 700 * time.Millisecond

func shopSource(run string) string { return "urn:com:acme:shop:" + run }

func newShop(run string, cl *client, b *books, st *story) (*shop, error) {
	s := &shop{run: run, books: b, story: st, buses: make(map[string]ceclient.Client), source: shopSource(run)}
	for _, bus := range demoBuses {
		p, err := cehttp.New(
			cehttp.WithTarget(cl.address("/v1/buses/"+url.PathEscape(bus)+"/events", nil)),
			cehttp.WithHeader("Authorization", "Bearer "+cl.key),
			cehttp.WithClient(*cl.http))
		if err != nil {
			return nil, fmt.Errorf("application: %w", err)
		}
		if s.buses[bus], err = ceclient.New(p, ceclient.WithTimeNow()); err != nil {
			return nil, fmt.Errorf("application: %w", err)
		}
	}
	return s, nil
}

// trade sends orders, and things that no rule wants, until ctx is done.
func (s *shop) trade(ctx context.Context) {
	number := 1000
	for wait(ctx, orderPace) {
		number++
		kind := orderType
		if rand.IntN(4) == 0 {
			kind = "com.acme.cart.viewed"
		}
		data := map[string]any{"order": number, "total": math.Round(rand.Float64()*20000) / 100, "currency": "EUR", "boxes": 1 + rand.IntN(5)}
		if _, err := s.send(context.WithoutCancel(ctx), "default", kind, data); err != nil {
			s.story.trouble("shop", err)
		}
	}
}

// send sends one event and waits until it is stored. It returns the event's id.
func (s *shop) send(ctx context.Context, bus, kind string, data any) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, requestTimeout, errors.New("no answer in time"))
	defer cancel()
	e := cloudevents.New()
	e.SetID(event.NewID())
	e.SetSource(s.source)
	e.SetType(kind)
	if data != nil {
		if err := e.SetData("application/json", data); err != nil {
			return "", err
		}
	}
	result := s.buses[bus].Send(ctx, e)
	var answer *cehttp.Result
	switch {
	case protocol.ResultAs(result, &answer) && answer.StatusCode == http.StatusAccepted:
		s.books.orderStored(orderKey(s.run, e.ID()))
		return e.ID(), nil
	case answer != nil && answer.StatusCode < 500:
		return "", fmt.Errorf("the bridge refused an event: %w", result)
	}
	s.books.unanswered()
	return "", fmt.Errorf("the bridge did not take an event: %w", result)
}
