// SPDX-License-Identifier: Apache-2.0

package schema_test

import (
	"bytes"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/rialto-bridge/rialto/schema"
)

// order is an event of fifteen fields, and its schema.
const (
	orderDoc = `{"id":"o-1029","customer":"c-77","placedAt":"2026-11-30T06:00:00Z","currency":"EUR","total":129.5,"paid":true,"channel":"web",
"shipTo":{"name":"A. Person","street":"Main 1","zip":"12345","country":"DE"},"lines":[{"sku":"ab-1","qty":2},{"sku":"cd-2","qty":1}]}`
	orderSchema = `{"type":"object","required":["id","customer","placedAt","total","lines"],"properties":{
"id":{"type":"string","pattern":"^o-[0-9]+$"},"customer":{"type":"string","minLength":1},"placedAt":{"type":"string","format":"date-time"},
"currency":{"enum":["EUR","USD","GBP"]},"total":{"type":"number","minimum":0},"paid":{"type":"boolean"},"channel":{"type":"string"},
"shipTo":{"$ref":"#/$defs/address"},"lines":{"type":"array","minItems":1,"items":{"type":"object","required":["sku","qty"],"properties":{
"sku":{"type":"string","maxLength":20},"qty":{"type":"integer","minimum":1}}}}},
"$defs":{"address":{"type":"object","required":["name","zip"],"properties":{"name":{"type":"string"},"street":{"type":"string"},"zip":{"type":"string"},"country":{"type":"string","minLength":2,"maxLength":2}}}}}`
)

func BenchmarkDecode(b *testing.B) {
	b.Run("ours", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := schema.Decode([]byte(orderDoc)); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("library", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := jsonschema.UnmarshalJSON(bytes.NewReader([]byte(orderDoc))); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkValidate checks a document by the quick check, and by the library alone: decoding included.
func BenchmarkValidate(b *testing.B) {
	s, err := schema.Compile(b.Context(), schema.JSONSchema, orderSchema, nil, schema.NoSource)
	if err != nil {
		b.Fatal(err)
	}
	data := []byte(orderDoc)
	b.Run("quick", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if err := s.ValidateJSON(data); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("library", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			doc, err := schema.Decode(data)
			if err == nil {
				err = s.Validate(doc)
			}
			if err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkCompare(b *testing.B) {
	older, err := schema.Compile(b.Context(), schema.JSONSchema, orderSchema, nil, schema.NoSource)
	if err != nil {
		b.Fatal(err)
	}
	newer, err := schema.Compile(b.Context(), schema.JSONSchema, orderSchema[:len(orderSchema)-1]+`,"title":"x","minProperties":1}`, nil, schema.NoSource)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if v := schema.Compare(older, newer, schema.Full, schema.Lenient); v.Outcome != schema.Compatible {
			b.Fatalf("%+v", v)
		}
	}
}
