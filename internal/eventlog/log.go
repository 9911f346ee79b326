// SPDX-License-Identifier: Apache-2.0

package eventlog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/rialto-bridge/rialto/internal/fault"
)

// Durability says what an acknowledged append survives.
type Durability string

// The durabilities.
const (
	Fsync Durability = "fsync" // power loss: synced before it is acknowledged
	OS    Durability = "os"    // kill -9 of the process, not power loss
)

// Limits of a message.
const (
	DefaultMaxData  = 1 << 20
	MaxData         = 8 << 20
	payloadSlack    = 128 << 10 // headers beside the data
	maxHeader       = 60 << 10  // JetStream refuses headers above 64 KiB
	maxPayloadLimit = MaxData + payloadSlack + 64<<10
)

// Sentinels that callers compare.
var (
	// ErrClosed is returned by everything after Close.
	ErrClosed = errors.New("log is closed")
	// ErrGone is returned for a sequence that was trimmed away.
	ErrGone = errors.New("sequence is gone from the log")
	// ErrNotFound is returned for a sequence that is not committed yet.
	ErrNotFound = errors.New("sequence is not in the log yet")
	// ErrGap is returned for a sequence whose message was lost to damage.
	ErrGap = errors.New("sequence was lost")
)

// Options configures a Log. Only Dir is needed.
type Options struct {
	Dir          string                // the data directory; made when missing
	Durability   Durability            // "" is Fsync
	MaxData      int                   // largest payload in bytes; 0 is 1 MiB, at most 8 MiB
	Reserve      int64                 // bytes of the disk that producers may not use; 0 is chosen from its size (see DESIGN.md)
	ReserveLeast int64                 // what is chosen is no less; 0 is 512 MiB
	MaxStore     int64                 // cap on the bytes of all streams; 0 is none but the disk
	RingBytes    int64                 // memory for recent events of all buses; 0 is 64 MiB
	Logger       *slog.Logger          // nil discards
	Registerer   prometheus.Registerer // nil: no metrics
	Now          func() time.Time      // nil is time.Now
	Sync         func(*os.File) error  // makes a block file durable; nil is fdatasync. Tests hold it or let it fail.
	// ClockTrust is how long the wall clock must have gone along with the monotonic one before Trim looks at ages; 0 is 10 minutes,
	// negative: always.
	ClockTrust time.Duration

	statfs     func(dir string) (free, total int64, err error) // nil asks the system
	ackTimeout time.Duration                                   // 0 is 30 s
}

// Validate joins all complaints about the options.
func (o Options) Validate() error {
	var errs []error
	if o.Dir == "" {
		errs = append(errs, errors.New("data directory is not set"))
	}
	if o.Durability != "" && o.Durability != Fsync && o.Durability != OS {
		errs = append(errs, fmt.Errorf("durability %q is neither fsync nor os", o.Durability))
	}
	if o.MaxData < 0 || o.MaxData > MaxData {
		errs = append(errs, fmt.Errorf("largest payload of %d bytes is not between 0 and %d", o.MaxData, MaxData))
	}
	if o.Reserve < 0 || o.ReserveLeast < 0 || o.MaxStore < 0 || o.RingBytes < 0 {
		errs = append(errs, errors.New("a size is negative"))
	}
	return errors.Join(errs...)
}

// maxRecord is the largest payload of a message that is not a producer's: what the bridge writes itself, and documents in
// the state plane.
func (o Options) maxRecord() int { return max(o.MaxData, DefaultMaxData) }

