// SPDX-License-Identifier: Apache-2.0

package egress_test

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/rialto-bridge/rialto/internal/egress"
)

func TestParseAllow(t *testing.T) {
	for _, c := range []struct {
		in, want string // a want that begins with ! is a part of the error
	}{
		{"", ""},
		{" , ", ""},
		{"10.0.0.0/8", "10.0.0.0/8"},
		{"127.0.0.1, ::1 ,fd00::/8", "127.0.0.1 ::1 fd00::/8"},
		{"0.0.0.0/0", "0.0.0.0/0"},
		{"10.1.2.0/24:8443", "10.1.2.0/24:8443"},
		{"10.1.2.3:443,10.1.2.3/32:80", "10.1.2.3:443 10.1.2.3:80"},
		{"10.1.2.3:8000-8099", "10.1.2.3:8000-8099"},
		{"10.1.2.3:80-80", "10.1.2.3:80"},
		{"10.0.0.0/8:1-65535", "10.0.0.0/8:1-65535"},
		{"[fd00::/8]:443,[::1]:80-81,fd00::1:443", "[fd00::/8]:443 [::1]:80-81 fd00::1:443"}, // the last is an address
		{"10.0.0.1/8", `!"10.0.0.1/8" has bits behind its mask; write 10.0.0.0/8`},
		{"10.0.0.1/8:443", "!write 10.0.0.0/8:443"},
		{"[fd00::1/8]:443", "!write [fd00::/8]:443"},
		{"fd00::/8:443", `!"fd00::/8:443" has a port behind an IPv6 network; write [fd00::/8]:443`},
		{"10.0.0.0/8,10.0.0.0/8:0", `!"10.0.0.0/8:0" has no valid port`},
		{"10.0.0.1:65536", "!no valid port"},
		{"10.0.0.1:080", "!no valid port"},
		{"10.0.0.1:90-80", "!no valid port"},
		{"10.0.0.1:80-", "!no valid port"},
		{"10.0.0.1:-80", "!no valid port"},
		{"10.0.0.1:http", "!no valid port"},
		{"10.0.0.1:", "!no port"},
		{"[fd00::1]", "!form"},
		{"[fd00::1]443", "!form"},
		{"[10.0.0.1]:443", "!form"},
		{"[fd00::1:443", "!form"},
		{"::ffff:10.0.0.0/104", "!write it as IPv4"},
		{"::ffff:10.0.0.1", "!write it as IPv4"},
		{"fe80::1%eth0", "!neither"},
		{"localhost", "!neither"},
		{"localhost:80", "!neither"},
		{"10.0.0.0/33", "!neither"},
		{"10.0.0.0;11.0.0.0", "!neither"},
	} {
		got, err := egress.ParseAllow(c.in)
		var texts []string
		for _, e := range got {
			texts = append(texts, e.String())
		}
		if err != nil {
			if want, ok := strings.CutPrefix(c.want, "!"); !ok || !strings.Contains(err.Error(), want) {
				t.Errorf("ParseAllow(%q): %v, want %q", c.in, err, c.want)
			}
			continue
		}
		if text := strings.Join(texts, " "); text != c.want {
			t.Errorf("ParseAllow(%q) = %s, want %s", c.in, text, c.want)
		}
	}
}

func FuzzParseAllow(f *testing.F) {
	for _, s := range []string{"10.0.0.0/8", "10.1.2.0/24:8443", "[fd00::/8]:443,::1", "10.1.2.3:1-2", "fd00::/8:443", "[::1]:0"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, list string) {
		got, err := egress.ParseAllow(list)
		if err != nil {
			return
		}
		var texts []string
		for _, e := range got {
			if e.Prefix != e.Prefix.Masked() || e.First > e.Last || (e.First == 0) != (e.Last == 0) {
				t.Fatalf("ParseAllow(%q) has %#v", list, e)
			}
			texts = append(texts, e.String())
		}
		again, err := egress.ParseAllow(strings.Join(texts, ","))
		if err != nil || !slices.Equal(again, got) {
			t.Fatalf("ParseAllow(%q) = %v; read again: %v, %v", list, got, again, err)
		}
	})
}

