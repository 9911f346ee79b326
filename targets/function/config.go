// SPDX-License-Identifier: Apache-2.0

package function

import (
	"encoding/json"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/targets"
	"github.com/rialto-bridge/rialto/targets/outbound"
)

// config is the config of a target, in the form that config.schema.json describes.
type config struct {
	outbound.AccessConfig
	Runtime         string   `json:"runtime"`
	Function        string   `json:"function"`
	ReplyBus        string   `json:"replyBus"`
	ReplyIDs        string   `json:"replyIds"`
	MaxHops         int      `json:"maxHops"`
	Preset          string   `json:"preset"`
	URL             string   `json:"url"`
	Mode            string   `json:"mode"`
	HeaderCoding    string   `json:"headerCoding"`
	Invocation      string   `json:"invocation"`
	Qualifier       string   `json:"qualifier"`
	PermanentErrors []string `json:"permanentErrors"`
	MaxReply        *size    `json:"maxReply"`
}

// What ids replies have.
const (
	replyIDsDerived = "derived"
	replyIDsOwn     = "own"
)

// async is the invocation that does not wait for the function.
const async = "async"

// structured is the mode in which the whole event is JSON.
const structured = "structured"

// Sizes of an answer that is read.
const (
	defaultReply = 1 << 20
	maxReply     = 8 << 20
)

// reader reads a config.
type reader struct {
	config
	outbound.Reader
	platform *platform // of the runtime http
	call     call
}

var functionName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

func parse(raw json.RawMessage) *reader {
	r := new(reader)
	if err := json.Unmarshal(raw, &r.config); err != nil {
		r.Complain("", "is not a config of a function target")
		return r
	}
	if r.MaxHops == 0 {
		r.MaxHops = targets.DefaultMaxHops
	}
	if r.Runtime == runtimeHTTP {
		r.remote()
		return r
	}
	if r.ReplyIDs == "" {
		r.ReplyIDs = replyIDsOwn
	}
	switch {
	case r.Function == "":
		r.Complain("/function", "is missing: it names a Function")
	case !functionName.MatchString(r.Function):
		r.Complain("/function", "is not the name of a Function: 1 to 63 of a-z, 0-9 and -, with no - at either end")
	}
	for _, m := range r.members() {
		if m.given {
			r.Complain(m.pointer, "is for runtime http")
		}
	}
	return r
}

// member is a member of the config that not every runtime, or preset, has.
type member struct {
	pointer string
	given   bool
}

// members are those of the runtime http.
func (r *reader) members() []member {
	return []member{{"/preset", r.Preset != ""}, {"/url", r.URL != ""}, {"/mode", r.Mode != ""}, {"/headerCoding", r.HeaderCoding != ""},
		{"/invocation", r.Invocation != ""}, {"/qualifier", r.Qualifier != ""}, {"/permanentErrors", r.PermanentErrors != nil},
		{"/maxReply", r.MaxReply != nil}, {"/auth", r.AccessConfig.Auth != nil}, {"/headers", r.AccessConfig.Headers != nil}, {"/tls", r.AccessConfig.TLS != nil}}
}

// remote reads what the runtime http has.
func (r *reader) remote() {
	r.platform = platforms[r.Preset]
	if r.ReplyIDs == "" {
		r.ReplyIDs = replyIDsDerived
	}
	for pointer, unfit := range map[string]bool{
		"/function":        r.Function != "" && r.platform.path == nil,
		"/invocation":      r.Invocation != "" && !r.platform.async,
		"/qualifier":       r.Qualifier != "" && !r.platform.qualified,
		"/permanentErrors": r.PermanentErrors != nil && r.platform.errorHeader == "",
		"/mode":            r.Mode == "binary" && r.platform.payload,
		"/headerCoding":    r.HeaderCoding != "" && (r.platform.payload || r.Mode == structured),
	} {
		if unfit {
			r.Complain(pointer, "is not for %s", r.platform.name)
		}
	}
	switch {
	case r.platform.path == nil:
	case r.Function == "":
		r.Complain("/function", "is missing: it names the function of %s", r.platform.name)
	case !r.platform.function.MatchString(r.Function):
		r.Complain("/function", "is not the name of a function of %s", r.platform.name)
	}
	r.readURL()
	r.Read(r.AccessConfig, r.URL, nil)
	r.refuseOwnHeaders()
	if r.platform.auth != nil {
		r.platform.auth(r)
	}
	r.call.maxReply = defaultReply
	if r.MaxReply != nil {
		if n := int64(*r.MaxReply); n < 1 || n > maxReply {
			r.Complain("/maxReply", "must be a size such as 1MiB, from 1 to %s", size(maxReply))
		} else {
			r.call.maxReply = int(n)
		}
	}
}

// readURL makes the URL that is called.
func (r *reader) readURL() {
	base := r.URL
	if base == "" && r.platform.endpoint != nil {
		base = r.platform.endpoint(&r.config)
	}
	if base == "" {
		r.Complain("/url", "is missing: it says where the function is called")
		return
	}
	if r.platform.path != nil {
		if strings.Contains(base, "?") {
			r.Complain("/url", "has a query, which does not go with %s", r.platform.name)
			return
		}
		base = strings.TrimRight(base, "/") + r.platform.path(&r.config)
		if query := r.platform.query(&r.config); query != "" {
			base += "?" + query
		}
	}
	var err error
	if r.call.url, err = url.Parse(base); err != nil || r.call.url.Host == "" { // whose words would repeat it
		r.Complain("/url", "is not a URL")
		r.call.url = nil
	}
}

// refuseOwnHeaders complains of headers that say to the platform how it is called, which is for the rest of the config to say.
func (r *reader) refuseOwnHeaders() {
	own := r.platform.ownHeader(&r.config, "")
	for _, name := range slices.Sorted(maps.Keys(r.AccessConfig.Headers)) {
		if _, ok := own[http.CanonicalHeaderKey(name)]; ok {
			r.Complain("/headers"+fault.Pointer(name), "is set by the bridge for %s, and cannot be given", r.platform.name)
		}
	}
	if a := r.AccessConfig.Auth; a != nil && a.Header != "" && own[http.CanonicalHeaderKey(a.Header)] != nil {
		r.Complain("/auth/header", "is set by the bridge for %s, and cannot be given", r.platform.name)
	}
}
