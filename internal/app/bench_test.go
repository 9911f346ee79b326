// SPDX-License-Identifier: Apache-2.0

package app_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	mqtt3 "github.com/eclipse/paho.mqtt.golang"
)

// These benchmarks measure whole processes: the bridge runs in one of its own, so does what it is compared with, and the
// load comes from this one. Figures are ratios within one run, and processor time as the system counts it.

// childNull, in the environment, makes this test binary an HTTP server that reads bodies, answers 202 and counts.
const childNull = "RIALTO_TEST_CHILD_NULL"

// bareHandler is the least that a server does with an event.
func bareHandler(w http.ResponseWriter, r *http.Request) {
	io.Copy(io.Discard, r.Body)
	w.Header()["Content-Type"] = []string{"application/json"}
	w.WriteHeader(http.StatusAccepted)
	w.Write([]byte(`{"accepted":[{"id":"x","position":"EV_default:1"}]}`))
}

func beNull() int {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	var mu sync.Mutex
	seen, requests := map[string]bool{}, 0
	mux := http.NewServeMux()
	mux.HandleFunc("POST /null", bareHandler)
	mux.HandleFunc("POST /sink", func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		mu.Lock()
		requests++
		seen[r.Header.Get("Ce-Id")] = true
		mu.Unlock()
		w.WriteHeader(http.StatusNoContent)
	})
	mux.HandleFunc("GET /count", func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintf(w, "%d %d", len(seen), requests)
	})
	mux.HandleFunc("POST /reset", func(http.ResponseWriter, *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		clear(seen)
		requests = 0
	})
	if dir := os.Getenv(childLeast); dir != "" {
		least, err := newLeastBridge(dir)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		mux.Handle("POST /least", least)
		mux.HandleFunc("POST /to/{host}", func(_ http.ResponseWriter, r *http.Request) {
			host := r.PathValue("host")
			least.to.Store(&host)
		})
	}
	if dir := os.Getenv(childLog); dir != "" {
		least, err := newLeastLog(dir)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		mux.Handle("POST /log", least)
	}
	fmt.Printf("ready %s\n", ln.Addr())
	go http.Serve(ln, mux)        // until the parent is gone
	io.Copy(io.Discard, os.Stdin) // which closes this
	return 0
}

