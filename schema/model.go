// SPDX-License-Identifier: Apache-2.0

package schema

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/rialto-bridge/rialto/internal/fault"
)

// Name names a schema: a name in a group.
type Name struct {
	Group  string
	Schema string
}

// String returns group/schema.
func (n Name) String() string { return n.Group + "/" + n.Schema }

// Ref names a version.
type Ref struct {
	Name
	Version int // from 1
}

// String returns group/schema/version.
func (r Ref) String() string { return fmt.Sprintf("%s/%s/%d", r.Group, r.Schema, r.Version) }

// Format is the language of a schema.
type Format string

// The formats.
const (
	JSONSchema Format = "jsonschema" // draft 4, 6, 7, 2019-09 or 2020-12, as $schema says; 2020-12 when it says nothing
	Avro       Format = "avro"
	Protobuf   Format = "protobuf" // one .proto file
)

// formats are all of them.
var formats = []Format{JSONSchema, Avro, Protobuf}

// State is where a version is in its life.
type State string

// The states. A version may go from discovered or draft to active, between active, deprecated and disabled, and from
// each to deleted, which is the end.
const (
	Discovered State = "discovered" // made from events that were seen; enforced only once it is active
	Draft      State = "draft"      // written, not in use
	Active     State = "active"
	Deprecated State = "deprecated" // in use, and should not be
	Disabled   State = "disabled"   // events that name it are not valid; it can be read
	Deleted    State = "deleted"    // a tombstone: it can be read by who names it
)

var states = []State{Discovered, Draft, Active, Deprecated, Disabled, Deleted}

// next says which states may follow one.
var next = map[State][]State{
	Discovered: {Draft, Active, Deleted},
	Draft:      {Active, Deleted},
	Active:     {Deprecated, Disabled, Deleted},
	Deprecated: {Active, Disabled, Deleted},
	Disabled:   {Active, Deprecated, Deleted},
}

// Counts reports whether events may have been written by a version in this state: such versions are what a new one must be
// compatible with.
func (s State) Counts() bool { return s == Active || s == Deprecated || s == Disabled }

// Mode says which versions a new one must be compatible with. The names are those of xRegistry and, in upper case, of Kafka's
// registries.
type Mode string

// The modes. A writer's documents must be valid for a reader: backward has the new version read, forward the old one,
// full both. The transitive ones look at every version that counts, the others at the latest.
const (
	None               Mode = "none"
	Backward           Mode = "backward"
	BackwardTransitive Mode = "backward_transitive"
	Forward            Mode = "forward"
	ForwardTransitive  Mode = "forward_transitive"
	Full               Mode = "full"
	FullTransitive     Mode = "full_transitive"
)

var modes = []Mode{None, Backward, BackwardTransitive, Forward, ForwardTransitive, Full, FullTransitive}

// Transitive reports whether all versions are looked at.
func (m Mode) Transitive() bool { return strings.HasSuffix(string(m), "_transitive") }

// Policy says what a JSON Schema without additionalProperties promises about writers.
type Policy string

// The policies.
const (
	// Lenient: a writer sends the properties that its schema declares, and no others, unless the schema says additionalProperties.
	Lenient Policy = "lenient"
	// Strict: a writer may send everything that its schema lets through.
	Strict Policy = "strict"
)

var policies = []Policy{Lenient, Strict}

// Reference is a name by which the text of a schema means a version: a $ref, the name of an Avro type, an import.
type Reference struct {
	Name    string `json:"name"`
	Group   string `json:"group"`
	Schema  string `json:"schema"`
	Version int    `json:"version"`
}

// Ref is the version that is meant.
func (r Reference) Ref() Ref { return Ref{Name{r.Group, r.Schema}, r.Version} }

