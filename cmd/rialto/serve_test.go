// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/rialto-bridge/rialto/internal/app"
	"github.com/rialto-bridge/rialto/mqttgw"
)

// served is what serve would run with.
func served(t *testing.T, args string, env map[string]string) (app.Options, error) {
	t.Helper()
	var s settings
	flags := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	s.flags(flags)
	if err := flags.Parse(strings.Fields(args)); err != nil {
		return app.Options{}, err
	}
	return s.read(flags, &cli{err: io.Discard, getenv: func(name string) string { return env[name] }})
}

// The list of addresses comes from the flag, the variable or the file, which may hold it as a list.
func TestServeReadsTheEgressList(t *testing.T) {
	file := filepath.Join(t.TempDir(), "rialto.yaml")
	writeFile(t, file, "egress-allow:\n  - 10.20.0.0/16:443\n  - \"[fd00:20::/32]:443\"\n  - 192.168.7.9\n")
	for _, c := range []struct {
		args string
		env  map[string]string
		want string
	}{
		{"--egress-allow 10.0.0.7:8000-8099", nil, "[10.0.0.7:8000-8099]"},
		{"", map[string]string{"RIALTO_EGRESS_ALLOW": "10.0.0.0/8:443,::1"}, "[10.0.0.0/8:443 ::1]"},
		{"--config " + file, nil, "[10.20.0.0/16:443 [fd00:20::/32]:443 192.168.7.9]"},
		{"", nil, "[]"},
	} {
		o, err := served(t, c.args, c.env)
		if err != nil {
			t.Errorf("serve %s, %v: %v", c.args, c.env, err)
		}
		if got := fmt.Sprint(o.EgressAllow); got != c.want {
			t.Errorf("serve %s, %v allows %s, want %s", c.args, c.env, got, c.want)
		}
	}
	got := rialtoIn(t, map[string]string{"RIALTO_EGRESS_ALLOW": "10.0.0.0/8,10.0.0.0/8:99999"}, "", "serve", "--data", t.TempDir())
	if got.code != exitUsage || !strings.Contains(got.err, `--egress-allow: "10.0.0.0/8:99999" has no valid port: one from 1 to 65535`) {
		t.Errorf("exit %d, %s", got.code, got.err)
	}
}

