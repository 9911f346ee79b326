// SPDX-License-Identifier: Apache-2.0

package function

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/targets/wasm"
)

// Version is code that a function has, or had.
type Version struct {
	Digest string    `json:"digest"` // sha256:<hex>
	Size   int       `json:"size"`   // bytes
	At     time.Time `json:"at"`     // when it was last put in force
}

// Which versions are kept: the last keepVersions, and those that were in force within keepFor, but never more than
// maxVersions. An event is rendered by the version it was routed with, and keepFor is longer than a bus keeps events that are
// owed, unless it is told to.
const (
	keepVersions = 5
	keepFor      = 8 * 24 * time.Hour
	maxVersions  = 64
)

// Definition is a Function document.
type Definition struct {
	Name        string
	Description string
	Labels      map[string]string
	Code        string // digest of the version in force: sha256:<hex>
	Settings    wasm.Settings
	Versions    []Version // with the one in force first; kept by the server
}

// document is a Definition as it is written. What may be left out is a pointer.
type document struct {
	Kind        string            `json:"kind"`
	Name        string            `json:"name"`
	Labels      map[string]string `json:"labels,omitempty"`
	Description string            `json:"description,omitempty"`
	Code        string            `json:"code,omitempty"`
	ABI         string            `json:"abi,omitempty"`
	MemoryLimit *size             `json:"memoryLimit,omitempty"`
	Timeout     string            `json:"timeout,omitempty"`
	MaxOutput   *size             `json:"maxOutput,omitempty"`
	Stateful    bool              `json:"stateful,omitempty"`
	Instances   *int              `json:"instances,omitempty"`
	Versions    []Version         `json:"versions,omitempty"`

	// The server's own, which are ignored.
	Revision  json.RawMessage `json:"revision,omitempty"`
	CreatedAt json.RawMessage `json:"createdAt,omitempty"`
	UpdatedAt json.RawMessage `json:"updatedAt,omitempty"`
	Status    json.RawMessage `json:"status,omitempty"`
}

// size is a number of bytes, written as one or as 32MiB.
type size int64

var sizePattern = regexp.MustCompile(`^([0-9]{1,12})(KiB|MiB)?$`)

var errSize = errors.New("is no size")

// UnmarshalJSON implements json.Unmarshaler.
func (s *size) UnmarshalJSON(b []byte) error {
	m := sizePattern.FindStringSubmatch(strings.Trim(string(b), `"`))
	if m == nil {
		*s = math.MinInt64 // out of every range, so that the complaint says what is allowed
		return nil
	}
	n, err := strconv.ParseInt(m[1], 10, 64)
	if err != nil {
		return errSize
	}
	*s = size(n << map[string]uint{"": 0, "KiB": 10, "MiB": 20}[m[2]])
	return nil
}

// MarshalJSON implements json.Marshaler.
func (s size) MarshalJSON() ([]byte, error) { return json.Marshal(s.String()) }

// String writes a size as briefly as it goes.
func (s size) String() string {
	switch {
	case s > 0 && s%(1<<20) == 0:
		return strconv.FormatInt(int64(s>>20), 10) + "MiB"
	case s > 0 && s%(1<<10) == 0:
		return strconv.FormatInt(int64(s>>10), 10) + "KiB"
	}
	return strconv.FormatInt(int64(s), 10)
}

var digestPattern = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

// maxDescription bounds a description, and maxLabels the labels, in bytes.
const (
	maxDescription = 4096
	maxLabels      = 16 << 10
)

// ParseDefinition reads a Function document, given as JSON, and refuses what it does not know. What it leaves out has its
// default; an ABI that is left out is "". The error is a *fault.Error with JSON pointers.
func ParseDefinition(raw []byte) (*Definition, error) {
	var d document
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&d); err != nil {
		return nil, decodeFault(err)
	}
	var bad []fault.Detail
	complain := func(pointer, format string, args ...any) {
		bad = append(bad, fault.Detail{Pointer: pointer, Detail: fmt.Sprintf(format, args...)})
	}
	if d.Kind != "" && d.Kind != Kind {
		complain("/kind", "must be %s", Kind)
	}
	if d.Code != "" && !digestPattern.MatchString(d.Code) {
		complain("/code", "must be the digest of code that was uploaded: sha256: and 64 hexadecimal digits")
	}
	if len(d.Description) > maxDescription {
		complain("/description", "has %d bytes; at most %d are allowed", len(d.Description), maxDescription)
	}
	labels := 0
	for name, value := range d.Labels {
		labels += len(name) + len(value)
	}
	if labels > maxLabels {
		complain("/labels", "have %d bytes; at most %d are allowed", labels, maxLabels)
	}
	out := &Definition{Name: d.Name, Description: d.Description, Labels: d.Labels, Code: d.Code, Versions: d.Versions}
	out.Settings = d.settings(complain)
	return out, fault.Collect(bad)
}

