// SPDX-License-Identifier: Apache-2.0

package function

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/rules"
	"github.com/rialto-bridge/rialto/targets"
	"github.com/rialto-bridge/rialto/targets/outbound"
)

// call is how a function is called.
type call struct {
	url      *url.URL
	maxReply int
}

// remote is a target of runtime http. It is safe for concurrent use.
type remote struct {
	config
	call
	platform *platform
	replies  replies
	env      targets.Env
	sender   *outbound.Sender[struct{}]
	terms    outbound.Terms
}

func newRemote(r *reader, to replies, env targets.Env) *remote {
	t := &remote{config: r.config, call: r.call, platform: r.platform, replies: to, env: env}
	t.sender = outbound.NewSender[struct{}](r.Access, r.call.url.Hostname(), env, nil)
	if r.Invocation != async {
		t.terms.MaxBody = r.call.maxReply
	}
	return t
}

// Warnings implements targets.Warner.
func (t *remote) Warnings() []rules.Warning { return t.sender.Warnings() }

// Deliver is targets.Target.Deliver.
func (t *remote) Deliver(ctx context.Context, d targets.Delivery) (targets.Result, error) {
	creds, err := t.sender.Credentials(t.env.Now())
	if err != nil {
		return targets.Result{}, err
	}
	m, err := t.message(d)
	if err != nil {
		return targets.Result{}, err
	}
	creds.Prepare(&m)
	res, ans, err := t.sender.Send(ctx, m, creds, t.terms)
	if err != nil {
		return res, t.refusal(err, res, &ans)
	}
	if err := t.failure(&ans); err != nil {
		err.Status, res.Head = res.Status, ans.Head()
		return res, err
	}
	if t.Invocation == async || res.Status == http.StatusAccepted { // which speaks of the request, and not of its result
		return res, nil
	}
	evs, err := t.events(&ans)
	if err != nil {
		res.Head = ans.Head()
		return res, &targets.Error{Reason: targets.ReasonFunction, Status: res.Status, Err: err}
	}
	err = t.replies.publish(ctx, d, "", evs)
	if err != nil {
		res.Head = ans.Head()
	}
	return res, err
}

// message is the request for an event, but for what is the same each time.
func (t *remote) message(d targets.Delivery) (outbound.Message, error) {
	ev := d.Event
	m := outbound.Message{Method: http.MethodPost, URL: t.url, Header: make(http.Header, 16)}
	switch {
	case t.platform.payload || t.Mode == structured:
		m.Body = event.AppendJSON(nil, ev)
		m.Header["Content-Type"] = structuredType
	case t.HeaderCoding == "raw":
		m.Body = event.ToHTTPBinaryRaw(m.Header, ev)
	default:
		m.Body = event.ToHTTPBinary(m.Header, ev)
	}
	maps.Copy(m.Header, t.platform.ownHeader(&t.config, d.ID))
	limit := t.platform.maxSync
	if t.Invocation == async {
		limit = t.platform.maxAsync
	}
	if limit > 0 && len(m.Body) > limit {
		return m, &targets.Error{Reason: targets.ReasonTooLarge, Permanent: true,
			Err: fmt.Errorf("the event has %d bytes as it is sent, and %s takes at most %d (invocation %s)", len(m.Body), t.platform.name, limit, choice(&t.config, "sync", async))}
	}
	return m, nil
}

var (
	structuredType = []string{"application/cloudevents+json; charset=utf-8"}
	preferReply    = []string{"reply"} // as the data plane of Knative eventing has it
)

// refusal is an error of an attempt as the platform means it.
func (t *remote) refusal(err error, res targets.Result, ans *outbound.Answer) error {
	var te *targets.Error
	if !errors.As(err, &te) || te.Status == 0 {
		return err
	}
	changed := *te
	if t.platform.permanent != nil && t.platform.permanent(te.Status) {
		changed.Permanent = true
	}
	if code := codeOf(ans.Header, res.Head); code != "" && te.Reason == targets.ReasonStatus {
		changed.Err = fmt.Errorf("%w: %s", te.Err, ans.Clean([]byte(code), maxQuoted))
	}
	return &changed
}

