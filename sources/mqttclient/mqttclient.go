// SPDX-License-Identifier: Apache-2.0

// Package mqttclient is the source that subscribes at another MQTT broker.
//
// It speaks MQTT 5 and keeps a session there, so that messages of QoS 1 wait while nobody is connected; a message is
// acknowledged after its event is committed, in the order of arrival. What was not acknowledged comes again, on the next
// connection, and is another event then, unless it is a CloudEvent and so has an id of its own. The session keeps subscriptions, too:
// the position of the source is what was subscribed, so that whoever runs it next can unsubscribe what is not in the definition
// any more. What is held in memory is bounded
// by count and by bytes: beyond that the connection is not read. One connection is one run:
// when it breaks, the supervisor makes the next.
package mqttclient

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/sources"
)

const (
	// maxWindow is how many messages may be unacknowledged, and windowBytes how many bytes: what a slow log keeps in memory. The
	// window is such that messages which can be stored are bound by it alone, and the broker knows; those that are larger than an
	// event may be are not read beyond roomBytes, which is windowBytes and what else than data may stand in the packets of a window.
	minWindow, maxWindow = 16, 200
	windowBytes          = 128 << 20
	roomBytes            = windowBytes + maxWindow<<16
	// maxPacket is what the broker is told to send at most. What is larger than an event may be is still taken, so that an event
	// tells of it; what is larger than this the broker drops by itself.
	maxPacket  = 16 << 20
	maxBatch   = 100
	dialWithin = 15 * time.Second
	keepAlive  = 30 // seconds
	acksEvery  = 10 * time.Millisecond
	// lastWithin is how long a commit that is under way may take when the source is told to stop.
	lastWithin = 2 * time.Second
)

type source struct {
	env sources.Env
	s   settings
}

func newSource(cfg json.RawMessage, env sources.Env) (sources.Source, error) {
	s, err := parse(cfg)
	if err != nil {
		return nil, err
	}
	if s.ClientID == "" {
		s.ClientID = "rialto-" + env.Name
	}
	return &source{env, s}, nil
}

// Run is sources.Source.Run: one connection.
func (s *source) Run(ctx context.Context, emit sources.Emit) error {
	nc, err := s.dial(ctx)
	if err != nil {
		return err
	}
	told := ctx
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	commit, release := untilCommitted(told, ctx)
	defer release()
	arrived, room := make(chan *paho.Publish, s.window()), newBudget(roomBytes)
	wire := newGate(ctx, nc, room)
	client := paho.NewClient(paho.ClientConfig{ClientID: s.s.ClientID, Conn: packets.NewThreadSafeConn(wire), EnableManualAcknowledgment: true, SendAcksInterval: acksEvery,
		PacketTimeout: dialWithin,
		OnPublishReceived: []func(paho.PublishReceived) (bool, error){func(p paho.PublishReceived) (bool, error) {
			if ctx.Err() != nil { // not one behind another that was left
				return true, nil
			}
			select {
			case arrived <- p.Packet:
			case <-ctx.Done():
			}
			return true, nil
		}},
		OnServerDisconnect: func(d *paho.Disconnect) {
			cancel(fmt.Errorf("the broker disconnected us: reason 0x%02x", d.ReasonCode))
		},
		OnClientError: func(err error) { cancel(fmt.Errorf("connection to the broker: %w", err)) },
	})
	if err := s.connect(ctx, client); err != nil {
		return errors.Join(err, ignoreClosed(nc.Close()))
	}
	wire.open()
	settled, settling := make(chan error, 1), sync.WaitGroup{}
	defer settling.Wait()
	defer func() { <-client.Done() }()
	defer func() { _ = client.Disconnect(&paho.Disconnect{}) }() // of a connection that is broken already, it says so again
	defer acknowledged(client)
	defer cancel(nil) // before: the handler of messages must not wait
	// A broker sends what the session has before it answers, and of QoS 0 more than there is room for: messages are taken meanwhile.
	settling.Go(func() { settled <- s.settle(ctx, client) })
	for ctx.Err() == nil {
		select {
		case err := <-settled:
			if err != nil {
				return err
			}
		case p := <-arrived:
			n, err := s.take(commit, client, p, arrived, emit)
			if err != nil {
				return err
			}
			room.done(n)
		case <-ctx.Done():
		}
	}
	return context.Cause(ctx)
}

