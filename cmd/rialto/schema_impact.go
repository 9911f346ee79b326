// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
)

func newSchemaImpact(c *cli) *cobra.Command {
	var f schemaFlags
	var name string
	cmd := &cobra.Command{
		Use:   "impact FILE",
		Short: "Say which rules and targets read what a text would change",
		Long: `Hold a text (- is stdin) against the latest active version of a schema, and what changes against what is read: by patterns,
conditions, transforms and keys of order of the rules that may match events of the types that are bound to the schema. A
consumer breaks when what it asks for is never there any more; it may break when some events would be treated otherwise. Nothing
is stored. The exit code is 1 when a consumer breaks.`,
		Example: "  rialto schema impact order.json --name shop/com.example.Order",
		Args:    arguments(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if name == "" {
				return usagef("--name GROUP/NAME says which schema it is about")
			}
			a, err := c.sendSchema(cmd.Context(), args[0], name, ":impact", &f, schemaBody{Policy: f.policy})
			if err != nil {
				return err
			}
			return c.showImpact(a.Body)
		},
	}
	f.add(cmd)
	cmd.Flags().StringVar(&name, "name", "", "schema on the server whose next version it may become")
	cmd.Flags().StringVar(&f.policy, "policy", "", "lenient or strict (default: the schema's)")
	return cmd
}

// impact is what a server answers.
type impact struct {
	Group, Schema, Verdict string
	Version, More          int
	Types                  []string
	Changes                []struct {
		Path string
		What []string
	}
	Consumers []struct {
		Bus, Rule, Target, Verdict string
		Reasons                    []struct{ Verdict, Path, By, Reason string }
	}
}

// verdictWords are what people read.
var verdictWords = map[string]string{"breaks": "breaks", "mayBreak": "may break", "unaffected": "unaffected"}

// showImpact prints an impact; it is an error if something breaks.
func (c *cli) showImpact(body []byte) error {
	var d impact
	if err := json.Unmarshal(body, &d); err != nil {
		return err
	}
	err := c.print(json.RawMessage(body), func(w io.Writer) error {
		var b strings.Builder
		fmt.Fprintf(&b, "%s/%s version %d, %d types bound, %d changes\n", clean(d.Group), clean(d.Schema), d.Version, len(d.Types), len(d.Changes))
		for _, ch := range d.Changes {
			fmt.Fprintf(&b, "  %s: %s\n", clean(ch.Path), clean(strings.Join(ch.What, ", ")))
		}
		for _, x := range d.Consumers {
			fmt.Fprintf(&b, "%s: rule %s on bus %s, target %s\n", orDefault(verdictWords[x.Verdict], clean(x.Verdict)), clean(x.Rule), clean(x.Bus), clean(x.Target))
			for _, r := range x.Reasons {
				fmt.Fprintf(&b, "  %s, read by %s: %s\n", clean(orDefault(r.Path, "the event")), clean(r.By), clean(r.Reason))
			}
		}
		if d.More > 0 {
			fmt.Fprintf(&b, "and %d more\n", d.More)
		}
		_, err := io.WriteString(w, b.String())
		return err
	})
	if err == nil && d.Verdict == "breaks" {
		return &codeError{exitFailed, errQuiet}
	}
	return err
}