func TestCheckByPort(t *testing.T) {
	g := egress.New(egress.Options{Allow: allow(t, "10.0.0.0/8:443, 10.1.0.0/16:8000-8099, [fd00::/8]:443, 169.254.169.254:80, 64:ff9b::/96, 2002::/16, ::/96, 192.168.0.0/16, [::ffff:0:a00:1]:443")})
	for _, c := range []struct {
		addr    string
		allowed bool
	}{
		{"10.2.3.4:443", true},
		{"10.2.3.4:80", false},
		{"10.1.3.4:8000", true},
		{"10.1.3.4:8099", true},
		{"10.1.3.4:8100", false},
		{"10.2.3.4:8000", false},
		{"[fd00::1]:443", true},
		{"[fd00::1]:444", false},
		{"169.254.169.254:80", true},
		{"169.254.169.254:443", false},
		{"[::ffff:10.2.3.4]:443", true},
		{"[::ffff:10.2.3.4]:80", false},
		{"93.184.216.34:22", true},
		// Networks that wrap IPv4 are open; what they wrap is another question.
		{"[64:ff9b::5db8:d822]:80", true},   // 93.184.216.34
		{"[64:ff9b::a9fe:a9fe]:80", true},   // 169.254.169.254, allowed at this port
		{"[64:ff9b::a9fe:a9fe]:443", false}, //
		{"[64:ff9b::7f00:1]:80", false},     // 127.0.0.1
		{"[64:ff9b::c0a8:1]:80", true},      // 192.168.0.1
		{"[2002:7f00:1::]:80", false},
		{"[2002:c0a8:1::]:80", true},
		{"[2002:5db8:d822::1]:80", true},
		{"[::127.0.0.1]:80", false},
		{"[::1]:80", true}, // in ::/96, and itself
		{"[::ffff:0:a00:1]:443", true},
		{"[::ffff:0:a00:1]:80", false},
		{"[2001:0:4136:e378:8000:63bf:3fff:fdd2]:80", false}, // Teredo is not open
	} {
		if err := g.Check(netip.MustParseAddrPort(c.addr)); (err == nil) != c.allowed {
			t.Errorf("Check(%s) = %v, want allowed = %v", c.addr, err, c.allowed)
		}
	}
}

// Whatever is refused says what would allow it, and that allows it and nothing beside it.
func TestTheEntryThatIsNamedAllowsIt(t *testing.T) {
	list := allow(t, "0.0.0.0/0,::/0")
	for _, addr := range []string{"10.0.0.7:443", "[fd00::7]:8443", "127.0.0.1:22", "169.254.169.254:80", "168.63.129.16:80",
		"[64:ff9b::a9fe:a9fe]:80", "[::ffff:10.0.0.7]:443", "[fe80::1%eth0]:443", "[4000::1]:443", "127.0.0.1:8080", "0.0.0.0:8080", "203.0.113.9:4222"} {
		ap := netip.MustParseAddrPort(addr)
		for _, base := range [][]egress.Entry{nil, list} {
			g := guard(base)
			var be *egress.BlockedError
			if err := g.Check(ap); !errors.As(err, &be) {
				if base == nil {
					t.Errorf("Check(%s) = %v, want it blocked", addr, err)
				}
				continue
			}
			if text := be.Error(); len(text) > 200 || !strings.Contains(text, "--egress-allow "+be.Entry().String()+" ") || !strings.Contains(text, "config key egress-allow") {
				t.Errorf("the error names no setting, or is too long: %s", text)
			}
			opened := append(allow(t, be.Entry().String()), base...)
			if err := guard(opened).Check(ap); err != nil {
				t.Errorf("%s is on the list, and still: %v", be.Entry(), err)
			}
			if base == nil {
				if next := netip.AddrPortFrom(ap.Addr(), ap.Port()+1); guard(opened).Check(next) == nil {
					t.Errorf("%s opens %s", be.Entry(), next)
				}
			}
		}
	}
	if text := (&egress.BlockedError{Why: "not an address of TCP"}).Error(); strings.Contains(text, "egress") {
		t.Errorf("nothing allows it: %s", text)
	}
}

// guard protects a listener on loopback and a peer at a public address.
func guard(list []egress.Entry) *egress.Guard {
	g := egress.New(egress.Options{Allow: list})
	g.Protect("this bridge's HTTP listener", netip.MustParseAddrPort("127.0.0.1:8080"))
	g.Protect("a cluster peer", netip.MustParseAddrPort("203.0.113.9:4222"), netip.MustParseAddrPort("[2606:2800:220:1::9]:4222"))
	return g
}