func (d *document) settings(complain func(pointer, format string, args ...any)) wasm.Settings {
	s := wasm.Settings{ABI: wasm.ABI(d.ABI), Memory: wasm.DefaultMemory, Timeout: wasm.DefaultTimeout, MaxOutput: wasm.DefaultOutput,
		Stateful: d.Stateful, Instances: wasm.DefaultInstances}
	if s.ABI != "" && s.ABI != wasm.ABIHandle && s.ABI != wasm.ABICommand {
		complain("/abi", "must be %s or %s, or be left out", wasm.ABIHandle, wasm.ABICommand)
	}
	if d.MemoryLimit != nil {
		if s.Memory = int64(*d.MemoryLimit); s.Memory < 64<<10 || s.Memory > wasm.MaxMemory {
			complain("/memoryLimit", "must be a size such as 32MiB, from 64KiB to %s", size(wasm.MaxMemory))
		}
	}
	if d.Timeout != "" {
		var err error
		if s.Timeout, err = time.ParseDuration(d.Timeout); err != nil || s.Timeout < wasm.MinTimeout || s.Timeout > wasm.MaxTimeout {
			complain("/timeout", "must be a duration such as 100ms, from %s to %s", wasm.MinTimeout, wasm.MaxTimeout)
		}
	}
	if d.MaxOutput != nil {
		if n := int64(*d.MaxOutput); n < 1 || n > wasm.MaxOutput {
			complain("/maxOutput", "must be a size such as 1MiB, from 1 to %s", size(wasm.MaxOutput))
		} else {
			s.MaxOutput = int(n)
		}
	}
	if d.Instances != nil {
		if s.Instances = *d.Instances; s.Instances < 1 || s.Instances > wasm.MaxInstances {
			complain("/instances", "must be 1 to %d", wasm.MaxInstances)
		}
	}
	return s
}

// decodeFault says where a document is not what is expected.
func decodeFault(err error) error {
	var typ *json.UnmarshalTypeError
	if errors.As(err, &typ) {
		return fault.Invalidf("/"+strings.ReplaceAll(typ.Field, ".", "/"), "must be a %s", typ.Type)
	}
	if name, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
		if name, uerr := strconv.Unquote(name); uerr == nil {
			return fault.Invalidf(fault.Pointer(name), "is not a known field")
		}
	}
	return fault.Invalidf("", "is not a JSON object")
}

// encode is the document, with every setting written out.
func (d *Definition) encode() ([]byte, error) {
	memory, output, instances := size(d.Settings.Memory), size(d.Settings.MaxOutput), d.Settings.Instances
	return json.Marshal(document{Kind: Kind, Name: d.Name, Labels: d.Labels, Description: d.Description, Code: d.Code,
		ABI: string(d.Settings.ABI), MemoryLimit: &memory, Timeout: d.Settings.Timeout.String(), MaxOutput: &output,
		Stateful: d.Settings.Stateful, Instances: &instances, Versions: d.Versions})
}

// take puts code in force: at the head of the versions, of which the old ones go.
func (d *Definition) take(digest string, bytes int, now time.Time) {
	d.Code = digest
	if len(d.Versions) > 0 && d.Versions[0].Digest == digest {
		return
	}
	versions := []Version{{Digest: digest, Size: bytes, At: now}}
	for _, v := range d.Versions {
		replaced := versions[len(versions)-1].At
		if v.Digest != digest && len(versions) < maxVersions && (len(versions) < keepVersions || now.Sub(replaced) < keepFor) {
			versions = append(versions, v)
		}
	}
	d.Versions = versions
}

// Digests lists the code that a document names, in hex: the version in force, and those that are kept.
func Digests(raw []byte) ([]string, error) {
	d, err := ParseDefinition(raw)
	if err != nil {
		return nil, err
	}
	all := []string{hexOf(d.Code)}
	for _, v := range d.Versions {
		if v.Digest != d.Code {
			all = append(all, hexOf(v.Digest))
		}
	}
	return all, nil
}
