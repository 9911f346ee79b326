// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/spf13/cobra"
)

func newDevices(c *cli) *cobra.Command {
	cmd := newDeviceList(c, "devices")
	cmd.Short = "See MQTT clients, command devices, end their connections, block them"
	cmd.Long = `Every MQTT client that is connected, and those that were since the server started: with a Device definition, or
with a certificate, a token or no name at all. "rialto get devices" shows the definitions, whether they have ever connected or
not.`
	cmd.Example = `  rialto devices --online
  rialto devices get box-17
  rialto devices command box-17 --payload defrost --wait 10s
  rialto devices block box-17
  rialto devices disconnect --principal urn:dev:box-17 --client-id box-17`
	cmd.AddCommand(newDeviceList(c, "list"), newDeviceGet(c), newDeviceDisconnect(c), newDeviceCommand(c), newDeviceCommands(c), newDeviceBroadcast(c),
		newDeviceBlock(c, "block", "Refuse a device, and cut it off at once", "is blocked"),
		newDeviceBlock(c, "unblock", "Let a blocked device in again", "may connect again"))
	return cmd
}

func newDeviceList(c *cli, use string) *cobra.Command {
	var principal, clientID string
	var online bool
	var limit int
	cmd := &cobra.Command{
		Use:   use,
		Short: "List MQTT clients",
		Args:  arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			query := url.Values{}
			if cmd.Flags().Changed("principal") {
				query.Set("principal", principal) // also an empty one: anonymous clients
			}
			set(query, "clientId", clientID)
			if online {
				query.Set("online", "true")
			}
			cl, err := c.client()
			if err != nil {
				return err
			}
			var items []json.RawMessage
			err = cl.list(cmd.Context(), "/v1/clients", query, limit, func(item json.RawMessage) error {
				items = append(items, item)
				return nil
			})
			if err != nil {
				return err
			}
			return c.printList(items, func(out io.Writer) error { return writeClients(out, items, c.now()) })
		},
	}
	f := cmd.Flags()
	f.StringVar(&principal, "principal", "", "only of this principal")
	f.StringVar(&clientID, "client-id", "", "only with this client id")
	f.BoolVar(&online, "online", false, "only those that are connected")
	f.IntVar(&limit, "limit", 0, "how many at most (default: all)")
	return cmd
}

// mqttClient is a client as the server tells it.
type mqttClient struct {
	Principal     string    `json:"principal"`
	ClientID      string    `json:"clientId"`
	Device        string    `json:"device"`
	Online        bool      `json:"online"`
	Address       string    `json:"address"`
	Protocol      string    `json:"protocol"`
	Subscriptions []string  `json:"subscriptions"`
	InFlight      int       `json:"inFlight"`
	Queued        int       `json:"queued"`
	Behind        bool      `json:"behind"`
	LastSeen      time.Time `json:"lastSeen"`
	Reason        string    `json:"reason"`
}

func writeClients(out io.Writer, items []json.RawMessage, now time.Time) error {
	var rows [][]string
	for _, raw := range items {
		var m mqttClient
		if err := json.Unmarshal(raw, &m); err != nil {
			return fmt.Errorf("unreadable answer: %w", err)
		}
		rows = append(rows, m.row(now))
	}
	return writeTable(out, []string{"CLIENT ID", "PRINCIPAL", "DEVICE", "STATE", "ADDRESS", "MQTT", "FILTERS", "QUEUED", "LAST SEEN"}, rows)
}

// row is a client in columns; "-" stands for what is not known.
func (m *mqttClient) row(now time.Time) []string {
	state, filters, queued, seen := "online", "-", "-", "-"
	switch {
	case !m.Online && m.Reason != "":
		state = "offline: " + m.Reason
	case !m.Online:
		state = "offline"
	}
	if m.Protocol != "" { // it is online, or has a session
		filters, queued = strconv.Itoa(len(m.Subscriptions)), strconv.Itoa(m.InFlight+m.Queued)
		if m.Behind {
			queued += "+"
		}
	}
	if !m.LastSeen.IsZero() {
		seen = span(now.Sub(m.LastSeen)) + " ago"
	}
	return []string{shorten(clean(m.ClientID), 40), shorten(clean(orDefault(m.Principal, "-")), 40), clean(orDefault(m.Device, "-")), clean(state),
		clean(orDefault(m.Address, "-")), clean(orDefault(m.Protocol, "-")), filters, queued, seen}
}

func newDeviceGet(c *cli) *cobra.Command {
	return &cobra.Command{
		Use: "get NAME", Short: "Show a device, its definition and its clients", Args: arguments(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.client()
			if err != nil {
				return err
			}
			a, err := cl.do(cmd.Context(), request{Method: http.MethodGet, Path: "/v1/devices/" + url.PathEscape(args[0])})
			if err != nil {
				return err
			}
			if c.output == "table" { // there is nothing to put in columns
				c.output = "yaml"
			}
			return c.encode(json.RawMessage(a.Body))
		},
	}
}

func newDeviceDisconnect(c *cli) *cobra.Command {
	var principal, clientID string
	cmd := &cobra.Command{
		Use:   "disconnect [NAME]",
		Short: "End the connections of a device, or of a principal; they may come back",
		Args:  arguments(0, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			byPrincipal := cmd.Flags().Changed("principal")
			if byPrincipal == (len(args) == 1) {
				return usagef("give the name of a device, or --principal")
			}
			if clientID != "" && !byPrincipal {
				return usagef("--client-id goes with --principal")
			}
			cl, err := c.client()
			if err != nil {
				return err
			}
			r := request{Method: http.MethodPost}
			if byPrincipal {
				body := map[string]string{"principal": principal}
				if clientID != "" {
					body["clientId"] = clientID
				}
				r.Path, r.Header = "/v1/clients:disconnect", http.Header{"Content-Type": {"application/json"}}
				if r.Body, err = json.Marshal(body); err != nil {
					return err
				}
			} else {
				r.Path = "/v1/devices/" + url.PathEscape(args[0]) + ":disconnect"
			}
			return c.disconnected(cmd.Context(), cl, r)
		},
	}
	cmd.Flags().StringVar(&principal, "principal", "", "principal, instead of a device; '' is that of anonymous clients")
	cmd.Flags().StringVar(&clientID, "client-id", "", "only this client id of the principal")
	return cmd
}

// disconnected asks for an end of connections and prints how many there were.
func (c *cli) disconnected(ctx context.Context, cl *client, r request) error {
	a, err := cl.do(ctx, r)
	if err != nil {
		return err
	}
	var n struct {
		Disconnected int `json:"disconnected"`
	}
	if err := json.Unmarshal(a.Body, &n); err != nil {
		return fmt.Errorf("unreadable answer: %w", err)
	}
	return c.print(json.RawMessage(a.Body), func(out io.Writer) error {
		_, err := fmt.Fprintf(out, "%s ended\n", count(n.Disconnected, "connection"))
		return err
	})
}

func newDeviceBlock(c *cli, verb, short, done string) *cobra.Command {
	return &cobra.Command{
		Use: verb + " NAME", Short: short, Args: arguments(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.client()
			if err != nil {
				return err
			}
			a, err := cl.do(cmd.Context(), request{Method: http.MethodPost, Path: "/v1/devices/" + url.PathEscape(args[0]) + ":" + verb})
			if err != nil {
				return err
			}
			return c.print(json.RawMessage(a.Body), func(out io.Writer) error {
				_, err := fmt.Fprintf(out, "%s %s\n", clean(args[0]), done)
				return err
			})
		},
	}
}
