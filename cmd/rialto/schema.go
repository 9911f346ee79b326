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
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rialto-bridge/rialto/schema"
)

func newSchema(c *cli) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "schema",
		Short: "Register schemas, check what may change, test pairs",
		Long: `A schema is named GROUP/NAME, and its versions are numbers from 1, or latest. What compatible means, and the
rules that a verdict names, stand in docs/schemas.md.`,
		Example: `  rialto schema check order.json --old order-1.json
  rialto schema register shop/com.example.Order order.json
  rialto schema bind shop/com.example.Order com.example.order.placed`,
		Args: arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newSchemaTest(c), newSchemaCheck(c), newSchemaImpact(c), newSchemaRegister(c), newSchemaList(c), newSchemaVersions(c), newSchemaGet(c),
		newSchemaState(c, "activate", "active", "Make a version active: a draft, a discovered or a deprecated one"),
		newSchemaState(c, "deprecate", "deprecated", "Say that a version should not be used any more; it goes on being valid"),
		newSchemaState(c, "disable", "disabled", "Make a version good for nothing: events that name it are not valid"),
		newSchemaDelete(c), newSchemaBind(c, true), newSchemaBind(c, false), newSchemaExample(c), newSchemaBindings(c))
	return cmd
}

func newSchemaTest(c *cli) *cobra.Command {
	return &cobra.Command{
		Use:   "test FILE...",
		Short: "Compare pairs of schemas with what is expected of them; no server needed",
		Long: `Compare the pairs of files (- is stdin) and print those that are not as expected. Each line is JSON:
{"id", "policy", "mode", "format", "old", "new", "expect", "witness", "witness_writer"}. The last line counts them; the exit
code is 6 when one fails.`,
		Args: arguments(1, -1),
		RunE: func(_ *cobra.Command, args []string) error { return c.testSchemas(args) },
	}
}

func (c *cli) testSchemas(names []string) error {
	var passed, failed int
	for _, name := range names {
		r := io.NopCloser(c.in)
		if name != "-" {
			var err error
			if r, err = os.Open(name); err != nil {
				return err
			}
		}
		p, f, err := schema.RunCases(r, c.out)
		passed, failed = passed+p, failed+f
		if err := errors.Join(err, r.Close()); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	if len(names) > 1 {
		fmt.Fprintf(c.out, "%d passed, %d failed\n", passed, failed)
	}
	if failed > 0 {
		return &codeError{exitProblems, errQuiet}
	}
	return nil
}

// schemaFlags are what commands take that read a text.
type schemaFlags struct {
	format, mode, policy string
	references           []string
}

func (f *schemaFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.format, "format", "", "jsonschema, avro or protobuf (default: by the file's ending .avsc, .proto, else jsonschema)")
	cmd.Flags().StringArrayVar(&f.references, "reference", nil, "what a name in the text means: NAME=GROUP/NAME/VERSION; may be given more than once")
}

// formatOf is the format of a file.
func (f *schemaFlags) formatOf(file string) schema.Format {
	switch {
	case f.format != "":
		return schema.Format(f.format)
	case filepath.Ext(file) == ".avsc":
		return schema.Avro
	case filepath.Ext(file) == ".proto":
		return schema.Protobuf
	}
	return schema.JSONSchema
}

func (f *schemaFlags) refs() ([]schema.Reference, error) {
	var out []schema.Reference
	for _, s := range f.references {
		i := strings.LastIndexByte(s, '=')
		if i < 0 {
			return nil, usagef("--reference is NAME=GROUP/NAME/VERSION, not %q", clean(s))
		}
		n, number, err := versionNamed(s[i+1:])
		if err != nil {
			return nil, err
		}
		version, err := strconv.Atoi(number)
		if err != nil {
			return nil, usagef("--reference is NAME=GROUP/NAME/VERSION, not %q", clean(s))
		}
		out = append(out, schema.Reference{Name: s[:i], Group: n.Group, Schema: n.Schema, Version: version})
	}
	return out, nil
}

