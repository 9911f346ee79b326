// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/store"
)

// Limits of a change set.
const (
	maxSetDocuments = 500 // with those that are pruned
	maxSetFaults    = 1000
)

// plan is a change set on its way into the store.
type plan struct {
	c     *Changes
	set   ChangeSet
	alone bool // there is no server: what is not in the set may well be there

	items  []*item // by document
	byKey  map[store.Key]*item
	faults []fault.Detail // of the documents by themselves

	// What follows is of one try.
	pruned  map[store.Key]store.Document
	others  map[store.Key]store.Document // what the set names and does not have
	wrong   []fault.Detail
	missing []fault.Detail // alone: what the documents name and the set does not have
}

// item is a document of the set.
type item struct {
	n      int // in the request
	kind   *Kind
	key    store.Key
	doc    []byte
	schema *schemaItem // instead of all that follows, and of kind

	old     *store.Document
	raw     []byte // what is stored when it is
	outcome string
	secret  string // of a new key
}

// at is a pointer into the request.
func (it *item) at(pointer string) string { return "/documents/" + strconv.Itoa(it.n) + pointer }

// read takes the documents of a set apart, without looking at the store. The error is TooLarge.
func (c *Changes) read(set ChangeSet) (*plan, error) {
	if len(set.Documents) > maxSetDocuments {
		return nil, tooManyDocuments(len(set.Documents))
	}
	p := &plan{c: c, set: set, byKey: map[store.Key]*item{}}
	for n, doc := range set.Documents {
		it := &item{n: n}
		err := c.readItem(it, doc)
		if err == nil {
			if first := p.byKey[it.key]; first != nil {
				err = fault.Invalidf("/name", "is the name of %s twice: document %d of the set has it, too", it.key, first.n)
			}
		}
		if err != nil {
			p.faults = p.complain(p.faults, it, err)
			continue
		}
		p.byKey[it.key] = it
		p.items = append(p.items, it)
	}
	return p, nil
}

func tooManyDocuments(n int) error {
	return fault.New(fault.TooLarge, "a change set has at most %d documents, those that it prunes among them, and not %d", maxSetDocuments, n)
}

// readItem reads the head of a document.
func (c *Changes) readItem(it *item, doc []byte) error {
	ms, err := members(doc)
	if err != nil {
		return err
	}
	kind, ok := textOf(ms, "kind")
	if it.kind = c.kind(kind); it.kind == nil && (kind != schemaKind || c.schemas == nil) {
		if !ok {
			return fault.Invalidf("/kind", "must be the name of a kind: %s", strings.Join(c.kindNames(), ", "))
		}
		return fault.Invalidf("/kind", "is not known here; there are %s", strings.Join(c.kindNames(), ", "))
	}
	if len(doc) > maxDocument && it.kind != nil {
		return fault.Invalidf("", "is larger than %d KiB", maxDocument>>10)
	}
	if it.kind == nil {
		it.schema, err = readSchemaItem(ms)
		if err == nil {
			it.key = store.Key{Kind: schemaKind, Scope: it.schema.head.Name.Group, Name: it.schema.head.Name.Schema}
		}
		return err
	}
	it.key.Kind = kind
	if it.kind.Scoped {
		bus, _ := textOf(ms, "bus")
		if it.key.Scope, err = checkBus(bus, "/bus"); err != nil {
			return err
		}
	}
	it.key.Name, _ = textOf(ms, "name")
	it.doc, err = prepareDoc(it.kind, doc, it.key.Scope, "")
	return err
}

// textOf returns a member that is a string.
func textOf(ms []member, name string) (s string, ok bool) {
	i := slices.IndexFunc(ms, func(m member) bool { return m.name == name })
	return s, i >= 0 && json.Unmarshal(ms[i].value, &s) == nil
}

func (c *Changes) kindNames() []string {
	var names []string
	for _, k := range c.kinds {
		names = append(names, k.Name)
	}
	if c.schemas != nil {
		names = append(names, schemaKind)
	}
	return names
}

// complain adds what an error says of a document.
func (p *plan) complain(to []fault.Detail, it *item, err error) []fault.Detail {
	var f *fault.Error
	if !errors.As(err, &f) {
		return append(to, fault.Detail{Pointer: it.at(""), Detail: err.Error()})
	}
	if len(f.Details) == 0 {
		return append(to, fault.Detail{Pointer: it.at(""), Detail: f.Message})
	}
	for _, d := range f.Details {
		detail := d.Detail
		if f.Message != "invalid" && f.Message != "" {
			detail = f.Message + ": " + detail
		}
		to = append(to, fault.Detail{Pointer: it.at(d.Pointer), Detail: detail})
	}
	return to
}

