// SPDX-License-Identifier: Apache-2.0

package function

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/store"
	"github.com/rialto-bridge/rialto/rules"
	"github.com/rialto-bridge/rialto/targets"
	"github.com/rialto-bridge/rialto/targets/wasm"
)

// Kind is the kind of definition.
const Kind = "Function"

// Options are what a Library is made of.
type Options struct {
	Runtime *wasm.Runtime
	Blobs   store.Blobs
	Dir     string // where this process keeps the code that it uses, so that it does without the store
	Logger  *slog.Logger
	Now     func() time.Time // nil = time.Now
}

// Library is the functions that are defined. It is safe for concurrent use.
type Library struct {
	o   Options
	log *slog.Logger

	mu        sync.Mutex // guards all below
	functions map[string]*defined
}

// defined is a function with those of its versions that somebody has called.
type defined struct {
	*Definition
	running map[string]*wasm.Function // by digest
}

// NewLibrary returns an empty library.
func NewLibrary(o Options) *Library {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &Library{o: o, log: o.Logger.With("component", "functions"), functions: make(map[string]*defined)}
}

// Normalize checks a document as it was written, and what it says of code, and returns what is stored. old is what is
// stored now; nil = nothing. A document without code keeps the code there is.
func (l *Library) Normalize(ctx context.Context, doc, old []byte) ([]byte, error) {
	d, err := ParseDefinition(doc)
	if err != nil {
		return nil, err
	}
	d.Versions = nil
	if old != nil {
		was, err := ParseDefinition(old)
		if err != nil {
			return nil, fmt.Errorf("stored function %s: %w", d.Name, err)
		}
		d.Versions = was.Versions
		if d.Code == "" {
			d.Code = was.Code
		}
	}
	if d.Code == "" {
		return nil, fault.Invalidf("/code", "is missing: upload the code first, with PUT /v1/functions/%s/code", d.Name)
	}
	code, err := l.code(ctx, d.Code)
	if err != nil && fault.KindOf(err) == fault.NotFound {
		return nil, fault.Invalidf("/code", "no code with this digest is kept; upload it with PUT /v1/functions/%s/code", d.Name)
	}
	if err != nil {
		return nil, err
	}
	if d.Settings.ABI, err = l.o.Runtime.Check(ctx, code, hexOf(d.Code), d.Settings); err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(d.Versions, func(v Version) bool { return v.Digest == d.Code }) { // so it may be swept, or have been
		if _, err := l.o.Blobs.Put(ctx, code); err != nil {
			return nil, err
		}
	}
	d.take(d.Code, len(code), l.o.Now().UTC().Truncate(time.Second))
	return d.encode()
}

// Upload keeps code and returns the document of a function with it, which Normalize takes. old is what is stored now; nil =
// nothing, and the function has all defaults. Code that cannot work with the function's settings is refused.
func (l *Library) Upload(ctx context.Context, name string, code, old []byte) ([]byte, error) {
	d := &Definition{Name: name, Settings: (&document{}).settings(nil)}
	if old != nil {
		was, err := ParseDefinition(old)
		if err != nil {
			return nil, fmt.Errorf("stored function %s: %w", name, err)
		}
		d = was
	}
	d.Settings.ABI = "" // the new code may speak another
	digest := store.Digest(code)
	if _, err := l.o.Runtime.Check(ctx, code, digest, d.Settings); err != nil {
		return nil, err
	}
	if _, err := l.o.Blobs.Put(ctx, code); err != nil {
		return nil, err
	}
	d.Code = "sha256:" + digest
	return d.encode()
}

// Code returns the code of a version of a function; "" is the one in force.
func (l *Library) Code(ctx context.Context, name, digest string) ([]byte, error) {
	l.mu.Lock()
	f := l.functions[name]
	l.mu.Unlock()
	if f == nil {
		return nil, noFunction(name)
	}
	if digest == "" {
		digest = f.Definition.Code
	}
	for _, v := range f.Versions {
		if v.Digest == digest {
			return l.code(ctx, digest)
		}
	}
	return nil, noVersion(name, digest)
}

