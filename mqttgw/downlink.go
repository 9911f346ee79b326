// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/internal/eventlog"
	"github.com/rialto-bridge/rialto/internal/fault"
)

// DownlinkLog is the stream DOWN. It is safe for concurrent use; *eventlog.Stream is one.
type DownlinkLog interface {
	SessionLog
	Committed() uint64
	Info() eventlog.StreamInfo
	// SkipTo fills the stream up to a sequence that was lost to damage.
	SkipTo(ctx context.Context, seq uint64) error
	// Err is why nothing may be taken from outside now.
	Err() error
}

// Names of the stream DOWN.
const (
	DownlinkStream  = "DOWN"
	DownlinkPrefix  = "down"         // of the subjects of messages
	changesSubject  = "down-changes" // of what became of commands
	downlinkLevels  = 3              // of a topic in a subject
	downlinkRing    = 4096           // messages that are kept in memory
	downlinkRingMax = 8 << 20        // their bytes
)

// DownlinkSubjects are the subjects of the stream DOWN.
func DownlinkSubjects() []string { return []string{DownlinkPrefix + ".>", changesSubject} }

// DownlinkOptions are what a Downlink needs. Log and Subjects are required.
type DownlinkOptions struct {
	Log      DownlinkLog
	Subjects func(device, topic string, levels int) string // of messages, below DownlinkPrefix

	MaxAge   time.Duration // how long messages are kept; 0 = 7 days
	MaxBytes int64         // how many bytes of them; 0 = 2 GiB

	Logger *slog.Logger // nil = slog.Default
}

// Defaults of DownlinkOptions.
const (
	DefaultDownlinkAge   = 7 * 24 * time.Hour
	DefaultDownlinkBytes = 2 << 30
)

// Downlink is the stream DOWN: what is on its way to devices, apart from the buses, so that it never waits behind what
// comes from them. Two kinds of messages are in it: those for one device, the commands, and those for every subscription
// that matches. What becomes of commands is written there too, behind them, so that the stream says everything.
//
// As a Tail it reads the messages without a device. It is the only writer of the stream and safe for concurrent use.
type Downlink struct {
	o    DownlinkOptions
	used atomic.Bool // there has been a message

	mu        sync.Mutex
	latest    []downEntry   // guarded by mu; the last that were committed, without a hole
	bytes     int           // guarded by mu; of latest
	committed uint64        // guarded by mu; the last one that was told
	flying    int           // guarded by mu; appends that have not ended
	calm      chan struct{} // guarded by mu; closed when the last of them ends; nil when nobody waits
	moved     chan struct{}
}

// downEntry is a message of DOWN.
type downEntry struct {
	seq     uint64
	rec     *event.Record // nil = none
	device  string        // of a command; "" = for every subscription
	changes []byte        // what became of commands; nil = none
	size    int
}

