// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/mqttgw/packet"
)

// CommandSpec is a command that is to be sent to a device.
type CommandSpec struct {
	// Device is the name of a Device, or a client id that no Device has as its name.
	Device string
	// Principal is whose client id it is; "" = the Device's, and anybody's if there is no such Device.
	Principal string

	ID      string        // of the device's own; the same again is the same command; "" = chosen
	Topic   string        // "" = devices/<device>/commands
	Payload []byte        // as the device gets it
	QoS     byte          // 0, 1, 2; a subscription may lower it
	Expiry  time.Duration // after which it is not sent any more; 0 = as long as DOWN keeps it

	// What MQTT 5 clients get with it.
	UTF8                       bool // the payload is text
	ContentType, ResponseTopic string
	Correlation                string // stands in the events about the command too
	UserProperties             [][2]string

	By string // who asks

	job string // the broadcast that it belongs to; "" = none
}

// Command is a command and how far it has come.
type Command struct {
	ID          string         `json:"id"`
	Device      string         `json:"device"`
	Principal   string         `json:"principal,omitempty"`
	Topic       string         `json:"topic"`
	QoS         byte           `json:"qos"`
	Status      string         `json:"status"`
	Final       bool           `json:"final"`            // nothing more can become of it
	Reason      string         `json:"reason,omitempty"` // why it has the status
	Correlation string         `json:"correlation,omitempty"`
	By          string         `json:"by,omitempty"`
	Position    event.Position `json:"position"`
	CreatedAt   time.Time      `json:"createdAt"`
	ChangedAt   time.Time      `json:"changedAt"`
	ExpiresAt   time.Time      `json:"expiresAt"`
	Duplicate   bool           `json:"duplicate,omitempty"` // it was there already
}

// Reasons of a command's status. A device's own refusal is its reason code, such as 0x87.
const (
	reasonTooLarge       = "too-large"         // larger than the device takes
	reasonGone           = "gone"              // its message is not in the log any more
	reasonSessionEnded   = "session-ended"     // the device had not acknowledged it; it is sent again
	reasonRestarted      = "restarted"         // the same, because the process has ended
	reasonUnacknowledged = "unacknowledged"    // it was sent, and the device has gone without an answer
	reasonCancelled      = "cancelled by "     // and who did it
	reasonCode           = "reason code 0x"    // of PUBACK or PUBREC
	commandType          = "io.rialto.command" // of the messages in DOWN, and the beginning of the types of events
)

// Extensions of the messages in DOWN, in their order.
const (
	extJob         = "broadcast"
	extBy          = "by"
	extCorrelation = "correlation"
	extPrincipal   = "deviceprincipal"
	extExpires     = "expires" // milliseconds since 1970
)

const (
	maxCommandID      = 128
	maxCorrelation    = 1 << 10
	maxUserProperties = 64
	maxCommandProps   = 16 << 10 // bytes of all properties
	maxBy             = 256
)

var (
	commandIDFormat = regexp.MustCompile(`^[A-Za-z0-9._:~-]{1,128}$`)
	errNoCommands   = fault.New(fault.Unavailable, "commands to devices are not kept here")
	errStopping     = fault.New(fault.Unavailable, "the MQTT gateway is stopping")
)

// Command returns a command of a device. The error is NotFound if there is none, or none any more.
func (g *Gateway) Command(ctx context.Context, device, id string) (Command, error) {
	c := g.commands
	if c == nil {
		return Command{}, errNoCommands
	}
	if err := c.settled(ctx); err != nil {
		return Command{}, err
	}
	s, ok, err := c.view.find(device, id)
	if err == nil && !ok {
		err = fault.New(fault.NotFound, "device %q has no command with this id", device)
	}
	return s.public(), err
}

// CommandPage is a page of the commands of a device.
type CommandPage struct {
	Items      []Command
	NextCursor string // of the next page; "" = there is none
}

// Commands lists the commands of a device, newest first; those of a status, if one is given. A page may be short, or
// empty, and have a NextCursor.
func (g *Gateway) Commands(ctx context.Context, device, status, cursor string, limit int) (CommandPage, error) {
	c := g.commands
	if c == nil {
		return CommandPage{}, errNoCommands
	}
	below, err := parseCursor(cursor)
	if err != nil {
		return CommandPage{}, err
	}
	if err := c.settled(ctx); err != nil {
		return CommandPage{}, err
	}
	found, next, err := c.view.list(device, status, below, limit)
	page := CommandPage{Items: make([]Command, 0, len(found))}
	for i := range found {
		page.Items = append(page.Items, found[i].public())
	}
	if next > 0 {
		page.NextCursor = base64.RawURLEncoding.EncodeToString(strconv.AppendUint(nil, next, 10))
	}
	return page, err
}

