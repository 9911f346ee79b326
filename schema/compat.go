// SPDX-License-Identifier: Apache-2.0

package schema

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/rialto-bridge/rialto/internal/fault"
)

// Outcome is what a check comes to.
type Outcome string

// The outcomes. Compatible is a proof: every document of the writer is valid for the reader. Incompatible has a document
// that is not, or is plain from the texts. Unknown is neither.
const (
	Compatible   Outcome = "COMPATIBLE"
	Unknown      Outcome = "UNKNOWN"
	Incompatible Outcome = "INCOMPATIBLE"
)

// Finding is a reason why a writer's documents may not do for a reader.
type Finding struct {
	Outcome Outcome `json:"outcome"` // Unknown or Incompatible
	Rule    string  `json:"rule"`    // its name in docs/schemas.md
	Reason  string  `json:"reason"`
	Writer  string  `json:"writer"` // JSON pointer into the writer's text; a path of names for Avro and Protobuf
	Reader  string  `json:"reader"`
	// Witness is a document that is valid for the writer and not for the reader, as the validator has confirmed.
	Witness json.RawMessage `json:"witness,omitempty"`
	// WriterIs says which of the two texts was the writer: old or new.
	WriterIs string `json:"writerIs"`
	// Version is the version that the new text was compared with; 0 when two texts were compared.
	Version int `json:"version,omitempty"`
}

// Verdict is the result of a check: the worst outcome, and why.
type Verdict struct {
	Outcome  Outcome   `json:"outcome"`
	Findings []Finding `json:"findings,omitempty"`
}

// Names of sides.
const (
	sideOld = "old"
	sideNew = "new"
)

// Compare says whether a new text may follow an old one. Both have the same format; otherwise they are incompatible. It
// takes bounded time: what would take longer is Unknown.
func Compare(older, newer *Compiled, m Mode, p Policy) Verdict {
	v := Verdict{Outcome: Compatible}
	if m == None || older.Hash == newer.Hash {
		return v
	}
	if older.Format != newer.Format {
		return Verdict{Incompatible, []Finding{{Outcome: Incompatible, Rule: "F1", WriterIs: sideOld,
			Reason: fmt.Sprintf("the format changes from %s to %s", older.Format, newer.Format)}}}
	}
	switch m {
	case Backward, BackwardTransitive:
		v.add(sideOld, older.readableBy(newer, p))
	case Forward, ForwardTransitive:
		v.add(sideNew, newer.readableBy(older, p))
	default:
		v.add(sideOld, older.readableBy(newer, p))
		v.add(sideNew, newer.readableBy(older, p))
	}
	return v
}

// readableBy lists why what is written by c cannot be read by r.
func (c *Compiled) readableBy(r *Compiled, p Policy) []Finding {
	switch c.Format {
	case Avro:
		return avroFindings(c.avro, r.avro)
	case Protobuf:
		return protoFindings(c.proto, r.proto, p)
	}
	return jsonFindings(c.json, r.json, p)
}

// maxFindings is how many findings a verdict lists.
const maxFindings = 20

func (v *Verdict) add(writer string, findings []Finding) {
	for _, f := range findings {
		f.WriterIs = writer
		v.Outcome = worse(v.Outcome, f.Outcome)
		if len(v.Findings) < maxFindings {
			v.Findings = append(v.Findings, f)
		}
	}
	slices.SortStableFunc(v.Findings, func(a, b Finding) int { return -cmp.Compare(a.Outcome.rank(), b.Outcome.rank()) })
}

func (o Outcome) rank() int { return slices.Index([]Outcome{Compatible, Unknown, Incompatible}, o) }

func worse(a, b Outcome) Outcome {
	if b.rank() > a.rank() {
		return b
	}
	return a
}

// Join adds the verdict of a comparison with a version.
func (v *Verdict) Join(version int, w Verdict) {
	for _, f := range w.Findings {
		f.Version = version
		v.Outcome = worse(v.Outcome, f.Outcome)
		if len(v.Findings) < maxFindings {
			v.Findings = append(v.Findings, f)
		}
	}
}

// Err is nil when the new text may be registered, else a Conflict that lists the findings by their pointers.
func (v Verdict) Err(allowUnknown bool) error {
	if v.Outcome == Compatible || v.Outcome == Unknown && allowUnknown {
		return nil
	}
	return &IncompatibleError{v}
}

// IncompatibleError refuses a version. It is a fault of kind Invalid to those who do not look closer.
type IncompatibleError struct{ Verdict Verdict }

// Error is the first reason.
func (e *IncompatibleError) Error() string { return e.asFault().Error() }

// Unwrap returns the fault that it is.
func (e *IncompatibleError) Unwrap() error { return e.asFault() }

func (e *IncompatibleError) asFault() *fault.Error {
	f := &fault.Error{Kind: fault.Invalid, Message: "is not compatible with what is registered"}
	if e.Verdict.Outcome == Unknown {
		f.Message = "cannot be shown to be compatible with what is registered"
	}
	for _, x := range e.Verdict.Findings {
		at := x.Reader
		if x.WriterIs == sideNew {
			at = x.Writer
		}
		f.Details = append(f.Details, fault.Detail{Pointer: at, Detail: x.String()})
	}
	return f
}

// String is one line: rule, reason, and the document that shows it.
func (f Finding) String() string {
	s := fmt.Sprintf("%s: %s", f.Rule, f.Reason)
	if f.Version > 0 {
		s += fmt.Sprintf(" (version %d)", f.Version)
	}
	if f.Witness != nil {
		s += "; for example " + string(f.Witness)
	}
	return s
}