// NewDownlink returns the Downlink of a stream.
func NewDownlink(o DownlinkOptions) *Downlink {
	if o.MaxAge == 0 {
		o.MaxAge = DefaultDownlinkAge
	}
	if o.MaxBytes == 0 {
		o.MaxBytes = DefaultDownlinkBytes
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	d := &Downlink{o: o, committed: o.Log.Committed()}
	d.used.Store(d.committed > 0)
	return d
}

// Publish stores a message for every subscription that matches its topic. It is a Publisher's Publish, but for the bus.
func (d *Downlink) Publish(ctx context.Context, rec *event.Record, done func(error)) error {
	return d.publish(ctx, "", rec, nil, func(r eventlog.Result) { done(r.Err) })
}

// publish stores a message, for a device or, with "", for every subscription that matches. It blocks while there is no room and ctx is not
// done. If it returns nil, done is called exactly once, in the order of the stream, and before it stored, if that is not nil, as soon as the
// message has its sequence; neither must block. The record is not to be changed afterwards. Errors are *fault.Error.
func (d *Downlink) publish(ctx context.Context, device string, rec *event.Record, stored func(seq uint64), done func(eventlog.Result)) error {
	if err := d.o.Log.Err(); err != nil {
		return unavailable(err)
	}
	// Whole blocks go, and the last two never; so a little more than the bound is no sign that nothing can.
	if n := d.o.Log.Info().Bytes; n > d.o.MaxBytes+d.o.MaxBytes/8+trimSlack {
		return fault.New(fault.Full, "the stream of messages to devices is full of commands that wait")
	}
	e := downEntry{rec: rec, device: device}
	return d.append(ctx, eventlog.Message{Subject: d.o.Subjects(device, rec.MQTT.Topic, downlinkLevels), Header: event.AppendNATS(nil, rec), Data: rec.Event.Data,
		Stored: stored}, e, done)
}

// trimSlack is three blocks of the log.
const trimSlack = 24 << 20

// crowded reports whether commands that wait keep so much from being trimmed that the room which is left is for commands: half of
// what there is above the bound.
func (d *Downlink) crowded() bool {
	return d.o.Log.Info().Bytes > d.o.MaxBytes+d.o.MaxBytes/16+trimSlack
}

// appendChanges stores what became of commands.
func (d *Downlink) appendChanges(ctx context.Context, changes []byte, done func(eventlog.Result)) error {
	return d.append(ctx, eventlog.Message{Subject: changesSubject, Data: changes}, downEntry{changes: changes}, done)
}

func (d *Downlink) append(ctx context.Context, m eventlog.Message, e downEntry, done func(eventlog.Result)) error {
	e.size = len(m.Subject) + len(m.Header) + len(m.Data) + overhead
	d.count(1)
	err := d.o.Log.Append(ctx, m, func(r eventlog.Result) {
		if r.Err == nil {
			e.seq = r.Seq
			d.push(e)
		}
		r.Err = unavailable(r.Err)
		done(r)
		d.count(-1)
	})
	if err != nil {
		d.count(-1)
	}
	return unavailable(err)
}

// count counts appends that have not ended.
func (d *Downlink) count(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.flying += n; d.flying == 0 && d.calm != nil {
		close(d.calm)
		d.calm = nil
	}
}

// settle waits until every append that began has ended, so that whoever reads the stream next finds what it left.
func (d *Downlink) settle(ctx context.Context) {
	d.mu.Lock()
	if d.flying == 0 {
		d.mu.Unlock()
		return
	}
	if d.calm == nil {
		d.calm = make(chan struct{})
	}
	calm := d.calm
	d.mu.Unlock()
	select {
	case <-calm:
	case <-ctx.Done():
	}
}

// unavailable makes a fault of the errors of the log that are none: it was closed, or the caller gave up waiting for room.
func unavailable(err error) error {
	if errors.Is(err, eventlog.ErrClosed) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return &fault.Error{Kind: fault.Unavailable, Message: "the log does not take messages now", RetryAfter: time.Second, Err: err}
	}
	return err
}

// push makes an entry that is committed the last one. The log's committer calls it, in the order of the stream.
func (d *Downlink) push(e downEntry) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if n := len(d.latest); n > 0 && d.latest[n-1].seq+1 != e.seq {
		d.latest, d.bytes = nil, 0
	}
	d.latest = append(d.latest, e)
	d.bytes += e.size
	for d.bytes > downlinkRingMax || len(d.latest) > downlinkRing {
		d.bytes -= d.latest[0].size
		d.latest[0] = downEntry{}
		d.latest = d.latest[1:]
	}
	d.committed = e.seq
	d.used.Store(true)
	if d.moved != nil {
		close(d.moved)
		d.moved = nil
	}
}

// catchUp takes up what was committed by others: what filled lost sequences. It is called before anything is published.
func (d *Downlink) catchUp() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.committed = d.o.Log.Committed()
}

// First implements Tail.
func (d *Downlink) First() uint64 { return d.o.Log.Info().First }

// Committed implements Tail.
func (d *Downlink) Committed() uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.committed
}

// Hot implements Tail.
func (d *Downlink) Hot() uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.latest) > 0 {
		return d.latest[0].seq
	}
	return d.committed + 1
}

