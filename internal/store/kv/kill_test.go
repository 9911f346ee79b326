// SPDX-License-Identifier: Apache-2.0

package kv_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/rialto-bridge/rialto/internal/store"
	"github.com/rialto-bridge/rialto/internal/store/kv"
)

const (
	// childDir, in the environment, makes this test binary a process that writes change sets there until it is killed.
	childDir = "RIALTO_TEST_KV_CHILD"
	// setSize is how many documents its sets have.
	setSize = 12
)

// stateServer starts a server like the state plane, without a listener.
func stateServer(dir string) (*server.Server, error) {
	s, err := server.NewServer(&server.Options{ServerName: "state", JetStream: true, StoreDir: dir, SyncAlways: true, NoSigs: true, NoLog: true,
		DontListen: true, JetStreamMaxStore: 1 << 30, JetStreamMaxMemory: 1 << 20})
	if err == nil {
		s.Start()
	}
	return s, err
}

// writeSets writes set after set, each with the next number in all its documents, and says so on stdout.
func writeSets(dir string) error {
	srv, err := stateServer(dir)
	if err != nil {
		return err
	}
	nc, err := nats.Connect("", nats.InProcessServer(srv))
	if err != nil {
		return err
	}
	s, err := kv.Open(context.Background(), nc, kv.Options{Timeout: time.Minute})
	if err != nil {
		return err
	}
	last, err := numbers(s)
	if err != nil {
		return err
	}
	for n := last[0] + 1; ; n++ {
		set := make([]store.Write, setSize)
		for i := range set {
			set[i] = store.Write{Key: setKey(i), Raw: fmt.Append(nil, n)}
		}
		if _, err := s.Apply(context.Background(), set); err != nil {
			return err
		}
		fmt.Println(n)
	}
}

func setKey(i int) store.Key { return store.Key{Kind: "Target", Name: fmt.Sprint("t", i)} }

// numbers returns what the documents of the set hold.
func numbers(s *kv.Store) ([setSize]int, error) {
	var all [setSize]int
	p, err := s.List(context.Background(), store.Query{Kind: "Target"})
	for i, d := range p.Items {
		if len(p.Items) != setSize {
			return all, fmt.Errorf("%d documents of %d", len(p.Items), setSize)
		}
		if err := json.Unmarshal(d.Raw, &all[i]); err != nil {
			return all, err
		}
	}
	return all, err
}

// A process that is killed while it writes change sets leaves each of them whole or not at all, and what it had been
// told to be written is there. RIALTO_KILLS sets another number of kills.
func TestKillChangeSets(t *testing.T) {
	kills := 12
	if s := os.Getenv("RIALTO_KILLS"); s != "" {
		var err error
		if kills, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	for round := range kills {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), childDir+"="+dir)
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		told, killed := 0, false
		lines := bufio.NewScanner(out)
		for sets := 0; lines.Scan(); {
			if _, err := fmt.Sscan(lines.Text(), &told); err != nil {
				t.Fatal(err)
			}
			if sets++; sets == 1+round%4 { // and so in the middle of the next one, at a point that differs
				killed = true
				time.AfterFunc(time.Duration(rand.IntN(12_000))*time.Microsecond, func() { cmd.Process.Kill() })
			}
		}
		if err := cmd.Wait(); !killed {
			t.Fatalf("the child ended by itself: %v", err)
		}

		srv := serve(t, dir, 0)
		nc := connect(t, srv)
		s := open(t, nc, kv.Options{Timeout: time.Minute})
		all, err := numbers(s)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range all {
			if n != all[0] || n < told {
				t.Fatalf("round %d: told %d, and there is %v", round, told, all)
			}
		}
		p, err := s.Audit(t.Context(), store.AuditQuery{Limit: setSize})
		if err != nil || len(p.Items) != setSize || !p.Items[0].At.Equal(p.Items[setSize-1].At) {
			t.Errorf("round %d: the last entries of the audit are not those of one set: %v, %v", round, p.Items, err)
		}
		s.Close()
		nc.Close()
		stop(srv)
	}
}
