// SPDX-License-Identifier: Apache-2.0

package kv_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/rialto-bridge/rialto/internal/fault"
	"github.com/rialto-bridge/rialto/internal/store"
	"github.com/rialto-bridge/rialto/internal/store/kv"
	"github.com/rialto-bridge/rialto/internal/store/storetest"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		fmt.Fprintln(os.Stderr, writeSets(dir))
		os.Exit(1)
	}
	if dir := os.Getenv(blobChild); dir != "" {
		fmt.Fprintln(os.Stderr, putBlobs(dir))
		os.Exit(1)
	}
	goleak.VerifyTestMain(m,
		// The server lets these end by themselves some time after WaitForShutdown.
		goleak.IgnoreAnyFunction("github.com/nats-io/nats-server/v2/server.(*fileStore).flushLoop"),
		goleak.IgnoreAnyFunction("github.com/nats-io/nats-server/v2/server.(*ipQueue[...]).push"))
}

// serve starts a server like the state plane: every write synced, in-process unless a port is given (-1 = any).
func serve(t *testing.T, dir string, port int) *server.Server {
	t.Helper()
	s, err := server.NewServer(&server.Options{
		ServerName: "state", JetStream: true, StoreDir: dir, SyncAlways: true, NoSigs: true, NoLog: true,
		DontListen: port == 0, Host: "127.0.0.1", Port: port, JetStreamMaxStore: 1 << 30, JetStreamMaxMemory: 1 << 20,
	})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	if !s.ReadyForConnections(10 * time.Second) {
		t.Fatal("server does not start")
	}
	t.Cleanup(func() { stop(s) })
	return s
}

func stop(s *server.Server) {
	s.Shutdown()
	s.WaitForShutdown()
}

