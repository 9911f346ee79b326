// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"
)

const (
	defaultURL  = "http://127.0.0.1:8080"
	defaultData = "rialto-data" // of a server; its key is in admin.key there

	requestTimeout = 30 * time.Second
	maxAnswer      = 64 << 20 // bytes of an answer that we hold in memory
)

// problem is an answer that says no: RFC 9457, as far as we show it.
type problem struct {
	Status    int    `json:"status"`
	Type      string `json:"type"`
	Title     string `json:"title"`
	Detail    string `json:"detail"`
	RequestID string `json:"requestId"`
	Errors    []struct {
		Pointer string `json:"pointer"`
		Detail  string `json:"detail"`
	} `json:"errors"`
}

func (p *problem) Error() string {
	text := p.Detail
	if text == "" {
		text = p.Title
	}
	if text == "" {
		text = "the server answered " + http.StatusText(p.Status)
	}
	return fmt.Sprintf("%s (%d)", text, p.Status)
}

// client talks to one server. It may be used from several goroutines.
type client struct {
	base *url.URL
	key  string
	http *http.Client
}

// client returns a client for the server that the flags name. It opens nothing.
func (c *cli) client() (*client, error) {
	base, err := url.Parse(strings.TrimRight(c.url, "/"))
	if err != nil || base.Host == "" || (base.Scheme != "http" && base.Scheme != "https") {
		return nil, usagef("--url is an http or https address such as %s", defaultURL)
	}
	key := c.key
	if key == "" && onThisMachine(base.Hostname()) {
		// The file's key rules the server whose data lies beside us. It is never sent to another machine.
		b, err := os.ReadFile(filepath.Join(orDefault(c.getenv("RIALTO_DATA"), defaultData), "admin.key"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("read the key: %w", err)
		}
		key = strings.TrimSpace(string(b))
	}
	return &client{base: base, key: key, http: c.http}, nil
}

func onThisMachine(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// request is one call. Path is already escaped; Query may be nil.
type request struct {
	Method string
	Path   string
	Query  url.Values
	Header http.Header
	Body   []byte
}

// answer is what came back of a call that went well.
type answer struct {
	Status int
	Header http.Header
	Body   []byte
}

// do makes one call, waits for the whole answer, and turns every status from 300 up into a *problem.
func (cl *client) do(ctx context.Context, r request) (*answer, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, requestTimeout, errors.New("no answer in time"))
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, r.Method, cl.address(r.Path, r.Query), bytes.NewReader(r.Body))
	if err != nil {
		return nil, err
	}
	for name, values := range r.Header {
		req.Header[name] = values
	}
	return cl.send(req)
}

// onEvent asks for something to be done with an event: a redrive, a skip.
func (c *cli) onEvent(ctx context.Context, bus, id, verb string, body any) (*answer, error) {
	raw, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	cl, err := c.client()
	if err != nil {
		return nil, err
	}
	return cl.do(ctx, request{Method: http.MethodPost, Header: http.Header{"Content-Type": {"application/json"}}, Body: raw,
		Path: "/v1/buses/" + url.PathEscape(bus) + "/events/" + url.PathEscape(id) + ":" + verb})
}

// send carries out a finished request with the client's key.
func (cl *client) send(req *http.Request) (*answer, error) {
	resp, err := cl.open(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return nil, cl.unreachable(req.Context(), err)
	}
	if len(body) > maxAnswer {
		return nil, fmt.Errorf("the answer is larger than %d MiB", maxAnswer>>20)
	}
	return &answer{Status: resp.StatusCode, Header: resp.Header, Body: body}, nil
}

// open carries out a request and leaves the body to the caller, who closes it.
func (cl *client) open(req *http.Request) (*http.Response, error) {
	if cl.key != "" {
		req.Header.Set("Authorization", "Bearer "+cl.key)
	}
	req.Header.Set("User-Agent", "rialto/"+version)
	resp, err := cl.http.Do(req)
	if err != nil {
		return nil, cl.unreachable(req.Context(), err)
	}
	if resp.StatusCode >= 300 {
		defer resp.Body.Close()
		return nil, readProblem(resp)
	}
	return resp, nil
}

// unreachable says that a call got no answer, and why. A call that the user ended is not the server's fault.
func (cl *client) unreachable(ctx context.Context, err error) error {
	if errors.Is(context.Cause(ctx), context.Canceled) {
		return err
	}
	var inner *url.Error
	if errors.As(err, &inner) {
		err = inner.Err
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	return &codeError{exitUnreachable, fmt.Errorf("no answer from %s: %w", cl.base.Redacted(), err)}
}

func readProblem(resp *http.Response) error {
	p := &problem{}
	media, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if err == nil && strings.HasSuffix(media, "json") {
		// An answer that is not the JSON it claims to be still has its status.
		if err := json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(p); err != nil {
			p = &problem{Detail: "the server sent an unreadable answer"}
		}
	}
	p.Status = resp.StatusCode
	return p
}

func (cl *client) address(path string, query url.Values) string {
	s := cl.base.String() + path
	if len(query) > 0 {
		s += "?" + query.Encode()
	}
	return s
}

// get reads path into out.
func (cl *client) get(ctx context.Context, path string, query url.Values, out any) error {
	a, err := cl.do(ctx, request{Method: http.MethodGet, Path: path, Query: query})
	if err != nil {
		return err
	}
	if err := json.Unmarshal(a.Body, out); err != nil {
		return fmt.Errorf("unreadable answer from %s: %w", path, err)
	}
	return nil
}

// list calls fn for each item of a list, page after page, until there is no more, fn has an error, or most items were
// seen (0 = all).
func (cl *client) list(ctx context.Context, path string, query url.Values, most int, fn func(json.RawMessage) error) error {
	q := url.Values{}
	for k, v := range query {
		q[k] = v
	}
	for seen := 0; ; {
		var page struct {
			Items      []json.RawMessage `json:"items"`
			NextCursor string            `json:"nextCursor"`
		}
		if err := cl.get(ctx, path, q, &page); err != nil {
			return err
		}
		for _, item := range page.Items {
			if most > 0 && seen == most {
				return nil
			}
			seen++
			if err := fn(item); err != nil {
				return err
			}
		}
		if page.NextCursor == "" || seen == most && most > 0 {
			return nil
		}
		q.Set("cursor", page.NextCursor)
	}
}
