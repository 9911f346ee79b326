// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"runtime"

	"github.com/spf13/cobra"
)

// version is set by the linker, see the Makefile.
var version = "dev"

func newVersion(c *cli) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version of this binary",
		Args:  arguments(0, 0),
		RunE: func(*cobra.Command, []string) error {
			v := struct {
				Version  string `json:"version"`
				Go       string `json:"go"`
				Platform string `json:"platform"`
			}{version, runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH}
			return c.print(v, func(w io.Writer) error {
				_, err := fmt.Fprintf(w, "rialto %s (%s, %s)\n", v.Version, v.Go, v.Platform)
				return err
			})
		},
	}
}
