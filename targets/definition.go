// SPDX-License-Identifier: Apache-2.0

package targets

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/rialto-bridge/rialto/internal/fault"
)

// Definition is a parsed Target document. It is immutable and safe to share.
type Definition struct {
	Name        string
	Type        string // name of the kind
	Description string
	Labels      map[string]string
	Paused      bool            // nothing is attempted; what is owed is kept
	Config      json.RawMessage // valid for the kind; {} when the document has none
	Delivery    DeliveryPolicy

	// Revision is that of the document: whoever loads it sets it before the definition is shared. A target that was
	// disabled is enabled by another revision.
	Revision uint64
}

// ParseDefinition reads a Target document as a user writes it and checks it whole: its form, the config against the
// kind's schema, and the kind's own Check. The error is a *fault.Error of kind Invalid that holds every complaint found,
// with JSON pointers into doc, and never a value. Server-owned fields (revision, createdAt, updatedAt, status) are
// ignored.
func ParseDefinition(doc []byte, kinds *Catalog) (*Definition, error) {
	return parse(doc, kinds, true)
}

// LoadDefinition reads a document that ParseDefinition has accepted before. It leaves out the kind's Check, whose answer
// may depend on how this process was started: an address that is no longer on the egress allow-list must give failed
// deliveries that say so, and not a target that has vanished.
func LoadDefinition(doc []byte, kinds *Catalog) (*Definition, error) {
	return parse(doc, kinds, false)
}

// HeldDefinition is what is known of a document whose target cannot be used at the moment, whatever is wrong with it: its name, and how
// is delivered to it.
func HeldDefinition(name string, doc []byte) *Definition {
	d := &Definition{Name: name, Delivery: DefaultDeliveryPolicy()}
	if o, err := objectAt("", doc); err == nil {
		o.delivery(&d.Delivery)
	}
	return d
}

func parse(doc []byte, kinds *Catalog, check bool) (*Definition, error) {
	if err := checkDocument(doc); err != nil {
		return nil, err
	}
	o, err := objectAt("", doc)
	if err != nil {
		return nil, err
	}
	d := &Definition{Config: json.RawMessage("{}"), Delivery: DefaultDeliveryPolicy()}
	o.kind()
	d.Name = o.name()
	d.Type = o.text("type", 1, 63)
	d.Description = o.text("description", 0, 4096)
	d.Labels = o.labels()
	o.boolean("paused", &d.Paused)
	o.delivery(&d.Delivery)
	if raw, ok := o.take("config"); ok {
		d.Config = raw
	}
	o.drop("revision", "createdAt", "updatedAt", "status")
	o.rest()
	if d.Type != "" {
		o.config(kinds, d.Type, d.Config, check)
	}
	if err := fault.Collect(o.faults()); err != nil {
		return nil, err
	}
	return d, nil
}

// object reads the members of one JSON object by name and gathers complaints.
type object struct {
	pointer string
	members map[string]json.RawMessage
	details *[]fault.Detail // shared with nested objects
}

func objectAt(pointer string, raw []byte) (*object, error) {
	o := &object{pointer: pointer, details: new([]fault.Detail)}
	if !isObject(raw) {
		return nil, fault.Invalidf(pointer, "is not an object")
	}
	if err := json.Unmarshal(raw, &o.members); err != nil {
		return nil, fault.Invalidf(pointer, "is not an object")
	}
	return o, nil
}

func isObject(raw []byte) bool { return bytes.HasPrefix(bytes.TrimLeft(raw, " \t\r\n"), []byte("{")) }

// object returns a member that is an object; nil when there is none.
func (o *object) object(name string) *object {
	raw, ok := o.take(name)
	if !ok {
		return nil
	}
	sub, err := objectAt(o.pointer+fault.Pointer(name), raw)
	if err != nil {
		o.complain(name, "is not an object")
		return nil
	}
	sub.details = o.details
	return sub
}

// take removes a member and returns it; what is null counts as absent.
func (o *object) take(name string) (json.RawMessage, bool) {
	raw, ok := o.members[name]
	delete(o.members, name)
	return raw, ok && string(raw) != "null"
}

func (o *object) drop(names ...string) {
	for _, n := range names {
		delete(o.members, n)
	}
}

func (o *object) complain(name, format string, args ...any) {
	p := o.pointer
	if name != "" {
		p += fault.Pointer(name)
	}
	*o.details = append(*o.details, fault.Detail{Pointer: p, Detail: fmt.Sprintf(format, args...)})
}

