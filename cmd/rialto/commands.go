// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
)

// message is a command as the flags say it.
type message struct {
	topic, payload, file, contentType, expiry, correlation, responseTopic string
	qos                                                                   int
}

func (m *message) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&m.topic, "topic", "", "topic (default devices/DEVICE/commands)")
	f.StringVar(&m.payload, "payload", "", "payload")
	f.StringVar(&m.file, "file", "", "the payload is in this file; - is stdin")
	f.IntVar(&m.qos, "qos", 1, "0, 1 or 2; the device's subscription may lower it")
	f.StringVar(&m.expiry, "expiry", "", "after which it is not sent any more, such as 90s or 12h (default: as long as it is kept)")
	f.StringVar(&m.contentType, "content-type", "", "media type, for MQTT 5 devices")
	f.StringVar(&m.correlation, "correlation", "", "correlation data, for MQTT 5 devices and the events about the command")
	f.StringVar(&m.responseTopic, "response-topic", "", "where the device is to answer, for MQTT 5 devices")
}

// body is what is sent to the server, to which more may be added.
func (m *message) body(c *cli) (map[string]any, error) {
	payload := []byte(m.payload)
	if m.file != "" {
		if m.payload != "" {
			return nil, usagef("the payload is given by --payload or by --file, not by both")
		}
		var err error
		if payload, err = c.readText(m.file); err != nil {
			return nil, usagef("--file: %v", err)
		}
	}
	b := map[string]any{"qos": m.qos}
	switch {
	case len(payload) == 0:
	case utf8.Valid(payload):
		b["payload"] = string(payload)
	default:
		b["payloadBase64"] = payload
	}
	for name, v := range map[string]string{"topic": m.topic, "expiry": m.expiry, "contentType": m.contentType, "correlation": m.correlation, "responseTopic": m.responseTopic} {
		if v != "" {
			b[name] = v
		}
	}
	return b, nil
}

// deviceCommand is a command as the server tells it.
type deviceCommand struct {
	ID        string    `json:"id"`
	Device    string    `json:"device"`
	Topic     string    `json:"topic"`
	QoS       int       `json:"qos"`
	Status    string    `json:"status"`
	Final     bool      `json:"final"`
	Reason    string    `json:"reason"`
	CreatedAt time.Time `json:"createdAt"`
	ChangedAt time.Time `json:"changedAt"`
	ExpiresAt time.Time `json:"expiresAt"`
}

func newDeviceCommand(c *cli) *cobra.Command {
	var m message
	var id, principal string
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "command DEVICE",
		Short: "Send a command to a device",
		Long: `Send a command to a device: the name of a Device, or a client id. It is stored, and waits until the device is connected and
has a subscription that matches its topic. With --wait, rialto waits until nothing more can become of it: exit code 0 if the
device has it, 1 if it has not, or the time is over.`,
		Example: `  rialto devices command box-17 --topic cmd/box-17/defrost --payload '{"minutes": 5}' --expiry 10m --wait 10s
  rialto devices command box-17 --id defrost-42 --file settings.bin`,
		Args: arguments(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			body, err := m.body(c)
			if err != nil {
				return err
			}
			for name, v := range map[string]string{"id": id, "principal": principal} {
				if v != "" {
					body[name] = v
				}
			}
			return c.command(cmd.Context(), args[0], body, wait)
		},
	}
	m.flags(cmd)
	cmd.Flags().StringVar(&id, "id", "", "id of the command: the same again is the same command (default: chosen)")
	cmd.Flags().StringVar(&principal, "principal", "", "whose client id it is, where no Device has the name")
	cmd.Flags().DurationVar(&wait, "wait", 0, "wait for so long until the device has it")
	return cmd
}

