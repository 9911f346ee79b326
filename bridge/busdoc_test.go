// SPDX-License-Identifier: Apache-2.0

package bridge_test

import (
	"errors"
	"testing"
	"time"

	"github.com/rialto-bridge/rialto/bridge"
	"github.com/rialto-bridge/rialto/internal/fault"
)

func TestParseBus(t *testing.T) {
	doc, err := bridge.ParseBus([]byte(`{"kind":"Bus","name":"devices","labels":{"a":"b"},"description":"boxes",
		"retention":{"maxAge":"24h","maxBytes":"20GiB"},"dedupWindow":"0s","schemaPolicy":"off"}`))
	if err != nil {
		t.Fatal(err)
	}
	if doc.Name != "devices" || doc.MaxAge != 24*time.Hour || doc.MaxBytes != 20<<30 || doc.DedupWindow != 0 || doc.Labels["a"] != "b" {
		t.Errorf("%+v", doc)
	}
	if doc, err = bridge.ParseBus([]byte(`{"name":"x","retention":{"maxBytes":67108864}}`)); err != nil || doc.MaxBytes != 64<<20 ||
		doc.MaxAge != 168*time.Hour || doc.DedupWindow != 2*time.Minute {
		t.Errorf("defaults: %+v, %v", doc, err)
	}
	if doc.Overflow != bridge.OverflowOldest || doc.Reserve != 0 {
		t.Errorf("defaults of overflow: %+v", doc)
	}
	if doc, err := bridge.ParseBus([]byte(`{"name":"x","retention":{"maxBytes":"40MiB","overflow":"priority","priority":{"type":["alarm"]}}}`)); err != nil ||
		doc.Overflow != bridge.OverflowPriority || doc.Reserve != 20 {
		t.Errorf("priority: %+v, %v", doc, err)
	}
	if doc.SchemaPolicy != bridge.PolicyOff || doc.SchemaSample != 1 || doc.QuarantineBus != "quarantine" || doc.SchemaDiscovery {
		t.Errorf("defaults of schemas: %+v", doc)
	}
	if doc, err = bridge.ParseBus([]byte(`{"name":"x","schemaPolicy":"warn","schemaSample":0.1,"schemaDiscovery":true}`)); err != nil ||
		doc.SchemaPolicy != bridge.PolicyWarn || doc.SchemaSample != 0.1 || !doc.SchemaDiscovery {
		t.Errorf("schemas: %+v, %v", doc, err)
	}
}

