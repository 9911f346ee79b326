// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// Redrive says that a delivery that had ended is owed again, or that one is owed to a target that its rule did not name.
// The delivery is parked from then on, with no attempt made. A record that finds it pending changes nothing.
type Redrive struct {
	Seq    uint64
	Route  Route // what is owed; the rule at the revision by which it is rendered now
	Check  Check
	Hour   uint32
	Was    State     // how the delivery had ended
	From   string    // the target of the delivery that had ended; "" = the same
	Dead   uint64    // the dead letter that it takes out of the list; 0 = there is none
	Edited uint64    // place in JOBS of the event that is sent instead; 0 = none
	Job    uint64    // the job that did it; 0 = somebody by hand
	At     time.Time // milliseconds are kept, as of all times here
	Due    time.Time
	By     string // who asked for it
	Via    string // the target whose transform is used; "" = From, or its own
}

// Discard says that a dead letter was written off.
type Discard struct {
	Seq     uint64
	Route   Route
	Hour    uint32
	Dead    uint64
	Job     uint64
	At      time.Time
	By, Why string
}

// Redriven is what the views know of a pending delivery besides, if it was redriven.
type Redriven struct {
	Job    uint64
	Dead   uint64 // its former dead letter, which has a copy of the event; 0 = none
	Edited uint64
	Via    string // the target whose transform is used; "" = its own
	Record uint64 // sequence of the JOURNEY message that redrove it
}

// Words for what somebody did to a delivery.
const (
	ReasonRedriven  = "redriven"           // parked: it is owed again
	ReasonElsewhere = "redriven_elsewhere" // discarded: another target has it
	ReasonDiscarded = "discarded"
)

const (
	kindRedrive = 'V'
	kindDiscard = 'W'
)

// Redrive adds r.
func (e *Encoder) Redrive(r Redrive) {
	i := e.route(r.Route)
	e.begin(kindRedrive)
	e.sequence(r.Seq)
	e.uint(i)
	e.buf = binary.BigEndian.AppendUint32(e.buf, uint32(r.Check))
	e.uint(uint64(r.Hour))
	e.buf = append(e.buf, byte(r.Was))
	e.str(r.From)
	e.uint(r.Dead)
	e.uint(r.Edited)
	e.uint(r.Job)
	e.time(r.At)
	e.int(millis(r.Due))
	e.str(Cut(r.By, maxDetail))
	e.str(r.Via)
}

// Discard adds d. A Why that is too long is cut.
func (e *Encoder) Discard(d Discard) {
	i := e.route(d.Route)
	e.begin(kindDiscard)
	e.sequence(d.Seq)
	e.uint(i)
	e.uint(uint64(d.Hour))
	e.uint(d.Dead)
	e.uint(d.Job)
	e.time(d.At)
	e.str(Cut(d.By, maxDetail))
	e.str(Cut(d.Why, maxDetail))
}

func (d *decoder) redrive() Redrive {
	r := Redrive{Seq: d.sequence(), Route: d.route(), Check: d.check(), Hour: uint32(d.uint()), Was: d.state(), From: d.str(),
		Dead: d.uint(), Edited: d.uint(), Job: d.uint()}
	d.at += d.int()
	r.At, r.Due, r.By, r.Via = fromMillis(d.at), fromMillis(d.int()), d.str(), d.str()
	return r
}

func (d *decoder) discard() Discard {
	x := Discard{Seq: d.sequence(), Route: d.route(), Hour: uint32(d.uint()), Dead: d.uint(), Job: d.uint()}
	d.at += d.int()
	x.At, x.By, x.Why = fromMillis(d.at), d.str(), d.str()
	return x
}

// encode writes r behind a pending delivery.
func (r *Redriven) encode(dst []byte) []byte {
	if r == nil {
		return dst
	}
	for _, v := range []uint64{r.Job, r.Dead, r.Edited, r.Record} {
		dst = binary.AppendUvarint(dst, v)
	}
	dst = binary.AppendUvarint(dst, uint64(len(r.Via)))
	return append(dst, r.Via...)
}

