// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/cloudevents/sdk-go/v2/binding"
	cloudevents "github.com/cloudevents/sdk-go/v2/event"
	cehttp "github.com/cloudevents/sdk-go/v2/protocol/http"
	"github.com/spf13/cobra"

	"github.com/rialto-bridge/rialto/internal/event"
)

const (
	maxPublishData = 8 << 20 // bytes; no bus takes more
	batchSize      = 100     // events of one batch request
)

// publication is what the flags of publish say.
type publication struct {
	bus, eventType, source, subject, id, schema string
	data, contentType, mode, rate               string
	at, delay                                   string
	extensions                                  []string
	count                                       int
}

func newPublish(c *cli) *cobra.Command {
	var p publication
	cmd := &cobra.Command{
		Use:   "publish --type TYPE",
		Short: "Send an event to a bus and print where it is in the log",
		Long: `Send a CloudEvent over HTTP and print its id and position once it is stored. With --count it sends
that many events alike, each with an id of its own; --rate slows that down. With --at or --delay the event is
stored later: until then "rialto scheduled" shows it and can cancel it.`,
		Example: `  rialto publish --type com.acme.order --subject orders/17 --data '{"total": 12.5}'
  rialto publish --bus devices --type com.acme.telemetry --data @reading.json --count 100 --rate 20
  rialto publish --type com.acme.reminder --id reminder-17 --delay 2h`,
		Args: arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.publish(cmd.Context(), p)
		},
	}
	f := cmd.Flags()
	f.StringVar(&p.bus, "bus", defaultBus, "bus that takes the event")
	f.StringVar(&p.eventType, "type", "", "what happened, such as com.acme.order.placed")
	f.StringVar(&p.source, "source", "urn:rialto:publish", "who says so: a URI reference")
	f.StringVar(&p.subject, "subject", "", "what it is about")
	f.StringVar(&p.id, "id", "", "id of the event (default: a new one); with --count a number is added")
	f.StringVar(&p.schema, "dataschema", "", "URI of the schema of the data")
	f.StringVar(&p.data, "data", "", "the payload: text, @FILE, or - for stdin")
	f.StringVar(&p.contentType, "datacontenttype", "", "media type of the data (default: JSON, text or bytes, as it looks)")
	f.StringArrayVar(&p.extensions, "ext", nil, "extension attribute name=value; may be given more than once")
	f.StringVar(&p.mode, "mode", "binary", "how to send: binary, structured or batch")
	f.StringVar(&p.at, "at", "", "store it at this time (RFC 3339)")
	f.StringVar(&p.delay, "delay", "", "store it after this long, such as 90s or 2h")
	f.IntVar(&p.count, "count", 1, "how many events to send")
	f.StringVar(&p.rate, "rate", "", "events per second (default: as fast as they are stored)")
	return cmd
}

// receipt is what the server says of one event that is stored, or scheduled.
type receipt struct {
	ID        string `json:"id"`
	Position  string `json:"position,omitempty"`
	At        string `json:"at,omitempty"` // when it will be stored
	Duplicate bool   `json:"duplicate,omitempty"`
}

func (c *cli) publish(ctx context.Context, p publication) error {
	template, err := c.template(p)
	if err != nil {
		return err
	}
	pace, err := p.pace()
	if err != nil {
		return err
	}
	cl, err := c.client()
	if err != nil {
		return err
	}
	perRequest := 1
	if p.mode == "batch" {
		perRequest = batchSize
	}
	start, sent := c.now(), 0
	var due <-chan time.Time
	if pace > 0 {
		perRequest = min(perRequest, max(1, int(time.Second/pace))) // at most a second's worth at once
		ticker := time.NewTicker(pace * time.Duration(perRequest))
		defer ticker.Stop()
		due = ticker.C
	}
	for sent < p.count {
		if due != nil && sent > 0 {
			select {
			case <-due:
			case <-ctx.Done():
				return fmt.Errorf("stopped after %s: %w", count(sent, "event"), context.Cause(ctx))
			}
		}
		events := make([]cloudevents.Event, min(perRequest, p.count-sent))
		for i := range events {
			events[i] = template.Clone()
			events[i].SetID(p.number(sent + i + 1))
			events[i].SetTime(c.now())
		}
		receipts, err := cl.sendEvents(ctx, p.bus, p.mode, p.later(), events)
		if err != nil {
			if sent > 0 {
				err = fmt.Errorf("after %s: %w", count(sent, "event"), err)
			}
			return err
		}
		if err := c.printReceipts(receipts); err != nil {
			return err
		}
		sent += len(events)
	}
	if p.count > 1 {
		took := c.now().Sub(start)
		fmt.Fprintf(c.err, "%s %s in %s", count(sent, "event"), p.done(), took.Round(time.Millisecond))
		if took > 0 {
			fmt.Fprintf(c.err, ", %.0f/s", float64(sent)/took.Seconds())
		}
		fmt.Fprintln(c.err)
	}
	return nil
}

var extensionName = regexp.MustCompile(`^[a-z0-9]+$`)

