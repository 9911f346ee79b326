// SPDX-License-Identifier: Apache-2.0

package notice

import "strings"

// blocks are what a line of Markdown may begin with that makes it more than a line.
const blocks = "#>-+*=`|~ \t"

// Plain takes the meaning of Markdown from a value, for platforms that know no way to escape it: links, pictures, mentions,
// tags, code and lines that begin as headings, quotes or lists come apart by characters of no width. Emphasis stays, which
// does no harm.
func Plain(s string) string {
	s = Apart(Block(s), "](", "![", "<", "```")
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
	return begin + Cut(Apart(s, "```"), limit-len(begin)-len(end)) + end
}
