// SPDX-License-Identifier: Apache-2.0

// Package pgtest runs private PostgreSQL servers for tests, from the programs that the system has installed. It is for
// test files alone.
//
// A server has a directory and a socket of its own and no port, so that any number of them, and the system's own, are in
// nobody's way. It ends with the test, and with the process if that ends before. A machine without PostgreSQL fails the
// test, and the message says what to install.
package pgtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	startWithin = 60 * time.Second // on a machine that has other work
	stopWithin  = 20 * time.Second
	tryEvery    = 20 * time.Millisecond
)

// Server is a PostgreSQL server that can be stopped and started again. It is for one goroutine at a time.
type Server struct {
	dir    string // data in dir/data, socket and log in dir
	bin    string // folder of programs
	owner  *syscall.Credential
	cmd    *exec.Cmd
	exited chan error
	bases  int
}

// Start runs a server until the test ends.
func Start(t testing.TB) *Server {
	t.Helper()
	s, err := create()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.remove(); err != nil {
			t.Error(err)
		}
	})
	s.Start(t)
	return s
}

// Shared is a server for all tests of a package: it is started by the first that asks for a database, and stopped by
// Stop, which TestMain calls.
type Shared struct {
	// Prepare fills the database that those of tests are copies of; nil leaves it empty.
	Prepare func(ctx context.Context, dsn string) error

	mu     sync.Mutex // guards all below; held while the server works, by tests alone
	server *Server
	err    error
}

const template = "template_of_tests"

// Database returns the DSN of a new database, which is the test's own.
func (s *Shared) Database(t testing.TB) string {
	t.Helper()
	return s.database(t, template)
}

// Empty is Database without what Prepare has filled it with.
func (s *Shared) Empty(t testing.TB) string {
	t.Helper()
	return s.database(t, "template1")
}

func (s *Shared) database(t testing.TB, from string) string {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.server == nil && s.err == nil {
		s.err = s.start(t.Context())
	}
	if s.err != nil {
		t.Fatal(s.err)
	}
	name, err := s.server.create(t.Context(), from)
	if err != nil {
		t.Fatal(err)
	}
	return s.server.DSN(name)
}

func (s *Shared) start(ctx context.Context) (err error) {
	if s.server, err = create(); err != nil {
		return err
	}
	if err := s.server.start(); err != nil {
		return err
	}
	if err := s.server.exec(ctx, "CREATE DATABASE "+template); err != nil {
		return err
	}
	if s.Prepare == nil {
		return nil
	}
	return s.Prepare(ctx, s.server.DSN(template))
}

// Stop ends the server, if there is one.
func (s *Shared) Stop() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.server == nil {
		return nil
	}
	return s.server.remove()
}

// create makes the data of a new server. What has to be undone is remove's, also after an error.
func create() (*Server, error) {
	bin, err := programs()
	if err != nil {
		return nil, err
	}
	owner, err := owner()
	if err != nil {
		return nil, err
	}
	// The path of a socket is short, and the temporary directory of tests is not.
	dir, err := os.MkdirTemp("/tmp", "rialto-pg-")
	if err != nil {
		return nil, err
	}
	s := &Server{dir: dir, bin: bin, owner: owner}
	if owner != nil {
		err = os.Chown(dir, int(owner.Uid), int(owner.Gid))
	}
	if err == nil {
		var out []byte
		out, err = s.command("initdb", "-D", s.data(), "-U", "postgres", "-A", "trust", "-N", "--no-locale", "-E", "UTF8").CombinedOutput()
		if err != nil {
			err = fmt.Errorf("initdb: %w: %s", err, out)
		}
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return s, nil
}

// programs finds the folder with initdb and postgres, which Debian keeps out of the path.
func programs() (string, error) {
	var folders []string
	if out, err := exec.Command("pg_config", "--bindir").Output(); err == nil {
		folders = append(folders, string(bytes.TrimSpace(out)))
	}
	debian, err := filepath.Glob("/usr/lib/postgresql/*/bin")
	if err != nil {
		return "", err
	}
	slices.Reverse(debian)
	folders = append(folders, debian...)
	if p, err := exec.LookPath("postgres"); err == nil {
		folders = append(folders, filepath.Dir(p))
	}
	for _, f := range folders {
		if _, err := os.Stat(filepath.Join(f, "initdb")); err != nil {
			continue
		}
		if _, err := os.Stat(filepath.Join(f, "postgres")); err == nil {
			return f, nil
		}
	}
	return "", errors.New("this test needs the programs initdb and postgres: install the Debian package postgresql, or run .ci/packages as root")
}

// owner is who runs a server: it refuses to be root's.
func owner() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		return nil, fmt.Errorf("PostgreSQL does not run as root, and there is no user postgres: %w", err)
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return nil, err
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
}

