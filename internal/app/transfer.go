// SPDX-License-Identifier: Apache-2.0

package app

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/store"
	"github.com/rialto-bridge/rialto/internal/store/kv"
	"github.com/rialto-bridge/rialto/internal/store/postgres"
	"github.com/rialto-bridge/rialto/rules"
	"github.com/rialto-bridge/rialto/targets/function"
)

// An export is lines of JSON: a head, each document as it is stored, hashes and sealed secrets included, and an end that counts
// them, so that half a file is not taken for a whole one. Revisions and times are the store's own and are not in it. Code of
// functions is in lines of its own, by its digest, and comes before the documents that name it.

const (
	exportFormat = "rialto definitions 1"
	// maxExport and maxExportLine bound what an import reads.
	maxExport     = 1 << 30
	maxExportLine = 24 << 20
)

// The stores that an export holds.
const (
	storeDefinitions = "definitions"
	storeSchemas     = "schemas"
	storeBlobs       = "blobs" // the name is a digest, the document the data in base64
)

// exportLine is a line of an export: the head has a format, the end a count, all others a store.
type exportLine struct {
	Format   string          `json:"format,omitempty"`
	Store    string          `json:"store,omitempty"`
	Kind     string          `json:"kind,omitempty"`
	Scope    string          `json:"scope,omitempty"`
	Name     string          `json:"name,omitempty"`
	Document json.RawMessage `json:"document,omitempty"`
	Count    *int            `json:"count,omitempty"`
}

// Transfer is the stores of a bridge that does not run, or those in a database, for who moves what is in them.
type Transfer struct {
	stores map[string]store.Store
	blobs  store.Blobs
	close  []func() error
}

