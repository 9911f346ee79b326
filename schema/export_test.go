// SPDX-License-Identifier: Apache-2.0

package schema

// Samples returns documents of a JSON Schema's writers by a policy.
func (c *Compiled) Samples(p Policy) []any { return newChecker(p).samples(conj(c.json.root), 0) }

// Writes reports whether a writer of c sends doc by a policy.
func (c *Compiled) Writes(p Policy, doc any) bool {
	return c.json.root.Validate(doc) == nil && newChecker(p).writes(conj(c.json.root), doc, 0)
}

// Deepest is how deep documents of a recurring schema may be nested; 0 = no limit of its own.
func (c *Compiled) Deepest() int { return c.json.deepest }

// Quick reports whether the quick check of a schema knows that a document is valid, and whether there is one.
func (c *Compiled) Quick(doc []byte) (valid, there bool) {
	return c.json.quick != nil && c.json.quick.fits(doc), c.json.quick != nil
}
