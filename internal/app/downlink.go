// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/mqttgw"
	"github.com/rialto-bridge/rialto/targets"
)

// downlink is the gateway as targets see it. Targets are there before it is.
type downlink struct {
	gateway atomic.Pointer[mqttgw.Gateway] // nil = it is off, or not there yet
}

// Command implements targets.Downlink.
func (d *downlink) Command(ctx context.Context, c targets.Command) error {
	g := d.gateway.Load()
	if g == nil {
		return &fault.Error{Kind: fault.Unavailable, Message: "the MQTT listener is off, or not there yet", RetryAfter: time.Second}
	}
	_, err := g.SendCommand(ctx, mqttgw.CommandSpec{ID: c.ID, Device: c.Device, Topic: c.Topic, Payload: c.Payload, ContentType: c.ContentType, UTF8: c.UTF8,
		QoS: c.QoS, Expiry: c.Expiry, By: c.By, UserProperties: c.UserProperties})
	return err
}