// CheckCode returns nil if code is kept, NotFound if it is not; digest is sha256:<hex>.
func (l *Library) CheckCode(ctx context.Context, digest string) error {
	_, err := l.code(ctx, digest)
	return err
}

func noFunction(name string) error { return fault.New(fault.NotFound, "there is no function %s", name) }

func noVersion(name, digest string) error {
	return fault.New(fault.NotFound, "function %s has no version %s", name, digest)
}

func hexOf(digest string) string { return strings.TrimPrefix(digest, "sha256:") }

// code returns code by its digest: from the folder, or from the store, and then it is in the folder.
func (l *Library) code(ctx context.Context, digest string) ([]byte, error) {
	file := filepath.Join(l.o.Dir, hexOf(digest)+".wasm")
	code, err := os.ReadFile(file)
	if err == nil && store.Digest(code) == hexOf(digest) {
		return code, nil
	}
	if code, err = l.o.Blobs.Get(ctx, hexOf(digest)); err != nil {
		return nil, err
	}
	if err := keep(file, code); err != nil { // it is there for a start without the store, and is read again
		l.log.Warn("code of a function was not kept", "err", err)
	}
	return code, nil
}

// keep writes a file in one step. What a crash leaves of it is not taken for code, since its digest is another.
func keep(file string, b []byte) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	part := file + ".part"
	if err := os.WriteFile(part, b, 0o600); err != nil {
		return err
	}
	return os.Rename(part, file)
}

// Set puts a function in force. Calls under way end with what they have begun with.
func (l *Library) Set(d *Definition) {
	l.mu.Lock()
	old := l.functions[d.Name]
	l.functions[d.Name] = &defined{Definition: d, running: make(map[string]*wasm.Function)}
	l.mu.Unlock()
	old.close()
}

// Remove takes a function out of force.
func (l *Library) Remove(name string) {
	l.mu.Lock()
	old := l.functions[name]
	delete(l.functions, name)
	l.mu.Unlock()
	old.close()
}

func (d *defined) close() {
	if d != nil {
		for _, f := range d.running {
			f.Close()
		}
	}
}

// Digest returns which version of a function is in force; "" if there is no function of this name.
func (l *Library) Digest(name string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if f := l.functions[name]; f != nil {
		return f.Definition.Code
	}
	return ""
}

// Status returns where a function stands in this process; nil if it is not defined.
func (l *Library) Status(name string) any {
	l.mu.Lock()
	defer l.mu.Unlock()
	f := l.functions[name]
	if f == nil {
		return nil
	}
	if running := f.running[f.Definition.Code]; running != nil {
		return running.Status()
	}
	return wasm.Status{}
}

// Call hands an event to a version of a function, "" for the one in force, and blocks until it has a result. The error is a
// *targets.Error.
func (l *Library) Call(ctx context.Context, name, digest, delivery string, ev *event.Event) (wasm.Result, error) {
	call := callOf(delivery, ev)
	for {
		f, err := l.function(ctx, name, digest)
		if err != nil {
			return wasm.Result{}, notHad(ctx, err)
		}
		r, err := f.Call(ctx, call)
		if !errors.Is(err, wasm.ErrClosed) || ctx.Err() != nil { // another version was put in force just now
			return r, err
		}
	}
}

func callOf(delivery string, ev *event.Event) wasm.Call {
	call := wasm.Call{Delivery: delivery, Time: ev.Time, Event: rules.JSONForm(ev)}
	if call.Time.IsZero() {
		call.Time = time.Unix(0, 0)
	}
	return call
}

// notHad says why a version is not there. What nobody keeps will not come back.
func notHad(ctx context.Context, err error) *targets.Error {
	switch {
	case fault.KindOf(err) == fault.NotFound:
		return &targets.Error{Reason: targets.ReasonFunction, Permanent: true, Err: err}
	case ctx.Err() != nil:
		return &targets.Error{Reason: targets.ReasonOf(ctx.Err()), Err: err}
	}
	return &targets.Error{Reason: targets.ReasonInternal, Err: err}
}

