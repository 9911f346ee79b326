// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/eclipse/paho.golang/paho"
	mqtt3 "github.com/eclipse/paho.mqtt.golang"
)

const (
	boxesPerTruck = 3
	readingPace   = time.Second
	doorPace      = 1500 * time.Millisecond // between two doors that are opened
	mqttTimeout   = 10 * time.Second        // of connecting, and of waiting for an acknowledgement
	mqttKeepAlive = 30                      // seconds
)

// fleet is the refrigerated boxes: half of them speak MQTT 3.1.1, half MQTT 5.
type fleet struct {
	boxes     []*box
	books     *books
	story     *story
	connected atomic.Int64 // boxes that have a connection now
}

// credentials are how a box gets in at the gateway.
type credentials struct{ addr, user, password string }

func newFleet(n int, run string, c credentials, b *books, st *story) *fleet {
	f := &fleet{books: b, story: st}
	for i := range n {
		f.boxes = append(f.boxes, newBox(f, i, run, c))
	}
	return f
}

// drive lets all boxes publish, and opens doors, until ctx is done. It returns when all have disconnected.
func (f *fleet) drive(ctx context.Context) {
	var wg sync.WaitGroup
	for i, b := range f.boxes {
		wg.Go(func() {
			if wait(ctx, readingPace*time.Duration(i)/time.Duration(len(f.boxes))) {
				b.ride(ctx)
			}
		})
	}
	wg.Go(func() { f.openDoors(ctx) })
	wg.Wait()
}

// openDoors opens a door now and then, for a few seconds.
func (f *fleet) openDoors(ctx context.Context) {
	for pause := doorPace / 5; wait(ctx, pause); pause = doorPace {
		b := f.boxes[rand.IntN(len(f.boxes))]
		if b.openDoor(time.Now(), time.Duration(4+rand.IntN(4))*time.Second) {
			f.story.door(b.name)
		}
	}
}

// box is one refrigerated box. Its climate belongs to the goroutine that runs ride.
type box struct {
	fleet    *fleet
	name     string // truck/box
	topic    string
	clientID string
	run      string
	dial     func(ctx context.Context, clientID string) (connection, error)

	temperature, setpoint, humidity float64
	n                               int // readings so far

	mu     sync.Mutex // guards closes
	closes time.Time  // when the door is closed again
}

func newBox(f *fleet, i int, run string, c credentials) *box {
	truck, number := i/boxesPerTruck+1, i%boxesPerTruck+1
	b := &box{fleet: f, run: run,
		name:     fmt.Sprintf("%d/%d", truck, number),
		topic:    fmt.Sprintf("fleet/%d/box/%d/telemetry", truck, number),
		clientID: fmt.Sprintf("box-%d-%d", truck, number),
		dial:     c.dial3,
		setpoint: 4 + float64(rand.IntN(2)),
		humidity: 55 + 20*rand.Float64(),
	}
	if i%2 == 1 {
		b.dial = c.dial5
	}
	b.temperature = b.setpoint + 1.5*rand.Float64()
	return b
}

// openDoor opens the door for a while; it does nothing if it is open.
func (b *box) openDoor(now time.Time, d time.Duration) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if now.Before(b.closes) {
		return false
	}
	b.closes = now.Add(d)
	return true
}

func (b *box) isOpen(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return now.Before(b.closes)
}

// ride publishes a reading a second until ctx is done, and connects again when the connection breaks.
func (b *box) ride(ctx context.Context) {
	for ctx.Err() == nil {
		err := b.connected(ctx)
		if ctx.Err() != nil && err == nil {
			return
		}
		b.fleet.story.trouble("box "+b.name, err)
		wait(ctx, time.Second)
	}
}