// command sends a command and, if asked to, waits for its end.
func (c *cli) command(ctx context.Context, device string, body map[string]any, wait time.Duration) error {
	cl, err := c.client()
	if err != nil {
		return err
	}
	raw, err := json.Marshal(body)
	if err != nil {
		return err
	}
	path := "/v1/devices/" + url.PathEscape(device) + "/commands"
	a, err := cl.do(ctx, request{Method: http.MethodPost, Path: path, Header: http.Header{"Content-Type": {"application/json"}}, Body: raw})
	if err != nil {
		return err
	}
	sent, last := deviceCommand{}, json.RawMessage(a.Body)
	if err := json.Unmarshal(last, &sent); err != nil {
		return fmt.Errorf("unreadable answer: %w", err)
	}
	if wait > 0 {
		if last, err = cl.awaitCommand(ctx, path+"/"+url.PathEscape(sent.ID), wait, last); err != nil {
			return err
		}
		sent = deviceCommand{}
		if err := json.Unmarshal(last, &sent); err != nil {
			return fmt.Errorf("unreadable answer: %w", err)
		}
	}
	err = c.print(last, func(out io.Writer) error {
		_, err := fmt.Fprintf(out, "command %s for %s is %s\n", clean(sent.ID), clean(sent.Device), clean(standing(sent)))
		return err
	})
	if wait > 0 && !(sent.Final && (sent.Status == "acknowledged" || sent.Status == "sent")) {
		err = errors.Join(err, &codeError{exitFailed, fmt.Errorf("the device does not have it: %w", errQuiet)})
	}
	return err
}

func standing(d deviceCommand) string {
	if d.Reason != "" {
		return d.Status + " (" + d.Reason + ")"
	}
	return d.Status
}

// commandLook is how often a command that is waited for is looked at.
const commandLook = 100 * time.Millisecond

// awaitCommand looks at a command until it has ended, or the time is over, and returns it as it is then.
func (cl *client) awaitCommand(ctx context.Context, path string, wait time.Duration, last json.RawMessage) (json.RawMessage, error) {
	over := time.NewTimer(wait)
	defer over.Stop()
	tick := time.NewTicker(commandLook)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-over.C:
			return last, nil
		case <-tick.C:
		}
		a, err := cl.do(ctx, request{Method: http.MethodGet, Path: path})
		if err != nil {
			return nil, err
		}
		last = a.Body
		var now deviceCommand
		if err := json.Unmarshal(last, &now); err != nil {
			return nil, fmt.Errorf("unreadable answer: %w", err)
		}
		if now.Final {
			return last, nil
		}
	}
}

func newDeviceCommands(c *cli) *cobra.Command {
	var status string
	var limit int
	cmd := &cobra.Command{
		Use: "commands DEVICE", Short: "List the commands of a device, newest first", Args: arguments(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.client()
			if err != nil {
				return err
			}
			query := url.Values{}
			set(query, "status", status)
			var items []json.RawMessage
			err = cl.list(cmd.Context(), "/v1/devices/"+url.PathEscape(args[0])+"/commands", query, limit, func(item json.RawMessage) error {
				items = append(items, item)
				return nil
			})
			if err != nil {
				return err
			}
			return c.printList(items, func(out io.Writer) error { return writeCommands(out, items, c.now()) })
		},
	}
	cmd.Flags().StringVar(&status, "status", "", "only with this status: queued, sent, acknowledged, refused, expired or cancelled")
	cmd.Flags().IntVar(&limit, "limit", 100, "how many at most; 0 = all")
	cancel := &cobra.Command{
		Use: "cancel DEVICE COMMAND", Short: "Cancel a command that was not sent yet", Args: arguments(2, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.client()
			if err != nil {
				return err
			}
			a, err := cl.do(cmd.Context(), request{Method: http.MethodDelete, Path: "/v1/devices/" + url.PathEscape(args[0]) + "/commands/" + url.PathEscape(args[1])})
			if err != nil {
				return err
			}
			return c.print(json.RawMessage(a.Body), func(out io.Writer) error {
				_, err := fmt.Fprintf(out, "command %s is cancelled\n", clean(args[1]))
				return err
			})
		},
	}
	cmd.AddCommand(cancel)
	return cmd
}

