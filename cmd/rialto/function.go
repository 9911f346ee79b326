// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

func newFunction(c *cli) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "function",
		Short: "Upload functions and try them",
		Long: `A function is a WebAssembly module that runs in the bridge, as a target or as the transform of a rule. Its settings
are a definition (rialto apply, kind Function); how to write one stands in docs/functions.md.`,
		Example: `  rialto function put warm warm.wasm
  rialto function test warm --event reading.json
  rialto function put warm --version sha256:9f86...   (back to a version that is kept)`,
		Args: arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newFunctionPut(c), newFunctionGet(c), newFunctionList(c), newFunctionTest(c), newFunctionDelete(c))
	return cmd
}

// functionDoc is what commands show of a function.
type functionDoc struct {
	Name     string `json:"name"`
	Code     string `json:"code"`
	ABI      string `json:"abi"`
	Versions []struct {
		Digest string    `json:"digest"`
		Size   int       `json:"size"`
		At     time.Time `json:"at"`
	} `json:"versions"`
	Status struct {
		Calls      uint64            `json:"calls"`
		Failures   map[string]uint64 `json:"failures"`
		Seconds    float64           `json:"seconds"`
		PeakMemory int64             `json:"peakMemory"`
		Instances  int               `json:"instances"`
	} `json:"status"`
}

func functionResource(name string) resource {
	return resource{kind: functionKind, name: name}
}

func newFunctionPut(c *cli) *cobra.Command {
	var version string
	cmd := &cobra.Command{
		Use:   "put NAME FILE | put NAME --version DIGEST",
		Short: "Upload code and put it in force, or go back to a version that is kept",
		Args:  arguments(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if (len(args) == 2) == (version != "") {
				return usagef("put takes a FILE or --version DIGEST")
			}
			cl, err := c.client()
			if err != nil {
				return err
			}
			put := cl.rollback
			of := version
			if version == "" {
				put, of = cl.uploadCode, args[1]
			}
			a, err := put(cmd.Context(), args[0], of)
			if err != nil {
				return err
			}
			var f functionDoc
			if err := json.Unmarshal(a.Body, &f); err != nil {
				return fmt.Errorf("unreadable answer: %w", err)
			}
			return c.print(json.RawMessage(a.Body), func(out io.Writer) error {
				_, err := fmt.Fprintf(out, "function %s runs %s\n", clean(f.Name), clean(f.Code))
				return err
			})
		},
	}
	cmd.Flags().StringVar(&version, "version", "", "digest of a version that is kept")
	return cmd
}

func (cl *client) uploadCode(ctx context.Context, name, file string) (*answer, error) {
	code, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return cl.do(ctx, request{Method: http.MethodPut, Path: functionResource(name).path() + "/code", Body: code,
		Header: http.Header{"Content-Type": {"application/wasm"}}})
}

// rollback puts a version in force, and leaves everything else of the function as it is.
func (cl *client) rollback(ctx context.Context, name, version string) (*answer, error) {
	r := functionResource(name)
	found, err := cl.fetch(ctx, r)
	if err != nil {
		return nil, err
	}
	fields, order, err := objectFields(found.raw)
	if err != nil {
		return nil, err
	}
	if fields["code"], err = json.Marshal(version); err != nil {
		return nil, err
	}
	delete(fields, "abi") // of another version
	kept := order[:0]
	for _, field := range order {
		if field != "abi" {
			kept = append(kept, field)
		}
	}
	body, err := writeObject(fields, kept)
	if err != nil {
		return nil, err
	}
	return cl.do(ctx, request{Method: http.MethodPut, Path: r.path(), Body: body,
		Header: http.Header{"Content-Type": {"application/json"}, "If-Match": {found.etag}}})
}

func newFunctionGet(c *cli) *cobra.Command {
	var code, version string
	cmd := &cobra.Command{
		Use:   "get NAME",
		Short: "Show a function and its versions, or get its code",
		Args:  arguments(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.client()
			if err != nil {
				return err
			}
			if code != "" {
				return cl.saveCode(cmd.Context(), args[0], version, code)
			}
			if version != "" {
				return usagef("--version goes with --code")
			}
			found, err := cl.fetch(cmd.Context(), functionResource(args[0]))
			if err != nil {
				return err
			}
			var f functionDoc
			if err := json.Unmarshal(found.raw, &f); err != nil {
				return fmt.Errorf("unreadable answer: %w", err)
			}
			return c.print(found.raw, func(out io.Writer) error { return f.write(out, c.now().Location()) })
		},
	}
	cmd.Flags().StringVar(&code, "code", "", "write the code to this file")
	cmd.Flags().StringVar(&version, "version", "", "digest of the version whose code is meant (default: the one in force)")
	return cmd
}

