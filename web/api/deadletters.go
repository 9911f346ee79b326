// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/rialto-bridge/rialto/bridge"
	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/fault"
)

// Everything about dead letters and jobs takes the bus as a query parameter, so that one check of rights, before anything is
// read, is enough: what it names is a part of every filter, and what is of another bus does not exist.

func (a *API) addDeadLetterRoutes() {
	read, write := onQueryBus(areaEvents, accessRead), onQueryBus(areaEvents, accessWrite)
	a.add("GET", "/v1/deadletters", read, a.listDeadLetters)
	a.add("GET", "/v1/deadletters:count", read, a.countDeadLetters)
	a.add("GET", "/v1/deadletters/{id}", read, a.getDeadLetter)
	a.add("POST", "/v1/deadletters:redrive", write, a.startJob(bridge.JobRedrive))
	a.add("POST", "/v1/deadletters:discard", write, a.startJob(bridge.JobDiscard))
	a.add("POST", "/v1/buses/{bus}/deliveries:redrive", onBus(areaEvents, accessWrite), a.redriveDeliveries)
	a.add("POST", "/v1/buses/{bus}/events/{id}:redrive", onBus(areaEvents, accessWrite), a.redriveEvent)
	a.add("POST", "/v1/buses/{bus}/events/{id}:skip", onBus(areaEvents, accessWrite), a.skipEvent)
	a.add("GET", "/v1/jobs", read, a.listJobs)
	a.add("GET", "/v1/jobs/{id}", read, a.getJob)
	a.add("POST", "/v1/jobs/{id}:pause", write, a.setJob(bridge.JobPaused))
	a.add("POST", "/v1/jobs/{id}:resume", write, a.setJob(bridge.JobRunning))
	a.add("POST", "/v1/jobs/{id}:cancel", write, a.setJob(bridge.JobCancelled))
}

// deadFilters are the parameters that select dead letters, but for the span of time.
var deadFilters = []string{"bus", "rule", "target", "reason", "fingerprint"}

func deadFilter(q *query, from, to time.Time) bridge.DeadFilter {
	return bridge.DeadFilter{Bus: q.text("bus"), Rule: q.text("rule"), Target: q.text("target"), Reason: q.text("reason"),
		Fingerprint: q.text("fingerprint"), From: from, To: to}
}

// listDeadLetters answers a list of dead letters, newest first.
func (a *API) listDeadLetters(w *reply, r *http.Request) error {
	q, s, err := readList(r, deadFilters...)
	if err != nil {
		return err
	}
	d := bridge.DeadQuery{DeadFilter: deadFilter(q, s.from, s.to), Limit: s.limit, Cursor: s.cursor}
	if err := q.err(); err != nil {
		return err
	}
	page, err := a.o.Bridge.DeadLetters(r.Context(), d)
	if err != nil {
		return err
	}
	return sendPage(w, page.Items, writeDead, page.NextCursor)
}

func writeDead(b *bytes.Buffer, d *bridge.DeadLetter) error {
	if err := encodeJSON(b, d); err != nil || d.Event == nil {
		return err
	}
	b.Truncate(b.Len() - 1)
	b.WriteString(`,"event":`)
	b.Write(event.AppendJSON(b.AvailableBuffer(), d.Event))
	b.WriteByte('}')
	return nil
}

// countDeadLetters answers how many there are, by what they died of.
func (a *API) countDeadLetters(w *reply, r *http.Request) error {
	q, err := readQuery(r, slices.Concat(deadFilters, []string{"from", "to"})...)
	if err != nil {
		return err
	}
	f := deadFilter(q, q.time("from"), q.time("to"))
	if err := q.err(); err != nil {
		return err
	}
	n, err := a.o.Bridge.CountDead(r.Context(), f)
	if err != nil {
		return err
	}
	return sendJSON(w, http.StatusOK, n)
}

// getDeadLetter answers one dead letter with its event.
func (a *API) getDeadLetter(w *reply, r *http.Request) error {
	bus, err := queryBus(r)
	if err != nil {
		return err
	}
	d, err := a.o.Bridge.DeadLetter(r.Context(), bus, pathParam(r, "id"))
	if err != nil {
		return err
	}
	var b bytes.Buffer
	if err := writeDead(&b, d); err != nil {
		return err
	}
	return w.send(http.StatusOK, contentJSON, b.Bytes())
}

func queryBus(r *http.Request) (string, error) {
	q, err := readQuery(r, "bus")
	if err != nil {
		return "", err
	}
	return q.text("bus"), q.err()
}

func sendJSON(w *reply, status int, v any) error {
	var b bytes.Buffer
	if err := encodeJSON(&b, v); err != nil {
		return err
	}
	return w.send(status, contentJSON, b.Bytes())
}

// caller is the key of a request, for what is written down of it.
func (w *reply) caller() string {
	if w.key == "" {
		return "anonymous"
	}
	return w.key
}

