// SPDX-License-Identifier: Apache-2.0

package app

import (
	"os"
	"strings"
	"testing"
)

func TestProgramMappings(t *testing.T) {
	smaps := func(header string, anonymous string) string {
		return header + "\nSize:    100 kB\nRss:    40 kB\nAnonymous:      " + anonymous + " kB\nAnonHugePages: 0 kB\nVmFlags: rd ex\n"
	}
	for _, c := range []struct {
		name, smaps string
		want        int
	}{
		{"code", smaps("00400000-0203b000 r-xp 00000000 00:1f 42                         /usr/bin/rialto", "0"), 1},
		{"constants, and a path with a space", smaps("0203b000-03e03000 r--p 01c3b000 00:1f 42                         /opt/a b/rialto", "0"), 1},
		{"data", smaps("03e03000-03ee2000 rw-p 03a03000 00:1f 42                         /usr/bin/rialto", "0"), 0},
		{"a breakpoint in code", smaps("00400000-0203b000 r-xp 00000000 00:1f 42                         /usr/bin/rialto", "4"), 0},
		{"another file", smaps("7f0000000000-7f0000010000 r-xp 00000000 00:1f 43                         /lib/libc.so.6", "0"), 0},
		{"a shared mapping", smaps("7f0000000000-7f0000010000 r--s 00000000 00:1f 42                         /usr/bin/rialto", "0"), 0},
		{"no file", smaps("7f0000000000-7f0000010000 r--p 00000000 00:00 0 ", "0"), 0},
		{"memory", smaps("7f0000000000-7f0000010000 rw-p 00000000 00:00 0 ", "64"), 0},
	} {
		file := "/usr/bin/rialto"
		if strings.Contains(c.smaps, "a b") {
			file = "/opt/a b/rialto"
		}
		got, err := programMappings(strings.NewReader(c.smaps), file)
		if err != nil || len(got) != c.want || c.want == 1 && got[0].end <= got[0].start {
			t.Errorf("%s: %v, %v, want %d", c.name, got, err, c.want)
		}
	}
}

// What was released is there again when it is needed, which for the code of this test is at once.
func TestReleaseProgram(t *testing.T) {
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if got, err := programMappings(f, exe); err != nil || len(got) == 0 {
		t.Fatalf("mappings %v, %v", got, err)
	}
	if err := releaseProgram(); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(Profiles(), " "); got != "standard edge" {
		t.Errorf("after it: %q", got)
	}
}
