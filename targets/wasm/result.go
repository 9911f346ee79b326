// SPDX-License-Identifier: Apache-2.0

package wasm

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode"

	"github.com/rialto-bridge/rialto/internal/event"
)

// MaxEvents is how many events a result may have.
const MaxEvents = 100

// Result is what a function made of an event: events, or data, or nothing.
type Result struct {
	Events []event.Event // replies; what a function has not said of id and source is empty
	// Data is the new payload, nil if there is none, and DataContentType what it is.
	Data            []byte
	DataContentType string
}

// Refusal is a function's own error: it has understood the event and will not, or cannot now, do what it is for.
type Refusal struct {
	Message string // without control characters, at most 512 bytes
	Retry   bool   // it may go better another time
}

// Error returns the message.
func (r *Refusal) Error() string { return r.Message }

// answer is a result as a function writes it.
type answer struct {
	Event           json.RawMessage   `json:"event"`
	Events          []json.RawMessage `json:"events"`
	Data            json.RawMessage   `json:"data"`
	DataBase64      []byte            `json:"data_base64"`
	DataContentType string            `json:"datacontenttype"`
	Error           *string           `json:"error"`
	Retry           bool              `json:"retry"`
}

// ParseResult reads what a function has written: nothing or {} for nothing, or an object with one of
//
//	event   an event in the JSON format of CloudEvents, of which only type is required
//	events  a list of such, at most MaxEvents
//	data    any JSON value; with a datacontenttype that is not JSON, a string with the text
//	data_base64  bytes, with a datacontenttype
//	error   a text; with "retry": true the event may be tried again
//
// A *Refusal is the function's own error; any other says what is wrong with the result. lim bounds the events.
func ParseResult(b []byte, lim event.Limits) (Result, error) {
	if len(bytes.TrimSpace(b)) == 0 {
		return Result{}, nil
	}
	var a answer
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&a); err != nil {
		return Result{}, resultError(err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return Result{}, errors.New("the result is more than one JSON value")
	}
	if err := a.check(); err != nil {
		return Result{}, err
	}
	switch {
	case a.Error != nil:
		return Result{}, &Refusal{Message: presentable(*a.Error), Retry: a.Retry}
	case a.Event != nil:
		return replies([]json.RawMessage{a.Event}, lim)
	case a.Events != nil:
		return replies(a.Events, lim)
	}
	return a.payload()
}

// check refuses results that say two things.
func (a *answer) check() error {
	var has []string
	for name, there := range map[string]bool{"event": a.Event != nil, "events": a.Events != nil, "data": a.Data != nil,
		"data_base64": a.DataBase64 != nil, "error": a.Error != nil} {
		if there {
			has = append(has, name)
		}
	}
	switch {
	case len(has) > 1:
		return errors.New("the result has more than one of event, events, data, data_base64 and error")
	case a.Retry && a.Error == nil:
		return errors.New("the result has retry without error")
	case a.DataContentType != "" && a.Data == nil && a.DataBase64 == nil:
		return errors.New("the result has datacontenttype without data")
	case len(a.Events) > MaxEvents:
		return fmt.Errorf("the result has %d events; at most %d are allowed", len(a.Events), MaxEvents)
	}
	return nil
}

func (a *answer) payload() (Result, error) {
	r := Result{Data: a.Data, DataContentType: a.DataContentType}
	switch {
	case a.DataBase64 != nil:
		if r.Data = a.DataBase64; r.DataContentType == "" {
			r.DataContentType = "application/octet-stream"
		}
	case a.Data == nil:
	case a.DataContentType == "":
		r.DataContentType = "application/json"
	case !event.IsJSON(a.DataContentType):
		var text string
		if json.Unmarshal(a.Data, &text) != nil {
			return Result{}, errors.New("data must be a string, since datacontenttype is not JSON")
		}
		r.Data = []byte(text)
	}
	if strings.ContainsFunc(r.DataContentType, unicode.IsControl) || len(r.DataContentType) > 1024 {
		return Result{}, errors.New("datacontenttype is no content type")
	}
	return r, nil
}

// replies reads events. One that does not say so is of version 1.0 and has no id or source, which its ingestion gives it.
func replies(raws []json.RawMessage, lim event.Limits) (Result, error) {
	var r Result
	for i, raw := range raws {
		var members map[string]json.RawMessage
		if err := json.Unmarshal(raw, &members); err != nil || members == nil {
			return Result{}, fmt.Errorf("event %d of the result is not an object", i)
		}
		ownID, ownSource := members["id"] != nil, members["source"] != nil
		for name, value := range map[string]string{"specversion": `"1.0"`, "id": `"-"`, "source": `"-"`} {
			if members[name] == nil {
				members[name] = json.RawMessage(value)
			}
		}
		whole, err := json.Marshal(members)
		if err != nil {
			return Result{}, fmt.Errorf("event %d of the result: %w", i, err)
		}
		ev, err := event.ParseJSON(whole, lim)
		if err != nil {
			return Result{}, fmt.Errorf("event %d of the result: %w", i, err)
		}
		if !ownID {
			ev.ID = ""
		}
		if !ownSource {
			ev.Source = ""
		}
		r.Events = append(r.Events, ev)
	}
	return r, nil
}

// resultError says what is wrong with a result that is not what is expected, without repeating it.
func resultError(err error) error {
	var typ *json.UnmarshalTypeError
	if errors.As(err, &typ) {
		if typ.Field == "" {
			return errors.New("the result is not a JSON object")
		}
		return fmt.Errorf("%s of the result has the wrong type", presentable(typ.Field))
	}
	if name, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
		return fmt.Errorf("the result has the unknown member %s; there are event, events, data, data_base64, datacontenttype, error and retry", presentable(name))
	}
	return errors.New("the result is not JSON")
}
