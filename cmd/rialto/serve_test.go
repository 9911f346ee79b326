// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

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
		cmd := newServe(&cli{getenv: func(name string) string { return c.env[name] }})
		if err := cmd.Flags().Parse(strings.Fields(c.args)); err != nil {
			t.Fatal(err)
		}
		var s settings
		config, err := cmd.Flags().GetString("config")
		if err != nil {
			t.Fatal(err)
		}
		if err := fillFlags(cmd.Flags(), config, func(name string) string { return c.env[name] }); err != nil {
			t.Fatal(err)
		}
		for name, to := range map[string]*string{"egress-allow": &s.egressAllow, "data": &s.data, "listen": &s.listen, "mqtt": &s.mqtt, "durability": &s.durability,
			"max-data": &s.maxData, "reserve": &s.reserve, "max-store": &s.maxStore, "ring": &s.ring, "down-max-bytes": &s.downMaxBytes, "aside-max-bytes": &s.asideMaxBytes, "log-level": &s.logLevel, "log-format": &s.logFormat} {
			if *to, err = cmd.Flags().GetString(name); err != nil {
				t.Fatal(err)
			}
		}
		o, err := s.options(&cli{})
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