// spawnNull starts such a server and returns its URL.
func spawnNull(b testing.TB, env ...string) (url string, pid int) {
	b.Helper()
	cmd, in, out := startChild(b, append(env, childNull+"=1")...)
	b.Cleanup(func() {
		in.Close()
		cmd.Wait() // it ends with its input
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	return "http://" + strings.TrimSpace(strings.TrimPrefix(line, "ready ")), cmd.Process.Pid
}

// cpuOf is the processor time a process has used.
func cpuOf(b testing.TB, pid int) time.Duration {
	b.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		b.Fatal(err)
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+2:]))
	var ticks int64
	for _, f := range fields[11:13] { // user, system
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			b.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

// load sends n requests over conns connections that stay open, as fast as answers come, and returns how long it took.
// request writes the bytes of the i-th request. Every answer must have the status.
func load(b testing.TB, addr string, conns, n, status int, request func(dst []byte, i int) []byte) time.Duration {
	b.Helper()
	var next atomic.Int64
	want := fmt.Sprintf("HTTP/1.1 %d ", status)
	var wg sync.WaitGroup
	began := time.Now()
	for range conns {
		wg.Add(1)
		go func() {
			defer wg.Done()
			c, err := net.Dial("tcp", addr)
			if err != nil {
				b.Error(err)
				return
			}
			defer c.Close()
			in := bufio.NewReaderSize(c, 1024)
			var buf []byte
			for i := next.Add(1); i <= int64(n); i = next.Add(1) {
				buf = request(buf[:0], int(i))
				if _, err := c.Write(buf); err != nil {
					b.Error(err)
					return
				}
				if err := readAnswer(in, want); err != nil {
					b.Error(err)
					return
				}
			}
		}()
	}
	wg.Wait()
	return time.Since(began)
}

// readAnswer reads one answer and compares the start of its first line.
func readAnswer(in *bufio.Reader, want string) error {
	line, err := in.ReadSlice('\n')
	if err != nil {
		return err
	}
	if !bytes.HasPrefix(line, []byte(want)) {
		return fmt.Errorf("answer %q, want %q", line, want)
	}
	length := 0
	for {
		if line, err = in.ReadSlice('\n'); err != nil {
			return err
		}
		if len(line) <= 2 {
			break
		}
		if name, value, ok := bytes.Cut(line, []byte(": ")); ok && bytes.EqualFold(name, []byte("Content-Length")) {
			if length, err = strconv.Atoi(string(bytes.TrimSpace(value))); err != nil {
				return err
			}
		}
	}
	_, err = in.Discard(length)
	return err
}

// eventRequest is a binary CloudEvent of 256 bytes to a path.
func eventRequest(path, host, key, run string) func(dst []byte, i int) []byte {
	body := `{"temperature":7.5,"pad":"` + strings.Repeat("x", 228) + `"}`
	head := fmt.Sprintf("POST %s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\n"+
		"Content-Length: %d\r\nce-specversion: 1.0\r\nce-type: com.example.load\r\nce-source: /bench/%s\r\nce-time: 2026-03-01T10:20:30Z\r\nce-id: ",
		path, host, key, len(body), run)
	return func(dst []byte, i int) []byte {
		dst = append(dst, head...)
		dst = strconv.AppendInt(dst, int64(i), 10)
		dst = append(dst, "\r\n\r\n"...)
		return append(dst, body...)
	}
}

func medianOf(f []float64) float64 {
	s := slices.Sorted(slices.Values(f))
	return s[len(s)/2]
}

// loadClient does the same with a net/http client, which costs more than the server does.
func loadClient(b testing.TB, url, key, run string, conns, n, status int) time.Duration {
	b.Helper()
	hc := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: conns, MaxConnsPerHost: conns}}
	defer hc.CloseIdleConnections()
	body := `{"temperature":7.5,"pad":"` + strings.Repeat("x", 228) + `"}`
	var next atomic.Int64
	var wg sync.WaitGroup
	began := time.Now()
	for range conns {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := next.Add(1); i <= int64(n); i = next.Add(1) {
				req, err := http.NewRequest(http.MethodPost, url, strings.NewReader(body))
				if err != nil {
					b.Error(err)
					return
				}
				req.Header = http.Header{"Authorization": {"Bearer " + key}, "Content-Type": {"application/json"}, "Ce-Specversion": {"1.0"},
					"Ce-Type": {"com.example.load"}, "Ce-Source": {"/bench/" + run}, "Ce-Time": {"2026-03-01T10:20:30Z"}, "Ce-Id": {strconv.FormatInt(i, 10)}}
				resp, err := hc.Do(req)
				if err != nil {
					b.Error(err)
					return
				}
				io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
				if resp.StatusCode != status {
					b.Errorf("status %d", resp.StatusCode)
					return
				}
			}
		}()
	}
	wg.Wait()
	return time.Since(began)
}

// contestant is a process that takes in events over HTTP, one of several that a benchmark compares in turns.
type contestant struct {
	name      string // of its metrics; "" is the bridge
	base      string
	path      string
	pid       int
	rate, cpu []float64
}

// turn notes how one load went, of n events in the time that run returns.
func (c *contestant) turn(b *testing.B, n int, run func() time.Duration) {
	cpu := cpuOf(b, c.pid)
	took := run()
	c.rate = append(c.rate, float64(n)/took.Seconds())
	c.cpu = append(c.cpu, float64((cpuOf(b, c.pid)-cpu).Microseconds())/float64(n))
}

// report says how the contestants did, and how the first, the bridge, did beside each of the others.
func report(b *testing.B, unit string, all []*contestant) {
	for i, c := range all {
		prefix := ""
		if i > 0 {
			prefix = c.name + "-"
			var ratios []float64
			for turn := range c.rate {
				ratios = append(ratios, 100*all[0].rate[turn]/c.rate[turn])
			}
			b.ReportMetric(medianOf(ratios), "%-of-"+c.name)
		}
		b.ReportMetric(medianOf(c.rate), prefix+unit)
		b.ReportMetric(medianOf(c.cpu), prefix+"cpu-us/event")
	}
	b.ReportMetric(0, "ns/op")
}

const eventsPath = "/v1/buses/default/events"