// readSchemaText reads a text from a file, or from stdin.
func (c *cli) readSchemaText(name string) (string, error) {
	if name == "-" {
		b, err := readAll(c.in)
		return string(b), err
	}
	f, err := os.Open(name)
	if err != nil {
		return "", err
	}
	b, err := readAll(f)
	return string(b), errors.Join(err, f.Close())
}

func newSchemaCheck(c *cli) *cobra.Command {
	var f schemaFlags
	var old, name string
	cmd := &cobra.Command{
		Use:   "check FILE",
		Short: "Say whether a text is right, and whether it may follow another",
		Long: `Check a text (- is stdin): by itself, against an older one in a file (--old), or against what a server has registered
(--name GROUP/NAME). The verdict is COMPATIBLE; INCOMPATIBLE, with the rule and a document that shows it; or UNKNOWN. The
exit code is 6 unless it is compatible.`,
		Example: `  rialto schema check order.json --old order-1.json --mode full
  rialto schema check order.json --name shop/com.example.Order`,
		Args: arguments(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case old != "" && name != "":
				return usagef("the text is compared with --old or with --name, not with both")
			case name != "":
				return c.checkOnServer(cmd.Context(), args[0], name, &f)
			}
			return c.checkHere(cmd.Context(), args[0], old, &f)
		},
	}
	f.add(cmd)
	cmd.Flags().StringVar(&f.mode, "mode", "", "none, backward, forward, full or one of these with _transitive (default: backward, or the schema's)")
	cmd.Flags().StringVar(&f.policy, "policy", "", "lenient or strict (default: lenient, or the schema's)")
	cmd.Flags().StringVar(&old, "old", "", "file with the text that it is to follow")
	cmd.Flags().StringVar(&name, "name", "", "schema on the server whose next version it may become")
	return cmd
}

func (c *cli) checkHere(ctx context.Context, file, old string, f *schemaFlags) error {
	mode, err := schema.ParseMode(f.mode)
	if err != nil {
		return usagef("--mode: %v", err)
	}
	if len(f.references) > 0 {
		return usagef("what --reference names is on a server: use --name")
	}
	newer, err := c.compileFile(ctx, file, f)
	if err != nil {
		return err
	}
	if old == "" {
		fmt.Fprintf(c.out, "%s is a schema in %s\n", clean(file), newer.Format)
		return nil
	}
	older, err := c.compileFile(ctx, old, f)
	if err != nil {
		return err
	}
	policy := schema.Policy(orDefault(f.policy, string(schema.Lenient)))
	if policy != schema.Lenient && policy != schema.Strict {
		return usagef("--policy is lenient or strict, not %q", clean(f.policy))
	}
	return c.showVerdict(schema.Compare(older, newer, mode, policy))
}

func (c *cli) compileFile(ctx context.Context, file string, f *schemaFlags) (*schema.Compiled, error) {
	text, err := c.readSchemaText(file)
	if err != nil {
		return nil, err
	}
	out, err := schema.Compile(ctx, f.formatOf(file), text, nil, schema.NoSource)
	if err != nil {
		return nil, &codeError{exitProblems, fmt.Errorf("%s: %w", clean(file), err)}
	}
	return out, nil
}

// showVerdict prints a verdict; it is an error unless it is good.
func (c *cli) showVerdict(v schema.Verdict) error {
	err := c.print(v, func(w io.Writer) error {
		var b strings.Builder
		fmt.Fprintln(&b, v.Outcome)
		for _, f := range v.Findings {
			fmt.Fprintf(&b, "  %s\n", clean(f.String()))
			fmt.Fprintf(&b, "      writer (%s) %s, reader %s\n", f.WriterIs, clean(orDefault(f.Writer, "/")), clean(orDefault(f.Reader, "/")))
		}
		_, err := io.WriteString(w, b.String())
		return err
	})
	if err == nil && v.Outcome != schema.Compatible {
		return &codeError{exitProblems, errQuiet}
	}
	return err
}

