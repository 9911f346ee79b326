// SPDX-License-Identifier: Apache-2.0

package app_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"
)

// rialtoBroker is the bridge in a process of its own, as it is by default: fsync before PUBACK, events about devices.
func rialtoBroker(tb testing.TB) broker {
	s, cmd := spawn(tb, tb.TempDir())
	return broker{s.mqtt, cmd.Process.Pid}
}

// mosquittoBroker is Mosquitto in memory: nothing is written to disk.
func mosquittoBroker(tb testing.TB) broker {
	tb.Helper()
	addr, pid, _ := runMosquitto(tb, "persistence false\n")
	return broker{addr, pid}
}

// runMosquitto runs Mosquitto with queues that have no limit, and with what config says besides. stop ends it as an operator does;
// the test does so if nobody else does.
func runMosquitto(tb testing.TB, config string) (addr string, pid int, stop func()) {
	tb.Helper()
	program, err := exec.LookPath("mosquitto")
	if err != nil {
		program = "/usr/sbin/mosquitto" // where Debian has it, outside of the path of users
	}
	if _, err := os.Stat(program); err != nil {
		tb.Fatal("mosquitto is not installed; make deps installs it")
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	addr = ln.Addr().String()
	ln.Close() // Mosquitto cannot choose a port itself
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		tb.Fatal(err)
	}
	file := filepath.Join(tb.TempDir(), "mosquitto.conf")
	text := fmt.Sprintf("listener %s 127.0.0.1\nallow_anonymous true\nlog_type error\nmax_queued_messages 0\n%s", port, config)
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil { // it gives up the rights of root before it reads
		tb.Fatal(err)
	}
	cmd := exec.Command(program, "-c", file)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	stop = sync.OnceFunc(func() {
		cmd.Process.Signal(syscall.SIGTERM)
		late := time.AfterFunc(10*time.Second, func() { cmd.Process.Kill() })
		defer late.Stop()
		if err := cmd.Wait(); err != nil {
			tb.Errorf("mosquitto: %v", err)
		}
	})
	tb.Cleanup(stop)
	eventually(tb, 10*time.Second, func() (string, bool) {
		nc, err := net.Dial("tcp", addr)
		if err != nil {
			return err.Error(), false
		}
		return "", nc.Close() == nil
	})
	return addr, cmd.Process.Pid, stop
}

// openFiles raises the limit of open files as far as it may be, and returns how many connections that allows.
func openFiles(tb testing.TB) int {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		tb.Fatal(err)
	}
	l.Cur = l.Max
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		tb.Fatal(err)
	}
	return int(min(l.Cur, 1<<20)) - 200
}

