// SPDX-License-Identifier: Apache-2.0

package api

import (
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rialto-bridge/rialto/internal/fault"
)

// pathParam returns a segment of the path, percent-decoded exactly once. The router matched the escaped path if that
// says more than the plain one (RawPath), and the plain one, which net/http has decoded, otherwise.
func pathParam(r *http.Request, name string) string {
	v := r.PathValue(name)
	if r.URL.RawPath == "" {
		return v
	}
	if d, err := url.PathUnescape(v); err == nil {
		return d
	}
	return v
}

// query reads the parameters of a plain route. It collects what is wrong, and err returns it all.
type query struct {
	values url.Values
	faults []fault.Detail
}

// readQuery refuses parameters that the route does not know: a filter with a slip of the pen would show too much.
func readQuery(r *http.Request, known ...string) (*query, error) {
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, &fault.Error{Kind: fault.Invalid, Message: "the query is not well-formed"}
	}
	q := &query{values: values}
	for name, v := range values {
		switch {
		case !slices.Contains(known, name):
			q.fault(name, "is no parameter here; there are "+strings.Join(known, ", "))
		case len(v) > 1:
			q.fault(name, "must be there once")
		}
	}
	slices.SortFunc(q.faults, func(a, b fault.Detail) int { return strings.Compare(a.Pointer, b.Pointer) })
	return q, nil
}

// span is the part of a list that is asked for: a time, and a page of what is in it.
type span struct {
	from, to time.Time
	limit    int // 0 = the default
	cursor   string
}

// readList is readQuery for a list: beside what the route knows it reads what all lists have.
func readList(r *http.Request, known ...string) (*query, span, error) {
	q, err := readQuery(r, slices.Concat(known, []string{"from", "to", "limit", "cursor"})...)
	if err != nil {
		return nil, span{}, err
	}
	return q, span{q.time("from"), q.time("to"), q.limit(), q.text("cursor")}, nil
}

func (q *query) fault(name, detail string) {
	q.faults = append(q.faults, fault.Detail{Pointer: fault.Pointer(name), Detail: detail})
}

func (q *query) text(name string) string { return q.values.Get(name) }

// limit reads how much a page may hold; 0 = the default.
func (q *query) limit() int {
	s := q.text("limit")
	if s == "" {
		return 0
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 || n > 1000 {
		q.fault("limit", "must be a whole number from 1 to 1000")
		return 0
	}
	return n
}

// time reads a point in time; zero if there is none.
func (q *query) time(name string) time.Time {
	s := q.text(name)
	if s == "" {
		return time.Time{}
	}
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		q.fault(name, "must be a time like 2027-06-01T00:00:00Z")
	}
	return t
}

func (q *query) flag(name string) bool {
	switch v, there := q.values[name]; {
	case !there:
		return false
	case v[0] == "" || v[0] == "true" || v[0] == "1":
		return true
	case v[0] == "false" || v[0] == "0":
		return false
	}
	q.fault(name, "must be true or false")
	return false
}

func (q *query) err() error { return fault.Collect(q.faults) }
