// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/rialto-bridge/rialto/bridge"
	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/internal/fault"
)

const maxTopics = 32

var errStopping = fault.New(fault.Unavailable, "the server is stopping")

// topic is one bus that a stream follows.
type topic struct {
	bus string
	pos event.Position // the last event that the client has
}

// stream answers server-sent events. Every message has an id that says how far each topic has come, so that a client
// that comes back with it as Last-Event-ID goes on exactly there. The stream reads from the log as fast as its client
// takes, holds one message per topic, and ends when the client takes nothing for too long, or what it came with is no good any
// more, which is looked at with each heartbeat.
func (a *API) stream(w *reply, r *http.Request) error {
	topics, eventType, err := a.topics(w, r)
	if err != nil {
		return err
	}
	leave, err := a.openStream()
	if err != nil {
		return err
	}
	defer leave()
	c := a.beginStream(w)
	if r.Method == http.MethodHead {
		return nil
	}
	// The id comes first and alone, so that whoever loses the connection before the first event loses none.
	if err := c.write([]byte("retry: 1000\nid: " + idOf(topics) + "\n\n")); err != nil {
		return nil
	}
	a.pump(r, c, topics, eventType)
	return nil
}

// openStream takes the place of a stream, which leave gives back. The error is Unavailable.
func (a *API) openStream() (leave func(), err error) {
	select {
	case a.streams <- struct{}{}:
	default:
		return nil, &fault.Error{Kind: fault.Unavailable, Message: "too many streams are open", RetryAfter: 10 * time.Second}
	}
	if a.closed.Err() != nil {
		<-a.streams
		return nil, errStopping
	}
	a.metrics.streams.Inc()
	return func() {
		a.metrics.streams.Dec()
		<-a.streams
	}, nil
}

// beginStream answers with the header of a stream.
func (a *API) beginStream(w *reply) *sse {
	h := w.Header()
	h["Content-Type"] = []string{"text/event-stream"}
	h["Cache-Control"] = noStore
	h["X-Accel-Buffering"] = []string{"no"} // nginx would hold messages back
	rc := http.NewResponseController(w)
	// The server's limits on reading and writing a request are not meant for this one. Not every connection has
	// deadlines (tests' recorders do not), and a stream does without.
	_ = rc.SetReadDeadline(time.Time{})
	w.long = true
	w.WriteHeader(http.StatusOK)
	return &sse{w: w, rc: rc, slow: a.o.SlowClient, now: time.Now}
}

// topics reads what a stream is to follow and from where.
func (a *API) topics(w *reply, r *http.Request) ([]topic, string, error) {
	q, err := readQuery(r, "topics", "from", "type")
	if err != nil {
		return nil, "", err
	}
	var out []topic
	names := strings.Split(q.text("topics"), ",")
	if len(names) > maxTopics {
		q.fault("topics", "lists too many topics")
		names = nil
	}
	for _, name := range names {
		bus, ok := strings.CutPrefix(strings.TrimSpace(name), "events:")
		if !ok || bus == "" || slices.ContainsFunc(out, func(t topic) bool { return t.bus == bus }) {
			q.fault("topics", "must be events:<bus>,events:<bus>,... with each bus once")
			break
		}
		out = append(out, topic{bus: bus})
	}
	if err := q.err(); err != nil {
		return nil, "", err
	}
	if err := a.permitTopics(w, r, out); err != nil {
		return nil, "", err
	}
	for i, t := range out {
		if out[i].pos, err = a.o.Bridge.Position(t.bus); err != nil {
			return nil, "", err
		}
	}
	from, name := r.Header.Get("Last-Event-Id"), "Last-Event-ID"
	if from == "" {
		from, name = q.text("from"), "from"
	}
	if from == "" || from == "now" {
		return out, q.text("type"), nil
	}
	ends := slices.Clone(out)
	if why := resume(out, from, name == "from"); why != "" {
		return nil, "", fault.Invalidf(fault.Pointer(name), "%s", why)
	}
	for i, t := range out {
		if t.pos.Seq > ends[i].pos.Seq { // the log is an older one: what gets these positions now would be passed over
			return nil, "", &httpError{kind: problemGone, detail: t.pos.String() + " is behind the end of the log, which is " + ends[i].pos.String() +
				": say where to begin, without Last-Event-ID"}
		}
	}
	return out, q.text("type"), nil
}

// permitTopics finds out whether who asks may follow the topics, and still may: what a request came with can end before the stream.
func (a *API) permitTopics(w *reply, r *http.Request, topics []topic) error {
	who, err := a.identify(w, r)
	if err != nil {
		return err
	}
	for _, t := range topics {
		if err := who.permit(areaEvents, accessRead, t.bus); err != nil {
			return err
		}
	}
	return nil
}

