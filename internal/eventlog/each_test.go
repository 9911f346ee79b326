// SPDX-License-Identifier: Apache-2.0

package eventlog_test

import (
	"errors"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/rialto-bridge/rialto/internal/eventlog"
)

// Each reads what Get reads, from several blocks, and passes over what Get has an error for.
func TestEachReadsWhatIsThere(t *testing.T) {
	s := openStream(t, open(t, eventlog.Options{Dir: t.TempDir()}), "DEAD")
	appendRaw(t, s, 400, 100_000) // 40 MB, 5 blocks
	tr, err := s.Trim(t.Context(), eventlog.TrimPolicy{MaxAge: time.Nanosecond, Protect: 150, Now: time.Now().Add(time.Hour)})
	if err != nil || tr.First < 2 || tr.First > 150 {
		t.Fatalf("Trim = %+v, %v", tr, err)
	}
	var ask, want []uint64
	for seq := uint64(1); seq <= 450; seq += 7 {
		ask = append(ask, seq)
		raw, err := s.Get(t.Context(), seq)
		if errors.Is(err, eventlog.ErrGone) || errors.Is(err, eventlog.ErrNotFound) {
			continue
		}
		if err != nil || raw.Seq != seq {
			t.Fatalf("Get(%d) = %d, %v", seq, raw.Seq, err)
		}
		want = append(want, seq)
	}
	var got []uint64
	err = s.Each(t.Context(), append(ask, math.MaxUint64), func(raw eventlog.Raw) error {
		one, err := s.Get(t.Context(), raw.Seq)
		if d := cmp.Diff(one, raw); d != "" || err != nil {
			t.Errorf("Each differs from Get, %v: %s", err, d)
		}
		got = append(got, raw.Seq)
		return nil
	})
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("Each = %v, %v; want %v", got, err, want)
	}
	enough := errors.New("enough")
	calls := 0
	if err := s.Each(t.Context(), want, func(eventlog.Raw) error { calls++; return enough }); !errors.Is(err, enough) || calls != 1 {
		t.Errorf("Each of a function that ends it = %v after %d calls", err, calls)
	}
}