func (o Options) withDefaults() Options {
	if o.Durability == "" {
		o.Durability = Fsync
	}
	if o.MaxData == 0 {
		o.MaxData = DefaultMaxData
	}
	if o.RingBytes == 0 {
		o.RingBytes = 64 << 20
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Sync == nil {
		o.Sync = datasync
	}
	if o.statfs == nil {
		o.statfs = statfs
	}
	if o.ackTimeout == 0 {
		o.ackTimeout = 30 * time.Second
	}
	return o
}

// Log is an open data directory. All methods may be called concurrently.
type Log struct {
	opts    Options
	logger  *slog.Logger
	metrics *metrics
	lock    *os.File
	disk    *disk
	clock   *clock
	rings   *ringBudget

	opening sync.Mutex // one stream is opened, or the log closed, at a time; taken before mu
	naming  sync.Mutex // one bus is opened at a time; taken before opening

	events, state *plane
	control       *nats.Conn // to the event plane: create, purge
	js            jetstream.JetStream

	failure atomic.Pointer[fault.Error] // why no append is taken until a restart

	mu      sync.Mutex // guards the fields below
	streams map[string]*Stream
	buses   map[string]*Bus
	closed  bool

	closeOnce sync.Once
	closeErr  error
}

const (
	formatFile    = "format"
	formatVersion = "rialto data 1\n"
)

// Open takes the data directory and starts both planes. It blocks for the recovery of what is there: milliseconds
// after a clean stop, about three seconds for each GiB after a crash. It fails when another process has the directory, when
// the directory was written by a newer version, or when a plane cannot start.
func Open(ctx context.Context, o Options) (*Log, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o = o.withDefaults()
	logger := o.Logger.With("component", "eventlog")
	l := &Log{opts: o, logger: logger, clock: newClock(o, logger), metrics: newMetrics(o.Registerer),
		rings: &ringBudget{limit: o.RingBytes}, streams: map[string]*Stream{}, buses: map[string]*Bus{}}
	if err := l.start(ctx); err != nil {
		return nil, errors.Join(err, l.stop())
	}
	return l, nil
}

func (l *Log) start(ctx context.Context) error {
	o := l.opts
	if err := os.MkdirAll(o.Dir, 0o750); err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	var err error
	if l.lock, err = lockDir(o.Dir); err != nil {
		return err
	}
	if err := checkFormat(o.Dir); err != nil {
		return err
	}
	if err := os.MkdirAll(l.markDir(), 0o750); err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	if l.disk, err = newDisk(o, l.logger, l.metrics, func() { l.clock.look() }); err != nil {
		return err
	}
	if l.events, err = startPlane(ctx, planeConfig{name: "rialto-events", dir: filepath.Join(o.Dir, "events"), maxData: o.maxRecord(), logger: l.logger}); err != nil {
		return err
	}
	if l.state, err = startPlane(ctx, planeConfig{name: "rialto-state", dir: filepath.Join(o.Dir, "state"), maxData: o.maxRecord(), syncAlways: o.Durability == Fsync, logger: l.logger}); err != nil {
		return err
	}
	if l.control, err = l.events.connect(); err != nil {
		return err
	}
	if l.js, err = jetstream.New(l.control); err != nil {
		return fmt.Errorf("event plane: %w", err)
	}
	return nil
}

// lockDir makes the directory this process's own.
func lockDir(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o640)
	if err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		if errors.Is(err, syscall.EWOULDBLOCK) {
			err = fmt.Errorf("data directory %s is in use by another process", dir)
		} else {
			err = fmt.Errorf("lock data directory %s: %w", dir, err)
		}
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// checkFormat writes the version of a new directory, and refuses one that this version does not know.
func checkFormat(dir string) error {
	path := filepath.Join(dir, formatFile)
	got, err := os.ReadFile(path)
	switch {
	case err == nil && string(got) == formatVersion:
		return nil
	case err == nil && strings.HasPrefix(string(got), "rialto data "):
		return fmt.Errorf("data directory %s has format %q, this version knows %q: use the version that wrote it", dir,
			strings.TrimSpace(string(got)), strings.TrimSpace(formatVersion))
	case err == nil:
		return fmt.Errorf("data directory %s: file %s is damaged", dir, path)
	case !errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("data directory: %w", err)
	}
	for _, plane := range []string{"events", "state"} {
		if _, err := os.Stat(filepath.Join(dir, plane)); err == nil {
			return fmt.Errorf("data directory %s has data but no file %s: it was not written by this program, or is damaged", dir, formatFile)
		}
	}
	tmp := path + ".tmp"
	if err := os.WriteFile(tmp, []byte(formatVersion), 0o640); err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	if err := syncPath(tmp); err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	if err := os.Rename(tmp, path); err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	return syncPath(dir)
}

func (l *Log) markDir() string { return filepath.Join(l.opts.Dir, "marks") }

// Err returns nil, or why no producer's append is taken now: fault.Full below the disk reserve, fault.Unavailable after
// a failure that needs a restart, or ErrClosed.
func (l *Log) Err() error {
	l.mu.Lock()
	closed := l.closed
	l.mu.Unlock()
	if closed {
		return ErrClosed
	}
	if f := l.failure.Load(); f != nil {
		return f
	}
	if err := l.overCap(0); err != nil {
		return err
	}
	return l.disk.refuse(true, 0)
}

// overCap returns fault.Full when n more bytes would exceed Options.MaxStore.
func (l *Log) overCap(n int64) error {
	if l.opts.MaxStore == 0 || l.used()+n <= l.opts.MaxStore {
		return nil
	}
	return fault.New(fault.Full, "the log has reached its size limit")
}

// fail closes the log to appends until a restart. The first reason stays.
func (l *Log) fail(err error) *fault.Error {
	f := fault.New(fault.Unavailable, "the log cannot store events until it is restarted")
	f.Err = err
	if l.failure.CompareAndSwap(nil, f) {
		l.logger.Error("log closed to appends until a restart", "err", err)
		l.metrics.failed.Set(1)
	}
	return l.failure.Load()
}

// Disk returns the state of the disk under the data directory as of the last look, at most a second ago.
func (l *Log) Disk() DiskState {
	d := l.disk.state()
	d.Used, d.Cap = l.used(), l.opts.MaxStore
	return d
}

// used is the number of bytes in all streams.
func (l *Log) used() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	var n int64
	for _, s := range l.streams {
		n += s.bytes.Load()
	}
	return n
}

// Connect returns a new connection inside the process to the state plane, for key-value buckets. The caller closes it.
func (l *Log) Connect() (*nats.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, ErrClosed
	}
	return l.state.connect()
}

// Close refuses new appends, waits until ctx is done for those that were taken to be committed, and stops both planes.
// Appends that were not committed in time end with an error. A second call returns what the first did.
func (l *Log) Close(ctx context.Context) error {
	l.closeOnce.Do(func() {
		l.opening.Lock()
		defer l.opening.Unlock()
		l.mu.Lock()
		l.closed = true
		streams := make([]*Stream, 0, len(l.streams))
		for _, s := range l.streams {
			streams = append(streams, s)
		}
		l.mu.Unlock()
		for _, s := range streams {
			s.beginClose()
		}
		var errs []error
		for _, s := range streams {
			errs = append(errs, s.endClose(ctx))
		}
		errs = append(errs, l.stop())
		l.closeErr = errors.Join(errs...)
	})
	return l.closeErr
}

// stop undoes start, as far as it came.
func (l *Log) stop() error {
	if l.disk != nil {
		l.disk.close()
	}
	if l.control != nil {
		l.control.Close()
	}
	if l.events != nil {
		l.events.stop()
	}
	if l.state != nil {
		l.state.stop()
	}
	if l.lock != nil {
		return l.lock.Close() // gives the lock back
	}
	return nil
}
