// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/rules"
)

// BusDoc is the definition of a bus.
type BusDoc struct {
	Name        string
	Description string
	Labels      map[string]string
	MaxAge      time.Duration // retention by age; default 7 days
	MaxBytes    int64         // retention by size; 0 = the bus's share of the store
	Overflow    string        // what happens when it is full: OverflowOldest, ...
	Reserve     int           // of OverflowPriority: percent of MaxBytes that only events which match its pattern may use; default 20
	DedupWindow time.Duration // 0-24 h, default 2 min; 0 switches dedup off

	priority *rules.Index // of OverflowPriority: one rule, whose pattern it is

	SchemaPolicy    string  // what becomes of an event that does not fit its schema: a Policy
	SchemaSample    float64 // share of the events that PolicyWarn looks at; default 1
	QuarantineBus   string  // where PolicyQuarantine puts them; default quarantine
	SchemaDiscovery bool    // schemas are made of the events that are seen
}

// window is the dedup window in the words of the log, where 0 is its default and less is none.
func (d *BusDoc) window() time.Duration {
	if d.DedupWindow == 0 {
		return -1
	}
	return d.DedupWindow
}

// Defaults of a bus, and its limits.
const (
	defaultMaxAge      = 7 * 24 * time.Hour
	defaultDedupWindow = 2 * time.Minute
	maxDedupWindow     = 24 * time.Hour
	minMaxBytes        = 16 << 20 // retention never removes the two newest blocks of 8 MiB
	defaultReserve     = 20
	minReserve         = 1
	maxReserve         = 90
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

// ParseBus reads a Bus document and refuses what it does not know. Server-owned fields (revision, createdAt, updatedAt,
// status) are ignored. The error is a *fault.Error with JSON pointers that holds every complaint.
func ParseBus(doc []byte) (*BusDoc, error) {
	out := &BusDoc{MaxAge: defaultMaxAge, DedupWindow: defaultDedupWindow, Overflow: OverflowOldest, SchemaPolicy: PolicyOff, SchemaSample: 1, QuarantineBus: defaultQuarantineBus}
	var bad []fault.Detail
	fields(&bad, "", doc, map[string]func(pointer string, v json.RawMessage){
		"kind": func(at string, v json.RawMessage) {
			var kind string
			if read(&bad, at, v, &kind, "a string") && kind != "Bus" {
				complain(&bad, at, "must be Bus")
			}
		},
		"name":        func(at string, v json.RawMessage) { read(&bad, at, v, &out.Name, "a string") },
		"description": func(at string, v json.RawMessage) { read(&bad, at, v, &out.Description, "a string") },
		"labels":      func(at string, v json.RawMessage) { read(&bad, at, v, &out.Labels, "an object of strings") },
		"retention": func(at string, v json.RawMessage) {
			fields(&bad, at, v, map[string]func(string, json.RawMessage){
				"maxAge": func(at string, v json.RawMessage) {
					duration(&bad, at, v, time.Minute, 10*365*24*time.Hour, &out.MaxAge)
				},
				"maxBytes": func(at string, v json.RawMessage) {
					n, err := parseBytes(v)
					if err != nil || n < minMaxBytes {
						complain(&bad, at, "must be a size such as 20GiB, at least "+sizeText(minMaxBytes))
					}
					out.MaxBytes = n
				},
				"overflow": func(at string, v json.RawMessage) {
					if read(&bad, at, v, &out.Overflow, "a string") && !slices.Contains(overflows, out.Overflow) {
						complain(&bad, at, "must be one of "+strings.Join(overflows, ", "))
					}
				},
				"priority": func(at string, v json.RawMessage) {
					var err error
					if out.priority, err = parsePriority(at, v); err != nil {
						bad = append(bad, details(err)...)
					}
				},
				"reserve": func(at string, v json.RawMessage) { out.Reserve = percent(&bad, at, v, minReserve, maxReserve) },
			})
			if len(bad) == 0 {
				out.checkOverflow(&bad, at)
			}
		},
		"dedupWindow": func(at string, v json.RawMessage) { duration(&bad, at, v, 0, maxDedupWindow, &out.DedupWindow) },
		"schemaPolicy": func(at string, v json.RawMessage) {
			if read(&bad, at, v, &out.SchemaPolicy, "a string") && !slices.Contains(policies, out.SchemaPolicy) {
				complain(&bad, at, "must be one of "+strings.Join(policies, ", "))
			}
		},
		"schemaSample": func(at string, v json.RawMessage) {
			if read(&bad, at, v, &out.SchemaSample, "a number") && !(out.SchemaSample > 0 && out.SchemaSample <= 1) {
				complain(&bad, at, "must be a share above 0 and up to 1")
			}
		},
		"quarantineBus": func(at string, v json.RawMessage) {
			if read(&bad, at, v, &out.QuarantineBus, "a string") {
				if why := CheckName(out.QuarantineBus); why != "" {
					complain(&bad, at, why)
				}
			}
		},
		"schemaDiscovery": func(at string, v json.RawMessage) { read(&bad, at, v, &out.SchemaDiscovery, "true or false") },
		"revision":        nil, "createdAt": nil, "updatedAt": nil, "status": nil,
	})
	if why := CheckName(out.Name); why != "" && len(bad) == 0 {
		complain(&bad, "/name", why)
	}
	if out.SchemaPolicy == PolicyQuarantine && out.QuarantineBus == out.Name {
		complain(&bad, "/quarantineBus", "must be another bus")
	}
	if err := fault.Collect(bad); err != nil {
		return nil, err
	}
	return out, nil
}

// checkOverflow complains about what does not go together, in a retention that is well-formed.
func (d *BusDoc) checkOverflow(bad *[]fault.Detail, at string) {
	if d.Overflow != OverflowPriority {
		if d.priority != nil {
			complain(bad, at+"/priority", "is for overflow: priority")
		}
		if d.Reserve != 0 {
			complain(bad, at+"/reserve", "is for overflow: priority")
		}
	}
	if d.Overflow == OverflowOldest {
		return
	}
	if d.MaxBytes == 0 {
		complain(bad, at+"/maxBytes", "must be said with overflow: "+d.Overflow)
		return
	}
	if d.Overflow == OverflowNewest {
		if d.MaxBytes < minRefusing {
			complain(bad, at+"/maxBytes", "must be at least "+sizeText(minRefusing)+" with overflow: newest")
		}
		return
	}
	d.Reserve = cmp.Or(d.Reserve, defaultReserve)
	if d.priority == nil {
		complain(bad, at+"/priority", "must be said with overflow: priority")
	}
	if lowOf(d.MaxBytes, d.Reserve) < minRefusing {
		complain(bad, at+"/maxBytes", fmt.Sprintf("must leave at least %s beside the reserve of %d%%", sizeText(minRefusing), d.Reserve))
	}
}

// parsePriority reads a pattern as rules have it. The error points into the document, where the pattern is at a pointer.
func parsePriority(at string, pattern json.RawMessage) (*rules.Index, error) {
	doc := slices.Concat([]byte(`{"name":"priority","targets":[{"target":"priority"}],"pattern":`), pattern, []byte("}"))
	r, err := rules.ParseRule(doc)
	var index *rules.Index
	if err == nil {
		index, err = rules.Compile([]*rules.Rule{r})
	}
	var told *fault.Error
	if !errors.As(err, &told) {
		return index, fault.At(at, err)
	}
	moved := &fault.Error{Kind: told.Kind, Message: told.Message, Err: told.Err}
	for _, d := range told.Details {
		moved.Details = append(moved.Details, fault.Detail{Pointer: at + strings.TrimPrefix(d.Pointer, "/pattern"), Detail: d.Detail})
	}
	return nil, moved
}

// details are the complaints of an error that has some.
func details(err error) []fault.Detail {
	var told *fault.Error
	if errors.As(err, &told) && len(told.Details) > 0 {
		return told.Details
	}
	return []fault.Detail{{Detail: err.Error()}}
}

func complain(bad *[]fault.Detail, pointer, detail string) {
	*bad = append(*bad, fault.Detail{Pointer: pointer, Detail: detail})
}

// fields calls the function of each member of an object, and complains about members that have none. A nil function
// ignores its member.
func fields(bad *[]fault.Detail, pointer string, raw json.RawMessage, known map[string]func(string, json.RawMessage)) {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(raw, &members); err != nil || members == nil {
		complain(bad, pointer, "must be a JSON object")
		return
	}
	for _, name := range slices.Sorted(maps.Keys(members)) {
		fn, ok := known[name]
		switch {
		case !ok:
			complain(bad, pointer+fault.Pointer(name), "unknown field")
		case fn != nil:
			fn(pointer+fault.Pointer(name), members[name])
		}
	}
}

func read(bad *[]fault.Detail, pointer string, raw json.RawMessage, to any, what string) bool {
	if err := json.Unmarshal(raw, to); err != nil || string(raw) == "null" {
		complain(bad, pointer, "must be "+what)
		return false
	}
	return true
}

func duration(bad *[]fault.Detail, pointer string, raw json.RawMessage, lo, hi time.Duration, to *time.Duration) {
	var s string
	if !read(bad, pointer, raw, &s, "a string such as 168h") {
		return
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < lo || d > hi {
		complain(bad, pointer, fmt.Sprintf("must be a duration such as 168h, from %v to %v", lo, hi))
		return
	}
	*to = d
}

// percent reads a whole share such as "20%".
func percent(bad *[]fault.Detail, pointer string, raw json.RawMessage, lo, hi int) int {
	what := fmt.Sprintf("must be a whole share such as 20%%, from %d%% to %d%%", lo, hi)
	var s string
	if json.Unmarshal(raw, &s) != nil {
		complain(bad, pointer, what)
		return 0
	}
	num, ok := strings.CutSuffix(s, "%")
	n, err := strconv.Atoi(num)
	if !ok || err != nil || n < lo || n > hi {
		complain(bad, pointer, what)
		return 0
	}
	return n
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
