// SPDX-License-Identifier: Apache-2.0

package sparkplug_test

import (
	"encoding/base64"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// tahu is a payload with a metric of each kind as Eclipse Tahu for JavaScript (sparkplug-payload 1.0.3) encodes it.
const tahu = "COry9aigKxIcChROb2RlIENvbnRyb2wvUmViaXJ0aBABIAtwABIMCgJpOCABUOn///8PEg0KA2kxNiACUNCV/v8PEg0KA2kzMiADUMCy8P8PEhIKA2k2NCAEWLDH7ZT+8uTi/wESCQoCdTggBVD6ARILCgN1MTYgBlDo+wMSDQoDdTMyIAdY+v///w8SEAoDdTY0IAhY/////////w8SCgoBZiAJZQAAwD8SDgoBZCAKaXpwL9P8sChAEhAKAXMgDHoJZ3LDvG4gIngiEg0KAmR0IA1Y6vL1qKArEgoKA3R4dCAOegF0Eg4KBHV1aWQgD3oEOWIwYRIOCgVieXRlcyARggECAP8SEQoEbnVsbBjw8fWooCsgAzgBEmYKBGhpc3QgAygBMAFCJQgAEgp0ZXh0L3BsYWluGAkgACoFYS50eHQyA3R4dDoCMGZCAWRKLwoHZW5nVW5pdAoDbG93CgdRdWFsaXR5EgUIDEIBQxIICAMY+////w8SBQgDGMABUAESLwoCZHMgEIoBJggCEgFhEgFiGAEYDCINCgYI/////w8KAzIBeCIJCgIIBQoDMgF5EjMKA3RwbCATkgEpCgJ2MRINCgNycG0gA1D5////DxoLCgFwEAMY/////w8iBW1vdG9yKAAYAyIDdS0x"

func TestPayloadOfAPeer(t *testing.T) {
	data, err := base64.StdEncoding.DecodeString(tahu)
	if err != nil {
		t.Fatal(err)
	}
	got, err := encode(t, "spBv1.0/g/NBIRTH/n", data, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"message":"NBIRTH","group":"g","node":"n","timestamp":1486144502122,"seq":3,"uuid":"u-1","metrics":{` +
		`"Node Control/Rebirth":{"value":false,"type":"Boolean","alias":1},` +
		`"i8":{"value":-23,"type":"Int8"},"i16":{"value":-30000,"type":"Int16"},"i32":{"value":-255680,"type":"Int32"},"i64":{"value":-16444743074749520,"type":"Int64"},` +
		`"u8":{"value":250,"type":"UInt8"},"u16":{"value":65000,"type":"UInt16"},"u32":{"value":4294967290,"type":"UInt32"},"u64":{"value":9007199254740991,"type":"UInt64"},` +
		`"f":{"value":1.5,"type":"Float"},"d":{"value":12.345678901234567,"type":"Double"},"s":{"value":"grün \"x\"","type":"String"},` +
		`"dt":{"value":1486144502122,"type":"DateTime"},"txt":{"value":"t","type":"Text"},"uuid":{"value":"9b0a","type":"UUID"},"bytes":{"value":"AP8=","type":"Bytes"},` +
		`"null":{"value":null,"isNull":true,"type":"Int32","timestamp":1486144502000},` +
		`"hist":{"value":1,"type":"Int32","isHistorical":true,"isTransient":true,` +
		`"metadata":{"isMultiPart":false,"contentType":"text/plain","size":9,"seq":0,"fileName":"a.txt","fileType":"txt","md5":"0f","description":"d"},` +
		`"properties":{"engUnit":"C","low":-5,"Quality":192}},` +
		`"ds":{"value":{"columns":["a","b"],"types":["Int8","String"],"rows":[[-1,"x"],[5,"y"]]},"type":"DataSet"},` +
		`"tpl":{"value":{"version":"v1","reference":"motor","isDefinition":false,"parameters":{"p":-1},"metrics":{"rpm":{"value":-7,"type":"Int32"}}},"type":"Template"}}}`
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("JSON (-want +got):\n%s", d)
	}
}
