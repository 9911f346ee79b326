// SPDX-License-Identifier: Apache-2.0

package wasm

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rialto-bridge/rialto/targets"
)

// failure is why a call has failed: a closed set, so that it can be a metric label.
type failure string

const (
	failBusy        failure = "busy"        // no instance was free in the attempt's time
	failLoad        failure = "load"        // the code could not be had
	failTimeout     failure = "timeout"     // it took longer than its time
	failMemory      failure = "memory"      // it failed with most of the memory that it may have
	failOutput      failure = "output"      // more than it may write
	failCrash       failure = "crash"       // a trap, an exit code, or a module that does not start
	failResult      failure = "result"      // what it wrote is no result
	failRefused     failure = "refused"     // its own error
	failInterrupted failure = "interrupted" // the attempt was cut off
)

var failures = []failure{failBusy, failLoad, failTimeout, failMemory, failOutput, failCrash, failResult, failRefused, failInterrupted}

// Counts are what a function has done since it was put in force in this process.
type Counts struct {
	Calls    uint64             `json:"calls"` // that had a result, and those that failed
	Failures map[failure]uint64 `json:"failures,omitempty"`
	// Seconds that calls took, without waiting for their turn. A function has nothing to wait for, so on a machine that is
	// not overloaded it is processor time.
	Seconds float64 `json:"seconds"`
	// PeakMemory is the most bytes that an instance's memory has had.
	PeakMemory int64 `json:"peakMemory"`
}

// Status is where a function stands in this process.
type Status struct {
	Counts
	Instances int   `json:"instances"` // that are there, at work or idle
	Memory    int64 `json:"memory"`    // bytes of the memories of idle instances, which share what they have not written
}

// Status returns where the function stands.
func (f *Function) Status() Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := Status{Counts: f.counts, Instances: f.live}
	s.Failures = make(map[failure]uint64, len(f.counts.Failures))
	for r, n := range f.counts.Failures {
		s.Failures[r] = n
	}
	for _, i := range f.idle {
		s.Memory += int64(i.module.Memory().Size())
	}
	return s
}

// classify says what the failure of a call is, to metrics and to whoever delivers.
func (f *Function) classify(ctx context.Context, err error) (failure, *targets.Error) {
	e := &targets.Error{Reason: targets.ReasonFunction, Err: err}
	switch {
	case errors.Is(err, errTimeout):
		e.Reason, e.Err = targets.ReasonTimeout, errors.New("the function was stopped after "+f.spec.Settings.Timeout.String())
		return failTimeout, e
	case ctx.Err() != nil:
		e.Reason, e.Err = targets.ReasonOf(ctx.Err()), errors.New("the attempt was over before the function was")
		return failInterrupted, e
	case errors.Is(err, errOutput):
		e.Err = errors.New("the result is larger than maxOutput")
		return failOutput, e
	case errors.Is(err, errMemory):
		return failMemory, e
	}
	return failCrash, e
}

// failed counts a failure and returns its error.
func (f *Function) failed(took time.Duration, reason failure, err *targets.Error) error {
	f.count(took, reason)
	return err
}

// count counts a call; reason is empty if it had a result.
func (f *Function) count(took time.Duration, reason failure) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.counts.Calls++
	f.counts.Seconds += took.Seconds()
	if reason != "" {
		if f.counts.Failures == nil {
			f.counts.Failures = make(map[failure]uint64)
		}
		f.counts.Failures[reason]++
	}
}

func (f *Function) peak(size int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.counts.PeakMemory = max(f.counts.PeakMemory, size)
}

func (f *Function) addLive(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.live += n
}

// The metrics. A function that is replaced begins at zero, as a process that was started again does.
var (
	callsDesc = prometheus.NewDesc("rialto_function_calls_total", "Events handed to functions, by function.", []string{"function"}, nil)
	failsDesc = prometheus.NewDesc("rialto_function_failures_total", "Calls of functions that had no result, by function and reason.",
		[]string{"function", "reason"}, nil)
	secondsDesc = prometheus.NewDesc("rialto_function_seconds_total", "Time that functions took, by function.", []string{"function"}, nil)
	peakDesc    = prometheus.NewDesc("rialto_function_memory_peak_bytes", "Most memory that an instance has had, by function.", []string{"function"}, nil)
	liveDesc    = prometheus.NewDesc("rialto_function_instances", "Instances of functions that are there.", nil, nil)
	memoryDesc  = prometheus.NewDesc("rialto_function_idle_memory_bytes", "Memory of instances of functions that are idle.", nil, nil)
)

// Describe implements prometheus.Collector.
func (rt *Runtime) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{callsDesc, failsDesc, secondsDesc, peakDesc, liveDesc, memoryDesc} {
		ch <- d
	}
}

// Collect implements prometheus.Collector. What several versions of a function have done, whose last calls go on, counts
// together.
func (rt *Runtime) Collect(ch chan<- prometheus.Metric) {
	live, memory := 0, int64(0)
	all := map[string]Counts{}
	for _, f := range rt.all() {
		s := f.Status()
		live += s.Instances
		memory += s.Memory
		if f.spec.Trial {
			continue
		}
		c := all[f.spec.Name]
		c.Calls += s.Calls
		c.Seconds += s.Seconds
		c.PeakMemory = max(c.PeakMemory, s.PeakMemory)
		for r, n := range c.Failures {
			s.Failures[r] += n
		}
		c.Failures = s.Failures
		all[f.spec.Name] = c
	}
	for name, c := range all {
		ch <- prometheus.MustNewConstMetric(callsDesc, prometheus.CounterValue, float64(c.Calls), name)
		ch <- prometheus.MustNewConstMetric(secondsDesc, prometheus.CounterValue, c.Seconds, name)
		ch <- prometheus.MustNewConstMetric(peakDesc, prometheus.GaugeValue, float64(c.PeakMemory), name)
		for _, r := range failures {
			ch <- prometheus.MustNewConstMetric(failsDesc, prometheus.CounterValue, float64(c.Failures[r]), name, string(r))
		}
	}
	ch <- prometheus.MustNewConstMetric(liveDesc, prometheus.GaugeValue, float64(live))
	ch <- prometheus.MustNewConstMetric(memoryDesc, prometheus.GaugeValue, float64(memory))
}