// startJob starts a job over dead letters, or says what it would select.
func (a *API) startJob(kind string) handler {
	return func(w *reply, r *http.Request) error {
		bus, err := queryBus(r)
		if err != nil {
			return err
		}
		spec := bridge.JobSpec{Kind: kind, By: w.caller(), RequestID: w.id}
		redrive := kind == bridge.JobRedrive
		dry := false
		there, err := a.readObject(r, map[string]reader{
			"filter": func(b *body, at string, v json.RawMessage) { b.object(at, v, deadMembers(&spec.Filter)) },
			"why":    stringMember(&spec.Why),
			"dryRun": flagMember(&dry),
			"to":     only(redrive, stringMember(&spec.To)),
			"rate":   only(redrive, rateMember(&spec.Rate)),
			"event":  only(redrive, func(b *body, at string, v json.RawMessage) { spec.Event = b.event(at, v, a.o.Limits) }),
		})
		if err == nil && !there["filter"] {
			err = fault.Invalidf("/filter", "is required; {} selects everything")
		}
		if err != nil {
			return err
		}
		spec.Filter.Bus = bus
		return a.runJob(w, r, spec, dry)
	}
}

// redriveDeliveries starts a job over the deliveries of a bus to a target that have ended in some way, or says what it would select.
func (a *API) redriveDeliveries(w *reply, r *http.Request) error {
	if _, err := noQuery(r); err != nil {
		return err
	}
	spec := bridge.JobSpec{Kind: bridge.JobRedrive, By: w.caller(), RequestID: w.id}
	dry := false
	if _, err := a.readObject(r, map[string]reader{
		"filter": func(b *body, at string, v json.RawMessage) {
			known := deadMembers(&spec.Filter)
			delete(known, "ids")
			known["outcome"], known["subject"] = selectMember(&spec.Outcome), selectMember(&spec.Subject)
			b.object(at, v, known)
		},
		"why": stringMember(&spec.Why), "dryRun": flagMember(&dry), "to": stringMember(&spec.To), "rate": rateMember(&spec.Rate),
	}); err != nil {
		return err
	}
	if spec.Outcome == "" {
		return fault.Invalidf("/filter/outcome", "is required: one of %s", strings.Join(bridge.EndedOutcomes, ", "))
	}
	spec.Filter.Bus = w.bus
	return a.runJob(w, r, spec, dry)
}

// runJob starts a job, or says what it would select.
func (a *API) runJob(w *reply, r *http.Request, spec bridge.JobSpec, dry bool) error {
	if dry {
		n, err := a.o.Bridge.PlanJob(r.Context(), spec)
		if err != nil {
			return err
		}
		return sendJSON(w, http.StatusOK, n)
	}
	j, err := a.o.Bridge.StartJob(r.Context(), spec)
	if err != nil {
		return err
	}
	w.Header().Set("Location", "/v1/jobs/"+j.ID)
	return sendJSON(w, http.StatusAccepted, map[string]bridge.Job{"job": j})
}

// redriveEvent makes one delivery of an event owed again, however it ended.
func (a *API) redriveEvent(w *reply, r *http.Request) error {
	if _, err := noQuery(r); err != nil {
		return err
	}
	q := bridge.RedriveRequest{Bus: w.bus, ID: pathParam(r, "id"), By: w.caller(), RequestID: w.id}
	if _, err := a.readObject(r, map[string]reader{
		"source": stringMember(&q.Source), "rule": stringMember(&q.Rule), "target": stringMember(&q.Target), "to": stringMember(&q.To),
		"delivered": flagMember(&q.Delivered),
		"event":     func(b *body, at string, v json.RawMessage) { q.Event = b.event(at, v, a.o.Limits) },
	}); err != nil {
		return err
	}
	id, err := a.o.Bridge.Redrive(r.Context(), q)
	if err != nil {
		return err
	}
	return sendJSON(w, http.StatusAccepted, map[string]string{"delivery": id})
}

// skipEvent ends a delivery of an event that holds up its key.
func (a *API) skipEvent(w *reply, r *http.Request) error {
	if _, err := noQuery(r); err != nil {
		return err
	}
	q := bridge.SkipRequest{Bus: w.bus, ID: pathParam(r, "id"), By: w.caller()}
	if _, err := a.readObject(r, map[string]reader{
		"source": stringMember(&q.Source), "rule": stringMember(&q.Rule), "target": stringMember(&q.Target)}); err != nil {
		return err
	}
	id, err := a.o.Bridge.Skip(r.Context(), q)
	if err != nil {
		return err
	}
	return sendJSON(w, http.StatusOK, map[string]string{"deadLetter": id})
}

// listJobs answers the jobs, newest first.
func (a *API) listJobs(w *reply, r *http.Request) error {
	bus, err := queryBus(r)
	if err != nil {
		return err
	}
	jobs, err := a.o.Bridge.Jobs(bus)
	if err != nil {
		return err
	}
	return sendJSON(w, http.StatusOK, map[string][]bridge.Job{"items": jobs})
}

