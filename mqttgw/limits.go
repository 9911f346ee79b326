// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"
)

// Limits bound what clients may ask for. A zero field has the default in its comment.
type Limits struct {
	ConnectTimeout time.Duration // from accept to the end of CONNECT, TLS handshake included; 5 s
	WriteTimeout   time.Duration // a write of at most 64 KiB that takes longer ends the connection; 30 s
	ProgressEvery  time.Duration // how often the progress of kept sessions is written, and so what is repeated after a crash; 1 s
	MaxKeepAlive   time.Duration // MQTT 5 clients that ask for more, or for none, are told this; 0 = no maximum

	// MaxSessionExpiry is the longest that a session outlives its connection, from its next connection on. MQTT 5 clients that ask for
	// more are told; 3.1.1 clients, whose sessions have no end otherwise, cannot be. 0 = no maximum.
	MaxSessionExpiry time.Duration

	MaxConnect        int // bytes of a CONNECT packet, which anyone may send; 64 KiB
	MaxPacket         int // bytes of any later packet; 256 KiB
	MaxClientID       int // bytes; 256
	MaxTopic          int // bytes of a topic or filter; 1 KiB
	MaxLevels         int // levels of a topic or filter; 32
	MaxFilters        int // subscriptions of a session; 64
	MaxTopicAlias     int // topic aliases a client may set; 16
	ReceiveMaximum    int // messages of a client that are not acknowledged yet; 256
	MaxPending        int // bytes of messages of a client that are not committed yet; 1 MiB
	MaxInFlight       int // QoS 1 and 2 messages to a client without PUBACK or PUBCOMP, at most the client's Receive Maximum; 256
	MaxWaiting        int // QoS 1 and 2 messages whose positions are kept for a client that is behind, before it reads the log; 1024
	MaxOutbound       int // bytes waiting to be written to a client; 1 MiB
	MaxSessions       int // sessions that outlive their connection, of about 1 KB each; 1,000,000
	MaxCommands       int // commands to devices that have not ended; 1,000,000
	MaxDeviceCommands int // those of one device; 1000
	MaxRetained       int // topics with a retained message; 1,000,000
	MaxCatchUp        int // bytes of the log that are read from disk in a second for clients that are far behind, in all; 256 MiB
	MaxBirthBytes     int // memory of Sparkplug births, about 40 bytes and its name for each metric; 64 MiB

	MaxConnections        int // in all; 100,000
	MaxConnectionsPerIP   int // 20,000; an IPv6 /64 counts as one address
	MaxConnectingPerIP    int // connections of an address before their CONNECT is accepted; 1024
	MaxConnectRate        int // new connections in a second, in all, and at first twice as many; more wait to be accepted; 2000
	MaxConnectRatePerIP   int // new connections of an address in a second, and at first 20 times as many; more are closed; 1000
	MaxFailuresPerMinute  int // failed log-ins of a user name from one address; 10
	MaxFailuresPerAddress int // failed log-ins from one address in a minute; 100
}

// Longest values of the limits in time.
const (
	LongestKeepAlive      = 65535 * time.Second // what CONNECT can say
	LongestSessionExpiry  = (never - 1) * time.Second
	LongestConnectTimeout = 5 * time.Minute
)

// Limit is one of Limits that is a number: what it may be, and what it is called where operators set it.
type Limit struct {
	Name           string // of the setting, such as mqtt-max-packet; for one that is none, of the field
	Doc            string // what it bounds and what happens beyond it, for --help; "" = it is no setting
	Size           bool   // in bytes
	Default        int    // for zero
	Lowest, Utmost int
	Of             func(*Limits) *int
}