func writeCommands(out io.Writer, items []json.RawMessage, now time.Time) error {
	var rows [][]string
	for _, raw := range items {
		var d deviceCommand
		if err := json.Unmarshal(raw, &d); err != nil {
			return fmt.Errorf("unreadable answer: %w", err)
		}
		left := "-"
		if !d.Final {
			left = span(d.ExpiresAt.Sub(now))
		}
		rows = append(rows, []string{shorten(clean(d.ID), 40), shorten(clean(d.Topic), 40), strconv.Itoa(d.QoS), clean(standing(d)),
			span(now.Sub(d.CreatedAt)) + " ago", span(now.Sub(d.ChangedAt)) + " ago", left})
	}
	return writeTable(out, []string{"COMMAND", "TOPIC", "QOS", "STATUS", "SENT IN", "CHANGED", "EXPIRES IN"}, rows)
}

func newDeviceBroadcast(c *cli) *cobra.Command {
	var m message
	var devices []string
	var labels, clientID, why string
	var online, all, dryRun bool
	var rate float64
	var batch int
	cmd := &cobra.Command{
		Use:   "broadcast",
		Short: "Send a command to many devices",
		Long: `Send a command to many devices: those of --device, or those for which all of --labels, --client-id and --online hold, or
--all. The server sends it at a rate, also over a restart. ${device} in the topic stands for the device. Ask with --dry-run
first how many devices it is for.`,
		Example: `  rialto devices broadcast --labels site=north --topic 'cmd/${device}/defrost' --payload now --dry-run
  rialto devices broadcast --client-id 'box-*' --online --payload now --rate 50
  rialto devices broadcast list
  rialto devices broadcast pause broadcast-12`,
		Args: arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			body, err := m.body(c)
			if err != nil {
				return err
			}
			sel := map[string]any{}
			if len(devices) > 0 {
				sel["devices"] = devices
			}
			if labels != "" {
				if sel["labels"], err = parseLabels(labels); err != nil {
					return err
				}
			}
			if clientID != "" {
				sel["clientId"] = clientID
			}
			for name, on := range map[string]bool{"online": online, "all": all} {
				if on {
					sel[name] = true
				}
			}
			body["select"], body["rate"], body["batch"], body["dryRun"] = sel, rate, batch, dryRun
			if why != "" {
				body["why"] = why
			}
			return c.broadcast(cmd.Context(), body, dryRun)
		},
	}
	m.flags(cmd)
	f := cmd.Flags()
	f.StringSliceVar(&devices, "device", nil, "a device, by the name of its Device or its client id; may be repeated")
	f.StringVar(&labels, "labels", "", "devices with all of these labels: name=value,name=value")
	f.StringVar(&clientID, "client-id", "", "client id, of a Device too, or name of a Device; * stands for any text")
	f.BoolVar(&online, "online", false, "only devices that are connected")
	f.BoolVar(&all, "all", false, "all devices")
	f.Float64Var(&rate, "rate", 100, "commands a second")
	f.IntVar(&batch, "batch", 100, "commands on their way at a time")
	f.StringVar(&why, "why", "", "a note for those who look at the broadcast")
	f.BoolVar(&dryRun, "dry-run", false, "say how many devices it would be for, and do nothing")
	cmd.AddCommand(newBroadcastList(c), newBroadcastGet(c))
	for _, verb := range []string{"pause", "resume", "cancel"} {
		cmd.AddCommand(newBroadcastSet(c, verb))
	}
	return cmd
}

// parseLabels reads name=value,name=value.
func parseLabels(s string) (map[string]string, error) {
	labels := map[string]string{}
	for pair := range strings.SplitSeq(s, ",") {
		name, value, ok := strings.Cut(pair, "=")
		if !ok || name == "" {
			return nil, usagef("--labels is name=value,name=value, not %q", s)
		}
		labels[name] = value
	}
	return labels, nil
}

