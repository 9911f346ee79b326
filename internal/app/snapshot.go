// SPDX-License-Identifier: Apache-2.0

package app

import (
	"cmp"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"

	"github.com/rialto-bridge/rialto/internal/store"
)

// snapshot is the last known set of definitions, kept in a file so that a start does without the store.
type snapshot struct {
	file string
	log  *slog.Logger
}

// snapshotFile is what stands in the file.
type snapshotFile struct {
	Revision  uint64           `json:"revision"` // the last that was seen; of a deletion, too
	Documents []store.Document `json:"documents"`
}

// snapshot is where the last definitions are kept for a start without the store.
func (a *App) snapshot() *snapshot {
	return &snapshot{file: filepath.Join(a.o.Data, "definitions.json"), log: a.o.Logger.With("component", "definitions")}
}

// save replaces the snapshot. A failure is logged: the old snapshot stays.
func (s *snapshot) save(revision uint64, docs map[store.Key]store.Document) {
	list := make([]store.Document, 0, len(docs))
	for _, d := range docs {
		list = append(list, d)
	}
	slices.SortFunc(list, func(a, b store.Document) int { return cmp.Compare(a.Revision, b.Revision) })
	if err := s.write(snapshotFile{Revision: revision, Documents: list}); err != nil {
		s.log.Warn("snapshot of the definitions was not written", "err", err)
	}
}

func (s *snapshot) write(f snapshotFile) error {
	b, err := json.Marshal(f)
	if err != nil {
		return err
	}
	return writeFile(s.file, b)
}

// load calls fn for each document of the snapshot and reports whether there was one.
func (s *snapshot) load(fn func(store.Change)) bool {
	f, err := s.read()
	if err != nil {
		if !os.IsNotExist(err) {
			s.log.Error("snapshot of the definitions cannot be read", "err", err)
		}
		return false
	}
	for _, d := range f.Documents {
		fn(store.Change{Document: d})
	}
	return true
}

func (s *snapshot) read() (f snapshotFile, err error) {
	b, err := os.ReadFile(s.file)
	if err != nil {
		return f, err
	}
	return f, json.Unmarshal(b, &f)
}

// writeFile replaces a file in one step: after a crash it is the old one or the new one. It can be read by its owner
// only.
func writeFile(name string, b []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+"-")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			os.Remove(f.Name())
		}
	}()
	if _, err = f.Write(b); err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}