// numbers are all limits that are numbers.
var numbers = []Limit{
	{Name: "MaxConnect", Default: 64 << 10, Lowest: 64, Utmost: 1 << 20, Of: func(l *Limits) *int { return &l.MaxConnect }},
	{Name: "mqtt-max-packet", Doc: "largest MQTT packet after CONNECT, which clients are told; a larger one ends its connection", Size: true,
		Default: 256 << 10, Lowest: 1 << 10, Utmost: 16 << 20, Of: func(l *Limits) *int { return &l.MaxPacket }},
	{Name: "MaxClientID", Default: 256, Lowest: 23, Utmost: 65535, Of: func(l *Limits) *int { return &l.MaxClientID }},
	{Name: "MaxTopic", Default: 1 << 10, Lowest: 1, Utmost: 65535, Of: func(l *Limits) *int { return &l.MaxTopic }},
	{Name: "mqtt-max-topic-levels", Doc: "levels of an MQTT topic or filter; one with more is refused",
		Default: 32, Lowest: 1, Utmost: 1024, Of: func(l *Limits) *int { return &l.MaxLevels }},
	{Name: "mqtt-max-subscriptions", Doc: "subscriptions of an MQTT session; more are refused",
		Default: 64, Lowest: 1, Utmost: 4096, Of: func(l *Limits) *int { return &l.MaxFilters }},
	{Name: "MaxTopicAlias", Default: 16, Lowest: 1, Utmost: 65535, Of: func(l *Limits) *int { return &l.MaxTopicAlias }},
	{Name: "mqtt-receive-maximum", Doc: "QoS 1 and 2 messages of an MQTT client that are not acknowledged yet, which it is told; then it is not read",
		Default: 256, Lowest: 1, Utmost: 65535, Of: func(l *Limits) *int { return &l.ReceiveMaximum }},
	{Name: "MaxPending", Default: 1 << 20, Lowest: 1, Utmost: 1 << 30, Of: func(l *Limits) *int { return &l.MaxPending }},
	{Name: "mqtt-max-in-flight", Doc: "QoS 1 and 2 messages to an MQTT client that it has not acknowledged, or its own Receive Maximum if that is lower; more wait in the log",
		Default: 256, Lowest: 1, Utmost: 4096, Of: func(l *Limits) *int { return &l.MaxInFlight }},
	{Name: "MaxWaiting", Default: 1024, Lowest: 1, Utmost: 1 << 20, Of: func(l *Limits) *int { return &l.MaxWaiting }},
	{Name: "mqtt-max-outbound", Doc: "bytes that wait to be written to an MQTT client; beyond, QoS 0 is dropped and counted, and QoS 1 and 2 wait in the log", Size: true,
		Default: 1 << 20, Lowest: 1 << 10, Utmost: 1 << 30, Of: func(l *Limits) *int { return &l.MaxOutbound }},
	{Name: "mqtt-max-sessions", Doc: "MQTT sessions that outlive their connections; clients that ask for more are refused",
		Default: 1_000_000, Lowest: 1, Utmost: 1 << 30, Of: func(l *Limits) *int { return &l.MaxSessions }},
	{Name: "MaxCommands", Default: 1_000_000, Lowest: 1, Utmost: 1 << 30, Of: func(l *Limits) *int { return &l.MaxCommands }},
	{Name: "MaxDeviceCommands", Default: 1000, Lowest: 1, Utmost: 1 << 16, Of: func(l *Limits) *int { return &l.MaxDeviceCommands }},
	{Name: "MaxRetained", Default: 1_000_000, Lowest: 1, Utmost: 1 << 30, Of: func(l *Limits) *int { return &l.MaxRetained }},
	{Name: "mqtt-catch-up-rate", Doc: "bytes of the log that are read from disk in a second for MQTT clients that are far behind, in all; they wait, what is new does not", Size: true,
		Default: 256 << 20, Lowest: 1 << 20, Utmost: 1 << 30, Of: func(l *Limits) *int { return &l.MaxCatchUp }},
	{Name: "MaxBirthBytes", Default: 64 << 20, Lowest: 1 << 10, Utmost: 1 << 30, Of: func(l *Limits) *int { return &l.MaxBirthBytes }},
	{Name: "mqtt-max-connections", Doc: "MQTT connections; more are closed",
		Default: 100_000, Lowest: 1, Utmost: 1 << 30, Of: func(l *Limits) *int { return &l.MaxConnections }},
	{Name: "mqtt-max-connections-per-ip", Doc: "MQTT connections of one address (IPv6: of a /64); more are closed",
		Default: 20_000, Lowest: 1, Utmost: 1 << 30, Of: func(l *Limits) *int { return &l.MaxConnectionsPerIP }},
	{Name: "MaxConnectingPerIP", Default: 1024, Lowest: 1, Utmost: 1 << 30, Of: func(l *Limits) *int { return &l.MaxConnectingPerIP }},
	{Name: "mqtt-connect-rate", Doc: "new MQTT connections in a second; more wait",
		Default: 2000, Lowest: 1, Utmost: 1 << 30, Of: func(l *Limits) *int { return &l.MaxConnectRate }},
	{Name: "mqtt-connect-rate-per-ip", Doc: "new MQTT connections of one address in a second; more are closed",
		Default: 1000, Lowest: 1, Utmost: 1 << 30, Of: func(l *Limits) *int { return &l.MaxConnectRatePerIP }},
	{Name: "MaxFailuresPerMinute", Default: 10, Lowest: 1, Utmost: 1 << 30, Of: func(l *Limits) *int { return &l.MaxFailuresPerMinute }},
	{Name: "MaxFailuresPerAddress", Default: 100, Lowest: 1, Utmost: 1 << 30, Of: func(l *Limits) *int { return &l.MaxFailuresPerAddress }},
}

