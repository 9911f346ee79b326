// SPDX-License-Identifier: Apache-2.0

package app

import (
	"bytes"
	"encoding/json"
	"testing"
)

// What an export is read as can be written again, and is then the same.
func FuzzExport(f *testing.F) {
	for _, s := range []string{"", "{}\n", `{"format":"rialto definitions 1"}` + "\n" + `{"count":0}` + "\n",
		`{"format":"rialto definitions 1"}` + "\n" + `{"store":"schemas","kind":"a","scope":"<","name":"b","document":{"a": 1.50}}` + "\n" + `{"count":1}`,
		`{"format":"rialto definitions 1"}` + "\n" + `{"store":"definitions","kind":"a","name":"b","document":null}` + "\n" + `{"count":1}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		sets, err := readExport(bytes.NewReader(in))
		if err != nil {
			return
		}
		var b bytes.Buffer
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		write := func(l exportLine) {
			if err := enc.Encode(l); err != nil {
				t.Fatal(err)
			}
		}
		write(exportLine{Format: exportFormat})
		n := 0
		for name, set := range sets {
			for _, w := range set {
				write(exportLine{Store: name, Kind: w.Key.Kind, Scope: w.Key.Scope, Name: w.Key.Name, Document: w.Raw})
				n++
			}
		}
		write(exportLine{Count: &n})
		again, err := readExport(&b)
		if err != nil {
			t.Fatal(err)
		}
		for name, set := range sets {
			if len(again[name]) != len(set) {
				t.Fatalf("%d writes to %s, and were %d", len(again[name]), name, len(set))
			}
			for i, w := range set {
				if again[name][i].Key != w.Key || !bytes.Equal(again[name][i].Raw, w.Raw) {
					t.Errorf("%s was %s %s", again[name][i].Raw, w.Key, w.Raw)
				}
			}
		}
	})
}