func TestProtect(t *testing.T) {
	everything := allow(t, "0.0.0.0/0,::/0,127.0.0.1,127.0.0.1:8080-8081")
	g := guard(everything)
	for addr, why := range map[string]string{
		"127.0.0.1:8080":             "this bridge's HTTP listener",
		"[::ffff:127.0.0.1]:8080":    "this bridge's HTTP listener",
		"0.0.0.0:8080":               "this bridge's HTTP listener", // connects to this host
		"[::]:8080":                  "this bridge's HTTP listener",
		"127.0.0.1:8081":             "",
		"127.0.0.2:8080":             "",
		"203.0.113.9:4222":           "a cluster peer",
		"[2606:2800:220:1::9]:4222":  "a cluster peer", // public, and refused all the same
		"203.0.113.9:443":            "",
		"[2606:2800:220:1::9]:443":   "",
		"[2606:2800:220:1::10]:4222": "",
	} {
		err := g.Check(netip.MustParseAddrPort(addr))
		var be *egress.BlockedError
		if why == "" && err != nil || why != "" && (!errors.As(err, &be) || be.Why != why) {
			t.Errorf("Check(%s) = %v, want %q", addr, err, why)
		}
	}
	if err := g.CheckURL("http://127.0.0.1:8080/v1/targets"); err == nil || !strings.Contains(err.Error(), "this bridge's HTTP listener") {
		t.Errorf("CheckURL of the listener = %v", err)
	}
	if err := guard(allow(t, "127.0.0.1:8080")).CheckURL("http://127.0.0.1:8080/"); err != nil {
		t.Errorf("address and port are on the list, and still: %v", err)
	}
}

// A listener on all interfaces is protected at each address that this host has.
func TestProtectOnAllInterfaces(t *testing.T) {
	for _, bind := range []string{"0.0.0.0:8080", "[::]:8080", ":8080"} {
		bound, err := net.ResolveTCPAddr("tcp", bind)
		if err != nil {
			t.Fatal(err)
		}
		g := egress.New(egress.Options{Allow: allow(t, "0.0.0.0/0,::/0")})
		g.Protect("listener", bound.AddrPort())
		addrs, err := net.InterfaceAddrs()
		if err != nil || len(addrs) == 0 {
			t.Fatalf("addresses of this host: %v, %v", addrs, err)
		}
		ours := []netip.Addr{netip.MustParseAddr("127.3.2.1"), netip.MustParseAddr("0.0.0.0"), netip.MustParseAddr("::"), netip.MustParseAddr("::1")}
		for _, a := range addrs {
			addr, _ := netip.AddrFromSlice(a.(*net.IPNet).IP)
			ours = append(ours, addr)
		}
		for _, addr := range ours {
			if g.Check(netip.AddrPortFrom(addr, 8080)) == nil {
				t.Errorf("listening on %s: %s is open", bind, addr)
			}
		}
		for _, other := range []string{"93.184.216.34:8080", "127.0.0.1:8081"} {
			if err := g.Check(netip.MustParseAddrPort(other)); err != nil {
				t.Errorf("listening on %s: %v", bind, err)
			}
		}
	}
}

// The wall is the dialer: what is protected cannot be reached by name either, nor by the port of another entry.
func TestDialerKeepsFromWhatIsProtected(t *testing.T) {
	own, other := open(t, "127.0.0.1:0"), open(t, "127.0.0.1:0")
	ns := &nameServer{answer: everythingIsLocal}
	resolver := ns.resolver(t)
	_, port, _ := net.SplitHostPort(other.Addr().String())
	for _, list := range []string{"127.0.0.0/8", "127.0.0.0/8:" + own.port() + ",127.0.0.1:" + port} {
		g := egress.New(egress.Options{Resolver: resolver, Allow: allow(t, list)})
		g.Protect("listener", own.Addr().(*net.TCPAddr).AddrPort())
		for _, host := range []string{"127.0.0.1", "one.example"} {
			resp, err := client(g, own.port()).Get("http://" + host + "/")
			var be *egress.BlockedError
			if !errors.As(err, &be) || be.Why != "listener" && !be.Addr.Addr().Is6() {
				t.Errorf("GET of the listener at %s with %s = %v", host, list, err)
			}
			if err == nil {
				resp.Body.Close()
			}
		}
		resp, err := client(g, port).Get("http://127.0.0.1/")
		if err != nil {
			t.Errorf("GET of another port with %s: %v", list, err)
			continue
		}
		resp.Body.Close()
	}
	if n := own.settled(t); n != 0 {
		t.Errorf("%d connections came to what is protected", n)
	}
	g := egress.New(egress.Options{Allow: allow(t, "127.0.0.1:"+own.port())})
	g.Protect("listener", own.Addr().(*net.TCPAddr).AddrPort())
	resp, err := client(g, own.port()).Get("http://127.0.0.1/")
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("GET of what is named by address and port: %v", err)
	}
	resp.Body.Close()
}

func ExampleParseAllow() {
	list, err := egress.ParseAllow("10.20.0.0/16:443, 10.30.0.7:8000-8099, [fd00::/8]:443")
	fmt.Println(list, err)
	_, err = egress.ParseAllow("10.20.0.0/16, fd00::/8:443")
	fmt.Println(err)
	// Output:
	// [10.20.0.0/16:443 10.30.0.7:8000-8099 [fd00::/8]:443] <nil>
	// "fd00::/8:443" has a port behind an IPv6 network; write [fd00::/8]:443
}