func connect(t *testing.T, s *server.Server, opts ...nats.Option) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(s.ClientURL(), append(opts, quiet, nats.InProcessServer(s))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

func open(t *testing.T, nc *nats.Conn, o kv.Options) *kv.Store {
	t.Helper()
	s, err := kv.Open(context.Background(), nc, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func TestStore(t *testing.T) {
	nc := connect(t, serve(t, t.TempDir(), 0))
	var n atomic.Int32
	storetest.Run(t, func(t *testing.T) store.Store {
		return open(t, nc, kv.Options{Bucket: fmt.Sprintf("definitions-%d", n.Add(1))})
	})
}

func TestShared(t *testing.T) {
	srv := serve(t, t.TempDir(), 0)
	one, two := connect(t, srv), connect(t, srv)
	var n atomic.Int32
	storetest.RunShared(t, func(t *testing.T) (a, b store.Store) {
		o := kv.Options{Bucket: fmt.Sprintf("shared-%d", n.Add(1))}
		return open(t, one, o), open(t, two, o)
	})
}

func TestSurvivesRestart(t *testing.T) {
	ctx, dir := context.Background(), t.TempDir()
	k, gone := store.Key{Kind: "Rule", Scope: "default", Name: "too-warm"}, store.Key{Kind: "Bus", Name: "old"}

	srv := serve(t, dir, 0)
	nc := connect(t, srv)
	s := open(t, nc, kv.Options{})
	if _, err := s.Put(ctx, gone, json.RawMessage(`{}`), store.Condition{}); err != nil {
		t.Fatal(err)
	}
	want, err := s.Put(ctx, k, json.RawMessage(`{"labels":{"a":"b"}}`), store.Condition{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Delete(ctx, gone, store.Condition{}); err != nil {
		t.Fatal(err)
	}
	s.Close()
	nc.Close()
	stop(srv)

	s = open(t, connect(t, serve(t, dir, 0)), kv.Options{})
	got, err := s.Get(ctx, k)
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("Get after the restart: %v\n%s", err, diff)
	}
	p, err := s.List(ctx, store.Query{Kind: "Rule", AllScopes: true, Labels: map[string]string{"a": "b"}})
	if diff := cmp.Diff([]store.Document{want}, p.Items); err != nil || diff != "" {
		t.Errorf("List after the restart: %v\n%s", err, diff)
	}
	if _, err := s.Get(ctx, gone); fault.KindOf(err) != fault.NotFound {
		t.Errorf("Get of what was deleted before the restart = %v", err)
	}
	next, err := s.Put(ctx, gone, json.RawMessage(`{}`), store.Condition{Absent: true})
	if err != nil || next.Revision <= want.Revision {
		t.Errorf("Put after the restart = revision %d, %v; the last before was %d", next.Revision, err, want.Revision)
	}
}

// Who was away while the process was restarted is told what was deleted before that.
func TestWatchSinceSurvivesRestart(t *testing.T) {
	nc := connect(t, serve(t, t.TempDir(), 0))
	s := open(t, nc, kv.Options{})
	k := store.Key{Kind: "Bus", Name: "gone"}
	d, err := s.Put(t.Context(), k, json.RawMessage(`{}`), store.Condition{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Delete(t.Context(), k, store.Condition{}); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	var told []store.Change
	enough := errors.New("enough")
	err = open(t, nc, kv.Options{}).WatchSince(t.Context(), d.Revision, func(c store.Change) error {
		if c.Key == (store.Key{}) {
			return enough
		}
		told = append(told, c)
		return nil
	})
	if !errors.Is(err, enough) || len(told) != 1 || !told[0].Deleted || told[0].Key != k {
		t.Errorf("told %v, %v", told, err)
	}
}

func TestUnreachable(t *testing.T) {
	ctx := context.Background()
	srv := serve(t, t.TempDir(), 0)
	s := open(t, connect(t, srv), kv.Options{Timeout: 2 * time.Second})
	k := store.Key{Kind: "Bus", Name: "default"}
	if _, err := s.Put(ctx, k, json.RawMessage(`{}`), store.Condition{}); err != nil {
		t.Fatal(err)
	}
	stop(srv)
	for what, call := range map[string]func() error{
		"Get":    func() error { _, err := s.Get(ctx, k); return err },
		"Put":    func() error { _, err := s.Put(ctx, k, json.RawMessage(`{"a":1}`), store.Condition{}); return err },
		"Delete": func() error { return s.Delete(ctx, k, store.Condition{}) },
		"List":   func() error { _, err := s.List(ctx, store.Query{Kind: "Bus"}); return err },
	} {
		start := time.Now()
		err := call()
		if fault.KindOf(err) != fault.Unavailable {
			t.Errorf("%s without a server = %v, want unavailable", what, err)
		}
		if took := time.Since(start); took > 10*time.Second {
			t.Errorf("%s without a server took %v", what, took)
		}
	}
}

// TestNoAnswer has a server that takes requests and never answers them.
func TestNoAnswer(t *testing.T) {
	srv, err := server.NewServer(&server.Options{NoSigs: true, NoLog: true, DontListen: true})
	if err != nil {
		t.Fatal(err)
	}
	srv.Start()
	t.Cleanup(func() { stop(srv) })
	nc := connect(t, srv)
	// Somebody listens, so that there is no quick "no responders".
	if _, err := nc.Subscribe("$JS.API.>", func(*nats.Msg) {}); err != nil {
		t.Fatal(err)
	}
	_, err = kv.Open(context.Background(), nc, kv.Options{Timeout: 100 * time.Millisecond})
	if fault.KindOf(err) != fault.Unavailable {
		t.Errorf("Open with a silent server = %v, want unavailable", err)
	}
}

func TestReconnect(t *testing.T) {
	ctx, dir := t.Context(), t.TempDir()
	srv := serve(t, dir, server.RANDOM_PORT)
	nc, err := nats.Connect(srv.ClientURL(), quiet, nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	s := open(t, nc, kv.Options{})
	a, b := store.Key{Kind: "Bus", Name: "a"}, store.Key{Kind: "Bus", Name: "b"}
	if _, err := s.Put(ctx, a, json.RawMessage(`{}`), store.Condition{}); err != nil {
		t.Fatal(err)
	}
	changes := make(chan store.Change, 100)
	watchCtx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- s.Watch(watchCtx, func(c store.Change) error { changes <- c; return nil }) }()
	t.Cleanup(func() { cancel(); <-done })
	await := func(what string, ok func(store.Change) bool) {
		t.Helper()
		deadline := time.After(20 * time.Second)
		for {
			select {
			case c := <-changes:
				if ok(c) {
					return
				}
			case <-deadline:
				t.Fatalf("no %s", what)
			}
		}
	}
	await("mark", func(c store.Change) bool { return c.Key == store.Key{} })

	port := srv.Addr().String()
	stop(srv)
	var p int
	if _, err := fmt.Sscanf(port[len("127.0.0.1:"):], "%d", &p); err != nil {
		t.Fatal(err)
	}
	srv = serve(t, dir, p)
	// Written by another while this store may not be watching again yet.
	other := open(t, connect(t, srv), kv.Options{})
	if _, err := other.Put(ctx, b, json.RawMessage(`{}`), store.Condition{}); err != nil {
		t.Fatal(err)
	}
	if err := other.Delete(ctx, a, store.Condition{}); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	await("document of the other", func(c store.Change) bool { return c.Key == b })
	await("deletion by the other", func(c store.Change) bool { return c.Key == a && c.Deleted })
	if took := time.Since(start); took > 8*time.Second {
		t.Errorf("the feed was back after %v", took)
	}
	if got, err := s.List(ctx, store.Query{Kind: "Bus"}); err != nil || len(got.Items) != 1 {
		t.Errorf("List after the reconnect = %v, %v", got, err)
	}
}

func TestForeignKeys(t *testing.T) {
	ctx := context.Background()
	nc := connect(t, serve(t, t.TempDir(), 0))
	s := open(t, nc, kv.Options{})
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	bucket, err := js.KeyValue(ctx, "definitions")
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range map[string]string{"foreign": "{}", "Bus.=.broken": "not JSON", "a.b.c.d": ""} {
		if _, err := bucket.PutString(ctx, k, v); err != nil {
			t.Fatal(err)
		}
	}
	// They are in nobody's way: the list does not wait for documents that cannot be.
	if p, err := s.List(ctx, store.Query{Kind: "Bus"}); err != nil || len(p.Items) != 0 {
		t.Errorf("List = %v, %v", p, err)
	}
	if _, err := s.Get(ctx, store.Key{Kind: "Bus", Name: "broken"}); fault.KindOf(err) != fault.Internal || err == nil {
		t.Errorf("Get of a damaged document = %v, want an internal error", err)
	}
}

func TestAfter(t *testing.T) {
	nc := connect(t, serve(t, t.TempDir(), 0))
	k := store.Key{Kind: "Bus", Name: "b"}
	for _, after := range []uint64{3, 200, 7} {
		s := open(t, nc, kv.Options{After: after})
		d, err := s.Put(t.Context(), k, fmt.Append(nil, after), store.Condition{})
		if err != nil || d.Revision <= after {
			t.Errorf("Put after %d has revision %d, %v", after, d.Revision, err)
		}
		if p, err := s.Audit(t.Context(), store.AuditQuery{}); err != nil || p.Items[0].Revision != d.Revision || p.Items[len(p.Items)-1].Key != k {
			t.Errorf("Audit = %v, %v", p, err)
		}
		if p, err := s.List(t.Context(), store.Query{Kind: "Bus"}); err != nil || len(p.Items) != 1 {
			t.Errorf("List = %v, %v", p, err)
		}
	}
	if _, err := kv.Open(t.Context(), nc, kv.Options{After: 1 << 40}); err == nil || fault.KindOf(err) != fault.Internal {
		t.Errorf("Open far away = %v", err)
	}
}

func TestTooLarge(t *testing.T) {
	s := open(t, connect(t, serve(t, t.TempDir(), 0)), kv.Options{})
	raw, err := json.Marshal(string(make([]byte, 2<<20)))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Put(context.Background(), store.Key{Kind: "Bus", Name: "b"}, raw, store.Condition{}); fault.KindOf(err) != fault.TooLarge {
		t.Errorf("Put of 2 MiB = %v, want too large", err)
	}
}

// quiet keeps the client from printing what these tests provoke.
var quiet = nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {})
