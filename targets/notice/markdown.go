// SPDX-License-Identifier: Apache-2.0

package notice

import "strings"

// blocks are what a line of Markdown may begin with that makes it more than a line.
const blocks = "#>-+*=`|~ \t"

// marks are the characters that links, pictures, mentions, tags and code are made of, also in the wide forms that some platforms take
// for the others. Each comes apart from what follows, and not only the pairs that mean something: what follows may be the next value.
var marks = []string{"[", "]", "!", "<", tick, "［", "］", "！", "＜", "〈", "｀"}

// tick is what code is set off with. A run of them is taken apart whole: three of four would still be a fence.
const tick = "`"

// Plain takes the meaning of Markdown from a value, for platforms that know no way to escape it: links, pictures, mentions,
// tags, code and lines that begin as headings, quotes or lists come apart by characters of no width. So they do if several values
// stand side by side. Emphasis stays, which does no harm.
func Plain(s string) string {
	s = Apart(Block(s), marks...)
	s = strings.ReplaceAll(s, "\n", "\n\u200b")
	if s != "" && strings.IndexByte(blocks, s[0]) >= 0 {
		s = "\u200b" + s
	}
	return s
}

// Fence is a text as a block of code; "" if there is none. Nothing in it ends the block.
func Fence(s string, limit int) string {
	const begin, end = "```\n", "\n```"
	if s == "" || limit <= len(begin)+len(end) {
		return ""
	}
	return begin + Cut(Unfenced(s), limit-len(begin)-len(end)) + end
}

// Unfenced is a text that ends no block of code that it stands in.
func Unfenced(s string) string { return Apart(s, tick) }
