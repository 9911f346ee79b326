// SPDX-License-Identifier: Apache-2.0

// Package migrations holds the tables of the bridge in Postgres, as SQL files that are carried out in the order of their
// numbers, each once and in a transaction of its own. A file that was released is never changed and there is no way back:
// what was wrong is mended by the next number.
package migrations

import "embed"

// Files are the migrations.
//
//go:embed *.sql
var Files embed.FS
