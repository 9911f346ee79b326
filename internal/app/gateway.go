// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/rialto-bridge/rialto/bridge"
	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/mqttgw"
	"github.com/rialto-bridge/rialto/web/api"
)

// startMQTT serves the gateway, unless it is off.
func (a *App) startMQTT(ctx context.Context) error {
	if a.o.MQTT == "off" {
		return nil
	}
	tail, err := a.bridge.Bus("devices")
	if err != nil {
		return err
	}
	sessions, err := a.log.Stream(ctx, eventlog.StreamConfig{Name: "SESSIONS", Subjects: []string{mqttgw.SessionSubject}})
	if err != nil {
		return err
	}
	nc, err := a.log.Connect()
	if err != nil {
		return err
	}
	a.undo("MQTT session owners", func(context.Context) error { nc.Close(); return nil })
	owners, err := mqttgw.OpenOwners(ctx, nc, "sessions", "rialto")
	if err != nil {
		return err
	}
	retained, err := mqttgw.OpenRetained(mqttgw.RetainedOptions{Dir: filepath.Join(a.o.Data, "retained"), Logger: a.o.Logger})
	if err != nil {
		return err
	}
	a.undo("retained MQTT messages", func(context.Context) error { return retained.Close() })
	down, err := a.openDownlink(ctx)
	if err != nil {
		return err
	}
	commands, err := mqttgw.OpenCommandView(mqttgw.CommandViewOptions{Dir: filepath.Join(a.o.Data, "commands"), Logger: a.o.Logger})
	if err != nil {
		return err
	}
	a.undo("commands", func(context.Context) error { return commands.Close() })
	broadcasts, err := a.log.Stream(ctx, eventlog.StreamConfig{Name: "BROADCASTS", Subjects: []string{mqttgw.BroadcastSubject}})
	if err != nil {
		return err
	}
	a.gateway, err = mqttgw.New(mqttgw.Options{Publisher: publisher{a.bridge}, Tail: tail, Tails: a.tail, Sessions: sessions, Owners: owners, Down: down, Commands: commands, Broadcasts: broadcasts, Retained: retained,
		Directory: a.devices, Secrets: a.vault.outside, Mappings: a.topics, Lifecycle: !a.o.MQTTQuiet, Anonymous: a.o.MQTTAnonymous, CertificateNames: a.o.MQTTCertNames,
		Limits:      a.o.MQTTLimits.Or(a.o.profile().limits),
		EventLimits: event.Limits{MaxData: a.o.MaxData}, Logger: a.o.Logger, Registerer: a.registry})
	if err != nil {
		return err
	}
	a.downlink.gateway.Store(a.gateway)
	if a.mqttLns, err = a.listenMQTT(); err != nil {
		return err
	}
	a.background("MQTT gateway", func(ctx context.Context) {
		if err := a.gateway.Serve(ctx, a.mqttLns...); err != nil && ctx.Err() == nil {
			a.failed <- fmt.Errorf("MQTT listener: %w", err)
		}
	})
	return nil
}

// openDownlink opens the stream of messages to devices.
func (a *App) openDownlink(ctx context.Context) (*mqttgw.Downlink, error) {
	stream, err := a.log.Stream(ctx, eventlog.StreamConfig{Name: mqttgw.DownlinkStream, Subjects: mqttgw.DownlinkSubjects(), Urgent: true})
	if err != nil {
		return nil, err
	}
	subjects, err := stream.TopicSubjects(ctx, mqttgw.DownlinkPrefix)
	if err != nil {
		return nil, err
	}
	return mqttgw.NewDownlink(mqttgw.DownlinkOptions{Log: stream, Subjects: subjects.Of, MaxAge: a.o.DownMaxAge, MaxBytes: a.o.DownMaxBytes, Logger: a.o.Logger}), nil
}

// tail reads a bus for MQTT subscribers.
func (a *App) tail(bus string) (mqttgw.Tail, error) {
	b, err := a.bridge.Bus(bus)
	if err != nil {
		return nil, err
	}
	return b, nil
}

// clients is the gateway as the API sees it; nil if there is none.
func (a *App) clients() api.Clients {
	if a.gateway == nil {
		return nil
	}
	return a.gateway
}

// commander is the gateway as the API commands devices; nil if there is none.
func (a *App) commander() api.Commander {
	if a.gateway == nil {
		return nil
	}
	return a.gateway
}

// publisher is the bridge as the gateway sees it.
type publisher struct{ b *bridge.Bridge }

func (p publisher) Publish(ctx context.Context, bus string, rec *event.Record, done func(error)) error {
	return p.b.Publish(ctx, bus, rec, func(r bridge.Receipt) { done(r.Err) })
}