// codeOf is what a service of AWS, which says it in a header, or of Alibaba Cloud, which says it in the body, calls the error that a
// status stands for; "" if it says nothing.
func codeOf(h http.Header, head string) string {
	if code, _, _ := strings.Cut(h.Get("X-Amzn-Errortype"), ":"); code != "" {
		return code
	}
	_, body, _ := strings.Cut(head, "\n\n")
	var says struct{ Code string }
	if json.Unmarshal([]byte(body), &says) == nil && errorCode.MatchString(says.Code) {
		return says.Code
	}
	return h.Get("X-Fc-Error-Type")
}

var errorCode = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,100}$`)

// maxQuoted is how much of what a function says of its failure an error repeats, in bytes.
const maxQuoted = 200

// failure is an answer with a status of success of a function that has failed; nil if it has not.
func (t *remote) failure(ans *outbound.Answer) *targets.Error {
	if t.platform.errorHeader == "" || ans.Header.Get(t.platform.errorHeader) == "" {
		return nil
	}
	class := ans.Header.Get(t.platform.errorHeader)
	var says struct {
		Type    string `json:"errorType"`
		Message string `json:"errorMessage"`
	}
	if json.Unmarshal(ans.Body, &says) != nil { // then the header is all there is
		says.Type, says.Message = "", ""
	}
	text := "the function has failed (" + ans.Clean([]byte(class), maxQuoted) + ")"
	if says.Type != "" {
		text += ": " + ans.Clean([]byte(says.Type), maxQuoted)
	}
	if says.Message != "" {
		text += ": " + ans.Clean([]byte(says.Message), maxQuoted)
	}
	e := &targets.Error{Reason: targets.ReasonFunction, Err: errors.New(text)}
	named := func(name string) bool { return name != "" && slices.Contains(t.PermanentErrors, name) }
	e.Permanent = named(says.Type) || named(class)
	if isTimeout(says.Type) || isTimeout(class) || says.Type == "" && strings.Contains(says.Message, "Task timed out after") {
		e.Reason = targets.ReasonTimeout
	}
	return e
}

// isTimeout reports whether a type of error means that the platform stopped a function at its limit: Sandbox.Timedout of Lambda,
// FunctionTimeout and InvocationTimeout of Function Compute.
func isTimeout(name string) bool {
	name = strings.ToLower(name)
	return strings.HasSuffix(name, "timeout") || strings.HasSuffix(name, "timedout")
}

// maxReplies is how many events one answer may hold.
const maxReplies = 100

// events are the events that an answer holds. An answer that says nothing of CloudEvents holds none, whatever else is in it.
func (t *remote) events(ans *outbound.Answer) (evs []event.Event, err error) {
	limits := event.Limits{MaxData: t.maxReply, MaxBatchEvents: maxReplies}
	mode := event.ModeOf(ans.Header.Get("Content-Type"))
	says := mode != event.Binary && len(ans.Body) > 0 || ans.Header["Ce-Specversion"] != nil
	switch {
	case ans.Cut && (says || t.platform.payload):
		return nil, fmt.Errorf("the answer of the function has more than %d bytes (maxReply)", t.maxReply)
	case t.platform.payload:
		evs, err = payloadEvents(ans.Body, limits)
	case says:
		_, evs, err = event.FromHTTP(ans.Header, ans.Body, limits)
	}
	if err != nil {
		return nil, fmt.Errorf("the answer of the function says that it is an event, and is none: %w", err)
	}
	return evs, nil
}

// payloadEvents are the events in a payload: an object with a specversion is one, and a list that begins with such an object is of
// them. All else is what the function has to say to others.
func payloadEvents(body []byte, limits event.Limits) ([]event.Event, error) {
	type envelope struct {
		SpecVersion json.RawMessage `json:"specversion"`
	}
	body = bytes.TrimSpace(body)
	switch {
	case bytes.HasPrefix(body, []byte("{")):
		var one envelope
		if json.Unmarshal(body, &one) != nil || one.SpecVersion == nil {
			return nil, nil
		}
		ev, err := event.ParseJSON(body, limits)
		return []event.Event{ev}, err
	case bytes.HasPrefix(body, []byte("[")):
		var list []json.RawMessage
		var first envelope
		if json.Unmarshal(body, &list) != nil || len(list) == 0 || json.Unmarshal(list[0], &first) != nil || first.SpecVersion == nil {
			return nil, nil
		}
		return event.ParseJSONBatch(body, limits)
	}
	return nil, nil
}