// function returns a version, which is made when it is first asked for.
func (l *Library) function(ctx context.Context, name, digest string) (*wasm.Function, error) {
	if err := l.had(ctx, name, digest); err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	d := l.functions[name]
	if d == nil {
		return nil, noFunction(name)
	}
	if digest == "" {
		digest = d.Definition.Code
	}
	f := d.running[digest]
	if f == nil {
		f = l.o.Runtime.Function(l.spec(d, digest))
		d.running[digest] = f
	}
	return f, nil
}

// had returns nil if a version can be had: the function keeps it, or, since a rule may pin one that it keeps no more, its code
// is there.
func (l *Library) had(ctx context.Context, name, digest string) error {
	l.mu.Lock()
	d := l.functions[name]
	known := d != nil && (digest == "" || digest == d.Definition.Code || d.running[digest] != nil ||
		slices.ContainsFunc(d.Versions, func(v Version) bool { return v.Digest == digest }))
	l.mu.Unlock()
	switch {
	case d == nil:
		return noFunction(name)
	case known:
		return nil
	case !digestPattern.MatchString(digest):
		return noVersion(name, digest)
	}
	_, err := l.code(ctx, digest)
	if err != nil && fault.KindOf(err) == fault.NotFound {
		return noVersion(name, digest)
	}
	return err
}

func (l *Library) spec(d *defined, digest string) wasm.Spec {
	settings := d.Settings
	if digest != d.Definition.Code {
		settings.ABI = "" // that of another version
	}
	return wasm.Spec{Name: d.Name, Digest: hexOf(digest), Settings: settings,
		Code: func(ctx context.Context) ([]byte, error) { return l.code(ctx, digest) }}
}

// sweepAfter is how old code must be that no function names before it is removed: an upload comes before its document.
const sweepAfter = time.Hour

// Sweep removes code that nothing names any more from the store, and from this process's folders. docs are all functions
// that are defined, and pinned the versions that others name, as sha256:<hex>.
func (l *Library) Sweep(ctx context.Context, docs []store.Document, pinned []string) error {
	kept := make(map[string]bool)
	for _, digest := range pinned {
		kept[hexOf(digest)] = true
	}
	for _, doc := range docs {
		digests, err := Digests(doc.Raw)
		if err != nil {
			return fmt.Errorf("stored function %s: %w", doc.Name, err) // which may name any code
		}
		for _, digest := range digests {
			kept[digest] = true
		}
	}
	before := l.o.Now().Add(-sweepAfter)
	err := l.o.Blobs.Sweep(ctx, kept, before)
	entries, rerr := os.ReadDir(l.o.Dir)
	if rerr != nil && !os.IsNotExist(rerr) {
		err = errors.Join(err, rerr)
	}
	for _, e := range entries {
		digest := strings.TrimSuffix(e.Name(), ".wasm")
		if info, ierr := e.Info(); ierr == nil && !kept[digest] && info.ModTime().Before(before) {
			err = errors.Join(err, os.Remove(filepath.Join(l.o.Dir, e.Name())), l.o.Runtime.Forget(digest))
		}
	}
	return err
}

// Transform has a function make the data of an event. A version that is named does the same again, so what it has done
// wrong it does for good; only time and the store may be kinder. The error is a *targets.Error.
func (l *Library) Transform(ctx context.Context, name, code, delivery string, ev *event.Event) (data []byte, contentType string, err error) {
	r, err := l.Call(ctx, name, code, delivery, ev)
	return dataOf(name, code, r, err)
}

func dataOf(name, code string, r wasm.Result, err error) ([]byte, string, error) {
	var te *targets.Error
	switch {
	case errors.As(err, &te) && te.Reason == targets.ReasonFunction && code != "":
		var refusal *wasm.Refusal
		again := *te
		again.Permanent = te.Permanent || !errors.As(err, &refusal)
		return nil, "", &again
	case err != nil:
		return nil, "", err
	case r.Data == nil:
		return nil, "", &targets.Error{Reason: targets.ReasonFunction, Permanent: true, Err: fmt.Errorf("function %s has returned no data", name)}
	}
	return r.Data, r.DataContentType, nil
}
