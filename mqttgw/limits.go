// SPDX-License-Identifier: Apache-2.0

package mqttgw

import (
	"fmt"
	"time"
)

// Limits bound what clients may ask for. A zero field has the default in its comment.
type Limits struct {
	ConnectTimeout time.Duration // from accept to the end of CONNECT, TLS handshake included; 5 s
	WriteTimeout   time.Duration // a write of at most 64 KiB that takes longer ends the connection; 30 s
	ProgressEvery  time.Duration // how often the progress of kept sessions is written, and so what is repeated after a crash; 1 s
	MaxKeepAlive   time.Duration // MQTT 5 clients that ask for more, or for none, are told this; 0 = no maximum

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

// LongestKeepAlive is what CONNECT can say at most.
const LongestKeepAlive = 65535 * time.Second

// withDefaults returns l with every zero field set.
func (l Limits) withDefaults() Limits {
	def := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	if l.ConnectTimeout == 0 {
		l.ConnectTimeout = 5 * time.Second
	}
	if l.WriteTimeout == 0 {
		l.WriteTimeout = 30 * time.Second
	}
	if l.ProgressEvery == 0 {
		l.ProgressEvery = time.Second
	}
	def(&l.MaxConnect, 64<<10)
	def(&l.MaxPacket, 256<<10)
	def(&l.MaxClientID, 256)
	def(&l.MaxTopic, 1<<10)
	def(&l.MaxLevels, 32)
	def(&l.MaxFilters, 64)
	def(&l.MaxTopicAlias, 16)
	def(&l.ReceiveMaximum, 256)
	def(&l.MaxPending, 1<<20)
	def(&l.MaxInFlight, 256)
	def(&l.MaxWaiting, 1024)
	def(&l.MaxOutbound, 1<<20)
	def(&l.MaxSessions, 1_000_000)
	def(&l.MaxCommands, 1_000_000)
	def(&l.MaxDeviceCommands, 1000)
	def(&l.MaxRetained, 1_000_000)
	def(&l.MaxCatchUp, 256<<20)
	def(&l.MaxBirthBytes, 64<<20)
	def(&l.MaxConnections, 100_000)
	def(&l.MaxConnectionsPerIP, 20_000)
	def(&l.MaxConnectingPerIP, 1024)
	def(&l.MaxConnectRate, 2000)
	def(&l.MaxConnectRatePerIP, 1000)
	def(&l.MaxFailuresPerMinute, 10)
	def(&l.MaxFailuresPerAddress, 100)
	return l
}

func (l Limits) validate() (errs []error) {
	l = l.withDefaults()
	between := func(name string, v, low, high int) {
		if v < low || v > high {
			errs = append(errs, fmt.Errorf("mqttgw: %s is %d, must be %d to %d", name, v, low, high))
		}
	}
	between("MaxConnect", l.MaxConnect, 64, 1<<20)
	between("MaxPacket", l.MaxPacket, 1<<10, 16<<20)
	between("MaxClientID", l.MaxClientID, 23, 65535)
	between("MaxTopic", l.MaxTopic, 1, 65535)
	between("MaxLevels", l.MaxLevels, 1, 1024)
	between("MaxFilters", l.MaxFilters, 1, 1<<16)
	between("MaxTopicAlias", l.MaxTopicAlias, 1, 65535)
	between("ReceiveMaximum", l.ReceiveMaximum, 1, 65535)
	between("MaxPending", l.MaxPending, 1, 1<<30)
	between("MaxInFlight", l.MaxInFlight, 1, 4096)
	between("MaxWaiting", l.MaxWaiting, 1, 1<<20)
	between("MaxOutbound", l.MaxOutbound, 1<<10, 1<<30)
	between("MaxSessions", l.MaxSessions, 1, 1<<30)
	between("MaxCommands", l.MaxCommands, 1, 1<<30)
	between("MaxDeviceCommands", l.MaxDeviceCommands, 1, 1<<16)
	between("MaxRetained", l.MaxRetained, 1, 1<<30)
	between("MaxCatchUp", l.MaxCatchUp, 1<<20, 1<<40)
	between("MaxBirthBytes", l.MaxBirthBytes, 1<<10, 1<<30)
	between("MaxConnections", l.MaxConnections, 1, 1<<30)
	between("MaxConnectionsPerIP", l.MaxConnectionsPerIP, 1, 1<<30)
	between("MaxConnectingPerIP", l.MaxConnectingPerIP, 1, 1<<30)
	between("MaxConnectRate", l.MaxConnectRate, 1, 1<<30)
	between("MaxConnectRatePerIP", l.MaxConnectRatePerIP, 1, 1<<30)
	between("MaxFailuresPerMinute", l.MaxFailuresPerMinute, 1, 1<<30)
	between("MaxFailuresPerAddress", l.MaxFailuresPerAddress, 1, 1<<30)
	if l.ConnectTimeout < 0 || l.WriteTimeout < 0 || l.ProgressEvery < 0 {
		errs = append(errs, fmt.Errorf("mqttgw: ConnectTimeout %s, WriteTimeout %s and ProgressEvery %s must be positive", l.ConnectTimeout, l.WriteTimeout, l.ProgressEvery))
	}
	if l.MaxKeepAlive < 0 || l.MaxKeepAlive > LongestKeepAlive || l.MaxKeepAlive%time.Second != 0 {
		errs = append(errs, fmt.Errorf("mqttgw: MaxKeepAlive is %s, must be whole seconds, at most %s", l.MaxKeepAlive, LongestKeepAlive))
	}
	return errs
}