// untilCommitted is the context of commits. One that is under way when the source is told to stop may end: what is stored and not
// acknowledged comes again as another event. When the connection breaks nothing can be acknowledged, and there is nothing to wait for.
func untilCommitted(told, connection context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(connection))
	stop := context.AfterFunc(connection, func() {
		if told.Err() == nil {
			cancel(context.Cause(connection))
			return
		}
		time.AfterFunc(lastWithin, func() { cancel(context.Cause(told)) })
	})
	return ctx, func() { stop(); cancel(nil) }
}

// acknowledged waits until the acknowledgements that are due are sent, unless the connection is broken.
func acknowledged(client *paho.Client) {
	timer := time.NewTimer(2 * acksEvery)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-client.Done():
	}
}

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// window is how many messages may be unacknowledged.
func (s *source) window() int {
	return min(maxWindow, max(minWindow, windowBytes/max(1, s.env.MaxData)))
}

// dial connects through the guard, with TLS for mqtts.
func (s *source) dial(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, dialWithin, errors.New("the broker does not answer in time"))
	defer cancel()
	u, err := url.Parse(s.s.URL)
	if err != nil {
		return nil, errors.New("the URL is not one") // it was checked
	}
	address := u.Host
	if u.Port() == "" {
		address = net.JoinHostPort(u.Hostname(), defaultPorts[u.Scheme])
	}
	var cfg *tls.Config
	if u.Scheme == schemeTLS {
		if cfg, err = s.s.tls(s.env.Secrets, u.Hostname()); err != nil {
			return nil, err
		}
	}
	nc, err := s.env.Dial(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("connect to the broker: %w", err)
	}
	if cfg == nil {
		return nc, nil
	}
	tc := tls.Client(nc, cfg)
	if err := tc.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("TLS with the broker: %w", err), nc.Close())
	}
	return tc, nil
}

// connect says who we are, and that the session is to be kept.
func (s *source) connect(ctx context.Context, client *paho.Client) error {
	ctx, cancel := context.WithTimeoutCause(ctx, dialWithin, errors.New("the broker does not answer in time"))
	defer cancel()
	expiry, most, largest := uint32(s.s.expiry/time.Second), uint16(s.window()), uint32(maxPacket)
	c := &paho.Connect{ClientID: s.s.ClientID, KeepAlive: keepAlive, CleanStart: false,
		Properties: &paho.ConnectProperties{SessionExpiryInterval: &expiry, ReceiveMaximum: &most, MaximumPacketSize: &largest}}
	if s.s.Username != "" {
		c.Username, c.UsernameFlag = s.s.Username, true
	}
	if !s.s.Password.IsZero() {
		v, err := s.s.Password.Resolve(s.env.Secrets)
		if err != nil {
			return err
		}
		c.Password, c.PasswordFlag = []byte(v.Reveal()), true
	}
	ack, err := client.Connect(ctx, c)
	if ack != nil && ack.ReasonCode >= 0x80 {
		return fmt.Errorf("the broker refuses the connection: reason 0x%02x", ack.ReasonCode)
	}
	if err != nil {
		return fmt.Errorf("connect to the broker: %w", err)
	}
	return nil
}

// settle makes the subscriptions of the session those of the definition. What is about to be subscribed is noted before, and what was
// unsubscribed forgotten after, so that a crash in between leaves nothing at the broker that nobody knows of.
func (s *source) settle(ctx context.Context, client *paho.Client) error {
	ctx, cancel := context.WithTimeoutCause(ctx, dialWithin, errors.New("the broker does not answer in time"))
	defer cancel()
	at, err := s.env.Position.Load(ctx)
	if err != nil {
		return err
	}
	filters := s.filters()
	kept, err := s.unsubscribe(ctx, client, without(subscribed(at), filters))
	if err != nil {
		return err
	}
	now, err := json.Marshal(append(kept, filters...))
	if err != nil {
		return err
	}
	if err := s.env.Position.Save(ctx, string(now)); err != nil {
		return err
	}
	return s.subscribe(ctx, client, filters)
}

// filters are the topic filters as the broker gets them, sorted.
func (s *source) filters() []string {
	filters := slices.Clone(s.s.Topics)
	if s.s.Share != "" {
		for i, f := range filters {
			filters[i] = "$share/" + s.s.Share + "/" + f
		}
	}
	slices.Sort(filters)
	return filters
}

