// SPDX-License-Identifier: Apache-2.0

package schema

// arrays is rules A1 to A3.
func (c *checker) arrays(w *writer, r *js) []found {
	var out []found
	least, most, alike := c.counts(w)
	if r.MinItems != nil && least < *r.MinItems {
		out = append(out, c.fail(w, r, "A2", "the writer may send fewer items than the reader's minItems")...)
	}
	if r.MaxItems != nil && most > *r.MaxItems {
		out = append(out, c.fail(w, r, "A2", "the writer may send more items than the reader's maxItems")...)
	}
	prefix, _ := prefixOf(r)
	for i := 0; i <= max(alike, len(prefix)) && i < most; i++ {
		out = append(out, c.itemAt(w, r, i)...)
	}
	out = append(out, c.unique(w, r, most)...)
	out = append(out, c.contains(w, r, least, most)...)
	return append(out, c.unevaluatedItems(w, r, most)...)
}

func (c *checker) itemAt(w *writer, r *js, at int) []found {
	prefix, rest := prefixOf(r)
	rule := "A1"
	var want *js
	switch rest := rest.(type) {
	case bool:
		if !rest {
			want = falseSchema
		}
	case *js:
		want = rest
	}
	if at < len(prefix) {
		want = prefix[at]
	}
	if len(prefix) > 0 {
		rule = "A2"
	}
	if want == nil {
		return nil
	}
	return c.inItem(w, r, at, want, rule)
}

func (c *checker) inItem(w *writer, r *js, at int, want *js, rule string) []found {
	parts, absent := items(w, at)
	if absent {
		return nil
	}
	out := c.fitsAll(conj(parts...), want)
	for i := range out {
		f := &out[i]
		if len(parts) == 0 || want.Bool != nil {
			f.rule = rule
		}
		f.writer, f.reader = inside(f.writer, w.pointer()), inside(f.reader, pointerOf(r))
		f.plain = f.plain && !w.loose
		f.shown = c.wrapItem(w, at, f.shown)
	}
	return out
}

func (c *checker) unique(w *writer, r *js, most int) []found {
	if !r.UniqueItems || most <= 1 {
		return nil
	}
	for _, s := range w.local {
		if s.UniqueItems {
			return nil
		}
	}
	return c.fail(w, r, "A3", "the writer may send equal items, and the reader wants unique ones")
}

func (c *checker) contains(w *writer, r *js, least, most int) []found {
	if r.Contains == nil {
		return nil
	}
	want := 1
	if r.MinContains != nil {
		want = *r.MinContains
	}
	var out []found
	if want > 0 && !c.surelyContains(w, r.Contains, want, least) {
		out = c.fail(w, r, "A3", "the writer may send arrays that lack what the reader wants them to contain")
	}
	if r.MaxContains != nil && most > *r.MaxContains && !c.atMostContains(w, r.Contains, *r.MaxContains) {
		out = append(out, c.doubt(w, r, "A3", "the writer may send more of what the reader counts than its maxContains")...)
	}
	return out
}

// surelyContains reports whether each array of w has want items of a sort.
func (c *checker) surelyContains(w *writer, sort *js, want, least int) bool {
	for _, s := range w.local {
		n := 1
		if s.MinContains != nil {
			n = *s.MinContains
		}
		if s.Contains != nil && n >= want && (c.equal(s.Contains, sort) || len(c.fitsAll(conj(s.Contains), sort)) == 0) {
			return true
		}
	}
	if least < want {
		return false
	}
	for i := range want {
		parts, absent := items(w, i)
		if !absent && len(c.fitsAll(conj(parts...), sort)) > 0 {
			return false
		}
	}
	return true
}

func (c *checker) atMostContains(w *writer, sort *js, most int) bool {
	for _, s := range w.local {
		if s.Contains != nil && s.MaxContains != nil && *s.MaxContains <= most && c.equal(s.Contains, sort) {
			return true
		}
	}
	return false
}

// unevaluatedItems is rule A1 for that keyword: items that no part of the reader is sure to look at must fit it.
func (c *checker) unevaluatedItems(w *writer, r *js, most int) []found {
	want := r.UnevaluatedItems
	if want == nil || want.Bool != nil && *want.Bool {
		return nil
	}
	sure, maybe := evaluatedBy(r)
	first := 0 // item that may be unevaluated
	for s := range sure {
		prefix, rest := prefixOf(s)
		if rest != nil {
			return nil
		}
		first = max(first, len(prefix))
		if s.Contains != nil {
			maybe[s] = true // what contains has met is evaluated
		}
	}
	_, _, alike := c.counts(w)
	var out []found
	for i := first; i <= max(alike, first) && i < most; i++ {
		for _, f := range c.inItem(w, r, i, want, "A1") {
			if len(maybe) > 0 {
				f.open, f.plain, f.reason = true, false, "whether the reader evaluates an item is not decided: "+f.reason
			}
			out = append(out, f)
		}
	}
	return out
}
