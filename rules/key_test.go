// SPDX-License-Identifier: Apache-2.0

package rules_test

import (
	"testing"

	"github.com/rialto-bridge/rialto/internal/event"
	"github.com/rialto-bridge/rialto/rules"
)

func TestKey(t *testing.T) {
	ev := &event.Event{ID: "1", Source: "/s", Type: "t", Subject: "truck/9", DataContentType: "application/json",
		Data: []byte(`{"order":{"id":42,"paid":true},"part":1.5,"list":[1]}`), Extensions: []event.Attribute{{Name: "partitionkey", Value: "p"}}}
	for source, want := range map[string]string{
		`data.order.id`: "42", `data.order.paid`: "true", `data.part`: "1.5", `partitionkey`: "p", `split(subject, "/")[1]`: "9",
		`data.nothing`: "", `data.list`: "", `data.order`: "", `data.nothing.more.of.it`: "", `tenant`: "", `source + ":" + subject`: "/s:truck/9",
	} {
		e, err := rules.ParseKey(source)
		if err != nil {
			t.Errorf("%s: %v", source, err)
			continue
		}
		if got := e.Key(ev); got != want {
			t.Errorf("%s results in %q, want %q", source, got, want)
		}
	}
	for _, source := range []string{"", "data.", "now()", "nothing("} {
		if _, err := rules.ParseKey(source); err == nil {
			t.Errorf("%q was accepted", source)
		}
	}
}
