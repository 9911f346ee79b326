// SPDX-License-Identifier: Apache-2.0

package event_test

import (
	"encoding/hex"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/internal/event"
)

var uuid7 = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)

func TestNewID(t *testing.T) {
	before := time.Now().UnixMilli()
	id := event.NewID()
	after := time.Now().UnixMilli()
	if !uuid7.MatchString(id) {
		t.Fatalf("NewID() = %s, want a UUID version 7", id)
	}
	b, err := hex.DecodeString(strings.ReplaceAll(id, "-", "")[:12])
	if err != nil {
		t.Fatal(err)
	}
	var ms int64
	for _, c := range b {
		ms = ms<<8 | int64(c)
	}
	if ms < before || ms > after+1 {
		t.Errorf("NewID() = %s holds the time %d, want %d to %d", id, ms, before, after)
	}
}

func TestNewIDSortsInTheOrderOfTheCalls(t *testing.T) {
	const workers, each = 8, 2000
	var mu sync.Mutex // guards all
	var all []string
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			ids := make([]string, each)
			for i := range ids {
				ids[i] = event.NewID()
			}
			if !slices.IsSorted(ids) {
				t.Error("ids of one caller are not in order")
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, ids...)
		})
	}
	wg.Wait()
	slices.Sort(all)
	if n := len(slices.Compact(all)); n != workers*each {
		t.Errorf("%d ids differ of %d", n, workers*each)
	}
}

func BenchmarkNewID(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		event.NewID()
	}
}
