// SPDX-License-Identifier: Apache-2.0

package rules

import "strings"

// The evaluator walks the event and the terms of a pattern side by side. What it computes is this:
//
// A place is where a path leads to: the values there (more than one when names are repeated in the event), inside one
// chosen element of every array of objects on the way. A field holds at its place if one of its tests holds for a
// scalar there, arrays of scalars being looked into, or if it has {"exists":false} and no scalar is there. Terms below
// an array of objects hold if there is one element in which all of them hold (array consistency). A $or holds if there
// is a branch that holds together with everything else.
//
// {"exists":false} is judged for the element that the other fields bind. So an element counts as chosen only if some
// test holds for a scalar in it; otherwise nothing is chosen, and what must be absent must be absent from all.
//
// Every value is visited at most once for each term and each combination of branches, so the cost is linear in the
// event. Nothing is allocated: places and lists of terms are stacks in the direct.

// verdict is what became of some terms at a place, from worst to best.
type verdict uint8

const (
	fails verdict = iota
	holds         // with nothing but absences: no scalar was needed
	binds         // by way of a scalar
)

// ref is a value at a place. A name with dots in the event reads as objects inside each other, so a ref may also be an
// object that has only one member: the value of node, under the part of its key from offset on.
type ref struct {
	node   int32
	offset int32 // 0: node itself
}

// matches evaluates p against what is loaded.
func (s *direct) matches(p *Pattern) bool {
	s.terms = s.terms[:0]
	s.refs = append(s.refs[:0], ref{})
	return s.satisfy(s.refs[:1], p.evaluated(), 0) != fails
}

// satisfy evaluates terms whose paths lead through place after depth steps. They are sorted by less.
func (s *direct) satisfy(place []ref, terms []*term, depth int) verdict {
	here := 0
	for here < len(terms) && len(terms[here].path) == depth {
		if terms[here].or != nil {
			return s.choose(place, terms, here, depth)
		}
		here++
	}
	best := holds
	for _, t := range terms[:here] {
		v := s.look(place, t.field)
		if v == fails {
			return fails
		}
		best = max(best, v)
	}
	terms = terms[here:]
	if len(terms) == 0 {
		return best
	}
	if s.hasArray(place) {
		v := s.bind(place, terms, depth)
		if v == fails {
			return fails
		}
		return max(best, v)
	}
	for len(terms) > 0 {
		step := terms[0].path[depth]
		n := 1
		for n < len(terms) && terms[n].path[depth] == step {
			n++
		}
		mark := len(s.refs)
		v := s.satisfy(s.step(place, step), terms[:n], depth+1)
		s.refs = s.refs[:mark]
		if v == fails {
			return fails
		}
		best = max(best, v)
		terms = terms[n:]
	}
	return best
}

// choose evaluates terms with each branch of the $or terms[i] in turn.
func (s *direct) choose(place []ref, terms []*term, i, depth int) verdict {
	best := fails
	for _, branch := range terms[i].or {
		mark := len(s.terms)
		s.merge(terms[:i], terms[i+1:], branch)
		best = max(best, s.satisfy(place, s.terms[mark:], depth))
		s.terms = s.terms[:mark]
		if best == binds {
			break
		}
	}
	return best
}

// merge pushes head and tail, which are one sorted list, and branch, which is another.
func (s *direct) merge(head, tail, branch []*term) {
	for len(head)+len(tail) > 0 || len(branch) > 0 {
		if len(head) == 0 {
			head, tail = tail, nil
		}
		switch {
		case len(head) == 0 || len(branch) > 0 && less(branch[0], head[0]) < 0:
			s.terms = append(s.terms, branch[0])
			branch = branch[1:]
		default:
			s.terms = append(s.terms, head[0])
			head = head[1:]
		}
	}
}

// look evaluates a field at its place.
func (s *direct) look(place []ref, f *field) verdict {
	found := false
	for i := range s.scalars(place) {
		found = true
		if f.holds(s.doc.nodes[i].value) {
			return binds
		}
	}
	if !found && f.absent {
		return holds
	}
	return fails
}

// holds reports whether one of the tests holds for a scalar.
func (f *field) holds(v value) bool {
	for _, t := range f.tests {
		if t.holds(v) {
			return true
		}
	}
	return false
}

// scalars yields the nodes of the scalars at a place and of the arrays there, at any depth but never inside objects.
func (s *direct) scalars(place []ref) func(yield func(int32) bool) {
	return func(yield func(int32) bool) {
		for _, r := range place {
			if r.offset != 0 {
				continue
			}
			for j := r.node; j < s.doc.nodes[r.node].next; {
				switch n := &s.doc.nodes[j]; n.kind {
				case kindObject:
					j = n.next
				case kindArray:
					j++
				default:
					if !yield(j) {
						return
					}
					j++
				}
			}
		}
	}
}