// connected is the life of one connection.
func (b *box) connected(ctx context.Context) error {
	conn, err := b.dial(ctx, b.clientID)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("connect: %w", err)
	}
	defer conn.close()
	b.fleet.connected.Add(1)
	defer b.fleet.connected.Add(-1)
	tick := time.NewTicker(readingPace)
	defer tick.Stop()
	for {
		if err := b.publish(ctx, conn); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// publish sends the next reading and waits for its acknowledgement, even if ctx is done meanwhile.
func (b *box) publish(ctx context.Context, conn connection) error {
	r := b.measure(b.isOpen(time.Now()))
	payload, err := json.Marshal(r)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), mqttTimeout)
	defer cancel()
	if err := conn.publish(ctx, b.topic, payload); err != nil {
		b.fleet.books.unanswered()
		return fmt.Errorf("publish: %w", err)
	}
	b.fleet.books.readingStored(readingKey(b.run, b.name, r.N))
	return nil
}

// measure lets a second pass: a random walk around the setpoint, and upwards while the door is open.
func (b *box) measure(open bool) reading {
	b.n++
	door := "closed"
	if open {
		door = "open"
		b.temperature += 1.2 + 0.6*rand.Float64()
		b.humidity += 3 * rand.Float64()
	} else {
		b.temperature += 0.25*(b.setpoint+0.8-b.temperature) + 0.4*(rand.Float64()-0.5)
		b.humidity += 0.1 * (60 - b.humidity)
	}
	b.temperature, b.humidity = min(b.temperature, 19), min(b.humidity, 98)
	return reading{Run: b.run, Box: b.name, N: b.n, Temperature: math.Round(b.temperature*10) / 10, Setpoint: b.setpoint,
		Humidity: int(b.humidity), Door: door}
}

// connection is an MQTT connection, whatever the version.
type connection interface {
	// publish sends with QoS 1 and returns nil when the server has acknowledged.
	publish(ctx context.Context, topic string, payload []byte) error
	close()
}

// connection3 speaks MQTT 3.1.1.
type connection3 struct{ client mqtt3.Client }

func (c credentials) dial3(ctx context.Context, clientID string) (connection, error) {
	client := mqtt3.NewClient(mqtt3.NewClientOptions().AddBroker("tcp://" + c.addr).SetClientID(clientID).
		SetUsername(c.user).SetPassword(c.password).SetProtocolVersion(4).SetKeepAlive(mqttKeepAlive * time.Second).
		SetConnectTimeout(mqttTimeout).SetWriteTimeout(mqttTimeout).SetAutoReconnect(false))
	if err := outcome(ctx, client.Connect()); err != nil {
		client.Disconnect(0)
		return nil, err
	}
	return connection3{client}, nil
}

// outcome waits for a token of the client.
func outcome(ctx context.Context, t mqtt3.Token) error {
	select {
	case <-t.Done():
		return t.Error()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (c connection3) publish(ctx context.Context, topic string, payload []byte) error {
	return outcome(ctx, c.client.Publish(topic, 1, false, payload))
}

func (c connection3) close() { c.client.Disconnect(100) }

// connection5 speaks MQTT 5.
type connection5 struct{ client *paho.Client }

func (c credentials) dial5(ctx context.Context, clientID string) (connection, error) {
	ctx, cancel := context.WithTimeout(ctx, mqttTimeout)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", c.addr)
	if err != nil {
		return nil, err
	}
	client := paho.NewClient(paho.ClientConfig{Conn: conn, PacketTimeout: mqttTimeout})
	receiveMax := uint16(8) // the library sets memory aside for it
	_, err = client.Connect(ctx, &paho.Connect{ClientID: clientID, CleanStart: true, KeepAlive: mqttKeepAlive,
		UsernameFlag: true, Username: c.user, PasswordFlag: true, Password: []byte(c.password),
		Properties: &paho.ConnectProperties{ReceiveMaximum: &receiveMax}})
	if err != nil {
		return nil, errors.Join(err, ignoreClosed(conn.Close()))
	}
	return connection5{client}, nil
}

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

func (c connection5) publish(ctx context.Context, topic string, payload []byte) error {
	_, err := c.client.Publish(ctx, &paho.Publish{QoS: 1, Topic: topic, Payload: payload,
		Properties: &paho.PublishProperties{ContentType: "application/json"}})
	return err
}

// close ends the connection also when there is nobody left to say goodbye to, which is the only error there can be.
func (c connection5) close() { _ = c.client.Disconnect(&paho.Disconnect{}) }