// faults returns the complaints in the order of their pointers.
func (o *object) faults() []fault.Detail {
	slices.SortStableFunc(*o.details, func(a, b fault.Detail) int { return strings.Compare(a.Pointer, b.Pointer) })
	return *o.details
}

// rest complains of every member that nobody took.
func (o *object) rest() {
	for name := range o.members {
		o.complain(name, "is not a known field")
	}
}

func (o *object) kind() {
	raw, ok := o.take("kind")
	var s string
	if ok && (json.Unmarshal(raw, &s) != nil || s != "Target") {
		o.complain("kind", "is not Target")
	}
}

var namePattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

func (o *object) name() string {
	raw, ok := o.take("name")
	var s string
	switch {
	case !ok:
		o.complain("name", "is missing")
	case json.Unmarshal(raw, &s) != nil || !namePattern.MatchString(s):
		o.complain("name", "is not a name: 1 to 63 of a-z, 0-9 and -, with no - at either end")
	}
	return s
}

// text returns a string of at least min and at most max bytes.
func (o *object) text(name string, minLen, maxLen int) string {
	raw, ok := o.take(name)
	if !ok {
		if minLen > 0 {
			o.complain(name, "is missing")
		}
		return ""
	}
	var s string
	if json.Unmarshal(raw, &s) != nil {
		o.complain(name, "is not a string")
		return ""
	}
	if len(s) < minLen || len(s) > maxLen {
		o.complain(name, "has not %d to %d bytes", minLen, maxLen)
		return ""
	}
	return s
}

func (o *object) labels() map[string]string {
	sub := o.object("labels")
	if sub == nil {
		return nil
	}
	if len(sub.members) > 64 {
		o.complain("labels", "has more than 64 labels")
		return nil
	}
	labels := make(map[string]string, len(sub.members))
	for _, name := range slices.Collect(maps.Keys(sub.members)) {
		if n := utf8.RuneCountInString(name); n < 1 || n > 63 || strings.ContainsFunc(name, isControl) {
			sub.complain(name, "is not a label: 1 to 63 characters without control characters")
			sub.drop(name)
			continue
		}
		labels[name] = sub.text(name, 0, 256)
	}
	return labels
}

func isControl(r rune) bool { return r < 0x20 || r >= 0x7f && r < 0xa0 }

func (o *object) boolean(name string, to *bool) {
	if raw, ok := o.take(name); ok && json.Unmarshal(raw, to) != nil {
		o.complain(name, "is not true or false")
	}
}

func (o *object) integer(name string, minN, maxN int, to *int) {
	raw, ok := o.take(name)
	if !ok {
		return
	}
	var n int
	if json.Unmarshal(raw, &n) != nil || n < minN || n > maxN {
		o.complain(name, "is not a whole number from %d to %d", minN, maxN)
		return
	}
	*to = n
}

func (o *object) number(name string, minN, maxN float64, to *float64) {
	raw, ok := o.take(name)
	if !ok {
		return
	}
	var n float64
	if json.Unmarshal(raw, &n) != nil || n < minN || n > maxN {
		o.complain(name, "is not a number from %v to %v", minN, maxN)
		return
	}
	*to = n
}

func (o *object) duration(name string, minD, maxD time.Duration, to *time.Duration) {
	raw, ok := o.take(name)
	if !ok {
		return
	}
	d, ok := parseDuration(raw)
	if !ok || d < minD || d > maxD {
		o.complain(name, "is not a duration from %s to %s, such as 30s or 1h30m", short(minD), short(maxD))
		return
	}
	*to = d
}

// parseDuration reads a string such as 1h30m; the number 0 is taken too, because that is what YAML makes of a bare 0.
func parseDuration(raw json.RawMessage) (time.Duration, bool) {
	if string(raw) == "0" {
		return 0, true
	}
	var s string
	if json.Unmarshal(raw, &s) != nil || len(s) > 64 {
		return 0, false
	}
	d, err := time.ParseDuration(s)
	return d, err == nil
}

// short writes a duration of whole hours, minutes or seconds without zeros behind it.
func short(d time.Duration) string {
	s := d.String()
	if h, ok := strings.CutSuffix(s, "h0m0s"); ok {
		return h + "h"
	}
	if m, ok := strings.CutSuffix(s, "m0s"); ok {
		return m + "m"
	}
	return s
}

func (o *object) config(kinds *Catalog, kind string, cfg json.RawMessage, check bool) {
	if _, ok := kinds.Lookup(kind); !ok {
		o.complain("type", "is not a kind of target; there are: %s", strings.Join(kinds.Names(), ", "))
		return
	}
	*o.details = append(*o.details, kinds.checkConfig(kind, "/config", cfg, check)...)
}