// BenchmarkIngest compares taking events in over HTTP, stored and synced before the answer, with a bare net/http
// handler that reads the body and answers, with one that appends it to the log before (log), and with the least bridge, which only
// syncs it to a file before: 256 connections, the four in turns.
//
// Client and server share the machine: with a
// net/http client (client) most of it goes to the client, with one that only writes and reads bytes (raw) to the server.
func BenchmarkIngest(b *testing.B) {
	const conns, turns = 256, 5
	for _, kind := range []string{"client", "raw"} {
		b.Run(kind, func(b *testing.B) {
			s, cmd := spawn(b, b.TempDir())
			null, nullPID := spawnNull(b)
			least, leastPID := spawnNull(b, childLeast+"="+b.TempDir())
			log, logPID := spawnNull(b, childLog+"="+b.TempDir())
			all := []*contestant{{base: s.url, path: eventsPath, pid: cmd.Process.Pid}, {name: "bare", base: null, path: "/null", pid: nullPID},
				{name: "log", base: log, path: "/log", pid: logPID}, {name: "least", base: least, path: "/least", pid: leastPID}}
			send := func(c *contestant, run string, n int) time.Duration {
				if kind == "client" {
					return loadClient(b, c.base+c.path, s.key, run, conns, n, http.StatusAccepted)
				}
				addr := strings.TrimPrefix(c.base, "http://")
				return load(b, addr, conns, n, http.StatusAccepted, eventRequest(c.path, addr, s.key, run))
			}
			n := max(b.N, 2000)
			for _, c := range all {
				send(c, "warm", n/4)
			}
			b.ResetTimer()
			for turn := range turns {
				for _, c := range all {
					c.turn(b, n, func() time.Duration { return send(c, fmt.Sprint(turn), n) })
				}
			}
			report(b, "events/s", all)
		})
	}
}

// batchRequest is a batch of events of 256 bytes.
func batchRequest(path, host, key, run string, size int) func(dst []byte, i int) []byte {
	pad := strings.Repeat("x", 228)
	return func(dst []byte, i int) []byte {
		body := []byte("[")
		for k := range size {
			if k > 0 {
				body = append(body, ',')
			}
			body = fmt.Appendf(body, `{"specversion":"1.0","type":"com.example.load","source":"/bench/%s","id":"%d","time":"2026-03-01T10:20:30Z","data":{"temperature":7.5,"pad":"%s"}}`,
				run, (i-1)*size+k, pad)
		}
		body = append(body, ']')
		dst = fmt.Appendf(dst, "POST %s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nContent-Type: application/cloudevents-batch+json\r\nContent-Length: %d\r\n\r\n",
			path, host, key, len(body))
		return append(dst, body...)
	}
}

// BenchmarkEndToEnd takes events in over HTTP, routes them and delivers each to a webhook in a process of its own, all on
// this machine. A turn ends when the last one has arrived, and fails if one is lost or comes twice.
//
// With one event in a request (single) it has the least bridge send as many there in turns, and sends as many straight there (direct).
func BenchmarkEndToEnd(b *testing.B) {
	for _, kind := range []string{"single", "batch"} {
		b.Run(kind, func(b *testing.B) {
			const size = 100 // of a batch
			s, cmd := spawn(b, b.TempDir())
			sink, sinkPID := spawnNull(b)
			least, leastPID := spawnNull(b, childLeast+"="+b.TempDir())
			s.target("sink", sink+"/sink", `{"concurrency":32}`)
			s.rule("default", "all", `{"type":["com.example.load"]}`, "sink")
			post := func(url string) {
				resp, err := http.Post(url, "", nil)
				if err != nil {
					b.Fatal(err)
				}
				resp.Body.Close()
			}
			post(least + "/to/" + strings.TrimPrefix(sink, "http://"))
			all := []*contestant{{base: s.url, path: eventsPath, pid: cmd.Process.Pid}}
			if kind == "single" {
				all = append(all, &contestant{name: "least", base: least, path: "/least", pid: leastPID},
					&contestant{name: "direct", base: sink, path: "/sink", pid: sinkPID})
			}
			run := func(c *contestant, name string, n int) time.Duration {
				post(sink + "/reset")
				addr := strings.TrimPrefix(c.base, "http://")
				began := time.Now()
				switch {
				case kind == "batch":
					load(b, addr, 8, n/size, http.StatusAccepted, batchRequest(c.path, addr, s.key, name, size))
				case c.name == "direct":
					load(b, addr, 64, n, http.StatusNoContent, eventRequest(c.path, addr, s.key, name))
				default:
					load(b, addr, 64, n, http.StatusAccepted, eventRequest(c.path, addr, s.key, name))
				}
				var unique, requests int
				eventually(b, time.Minute, func() (string, bool) {
					resp, err := http.Get(sink + "/count")
					if err != nil {
						b.Fatal(err)
					}
					defer resp.Body.Close()
					if _, err := fmt.Fscan(resp.Body, &unique, &requests); err != nil {
						b.Fatal(err)
					}
					return fmt.Sprintf("%d of %d arrived", unique, n), unique >= n
				})
				took := time.Since(began)
				if requests != n {
					b.Errorf("%d requests for %d events", requests, n)
				}
				return took
			}
			n := max(b.N, 2000) / size * size
			for _, c := range all {
				run(c, "warm", n/4/size*size)
			}
			b.ResetTimer()
			for turn := range 3 {
				for _, c := range all {
					c.turn(b, n, func() time.Duration { return run(c, fmt.Sprint(turn), n) })
				}
			}
			s.settled("default", time.Minute)
			report(b, "delivered/s", all)
		})
	}
}