// OpenTransfer opens the stores in a data directory, which no bridge must be using and which must be there unless make is
// set, or those in a database if its DSN is given.
func OpenTransfer(ctx context.Context, data, dsn string, makeData bool, log *slog.Logger) (*Transfer, error) {
	t := &Transfer{stores: map[string]store.Store{}}
	open := t.openData
	if dsn != "" {
		open = t.openPostgres
	} else if _, err := os.Stat(filepath.Join(data, "state")); err != nil && !makeData {
		return nil, fmt.Errorf("there is no bridge's data in %s", data)
	}
	if err := open(ctx, cmp.Or(dsn, data), log); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

func (t *Transfer) openData(ctx context.Context, dir string, log *slog.Logger) error {
	l, err := eventlog.Open(ctx, eventlog.Options{Dir: dir, Logger: log})
	if err != nil {
		return err
	}
	t.close = append(t.close, func() error { return l.Close(context.WithoutCancel(ctx)) })
	nc, err := l.Connect()
	if err != nil {
		return err
	}
	t.close = append(t.close, func() error { nc.Close(); return nil })
	for name, bucket := range map[string]string{storeDefinitions: "", storeSchemas: kv.SchemasBucket} {
		s, err := kv.Open(ctx, nc, kv.Options{Bucket: bucket, Logger: log})
		if err != nil {
			return err
		}
		t.add(name, s)
	}
	t.blobs, err = kv.OpenBlobs(ctx, nc, kv.Options{Logger: log})
	return err
}

func (t *Transfer) openPostgres(ctx context.Context, dsn string, log *slog.Logger) error {
	for name, open := range map[string]func(context.Context, postgres.Options) (*postgres.Store, error){
		storeDefinitions: postgres.Open, storeSchemas: postgres.OpenSchemaRecords} {
		s, err := open(ctx, postgres.Options{DSN: dsn, Logger: log})
		if err != nil {
			return err
		}
		t.add(name, s)
		t.blobs = s.Blobs()
	}
	return nil
}

func (t *Transfer) add(name string, s store.Store) {
	t.stores[name] = s
	t.close = append(t.close, s.Close)
}

// Close closes the stores.
func (t *Transfer) Close() error {
	var errs []error
	for _, c := range slices.Backward(t.close) {
		errs = append(errs, c())
	}
	return errors.Join(errs...)
}

// Export writes everything and returns how many documents that were. Each store is written as it was at one moment.
func (t *Transfer) Export(ctx context.Context, w io.Writer) (int, error) {
	out := bufio.NewWriter(w)
	enc := json.NewEncoder(out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(exportLine{Format: exportFormat}); err != nil {
		return 0, err
	}
	count := 0
	for _, name := range []string{storeDefinitions, storeSchemas} {
		docs, err := everything(ctx, t.stores[name])
		if err != nil {
			return 0, err
		}
		n, err := t.exportBlobs(ctx, enc, docs)
		if err != nil {
			return 0, err
		}
		count += n
		for _, d := range docs {
			if err := enc.Encode(exportLine{Store: name, Kind: d.Kind, Scope: d.Scope, Name: d.Name, Document: d.Raw}); err != nil {
				return 0, err
			}
		}
		count += len(docs)
	}
	if err := enc.Encode(exportLine{Count: &count}); err != nil {
		return 0, err
	}
	return count, out.Flush()
}

// exportBlobs writes the code that the functions and rules among some documents name, and returns how much that was.
func (t *Transfer) exportBlobs(ctx context.Context, enc *json.Encoder, docs []store.Document) (int, error) {
	written := map[string]bool{}
	for _, d := range docs {
		digests, err := codeOf(d)
		if err != nil {
			return 0, fmt.Errorf("export %s: %w", d.Key, err)
		}
		for _, digest := range digests {
			if written[digest] {
				continue
			}
			data, err := t.blobs.Get(ctx, digest)
			if d.Kind == kindRule && fault.KindOf(err) == fault.NotFound {
				continue // a rule may pin what nobody has uploaded
			}
			written[digest] = true
			if err != nil {
				return 0, fmt.Errorf("export %s: %w", d.Key, err)
			}
			text, err := json.Marshal(data)
			if err != nil {
				return 0, err
			}
			if err := enc.Encode(exportLine{Store: storeBlobs, Kind: function.Kind, Name: digest, Document: text}); err != nil {
				return 0, err
			}
		}
	}
	return len(written), nil
}

// codeOf lists the code that a document names, in hex.
func codeOf(d store.Document) ([]string, error) {
	switch d.Kind {
	case function.Kind:
		return function.Digests(d.Raw)
	case kindRule:
		r, err := rules.ParseRule(d.Raw)
		if err != nil {
			return nil, err
		}
		digests := r.Code()
		for i, digest := range digests {
			digests[i] = strings.TrimPrefix(digest, "sha256:")
		}
		return digests, nil
	}
	return nil, nil
}

// importBlobs writes the code of an export. What a failure leaves of it is swept when nothing names it.
func (t *Transfer) importBlobs(ctx context.Context, writes []store.Write, done *Imported) error {
	for _, w := range writes {
		if _, err := t.blobs.Get(ctx, w.Key.Name); err == nil {
			done.Unchanged++
			continue
		} else if fault.KindOf(err) != fault.NotFound {
			return err
		}
		var data []byte
		if err := json.Unmarshal(w.Raw, &data); err != nil {
			return err // it was read before
		}
		if _, err := t.blobs.Put(ctx, data); err != nil {
			return err
		}
		done.Written++
	}
	return nil
}

// everything returns the documents of a store in the order of their keys.
func everything(ctx context.Context, s store.Store) ([]store.Document, error) {
	// Watch would wait for a store that is away.
	if _, err := s.List(ctx, store.Query{Kind: kindBus, Limit: 1}); err != nil {
		return nil, err
	}
	var docs []store.Document
	whole := errors.New("whole")
	err := s.Watch(ctx, func(c store.Change) error {
		if c.Key == (store.Key{}) {
			return whole
		}
		docs = append(docs, c.Document)
		return nil
	})
	if !errors.Is(err, whole) {
		return nil, err
	}
	slices.SortFunc(docs, func(a, b store.Document) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Scope, b.Scope), cmp.Compare(a.Name, b.Name))
	})
	return docs, nil
}

// Imported says what an import has done.
type Imported struct {
	Written, Unchanged int
}

// Import reads an export and writes what is in it. Nothing is written if the export is not whole. A document that is there
// with another content is a Conflict, unless replace is set; what is there and not in the export stays. It writes in
// change sets, so an import that fails half-way may be done again.
func (t *Transfer) Import(ctx context.Context, r io.Reader, replace bool) (done Imported, err error) {
	sets, err := readExport(r)
	if err != nil {
		return Imported{}, err
	}
	for _, name := range []string{storeDefinitions, storeSchemas} {
		if sets[name], err = t.missing(ctx, name, sets[name], replace, &done); err != nil {
			return Imported{}, err
		}
	}
	ctx = store.WithAuthor(ctx, store.Author{Name: "(import)"})
	if err := t.importBlobs(ctx, sets[storeBlobs], &done); err != nil {
		return done, err
	}
	delete(sets, storeBlobs)
	for name, writes := range sets {
		for set := range slices.Chunk(writes, store.MaxWrites) {
			if _, err := t.stores[name].Apply(ctx, set); err != nil {
				return done, err
			}
			done.Written += len(set)
		}
	}
	return done, nil
}