func (d *decoder) redriven() *Redriven {
	if d.err != nil || len(d.b) == 0 {
		return nil
	}
	return &Redriven{Job: d.uint(), Dead: d.uint(), Edited: d.uint(), Record: d.uint(), Via: d.str()}
}

// JobCounts is what became of the dead letters that a job handled.
type JobCounts struct {
	Handled uint64 // redriven or discarded
	Counts         // how those that were redriven have ended; Owed is not counted
}

// jobCounts are those of one job and bus while a message is applied.
type jobCounts struct {
	key []byte
	JobCounts
}

func jobKey(job uint64) []byte { return u64([]byte{'v'}, job) }

func (a *application) jobOf(job uint64) (*jobCounts, error) {
	if c, ok := a.jobs[job]; ok {
		return c, nil
	}
	c := &jobCounts{key: append(jobKey(job), a.bus...)}
	b, err := a.j.get(c.key)
	if err != nil {
		return nil, err
	}
	if err := c.decode(b); err != nil {
		return nil, err
	}
	a.jobs[job] = c
	return c, nil
}

func (c *JobCounts) encode() []byte {
	return append(binary.AppendUvarint(nil, c.Handled), c.Counts.encode()...)
}

func (c *JobCounts) decode(b []byte) error {
	if b == nil {
		return nil
	}
	d := decoder{b: b}
	c.Handled = d.uint()
	if d.err != nil {
		return d.err
	}
	return c.Counts.decode(d.b)
}

// JobCounts returns what the views know of a job: all of its buses together.
func (j *Journal) JobCounts(job uint64) (JobCounts, error) {
	var sum JobCounts
	return sum, j.scan(jobKey(job), nil, func(_, v []byte) (bool, error) {
		var c JobCounts
		if err := c.decode(v); err != nil {
			return false, err
		}
		sum.Handled += c.Handled
		sum.Add(c.Counts)
		return true, nil
	})
}

// LastJob returns the highest sequence in JOBS that the views know; 0 if there is none.
func (j *Journal) LastJob() (uint64, error) { return j.highest('J') }

// highest returns the largest of the sequences that JOURNEY has named, by any bus, of DEAD ('D') or JOBS ('J').
func (j *Journal) highest(letter byte) (last uint64, err error) {
	err = j.scan([]byte{'h'}, nil, func(k, v []byte) (bool, error) {
		if k[len(k)-1] == letter && len(v) == 8 {
			last = max(last, binary.BigEndian.Uint64(v))
		}
		return true, nil
	})
	return last, err
}

// named notes that JOURNEY has named a sequence of another stream.
func (a *application) named(letter byte, seq uint64) {
	a.highest[letter] = max(a.highest[letter], seq)
}

func (a *application) redrive(r Redrive) error {
	a.mention[r.Seq] = struct{}{}
	a.named('D', r.Dead)
	a.named('J', max(r.Job, r.Edited))
	if old, err := a.find(r.Seq, r.Route); err != nil || old != nil {
		return err
	}
	c, err := a.countsOf(r.Hour, r.Route)
	if err != nil {
		return err
	}
	// What was delivered stays delivered, and is owed once more. What the views do not count as ended, because JOURNEY has
	// forgotten it, begins here.
	if n := c.ended(r.Was); r.From == "" && r.Was != Delivered && n != nil && *n > 0 {
		*n--
	} else {
		c.Owed++
	}
	if r.Dead != 0 {
		if r.From != "" {
			if err := a.writeOff(r.Seq, r.Hour, Route{Rule: r.Route.Rule, Target: r.From}); err != nil {
				return err
			}
		}
		if err := a.batch.Delete(u64([]byte{'x'}, r.Dead), nil); err != nil {
			return err
		}
	}
	p := Pending{Seq: r.Seq, Route: r.Route, Check: r.Check, Hour: r.Hour, State: Parked, Due: r.Due,
		Redrive: &Redriven{Job: r.Job, Dead: r.Dead, Edited: r.Edited, Via: cmp.Or(r.Via, r.From), Record: a.record}}
	if err := a.park(p, ended); err != nil || r.Job == 0 { // another target may have had it before
		return err
	}
	return a.handled(r.Job)
}