// BenchmarkMQTTPublish measures QoS 1 publishes, stored and synced before the PUBACK: 20 clients, 100 under way each.
func BenchmarkMQTTPublish(b *testing.B) {
	s, cmd := spawn(b, b.TempDir())
	const clients, window = 20, 100
	n := max(b.N, 4000)
	payload := `{"temperature":7.5,"pad":"` + strings.Repeat("x", 228) + `"}`
	conns := make([]mqtt3.Client, clients)
	for i := range conns {
		conns[i] = mqtt3.NewClient(mqtt3.NewClientOptions().AddBroker("tcp://" + s.mqtt).SetClientID(fmt.Sprint("bench-", i)).SetMessageChannelDepth(window))
		if tok := conns[i].Connect(); !tok.WaitTimeout(10*time.Second) || tok.Error() != nil {
			b.Fatal(tok.Error())
		}
		defer conns[i].Disconnect(0)
	}
	b.ResetTimer()
	cpu, began := cpuOf(b, cmd.Process.Pid), time.Now()
	var wg sync.WaitGroup
	for i, c := range conns {
		wg.Add(1)
		go func() {
			defer wg.Done()
			under := make(chan mqtt3.Token, window)
			go func() {
				defer close(under)
				for range n / clients {
					under <- c.Publish(fmt.Sprint("bench/", i), 1, false, payload)
				}
			}()
			for tok := range under {
				if !tok.WaitTimeout(20*time.Second) || tok.Error() != nil {
					b.Error("publish: ", tok.Error())
				}
			}
		}()
	}
	wg.Wait()
	b.ReportMetric(float64(n)/time.Since(began).Seconds(), "events/s")
	b.ReportMetric(float64((cpuOf(b, cmd.Process.Pid)-cpu).Microseconds())/float64(n), "cpu-us/event")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkStart measures a start on an empty directory and one after a clean stop, and the memory of an idle bridge.
func BenchmarkStart(b *testing.B) {
	var empty, again, rss []float64
	for range max(min(b.N, 5), 3) {
		dir := b.TempDir()
		for i, to := range []*[]float64{&empty, &again} {
			began := time.Now()
			s, cmd := spawn(b, dir)
			*to = append(*to, float64(time.Since(began).Microseconds())/1000)
			if status, _ := s.call("GET", "/readyz", ""); status != http.StatusOK {
				b.Errorf("readyz: %d", status)
			}
			if i == 1 {
				rss = append(rss, residentMB(b, cmd.Process.Pid))
			}
			if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
				b.Fatal(err)
			}
			cmd.Wait() // how it ends shows in the next start
		}
	}
	b.ReportMetric(medianOf(empty), "ms-empty")
	b.ReportMetric(medianOf(again), "ms-again")
	b.ReportMetric(medianOf(rss), "MB-RSS")
	b.ReportMetric(0, "ns/op")
}

func residentMB(b testing.TB, pid int) float64 {
	b.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if v, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			var kb float64
			if _, err := fmt.Sscan(v, &kb); err != nil {
				b.Fatal(err)
			}
			return kb / 1000
		}
	}
	b.Fatal("no VmRSS")
	return 0
}