// LimitSettings returns the limits that operators set, but for those in time.
func LimitSettings() []Limit {
	return slices.DeleteFunc(slices.Clone(numbers), func(n Limit) bool { return n.Doc == "" })
}

// Check returns an error that says what is allowed, if v is not.
func (n Limit) Check(v int) error {
	if v < n.Lowest || v > n.Utmost {
		return fmt.Errorf("%s is %s, and must be %s to %s", n.Name, n.Text(v), n.Text(n.Lowest), n.Text(n.Utmost))
	}
	return nil
}

// Text is a value as operators write it: 256KiB, 64.
func (n Limit) Text(v int) string {
	switch {
	case n.Size && v != 0 && v%(1<<30) == 0:
		return strconv.Itoa(v>>30) + "GiB"
	case n.Size && v != 0 && v%(1<<20) == 0:
		return strconv.Itoa(v>>20) + "MiB"
	case n.Size && v != 0 && v%(1<<10) == 0:
		return strconv.Itoa(v>>10) + "KiB"
	}
	return strconv.Itoa(v)
}

// Or returns l with what d says in the numbers that are zero.
func (l Limits) Or(d Limits) Limits {
	for _, n := range numbers {
		v := n.Of(&l)
		*v = cmp.Or(*v, *n.Of(&d))
	}
	return l
}

// withDefaults returns l with every zero field set.
func (l Limits) withDefaults() Limits {
	l.ConnectTimeout = cmp.Or(l.ConnectTimeout, DefaultConnectTimeout)
	l.WriteTimeout = cmp.Or(l.WriteTimeout, 30*time.Second)
	l.ProgressEvery = cmp.Or(l.ProgressEvery, time.Second)
	for _, n := range numbers {
		if v := n.Of(&l); *v == 0 {
			*v = n.Default
		}
	}
	return l
}

// DefaultConnectTimeout is how long a CONNECT may take.
const DefaultConnectTimeout = 5 * time.Second

// Validate reports everything that is out of its range, by the names of the settings.
func (l Limits) Validate() error {
	l = l.withDefaults()
	var errs []error
	for _, n := range numbers {
		errs = append(errs, n.Check(*n.Of(&l)))
	}
	if l.ConnectTimeout < time.Second || l.ConnectTimeout > LongestConnectTimeout {
		errs = append(errs, fmt.Errorf("mqtt-connect-timeout is %s, and must be 1s to %s", l.ConnectTimeout, LongestConnectTimeout))
	}
	if l.WriteTimeout < 0 || l.ProgressEvery < 0 {
		errs = append(errs, fmt.Errorf("WriteTimeout is %s and ProgressEvery is %s, and both must be positive", l.WriteTimeout, l.ProgressEvery))
	}
	for _, d := range []struct {
		name    string
		v, most time.Duration
	}{{"mqtt-max-keepalive", l.MaxKeepAlive, LongestKeepAlive}, {"mqtt-max-session-expiry", l.MaxSessionExpiry, LongestSessionExpiry}} {
		if d.v < 0 || d.v > d.most || d.v%time.Second != 0 {
			errs = append(errs, fmt.Errorf("%s is %s, and must be whole seconds, at most %s, or 0 for no maximum", d.name, d.v, d.most))
		}
	}
	return errors.Join(errs...)
}

// sessionExpiry is how long a session may outlive its connection, in seconds, if its client asks for so long.
func (l *Limits) sessionExpiry(asked uint32) uint32 {
	if l.MaxSessionExpiry == 0 {
		return asked
	}
	return min(asked, uint32(l.MaxSessionExpiry/time.Second))
}
