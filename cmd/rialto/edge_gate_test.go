// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestGateEdgeLoad runs the plant of the demo, 500 readings a second of which 50 are alarms that go up to a cloud, and looks what the
// edge costs: at most a fifth of a core.
func TestGateEdgeLoad(t *testing.T) {
	program := stripped(t) // others use it after this test
	t.Setenv("TMPDIR", t.TempDir())
	var out bytes.Buffer
	d := &edgeDemo{program: program, out: &out, began: time.Now(), stopReading: func() {}, o: demoOptions{length: time.Hour}}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), closeTime)
		defer cancel()
		if err := d.close(ctx); err != nil {
			t.Error(err)
		}
	}()
	if err := d.open(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	d.plant.hot = 10 // of as many readings one is above
	ctx, stop := context.WithCancel(t.Context())
	ran := make(chan struct{})
	go func() {
		defer close(ran)
		d.plant.run(ctx)
	}()
	settled := time.NewTimer(2 * time.Second)
	<-settled.C
	const window = 8 * time.Second
	before, stored, up := cpuOf(t, d.edge.cmd.Process.Pid), d.plant.stored(), d.seen.count()
	measured := time.NewTimer(window)
	<-measured.C
	used := cpuOf(t, d.edge.cmd.Process.Pid) - before
	stored, up = d.plant.stored()-stored, d.seen.count()-up
	stop()
	<-ran
	if err := d.plant.failed(); err != nil {
		t.Fatal(err)
	}
	share := 100 * used.Seconds() / window.Seconds()
	t.Logf("%.0f readings/s in, %.0f alarms/s up: %.1f %% of a core", float64(stored)/window.Seconds(), float64(up)/window.Seconds(), share)
	if perSecond := float64(stored) / window.Seconds(); perSecond < 450 {
		t.Errorf("the plant came to %.0f readings a second, want 500", perSecond)
	}
	if perSecond := float64(up) / window.Seconds(); perSecond < 35 {
		t.Errorf("%.0f alarms a second went up, want about 50", perSecond)
	}
	if share > 20 {
		t.Errorf("the edge uses %.1f %% of a core, want at most 20", share)
	}
}

// cpuOf is the processor time a process has used.
func cpuOf(t *testing.T, pid int) time.Duration {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+2:]))
	var ticks int64
	for _, f := range fields[11:13] { // user, system
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}
