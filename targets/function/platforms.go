// SPDX-License-Identifier: Apache-2.0

package function

import (
	"net/http"
	"net/url"
	"regexp"
	"strings"

	"github.com/rialto-bridge/rialto/targets/outbound"
)

// platform is what differs between the platforms that functions run on.
type platform struct {
	name string // for people
	// payload: the platform hands on the body alone, and so it is the whole event in JSON, and what comes back is JSON, too.
	payload   bool
	async     bool // it can take an event and call the function later
	qualified bool // its functions have versions and aliases

	function *regexp.Regexp
	endpoint func(c *config) string // of the API, if it is known; "" = it is not
	path     func(c *config) string // of the function, below the URL; nil = the URL is the function's
	query    func(c *config) string
	auth     func(r *reader) // complains of auth that the platform does not know
	header   func(c *config, delivery string, h http.Header)
	// maxSync and maxAsync are the most bytes of a request; 0 = nobody says.
	maxSync, maxAsync int
	// errorHeader is in an answer with a status of success if the function has failed. Its type stands in the body, or there.
	errorHeader string
	// permanent are statuses that cannot get better beside those of webhooks.
	permanent func(status int) bool
}

func noQuery(*config) string { return "" }

// platforms are the presets; "" is none.
var platforms = map[string]*platform{
	"": {name: "a function without a preset"},
	"aws-lambda": {
		name: "aws-lambda", payload: true, async: true, qualified: true,
		// A name, a partial or a whole ARN, as the Invoke API takes them.
		function: regexp.MustCompile(`^[A-Za-z0-9_:-]{1,170}$`),
		endpoint: lambdaEndpoint,
		path:     func(c *config) string { return "/2015-03-31/functions/" + url.PathEscape(c.Function) + "/invocations" },
		query:    qualifier("Qualifier"),
		auth:     func(r *reader) { r.needsAuth(outbound.AuthAWS, "lambda") },
		header: func(c *config, _ string, h http.Header) {
			h["X-Amz-Invocation-Type"] = []string{choice(c, "RequestResponse", "Event")}
		},
		maxSync: 6 << 20, maxAsync: 1 << 20,
		errorHeader: "X-Amz-Function-Error",
	},
	"alibaba-fc": {
		name: "alibaba-fc", payload: true, async: true, qualified: true,
		function: regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_-]{0,127}$`),
		path:     func(c *config) string { return "/2023-03-30/functions/" + url.PathEscape(c.Function) + "/invocations" },
		query:    qualifier("qualifier"),
		auth:     func(r *reader) { r.needsAuth(outbound.AuthAlibaba, "") },
		header: func(c *config, _ string, h http.Header) {
			h["X-Acs-Action"] = []string{"InvokeFunction"}
			h["X-Acs-Version"] = []string{"2023-03-30"}
			h["X-Fc-Invocation-Type"] = []string{choice(c, "Sync", "Async")}
			h["X-Fc-Log-Type"] = []string{"None"}
		},
		maxSync: 32 << 20, maxAsync: 128 << 10,
		errorHeader: "X-Fc-Error-Type",
	},
	"openfaas": {
		name: "openfaas", async: true,
		function: regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,62})(\.[a-z0-9]([a-z0-9-]{0,62}))?$`), // with a namespace
		path:     func(c *config) string { return "/" + choice(c, "function", "async-function") + "/" + c.Function },
		query:    noQuery,
		// The gateway keeps an id that it is given, and tells the function and the callback.
		header: func(_ *config, delivery string, h http.Header) { h["X-Call-Id"] = []string{delivery} },
	},
	"knative": {
		name: "knative",
		// Of 4xx it is these alone that may get better (Knative eventing data plane).
		permanent: func(status int) bool {
			return status >= 400 && status <= 499 && status != 404 && status != 408 && status != 409 && status != 429
		},
	},
}

// ownHeader is what says to the platform how a delivery calls the function.
func (p *platform) ownHeader(c *config, delivery string) http.Header {
	h := make(http.Header, 4)
	if c.Invocation != async && !p.payload {
		h["Prefer"] = preferReply
	}
	if p.header != nil {
		p.header(c, delivery, h)
	}
	return h
}

// choice is one of two words: of a call that waits for the function, and of one that does not.
func choice(c *config, sync, later string) string {
	if c.Invocation == async {
		return later
	}
	return sync
}

func qualifier(name string) func(c *config) string {
	return func(c *config) string {
		if c.Qualifier == "" {
			return ""
		}
		return url.Values{name: {c.Qualifier}}.Encode()
	}
}

// lambdaEndpoint is the API of Lambda in the region that auth names.
func lambdaEndpoint(c *config) string {
	if c.AccessConfig.Auth == nil || c.AccessConfig.Auth.Region == "" {
		return ""
	}
	region := c.AccessConfig.Auth.Region
	domain := ".amazonaws.com"
	if strings.HasPrefix(region, "cn-") {
		domain += ".cn"
	}
	return "https://lambda." + region + domain
}

// needsAuth complains of any auth but one.
func (r *reader) needsAuth(kind, service string) {
	a := r.AccessConfig.Auth
	switch {
	case a == nil:
		r.Complain("/auth", "is missing: %s needs the type %s", r.platform.name, kind)
	case a.Type != kind:
		r.Complain("/auth/type", "must be %s for %s", kind, r.platform.name)
	case service != "" && a.Service != "" && a.Service != service:
		r.Complain("/auth/service", "must be %s for %s", service, r.platform.name)
	}
}