// Wait implements Tail.
func (d *Downlink) Wait(ctx context.Context, after uint64) error {
	for {
		d.mu.Lock()
		if d.committed > after {
			d.mu.Unlock()
			return nil
		}
		if d.moved == nil {
			d.moved = make(chan struct{})
		}
		moved := d.moved
		d.mu.Unlock()
		select {
		case <-moved:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Scan implements Tail: it reads the messages without a device, and of commands that clients have published with QoS 2 what
// the session needs of them after a crash. Filters leave nothing out: most of what DOWN has is for one device.
func (d *Downlink) Scan(ctx context.Context, o eventlog.ScanOptions, dst []eventlog.Entry) (_ []eventlog.Entry, next uint64, looked int, err error) {
	hot := d.Hot()
	entries, next, err := d.read(ctx, o.From, o.Max, nil)
	for _, e := range entries {
		if e.seq < hot {
			looked += e.size
		}
		switch {
		case o.To > 0 && e.seq > o.To:
			return dst, min(next, o.To+1), looked, err
		case e.rec == nil:
		case e.device == "":
			dst = append(dst, eventlog.Entry{Seq: e.seq, Record: e.rec})
		case e.rec.MQTT.Client != "" && e.rec.MQTT.QoS == 2:
			dst = append(dst, eventlog.Entry{Seq: e.seq, Record: receiptOf(e.rec)})
		}
	}
	return dst, next, looked, err
}

// read appends at most most entries from a sequence on and returns the sequence to go on from. Sequences that damage has
// taken are left out.
func (d *Downlink) read(ctx context.Context, from uint64, most int, dst []downEntry) ([]downEntry, uint64, error) {
	d.mu.Lock()
	committed := d.committed
	if len(d.latest) > 0 && from >= d.latest[0].seq {
		if i := from - d.latest[0].seq; i < uint64(len(d.latest)) {
			found := d.latest[i:min(i+uint64(most), uint64(len(d.latest)))]
			dst, from = append(dst, found...), from+uint64(len(found))
		}
		d.mu.Unlock()
		return dst, from, nil
	}
	d.mu.Unlock()
	from = max(from, d.First(), 1)
	if from > committed {
		return dst, from, nil
	}
	raws, err := d.o.Log.Read(ctx, eventlog.ReadOptions{From: from, Max: most}, nil)
	if err != nil {
		return dst, from, err
	}
	for _, raw := range raws {
		if raw.Seq > committed {
			break
		}
		from = raw.Seq + 1
		e, err := decodeDown(raw)
		if err != nil {
			d.o.Logger.Error("message to devices passed over", "seq", raw.Seq, "err", err)
		}
		dst = append(dst, e)
	}
	return dst, from, nil
}

// decodeDown reads a message of DOWN; one that damage has taken, or that is none, has nothing in it.
func decodeDown(raw eventlog.Raw) (downEntry, error) {
	e := downEntry{seq: raw.Seq, size: len(raw.Subject) + len(raw.Header) + len(raw.Data) + overhead}
	switch {
	case raw.Gap():
		return e, nil
	case raw.Subject == changesSubject:
		e.changes = raw.Data
		return e, nil
	}
	rec, err := event.FromNATS(raw.Header, raw.Data)
	if err != nil {
		return e, err
	}
	if rec.MQTT == nil {
		return e, errors.New("it has no topic")
	}
	e.rec = rec
	if !eventlog.Unnamed(DownlinkPrefix, raw.Subject) {
		e.device = rec.Event.Subject
	}
	return e, nil
}

// at returns the message at a sequence; ok is false if there is none any more.
func (d *Downlink) at(ctx context.Context, seq uint64) (e downEntry, ok bool, err error) {
	entries, _, err := d.read(ctx, seq, 1, nil)
	if err != nil || len(entries) == 0 || entries[0].seq != seq {
		return downEntry{}, false, err
	}
	return entries[0], true, nil
}

// trim removes whole old blocks, below a sequence that is still needed.
func (d *Downlink) trim(ctx context.Context, protect uint64, now time.Time) error {
	_, err := d.o.Log.Trim(ctx, eventlog.TrimPolicy{MaxAge: d.o.MaxAge, MaxBytes: d.o.MaxBytes, Protect: protect, Now: now})
	if err != nil {
		return fmt.Errorf("trim %s: %w", DownlinkStream, err)
	}
	return nil
}
