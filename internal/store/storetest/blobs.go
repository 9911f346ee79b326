// SPDX-License-Identifier: Apache-2.0

package storetest

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/store"
)

// RunBlobs runs the suite of store.Blobs. open returns what is empty; two that it returns share nothing.
func RunBlobs(t *testing.T, open func(t *testing.T) store.Blobs) {
	for name, test := range map[string]func(*testing.T, store.Blobs){
		"RoundTrip": blobRoundTrip, "Sweep": blobSweep, "Concurrent": blobConcurrent, "Context": blobContext,
	} {
		t.Run(name, func(t *testing.T) { test(t, open(t)) })
	}
}

// random returns n bytes that are the same for the same seed.
func random(n int, seed byte) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{seed}).Read(b)
	return b
}

func blobRoundTrip(t *testing.T, b store.Blobs) {
	for i, n := range []int{0, 1, 64 << 10, 64<<10 + 1, 1 << 20, store.MaxBlob} {
		data := random(n, byte(i))
		for range 2 {
			digest, err := b.Put(t.Context(), data)
			if err != nil || digest != store.Digest(data) {
				t.Fatalf("put %d bytes: %q, %v", n, digest, err)
			}
		}
		if got, err := b.Get(t.Context(), store.Digest(data)); err != nil || !bytes.Equal(got, data) {
			t.Errorf("get %d bytes: %d bytes, %v", n, len(got), err)
		}
	}
	for _, digest := range []string{store.Digest([]byte("other")), "", "a.b", "*", ">", "\x00", "\xff"} {
		if _, err := b.Get(t.Context(), digest); err == nil || fault.KindOf(err) != fault.NotFound {
			t.Errorf("get %q: %v, want not found", digest, err)
		}
	}
}

func blobSweep(t *testing.T, b store.Blobs) {
	var digests []string
	for i := range 3 {
		digest, err := b.Put(t.Context(), random(100_000, byte(i)))
		if err != nil {
			t.Fatal(err)
		}
		digests = append(digests, digest)
	}
	there := func() (n int) {
		for _, digest := range digests {
			if _, err := b.Get(t.Context(), digest); err == nil {
				n++
			} else if fault.KindOf(err) != fault.NotFound {
				t.Error(err)
			}
		}
		return n
	}
	for _, c := range []struct {
		keep   map[string]bool
		before time.Time
		left   int
	}{
		{nil, time.Now().Add(-time.Hour), 3},
		{map[string]bool{digests[0]: true, digests[2]: true}, time.Now().Add(time.Hour), 2},
		{map[string]bool{digests[2]: true}, time.Now().Add(time.Hour), 1},
		{nil, time.Now().Add(time.Hour), 0},
		{nil, time.Now().Add(time.Hour), 0},
	} {
		if err := b.Sweep(t.Context(), c.keep, c.before); err != nil || there() != c.left {
			t.Errorf("sweep leaves %d, %v, want %d", there(), err, c.left)
		}
	}
	if digest, err := b.Put(t.Context(), random(100_000, 0)); err != nil || digest != digests[0] || there() != 1 {
		t.Errorf("what was swept is put again: %v", err)
	}
}

func blobConcurrent(t *testing.T, b store.Blobs) {
	data := random(300_000, 1)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 3 {
				digest, err := b.Put(t.Context(), data)
				if err == nil {
					_, err = b.Get(t.Context(), digest)
				}
				if err == nil { // takes away what others have replaced
					err = b.Sweep(t.Context(), map[string]bool{digest: true}, time.Now().Add(-time.Hour))
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

func blobContext(t *testing.T, b store.Blobs) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := b.Get(ctx, store.Digest(nil))
	if _, perr := b.Put(ctx, nil); !errors.Is(err, context.Canceled) || !errors.Is(perr, context.Canceled) {
		t.Errorf("a context that is done: %v, %v", err, perr)
	}
}
