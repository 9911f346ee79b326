// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/rialto-bridge/rialto/internal/fault"
)

// BusDoc is the definition of a bus.
type BusDoc struct {
	Name         string
	Description  string
	Labels       map[string]string
	MaxAge       time.Duration // retention by age; default 7 days
	MaxBytes     int64         // retention by size; 0 = the bus's share of the store
	DedupWindow  time.Duration // 0-24 h, default 2 min; 0 switches dedup off
	SchemaPolicy string        // "off"
}

// Defaults of a bus, and its limits.
const (
	defaultMaxAge      = 7 * 24 * time.Hour
	defaultDedupWindow = 2 * time.Minute
	maxDedupWindow     = 24 * time.Hour
	minMaxBytes        = 64 << 20
)

// namePattern is what every resource name matches (DESIGN: words).
var namePattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// CheckName says what is wrong with a resource name; "" if nothing is.
func CheckName(s string) string {
	if !namePattern.MatchString(s) {
		return "must be 1 to 63 characters of a-z, 0-9 and inner hyphens"
	}
	return ""
}

// ParseBus reads a Bus document and refuses what it does not know. The error is a *fault.Error with JSON pointers.
func ParseBus(doc []byte) (*BusDoc, error) {
	var in struct {
		Kind        string            `json:"kind"`
		Name        string            `json:"name"`
		Description string            `json:"description"`
		Labels      map[string]string `json:"labels"`
		Retention   *struct {
			MaxAge   *string         `json:"maxAge"`
			MaxBytes json.RawMessage `json:"maxBytes"`
		} `json:"retention"`
		DedupWindow  *string `json:"dedupWindow"`
		SchemaPolicy *string `json:"schemaPolicy"`
	}
	dec := json.NewDecoder(bytes.NewReader(doc))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&in); err != nil {
		return nil, decodeFault(err)
	}
	out := &BusDoc{Name: in.Name, Description: in.Description, Labels: in.Labels, MaxAge: defaultMaxAge,
		DedupWindow: defaultDedupWindow, SchemaPolicy: "off"}
	var bad []fault.Detail
	complain := func(pointer, format string, args ...any) {
		bad = append(bad, fault.Detail{Pointer: pointer, Detail: fmt.Sprintf(format, args...)})
	}
	if in.Kind != "" && in.Kind != "Bus" {
		complain("/kind", "must be Bus")
	}
	if why := CheckName(in.Name); why != "" {
		complain("/name", "%s", why)
	}
	duration := func(pointer string, s *string, lo, hi time.Duration, to *time.Duration) {
		if s == nil {
			return
		}
		d, err := time.ParseDuration(*s)
		if err != nil || d < lo || d > hi {
			complain(pointer, "must be a duration such as 168h, from %v to %v", lo, hi)
			return
		}
		*to = d
	}
	if r := in.Retention; r != nil {
		duration("/retention/maxAge", r.MaxAge, time.Minute, 10*365*24*time.Hour, &out.MaxAge)
		if len(r.MaxBytes) > 0 && string(r.MaxBytes) != "null" {
			n, err := parseBytes(r.MaxBytes)
			if err != nil || n < minMaxBytes {
				complain("/retention/maxBytes", "must be a size such as 20GiB, at least 64MiB")
			}
			out.MaxBytes = n
		}
	}
	duration("/dedupWindow", in.DedupWindow, 0, maxDedupWindow, &out.DedupWindow)
	if in.SchemaPolicy != nil && *in.SchemaPolicy != "off" {
		complain("/schemaPolicy", `must be "off": this version has no schema registry`)
	}
	if err := fault.Collect(bad); err != nil {
		return nil, err
	}
	return out, nil
}

var byteUnits = []struct {
	suffix string
	factor float64
}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9},
	{"TB", 1e12}, {"B", 1}, {"", 1}}

// parseBytes reads a number of bytes: 1048576, "1048576", "20GiB", "1.5 TB".
func parseBytes(raw json.RawMessage) (int64, error) {
	s := string(raw)
	if raw[0] == '"' {
		if err := json.Unmarshal(raw, &s); err != nil {
			return 0, err
		}
	}
	for _, u := range byteUnits {
		if num, ok := strings.CutSuffix(s, u.suffix); ok {
			f, err := strconv.ParseFloat(strings.TrimSpace(num), 64)
			if err != nil || f < 0 || f*u.factor > 1<<62 {
				return 0, errors.New("not a size")
			}
			return int64(f * u.factor), nil
		}
	}
	return 0, errors.New("not a size")
}

// decodeFault turns an error of encoding/json into one with a pointer.
func decodeFault(err error) error {
	var typ *json.UnmarshalTypeError
	if errors.As(err, &typ) {
		return fault.Invalidf("/"+strings.ReplaceAll(typ.Field, ".", "/"), "must be %s, not %s", typ.Type, typ.Value)
	}
	if field, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
		if name, uerr := strconv.Unquote(field); uerr == nil {
			return fault.Invalidf(fault.Pointer(name), "unknown field")
		}
	}
	return fault.Invalidf("", "is not a JSON object")
}