func (a *application) discard(d Discard) error {
	a.mention[d.Seq] = struct{}{}
	a.named('D', d.Dead)
	a.named('J', d.Job)
	if err := a.writeOff(d.Seq, d.Hour, d.Route); err != nil {
		return err
	}
	if err := a.batch.Delete(u64([]byte{'x'}, d.Dead), nil); err != nil || d.Job == 0 {
		return err
	}
	return a.handled(d.Job)
}

// writeOff counts a dead delivery as discarded.
func (a *application) writeOff(seq uint64, hour uint32, r Route) error {
	a.end(seq, r, Dead, Discarded)
	c, err := a.countsOf(hour, r)
	if err == nil && c.Dead > 0 {
		c.Dead--
		c.Discarded++
	}
	return err
}

func (a *application) handled(job uint64) error {
	c, err := a.jobOf(job)
	if err == nil {
		c.Handled++
	}
	return err
}

// endedFor counts, for the job that redrove it, how a delivery ended.
func (a *application) endedFor(p *Pending, s State) error {
	if p.Redrive == nil || p.Redrive.Job == 0 {
		return nil
	}
	c, err := a.jobOf(p.Redrive.Job)
	if err != nil {
		return err
	}
	if n := c.ended(s); n != nil {
		*n++
	}
	return nil
}

// finishJobs writes the counts of jobs and the sequences that were named.
func (a *application) finishJobs() error {
	for _, c := range a.jobs {
		if err := a.set(c.key, c.JobCounts.encode()); err != nil {
			return err
		}
	}
	for letter, seq := range a.highest {
		k := key('h', a.bus, letter)
		old, err := a.j.number(k)
		if err != nil {
			return err
		}
		if seq > old {
			if err := a.set(k, u64(nil, seq)); err != nil {
				return err
			}
		}
	}
	return nil
}

// CopiesNeeded returns the lowest sequences of DEAD and of JOBS whose copy of an event a pending delivery may need, of
// all buses; 0 where none does.
func (j *Journal) CopiesNeeded() (dead, jobs uint64, err error) {
	err = j.scan([]byte{'p'}, nil, func(k, v []byte) (bool, error) {
		p, err := readPending(k[bytes.IndexByte(k, 0)+1:], v)
		if err != nil || p.Redrive == nil {
			return true, err
		}
		dead, jobs = lower(dead, p.Redrive.Dead), lower(jobs, p.Redrive.Edited)
		return true, nil
	})
	return dead, jobs, err
}

// lower returns the smaller of two sequences, 0 being none.
func lower(a, b uint64) uint64 {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// ForgetJobs forgets the counts of the jobs below a number.
func (j *Journal) ForgetJobs(below uint64) error {
	return j.db.DeleteRange([]byte{'v'}, jobKey(below), pebble.NoSync)
}

// Step is one thing that happened to a delivery.
type Step struct {
	Outcome
	Redrive *Redrive // somebody asked for it, and Outcome is what that made of it
	Discard *Discard
	Untold  bool // its message is among those that are left out, and read for how the delivery stands
}

// steps returns what a redrive did to the delivery that had ended, if another target has it now, and to the one that is
// owed.
func (r Redrive) steps() []Step {
	var out []Step
	if r.From != "" && r.Dead != 0 {
		out = append(out, Step{Outcome: Outcome{Seq: r.Seq, Route: Route{Rule: r.Route.Rule, Target: r.From}, State: Discarded, At: r.At,
			Reason: ReasonElsewhere, Detail: "to " + r.Route.Target}, Redrive: &r})
	}
	return append(out, Step{Outcome: Outcome{Seq: r.Seq, Route: r.Route, State: Parked, At: r.At, Due: r.Due, Reason: ReasonRedriven},
		Redrive: &r})
}

func (d Discard) step() Step {
	return Step{Outcome: Outcome{Seq: d.Seq, Route: d.Route, State: Discarded, At: d.At, Reason: ReasonDiscarded, Detail: d.Why}, Discard: &d}
}