// missing returns what of an export is to be written to a store, each under the condition that what is there stays as it
// was looked at.
func (t *Transfer) missing(ctx context.Context, name string, writes []store.Write, replace bool, done *Imported) ([]store.Write, error) {
	docs, err := everything(ctx, t.stores[name])
	if err != nil {
		return nil, err
	}
	stored := make(map[store.Key]store.Document, len(docs))
	for _, d := range docs {
		stored[d.Key] = d
	}
	var todo []store.Write
	for _, w := range writes {
		d, there := stored[w.Key]
		switch {
		case !there:
			w.If = store.Condition{Absent: true}
		case bytes.Equal(d.Raw, w.Raw):
			done.Unchanged++
			continue
		case !replace:
			return nil, fault.New(fault.Conflict, "%s is there already, with another content", w.Key)
		default:
			w.If = store.Condition{Revision: d.Revision}
		}
		todo = append(todo, w)
	}
	return todo, nil
}

// readExport reads a whole export: the writes that make it, by store.
func readExport(r io.Reader) (map[string][]store.Write, error) {
	lines := bufio.NewScanner(io.LimitReader(r, maxExport+1))
	lines.Buffer(nil, maxExportLine)
	sets := map[string][]store.Write{}
	seen := map[string]map[store.Key]bool{storeDefinitions: {}, storeSchemas: {}, storeBlobs: {}}
	count, ended, size := 0, false, 0
	for n := 1; lines.Scan(); n++ {
		if size += len(lines.Bytes()) + 1; size > maxExport {
			return nil, fault.New(fault.TooLarge, "an export has at most %d bytes", maxExport)
		}
		l, err := parseExportLine(lines.Bytes(), n)
		switch {
		case err != nil:
			return nil, fmt.Errorf("line %d: %w", n, err)
		case ended:
			return nil, fmt.Errorf("line %d: the export has ended before", n)
		case n == 1:
		case l.Count != nil:
			if ended = true; *l.Count != count {
				return nil, fmt.Errorf("line %d: there are %d documents, and were %d", n, count, *l.Count)
			}
		default:
			w := store.Write{Key: store.Key{Kind: l.Kind, Scope: l.Scope, Name: l.Name}, Raw: l.Document}
			if seen[l.Store][w.Key] {
				return nil, fmt.Errorf("line %d: %s is there twice", n, w.Key)
			}
			seen[l.Store][w.Key] = true
			sets[l.Store] = append(sets[l.Store], w)
			count++
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read the export: %w", err)
	}
	if !ended {
		return nil, errors.New("the export is not whole: its last line, which counts the documents, is missing")
	}
	return sets, nil
}

// parseExportLine reads line n, from 1.
func parseExportLine(line []byte, n int) (l exportLine, err error) {
	dec := json.NewDecoder(bytes.NewReader(line))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&l); err != nil || dec.More() {
		return l, errors.New("is no line of an export")
	}
	switch {
	case n == 1 && l.Format != exportFormat:
		return l, fmt.Errorf("is not the head of an export: format must be %q", exportFormat)
	case n == 1 || l.Count != nil:
		return l, nil
	case l.Store == storeBlobs:
		var data []byte
		if json.Unmarshal(l.Document, &data) != nil || len(data) > store.MaxBlob || store.Digest(data) != l.Name {
			return l, errors.New("holds other data than its name says")
		}
	case l.Store != storeDefinitions && l.Store != storeSchemas:
		return l, fmt.Errorf("store must be %s, %s or %s", storeDefinitions, storeSchemas, storeBlobs)
	}
	if err := store.CheckKey(store.Key{Kind: l.Kind, Scope: l.Scope, Name: l.Name}); err != nil {
		return l, err
	}
	l.Document, err = store.Compact(l.Document)
	return l, err
}