// Schema is what its versions have in common.
type Schema struct {
	Name          Name              `json:"-"`
	Format        Format            `json:"format"`
	Compatibility Mode              `json:"compatibility"`
	Policy        Policy            `json:"policy"`
	AllowUnknown  bool              `json:"allowUnknown,omitempty"` // a check that comes to no verdict lets pass
	Description   string            `json:"description,omitempty"`
	Labels        map[string]string `json:"labels,omitempty"`
	// Deleted: it is not listed, and its versions are deleted. Its numbers are not given again.
	Deleted   bool      `json:"deleted,omitempty"`
	CreatedAt time.Time `json:"createdAt"`
	UpdatedAt time.Time `json:"updatedAt"`
	Revision  uint64    `json:"-"` // of the stored record, for compare-and-swap; 0 = not stored
}

// Version is one text of a schema. Everything but State and UpdatedAt is fixed when it is made.
type Version struct {
	Ref        Ref         `json:"-"`
	ID         int         `json:"id"` // in the whole registry, from 1
	State      State       `json:"state"`
	Format     Format      `json:"format"`
	Dialect    string      `json:"dialect,omitempty"` // of a JSON Schema: draft-04, draft-06, draft-07, 2019-09, 2020-12
	Text       string      `json:"text"`              // as it was registered
	Hash       string      `json:"hash"`              // of the canonical text and the references
	References []Reference `json:"references,omitempty"`
	CreatedAt  time.Time   `json:"createdAt"`
	UpdatedAt  time.Time   `json:"updatedAt"`
	Revision   uint64      `json:"-"` // of the stored record; 0 = not stored
}

// Binding says which schema the events of a type have.
type Binding struct {
	EventType string `json:"eventType"`
	Name      Name   `json:"-"`
	Revision  uint64 `json:"-"`
}

// Limits of names and numbers.
const (
	maxVersions    = 1000 // of a schema, tombstones counted
	maxReferences  = 100
	maxDescription = 4096
	maxEventType   = 1024
)

var (
	groupName  = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
	schemaName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,126}[A-Za-z0-9])?$`)
)

// Check refuses a name that no schema can have.
func (n Name) Check() error {
	var bad []fault.Detail
	if !groupName.MatchString(n.Group) {
		bad = append(bad, fault.Detail{Pointer: "/group", Detail: "has 1 to 63 small letters, digits and hyphens, and begins and ends with a letter or digit"})
	}
	if !schemaName.MatchString(n.Schema) {
		bad = append(bad, fault.Detail{Pointer: "/schema", Detail: "has 1 to 128 letters, digits, dots, hyphens and underscores, and begins and ends with a letter or digit"})
	}
	return fault.Collect(bad)
}

// check refuses a head that cannot be stored, and fills in defaults.
func (s *Schema) check() error {
	if err := s.Name.Check(); err != nil {
		return err
	}
	if s.Format == "" {
		s.Format = JSONSchema
	}
	if s.Compatibility == "" {
		s.Compatibility = Backward
	}
	if s.Policy == "" {
		s.Policy = Lenient
	}
	var bad []fault.Detail
	bad = oneOf(bad, "/format", s.Format, formats)
	bad = oneOf(bad, "/compatibility", s.Compatibility, modes)
	bad = oneOf(bad, "/policy", s.Policy, policies)
	if len(s.Description) > maxDescription {
		bad = append(bad, fault.Detail{Pointer: "/description", Detail: fmt.Sprintf("has at most %d bytes", maxDescription)})
	}
	return fault.Collect(bad)
}

// oneOf complains about a value that is none of those allowed.
func oneOf[T ~string](bad []fault.Detail, pointer string, v T, allowed []T) []fault.Detail {
	if slices.Contains(allowed, v) {
		return bad
	}
	names := make([]string, len(allowed))
	for i, a := range allowed {
		names[i] = string(a)
	}
	return append(bad, fault.Detail{Pointer: pointer, Detail: "must be one of " + strings.Join(names, ", ")})
}

// ParseMode reads the name of a mode in either case; "" is Backward.
func ParseMode(s string) (Mode, error) {
	if s == "" {
		return Backward, nil
	}
	m := Mode(strings.ToLower(s))
	return m, fault.Collect(oneOf(nil, "/compatibility", m, modes))
}

// splitName reads group/schema.
func splitName(s string) Name {
	group, name, _ := strings.Cut(s, "/")
	return Name{group, name}
}