// resume sets the topics to where an id says. inclusive means that the position named is itself still wanted.
func resume(topics []topic, id string, inclusive bool) (fault string) {
	const form = "must be <stream>:<sequence> of the buses that are followed"
	for part := range strings.SplitSeq(id, ",") {
		stream, seq, ok := strings.Cut(part, ":")
		i := slices.IndexFunc(topics, func(t topic) bool { return t.pos.Stream == stream })
		if !ok || i < 0 {
			return form
		}
		if seq == "0" { // of an empty bus
			topics[i].pos.Seq = 0
			continue
		}
		pos, err := event.ParsePosition(part)
		if err != nil {
			return form
		}
		topics[i].pos.Seq = pos.Seq
		if inclusive {
			topics[i].pos.Seq--
		}
	}
	return ""
}

// idOf is the id of a message: how far each topic has come.
func idOf(topics []topic) string {
	var b strings.Builder
	for i, t := range topics {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(t.pos.String())
	}
	return b.String()
}

// arrival is an event of a topic, or the end of the topic.
type arrival struct {
	topic int
	entry eventlog.Entry
	err   error
}

// pump copies events to the client until it has gone, the server stops, or a topic ends. It returns when all it
// started has ended.
func (a *API) pump(r *http.Request, c *sse, topics []topic, eventType string) {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(a.closed, cancel)()
	arrivals := make(chan arrival)
	followers := make(chan struct{}, len(topics))
	for i, t := range topics {
		go func() {
			defer func() { followers <- struct{}{} }()
			err := a.o.Bridge.Follow(ctx, bridge.FollowOptions{Bus: t.bus, From: t.pos.Seq + 1, Type: eventType}, func(e eventlog.Entry) error {
				select {
				case arrivals <- arrival{topic: i, entry: e}:
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			})
			select {
			case arrivals <- arrival{topic: i, err: err}:
			case <-ctx.Done():
			}
		}()
	}
	defer func() {
		cancel()
		for range topics {
			<-followers
		}
	}()
	heartbeat := time.NewTicker(a.o.Heartbeat)
	defer heartbeat.Stop()
	var b bytes.Buffer
	for {
		var err error
		select {
		case <-ctx.Done():
			return
		case <-heartbeat.C:
			if err := a.permitTopics(c.w, r, topics); err != nil {
				a.endStream(r, c, topics[0], err)
				return
			}
			err = c.write([]byte(": alive\n\n"))
		case n := <-arrivals:
			if n.err != nil {
				a.endStream(r, c, topics[n.topic], n.err)
				return
			}
			t := &topics[n.topic]
			t.pos.Seq = n.entry.Seq
			b.Reset()
			b.WriteString("event: event\nid: " + idOf(topics) + "\ndata: ")
			writeMessage(&b, t, n.entry)
			b.WriteString("\n\n")
			err = c.write(b.Bytes())
		}
		if err != nil {
			a.log.Debug("stream ended", "requestId", c.w.id, "err", err)
			return
		}
	}
}

// writeMessage writes {"bus","position","received","event"} on one line: an event in JSON may hold line breaks between
// tokens, because its data is carried as it came.
func writeMessage(b *bytes.Buffer, t *topic, e eventlog.Entry) {
	start := b.Len()
	writeEvent(b, &e.Record.Event, t.pos, e.Record.Received)
	b.WriteString(`,"bus":`)
	b.Write(appendJSONString(b.AvailableBuffer(), t.bus))
	b.WriteByte('}')
	for i, c := range b.Bytes()[start:] {
		if c == '\n' || c == '\r' {
			b.Bytes()[start+i] = ' ' // outside strings a blank is as good; inside, JSON has it escaped
		}
	}
}

// endStream says why a stream ends.
func (a *API) endStream(r *http.Request, c *sse, t topic, err error) {
	p := a.problem(c.w, r, err)
	var b bytes.Buffer
	b.WriteString("event: error\ndata: ")
	if err := encodeJSON(&b, p); err != nil {
		a.log.Error("problem is not JSON", "requestId", c.w.id, "err", err)
		return
	}
	b.WriteString("\n\n")
	if err := c.write(b.Bytes()); err != nil {
		a.log.Debug("stream ended", "requestId", c.w.id, "bus", t.bus, "err", err)
	}
}

// sse writes to the client of a stream.
type sse struct {
	w    *reply
	rc   *http.ResponseController
	slow time.Duration
	now  func() time.Time
}

// write sends b now, and fails when the client does not take it in time.
func (s *sse) write(b []byte) error {
	if err := s.rc.SetWriteDeadline(s.now().Add(s.slow)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	if _, err := s.w.Write(b); err != nil {
		return err
	}
	return s.rc.Flush()
}
