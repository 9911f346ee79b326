// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

func newAudit(c *cli) *cobra.Command {
	var kindName, name string
	var w window
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Who changed which definition or schema, redrove and discarded, the newest first",
		Long: `Show who made, changed and deleted definitions and schemas: when, with which key, from which revision to which, and in which
request; and who redrove and discarded deliveries. In the data directory the last 16 changes of each definition are kept, in Postgres all of
them; redrives and discards for 31 days.`,
		Example: `  rialto audit --from 24h
  rialto audit --kind rule --name too-warm
  rialto audit --kind redrive -o yaml`,
		Args: arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			query := url.Values{}
			if kindName != "" {
				kind, err := auditKind(kindName)
				if err != nil {
					return err
				}
				query.Set("kind", kind)
			}
			set(query, "name", name)
			if err := w.query(query, c.now()); err != nil {
				return err
			}
			cl, err := c.client()
			if err != nil {
				return err
			}
			var items []json.RawMessage
			err = cl.list(cmd.Context(), "/v1/audit", query, w.limit, func(item json.RawMessage) error {
				items = append(items, item)
				return nil
			})
			if err != nil {
				return err
			}
			return c.printList(items, func(out io.Writer) error { return writeAudit(out, items, c.now().Location()) })
		},
	}
	f := cmd.Flags()
	f.StringVar(&kindName, "kind", "", "only definitions of this kind; schema, schemaversion, schemabinding, redrive and discard are kinds here")
	f.StringVar(&name, "name", "", "only definitions with this name")
	w.flags(f, 50)
	return cmd
}

// auditKind finds what the audit calls a kind: of definitions, of what is in the registry of schemas, or of what was done to deliveries.
func auditKind(s string) (string, error) {
	for _, name := range []string{"Schema", "SchemaVersion", "SchemaBinding", "Redrive", "Discard"} {
		if strings.EqualFold(s, name) {
			return name, nil
		}
	}
	k, err := kindNamed(s)
	return k.name, err
}

// writeAudit prints audit entries as a table.
func writeAudit(out io.Writer, items []json.RawMessage, zone *time.Location) error {
	var rows [][]string
	for _, raw := range items {
		var e struct {
			At                    time.Time
			By, Action            string
			Kind, Bus, Name       string
			OldRevision, Revision uint64
			RequestID             string
		}
		if err := json.Unmarshal(raw, &e); err != nil {
			return fmt.Errorf("unreadable answer: %w", err)
		}
		what, revision := e.Kind+" "+e.Name, strconv.FormatUint(e.Revision, 10)
		if e.Bus != "" {
			what = e.Kind + " " + e.Bus + "/" + e.Name
		}
		if e.OldRevision != 0 {
			revision = strconv.FormatUint(e.OldRevision, 10) + " -> " + revision
		}
		rows = append(rows, []string{e.At.In(zone).Format("2006-01-02 15:04:05"), clean(e.Action), clean(what), revision,
			clean(orDefault(e.By, "(the bridge)")), orDefault(clean(e.RequestID), "-")})
	}
	return writeTable(out, []string{"AT", "ACTION", "WHAT", "REVISION", "BY", "REQUEST"}, rows)
}
