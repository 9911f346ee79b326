// SPDX-License-Identifier: Apache-2.0

package sources

import (
	"encoding/json"
	"errors"

	"github.com/rialto-bridge/rialto/internal/fault"
)

// DefaultBus takes the events of a source that does not name one.
const DefaultBus = "default"

// maxDocument is the most bytes of a definition.
const maxDocument = 256 << 10

// Definition is a parsed Source document. It is immutable and safe to share.
type Definition struct {
	Name   string          `json:"name"`
	Type   string          `json:"type"` // name of the kind
	Bus    string          `json:"bus"`
	Paused bool            `json:"paused"`
	Start  string          `json:"start"` // as ParseStart reads it
	Config json.RawMessage `json:"config"`

	// Revision is that of the document: whoever loads it sets it before the definition is shared.
	Revision uint64 `json:"-"`
}

// ParseDefinition reads a Source document as a user writes it and checks it whole: its form, the config against the
// kind's schema, and the kind's own Check. The error is a *fault.Error of kind Invalid that holds every complaint found,
// with JSON pointers into doc, and never a value. Server-owned fields (revision, createdAt, updatedAt, status) are
// ignored.
func ParseDefinition(doc []byte, kinds *Catalog) (*Definition, error) {
	return parse(doc, kinds, true)
}

// LoadDefinition reads a document that ParseDefinition has accepted before. It leaves out the kind's Check, whose answer
// may depend on how this process was started, and takes a start that the kind does not have for latest.
func LoadDefinition(doc []byte, kinds *Catalog) (*Definition, error) {
	return parse(doc, kinds, false)
}

func parse(doc []byte, kinds *Catalog, check bool) (*Definition, error) {
	if len(doc) > maxDocument {
		return nil, fault.Invalidf("", "the document is longer than %d bytes", maxDocument)
	}
	if !json.Valid(doc) {
		return nil, fault.Invalidf("", "is not JSON")
	}
	details := kinds.form.Complaints("", doc)
	d := &Definition{}
	if err := json.Unmarshal(doc, d); err != nil {
		var wrong *json.UnmarshalTypeError // which the schema complained of
		if !errors.As(err, &wrong) || len(details) == 0 {
			return nil, fault.Invalidf("", "is not a source")
		}
	}
	if d.Bus == "" {
		d.Bus = DefaultBus
	}
	if d.Config == nil {
		d.Config = json.RawMessage("{}")
	}
	if k, known := kinds.Lookup(d.Type); known {
		details = append(details, kinds.checkConfig(d.Type, d.Config, check)...)
		if _, ok := ParseStart(d.Start); !ok || check && k.Starts {
			if why := startFault(k, d.Start); why != "" {
				details = append(details, fault.Detail{Pointer: "/start", Detail: why})
			}
		} else if d.Start != "" && !k.Starts {
			details = append(details, fault.Detail{Pointer: "/start", Detail: "is not for sources of this type: they have no position"})
		}
	}
	if err := fault.Collect(details); err != nil {
		return nil, err
	}
	return d, nil
}
