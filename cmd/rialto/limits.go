// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strconv"

	"github.com/spf13/pflag"

	"github.com/rialto-bridge/rialto/mqttgw"
)

// mqttLimitFlags makes a flag of each limit of MQTT clients that is a setting.
func mqttLimitFlags(f *pflag.FlagSet, l *mqttgw.Limits) {
	f.DurationVar(&l.ConnectTimeout, "mqtt-connect-timeout", mqttgw.DefaultConnectTimeout, "how long an MQTT client may take from the connection to the end of its CONNECT, TLS included, up to 5m; then it is closed")
	f.DurationVar(&l.MaxKeepAlive, "mqtt-max-keepalive", 0, "longest keep alive of MQTT 5 clients, such as 60s: who asks for more, or for none, is told this one; 0 = no maximum")
	f.DurationVar(&l.MaxSessionExpiry, "mqtt-max-session-expiry", 0, "longest time that an MQTT session outlives its connection, such as 168h: MQTT 5 clients that ask for more are told this one; 0 = no maximum")
	for _, limit := range mqttgw.LimitSettings() {
		v := limit.Of(l)
		*v = limit.Default
		f.Var(&limitFlag{limit, v}, limit.Name, fmt.Sprintf("%s (%s to %s)", limit.Doc, limit.Text(limit.Lowest), limit.Text(limit.Utmost)))
	}
}

// limitFlag is a pflag.Value for a limit.
type limitFlag struct {
	mqttgw.Limit
	v *int
}

// Set takes a number or, for a limit in bytes, a size.
func (l *limitFlag) Set(s string) error {
	n, err := strconv.Atoi(s)
	if err != nil && l.Size {
		var size int64
		if size, err = parseSize(s); err == nil {
			n = int(min(size, 1<<31-1)) // no limit may be as large
		}
	}
	if err != nil {
		return fmt.Errorf("%s is %q, and must be %s to %s", l.Name, s, l.Text(l.Lowest), l.Text(l.Utmost))
	}
	if err := l.Check(n); err != nil {
		return err
	}
	*l.v = n
	return nil
}

func (l *limitFlag) String() string {
	if l.v == nil { // pflag asks the zero value
		return ""
	}
	return l.Text(*l.v)
}

// Type is what --help calls the value.
func (l *limitFlag) Type() string {
	if l.Size {
		return "size"
	}
	return "int"
}