// complaints are all that is wrong, in the order of the documents.
func (p *plan) complaints() []fault.Detail {
	all := slices.Concat(p.faults, p.wrong)
	slices.SortStableFunc(all, func(a, b fault.Detail) int { return cmp.Compare(documentOf(a), documentOf(b)) })
	return all[:min(len(all), maxSetFaults)]
}

// documentOf is the number of the document that a complaint is about; -1 if it is about none.
func documentOf(d fault.Detail) int {
	rest, ok := strings.CutPrefix(d.Pointer, "/documents/")
	number, _, _ := strings.Cut(rest, "/")
	n, err := strconv.Atoi(number)
	if !ok || err != nil {
		return -1
	}
	return n
}

// resolve holds the set against what is stored. The error is one of the store's, of Permit, or TooLarge.
func (p *plan) resolve(ctx context.Context) error {
	p.pruned, p.others, p.wrong, p.missing = map[store.Key]store.Document{}, map[store.Key]store.Document{}, nil, nil
	for _, it := range p.items {
		if err := p.permit(it.key); err != nil {
			return err
		}
	}
	for _, it := range p.items {
		if err := p.resolveItem(ctx, it); err != nil {
			if !tellable(err) {
				return err
			}
			p.wrong = p.complain(p.wrong, it, err)
		}
	}
	if err := p.choosePruned(ctx); err != nil {
		return err
	}
	for _, it := range p.items {
		if err := p.checkRefs(ctx, it); err != nil {
			return err
		}
	}
	if err := p.checkUsers(ctx); err != nil {
		return err
	}
	return p.checkSize()
}

// checkSize refuses what would be more writes than the store makes at once. What is named and not in the set is written, too: as it
// is, so that it is still there then.
func (p *plan) checkSize() error {
	changed, named := len(p.items)+len(p.pruned), len(p.others)
	if changed+named <= store.MaxWrites {
		return nil
	}
	return fault.New(fault.TooLarge, "a change set has at most %d definitions, and not %d: %d that it writes or prunes, and %d that these name and that are not in it",
		store.MaxWrites, changed+named, changed, named)
}

// tellable reports whether an error is about a document, and not about the store.
func tellable(err error) bool {
	switch fault.KindOf(err) {
	case fault.Internal, fault.Unavailable, fault.Full:
		return false
	}
	return true
}

func (p *plan) permit(key store.Key) error {
	if p.set.Permit == nil {
		return nil
	}
	return p.set.Permit(key)
}

// resolveItem finds out what becomes of a document.
func (p *plan) resolveItem(ctx context.Context, it *item) (err error) {
	if it.schema != nil {
		return it.schema.resolve(ctx, p.c.schemas)
	}
	if it.old, err = current(ctx, p.c.store, it.key); err != nil {
		return err
	}
	it.raw, it.outcome, it.secret = nil, outcomeCreated, ""
	switch {
	case it.old == nil && it.kind.Name == kindKey:
		var k *keyDoc
		if k, it.secret, err = makeKey(it.doc); err == nil {
			it.raw, err = marshalDoc(k)
		}
	case it.kind.Normalize != nil:
		var was []byte
		if it.old != nil {
			was = it.old.Raw
		}
		it.raw, err = it.kind.Normalize(ctx, it.doc, was)
	default:
		it.raw = it.doc
	}
	if err == nil {
		it.raw, err = store.Compact(it.raw)
	}
	if err != nil || it.old == nil {
		return err
	}
	it.outcome = outcomeConfigured
	if sameJSON(it.old.Raw, it.raw) {
		it.raw, it.outcome = it.old.Raw, outcomeUnchanged
	}
	return nil
}

// sameJSON reports whether two documents say the same, in whatever order and however spaced.
func sameJSON(a, b []byte) bool {
	var values [2]any
	for i, doc := range [][]byte{a, b} {
		dec := json.NewDecoder(bytes.NewReader(doc))
		dec.UseNumber()
		if dec.Decode(&values[i]) != nil {
			return false
		}
	}
	return reflect.DeepEqual(values[0], values[1])
}