// subscribed reads a position. What is none, as one that a source of another kind left, says nothing.
func subscribed(at string) (filters []string) {
	if json.Unmarshal([]byte(at), &filters) != nil {
		return nil
	}
	return filters
}

// without are those of a that are not in b.
func without(a, b []string) []string {
	return slices.DeleteFunc(a, func(f string) bool { return slices.Contains(b, f) })
}

// unsubscribe ends subscriptions, and returns those that the broker does not let go. One that there is not, because the session has
// expired, is good as well.
func (s *source) unsubscribe(ctx context.Context, client *paho.Client, filters []string) (kept []string, err error) {
	if len(filters) == 0 {
		return nil, nil
	}
	ack, err := client.Unsubscribe(ctx, &paho.Unsubscribe{Topics: filters})
	if ack == nil {
		return nil, fmt.Errorf("unsubscribe at the broker: %w", err)
	}
	for i, reason := range ack.Reasons {
		if reason >= 0x80 && i < len(filters) { // it is no reason to take nothing in
			s.env.Logger.Warn("the broker keeps a subscription that was taken out", "topic", filters[i], "reason", fmt.Sprintf("0x%02x", reason))
			kept = append(kept, filters[i])
		}
	}
	return kept, nil
}

func (s *source) subscribe(ctx context.Context, client *paho.Client, filters []string) error {
	sub := &paho.Subscribe{}
	for _, filter := range filters {
		sub.Subscriptions = append(sub.Subscriptions, paho.SubscribeOptions{Topic: filter, QoS: *s.s.QoS, RetainHandling: 1}) // retained ones once
	}
	ack, err := client.Subscribe(ctx, sub)
	if ack != nil {
		for i, reason := range ack.Reasons {
			if reason >= 0x80 && i < len(filters) {
				return fmt.Errorf("the broker refuses the subscription to %s: reason 0x%02x", filters[i], reason)
			}
		}
	}
	if err != nil {
		return fmt.Errorf("subscribe at the broker: %w", err)
	}
	return nil
}

// take stores a message, and those that wait behind it, and acknowledges them. It returns how many they are.
func (s *source) take(ctx context.Context, client *paho.Client, first *paho.Publish, more <-chan *paho.Publish, emit sources.Emit) (int, error) {
	batch := []*paho.Publish{first}
	for len(batch) < maxBatch {
		select {
		case p := <-more:
			batch = append(batch, p)
			continue
		default:
		}
		break
	}
	evs := make([]event.Event, len(batch))
	for i, p := range batch {
		evs[i] = s.event(p)
	}
	if err := emit(ctx, evs...); err != nil {
		return 0, err
	}
	for _, p := range batch {
		if err := client.Ack(p); err != nil {
			return 0, fmt.Errorf("acknowledge: %w", err)
		}
	}
	return len(batch), nil
}

// event is the event of a message. What says that it is a CloudEvent and is none is taken for a plain message.
func (s *source) event(p *paho.Publish) event.Event {
	m := event.MQTTMessage{Topic: p.Topic, Payload: p.Payload, Version: 5, QoS: p.QoS, Retain: p.Retain}
	if pr := p.Properties; pr != nil {
		m.ContentType, m.PayloadUTF8 = pr.ContentType, pr.PayloadFormat != nil && *pr.PayloadFormat == 1
		for _, u := range pr.User {
			m.UserProperties = append(m.UserProperties, [2]string{u.Key, u.Value})
		}
	}
	defaults := event.MQTTDefaults{Source: s.s.source(), Type: s.s.Type, Time: s.env.Now()}
	lim := event.Limits{MaxData: s.env.MaxData}
	ev, minted, err := event.FromMQTT(m, defaults, lim)
	if err != nil {
		m.ContentType, m.UserProperties = "", nil
		ev, minted, err = event.FromMQTT(m, defaults, lim)
	}
	if err != nil { // it is too large, and is refused as what it is
		ev = event.Event{Source: defaults.Source, Type: event.DefaultMQTTType, Subject: p.Topic, Time: defaults.Time, Data: p.Payload}
		minted = true
	}
	if minted {
		ev.ID = event.NewID()
	}
	return ev
}