// template makes the event that all the others are copies of.
func (c *cli) template(p publication) (cloudevents.Event, error) {
	e := cloudevents.New()
	switch {
	case p.eventType == "":
		return e, usagef("publish needs --type, such as --type com.acme.order.placed")
	case !slices.Contains([]string{"binary", "structured", "batch"}, p.mode):
		return e, usagef("--mode is binary, structured or batch, not %q", p.mode)
	case p.at != "" && p.delay != "":
		return e, usagef("--at and --delay do not go together")
	case p.count < 1:
		return e, usagef("--count is at least 1")
	}
	e.SetType(p.eventType)
	e.SetSource(p.source)
	e.SetID("checked-below")
	if p.subject != "" {
		e.SetSubject(p.subject)
	}
	if p.schema != "" {
		e.SetDataSchema(p.schema)
	}
	for _, ext := range p.extensions {
		name, value, ok := strings.Cut(ext, "=")
		if !ok || !extensionName.MatchString(name) {
			return e, usagef("--ext is name=value, and a name is of a-z and 0-9: %q", ext)
		}
		e.SetExtension(name, value)
	}
	data, err := c.payload(p.data)
	if err != nil {
		return e, err
	}
	if data != nil || p.contentType != "" {
		media := orDefault(p.contentType, looksLike(data))
		if err := e.SetData(media, data); err != nil {
			return e, usagef("--data: %w", err)
		}
		// Embedded in JSON, text stays readable.
		e.DataBase64 = !utf8.Valid(data) || event.IsJSON(media) && !json.Valid(data)
	}
	if err := e.Validate(); err != nil {
		return e, usagef("%s", strings.TrimSpace(err.Error()))
	}
	return e, nil
}

// payload reads what --data names; nil when there is none.
func (c *cli) payload(data string) ([]byte, error) {
	read := func(r io.Reader) ([]byte, error) {
		b, err := io.ReadAll(io.LimitReader(r, maxPublishData+1))
		if err == nil && len(b) > maxPublishData {
			err = fmt.Errorf("--data is larger than %d MiB", maxPublishData>>20)
		}
		return b, err
	}
	switch {
	case data == "":
		return nil, nil
	case data == "-":
		return read(c.in)
	case data[0] == '@':
		f, err := os.Open(data[1:])
		if err != nil {
			return nil, err
		}
		defer f.Close()
		return read(f)
	}
	return []byte(data), nil
}

// looksLike guesses the media type of a payload.
func looksLike(data []byte) string {
	switch {
	case json.Valid(data):
		return "application/json"
	case utf8.Valid(data):
		return "text/plain; charset=utf-8"
	}
	return "application/octet-stream"
}

// number is the id of the n-th event.
func (p publication) number(n int) string {
	switch {
	case p.id == "":
		return event.NewID()
	case p.count == 1:
		return p.id
	}
	return p.id + "-" + strconv.Itoa(n)
}

// pace is the time between two events; 0 is none.
func (p publication) pace() (time.Duration, error) {
	if p.rate == "" {
		return 0, nil
	}
	perSecond, err := strconv.ParseFloat(strings.TrimSuffix(p.rate, "/s"), 64)
	if err != nil || perSecond < 0.001 || perSecond > 1e6 {
		return 0, usagef("--rate is a number of events per second, not %q", p.rate)
	}
	return time.Duration(float64(time.Second) / perSecond), nil
}

// done is what becomes of the events at once.
func (p publication) done() string {
	if p.at != "" || p.delay != "" {
		return "scheduled"
	}
	return "stored"
}

// later is the query that schedules events.
func (p publication) later() url.Values {
	query := url.Values{}
	set(query, "deliverAt", p.at)
	set(query, "delay", p.delay)
	return query
}

// sendEvents sends events in one request, encoded by the CloudEvents SDK, and waits until they are stored, or scheduled.
func (cl *client) sendEvents(ctx context.Context, bus, mode string, query url.Values, events []cloudevents.Event) ([]receipt, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, requestTimeout, errors.New("no answer in time"))
	defer cancel()
	address := cl.address("/v1/buses/"+url.PathEscape(bus)+"/events", query)
	var req *http.Request
	var err error
	switch mode {
	case "batch":
		req, err = cehttp.NewHTTPRequestFromEvents(ctx, address, events)
	case "structured":
		req, err = cehttp.NewHTTPRequestFromEvent(binding.WithForceStructured(ctx), address, events[0])
	default:
		req, err = cehttp.NewHTTPRequestFromEvent(binding.WithForceBinary(ctx), address, events[0])
	}
	if err != nil {
		return nil, err
	}
	percentEncode(req.Header)
	a, err := cl.send(req)
	if err != nil {
		return nil, err
	}
	var body struct {
		Accepted  []receipt `json:"accepted"`
		Scheduled []receipt `json:"scheduled"`
	}
	if err := json.Unmarshal(a.Body, &body); err != nil {
		return nil, fmt.Errorf("unreadable answer: %w", err)
	}
	return append(body.Accepted, body.Scheduled...), nil
}

// percentEncode does what the SDK leaves out: attributes in headers are percent-encoded (CloudEvents HTTP binding
// 1.0.2, section 3.1.3.2).
func percentEncode(h http.Header) {
	for name, values := range h {
		if !strings.HasPrefix(strings.ToLower(name), "ce-") {
			continue
		}
		for i, value := range values {
			var b bytes.Buffer
			for _, c := range []byte(value) {
				if c <= ' ' || c == '"' || c == '%' || c >= 0x7f {
					fmt.Fprintf(&b, "%%%02X", c)
				} else {
					b.WriteByte(c)
				}
			}
			values[i] = b.String()
		}
	}
}

func (c *cli) printReceipts(receipts []receipt) error {
	for _, r := range receipts {
		if c.output != "table" {
			if err := c.encode(r); err != nil {
				return err
			}
			continue
		}
		note := ""
		if r.Duplicate {
			note = "  (stored before)"
		}
		if _, err := fmt.Fprintf(c.out, "%s  %s%s\n", clean(r.ID), clean(orDefault(r.Position, "due "+r.At)), note); err != nil {
			return err
		}
	}
	return nil
}