// broadcastState is a broadcast as the server tells it.
type broadcastState struct {
	ID         string         `json:"id"`
	State      string         `json:"state"`
	Waiting    string         `json:"waiting"`
	Total      int            `json:"total"`
	Sent       int            `json:"sent"`
	Skipped    int            `json:"skipped"`
	SkipReason string         `json:"skipReason"`
	Statuses   map[string]int `json:"statuses"`
	CreatedAt  time.Time      `json:"createdAt"`
}

func (c *cli) broadcast(ctx context.Context, body map[string]any, dryRun bool) error {
	cl, err := c.client()
	if err != nil {
		return err
	}
	raw, err := json.Marshal(body)
	if err != nil {
		return err
	}
	a, err := cl.do(ctx, request{Method: http.MethodPost, Path: "/v1/broadcasts", Header: http.Header{"Content-Type": {"application/json"}}, Body: raw})
	if err != nil {
		return err
	}
	if !dryRun {
		return c.printBroadcast(a.Body)
	}
	var n struct {
		Total int `json:"total"`
	}
	if err := json.Unmarshal(a.Body, &n); err != nil {
		return fmt.Errorf("unreadable answer: %w", err)
	}
	return c.print(json.RawMessage(a.Body), func(out io.Writer) error {
		_, err := fmt.Fprintf(out, "it would be for %s\n", count(n.Total, "device"))
		return err
	})
}

func (c *cli) printBroadcast(raw json.RawMessage) error {
	return c.print(raw, func(out io.Writer) error { return writeBroadcasts(out, []json.RawMessage{raw}, c.now()) })
}

func writeBroadcasts(out io.Writer, items []json.RawMessage, now time.Time) error {
	var rows [][]string
	for _, raw := range items {
		var b broadcastState
		if err := json.Unmarshal(raw, &b); err != nil {
			return fmt.Errorf("unreadable answer: %w", err)
		}
		note := b.Waiting
		if note == "" {
			note = b.SkipReason
		}
		rows = append(rows, []string{clean(b.ID), clean(b.State), fmt.Sprintf("%d of %d", b.Sent, b.Total), strconv.Itoa(b.Skipped),
			strconv.Itoa(b.Statuses["acknowledged"]), strconv.Itoa(b.Statuses["refused"] + b.Statuses["expired"]), span(now.Sub(b.CreatedAt)) + " ago", clean(orDefault(note, "-"))})
	}
	return writeTable(out, []string{"BROADCAST", "STATE", "SENT", "SKIPPED", "ACKNOWLEDGED", "REFUSED, EXPIRED", "STARTED", "NOTE"}, rows)
}

func newBroadcastList(c *cli) *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List broadcasts, newest first", Args: arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl, err := c.client()
			if err != nil {
				return err
			}
			var all struct {
				Items []json.RawMessage `json:"items"`
			}
			if err := cl.get(cmd.Context(), "/v1/broadcasts", nil, &all); err != nil {
				return err
			}
			return c.printList(all.Items, func(out io.Writer) error { return writeBroadcasts(out, all.Items, c.now()) })
		},
	}
}

func newBroadcastGet(c *cli) *cobra.Command {
	return &cobra.Command{
		Use: "get BROADCAST", Short: "Show how far a broadcast has come", Args: arguments(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.client()
			if err != nil {
				return err
			}
			a, err := cl.do(cmd.Context(), request{Method: http.MethodGet, Path: "/v1/broadcasts/" + url.PathEscape(args[0])})
			if err != nil {
				return err
			}
			return c.printBroadcast(a.Body)
		},
	}
}

func newBroadcastSet(c *cli, verb string) *cobra.Command {
	return &cobra.Command{
		Use: verb + " BROADCAST", Short: strings.ToUpper(verb[:1]) + verb[1:] + " a broadcast; what was sent stays so", Args: arguments(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.client()
			if err != nil {
				return err
			}
			a, err := cl.do(cmd.Context(), request{Method: http.MethodPost, Path: "/v1/broadcasts/" + url.PathEscape(args[0]) + ":" + verb})
			if err != nil {
				return err
			}
			return c.printBroadcast(a.Body)
		},
	}
}