// schemaBody is what a server takes with a text.
type schemaBody struct {
	Schema        string             `json:"schema"`
	Format        schema.Format      `json:"format,omitempty"`
	References    []schema.Reference `json:"references,omitempty"`
	State         string             `json:"state,omitempty"`
	Compatibility string             `json:"compatibility,omitempty"`
	Policy        string             `json:"policy,omitempty"`
}

// sendSchema posts a text to a schema.
func (c *cli) sendSchema(ctx context.Context, file, name, suffix string, f *schemaFlags, body schemaBody) (*answer, error) {
	n, err := schemaNamed(name)
	if err != nil {
		return nil, err
	}
	if body.Schema, err = c.readSchemaText(file); err != nil {
		return nil, err
	}
	if body.References, err = f.refs(); err != nil {
		return nil, err
	}
	body.Format = f.formatOf(file)
	raw, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	cl, err := c.client()
	if err != nil {
		return nil, err
	}
	return cl.do(ctx, request{Method: http.MethodPost, Path: schemaAddress(n) + suffix, Header: http.Header{"Content-Type": {"application/json"}}, Body: raw})
}

func (c *cli) checkOnServer(ctx context.Context, file, name string, f *schemaFlags) error {
	a, err := c.sendSchema(ctx, file, name, ":check", f, schemaBody{Compatibility: f.mode, Policy: f.policy})
	if err != nil {
		return err
	}
	var v schema.Verdict
	if err := json.Unmarshal(a.Body, &v); err != nil {
		return err
	}
	return c.showVerdict(v)
}

func newSchemaRegister(c *cli) *cobra.Command {
	var f schemaFlags
	var draft bool
	cmd := &cobra.Command{
		Use:   "register GROUP/NAME FILE",
		Short: "Register a version of a schema",
		Long: `Register a text (- is stdin) as the next version. Content that is there already is that version. A text that is not
compatible is refused, with the rule and a document that shows it; --draft stores it all the same, and activate checks it.`,
		Example: "  rialto schema register shop/com.example.Order order.json --reference address.json=shop/Address/2",
		Args:    arguments(2, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			body := schemaBody{}
			if draft {
				body.State = string(schema.Draft)
			}
			a, err := c.sendSchema(cmd.Context(), args[1], args[0], "/versions", &f, body)
			if err != nil {
				return err
			}
			verb := "registered"
			if a.Status == http.StatusOK {
				verb = "is there already"
			}
			return c.sayVersion(a.Body, verb)
		},
	}
	f.add(cmd)
	cmd.Flags().BoolVar(&draft, "draft", false, "as a draft, which need not be compatible")
	return cmd
}

// sayVersion prints what became of a version.
func (c *cli) sayVersion(body []byte, verb string) error {
	return c.print(json.RawMessage(body), func(w io.Writer) error {
		var v struct {
			Group, Schema, State string
			Version, ID          int
		}
		if err := json.Unmarshal(body, &v); err != nil {
			return err
		}
		_, err := fmt.Fprintf(w, "%s/%s version %d %s, %s, id %d\n", clean(v.Group), clean(v.Schema), v.Version, verb, clean(v.State), v.ID)
		return err
	})
}

// schemaNamed reads GROUP/NAME.
func schemaNamed(s string) (schema.Name, error) {
	group, name, ok := strings.Cut(s, "/")
	n := schema.Name{Group: group, Schema: name}
	if !ok || n.Check() != nil {
		return n, usagef("a schema is named GROUP/NAME, not %q", clean(s))
	}
	return n, nil
}

// versionNamed reads GROUP/NAME/VERSION.
func versionNamed(s string) (schema.Name, string, error) {
	i := strings.LastIndexByte(s, '/')
	if i < 0 {
		return schema.Name{}, "", usagef("a version is named GROUP/NAME/VERSION, not %q", clean(s))
	}
	n, err := schemaNamed(s[:i])
	return n, s[i+1:], err
}

func schemaAddress(n schema.Name) string {
	return "/v1/schemas/" + url.PathEscape(n.Group) + "/" + url.PathEscape(n.Schema)
}
