// SPDX-License-Identifier: Apache-2.0

package event

// Limits bounds what a decoder accepts and what Validate allows. Every zero field means its default, so that Limits{}
// is ready for use.
type Limits struct {
	MaxData        int // bytes of data; default 1 MiB
	MaxAttribute   int // bytes of id, source, type and datacontenttype; default 1 KiB
	MaxText        int // bytes of subject and dataschema; default 8 KiB
	MaxExtension   int // bytes of an extension's value; default 4 KiB
	MaxName        int // bytes of an extension's name; default 64
	MaxExtensions  int // number of extensions; default 128
	MaxHeader      int // bytes of all attributes as AppendNATS encodes them; default and ceiling 60 KiB, because the log stores at most 65,535
	MaxBatchEvents int // events in a batch; default 1000
	MaxDepth       int // nesting of JSON data; default 1000
}

// maxHeader leaves room in the 65,535 bytes of a stored header block for the headers that the log itself adds.
const maxHeader = 60 << 10

// defaultDepth is how deep JSON data may be nested. AppendJSON embeds nothing deeper, whatever Limits say.
const defaultDepth = 1000

// withDefaults returns l with the defaults filled in.
func (l Limits) withDefaults() Limits {
	orDefault(&l.MaxData, 1<<20)
	orDefault(&l.MaxAttribute, 1<<10)
	orDefault(&l.MaxText, 8<<10)
	orDefault(&l.MaxExtension, 4<<10)
	orDefault(&l.MaxName, 64)
	orDefault(&l.MaxExtensions, 128)
	orDefault(&l.MaxHeader, maxHeader)
	orDefault(&l.MaxBatchEvents, 1000)
	orDefault(&l.MaxDepth, defaultDepth)
	l.MaxHeader = min(l.MaxHeader, maxHeader)
	return l
}

func orDefault(v *int, def int) {
	if *v <= 0 {
		*v = def
	}
}
