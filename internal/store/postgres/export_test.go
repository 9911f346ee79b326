// SPDX-License-Identifier: Apache-2.0

package postgres

import "io/fs"

// WithMigrations has a store carry out other migrations.
func WithMigrations(o Options, files fs.FS) Options {
	o.migrations = files
	return o
}
