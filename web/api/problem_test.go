// SPDX-License-Identifier: Apache-2.0

package api_test

import (
	"encoding/json"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/rialto-bridge/rialto/web/api"
)

// A problem without lists is written by hand, and reads as what encoding/json writes.
func FuzzPlainProblem(f *testing.F) {
	f.Add("urn:rialto:problem:forbidden", "The key does not allow this", 403, "the signature does not match", "3w5e11264sg0a")
	f.Add("", "", 0, "", "")
	f.Add("a\"b", "\\", -1, "<\x00\u2028>&é😀", "\x1f")
	f.Fuzz(func(t *testing.T, typ, title string, status int, detail, id string) {
		for _, s := range []string{typ, title, detail, id} {
			if !utf8.ValidString(s) {
				return // texts of problems are UTF-8
			}
		}
		p := &api.Problem{Type: typ, Title: title, Status: status, Detail: detail, RequestID: id}
		want, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		var members, wantMembers map[string]any
		got := p.AppendPlain(nil)
		if err := json.Unmarshal(got, &members); err != nil {
			t.Fatalf("%s: %v", got, err)
		}
		if err := json.Unmarshal(want, &wantMembers); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(wantMembers, members, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}
