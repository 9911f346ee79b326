// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/store"
)

// errUnknownPast tells a watcher to begin again.
var errUnknownPast = &httpError{kind: problemGone, detail: "what has changed since that revision is not known any more: forget what you have, and watch without since and Last-Event-ID"}

// watching is a list that is followed.
type watching struct {
	a      *API
	kind   *Kind
	bus    string // of a kind that belongs to one
	labels map[string]string
	since  uint64 // 0 = from what there is
	seen   uint64 // revision up to which the client has everything
	told   uint64 // the id that it was given last
	synced bool   // what there was has been told
}

// watchDocuments answers a list as server-sent events: what there is, or what has changed since a revision, then synced, and
// then every change as it happens. A client that comes back with the last id goes on exactly there. A slow client delays
// nobody: of a definition that changes many times meanwhile it gets the last state. A watch ends when what the client came with is no
// good any more, which is looked at with each heartbeat.
func (a *API) watchDocuments(ctx context.Context, k *Kind, in *listIn, labels map[string]string) error {
	w, r := replyOf(ctx), requestOf(ctx)
	x := &watching{a: a, kind: k, labels: labels}
	if k.Scoped {
		x.bus = pathParam(r, "bus")
	}
	var err error
	if x.since, err = in.from(); err != nil {
		return err
	}
	leave, err := a.openStream()
	if err != nil {
		return err
	}
	defer leave()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(a.closed, cancel)()
	changes, done := make(chan store.Change), make(chan error, 1)
	go func() {
		defer close(done)
		done <- a.watchStore(ctx, x.since, changes)
	}()
	defer func() {
		cancel()
		for range done { // it has ended when this is closed
		}
	}()
	select { // a stream begins only when there is something to stream
	case err := <-done:
		if errors.Is(err, store.ErrTooOld) {
			return errUnknownPast
		}
		return a.endOfWatch(ctx, err)
	case c := <-changes:
		s := a.beginStream(w)
		if r.Method == http.MethodHead {
			return nil
		}
		err = x.pump(ctx, r, s, c, changes, done)
	}
	if err != nil {
		a.log.Debug("watch ended", "requestId", w.id, "err", err)
	}
	return nil
}

// from is the revision from which a watch goes on; 0 for one that begins.
func (in *listIn) from() (uint64, error) {
	text, name := in.LastEventID, "Last-Event-ID"
	if text == "" {
		text, name = in.Since, "since"
	}
	if text == "" {
		return 0, nil
	}
	revision, err := strconv.ParseUint(text, 10, 63)
	if err != nil {
		return 0, fault.Invalidf(fault.Pointer(name), "must be a revision: the id of a message, or of a definition")
	}
	return revision, nil
}

// watchStore hands changes over until ctx is done.
func (a *API) watchStore(ctx context.Context, since uint64, to chan<- store.Change) error {
	return a.o.Store.WatchSince(ctx, since, func(c store.Change) error {
		select {
		case to <- c:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
}

// endOfWatch is what a watch that ends by itself is answered with.
func (a *API) endOfWatch(ctx context.Context, err error) error {
	if a.closed.Err() != nil {
		return errStopping
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// pump writes changes until the client has gone, the server stops, or the store ends the watch.
func (x *watching) pump(ctx context.Context, r *http.Request, s *sse, c store.Change, changes <-chan store.Change, done <-chan error) error {
	heartbeat := time.NewTicker(x.a.o.Heartbeat)
	defer heartbeat.Stop()
	for b := bytes.NewBufferString("retry: 1000\n\n"); ; {
		if err := x.write(b, c); err != nil {
			return err
		}
		if b.Len() > 0 {
			if err := s.write(b.Bytes()); err != nil {
				return err
			}
			b.Reset()
		}
		for waiting := true; waiting; {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case err := <-done:
				x.a.endStream(r, s, topic{bus: x.bus}, x.a.endOfWatch(ctx, err))
				return err
			case <-heartbeat.C:
				if err := x.a.authorize(s.w, r, x.kind.need(accessRead, false)); err != nil {
					x.a.endStream(r, s, topic{bus: x.bus}, err)
					return err
				}
				if err := s.write(x.alive()); err != nil {
					return err
				}
			case c = <-changes:
				waiting = false
			}
		}
	}
}

// alive is a message for a quiet time. It has an id when others' changes have gone by, so that a client that comes back
// need not ask for what is long ago.
func (x *watching) alive() []byte {
	if !x.synced || x.seen == x.told {
		return []byte(": alive\n\n")
	}
	x.told = x.seen
	return []byte("id: " + strconv.FormatUint(x.seen, 10) + "\n\n")
}

// write appends the message about a change, if the client is to be told.
func (x *watching) write(b *bytes.Buffer, c store.Change) error {
	x.seen = max(x.seen, c.Revision)
	if c.Key == (store.Key{}) {
		x.synced = true
		return x.message(b, "synced", c.Revision, func() error { return encodeJSON(b, map[string]uint64{"revision": c.Revision}) })
	}
	if c.Kind != x.kind.Name || c.Scope != x.bus {
		return nil
	}
	if !c.Deleted && x.selects(c.Raw) {
		return x.message(b, "put", c.Revision, func() error {
			doc, err := x.kind.showDoc(c.Document, aside{brief: true})
			if err == nil {
				err = json.Compact(b, doc) // on one line, whatever stands in it
			}
			return err
		})
	}
	// A definition that has lost its labels has left the list. Who has just come has not had it.
	if !x.synced && x.since == 0 {
		return nil
	}
	return x.message(b, "delete", c.Revision, func() error {
		return encodeJSON(b, struct {
			Kind     string `json:"kind"`
			Bus      string `json:"bus,omitempty"`
			Name     string `json:"name"`
			Revision uint64 `json:"revision"`
		}{c.Kind, c.Scope, c.Name, c.Revision})
	})
}

func (x *watching) message(b *bytes.Buffer, event string, revision uint64, data func() error) error {
	x.told = revision
	b.WriteString("event: " + event + "\nid: " + strconv.FormatUint(revision, 10) + "\ndata: ")
	err := data()
	b.WriteString("\n\n")
	return err
}

// selects reports whether a document has the labels that are asked for.
func (x *watching) selects(raw []byte) bool {
	if len(x.labels) == 0 {
		return true
	}
	var doc struct {
		Labels map[string]string `json:"labels"`
	}
	if json.Unmarshal(raw, &doc) != nil {
		return false
	}
	for name, want := range x.labels {
		if have, ok := doc.Labels[name]; !ok || have != want {
			return false
		}
	}
	return true
}