func TestParseBusNamesTheField(t *testing.T) {
	for _, c := range []struct{ doc, pointer string }{
		{`{"name":"Upper"}`, "/name"},
		{`{"name":"-a"}`, "/name"},
		{`{}`, "/name"},
		{`{"name":"a","kind":"Rule"}`, "/kind"},
		{`{"name":"a","retention":{"maxAge":"1s"}}`, "/retention/maxAge"},
		{`{"name":"a","retention":{"maxAge":"x"}}`, "/retention/maxAge"},
		{`{"name":"a","retention":{"maxBytes":"1KiB"}}`, "/retention/maxBytes"},
		{`{"name":"a","retention":{"maxBytes":"many"}}`, "/retention/maxBytes"},
		{`{"name":"a","retention":{"maxBytes":true}}`, "/retention/maxBytes"},
		{`{"name":"a","retention":5}`, "/retention"},
		{`{"name":"a","retention":{"maxBytes":"15MiB"}}`, "/retention/maxBytes"},
		{`{"name":"a","retention":{"overflow":"refuse"}}`, "/retention/overflow"},
		{`{"name":"a","retention":{"overflow":1}}`, "/retention/overflow"},
		{`{"name":"a","retention":{"overflow":"newest"}}`, "/retention/maxBytes"},
		{`{"name":"a","retention":{"overflow":"newest","maxBytes":"31MiB"}}`, "/retention/maxBytes"},
		{`{"name":"a","retention":{"overflow":"newest","maxBytes":"1GiB","priority":{"type":["a"]}}}`, "/retention/priority"},
		{`{"name":"a","retention":{"overflow":"newest","maxBytes":"1GiB","reserve":"20%"}}`, "/retention/reserve"},
		{`{"name":"a","retention":{"reserve":"20%"}}`, "/retention/reserve"},
		{`{"name":"a","retention":{"overflow":"priority","maxBytes":"1GiB"}}`, "/retention/priority"},
		{`{"name":"a","retention":{"overflow":"priority","maxBytes":"1GiB","priority":{}}}`, "/retention/priority"},
		{`{"name":"a","retention":{"overflow":"priority","maxBytes":"1GiB","priority":{"Typo":["a"]}}}`, "/retention/priority/Typo"},
		{`{"name":"a","retention":{"overflow":"priority","maxBytes":"1GiB","priority":{"type":"a"}}}`, "/retention/priority/type"},
		{`{"name":"a","retention":{"overflow":"priority","maxBytes":"1GiB","priority":null}}`, "/retention/priority"},
		{`{"name":"a","retention":{"overflow":"priority","maxBytes":"1GiB","priority":{"type":["a"]},"reserve":"91%"}}`, "/retention/reserve"},
		{`{"name":"a","retention":{"overflow":"priority","maxBytes":"1GiB","priority":{"type":["a"]},"reserve":20}}`, "/retention/reserve"},
		{`{"name":"a","retention":{"overflow":"priority","maxBytes":"1GiB","priority":{"type":["a"]},"reserve":"2.5%"}}`, "/retention/reserve"},
		{`{"name":"a","retention":{"overflow":"priority","maxBytes":"39MiB","priority":{"type":["a"]}}}`, "/retention/maxBytes"},
		{`{"name":"a","retention":{"maxAge":"1h","foo":1}}`, "/retention/foo"},
		{`{"name":"a","retention":{"maxage":"1h"}}`, "/retention/maxage"},
		{`{"name":"a","dedupWindow":"25h"}`, "/dedupWindow"},
		{`{"name":"a","dedupWindow":"-1s"}`, "/dedupWindow"},
		{`{"name":"a","schemaPolicy":"strict"}`, "/schemaPolicy"},
		{`{"name":"a","schemaPolicy":true}`, "/schemaPolicy"},
		{`{"name":"a","schemaPolicy":"warn","schemaSample":0}`, "/schemaSample"},
		{`{"name":"a","schemaPolicy":"warn","schemaSample":1.1}`, "/schemaSample"},
		{`{"name":"a","schemaPolicy":"warn","schemaSample":"all"}`, "/schemaSample"},
		{`{"name":"a","schemaPolicy":"quarantine","quarantineBus":"A"}`, "/quarantineBus"},
		{`{"name":"a","schemaPolicy":"quarantine","quarantineBus":"a"}`, "/quarantineBus"},
		{`{"name":"quarantine","schemaPolicy":"quarantine"}`, "/quarantineBus"},
		{`{"name":"a","schemaDiscovery":"yes"}`, "/schemaDiscovery"},
		{`{"name":"a","nmae":1}`, "/nmae"},
		{`{"name":5}`, "/name"},
		{`[]`, ""},
		{``, ""},
		{`{"name":"a"`, ""},
	} {
		_, err := bridge.ParseBus([]byte(c.doc))
		var f *fault.Error
		if !errors.As(err, &f) || f.Kind != fault.Invalid || len(f.Details) == 0 || f.Details[0].Pointer != c.pointer {
			t.Errorf("%s: %v, want a complaint at %q", c.doc, err, c.pointer)
		}
	}
}

// Whatever is taken can be kept: a bus that refuses has room for what retention never removes.
func FuzzParseBus(f *testing.F) {
	for _, doc := range []string{
		`{"kind":"Bus","name":"devices","retention":{"maxAge":"24h","maxBytes":"20GiB"},"dedupWindow":"0s","schemaPolicy":"off"}`,
		`{"name":"a","retention":{"maxBytes":67108864,"overflow":"newest"}}`,
		`{"name":"a","retention":{"maxBytes":"1.5 TB","overflow":"priority","priority":{"type":["a"],"data":{"x":[{"numeric":[">",1]}]}},"reserve":"90%"}}`,
		`{"name":"a","retention":{"maxBytes":"","reserve":"%"}}`, `{"name":"a","retention":{"priority":{"$or":[{"type":["a"]},{"source":["b"]}]}}}`,
		`{"name":"a","retention":{"maxBytes":1e300}}`, `[]`, `{`,
	} {
		f.Add([]byte(doc))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		doc, err := bridge.ParseBus(raw)
		if err != nil {
			if fault.KindOf(err) != fault.Invalid {
				t.Errorf("refused with %v", err)
			}
			return
		}
		refuses := doc.Overflow != bridge.OverflowOldest
		if doc.MaxBytes < 0 || doc.MaxAge < time.Minute || refuses && doc.MaxBytes < 32<<20 || (doc.Overflow == bridge.OverflowPriority) != (doc.Reserve > 0) ||
			doc.MaxBytes-doc.MaxBytes/100*int64(doc.Reserve) < 32<<20 && refuses {
			t.Errorf("taken: %+v", doc)
		}
	})
}
