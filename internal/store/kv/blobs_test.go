// SPDX-License-Identifier: Apache-2.0

package kv_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/store"
	"github.com/rialto-bridge/rialto/internal/store/kv"
	"github.com/rialto-bridge/rialto/internal/store/storetest"
)

func TestBlobs(t *testing.T) {
	nc := connect(t, serve(t, t.TempDir(), 0))
	var n atomic.Int32
	storetest.RunBlobs(t, func(t *testing.T) store.Blobs {
		return openBlobs(t, nc, kv.Options{Bucket: fmt.Sprintf("blobs-%d", n.Add(1))})
	})
}

func openBlobs(t *testing.T, nc *nats.Conn, o kv.Options) *kv.Blobs {
	t.Helper()
	b, err := kv.OpenBlobs(t.Context(), nc, o)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// blobChild, in the environment, makes this test binary a process that puts blobs until it is killed.
const blobChild = "RIALTO_TEST_KV_BLOBS"

func putBlobs(dir string) error {
	srv, err := stateServer(dir)
	if err != nil {
		return err
	}
	nc, err := nats.Connect("", nats.InProcessServer(srv))
	if err != nil {
		return err
	}
	b, err := kv.OpenBlobs(context.Background(), nc, kv.Options{Timeout: time.Minute})
	if err != nil {
		return err
	}
	for n := byte(0); ; n++ {
		digest, err := b.Put(context.Background(), blob(n))
		if err != nil {
			return err
		}
		fmt.Println(digest)
	}
}

// blob is several chunks.
func blob(n byte) []byte {
	b := make([]byte, 300_000)
	rand.NewChaCha8([32]byte{n}).Read(b)
	return b
}

// A process that is killed between chunks leaves blobs that are whole, or not there, and nothing else once it was swept.
func TestKillBlobs(t *testing.T) {
	dir := t.TempDir()
	for round := range 5 {
		done := killedAfter(t, dir, round)
		srv := serve(t, dir, 0)
		nc := connect(t, srv)
		b := openBlobs(t, nc, kv.Options{})
		for _, digest := range done {
			if _, err := b.Get(t.Context(), digest); err != nil {
				t.Errorf("round %d: blob %s was put: %v", round, digest, err)
			}
		}
		for n := range len(done) + 2 {
			data := blob(byte(n))
			got, err := b.Get(t.Context(), store.Digest(data))
			if err == nil && !bytes.Equal(got, data) || err != nil && fault.KindOf(err) != fault.NotFound {
				t.Errorf("round %d: blob %d is neither whole nor missing: %v", round, n, err)
			}
		}
		if err := b.Sweep(t.Context(), map[string]bool{store.Digest(blob(0)): true}, time.Now().Add(time.Hour)); err != nil {
			t.Fatal(err)
		}
		if left := strays(t, nc); len(left) > 0 {
			t.Errorf("round %d: %v are left", round, left)
		}
		nc.Close()
		stop(srv)
	}
}

// killedAfter runs a process that is killed a while after its round'th blob, and returns what it had put.
func killedAfter(t *testing.T, dir string, round int) (done []string) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), blobChild+"="+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if done = append(done, lines.Text()); len(done) == round+1 {
			break
		}
	}
	timer := time.AfterFunc(rand.N(5*time.Millisecond), func() { cmd.Process.Signal(syscall.SIGKILL) })
	defer timer.Stop()
	for lines.Scan() {
		done = append(done, lines.Text())
	}
	cmd.Wait() // it was killed
	if len(done) <= round {
		t.Fatalf("the process ended after %d blobs", len(done))
	}
	return done
}

// strays are the subjects in the bucket that do not belong to the one blob that was kept.
func strays(t *testing.T, nc *nats.Conn) (left []string) {
	t.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	s, err := js.Stream(t.Context(), "KV_blobs")
	if err != nil {
		t.Fatal(err)
	}
	info, err := s.Info(t.Context(), jetstream.WithSubjectFilter("$KV.blobs.*.*.*"))
	if err != nil {
		t.Fatal(err)
	}
	chunks := 0
	for subject := range info.State.Subjects {
		if !strings.HasPrefix(subject, "$KV.blobs."+store.Digest(blob(0))+".") {
			left = append(left, subject)
		} else if chunks++; chunks > 5 {
			left = append(left, subject)
		}
	}
	return left
}
