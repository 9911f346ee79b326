// SPDX-License-Identifier: Apache-2.0

package bridge_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/rialto-bridge/rialto/bridge"
	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/internal/journal"
	"github.com/rialto-bridge/rialto/rules"
	"github.com/rialto-bridge/rialto/targets"
)

// printer is a target that prints.
type printer struct{ done chan struct{} }

func (p printer) Deliver(_ context.Context, d targets.Delivery) (targets.Result, error) {
	fmt.Printf("%s -> %s: %s\n", d.Rule, d.Target, d.Event.Data)
	close(p.done)
	return targets.Result{Status: 200}, nil
}

// The least that is needed: a log, views and a bridge; a target, a bus and a rule; and an event.
func Example() {
	if err := run(context.Background()); err != nil {
		fmt.Println(err)
	}
	// Unordered output:
	// stored at EV_default:1
	// too-warm -> ops: {"temperature":9.1}
}

func run(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "bridge")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	logger := slog.New(slog.DiscardHandler)
	log, err := eventlog.Open(ctx, eventlog.Options{Dir: dir, Logger: logger})
	if err != nil {
		return err
	}
	defer log.Close(ctx)
	views, err := journal.Open(journal.Options{Dir: filepath.Join(dir, "views"), Logger: logger})
	if err != nil {
		return err
	}
	defer views.Close()
	b, err := bridge.New(ctx, bridge.Options{Log: log, Journal: views, Logger: logger})
	if err != nil {
		return err
	}
	defer b.Close(ctx)

	// Definitions: targets before rules, so that no delivery finds its target missing.
	def, err := targets.ParseDefinition([]byte(`{"kind":"Target","name":"ops","type":"printer"}`),
		targets.NewCatalog(targets.Kind{Name: "printer", ConfigSchema: []byte(`{}`)}))
	if err != nil {
		return err
	}
	ops := printer{make(chan struct{})}
	if err := b.SetTarget(def, ops); err != nil {
		return err
	}
	bus, err := bridge.ParseBus([]byte(`{"kind":"Bus","name":"default"}`))
	if err != nil {
		return err
	}
	if err := b.SetBus(ctx, bus); err != nil {
		return err
	}
	rule, err := rules.ParseRule([]byte(`{"kind":"Rule","name":"too-warm",
		"pattern":{"data":{"temperature":[{"numeric":[">",8]}]}}, "targets":[{"target":"ops"}]}`))
	if err != nil {
		return err
	}
	if err := b.SetRules("default", 1, []*rules.Rule{rule}); err != nil {
		return err
	}

	receipts, err := b.Ingest(ctx, "default", []*event.Record{{Event: event.Event{Source: "/box/17", Type: "reading",
		DataContentType: "application/json", Data: []byte(`{"temperature":9.1}`)}}})
	if err != nil {
		return err
	}
	fmt.Println("stored at", receipts[0].Pos)
	<-ops.done
	return nil
}