func parseCursor(cursor string) (uint64, error) {
	if cursor == "" {
		return 0, nil
	}
	b, err := base64.RawURLEncoding.DecodeString(cursor)
	if err == nil {
		var n uint64
		if n, err = strconv.ParseUint(string(b), 10, 63); err == nil && n > 0 {
			return n, nil
		}
	}
	return 0, fault.Invalidf("/cursor", "must be the nextCursor of the page before")
}

func (s *storedCommand) public() Command {
	return Command{ID: s.id, Device: s.device, Principal: s.principal, Topic: s.topic, QoS: s.qos, Status: s.state.String(), Final: s.state.final(),
		Reason: s.reason, Correlation: s.correlation, By: s.by, Position: event.Position{Stream: DownlinkStream, Seq: s.seq},
		CreatedAt: s.created, ChangedAt: s.changed, ExpiresAt: s.expires}
}

// CancelCommand cancels a command that was not sent yet, and blocks until that is committed. A Conflict is the error for
// one that was, or has ended.
func (g *Gateway) CancelCommand(ctx context.Context, device, id, by string) (Command, error) {
	if _, err := g.Command(ctx, device, id); err != nil {
		return Command{}, err
	}
	committed := make(chan struct{})
	if g.commands.cancel(device, id, by, func() { close(committed) }) {
		if err := g.commands.changes.await(ctx, committed); err != nil {
			return Command{}, err
		}
		return g.Command(ctx, device, id)
	}
	now, err := g.Command(ctx, device, id)
	if err == nil && now.Status != StatusCancelled {
		err = fault.New(fault.Conflict, "the command is %s", now.Status)
	}
	return now, err
}

// SendCommand stores a command, and returns once that is committed: it is sent as soon as the device is connected and has
// a matching subscription, which may be before the commit. A command that is known by its id is answered with how it stands. Errors are *fault.Error:
// Invalid, Conflict (another command has the id, or the device is blocked), RateLimited (too many wait), Full, Unavailable.
func (g *Gateway) SendCommand(ctx context.Context, spec CommandSpec) (Command, error) {
	c := g.commands
	if c == nil {
		return Command{}, errNoCommands
	}
	rec, err := g.commandRecord(&spec)
	if err != nil {
		return Command{}, err
	}
	committed := make(chan eventlog.Result, 1)
	known, err := c.accept(ctx, spec.Device, rec, spec.ID != "", func(r eventlog.Result) { committed <- r })
	if err != nil {
		return Command{}, err
	}
	if known != nil {
		return c.again(ctx, *known, rec)
	}
	select {
	case r := <-committed:
		if r.Err != nil {
			return Command{}, r.Err
		}
		s := commandOf(downEntry{seq: r.Seq, rec: rec, device: spec.Device})
		return s.public(), nil
	case <-ctx.Done(): // it may be stored, and then counts
		return Command{}, &fault.Error{Kind: fault.Unavailable, Message: "gave up waiting for the log", Err: context.Cause(ctx)}
	}
}

// accept puts a command on its way into DOWN. done is called as by Downlink.publish, if it returns neither an error nor the
// command that is known by the id, where that was chosen by who sends it.
func (c *commands) accept(ctx context.Context, device string, rec *event.Record, chosen bool, done func(eventlog.Result)) (known *storedCommand, err error) {
	if err := c.opened(ctx); err != nil {
		return nil, err
	}
	o, known, err := c.reserve(ctx, device, rec, chosen)
	if err != nil || known != nil {
		return known, err
	}
	err = c.down.publish(ctx, device, rec, func(seq uint64) { c.send(o, rec, device, seq) }, func(r eventlog.Result) {
		if r.Err != nil {
			c.release(o)
		} else {
			c.g.metrics.command(commandQueued)
		}
		done(r)
	})
	if err != nil {
		c.release(o)
	}
	return nil, err
}

// again answers for a command whose id is known, if it is the same.
func (c *commands) again(ctx context.Context, s storedCommand, rec *event.Record) (Command, error) {
	e, ok, err := c.down.at(ctx, s.seq)
	if err != nil {
		return Command{}, err
	}
	if ok && e.rec != nil && (e.rec.MQTT.Topic != rec.MQTT.Topic || e.rec.MQTT.QoS != rec.MQTT.QoS || !bytes.Equal(e.rec.Event.Data, rec.Event.Data)) {
		return Command{}, fault.New(fault.Conflict, "another command of the device has this id")
	}
	out := s.public()
	out.Duplicate = true
	return out, nil
}