// A profile changes defaults: what stands on the command line, in the environment or in the file still wins.
func TestAProfileChangesDefaultsOnly(t *testing.T) {
	file := filepath.Join(t.TempDir(), "rialto.yaml")
	writeFile(t, file, "profile: edge\nring: 16MiB\n")
	for _, c := range []struct {
		args                 string
		env                  map[string]string
		ring, maxStore, down string
	}{
		{"", nil, "64MiB", "auto", "2GiB"},
		{"--profile standard", nil, "64MiB", "auto", "2GiB"},
		{"--profile edge", nil, "4MiB", "512MiB", "64MiB"},
		{"--profile edge --ring 8MiB --max-store auto", nil, "8MiB", "auto", "64MiB"},
		{"", map[string]string{"RIALTO_PROFILE": "edge", "RIALTO_MAX_STORE": "1GiB"}, "4MiB", "1GiB", "64MiB"},
		{"--config " + file, nil, "16MiB", "512MiB", "64MiB"},
	} {
		cmd := newServe(&cli{})
		flags := cmd.Flags()
		if err := flags.Parse(strings.Fields(c.args)); err != nil {
			t.Fatal(err)
		}
		get := func(name string) string {
			t.Helper()
			v, err := flags.GetString(name)
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
		if err := fillFlags(flags, get("config"), func(name string) string { return c.env[name] }); err != nil {
			t.Fatal(err)
		}
		if err := applyProfile(flags, get("profile")); err != nil {
			t.Fatal(err)
		}
		if get("ring") != c.ring || get("max-store") != c.maxStore || get("down-max-bytes") != c.down {
			t.Errorf("serve %s, %v: ring %s, store %s, messages to devices %s", c.args, c.env, get("ring"), get("max-store"), get("down-max-bytes"))
		}
	}
	got := rialtoIn(t, nil, "", "serve", "--profile", "tiny", "--data", t.TempDir())
	if got.code != exitUsage || !strings.Contains(got.err, `--profile is standard or edge, not "tiny"`) {
		t.Errorf("exit %d, %s", got.code, got.err)
	}
}

// Limits of MQTT clients come from flags, variables and the file, with their profile's defaults, and are refused by name and range; 0 is
// no number of anything.
func TestServeReadsTheLimitsOfMQTT(t *testing.T) {
	file := filepath.Join(t.TempDir(), "rialto.yaml")
	writeFile(t, file, "mqtt-max-sessions: 3000000\nmqtt-max-packet: 1MiB\nmqtt-max-outbound: 2097152\nmqtt-max-session-expiry: 168h\n")
	standard := mqttgw.Limits{ConnectTimeout: 5 * time.Second}
	for _, n := range mqttgw.LimitSettings() {
		*n.Of(&standard) = n.Default
	}
	for _, c := range []struct {
		args string
		env  map[string]string
		want func(*mqttgw.Limits) // what is different
	}{
		{"", nil, func(*mqttgw.Limits) {}},
		{"--mqtt-max-packet 1MiB --mqtt-max-topic-levels 8 --mqtt-max-subscriptions 500 --mqtt-receive-maximum 20 --mqtt-max-in-flight 10 --mqtt-max-outbound 4096 --mqtt-max-connections 7 " +
			"--mqtt-max-connections-per-ip 6 --mqtt-max-sessions 5 --mqtt-connect-rate 4 --mqtt-connect-rate-per-ip 3 --mqtt-connect-timeout 20s --mqtt-catch-up-rate 2MiB --mqtt-max-keepalive 60s --mqtt-max-session-expiry 1h", nil, func(l *mqttgw.Limits) {
			*l = mqttgw.Limits{MaxPacket: 1 << 20, MaxLevels: 8, MaxFilters: 500, ReceiveMaximum: 20, MaxInFlight: 10, MaxOutbound: 4096, MaxConnections: 7, MaxConnectionsPerIP: 6, MaxSessions: 5,
				MaxCatchUp: 2 << 20, MaxConnectRate: 4, MaxConnectRatePerIP: 3, ConnectTimeout: 20 * time.Second, MaxKeepAlive: time.Minute, MaxSessionExpiry: time.Hour}
		}},
		{"--config " + file, map[string]string{"RIALTO_MQTT_MAX_PACKET": "64KiB"}, func(l *mqttgw.Limits) {
			l.MaxSessions, l.MaxPacket, l.MaxOutbound, l.MaxSessionExpiry = 3_000_000, 64<<10, 2<<20, 168*time.Hour
		}},
		{"--profile edge --mqtt-max-connections 500", nil, func(l *mqttgw.Limits) {
			l.MaxConnections, l.MaxConnectionsPerIP, l.MaxSessions, l.MaxOutbound, l.MaxConnectRate, l.MaxConnectRatePerIP = 500, 2000, 10_000, 256<<10, 200, 100
			l.MaxCatchUp = 32 << 20
		}},
	} {
		want := standard
		c.want(&want)
		o, err := served(t, c.args, c.env)
		if d := cmp.Diff(want, o.MQTTLimits); err != nil || d != "" {
			t.Errorf("serve %s, %v: %v\n%s", c.args, c.env, err, d)
		}
	}
	for _, n := range mqttgw.LimitSettings() {
		for _, v := range []string{"0", "-1", "many", "", fmt.Sprint(n.Utmost + 1), "9999GiB"} {
			_, err := served(t, "", map[string]string{"RIALTO_" + strings.ToUpper(strings.ReplaceAll(n.Name, "-", "_")): v})
			if v == "" { // is not set
				if err != nil {
					t.Errorf("%s empty: %v", n.Name, err)
				}
				continue
			}
			if err == nil || !strings.Contains(err.Error(), "and must be "+n.Text(n.Lowest)+" to "+n.Text(n.Utmost)) {
				t.Errorf("%s = %q: %v", n.Name, v, err)
			}
		}
	}
	for flag, allowed := range map[string]string{"--mqtt-max-packet 1GiB": "1KiB to 16MiB", "--mqtt-max-keepalive 1ms": "whole seconds, at most 18h12m15s", "--mqtt-connect-timeout 1h": "1s to 5m0s", "--mqtt-connect-timeout 0": "1s to 5m0s",
		"--mqtt-max-session-expiry 1500ms": "whole seconds", "--mqtt-max-topic-levels 2KiB": "1 to 1024"} {
		got := rialtoIn(t, nil, "", append([]string{"serve", "--data", t.TempDir()}, strings.Fields(flag)...)...)
		if got.code != exitUsage || !strings.Contains(got.err, allowed) {
			t.Errorf("%s: exit %d, %s", flag, got.code, got.err)
		}
	}
	help := rialtoIn(t, nil, "", "serve", "--help").out
	for _, n := range mqttgw.LimitSettings() {
		if !strings.Contains(help, "--"+n.Name+" ") || !strings.Contains(help, "(default "+n.Text(n.Default)+")") {
			t.Errorf("--help does not say what --%s is", n.Name)
		}
	}
}
