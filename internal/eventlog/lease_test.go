// SPDX-License-Identifier: Apache-2.0

package eventlog_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/internal/eventlog"
)

// leases opens the leases of a node on a log.
func leases(t *testing.T, l *eventlog.Log, node string, ttl time.Duration) *eventlog.Leases {
	t.Helper()
	nc, err := l.Connect()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	le, err := eventlog.OpenLeases(t.Context(), nc, eventlog.LeaseOptions{Node: node, TTL: ttl})
	if err != nil {
		t.Fatal(err)
	}
	return le
}

func TestLeaseIsHeldByOneNodeAndGivenBack(t *testing.T) {
	l := open(t, eventlog.Options{Dir: t.TempDir()})
	const ttl = 300 * time.Millisecond
	a, b := leases(t, l, "a", ttl), leases(t, l, "b", ttl)
	ctx, cancel := context.WithCancel(t.Context())
	holding, bHas := make(chan struct{}), make(chan struct{})
	ended := make(chan error, 2)
	go func() {
		ended <- a.Hold(ctx, "x", func(ctx context.Context) error { close(holding); <-ctx.Done(); return nil })
	}()
	<-holding
	go func() {
		ended <- b.Hold(t.Context(), "x", func(context.Context) error { close(bHas); return nil })
	}()
	if who, err := b.Holder(t.Context(), "x"); who != "a" || err != nil {
		t.Fatalf("holder %q, %v", who, err)
	}
	select { // four times its TTL: renewing keeps it
	case <-bHas:
		t.Fatal("two nodes had the lease")
	case <-time.After(4 * ttl):
	}
	cancel()
	for range 2 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	if who, err := a.Holder(t.Context(), "x"); who != "" || err != nil {
		t.Errorf("holder %q, %v after both gave it back", who, err)
	}
}

func TestLeaseOfADeadNodeIsTaken(t *testing.T) {
	l := open(t, eventlog.Options{Dir: t.TempDir()})
	nc, err := l.Connect()
	if err != nil {
		t.Fatal(err)
	}
	dying, err := eventlog.OpenLeases(t.Context(), nc, eventlog.LeaseOptions{Node: "dying", TTL: 500 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	other := leases(t, l, "other", 500*time.Millisecond)
	holding, lost := make(chan struct{}), make(chan error, 1)
	go func() {
		lost <- dying.Hold(t.Context(), "x", func(ctx context.Context) error { close(holding); <-ctx.Done(); return context.Cause(ctx) })
	}()
	<-holding
	nc.Close() // it can renew no more
	taken := make(chan error, 1)
	go func() { taken <- other.Hold(t.Context(), "x", func(context.Context) error { return nil }) }()
	if err := <-lost; !errors.Is(err, eventlog.ErrLeaseLost) {
		t.Errorf("the holder ended with %v", err)
	}
	select {
	case err := <-taken:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("nobody took the lease")
	}
}

// The name of a node is its own in an embedded server, so that a restart after a kill does not wait for itself.
func TestLeaseOfAnEarlierLifeIsTakenAtOnce(t *testing.T) {
	l := open(t, eventlog.Options{Dir: t.TempDir()})
	nc, err := l.Connect()
	if err != nil {
		t.Fatal(err)
	}
	before, err := eventlog.OpenLeases(t.Context(), nc, eventlog.LeaseOptions{Node: "n", TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	holding, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- before.Hold(ctx, "x", func(ctx context.Context) error { close(holding); <-ctx.Done(); return nil })
	}()
	<-holding
	nc.Close()
	cancel()
	if err := <-ended; err == nil {
		t.Error("the lease was given back over a closed connection")
	}
	if err := leases(t, l, "n", time.Hour).Hold(t.Context(), "x", func(context.Context) error { return nil }); err != nil {
		t.Error(err)
	}
}