func (s *Server) data() string { return filepath.Join(s.dir, "data") }

func (s *Server) command(program string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(s.bin, program), args...)
	cmd.Dir = s.dir // which its user may enter
	cmd.Env = append(os.Environ(), "LC_ALL=C", "TZ=UTC")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.owner}
	return cmd
}

// DSN returns how to connect to a database.
func (s *Server) DSN(database string) string {
	return fmt.Sprintf("host=%s port=5432 user=postgres dbname=%s", s.dir, database)
}

// Database makes a new, empty database and returns its DSN.
func (s *Server) Database(t testing.TB) string {
	t.Helper()
	name, err := s.create(t.Context(), "template1")
	if err != nil {
		t.Fatal(err)
	}
	return s.DSN(name)
}

// Start starts the server if it is stopped, and waits until it answers.
func (s *Server) Start(t testing.TB) {
	t.Helper()
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
}

// Stop stops the server at once: connections are cut.
func (s *Server) Stop(t testing.TB) {
	t.Helper()
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
}

func (s *Server) create(ctx context.Context, from string) (string, error) {
	s.bases++
	name := fmt.Sprintf("test_%d", s.bases)
	conn, err := pgx.Connect(ctx, s.DSN("postgres"))
	if err != nil {
		return "", err
	}
	sql := "CREATE DATABASE " + name + " TEMPLATE " + from
	if conn.PgConn().ParameterStatus("server_version") >= "15" {
		sql += " STRATEGY file_copy" // which takes half the time; before, there was no other
	}
	_, err = conn.Exec(ctx, sql)
	return name, errors.Join(err, conn.Close(ctx))
}

func (s *Server) exec(ctx context.Context, sql string) error {
	conn, err := pgx.Connect(ctx, s.DSN("postgres"))
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, sql)
	return errors.Join(err, conn.Close(ctx))
}

func (s *Server) start() error {
	if s.cmd != nil {
		return nil
	}
	log, err := os.OpenFile(filepath.Join(s.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	s.cmd = s.command("postgres", "-D", s.data(), "-k", s.dir, "-c", "listen_addresses=", "-c", "fsync=off", "-c", "synchronous_commit=off",
		"-c", "full_page_writes=off", "-c", "max_connections=200", "-c", "shared_buffers=16MB")
	s.cmd.Stdout, s.cmd.Stderr = log, log
	s.exited = make(chan error, 1)
	s.cmd.SysProcAttr.Pdeathsig = syscall.SIGINT
	cmd, exited := s.cmd, s.exited
	started := make(chan error, 1)
	go func() {
		// The signal comes when the thread ends that has started the server; this one stays until the server has ended.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			exited <- cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		s.cmd = nil
		return err
	}
	return s.ready()
}

// ready waits until the server answers a query: it takes connections before it does.
func (s *Server) ready() error {
	ctx, cancel := context.WithTimeout(context.Background(), startWithin)
	defer cancel()
	for {
		err := s.exec(ctx, "SELECT 1")
		if err == nil {
			return nil
		}
		select {
		case <-time.After(tryEvery):
		case exit := <-s.exited:
			s.cmd = nil
			text, _ := os.ReadFile(filepath.Join(s.dir, "log"))
			return fmt.Errorf("postgres ended: %w: %s", exit, text)
		case <-ctx.Done():
			return fmt.Errorf("postgres does not answer: %w", err)
		}
	}
}

func (s *Server) stop() error {
	if s.cmd == nil {
		return nil
	}
	cmd := s.cmd
	s.cmd = nil
	if err := cmd.Process.Signal(os.Interrupt); err != nil { // "fast": it does not wait for clients
		return err
	}
	select {
	case <-s.exited:
		return nil
	case <-time.After(stopWithin):
		return errors.Join(errors.New("postgres does not stop"), cmd.Process.Kill())
	}
}

// remove ends the server and deletes its data.
func (s *Server) remove() error {
	return errors.Join(s.stop(), os.RemoveAll(s.dir))
}