func (s *direct) hasArray(place []ref) bool {
	for _, r := range place {
		if r.offset == 0 && s.doc.nodes[r.node].kind == kindArray {
			return true
		}
	}
	return false
}

// bind evaluates terms below a place that has an array: all of them in one element by way of a scalar, or all of them
// in none.
func (s *direct) bind(place []ref, terms []*term, depth int) verdict {
	for element := range s.elements(place) {
		mark := len(s.refs)
		s.refs = append(s.refs, element)
		v := s.satisfy(s.refs[mark:], terms, depth)
		s.refs = s.refs[:mark]
		if v == binds {
			return binds
		}
	}
	if s.allAbsent(place, terms, depth) {
		return holds
	}
	return fails
}

// elements yields the arrays and objects that are elements of the arrays at a place. When names are repeated in the
// event, all that stands there counts as one array, and an object beside an array as an element.
func (s *direct) elements(place []ref) func(yield func(ref) bool) {
	return func(yield func(ref) bool) {
		for _, r := range place {
			n := &s.doc.nodes[r.node]
			switch {
			case r.offset != 0 || n.kind == kindObject:
				if !yield(r) {
					return
				}
			case n.kind == kindArray:
				for j := r.node + 1; j < n.next; j = s.doc.nodes[j].next {
					if !s.doc.nodes[j].kind.scalar() && !yield(ref{node: j}) {
						return
					}
				}
			}
		}
	}
}

// step pushes the place that a step from an objects-only place leads to, and returns it.
func (s *direct) step(place []ref, name string) []ref {
	mark := len(s.refs)
	for _, r := range place {
		switch {
		case r.offset != 0:
			s.member(r.node, r.offset, name)
		case s.doc.nodes[r.node].kind == kindObject:
			if r.node == 0 && name == dataName {
				s.loadData()
			}
			for j := r.node + 1; j < s.doc.nodes[r.node].next; j = s.doc.nodes[j].next {
				s.member(j, 0, name)
			}
		}
	}
	return s.refs[mark:]
}

// member pushes node j if its key, from offset on, is name or begins with name and a dot.
func (s *direct) member(j, offset int32, name string) {
	key := s.doc.nodes[j].key[offset:]
	if len(key) < len(name) || string(key[:len(name)]) != name {
		return
	}
	switch {
	case len(key) == len(name):
		s.refs = append(s.refs, ref{node: j})
	case key[len(name)] == '.':
		s.refs = append(s.refs, ref{node: j, offset: offset + int32(len(name)) + 1})
	}
}

// allAbsent reports whether terms hold because no scalar is at any of their paths, in any element of any array.
func (s *direct) allAbsent(place []ref, terms []*term, depth int) bool {
	for _, t := range terms {
		switch {
		case t.or != nil:
			if !s.anyAbsent(place, t.or, depth) {
				return false
			}
		case !t.field.absent || s.anyScalar(place, t.path[depth:]):
			return false
		}
	}
	return true
}

func (s *direct) anyAbsent(place []ref, branches [][]*term, depth int) bool {
	for _, branch := range branches {
		if s.allAbsent(place, branch, depth) {
			return true
		}
	}
	return false
}

// anyScalar reports whether a scalar is at path below place, in any element of any array.
func (s *direct) anyScalar(place []ref, path []string) bool {
	for range s.all(place, path) {
		return true
	}
	return false
}

// all yields the nodes of the scalars at path below place, in all elements of all arrays.
func (s *direct) all(place []ref, path []string) func(yield func(int32) bool) {
	return func(yield func(int32) bool) { s.walk(place, path, yield) }
}

func (s *direct) walk(place []ref, path []string, yield func(int32) bool) bool {
	if len(path) == 0 {
		for i := range s.scalars(place) {
			if !yield(i) {
				return false
			}
		}
		return true
	}
	mark := len(s.refs)
	defer func() { s.refs = s.refs[:mark] }()
	if !s.hasArray(place) {
		return s.walk(s.step(place, path[0]), path[1:], yield)
	}
	for element := range s.elements(place) {
		s.refs = append(s.refs[:mark], element)
		if !s.walk(s.refs[mark:], path, yield) {
			return false
		}
	}
	return true
}

// joined is a path as people write it.
func joined(path []string) string { return strings.Join(path, ".") }