// CheckCommand says what SendCommand would refuse, as far as it depends on the command alone.
func (g *Gateway) CheckCommand(spec CommandSpec) error {
	if g.commands == nil {
		return errNoCommands
	}
	_, err := g.checkCommand(&spec)
	return err
}

// commandRecord checks a command and makes its message.
func (g *Gateway) commandRecord(spec *CommandSpec) (*event.Record, error) {
	props, err := g.checkCommand(spec)
	if err != nil {
		return nil, err
	}
	if err := g.mayCommand(spec); err != nil {
		return nil, err
	}
	now := g.now()
	expires := now.Add(g.commands.lifetime(spec.Expiry))
	ev := event.Event{ID: spec.ID, Source: strings.TrimSuffix(g.base, "/"), Type: commandType, Subject: spec.Device, Time: now,
		DataContentType: spec.ContentType, Data: spec.Payload}
	if ev.ID == "" {
		ev.ID = event.NewID()
	}
	for _, x := range [...]event.Attribute{{Name: extJob, Value: spec.job}, {Name: extBy, Value: spec.By}, {Name: extCorrelation, Value: spec.Correlation},
		{Name: extPrincipal, Value: spec.Principal}, {Name: extExpires, Value: strconv.FormatInt(expires.UnixMilli(), 10)}} {
		if x.Value != "" {
			ev.Extensions = append(ev.Extensions, x)
		}
	}
	return &event.Record{Event: ev, Received: now, Minted: true,
		MQTT: &event.Origin{Topic: spec.Topic, QoS: spec.QoS, Version: byte(packet.V5), Properties: props}}, nil
}

// lifetime is how long a command may wait.
func (c *commands) lifetime(expiry time.Duration) time.Duration {
	if expiry <= 0 || expiry > c.down.o.MaxAge {
		return c.down.o.MaxAge
	}
	return expiry
}

// checkCommand fills in what is left out and returns the MQTT 5 properties.
func (g *Gateway) checkCommand(spec *CommandSpec) (packet.Properties, error) {
	var bad []fault.Detail
	complain := complaint(func(pointer, format string, args ...any) {
		bad = append(bad, fault.Detail{Pointer: pointer, Detail: fmt.Sprintf(format, args...)})
	})
	if spec.Device == "" || len(spec.Device) > g.limits.MaxClientID || !utf8.ValidString(spec.Device) || strings.ContainsRune(spec.Device, 0) {
		complain("/device", "must be 1 to %d bytes of UTF-8 without U+0000", g.limits.MaxClientID)
	}
	if spec.ID != "" && !commandIDFormat.MatchString(spec.ID) {
		complain("/id", "must be 1 to %d letters, digits and . _ : ~ -", maxCommandID)
	}
	if spec.Topic == "" {
		spec.Topic = "devices/" + spec.Device + "/commands"
		if strings.ContainsAny(spec.Device, "+#") {
			complain("/topic", "is required: the device's name holds + or #, and cannot stand in the default devices/<device>/commands")
		}
	}
	g.checkMessageTopic("/topic", spec.Topic, complain)
	if spec.QoS > 2 {
		complain("/qos", "must be 0, 1 or 2")
	}
	if spec.Expiry != 0 && (spec.Expiry < time.Second || spec.Expiry/time.Second > math.MaxUint32) {
		complain("/expiry", "must be a second at least; left out, the command waits for as long as it is kept")
	}
	most := g.opts.EventLimits.MaxData
	if most == 0 {
		most = eventlog.DefaultMaxData
	}
	if len(spec.Payload) > most {
		return nil, fault.New(fault.TooLarge, "the payload is %d bytes, at most %d are allowed", len(spec.Payload), most)
	}
	if len(spec.Principal) > maxPrincipal || len(spec.By) > maxBy {
		complain("/principal", "must be at most %d bytes", maxPrincipal)
	}
	props := spec.properties(g, complain)
	return props, fault.Collect(bad)
}

// checkMessageTopic complains about a topic that nothing can be published to.
func (g *Gateway) checkMessageTopic(pointer, topic string, complain complaint) {
	if !packet.ValidTopic([]byte(topic)) || !utf8.ValidString(topic) || strings.ContainsRune(topic, 0) {
		complain(pointer, "must be a topic name: UTF-8 without + # and U+0000")
		return
	}
	var refused *packet.Error
	if errors.As(g.checkTopic(topic), &refused) {
		complain(pointer, "%s", refused.Detail)
	}
}