// choosePruned finds what the set removes.
func (p *plan) choosePruned(ctx context.Context) error {
	if p.set.Prune == nil {
		return nil
	}
	for _, name := range p.set.Prune.Kinds {
		k := p.c.kind(name)
		err := p.c.each(ctx, name, p.set.Prune.Labels, func(d store.Document) {
			kept := p.byKey[d.Key] != nil || slices.Contains(k.Keep, d.Name) || p.set.Prune.Keep != nil && p.set.Prune.Keep(d)
			if !kept {
				p.pruned[d.Key] = d
			}
		})
		if err != nil {
			return err
		}
	}
	if n := len(p.items) + len(p.pruned); n > maxSetDocuments {
		return tooManyDocuments(n)
	}
	for key := range p.pruned {
		if err := p.permit(key); err != nil {
			return err
		}
	}
	return nil
}

// checkRefs complains about what a document names and what will not be there.
func (p *plan) checkRefs(ctx context.Context, it *item) error {
	if it.raw == nil {
		return nil // it is a schema, or wrong
	}
	var refs []Ref
	if it.kind.Scoped {
		refs = append(refs, Ref{Kind: kindBus, Name: it.key.Scope, Pointer: "/bus"})
	}
	if it.kind.Refs != nil {
		refs = append(refs, it.kind.Refs(it.raw)...)
	}
	for _, ref := range refs {
		key := store.Key{Kind: ref.Kind, Name: ref.Name}
		if p.byKey[key] != nil {
			continue
		}
		complaint := fault.Detail{Pointer: it.at(ref.Pointer), Detail: "there is no " + strings.ToLower(ref.Kind) + " of this name"}
		if _, gone := p.pruned[key]; gone {
			complaint.Detail = "the " + strings.ToLower(ref.Kind) + " of this name would be pruned"
			p.wrong = append(p.wrong, complaint)
			continue
		}
		d, err := current(ctx, p.c.store, key)
		switch {
		case err != nil:
			return err
		case d != nil:
			p.others[key] = *d
		case p.alone:
			complaint.Detail += " in the set"
			p.missing = append(p.missing, complaint)
		default:
			p.wrong = append(p.wrong, complaint)
		}
	}
	return nil
}

// checkUsers complains about what stays and names what is pruned.
func (p *plan) checkUsers(ctx context.Context) error {
	if len(p.pruned) == 0 {
		return nil
	}
	for _, k := range p.c.kinds {
		if k.Refs == nil && !k.Scoped {
			continue
		}
		err := p.c.each(ctx, k.Name, nil, func(d store.Document) {
			_, gone := p.pruned[d.Key]
			if gone || p.byKey[d.Key] != nil { // what is in the set has been checked
				return
			}
			var named []store.Key
			if k.Scoped {
				named = append(named, store.Key{Kind: kindBus, Name: d.Scope})
			}
			if k.Refs != nil {
				for _, ref := range k.Refs(d.Raw) {
					named = append(named, store.Key{Kind: ref.Kind, Name: ref.Name})
				}
			}
			for _, key := range named {
				if _, gone := p.pruned[key]; gone {
					p.wrong = append(p.wrong, fault.Detail{Pointer: "/prune", Detail: key.String() + " is in use by " + d.Key.String() + ", which stays"})
				}
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// writes is what the store is asked for: documents, what they refer to before it; then what is removed, the other way
// round; and, so that it stays as it was found, what they name beside.
func (p *plan) writes() []store.Write {
	var set []store.Write
	for _, it := range p.items {
		if it.schema != nil {
			continue
		}
		w := store.Write{Key: it.key, Raw: it.raw, If: store.Condition{Absent: it.old == nil}}
		if it.old != nil {
			w.If.Revision = it.old.Revision
		}
		set = append(set, w)
	}
	slices.SortStableFunc(set, func(a, b store.Write) int { return p.rank(a.Key) - p.rank(b.Key) })
	for _, key := range p.prunedKeys() {
		set = append(set, store.Write{Key: key, Delete: true, If: store.Condition{Revision: p.pruned[key].Revision}})
	}
	for key, d := range p.others {
		set = append(set, store.Write{Key: key, Raw: d.Raw, If: store.Condition{Revision: d.Revision}})
	}
	return set
}

// rank is 0 for what names nothing, 1 for what names that, 2 for what is on a bus.
func (p *plan) rank(key store.Key) int {
	switch k := p.c.kind(key.Kind); {
	case k.Scoped:
		return 2
	case k.Refs != nil:
		return 1
	}
	return 0
}

// prunedKeys is what is removed, in the order in which it can go.
func (p *plan) prunedKeys() []store.Key {
	var keys []store.Key
	for key := range p.pruned {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b store.Key) int {
		return cmp.Or(p.rank(b)-p.rank(a), strings.Compare(a.String(), b.String()))
	})
	return keys
}
