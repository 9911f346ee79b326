// SPDX-License-Identifier: Apache-2.0

package files

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Limits of one call of Read.
const (
	MaxBytes = 16 << 20 // of all files together
	MaxFiles = 10_000   // below a folder
)

// Endings are how the names of files end that folders are searched for.
var Endings = []string{".yaml", ".yml", ".json"}

// Read reads files, what is below folders, and stdin for "-". The error joins an *Error for each document that is wrong; a
// file that cannot be read ends the reading.
func Read(names []string, stdin io.Reader) ([]Document, error) {
	r := reader{left: MaxBytes}
	for _, name := range names {
		var err error
		if name == "-" {
			err = r.read("stdin", stdin)
		} else {
			err = r.path(name)
		}
		if err != nil {
			return nil, err
		}
	}
	if err := errors.Join(append(r.wrong, duplicates(r.docs)...)...); err != nil {
		return nil, err
	}
	return r.docs, nil
}

// reader is a Read under way.
type reader struct {
	left  int64 // bytes that may still be read
	docs  []Document
	wrong []error
}

func (r *reader) path(name string) error {
	info, err := os.Stat(name)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		return r.read(name, f)
	}
	root, err := os.OpenRoot(name)
	if err != nil {
		return err
	}
	defer root.Close()
	paths, err := definitions(root)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	for _, path := range paths {
		if err := r.inside(root, name, path); err != nil {
			return err
		}
	}
	return nil
}

// definitions lists the definition files below a folder.
func definitions(root *os.Root) ([]string, error) {
	var paths []string
	err := fs.WalkDir(root.FS(), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		hidden := strings.HasPrefix(d.Name(), ".") && path != "."
		switch {
		case d.IsDir() && hidden:
			return fs.SkipDir
		case d.IsDir() || hidden || !slices.Contains(Endings, filepath.Ext(path)):
			return nil
		case len(paths) == MaxFiles:
			return fmt.Errorf("there are more than %d files of definitions", MaxFiles)
		}
		paths = append(paths, path)
		return nil
	})
	return paths, err
}

// inside reads a file below a folder.
func (r *reader) inside(root *os.Root, folder, path string) error {
	name := filepath.Join(folder, path)
	info, err := root.Stat(path) // follows symlinks, and opens nothing: a pipe would block
	if err != nil {
		return fmt.Errorf("%s: %w", name, plain(err))
	}
	switch {
	case info.IsDir():
		return nil // a symlink to a folder
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s is not a regular file", name)
	}
	f, err := root.Open(path)
	if err != nil {
		return fmt.Errorf("%s: %w", name, plain(err))
	}
	defer f.Close()
	return r.read(name, f)
}

// plain is an error without the path in it.
func plain(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

func (r *reader) read(name string, from io.Reader) error {
	text, err := io.ReadAll(io.LimitReader(from, r.left+1))
	if err != nil {
		return fmt.Errorf("%s: %w", name, plain(err))
	}
	if r.left -= int64(len(text)); r.left < 0 {
		return fmt.Errorf("%s: the definitions are larger than %d MiB", name, MaxBytes>>20)
	}
	docs, err := Parse(name, text)
	if err != nil {
		r.wrong = append(r.wrong, err)
	}
	r.docs = append(r.docs, docs...)
	return nil
}