func (s *CommandSpec) properties(g *Gateway, complain complaint) (ps packet.Properties) {
	textual := func(pointer, v string, most int) bool {
		if len(v) > most || !utf8.ValidString(v) || strings.ContainsRune(v, 0) {
			complain(pointer, "must be at most %d bytes of UTF-8 without U+0000", most)
			return false
		}
		return v != ""
	}
	if s.UTF8 {
		ps = ps.AppendInt(packet.PayloadFormat, 1)
	}
	if s.Expiry > 0 {
		ps = ps.AppendInt(packet.MessageExpiry, uint32(min((s.Expiry+time.Second-1)/time.Second, math.MaxUint32)))
	}
	if textual("/contentType", s.ContentType, maxCorrelation) {
		ps = ps.AppendString(packet.ContentType, s.ContentType)
	}
	if s.ResponseTopic != "" {
		g.checkMessageTopic("/responseTopic", s.ResponseTopic, complain)
		ps = ps.AppendString(packet.ResponseTopic, s.ResponseTopic)
	}
	if textual("/correlation", s.Correlation, maxCorrelation) {
		ps = ps.AppendString(packet.CorrelationData, s.Correlation)
	}
	if len(s.UserProperties) > maxUserProperties {
		complain("/userProperties", "must be at most %d", maxUserProperties)
		return ps
	}
	for _, p := range s.UserProperties {
		textual("/userProperties", p[0], maxCommandProps)
		if textual("/userProperties", p[1], maxCommandProps); len(p[0])+len(p[1]) <= 2*maxCommandProps {
			ps = ps.AppendUser(p[0], p[1])
		}
	}
	if len(ps) > maxCommandProps {
		complain("/userProperties", "must be, with the other properties, at most %d bytes", maxCommandProps)
	}
	return ps
}

// commandOf is a new command as the view has it.
func commandOf(e downEntry) storedCommand {
	ev := &e.rec.Event
	s := storedCommand{seq: e.seq, id: ev.ID, device: e.device, topic: e.rec.MQTT.Topic, qos: min(e.rec.MQTT.QoS, 2), created: e.rec.Received, changed: e.rec.Received}
	for _, x := range ev.Extensions {
		text, ok := x.Value.(string)
		if !ok {
			continue
		}
		switch x.Name {
		case extJob:
			s.job = text
		case extPrincipal:
			s.principal = text
		case extCorrelation:
			s.correlation = text
		case extBy:
			s.by = text
		case extExpires:
			if ms, err := strconv.ParseInt(text, 10, 64); err == nil && ms > 0 {
				s.expires = time.UnixMilli(ms).UTC()
			}
		}
	}
	return s
}

// mayCommand settles whose client ids a command is for, and refuses one that its device can never get.
func (g *Gateway) mayCommand(spec *CommandSpec) error {
	dev, r, known, err := g.opts.Directory.commandRights(spec.Device)
	if err != nil {
		return err
	}
	if dev != nil {
		if spec.Principal != "" && spec.Principal != dev.Principal {
			return fault.Invalidf("/principal", "must be that of the device %s, or left out", dev.Name)
		}
		spec.Principal = dev.Principal
		if dev.Blocked {
			return fault.New(fault.Conflict, "device %s is blocked", dev.Name)
		}
	}
	if known && !(anyMatches(r.subscribe, spec.Topic) && r.mayReceive(spec.Topic)) {
		return fault.Invalidf("/topic", "is none that the device may subscribe to and receive, as its policy says")
	}
	return nil
}

// commandRights returns the Device of a name, nil if there is none, and what the client that is it may do, if that is known and
// not everything.
func (d *Directory) commandRights(name string) (dev *Device, r *rights, known bool, err error) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if dev = d.devices[name]; dev == nil {
		return nil, nil, false, nil
	}
	clientID := "" // of several
	if len(dev.ClientIDs) == 1 && !strings.Contains(dev.ClientIDs[0], "*") {
		clientID = dev.ClientIDs[0]
	}
	a := dev.access
	if a == nil {
		p := d.policies[DefaultPolicy]
		if dev.policy != "" {
			if p = d.policies[dev.policy]; p == nil {
				p = nothing
			}
		} else if d.issuersJudge() {
			return dev, nil, false, nil // the device may come with such a token
		}
		if p == nil || p.access == nil {
			return dev, nil, false, nil
		}
		a = p.access
	}
	r, err = a.grant(&subject{principal: dev.Principal, clientID: clientID, attributes: dev.attributes})
	if err != nil { // its templates need the client id, or attributes that a token may bring
		return dev, nil, false, nil //nolint:nilerr // not known, then
	}
	return dev, r, true, nil
}
