// SPDX-License-Identifier: Apache-2.0

package egress_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/internal/egress"
)

// door is a listener that counts who comes in.
type door struct {
	net.Listener
	visits atomic.Int64
}

// open listens on a loopback address.
func open(t *testing.T, address string) *door {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	d := &door{Listener: l}
	srv := &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})}
	srv.SetKeepAlivesEnabled(false)
	done := make(chan struct{})
	go func() { defer close(done); srv.Serve(d) }()
	t.Cleanup(func() { srv.Close(); <-done })
	return d
}

func (d *door) Accept() (net.Conn, error) {
	c, err := d.Listener.Accept()
	if err == nil {
		d.visits.Add(1)
	}
	return c, err
}

func (d *door) port() string {
	_, port, _ := net.SplitHostPort(d.Addr().String())
	return port
}

// settled returns the number of visits so far. Connections are accepted in the order they were made, so that when a
// last one of our own is through, all others have been counted.
func (d *door) settled(t *testing.T) int64 {
	t.Helper()
	before := d.visits.Load()
	resp, err := http.Get("http://" + d.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if d.visits.Load() <= before {
		t.Fatal("the door does not count")
	}
	return d.visits.Add(-1)
}

// client connects through the guard, always to one port, so that a single door stands for all ports.
func client(g *egress.Guard, port string) *http.Client {
	return &http.Client{
		Timeout: 5 * time.Second,
		Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			host, _, err := net.SplitHostPort(address)
			if err != nil {
				return nil, err
			}
			if a, ok := loosely(strings.TrimSuffix(host, ".")); ok {
				host = a.String() // as the C library would; Go's own resolver asks for no such name
			}
			return g.DialContext(ctx, network, net.JoinHostPort(host, port))
		}},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

func allow(t *testing.T, list string) []egress.Entry {
	t.Helper()
	p, err := egress.ParseAllow(list)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// everythingIsLocal resolves every name to this host, and odd spellings to what they mean.
func everythingIsLocal(name string, _ int) ([]netip.Addr, string) {
	if a, ok := loosely(name); ok {
		return []netip.Addr{a}, ""
	}
	return []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("::1")}, ""
}

func refusedTargets(t *testing.T) []string {
	t.Helper()
	f, err := os.Open("testdata/egress_targets.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var urls []string
	sc := bufio.NewScanner(f)
	for sc.Scan() {
		if line, ok := strings.CutPrefix(sc.Text(), "refuse "); ok {
			u, _, _ := strings.Cut(line, " # ")
			urls = append(urls, u)
		}
	}
	if err := sc.Err(); err != nil || len(urls) < 100 {
		t.Fatalf("read %d targets: %v", len(urls), err)
	}
	return urls
}

func TestCheckURLRefusesTheWholeList(t *testing.T) {
	g := egress.New(egress.Options{})
	for _, u := range refusedTargets(t) {
		err := g.CheckURL(u)
		if err == nil {
			t.Errorf("CheckURL(%q) accepts it", u)
		} else if len(err.Error()) > 200 || strings.Contains(err.Error(), "X-Injected") {
			t.Errorf("CheckURL(%q) repeats what it was given: %v", u, err)
		}
	}
}

func TestDialerRefusesTheWholeList(t *testing.T) {
	d := open(t, "127.0.0.1:0")
	ns := &nameServer{answer: everythingIsLocal}
	resolver := ns.resolver(t)
	c := client(egress.New(egress.Options{Resolver: resolver}), d.port())
	blocked := 0
	for _, u := range refusedTargets(t) {
		resp, err := c.Post(u, "text/plain", strings.NewReader("x"))
		if err == nil {
			resp.Body.Close()
			t.Errorf("POST %s was answered with %d", u, resp.StatusCode)
			continue
		}
		var be *egress.BlockedError
		if errors.As(err, &be) {
			blocked++
		} else if parsed, parseErr := url.Parse(u); parseErr == nil && dials(parsed) {
			t.Errorf("POST %s failed, but not because the address was refused: %v", u, err)
		}
	}
	if n := d.settled(t); n != 0 {
		t.Errorf("%d connections came through", n)
	}
	if blocked < 80 {
		t.Errorf("only %d of the list got as far as the guard", blocked)
	}
	// The control: the same client, the same spellings, and an allow-list.
	c = client(egress.New(egress.Options{Resolver: resolver, Allow: allow(t, "127.0.0.0/8")}), d.port())
	for _, u := range []string{"http://127.0.0.1/", "http://127.1/", "http://0x7f000001/", "http://2130706433/", "http://one.example/"} {
		resp, err := c.Get(u)
		if err != nil {
			t.Errorf("GET %s with loopback allowed: %v", u, err)
			continue
		}
		resp.Body.Close()
	}
	if n := d.settled(t); n != 5 {
		t.Errorf("%d connections came through, want 5", n)
	}
}

// dials reports whether net/http can be expected to get as far as dialling.
func dials(u *url.URL) bool {
	return (u.Scheme == "http" || u.Scheme == "https") && u.Host != ""
}

func TestDialerLooksAtTheAddressThatIsDialled(t *testing.T) {
	private := open(t, "127.0.0.1:0")
	public := open(t, "127.0.0.2:"+private.port()) // plays the public one: it is allowed
	local, remote := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.2")
	ns := &nameServer{answer: func(name string, n int) ([]netip.Addr, string) {
		switch name {
		case "both.example":
			return []netip.Addr{local, remote}, ""
		case "flips.example":
			if n == 1 {
				return []netip.Addr{remote}, ""
			}
			return []netip.Addr{local}, ""
		case "alias.example":
			return []netip.Addr{local}, "database.internal"
		case "mapped.example":
			return []netip.Addr{netip.MustParseAddr("::ffff:127.0.0.1")}, ""
		case "nat64.example":
			return []netip.Addr{netip.MustParseAddr("64:ff9b::7f00:1")}, ""
		case "sixtofour.example":
			return []netip.Addr{netip.MustParseAddr("2002:7f00:1::")}, ""
		case "compatible.example":
			return []netip.Addr{netip.MustParseAddr("::7f00:1")}, ""
		case "teredo.example":
			return []netip.Addr{netip.MustParseAddr("2001:0:4136:e378:8000:63bf:80ff:fffe")}, ""
		case "several.example":
			return []netip.Addr{local, netip.MustParseAddr("::1"), netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("169.254.169.254")}, ""
		}
		return nil, ""
	}}
	g := egress.New(egress.Options{Resolver: ns.resolver(t), Allow: allow(t, "127.0.0.2")})
	c := client(g, private.port())
	get := func(name string, reached bool) {
		t.Helper()
		if err := g.CheckURL("http://" + name + "/"); err != nil {
			t.Errorf("CheckURL(%s): %v", name, err)
		}
		resp, err := c.Get("http://" + name + "/")
		if err == nil {
			resp.Body.Close()
		}
		var be *egress.BlockedError
		if reached != (err == nil) || !reached && !errors.As(err, &be) {
			t.Errorf("GET %s = %v, want reached = %v", name, err, reached)
		}
	}
	get("both.example", true) // the allowed one of its addresses
	get("flips.example", true)
	get("flips.example", false)
	get("alias.example", false)
	get("mapped.example", false)
	for _, name := range []string{"nat64.example", "sixtofour.example", "compatible.example", "teredo.example", "several.example"} {
		get(name, false)
	}
	if n := private.settled(t); n != 0 {
		t.Errorf("%d connections reached the private address", n)
	}
	if n := public.settled(t); n != 2 {
		t.Errorf("%d connections reached the public address, want 2", n)
	}
}

func TestDialerSpeaksTCPOnly(t *testing.T) {
	g := egress.New(egress.Options{Allow: allow(t, "127.0.0.0/8")})
	for _, network := range []string{"unix", "udp", "udp4"} {
		address := "127.0.0.1:9"
		if network == "unix" {
			address = t.TempDir() + "/none.sock"
		}
		conn, err := g.DialContext(t.Context(), network, address)
		var be *egress.BlockedError
		if !errors.As(err, &be) {
			t.Errorf("dial %s = %v, want it blocked", network, err)
		}
		if conn != nil {
			conn.Close()
		}
	}
}

func TestEnvironmentGivesNoProxy(t *testing.T) {
	proxy := open(t, "127.0.0.1:0")
	t.Setenv("HTTP_PROXY", "http://"+proxy.Addr().String())
	t.Setenv("http_proxy", "http://"+proxy.Addr().String())
	c := client(egress.New(egress.Options{}), proxy.port())
	if resp, err := c.Get("http://127.0.0.1/"); err == nil {
		resp.Body.Close()
		t.Error("a proxy was used")
	}
	if n := proxy.settled(t); n != 0 {
		t.Errorf("%d connections to the proxy", n)
	}
}

func TestCheck(t *testing.T) {
	g := egress.New(egress.Options{Allow: allow(t, "10.1.0.0/16, 127.0.0.1,169.254.0.0/16,fd00::/8,100.100.100.200")})
	for _, c := range []struct {
		addr string
		why  string // "" = allowed
	}{
		{"93.184.216.34", ""},
		{"2606:2800:220:1::1", ""},
		{"1.1.1.1", ""},
		{"10.1.255.255", ""},
		{"::ffff:10.1.2.3", ""},
		{"10.2.0.1", "private network"},
		{"127.0.0.1", ""},
		{"127.0.0.2", "loopback"},
		{"::ffff:127.0.0.2", "loopback"},
		{"64:ff9b::a01:203", "IPv4 in IPv6"}, // an allowed IPv4 address does not open its wrapped forms
		{"::10.1.2.3", "IPv4 in IPv6"},
		{"169.254.7.7", ""},
		{"169.254.169.254", "metadata service"}, // a range does not open it
		{"fd00:ec2::254", "metadata service"},
		{"fd00::1", ""},
		{"100.100.100.200", ""}, // named by itself
		{"168.63.129.16", "metadata service"},
		{"168.63.129.17", ""},
		{"fe80::1%eth0", "link-local"},
		{"fd00::1%eth0", ""},
		{"4000::1", "not in use on the internet"},
		{"255.255.255.255", "reserved"},
		{"::", "IPv4 in IPv6"},
	} {
		err := g.Check(netip.AddrPortFrom(netip.MustParseAddr(c.addr), 443))
		var be *egress.BlockedError
		switch {
		case err == nil && c.why != "":
			t.Errorf("Check(%s) allows it, want %s", c.addr, c.why)
		case err != nil && (!errors.As(err, &be) || be.Why != c.why):
			t.Errorf("Check(%s) = %v, want %q", c.addr, err, c.why)
		}
	}
	if g.Check(netip.AddrPort{}) == nil {
		t.Error("Check allows no address at all")
	}
}

func TestCheckURL(t *testing.T) {
	public := egress.New(egress.Options{})
	local := egress.New(egress.Options{Allow: allow(t, "127.0.0.0/8,10.0.0.0/8")})
	six := egress.New(egress.Options{Allow: allow(t, "::1")})
	ports := egress.New(egress.Options{Allow: allow(t, "10.0.0.0/8:443,10.0.0.0/8:8080-8089,127.0.0.1:8080")})
	for _, c := range []struct {
		g   *egress.Guard
		url string
		ok  bool
	}{
		{public, "https://ops.example.com/hook", true},
		{public, "http://ops.example.com:8080/hook?a=b%20c&d=@", true},
		{public, "https://ops.example.com", true},
		{public, "https://ops.example.com?x=1", true},
		{public, "https://OPS.Example.COM./", true},
		{public, "https://xn--bcher-kva.example/", true},
		{public, "https://my_service.example.com/", true},
		{public, "https://93.184.216.34/", true},
		{public, "https://[2606:2800:220:1::1]:8443/", true},
		{public, "https://1password.com/", true},
		{public, "https://0xcafe.example/", true},
		{public, "https://cafe/", true},
		{public, "https://bücher.example/", false},
		{public, "https://ops.example.com:/", false},
		{public, "https://ops.example.com:0/", false},
		{public, "https://ops.example.com:080/", false},
		{public, "https://ops.example.com:http/", false},
		{public, "https://ops..example.com/", false},
		{public, "https://-ops.example.com/", false},
		{public, "https://ops.example.com/a b", false},
		{public, "https://ops.example.com/a\tb", false},
		{public, "https://ops.example.com/a\\b", false},
		{public, "https://ops.example.com/#", false},
		{public, "https://ops.example.com/%zz", false},
		{public, "https://user@ops.example.com/", false},
		{public, "HTTPS://ops.example.com/", false},
		{public, " https://ops.example.com/", false},
		{public, "https://" + strings.Repeat("a.", 127) + "example/", false},
		{public, "https://93.184.216.34./", false},
		{public, "https://1.2.3.256/", false},
		{public, "https://1.2.3/", false},
		{public, "https://1.2.3.4.5/", false},
		{public, "https://example.0x1f/", false},
		{public, "https://[fe80::1%25eth0]/", false},
		{public, "https://[93.184.216.34]/", false},
		{public, "https://[::ffff:93.184.216.34]/", true},
		{local, "http://127.0.0.1:8080/hook", true},
		{local, "http://localhost:8080/hook", true},
		{local, "http://a.localhost/hook", true},
		{local, "http://10.2.3.4/", true},
		{local, "http://[::ffff:10.2.3.4]/", true},
		{local, "http://127.1/", false}, // an odd spelling stays odd
		{local, "http://[::1]/", false},
		{local, "http://192.168.0.1/", false},
		{six, "http://localhost/", true},
		{six, "http://127.0.0.1/", false},
		{ports, "https://10.1.2.3/", true},
		{ports, "http://10.1.2.3/", false},
		{ports, "http://10.1.2.3:8080/", true},
		{ports, "http://10.1.2.3:8090/", false},
		{ports, "http://localhost:8080/", true},
		{ports, "http://localhost/", false},
	} {
		if err := c.g.CheckURL(c.url); (err == nil) != c.ok {
			t.Errorf("CheckURL(%q) = %v, want accepted = %v", c.url, err, c.ok)
		}
	}
}

func FuzzCheckURL(f *testing.F) {
	for _, u := range []string{"https://ops.example.com/hook", "http://127.1/", "http://[::1]:80/", "http://a@b@c/", "http://①.0.0.1/", "http://x:1:2/"} {
		f.Add(u)
	}
	g := egress.New(egress.Options{})
	f.Fuzz(func(t *testing.T, raw string) {
		if g.CheckURL(raw) != nil {
			return
		}
		// What is accepted means one thing to everybody.
		u, err := url.Parse(raw)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.User != nil || u.Fragment != "" || u.Host == "" || len(raw) > egress.MaxURL {
			t.Fatalf("CheckURL accepts %q, which parses as %#v, %v", raw, u, err)
		}
		rest := raw[strings.Index(raw, "://")+3:]
		if end := strings.IndexAny(rest, "/?"); end >= 0 {
			rest = rest[:end]
		}
		if rest != u.Host {
			t.Fatalf("CheckURL accepts %q, whose host is %q or %q", raw, rest, u.Host)
		}
		host := strings.TrimSuffix(u.Hostname(), ".")
		if addr, ok := loosely(host); ok && g.Check(netip.AddrPortFrom(addr, 443)) != nil {
			t.Fatalf("CheckURL accepts %q, whose host some take for %s", raw, addr)
		}
		if addr, err := netip.ParseAddr(host); err == nil && g.Check(netip.AddrPortFrom(addr, 443)) != nil {
			t.Fatalf("CheckURL accepts %q", raw)
		}
	})
}

func ExampleGuard_CheckURL() {
	g := egress.New(egress.Options{})
	for _, u := range []string{"https://ops.example.com/hook", "http://10.0.0.7/", "http://0x7f000001/"} {
		if err := g.CheckURL(u); err != nil {
			io.WriteString(os.Stdout, "the URL "+err.Error()+"\n")
		}
	}
	// Output:
	// the URL address 10.0.0.7 is not allowed (private network); --egress-allow 10.0.0.7:80 allows it (config key egress-allow)
	// the URL has an address in an unusual form; write four decimal numbers
}

func TestCheckHost(t *testing.T) {
	public := egress.New(egress.Options{})
	ports := egress.New(egress.Options{Allow: allow(t, "10.0.0.0/8:587,[fd00::/8]:587,127.0.0.1:2525")})
	for _, c := range []struct {
		g    *egress.Guard
		host string
		port uint16
		want string // of the error
	}{
		{public, "smtp.example.com", 587, ""},
		{public, "93.184.216.34", 587, ""},
		{public, "2606:2800:220:1::1", 587, ""},
		{public, "10.0.0.1", 587, "--egress-allow 10.0.0.1:587"},
		{public, "localhost", 25, "--egress-allow 127.0.0.1:25"},
		{public, "169.254.169.254", 587, "metadata service"},
		{public, "metadata.google.internal", 587, "metadata service"},
		{public, "", 587, "is empty"},
		{public, "bücher.example", 587, "xn--"},
		{public, "a b", 587, "xn--"},
		{public, "smtp..example.com", 587, "not a name"},
		{public, "smtp.example.com:587", 587, "IPv6"},
		{public, "[2606:2800:220:1::1]", 587, "IPv6"},
		{public, "fe80::1%eth0", 587, "IPv6"},
		{public, "127.1", 587, "unusual form"},
		{public, "user@smtp.example.com", 587, "not a name"},
		{ports, "10.0.0.1", 587, ""},
		{ports, "10.0.0.1", 25, "--egress-allow 10.0.0.1:25"},
		{ports, "fd00::1", 587, ""},
		{ports, "localhost", 2525, ""},
	} {
		err := c.g.CheckHost(c.host, c.port)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("CheckHost(%q, %d) = %v, want %q", c.host, c.port, err, c.want)
		}
	}
}