func (a *API) getJob(w *reply, r *http.Request) error {
	bus, err := queryBus(r)
	if err != nil {
		return err
	}
	j, err := a.o.Bridge.Job(bus, pathParam(r, "id"))
	if err != nil {
		return err
	}
	return sendJSON(w, http.StatusOK, j)
}

// setJob pauses, resumes or cancels a job.
func (a *API) setJob(state string) handler {
	return func(w *reply, r *http.Request) error {
		bus, err := queryBus(r)
		if err != nil {
			return err
		}
		j, err := a.o.Bridge.SetJob(r.Context(), bridge.JobChange{Bus: bus, ID: pathParam(r, "id"), State: state, By: w.caller(), RequestID: w.id})
		if err != nil {
			return err
		}
		return sendJSON(w, http.StatusOK, j)
	}
}

// body collects what is wrong with a JSON body.
type body struct{ faults []fault.Detail }

func (b *body) fault(pointer, detail string) {
	b.faults = append(b.faults, fault.Detail{Pointer: pointer, Detail: detail})
}

// reader reads a member of a JSON object, which is at a pointer.
type reader = func(b *body, at string, v json.RawMessage)

func stringMember(to *string) reader {
	return func(b *body, at string, v json.RawMessage) { b.value(at, v, to, "a string") }
}

func flagMember(to *bool) reader {
	return func(b *body, at string, v json.RawMessage) { b.value(at, v, to, "true or false") }
}

func rateMember(to *float64) reader {
	return func(b *body, at string, v json.RawMessage) {
		if b.value(at, v, to, "a number") && *to <= 0 {
			b.fault(at, "must be more than 0")
		}
	}
}

// selectMember reads a text that selects something.
func selectMember(to *string) reader {
	return func(b *body, at string, v json.RawMessage) {
		if b.value(at, v, to, "a string") && *to == "" {
			b.fault(at, "must not be empty; leave it out to select all")
		}
	}
}

// only returns fn, or nil if it does not apply: then the member is unknown.
func only(applies bool, fn reader) reader {
	if applies {
		return fn
	}
	return nil
}

// readObject reads a body that is a JSON object, calls the function of each member, and says which members were there. It
// refuses what it does not know: a filter with a slip of the pen would select too much.
func (a *API) readObject(r *http.Request, known map[string]reader) (map[string]bool, error) {
	if ct := r.Header.Get("Content-Type"); ct != "" && !isJSONType(ct) {
		return nil, fault.New(fault.Unsupported, "the body is sent as application/json")
	}
	raw, err := a.readBody(r, nil, a.maxBody(event.Structured))
	if err != nil {
		return nil, err
	}
	b := &body{}
	there := b.object("", raw, known)
	return there, fault.Collect(b.faults)
}

func (b *body) object(pointer string, raw json.RawMessage, known map[string]reader) map[string]bool {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(raw, &members); err != nil || members == nil {
		b.fault(pointer, "must be a JSON object")
		return nil
	}
	there := make(map[string]bool, len(members))
	for _, name := range slices.Sorted(maps.Keys(members)) {
		there[name] = true
		if fn := known[name]; fn != nil {
			fn(b, pointer+fault.Pointer(name), members[name])
		} else {
			b.fault(pointer+fault.Pointer(name), "unknown field")
		}
	}
	return there
}

func (b *body) value(pointer string, raw json.RawMessage, to any, what string) bool {
	if err := json.Unmarshal(raw, to); err != nil || string(raw) == "null" {
		b.fault(pointer, "must be "+what)
		return false
	}
	return true
}

// deadMembers are the members of a filter of dead letters.
func deadMembers(to *bridge.DeadFilter) map[string]reader {
	moment := func(to *time.Time) reader {
		return func(b *body, at string, v json.RawMessage) { b.value(at, v, to, "a time like 2027-06-01T00:00:00Z") }
	}
	return map[string]reader{
		"rule": selectMember(&to.Rule), "target": selectMember(&to.Target), "reason": selectMember(&to.Reason), "fingerprint": selectMember(&to.Fingerprint),
		"from": moment(&to.From), "to": moment(&to.To),
		"ids": func(b *body, at string, v json.RawMessage) {
			if b.value(at, v, &to.IDs, "a list of ids such as DEAD:7") && len(to.IDs) == 0 {
				b.fault(at, "must not be empty; leave it out to select all")
			}
		},
	}
}

func (b *body) event(pointer string, raw json.RawMessage, limits event.Limits) *event.Event {
	e, err := event.ParseJSON(raw, limits)
	if err == nil {
		return &e
	}
	var bad *event.Error
	if errors.As(err, &bad) {
		b.fault(pointer+bad.Pointer(), bad.Reason)
	} else {
		b.fault(pointer, "is no event in the CloudEvents JSON format")
	}
	return nil
}