// write shows the versions, with the one in force first.
func (f *functionDoc) write(out io.Writer, zone *time.Location) error {
	var rows [][]string
	for _, v := range f.Versions {
		rows = append(rows, []string{clean(v.Digest), strconv.Itoa(v.Size), v.At.In(zone).Format("2006-01-02 15:04:05")})
	}
	return writeTable(out, []string{"VERSION", "BYTES", "SINCE"}, rows)
}

func (cl *client) saveCode(ctx context.Context, name, version, file string) error {
	query := url.Values{}
	if version != "" {
		query.Set("digest", version)
	}
	a, err := cl.do(ctx, request{Method: http.MethodGet, Path: functionResource(name).path() + "/code", Query: query})
	if err != nil {
		return err
	}
	return os.WriteFile(file, a.Body, 0o644) //nolint:gosec // no secret
}

func newFunctionList(c *cli) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List functions, with what they did in the process that is asked",
		Args:  arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl, err := c.client()
			if err != nil {
				return err
			}
			var docs []json.RawMessage
			var rows [][]string
			err = cl.list(cmd.Context(), "/v1/functions", nil, 0, func(item json.RawMessage) error {
				var f functionDoc
				docs = append(docs, item)
				err := json.Unmarshal(item, &f)
				rows = append(rows, f.row())
				return err
			})
			if err != nil {
				return err
			}
			return c.printList(docs, func(out io.Writer) error {
				return writeTable(out, []string{"NAME", "ABI", "VERSION", "CALLS", "FAILED", "SECONDS", "PEAK MEMORY", "INSTANCES"}, rows)
			})
		},
	}
}

func (f *functionDoc) row() []string {
	failed := uint64(0)
	for _, n := range f.Status.Failures {
		failed += n
	}
	return []string{clean(f.Name), clean(f.ABI), shorten(clean(strings.TrimPrefix(f.Code, "sha256:")), 13), strconv.FormatUint(f.Status.Calls, 10),
		strconv.FormatUint(failed, 10), strconv.FormatFloat(f.Status.Seconds, 'f', 3, 64), strconv.FormatInt(f.Status.PeakMemory, 10),
		strconv.Itoa(f.Status.Instances)}
}

func newFunctionTest(c *cli) *cobra.Command {
	var file, version string
	cmd := &cobra.Command{
		Use:   "test NAME --event FILE",
		Short: "Try a function on an event; what it replies is shown and not published",
		Long: `Try a function on a CloudEvent in JSON or YAML (- is stdin). What it lacks of the required attributes is filled in.
The exit code is 6 when the function fails.`,
		Args: arguments(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if file == "" {
				return usagef("test needs --event with a file or -")
			}
			return c.testFunction(cmd.Context(), args[0], file, version)
		},
	}
	cmd.Flags().StringVar(&file, "event", "", "a file, or - for stdin")
	cmd.Flags().StringVar(&version, "version", "", "digest of the version to try (default: the one in force)")
	return cmd
}

func (c *cli) testFunction(ctx context.Context, name, file, version string) error {
	ev, err := c.readEvent(file)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	body, err := json.Marshal(map[string]any{"event": ev, "code": version})
	if err != nil {
		return err
	}
	cl, err := c.client()
	if err != nil {
		return err
	}
	a, err := cl.do(ctx, request{Method: http.MethodPost, Path: functionResource(name).path() + ":test", Body: body,
		Header: http.Header{"Content-Type": {"application/json"}}})
	if err != nil {
		return err
	}
	var r struct {
		Error string `json:"error"`
	}
	if err := json.Unmarshal(a.Body, &r); err != nil {
		return fmt.Errorf("unreadable answer: %w", err)
	}
	err = c.print(json.RawMessage(a.Body), func(out io.Writer) error {
		_, err := fmt.Fprintln(out, clean(string(a.Body)))
		return err
	})
	if err == nil && r.Error != "" {
		err = &codeError{exitProblems, errQuiet}
	}
	return err
}

func newFunctionDelete(c *cli) *cobra.Command {
	return &cobra.Command{
		Use:   "delete NAME",
		Short: "Delete a function that no target and no rule uses",
		Args:  arguments(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := c.client()
			if err != nil {
				return err
			}
			return c.delete(cmd.Context(), cl, []resource{functionResource(args[0])}, false)
		},
	}
}