// scaleOf is a size that an environment variable may set.
func scaleOf(tb testing.TB, variable string, small int) int {
	text := os.Getenv(variable)
	if text == "" {
		return small
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < small {
		tb.Fatalf("%s=%s: want a number, at least %d", variable, text, small)
	}
	return n
}

// BenchmarkBrokers compares the gateway with Mosquitto, one after the other at each thing, on the same machine. The bridge has stored what it
// acknowledges; Mosquitto keeps everything in memory. make bench-mqtt prints it as a table.
func BenchmarkBrokers(b *testing.B) {
	idle := min(10_000, openFiles(b))
	perMessage := func(c cost, n int) map[string]float64 {
		return map[string]float64{"cpu-us": float64(c.cpu.Microseconds()) / float64(n), "per-s": float64(n) / c.took.Seconds()}
	}
	fixed := func(client, _ int) string { return fmt.Sprint("bench/", client) }
	brokers := []struct {
		name  string
		start func(testing.TB) broker
	}{{"rialto", rialtoBroker}, {"mosquitto", mosquittoBroker}}
	for _, m := range []struct {
		name  string
		turns int
		run   func(tb testing.TB, br broker) map[string]float64
	}{
		{fmt.Sprint("connection_idle_", idle), 1, func(tb testing.TB, br broker) map[string]float64 { return map[string]float64{"KB": br.idle(tb, idle)} }},
		{"publish_QoS0", 3, func(tb testing.TB, br broker) map[string]float64 {
			return perMessage(br.published(tb, 100_000, 0, fixed), 100_000)
		}},
		{"publish_QoS1", 3, func(tb testing.TB, br broker) map[string]float64 {
			return perMessage(br.published(tb, 100_000, 1, fixed), 100_000)
		}},
		{"fan_out_QoS0_to_1000", 3, func(tb testing.TB, br broker) map[string]float64 {
			return perMessage(br.fanned(tb, 300, 1000, 0), 300_000)
		}},
		{"fan_out_QoS1_to_1000", 3, func(tb testing.TB, br broker) map[string]float64 {
			return perMessage(br.fanned(tb, 300, 1000, 1), 300_000)
		}},
		{"offline_300_x_500_x_1KiB", 1, func(tb testing.TB, br broker) map[string]float64 {
			stored, delivered := br.offline(tb, 300, 500, 1024)
			return map[string]float64{"MB": stored.rss, "cpu-us": float64(delivered.cpu.Microseconds()) / (300 * 500), "per-s": 300 * 500 / delivered.took.Seconds()}
		}},
		{"return_10000_x_30", 1, func(tb testing.TB, br broker) map[string]float64 {
			c := br.returning(tb, 10_000, 30)
			return map[string]float64{"cpu-s": c.cpu.Seconds(), "cpu-us": float64(c.cpu.Microseconds()) / 300_000, "per-s": 300_000 / c.took.Seconds()}
		}},
	} {
		for _, kind := range brokers {
			b.Run(m.name+"/"+kind.name, func(b *testing.B) {
				br := kind.start(b)
				sums := map[string][]float64{}
				for range m.turns {
					for unit, v := range m.run(b, br) {
						sums[unit] = append(sums[unit], v)
					}
				}
				for unit, all := range sums {
					b.ReportMetric(medianOf(all), unit)
				}
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// TestGateIdleConnections: a connection with a subscription takes 8 KB at 10,000 of them, of which the process shares a
// part. RIALTO_CONNECTIONS=10000 is the long form.
func TestGateIdleConnections(t *testing.T) {
	n := scaleOf(t, "RIALTO_CONNECTIONS", 2000)
	if most := openFiles(t); n > most {
		t.Fatalf("%d connections need more open files than the %d that the system allows", n, most)
	}
	const each, shared = 6, 20_000 // KB
	got := rialtoBroker(t).idle(t, n)
	t.Logf("%.1f KB for each of %d connections", got, n)
	if most := each + shared/float64(n); got > most {
		t.Errorf("%.1f KB for each of %d connections, want %.1f at most", got, n, most)
	}
}

// TestGateOfflineSessions: 300 kept sessions miss 500 messages of 1 KiB, which takes less than 5 MB of memory, and each
// gets all of them when it returns.
func TestGateOfflineSessions(t *testing.T) {
	br := rialtoBroker(t)
	br.published(t, 20_000, 1, func(client, _ int) string { return fmt.Sprint("warm/", client) }) // what the log takes in any case
	stored, delivered := br.offline(t, 300, 500, 1024)
	t.Logf("%.1f MB while they are away; back in %v", stored.rss, delivered.took)
	if stored.rss > 5 {
		t.Errorf("memory grew by %.1f MB, want 5 at most", stored.rss)
	}
}

// TestGateManyTopics: a publish to a topic that was never used before costs what others do, also past the number of
// subjects that a bus keeps (100,000), and memory stays bounded. RIALTO_TOPICS=1000000 is the long form.
//
// What grows most while this runs is not topics: the server in the log keeps, for each of its blocks, the subjects in it until two
// minutes after the block was written, about 100 bytes for each message whose subject is new in its block, and the collector lets
// that double. So memory follows what was published in the last two minutes, whether the topics are new or not: at 6,500 messages a
// second over 100,000 topics it stood at 390 to 400 MB from then on, and fell again with the rate. A load that is shorter than
// that, such as this one, sees no plateau.
func TestGateManyTopics(t *testing.T) {
	n := scaleOf(t, "RIALTO_TOPICS", 200_000)
	t.Setenv(childRing, fmt.Sprint(8<<20)) // else recent events fill their memory while the topics are measured
	br := rialtoBroker(t)
	const part = 20_000
	slices := func(from, to int) (costs []time.Duration, rss float64) {
		for at := from; at < to; at += part {
			c := br.published(t, part, 1, func(client, i int) string { return numbered(at + client*part/20 + i) })
			costs = append(costs, c.cpu)
			rss += c.rss
			if end := at + part; end%100_000 == 0 || end == n || at == from {
				t.Logf("up to %d topics: %.0f messages/s, %v CPU, %.0f MB resident", end, part/c.took.Seconds(), c.cpu, residentMB(t, br.pid))
			}
		}
		return costs, rss
	}
	slices(0, 2*part) // the log's memory for what is new is full
	first, _ := slices(2*part, 100_000)
	rest, grown := slices(100_000, n)
	before, after := median(first), median(rest)
	t.Logf("%v CPU for %d messages below 100,000 topics, %v above; memory grew by %.1f MB in the %d above", before, part, after, grown, n-100_000)
	if after > before+before/4 { // a fifth less in the same time
		t.Errorf("%d messages cost %v above 100,000 topics, and %v below", part, after, before)
	}
	// What a heap grows by under load, and twice 100 bytes for each message of the last two minutes.
	if most := 76 + 200*float64(n-100_000)/1e6; grown > most {
		t.Errorf("memory grew by %.1f MB, want %.0f at most", grown, most)
	}
}

// TestGateReturn: devices that come back all at once, each with messages waiting, are served at a cost of 50 us a message,
// connection included. RIALTO_RETURN=10000 is the long form: 300,000 messages within 15 s.
func TestGateReturn(t *testing.T) {
	const messages = 30
	n := scaleOf(t, "RIALTO_RETURN", 1000)
	c := rialtoBroker(t).returning(t, n, messages)
	t.Logf("%v CPU, %v, for %d messages to %d devices", c.cpu, c.took, n*messages, n)
	if most := time.Duration(n*messages) * 50 * time.Microsecond; c.cpu > most {
		t.Errorf("%v CPU for the return of %d devices, want %v at most", c.cpu, n, most)
	}
}
